# SPDX-License-Identifier: Apache-2.0
"""Pipelines in MLIR's textual syntax that mix our passes with MLIR's own, in one MLIR pass manager.

`builtin.module(find-mismatches,plan-sites{policy=always},canonicalize,func.func(cse))`: names of the registry are our passes;
every other element is handed to MLIR as text. Timing, IR printing and verification therefore come from MLIR for both.

Example:
  >>> str(Pipeline.parse("canonicalize, func.func(cse)"))
  'builtin.module(canonicalize,func.func(cse))'
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from reshard.dialect_utils import stages
from reshard.dialect_utils.bindings import ir, passmanager
from reshard.dialect_utils.diagnostics import DiagnosedError, Diagnostic, from_mlir_error
from reshard.dialect_utils.interrupts import HeldBack
from reshard.passes import pipeline_text, registry
from reshard.passes.base import OptionError, Pass, Session
from reshard.passes.instrumentation import Instrumentation
from reshard.passes.pipeline_text import ANCHOR, Element, PipelineError

_FAILED_TO_ADD = re.compile(r"failed to add `([^`]+)` with options")
_MLIR_PLACE = re.compile(r"^MLIR Textual PassPipeline Parser:1:(\d+): error: ")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Elements in order: a pass of ours, or the text of a pass or nested pipeline of MLIR.

    Fields: text, offsets: what was read, and where in it each element begins, for errors; none in a pipeline made of passes.
    """

    elements: tuple[Pass | str, ...]
    text: str = field(default="", compare=False)
    offsets: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def parse(cls, text: str) -> Pipeline:
        """Returns the pipeline; the enclosing `builtin.module(...)` may be left out.

        Raises: PipelineError where the text is malformed or one of our passes has a wrong option or place.
        """
        read = [(each, element.offset) for element in pipeline_text.read(text) for each in _passes_of(element, text)]
        return cls(tuple(each for each, _ in read), text, tuple(offset for _, offset in read))

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
        return f"{ANCHOR}({','.join(map(str, self.elements))})"

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

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all passes in order, those nested in MLIR's pipelines too."""
        return tuple(leaf.name for element in pipeline_text.read(str(self)) for leaf in element.leaves())

    def check(self, context: ir.Context) -> None:
        """Raises PipelineError if MLIR knows no such pass or option."""
        with context:
            for index, element in enumerate(self.elements):
                if isinstance(element, str):
                    self._check_mlir_element(element, self.offsets[index] if self.offsets else None)

    def _check_mlir_element(self, element: str, offset: int | None) -> None:
        try:
            passmanager.PassManager(ANCHOR).add(element)
        except ValueError as error:
            message, column = _complaint(str(error), element)
            raise PipelineError(message, self.text, None if offset is None else offset + column) from None

    def run(self, module: ir.Module, session: Session, instrumentation: Instrumentation = Instrumentation()) -> None:
        """Runs on `module` in place.

        Raises: DiagnosedError with the errors, which are in `session.diagnostics` too, in order with the rest.
        """
        context = module.context
        if instrumentation.prints_ir:
            context.enable_multithreading(False)  # dumps of nested passes would interleave
        failures: list[BaseException] = []
        held = HeldBack()
        errors_before = len(session.errors)
        with context, ir.Location.unknown(), session.diagnostics.listening(context):
            manager = self._build(session, module, failures, instrumentation, held)
            try:
                with held:
                    manager.run(module.operation)
            except ir.MLIRError as error:
                session.diagnostics.diagnostics += _errors_behind(error, failures, session.errors[errors_before:])
                raise DiagnosedError(session.errors[errors_before:]) from None
            finally:
                with instrumentation.reporting():  # MLIR reports the time when the manager goes
                    del manager

    def _build(
        self,
        session: Session,
        module: ir.Module,
        failures: list[BaseException],
        instrumentation: Instrumentation,
        held: HeldBack,
    ) -> passmanager.PassManager:
        manager = passmanager.PassManager(ANCHOR)
        is_ours = False
        verifies_itself = instrumentation.is_default and len(self.passes) == len(self.elements)
        for element, following in itertools.zip_longest(self.elements, self.elements[1:], fillvalue=""):
            follows_ours, is_ours = is_ours, not isinstance(element, str)
            hands_over = verifies_itself and not isinstance(following, str) and following.takes_findings
            name = element.name if is_ours else None
            if name is None:
                manager.add(instrumentation.with_prints(element))
                continue
            for text in instrumentation.prints_before(name):
                manager.add(text)
            # An op_name would make MLIR look the pass up by it and fail; it stays empty.
            manager.add(
                _as_callable(element, module, session, failures, held, follows_ours, verifies_itself, hands_over),
                name=type(element).__name__,
                argument=name,
                description=element.summary,
            )
            for text in instrumentation.prints_after(name):
                manager.add(text)
        instrumentation.attach(manager)
        if verifies_itself:
            manager.enable_verifier(False)
        return manager


def _as_callable(
    element: Pass,
    module: ir.Module,
    session: Session,
    failures: list[BaseException],
    held: HeldBack,
    follows_ours: bool,
    verifies: bool,
    hands_over: bool,
):
    """Returns the pass as MLIR calls it: exceptions, Ctrl-C too, wait in `failures` so that MLIR sees an ordinary failed pass.

    An analysis and findings in the session are for the next pass alone, and for none behind a pass of MLIR.

    Args:
      verifies: whether the module is verified here and not by MLIR, which would do it also where there is nothing to verify.
      hands_over: whether nobody looks at the module before the next pass, and that takes findings from the session.
    """

    def run(_operation: ir.Operation, external_pass) -> None:
        errors_before = len(session.errors)
        session.current_pass, session.is_verified, session.is_left, session.hands_over = element, False, False, hands_over
        if not follows_ours:
            session.analysis = session.findings = None
        analysis, findings = session.analysis, session.findings
        stages.at(element.name)
        try:
            with held.let_through():
                element.run(module, session)
                if verifies and not session.is_verified and len(session.errors) == errors_before:
                    _verify(module)
        except BaseException as failure:
            failure.add_note(f"in pass {element.name}")
            failures.append(failure)
        finally:
            session.current_pass = None
            session.content = session.content if session.is_left else None
            session.analysis = None if session.analysis is analysis else session.analysis
            session.findings = None if session.findings is findings else session.findings
            session.are_findings_written |= session.findings is None
        if failures or len(session.errors) > errors_before:
            external_pass.signal_pass_failure()

    return run


def _verify(module: ir.Module) -> None:
    """Raises: DiagnosedError if the module is not valid."""
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise DiagnosedError(from_mlir_error(error)) from None


def _errors_behind(error: ir.MLIRError, failures: list[BaseException], collected: list[Diagnostic]) -> list[Diagnostic]:
    """Returns the errors that the session has not collected yet; re-raises a failure that is our bug."""
    if not failures:
        return [] if collected else from_mlir_error(error)
    if not isinstance(failures[0], DiagnosedError):
        raise failures[0] from None
    return list(failures[0].diagnostics)


def is_mlir_pass(name: str) -> bool:
    """Returns whether MLIR has a pass of this name, inside the current context."""
    try:
        passmanager.PassManager(ANCHOR).add(name)
    except ValueError as error:
        return "does not refer to a registered pass" not in str(error)
    return True


def _complaint(text: str, element: str) -> tuple[str, int]:
    """Returns what MLIR has against an element, and the column in it, from 0; the name's, where MLIR says none."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    found = _MLIR_PLACE.match(lines[0])
    if found:
        column = int(found[1]) - 1
        return lines[0][found.end() :] + _suggestion(element[column:]), column
    failed = _FAILED_TO_ADD.search(text)
    name = failed[1] if failed else element
    what = lines[0].removeprefix("<Pass-Options-Parser>: ")
    if what.startswith("no such option"):
        what = f"{name}: {what}; its options: {', '.join(_mlir_options(name)) or 'none'}"
    elif "did you intend to nest?" in what:
        what += f" Write func.func({name})"
    return what, max(0, element.find(name))


def _suggestion(text: str) -> str:
    import difflib

    wrong = re.match(r"[\w.-]*", text)[0]
    known = (*registry.names(), *registry.PIPELINES, *registry.MLIR_PASSES, *registry.MLIR_FUNCTION_PASSES)
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else "; --list-passes names them"


def _mlir_options(name: str) -> list[str]:
    """Returns the options that MLIR prints for a pass of its own, inside the current context."""
    manager = passmanager.PassManager("any")
    try:
        manager.add(name)
    except ValueError:
        return []
    options = str(manager).partition("{")[2]
    return re.findall(r"(?:^| )([\w-]+)=", options)


def _passes_of(element: Element, text: str) -> Iterator[Pass | str]:
    """Yields the passes that one element stands for: a named pipeline has several."""
    if element.name in registry.PIPELINES:
        if element.options is not None or element.nested is not None:
            raise PipelineError(
                f"pipeline '{element.name}' takes no options; name its passes instead", text, element.offset
            )
        yield from Pipeline.parse(registry.PIPELINES[element.name]).elements
    elif registry.is_pass(element.name):
        if element.nested is not None:
            raise PipelineError(f"'{element.name}' is a pass and holds no others", text, element.offset)
        yield _make_pass(element, text)
    else:
        _refuse_nested_passes(element, text)
        yield element.text


def _make_pass(element: Element, text: str) -> Pass:
    try:
        return registry.load(element.name).parse(element.options or "")
    except registry.PluginError as error:
        raise PipelineError(str(error), text, element.offset) from None
    except OptionError as error:
        at = max(0, (element.options or "").find(error.option))
        raise PipelineError(str(error), text, element.options_offset + at) from None


def _refuse_nested_passes(element: Element, text: str) -> None:
    for leaf in element.leaves():
        if leaf is not element and (leaf.name in registry.PIPELINES or registry.is_pass(leaf.name)):
            where = "the outermost builtin.module" if element.name == ANCHOR else ANCHOR
            raise PipelineError(f"'{leaf.name}' runs on {where}, not inside {element.name}(...)", text, leaf.offset)


def _option_names(element: Pass | str) -> list[str]:
    return [] if isinstance(element, str) else [each.name for each in element.options()]


def _with_known_options(element: Pass | str, values: Mapping[str, str]) -> Pass | str:
    known = {name: value for name, value in values.items() if name in _option_names(element)}
    return element.with_options(known) if known else element
