# SPDX-License-Identifier: Apache-2.0
"""Reports for people (text) and programs (json): the sites, the decision about each, and its reason."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from reshard.dialect_utils.ir import diagnostics
from reshard.dialect_utils.xla.child import Compiled, KindCount, may_be_estimated, shown_estimates
from reshard.passes.driver.base import Session
from reshard.passes.results import site_table
from reshard.passes.results.checks import ROUNDED_ONCE
from reshard.passes.results.summed_remarks import reasons, skipped_text
from reshard.passes.sites.network import SiteNetwork, target_on
from reshard.passes.sites.oracle import UNMEASURED, micros_of_both
from reshard.passes.traffic.row_text import summary_text
from reshard.synthesis.common.numbers import count, counted, tenths_of_us
from reshard.synthesis.common.text_table import table

if TYPE_CHECKING:
    from reshard.dialect_utils.xla.compile_targets import Target
    from reshard.passes.results.values_check import ValuesCheck  # loads numpy
    from reshard.passes.whole_module.check_record import Check
    from reshard.passes.whole_module.other_orders import OtherOrder
    from reshard.synthesis.network.program_time import ProgramTime

SCHEMA = "reshard.report/1"


def render(session: Session, form: str, locations: str = "user", remarks: str = "sum") -> str:
    """Returns the report of a session as "text" or "json"; ends in a newline. The rest is as in `as_text`."""
    return as_text(session, locations, remarks) if form == "text" else json.dumps(as_dict(session), indent=2) + "\n"


def as_dict(session: Session) -> dict:
    """Returns the report as plain data: `sites` as plan-sites records them, `totals`, `checks`, `remarks`, `warnings`.

    Bytes are per device. `not_measured` says why nothing was measured of the whole module; it is null if `checks` has
    its costs. `reasons` sums up the remarks: the number and the first one of each reason. `value_checks` is present if
    values were to be checked. `no_site` is the reason why `sites` is empty; it is null if there are sites.

    Times and bytes of a site are those of one run. A site that plan-sites planned has `runs`, how often it runs in a
    step, in loops and in functions that are called more than once; it is null if that is not known.

    The `location` of a site is the user's line. Its `location_chain` has the calls that lead there, innermost first.
    Its `problem` is the problem that its chain solves; it can be planned again. Its `provenance` names the op or
    argument that asked for each axis of the two layouts, if the session has `with_provenance`.
    """
    return {
        "schema": SCHEMA,
        "sites": [dict(row) for row in session.results.report_rows],
        "totals": totals(session),
        "totals_of": "the rewritten sites, each compiled alone; checks has what the whole module gains",
        "not_measured": _not_measured(session),
        "checks": [_check_dict(each) for each in session.results.checks],
        **(
            {"value_checks": [asdict(each) for each in session.results.value_checks]}
            if session.results.value_checks
            else {}
        ),
        "remarks": [str(each) for each in session.results.diagnostics.having(diagnostics.REMARK)],
        "reasons": [each.as_dict() for each in reasons(session.remarks)],
        "warnings": [session.results.left_whole] if session.results.left_whole else [],
        "no_site": None if session.results.report_rows else _why_no_rows(session),
    }


def totals(session: Session) -> dict[str, int]:
    """Returns counts of sites, and the bytes per device that the rewritten sites received before and receive now.

    Bytes are summed over the sites, each compiled alone. In the whole module, XLA may convert in other ways; `checks`
    has the gain of the module.
    """
    rewritten = [row for row in session.results.report_rows if row.get("is_rewritten")]
    measured = [group[0] for group in site_table.together(rewritten) if group[0]["stock_bytes"] is not None]
    return {
        "sites": len(session.results.report_rows),
        "rewritten": len(rewritten),
        "left": len(session.results.report_rows) - len(rewritten),
        "stock_bytes": sum(row["stock_bytes"] for row in measured),
        "our_bytes": sum(row["our_bytes"] or 0 for row in measured),
    }


def as_text(session: Session, locations: str = "user", remarks: str = "sum") -> str:
    """Returns what was measured of the whole module, then the table of sites, their reasons, and what is left alone.

    Args:
      locations: "user" tells one line of each site, "chain" the calls that lead to it below its reason, too.
      remarks: "all" lists every use that is left alone, anything else only the first one of each reason.
    """
    rows = session.results.report_rows
    measured = [_check_text(each, session.options.input) for each in session.results.checks]
    measured += [_value_check_text(each) for each in session.results.value_checks]
    rounded = _rounded_once_text(session)
    left_alone = skipped_text(session.remarks, lists_all=remarks == "all")
    if not rows:
        return "\n\n".join(filter(None, [f"reshard: {_why_no_rows(session)}", *measured, rounded, left_alone])) + "\n"
    parts = [
        rounded,
        *(measured or [f"the whole module: {_not_measured(session)}"]),
        site_table.table_text(rows),
        site_table.totals_text(totals(session), rows),
        site_table.reasons_text(rows, with_calls=locations == "chain"),
        site_table.spellings_text(rows),
        left_alone,
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _not_measured(session: Session) -> str | None:
    """Returns why the report has no costs of the whole module, and how to get them; None if it has them."""
    if session.results.checks:
        return None
    if not any(row.get("is_rewritten") for row in session.results.report_rows):
        so = "has no other change" if session.results.statistics[ROUNDED_ONCE] else "handed over as it came"
        return f"{so}, since no site is rewritten"
    said = next((each.message for each in session.remarks if each.message.startswith(UNMEASURED)), None)
    if said is not None:
        return f"nothing measured: {said.removeprefix(UNMEASURED)}"
    if all(row["kind"] in _BY_MODEL_ALONE for row in session.results.report_rows if row.get("is_rewritten")):
        return "nothing measured; what is written here is decided by the model alone"
    return "nothing measured; reshard-opt without --no-check, or check=True in Python, compiles it both ways"


def _why_no_rows(session: Session) -> str:
    """Returns the reason why the report has no site. It says that all layouts fit only if no mismatch was skipped."""
    if session.results.left_whole:
        return session.results.left_whole
    if found := session.results.statistics["find-mismatches", "sites"]:
        return f"{found} site{'s' * (found != 1)} found, and none planned: the pipeline has no plan-sites"
    if skipped := sum(each.count for each in reasons(session.remarks) if each.is_of_skipped):
        count = f"{skipped} mismatch{'es' * (skipped != 1)}"
        return f"no site is planned, since what was found is left alone: {count}, listed below"
    if unread := [each.message for each in session.remarks if _IS_UNREAD in each.message]:
        return unread[0]
    return "no site: every value is used in the layout in which it is produced"


_BY_MODEL_ALONE = ("collective", "overlap")  # kinds of rows whose passes ask no compiler by themselves
_IS_UNREAD = "no site of it is found"  # in remarks of import-gspmd


def _check_text(check: Check, name: str) -> str:
    if check.target is None or not check.target.is_ahead_of_time:
        title = f"whole module, as XLA compiles it, modelled on {_network_text(check)} (us, bytes per device):"
        lines = [title, _side_by_side(check, _CPU_COLUMNS)]
        if check.not_judged:
            lines.append(f"  compiled for CPU devices: {check.not_judged}")
        elif check.target is None and (target := target_on(check.topology)) is not None:
            lines.append(f"  compiled for CPU devices; --compile-for={target} asks the compiler of the target")
    else:
        lines = _ahead_of_time_lines(check, check.target)
    for sites, problem in check.dropped:
        lines.append(f"  left to XLA again: site {', '.join(map(str, sites))}: {problem}")
    if check.not_taken_over:
        lines.append(f"  not written per device as a whole: {check.not_taken_over}")
    if check.layouts is not None:
        how = counted(check.layouts, "constraint")
        lines.append(f"  layouts between arguments and results are chosen, by {how}; sites are those of these layouts")
    if (order := check.other_order) is not None:
        lines.append(f"  {_order_text(order)}")
    if check.wrong_stock:
        lines.append(f"  written per device as a whole, since stock XLA computes wrong values: {check.wrong_stock}")
    for sites, reason in check.added:
        lines.append(f"  rewritten, though alone no better: site {', '.join(map(str, sites))}: {reason}")
    if check.traffic is not None:
        lines += ["", summary_text(check.traffic, name)]
    return "\n".join(lines)


def _order_text(order: OtherOrder) -> str:
    """Returns in words what another order of devices would gain."""
    gain = 1 - order.seconds / order.own_s
    times = micros_of_both(order.own_s, order.seconds)
    return f"with the devices in another order: modelled {times}, {gain:.1%} less; see reshard place"


def _rounded_once_text(session: Session) -> str:
    """Returns a line about iotas that XLA's partitioner would compute wrongly; empty if there are none."""
    if not (iotas := session.results.statistics[ROUNDED_ONCE]):
        return ""
    return f"numbers of {counted(iotas, 'iota')} are written as integers: stock XLA rounds those of a part twice"


def _network_text(check: Check) -> str:
    """Returns the name of the network of a check, for people."""
    if not check.topology:
        return "an unknown network"
    return SiteNetwork(check.topology).topology.name


def _value_check_text(check: ValuesCheck) -> str:
    """Returns a line with the result of the check by values and its time."""
    message = f": {check.message}" if check.message else ""
    left = f"; left to XLA again: site {', '.join(map(str, check.dropped))}" if check.dropped else ""
    compared = f", {counted(check.outputs, 'output')}" if check.outputs else ""
    return (
        f"values on random inputs: {check.status}{compared}{message}{left} ({check.runs} runs, {check.seconds:.1f} s)"
    )


def _ahead_of_time_lines(check: Check, target: Target) -> list[str]:
    check = _with_estimates(check)
    title = f"whole module, compiled for {target}, modelled on {_network_text(check)} (us, bytes per device):"
    lines = [title, _side_by_side(check, _MEMORY_COLUMNS)]
    lines += ["  right after partitioning:", _side_by_side(check, _TRAFFIC_COLUMNS)]
    if any(_differs_in_the_end(each) for each in (check.stock, check.ours)):
        lines += ["  in the compiler's final program:", _side_by_side(check, _FINAL_COLUMNS)]
    if any(each.estimated_seconds is not None for each in (check.stock, check.ours)):
        lines.append(f"  estimate: the compiler's own, {_ESTIMATED_BY[target.platform]}")
    if check.generated_s is not None:
        then, now = map(tenths_of_us, check.generated_s)
        where = "" if may_be_estimated(check.stock, check.ours) else "no estimates to compare: "
        lines.append(f"  {where}the compiler's code generator has {then} us for stock, {now} us for ours")
    if check.promised:
        forms = f"{counted(check.promised, 'form')} of the module"
        lines.append(f"  searched: {forms} as XLA partitions them, {check.attempts} compiled for the target")
    return lines


def _with_estimates(check: Check) -> Check:
    """Returns a check whose programs have estimates that were made in the same way, if there are such."""
    then, now = shown_estimates(check.stock, check.ours)
    stock, ours = replace(check.stock, estimated_seconds=then), replace(check.ours, estimated_seconds=now)
    return replace(check, stock=stock, ours=ours)


_ESTIMATED_BY = {
    "tpu": "by bandwidth; it knows no latency and not where devices are",
    "cuda": "by its model of GPU and network; never compared with hardware here",
}


def _differs_in_the_end(compiled: Compiled) -> bool:
    partitioned = compiled.bytes_received, compiled.bytes_sent, compiled.collectives, compiled.unpriced
    final = (
        compiled.final_bytes_received,
        compiled.final_bytes_sent,
        compiled.final_collectives,
        compiled.final_unpriced,
    )
    return compiled.is_ok and partitioned != final


# Column -> (side on which it is aligned, its cell for a module that compiles).
_Columns = dict[str, tuple[str, Callable[[Compiled, "ProgramTime | None"], str]]]


def _side_by_side(check: Check, columns: _Columns) -> str:
    """Returns a table with a row for stock and one for ours; if one does not compile, its last column says why."""
    rows = []
    sides = (("stock", check.stock, check.stock_time), ("ours", check.ours, check.our_time))
    for name, compiled, modelled in sides:
        if compiled.is_ok:
            rows.append((name, *(cell(compiled, modelled) for _, cell in columns.values())))
        else:
            said = compiled.message.splitlines()[0] if compiled.message else ""
            rows.append((name, compiled.status, *[""] * (len(columns) - 2), said))
    aligned = "".join(side for side, _ in columns.values())
    return textwrap.indent(table(("", *columns), rows, "l" + aligned), "  ")


def _collectives(counts: Sequence[KindCount], unpriced: Sequence[str] = ()) -> str:
    kinds = [f"{each.runs} {each.kind}" for each in counts]
    return ", ".join([*kinds, *(f"{each} (not counted)" for each in unpriced)]) or "none"


_MODELLED: _Columns = {
    "modelled": ("r", lambda _, time: tenths_of_us(time and time.seconds)),
    "in collectives": ("r", lambda _, time: tenths_of_us(time and time.collectives_s)),
}
_RECEIVED = ("r", lambda compiled, _: count(compiled.bytes_received, missing=""))
_TEMPORARIES = ("r", lambda compiled, _: count(compiled.temp_bytes, missing=""))
_CPU_COLUMNS: _Columns = {
    **_MODELLED,
    "received": _RECEIVED,
    "temporaries": _TEMPORARIES,
    "collectives": ("l", lambda compiled, _: _collectives(compiled.collectives)),
}
_MEMORY_COLUMNS: _Columns = {
    **_MODELLED,
    "arguments": ("r", lambda compiled, _: count(compiled.argument_bytes, missing="")),
    "outputs": ("r", lambda compiled, _: count(compiled.output_bytes, missing="")),
    "temporaries": _TEMPORARIES,
    "peak": ("r", lambda compiled, _: count(compiled.peak_memory_bytes, missing="")),
    "compiled in s": ("r", lambda compiled, _: f"{compiled.compile_seconds:.2f}"),
    "estimate in us": ("r", lambda compiled, _: tenths_of_us(compiled.estimated_seconds)),
}
_TRAFFIC_COLUMNS: _Columns = {
    "received": _RECEIVED,
    "sent": ("r", lambda compiled, _: count(compiled.bytes_sent, missing="")),
    "collectives": ("l", lambda compiled, _: _collectives(compiled.collectives, compiled.unpriced)),
}
_FINAL_COLUMNS: _Columns = {
    "received": ("r", lambda compiled, _: count(compiled.final_bytes_received, missing="")),
    "sent": ("r", lambda compiled, _: count(compiled.final_bytes_sent, missing="")),
    "collectives": ("l", lambda compiled, _: _collectives(compiled.final_collectives, compiled.final_unpriced)),
}


def _check_dict(check: Check) -> dict:
    def costs(compiled: Compiled, time: ProgramTime | None) -> dict:
        found = {
            "status": compiled.status,
            "modelled_us": _us(time and time.seconds),
            "modelled_collectives_us": _us(time and time.collectives_s),
            "bytes_received": compiled.bytes_received,
            "temp_bytes": compiled.temp_bytes,
            "collectives": {each.kind: each.runs for each in compiled.collectives},
        }
        return found | _ahead_of_time_costs(compiled) if is_ahead_of_time else found

    is_ahead_of_time = check.target is not None and check.target.is_ahead_of_time
    check = _with_estimates(check) if is_ahead_of_time else check
    target = {"target": str(check.target)} if is_ahead_of_time else {}
    dropped = [{"sites": list(sites), "problem": problem} for sites, problem in check.dropped]
    added = [{"sites": list(sites), "reason": reason} for sites, reason in check.added]
    sides = {"stock": costs(check.stock, check.stock_time), "ours": costs(check.ours, check.our_time)}
    for side, seconds in zip(sides, check.generated_s or ()):
        sides[side]["generated_seconds"] = seconds
    network = {"topology": _network_text(check) if check.topology else None}
    changes = {"dropped": dropped, "added": added, "attempts": check.attempts, "is_taken_over": bool(check.taken_over)}
    if check.promised:
        changes["promised"] = check.promised
    if check.not_taken_over:
        changes["not_taken_over"] = check.not_taken_over
    if check.not_judged:
        changes["not_judged"] = check.not_judged
    if check.layouts is not None:
        changes["layout_constraints"] = check.layouts
    if check.wrong_stock:
        changes["wrong_stock"] = check.wrong_stock
    if (order := check.other_order) is not None:
        times = {"modelled_us": _us(order.seconds), "as_it_is_us": _us(order.own_s)}
        changes["other_order"] = {**times, "placement": order.text}
    listed = {} if check.traffic is None else {"traffic": check.traffic}
    return {**target, **network, **sides, **changes, "is_rewritten": check.is_rewritten, **listed}


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e6, 3)


_AHEAD_OF_TIME_COSTS = ("message", "bytes_sent", "argument_bytes", "output_bytes", "alias_bytes", "peak_memory_bytes")
_FINAL_COSTS = ("final_bytes_received", "final_bytes_sent", "final_unpriced", "compile_seconds", "estimated_seconds")


def _ahead_of_time_costs(compiled: Compiled) -> dict:
    """Returns the facts that only compilation ahead of time gives, in seconds and in bytes per device."""
    found = {name: getattr(compiled, name) for name in (*_AHEAD_OF_TIME_COSTS, *_FINAL_COSTS)}
    return {**found, "final_collectives": {each.kind: each.runs for each in compiled.final_collectives}}
