# SPDX-License-Identifier: Apache-2.0
"""`reshard.optimize` and `reshard.explain`: programs that JAX has lowered or exported, and modules.

    lowered = jax.jit(step, ...).lower(*args)
    compiled = reshard.optimize(lowered).compile()   # a jax.stages.Compiled, called like the one of lowered.compile()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
from dataclasses import dataclass, field
import logging
from typing import TYPE_CHECKING, Any

from reshard import agreement, containment, contexts, dumps, planned_once
from reshard.byte_sizes import byte_size
from reshard.dialect_utils import compat, jax_seam, module_files, not_propagated, stages, xla_child
from reshard.dialect_utils.bindings import ir, make_context
from reshard.dialect_utils.interrupts import HeldBack
from reshard.dialect_utils.module_files import ModuleFile
from reshard.passes import report, result_cache, values_check, whole_module_check
from reshard.passes.base import Session
from reshard.passes.pipeline import Pipeline
from reshard.passes.result_cache import Output
from reshard.settings import SETTINGS, resolved

if TYPE_CHECKING:
    import jax

_OF_PASSES = ("policy", "oracle")
_log = logging.getLogger("reshard.optimize")


@dataclass(frozen=True, slots=True)
class Report:
    """What was found at each site, what was done, and why. `str()` is the text report; notebooks show a page."""

    _session: Session = field(repr=False)

    def text(self, locations: str = "user") -> str:
        """Returns the table of sites with totals, the whole-module check and the reasons.

        Args:
          locations: "user" tells of each site the line outside of libraries and helpers, "chain" the calls that lead to it, too.
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
    """What became of a module. `content`: it as MLIR bytecode, what came if nothing was rewritten."""

    content: bytes
    report: Report
    is_rewritten: bool


@dataclass(frozen=True, slots=True)
class Result:
    """An optimized program.

    Attributes:
      lowered: a `jax.stages.Lowered` that holds the rewritten module; the very one that was given if nothing was rewritten;
        None if none was given.
      module: the program's StableHLO as text.
      report: see `Report`.
      is_rewritten: whether any site was.
      emit: the form in which they are written.
      exported: a `jax.export.Exported` that holds the rewritten module; None if none was given. Its derivatives are optimized when
        they are asked for.
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

        Raises: ValueError if no lowered program was given, or the module is written in Shardy's collectives, which XLA does not
          read.
        """
        if self.lowered is None:
            how = "jax.jit(result.exported.call).lower(...).compile()" if self.exported else "optimize(jax.jit(f).lower(...))"
            raise ValueError(f"only a lowered program can be compiled; write {how}")
        if self.is_rewritten and self.emit == "sdy":
            raise ValueError('XLA does not read the collectives of emit="sdy"; compile the result of emit="manual"')
        with jax_seam.rewriting(None), compat.shardy_partitioner() if self.is_rewritten else contextlib.nullcontext():
            return self.lowered.compile(compiler_options)


def optimize(
    program: jax.stages.Lowered | jax.export.Exported | ir.Module | str | bytes, *, check: bool | None = None, **options: Any
) -> Result:
    """Returns the program with the conversions that are worth it replaced by synthesized collectives.

    Args:
      program: what `jax.jit(f).lower(*args)` or `jax.export.export(jax.jit(f))(*args)` returns; or a module: MLIR text or
        bytecode, a StableHLO portable artifact, what `Exported.serialize` wrote, or an `ir.Module`. It stays as it is.
      check: compile the whole module both ways in a child process, and take rewrites back that make it worse; None is yes, unless
        `reshard.options`, the environment or the file say no. Only what emit="manual" writes is checked.
      **options: policy="better" or "always", oracle="lone", emit="manual", "sdy" or "local"; verify_values=True runs both modules
        on small random inputs in that process, and takes rewrites back that change values; see docs/jax.md.
    Returns: its part that fits `program` is set: `lowered`, or `exported`, whose derivatives are optimized when they are asked
      for, or just `module`.
    Raises:
      ValueError: an unknown option or value.
      TypeError: `program` is none of these.
      DiagnosedError: a module that cannot be read or that Shardy refuses, with its diagnostics.

    Example:
      >>> optimize("func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }").report.text()
      'reshard: no site: every value is used in the layout in which it is produced\\n'
    """
    with HeldBack():  # jax cannot be imported once more after Ctrl-C in its first import
        import jax  # what it needs is imported below anyway
    given = options if check is None else {**options, "check": check}
    settings = resolved(given, dict(contexts.current().options))
    if hasattr(program, "compiler_ir"):
        return _of_lowered(program, settings)
    if hasattr(program, "mlir_module_serialized"):
        return _of_exported(program, settings)
    if isinstance(program, bytes | bytearray) and _file(program).form == module_files.EXPORTED:
        return _of_exported(compat.exported(program), settings)
    if isinstance(program, ir.Module | str | bytes | bytearray):
        return _of_module(program, settings)
    what = "what jax.jit(f).lower(*args) returns, a jax.export.Exported or a module"
    raise TypeError(f"optimize takes {what}, not {type(program).__name__}")


def explain(program, *args: Any, **kwargs: Any) -> Report:
    """Returns what `optimize` would do with a program, site by site, without compiling the whole of it.

    The program is traced and lowered, not compiled and not run. Whether a rewrite makes the rest of it worse is therefore
    unknown, unless `with reshard.options(check=True)` asks for it.

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
    return optimize(program, **quick).report


def optimized_module(
    source: bytes,
    settings: Mapping[str, Any],
    name: str = "module",
    devices: Sequence[jax.Device] = (),
    is_from_jax: bool = True,
) -> Optimized:
    """Returns what becomes of a module: the one way that all entries go.

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
                with not_propagated.only_common():
                    return here()
            except not_propagated.RareError:
                session.__init__()  # as it was before
        return containment.output(source, settings, name, session) or here()

    def compute() -> Output:
        with stages.told(f"reshard: {name}", settings["progress"]):
            return result_cache.run(key, session, made)

    if members := agreement.members_of(devices):
        asked = {option: settings[option] for option in (*_OF_PASSES, "emit", "check", "verify_values", "verify_values_bytes")}
        output = planned_once.run(members, name, _text(source, locations=False), asked, session, compute)
    else:
        output = compute()
    session.analysis = None
    found = Optimized(source if output.is_unchanged else output.content, Report(session), not output.is_unchanged)
    _tell(found, source, settings, name)
    return found


def recorded_output(
    source: bytes, settings: Mapping[str, Any], name: str, enter: Callable[[str, float | None], None]
) -> tuple[bytes, bool]:
    """Returns what `optimized_module` finds out about a module, as `result_cache.replayed` takes it, and whether it lasts.

    Args:
      enter: called with what is done next, and the processor time that it may take, None if any.
    """
    session, file = Session(), _file(source, name)
    passing_before = xla_child.shared_child().passing_answers
    checks = _Checks.of(settings)
    output, entry = result_cache.recorded(session, lambda: _output(file, _pipeline(settings), session, checks, enter))
    enter("writing", None)
    _text(source if output.is_unchanged else output.content)  # as the caller is going to: here it may end the process
    return entry, output.is_lasting and xla_child.shared_child().passing_answers == passing_before


@dataclass(frozen=True, slots=True)
class _Checks:
    """Which checks of the whole module are asked for.

    Attributes:
      compiles: whether it is compiled both ways. value_bytes: the limit of the check by values; None: there is none.
    """

    compiles: bool
    value_bytes: int | None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> _Checks:
        """Returns what settings ask for."""
        value_bytes = byte_size(settings["verify_values_bytes"]) if settings["verify_values"] else None
        return cls(settings["check"] and settings["emit"] == "manual", value_bytes)


def _output(
    file: ModuleFile, pipeline: Pipeline, session: Session, checks: _Checks, enter: Callable = lambda stage, cpu_s: None
) -> Output:
    """Returns what the pipeline makes of a module, as bytecode; nothing of one that stays as it came."""
    with make_context() as context, ir.Location.unknown(context):
        enter("reading", module_files.reading_limit_s(file))
        module = file.chunks()[0].parse(context)
        enter("running the passes", None)
        pipeline.run(module, session)
        if checks.compiles and _rewritten_rows(session):
            original = file.chunks()[0].parse(context)
            module = whole_module_check.check(original, module, pipeline, session, session.report_rows)
        is_needed = checks.value_bytes is not None or (checks.compiles and whole_module_check.needs_values(session))
        if is_needed and _rewritten_rows(session):
            limits = {"most_bytes": checks.value_bytes or values_check.MOST_BYTES, "is_checked_as_a_whole": bool(session.checks)}
            original = file.chunks()[0].parse(context)
            module = values_check.check(original, module, pipeline, session, session.report_rows, **limits)
        is_rewritten = bool(_rewritten_rows(session))
        return Output(compat.bytecode(module) if is_rewritten else b"", not is_rewritten)


def _tell(found: Optimized, source: bytes, settings: Mapping[str, Any], name: str) -> None:
    """Writes what became of a module to the log, and to the folder that is asked for."""
    totals = found.report.to_dict()["totals"]
    _log.info("%s: %d sites, %d rewritten", name, totals["sites"], totals["rewritten"])
    if totals["sites"]:
        _log.debug("%s\n%s", name, found.report)
    if settings["dump_to"] is not None:
        after = _text(found.content) if found.is_rewritten else None
        dumps.dump(settings["dump_to"], name, _text(source), after, found.report)


def _rewritten_rows(session: Session) -> list[dict]:
    return [row for row in session.report_rows if row.get("is_rewritten")]


def _file(content: bytes | str, name: str = "module") -> ModuleFile:
    return ModuleFile(f"<{name}>", content.encode() if isinstance(content, str) else bytes(content))


def _of_lowered(lowered: jax.stages.Lowered, settings: Mapping[str, Any]) -> Result:
    module = lowered.compiler_ir("stablehlo")
    found = optimized_module(compat.bytecode(module), settings, compat.module_name(module), compat.lowered_devices(lowered))
    if not found.is_rewritten:
        return Result(lowered, _text_of(module), found.report, False)
    emit = settings["emit"]
    # Where XLA does not read what was written, what was given stands for it.
    optimized = lowered if emit == "sdy" else compat.lowered_with_module(jax_seam.without_rewriter(lowered), found.content)
    return Result(optimized, _text(found.content), found.report, True, emit)


def _of_exported(exported: jax.export.Exported, settings: Mapping[str, Any]) -> Result:
    source = exported.mlir_module_serialized
    found = optimized_module(source, settings, exported.fun_name, is_from_jax=False)  # it may have been read from a file
    text = _text(found.content)
    artifact = _artifact(found.content, _file(source)) if found.is_rewritten else source
    optimized = compat.exported_with_module(exported, artifact, lambda derivative: _of_exported(derivative, settings).exported)
    return Result(None, text, found.report, found.is_rewritten, settings["emit"], optimized)


def _of_module(module: ir.Module | str | bytes, settings: Mapping[str, Any]) -> Result:
    source = compat.bytecode(module) if isinstance(module, ir.Module) else _file(module).content
    found = optimized_module(source, settings, is_from_jax=False)
    return Result(None, _text(found.content), found.report, found.is_rewritten, settings["emit"])


def _artifact(content: bytes, source: ModuleFile) -> bytes:
    """Returns a module as a portable artifact of the version that `source` is."""
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
