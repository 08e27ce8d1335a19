# SPDX-License-Identifier: Apache-2.0
"""The memo of verdicts, foreseen questions, the keys of conversions, and chains of constraints."""

import pytest
from fake_child import FakeChild, compiled

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.constraint_chains import constraint_chains
from reshard.passes.sites.conversions import Conversions
from reshard.passes.sites.judge import Case, Verdicts
from reshard.passes.sites.oracle import KEEP, Criterion, LoneOracle, Question
from reshard.passes.sites.site_records import SiteRecord
from reshard.synthesis.layouts.mesh import Mesh

MODULE = """
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func public @main(
      %a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
      %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
    %0 = sdy.sharding_constraint %a <@mesh, [{"y"}, {}]> : tensor<8x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
    %2 = sdy.sharding_constraint %b <@mesh, [{"y"}, {}]> : tensor<8x8xf32>
    return %1, %2 : tensor<8x8xf32>, tensor<8x8xf32>
  }
"""


@pytest.fixture
def found():
    """Returns the module and its findings: a chain of two constraints, and a constraint alone."""
    session = Session()
    module = ir.Module.parse(MODULE, make_context())
    Pipeline.parse("find-mismatches").run(module, session)
    return module, session.handed_on.findings


def test_a_question_is_judged_once_whatever_its_key():
    child = FakeChild(compiled(), compiled())
    verdicts = Verdicts(SiteRecord(None), Criterion(), lambda: LoneOracle(child))
    first = verdicts.on(case(("op", 1), "the question"))
    assert (first.action, first.reason) == (KEEP, "stock XLA does as well")
    assert verdicts.on(case(("op", 2), "the question")) is first and child.asked == ["stock", "ours"]
    assert verdicts.on(case(("op", 1), "never asked")) is first
    verdicts.foresee([case(("op", 1), "never asked"), case(("op", 3), "the question")])
    assert not child.foreseen


def test_questions_are_foreseen_once_each():
    child = FakeChild()
    verdicts = Verdicts(SiteRecord(None), Criterion(), lambda: LoneOracle(child))
    verdicts.foresee([case(1, "one"), case(1, "one"), case(2, "one"), case(3, "two"), case(4, "nothing", None)])
    assert [each.module for each in child.foreseen] == ["stock", "ours"] * 2 and not child.asked


QUESTION = Question("stock", lambda: "ours", Mesh.parse("x=4"))


def case(key, text, question=QUESTION) -> Case:
    return Case(key, lambda: text, lambda: question, 4)


def test_an_op_that_cannot_be_asked_about_is_kept_but_could_be_rewritten():
    verdicts = Verdicts(SiteRecord(None), Criterion(), lambda: LoneOracle(FakeChild()))
    verdict = verdicts.on(case("key", "the question", None))
    assert verdict.action == KEEP and verdict.is_possible and verdict.stock is None


def test_sites_with_the_same_layouts_share_a_conversion(found):
    conversions = Conversions(*found, is_recorded=False)
    one, other = (
        next(edge for edge in found[1].edges if edge.op.operands[0] == argument)
        for argument in found[0].body.operations[1].arguments
    )
    assert one.site != other.site and conversions.of_site(one.site) is conversions.of_site(other.site)
    assert conversions.of_site(one.site).is_planned


def test_constraints_with_no_other_user_are_one_chain(found):
    conversions = Conversions(*found, is_recorded=False)
    ((last, chain),) = constraint_chains(found[1], conversions).items()
    assert [edge.op.name for edge in chain] == ["sdy.sharding_constraint"] * 2 and chain[-1].site == last
    whole = conversions.of_chain(chain)
    assert (str(whole.source), str(whole.target)) == ('[{"x"}, {}]', '[{}, {"x"}]')
