# SPDX-License-Identifier: Apache-2.0
"""`reshard fix-warnings`: reads the warnings in a program's log, and shows our plan for each tensor that they name."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from reshard.dialect_utils.gspmd import gspmd_shardings as gspmd
from reshard.dialect_utils.gspmd.mesh_synthesis import Synthesis, synthesize
from reshard.dialect_utils.xla.rematerialization_warnings import Rematerialization, UnreadableWarning, warnings_in
from reshard.planning.element_types import ElementType, ElementTypeError, mlir_type, parse_type
from reshard.planning.entry import plan
from reshard.synthesis.common.numbers import counted
from reshard.synthesis.common.text_table import first_line
from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.layouts.partition_specs import text_of
from reshard.synthesis.layouts.sharding import Sharding, ShardingError
from reshard.synthesis.planner.entry import NoPlanError, Plan
from reshard.synthesis.planner.entry import plan as plan_by_bytes
from reshard.tools.common.command import UserError

if TYPE_CHECKING:
    from reshard.dialect_utils.analysis.named_values import NamedValue
    from reshard.passes.sites.oracle import Answer, Question, Verdict

SUMMARY = "find in a log XLA's warnings about tensors that it gathers whole, and plan a better way for each"
EPILOG = """\
XLA writes these warnings to stderr while it compiles: "[SPMD] Involuntary full rematerialization. ...". With a module,
the answer has the lines of the program, its meshes and the exact sizes. A module is the output of
lowered.as_text(debug_info=True), or a file *before_optimizations.txt of XLA_FLAGS=--xla_dump_to=DIR. See
docs/fix-warnings.md.

exit status: 0 the log was read, with or without warnings; 1 a file or --mesh has an error; 2 the command line has an
error.
"""
SCHEMA = "reshard.fix-warnings/1"
MOST_DEVICES_COMPILED = 1024


@dataclass(frozen=True, slots=True)
class Tensor:
    """The tensor that a warning names, with shardings in Shardy's form.

    Attributes:
      shape: the shape of the whole array, in elements.
      is_exact: whether the shape comes from a module. Otherwise it is a multiple of the tile, and the array may be
        smaller.
      mesh, to_mesh: the meshes of source and target. has_axes_of_user: whether the axes are named as in the program.
    """

    element: ElementType
    shape: tuple[int, ...]
    is_exact: bool
    mesh: Mesh
    to_mesh: Mesh
    source: Sharding
    target: Sharding
    has_axes_of_user: bool

    @property
    def text(self) -> str:
        return f"{self.element.name}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Site:
    """All warnings of the log with the same content.

    Attributes:
      count: the number of warnings. places: `file:line` of the program.
      tensor, plan: None if there is none; `problem` then has the reason.
      said_bytes: the bytes that a device receives if the whole array is gathered, as the warning says.
      said_tile_bytes: the bytes of the whole array.
      verdict: what XLA does with the conversion alone, and whether ours is better; None if it was not compiled.
    """

    warning: Rematerialization
    count: int
    places: tuple[str, ...]
    tensor: Tensor | None = None
    plan: Plan | None = None
    said_bytes: int = 0
    said_tile_bytes: int = 0
    verdict: Verdict | None = None
    problem: str = ""

    @property
    def xla_bytes(self) -> int | None:
        """Returns the bytes that a device receives with stock XLA (compiled, or as warned); None if XLA fails."""
        if self.verdict is None:
            return self.said_bytes
        assert self.verdict.stock is not None
        return self.verdict.stock.bytes_received

    @property
    def saved_bytes(self) -> int:
        return (self.xla_bytes or self.said_bytes) - self.plan.bytes_received if self.plan else 0

    @property
    def is_worth_it(self) -> bool:
        return self.verdict.is_rewrite if self.verdict else self.saved_bytes > 0


@dataclass(frozen=True, slots=True)
class Found:
    """The sites, the largest gain first; `unread` has the reason for each warning that could not be read."""

    sites: tuple[Site, ...]
    unread: tuple[str, ...]

    @property
    def warnings(self) -> int:
        return sum(site.count for site in self.sites) + len(self.unread)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command to its parser."""
    parser.add_argument("log", metavar="LOG", help="the file with the program's stderr; - is stdin")
    parser.add_argument(
        "modules",
        nargs="*",
        default=[],
        metavar="MODULE",
        help="the program's modules, in any form that reshard-opt reads",
    )
    parser.add_argument(
        "--mesh", metavar="MESH", help="the program's mesh, such as x=4,y=2; it gives the axes their names"
    )
    parser.add_argument(
        "--no-compile",
        action="store_true",
        help="do not compile each conversion to see what XLA does; rely on the warnings alone",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the text")


def contained_drive(flags: argparse.Namespace) -> int:
    """Returns the exit status of `drive`. If MLIR reads modules, `drive` runs in a child; its death is a diagnostic."""
    if not flags.modules:
        return drive(flags)
    from reshard.tools.common import contained

    return contained.run(lambda: drive(flags), ", ".join(flags.modules))


def drive(flags: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. Raises: UserError."""
    from reshard.dialect_utils.ir.diagnostics import DiagnosedError

    try:
        found = _found(flags)
    except DiagnosedError as error:
        print(error, file=sys.stderr)
        return 1
    except MeshError as error:
        raise UserError(" ".join(str(error).split())) from None
    print(json.dumps(as_dict(found, flags), indent=2) if flags.json else as_text(found, flags))
    return 0


def _found(flags: argparse.Namespace) -> Found:
    log = _read(flags.log)
    meshes, values = [Mesh.parse(flags.mesh)] if flags.mesh else [], []
    for path in flags.modules:
        of_module = _read_module(path)
        meshes += of_module[0]
        values += of_module[1]
    counts, unread = _counted(warnings_in(log))
    sites = [_site(warning, count, meshes, values) for warning, count in counts.items()]
    if not flags.no_compile:
        sites = _judged(sites)
    return Found(tuple(sorted(sites, key=lambda site: -site.saved_bytes)), tuple(unread))


def _read(path: str) -> str:
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from None
    return content.decode("utf-8", "replace")


def _read_module(path: str) -> tuple[list[Mesh], tuple[NamedValue, ...]]:
    """Returns the meshes and the named values of a module. Raises: DiagnosedError."""
    from reshard.dialect_utils.analysis.named_values import named_values
    from reshard.dialect_utils.ir.module_files import ModuleFile, reading_limit_s
    from reshard.dialect_utils.platform.bindings import ir, make_context
    from reshard.dialect_utils.shardings.sdy_shardings import module_meshes
    from reshard.passes.driver.base import Session
    from reshard.passes.driver.pipeline import Pipeline
    from reshard.tools.common import contained

    file, context = ModuleFile.read(path), make_context()
    contained.enter(f"reading {file.name}", cpu_s=reading_limit_s(file))
    module = file.chunks()[0].parse(context)
    contained.enter(f"looking for names in {file.name}")
    with context, ir.Location.unknown():
        Pipeline.parse("import-gspmd").run(module, Session())  # HLO states the meshes of the program in strings
        return list(module_meshes(module).values()), named_values(module)


def _counted(found: Iterable[Rematerialization | UnreadableWarning]) -> tuple[dict[Rematerialization, int], list[str]]:
    counts: dict[Rematerialization, int] = {}
    unread = []
    for each in found:
        if isinstance(each, UnreadableWarning):
            unread.append(str(each))
        else:
            counts[each] = counts.get(each, 0) + 1
    return counts, unread


# ---- from a warning to a plan


def _site(warning: Rematerialization, count: int, meshes: list[Mesh], values: list[NamedValue]) -> Site:
    namesakes = _namesakes(warning.op_name, values)
    site = Site(warning, count, (warning.place,) if warning.place else _places(namesakes))
    try:
        tensor, tile, namesakes = _tensor(warning, meshes, namesakes)
        site = replace(site, places=site.places if warning.place else _places(namesakes), tensor=tensor)
        return _planned(site, tensor, tile)
    except (gspmd.GspmdError, gspmd.InexpressibleError, UnreadableWarning) as error:
        return replace(site, problem=str(error))
    except (MeshError, ShardingError, NoPlanError, ElementTypeError) as error:
        return replace(site, problem=" ".join(str(error).split()))


def _planned(site: Site, tensor: Tensor, tile: tuple[int, ...]) -> Site:
    shards = [_shards(tensor.mesh, axes) for axes in tensor.source.dims]
    whole, own = (
        math.ceil(math.prod(sizes) * tensor.element.bits / 8) for sizes in (map(math.prod, zip(tile, shards)), tile)
    )
    received = whole - own if tensor.mesh.axes else whole  # without axes one device holds it all
    return replace(site, plan=_plan(tensor), said_bytes=received, said_tile_bytes=whole)


def _plan(tensor: Tensor) -> Plan:
    """Returns the plan that the passes would make for such a site, or the fastest plan if they make none."""
    try:
        target_mesh = None if tensor.mesh == tensor.to_mesh else tensor.to_mesh
        found = plan_by_bytes(
            tensor.mesh, tensor.shape, tensor.element.bits, tensor.source, tensor.target, target_mesh=target_mesh
        )
        return replace(found, dtype=tensor.element.name)
    except NoPlanError:
        pass
    return plan(
        tensor.source,
        tensor.target,
        mesh=tensor.mesh,
        target_mesh=tensor.to_mesh,
        shape=tensor.shape,
        dtype=tensor.element.name,
    )


def _judged(sites: list[Site]) -> list[Site]:
    """Returns the sites, with a verdict where XLA can compile the conversion alone; one child process compiles all."""
    devices = [site.plan.mesh.size for site in sites if site.plan is not None and _can_be_compiled(site)]
    if not devices:
        return sites
    from reshard.dialect_utils.xla.child import XlaChild
    from reshard.passes.sites.oracle import LoneOracle

    questions = [_question(site) if _can_be_compiled(site) else None for site in sites]
    with XlaChild(num_devices=max(devices)) as child:
        oracle = LoneOracle(child)
        oracle.foresee(filter(None, questions))
        return [_with_verdict(site, oracle.ask(each)) if each else site for site, each in zip(sites, questions)]


def _can_be_compiled(site: Site) -> bool:
    return site.plan is not None and site.plan.target_mesh is None and site.plan.mesh.size <= MOST_DEVICES_COMPILED


def _question(site: Site) -> Question:
    from reshard.passes.sites.oracle import pair_question

    tensor = site.tensor
    assert tensor is not None and site.plan is not None
    return pair_question(mlir_type(tensor.element, tensor.shape), (tensor.source, tensor.target), site.plan)


def _with_verdict(site: Site, answer: Answer) -> Site:
    from reshard.passes.sites.oracle import Criterion

    assert site.plan is not None
    return replace(site, verdict=Criterion().verdict(answer, site.plan.mesh.size))


def _namesakes(op_name: str, values: list[NamedValue]) -> list[NamedValue]:
    """Returns the values whose name is the longest one that the warning's name ends with.

    A value in a function of its own has only the last parts of the warning's name.
    """
    wanted = "".join(op_name.split())
    named = [(value, "".join(value.name.split())) for value in values]
    fitting = [(value, len(name)) for value, name in named if name and f"/{wanted}".endswith(f"/{name}")]
    longest = max((length for _, length in fitting), default=0)
    return [value for value, length in fitting if length == longest]


def _places(values: list[NamedValue]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value.place for value in values if value.place))


def _tensor(
    warning: Rematerialization, meshes: list[Mesh], namesakes: list[NamedValue]
) -> tuple[Tensor, tuple[int, ...], list[NamedValue]]:
    """Returns the tensor, the shape of its tile, and the namesakes of its type (all namesakes if no type agrees)."""
    element, tile = parse_type(warning.tile_type)
    leaves = tuple(_leaf(text) for text in (warning.source, warning.target))
    on = _translations(leaves, len(tile), meshes)
    (mesh, source), (to_mesh, target) = on
    for text, side in ((warning.source, source), (warning.target, target)):
        if side.rank != len(tile):
            raise UnreadableWarning(
                f"{text} is of rank {side.rank}, the tensor {warning.tile_type} of rank {len(tile)}"
            )
    shards = [_shards(mesh, axes) for axes in source.dims]
    exact = _exact(element, tile, shards, namesakes)
    constrained = [value for value in exact if value.constraint and value.constraint.dims == source.dims]
    exact = constrained or exact
    shapes = {parse_type(value.type)[1] for value in exact}
    shape = shapes.pop() if len(shapes) == 1 else tuple(map(math.prod, zip(tile, shards)))
    has_axes = any(isinstance(leaf, gspmd.Named) for leaf in leaves) or mesh in meshes
    tensor = Tensor(element, shape, bool(exact) and not shapes, mesh, to_mesh, source, target, has_axes)
    return tensor, tile, exact or namesakes


def _leaf(text: str) -> gspmd.Leaf:
    leaf = gspmd.parse(text)
    if isinstance(leaf, tuple):
        raise gspmd.InexpressibleError(f"{text} is of a tuple")
    if isinstance(leaf, gspmd.Uniform) and leaf.kind != gspmd.REPLICATED:
        raise gspmd.InexpressibleError(f"{text} does not say which device holds what")
    return leaf


def _shards(mesh: Mesh, axes) -> int:
    return math.prod(axis.resolve(mesh)[1] for axis in axes)


def _exact(
    element: ElementType, tile: tuple[int, ...], shards: list[int], values: list[NamedValue]
) -> list[NamedValue]:
    """Returns the values whose tile has the element type and the shape that the warning names."""
    found = []
    for value in values:
        try:
            of_value, shape = parse_type(value.type)
        except ElementTypeError:
            continue
        if (
            of_value == element
            and tuple(-(-size // parts) for size, parts in zip(shape, shards)) == tile
            and len(shape) == len(tile)
        ):
            found.append(value)
    return found


def _translations(leaves: tuple[gspmd.Leaf, ...], rank: int, meshes: list[Mesh]) -> list[tuple[Mesh, Sharding]]:
    """Returns mesh and sharding of source and target, with the axes of one of `meshes` if it explains both."""
    sharded = [leaf for leaf in leaves if isinstance(leaf, gspmd.Tiled | gspmd.Named)]
    if not sharded:
        raise gspmd.InexpressibleError(f"{leaves[0]} and {leaves[1]} name no mesh")
    devices = {leaf.mesh.size if isinstance(leaf, gspmd.Named) else math.prod(leaf.tiles) for leaf in sharded}
    named = [gspmd.Named(mesh, kind=gspmd.REPLICATED) for mesh in meshes if {mesh.size} == devices]
    synthesis = synthesize([*(leaf for leaf in sharded if isinstance(leaf, gspmd.Named)), *named, *sharded])
    found = [_on_mesh(leaf, rank, synthesis) for leaf in leaves]
    both = next((each for each in found if each[0] is not None), None)
    if both is None:
        raise gspmd.InexpressibleError(f"{leaves[0]} and {leaves[1]} name no mesh")
    manual = found[0][2] or found[1][2]
    if manual:
        return _without_manual(leaves, found, manual)
    shared = both[0]
    assert shared is not None
    return [(shared if mesh is None else mesh, sharding) for mesh, sharding, _ in found]


def _on_mesh(leaf: gspmd.Leaf, rank: int, synthesis: Synthesis) -> tuple[Mesh | None, Sharding, tuple]:
    """Returns mesh, sharding and manual axes of a leaf; the mesh is None if the leaf means the same on any mesh."""
    if isinstance(leaf, gspmd.Maximal):
        return Mesh((), (leaf.device,)), Sharding(((),) * rank), ()
    if isinstance(leaf, gspmd.Uniform):
        return None, Sharding(((),) * rank), ()
    if isinstance(leaf, gspmd.Named) and leaf.sharding is None:
        if leaf.kind != gspmd.REPLICATED:
            raise gspmd.InexpressibleError(f"{leaf} does not say which device holds what")
        return leaf.mesh, Sharding(((),) * rank), ()
    found = synthesis.translation(leaf)
    return synthesis.meshes[found.mesh], found.sharding, found.manual


def _without_manual(leaves, found, manual) -> list[tuple[Mesh, Sharding]]:
    """Returns mesh and shardings of one group of devices, without the manual axes.

    The manual axes must be whole axes; then all groups along them have the same problem.
    """
    names = {axis.name for axis in manual if axis.size is None}
    is_same = all(mesh is None or (mesh == found[0][0] and set(axes) == set(manual)) for mesh, _, axes in found)
    if not is_same or len(names) != len(manual):
        raise gspmd.InexpressibleError(f"{leaves[0]} and {leaves[1]} are not manual along the same axes of one mesh")
    mesh = next(mesh for mesh, _, _ in found if mesh is not None)
    rest = Mesh(tuple((name, size) for name, size in mesh.axes if name not in names))
    return [(rest, sharding) for _, sharding, _ in found]


# ---- the report


def as_text(found: Found, flags: argparse.Namespace) -> str:
    """Returns a paragraph for each site, then the warnings that could not be read."""
    name = "<stdin>" if flags.log == "-" else flags.log
    if not found.warnings:
        return f"{name}: no warning of involuntary full rematerialization"
    parts = [f"{name}: {counted(found.warnings, 'warning')}, {counted(len(found.sites), 'site')}"]
    parts += [_site_text(number, site) for number, site in enumerate(found.sites, 1)]
    if any(site.tensor and not site.tensor.is_exact for site in found.sites):
        parts.append(
            "sizes are those of whole tiles, which is what XLA names; with the program's MODULE they are exact"
        )
    if found.unread:
        parts.append(f"{counted(len(found.unread), 'warning')} could not be read, the first because {found.unread[0]}")
    return "\n\n".join(parts)


def _site_text(number: int, site: Site) -> str:
    warning = site.warning
    where = (
        ", ".join([*filter(None, [" or ".join(map(_shortened, site.places)), warning.op_name])])
        or f"an operation without a name, {warning.op}"
    )
    head = f"{number}. {where} ({counted(site.count, 'warning')})"
    return "\n".join([head, *(f"   {name:<6}  {text}" for name, text in _facts(site))])


def _shortened(place: str) -> str:
    """Returns a place with a path relative to the current folder if the file lies in it."""
    return place.removeprefix(os.path.join(os.getcwd(), ""))


def _facts(site: Site) -> Iterator[tuple[str, str]]:
    tensor, ours = site.tensor, site.plan
    if tensor is None:
        yield "tile", site.warning.tile_type
        yield "from", site.warning.source
        yield "to", site.warning.target
    else:
        yield (
            "tensor",
            f"{tensor.text} on {tensor.mesh}, {counted(max(tensor.mesh.size, tensor.to_mesh.size), 'device')}",
        )
        yield "from", str(tensor.source)
        yield "to", f"{tensor.target}" + (f" on {tensor.to_mesh}" if tensor.to_mesh != tensor.mesh else "")
    if ours is None:
        yield "ours", f"no plan: {site.problem}"
        return
    yield "XLA", _xla_text(site)
    yield (
        "ours",
        f"{ours.chain_text}: receives {ours.bytes_received:,}; no method receives less than {ours.bound_bytes:,}",
    )
    if site.verdict:
        yield "so", site.verdict.reason
    yield "next", _next(site)


def _xla_text(site: Site) -> str:
    if site.verdict is None:
        return (
            f"says that it gathers the whole tensor: a device receives {site.said_bytes:,} bytes and holds "
            f"{site.said_tile_bytes:,}"
        )
    stock = site.verdict.stock
    assert stock is not None
    if not stock.is_ok:
        return f"compiled alone: {stock.status}: {first_line(stock.message)}"
    kinds = ", ".join(f"{each.runs} {each.kind}" for each in stock.collectives) or "no collective"
    return f"compiled alone, {kinds}: a device receives {stock.bytes_received:,} bytes"


def _next(site: Site) -> str:
    """Returns the next action for the user, in one line."""
    assert site.tensor is not None and site.plan is not None
    layout = _partition_spec(site.tensor) or str(site.tensor.target)
    if not site.tensor.mesh.axes:
        return f"one device has the tensor: constrain it to {layout} where it is made"
    if not site.is_worth_it and site.saved_bytes > 0:
        return (
            f'for this chain nevertheless, reshard_options={{"policy": "always"}} of reshard.jit; or make the '
            f"tensor as {layout}"
        )
    if not site.is_worth_it:
        return f"nothing, if the conversion is meant; else make the tensor as {layout}"
    if len({(mesh.size, mesh.devices) for mesh in (site.plan.mesh, site.plan.goal_mesh)}) > 1:
        return f"make the tensor as {layout}; conversions between meshes over different devices are left to XLA"
    return f"compile with reshard.jit in place of jax.jit; or, if no conversion is meant, make the tensor as {layout}"


def _partition_spec(tensor: Tensor) -> str | None:
    """Returns the target in JAX's spelling; None if it has partial sums, sub-axes, or axes unknown to the program."""
    return text_of(tensor.target) if tensor.has_axes_of_user and not tensor.target.unreduced else None


def as_dict(found: Found, flags: argparse.Namespace) -> dict:
    """Returns the report as plain data, schema `reshard.fix-warnings/1`."""
    from reshard.tools.common.versions import versions

    return {
        "schema": SCHEMA,
        "log": flags.log,
        "warnings": found.warnings,
        "unread": {"count": len(found.unread), "first": found.unread[0] if found.unread else None},
        "sites": [_site_dict(site) for site in found.sites],
        "versions": versions(),
    }


def _site_dict(site: Site) -> dict:
    tensor, warning = site.tensor, site.warning
    return {
        "count": site.count,
        "places": list(site.places),
        "op_name": warning.op_name,
        "op": warning.op,
        "tile_type": warning.tile_type,
        "type": tensor and mlir_type(tensor.element, tensor.shape),
        "is_exact": bool(tensor and tensor.is_exact),
        "from": warning.source,
        "to": warning.target,
        "said": {"bytes_received": site.said_bytes, "largest_tile_bytes": site.said_tile_bytes} if site.plan else None,
        "xla": site.verdict and _compiled_dict(site.verdict),
        "plan": site.plan and site.plan.to_dict(),
        "problem": site.problem or None,
        "next": _next(site) if site.plan else None,
    }


def _compiled_dict(verdict: Verdict) -> dict:
    stock = verdict.stock
    assert stock is not None  # a site with a verdict was compiled
    return {
        "status": stock.status,
        "bytes_received": stock.bytes_received,
        "largest_tile_bytes": stock.largest_collective_tile_bytes,
        "temp_bytes": stock.temp_bytes,
        "collectives": {each.kind: each.runs for each in stock.collectives},
        "is_ours_better": verdict.is_rewrite,
        "reason": verdict.reason,
    }
