# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call: by number and by name, as the function has them; and which of them are static.

A program takes arrays by position. So a call whose arguments are named, or static, becomes one of another function,
which takes the arrays alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STATIC, DONATED = "static", "donate"  # what options of jax.jit say of arguments, by number or name

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call.

    Attributes:
      number: of the parameter, from 0; None if it has no place. name: of the parameter, such as x, or args[1].
      is_keyword: whether the function gets it by name.
      static: its value if it is static.
    """

    number: int | None
    name: str
    is_keyword: bool
    is_static: bool = False
    static: Any = None

    def __str__(self) -> str:
        return f"{self.name} = {self.static!r}" if self.is_static else self.name


def key_of(arguments: Sequence[Argument]) -> tuple:
    """Returns what tells two calls apart, beside shapes and types. The static values 1 and 1.0 differ."""
    return tuple((each, type(each.static)) for each in arguments)


@dataclass(frozen=True, slots=True)
class Marked:
    """Which arguments an option of `jax.jit` is about: their numbers and names."""

    numbers: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()

    def has(self, argument: Argument) -> bool:
        return argument.number in self.numbers or argument.name in self.names


@dataclass(frozen=True)
class Call:
    """A call of a function.

    Attributes:
      arguments: those by position, then those by name, sorted. values: of the arguments that are not static.
    """

    fun: Callable
    arguments: tuple[Argument, ...]
    values: tuple = field(repr=False)

    @property
    def dynamic(self) -> tuple[Argument, ...]:
        """Returns the arguments that are not static, in the order of `values`."""
        return tuple(each for each in self.arguments if not each.is_static)

    @property
    def key(self) -> tuple:
        """Returns the `key_of` the arguments."""
        return key_of(self.arguments)

    def function(self) -> Callable:
        """Returns the function of `values`; with no argument that is static or named, it is the function itself."""
        if not any(each.is_static or each.is_keyword for each in self.arguments):
            return self.fun
        fun, arguments = self.fun, self.arguments

        def called(*values: Any) -> Any:
            rest = iter(values)
            each = [(of, of.static if of.is_static else next(rest)) for of in arguments]
            named = {of.name: value for of, value in each if of.is_keyword}
            return fun(*(value for of, value in each if not of.is_keyword), **named)

        functools.update_wrapper(called, fun)
        called.__name__ = name_of(fun)
        names = [each.name.replace("[", "_").rstrip("]") for each in self.dynamic]
        is_plain = len({*names}) == len(names) and all(map(str.isidentifier, names))
        names = names if is_plain else [f"argument_{at}" for at in range(len(names))]
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
        called.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        return called


@dataclass(frozen=True)
class Parameters:
    """What a function calls its arguments, and which of them options of `jax.jit` are about.

    `signature` is None for a function of which Python knows none; its arguments have numbers alone.
    """

    fun: Callable
    signature: inspect.Signature | None
    static: Marked
    donated: Marked

    @classmethod
    def of(cls, fun: Callable, options: Mapping[str, Any]) -> Parameters:
        """Returns the parameters of a function that is compiled with options of `jax.jit`.

        Raises: ValueError for a number or name that the function does not have.
        """
        signature = _signature(fun)
        static, donated = (_marked(signature, kind, options) for kind in (STATIC, DONATED))
        if both := sorted(map(str, (static.numbers & donated.numbers) | (static.names & donated.names))):
            raise ValueError(f"argument {both[0]} is static and donated; only arrays are donated")
        return cls(fun, signature, static, donated)

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the parameters; of one for any number of arguments, with its stars."""
        return tuple(_STARS.get(each.kind, "") + each.name for each in self._all)

    @property
    def _all(self) -> Sequence[inspect.Parameter]:
        return () if self.signature is None else tuple(self.signature.parameters.values())

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Returns a call. An argument that has a place is by position, even if it was given by name.

        Raises: TypeError if the function does not take such arguments; ValueError for a static one without a hash.
        """
        if self.signature is not None:
            try:
                bound = self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{name_of(self.fun)}: {error}") from None
            args, kwargs = bound.args, bound.kwargs
        numbers = {each.name: number for number, each in enumerate(self._all) if each.kind in _BY_POSITION}
        found = [(Argument(at, self._name(at), is_keyword=False), value) for at, value in enumerate(args)]
        found += [(Argument(numbers.get(name), name, is_keyword=True), kwargs[name]) for name in sorted(kwargs)]
        arguments, values = [], []
        for each, value in found:
            if self.static.has(each):
                each = Argument(each.number, each.name, each.is_keyword, is_static=True, static=_hashed(each, value))
            else:
                values.append(value)
            arguments.append(each)
        return Call(self.fun, tuple(arguments), tuple(values))

    def _name(self, number: int) -> str:
        placed = [each.name for each in self._all if each.kind in _BY_POSITION]
        if number < len(placed):
            return placed[number]
        rest = next((each.name for each in self._all if each.kind is inspect.Parameter.VAR_POSITIONAL), "args")
        return f"{rest}[{number - len(placed)}]"


def name_of(fun: Callable) -> str:
    """Returns the name of a function, or of the one that a `functools.partial` calls."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__name__", type(fun).__name__)


def _hashed(argument: Argument, value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        said = f"the static argument {argument.name} is a {type(value).__name__}, which has no hash"
        raise ValueError(f"{said}; give a value that has one, such as a tuple") from None
    return value


def _signature(fun: Callable) -> inspect.Signature | None:
    try:
        return inspect.signature(fun)
    except ValueError:
        return None


def _marked(signature: inspect.Signature | None, kind: str, options: Mapping[str, Any]) -> Marked:
    """Returns the arguments that `<kind>_argnums` and `<kind>_argnames` are about; each follows from the other, as in
    `jax.jit`, if it is not given."""
    numbers, names = options.get(f"{kind}_argnums"), options.get(f"{kind}_argnames")
    numbers = None if numbers is None else (numbers,) if isinstance(numbers, int) else tuple(numbers)
    names = None if names is None else (names,) if isinstance(names, str) else tuple(names)
    if signature is None:
        return Marked(frozenset(numbers or ()), frozenset(names or ()))
    parameters = list(signature.parameters.values())
    placed = [each.name for each in parameters if each.kind in _BY_POSITION]
    kinds = {each.kind for each in parameters}
    has_more = inspect.Parameter.VAR_POSITIONAL in kinds
    for number in numbers or ():
        if not -len(placed) <= number < len(placed) and not (has_more and number >= 0):
            raise ValueError(f"{kind}_argnums has {number}, and the function has {len(placed)} positional parameters")
    taken = [each.name for each in parameters if each.kind not in _STARS]
    for name in names or ():
        if inspect.Parameter.VAR_KEYWORD not in kinds and name not in taken:
            raise ValueError(f"{kind}_argnames has {name!r}, and the function has {', '.join(taken)}")
    counted = frozenset(number % len(placed) if number < 0 else number for number in numbers or ())
    named = frozenset(names or ())
    if numbers is None:
        counted = frozenset(placed.index(name) for name in named if name in placed)
    elif names is None:
        named = frozenset(placed[number] for number in counted if number < len(placed))
    return Marked(counted, named)
