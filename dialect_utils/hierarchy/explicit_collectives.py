# SPDX-License-Identifier: Apache-2.0
"""The collectives in the bodies of manual computations, such as those of `jax.shard_map`, and plans in their place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from reshard.synthesis.hierarchy.device_groups import Groups, factors_of
from reshard.synthesis.hierarchy.redistributions import (
    KINDS,
    REDUCING,
    InGroups,
    Redistribution,
    redistribution_of,
)
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.plans.plan import Plan
from reshard.synthesis.programs.traffic import Collective

from ..emission.tile_emission import Mark, write_program
from ..ir.functions import functions_of, is_public, symbol
from ..ir.ops import bits_of, manual_axes, ops_around, ops_in, shape_of, short_name
from ..ir.reductions import is_splittable, reduction_of
from ..platform.bindings import ir, sdy, stablehlo
from ..shardings.sdy_shardings import mesh_of, module_meshes
from .collective_groups import groups_of
from .varying_axes import VaryingAxes, varying_axes

OPS = frozenset(f"stablehlo.{kind}" for kind in KINDS)
PARTLY_MANUAL = "XLA partitions the tiles of the manual computation around it"  # until that is written per device
_MANUAL = "sdy.manual_computation"
ROUNDING = frozenset({"sum", "prod"})
_DIM = {"all_gather": "all_gather_dim", "reduce_scatter": "scatter_dimension", "all_to_all": "split_dimension"}


class NotPlannable(ValueError):
    """No plan can take the place of a collective; the message says why."""


@dataclass(frozen=True, slots=True)
class ExplicitCollective:
    """A collective of a module that a plan may replace.

    Attributes:
      op: takes one tile. mesh: of the manual computation around it. groups: device ids.
      bits: of an element. reduction: as plans have it.
    """

    op: ir.Operation
    mesh: Mesh
    in_groups: InGroups
    groups: Groups
    redistribution: Redistribution
    bits: int
    reduction: str = "sum"

    @property
    def flat(self) -> Collective:
        """Returns the collective as the module has it."""
        return self.in_groups.flat(self.groups, self.bits)

    @property
    def tile_type(self) -> ir.Type:
        return self.op.operands[0].type

    @property
    def may_round(self) -> bool:
        """Returns whether its result depends on the order in which it reduces."""
        element = ir.RankedTensorType(self.tile_type).element_type
        return (
            self.in_groups.kind in REDUCING and self.reduction in ROUNDING and not isinstance(element, ir.IntegerType)
        )

    def replace(self, plan: Plan, mark: Mark) -> None:
        """Writes the collectives of a plan in place of the op, which is erased."""
        with ir.InsertionPoint(self.op):
            self.op.results[0].replace_all_uses_with(self.write(plan, self.op.operands[0], mark))
        self.op.erase()

    def write(self, plan: Plan, tile: ir.Value, mark: Mark) -> ir.Value:
        """Writes the collectives of a plan on the tile that the op takes, and returns the tile after them."""
        element = ir.RankedTensorType(tile.type).element_type
        with ir.Location.name(mark.name, mark.location):
            tile = _reshaped(tile, ir.RankedTensorType.get(plan.tile_program.in_shape, element))
            made = write_program(plan.tile_program, tile, mark)
            return _reshaped(made, ir.RankedTensorType.get(self.in_groups.result, element))


def explicit_collectives(root: ir.Operation) -> Iterator[tuple[ir.Operation, ExplicitCollective | NotPlannable]]:
    """Yields the collectives in manual computations of a module, in walk order, each as a plan needs it.

    Or the reason why no plan can take its place.
    """
    meshes, functions = module_meshes(root), {symbol(each): each for each in functions_of(root)}
    known: dict[ir.Operation, VaryingAxes] = {}
    for op, island, mesh in _in_islands(root, OPS, meshes):
        try:
            if isinstance(mesh, NotPlannable):
                raise mesh
            if island not in known:
                known[island] = varying_axes(island, mesh, functions, meshes)
            yield op, _read(op, known[island])
        except NotPlannable as reason:
            yield op, reason


def in_islands(root: ir.Operation, names: Collection[str]) -> Iterator[tuple[ir.Operation, Mesh | NotPlannable]]:
    """Yields the ops of a module that have one of some names, in walk order, each with the mesh of the manual
    computation in which it runs on tiles; or the reason why there is none."""
    for op, _, mesh in _in_islands(root, names, module_meshes(root)):
        yield op, mesh


def _in_islands(
    root: ir.Operation, names: Collection[str], meshes: dict[str, Mesh]
) -> Iterator[tuple[ir.Operation, ir.Operation, Mesh | NotPlannable]]:
    """Yields ops as `in_islands` does, with the manual computation; without one, the op itself is in its place."""
    ops = ops_in(root)
    callers = _Callers(ops)
    known: dict[ir.Operation, Mesh | NotPlannable] = {}
    for op in ops:
        if op.name in names:
            try:
                island = callers.island_of(op)
            except NotPlannable as reason:
                yield op, op, reason
                continue
            if island not in known:
                known[island] = _mesh_of(island, meshes)
            yield op, island, known[island]


class _Callers:
    """From where functions are called: the manual computations, and None for a place that is in none.

    State: `_calls` has the calls of each function, by its name; `_islands` what was found.
    """

    def __init__(self, ops: Iterable[ir.Operation]):
        self._calls: dict[str, list[ir.Operation]] = {}
        self._islands: dict[ir.Operation, frozenset[ir.Operation | None]] = {}
        for op in ops:
            if op.name == "func.call":
                self._calls.setdefault(ir.FlatSymbolRefAttr(op.attributes["callee"]).value, []).append(op)

    def island_of(self, op: ir.Operation) -> ir.Operation:
        """Returns the manual computation in which an op runs. Raises: NotPlannable if it is not one alone."""
        found = self._around(op)
        if len(found) > 1:
            raise NotPlannable("its function is called in several manual computations, or outside of them")
        (island,) = found or {None}
        if island is None:
            raise NotPlannable("it is in no manual computation, so its mesh is unknown")
        return island

    def _around(self, op: ir.Operation) -> frozenset[ir.Operation | None]:
        for each in ops_around(op):
            if each.name == _MANUAL:
                return frozenset({each})
            if each.name == "func.func":
                return self._of_function(each)
        return frozenset({None})

    def _of_function(self, function: ir.Operation) -> frozenset[ir.Operation | None]:
        if function not in self._islands:
            self._islands[function] = frozenset()  # of a function that calls itself, its other calls count
            calls = self._calls.get(symbol(function), [])
            outside = {None} if is_public(function) else set()
            self._islands[function] = frozenset(outside).union(*map(self._around, calls))
        return self._islands[function]


def _read(op: ir.Operation, known: VaryingAxes) -> ExplicitCollective:
    if apart := known.around(op):
        raise NotPlannable(f"devices may disagree along {', '.join(sorted(apart))} whether they run it")
    return read_collective(op, known.mesh, known.meshes, known.of(op.operands))


def read_collective(
    op: ir.Operation,
    mesh: Mesh,
    meshes: Mapping[str, Mesh],
    varying: Collection[str],
    tile: tuple[int, ...] | None = None,
) -> ExplicitCollective:
    """Returns a collective as a plan needs it.

    Args:
      mesh: of the manual computation around it. meshes: those that the module declares, by symbol name.
      varying: the axes along which what it takes may differ.
      tile: the shape of the tile that it is to run on, if that is not the one that it takes.
    Raises: NotPlannable if no plan can take its place.
    """
    if len(op.operands) != 1:
        raise NotPlannable("it takes several arrays")
    if not ir.RankedTensorType(op.operands[0].type).has_static_shape:
        raise NotPlannable("the size of its tile is unknown")
    groups = groups_of(op, meshes)
    factors = None if groups is None else factors_of(mesh, groups)
    if groups is None or factors is None:
        raise NotPlannable("its groups are along no axes of the mesh")
    kind = short_name(op)
    reduction = _reduction(op) if kind in REDUCING else "sum"
    tile = tuple(shape_of(op.operands[0].type) or ()) if tile is None else tile
    dim = _integer(op, _DIM[kind]) if kind in _DIM else 0
    joined = _integer(op, "concat_dimension") if kind == "all_to_all" else 0
    in_groups = InGroups(kind, tile, factors, dim, joined)
    found = redistribution_of(mesh, in_groups, varying)
    return ExplicitCollective(op, mesh, in_groups, groups, found, _bits(op), reduction)


def _mesh_of(island: ir.Operation, meshes: dict[str, Mesh]) -> Mesh | NotPlannable:
    """Returns the mesh of a manual computation over all its axes; else the reason why no plan can be for it."""
    shardings = [
        each
        for side in ("in_shardings", "out_shardings")
        for each in sdy.TensorShardingPerValueAttr(island.attributes[side]).shardings
    ]
    mesh = mesh_of(shardings[0], meshes) if shardings else None
    if mesh is None:
        return NotPlannable("the mesh of the manual computation around it is unknown")
    manual = manual_axes(island.attributes["manual_axes"])
    free = [name for name, size in mesh.axes if size > 1 and name not in manual]
    if free:
        return NotPlannable(f"{PARTLY_MANUAL} along {', '.join(free)}")
    return mesh


def _reduction(op: ir.Operation) -> str:
    found = reduction_of(op)
    if found is None or not is_splittable(ir.RankedTensorType(op.operands[0].type).element_type, found):
        raise NotPlannable("its computation has no counterpart among the reductions of plans")
    return found


def _reshaped(value: ir.Value, kind: ir.Type) -> ir.Value:
    return value if value.type == kind else stablehlo.ReshapeOp(kind, value).result


def _bits(op: ir.Operation) -> int:
    try:
        return bits_of(op.operands[0].type)
    except ValueError as problem:
        raise NotPlannable(str(problem)) from None


def _integer(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value
