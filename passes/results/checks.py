# SPDX-License-Identifier: Apache-2.0
"""The checks after the pipeline, in their order: the whole module as XLA compiles it, then the values it computes.

Large modules are imported only if a check runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from reshard.passes.driver.registry import AUTO, CHOSEN, COMPARED

if TYPE_CHECKING:
    from reshard.dialect_utils.platform.bindings import ir
    from reshard.passes.driver.base import Session
    from reshard.passes.driver.pipeline import Pipeline
    from reshard.passes.whole_module.whole_module_check import WholeModuleCheck

# The most bytes that a run of the check by values may take: arguments, outputs and temporaries of all devices together.
MOST_VALUE_BYTES = 256 << 20

# The statistic that counts iotas that are written as integers.
ROUNDED_ONCE = ("iota", "rounded once")

_KERNEL = "a kernel: "  # how the words begin in which a report row says that a pipeline is one
_WITH_KERNELS = (
    "the module has kernels and is compared with nothing: compilers do not say how long kernels take or what they send"
)


def effort_of(text: str) -> int:
    """Returns an effort, 1 or more. Raises: ValueError."""
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def is_rewritten(rows: Sequence[dict]) -> bool:
    """Returns whether a site of these report rows is rewritten.

    Example:
      >>> is_rewritten([{"site": 0}, {"site": 1, "is_rewritten": True}])
      True
    """
    return any(row.get("is_rewritten") for row in rows)


def is_changed(session: Session, first_row: int = 0, first_check: int = 0, iotas_before: int = 0) -> bool:
    """Returns whether what came in is not what is handed over: a site is rewritten, other layouts are chosen, or
    numbers that XLA would round twice are written as integers.

    Args:
      first_row, first_check: of the rows and checks of the session that count. iotas_before: those that do not count.
    """
    has_layouts = any(each.layouts is not None for each in session.results.checks[first_check:])
    has_integers = session.results.statistics[ROUNDED_ONCE] > iotas_before
    return has_layouts or has_integers or is_rewritten(session.results.report_rows[first_row:])


def can_be_rewritten(rows: Sequence[dict]) -> bool:
    """Returns whether a site of these report rows is rewritten, or could be.

    Example:
      >>> can_be_rewritten([{"site": 0, "possible": "better"}])
      True
    """
    return is_rewritten(rows) or any(row.get("possible") for row in rows)


def run_and_checked(
    parse_original: Callable[[], ir.Module],
    run: Callable[[Pipeline], ir.Module],
    pipeline: Pipeline,
    session: Session,
    *,
    compiles: bool,
    value_bytes: int | None,
    needs_run: bool = False,
    distrust: str | None = None,
) -> ir.Module:
    """Returns the module after a pipeline with only those rewrites that pass the checks; see `checked`. Then iotas
    that XLA's partitioner would compute wrongly are written in another way.

    Args:
      run: runs a pipeline in `session` on the module and returns it: `pipeline`, or the part of it up to the planning
        of sites and then the rest. It is not called if the module is written per device as a whole and nothing has to
        be known about its sites for that.
      needs_run: whether it has to be called with all of `pipeline`, as where the passes are watched.
      distrust: as in `checked`.
    """
    if compiles:
        pipeline = placed(pipeline, parse_original, session)

    def as_given() -> ir.Module:
        first_row, before, begun = len(session.results.report_rows), len(session.results.checks), None
        if compiles and not needs_run and pipeline.emission == AUTO:
            from reshard.passes.whole_module import whole_module_check

            begun = whole_module_check.begin(parse_original(), pipeline, session)
            if begun is not None and (module := begun.before_sites()) is not None:
                return _checked_further(parse_original, module, pipeline, session, first_row, before, value_bytes)
        module = run(pipeline) if begun is None else begun.planned_and_rewritten(run)
        rows, asked = session.results.report_rows[first_row:], {"compiles": compiles, "value_bytes": value_bytes}
        asked |= {"begun": begun, "distrust": distrust}
        return checked(parse_original, module, pipeline, session, rows, **asked)

    if session.options.layouts != CHOSEN:
        module = as_given()
    else:
        from reshard.passes.results import chosen_layouts

        problem = chosen_layouts.problem_of(pipeline, compiles=compiles, needs_run=needs_run)
        module = chosen_layouts.best(as_given, parse_original, pipeline, session, value_bytes, problem)
    if pipeline.emission not in COMPARED:
        return module
    from reshard.passes.results import rounded_numbers

    return rounded_numbers.rounded_once(module, pipeline, session)


def placed(pipeline: Pipeline, parse_original: Callable[[], ir.Module], session: Session) -> Pipeline:
    """Returns a pipeline for a target ahead of time that plans for the order of devices in which the target's compiler
    compiles the module, where it plans for the target's network without an order."""
    target = session.options.compile_for
    if target is None or target.platform != "tpu" or session.options.at_hand is not None:
        return pipeline
    from reshard.dialect_utils.ir.diagnostics import DiagnosedError
    from reshard.passes.driver.base import Session
    from reshard.passes.sites import network

    unplaced = [
        each
        for each in pipeline.passes
        if isinstance(each, network.NetworkOptions) and network.is_of_target(each.topology, target)
    ]
    if not unplaced:
        return pipeline
    try:  # what the target's compiler gets says how it is sharded in Shardy's words
        module = parse_original()
        imports = tuple(each for each in pipeline.passes if each.states_shardings)
        replace(pipeline, elements=imports).run(module, Session(session.options))
        own = {id(each): replace(each, topology=network.placed(each.topology, target, module)) for each in unplaced}
    except DiagnosedError:  # the pipeline will say so at its place
        return pipeline
    elements = [own.get(id(each), each) for each in pipeline.elements]
    return replace(pipeline, elements=tuple(elements))


def checked(
    parse_original: Callable[[], ir.Module],
    module: ir.Module,
    pipeline: Pipeline,
    session: Session,
    rows: Sequence[dict],
    *,
    compiles: bool,
    value_bytes: int | None,
    begun: WholeModuleCheck | None = None,
    distrust: str | None = None,
) -> ir.Module:
    """Returns the module with only those rewrites that pass the checks. Each check records its result in the session.

    If stock XLA does not compile the module and compiles ours, or if it computes wrong values and ours is handed over
    for that reason, values are checked even if the caller does not ask for it. Then the check has the default limit, so
    that a kept result does not depend on any other limit.

    A module with kernels is handed over as it is: to compilers they are opaque, and CPU devices do not run them.

    Args:
      parse_original: returns the module before `pipeline` ran; called once per check, which may change its copy.
      module: the output of `pipeline` in `session`.
      rows: the last rows of `session.results.report_rows`, which belong to this module; the check may replace them.
      compiles: whether the whole module is compiled before and after.
      value_bytes: the limit of the check by values that the caller asks for; None: the caller asks for none.
      begun: the check of the whole module, if it has begun before the pipeline ran.
      distrust: why no op is to be left to XLA if that can be avoided, empty if they may be; None: runs of the module
        tell whether XLA computes it rightly, and it is handed over as XLA has it only if it does.
    Raises: DiagnosedError as `whole_module_check.check` does.
    """
    if _has_kernels(rows):
        if compiles or value_bytes is not None:
            session.remark(module.operation, _WITH_KERNELS)
        return module
    before, first_row = len(session.results.checks), len(session.results.report_rows) - len(rows)
    is_auto = pipeline.emission == AUTO
    if compiles and (can_be_rewritten(rows) or is_auto or session.options.compile_for is not None):
        from reshard.passes.whole_module import whole_module_check

        def problem_of_stock() -> str:
            if distrust is not None:
                return ""
            from reshard.passes.results import values_check

            return values_check.problem_of_stock(parse_original(), pipeline, session, most_bytes=MOST_VALUE_BYTES)

        module = whole_module_check.check(
            begun.original if begun else parse_original(),
            module,
            pipeline,
            session,
            rows,
            problem_of_stock=problem_of_stock,
            distrust=distrust or "",
            begun=begun,
        )
    return _checked_further(parse_original, module, pipeline, session, first_row, before, value_bytes)


def _checked_further(
    parse_original: Callable[[], ir.Module],
    module: ir.Module,
    pipeline: Pipeline,
    session: Session,
    first_row: int,
    checks_before: int,
    value_bytes: int | None,
) -> ir.Module:
    """Returns the module after the checks behind that of the whole module; the rows and checks of earlier modules of
    the file come before `first_row` and `checks_before`."""
    rows, before = session.results.report_rows[first_row:], checks_before
    if len(session.results.checks) > before:  # else the last check is that of another module of the file
        from reshard.passes.whole_module import check_record

        pipeline = check_record.pipeline_behind(session.results.checks[-1], pipeline)
        if value_bytes is None and check_record.needs_values(session):
            value_bytes = MOST_VALUE_BYTES
    if value_bytes is not None and is_rewritten(rows):
        from reshard.passes.results import values_check

        is_checked = len(session.results.checks) > before
        limits = {"most_bytes": value_bytes, "is_checked_as_a_whole": is_checked}
        module = values_check.check(parse_original(), module, pipeline, session, rows, **limits)
    if len(session.results.checks) > before:
        from reshard.passes.whole_module import overlap_stage

        if overlap_stage.may_overlap(module, session.results.checks[-1]):
            module = overlap_stage.overlapped(parse_original(), module, pipeline, session)
        session.results.checks[before:] = [each.settled() for each in session.results.checks[before:]]
    return module


def _has_kernels(rows: Sequence[dict]) -> bool:
    return any(row.get("kind") == "overlap" and row["chain"].startswith(_KERNEL) for row in rows)
