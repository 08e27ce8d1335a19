# SPDX-License-Identifier: Apache-2.0
"""Pipelines in MLIR's textual syntax that mix our passes with MLIR's own, in one MLIR pass manager.

`builtin.module(find-mismatches,plan-sites{policy=always},canonicalize,func.func(cse))`: names of the registry are our
passes; every other element is handed to MLIR as text. Timing, IR printing and verification therefore come from MLIR for
both.

Example:
  >>> str(Pipeline.parse("canonicalize, func.func(cse)"))
  'builtin.module(canonicalize,func.func(cse))'
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform.bindings import ir, passmanager
from reshard.dialect_utils.platform.interrupts import DeferredInterrupts
from reshard.passes.driver import pipeline_text, registry
from reshard.passes.driver.base import OptionError, Pass, Session
from reshard.passes.driver.callables import as_callable, errors_behind
from reshard.passes.driver.elements import complaint, read_passes
from reshard.passes.driver.instrumentation import NO_INSTRUMENTATION, Instrumentation
from reshard.passes.driver.pipeline_text import ANCHOR, PipelineError


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Elements in order; each is a pass of ours, or the text of a pass or nested pipeline of MLIR.

    Fields: text, offsets: what was read, and where in it each element begins, for errors; none in a pipeline made of
    passes.
    """

    elements: tuple[Pass | str, ...]
    text: str = field(default="", compare=False)
    offsets: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def parse(cls, text: str) -> Pipeline:
        """Returns the pipeline; the enclosing `builtin.module(...)` may be left out.

        Raises: PipelineError where the text is malformed or one of our passes has a wrong option or place.
        """
        read = read_passes(text)
        return cls(tuple(each for each, _ in read), text, tuple(offset for _, offset in read))

    @classmethod
    def default(cls) -> Pipeline:
        """Returns the pipeline that runs when none is named."""
        return cls.parse(registry.DEFAULT_PIPELINE)

    @classmethod
    def emitting(cls, emission: str, options: Mapping[str, str]) -> Pipeline:
        """Returns the pipeline that writes one of `registry.EMISSIONS`, with the given options set on its passes.

        Raises: PipelineError for an unknown emission, or an option that none of its passes has.
        """
        if emission not in registry.EMISSIONS:
            raise PipelineError(f"emit={emission} is not available; choose from {', '.join(registry.EMISSIONS)}")
        pipeline = cls.parse(registry.EMISSIONS[emission])
        has_choice = any("emit" in _option_names(each) for each in pipeline.elements)
        return pipeline.with_options({**options, "emit": emission} if has_choice else options)

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Returns the passes of ours, in order."""
        return tuple(each for each in self.elements if isinstance(each, Pass))

    @property
    def emission(self) -> str:
        """Returns the form in which the pipeline writes sites, one of `registry.EMISSIONS`; empty if no pass says."""
        return next((form for each in self.passes if (form := getattr(each, "emit", ""))), "")

    def __str__(self) -> str:
        return f"{ANCHOR}({','.join(map(str, self.elements))})"

    def with_options(self, values: Mapping[str, str]) -> Pipeline:
        """Returns the pipeline with each option set on every pass of ours that has it.

        Raises: PipelineError if no pass has it, or none can take the value.
        """
        for name in values:
            if not any(name in _option_names(each) for each in self.elements):
                raise PipelineError(f"no pass of {self} has an option '{name}'{_who_has(name)}")
        try:
            return replace(self, elements=tuple(_with_known_options(each, values) for each in self.elements))
        except OptionError as error:
            raise PipelineError(str(error)) from None

    def with_layouts(self, options: Mapping[str, str]) -> Pipeline:
        """Returns the pipeline with assign-layouts in front, behind an import of shardings.

        Raises: PipelineError for an option that the pass does not take, or not with that value.
        """
        (assign,) = Pipeline.parse(registry.ASSIGNMENT).with_options(options).elements
        imports = [each for each in self.elements[:1] if not isinstance(each, str) and each.states_shardings]
        return Pipeline((*imports, assign, *self.elements[len(imports) :]), self.text)

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of all passes in order, those nested in MLIR's pipelines too."""
        return tuple(leaf.name for element in pipeline_text.read(str(self)) for leaf in element.leaves())

    def check(self, context: ir.Context) -> None:
        """Checks the elements of MLIR. Raises: PipelineError if MLIR does not know one of the passes or options."""
        with context:
            for index, element in enumerate(self.elements):
                if isinstance(element, str):
                    self._check_mlir_element(element, self.offsets[index] if self.offsets else None)

    def _check_mlir_element(self, element: str, offset: int | None) -> None:
        try:
            passmanager.PassManager(ANCHOR).add(element)
        except ValueError as error:
            message, column = complaint(str(error), element)
            raise PipelineError(message, self.text, None if offset is None else offset + column) from None

    def run(self, module: ir.Module, session: Session, instrumentation: Instrumentation = NO_INSTRUMENTATION) -> None:
        """Runs the pipeline on `module` in place.

        Raises: DiagnosedError with the errors, which are in `session.results.diagnostics` too, in order with the rest.
        """
        context = module.context
        if instrumentation.prints_ir:
            context.enable_multithreading(False)  # dumps of nested passes would interleave
        failures: list[BaseException] = []
        held = DeferredInterrupts()
        errors_before = len(session.errors)
        with context, ir.Location.unknown(), session.results.diagnostics.listening(context):
            manager = self._build(session, module, failures, instrumentation, held)
            try:
                with held:
                    manager.run(module.operation)
            except ir.MLIRError as error:
                session.results.diagnostics.diagnostics += errors_behind(
                    error, failures, session.errors[errors_before:]
                )
                raise DiagnosedError(session.errors[errors_before:]) from None
            finally:
                with instrumentation.reporting():  # MLIR reports the times when the manager is deleted
                    del manager

    def _build(
        self,
        session: Session,
        module: ir.Module,
        failures: list[BaseException],
        instrumentation: Instrumentation,
        held: DeferredInterrupts,
    ) -> passmanager.PassManager:
        manager = passmanager.PassManager(ANCHOR)
        is_ours = False
        verifies_itself = instrumentation.is_default and len(self.passes) == len(self.elements)
        for element, following in itertools.zip_longest(self.elements, self.elements[1:], fillvalue=""):
            follows_ours, is_ours = is_ours, not isinstance(element, str)
            next_takes_findings = verifies_itself and not isinstance(following, str) and following.takes_findings
            if isinstance(element, str):
                manager.add(instrumentation.with_prints(element))
                continue
            name = element.name
            for text in instrumentation.prints_before(name):
                manager.add(text)
            # The argument op_name stays empty: with an op_name, MLIR would look up the pass by it and fail.
            manager.add(
                as_callable(
                    element, module, session, failures, held, follows_ours, verifies_itself, next_takes_findings
                ),
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


def _who_has(option: str) -> str:
    """Returns in words which of our passes have an option; empty if none has."""
    having = [each for each in registry.PASSES if option in (known.name for known in registry.load(each).options())]
    return f"; add one that has: {', '.join(having)}" if having else ""


def _option_names(element: Pass | str) -> list[str]:
    return [] if isinstance(element, str) else [each.name for each in element.options()]


def _with_known_options(element: Pass | str, values: Mapping[str, str]) -> Pass | str:
    if isinstance(element, str):
        return element
    known = {name: value for name, value in values.items() if name in _option_names(element)}
    return element.with_options(known) if known else element
