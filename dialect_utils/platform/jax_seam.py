# SPDX-License-Identifier: Apache-2.0
"""The place where jax hands a module to XLA: the only file that reaches into jax for it.

**The seam.** Every module that jax compiles goes through `jax._src.compiler.compile_or_get_cached(backend, module,
devices, ...)`, called by that name. While a rewriter is active, a function of this file replaces it. It hands on a
rewritten module, which the persistent cache's key, JAX's dumps and XLA then see. It is installed when the first
rewriter becomes active and removed with the last one. `observing` installs it too, and changes no module.

**What is active** is the value of a context of jax's own (`jax.make_user_context`, public): it belongs to a thread, and
jax's caches of traces, of lowerings and of executables have it in their keys. A program that is compiled under one
value is never run under another.

**A jitted function with a rewriter of its own.** jax dispatches in C++ and calls Python only for arguments that it has
not compiled for (`cache_miss`). `jitted_with` makes the same C++ object around another `cache_miss`, with a cache of
its own, out of the state that jax pickles: a call that hits costs what it costs in jax.

`problem` says whether this jax is built that way; test/dialect_utils/platform/test_jax_seam.py fails if it is not.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .interrupts import DeferredInterrupts

_SEAM = "compile_or_get_cached"
_SEAM_TAKES = ("backend", "computation", "devices", "compile_options")
_STATE = ("fun", "cache_miss", "cache")


class Rewriter(Protocol):
    """A rewriter of modules. It is hashable, and equal ones share the programs that jax compiled under them."""

    def rewritten(self, module, devices: tuple, compile_options):
        """Returns the module that XLA gets in the place of `module`, for devices in the order of partitions."""


Observer = Callable[[Any, tuple, Any], object]  # takes what `Rewriter.rewritten` takes

_lock = threading.Lock()
_users = 0
_observers: list[Observer] = []
_original: Callable | None = None


@functools.cache
def active():
    """Returns jax's context whose value is the `Rewriter` that is active in this thread; None is none.

    Programs that jax compiled before the first call are compiled once more when they are used again: their keys had no
    such entry.
    """
    import jax

    return jax.make_user_context(None)


def trace_context() -> tuple:
    """Returns what jax has in the keys of its caches of traces beside functions and arguments, for this thread.

    That is the value of `active`, and what else a trace may depend on: precision, x64, the mesh, random numbers.
    """
    active()  # if it were made in the midst of the first program, the second one would have another key
    from jax._src import config

    return config.trace_context()


def is_tracing() -> bool:
    """Returns whether jax is tracing in this thread, so that what is called belongs to another function's program."""
    from jax._src import core

    return not core.trace_state_clean()


def is_jit_disabled() -> bool:
    """Returns whether `jax.disable_jit` holds in this thread."""
    from jax._src import config

    return config.disable_jit.value


@functools.cache
def problem() -> str:
    """Returns why this jax has no seam that we know, in one line; empty if it has."""
    try:
        return _difference()
    except Exception as error:  # another build of jax may raise anything here
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
    state: Any = jitted.__getstate__()  # type stubs know only `object.__getstate__`
    missing = [name for name in _STATE if name not in state]
    return f"the state of a jitted function has no {missing[0]}" if missing else ""


@contextlib.contextmanager
def rewriting(rewriter: Rewriter | None) -> Iterator[None]:
    """Makes a rewriter active in this thread; None switches off an outer one."""
    if rewriter is None:
        with active()(None):
            yield
        return
    with _installed(), active()(rewriter):
        yield


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Shows an observer each module as jax hands it to XLA, of all threads, and before any rewriter sees it."""
    active()  # if it were made by the first program that is compiled, what was compiled before would have another key
    with _installed():
        _observers.append(observer)
        try:
            yield
        finally:
            _observers.remove(observer)


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    is_installed = False
    try:
        with DeferredInterrupts():  # half installed it would not work, and would never be installed again
            _install()
            is_installed = True
        yield
    finally:
        with DeferredInterrupts():
            if is_installed:
                _remove()


class Installed:
    """Keeps the seam installed as long as it lives: a rewriter that is active meanwhile sees what jax compiles."""

    def __init__(self):
        stack = contextlib.ExitStack()
        stack.enter_context(_installed())
        weakref.finalize(self, stack.close)


def _install() -> None:
    from jax._src import compiler

    global _users, _original
    with _lock:
        _users += 1
        if _users > 1:
            return
        original = _original = getattr(compiler, _SEAM)
        setattr(compiler, _SEAM, _at_the_seam(original))


def _remove() -> None:
    from jax._src import compiler

    global _users, _original
    with _lock:
        _users -= 1
        if _users:
            return
        if getattr(getattr(compiler, _SEAM), "is_of_reshard", False):  # otherwise other code has wrapped it
            setattr(compiler, _SEAM, _original)
        _original = None


def _at_the_seam(original: Callable) -> Callable:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_or_get_cached(*args, **kwargs):
        rewriter = active().value
        if rewriter is None and not _observers:
            return original(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        computation, devices, compile_options = (given.arguments[name] for name in _SEAM_TAKES[1:])
        for observer in tuple(_observers):
            observer(computation, tuple(devices.flat), compile_options)
        if rewriter is None:
            return original(*args, **kwargs)
        with active()(None):
            given.arguments["computation"] = rewriter.rewritten(computation, tuple(devices.flat), compile_options)
            return original(*given.args, **given.kwargs)

    # A mark that the declared type of a wrapped function does not have.
    compile_or_get_cached.is_of_reshard = True  # pyright: ignore[reportAttributeAccessIssue]
    return compile_or_get_cached


def is_jitted(fun) -> bool:
    """Returns whether a function is one of `jax.jit`, or of `jitted_with`."""
    return isinstance(fun, _jitted_class())


@functools.cache
def _jitted_class() -> type:
    import jax

    return type(jax.jit(lambda: None))


def jitted_with(jitted, around: Callable[[], contextlib.AbstractContextManager]):
    """Returns a jitted function like `jitted` whose tracing, lowering and compiling happens inside `around()`.

    Args:
      jitted: a new result of `jax.jit(...)`; it must not be used any more.
    """
    active()  # if it were made in the midst of the first call, the second one would have another key
    state = jitted.__getstate__()
    stock_miss = state["cache_miss"]

    def cache_miss(*args, **kwargs):
        with around():
            return stock_miss(*args, **kwargs)

    cls: Any = type(jitted)  # a class of jaxlib, which has its own `__new__`
    made = cls.__new__(cls)
    made.__setstate__({**state, "cache_miss": cache_miss, "cache": type(state["cache"])()})
    own = {"trace": _tracing(jitted.trace, around), "lower": _lowering(jitted.lower, around)}
    made.__dict__ = _Attributes({**jitted.__dict__, **own, "eval_shape": _inside(jitted.eval_shape, around)})
    return made


class _Attributes(dict):
    """The attributes of a jitted function, with its stages hidden from code that lists the attributes.

    The class of jitted functions has the stages as methods, and allows no subclasses; so each replacement has a class
    of its own. Code that wraps a function copies all attributes that are listed, jax.jit first of all: the copies would
    trace and lower the replacement, not the new function.
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
        return stage_inside(found, around)

    return traced


def _lowering(lower: Callable, around) -> Callable:
    @functools.wraps(lower)
    def lowered(*args, **kwargs):
        with around():
            found = lower(*args, **kwargs)
        return stage_inside(found, around)

    return lowered


def stage_inside(stage, around: Callable[[], contextlib.AbstractContextManager]):
    """Returns a `jax.stages.Traced` or `Lowered`, changed in place: what follows it happens inside `around()`.

    Whatever else is given is returned as it is.
    """
    import jax

    if isinstance(stage, jax.stages.Traced):
        return _overriding(stage, "lower", lambda self: _lowering(_stock(self, "lower"), around))
    if isinstance(stage, jax.stages.Lowered):
        return _overriding(stage, "compile", lambda self: _inside(_stock(self, "compile"), around))
    return stage


def _stock(overriding: Any, name: str) -> Callable:
    """Returns a method of jax's own class, for an object that `_overriding` made."""
    return getattr(super(type(overriding), overriding), name)


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
