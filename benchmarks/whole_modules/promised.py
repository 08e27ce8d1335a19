# SPDX-License-Identifier: Apache-2.0
"""Compares what `reshard.optimize` promises without a target's compiler with what that compiler makes of the module.

    python -m benchmarks.whole_modules.promised [--target tpu:v5e:2x4] [--programs NAME,...] [--size demo]
        [--emit auto] [--out FILE.md]

Forms are compared as XLA partitions them for CPU devices, with times modelled on the target's network; so a TPU or GPU
decides if nobody says `compile_for`. Then the target's compiler compiles both, and its final programs are modelled on
the same network. It hides collectives behind work, for stock XLA as well; what else it does to collectives is foreseen
(`dialect_utils.hlo.accelerators`).
With `--emit local` every program is written per device, also where the model promises too little for that.
The exit status is 1 if a rewritten program is slower than stock XLA's by both, final model and compiler's estimate.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.progress import replace_line
from benchmarks.harness.tables import show
from benchmarks.programs.__main__ import named, use_devices
from reshard.compiling.optimizing import optimized_module
from reshard.configuration.settings import resolved
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.xla.child import Compiled, comparable_estimates, shared_child
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.sites.network import SiteNetwork, of_target_for
from reshard.synthesis.common.numbers import mebibytes

if TYPE_CHECKING:
    from benchmarks.programs.program import Program

_SLOWER = 1.02
_PROGRAMS = (
    "moe_layer,fft_pencil,haiku_two_tower,recommender,llama_train_step,mixed_gpt,vision_transformer,nnx_t5,linen_lm,"
    "penzai_llama,optax_muon,nnx_convnext,equinox_mixer,cfd_turbulence,decode_step,layer_stack,heat_adi"
)
_HEADINGS = (
    "program", "promised: stock us", "ours", "ours / stock", "final: stock us", "ours", "ours / stock",
    "estimate: stock us", "ours", "ours / stock", "received MB: stock", "ours", "memory MiB: stock", "ours",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """One number of both programs; None if it is unknown."""

    stock: float | None
    ours: float | None

    @property
    def ratio(self) -> float | None:
        return self.ours / self.stock if self.stock and self.ours else None


@dataclass(frozen=True, slots=True)
class Row:
    """A program; seconds, bytes per device. `problem` if it is not rewritten, or does not compile."""

    program: str
    promised: Pair = Pair(None, None)
    final: Pair = Pair(None, None)
    estimate: Pair = Pair(None, None)
    received: Pair = Pair(None, None)
    memory: Pair = Pair(None, None)
    problem: str = ""

    @property
    def is_slower(self) -> bool:
        ratios = [each.ratio for each in (self.final, self.estimate) if each.ratio is not None]
        return bool(ratios) and min(ratios) > _SLOWER

    def cells(self) -> list[str]:
        if self.problem:
            return [self.program, self.problem, *[""] * (len(_HEADINGS) - 2)]
        times = [text for each in (self.promised, self.final, self.estimate) for text in _times(each)]
        received = [f"{each / 1e6:,.2f}" for each in (self.received.stock or 0, self.received.ours or 0)]
        memory = [mebibytes(int(each or 0), 1) for each in (self.memory.stock, self.memory.ours)]
        return [self.program, *times, *received, *memory]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", type=Target.parse, default="tpu:v5e:2x4")
    parser.add_argument("--programs", type=lambda text: text.split(","), default=_PROGRAMS)
    parser.add_argument("--size", default="demo")
    parser.add_argument("--emit", choices=("auto", "local"), default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    use_devices(options.target.devices)
    try:
        programs = named(options.programs)
    except ValueError as unknown:
        parser.error(str(unknown))
    rows = []
    for program in programs:
        replace_line(program.name)
        rows.append(_measured(program, options.target, options.size, options.emit))
    show(_HEADINGS, [row.cells() for row in rows], "l" + "r" * 13, options.out)
    return int(any(row.is_slower for row in rows))


def _measured(program: Program, target: Target, size: str, emit: str) -> Row:
    name = program.name
    module: Any = program.lower(size).compiler_ir("stablehlo")
    content, network = compat.bytecode(module), SiteNetwork(of_target_for(target, module))
    settings = resolved({"topology": network.topology, "emit": emit}, {})
    found = optimized_module(content, settings, name, is_from_jax=False)
    if found.content == content:
        return Row(name, problem="as it came")
    devices = target.devices
    stands_in = network.stands_in
    partitioned = [shared_child().compile(each, devices, stands_in=stands_in) for each in (content, found.content)]
    stock, ours = final = [shared_child().compile(each, devices, target=target) for each in (content, found.content)]
    if failed := next((each for each in (*partitioned, *final) if not each.is_ok), None):
        return Row(name, problem=f"{failed.status}: {failed.reason[:100]}")
    return Row(
        name,
        Pair(*(network.time_of(each, devices).seconds for each in partitioned)),
        Pair(*(_final_s(network, each, devices) for each in final)),
        Pair(*(comparable_estimates(stock, ours) or (None, None))),
        Pair(*(each.final_bytes_received for each in final)),
        Pair(*(each.peak_memory_bytes for each in final)),
    )


def _final_s(network: SiteNetwork, compiled: Compiled, devices: int) -> float | None:
    time = network.final_time_of(compiled, devices)
    return None if time is None else time.seconds


def _times(pair: Pair) -> list[str]:
    if pair.stock is None or pair.ours is None:
        return ["none", "none", ""]
    return [f"{pair.stock * 1e6:,.0f}", f"{pair.ours * 1e6:,.0f}", f"{pair.ours / pair.stock:.3f}"]


if __name__ == "__main__":
    sys.exit(main())
