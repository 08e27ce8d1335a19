# SPDX-License-Identifier: Apache-2.0
"""`reshard verify`: runs a module unsharded, as stock XLA partitions it and as we rewrite it, and compares them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from reshard.tools.common.command import ORACLE_HELP, topology_text

if TYPE_CHECKING:
    from reshard.dialect_utils.compare.array_differences import Difference
    from reshard.dialect_utils.ir.module_files import Chunk
    from reshard.dialect_utils.platform.bindings import ir
    from reshard.passes.driver.pipeline import Pipeline
    from reshard.passes.results.module_verification import Fault, Verdict, Verification

SUMMARY = "run a module as stock XLA shards it, as reshard rewrites it, and on one device; compare the outputs"
EXIT_STATUS = """\
exit status: 0 the outputs of all three are equal, bit for bit or within rounding; 1 the rewritten module is wrong, or
XLA fails on it but not on the original, or the file has an error; 2 the command line has an error; 3 stock XLA is
wrong, aborts or hangs, and the rewritten module is right or fails in the same way.
"""
SCHEMA = "reshard.verify/1"
RIGHT, OURS_IS_WRONG, STOCK_IS_WRONG = 0, 1, 3


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command to its parser."""
    parser.add_argument("module", metavar="MODULE", help="a file in any form that reshard-opt reads; - is stdin")
    parser.add_argument(
        "--devices",
        type=_positive,
        metavar="N",
        help="the number of CPU devices (default: as many as the module's mesh has)",
    )
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="the seed of the random inputs (default: 0)")
    parser.add_argument(
        "--timeout",
        type=_positive,
        default=300,
        metavar="SECONDS",
        help="a run that takes longer counts as a hang (default: 300)",
    )
    parser.add_argument(
        "--policy",
        metavar="better|strict|always",
        help="rewrite what makes the module faster (better, default), what is worse in no cost (strict), or every site "
        "(always)",
    )
    parser.add_argument(
        "--topology",
        type=topology_text,
        metavar="NAME",
        help="the network that decisions are for, as for reshard-opt (default: unknown)",
    )
    parser.add_argument("--oracle", metavar="lone", help=ORACLE_HELP)
    parser.add_argument(
        "--emit",
        metavar="manual|local|auto",
        help="the form of the rewritten module, as for reshard-opt (default: auto, which switches --check on; with "
        "manual all sites that the policy rewrites are tried)",
    )
    parser.add_argument("--pass-pipeline", metavar="TEXT", help="the passes to run, as for reshard-opt")
    parser.add_argument(
        "--check",
        action="store_true",
        help="drop rewrites that make the module worse, as reshard-opt does unless --no-check is given",
    )
    parser.add_argument(
        "--every-op", action="store_true", help="compare the result of each op, even if the outputs are right"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the text")


def contained_drive(flags: argparse.Namespace) -> int:
    """Returns the exit status of `drive`, which runs in a child process; the child's death is a diagnostic."""
    from reshard.tools.common import contained

    return contained.run(lambda: drive(flags), "<stdin>" if flags.module == "-" else flags.module)


def drive(flags: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. Diagnostics go to stderr."""
    from reshard.dialect_utils.ir.diagnostics import DiagnosedError
    from reshard.passes.driver.pipeline import PipelineError

    try:
        found, devices, remarks = _verified(flags)
    except DiagnosedError as error:
        print(error, file=sys.stderr)
        return OURS_IS_WRONG
    except PipelineError as error:
        flags.usage_error(str(error))
    facts = found, devices, remarks, flags
    print(json.dumps(as_dict(*facts), indent=2) if flags.json else as_text(*facts))
    return exit_status(found)


def _verified(flags: argparse.Namespace) -> tuple[Verification, int, list[str]]:
    """Returns the comparison of the three runs, the number of devices, and the remarks of the import."""
    from reshard.dialect_utils.compare import instrumented as watched_modules
    from reshard.dialect_utils.ir.module_files import ModuleFile, reading_limit_s
    from reshard.dialect_utils.platform.bindings import ir, make_context
    from reshard.dialect_utils.xla.child import XlaChild
    from reshard.passes.driver import registry
    from reshard.passes.results import module_verification
    from reshard.tools.common import contained
    from reshard.tools.opt.driver import checked_pipeline

    context = make_context()
    pipeline = checked_pipeline(flags, flags.pass_pipeline or registry.DEFAULT_PIPELINE, context)
    file = ModuleFile.read(flags.module)
    chunk = file.chunks()[0]
    contained.enter("reading", cpu_s=reading_limit_s(file))
    original, remarks = _imported(chunk, context)
    # Raises if there is no entry function: Shardy ends the process at a module that has only declarations.
    watched_modules.entry_function(original)
    contained.enter("running the passes")
    devices = _devices(original, flags.devices, file.name)
    with context, ir.Location.unknown():
        watched_modules.number_ops(original)
        rewritten = _rewritten(original, pipeline, file.name, flags)
        is_rewritten = watched_modules.without_numbers(rewritten) != watched_modules.without_numbers(original)
        contained.enter("comparing")
        with XlaChild(uses_cache=False, num_devices=devices) as child:
            found = module_verification.verify(
                original,
                rewritten if is_rewritten else None,
                devices,
                child,
                seed=flags.seed,
                timeout_s=flags.timeout,
                every_op=flags.every_op,
                progress=_progress,
            )
    return found, devices, remarks


def _rewritten(original: ir.Module, pipeline: Pipeline, name: str, flags: argparse.Namespace) -> ir.Module:
    """Returns the module after the pipeline and the whole-module check; `original` stays as it is.

    Raises: DiagnosedError.
    """
    from reshard.dialect_utils.platform.bindings import ir
    from reshard.passes.driver.base import RunOptions, Session
    from reshard.passes.driver.registry import AUTO, COMPARED
    from reshard.passes.sites.oracle import BETTER

    rewritten = ir.Module.parse(str(original.operation.get_asm(enable_debug_info=True)))
    session = Session(RunOptions(input=name))
    _progress("rewriting")
    pipeline.run(rewritten, session)
    _refuse_shardys_collectives(rewritten)
    takes_over = pipeline.emission == AUTO and flags.policy in (None, BETTER)
    if (flags.check or takes_over) and flags.emit != "local":
        from reshard.passes.whole_module import whole_module_check

        rewritten = whole_module_check.check(original, rewritten, pipeline, session, session.results.report_rows)
    if pipeline.emission not in COMPARED:
        return rewritten
    from reshard.passes.results import rounded_numbers

    return rounded_numbers.rounded_once(rewritten, pipeline, session)


def _refuse_shardys_collectives(module) -> None:
    """Raises: DiagnosedError if the module has collectives of Shardy, which XLA cannot read."""
    from reshard.dialect_utils.emission.sdy_chains import first_collective
    from reshard.dialect_utils.ir.diagnostics import error_at, note

    op = first_collective(module)
    if op is not None:
        raise error_at(
            op, f"XLA does not read {op.name}, so the module cannot be run", note("write it with --emit=manual")
        )


def _imported(chunk: Chunk, context) -> tuple:
    """Returns the module with Shardy's shardings, which stock XLA partitions here, and the remarks of the import."""
    from reshard.dialect_utils.gspmd import string_shardings
    from reshard.dialect_utils.ir.diagnostics import error_at, note
    from reshard.passes.driver.base import Session
    from reshard.passes.driver.pipeline import Pipeline

    module, session = chunk.parse(context), Session()
    Pipeline.parse("import-gspmd").run(module, session)
    remarks = [each.in_file(chunk.file.name) for each in session.remarks]
    if string_shardings.kind_of(module) is not None and not any(session.results.statistics.values()):
        notes = [note(each.message, each.place) for each in remarks]
        text = "the module has GSPMD shardings that Shardy has no form for, so no run here would be partitioned"
        error = error_at(None, text, *notes)
        error.diagnostics = tuple(each.in_file(chunk.file.name) for each in error.diagnostics)
        raise error
    return module, [each.message for each in remarks]


def _devices(module, asked: int | None, name: str) -> int:
    from reshard.dialect_utils.analysis.layout_check import devices_of
    from reshard.dialect_utils.ir.diagnostics import ERROR, DiagnosedError, Diagnostic, Place, note

    has, attributes = devices_of(module), module.operation.attributes
    if asked is None or asked == has or (has == 1 and "mhlo.num_partitions" not in attributes):
        return asked or has
    text = f"the module is for {has} devices, --devices is {asked}"
    raise DiagnosedError(
        [Diagnostic(ERROR, text, Place(name), (note(f"leave --devices out, or pass --devices {has}"),))]
    )


def exit_status(found: Verification) -> int:
    """Returns the exit status of a comparison: RIGHT, OURS_IS_WRONG or STOCK_IS_WRONG."""
    from reshard.passes.results.module_verification import FAILED, UNKNOWN, WRONG

    if found.ours.status == WRONG and not found.is_same_fault:
        return OURS_IS_WRONG
    if found.ours.status == FAILED and found.stock.status != FAILED:
        return OURS_IS_WRONG
    return (
        RIGHT
        if found.stock.is_right or (found.stock.status == UNKNOWN and found.ours.status != FAILED)
        else STOCK_IS_WRONG
    )


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"reshard verify: {text}", file=sys.stderr, flush=True)


# ---- the report


def as_text(found: Verification, devices: int, remarks: list[str], flags: argparse.Namespace) -> str:
    """Returns the report as text for people."""
    count = f"{found.outputs} output{'' if found.outputs == 1 else 's'}"
    lines = [
        f"{flags.module}: {devices} device{'' if devices == 1 else 's'}, {count}; seed {flags.seed}: {found.inputs}"
    ]
    lines += [f"  remark: {each}" for each in remarks]
    if found.no_reference:
        lines.append(f"  no unsharded run, so ours is compared with stock XLA alone: {found.no_reference}")
    if found.not_finite:
        what = f"{found.not_finite} entries of the unsharded outputs are infinite or NaN"
        lines.append(f"  {what}: they compare nothing; try another --seed")
    lines += _verdict_lines("stock XLA", found.stock)
    lines += (
        _verdict_lines("ours", found.ours)
        if found.is_rewritten
        else ["  ours:      nothing is rewritten: as stock XLA"]
    )
    return "\n".join([*lines, f"  {_conclusion(found)}"])


def _conclusion(found: Verification) -> str:
    from reshard.passes.results.module_verification import FAILED, UNKNOWN

    status = exit_status(found)
    if status == OURS_IS_WRONG:
        return (
            "=> one of the two is wrong" if found.no_reference and found.ours.status != FAILED else "=> ours is wrong"
        )
    if status == RIGHT:
        return "=> ours and stock XLA agree" if found.stock.status == UNKNOWN else "=> right"
    if found.is_same_fault or found.ours.status == FAILED:
        return "=> the fault is stock XLA's: without our rewriting it is the same"
    return "=> stock XLA alone fails" if found.stock.status == FAILED else "=> stock XLA alone is wrong"


def _verdict_lines(name: str, verdict: Verdict) -> list[str]:
    head = f"  {name + ':':<10} {_STATUS_TEXTS[verdict.status]}"
    if verdict.message:
        head += f": {verdict.message}"
    lines = [head]
    if verdict.difference is not None:
        lines.append(f"    output {verdict.output}: {difference_text(verdict.difference)}")
    if verdict.fault is not None:
        lines.append(f"    {fault_text(verdict.fault)}")
    return lines


_STATUS_TEXTS = {
    "equal": "equal, bit for bit",
    "within tolerance": "equal within tolerance",
    "rounded": "right but for rounding",
    "wrong": "WRONG",
    "failed": "FAILED",
    "unknown": "ran",
}


def difference_text(difference: Difference) -> str:
    """Returns in words how far an array is off, and its first entry beyond the limit."""
    largest = f"off by {difference.fraction:.3g} of its largest magnitude (limit {difference.limit:.3g})"
    text = difference.problem or largest
    if difference.index is None:
        return text
    return f"{text}; first at {list(difference.index)}: {difference.found}, not {difference.expected}"


def fault_text(fault: Fault) -> str:
    """Returns in words the place of a fault, and its effect."""
    place = f"{fault.place}: " if fault.place else ""
    if fault.what.startswith("operand"):
        what = f"{fault.what} of {fault.op} does not arrive as it was computed"
    elif fault.what.startswith("output"):
        what = f"{fault.what} does not leave as it was computed"
    else:
        what = f"{fault.op} is the first op that departs, {fault.what}"
    how = f" ({fault.how})" if fault.how else ""
    return f"{place}{what}: {difference_text(fault.difference)}{how}"


def as_dict(found: Verification, devices: int, remarks: list[str], flags: argparse.Namespace) -> dict:
    """Returns the report as plain data, schema `reshard.verify/1`."""
    from reshard.tools.common.versions import versions

    return {
        "schema": SCHEMA,
        "module": flags.module,
        "devices": devices,
        "seed": flags.seed,
        "inputs": found.inputs,
        "outputs": found.outputs,
        "not_finite": found.not_finite,
        "no_reference": found.no_reference,
        "remarks": remarks,
        "is_rewritten": found.is_rewritten,
        "is_same_fault": found.is_same_fault,
        "stock": _verdict_dict(found.stock),
        "ours": _verdict_dict(found.ours),
        "exit_status": exit_status(found),
        "versions": versions(),
    }


def _verdict_dict(verdict: Verdict) -> dict:
    values = {"status": verdict.status, "message": verdict.message, "output": verdict.output}
    values["difference"] = verdict.difference and _difference_dict(verdict.difference)
    if verdict.fault is None:
        return values | {"fault": None}
    fault = verdict.fault
    place = str(fault.place) if fault.place else None
    shown = {"op": fault.op, "place": place, "what": fault.what, "how": fault.how}
    return values | {"fault": shown | {"difference": _difference_dict(fault.difference)}}


def _difference_dict(difference: Difference) -> dict:
    """Returns the difference as plain data; the largest error is None if it cannot be measured."""
    return {
        "largest_error": None if difference.problem or difference.fraction == float("inf") else difference.fraction,
        "limit": difference.limit,
        "problem": difference.problem,
        "index": difference.index and list(difference.index),
        "expected": difference.expected,
        "found": difference.found,
    }


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 0")
    return int(text)
