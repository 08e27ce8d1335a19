# SPDX-License-Identifier: Apache-2.0
"""Whole steps with and without pipelines, in the schedule of a TPU compiler.

    python -m benchmarks.overlap.steps [--target tpu:v5e:2x4] [--size large]
        [--programs llama_train_step,mixed_gpt,moe_layer,fsdp_forward,fsdp_gradient] [--out FILE.md]

The programs are those of `python -m benchmarks.programs list`, and the loops of `benchmarks/overlap/fsdp.py`. Each is
compiled ahead of time as it came, written per device as by `--emit=local`, and that with pipelines in place of
collectives next to products: with those of each pattern, one pattern after the other, as the whole-module check tries
them; a pattern is kept if it makes the modelled time of the schedule and the compiler's estimate shorter. Memory is
what is allocated. `--emit=auto` may hand over another form, see `benchmarks/ahead_of_time.py`; here the form is the
same with and without pipelines.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.progress import shown
from benchmarks.programs.__main__ import use_devices
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla.child import Compiled, shared_child
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.network import SiteNetwork, of_target_for
from reshard.passes.whole_module.pipelined import by_pattern, pattern_of, pipelined
from reshard.synthesis.common.numbers import mebibytes
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.forms.platforms import platform_of

_TIMEOUT_S = 1800.0
_HEADINGS = (
    "program", "form", "pipelines", "estimate in us", "modelled in us", "in collectives", "beside local work",
    "allocated in MiB",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One form of a program on a network. `pipelines`: their number, None where there can be none."""

    network: SiteNetwork
    program: str
    form: str
    pipelines: int | None
    compiled: Compiled

    def cells(self, devices: int) -> tuple[str, ...]:
        if not self.compiled.is_ok:
            return (self.program, self.form, self.compiled.message.splitlines()[0], *[""] * (len(_HEADINGS) - 3))
        time = self.network.final_time_of(self.compiled, devices)
        estimate = self.compiled.estimated_seconds
        return (
            self.program,
            self.form,
            "" if self.pipelines is None else str(self.pipelines),
            "none" if estimate is None else f"{1e6 * estimate:,.0f}",
            *(f"{1e6 * each:,.0f}" for each in ((time.seconds, time.collectives_s, time.hidden_s) if time else ())),
            mebibytes(present(self.compiled.peak_bytes), 1),
        )


class _Steps:
    """Compiles the forms of one program for a target."""

    def __init__(self, name: str, target: Target):
        self.name, self.target = name, target
        self.session = Session(RunOptions(compile_for=target))

    def rows(self, text: str) -> Iterator[Row]:
        """Yields the program as it came, written per device, and with the pipelines of each pattern."""
        with make_context() as context, ir.Location.unknown(context):
            self.network = SiteNetwork(of_target_for(self.target, ir.Module.parse(text)))
        yield Row(self.network, self.name, "stock", None, self._compiled(text))
        options = {"topology": self.network.text, "platform": platform_of(self.target.platform)}
        with make_context() as context, ir.Location.unknown(context):
            module = ir.Module.parse(text)
            Pipeline.emitting("local", options).run(module, self.session)
            best = self._compiled(str(module))
            yield Row(self.network, self.name, "per device", None, best)
            _, found = pipelined(module, self.session, self.network)
            patterns = {row["site"]: pattern_of(row) for row in found}
            taken: list[int] = []
            for numbers in by_pattern(found):
                written, _ = pipelined(module, self.session, self.network, only=taken + numbers)
                compiled = self._compiled(str(written))
                yield Row(self.network, self.name, f"with {patterns[numbers[0]]}", len(taken + numbers), compiled)
                if self._is_shorter(compiled, best):
                    taken, best = taken + numbers, compiled

    def _compiled(self, text: str) -> Compiled:
        child, devices = shared_child(), self.target.devices
        compiled = child.compile(text, devices, target=self.target, with_estimate=False, timeout_s=_TIMEOUT_S)
        return child.estimated(compiled, text, devices, self.target, timeout_s=_TIMEOUT_S)

    def _is_shorter(self, one: Compiled, other: Compiled) -> bool:
        if not (one.is_ok and other.is_ok):
            return one.is_ok
        mine, theirs = (self.network.final_time_of(each, self.target.devices) for each in (one, other))
        if mine is None or theirs is None:  # an op without a price, as between slices
            return False
        return mine.seconds < theirs.seconds and (one.estimated_seconds or 0) <= (other.estimated_seconds or 0)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    use_devices(options.target.devices)
    rows = []
    for name in shown(options.programs.split(","), "programs"):
        try:
            text = _text(name, options)
        except argparse.ArgumentTypeError as problem:
            print(f"error: {problem}", file=sys.stderr)
            return 2
        rows += _Steps(name, options.target).rows(text)
    cells = [row.cells(options.target.devices) for row in rows]
    table = markdown_table(_HEADINGS, cells, "ll" + "r" * (len(_HEADINGS) - 2))
    said = "\n".join([f"{options.target}:", "", table])
    print(said)
    if options.out:
        options.out.write_text(said + "\n")
    return 0


def _text(name: str, options: argparse.Namespace) -> str:
    """Returns the lowered program of a name, for the devices of the target."""
    from benchmarks.ahead_of_time import programs_of  # it loads jax
    from benchmarks.overlap import fsdp

    if name in fsdp.NAMES:
        return fsdp.lowered(name, options.target.devices).as_text()
    (entry,) = programs_of(name)
    size = options.size if options.size in entry.sizes else entry.sizes[-1]
    return entry.lower_over(options.target.devices, size)[1].as_text()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=Target.parse, default="tpu:v5e:2x4")
    parser.add_argument("--programs", default="llama_train_step,mixed_gpt,moe_layer,fsdp_forward,fsdp_gradient")
    parser.add_argument("--size", default="large", help="of the programs; the largest one where there is no such size")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the table to a file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
