# SPDX-License-Identifier: Apache-2.0
"""Origins of layouts: for each axis that splits a value, the annotation that propagation took it from.

Shardy's own passes can report this: they name constraints and write, beside each layout, from which constraint,
argument or result of the program each axis came. Propagation runs once more in that mode, for reports that show it.

Shardy names a constraint, or a result, also for axes that its operand has in other dimensions for another reason, and
those places are the sites. So such a name is believed only for values of the same shape that have the axis where the
constraint has it; if a value has it where the operand has it, it is the operand's; otherwise nothing is reported.

Shardy does not track a layout that an op itself has, for example `sdy.sharding` on a tanh: there it names random
memory, or ends the process (seen with jaxlib 0.10.2). So modules with such ops have no origins. Since sub-axes may end
the process too, propagation runs in a child process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..ir.diagnostics import DiagnosedError, Place, place_of
from ..ir.functions import public_functions, symbol
from ..ir.ops import CONSTRAINTS, ops_in
from ..platform.bindings import ir
from ..preparation.prepared_clone import prepare
from ..preparation.serials import serial_of, tagged_clone
from ..shardings.sdy_shardings import sharding_from_attr
from ..shardings.value_layouts import layout, result_layout, result_layouts, stated_arguments, stated_results
from .isolated_passes import run_in_child
from .module_analysis import Analysis, before_propagation
from .propagation import propagation_pipeline

_ORIGINS, _NAME = "sdy.sharding_origins", "sdy.sharding_origin_name"
_NAMED = re.compile(r'loc\("((?:[^"\\]|\\.)*)"(?:\(.*\))?\)')


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an axis, in words, with its place in the source if it has one."""

    words: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class _Claim:
    """A constraint or a result that Shardy names, with the facts that tell whether the name can be right.

    Attributes:
      asked, held: axis -> dimensions, in the layout that it asks for and in the layout of its operand.
      shape: the shape of the value. of_operand: the origin of the operand's layout if it is an argument of the program.
    """

    origin: Origin
    asked: dict[str, tuple[int, ...]]
    held: dict[str, tuple[int, ...]]
    shape: tuple[int, ...]
    of_operand: Origin | None

    def about(self, axis: str, dims: tuple[int, ...], shape: tuple[int, ...]) -> Origin | None:
        """Returns the origin of an axis in some dimensions of a value of `shape`; None if it is not known."""
        asked, held = self.asked.get(axis), self.held.get(axis)
        if held is None or asked == held:
            return self.origin
        if shape != self.shape:
            return None
        return self.origin if dims == asked else self.of_operand if dims == held else None


class Origins:
    """Origins of the layouts of one module, which is not changed; it must have one public function.

    Attributes:
      is_known: false if Shardy cannot report the origins.
    """

    def __init__(self, module: ir.Module):
        self._index: dict[ir.Operation, int] = {}
        self._of_result: dict[tuple[int, int], dict[str, Origin]] = {}
        self._of_argument: list[dict[str, Origin]] = []
        self.is_known = True
        originals, clones = tagged_clone(module)
        publics = public_functions(originals)
        if len(publics) != 1:
            return
        try:
            analysis = before_propagation(prepare(originals, clones))
        except DiagnosedError:
            return
        self.is_known = self._reports_origins(analysis)
        if not self.is_known:
            return
        self._function = publics[0]
        self._index = {op: i for i, op in enumerate(originals)}
        self._read(analysis)

    def named(self, words: str, op: ir.Operation) -> Origin:
        """Returns the origin of these words at the place of an op."""
        return Origin(words, place_of(op))

    def of_value(self, value: ir.Value) -> dict[str, Origin]:
        """Returns the origin of each axis of a value's layout, sorted by axis; unknown ones are left out."""
        if not isinstance(value.owner, ir.Block):
            key = self._index.get(value.owner.operation, -1), ir.OpResult(value).result_number
            return self._of_result.get(key, {})
        number = ir.BlockArgument(value).arg_number
        is_entry = bool(self._index) and value.owner == self._function.regions[0].blocks[0]
        return self._of_argument[number] if is_entry and number < len(self._of_argument) else {}

    def _reports_origins(self, analysis: Analysis) -> bool:
        """Propagates, and returns whether Shardy reported the origins."""
        if any(_has_own_layout(op) for op in ops_in(analysis.explicit)):
            return False
        reported = run_in_child(analysis.explicit, _with_origins(propagation_pipeline()))
        if reported is None:  # the child died, or this version of Shardy has other passes
            return False
        analysis.explicit = reported.operation
        return True

    def _read(self, analysis: Analysis) -> None:
        (function,) = public_functions(ops_in(analysis.explicit))
        stated = stated_arguments(self._function)
        claims = self._claims(analysis, function, stated)
        block = function.regions[0].blocks[0]
        for argument, names, own in zip(block.arguments, _of_arguments(function, len(block.arguments)), stated):
            mine = dict.fromkeys(_dims(own), self._argument(argument.arg_number))
            self._of_argument.append(
                self._resolved(names, argument, claims) | {axis: mine[axis] for axis in names if axis in mine}
            )
        for op in ops_in(function):
            serial = serial_of(op)
            index = None if serial is None else analysis.origin[serial]
            if index is None or _ORIGINS not in op.attributes:
                continue
            itself = Origin(f"{op.name} itself", place_of(analysis.originals[index]))
            for result, names in zip(op.results, _per_value(op.attributes[_ORIGINS])):
                self._of_result.setdefault((index, result.result_number), self._resolved(names, result, claims, itself))

    def _resolved(
        self, names: dict[str, str], value: ir.Value, claims: dict[str, _Claim], itself: Origin | None = None
    ) -> dict[str, Origin]:
        dims, shape = _dims(layout(value)), _shape(value)
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
        self, analysis: Analysis, function: ir.Operation, stated: list[ir.Attribute | None]
    ) -> dict[str, _Claim]:
        """Returns the constraints and the results of the program by Shardy's names."""
        found, block = {}, function.regions[0].blocks[0]
        for op in ops_in(function):
            serial = serial_of(op) if _NAME in op.attributes else None
            if serial is not None and (index := analysis.origin[serial]) is not None:
                origin = Origin("a constraint", place_of(analysis.originals[index]))
                asked = result_layout(op, 0) if len(op.results) else None
                found[ir.StringAttr(op.attributes[_NAME]).value] = self._claim(
                    origin, asked, op.operands[0], block, stated
                )
        returned = list(block.operations)[-1].operands
        for number, (asked, value) in enumerate(zip(stated_results(function), returned)):
            origin = Origin(f"result {number} of @{self._name}", place_of(self._function))
            found[f"output: {number}"] = self._claim(origin, asked, value, block, stated)
        return found

    def _claim(
        self,
        origin: Origin,
        asked: ir.Attribute | None,
        operand: ir.Value,
        entry: ir.Block,
        stated: list[ir.Attribute | None],
    ) -> _Claim:
        is_stated = operand.owner == entry and stated[ir.BlockArgument(operand).arg_number] is not None
        of_operand = self._argument(ir.BlockArgument(operand).arg_number) if is_stated else None
        return _Claim(origin, _dims(asked), _dims(layout(operand)), _shape(operand), of_operand)

    def _argument(self, number: int) -> Origin:
        """Returns an argument of the program as an origin; jax gives it the name that it has in Python."""
        argument = self._function.regions[0].blocks[0].arguments[number]
        name = _NAMED.fullmatch(str(argument.location))
        return Origin(f"argument {number} of @{self._name}" + (f", {name[1]}" if name else ""), place_of(argument))

    @property
    def _name(self) -> str:
        return symbol(self._function)


def _has_own_layout(op: ir.Operation) -> bool:
    """Returns whether an op, not a constraint, came with a layout of its results."""
    return op.name not in _ASKING and result_layouts(op) is not None


_ASKING = CONSTRAINTS | {"sdy.manual_computation"}


def _with_origins(pipeline: str) -> str:
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
