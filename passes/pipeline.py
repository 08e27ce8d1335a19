# SPDX-License-Identifier: Apache-2.0
"""Pipelines in MLIR's textual syntax that mix our passes with MLIR's own, in one MLIR pass manager.

`builtin.module(find-mismatches,plan-sites{policy=always},canonicalize,func.func(cse))`: names of the registry are our passes;
every other element is handed to MLIR as text. Timing, IR printing and verification therefore come from MLIR for both.

Example:
  >>> str(Pipeline.parse("canonicalize, func.func(cse)"))
  'builtin.module(canonicalize,func.func(cse))'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from reshard.dialect_utils.bindings import ir, passmanager
from reshard.dialect_utils.diagnostics import DiagnosedError, Diagnostic, from_mlir_error
from reshard.passes import registry
from reshard.passes.base import OptionError, Pass, Session

_ANCHOR = "builtin.module"
_OPENING, _CLOSING = "({", ")}"
# name, {options}, (nested pipeline); MLIR judges the rest of the text
_ELEMENT = re.compile(r"([\w.-]+)\s*(\{.*\})?\s*(\(.*\))?", re.DOTALL)


class PipelineError(ValueError):
    """A pipeline text that names no pass, or not rightly; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Instrumentation:
    """What MLIR's pass manager reports on stderr while it runs."""

    print_before_all: bool = False
    print_after_all: bool = False
    timing: bool = False

    @property
    def prints_ir(self) -> bool:
        return self.print_before_all or self.print_after_all


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Elements in order: a pass of ours, or the text of a pass or nested pipeline of MLIR."""

    elements: tuple[Pass | str, ...]

    @classmethod
    def parse(cls, text: str) -> Pipeline:
        """Returns the pipeline; the enclosing `builtin.module(...)` may be left out.

        Raises: PipelineError where the text is malformed or one of our passes has a wrong option or place.
        """
        body = _strip_anchor(text.strip())
        elements: list[Pass | str] = []
        for element in _split(body):
            elements += _read_element(element)
        return cls(tuple(elements))

    @classmethod
    def default(cls) -> Pipeline:
        """Returns the pipeline that runs when none is named."""
        return cls.parse(registry.DEFAULT_PIPELINE)

    @classmethod
    def emitting(cls, emission: str, options: Mapping[str, str]) -> Pipeline:
        """Returns the pipeline that writes one of `registry.EMISSIONS`, with other options of its passes.

        Raises: PipelineError for an unknown emission, or an option that none of its passes has.
        """
        if emission not in registry.EMISSIONS:
            raise PipelineError(f"emit={emission} is not available; choose from {', '.join(registry.EMISSIONS)}")
        pipeline = cls.parse(registry.EMISSIONS[emission])
        has_choice = any("emit" in _option_names(each) for each in pipeline.elements)
        return pipeline.with_options({**options, "emit": emission} if has_choice else options)

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes of ours, in order."""
        return tuple(each for each in self.elements if isinstance(each, Pass))

    def __str__(self) -> str:
        return f"{_ANCHOR}({','.join(map(str, self.elements))})"

    def with_options(self, values: Mapping[str, str]) -> Pipeline:
        """Returns the pipeline with each option set on every pass of ours that has it.

        Raises: PipelineError if no pass has it, or none can take the value.
        """
        for name in values:
            if not any(name in _option_names(each) for each in self.elements):
                raise PipelineError(f"no pass of {self} has an option '{name}'")
        try:
            return replace(self, elements=tuple(_with_known_options(each, values) for each in self.elements))
        except OptionError as error:
            raise PipelineError(str(error)) from None

    def check(self, context: ir.Context) -> None:
        """Raises PipelineError if MLIR knows no such pass or option."""
        with context:
            self._build(Session(), module=None, failures=[])

    def run(self, module: ir.Module, session: Session, instrumentation: Instrumentation = Instrumentation()) -> None:
        """Runs on `module` in place.

        Raises: DiagnosedError with the errors, which are in `session.diagnostics` too, in order with the rest.
        """
        context = module.context
        if instrumentation.prints_ir:
            context.enable_multithreading(False)  # dumps of nested passes would interleave
        failures: list[Exception] = []
        errors_before = len(session.errors)
        with context, ir.Location.unknown(), session.diagnostics.listening(context):
            manager = self._build(session, module, failures)
            _instrument(manager, instrumentation)
            try:
                manager.run(module.operation)
            except ir.MLIRError as error:
                session.diagnostics.diagnostics += _errors_behind(error, failures, session.errors[errors_before:])
                raise DiagnosedError(session.errors[errors_before:]) from None

    def _build(self, session: Session, module: ir.Module | None, failures: list[Exception]) -> passmanager.PassManager:
        manager = passmanager.PassManager(_ANCHOR)
        for element in self.elements:
            if isinstance(element, str):
                _add_mlir_passes(manager, element)
                continue
            # An op_name would make MLIR look the pass up by it and fail; it stays empty.
            manager.add(
                _as_callable(element, module, session, failures),
                name=type(element).__name__,
                argument=element.name,
                description=element.summary,
            )
        return manager


def _as_callable(element: Pass, module: ir.Module | None, session: Session, failures: list[Exception]):
    """Returns the pass as MLIR calls it: exceptions wait in `failures` so that MLIR sees an ordinary failed pass."""

    def run(_operation: ir.Operation, external_pass) -> None:
        errors_before = len(session.errors)
        session.current_pass = element
        try:
            element.run(module, session)
        except Exception as failure:
            failures.append(failure)
        finally:
            session.current_pass = None
        if failures or len(session.errors) > errors_before:
            external_pass.signal_pass_failure()

    return run


def _errors_behind(error: ir.MLIRError, failures: list[Exception], collected: list[Diagnostic]) -> list[Diagnostic]:
    """Returns the errors that the session has not collected yet; re-raises a failure that is our bug."""
    if not failures:
        return [] if collected else from_mlir_error(error)
    if not isinstance(failures[0], DiagnosedError):
        raise failures[0] from None
    return list(failures[0].diagnostics)


def _instrument(manager: passmanager.PassManager, wanted: Instrumentation) -> None:
    if wanted.prints_ir:
        manager.enable_ir_printing(print_before_all=wanted.print_before_all, print_after_all=wanted.print_after_all)
    if wanted.timing:
        manager.enable_timing()


def _add_mlir_passes(manager: passmanager.PassManager, text: str) -> None:
    try:
        manager.add(text)
    except ValueError as error:
        raise PipelineError(_first_complaint(str(error))) from None


def _first_complaint(text: str) -> str:
    """Returns the sentence of MLIR's pipeline parser without its position in a text the user did not write as such."""
    first = text.strip().splitlines()[0]
    return re.sub(r"^(MLIR Textual PassPipeline Parser:\d+:\d+: error|<Pass-Options-Parser>): ", "", first)


def _strip_anchor(text: str) -> str:
    if text.startswith(_ANCHOR):
        inner = text[len(_ANCHOR) :].strip()
        if inner.startswith("(") and _split(inner) == [inner] and inner.endswith(")"):
            return inner[1:-1]
    return text


def _split(text: str) -> list[str]:
    """Returns the elements between commas outside brackets, stripped.

    Raises: PipelineError if brackets do not match or an element is empty.
    """
    elements, start, open_brackets = [], 0, []
    for index, char in enumerate(text):
        if char in _OPENING:
            open_brackets.append(_CLOSING[_OPENING.index(char)])
        elif char in _CLOSING and (not open_brackets or open_brackets.pop() != char):
            raise PipelineError(f"unmatched '{char}' in pipeline '{text}'")
        elif char == "," and not open_brackets:
            elements.append(text[start:index].strip())
            start = index + 1
    if open_brackets:
        raise PipelineError(f"missing '{open_brackets[-1]}' in pipeline '{text}'")
    elements.append(text[start:].strip())
    if elements == [""]:
        return []
    if "" in elements:
        raise PipelineError(f"empty pass name in pipeline '{text}'")
    return elements


def _read_element(text: str) -> list[Pass | str]:
    """Returns the passes that one element stands for: a named pipeline has several."""
    found = _ELEMENT.fullmatch(text)
    if found is None:
        raise PipelineError(f"cannot read '{text}' in the pipeline")
    name, options, nested = found.groups()
    if name in registry.PIPELINES:
        if options or nested:
            raise PipelineError(f"pipeline '{name}' takes no options; name its passes instead")
        return list(Pipeline.parse(registry.PIPELINES[name]).elements)
    if name in registry.PASSES:
        if nested:
            raise PipelineError(f"'{name}' is a pass and holds no others")
        return [_make_pass(name, options)]
    if nested:
        _refuse_nested_passes(name, nested)
    return [text]


def _make_pass(name: str, options: str | None) -> Pass:
    try:
        return registry.load(name).parse((options or "{}")[1:-1])
    except OptionError as error:
        raise PipelineError(str(error)) from None


def _refuse_nested_passes(anchor: str, nested: str) -> None:
    for name in re.findall(r"[\w-]+", nested):
        if name in registry.PASSES or name in registry.PIPELINES:
            raise PipelineError(f"'{name}' runs on {_ANCHOR}, not inside {anchor}(...)")


def _option_names(element: Pass | str) -> list[str]:
    return [] if isinstance(element, str) else [each.name for each in element.options()]


def _with_known_options(element: Pass | str, values: Mapping[str, str]) -> Pass | str:
    known = {name: value for name, value in values.items() if name in _option_names(element)}
    return element.with_options(known) if known else element
