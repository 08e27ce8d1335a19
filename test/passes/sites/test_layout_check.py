# SPDX-License-Identifier: Apache-2.0
"""The layout check of plan-sites: a site is kept if XLA propagates other layouts there than we found."""

import pytest

from reshard.dialect_utils.analysis import layout_check
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.findings import read_findings

ONE_CONSTRAINT = """
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"AXIS"}, {}]>}) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}"""  # noqa: E501


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


def planned(text: str) -> tuple[str, str, Session]:
    """Returns (verdict, reason, session) of the one site of a module under the policy `always`."""
    session = Session()
    module = ir.Module.parse(text)
    Pipeline.parse("find-mismatches,plan-sites{policy=always}").run(module, session)
    (edge,) = read_findings(module).edges
    verdict, reason = (ir.StringAttr(edge.extra(name)).value for name in ("verdict", "reason"))
    return verdict, reason, session


def test_a_site_where_xla_agrees_is_rewritten():
    verdict, _, session = planned(ONE_CONSTRAINT.replace("AXIS", "x"))
    assert verdict == "rewrite"
    assert session.results.statistics["plan-sites", "unchecked"] == 0


def test_a_site_where_xla_disagrees_is_left_alone(monkeypatch):
    """The check must be able to fail: XLA gets a module in which the argument has another sharding."""
    elsewhere = layout_check.tagged_text(ir.Module.parse(ONE_CONSTRAINT.replace("AXIS", "y")))
    propagated = shared_child().compile(elsewhere, 4, keeps_propagated=True).propagated_text
    monkeypatch.setattr(
        layout_check,
        "compare_with_xla",
        lambda _module, analysis, _child: layout_check.disagreements(analysis, propagated),
    )
    verdict, reason, session = planned(ONE_CONSTRAINT.replace("AXIS", "x"))
    assert verdict == "keep"
    assert reason == 'XLA propagates another layout here: argument 0 is [{"y"}, {}] there, [{"x"}, {}] here'
    assert any(reason in remark.message for remark in session.remarks)


def test_a_module_that_xla_refuses_is_compared_with_nothing():
    verdict, _, session = planned(ONE_CONSTRAINT.replace("AXIS", "x").replace("sdy.sharding_constraint", "sdy.reshard"))
    assert verdict == "rewrite"
    assert session.results.statistics["plan-sites", "unchecked"] == 1
