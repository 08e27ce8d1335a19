# SPDX-License-Identifier: Apache-2.0
"""The whole-module check: a rewrite that is better at its site may make the program worse elsewhere.

Stock XLA compiles both modules in a child process. The rewritten module is worse if it receives more bytes (loops count
by their trips), needs more temporaries, or has other input or output shardings. Then sites are left to XLA, those with
the least gain first, until the module is not worse any more or no site is rewritten. For a target of compilation ahead
of time, its compiler decides: also by the bytes of its final program, by the memory it needs, and by its estimate of
the time if it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import asm_of, present
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.child import Compiled
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.import_gspmd import ImportGspmdPass
from reshard.passes.sites.oracle import FAILURES, KEEP, TABLES_OF_POINTERS_BYTES
from reshard.passes.synthesize_collectives import SynthesizeCollectivesPass

SAME_ESTIMATE = 0.1  # relative difference below which estimates count as equal; none was compared with hardware
MOST_ATTEMPTS = 8  # compilations of rewritten modules before nothing is rewritten at all


@dataclass(frozen=True, slots=True)
class Check:
    """The result of the whole-module check of one module.

    Attributes:
      stock, ours: the module as it came and as it is handed over.
      dropped: (sites, what was worse with them) in the order in which they were left to XLA.
      is_rewritten: whether any site is still rewritten.
      target: the target of compilation of both; None for as many CPU devices as the module has.
    """

    stock: Compiled
    ours: Compiled
    dropped: tuple[tuple[tuple[int, ...], str], ...]
    is_rewritten: bool
    target: Target | None = None


def check(
    original: ir.Module, rewritten: ir.Module, pipeline: Pipeline, session: Session, rows: Sequence[dict]
) -> ir.Module:
    """Returns the rewritten module without the sites that make the program worse, and records a `Check`.

    Args:
      original: the module before `pipeline` ran, which made `rewritten` of it in `session`.
      rows: the rows of `session.results.report_rows` that belong to this module.
    If nothing is rewritten, nothing is compiled for CPU devices; for another target, the module is compiled and
    recorded.

    Raises: DiagnosedError if the module is for another number of devices than the session's option `compile_for`, a
    `Target`, or
      if there are no such devices.
    """
    rows = [row for row in rows if row.get("is_rewritten")]
    target = session.options.compile_for
    if not rows and not (target and target.is_ahead_of_time):
        return rewritten
    import_shardings(original, pipeline, session)
    devices = target.devices if target else devices_of(original)
    if devices != devices_of(original):
        _refuse(original, session, f"the module is for {devices_of(original)} devices, the target has {devices}")
    return _Checker(original, pipeline, session).run(rewritten, rows)


def _refuse(module: ir.Module, session: Session, problem: str) -> NoReturn:
    session.error(module.operation, problem)
    raise DiagnosedError(session.errors[-1:])


def import_shardings(original: ir.Module, pipeline: Pipeline, session: Session) -> None:
    """Imports the GSPMD shardings of a module if the pipeline does: XLA ignores them in a module with Shardy."""
    imports = tuple(each for each in pipeline.passes if isinstance(each, ImportGspmdPass))
    Pipeline(imports).run(original, Session(session.options))


class _Checker:
    """The check of one module. State: `dropped` has the sites that were left to XLA so far, with their reasons."""

    def __init__(self, original: ir.Module, pipeline: Pipeline, session: Session):
        self.original = original
        self.pipeline = pipeline
        self.session = session
        self.child = session.options.xla_child or xla_child.shared_child()
        self.target: Target | None = session.options.compile_for
        self.dropped: list[tuple[tuple[int, ...], str]] = []

    def run(self, rewritten: ir.Module, rows: list[dict]) -> ir.Module:
        progress.at("whole-module check: the module as it came")
        stock = self._compile(self.original)
        if not rows:
            self._finish(stock, stock, self.original)
            return rewritten
        progress.at("whole-module check: the module as rewritten")
        ours = self._compile(rewritten)
        groups = groups_by_gain(rows)
        attempts = 1
        while problem := what_is_worse(stock, ours):
            drop = -(-len(groups) // max(1, MOST_ATTEMPTS - attempts)) if stock.is_ok else len(groups)
            self._drop([site for group in groups[:drop] for site in group], problem, rows)
            groups = groups[drop:]
            if not groups:
                return self._finish(stock, stock, self.original)
            rewritten = self._rewrite_without()
            progress.at("whole-module check: attempt", attempts + 1, MOST_ATTEMPTS)
            ours = self._compile(rewritten)
            attempts += 1
        return self._finish(stock, ours, rewritten)

    def _finish(self, stock: Compiled, ours: Compiled, module: ir.Module) -> ir.Module:
        self.session.results.checks.append(
            Check(stock, ours, tuple(self.dropped), module is not self.original, self.target)
        )
        return module

    def _compile(self, module: ir.Module) -> Compiled:
        compiled = self.child.compile(str(module), devices_of(module), target=self.target)
        if compiled.status == "target":
            _refuse(self.original, self.session, compiled.message)
        return compiled

    def _drop(self, sites: list[int], problem: str, rows: list[dict]) -> None:
        self.dropped.append((tuple(sites), problem))
        for row in rows:
            if row["site"] in sites:
                row["verdict"], row["is_rewritten"] = KEEP, False
                row["reason"] = f"with it the whole module is worse: {problem}"
        numbers = ", ".join(map(str, sites))
        noun = "site" if len(sites) == 1 else "sites"
        self.session.remark(self.original.operation, f"{noun} {numbers} left to XLA: with the rewrite, {problem}")

    def _rewrite_without(self) -> ir.Module:
        """Returns the original after another run of the pipeline that leaves out the dropped sites."""
        left = [site for sites, _ in self.dropped for site in sites]
        return rewritten_without(left, self.original, self.pipeline, self.session)


def rewritten_without(sites: Sequence[int], original: ir.Module, pipeline: Pipeline, session: Session) -> ir.Module:
    """Returns a copy of the original on which the pipeline has run again, with some sites left alone."""
    left = list(map(str, sites))
    left += [each.leave for each in pipeline.passes if isinstance(each, SynthesizeCollectivesPass) and each.leave]
    with original.context:
        module = ir.Module.parse(asm_of(original.operation, enable_debug_info=True))
    quiet = Session(session.options)  # the options of the first run, so that sites have the same numbers
    pipeline.with_options({"leave": "+".join(left)}).run(module, quiet)
    return module


def needs_values(session: Session) -> bool:
    """Returns whether values have to be checked even if nobody asks: stock XLA refuses the last module, but not ours.

    Then there is no program of stock XLA to compare with, and XLA may compute ours wrongly.
    """
    return (
        bool(session.results.checks)
        and session.results.checks[-1].is_rewritten
        and not session.results.checks[-1].stock.is_ok
    )


def what_is_worse(stock: Compiled, ours: Compiled) -> str:
    """Returns in words the costs that are worse in the rewritten module; an empty text if it is not worse."""
    if not ours.is_ok:
        message = ours.message.strip().splitlines() or ["no message"]
        also = "" if stock.is_ok else "; it cannot compile the module as it came either"
        return f"XLA {FAILURES[ours.status]}: {message[0]}{also}"
    if not stock.is_ok:
        return ""
    worse = [
        f"{name} {then:,} -> {now:,}"
        for name, then, now, slack in (
            ("received bytes per device", stock.costs.bytes_received, ours.costs.bytes_received, 0),
            ("received bytes per device in the final program", *_final_bytes(stock, ours), 0),
            (*_memory(stock, ours), _bookkeeping_bytes(stock, ours)),
            ("the compiler's own estimate in us", *_estimates_us(stock, ours)),
        )
        if now > then + slack
    ]
    if stock.input_shardings != ours.input_shardings:
        worse.append("the input shardings differ from stock XLA's")
    if stock.output_shardings != ours.output_shardings:
        worse.append("the output shardings differ from stock XLA's")
    return ", ".join(worse)


def _memory(stock: Compiled, ours: Compiled) -> tuple[str, int, int]:
    """Returns the name of the memory to compare and its bytes in both modules.

    The memory is the temporaries, or the larger of peak and allocation if the compiler gives a peak. On a TPU, neither
    temporaries nor peak are complete: temporaries leave out on-chip memory, and a peak may be less than the allocation.
    """
    then, now = stock.peak_memory_bytes, ours.peak_memory_bytes
    if then is None or now is None:
        return "temporaries in bytes", stock.costs.temp_bytes, ours.costs.temp_bytes
    return "memory in bytes", max(then, present(stock.peak_bytes)), max(now, present(ours.peak_bytes))


def _estimates_us(stock: Compiled, ours: Compiled) -> tuple[float, float, float]:
    """Returns both time estimates in us, and the difference that does not count; zeros if an estimate is missing."""
    if stock.estimated_seconds is None or ours.estimated_seconds is None:
        return 0.0, 0.0, 0.0
    then, now = round(stock.estimated_seconds * 1e6, 1), round(ours.estimated_seconds * 1e6, 1)
    return then, now, then * SAME_ESTIMATE


def _final_bytes(stock: Compiled, ours: Compiled) -> tuple[int, int]:
    """Returns the bytes that both final programs receive; zeros if one is unknown or has an op without a price."""
    then, now = stock.final_bytes_received, ours.final_bytes_received
    return (0, 0) if then is None or now is None or stock.final_unpriced or ours.final_unpriced else (then, now)


def _bookkeeping_bytes(stock: Compiled, ours: Compiled) -> int:
    """Returns the bytes of temporaries that are not tensors: a table of pointers for each new all-to-all."""
    return TABLES_OF_POINTERS_BYTES * max(1, _all_to_alls(ours) - _all_to_alls(stock))


def _all_to_alls(compiled: Compiled) -> int:
    return sum(each.ops for each in compiled.collectives if each.kind == "all_to_all")


def groups_by_gain(rows: list[dict]) -> list[list[int]]:
    """Returns the sites in groups that were judged together; the group that gains the fewest bytes is first."""
    groups: dict[object, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    ordered = sorted(groups.values(), key=lambda group: (max(map(_gain, group)), group[0]["site"]))
    return [sorted(row["site"] for row in group) for group in ordered]


def _gain(row: dict) -> int:
    """Returns how many bytes less a device receives; the largest gain if stock XLA fails, 0 if both are unknown."""
    if row.get("stock_bytes") is None:
        return 0 if row.get("our_bytes") is None else 1 << 62
    return row["stock_bytes"] - (row.get("our_bytes") or 0)
