# SPDX-License-Identifier: Apache-2.0
"""The jits of libraries: `flax.nnx.jit`, `equinox.filter_jit` and others that are made in the same way.

Each wraps a function of `jax.jit`. It takes apart arguments that jax does not know, such as modules with state, and
puts results together; its lowered and traced programs hold those of jax, `jax.stages`, as their field `lowered` or
`traced`. What is jax's is replaced there, and all else stays the library's.
"""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils.platform import jax_seam

if TYPE_CHECKING:
    import jax

_Around = Callable[[], AbstractContextManager]


def jax_lowered(program: Any) -> jax.stages.Lowered | None:
    """Returns the lowered program of jax that a library's holds, or that `program` is; None if it is neither."""
    if not (stages := sys.modules.get("jax.stages")):  # without it there is no such program
        return None
    found = program if isinstance(program, stages.Lowered) else getattr(program, "lowered", None)
    return found if isinstance(found, stages.Lowered) else None


def with_jax_lowered(program: Any, lowered: jax.stages.Lowered) -> Any:
    """Returns `lowered` in the place of what `jax_lowered(program)` returns: itself, or in a copy of a library's."""
    if jax_lowered(program) is program:
        return lowered
    made = copy.copy(program)
    object.__setattr__(made, "lowered", lowered)  # these classes are frozen
    return made


def is_jitted(fun: Any) -> bool:
    """Returns whether a function is that of a library's jit: it can be lowered, and holds a function of `jax.jit`.

    Example:
      >>> import jax
      >>> is_jitted(jax.jit(jax.numpy.sin)), is_jitted(jax.numpy.sin)
      (False, False)
    """
    if isinstance(fun, functools.partial):  # as a method of an object is
        return is_jitted(fun.func)
    if isinstance(fun, types.FunctionType) or jax_seam.is_jitted(fun):
        return False
    own = [each for each in getattr(fun, "__dict__", {}).values() if jax_seam.is_jitted(each)]
    return isinstance(fun, LibraryJitted) or (callable(fun) and hasattr(fun, "lower") and bool(own))


def stage_of(fun: Any, name: str) -> Callable:
    """Returns `lower` or `trace` of a function of a jit; of a partial function, with the arguments that it has."""
    if isinstance(fun, functools.partial):
        return functools.partial(stage_of(fun.func, name), *fun.args, **fun.keywords)
    return getattr(fun, name)


class LibraryJitted:
    """A function of a library's jit that is traced, lowered and compiled inside `around()`.

    It is no copy of the library's object, whose parts may refer to it. Attributes other than those below are the
    library's.

    Args:
      quick: what is around a call, in place of `around`: as long as this object or a copy lives, the seam of jax is
        installed.
    """

    def __init__(self, jitted: Callable, around: _Around, quick: _Around):
        functools.update_wrapper(self, jitted, updated=())
        self._jitted, self._around, self._quick, self._seam = jitted, around, quick, jax_seam.Installed()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._quick():
            return self._jitted(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the library's lowered program; its `compile()` optimizes it."""
        return self._staged("lower", args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the library's traced program, if it has such."""
        return self._staged("trace", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_jitted", "_around"):  # a copy asks before it has attributes
            raise AttributeError(name)
        return getattr(self._jitted, name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"reshard.jit({self._jitted!r})"

    def _staged(self, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        with self._around():
            found = stage_of(self._jitted, name)(*args, **kwargs)
        for stage in ("lowered", "traced"):
            jax_seam.stage_inside(getattr(found, stage, None), self._around)
        return found
