# SPDX-License-Identifier: Apache-2.0
"""The oracle `lone`: what it asks stock XLA, and how the costs of both ways make a verdict."""

import dataclasses

import pytest
from fake_child import FakeChild, compiled

from reshard.dialect_utils.xla.child import Compiled, KindCount
from reshard.passes.sites.oracle import KEEP, REWRITE, TABLES_OF_POINTERS_BYTES, LoneOracle, compare
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import plan

STOCK = compiled()
A_TABLE = TABLES_OF_POINTERS_BYTES


class TestCompare:
    @pytest.mark.parametrize(
        "ours, better_in",
        [
            (compiled(received=999), "received bytes 1,000 -> 999"),
            (compiled(tile=99), "largest collective tile in bytes 100 -> 99"),
            (compiled(temp=3000), "temporaries in bytes 5,000 -> 3,000"),
            (compiled(collectives=1), "collectives 2 -> 1"),
            (compiled(received=1, tile=1), "received bytes 1,000 -> 1, largest collective tile in bytes 100 -> 1"),
        ],
    )
    def test_better_in_one_cost_and_worse_in_none_is_a_rewrite(self, ours, better_in):
        assert compare(STOCK, ours) == (REWRITE, f"better than stock XLA in {better_in}")

    @pytest.mark.parametrize(
        "ours, worse_in",
        [
            (compiled(received=1001, tile=1, temp=1, collectives=1), "received bytes 1,000 -> 1,001"),
            (compiled(received=1, tile=101, temp=1, collectives=1), "largest collective tile in bytes 100 -> 101"),
            (compiled(received=1, tile=1, temp=9000, collectives=1), "temporaries in bytes 5,000 -> 9,000"),
            (compiled(received=1, tile=1, temp=1, collectives=3), "collectives 2 -> 3"),
        ],
    )
    def test_worse_in_one_cost_is_kept_however_good_the_others_are(self, ours, worse_in):
        assert compare(STOCK, ours) == (KEEP, f"stock XLA is better in {worse_in}")

    def test_equal_costs_are_kept(self):
        assert compare(STOCK, STOCK) == (KEEP, "stock XLA does as well")

    @pytest.mark.parametrize("difference", [-A_TABLE, A_TABLE])
    def test_a_table_of_pointers_counts_neither_way(self, difference):
        assert compare(STOCK, compiled(temp=5000 + difference)) == (KEEP, "stock XLA does as well")
        assert compare(STOCK, compiled(temp=5000 + difference, received=1))[0] == REWRITE

    def test_collectives_count_as_often_as_they_run(self):
        in_a_loop = dataclasses.replace(STOCK, collectives=(KindCount("all_gather", 1, 7),))
        assert compare(STOCK, in_a_loop) == (KEEP, "stock XLA is better in collectives 2 -> 7")

    @pytest.mark.parametrize(
        "status, message, reason",
        [
            ("abort", "SIGFPE: dividing\nmore", "stock XLA aborts: SIGFPE: dividing"),
            ("hang", "no answer after 300 s", "stock XLA hangs: no answer after 300 s"),
            ("error", "", "stock XLA fails: no message"),
        ],
    )
    def test_a_failure_of_stock_is_worse_than_anything(self, status, message, reason):
        assert compare(Compiled(status, message), compiled(received=10**9)) == (REWRITE, reason)

    def test_our_failure_is_kept_even_if_stock_fails_too(self):
        refused = Compiled("error", "INVALID_ARGUMENT: no\nmore")
        assert compare(STOCK, refused) == (KEEP, "XLA refuses our form: INVALID_ARGUMENT: no")
        assert compare(Compiled("abort"), refused)[0] == KEEP


def columns_of_rows(shape=(16, 8)):
    return plan(Mesh.parse("x=4,y=2"), shape, 32, Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]'))


class TestLoneOracle:
    LAYOUTS = (Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]'))

    def test_our_form_is_not_compiled_where_stock_cannot_be_beaten(self):
        child = FakeChild(compiled(received=96, tile=128, collectives=1))
        verdict = LoneOracle(child).judge_pair("tensor<16x8xf32>", self.LAYOUTS, columns_of_rows())
        assert (verdict.action, verdict.ours, len(child.asked)) == (KEEP, None, 1)
        assert verdict.reason == "stock XLA moves 96 bytes in 1 all_gather, as we would"

    @pytest.mark.parametrize(
        "stock",
        [
            compiled(received=97, tile=128, collectives=1),
            compiled(received=96, tile=129, collectives=1),
            compiled(received=96, tile=128, collectives=2),
            Compiled("abort", "SIGABRT"),
        ],
    )
    def test_our_form_is_compiled_where_stock_may_be_beaten(self, stock):
        child = FakeChild(stock, compiled(received=96, tile=128, temp=5000, collectives=1))
        verdict = LoneOracle(child).judge_pair("tensor<16x8xf32>", self.LAYOUTS, columns_of_rows())
        assert verdict.is_rewrite
        assert "sdy.manual_computation" in child.asked[1] and "sdy.manual_computation" not in child.asked[0]

    def test_layouts_between_are_part_of_the_question(self):
        child = FakeChild(compiled(received=96, tile=128, collectives=1))
        layouts = (self.LAYOUTS[0], Sharding.parse('[{"y"}, {}]'), self.LAYOUTS[1])
        LoneOracle(child).judge_pair("tensor<16x8xf32>", layouts, columns_of_rows())
        assert 'sdy.sharding_constraint %arg0 <@mesh_of_question, [{"y"}, {}]>' in child.asked[0]
