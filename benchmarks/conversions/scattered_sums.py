# SPDX-License-Identifier: Apache-2.0
"""Compiles single reduce_scatters for a TPU, as programs have them and as we write them, and prints what is left.

    python benchmarks/conversions/scattered_sums.py [--target tpu:v5e:2x4] [--shapes N] [--out FILE.md]
    python benchmarks/conversions/scattered_sums.py --slices [tpu:v5e:4x4,...]

A case is a tile of float32 that eight devices sum, and of which each keeps a part along one dimension. The compiler
keeps the reduce_scatter, or sums the whole tile on every device; the table has what a device receives in its final
program, and the peak of memory, with the collective as it came and behind the pass decompose-collectives. The exit
status is 1 if the compiler does something else than `whole_tiles.is_kept` says, but for three that are known, if the
collective that we write is no reduce_scatter, or if it receives more or needs more memory.

With `--slices`, a case is a slice and some of its dimensions, along which chips sum large tiles: whether the compiler
keeps the reduce_scatter, beside what `Level.is_crossed_in_phases` says.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.harness.arguments import target, targets  # noqa: E402
from benchmarks.harness.progress import replace_line  # noqa: E402
from reshard.dialect_utils.platform.bindings import ir, make_context  # noqa: E402
from reshard.dialect_utils.platform.typed import present  # noqa: E402
from reshard.dialect_utils.xla.child import Compiled, shared_child  # noqa: E402
from reshard.dialect_utils.xla.compile_targets import Target, missing_compiler  # noqa: E402
from reshard.passes.driver.base import RunOptions, Session  # noqa: E402
from reshard.passes.driver.pipeline import Pipeline  # noqa: E402
from reshard.passes.sites.network import of_target  # noqa: E402
from reshard.synthesis.common.numbers import mebibytes  # noqa: E402
from reshard.synthesis.common.text_table import markdown_table  # noqa: E402
from reshard.synthesis.forms.whole_tiles import is_kept  # noqa: E402
from reshard.synthesis.network.topology import Topology, dims_text  # noqa: E402

DEVICES = 8
_SLICES = (
    "tpu:v5e:2x2,tpu:v5e:2x4,tpu:v5e:4x4,tpu:v5e:4x8,tpu:v5e:8x8,tpu:v6e:4x4,tpu:v5p:2x2x1,tpu:v5p:2x2x2,tpu:v5p:2x2x4"
)
_ROWS = 64  # of each part, on slices
_HEADINGS = ("tile", "dimension", "as it came", "received, MiB", "peak, MiB", "ours", "received, MiB", "peak, MiB")

KEPT = (  # what libtpu 0.0.50 keeps for v5e:2x4
    ((64, 256), 0), ((128, 128), 0), ((8, 8, 256), 0), ((8, 8, 512), 0), ((8, 32, 128), 0), ((64, 128, 8), 1),
    ((64, 48, 64), 0), ((64, 40, 256), 1), ((8, 64, 4096), 1), ((4096, 1376), 0), ((512, 96, 64), 1), ((4096, 4096), 0),
    ((96, 8192), 0), ((160, 8192), 0), ((800, 8192), 0), ((808, 4096), 0), ((4104, 4096), 0), ((4096, 11008), 0),
    ((4096, 11008), 1), ((3072, 8000), 1), ((8192, 128), 1), ((8192, 512), 1), ((8192, 1600), 1), ((8192, 2560), 1),
    ((1024, 64), 1), ((1024, 56), 1), ((64, 128, 64), 2), ((4, 16, 1024), 2), ((256, 16, 64), 1), ((64, 8, 4, 128), 1),
    ((16, 16, 8192), 1), ((8, 2, 8, 8192), 0), ((8, 7, 8192), 0), ((1000, 1024), 0), ((1024, 1040), 1),
    ((1024, 1600), 1), ((64, 256, 512), 2), ((64, 96, 512), 2), ((64, 1024), 1), ((128, 512), 1), ((8, 30, 70), 0),
    ((8, 12, 8192), 0), ((4096, 8, 1376), 1), ((8192, 8, 200), 1), ((8, 256, 128), 0), ((8, 16, 128), 0),
)  # fmt: skip
WHOLE = (  # what it sums whole
    ((64, 128), 0), ((16384,), 0), ((65536,), 0), ((262144,), 0), ((16, 16384), 0), ((16, 262144), 0), ((32, 65536), 0),
    ((8, 131072), 0), ((24, 4096), 0), ((8192, 24), 1), ((24, 8192), 0), ((262144, 8), 1), ((1024, 72), 1),
    ((64, 16, 512), 2), ((64, 64, 512), 2), ((2, 16, 8192), 1), ((8, 1, 8192), 0), ((8, 4, 2, 8192), 0),
    ((64, 512), 1), ((8, 2, 262144), 0), ((8, 4, 512), 0), ((8, 1, 2176), 0), ((8192, 8, 3), 1),
)  # fmt: skip
OTHERWISE = (((1024, 1000), 1), ((4096, 1000), 1), ((96, 512), 1))  # what it sums whole, and counts as kept


@dataclass(frozen=True, slots=True)
class Row:
    """A reduce_scatter as it came and as we write it, compiled for the target."""

    shape: tuple[int, ...]
    dim: int
    stock: Compiled
    ours: Compiled

    @property
    def is_as_said(self) -> bool:
        """Returns whether the compiler does what the rules say, and what we write is no worse."""
        if not (self.stock.is_ok and self.ours.is_ok):
            return False
        said = is_kept(self.shape, self.dim, DEVICES, 32) and (self.shape, self.dim) not in OTHERWISE
        is_better = all(
            present(getattr(self.stock, cost)) >= present(getattr(self.ours, cost))
            for cost in ("final_bytes_received", "limited_bytes")
        )
        is_scattered = self.ours is self.stock or _kinds(self.ours) == "reduce_scatter"
        return said == ("reduce_scatter" in _kinds(self.stock)) and is_better and is_scattered

    def cells(self) -> tuple[str, ...]:
        found = (_kinds(self.stock), *_costs(self.stock))
        ours = ("the same", "", "") if self.ours is self.stock else (_kinds(self.ours), *_costs(self.ours))
        return ("x".join(map(str, self.shape)), str(self.dim), *found, *ours)


def module_of(shape: tuple[int, ...], dim: int, groups: Sequence[Sequence[int]] = (range(DEVICES),)) -> str:
    """Returns the text of a module with one reduce_scatter of float32 in groups of devices.

    All devices have the same argument, since nothing is run.
    """
    members, devices = len(groups[0]), sum(map(len, groups))
    part, array = list(shape), list(shape)
    part[dim], array[dim] = shape[dim] // members, shape[dim] // members * devices
    whole, kept, all_parts = (f"tensor<{'x'.join(map(str, sizes))}xf32>" for sizes in (shape, part, array))
    listed = [[*each] for each in groups]
    before, after = (
        ", ".join('{"x"}' if each == dim and is_split else "{}" for each in range(len(shape)))
        for is_split in (False, True)
    )
    return f"""module @case attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["x"={devices}]>
  func.func public @main(%tile: {whole} {{sdy.sharding = #sdy.sharding<@mesh, [{before}]>}})
      -> ({all_parts} {{sdy.sharding = #sdy.sharding<@mesh, [{after}]>}}) {{
    %0 = sdy.manual_computation(%tile) in_shardings=[<@mesh, [{before}]>] out_shardings=[<@mesh, [{after}]>]
        manual_axes={{"x"}} (%a: {whole}) {{
      %1 = stablehlo.sine %a : {whole}
      %2 = "stablehlo.reduce_scatter"(%1) <{{
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<{listed}> : tensor<{len(groups)}x{members}xi64>,
          scatter_dimension = {dim} : i64, use_global_device_ids}}> ({{
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %3 = stablehlo.add %l, %r : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }}) : ({whole}) -> {kept}
      sdy.return %2 : {kept}
    }} : ({whole}) -> {all_parts}
    return %0 : {all_parts}
  }}
}}
"""


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.slices:
        return _on_slices(options.slices)
    rows = list(_rows(options))
    replace_line("")
    text = markdown_table(_HEADINGS, [each.cells() for each in rows], "lrlrrlrr")
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    wrong = [each for each in rows if not each.is_as_said]
    rewritten = sum(each.ours is not each.stock for each in rows)
    print(f"\n{len(rows)} reduce_scatters, {rewritten} of them in another form; {len(wrong)} not as the rules say")
    for each in wrong:
        print(
            f"  {each.shape} by dimension {each.dim}: {each.stock.message or each.ours.message or _kinds(each.stock)}"
        )
    return 1 if wrong else 0


def _on_slices(slices: Sequence[Target]) -> int:
    """Prints for each slice, and each choice of its dimensions, what becomes of a sum; returns the exit status."""
    rows, wrong = [], 0
    for of_slice in slices:
        level = Topology.parse(of_target(of_slice)).fitted(of_slice.devices).levels[-1]
        ids = np.arange(of_slice.devices).reshape(level.dims)
        for dims in _choices(level.dims):
            rest = [each for each in range(ids.ndim) if each not in dims]
            members = math.prod(level.dims[each] for each in dims)
            groups = ids.transpose(*rest, *dims).reshape(-1, members).tolist()
            replace_line(f"{of_slice}: {members} chips in {len(groups)} groups")
            text = module_of((members * _ROWS, 2048), 0, groups)
            kinds = _kinds(shared_child().compile(text, of_slice.devices, target=of_slice))
            is_whole = members == level.size and level.is_crossed_in_phases
            wrong += is_whole == ("reduce_scatter" in kinds)
            rows.append((str(of_slice), dims_text(level.dims[each] for each in dims), str(len(groups)), kinds))
    replace_line("")
    print(markdown_table(("slice", "summed along", "groups", "the compiler's"), rows, "llrl"))
    print(f"\n{len(rows)} cases; {wrong} not as the rules say")
    return 1 if wrong else 0


def _choices(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    along = [dim for dim, size in enumerate(sizes) if size > 1]
    for count in range(1, len(along) + 1):
        yield from itertools.combinations(along, count)


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    cases = (*WHOLE, *OTHERWISE, *KEPT)[: options.shapes]
    child = shared_child()
    for number, (shape, dim) in enumerate(cases, 1):
        replace_line(f"{number} of {len(cases)}: {shape} by dimension {dim}")
        text = module_of(shape, dim)
        written = _written(text, options.target)
        stock = child.compile(text, DEVICES, target=options.target)
        ours = stock if written is None else child.compile(written, DEVICES, target=options.target)
        yield Row(shape, dim, stock, ours)


def _written(text: str, target: Target) -> str | None:
    """Returns the module behind decompose-collectives; None if that leaves it as it is."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        passes = f"builtin.module(decompose-collectives{{platform=tpu topology={of_target(target)}}})"
        session = Session(RunOptions(input="case.mlir"))
        Pipeline.parse(passes).run(module, session)
        return str(module) if session.results.statistics["decompose-collectives", "decomposed"] else None


def _kinds(compiled: Compiled) -> str:
    kinds = dict.fromkeys(each.kind for each in compiled.final_moved)
    return " + ".join(kinds) if compiled.is_ok else compiled.status


def _costs(compiled: Compiled) -> tuple[str, str]:
    return mebibytes(compiled.final_bytes_received, 2, missing=""), mebibytes(compiled.limited_bytes, 1, missing="")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=target, default="tpu:v5e:2x4", help="default: tpu:v5e:2x4")
    parser.add_argument("--shapes", type=int, default=None, help="only the first ones; default: all")
    parser.add_argument(
        "--slices", type=targets, nargs="?", const=targets(_SLICES), metavar="TARGET,...", help=f"default: {_SLICES}"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the table to this file")
    options = parser.parse_args(arguments)
    if missing := missing_compiler(options.target):
        parser.error(f"argument --target: {missing}")
    return options


if __name__ == "__main__":
    sys.exit(main())
