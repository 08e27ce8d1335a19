# SPDX-License-Identifier: Apache-2.0
"""Functions that are called with different layouts: they get clones while sites are found and rewritten.

XLA inlines every call, so an op of a function may have to convert in one call and not in another. `specialise` gives
such a function a clone for each outcome, and makes the calls use the clones; `reshard.clone_of` names the original
function of a clone. After all rewrites, `merge_clones` removes each clone that still equals its original.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from reshard.dialect_utils.analysis.module_analysis import Analysis
from reshard.dialect_utils.ir.functions import callee_of, functions_of, is_public, symbol
from reshard.dialect_utils.ir.ops import ops_around, ops_in
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import asm_of
from reshard.dialect_utils.preparation.prepared_clone import call_paths
from reshard.passes.sites.findings import CLONE_OF, strip_findings

_NAME, _VISIBILITY, _CALLEE = "sym_name", "sym_visibility", "callee"


def specialise(analysis: Analysis, outcomes: Mapping[int, Hashable]) -> Analysis:
    """Clones the functions whose calls need different conversions; returns the analysis of the module with the clones.

    Args:
      outcomes: serial of an op -> what tells the instances of the op apart; not empty.
    The module computes the same values as before. With its calls inlined it is the same module, so only the map from
    the ops of the clone of the analysis to the ops of the module changes.
    """
    return _Specialiser(analysis, outcomes).run()


@dataclass(frozen=True, slots=True)
class _Variant:
    """A variant of a function, for some of its calls.

    Attributes:
      outcomes: of its own ops. called: which variant each of its calls needs, as (number of the call in it, of the
        variant).
    """

    function: str
    outcomes: tuple
    called: tuple[tuple[int, int], ...]


@dataclass
class _Specialiser:
    """Makes the clones for one analysis.

    State: `numbers` has each distinct variant with its number. `of_function` has the numbers of a function's variants;
    the first is that of the original. A path is a function that is entered from outside and the calls from there, as
    indices in `Analysis.originals`. `at` has the variant at the end of each path. `outcomes_at` has the outcomes of the
    ops there.
    """

    analysis: Analysis
    outcomes: Mapping[int, Hashable]
    indices: dict[str, int] = field(init=False)  # of the functions, in `originals`
    functions: dict[str, ir.Operation] = field(init=False)
    calls: dict[str, list[tuple[int, str]]] = field(init=False)  # index of the call in `originals`, name of the callee
    paths: list[tuple[int, ...]] = field(init=False)  # by serial
    outcomes_at: dict[tuple[int, ...], tuple] = field(init=False)
    numbers: dict[_Variant, int] = field(default_factory=dict)
    of_function: dict[str, list[int]] = field(default_factory=dict)
    at: dict[tuple[int, ...], int] = field(default_factory=dict)

    def run(self) -> Analysis:
        originals = self.analysis.originals
        self.indices = {symbol(op): index for index, op in enumerate(originals) if op.name == "func.func"}
        self.functions = {name: originals[index] for name, index in self.indices.items()}
        self.calls = {name: [] for name in self.functions}
        for index, op in enumerate(originals):
            if op.name == "func.call":
                self.calls[_caller(op)].append((index, callee_of(op)))
        self.paths = call_paths(self.analysis.originals[0])
        self.outcomes_at = self._outcomes_by_path()
        called = {callee for calls in self.calls.values() for _, callee in calls}
        for name, function in self.functions.items():
            if is_public(function) or name not in called:
                self._add(name, (self.indices[name],))
        return self._analysis_of(self._write())

    def _outcomes_by_path(self) -> dict[tuple[int, ...], tuple]:
        found: dict[tuple[int, ...], list] = {}
        for serial, outcome in self.outcomes.items():
            found.setdefault(self.paths[serial], []).append((self.analysis.origin[serial], outcome))
        return {path: tuple(sorted(each, key=lambda pair: pair[0])) for path, each in found.items()}

    def _add(self, name: str, path: tuple[int, ...]) -> int:
        """Returns the number of the variant that a function needs at the end of a path of calls."""
        called = tuple(
            (position, self._add(callee, (*path, index)))
            for position, (index, callee) in enumerate(self.calls[name])
            if callee in self.functions
        )
        variant = _Variant(name, self.outcomes_at.get(path, ()), called)
        number = self.at[path] = self.numbers.setdefault(variant, len(self.numbers))
        known = self.of_function.setdefault(name, [])
        if number not in known:
            known.append(number)
        if len(path) == 1:  # a caller from outside uses the name of the original
            known.sort(key=lambda each: each != number)
        return number

    def _write(self) -> dict[int, str]:
        """Clones functions and redirects calls; returns the name of each variant."""
        taken = set(self.functions)
        names = {}
        for function, numbers in self.of_function.items():
            names |= dict(zip(numbers, (function, *itertools.islice(_unused_names(function, taken), len(numbers) - 1))))
        forms = {number: self._form(variant.function, names[number]) for variant, number in self.numbers.items()}
        for variant, number in self.numbers.items():
            calls = [op for op in ops_in(forms[number]) if op.name == "func.call"]
            for position, called in variant.called:
                _redirect(calls[position], names[called])
        return names

    def _analysis_of(self, names: Mapping[int, str]) -> Analysis:
        """Returns the analysis with the ops of the clones added.

        An op has the same position in a clone as in its function.
        """
        originals = ops_in(self.analysis.originals[0])
        indices = {symbol(op): index for index, op in enumerate(originals) if op.name == "func.func"}
        function_of = {
            variant: self.indices[function] for function, variants in self.of_function.items() for variant in variants
        }

        def moved(serial: int, index: int) -> int:
            if self.paths[serial] not in self.at:  # outside of functions
                return index
            variant = self.at[self.paths[serial]]
            return index - function_of[variant] + indices[names[variant]]

        origin = [index if index is None else moved(serial, index) for serial, index in enumerate(self.analysis.origin)]
        pieces = {serial: moved(serial, index) for serial, index in self.analysis.pieces.items()}
        return replace(self.analysis, originals=originals, origin=origin, pieces=pieces)

    def _form(self, function: str, name: str) -> ir.Operation:
        """Returns the function if `name` is its name; else inserts a clone with this name after it and returns it."""
        original = self.functions[function]
        if name == function:
            return original
        clone = original.clone(ip=ir.InsertionPoint.after(original)).operation
        clone.attributes[_NAME] = ir.StringAttr.get(name)
        clone.attributes[_VISIBILITY] = ir.StringAttr.get("private")
        clone.attributes[CLONE_OF] = ir.StringAttr.get(function)
        return clone


def clones_of(module: ir.Module) -> dict[str, str]:
    """Returns the name of the original function of each clone, by the clone's name."""
    functions = [op for op in functions_of(module.operation) if CLONE_OF in op.attributes]
    return {symbol(op): ir.StringAttr(op.attributes[CLONE_OF]).value for op in functions}


def merge_clones(module: ir.Module) -> None:
    """Erases each clone that equals its original or another clone, and redirects its calls to that function."""
    functions = {symbol(op): op for op in functions_of(module.operation)}
    clones = clones_of(module)
    while clones:
        same = _first_same(functions, clones)
        if same is None:
            return
        clone, name = same
        for op in ops_in(module.operation):
            if op.name == "func.call" and callee_of(op) == clone:
                _redirect(op, name)
        functions.pop(clone).erase()
        del clones[clone]


def _first_same(functions: Mapping[str, ir.Operation], clones: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns a clone and the function that it equals; None if all differ."""
    known = {(original, _text(functions[original])): original for original in clones.values()}
    for clone, original in clones.items():
        name = known.setdefault((original, _text(functions[clone])), clone)
        if name != clone:
            return clone, name
    return None


def _text(function: ir.Operation) -> str:
    """Returns a function's text with locations, without its name and without our attributes."""
    copy = function.clone(ip=False).operation
    strip_findings(copy)
    copy.attributes[_NAME] = ir.StringAttr.get("function")
    copy.attributes[_VISIBILITY] = ir.StringAttr.get("private")
    # Without assume_verified, MLIR verifies the op, and Shardy's verifier crashes on a function outside of a module.
    return asm_of(copy, enable_debug_info=True, use_local_scope=True, print_generic_op_form=True, assume_verified=True)


def _unused_names(name: str, taken: set[str]) -> Iterator[str]:
    for number in itertools.count(1):
        if (unused := f"{name}_{number}") not in taken:
            taken.add(unused)
            yield unused


def _caller(call: ir.Operation) -> str:
    return next(symbol(op) for op in ops_around(call) if op.name == "func.func")


def _redirect(call: ir.Operation, name: str) -> None:
    call.attributes[_CALLEE] = ir.FlatSymbolRefAttr.get(name)
