# SPDX-License-Identifier: Apache-2.0
"""The longest rows of both ledgers for a report: as plain data, as text, and on its page."""

import json
from pathlib import Path

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.traffic.bounds import Bound, bounds_of_rows
from reshard.passes.traffic.ledger import ledger_of
from reshard.passes.traffic.ledger_text import as_dict
from reshard.passes.traffic.row_text import HEADINGS, cells, summary_text
from reshard.passes.traffic.summary import summary, summary_of
from reshard.synthesis.network.topology import Topology

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def ledger(text: str, topology: str = "uniform"):
    with make_context() as context, ir.Location.unknown(context):
        return ledger_of(ir.Module.parse(text), shared_child(), Topology.parse(topology))


@pytest.fixture(scope="module")
def moe():
    return ledger((EXAMPLES / "moe_layer.mlir").read_text(), "h100:2x4")


def test_it_has_the_rows_of_the_whole_ledger_and_the_rest_in_sum(moe):
    found, whole = summary(moe, moe, most=3), as_dict("moe", moe)["stock"]
    assert found["stock"] == found["ours"] and json.loads(json.dumps(found)) == found
    assert found["stock"]["collectives"] == whole["collectives"][:3]
    rest, rows = found["stock"]["rest"], whole["collectives"][3:]
    assert rest["collectives"] == len(rows) == 5
    assert rest["bytes_received"] == sum(row["bytes_received"] for row in rows)
    assert rest["seconds"] + sum(row["seconds"] for row in whole["collectives"][:3]) == pytest.approx(moe.seconds)


def test_the_text_names_the_command_for_the_rest_only_if_there_is_a_rest(moe):
    text = summary_text(summary(moe, most=3), "moe.mlir")
    assert "where the bytes go, times modelled on h100:2x4, 2 node x 4 gpu:" in text
    assert "and 5 more collectives, which take" in text and text.endswith("reshard traffic moe.mlir lists the rest")
    assert "ours" not in text
    assert "lists the rest" not in summary_text(summary(moe, moe), "moe.mlir")
    assert "ours, the longest first" in summary_text(summary(moe, moe))


def test_a_program_that_does_not_compile_has_no_table(moe):
    broken = ledger('func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n%0 = stablehlo.custom_call @nobody(%a) : '
                    "(tensor<8xf32>) -> tensor<8xf32>\nreturn %0 : tensor<8xf32> }")  # fmt: skip
    assert summary(broken, moe)["stock"] is None
    assert "stock XLA" not in summary_text(summary(broken, moe)) and "ours" in summary_text(summary(broken, moe))


def test_a_program_without_collectives_says_so():
    found = summary(ledger("func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }"))
    assert "stock XLA: none" in summary_text(found)


def test_a_module_and_its_rewritten_form_are_compiled_and_share_the_bounds_of_sites():
    text = (EXAMPLES / "issue_21562.mlir").read_text()
    with make_context() as context, ir.Location.unknown(context):
        original, rewritten = ir.Module.parse(text), ir.Module.parse(text)
        passes = "find-mismatches,plan-sites{policy=always},synthesize-collectives"
        Pipeline.parse(passes).run(rewritten, Session())
        found = summary_of(original, rewritten, shared_child(), Topology.parse("h100:2x4"))
        alone = summary_of(original, None, shared_child(), Topology.parse("h100:2x4"))
    assert [row["times_bound"] for row in found["stock"]["collectives"]] == [8.0, 8.0]
    assert [(row["cause"], row["site"], row["times_bound"]) for row in found["ours"]["collectives"]] == [
        ("planned chain", 0, 1.0)
    ]
    assert alone["stock"] == found["stock"] and alone["ours"] is None


def test_the_conversions_of_a_module_written_per_device_have_bounds_of_their_own():
    """Their numbers are not those of sites."""
    text = (EXAMPLES / "issue_21562.mlir").read_text()
    with make_context() as context, ir.Location.unknown(context):
        original, rewritten, session = ir.Module.parse(text), ir.Module.parse(text), Session()
        Pipeline.parse("convert-to-local").run(rewritten, session)
        rows = [{**row, "bound_bytes": row["bytes_received"] // 2} for row in session.results.report_rows]
        found = summary_of(original, rewritten, shared_child(), Topology.parse("h100:2x4"), rows=rows)
    assert [row["times_bound"] for row in found["stock"]["collectives"]] == [8.0, 8.0]
    assert {row["times_bound"] for row in found["ours"]["collectives"]} == {2.0}


@pytest.mark.parametrize(("kind", "wanted"), [("local", {3: 7}), ("collective", {0: 5, 3: 7}), ("conversion", {0: 5})])
def test_bounds_of_rows(kind, wanted):
    found = bounds_of_rows([{"site": 3, "kind": kind, "bound_bytes": 7}], {0: Bound(5)})
    assert {site: bound.bytes_received for site, bound in found.items()} == wanted


def test_a_row_has_a_cell_for_each_heading(moe):
    row = summary(moe)["stock"]["collectives"][0]
    assert len(cells(row, moe.seconds)) == len(HEADINGS) == len(set(HEADINGS))
