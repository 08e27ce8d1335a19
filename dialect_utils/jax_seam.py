# SPDX-License-Identifier: Apache-2.0
"""Where jax hands a module to XLA: the one file that reaches into jax for it.

**The seam.** Whatever jax compiles goes through `jax._src.compiler.compile_or_get_cached(backend, module, devices, ...)`, called by
that name. While a rewriter is active, a function of ours stands there. It hands on a rewritten module; the persistent cache's key,
JAX's dumps and XLA see that one. It is put there when the first rewriter becomes active and taken away with the last.

**What is active** is the value of a context of jax's own (`jax.make_user_context`, public): it belongs to a thread, and jax's caches
of traces, of lowerings and of executables have it in their keys. What is compiled under one value is never run under another.

**A jitted function with a rewriter of its own.** jax dispatches in C++ and calls Python only for arguments that it has not
compiled for (`cache_miss`). `jitted_with` makes the same C++ object around another `cache_miss`, with a cache of its own, out of
the state that jax pickles: a call that hits costs what it costs in jax.

`problem` says whether this jax is built that way; test/dialect_utils/test_jax_seam.py is the canary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import copy
import functools
import inspect
import threading
from typing import Any, Protocol

from .interrupts import HeldBack

_SEAM = "compile_or_get_cached"
_SEAM_TAKES = ("backend", "computation", "devices", "compile_options")
_STATE = ("fun", "cache_miss", "cache")


class Rewriter(Protocol):
    """What may be active. It is hashable, and equal ones share what jax compiled under them."""

    def rewritten(self, module, devices: tuple, compile_options):
        """Returns the module that XLA gets in the place of `module`, for devices in the order of partitions."""


_lock = threading.Lock()
_users = 0
_original: Callable | None = None


@functools.cache
def active():
    """Returns jax's context whose value is the `Rewriter` that is active in this thread; None is none.

    What jax compiled before the first call is compiled once more when it is used again: its keys had no such entry.
    """
    import jax

    return jax.make_user_context(None)


@functools.cache
def problem() -> str:
    """Returns why this jax has no seam that we know, in one line; empty if it has."""
    try:
        return _difference()
    except Exception as error:  # whatever a jax of another build does when it is looked at
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _difference() -> str:
    import jax
    from jax._src import compiler
    from jax._src.interpreters import pxla

    if not hasattr(jax, "make_user_context"):
        return "jax.make_user_context is not there"
    found = getattr(compiler, _SEAM, None)
    if found is None:
        return f"jax._src.compiler.{_SEAM} is not there"
    takes = tuple(inspect.signature(found).parameters)
    if takes[: len(_SEAM_TAKES)] != _SEAM_TAKES:
        return f"jax._src.compiler.{_SEAM} takes {', '.join(takes)}"
    if getattr(pxla, "compiler", None) is not compiler:
        return f"jax._src.interpreters.pxla does not call jax._src.compiler.{_SEAM}"
    jitted = jax.jit(lambda: None)
    state = jitted.__getstate__()
    missing = [name for name in _STATE if name not in state]
    return f"the state of a jitted function has no {missing[0]}" if missing else ""


@contextlib.contextmanager
def rewriting(rewriter: Rewriter | None) -> Iterator[None]:
    """Makes a rewriter active in this thread; None switches off what is active around."""
    if rewriter is None:
        with active()(None):
            yield
        return
    is_installed = False
    try:
        with HeldBack():  # half installed it would be in nobody's way, and never be installed again
            _install()
            is_installed = True
        with active()(rewriter):
            yield
    finally:
        with HeldBack():
            if is_installed:
                _remove()


def _install() -> None:
    from jax._src import compiler

    global _users, _original
    with _lock:
        _users += 1
        if _users > 1:
            return
        _original = getattr(compiler, _SEAM)
        setattr(compiler, _SEAM, _at_the_seam(_original))


def _remove() -> None:
    from jax._src import compiler

    global _users, _original
    with _lock:
        _users -= 1
        if _users:
            return
        if getattr(getattr(compiler, _SEAM), "is_of_reshard", False):  # else others have put theirs around ours
            setattr(compiler, _SEAM, _original)
        _original = None


def _at_the_seam(original: Callable) -> Callable:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_or_get_cached(*args, **kwargs):
        rewriter = active().value
        if rewriter is None:
            return original(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        with active()(None):
            computation, devices, compile_options = (given.arguments[name] for name in _SEAM_TAKES[1:])
            given.arguments["computation"] = rewriter.rewritten(computation, tuple(devices.flat), compile_options)
            return original(*given.args, **given.kwargs)

    compile_or_get_cached.is_of_reshard = True
    return compile_or_get_cached


def jitted_with(jitted, around: Callable[[], contextlib.AbstractContextManager]):
    """Returns a jitted function like `jitted` whose tracing, lowering and compiling happens inside `around()`.

    Args:
      jitted: what `jax.jit(...)` returned just now; it is not to be used any more.
    """
    active()  # if it were made in the midst of the first call, the second one would have another key
    state = jitted.__getstate__()
    stock_miss = state["cache_miss"]

    def cache_miss(*args, **kwargs):
        with around():
            return stock_miss(*args, **kwargs)

    made = type(jitted).__new__(type(jitted))
    made.__setstate__({**state, "cache_miss": cache_miss, "cache": type(state["cache"])()})
    own = {"trace": _tracing(jitted.trace, around), "lower": _lowering(jitted.lower, around)}
    made.__dict__ = _Attributes({**jitted.__dict__, **own, "eval_shape": _inside(jitted.eval_shape, around)})
    return made


class _Attributes(dict):
    """The attributes of a jitted function, those of its stages hidden from who lists them.

    The class of jitted functions has these as methods, and no subclasses; so each of ours has its own. Whoever wraps a function
    copies all attributes that are listed, jax.jit first of all: what it made of ours would trace and lower ours, not itself.
    """

    _HIDDEN = ("trace", "lower", "eval_shape")

    def keys(self):
        return [name for name in super().keys() if name not in self._HIDDEN]

    def __iter__(self):
        return iter(self.keys())

    def items(self):
        return [(name, self[name]) for name in self.keys()]


def _inside(function: Callable, around) -> Callable:
    @functools.wraps(function)
    def inside(*args, **kwargs):
        with around():
            return function(*args, **kwargs)

    return inside


def _tracing(trace: Callable, around) -> Callable:
    @functools.wraps(trace)
    def traced(*args, **kwargs):
        with around():
            found = trace(*args, **kwargs)
        return _overriding(found, "lower", lambda self: _lowering(super(type(self), self).lower, around))

    return traced


def _lowering(lower: Callable, around) -> Callable:
    @functools.wraps(lower)
    def lowered(*args, **kwargs):
        with around():
            found = lower(*args, **kwargs)
        return _overriding(found, "compile", lambda self: _inside(super(type(self), self).compile, around))

    return lowered


def _overriding(found, name: str, bind: Callable[[Any], Callable]):
    """Returns an object of jax with one method replaced: its class becomes a subclass that adds no state."""
    cls = type(found)
    members = {"__slots__": (), "__module__": cls.__module__, "is_of_reshard": True, name: property(bind)}
    found.__class__ = type(cls.__name__, (cls,), members)
    return found


def without_rewriter(lowered):
    """Returns a `jax.stages.Lowered` as jax makes it, whose `compile` is jax's own."""
    cls = type(lowered)
    if not getattr(cls, "is_of_reshard", False):
        return lowered
    plain = copy.copy(lowered)
    plain.__class__ = cls.__base__
    return plain
