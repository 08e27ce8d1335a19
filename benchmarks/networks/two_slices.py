# SPDX-License-Identifier: Apache-2.0
"""Collectives over several slices of a TPU, ahead of time: what its compiler makes of flat and of hand-written ones.

    python -m benchmarks.networks.two_slices [--target tpu:v5e:2x4:2] [--programs NAME,...] [--size large] [--rows 4096]

The programs are those of `python -m benchmarks.programs list` with collectives in `jax.shard_map`, on every shape of
their meshes. Each goes through the pipeline for the target's network; what crosses slices should stay as it is. Then
each collective of one tile is compiled in two forms: flat over all devices, and level by level with `lax`, as the pass
`decompose-collectives` would write it. What a host sends to other slices are the operands of `send` in the final
program. The exit status is 1 if a collective across slices is rewritten, or a form by hand hands less to `send` than
the flat one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.harness.progress import replace_line
from benchmarks.programs.__main__ import use_devices
from reshard.dialect_utils.hlo.collectives import collectives_in
from reshard.dialect_utils.hlo.text import parse_module, shape_bytes
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla.child import XlaChild
from reshard.dialect_utils.xla.compile_targets import Target, missing_compiler
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.layouts.choosing import products
from reshard.passes.sites.network import of_target
from reshard.synthesis.common.numbers import mebibytes
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.forms.platforms import platform_of
from reshard.synthesis.programs.traffic import Collective

if TYPE_CHECKING:  # it loads jax, whose number of devices is set first
    import jax

_PROGRAMS = "map_data_parallel,map_fully_sharded,map_expert_dispatch"
_WIDTH = 1024  # of a tile, in elements
_TIMEOUT_S = 600.0
_PROGRAM_HEADINGS = (
    "program", "mesh", "rewritten across slices", "inside", "the module after it", "stock's final program, MiB",
    "to send, MiB",
)  # fmt: skip
_FORM_HEADINGS = ("collective", "written", "final program, MiB", "to send, MiB")


@dataclass(frozen=True, slots=True)
class Moved:
    """What moves in a final program: for each kind how often, and the bytes of a device's operands, runs counted.

    Attributes:
      sent: the bytes that a device hands to `send`, for its host to bring to other slices.
    """

    kinds: tuple[tuple[str, int, int], ...]
    sent: int

    def __str__(self) -> str:
        return ", ".join(f"{count} {kind} {mebibytes(num_bytes, 1)}" for kind, count, num_bytes in self.kinds)


def moved_in(hlo_text: str) -> Moved:
    """Returns what moves in a final program. A `send` in a loop counts once.

    Example:
      >>> print(moved_in('''HloModule m, num_partitions=2
      ... ENTRY %main (p: f32[262144]) -> token[] {
      ...   %p = f32[262144]{0} parameter(0)
      ...   %t = token[] after-all()
      ...   %s = (f32[262144]{0}, u32[], token[]) send(%p, %t), channel_id=1, is_host_transfer=true
      ...   ROOT %d = token[] send-done(%s), channel_id=1, is_host_transfer=true
      ... }'''))
      1 send 1.0
    """
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for each in collectives_in(hlo_text).collectives:
        counts[each.kind] += each.trip_count
        sizes[each.kind] += each.trip_count * each.bytes_before
    for computation in parse_module(hlo_text).computations.values():
        for instruction in computation.instructions.values():
            if instruction.opcode == "send":
                counts["send"] += 1
                sizes["send"] += shape_bytes(computation.shape_of(instruction.operands[0]))
    return Moved(tuple((kind, counts[kind], sizes[kind]) for kind in sorted(counts)), sizes["send"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", type=Target.parse, default="tpu:v5e:2x4:2")
    parser.add_argument("--programs", type=lambda text: text.split(","), default=_PROGRAMS)
    parser.add_argument("--size", default="large")
    parser.add_argument("--rows", type=int, default=4096, help=f"of a tile of {_WIDTH} columns, float32; %(default)s")
    options = parser.parse_args(arguments)
    if missing := missing_compiler(options.target):
        parser.error(f"argument --target: {missing}")
    use_devices(options.target.devices)
    with XlaChild() as child:
        programs = list(_programs(options, child))
        forms = list(_forms(options, child))
    replace_line("")
    print(markdown_table(_PROGRAM_HEADINGS, [each.cells for each in programs], "llrrllr") + "\n")
    rows = [(name, form, str(moved), mebibytes(moved.sent, 1)) for name, form, moved in forms]
    print(markdown_table(_FORM_HEADINGS, rows, "lllr"))
    sent = {(name, form): moved.sent for name, form, moved in forms}
    is_less = any(sent[name, "by hand"] < sent[name, "flat"] for name, _ in sent)
    return int(is_less or any(each.across.rewritten for each in programs))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """How many of some collectives are no longer in a module.

    Example:
      >>> str(Rewritten(0, 8))
      '0 of 8'
    """

    rewritten: int
    collectives: int

    @classmethod
    def of(cls, before: Counter[tuple[bool, Collective]], after: Counter[tuple[bool, Collective]], is_across: bool):
        """Returns those of the collectives before that cross slices, or do not."""
        own = Counter({each: count for each, count in before.items() if each[0] == is_across})
        return cls((own - after).total(), own.total())

    def __str__(self) -> str:
        return f"{self.rewritten} of {self.collectives}"


@dataclass(frozen=True, slots=True)
class _Program:
    """A program: what the passes do with it, and what moves in stock's final program.

    Attributes:
      across, inside: its collectives across slices and inside them.
      is_same: whether the passes return the text that they got.
    """

    name: str
    mesh: str
    across: Rewritten
    inside: Rewritten
    is_same: bool
    moved: Moved

    @property
    def cells(self) -> tuple[str, ...]:
        after = "the same text" if self.is_same else "another"
        counts = str(self.across), str(self.inside)
        return (self.name, self.mesh, *counts, after, str(self.moved), mebibytes(self.moved.sent, 1))


def _programs(options: argparse.Namespace, child: XlaChild) -> Iterator[_Program]:
    from benchmarks.programs.catalogue import every_program

    for program in every_program():
        if program.name not in options.programs:
            continue
        replace_line(f"{program.name} on {options.target}")
        names = [name for name, _ in program.mesh_axes]
        for sizes in products(options.target.devices, len(names)):
            axes = tuple(zip(names, sizes, strict=True))
            text = program.lower(options.size, axes).as_text()
            mesh = ", ".join(f"{name}={size}" for name, size in axes)
            passed = _passed(text, options.target, child)
            yield _Program(program.name, mesh, *passed, _moved(text, options.target, child))


def _passed(text: str, target: Target, child: XlaChild) -> tuple[Rewritten, Rewritten, bool]:
    """Returns what the passes for a target's network do: across slices, inside, and whether the text stays the same."""
    session = Session(RunOptions(compile_for=target, xla_child=child))
    given = {"policy": "better", "platform": platform_of(target.platform), "topology": of_target(target)}
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        text, found = str(module), _collectives(module, target)
        Pipeline.emitting("auto", given).run(module, session)
        left = _collectives(module, target)
        return Rewritten.of(found, left, True), Rewritten.of(found, left, False), str(module) == text


def _collectives(module: ir.Module, target: Target) -> Counter[tuple[bool, Collective]]:
    """Returns the collectives that the program has itself, with whether they cross slices, and how many of each."""
    from reshard.dialect_utils.hierarchy.explicit_collectives import ExplicitCollective, explicit_collectives

    chips = target.devices // target.slices
    found: Counter[tuple[bool, Collective]] = Counter()
    for _, each in explicit_collectives(module.operation):
        if isinstance(each, ExplicitCollective):
            is_across = any(len({device // chips for device in group}) > 1 for group in each.groups)
            found[is_across, each.flat] += 1
    return found


def _moved(text: str, target: Target, child: XlaChild) -> Moved:
    compiled = child.compile(
        text, target.devices, target=target, timeout_s=_TIMEOUT_S, keeps_schedule=True, with_estimate=False
    )
    if not compiled.is_ok:
        raise SystemExit(f"the compiler refuses a program for {target}: {compiled.message[:200]}")
    return moved_in(present(compiled.scheduled_text))


# ---------------------------------------------------------------------------------------------------------------------
# Collectives of one tile, in two forms. Partial results of the tile are in the order (slice, chip).
# ---------------------------------------------------------------------------------------------------------------------


def _flat_forms() -> dict[str, Callable[[jax.Array], jax.Array]]:
    from jax import lax

    both = "slice", "chip"
    return {
        "sum": lambda x: lax.psum(x, both),
        "all_gather": lambda x: lax.all_gather(x, both, tiled=True),
        "reduce_scatter": lambda x: lax.psum_scatter(x, both, tiled=True),
        "all_to_all": lambda x: lax.all_to_all(x, both, 0, 0, tiled=True),
    }


def _forms_by_hand(slices: int, chips: int) -> dict[str, Callable[[jax.Array], jax.Array]]:
    from jax import lax

    def parts(x):
        return x.reshape(slices, chips, -1, x.shape[-1])

    def rows(x):
        return x.reshape(-1, x.shape[-1])

    def summed(x):
        scattered = lax.psum(lax.psum_scatter(x, "chip", tiled=True), "slice")
        return lax.all_gather(scattered, "chip", tiled=True)

    def scattered(x):
        inside = lax.psum_scatter(parts(x), "chip", scatter_dimension=1)
        return lax.psum_scatter(inside, "slice", scatter_dimension=0)

    return {
        "sum": summed,
        "all_gather": lambda x: rows(lax.all_gather(lax.all_gather(x, "slice"), "chip").swapaxes(0, 1)),
        "reduce_scatter": scattered,
        "all_to_all": lambda x: rows(lax.all_to_all(lax.all_to_all(parts(x), "chip", 1, 1), "slice", 0, 0)),
    }


def forms_of(mesh: jax.sharding.Mesh) -> dict[str, dict[str, Callable[[jax.Array], jax.Array]]]:
    """Returns each collective over the axes "slice" and "chip" of a mesh in both forms, jitted.

    A form takes an array whose rows are divided among all devices, and returns one that is divided in the same way.
    """
    import jax
    from jax.sharding import PartitionSpec as P

    def mapped(body):
        spec = P(("slice", "chip"))
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))

    flat, by_hand = _flat_forms(), _forms_by_hand(*mesh.devices.shape)
    return {name: {"flat": mapped(flat[name]), "by hand": mapped(by_hand[name])} for name in flat}


def _forms(options: argparse.Namespace, child: XlaChild) -> Iterator[tuple[str, str, Moved]]:
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    target = options.target
    mesh = jax.make_mesh((target.slices, target.devices // target.slices), ("slice", "chip"))
    shape = target.devices * options.rows, _WIDTH
    array = jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, P(("slice", "chip"))))
    for name, forms in forms_of(mesh).items():
        for form, function in forms.items():
            replace_line(f"{name}, {form}, on {target}")
            yield name, form, _moved(function.lower(array).as_text(), target, child)


if __name__ == "__main__":
    sys.exit(main())
