# SPDX-License-Identifier: Apache-2.0
"""The first JAX entry: `reshard.optimize(lowered)`.

    lowered = jax.jit(step, ...).lower(*args)
    compiled = reshard.optimize(lowered).compile()   # a jax.stages.Compiled, called like the one of lowered.compile()
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils import compat
from reshard.dialect_utils.bindings import ir, make_context
from reshard.passes import report, whole_module_check
from reshard.passes.base import Session
from reshard.passes.pipeline import Pipeline, PipelineError

if TYPE_CHECKING:
    import jax

_OPTIONS = ("policy", "oracle", "emit")


@dataclass(frozen=True, slots=True)
class Report:
    """What was found at each site, what was done, and why. `str()` is the text report."""

    _session: Session = field(repr=False)

    def text(self) -> str:
        """Returns the table of sites with totals, the whole-module check and the reasons."""
        return report.as_text(self._session)

    def to_dict(self) -> dict:
        """Returns the report as plain data, schema `reshard.report/1`."""
        return report.as_dict(self._session)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from reshard.pictures.report_page import notebook_html

        return notebook_html(self.to_dict())


@dataclass(frozen=True, slots=True)
class Result:
    """An optimized program.

    Attributes:
      lowered: a `jax.stages.Lowered` that holds the rewritten module; the very one that was given if nothing was rewritten.
      module: its StableHLO as text.
      report: see `Report`.
      is_rewritten: whether any site was.
      emit: the form in which they are written.
    """

    lowered: jax.stages.Lowered
    module: str = field(repr=False)
    report: Report
    is_rewritten: bool
    emit: str = "manual"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def compile(self, compiler_options: dict[str, Any] | None = None) -> jax.stages.Compiled:
        """Returns the compiled program, called like `lowered.compile()`: same trees, donation and output shardings.

        Raises: ValueError if the module is written in Shardy's collectives, which XLA does not read.
        """
        if not self.is_rewritten:
            return self.lowered.compile(compiler_options)
        if self.emit == "sdy":
            raise ValueError('XLA does not read the collectives of emit="sdy"; compile the result of emit="manual"')
        with compat.shardy_partitioner():
            return self.lowered.compile(compiler_options)


def optimize(lowered: jax.stages.Lowered, *, check: bool = True, **options: str) -> Result:
    """Returns the program with the conversions that are worth it replaced by synthesized collectives.

    Args:
      lowered: what `jax.jit(f).lower(*args)` returns; it stays as it is.
      check: compile the whole module both ways in a child process, and take rewrites back that make it worse.
        Only what emit="manual" writes is checked.
      **options: policy="better" or "always", oracle="lone", emit="manual", "sdy" or "local"; see docs/emission.md.
    Raises:
      ValueError: an unknown option or value.
      TypeError: `lowered` is no `jax.stages.Lowered`.
      DiagnosedError: a module that Shardy refuses, with its diagnostics.
    """
    if not hasattr(lowered, "compiler_ir"):
        raise TypeError(f"optimize takes what jax.jit(f).lower(*args) returns, not {type(lowered).__name__}")
    emit = options.get("emit", "manual")
    pipeline = _pipeline(options)
    source = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True, use_local_scope=False)
    session = Session()
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(source)
        pipeline.run(module, session)
        if check and emit == "manual":
            module = whole_module_check.check(ir.Module.parse(source), module, pipeline, session, session.report_rows)
        is_rewritten = any(row.get("is_rewritten") for row in session.report_rows)
        content = module.operation.get_asm(enable_debug_info=True)
    if not is_rewritten:
        return Result(lowered, source, Report(session), False)
    return Result(_lowered_with(lowered, content, emit), content, Report(session), True, emit)


def _lowered_with(lowered: jax.stages.Lowered, content: str, emit: str) -> jax.stages.Lowered:
    """Returns what compiles the rewritten module; where XLA does not read that, what was given."""
    return lowered if emit == "sdy" else compat.lowered_with_module(lowered, content)


def _pipeline(options: dict[str, str]) -> Pipeline:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r}; known: {', '.join(_OPTIONS)}")
    others = {name: value for name, value in options.items() if name != "emit"}
    try:
        return Pipeline.emitting(options.get("emit", "manual"), others)
    except PipelineError as problem:
        raise ValueError(str(problem)) from None
