# SPDX-License-Identifier: Apache-2.0
"""Where the bytes go: the longest rows of both ledgers, for the report of a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reshard.dialect_utils.analysis.op_numbers import NumberedOps
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.xla.child import Compiled, CompileRequest, XlaChild
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.sites.network import stands_in_on
from reshard.passes.traffic.bounds import bounds_of_rows
from reshard.passes.traffic.ledger import Group, Ledger, ledger_from, main_of, partitions_of
from reshard.passes.traffic.ledger_text import as_entry_dict, network_text
from reshard.synthesis.network.topology import Topology

ROWS = 8


def summary(stock: Ledger, ours: Ledger | None = None, most: int = ROWS) -> dict[str, Any]:
    """Returns the longest collectives of both programs as plain data, for the entry `traffic` of a report's check.

    Args:
      ours: None if nothing was rewritten. most: rows of each program.
    Returns: "topology" as text, and for "stock" and "ours" None (no program, or one that does not compile) or
      "seconds" and "bytes_received" of all collectives, "collectives" as in `reshard.traffic/1`, and "rest" with the
      number, the seconds and the bytes of those that are left out.
    """
    sides = {"stock": _side(stock, most), "ours": None if ours is None else _side(ours, most)}
    return {"topology": network_text(stock), **sides}


def summary_of(
    original: ir.Module,
    rewritten: ir.Module | None,
    child: XlaChild,
    topology: Topology,
    *,
    target: Target | None = None,
    most: int = ROWS,
    rows: Sequence[Mapping[str, Any]] = (),
    compiled: tuple[NumberedOps, Compiled] | None = None,
) -> dict[str, Any]:
    """Returns the `summary` of a module, which stock XLA compiles as it came and, if it was rewritten, as it is now.

    Args:
      rewritten: None if nothing was rewritten. rows: of its report.
      topology, target: as in `ledger_of`, whose errors this function raises.
      compiled: the original with numbers for its ops, and what XLA made of that for the target, with its HLO; None if
        nobody has compiled it yet.
    """
    main_of(original)  # raises before anything is compiled

    stands_in = stands_in_on(topology)

    def made_of(numbered: NumberedOps, module: ir.Module) -> Compiled:
        devices = partitions_of(module)
        kept = {"keeps_hlo": True, "keeps_locations": True, "with_estimate": False}
        return child.compile(numbered.text, devices, target=target, stands_in=stands_in, **kept)

    ours = None if rewritten is None else NumberedOps(rewritten)
    if rewritten is not None and ours is not None and target is None:  # while the rows of the other one are made
        devices = partitions_of(rewritten)
        asked = CompileRequest(ours.text, devices, keeps_hlo=True, keeps_locations=True, stands_in=stands_in)
        child.begin([asked])
    if compiled is None:
        numbered = NumberedOps(original)
        compiled = numbered, made_of(numbered, original)
    stock = ledger_from(original, *compiled, topology)
    if rewritten is None or ours is None:
        return summary(stock, most=most)
    bounds = bounds_of_rows(rows, stock.site_bounds)
    mine = ledger_from(rewritten, ours, made_of(ours, rewritten), topology, finds_sites=False, site_bounds=bounds)
    return summary(stock, mine, most)


def _side(ledger: Ledger, most: int) -> dict[str, Any] | None:
    if not ledger.compiled.is_ok:
        return None
    rest = Group("", ledger.entries[most:])
    return {
        "seconds": ledger.seconds,
        "bytes_received": ledger.bytes_received,
        "collectives": [as_entry_dict(entry) for entry in ledger.entries[:most]],
        "rest": {
            "collectives": len(rest.entries),
            "seconds": rest.seconds,
            "bytes_received": rest.bytes_received,
        },
    }
