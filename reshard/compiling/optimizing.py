# SPDX-License-Identifier: Apache-2.0
"""`reshard.optimize` and `reshard.explain`: programs that JAX has lowered or exported, and modules.

lowered = jax.jit(step, ...).lower(*args)
compiled = reshard.optimize(lowered).compile()   # a jax.stages.Compiled, called like the one of lowered.compile()
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from reshard.compiling import child_process, module_dumps
from reshard.configuration import contexts
from reshard.configuration.settings import SETTINGS, resolved
from reshard.dialect_utils.ir import module_files, shardy_limits
from reshard.dialect_utils.ir.module_files import ModuleFile
from reshard.dialect_utils.platform import compat, jax_seam, progress
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.platform.interrupts import DeferredInterrupts
from reshard.dialect_utils.xla import child as xla_child
from reshard.jobs import agreement, shared_planning
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import report, result_cache
from reshard.passes.results.checks import checked, is_rewritten
from reshard.passes.results.result_cache import Output
from reshard.planning.byte_sizes import byte_size

if TYPE_CHECKING:
    import jax

_OF_PASSES = ("policy", "oracle")
_log = logging.getLogger("reshard.optimize")


@dataclass(frozen=True, slots=True)
class Report:
    """The sites of a module, each with its decision and the reason. `str()` gives text; notebooks show a page."""

    _session: Session = field(repr=False)

    def text(self, locations: str = "user") -> str:
        """Returns the table of sites with totals, the whole-module check and the reasons.

        Args:
          locations: "user" tells of each site the line outside of libraries and helpers, "chain" the calls that lead to
            it, too.
        """
        return report.as_text(self._session, locations)

    def to_dict(self) -> dict:
        """Returns the report as plain data, schema `reshard.report/1`."""
        return report.as_dict(self._session)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from reshard.pictures.report_page import notebook_html

        return notebook_html(self.to_dict())


@dataclass(frozen=True, slots=True)
class Optimized:
    """A module after optimization. `content`: its MLIR bytecode; the input itself if nothing was rewritten."""

    content: bytes
    report: Report
    is_rewritten: bool


@dataclass(frozen=True, slots=True)
class Result:
    """An optimized program.

    Attributes:
      lowered: a `jax.stages.Lowered` that holds the rewritten module; the very one that was given if nothing was
        rewritten; None if none was given.
      module: the program's StableHLO as text.
      report: see `Report`.
      is_rewritten: whether any site was.
      emit: the form in which they are written.
      exported: a `jax.export.Exported` that holds the rewritten module; None if none was given. Its derivatives are
        optimized when they are asked for.
    """

    lowered: jax.stages.Lowered | None
    module: str = field(repr=False)
    report: Report
    is_rewritten: bool
    emit: str = "manual"
    exported: jax.export.Exported | None = None

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def compile(self, compiler_options: dict[str, Any] | None = None) -> jax.stages.Compiled:
        """Returns the compiled program, called like `lowered.compile()`: same trees, donation and output shardings.

        Raises: ValueError if no lowered program was given, or the module is written in Shardy's collectives, which XLA
        does not
          read.
        """
        if self.lowered is None:
            how = (
                "jax.jit(result.exported.call).lower(...).compile()"
                if self.exported
                else "optimize(jax.jit(f).lower(...))"
            )
            raise ValueError(f"only a lowered program can be compiled; write {how}")
        if self.is_rewritten and self.emit == "sdy":
            raise ValueError('XLA does not read the collectives of emit="sdy"; compile the result of emit="manual"')
        with jax_seam.rewriting(None), compat.shardy_partitioner() if self.is_rewritten else contextlib.nullcontext():
            return self.lowered.compile(compiler_options)


def optimize(
    program: jax.stages.Lowered | jax.export.Exported | ir.Module | str | bytes,
    *,
    check: bool | None = None,
    **options: Any,
) -> Result:
    """Returns the program with synthesized collectives in place of the conversions that the policy selects.

    Args:
      program: what `jax.jit(f).lower(*args)` or `jax.export.export(jax.jit(f))(*args)` returns; or a module: MLIR text
        or bytecode, a StableHLO portable artifact, what `Exported.serialize` wrote, or an `ir.Module`. It stays as it
        is.
      check: compile the whole module both ways in a child process, and take rewrites back that make it worse; None is
        yes, unless `reshard.options`, the environment or the file say no. Only what emit="manual" writes is checked.
      **options: policy="better" or "always", oracle="lone", emit="manual", "sdy" or "local"; verify_values=True runs
        both modules on small random inputs in that process, and takes rewrites back that change values; see
        docs/jax.md.
    Returns: its part that fits `program` is set: `lowered`, or `exported`, whose derivatives are optimized when they
    are asked
      for, or just `module`.
    Raises:
      ValueError: an unknown option or value.
      TypeError: `program` is none of these.
      DiagnosedError: a module that cannot be read or that Shardy refuses, with its diagnostics.

    Example:
      >>> optimize("func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }").report.text()
      'reshard: no site: every value is used in the layout in which it is produced\\n'
    """
    with DeferredInterrupts():  # after Ctrl-C in its first import, jax cannot be imported again
        import jax  # noqa: F401, a part of it is imported below anyway
    given = options if check is None else {**options, "check": check}
    settings = resolved(given, dict(contexts.current().options))
    if hasattr(program, "compiler_ir"):
        return _of_lowered(cast("jax.stages.Lowered", program), settings)
    if hasattr(program, "mlir_module_serialized"):
        return _of_exported(cast("jax.export.Exported", program), settings)
    if isinstance(program, bytes | bytearray) and _file(program).form == module_files.EXPORTED:
        return _of_exported(compat.exported(program), settings)
    if isinstance(program, ir.Module | str | bytes | bytearray):
        return _of_module(program, settings)
    raise _not_taken("optimize", program)


def explain(program, *args: Any, **kwargs: Any) -> Report:
    """Returns the report of `optimize` on a program without compiling the whole program.

    The program is traced and lowered, but neither compiled nor run. So the report does not tell whether a rewrite makes
    the rest of the program worse; `with reshard.options(check=True)` asks for this check.

    Args:
      program: a function, jitted or not; or anything that `optimize` takes.
      *args, **kwargs: of the function: arrays, or `jax.ShapeDtypeStruct` with shardings.
    Raises: as `optimize`; TypeError for arguments of what takes none.

    Example:
      >>> import jax
      >>> explain(jax.numpy.sin, 0.0).to_dict()["totals"]["sites"]
      0
    """
    around = dict(contexts.current().options)
    quick = {name: around.get(name, False) for name in ("check", "verify_values")}
    if callable(program) and not hasattr(program, "compiler_ir"):
        import jax

        jitted = program if hasattr(program, "lower") else jax.jit(program)
        return optimize(jitted.lower(*args, **kwargs), **quick).report
    if args or kwargs:
        raise TypeError(f"explain takes arguments of a function only, and {type(program).__name__} is none")
    return optimize(cast("jax.stages.Lowered", program), **quick).report  # or another one that optimize takes


def optimized_module(
    source: bytes,
    settings: Mapping[str, Any],
    name: str = "module",
    devices: Sequence[jax.Device] = (),  # pyright: ignore[reportInvalidTypeForm]  # jax assigns it
    is_from_jax: bool = True,
) -> Optimized:
    """Returns a module after optimization. All entry points call this function.

    Args:
      source: MLIR text or bytecode, or a portable artifact.
      settings: of `settings.resolved`.
      name: of the module, in logs and dumps.
      devices: that it is for. The processes of a job that own some of them all get the same.
      is_from_jax: whether jax has just lowered it. Any other module, and what is rare, goes to a child process.
    Raises: DiagnosedError.
    """
    session, pipeline, checks = Session(), _pipeline(settings), _Checks.of(settings)
    key = result_cache.key(source, pipeline, session, is_checked=checks.compiles, value_bytes=checks.value_bytes)

    def here() -> Output:
        return _output(_file(source, name), pipeline, session, checks)

    def made() -> Output:
        if is_from_jax:
            try:
                with shardy_limits.refusing_risky():
                    return here()
            except shardy_limits.RiskyModuleError:
                session.reset()
        return child_process.output(source, settings, name, session) or here()

    def compute() -> Output:
        with progress.shown(f"reshard: {name}", settings["progress"]):
            return result_cache.run(key, session, made)

    if members := agreement.members_of(devices):
        asked = {
            option: settings[option]
            for option in (*_OF_PASSES, "emit", "check", "verify_values", "verify_values_bytes")
        }
        output = shared_planning.run(members, name, _text(source, locations=False), asked, session, compute)
    else:
        output = compute()
    session.handed_on.analysis = None
    found = Optimized(source if output.is_unchanged else output.content, Report(session), not output.is_unchanged)
    _tell(found, source, settings, name)
    return found


def recorded_output(
    source: bytes, settings: Mapping[str, Any], name: str, enter: Callable[[str, float | None], None]
) -> tuple[bytes, bool]:
    """Returns a record of the output for a module, which `result_cache.replayed` reads, and whether it may be kept.

    Args:
      enter: called with what is done next, and the processor time that it may take, None if any.
    """
    session, file = Session(), _file(source, name)
    passing_before = xla_child.shared_child().passing_answers
    checks = _Checks.of(settings)
    output, entry = result_cache.recorded(session, lambda: _output(file, _pipeline(settings), session, checks, enter))
    enter("writing", None)
    _text(source if output.is_unchanged else output.content)  # as the caller will; MLIR may end this process here
    return entry, output.is_lasting and xla_child.shared_child().passing_answers == passing_before


@dataclass(frozen=True, slots=True)
class _Checks:
    """The checks of the whole module that the settings ask for.

    Attributes:
      compiles: whether it is compiled both ways. value_bytes: the limit of the check by values; None: there is none.
    """

    compiles: bool
    value_bytes: int | None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> _Checks:
        """Returns the checks that settings ask for."""
        value_bytes = byte_size(settings["verify_values_bytes"]) if settings["verify_values"] else None
        return cls(settings["check"] and settings["emit"] == "manual", value_bytes)


def _output(
    file: ModuleFile, pipeline: Pipeline, session: Session, checks: _Checks, enter: Callable = lambda stage, cpu_s: None
) -> Output:
    """Runs the pipeline on a module and returns the result as bytecode; empty if the module is unchanged."""
    with make_context() as context, ir.Location.unknown(context):
        enter("reading", module_files.reading_limit_s(file))
        module = file.chunks()[0].parse(context)
        enter("running the passes", None)
        pipeline.run(module, session)
        rows, asked = session.results.report_rows, {"compiles": checks.compiles, "value_bytes": checks.value_bytes}
        module = checked(lambda: file.chunks()[0].parse(context), module, pipeline, session, rows, **asked)
        has_rewrites = is_rewritten(rows)
        return Output(compat.bytecode(module) if has_rewrites else b"", not has_rewrites)


def _tell(found: Optimized, source: bytes, settings: Mapping[str, Any], name: str) -> None:
    """Writes the result for a module to the log, and to the folder of the option `dump_to`."""
    totals = found.report.to_dict()["totals"]
    _log.info("%s: %d sites, %d rewritten", name, totals["sites"], totals["rewritten"])
    if totals["sites"]:
        _log.debug("%s\n%s", name, found.report)
    if settings["dump_to"] is not None:
        after = _text(found.content) if found.is_rewritten else None
        module_dumps.dump(settings["dump_to"], name, _text(source), after, found.report)


def _file(content: bytes | str, name: str = "module") -> ModuleFile:
    return ModuleFile(f"<{name}>", content.encode() if isinstance(content, str) else bytes(content))


def _of_lowered(lowered: jax.stages.Lowered, settings: Mapping[str, Any]) -> Result:
    module: ir.Module = lowered.compiler_ir("stablehlo")  # pyright: ignore[reportAssignmentType]  # None for others
    found = optimized_module(
        compat.bytecode(module), settings, compat.module_name(module), compat.lowered_devices(lowered)
    )
    if not found.is_rewritten:
        return Result(lowered, _text_of(module), found.report, False)
    emit = settings["emit"]
    # XLA does not read the module that emit=sdy writes; the program that was given takes its place.
    optimized = (
        lowered if emit == "sdy" else compat.lowered_with_module(jax_seam.without_rewriter(lowered), found.content)
    )
    return Result(optimized, _text(found.content), found.report, True, emit)


def _of_exported(exported: jax.export.Exported, settings: Mapping[str, Any]) -> Result:
    source = exported.mlir_module_serialized
    found = optimized_module(
        source, settings, exported.fun_name, is_from_jax=False
    )  # it may have been read from a file
    text = _text(found.content)
    artifact = _artifact(found.content, _file(source)) if found.is_rewritten else source
    optimized = compat.exported_with_module(
        exported, artifact, lambda derivative: _of_exported(derivative, settings).exported
    )
    return Result(None, text, found.report, found.is_rewritten, settings["emit"], optimized)


def _of_module(module: ir.Module | str | bytes, settings: Mapping[str, Any]) -> Result:
    source = compat.bytecode(module) if isinstance(module, ir.Module) else _file(module).content
    found = optimized_module(source, settings, is_from_jax=False)
    return Result(None, _text(found.content), found.report, found.is_rewritten, settings["emit"])


def source_of(program: Any) -> tuple[bytes, str, bool]:
    """Returns the module of a program that `optimize` takes, its name, and whether jax has just lowered it.

    Raises: TypeError if `optimize` does not take it.
    """
    if hasattr(program, "compiler_ir"):
        module = program.compiler_ir("stablehlo")
        return compat.bytecode(module), compat.module_name(module), True
    if hasattr(program, "mlir_module_serialized"):
        return program.mlir_module_serialized, program.fun_name, False
    if isinstance(program, ir.Module):
        return compat.bytecode(program), "module", False
    if isinstance(program, str | bytes | bytearray):
        file = _file(program if isinstance(program, str) else bytes(program))
        return file.content, "module", False
    raise _not_taken("traffic", program)


def _not_taken(function: str, program: Any) -> TypeError:
    taken = "what jax.jit(f).lower(*args) returns, a jax.export.Exported or a module"
    return TypeError(f"{function} takes {taken}, not {type(program).__name__}")


def _artifact(content: bytes, source: ModuleFile) -> bytes:
    """Returns a module as a portable artifact of the same version as `source`."""
    with make_context() as context, ir.Location.unknown(context):
        return module_files.to_bytes(ir.Module.parse(content), module_files.PORTABLE, source=source)


def _text(content: bytes, locations: bool = True) -> str:
    with make_context() as context, ir.Location.unknown(context):
        return _text_of(_file(content).chunks()[0].parse(context), locations)


def _text_of(module: ir.Module, locations: bool = True) -> str:
    return module_files.as_text(module, enable_debug_info=locations)


def _pipeline(settings: Mapping[str, Any]) -> Pipeline:
    given = {name: settings[name] for name in _OF_PASSES if settings[name] != SETTINGS[name].default}
    return Pipeline.emitting(settings["emit"], given)
