# SPDX-License-Identifier: Apache-2.0
"""Compiles each kind of step, and whole examples, in the forms of two platforms, and prints what their compilers say.

    python benchmarks/conversions/emission_forms.py [--targets tpu:v5e:2x4,...] [--elements bf16,f32]
        [--programs NAME,...] [--forms cpu,tpu] [--out FILE.md]

A case is a program that computes an array, converts it, and multiplies it with a matrix, so that the compiler can
choose layouts in memory around the collective. Examples are written per device, as `--emit=local` does, and have a row
of stock XLA too. Targets have 8 devices. Answers are cached on disk;
with `RESHARD_CACHE=off` the compilers are asked again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.harness.arguments import targets  # noqa: E402
from benchmarks.harness.progress import replace_line  # noqa: E402
from reshard.dialect_utils.emission.tile_emission import Mark, unused_channels, write_program  # noqa: E402
from reshard.dialect_utils.partitioning.local_modules import convert  # noqa: E402
from reshard.dialect_utils.platform.bindings import ir, make_context  # noqa: E402
from reshard.dialect_utils.xla.child import Compiled, shared_child  # noqa: E402
from reshard.dialect_utils.xla.compile_targets import Target, missing_compiler  # noqa: E402
from reshard.passes.sites.network import SiteNetwork, of_target  # noqa: E402
from reshard.synthesis.common.numbers import mebibytes  # noqa: E402
from reshard.synthesis.common.text_table import markdown_table  # noqa: E402
from reshard.synthesis.forms.platforms import PLATFORMS  # noqa: E402
from reshard.synthesis.layouts.mesh import Mesh  # noqa: E402
from reshard.synthesis.layouts.sharding import Sharding  # noqa: E402
from reshard.synthesis.planner.entry import plan  # noqa: E402

DEVICES = 8
_SHAPE = (8, 2048, 4096)
_WIDTH = 1024  # of the matrix
_MESH, _MESH_OF_TWO = "x=8", "x=2,y=4"
_BITS = {"bf16": 16, "f32": 32}
_HEADINGS = (
    "program", "forms", "received, MiB", "collectives", "memory moved, MiB", "temporaries, MiB", "estimate in us",
    "modelled in us",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A conversion of an array of `_SHAPE`, in Shardy's text."""

    name: str
    source: str
    target: str
    mesh: str = _MESH


CASES = (
    Case("all_gather, dim 0", '[{"x"}, {}, {}]', "[{}, {}, {}]"),
    Case("all_gather, dim 1", '[{}, {"x"}, {}]', "[{}, {}, {}]"),
    Case("all_gather, dim 2", '[{}, {}, {"x"}]', "[{}, {}, {}]"),
    Case("all_gather, dims 1 and 2", '[{}, {"x"}, {"y"}]', "[{}, {}, {}]", _MESH_OF_TWO),
    Case("all_to_all, dim 0 -> 1", '[{}, {"x"}, {}]', '[{"x"}, {}, {}]'),
    Case("all_to_all, dim 1 -> 0", '[{"x"}, {}, {}]', '[{}, {"x"}, {}]'),
    Case("all_to_all, dim 2 -> 1", '[{}, {"x"}, {}]', '[{}, {}, {"x"}]'),
    Case("all_to_all, dim 1 -> 2", '[{}, {}, {"x"}]', '[{}, {"x"}, {}]'),
    Case("all_to_all, dim 1 -> 0 and 2", '[{"x"}, {}, {"y"}]', '[{}, {"x", "y"}, {}]', _MESH_OF_TWO),
    Case("reduce_scatter, dim 0", '[{}, {}, {}], unreduced={"x"}', '[{"x"}, {}, {}]'),
    Case("reduce_scatter, dim 1", '[{}, {}, {}], unreduced={"x"}', '[{}, {"x"}, {}]'),
    Case("reduce_scatter, dim 2", '[{}, {}, {}], unreduced={"x"}', '[{}, {}, {"x"}]'),
    Case("slice, dim 1", "[{}, {}, {}]", '[{}, {"x"}, {}]'),
    Case("permute", '[{"x"}, {"y"}, {}]', '[{"y":(1)2}, {"x", "y":(2)2}, {}]', _MESH_OF_TWO),
)


def module_of(case: Case, element: str, platform: str) -> str:
    """Returns the text of the case's program, per device: a tile, the conversion, and a product with a matrix.

    All devices have the same arguments, since nothing is run.
    """
    mesh, target = Mesh.parse(case.mesh), Sharding.parse(case.target)
    program = plan(mesh, _SHAPE, _BITS[element], Sharding.parse(case.source), target).tile_program
    contracted = max(dim for dim, axes in enumerate(target.dims) if not axes)
    kept = [size for dim, size in enumerate(program.out_shape) if dim != contracted]
    before, after, weight, result = (
        f"tensor<{'x'.join(map(str, shape))}x{element}>"
        for shape in (program.in_shape, program.out_shape, (program.out_shape[contracted], _WIDTH), (*kept, _WIDTH))
    )
    types, axes = (before, weight), ", ".join(f'"{name}"' for name in mesh.axis_names)
    layouts = [f"<@mesh, [{', '.join(['{}'] * each.count('x'))}]>" for each in (*types, result)]
    text = f"""module @case attributes {{mhlo.num_partitions = {DEVICES} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = {mesh}
  func.func public @main(%tile: {before}, %weight: {weight}) -> {result} {{
    %0 = sdy.manual_computation(%tile, %weight) in_shardings=[{layouts[0]}, {layouts[1]}]
        out_shardings=[{layouts[2]}] manual_axes={{{axes}}} (%a: {before}, %b: {weight}) {{
      %1 = stablehlo.tanh %a : {before}
      %2 = ub.poison : {after}
      %3 = stablehlo.dot_general %2, %b, contracting_dims = [{contracted}] x [0] : ({after}, {weight}) -> {result}
      sdy.return %3 : {result}
    }} : ({", ".join(types)}) -> {result}
    return %0 : {result}
  }}
}}
"""
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        island = module.body.operations[1].regions[0].blocks[0].operations[0]
        tile, unset, product = list(island.regions[0].blocks[0].operations)[:3]
        with ir.InsertionPoint(product):
            mark = Mark(unused_channels(module), "reshard", ir.Location.unknown(), platform)
            product.operation.operands[0] = write_program(program, tile.operation.results[0], mark)
        unset.operation.erase()
        return str(module)


def per_device(text: str, platform: str) -> str:
    """Returns a module in which every op works on one device's tile, in the forms of a platform."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        convert(module, platform)
        return str(module)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    sections = []
    for target in options.targets:
        rows = [_cells(name, form, compiled, target) for name, form, compiled in _compiled(target, options)]
        table = markdown_table(_HEADINGS, rows, "ll" + "r" * (len(_HEADINGS) - 2))
        sections.append("\n".join([f"### {target}", "", table]))
    text = "\n\n".join(sections)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0


def _compiled(target: Target, options: argparse.Namespace) -> Iterator[tuple[str, str, Compiled]]:
    for name, form, text in _texts(options):
        replace_line(f"{target}: {name}, {form}")
        yield name, form, shared_child().compile(text, DEVICES, target=target)
    replace_line("")


def _texts(options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    for case in CASES:
        for element in options.elements:
            for form in options.forms:
                yield f"{case.name}, {element}", form, module_of(case, element, form)
    for name in options.programs:
        text = _example(name)
        yield name, "stock", text
        for form in options.forms:
            yield name, form, per_device(text, form)


def _example(name: str) -> str:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    from examples.programs import program  # loads jax, which reads the flags

    return program(name).lower("pod").as_text()


def _cells(name: str, form: str, compiled: Compiled, target: Target) -> tuple[str, ...]:
    if not compiled.is_ok:
        return (name, form, compiled.status, *[""] * (len(_HEADINGS) - 3))
    moved = sum(each.bytes_moved * each.runs for each in compiled.final_work)
    counts = ", ".join(f"{each.runs} {each.kind}" for each in compiled.final_collectives)
    modelled = SiteNetwork(of_target(target)).final_time_of(compiled, DEVICES)
    return (
        name,
        form,
        mebibytes(compiled.final_bytes_received, 2, missing=""),
        counts,
        mebibytes(moved, 1, missing=""),
        mebibytes(compiled.temp_bytes, 2, missing=""),
        _microseconds(compiled.estimated_seconds),
        _microseconds(modelled and modelled.seconds),
    )


def _microseconds(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds * 1e6:,.0f}"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", type=_targets, default="tpu:v5e:2x4", help="default: tpu:v5e:2x4")
    parser.add_argument("--elements", type=_words, default="bf16", help="default: bf16")
    parser.add_argument("--programs", type=_words, default="", help="examples to compile, too; default: none")
    parser.add_argument("--forms", type=_words, default="cpu,tpu", help=f"of {', '.join(PLATFORMS)}; default: cpu,tpu")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the tables to this file")
    options = parser.parse_args(arguments)
    if wrong := sorted(set(options.forms) - set(PLATFORMS)):
        parser.error(f"argument --forms: {wrong[0]} is none of {', '.join(PLATFORMS)}")
    if missing := next(filter(None, map(missing_compiler, options.targets)), None):
        parser.error(f"argument --targets: {missing}")
    return options


def _words(text: str) -> list[str]:
    return text.split(",") if text else []


def _targets(text: str) -> list[Target]:
    found = targets(text)
    for target in found:
        if target.devices != DEVICES:
            raise argparse.ArgumentTypeError(f"{target} has {target.devices} devices; the programs want {DEVICES}")
    return found


if __name__ == "__main__":
    sys.exit(main())
