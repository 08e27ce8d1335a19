# SPDX-License-Identifier: Apache-2.0
"""The work of reshard-opt: read the input, run the pipeline on each chunk, print diagnostics, write the output."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reshard.dialect_utils.ir import module_files
from reshard.dialect_utils.ir.diagnostics import ERROR, REMARK, WARNING, DiagnosedError, Diagnostic, is_bad_string
from reshard.dialect_utils.ir.module_files import Chunk, ModuleFile, reading_limit_s
from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.platform.bindings import dialect_names, ir, make_context
from reshard.dialect_utils.xla import compile_targets
from reshard.passes.driver import registry
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.elements import is_mlir_pass
from reshard.passes.driver.instrumentation import Instrumentation
from reshard.passes.driver.pipeline import Pipeline, PipelineError
from reshard.passes.results import result_cache
from reshard.passes.results.checks import ROUNDED_ONCE, is_changed, run_and_checked
from reshard.passes.results.result_cache import Output
from reshard.passes.results.summed_remarks import summed_up
from reshard.passes.sites.network import UNKNOWN, SiteNetwork, of_target
from reshard.planning.byte_sizes import DEVICE, ByteSizeError, memory_limit
from reshard.synthesis.forms.platforms import CPU, platform_of
from reshard.tools.common import contained
from reshard.tools.common.reproducer import Reproducer, report_crash
from reshard.tools.opt.flags import flags_of_reproducer, unknown_flag

_BY_NETWORK = ("plan-sites", "decompose-collectives", "overlap-collectives")  # on an unknown one nothing is faster


def drive(flags: argparse.Namespace, pipeline_text: str, usage_error: Callable[[str], None]) -> int:
    """Runs the pipeline and returns the exit status. Diagnostics go to stderr; only success writes an output."""
    if flags.list_passes:
        registry.plugin_faults(lambda said: print(f"reshard-opt: warning: {said}", file=sys.stderr))
        print(registry.listing(), end="")
        return 0
    context = make_context()
    if flags.show_dialects:
        print(f"available dialects: {', '.join(dialect_names(context))}")
        return 0
    try:
        context.allow_unregistered_dialects = flags.allow_unregistered_dialect
        pipeline = checked_pipeline(flags, pipeline_text, context)
    except PipelineError as error:
        unknown = _unknown_flags(flags, context)
        usage_error(unknown_flag(unknown[0]) if unknown else str(error))
    if flags.dump_pass_pipeline:
        print(pipeline, file=sys.stderr)
    missing = [name for name in (*flags.mlir_print_ir_before, *flags.mlir_print_ir_after) if name not in pipeline.names]
    if missing:
        usage_error(f"the IR cannot be printed around '{missing[0]}': {pipeline} has no such pass")
    reproducers = (flags.mlir_generate_reproducer, flags.mlir_pass_pipeline_crash_reproducer)
    try:
        for path in (flags.output, flags.report_file, *reproducers):
            module_files.refuse_unwritable(path or "-")
        _refuse_without_compiler(flags)
        if flags.compile_for and flags.check and (unheard := compile_targets.unheard_flags(flags.compile_for)):
            print(f"reshard-opt: note: {unheard}", file=sys.stderr)
        run = _Run(flags, pipeline, context, ModuleFile.read(flags.input or "-"))
        return run.all_chunks()
    except DiagnosedError as error:
        print(error, file=sys.stderr)
        return 1


def _refuse_without_compiler(flags: argparse.Namespace) -> None:
    """Raises: DiagnosedError if the modules are to be compiled for a target whose compiler is not installed."""
    if flags.compile_for is None or not flags.check:
        return
    if missing := compile_targets.missing_compiler(flags.compile_for):
        raise DiagnosedError([Diagnostic(ERROR, missing)])


def checked_pipeline(flags: argparse.Namespace, text: str, context: ir.Context) -> Pipeline:
    """Returns the pipeline with the options that flags give.

    Raises: PipelineError, also for a pass or option that MLIR does not know.
    """
    names = ("policy", "oracle", "emit", "fuse", "topology", "memory_limit")
    given = {name: getattr(flags, name, None) for name in names}  # other commands have fewer flags
    target = getattr(flags, "compile_for", None)
    if given["topology"] is None and target and given["emit"] != "local" and _lacks_network(text):
        given["topology"] = of_target(target)
    platform = platform_of(target.platform) if target else SiteNetwork(given["topology"] or UNKNOWN).platform
    is_named = target is None and re.search(r"\bplatform=", text)  # by a pass, which knows better than the network
    if platform != CPU and _is_for_platforms(text) and not is_named:
        given["platform"] = platform
    if given["memory_limit"] is not None:
        network = given["topology"]
        if network is None and given["memory_limit"] == DEVICE:
            network = _network_named(text) or (of_target(target) if target else UNKNOWN)
        given["memory_limit"] = _limit(given["memory_limit"], network or UNKNOWN)
    options = {name.replace("_", "-"): str(value) for name, value in given.items() if value not in (None, UNKNOWN)}
    if text == registry.DEFAULT_PIPELINE and "emit" in options:
        pipeline = Pipeline.emitting(options.pop("emit"), options)
    else:
        pipeline = Pipeline.parse(text).with_options(options)
    if getattr(flags, "auto_partition", False):
        wanted = {name: options[name] for name in ("topology", "memory-limit") if name in options}
        pipeline = pipeline.with_layouts({**wanted, **({"mesh": flags.mesh} if flags.mesh else {})})
    pipeline.check(context)
    return pipeline


def _limit(size: int | str, topology: str) -> int:
    """Returns the memory of a device that a flag allows on a network, in bytes. Raises: PipelineError."""
    try:
        return memory_limit(size, SiteNetwork(topology).topology)
    except ByteSizeError as error:
        raise PipelineError(f"--memory-limit: {error}") from None


def _lacks_network(text: str) -> bool:
    """Returns whether a pipeline has passes that decide by a network, and names no topology for them."""
    passes: list[Any] = [each for each in Pipeline.parse(text).passes if each.name in _BY_NETWORK]
    return bool(passes) and not any(each.topology for each in passes)


def _network_named(text: str) -> str:
    """Returns the topology that the passes of a pipeline name, UNKNOWN if they name none. Raises: PipelineError if they
    name several."""
    named = {getattr(each, "topology", UNKNOWN) for each in Pipeline.parse(text).passes} - {UNKNOWN}
    if len(named) > 1:
        several = ", ".join(sorted(SiteNetwork(each).topology.name for each in named))
        raise PipelineError(
            f"--memory-limit={DEVICE}: the pipeline names several networks ({several}); give --topology"
        )
    return next(iter(named), UNKNOWN)


def _is_for_platforms(text: str) -> bool:
    """Returns whether a pipeline has a pass that writes collectives for a platform."""
    return any(hasattr(each, "platform") for each in Pipeline.parse(text).passes)


def _unknown_flags(flags: argparse.Namespace, context: ir.Context) -> list[str]:
    """Returns the flags of single passes that name no pass, neither ours nor MLIR's."""
    names = [each.partition("{")[0] for each in flags.passes]
    with context:
        return [
            name for name in names if name not in (*registry.names(), *registry.PIPELINES) and not is_mlir_pass(name)
        ]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A chunk after the pipeline: its bytes, or None if it failed, and whether the module is unchanged.

    The bytes of an unchanged module are empty if the input is copied to the output; see `_Run._is_copied_if_unchanged`.
    """

    content: bytes | None
    is_unchanged: bool = False


class _Run:
    """One input on its way through the pipeline.

    Invariant: `session.results.diagnostics` holds what all chunks so far have emitted; each chunk prints its own part.
    """

    def __init__(self, flags, pipeline: Pipeline, context: ir.Context, file: ModuleFile):
        self.flags, self.pipeline, self.context, self.file = flags, pipeline, context, file
        has_provenance = flags.report in ("html", "details")
        self.session = Session(
            RunOptions(
                file.name,
                flags.compile_for,
                has_provenance,
                with_traffic=bool(flags.report),
                effort=flags.effort,
                layouts=flags.layouts,
            )
        )
        self.output_form = _output_form(flags, file)

    def all_chunks(self) -> int:
        marker = self.flags.split_input_file
        for place in self.file.near_markers(marker) if marker else ():
            self._print([Diagnostic(WARNING, f"this line does not split the input; the marker is '{marker}'", place)])
        outcomes = [self._one_chunk(each) for each in self.file.chunks(marker)]
        if self.flags.mlir_pass_statistics:
            _print_statistics(self.pipeline, self.session, self.flags.mlir_pass_statistics_display)
        passed = [each for each in outcomes if each is not None]
        if len(passed) < len(outcomes):
            return 1
        report_text = self._report_text()
        contained.finish()
        produced = [each.content for each in passed if each.content is not None]
        if len(produced) == len(passed) and self._output_is_input_form() and all(each.is_unchanged for each in passed):
            module_files.write(self.flags.output, self.file.content)
        else:
            marker = self.flags.output_split_marker or self.flags.split_input_file or module_files.SPLIT_MARKER
            separator = f"{marker}\n".encode()
            module_files.write(self.flags.output, separator.join(produced))
        self._write_report(report_text)
        return 0

    def _one_chunk(self, chunk: Chunk) -> _Outcome | None:
        """Returns the outcome of a chunk; None after an error, or a disagreement with --verify-diagnostics."""
        emitted = self.session.results.diagnostics.diagnostics
        emitted_before = len(emitted)
        try:
            with progress.shown(f"reshard-opt: {self.file.name}", self._progress()):
                outcome = self._transform(chunk)
        except DiagnosedError:
            outcome = _Outcome(None)
        except Exception as error:
            if not is_bad_string(error):
                return self._crashed(error, chunk)
            self.session.error(
                None, "the module has a string that is no UTF-8 text where a name or a sharding has to be"
            )
            outcome = _Outcome(None)
        diagnostics = [each.in_file(self.file.name) for each in emitted[emitted_before:]]
        if self.flags.verify_diagnostics:
            return outcome if self._agrees_with_comments(chunk, diagnostics) else None
        self._print(_shown(diagnostics, self.flags.remarks))
        return outcome if outcome.content is not None else None

    def _progress(self) -> str:
        """Returns the mode in which progress is shown. Progress must not mix with the output of passes."""
        is_off = self.flags.no_progress or self.flags.verify_diagnostics or not self._instrumentation().is_default
        return progress.OFF if is_off else progress.command_mode()

    def _transform(self, chunk: Chunk) -> _Outcome:
        output = result_cache.run(self._key(chunk), self.session, lambda: self._computed(chunk))
        return _Outcome(output.content, output.is_unchanged)

    def _key(self, chunk: Chunk) -> str | None:
        """Returns the key of the kept result; None if no result may be kept."""
        if self.flags.mlir_generate_reproducer:
            return None
        file, is_whole = self.file, chunk.text == self.file.text
        return result_cache.key(
            file.content if is_whole else chunk.text.encode(),
            self.pipeline,
            self.session,
            self._instrumentation(),
            path=file.path if os.path.isfile(file.path) else None,  # locations have this path
            is_whole=is_whole,
            lines_above=chunk.lines_above,
            allows_unregistered=self.flags.allow_unregistered_dialect,
            checks=self._checks(),
            are_passes_watched=self._are_passes_watched(),
            value_bytes=self._value_bytes(),
            form=self.output_form,
            is_copied_if_unchanged=self._is_copied_if_unchanged(chunk),
            **self._printing(),
        )

    def _computed(self, chunk: Chunk) -> Output:
        contained.enter("reading", cpu_s=reading_limit_s(self.file))
        try:
            read = chunk.parse(self.context)
        except DiagnosedError as error:
            self.session.results.diagnostics.diagnostics += error.diagnostics
            raise
        content = _with_names(chunk, read)
        rows_before, imported_before = len(self.session.results.report_rows), _imports(self.session)
        checks_before, iotas_before = len(self.session.results.checks), self.session.results.statistics[ROUNDED_ONCE]
        contained.enter("running the passes")
        if self.flags.mlir_generate_reproducer:
            self._reproducer(chunk, self.flags.mlir_generate_reproducer).write("made before the pipeline ran")

        def run(pipeline: Pipeline) -> ir.Module:
            self._run_passes(chunk, pipeline, read, content)
            return read

        module = self._checked_as_a_whole(chunk, run)
        contained.enter("writing")
        is_unchanged = module is read and self.session.running.content is content
        if not is_unchanged and not is_changed(self.session, rows_before, checks_before, iotas_before):
            original = chunk.parse(self.context)
            if _imports(self.session) > imported_before and self._imports_to_rewrite():
                module = original
            is_unchanged = module is original or _is_same(module, original)
        output = b"" if is_unchanged and self._is_copied_if_unchanged(chunk) else self._to_bytes(module)
        return Output(output, is_unchanged, self._is_input_as_read())

    def _is_input_as_read(self) -> bool:
        """Returns whether the file is unchanged since it was read; MLIR reads it a second time."""
        if not os.path.isfile(self.file.path):
            return True
        with contextlib.suppress(DiagnosedError):
            return ModuleFile.read(self.file.path) == self.file
        return False

    def _run_passes(self, chunk: Chunk, pipeline: Pipeline, module: ir.Module, content: bytes) -> None:
        """Runs the pipeline, or a part of it, on a module; `content` has all names and strings of the module."""
        path = self.flags.mlir_pass_pipeline_crash_reproducer
        try:
            is_first = pipeline.elements[:1] == self.pipeline.elements[:1]
            is_known = is_first and len(pipeline.passes) == len(pipeline.elements)
            self.session.running.content = content if is_known else None
            pipeline.run(module, self.session, self._instrumentation())
        except DiagnosedError as error:
            if path:
                self._reproducer(chunk, path).report(str(error), "versions and errors")
            raise

    def _to_bytes(self, module: ir.Module) -> bytes:
        try:
            return module_files.to_bytes(module, self.output_form, source=self.file, **self._printing())
        except DiagnosedError as error:
            self.session.results.diagnostics.diagnostics += error.diagnostics
            raise

    def _printing(self) -> dict[str, Any]:
        """Returns the options for printing text, as keyword arguments of `ir.Operation.get_asm`."""
        flags = self.flags
        return {
            "debug_info": flags.mlir_print_debuginfo,
            "print_generic_op_form": flags.mlir_print_op_generic,
            "use_local_scope": flags.mlir_print_local_scope,
            "large_elements_limit": flags.mlir_elide_elementsattrs_if_larger,
        }

    def _imports_to_rewrite(self) -> bool:
        """Returns whether shardings are imported only to rewrite sites; without rewrites the module stays unchanged."""
        names = [each.name for each in self.pipeline.passes]
        writes = {"synthesize-collectives", "convert-to-local"}
        return len(names) == len(self.pipeline.elements) and not writes.isdisjoint(names)

    def _checked_as_a_whole(self, chunk: Chunk, run: Callable[[Pipeline], ir.Module]) -> ir.Module:
        """Returns the module after the passes, which `run` runs, without the rewrites that make the program worse or
        change its values, by the checks."""
        asked = {
            "compiles": self._checks(),
            "value_bytes": self._value_bytes(),
            "needs_run": self._are_passes_watched(),
        }
        return run_and_checked(lambda: chunk.parse(self.context), run, self.pipeline, self.session, **asked)

    def _are_passes_watched(self) -> bool:
        """Returns whether the flags ask for something that passes print, count or leave behind while they run."""
        flags, how = self.flags, self._instrumentation()
        reproducers = flags.mlir_generate_reproducer, flags.mlir_pass_pipeline_crash_reproducer
        return how.prints_ir or how.timing is not None or flags.mlir_pass_statistics or any(reproducers)

    def _value_bytes(self) -> int | None:
        """Returns the limit in bytes for a run of the check by values; None if the flags do not ask for this check."""
        return self.flags.verify_values_bytes if self.flags.verify_values else None

    def _checks(self) -> bool:
        """Returns whether the whole module is compiled: if the pipeline is one that writes islands for XLA."""
        has_islands = self.pipeline.emission in registry.COMPARED
        return self.flags.check and (has_islands or self.flags.compile_for is not None)

    def _instrumentation(self) -> Instrumentation:
        flags = self.flags
        return Instrumentation(
            print_before=flags.mlir_print_ir_before,
            print_after=flags.mlir_print_ir_after,
            print_before_all=flags.mlir_print_ir_before_all,
            print_after_all=flags.mlir_print_ir_after_all,
            only_changes=flags.mlir_print_ir_after_change,
            only_failures=flags.mlir_print_ir_after_failure,
            module_scope=flags.mlir_print_ir_module_scope,
            timing=flags.mlir_timing_display if flags.mlir_timing else None,
            verify_each=flags.verify_each,
        )

    def _output_is_input_form(self) -> bool:
        has_own_marker = self.flags.output_split_marker not in (None, self.flags.split_input_file)
        return self.file.form == self.output_form and not has_own_marker and not any(self._printing().values())

    def _is_copied_if_unchanged(self, chunk: Chunk) -> bool:
        """Returns whether the input's text is copied to the output if the module is unchanged."""
        is_whole = chunk.text == self.file.text
        return is_whole and self.output_form == module_files.TEXT and self._output_is_input_form()

    def _agrees_with_comments(self, chunk: Chunk, diagnostics: list[Diagnostic]) -> bool:
        from reshard.dialect_utils.ir import expected_diagnostics  # only tests need it

        expected = expected_diagnostics.expectations_in(chunk.text, chunk.lines_above)
        only_expected = self.flags.verify_diagnostics == "only-expected"
        wrong = expected_diagnostics.disagreements(expected, diagnostics, self.file.name, only_expected=only_expected)
        self._print(wrong)
        return not wrong

    def _print(self, diagnostics: list[Diagnostic]) -> None:
        sources = {self.file.name: self.file.text}
        sys.stderr.write("".join(f"{each.text(sources)}\n" for each in diagnostics))  # in one write: they may be many

    def _report_text(self) -> str:
        if not self.flags.report:
            return ""
        from reshard.passes.results import report

        if self.flags.report in ("html", "details"):
            from reshard.pictures import report_page

            plain = report.as_dict(self.session)
            if self.flags.report == "html":
                return report_page.page_of(plain, self.file.name)
            return report_page.text_of(plain, self.file.name, self.flags.remarks)
        return report.render(self.session, self.flags.report, self.flags.report_locations, self.flags.remarks)

    def _write_report(self, text: str) -> None:
        if self.flags.report_file:
            module_files.write(self.flags.report_file, text.encode())
        else:
            sys.stderr.write(text)

    def _as_text(self, chunk: Chunk) -> str:
        try:
            return str(chunk.parse(self.context))
        except Exception:  # then the reproducer has the error but no module
            return ""

    def _crashed(self, error: Exception, chunk: Chunk) -> None:
        reproducer = self._reproducer(chunk, self.flags.mlir_pass_pipeline_crash_reproducer)
        report_crash(error, reproducer, self.file.name)

    def _reproducer(self, chunk: Chunk, path: str | None) -> Reproducer:
        arguments = flags_of_reproducer(self.flags, str(self.pipeline), with_split=False)
        return Reproducer("reshard-opt", arguments, chunk.text or self._as_text(chunk), self.file.path, path)


def _shown(diagnostics: list[Diagnostic], remarks: str) -> list[Diagnostic]:
    """Returns the diagnostics to print."""
    if remarks == "sum":
        return summed_up(diagnostics)
    return [each for each in diagnostics if remarks == "all" or each.severity != REMARK]


def _with_names(chunk: Chunk, module: ir.Module) -> bytes:
    """Returns bytes that contain all names and strings of a module: its text if it has no escapes, else bytecode."""
    if chunk.file.form == module_files.TEXT and "\\" not in chunk.text:
        return chunk.text.encode()
    return module_files.to_bytes(module, module_files.BYTECODE)


def _is_same(one: ir.Module, other: ir.Module) -> bool:
    """Returns whether two modules have the same text, with locations.

    Modules with equal bytecode have equal text, and bytecode is written faster. Bytecode also has the order of uses,
    which text does not have.
    """
    codes = (module_files.to_bytes(each, module_files.BYTECODE) for each in (one, other))
    if next(codes) == next(codes):
        return True
    texts = (module_files.to_bytes(each, debug_info=True) for each in (one, other))
    return next(texts) == next(texts)


def _output_form(flags: argparse.Namespace, file: ModuleFile) -> str:
    if flags.emit_bytecode:
        return module_files.BYTECODE
    if flags.emit_portable_artifact:
        return module_files.PORTABLE
    return module_files.EXPORTED if file.form == module_files.EXPORTED and not flags.emit_text else module_files.TEXT


def _imports(session: Session) -> int:
    """Returns how many changes the pass import-gspmd has made."""
    return sum(amount for (name, _), amount in session.results.statistics.items() if name == "import-gspmd")


def _print_statistics(pipeline: Pipeline, session: Session, display: str) -> None:
    """Prints the statistics of our passes in MLIR's form.

    MLIR's own statistics are not available, because jaxlib is built without them.
    """
    rule = f"==={'-' * 73}==="
    print(rule, f"{'... Pass statistics report ...':^79}".rstrip(), rule, sep="\n", file=sys.stderr)
    classes = list(dict.fromkeys(type(each) for each in pipeline.passes))
    for each in sorted(classes, key=lambda cls: cls.__name__) if display == "list" else classes:
        print(each.__name__, file=sys.stderr)
        for name, meaning in each.statistics.items():
            print(f"  (S) {session.results.statistics[each.name, name]} {name} - {meaning}", file=sys.stderr)
