# SPDX-License-Identifier: Apache-2.0
"""Compares the layouts that are propagated here with those that XLA propagates.

XLA gets the module with the index of each op in `mhlo.frontend_attributes`, the one attribute that survives the way
through HLO and back (no other discardable attribute does, nor any attribute on a sharding constraint). If XLA rewrote
an op and lost the index, nothing is compared there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

from ..ir.diagnostics import error_at
from ..ir.ops import CONSTANTS, CONSTRAINTS, LOOPS, ops_in
from ..ir.pipelines import run_pipeline
from ..platform.bindings import ir
from ..platform.typed import asm_of
from ..preparation.loop_invariants import invariant_numbers
from ..shardings.sdy_shardings import (
    Placement,
    UnsupportedSharding,
    mesh_of,
    module_meshes,
    placement,
    sharding_from_attr,
)
from ..shardings.value_layouts import layout, nth_sharding, result_layouts, stated_results
from .module_analysis import Analysis

FRONTEND = "mhlo.frontend_attributes"
FRONTEND_ID = "reshard.id"
ENTRY = "main"
_NOT_COMPARED = CONSTRAINTS | CONSTANTS | {"builtin.module", "sdy.mesh", "func.func", "func.call"}

# (index of an op, number of the result), where 0 stands for all that a loop carries; (ENTRY, number of the argument)
_Key = tuple[int | str, int]
# A layout is a placement or "maximal"; a loop's is the set of the layouts it carries.
_Layout = Placement | str | frozenset
_Seen = dict[_Key, set[_Layout]]


@dataclass(frozen=True)
class Disagreements:
    """The places where XLA propagates other layouts.

    Attributes:
      reasons: value of the original -> its layout in XLA and its layout here, in words.
      compared: the number of results and arguments that were compared.
      failure: why nothing could be compared; empty if something was.
      results: number of a result of the entry function -> (mesh, sharding) that XLA propagates to it; None is
        replicated.
    """

    reasons: dict[ir.Value, str] = field(default_factory=dict)
    compared: int = 0
    failure: str = ""
    results: dict[int, tuple[Mesh, Sharding] | None] = field(default_factory=dict)

    def at(self, op: ir.Operation, number: int, is_result: bool) -> str | None:
        """Returns why XLA will not face the conversion at an op of the original; None if the layouts agree."""
        values = list(op.results) if is_result else [op.operands[number], *op.results]
        reason = next((self.reasons[value] for value in values if value in self.reasons), None)
        return reason and f"XLA propagates another layout here: {reason}"


def compare_with_xla(module: ir.Module, analysis: Analysis, child=None) -> Disagreements:
    """Has stock XLA propagate the shardings of the module in a child process, and compares the layouts.

    Args:
      child: the `XlaChild` to ask; None is the shared one of this process.
    """
    from ..xla.child import shared_child

    answer = (child or shared_child()).propagate(tagged_text(module), devices_of(module))
    if answer.propagated_text is None:
        return Disagreements(failure=answer.message or "XLA wrote no propagated module")
    return disagreements(analysis, answer.propagated_text)


def tagged_text(module: ir.Module) -> str:
    """Returns the module as text for XLA, with the index of each op in its frontend attributes."""
    clone = module.operation.clone().operation
    for index, op in enumerate(ops_in(clone)):
        if op.name in _NOT_COMPARED:
            continue
        attributes = op.attributes
        own = {each.name: each.attr for each in ir.DictAttr(attributes[FRONTEND])} if FRONTEND in attributes else {}
        attributes[FRONTEND] = ir.DictAttr.get({**own, FRONTEND_ID: ir.StringAttr.get(str(index))})
    return asm_of(clone)


def devices_of(module: ir.Module) -> int:
    """Returns the number of devices for which a module is partitioned.

    Raises: DiagnosedError if the module states a number that is none.
    """
    attributes = module.operation.attributes
    if "mhlo.num_partitions" in attributes:
        stated = attributes["mhlo.num_partitions"]
        if not isinstance(stated, ir.IntegerAttr) or stated.value < 1:
            raise error_at(module.operation, f"mhlo.num_partitions is {stated}; it is a number of devices, 1 or more")
        return stated.value
    return max((mesh.size for mesh in meshes_of(module).values()), default=1)


def meshes_of(module: ir.Module) -> dict[str, Mesh]:
    """Returns the meshes that a module declares; if there are none, those written at its values."""
    return module_meshes(module) or _inlined_meshes(module)


def _inlined_meshes(module: ir.Module) -> dict[str, Mesh]:
    clone = module.operation.clone().operation
    for op in list(clone.regions[0].blocks[0].operations):
        if op.operation.name == "func.func" and not len(op.operation.regions[0].blocks):
            op.operation.erase()  # Shardy would look for its body, and end the process
    with module.context:
        run_pipeline(clone, "builtin.module(sdy-lift-inlined-meshes)", verifies=False)  # calls of those are left
    return module_meshes(clone)


def disagreements(analysis: Analysis, xla_propagated_text: str) -> Disagreements:
    """Returns the places where XLA's propagated module has other layouts than the analysis.

    Args:
      xla_propagated_text: the module as XLA dumps it.
    An op of a function that is called twice is two ops on both sides, so the sets of their layouts are compared.
    """
    propagated = ir.Module.parse(xla_propagated_text)
    here, there = _seen_here(analysis), _seen_by_xla(propagated, analysis.originals)
    reasons: dict[ir.Value, str] = {}
    common = sorted(here.keys() & there.keys(), key=str)
    for key in common:
        if here[key] != there[key]:
            where, number = key
            name = f"argument {number}" if isinstance(where, str) else analysis.originals[where].name
            reason = f"{name} is {_words(there[key])} there, {_words(here[key])} here"
            reasons |= dict.fromkeys(_values(analysis, key), reason)
    return Disagreements(reasons, len(common), results=_results(propagated))


def _results(module: ir.Module) -> dict[int, tuple[Mesh, Sharding] | None]:
    """Returns the layouts of the results of the entry function, except of those on a single device."""
    meshes, function = module_meshes(module), _entry(ops_in(module.operation))
    found: dict[int, tuple[Mesh, Sharding] | None] = {}
    for number, attr in enumerate(stated_results(function) if function else ()):
        if attr is None:
            found[number] = None
        elif (mesh := mesh_of(attr, meshes)) is not None:
            found[number] = mesh, sharding_from_attr(attr).closed()
    return found


def _seen_here(analysis: Analysis) -> _Seen:
    layout_of, seen = _LayoutsIn(module_meshes(analysis.explicit)), {}
    for serial, index in enumerate(analysis.origin):
        op = analysis.prepared_ops[serial]
        if index is None or op.name in _NOT_COMPARED:
            continue
        for attr in analysis.layouts.get(serial, ()):
            for number, each in _layouts(op, attr, layout_of):
                seen.setdefault((index, number), set()).add(each)
    function = _entry(analysis.originals)
    attrs = analysis.argument_layouts.get(ENTRY, ())
    return seen | _seen_arguments(function, attrs, layout_of)


def _seen_by_xla(module: ir.Module, originals: list[ir.Operation]) -> _Seen:
    layout_of, seen = _LayoutsIn(module_meshes(module)), {}
    ops = ops_in(module.operation)
    for op in ops:
        attributes = op.attributes
        if FRONTEND not in attributes or FRONTEND_ID not in (own := ir.DictAttr(attributes[FRONTEND])):
            continue
        index = int(ir.StringAttr(own[FRONTEND_ID]).value)
        if op.name not in LOOPS and _types(op) != _types(originals[index]):
            continue  # one of several ops that XLA made of it
        for number, each in _layouts(op, result_layouts(op), layout_of):
            seen.setdefault((index, number), set()).add(each)
    function = _entry(ops)
    attrs = [layout(argument) for argument in _arguments(function)]
    return seen | _seen_arguments(function, attrs, layout_of)


def _seen_arguments(function: ir.Operation | None, attrs, layout_of: _LayoutsIn) -> _Seen:
    pairs = enumerate(zip(_arguments(function), attrs, strict=False))
    return {(ENTRY, number): {layout_of(argument, attr)} for number, (argument, attr) in pairs}


def _layouts(op: ir.Operation, attr: ir.Attribute | None, layout_of: _LayoutsIn) -> Iterator[tuple[int, _Layout]]:
    """Yields (result number, layout). A loop yields one set, since XLA changes the values that it carries."""
    through = invariant_numbers(op) if op.name in LOOPS else ()
    layouts = [
        (number, layout_of(result, attr and nth_sharding(attr, number)))
        for number, result in enumerate(op.results)
        if number not in through
    ]
    if op.name not in LOOPS:
        yield from layouts
        return
    yield 0, frozenset((str(op.results[number].type), each) for number, each in layouts)


def _types(op: ir.Operation) -> list[ir.Type]:
    return [result.type for result in op.results]


class _LayoutsIn:
    """Returns the layout of a value from its sharding, in a module with `meshes`; reads each sharding once."""

    def __init__(self, meshes: dict[str, Mesh]):
        self._meshes = meshes
        self._known: dict[tuple[ir.Attribute | None, int], _Layout] = {}

    def __call__(self, value: ir.Value, attr: ir.Attribute | None) -> _Layout:
        if not isinstance(value.type, ir.RankedTensorType):
            return "no tensor"
        key = attr, ir.RankedTensorType(value.type).rank
        if key not in self._known:
            self._known[key] = self._placed(*key)
        return self._known[key]

    def _placed(self, attr: ir.Attribute | None, rank: int) -> _Layout:
        try:
            return placement(attr, rank, self._meshes)
        except UnsupportedSharding:
            return "maximal"


def _values(analysis: Analysis, key: _Key) -> list[ir.Value]:
    """Returns the values of the original whose layouts a key stands for."""
    where, number = key
    if isinstance(where, str):  # `ENTRY`
        return [_arguments(_entry(analysis.originals))[number]]
    op = analysis.originals[where]
    if op.name not in LOOPS:
        return [op.results[number]]
    return [*op.results, *(argument for region in op.regions for argument in region.blocks[0].arguments)]


def _entry(ops: list[ir.Operation]) -> ir.Operation | None:
    named = (op for op in ops if op.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == ENTRY)
    return next(named, None)


def _arguments(function: ir.Operation | None) -> list[ir.Value]:
    return list(function.regions[0].blocks[0].arguments) if function else []


def _words(layouts: set[_Layout]) -> str:
    if any(isinstance(each, frozenset) for each in layouts):
        texts = {f"{kind} {placed}" for each in layouts if isinstance(each, frozenset) for kind, placed in each}
    else:
        texts = set(map(str, layouts))
    return " and ".join(sorted(texts))
