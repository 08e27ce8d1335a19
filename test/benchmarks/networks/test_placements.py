# SPDX-License-Identifier: Apache-2.0
"""The table of placements: what is counted as faster than jax's order, equal and slower."""

import argparse

from benchmarks.networks.placements import Row, _tables


def row(topology: str, jax_us: float | None, our_us: float, row_major_us: float = 2.0) -> Row:
    return Row(topology, "program", f"x={our_us}", 3, row_major_us, jax_us, our_us, "x: gpu 4", 0.5)


def test_a_network_has_one_row_of_all_its_pairs():
    rows = [row("a", 2.0, 1.0), row("a", 1.0, 1.0), row("a", 1.0, 1.0001), row("a", None, 1.0), row("b", 1.0, 2.0)]
    rows.append(Row("a", "program", "x=1", problem="the module has no mesh"))
    summary, table = _tables(rows, argparse.Namespace(topologies=["a", "b", "c"], rows=None))
    a, b, c = summary.splitlines()[2:]
    assert a == "| a | 4 | 1 | 1 | 2 | 0 | 1.260 | 2.00 | 4 | 2.000 | 2.00 | 0.5 | 0.5 |"
    assert b.startswith("| b | 1 | 0 | 0 | 0 | 1 | 0.500 | 0.50 | 0 | 1.000 |")
    assert c == "| c | 0 | 0 | 0 | 0 | 0 |  |  | 0 |  |  |  |  |"
    assert len(table.splitlines()) == 2 + 6 and "the module has no mesh" in table


def test_the_rows_with_the_largest_gain_over_jax_are_shown():
    rows = [row("a", each, 1.0) for each in (1.5, 3.0, None, 2.0)]
    _, table = _tables(rows, argparse.Namespace(topologies=["a"], rows=2))
    assert [line.split(" | ")[8] for line in table.splitlines()[2:]] == ["3.00", "2.00"]
