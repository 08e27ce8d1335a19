# SPDX-License-Identifier: Apache-2.0
"""Who asked for a layout: for each axis that splits a value, the annotation that propagation took it from.

Shardy's own passes say so when they are asked to: they name constraints and write, beside each layout, from which of them, or from
which argument or result of the program, each axis came. This runs them once more that way, for those who want to know.

Shardy names a constraint, or a result, also for axes that its operand has in other dimensions on its own account, which is just
where there is a site. Such a name is believed only of values of the same shape that have the axis where the constraint has it;
where the operand has it, it is the operand's; of others nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass
import re

from . import propagation
from .bindings import ir
from .diagnostics import DiagnosedError, Place, place_of
from .sdy_shardings import SHARDING, sharding_from_attr

_ORIGINS, _NAME = "sdy.sharding_origins", "sdy.sharding_origin_name"
_NAMED = re.compile(r'loc\("((?:[^"\\]|\\.)*)"(?:\(.*\))?\)')


@dataclass(frozen=True, slots=True)
class Origin:
    """What asked for an axis, in words, with its place in the source if it has one."""

    words: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class _Claim:
    """A constraint or a result that Shardy names, with what tells whether it can be meant.

    Attributes:
      asked, held: axis -> dimensions, as it asks for and as its operand has them on either side of the conversion.
      shape: of the value. of_operand: what asked for the operand's layout, if it is an argument of the program.
    """

    origin: Origin
    asked: dict[str, tuple[int, ...]]
    held: dict[str, tuple[int, ...]]
    shape: tuple[int, ...]
    of_operand: Origin | None

    def about(self, axis: str, dims: tuple[int, ...], shape: tuple[int, ...]) -> Origin | None:
        """Returns what asked for an axis in some dimensions of a value of `shape`; None where that cannot be told."""
        asked, held = self.asked.get(axis), self.held.get(axis)
        if held is None or asked == held:
            return self.origin
        if shape != self.shape:
            return None
        return self.origin if dims == asked else self.of_operand if dims == held else None


class Origins:
    """Origins of the layouts of one module, which stays as it is. Nothing is known of modules with several public functions."""

    def __init__(self, module: ir.Module):
        self._index: dict[ir.Operation, int] = {}
        self._of_result: dict[tuple[int, int], dict[str, Origin]] = {}
        self._of_argument: list[dict[str, Origin]] = []
        originals, clones = propagation.tagged_clone(module)
        publics = [op for op in originals if op.name == "func.func" and propagation.is_public(op) and len(op.regions[0].blocks)]
        if len(publics) != 1:
            return
        try:
            analysis = propagation.prepare(originals, clones)
            if _states_layouts_itself(analysis.explicit):
                return
            propagation.run_on_program(analysis.explicit, _telling(propagation.propagation_pipeline()))
        except DiagnosedError:  # the passes of another Shardy: the report does without
            return
        self._function = publics[0]
        self._index = {op: i for i, op in enumerate(originals)}
        self._read(analysis)

    def named(self, words: str, op: ir.Operation) -> Origin:
        """Returns the origin of these words at the place of an op."""
        return Origin(words, place_of(op))

    def of_value(self, value: ir.Value) -> dict[str, Origin]:
        """Returns what asked for each axis of a value's layout, sorted by axis; what is unknown is left out."""
        if not isinstance(value.owner, ir.Block):
            key = self._index.get(value.owner.operation, -1), ir.OpResult(value).result_number
            return self._of_result.get(key, {})
        number = ir.BlockArgument(value).arg_number
        is_entry = bool(self._index) and value.owner == self._function.regions[0].blocks[0]
        return self._of_argument[number] if is_entry and number < len(self._of_argument) else {}

    def _read(self, analysis: propagation.Analysis) -> None:
        function = next(
            op for op in propagation.ops_in(analysis.explicit) if op.name == "func.func" and propagation.is_public(op)
        )
        stated = propagation.stated_arguments(self._function)
        claims = self._claims(analysis, function, stated)
        block = function.regions[0].blocks[0]
        for argument, names, own in zip(block.arguments, _of_arguments(function, len(block.arguments)), stated):
            mine = dict.fromkeys(_dims(own), self._argument(argument.arg_number))
            self._of_argument.append(
                self._resolved(names, argument, claims) | {axis: mine[axis] for axis in names if axis in mine}
            )
        for op in propagation.ops_in(function):
            serial = propagation.serial_of(op)
            index = None if serial is None else analysis.origin[serial]
            if index is None or _ORIGINS not in op.attributes:
                continue
            itself = Origin(f"{op.name} itself", place_of(analysis.originals[index]))
            for result, names in zip(op.results, _per_value(op.attributes[_ORIGINS])):
                self._of_result.setdefault((index, result.result_number), self._resolved(names, result, claims, itself))

    def _resolved(
        self, names: dict[str, str], value: ir.Value, claims: dict[str, _Claim], itself: Origin | None = None
    ) -> dict[str, Origin]:
        dims, shape = _dims(propagation.layout(value)), _shape(value)
        found: dict[str, Origin | None] = {}
        for axis, name in sorted(names.items()):
            base = axis.partition(":")[0]
            if name == "self":
                found[axis] = itself
            elif name in claims:
                found[axis] = claims[name].about(base, dims.get(base, ()), shape)
            elif name.startswith("input: "):
                found[axis] = self._argument(int(name.removeprefix("input: ")))
        return {axis: origin for axis, origin in found.items() if origin is not None}

    def _claims(
        self, analysis: propagation.Analysis, function: ir.Operation, stated: list[ir.Attribute | None]
    ) -> dict[str, _Claim]:
        """Returns the constraints and the results of the program by Shardy's names."""
        found, block = {}, function.regions[0].blocks[0]
        for op in propagation.ops_in(function):
            if (
                _NAME in op.attributes
                and (serial := propagation.serial_of(op)) is not None
                and analysis.origin[serial] is not None
            ):
                origin = Origin("a constraint", place_of(analysis.originals[analysis.origin[serial]]))
                asked = propagation.result_layout(op, 0) if len(op.results) else None
                found[ir.StringAttr(op.attributes[_NAME]).value] = self._claim(origin, asked, op.operands[0], block, stated)
        returned = list(block.operations)[-1].operands
        for number, (asked, value) in enumerate(zip(propagation.stated_results(function), returned)):
            origin = Origin(f"result {number} of @{self._name}", place_of(self._function))
            found[f"output: {number}"] = self._claim(origin, asked, value, block, stated)
        return found

    def _claim(
        self, origin: Origin, asked: ir.Attribute | None, operand: ir.Value, entry: ir.Block, stated: list[ir.Attribute | None]
    ) -> _Claim:
        is_stated = operand.owner == entry and stated[ir.BlockArgument(operand).arg_number] is not None
        of_operand = self._argument(ir.BlockArgument(operand).arg_number) if is_stated else None
        return _Claim(origin, _dims(asked), _dims(propagation.layout(operand)), _shape(operand), of_operand)

    def _argument(self, number: int) -> Origin:
        """Returns the program's argument; jax gives it the name that it has in Python."""
        argument = self._function.regions[0].blocks[0].arguments[number]
        name = _NAMED.fullmatch(str(argument.location))
        return Origin(f"argument {number} of @{self._name}" + (f", {name[1]}" if name else ""), place_of(argument))

    @property
    def _name(self) -> str:
        return propagation.symbol(self._function)


def _states_layouts_itself(module: ir.Operation) -> bool:
    """Returns whether an op states a layout, which no argument, result or constraint asked for: Shardy would look for who did."""
    return any(SHARDING in op.attributes or op.name in _UNNAMED for op in propagation.ops_in(module))


_UNNAMED = frozenset({"sdy.sharding_group"})  # hands on layouts without their origins


def _telling(pipeline: str) -> str:
    return pipeline.replace("debug-sharding-origins=false", "debug-sharding-origins=true")


def _dims(attr: ir.Attribute | None) -> dict[str, tuple[int, ...]]:
    """Returns the dimensions that each axis, or any piece of it, splits."""
    found: dict[str, tuple[int, ...]] = {}
    for dim, axes in enumerate(sharding_from_attr(attr).dims if attr is not None else ()):
        for name in dict.fromkeys(axis.name for axis in axes):
            found[name] = (*found.get(name, ()), dim)
    return found


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(value.type).shape) if isinstance(value.type, ir.RankedTensorType) else ()


def _of_arguments(function: ir.Operation, count: int) -> list[dict[str, str]]:
    if "arg_attrs" not in function.attributes:
        return [{}] * count
    attributes = [ir.DictAttr(each) for each in ir.ArrayAttr(function.attributes["arg_attrs"])]
    return [_names(ir.DictAttr(each[_ORIGINS])) if _ORIGINS in each else {} for each in attributes]


def _per_value(attr: ir.Attribute) -> list[dict[str, str]]:
    if isinstance(attr, ir.ArrayAttr):
        return [_names(ir.DictAttr(each)) for each in attr]
    return [_names(ir.DictAttr(attr))]


def _names(attr: ir.DictAttr) -> dict[str, str]:
    return {each.name: ir.StringAttr(each.attr).value for each in attr}
