# SPDX-License-Identifier: Apache-2.0
"""The mesh axes along which the values in a manual computation may differ from device to device.

Arguments differ along the axes that split them. An op computes the same of the same; so what it makes differs along the
axes along which something differs that it takes. Ops that tell devices apart, or are not known to compute the same
everywhere, differ along all axes. A collective over whole axes that gives all members the same ends their difference.

Values that were not followed, such as those in the regions of ops that are neither loops nor branches, differ along all
axes.

Devices may also run an op at different times, or not at all, along the axes along which the condition of a loop or a
branch around it differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from reshard.synthesis.hierarchy.device_groups import factors_of
from reshard.synthesis.layouts.layout import unreduced_factors, whole_factors
from reshard.synthesis.layouts.mesh import Mesh

from ..ir.functions import has_body
from ..ir.ops import LOOPS, blocks_of, ops_around, terminator_of
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from ..shardings.sdy_shardings import sharding_from_attr
from .collective_groups import groups_of

Axes = frozenset[str]
NONE: Axes = frozenset()
_ALIKE_AFTER = frozenset({"stablehlo.all_reduce", "stablehlo.all_gather"})
_TELL_APART = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("partition_id", "replica_id", "rng", "infeed", "recv", "create_token", "custom_call", "composite"),
        *("collective_permute", "collective_broadcast"),
    )
) | {"sdy.manual_computation"}
_IN_GROUPS = frozenset({"stablehlo.reduce_scatter", "stablehlo.all_to_all"})
_CALL = "func.call"
_BRANCHES = frozenset({"stablehlo.case", "stablehlo.if"})


def varying_axes(
    island: ir.Operation,
    mesh: Mesh,
    functions: Mapping[str, ir.Operation] | None = None,
    meshes: Mapping[str, Mesh] | None = None,
    outside: VaryingAxes | None = None,
) -> VaryingAxes:
    """Returns for the values in a manual computation the axes along which they may differ.

    Args:
      functions: those that it may call, by name; what others return differs along all axes.
      meshes: those whose axes its collectives may name, by symbol name.
      outside: what is known of the manual computation around it, if there is one.
    """
    found = VaryingAxes(mesh, functions or {}, meshes or {})
    shardings = sdy.TensorShardingPerValueAttr(island.attributes["in_shardings"]).shardings
    block = island.regions[0].blocks[0]
    for argument, attr in zip(block.arguments, shardings, strict=True):
        sharding = sharding_from_attr(attr)
        dims = (*whole_factors(mesh, sharding), unreduced_factors(mesh, sharding))
        found.join(argument, frozenset(factor.axis for factors in dims for factor in factors))
    for argument, value in zip(block.arguments, island.operands if outside is not None else ()):
        found.join(argument, present(outside).of([value]))
    found.follow_to_the_end(block)
    return found


@dataclass
class VaryingAxes:
    """The axes of values, and those of decisions. They only become more.

    A function that is called at several places has the axes of all calls together.

    State:
      known: the axes of each value that was followed.
      decided: for each op with control flow, and each function that is called, the axes along which devices may run its
        regions differently.
      followed: the functions that were followed since nothing grew in them; running: those that are being followed.
      grew: whether any axes became more.
    """

    mesh: Mesh
    functions: Mapping[str, ir.Operation] = field(default_factory=dict)
    meshes: Mapping[str, Mesh] = field(default_factory=dict)
    known: dict[ir.Value, Axes] = field(default_factory=dict)
    decided: dict[ir.Operation, Axes] = field(default_factory=dict)
    followed: set[ir.Operation] = field(default_factory=set)
    running: list[ir.Operation] = field(default_factory=list)
    grew: bool = False

    def of(self, values: Iterable[ir.Value]) -> Axes:
        """Returns the axes along which some of the values may differ; all axes for a value that was not followed."""
        return frozenset().union(*(self.known.get(value, self.all_axes) for value in values))

    @property
    def all_axes(self) -> Axes:
        return frozenset(self.mesh.axis_names)

    def around(self, op: ir.Operation) -> Axes:
        """Returns the axes along which devices may disagree whether, or how often, they run an op."""
        return frozenset().union(*(self.decided.get(each, NONE) for each in ops_around(op)))

    def join(self, value: ir.Value, axes: Axes) -> bool:
        """Adds axes to those of a value; returns whether it had not all of them."""
        before = self.known.get(value)
        self.known[value] = axes | (before or NONE)
        is_more = before is None or not axes <= before
        self.grew |= is_more
        return is_more

    def follow_to_the_end(self, block: ir.Block) -> None:
        """Follows a block until nothing grows: a later call of a function may add to what an earlier one made."""
        self.grew = True
        while self.grew:
            self.grew = False
            self.followed.clear()
            self.follow(block)

    def follow(self, block: ir.Block) -> None:
        """Follows the ops of a block; its arguments are known."""
        for view in block.operations:
            op = view.operation
            if op.name in LOOPS:
                self._loop(op)
            elif op.name in _BRANCHES:
                self._branches(op)
            elif op.name == _CALL:
                self._call(op)
            else:
                self._join_all(op.results, self._made_by(op))

    def _join_all(self, values: Iterable[ir.Value], axes: Axes) -> bool:
        return any([self.join(value, axes) for value in values])

    def _made_by(self, op: ir.Operation) -> Axes:
        """Returns the axes of the results of an op without control flow."""
        taken = self.of([*op.operands, *_captured(op)])
        if op.name in _TELL_APART:
            return self.all_axes
        if op.name not in _ALIKE_AFTER | _IN_GROUPS:
            return taken
        groups = groups_of(op, self.meshes)
        factors = None if groups is None else factors_of(self.mesh, groups)
        if factors is None:
            return self.all_axes
        if op.name in _IN_GROUPS:
            return taken | {factor.axis for factor in factors}
        return taken - {factor.axis for factor in factors if factor.size == self.mesh.axis_size(factor.axis)}

    def _loop(self, op: ir.Operation) -> None:
        """Follows a loop until nothing changes: what one turn returns is an argument of the next."""
        condition, body = (region.blocks[0] for region in op.regions)
        given: Mapping[int, Axes] = {i: self.of([operand]) for i, operand in enumerate(op.operands)}
        turns, changes = NONE, True
        while changes:
            changes = False
            for i, axes in given.items():
                changes |= self._join_all((condition.arguments[i], body.arguments[i]), axes)
            self.follow(condition)
            self.follow(body)
            turns = self.of(terminator_of(condition).operands)  # devices may make different numbers of turns
            given = {i: self.of([value]) | turns for i, value in enumerate(terminator_of(body).operands)}
        self.decided[op] = turns
        for i, result in enumerate(op.results):
            self.join(result, given[i] | self.of([op.operands[i]]))

    def _branches(self, op: ir.Operation) -> None:
        chosen = self.decided[op] = self.of(op.operands)
        for block in blocks_of(op):
            self.follow(block)
            for result, value in zip(op.results, terminator_of(block).operands, strict=True):
                self.join(result, self.of([value]) | chosen)

    def _call(self, op: ir.Operation) -> None:
        """Follows the function that is called, once for each time that its arguments have more axes."""
        function = self.functions.get(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
        if function is None or not has_body(function) or function in self.running:
            self._join_all(op.results, self.all_axes)
            return
        block = function.regions[0].blocks[0]
        apart, before = self.around(op), self.decided.get(function, NONE)
        self.decided[function] = apart | before
        has_more = [self.join(argument, self.of([each])) for argument, each in zip(block.arguments, op.operands)]
        if any(has_more) or not apart <= before or function not in self.followed:
            self.followed.add(function)
            self.running.append(function)
            self.follow(block)
            self.running.pop()
        for result, value in zip(op.results, terminator_of(block).operands, strict=True):
            self.join(result, self.of([value]))


def _captured(op: ir.Operation) -> list[ir.Value]:
    """Returns the values that ops in the regions of an op take from around it."""
    inside = [view.operation for block in blocks_of(op) for view in block.operations]
    made = {value for block in blocks_of(op) for value in block.arguments}.union(*(each.results for each in inside))
    taken = [value for each in inside for value in (*each.operands, *_captured(each))]
    return [value for value in taken if value not in made]
