# SPDX-License-Identifier: Apache-2.0
"""Sharding propagation: Shardy's own pipeline, cut after `sdy-close-shardings`.

That is where XLA writes `02.after_propagation.mlir`. On XLA's own `01.before_propagation.mlir` the cut pipeline gives
exactly that file; on any other module `layout_check` compares the layouts with XLA's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..ir.functions import functions_of, has_discardable_symbols, public_functions, symbol
from ..ir.pipelines import run_pipeline
from ..platform.bindings import ir, passmanager

_WHOLE_PIPELINE = "builtin.module(sdy-propagation-pipeline)"


_LAST_OF_PROPAGATION = "sdy-close-shardings"
_ENTRY = "main"
_OTHER = "reshard.main"  # the name of another @main meanwhile


def propagation_pipeline(has_discardable_symbols: bool = True) -> str:
    """Returns `sdy-propagation-pipeline` up to where the layouts are final and no op has been inserted for them.

    MLIR prints the passes of the pipeline, which differ between versions of Shardy; this function cuts that text. The
    whole pipeline is the fallback if the text of a future version cannot be cut: its extra passes insert reshards at
    concatenations only.

    Args:
      has_discardable_symbols: whether the module has calls or symbols that nobody may use; without them the passes
        that remove unused functions are left out.
    """
    passes = str(passmanager.PassManager.parse(_WHOLE_PIPELINE))
    head, found, _ = passes.partition(_LAST_OF_PROPAGATION)
    if not found:
        return _WHOLE_PIPELINE
    cut = (head + found).replace("sdy-save-module,", "") + ")"  # dumps; not registered by name
    if not has_discardable_symbols:
        cut = cut.replace("symbol-dce,", "")
    try:
        passmanager.PassManager.parse(cut)
    except ValueError:
        return _WHOLE_PIPELINE
    return cut


def propagate(module: ir.Operation, verifies: bool = True) -> None:
    """Runs propagation on each public function as if it were the whole program.

    XLA sees one program, and Shardy starts from @main alone; with several functions and no @main, Shardy of jaxlib
    0.12 ends the process. Private functions that are left after inlining, for example decompositions of composites,
    stay as they are.
    """
    functions = public_functions(functions_of(module))
    if len(functions) == 1:
        run_on_program(module, propagation_pipeline(has_discardable_symbols(module)), verifies)
        return
    run_pipeline(module, "builtin.module(sdy-lift-inlined-meshes)")  # gives new meshes the same names in all copies
    for name in [symbol(op) for op in functions]:
        copy = module.clone().operation
        for op in public_functions(functions_of(copy)):
            if symbol(op) != name:  # it is removed unless another function names it
                op.attributes["sym_visibility"] = ir.StringAttr.get("private")
        with _as_entry(copy, _function_named(copy, name)):
            run_pipeline(copy, propagation_pipeline(), verifies)
        before, after = (_function_named(each, name) for each in (module, copy))
        after.move_before(before)
        before.erase()


def _function_named(module: ir.Operation, name: str) -> ir.Operation:
    return next(op for op in functions_of(module) if symbol(op) == name)


def run_on_program(module: ir.Operation, pipeline: str, verifies: bool = True) -> None:
    """Runs a pipeline of propagation on a module with one public function. Raises: DiagnosedError."""
    with _as_entry(module, public_functions(functions_of(module))[0]):
        run_pipeline(module, pipeline, verifies)


@contextlib.contextmanager
def _as_entry(module: ir.Operation, function: ir.Operation) -> Iterator[None]:
    """Names a function @main inside the `with`, since Shardy looks for that name.

    Another function of that name, and every use of it, is renamed as long. Afterwards the functions are looked up by
    name, since Shardy builds functions anew.
    """
    name = symbol(function)
    if name == _ENTRY:
        yield
        return
    other = next((op for op in functions_of(module) if symbol(op) == _ENTRY), None)
    if other is not None:
        _rename(module, other, _OTHER)
    _rename(module, function, name=_ENTRY)
    yield
    named = {symbol(op): op for op in functions_of(module)}
    _rename(module, named[_ENTRY], name)
    if _OTHER in named:
        _rename(module, named[_OTHER], _ENTRY)


def _rename(module: ir.Operation, function: ir.Operation, name: str) -> None:
    ir.SymbolTable.replace_all_symbol_uses(symbol(function), name, module)
    function.attributes["sym_name"] = ir.StringAttr.get(name)
