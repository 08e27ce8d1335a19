# SPDX-License-Identifier: Apache-2.0
"""Where jax would refuse a changed program in explicit mode, since shardings are types there.

A changed line gives other types to what is computed from it; `derived_types` takes the old ones out. They need not fit
what they meet:

E1  Operands of an element-wise op agree on each dimension, or all but one say nothing of it. No axis splits two.
E2  The operands of a select, and those of a concatenation, have one type.
E3  What a loop carries has the same type before and after a turn.

Types are followed through element-wise ops alone; of what other ops make, only a constraint says the type. Gradients
have the types of what they are gradients of, so the way back is not looked at.

Source: `broadcasting_sharding_rule`, `_select_sharding_rule` and `_concatenate_sharding_rule` in JAX's lax.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reshard.synthesis.layouts.sharding import AxisRef

from ..ir.diagnostics import place_of
from ..ir.functions import functions_of, has_body, public_functions
from ..ir.fusing import ELEMENTWISE
from ..ir.ops import LOOPS, ops_in, parent_of, short_name
from ..ir.way_back import WayBack
from ..platform.bindings import ir
from .annotations import constraints_of
from .derived_types import CONSTRAINT, is_type
from .sdy_shardings import sharding_from_attr
from .value_layouts import stated_arguments

_EQUAL = frozenset({"stablehlo.select", "stablehlo.concatenate"})
_RETURN = "stablehlo.return"
_MEETING = ELEMENTWISE | _EQUAL | {_RETURN}
_Type = tuple[tuple[AxisRef, ...], ...]


def has_types(module: ir.Module) -> bool:
    """Returns whether a module comes from JAX's explicit mode: some constraints say the types of results."""
    back = WayBack(module.operation)
    return any(is_type(op, back) for op in constraints_of(module) if not back.has(op))


def disagreements(module: ir.Module) -> list[str]:
    """Returns in words where types meet that jax does not let meet (E1 to E3), in program order."""
    return list(_Types(module).disagreements())


class _Types:
    """State: `_known`, the types of values, as far as they are known."""

    def __init__(self, module: ir.Module):
        self._module, self._back = module, WayBack(module.operation)
        self._known: dict[ir.Value, _Type] = {}

    def disagreements(self) -> Iterator[str]:
        for main in public_functions(functions_of(self._module.operation)):
            if has_body(main):
                for value, attr in zip(main.regions[0].blocks[0].arguments, stated_arguments(main), strict=True):
                    if attr is not None:
                        self._known[value] = sharding_from_attr(attr).dims
        for op in ops_in(self._module.operation):
            if op.name == CONSTRAINT:
                self._known[op.results[0]] = sharding_from_attr(op.attributes["sharding"]).dims
            elif op.name in LOOPS:
                self._carry(op)
            elif op.name in _MEETING and not self._back.has(op):
                yield from self._meet(op)

    def _carry(self, loop: ir.Operation) -> None:
        for number, operand in enumerate(loop.operands):
            if (known := self._known.get(operand)) is not None:
                inside = (region.blocks[0].arguments[number] for region in loop.regions)
                self._known |= dict.fromkeys((*inside, loop.results[number]), known)

    def _meet(self, op: ir.Operation) -> Iterator[str]:
        if op.name == _RETURN:
            yield from self._returned(op)
            return
        rank = len(ir.RankedTensorType(op.results[0].type).shape)
        types = [self._known[each] for each in op.operands if each in self._known]
        types = [each for each in types if len(each) == rank]  # scalars fit anything
        if not types:
            return
        joined = _joined(types) if op.name not in _EQUAL or len({*types}) == 1 else None
        if joined is None:
            yield _said(op, short_name(op), types)
        else:
            self._known[op.results[0]] = joined

    def _returned(self, op: ir.Operation) -> Iterator[str]:
        around = parent_of(op)
        if around.name not in LOOPS or op.block != around.regions[1].blocks[0]:
            return
        for before, after in zip(op.block.arguments, op.operands, strict=True):
            types = [self._known[each] for each in (before, after) if each in self._known]
            if len({*types}) > 1:
                yield _said(around, "a loop", types)


def _joined(types: Sequence[_Type]) -> _Type | None:
    """Returns the type of what an element-wise op makes of operands; None if they do not agree."""
    dims = [{*dims} - {()} for dims in zip(*types, strict=True)]
    joined = tuple(next(iter(each), ()) for each in dims)
    axes = [axis.name for each in joined for axis in each]
    return joined if all(len(each) < 2 for each in dims) and len(axes) == len({*axes}) else None


def _said(op: ir.Operation, what: str, types: Sequence[_Type]) -> str:
    place = place_of(op.location)
    met = " and ".join(f"P({', '.join(map(_text, each))})" for each in dict.fromkeys(types))
    return f"{place}: jax does not let {met} meet in {what}" if place else f"jax does not let {met} meet in {what}"


def _text(axes: tuple[AxisRef, ...]) -> str:
    names = [repr(axis.name) for axis in axes]
    return f"({', '.join(names)})" if len(names) > 1 else "".join(names) or "None"
