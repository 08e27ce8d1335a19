# SPDX-License-Identifier: Apache-2.0
"""The canary: are the layouts that we propagate those that XLA propagates?

XLA is handed the module with the index of each op in `mhlo.frontend_attributes`, the one attribute that survives the way
through HLO and back (a discardable attribute of ours does not, nor does any on a sharding constraint). Where XLA rewrote an
op and lost the index, nothing is compared.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from . import propagation
from .bindings import ir
from .propagation import CONSTRAINTS, LOOPS, Analysis
from .sdy_shardings import SHARDING, Placement, UnsupportedSharding, module_meshes, placement

FRONTEND = "mhlo.frontend_attributes"
FRONTEND_ID = "reshard.id"
_NOT_COMPARED = CONSTRAINTS | propagation.CONSTANTS | {"builtin.module", "sdy.mesh", "func.func", "func.call"}


@dataclass(frozen=True)
class Disagreements:
    """Where XLA's layouts are not ours.

    Attributes:
      reasons: value of the original -> which layout it has there and here.
      compared: how many results and arguments were compared.
      failure: why nothing could be compared; empty if something was.
    """

    reasons: dict[ir.Value, str] = field(default_factory=dict)
    compared: int = 0
    failure: str = ""

    def at(self, op: ir.Operation, number: int, is_result: bool) -> str | None:
        """Returns why a conversion at an op of the original is not what XLA will face; None if nothing speaks against it."""
        values = list(op.results) if is_result else [op.operands[number], *op.results]
        reason = next((self.reasons[value] for value in values if value in self.reasons), None)
        return reason and f"XLA propagates another layout here: {reason}"


def compare_with_xla(module: ir.Module, analysis: Analysis, child=None) -> Disagreements:
    """Compiles the module with stock XLA in a child process and compares the layouts.

    Args:
      child: an `xla_child.XlaChild` to use; None starts one for this call.
    """
    from .xla_child import CompileRequest, XlaChild

    request = CompileRequest(tagged_text(module), devices_of(module), keeps_propagated=True)
    if child is None:
        with XlaChild() as child:
            answer = child.compile(request)
    else:
        answer = child.compile(request)
    if answer.propagated_text is None:
        return Disagreements(failure=answer.message or "XLA wrote no propagated module")
    return disagreements(analysis, answer.propagated_text)


def tagged_text(module: ir.Module) -> str:
    """Returns the module as text, for XLA, with the index of each op in its frontend attributes."""
    clone = module.operation.clone().operation
    for index, op in enumerate(propagation.ops_in(clone)):
        if op.name in _NOT_COMPARED:
            continue
        attributes = op.attributes
        own = {each.name: each.attr for each in ir.DictAttr(attributes[FRONTEND])} if FRONTEND in attributes else {}
        attributes[FRONTEND] = ir.DictAttr.get({**own, FRONTEND_ID: ir.StringAttr.get(str(index))})
    return clone.get_asm(enable_debug_info=True)


def devices_of(module: ir.Module) -> int:
    """Returns for how many devices a module is partitioned."""
    attributes = module.operation.attributes
    if "mhlo.num_partitions" in attributes:
        return ir.IntegerAttr(attributes["mhlo.num_partitions"]).value
    return max((mesh.size for mesh in module_meshes(module).values()), default=1)


def disagreements(analysis: Analysis, xla_propagated_text: str) -> Disagreements:
    """Returns where XLA's propagated module, as it dumps it, has other layouts than the analysis.

    An op of a function that is called twice is two ops on both sides: the sets of their layouts are compared.
    """
    there = _seen_by_xla(ir.Module.parse(xla_propagated_text))
    here = _seen_here(analysis)
    reasons: dict[ir.Value, str] = {}
    for key in here.keys() & there.keys():
        if here[key] != there[key]:
            reason = f"{_words(there[key])} there, {_words(here[key])} here"
            reasons |= {value: f"{name} is {reason}" for name, value in _values(analysis, key)}
    return Disagreements(reasons, len(here.keys() & there.keys()))


_Key = tuple[int | str, int]  # index of an op, or the name of a function; number of the result or argument, of a loop always 0
_Seen = dict[_Key, set]  # placements; for a loop, multisets of the placements of what it carries


def _seen_here(analysis: Analysis) -> _Seen:
    meshes = module_meshes(analysis.explicit)
    seen: _Seen = {}
    for serial, index in enumerate(analysis.origin):
        op = analysis.prepared_ops[serial]
        if index is None or op.name in _NOT_COMPARED:
            continue
        for attr in analysis.layouts.get(serial, ()):
            _see(seen, index, op, attr, meshes)
    for name, attrs in analysis.argument_layouts.items():
        _see_arguments(seen, name, attrs, analysis, meshes)
    return seen


def _see_arguments(seen, name, attrs, analysis, meshes) -> None:
    raise NotImplementedError
