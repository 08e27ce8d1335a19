# SPDX-License-Identifier: Apache-2.0
"""`reshard.optimize` and `reshard.explain`: programs that JAX has lowered or exported, and modules.

lowered = jax.jit(step, ...).lower(*args)
compiled = reshard.optimize(lowered).compile()   # a jax.stages.Compiled, called like the one of lowered.compile()
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from reshard.compiling import child_process, library_jits, module_dumps
from reshard.configuration import contexts
from reshard.configuration.settings import SETTINGS, SettingError, resolved
from reshard.dialect_utils.ir import module_files, shardy_limits
from reshard.dialect_utils.ir.module_files import ModuleFile
from reshard.dialect_utils.platform import compat, jax_seam, progress
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.platform.interrupts import DeferredInterrupts
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.at_hand import CompilerAtHand
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.jobs import agreement, shared_planning
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.driver.registry import COMPARED, GIVEN, MANUAL
from reshard.passes.results import report, result_cache
from reshard.passes.results.checks import effort_of, is_changed, run_and_checked
from reshard.passes.results.result_cache import Output
from reshard.passes.sites.network import UNKNOWN, SiteNetwork, of_target, topology_of
from reshard.planning import device_networks
from reshard.planning.byte_sizes import ByteSizeError, byte_size, memory_limit
from reshard.synthesis.forms.platforms import CPU, GLOO, platform_of

if TYPE_CHECKING:
    import jax

    from reshard.synthesis.network.topology import Topology

CompiledWith = tuple[Mapping[str, str], Mapping[str, Any]]
_OF_PASSES = ("policy", "oracle", "topology", "memory_limit")
_OF_RUNS = ("emit", "compile_for", "check", "effort", "layouts", "verify_values", "verify_values_bytes")
_log = logging.getLogger("reshard.optimize")


@dataclass(frozen=True, slots=True)
class Report:
    """The sites of a module, each with its decision and the reason. `str()` gives text; notebooks show a page."""

    _session: Session = field(repr=False)

    def text(self, locations: str = "user", remarks: str = "sum") -> str:
        """Returns what was measured of the whole module, the table of sites with totals, and the reasons.

        Args:
          locations: "user" shows for each site the line of the user's program, outside of libraries and helpers;
            "chain" also shows the calls that lead to this line.
          remarks: "sum" shows the uses that are left alone as a number for each reason, "all" lists each of them.
        """
        return report.as_text(self._session, locations, remarks)

    def to_dict(self) -> dict:
        """Returns the report as plain data, as `reshard-opt --report=json` prints it, schema `reshard.report/1`.

        `sites` has an entry for each site, `totals` the sums over them, `checks` the whole-module checks, and `remarks`
        the values that were left alone. Bytes are per device.
        """
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
      lowered: a `jax.stages.Lowered` with the rewritten module, or a lowered program of a library's jit if that was
        given. It is the program that was given if nothing was rewritten, or if `emit` is "sdy". None if `optimize` was
        not given a lowered program.
      module: the rewritten module, or the unchanged one, as StableHLO text.
      report: all sites with their decisions, a `Report`.
      is_rewritten: whether anything was rewritten: a site, layouts between arguments and results, or a split iota.
      emit: the form in which sites are written: "manual", "sdy", "local" or "auto".
      exported: a `jax.export.Exported` with the rewritten module; None if `optimize` was not given an export. Its
        derivatives are optimized when they are needed.
    """

    lowered: jax.stages.Lowered | None
    module: str = field(repr=False)
    report: Report
    is_rewritten: bool
    emit: str = "auto"
    exported: jax.export.Exported | None = None

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def compile(self, compiler_options: dict[str, Any] | None = None) -> jax.stages.Compiled:
        """Returns the compiled program. It is called like the result of `lowered.compile()`.

        Argument and result trees, donation and output shardings are the same.

        Args:
          compiler_options: options for XLA, as `lowered.compile` takes them.
        Raises: ValueError if `optimize` was not given a lowered program, or if emit="sdy" was used: XLA does not read
          Shardy's collectives.
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
            return self.lowered.compile(*([compiler_options] if compiler_options else []))  # libraries may know none


def optimize(
    program: jax.stages.Lowered | jax.export.Exported | ir.Module | str | bytes,
    *,
    check: bool | None = None,
    **options: Any,
) -> Result:
    """Returns the program with synthesized collectives in place of the conversions that the policy selects.

    Args:
      program: a lowered program, `jax.jit(f).lower(*args)`, or that of a library's jit, such as `flax.nnx.jit`; an
        export, `jax.export.export(jax.jit(f))(*args)`; or a module: MLIR text or bytecode, a StableHLO portable
        artifact, the bytes of `Exported.serialize`, or an `ir.Module`. The program itself is not changed.
      check: whether to compile the whole module before and after in a child process, and to choose the sites that make
        it faster as a whole. None means yes, unless `reshard.options`, the environment or the configuration file say
        no. The check is made only with emit="manual" and emit="auto".
      **options: `policy`, "better", "strict" or "always"; `topology`: the network, a preset such as "h100:4", the path
        of a TOML file, or a `Topology`, by default that of the program's devices; `memory_limit`, such as "12GiB", or
        "device" for what a program may fill on the network; `compile_for`: a target such as "tpu:v5e:2x4", whose
        compiler decides; `effort`: how many times longer to search; `layouts`: "chosen" if those between arguments and
        results may be others than propagation finds; `emit`, "manual", "sdy", "local" or "auto"; `traffic`, "off" if
        the report is not to list the longest collectives, which takes up to a tenth more time; `verify_values`: if it
        is true, both modules run on small random inputs, and rewrites that change values are taken back. See
        docs/jax.md for these and more options.
    Returns: a `Result`. `lowered` is set if `program` is a lowered program, and `exported` if it is an export;
      `module` and `report` are always set.
    Raises:
      ValueError: an option or its value is unknown.
      TypeError: `program` is of another type.
      DiagnosedError: the module cannot be read, or Shardy refuses it; the message has the compiler's diagnostics.

    Example:
      >>> optimize("func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }").report.text()
      'reshard: no site: every value is used in the layout in which it is produced\\n'
    """
    with DeferredInterrupts():  # after Ctrl-C in its first import, jax cannot be imported again
        import jax  # noqa: F401, a part of it is imported below anyway
    given = options if check is None else {**options, "check": check}
    settings = resolved(given, dict(contexts.current().options))
    if settings["traffic"] == "auto":
        settings["traffic"] = "on"
    if lowered := library_jits.jax_lowered(program):
        result = _of_lowered(lowered, settings)
        return replace(result, lowered=library_jits.with_jax_lowered(program, present(result.lowered)))
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
    the rest of the program worse, nor whether the whole program would be written per device; `with
    reshard.options(check=True)` asks for this check.

    Args:
      program: a function, with or without `jax.jit`; or anything that `optimize` takes.
      *args, **kwargs: the arguments of the function: arrays, or `jax.ShapeDtypeStruct`s with shardings.
    Raises: the errors of `optimize`; TypeError if arguments are given and `program` is not a function.

    Example:
      >>> import jax
      >>> explain(jax.numpy.sin, 0.0).to_dict()["totals"]["sites"]
      0
    """
    around = dict(contexts.current().options)
    quick = {name: around.get(name, False) for name in ("check", "verify_values")}
    if callable(program):
        return optimize(_lower(program)(*args, **kwargs), **quick).report
    if args or kwargs:
        raise TypeError(f"explain takes arguments of a function only, and {type(program).__name__} is none")
    return optimize(cast("jax.stages.Lowered", program), **quick).report  # or another one that optimize takes


def optimized_module(
    source: bytes,
    settings: Mapping[str, Any],
    name: str = "module",
    devices: Sequence[jax.Device] = (),  # pyright: ignore[reportInvalidTypeForm]  # jax assigns it
    is_from_jax: bool = True,
    compiled_with: CompiledWith = ({}, {}),
) -> Optimized:
    """Returns a module after optimization. All entry points call this function.

    Args:
      source: MLIR text or bytecode, or a portable artifact.
      settings: the result of `settings.resolved`.
      name: the name of the module in logs and dumps.
      devices: the devices that run the module. All processes of a job that own some of them get the same result.
      is_from_jax: whether jax has just lowered the module. Other modules, and rare kinds of ops, are processed in a
        child process.
      compiled_with: what jit has said to the compiler of the devices: flags, as texts, and `compat.compiler_levels`.
    Raises: DiagnosedError if the module cannot be read or Shardy refuses it.
    """
    members, checks = agreement.members_of(devices), _Checks.of(settings)
    at_hand = _compiler_at_hand(settings, devices, compiled_with, members) if checks.compiles else None
    settings = _for_devices(settings, devices)
    session, pipeline = _session(settings, at_hand), _pipeline(settings)
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

    if members:
        asked = {option: settings[option] for option in (*_OF_PASSES, *_OF_RUNS)}
        output = shared_planning.run(members, name, _text(source, locations=False), asked, session, compute)
    else:
        output = compute()
    session.handed_on.analysis = session.handed_on.analyses = None
    session.options = replace(session.options, at_hand=None)  # reports may outlive devices
    found = Optimized(source if output.is_unchanged else output.content, Report(session), not output.is_unchanged)
    _tell(found, source, settings, name)
    return found


def recorded_output(
    source: bytes, settings: Mapping[str, Any], name: str, enter: Callable[[str, float | None], None]
) -> tuple[bytes, bool]:
    """Returns a record of the output for a module, which `result_cache.replayed` reads, and whether it may be kept.

    Args:
      enter: called with the name of the next stage and its limit of processor time; None means no limit.
    """
    session, file = _session(settings), _file(source, name)
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
      compiles: whether the module is compiled before and after.
      value_bytes: the most memory that the check of values may take; None if values are not checked.
    """

    compiles: bool
    value_bytes: int | None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> _Checks:
        """Returns the checks that settings ask for."""
        value_bytes = byte_size(settings["verify_values_bytes"]) if settings["verify_values"] else None
        return cls(settings["check"] and settings["emit"] in COMPARED, value_bytes)


def _output(
    file: ModuleFile, pipeline: Pipeline, session: Session, checks: _Checks, enter: Callable = lambda stage, cpu_s: None
) -> Output:
    """Runs the pipeline on a module and returns the result as bytecode; empty if the module is unchanged."""
    with make_context() as context, ir.Location.unknown(context):
        enter("reading", module_files.reading_limit_s(file))
        module = file.chunks()[0].parse(context)
        enter("running the passes", None)

        def run(part: Pipeline) -> ir.Module:
            part.run(module, session)
            return module

        asked = {"compiles": checks.compiles, "value_bytes": checks.value_bytes}
        result = run_and_checked(lambda: file.chunks()[0].parse(context), run, pipeline, session, **asked)
        has_changes = is_changed(session)
        return Output(compat.bytecode(result) if has_changes else b"", not has_changes)


def _tell(found: Optimized, source: bytes, settings: Mapping[str, Any], name: str) -> None:
    """Writes the result for a module to the log, and to the folder of the option `dump_to`."""
    report = found.report.to_dict()
    totals = report["totals"]
    _log.info("%s: %d sites, %d rewritten", name, totals["sites"], totals["rewritten"])
    if not found.is_rewritten and any(each["stock"]["status"] == "abort" for each in report["checks"]):
        _log.warning("%s is compiled as it is, on which stock XLA aborts; that may end the process", name)
    if totals["sites"]:
        _log.debug("%s\n%s", name, found.report)
    if settings["dump_to"] is not None:
        after = _text(found.content) if found.is_rewritten else None
        module_dumps.dump(settings["dump_to"], name, _text(source), after, found.report)


def _file(content: bytes | str, name: str = "module") -> ModuleFile:
    return ModuleFile(f"<{name}>", content.encode() if isinstance(content, str) else bytes(content))


def _of_lowered(lowered: jax.stages.Lowered, settings: Mapping[str, Any]) -> Result:
    module: ir.Module = lowered.compiler_ir("stablehlo")  # pyright: ignore[reportAssignmentType]  # None for others
    flags, devices = compat.lowered_compiler_options(lowered), compat.lowered_devices(lowered)
    name = compat.module_name(module)
    found = optimized_module(compat.bytecode(module), settings, name, devices, compiled_with=(flags, {}))
    if not found.is_rewritten:
        return Result(lowered, _text_of(module), found.report, False, settings["emit"])
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


def source_of(
    function: str, program: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> tuple[bytes, str, bool]:
    """Returns the module of a program that `optimize` takes, its name, and whether jax has just lowered it.

    Args:
      function: the name of the function that takes the program, for errors.
      program: what `optimize` takes, or a function, jitted or not, which is lowered for `args` and `kwargs`.
    Raises: TypeError for a program of another kind, and for arguments of a program that is no function.
    """
    if callable(program):
        import jax

        if isinstance(program, jax.stages.Compiled):
            raise _not_taken(function, program)
        program = _lower(program)(*args, **(kwargs or {}))
    elif args or kwargs:
        raise TypeError(f"{function} takes arguments of a function only, and {type(program).__name__} is none")
    if lowered := library_jits.jax_lowered(program):
        module: Any = lowered.compiler_ir("stablehlo")
        return compat.bytecode(module), compat.module_name(module), True
    if hasattr(program, "mlir_module_serialized"):
        return program.mlir_module_serialized, program.fun_name, False
    if isinstance(program, ir.Module):
        return compat.bytecode(program), "module", False
    if isinstance(program, str | bytes | bytearray):
        file = _file(program if isinstance(program, str) else bytes(program))
        return file.content, "module", False
    raise _not_taken(function, program)


def _lower(function: Any) -> Callable[..., Any]:
    """Returns what lowers a function, jitted or not, for arguments."""
    import jax

    if hasattr(function, "lower") or library_jits.is_jitted(function):
        return library_jits.stage_of(function, "lower")
    return jax.jit(function).lower


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


def _for_devices(settings: Mapping[str, Any], devices: Sequence[Any]) -> Mapping[str, Any]:
    """Returns the settings with the network and the platform of the target, or of the devices without one.

    Devices of the target's own kind say more about the network than its name: they have an order. CPU devices are
    always those of the program, which may be in several processes.
    """
    target = target_in(settings)
    if target is not None and devices and not target.is_ahead_of_time:
        target = None
    if target is None and not devices:
        return settings
    topology = device_networks.topology_of(devices) if devices else UNKNOWN
    platform = platform_of(target.platform) if target else _platform_of(devices)
    if target is not None and not _is_of_kind(topology, of_target(target)):
        topology = of_target(target)
    given = settings["topology"]
    return {**settings, "topology": topology if given is None else given, "platform": platform}


def _is_of_kind(topology: str, target: str) -> bool:
    """Returns whether the topology of devices is that of a target but for the order of the devices."""
    if UNKNOWN in (topology, target):
        return False
    one, other = (topology_of(each) for each in (topology, target))
    return replace(one, name="", device_order=None) == replace(other, name="", device_order=None)


def target_of(options: Mapping[str, Any]) -> Target | None:
    """Returns the target whose compiler decides, by the options of a call and around it; None for this machine.

    Raises: ValueError for a target that does not exist, or whose compiler is not installed.
    """
    return target_in(resolved(options, dict(contexts.current().options)))


def network_asked_for() -> Topology | None:
    """Returns the topology that the options around a call name; None if they name none."""
    text = resolved({}, dict(contexts.current().options))["topology"]
    return topology_of(text) if text else None


def target_in(settings: Mapping[str, Any]) -> Target | None:
    """Returns the target that settings, the result of `settings.resolved`, name; None for this machine."""
    return Target.parse(settings["compile_for"]) if settings["compile_for"] else None


def _platform_of(devices: Sequence[Any]) -> str:
    """Returns the platform in whose forms collectives between some devices are written."""
    platform = platform_of(devices[0].platform)
    is_in_one_process = compat.process_count(devices) == 1
    return platform if platform != CPU or is_in_one_process else GLOO


def refuse_contradictions(settings: Mapping[str, Any], is_run: bool = False) -> None:
    """Raises: SettingError if a setting decides nothing beside another one.

    Args:
      is_run: whether XLA is to compile what `optimize` writes.
    """
    if is_run and settings["emit"] == "sdy":
        raise SettingError("XLA does not read the collectives of emit=sdy; choose auto, manual or local")
    if settings["emit"] != "local":
        return
    for name in ("policy", "oracle"):
        if settings[name] != SETTINGS[name].default:
            what = f"{name}={settings[name]!r} decides nothing with emit='local', which rewrites everything"
            raise SettingError(what)


def as_measured(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns settings with which `optimize` writes what XLA reads, for those who measure it but do not hand it out."""
    return {**settings, "emit": MANUAL} if settings["emit"] == "sdy" else settings


def _pipeline(settings: Mapping[str, Any]) -> Pipeline:
    refuse_contradictions(settings)
    given = {name: settings[name] for name in _OF_PASSES if settings[name] not in (SETTINGS[name].default, UNKNOWN)}
    if "memory_limit" in given:
        network = SiteNetwork(given.get("topology", UNKNOWN)).topology
        try:
            given["memory_limit"] = str(memory_limit(given["memory_limit"], network))
        except ByteSizeError as error:
            raise SettingError(f"memory_limit: {error}") from None
    options = {name.replace("_", "-"): value for name, value in given.items()}
    # The devices' own, no setting; without devices, those of the network.
    platform = settings.get("platform") or SiteNetwork(given.get("topology", UNKNOWN)).platform
    if platform != CPU:
        options["platform"] = platform
    return Pipeline.emitting(settings["emit"], options)


def _compiler_at_hand(
    settings: Mapping[str, Any], devices: Sequence[Any], compiled_with: CompiledWith, members: Sequence[int]
) -> CompilerAtHand | None:
    """Returns what asks the compiler of the devices, if it is to be asked and the caller names no target; else None.

    It is not asked by processes that do not agree, which might not decide alike, and not about layouts that are chosen:
    programs that are compared have one judge.

    Args:
      members: the processes that agree on the program, of which one asks; see `agreement.members_of`.
    """
    is_asked = settings["at_hand"] and not settings["compile_for"] and settings["layouts"] == GIVEN
    target = device_networks.target_of(devices) if is_asked else None
    if target is None or not members and compat.process_count(devices) > 1 and compat.are_attached(devices):
        return None
    flags, levels = compiled_with
    if "" in flags.values():  # which the text of a target does not have
        return None
    named = replace(target, options=tuple(sorted(flags.items())))
    effort = effort_of(settings["effort"])
    return CompilerAtHand(xla_child.shared_child(), named, devices, effort, levels)


def _session(settings: Mapping[str, Any], at_hand: CompilerAtHand | None = None) -> Session:
    return Session(
        RunOptions(
            compile_for=at_hand.target if at_hand else target_in(settings),
            at_hand=at_hand,
            with_traffic=settings["traffic"] == "on",
            effort=effort_of(settings["effort"]),
            layouts=settings["layouts"],
        )
    )
