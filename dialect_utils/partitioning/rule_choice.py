# SPDX-License-Identifier: Apache-2.0
"""Which rule an op is written by: of all that there are for it, the one that costs least.

A rule costs what the op takes on one device's tiles, its moves, the changes of layout of the operands from the tiles at
hand, and those of the results to the layouts in which they are wanted. Bounds of the changes come first, so that most
of them are never planned.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from reshard.synthesis.network.topology import Topology

from ..ir.ops import bits_of
from ..platform.bindings import ir
from ..tile_rules import local_rules
from ..tile_rules.indexed_rules import rules_of
from ..tile_rules.local_rules import Dims, NotLocal, Rule, Site
from ..tile_rules.moved_rules import is_move, moves_of
from ..tile_rules.partial_sums import ADDS
from ..tile_rules.partly_manual import COLLECTIVES
from ..tile_rules.product_rules import Taker, is_product, products_of, sharing, takers
from ..tile_rules.staged_rules import reduced_in_stages, running_in_stages, top_k_in_stages
from ..tile_rules.window_rules import has_window, windows_of
from ..tiles.copied_ops import PASS_ON, only_user
from ..tiles.refusals import refusal
from ..tiles.tiles import Scope, Tile
from .found_layouts import FoundLayouts, kept_dimensions
from .layout_changes import DEAREST, Cost, LayoutChanges

_Change = tuple[ir.Value, list[Tile], Dims, int]  # a value, the tiles at hand, the layout, and how many share it
_Changes = list[tuple[float, _Change]]  # each with a bound of its cost
_SLACK_FOR_MEMORY = 2.0  # times the least cost, that an op may take for less memory


class RuleChoice:
    """Chooses the rules of ops.

    Args:
      compares_products: whether the ways to split a matrix product are compared, where plans are made for time.
      is_lean: whether a way that costs more is taken for less memory, up to twice the least cost.
      is_accumulated: returns whether the loop around an op carries on what the op makes, if that is partial sums.
    """

    def __init__(
        self,
        found: FoundLayouts,
        changes: LayoutChanges,
        compares_products: bool,
        is_lean: bool = False,
        is_accumulated: Callable[[ir.Operation], bool] = lambda op: False,
    ):
        self._found, self._changes, self._is_accumulated = found, changes, is_accumulated
        self._compares_products = compares_products and changes.is_by_time
        self._is_lean, self._slack = is_lean, _SLACK_FOR_MEMORY if is_lean else 1.0
        self._takers: dict[ir.Value, list[Taker]] = {}

    def rule(self, op: ir.Operation, scope: Scope) -> tuple[Rule, ir.Operation]:
        """Returns the rule of an op and the op itself; for a stand-in, the CHLO op that it stands for."""
        for value in (*op.operands, *op.results):
            if not isinstance(value.type, ir.RankedTensorType):
                raise refusal(op, f"values of type {value.type} have no tiles")
        site = Site(op, tuple(scope[each].dims for each in op.operands), tuple(map(self._found.of, op.results)))
        original = self._found.original(op)
        try:
            if self.is_compared(op):
                as_found = replace(site, operands=tuple(map(self._found.of, op.operands)))
                return self.cheapest(site, products_of([as_found, site]), scope), op
            if original is None or not original.name.startswith("chlo."):
                return self.cheapest(site, self._rules(site), scope), op
            if original.name != "chlo.top_k":
                return local_rules.elementwise(site), original
            rules = [local_rules.top_k(site), *top_k_in_stages(site, self._changes)]
            return self.cheapest(site, rules, scope), original
        except NotLocal as problem:
            raise refusal(op, str(problem)) from None

    def is_compared(self, op: ir.Operation) -> bool:
        """Returns whether an op is a product whose ways on tiles are compared."""
        return is_product(op) and self._compares_products

    def cost_apart(self, site: Site, taken: Sequence[ir.Operation | None], scope: Scope) -> Cost:
        """Returns the cost of a concatenation and of the slices that make what it takes; None for one that is none."""
        costs, then = [], dict(scope)
        for value, each in zip(site.op.operands, taken, strict=True):
            if each is not None:
                slicing = Site(each, (scope[each.operands[0]].dims,), (self._found.of(each.results[0]),))
                rule, cost = self._rule_and_cost(slicing, scope)
                costs.append(cost)
                then[value] = Tile(value, rule.results[0])
        here = replace(site, operands=tuple(then[value].dims for value in site.op.operands))
        return functools.reduce(added, costs, self._rule_and_cost(here, then)[1])

    def cheapest(self, site: Site, rules: Sequence[Rule], scope: Scope) -> Rule:
        """Returns the rule that costs least: its changes of layout, those of the operands and those of the results to
        the layouts that propagation found, and the op itself on tiles; the first one of several. A lean choice is the
        one with the smallest tiles among those that cost little more."""
        if len(rules) == 1:
            return rules[0]
        partial: list[tuple[float, Cost, int, _Changes]] = []
        for number, rule in enumerate(rules):
            known = self._known_cost(site, rule)
            asked = [(self._changes.least_cost(*each), each) for each in self._asked_by(site, rule, scope)]
            partial.append((known[0] + sum(bound for bound, _ in asked), known, number, asked))
        least, costs = DEAREST, {}
        for bound, known, number, asked in sorted(partial, key=operator.itemgetter(0, 1, 2)):
            most = self._slack * least[0]
            if bound > most:
                break
            costs[number] = self._with_changes(site, known, asked, scope, most)
            least = min(least, costs[number])
        near = [number for number, cost in costs.items() if cost[0] <= self._slack * least[0]]
        held = {number: self._held_bytes(site, rules[number]) if self._is_lean else 0.0 for number in near}
        return rules[min(near, key=lambda number: (held[number], costs[number], number))]

    # Rules

    def _rules(self, site: Site) -> list[Rule]:
        """Returns the rules of an op of StableHLO. Raises: NotLocal."""
        around = self._changes.around
        if site.op.name in COLLECTIVES:
            return around.manual.rules(site, around.mesh, around.meshes)
        sites, kept = [site], []
        if has_choice(site.op) and around.is_run_by_all(site.op):
            if len(site.results) == 1 and (last := self._found.last(site.op)) != site.results[0]:
                sites.append(replace(site, results=(last,)))
            kept = [
                rule for each in sites for rule in (*moves_of(each, self._changes), *windows_of(each, self._changes))
            ]
        staged = *reduced_in_stages(site, self._changes), *running_in_stages(site, self._changes)
        return [*self._wholes(site, sites), *kept, *staged]

    def _wholes(self, site: Site, sites: Sequence[Site]) -> list[Rule]:
        """Returns the rules in which an op needs dimensions whole: in the layouts of its sites and of its operands, and
        with what splits such a dimension there in another dimension."""
        own = rules_of(site)
        if _is_part(site.op) and (last := self._found.last(site.op)) != site.results[0]:
            own += rules_of(replace(site, results=(last,)))  # of what is converted once, before a loop
        if not own[0].whole:
            return own
        ranks = {len(dims) for dims in site.results}
        alike = [dims for dims in (*map(self._found.of, site.op.operands), *site.operands) if ranks == {len(dims)}]
        sites = [*sites, *(replace(site, results=(dims,) * len(site.results)) for dims in alike)]
        sites += [beside for each in dict.fromkeys(sites) for beside in local_rules.split_elsewhere(each)]
        others = (rules_of(each)[0] for each in dict.fromkeys(sites) if each != site)
        return [*own, *{(rule.operands, rule.results): rule for rule in others}.values()]

    # Costs

    def _rule_and_cost(self, site: Site, scope: Scope) -> tuple[Rule, Cost]:
        """Returns the rule that costs least for an op of StableHLO in some layouts. Raises: NotLocal."""
        rule = self.cheapest(site, self._rules(site), scope)
        asked = [(0.0, each) for each in self._asked_by(site, rule, scope)]
        return rule, self._with_changes(site, self._known_cost(site, rule), asked, scope)

    def _known_cost(self, site: Site, rule: Rule) -> Cost:
        """Returns the cost of an op on tiles with its moves, without changes of layout."""
        return functools.reduce(added, map(self._changes.cost_of, rule.moves), self._work(site, rule))

    def _with_changes(self, site: Site, known: Cost, asked: _Changes, scope: Scope, most: float = math.inf) -> Cost:
        """Returns a cost with that of changes of layout; infinity if by their bounds it is more than `most`."""
        total, left = known, sum(bound for bound, _ in asked)
        for bound, (value, tiles, dims, share) in asked:
            if total[0] + left > most:
                return DEAREST
            left -= bound
            tile = tiles[0] if len(tiles) == 1 else self._changes.nearest(site.op, value, dims, scope)
            cost = self._changes.cost(site.op, value.type, tile, dims, self._changes.share(value, tile, dims))
            total = added(total, cost if share == 1 else tuple(each / share for each in cost))
        return total

    def _asked_by(self, site: Site, rule: Rule, scope: Scope) -> Iterator[_Change]:
        """Yields the changes of layout that a rule asks for."""
        is_compared = self.is_compared(site.op)
        for value, dims, wanted in zip(site.op.results, rule.results, self._wanted(site), strict=True):
            made = Tile(value, dims, rule.partial, rule.reduction)
            share = _summands(site.op) if is_compared else 1
            if rule.partial and dims == wanted and self._is_accumulated(site.op):
                share *= self._changes.around.turns
            yield value, [made], wanted, share
        operands = list(zip(site.op.operands, rule.operands, strict=True))
        for value, dims in dict.fromkeys(operands):
            if (value, dims) not in scope:
                share = self._sharing(site.op, operands.index((value, dims)), scope, dims) if is_compared else 1
                yield value, self._changes.sources(value, dims, scope), dims, share

    def _sharing(self, op: ir.Operation, number: int, scope: Scope, dims: Dims) -> int:
        """Returns how many products, with this one, share a change of the layout of one of its operands."""
        value = op.operands[number]
        if value not in self._takers:
            self._takers[value] = takers(value)
        changed = [d for d, (now, then) in enumerate(zip(scope[value].dims, dims, strict=True)) if now != then]
        return sharing(self._takers[value], number, op, changed)

    @staticmethod
    def _held_bytes(site: Site, rule: Rule) -> float:
        return local_rules.bits_held(site, rule, bits_of) / 8

    def _wanted(self, site: Site) -> Sequence[Dims]:
        return [self._found.last(site.op)] if len(site.results) == 1 else site.results

    def _work(self, site: Site, rule: Rule) -> Cost:
        """Returns the cost of an op itself on one device: its time by a roofline, or the bytes of its tiles."""
        held = self._held_bytes(site, rule)
        if not self._changes.is_by_time:
            return 0, held, 0
        topology: Topology = self._changes.planning["topology"]
        computing_s = local_rules.flops_of(site, rule) / topology.flops_per_s if topology.flops_per_s else 0.0
        return max(computing_s, held / topology.memory_bandwidth_bytes_per_s), 0, 0


def _is_part(op: ir.Operation) -> bool:
    """Returns whether an op takes a part of what a loop may have from outside, or drops its dimensions of size 1."""
    return op.name == "stablehlo.dynamic_slice" or kept_dimensions(op) is not None


def added(one: Cost, other: Cost) -> Cost:
    return tuple(map(operator.add, one, other))


def has_choice(op: ir.Operation) -> bool:
    """Returns whether an op may have its result in several layouts at about the same cost."""
    return is_move(op) or has_window(op) or local_rules.is_along_dimensions(op)


def _summands(op: ir.Operation) -> int:
    """Returns how many values are added up with what an op makes: partial sums of all are reduced once."""
    value, count = op.results[0], 1
    while (user := only_user(value)) is not None and user.block == op.block:
        if user.name in ADDS:
            count += 1
        elif user.name not in PASS_ON:
            break
        value = user.results[0]
    return count
