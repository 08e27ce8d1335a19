# SPDX-License-Identifier: Apache-2.0
"""The parameter of a program whose gradient an op computes, by following the op's results to those of the program.

JAX names the arguments of a program in their locations (`params['up']`), its results in `jax.result_info`, and ops of a
backward pass `transpose(jvp(...))`. A gradient goes through ops that keep its elements apart: casts, reshapes, the
arithmetic of an optimizer, loops that stack it. The results at the end, such as the new parameter and the new momentum,
belong to arguments: those whose memory they take, or those of the same type and the most similar name. The parameter is
the one that the program multiplies with something, not only updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reshard.dialect_utils.analysis.named_values import name_of
from reshard.dialect_utils.ir.diagnostics import text_of_location
from reshard.dialect_utils.ir.functions import callee_of, functions_of, signature, symbol
from reshard.dialect_utils.ir.ops import LOOPS, ops_in, parent_of
from reshard.dialect_utils.platform.bindings import ir

_BACKWARD = "transpose(jvp("
_STOPS = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather", "convolution", "custom_call", "dot", "dot_general", "dynamic_gather",
        "dynamic_slice", "gather", "iota", "reduce_window", "scatter", "select_and_scatter", "slice", "sort",
    )
)  # fmt: skip
_GROWING = frozenset(("stablehlo.concatenate", "stablehlo.dynamic_update_slice", "stablehlo.pad"))
_REDUCE = "stablehlo.reduce"  # of dimensions of size 1, it keeps the elements
_RETURNS = frozenset(("func.return", "stablehlo.return", "sdy.return"))
_CALLS = frozenset(("func.call", "call"))
_Calls = tuple[ir.Operation, ...]  # the calls around an op, innermost first
_MOST_STEPS = 20_000  # values that are looked at for one op


class Parameters:
    """The parameters of a module by the ops that compute their gradients.

    State: the functions and their calls by name; what was found for ops so far.
    """

    def __init__(self, module: ir.Module, main: ir.Operation):
        self._main = main
        self._functions = {symbol(each): each for each in functions_of(module.operation)}
        self._calls: dict[str, list[ir.Operation]] = {}
        for op in ops_in(module.operation):
            if op.name in _CALLS:
                self._calls.setdefault(callee_of(op), []).append(op)
        self._renewed = _renewed_by_results(main)
        self._own_names = _own_names_of_results(main)
        self._found: dict[tuple[ir.Operation, _Calls], str] = {}
        self._is_state: dict[ir.Value, bool] = {}

    def gradient_of(self, ops: Sequence[ir.Operation]) -> str:
        """Returns the name of the parameter whose gradient the first op computes; "" if it is none, or has no name.

        Args:
          ops: the op, then the ops that lead to it, calls among them, innermost first; one of them has to be named as a
            part of a backward pass.
        """
        if not ops or not any(_BACKWARD in text_of_location(op) for op in ops):
            return ""
        calls = tuple(op for op in ops[1:] if op.name in _CALLS)
        if (ops[0], calls) not in self._found:
            self._found[ops[0], calls] = self._name(self._followed(ops[0].results, calls)[0])
        return self._found[ops[0], calls]

    def _name(self, results: set[int]) -> str:
        """Returns the name of the parameter that some results renew; if none renews an argument, that of a result.

        Of a parameter and the states that the optimizer keeps for it, it is the one with which the program computes
        more than elementwise; of several, the one with the shortest name.
        """
        arguments = {each: name_of(each) for number in sorted(results) for each in self._renewed[number]}
        arguments = {argument: name for argument, name in arguments.items() if name}
        if not arguments:
            return min((self._own_names[number] for number in results), key=lambda name: (len(name), name), default="")
        return min(arguments.items(), key=lambda each: (self._is_optimizer_state(each[0]), len(each[1]), each[1]))[1]

    def _is_optimizer_state(self, argument: ir.Value) -> bool:
        if argument not in self._is_state:
            self._is_state[argument] = not self._followed([argument], ())[1]
        return self._is_state[argument]

    def _followed(self, values: Sequence[ir.Value], calls: _Calls) -> tuple[set[int], bool]:
        """Returns the numbers of the program's results that have the elements of some values, and whether any op uses
        these that does not keep them apart."""
        reached: set[int] = set()
        is_mixed = False
        left = [(each, calls) for each in values]
        seen = set(left)
        while left and len(seen) < _MOST_STEPS:
            value, around = left.pop()
            for use in value.uses:
                user, number = use.owner.operation, use.operand_number
                is_mixed = is_mixed or user.name in _STOPS
                if user.name == "func.return" and parent_of(user) == self._main:
                    reached.add(number)
                for onward in self._onward(value, user, number, around):
                    if onward not in seen:
                        seen.add(onward)
                        left.append(onward)
        return reached, is_mixed

    def _onward(
        self, value: ir.Value, user: ir.Operation, number: int, calls: _Calls
    ) -> Iterator[tuple[ir.Value, _Calls]]:
        """Yields the values that have the elements of a value behind one of its uses, each with the calls around it."""
        if user.name in _RETURNS:
            yield from self._behind(parent_of(user), number, calls)
        elif user.name in _CALLS:
            function = self._functions.get(callee_of(user))
            if function is not None and len(function.regions[0].blocks):
                yield function.regions[0].blocks[0].arguments[number], (user, *calls)
        elif user.name in LOOPS:
            yield user.regions[1].blocks[0].arguments[number], calls
            yield user.results[number], calls
        elif user.name not in _STOPS and (len(user.regions) == 0 or user.name == _REDUCE):
            has_room = user.name in _GROWING
            yield from ((each, calls) for each in user.results if has_room or _elements(each) == _elements(value))

    def _behind(self, owner: ir.Operation, number: int, calls: _Calls) -> Iterator[tuple[ir.Value, _Calls]]:
        """Yields the values that a region hands on.

        These are results of the op around it, of the call that led into it, or of all calls if none did, and the next
        iteration's argument of a loop.
        """
        if owner.name == "func.func":
            led = calls[:1] if calls and callee_of(calls[0]) == symbol(owner) else self._calls.get(symbol(owner), ())
            yield from ((call.results[number], calls[1:]) for call in led)
            return
        if number < len(owner.results):
            yield owner.results[number], calls
        if owner.name in LOOPS and number < len(owner.regions[1].blocks[0].arguments):
            yield owner.regions[1].blocks[0].arguments[number], calls


def _elements(value: ir.Value) -> int | None:
    if not isinstance(value.type, ir.RankedTensorType):
        return None
    count = 1
    for size in ir.RankedTensorType(value.type).shape:
        count *= size
    return count


def _renewed_by_results(main: ir.Operation) -> list[list[ir.Value]]:
    """Returns for each result of the program the arguments that it may renew.

    It is the one whose memory it takes; else those of its type whose names are most like its own.
    """
    arguments = list(main.regions[0].blocks[0].arguments)
    donated: dict[int, ir.Value] = {}
    for argument, attributes in zip(arguments, _attributes(main, "arg_attrs", len(arguments))):
        if "tf.aliasing_output" in attributes:
            donated[ir.IntegerAttr(attributes["tf.aliasing_output"]).value] = argument
    found = []
    for number, (own, kind) in enumerate(zip(_own_names_of_results(main), signature(main).results)):
        alike = most_alike(own, [name_of(each) for each in arguments if each.type == kind])
        named = [each for each in arguments if each.type == kind and name_of(each) in alike]
        found.append([donated[number]] if number in donated else named)
    return found


def _own_names_of_results(main: ir.Operation) -> list[str]:
    attributes = _attributes(main, "res_attrs", len(signature(main).results))
    return [ir.StringAttr(each["jax.result_info"]).value if "jax.result_info" in each else "" for each in attributes]


def _attributes(function: ir.Operation, name: str, count: int) -> list:
    return list(ir.ArrayAttr(function.attributes[name])) if name in function.attributes else [{}] * count


def most_alike(name: str, others: Sequence[str]) -> list[str]:
    """Returns the names that share the longest path at their ends with `name`; none if no name does.

    Example:
      >>> most_alike("result[1]['up']", ["step", "opt[0]['mu']['up']", "params['up']", "params['down']"])
      ["opt[0]['mu']['up']", "params['up']"]
    """
    shared = {other: _shared_path(name, other) for other in others}
    longest = max(shared.values(), default=0)
    return [other for other, length in shared.items() if length == longest > 0]


def _shared_path(one: str, other: str) -> int:
    """Returns the length of the common end of two names, cut to begin with a `[` or a `.`."""
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    while length and one[-length] not in "[.":
        length -= 1
    return length
