# SPDX-License-Identifier: Apache-2.0
"""`reshard.jit` and `with reshard.enabled()`: the modules that jax compiles are optimized on their way to XLA.

Only the module is changed; jax does the rest: trees, donation, effects and dispatch. A program that cannot be optimized
is compiled as it is.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reshard.compiling import library_jits
from reshard.compiling.automatic import AUTO, OPTIONS, AutoJitted
from reshard.compiling.optimizing import Optimized, Report, optimized_module, refuse_contradictions, target_in
from reshard.configuration import contexts
from reshard.configuration.contexts import Context
from reshard.configuration.settings import SETTINGS, SettingError, resolved, validated
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform import compat, jax_seam
from reshard.passes.sites.network import topology_of

_log = logging.getLogger("reshard.jit")


@dataclass(frozen=True, slots=True)
class Program:
    """A program that jax compiled, with its report.

    `name` is the name of its module, such as jit_step. `is_rewritten` tells whether anything in it was rewritten.
    """

    name: str
    report: Report = field(repr=False)
    is_rewritten: bool


def jit(fun: Callable | None = None, /, *, reshard_options: Mapping[str, Any] | None = None, **jit_options: Any):
    """Returns the function of `jax.jit(fun, **jit_options)`, whose programs are optimized before XLA compiles them.

    The function is called, traced, lowered and differentiated like any function of `jax.jit`. Once its program is
    compiled, a call costs the same as with `jax.jit`. Inside another trace (an outer jit, or a scan) the function works
    like `jax.jit`, because only the outermost program is compiled. The result of `.lower(...)` shows the module as jax
    lowered it; its `.compile()` optimizes the module. A program that cannot be optimized is compiled as it is.

    Args:
      fun: the function; or that of a library's jit, such as `flax.nnx.jit(f)` or `equinox.filter_jit(f)`, which keeps
        its meaning. If it is omitted, `jit` returns a decorator.
      reshard_options: option names and values, such as {"policy": "always"}; docs/jax.md has the list. They win over
        `reshard.options`, the environment and the configuration file.
      **jit_options: the other arguments of `jax.jit`, such as `static_argnames`. With `in_shardings=reshard.AUTO`,
        `reshard.auto` chooses all layouts when the function is called, also of arguments that are given by name;
        `reshard_options` are those of `auto` then, such as {"mesh": "x=8", "memory_limit": "16GiB"}.
    Raises: ValueError if `reshard_options` has an unknown option or value; TypeError for arguments of `jax.jit` beside
      the function of a library's jit; the errors of `jax.jit`.

    Example:
      >>> import jax.numpy as jnp
      >>> @jit(static_argnames="times")
      ... def scaled(x, times):
      ...     return x * times
      >>> scaled(jnp.arange(3), times=2).tolist()
      [0, 2, 4]
    """
    if fun is None:
        return functools.partial(jit, reshard_options=reshard_options, **jit_options)
    if jit_options.get("in_shardings") is AUTO:
        return _automatic(fun, reshard_options or {}, jit_options)
    import jax

    given = _for_xla(validated(reshard_options or {}, "reshard_options: "))
    if library_jits.is_jitted(fun):
        return _of_library(fun, given, jit_options)
    stock = jax.jit(fun, **jit_options)
    if not _has_seam():
        return stock
    return jax_seam.jitted_with(stock, functools.partial(_enabled, given))


def _of_library(fun: Callable, given: dict[str, Any], jit_options: Mapping[str, Any]):
    if jit_options:
        raise TypeError(
            f"reshard.jit got {next(iter(jit_options))}=, and the function is jitted by {type(fun).__module__} "
            "already; give the option there"
        )
    if not _has_seam():
        return fun
    return library_jits.LibraryJitted(fun, functools.partial(_enabled, given), functools.partial(_inside, given))


def _automatic(fun: Callable, options: Mapping[str, Any], jit_options: Mapping[str, Any]) -> AutoJitted:
    if unknown := sorted({*options} - {*OPTIONS}):
        raise ValueError(f"reshard_options: {unknown[0]!r} is no option of auto; known: {', '.join(OPTIONS)}")
    return AutoJitted(fun, {**{name: each for name, each in jit_options.items() if name != "in_shardings"}, **options})


@contextlib.contextmanager
def enabled(**options: Any) -> Iterator[list[Program]]:
    """Optimizes every program that jax compiles inside the `with` block, in this thread, on its way to XLA.

    A function that was compiled outside is compiled again inside. A program that was compiled inside is used only in
    blocks with the same options, because jax keeps programs of different options apart. Blocks may be nested; the
    options of the inner block win.

    Args:
      **options: options such as policy="always"; docs/jax.md has the list. They win over `reshard.options`, the
        environment and the configuration file.
    Yields: a list. Each program for more than one device that is compiled inside adds a `Program` to it.
    Raises: ValueError if an option or its value is unknown.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> with enabled() as programs:
      ...     jax.jit(jnp.sin)(0.0).item(), programs
      (0.0, [])
    """
    given = _for_xla(validated(options))
    if not _has_seam():
        yield []
        return
    with _enabled(given) as programs:
        yield programs


@contextlib.contextmanager
def _enabled(given: dict[str, Any]) -> Iterator[list[Program]]:
    inside = _Enabled(contexts.current().options).with_options(given)
    # A bad value in the environment or the file, or one that contradicts another, is an error here, not inside jax.
    refuse_contradictions(resolved({}, dict(inside.options)), is_run=True)
    with jax_seam.rewriting(inside):  # pyright: ignore[reportArgumentType]  # the protocol gives its result no type
        yield inside.programs


def _inside(given: dict[str, Any]) -> contextlib.AbstractContextManager:
    """Returns what `_enabled` does where the seam is installed anyway; it takes microseconds. Wrong options from around
    a call are found when a program is compiled."""
    return jax_seam.active()(_Enabled(contexts.current().options).with_options(given))


def _for_xla(options: dict[str, Any]) -> dict[str, Any]:
    refuse_contradictions({name: each.default for name, each in SETTINGS.items()} | options, is_run=True)
    return options


@functools.cache
def _has_seam() -> bool:
    """Returns whether the modules that jax compiles can be rewritten; warns once if they cannot."""
    why = jax_seam.problem()
    if why:
        warnings.warn(
            f"reshard: programs are compiled as jax does it: {why}; upgrade reshard", RuntimeWarning, stacklevel=3
        )
    return not why


@dataclass(frozen=True, slots=True)
class _Enabled(Context):
    """Rewrites the modules that jax compiles. `programs`: the list that gets the records."""

    programs: list[Program] = field(default_factory=list, compare=False, repr=False)

    def rewritten(self, module, devices: tuple, compile_options):
        build_options = compile_options.executable_build_options
        if build_options.num_partitions == 1:
            return module
        name = compat.module_name(module)
        settings = resolved({}, dict(self.options))
        refuse_contradictions(settings, is_run=True)
        found = _optimized(module, name, settings, devices, compile_options)
        if found is None:
            return module
        self.programs.append(Program(name, found.report, found.is_rewritten))
        if not found.is_rewritten:
            return module
        build_options.use_shardy_partitioner = True
        return compat.parse_module(module.context, found.content)


def _optimized(module, name: str, settings: Mapping[str, Any], devices: Sequence, compile_options) -> Optimized | None:
    """Returns a module of jax after optimization; None, after a log message, if it cannot be optimized.

    Args:
      devices, compile_options: for which and with which it will be compiled.
    """
    if problem := _misfit(settings, len(devices)):
        warnings.warn(f"reshard: {name} is compiled as it is: {problem}", RuntimeWarning, stacklevel=2)
        return None
    try:
        given = compat.compiler_options(compile_options), compat.compiler_levels(compile_options)
        return optimized_module(compat.bytecode(module), settings, name, devices, compiled_with=given)
    except DiagnosedError as error:
        _log.info("%s is compiled as it is: %s", name, str(error).splitlines()[0])
    except SettingError as error:
        warnings.warn(f"reshard: {name} is compiled as it is: {error}", RuntimeWarning, stacklevel=2)
    except Exception as error:  # a fault of ours is no reason to stop the user's program
        _log.debug("%s is compiled as it is", name, exc_info=True)
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(
            f"reshard: {name} is compiled as it is, by a fault of reshard: {what}", RuntimeWarning, stacklevel=2
        )
    return None


def _misfit(settings: Mapping[str, Any], devices: int) -> str:
    """Returns why the target or the topology that the user names does not fit the devices of a program; empty if it
    does."""
    target, topology = target_in(settings), settings["topology"]
    if target is not None and target.devices != devices:
        return f"it is for {devices} devices, and {target} has {target.devices}"
    if not topology:
        return ""
    from reshard.synthesis.network.topology import TopologyError

    try:
        topology_of(topology).fitted(devices)
    except TopologyError as error:
        return str(error)
    return ""
