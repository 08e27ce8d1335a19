# SPDX-License-Identifier: Apache-2.0
"""The one import place for the MLIR bindings that jaxlib ships; importing this does not import jax."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import types
from collections.abc import Iterator

from .interrupts import DeferredInterrupts


class _Later(types.ModuleType):
    """A stand-in for a module, which is loaded once one of its names is used."""

    def __getattr__(self, name: str):
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def _numpy_later() -> Iterator[None]:
    """Makes imports inside the `with` load numpy only when it is used.

    The bindings use it for few attributes, and loading it takes long.
    """
    if "numpy" in sys.modules:
        yield
        return
    later = sys.modules["numpy"] = _Later("numpy")
    try:
        yield
    finally:
        if sys.modules.get("numpy") is later:
            del sys.modules["numpy"]


with _numpy_later(), DeferredInterrupts():  # an exception while they are loaded would end the process
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir._mlir_libs import _chlo, _jax_mlir_ext
    from jaxlib.mlir.dialects import func, sdy, stablehlo

DEVICE_TO_DEVICE = 1  # StableHLO's channel type of a collective between the partitions of one program

__all__ = ["DEVICE_TO_DEVICE", "ir", "passmanager", "func", "sdy", "stablehlo", "dialect_names", "make_context"]

_passes_are_registered = False


def make_context() -> ir.Context:
    """Returns a context with every dialect a JAX module may hold, and with Shardy's and StableHLO's passes registered.

    Unregistered dialects stay forbidden, so that a misspelt op is an error at its place. There is one thread: a
    diagnostic from another one waits for Python's lock, which the thread that waits for that one holds.
    """
    global _passes_are_registered
    context = ir.Context()
    context.enable_multithreading(False)
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)  # builtin, func, arith, ... that jaxlib links
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    with context:
        for dialect in (_chlo, sdy, stablehlo):  # chlo without Python classes for all its ops: few modules have any
            dialect.register_dialect(context)
        _register_mhlo(context)
    if not _passes_are_registered:
        stablehlo.register_stablehlo_passes()
        _passes_are_registered = True
    return context


def dialect_names(context: ir.Context) -> list[str]:
    """Returns the names of the dialects that a context has; the bindings tell them in the error of one that it has
    not."""
    try:
        ir.Module.parse("no_such_dialect.op", context)
    except ir.MLIRError as error:
        said = " ".join(note.message for each in error.error_diagnostics for note in each.notes)
        listed = said.partition("Available dialects:")[2].partition("(* corresponding")[0].partition(";")[0]
        return sorted(re.findall(r"\w+", listed))
    return []


def _register_mhlo(context: ir.Context) -> None:
    """Registers mhlo where the bindings have it: XLA dumps and older JAX modules carry its attributes."""
    try:
        from jaxlib.mlir._mlir_libs._mlirHlo import register_mhlo_dialect  # without Python classes for all its ops
    except ImportError:
        return
    register_mhlo_dialect(context)
