# SPDX-License-Identifier: Apache-2.0
"""Changes of layout: their plans, what they cost, and from which of the tiles at hand a value gets into a layout."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import NoPlanError, Plan, plan
from reshard.synthesis.planner.moved import End, plan_move, plan_moves
from reshard.synthesis.plans.costing import least_costs
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs.tile_program import collectives

from ..ir.diagnostics import DiagnosedError, error_at
from ..ir.ops import bits_of
from ..platform.bindings import ir
from ..tile_rules.local_rules import Dims, Site
from ..tiles.refusals import HINT
from ..tiles.tiles import Scope, Tile, TilesAtHand, grows, is_broadcast_to, sharding_of, tile_bytes
from .surroundings import Surroundings

Cost = tuple[float, ...]  # seconds, or received bytes, work and collectives
DEAREST: Cost = (math.inf, math.inf, math.inf)
_ROUNDING = 1e-9  # relative
_Problem = tuple[Mesh, tuple[int, ...], int, Sharding, Sharding]


class LayoutChanges:
    """Plans and prices changes of layout: a `Mover` and a `Converter` for rules.

    Attributes:
      planning: options of `plan`. around: where the ops are that are being written.
      at_hand: the tiles of values in other layouts than their own.
      hold_bytes: what is left to be held while loops run, for tiles that grow in a conversion before the loop.
    """

    def __init__(self, mesh: Mesh, planning: Mapping[str, Any], around: Surroundings, hold_bytes: float = 0.0):
        self.mesh, self.planning, self.around = mesh, planning, around
        self.hold_bytes = hold_bytes
        self._held: set[tuple[ir.Value, Dims]] = set()
        self.is_by_time = planning.get("objective") == "time"
        self.at_hand = TilesAtHand()
        self._bounds: dict[tuple, float] = {}
        self._plans: dict[tuple, Plan] = {}

    # Plans

    def plan(self, op: ir.Operation, tile: Tile, kind: ir.Type, dims: Dims) -> Plan:
        """Returns the plan that brings a tile into another layout. Raises: DiagnosedError if there is none."""
        takes_all = self.around.is_run_by_all(op)
        key = *self._key(kind, tile, dims), takes_all
        if key not in self._plans:
            problem = self._problem(kind, tile, dims)
            try:
                self._plans[key] = self._planned(problem, takes_all, {"reduction": tile.reduction, **self.planning})
            except NoPlanError as why:
                *_, source, target = problem
                raise error_at(op, f"emit=local finds no chain from {source} to {target}: {why}", HINT) from None
        return self._plans[key]

    @staticmethod
    def _planned(problem: _Problem, takes_all: bool, options: dict[str, Any]) -> Plan:
        """Returns a plan; one without permutes if not all devices may run it. Raises: NoPlanError."""
        chain = plan(*problem, with_exchange=True, **options)
        if takes_all or not _has_permutes(chain):
            return chain
        chain = plan(*problem, **options)
        if _has_permutes(chain):
            raise NoPlanError("some devices alone may run it, and a permute takes all")
        return chain

    def end(self, shape: Sequence[int], dims: Dims, start: Sequence[int], mirrored: Sequence[int] = ()) -> End:
        manual = self.around.manual
        layout = sharding_of(self.mesh, manual.dims(dims))
        return End(manual.shape(shape), layout, manual.start(start), manual.dimensions(mirrored))

    def planned(self, kind: ir.Type, size: Sequence[int], source: End, target: End) -> Plan:
        return plan_move(self.mesh, bits_of(kind), self.around.manual.shape(size), source, target, **self.planning)

    def planned_together(self, kind: ir.Type, parts: Sequence[tuple[Sequence[int], End, End]]) -> Plan | None:
        given = tuple((self.around.manual.shape(size), *ends) for size, *ends in parts)
        return plan_moves(self.mesh, bits_of(kind), given, **self.planning)

    def converted(self, site: Site, kind: ir.Type, before: Dims, after: Dims) -> Plan:
        """Returns the plan of a change of layout of a value that an op makes on its way."""
        return self.plan(site.op, Tile(site.op.results[0], before), kind, after)

    def _key(self, kind: ir.Type, tile: Tile, dims: Dims) -> tuple:
        """Returns what a plan and its bound depend on."""
        return kind, tile.dims, tile.partial, tile.reduction, dims, self.around.manual

    def _problem(self, kind: ir.Type, tile: Tile, dims: Dims) -> _Problem:
        """Returns what is to be planned: mesh, shape, bits of an element, source and target."""
        manual = self.around.manual
        source = sharding_of(self.mesh, manual.dims(tile.dims), tile.partial)
        target = sharding_of(self.mesh, manual.dims(dims))
        return self.mesh, manual.shape(ir.RankedTensorType(kind).shape), bits_of(kind), source, target

    # Tiles at hand

    def nearest(self, op: ir.Operation, value: ir.Value, dims: Dims, scope: Scope) -> Tile:
        """Returns the tile from which a value gets into a layout at the least cost.

        Beside its own tile these are what it was converted to before, and the tiles of values with the same elements.
        """
        found = self.sources(value, dims, scope)
        if len(found) == 1:
            return found[0]
        least = (DEAREST, True, len(found)), found[0]
        for bound, number in sorted(
            (self.least_cost(value, [tile], dims), number) for number, tile in enumerate(found)
        ):
            if bound > least[0][0][0]:
                break
            tile = found[number]
            cost = self.cost(op, value.type, tile, dims, self.share(value, tile, dims))
            least = min(least, ((cost, tile.dims != dims, number), tile), key=operator.itemgetter(0))
        return least[1]

    def sources(self, value: ir.Value, dims: Dims, scope: Scope) -> list[Tile]:
        """Returns the tiles from which a value may get into a layout; its own one first, alone if it is in it."""
        own = scope[value]
        if own.dims == dims and not own.partial:
            return [own]
        return list(dict.fromkeys((own, *self.at_hand.others(value, scope))))

    # Costs

    def cost(self, op: ir.Operation, kind: ir.Type, tile: Tile, dims: Dims, share: float = 1.0) -> Cost:
        """Returns the cost of a change of layout, or a share of it."""
        if (tile.dims == dims and not tile.partial) or is_broadcast_to(tile, dims):
            return 0, 0, 0
        try:
            chain = self.plan(op, tile, kind, dims)
        except DiagnosedError:
            return DEAREST
        return tuple(share * each for each in self.cost_of(chain))

    def is_worth_deferring(self, op: ir.Operation, kind: ir.Type, tile: Tile, dims: Dims) -> bool:
        """Returns whether a change of layout of a tile takes longer than to add the tile to another one that changes
        alike, in place of adding what becomes of both; received bytes are always more."""
        if not self.is_by_time:
            return True
        topology: Topology = self.planning["topology"]
        more_bytes = 3 * (tile_bytes(kind, tile.dims) - tile_bytes(kind, dims))  # both are read, their sum written
        return self.cost(op, kind, tile, dims)[0] > more_bytes / topology.memory_bandwidth_bytes_per_s

    def cost_of(self, chain: Plan) -> Cost:
        return (chain.time_s, 0, 0) if self.is_by_time else (chain.bytes_received, 0, chain.collectives)

    def least_cost(self, value: ir.Value, tiles: Sequence[Tile], dims: Dims, share: int = 1) -> float:
        """Returns a bound on what a change of layout from one of some tiles costs: seconds, or received bytes."""
        if any(is_broadcast_to(tile, dims) for tile in tiles):
            return 0.0
        least = min(self._bound(value.type, tile, dims) * self.share(value, tile, dims) for tile in tiles)
        return least / share * (1 - _ROUNDING)

    def share(self, value: ir.Value, tile: Tile, dims: Dims) -> float:
        """Returns which part of a change of layout counts: of one that is written before a loop, that of one turn."""
        is_made_here = tile.value == value  # a result, which is not yet written
        return self.around.share_before(None if is_made_here else self.loop_before(tile, value.type, dims))

    def loop_before(self, tile: Tile, kind: ir.Type, dims: Dims) -> ir.Operation | None:
        """Returns the loop before which a change of layout is written, once for all turns; None if it is written here.

        A tile that grows stays in memory as long as the loop runs: there have to be bytes left for it, or it is held
        already, for another loop.
        """
        is_held = not grows(tile, dims) or (tile.value, dims) in self._held
        if not is_held and tile_bytes(kind, dims) > self.hold_bytes:
            return None
        return self.around.loop_that_takes(tile.value)

    def hold(self, tile: Tile, kind: ir.Type, dims: Dims) -> None:
        """Notes that a tile is held in a layout while a loop runs."""
        if grows(tile, dims) and (tile.value, dims) not in self._held:
            self._held.add((tile.value, dims))
            self.hold_bytes -= tile_bytes(kind, dims)

    def _bound(self, kind: ir.Type, tile: Tile, dims: Dims) -> float:
        if tile.dims == dims and not tile.partial:
            return 0.0
        key = self._key(kind, tile, dims)
        if key not in self._bounds:
            self._bounds[key] = self._computed_bound(kind, tile, dims)
        return self._bounds[key]

    def _computed_bound(self, kind: ir.Type, tile: Tile, dims: Dims) -> float:
        try:
            request = Request.of(*self._problem(kind, tile, dims), reduction=tile.reduction, **self.planning)
        except NoPlanError:
            return 0.0
        received, seconds = least_costs(request)
        return seconds if self.is_by_time else received


def _has_permutes(chain: Plan) -> bool:
    return any(each.kind == "collective_permute" for each in collectives(chain.tile_program, chain.request.bits))
