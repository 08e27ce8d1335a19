# SPDX-License-Identifier: Apache-2.0
"""Who asked for a layout: for each axis that splits a value, the annotation that propagation took it from.

Shardy's own passes say so when they are asked to: they name constraints and write, beside each layout, from which of them, or from
which argument or result of the program, each axis came. This runs them once more that way, for those who want to know.
"""

from __future__ import annotations

from dataclasses import dataclass
import re

from . import propagation
from .bindings import ir
from .diagnostics import DiagnosedError, Place, place_of

_ORIGINS, _NAME = "sdy.sharding_origins", "sdy.sharding_origin_name"
_NAMED = re.compile(r'loc\("((?:[^"\\]|\\.)*)"(?:\(.*\))?\)')
_END = re.compile(r"(input|output): (\d+)")


@dataclass(frozen=True, slots=True)
class Origin:
    """What asked for an axis, in words, with its place in the source if it has one."""

    words: str
    place: Place | None


class Origins:
    """Origins of the layouts of one module, which stays as it is. Nothing is known of modules with several public functions."""

    def __init__(self, module: ir.Module):
        self._index: dict[ir.Operation, int] = {}
        self._of_result: dict[tuple[int, int], dict[str, str]] = {}
        self._of_argument: list[dict[str, str]] = []
        self._named: dict[str, Origin] = {}
        self._function: ir.Operation | None = None
        originals, clone = propagation.tagged_clone(module)
        publics = [op for op in originals if op.name == "func.func" and propagation.is_public(op) and len(op.regions[0].blocks)]
        if len(publics) != 1:
            return
        try:
            analysis = propagation.prepare(originals, clone)
            propagation.run(analysis.explicit, _telling(propagation.propagation_pipeline()))
        except DiagnosedError:  # the passes of another Shardy: the report does without
            return
        self._function = publics[0]
        self._index = {op: i for i, op in enumerate(originals)}
        self._read(analysis)

    def of_value(self, value: ir.Value) -> dict[str, Origin]:
        """Returns what asked for each axis of a value's layout, by the axis as Shardy prints it, sorted; empty where unknown."""
        if isinstance(value.owner, ir.Block):
            block = value.owner
            is_entry = self._function is not None and block == self._function.regions[0].blocks[0]
            number = ir.BlockArgument(value).arg_number
            found = self._of_argument[number] if is_entry and number < len(self._of_argument) else {}
            own = self._argument(number)
        else:
            op = value.owner.operation
            number = ir.OpResult(value).result_number
            found = self._of_result.get((self._index.get(op, -1), number), {})
            own = Origin(f"{op.name} itself", place_of(op))
        return {axis: own if name == "self" else self._origin(name) for axis, name in sorted(found.items())}

    def _origin(self, name: str) -> Origin:
        if name in self._named:
            return self._named[name]
        end = _END.fullmatch(name)
        if end is None or self._function is None:
            return Origin(name, None)
        if end[1] == "input":
            return self._argument(int(end[2]))
        return Origin(f"result {end[2]} of @{self._name}", place_of(self._function))

    def _argument(self, number: int) -> Origin:
        """Returns the program's argument; jax gives it the name that it has in Python."""
        arguments = self._function.regions[0].blocks[0].arguments
        if number >= len(arguments):
            return Origin(f"argument {number} of @{self._name}", place_of(self._function))
        name = _NAMED.fullmatch(str(arguments[number].location))
        return Origin(f"argument {number} of @{self._name}" + (f", {name[1]}" if name else ""), place_of(arguments[number]))

    @property
    def _name(self) -> str:
        return ir.StringAttr(self._function.attributes["sym_name"]).value

    def _read(self, analysis: propagation.Analysis) -> None:
        for op in propagation.ops_in(analysis.explicit):
            if op.name == "func.func" and propagation.is_public(op):
                self._of_argument = _of_arguments(op)
            serial = propagation.serial_of(op)
            index = None if serial is None else analysis.origin[serial]
            if index is None:
                continue
            if _NAME in op.attributes:
                self._named.setdefault(ir.StringAttr(op.attributes[_NAME]).value, Origin("a constraint", place_of(analysis.originals[index])))
            if _ORIGINS in op.attributes:
                for number, found in enumerate(_per_value(op.attributes[_ORIGINS])):
                    self._of_result.setdefault((index, number), found)


def _telling(pipeline: str) -> str:
    return pipeline.replace("debug-sharding-origins=false", "debug-sharding-origins=true")


def _of_arguments(function: ir.Operation) -> list[dict[str, str]]:
    if "arg_attrs" not in function.attributes:
        return []
    attributes = [ir.DictAttr(each) for each in ir.ArrayAttr(function.attributes["arg_attrs"])]
    return [_names(ir.DictAttr(each[_ORIGINS])) if _ORIGINS in each else {} for each in attributes]


def _per_value(attr: ir.Attribute) -> list[dict[str, str]]:
    if isinstance(attr, ir.ArrayAttr):
        return [_names(ir.DictAttr(each)) for each in attr]
    return [_names(ir.DictAttr(attr))]


def _names(attr: ir.DictAttr) -> dict[str, str]:
    return {each.name: ir.StringAttr(each.attr).value for each in attr}
