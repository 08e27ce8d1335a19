# SPDX-License-Identifier: Apache-2.0
"""The oracle `lone`: what it asks stock XLA, and how the costs of both ways make a verdict."""

import dataclasses
import json

import pytest
from fake_child import FakeChild, compiled

from reshard.dialect_utils.emission.mini_modules import rewritten_pair
from reshard.dialect_utils.xla.child import Compiled, KindCount
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.sites.oracle import (
    BETTER,
    KEEP,
    REWRITE,
    STRICT,
    TABLES_OF_POINTERS_BYTES,
    Answer,
    Criterion,
    LoneOracle,
    compare,
    pair_question,
)
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.program_time import LocalWork
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.programs.tile_program import collectives, copies
from reshard.synthesis.programs.traffic import Collective

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


@pytest.mark.parametrize("policy", [BETTER, STRICT])
class TestFailures:
    @pytest.mark.parametrize(
        "status, message, reason",
        [
            ("abort", "SIGFPE: dividing\nmore", "stock XLA aborts: SIGFPE: dividing"),
            ("hang", "no answer after 300 s", "stock XLA hangs: no answer after 300 s"),
            ("error", "", "stock XLA fails: no message"),
        ],
    )
    def test_a_failure_of_stock_is_worse_than_anything(self, status, message, reason, policy):
        verdict = Criterion(policy).verdict(Answer(Compiled(status, message), compiled(received=10**9)), 8)
        assert (verdict.action, verdict.reason) == (REWRITE, reason)
        assert verdict.is_possible and verdict.is_strict

    def test_our_failure_is_kept_even_if_stock_fails_too(self, policy):
        refused = Compiled("error", "INVALID_ARGUMENT: no\nmore")
        verdict = Criterion(policy).verdict(Answer(STOCK, refused), 8)
        assert (verdict.action, verdict.reason) == (KEEP, "XLA refuses our form: INVALID_ARGUMENT: no")
        assert not verdict.is_possible
        assert Criterion(policy).verdict(Answer(Compiled("abort"), refused), 8).action == KEEP


def moving(received: int, *, collectives: int = 1, across: bool = False) -> Compiled:
    """Returns an answer whose collectives among 4 devices receive some bytes, within pairs or across them."""
    groups = ((0, 2), (1, 3)) if across else ((0, 1), (2, 3))
    each = received // collectives
    moved = (Collective("all_gather", each, 2 * each, groups=groups, trip_count=collectives),)
    return dataclasses.replace(compiled(received=received, collectives=collectives), moved=moved)


class TestByTime:
    """The policy `better`: modelled time decides, and on an unknown network received bytes may not rise."""

    def test_more_collectives_that_save_time_are_a_rewrite_unless_the_policy_is_strict(self):
        """The gradient that issue 18 begins with: refused for one collective more, whatever the sizes."""
        answer = Answer(moving(1_800_000), moving(130_000, collectives=2))
        verdict = Criterion(BETTER).verdict(answer, 4)
        assert verdict.is_rewrite and verdict.our_s < verdict.stock_s
        assert verdict.reason.startswith("faster than stock XLA, modelled ")
        assert verdict.reason.endswith("received 1,800,000 bytes -> 130,000 bytes")
        refused = Criterion(STRICT).verdict(answer, 4)
        assert (refused.action, refused.reason) == (KEEP, "stock XLA is better in collectives 1 -> 2")
        assert refused.is_possible and not refused.is_strict and not verdict.is_strict

    def test_fewer_bytes_in_many_collectives_are_kept_if_they_take_longer(self):
        verdict = Criterion(BETTER).verdict(Answer(moving(1000), moving(500, collectives=50)), 4)
        assert verdict.action == KEEP and verdict.is_possible
        assert verdict.reason.startswith("stock XLA is faster, modelled ")

    def test_bytes_may_rise_on_a_known_network_only(self):
        """Within a host more bytes take less time than fewer between hosts."""
        answer = Answer(moving(10_000_000, across=True), moving(12_000_000))
        known = Criterion(BETTER, SiteNetwork("h100:2x2")).verdict(answer, 4)
        assert known.is_rewrite and known.our_s < known.stock_s
        unknown = Criterion(BETTER).verdict(answer, 4)
        more = "10,000,000 bytes -> 12,000,000 bytes"
        assert unknown.reason == f"it would receive more, {more}, and the network is unknown"
        assert unknown.action == KEEP and unknown.is_possible

    def test_of_equal_times_the_strict_comparison_decides(self):
        one = moving(1000)
        verdict = Criterion(BETTER).verdict(Answer(one, dataclasses.replace(one, temp_bytes=1)), 4)
        assert (verdict.action, verdict.reason) == (REWRITE, "better than stock XLA in temporaries in bytes 5,000 -> 1")
        assert Criterion(BETTER).verdict(Answer(one, one), 4).reason == "stock XLA does as well"

    def test_an_answer_is_the_same_after_it_was_written(self):
        answer = Answer(moving(1000), moving(500, collectives=2))
        assert Answer.from_json(json.loads(json.dumps(answer.as_json()))) == answer
        assert Answer.from_json(Answer(STOCK, None).as_json()) == Answer(STOCK, None)


def columns_of_rows(shape=(16, 8)):
    return plan(Mesh.parse("x=4,y=2"), shape, 32, Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]'))


class TestLoneOracle:
    LAYOUTS = (Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]'))

    def test_our_form_is_not_compiled_where_stock_cannot_be_beaten(self):
        child = FakeChild(compiled(received=96, tile=128, collectives=1))
        answer = LoneOracle(child).ask(pair_question("tensor<16x8xf32>", self.LAYOUTS, columns_of_rows()))
        verdict = Criterion().verdict(answer, 8)
        assert (verdict.action, verdict.ours, len(child.asked)) == (KEEP, None, 1)
        assert verdict.is_possible and not verdict.is_strict
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
        answer = LoneOracle(child).ask(pair_question("tensor<16x8xf32>", self.LAYOUTS, columns_of_rows()))
        assert Criterion(STRICT).verdict(answer, 8).is_rewrite
        assert "sdy.manual_computation" in child.asked[1] and "sdy.manual_computation" not in child.asked[0]

    def test_our_form_is_compiled_where_it_is_faster_though_stock_is_better_in_all_counts(self):
        """Across nodes the plan sends one of the copies that a node has, and hands the parts on inside of the node."""
        source, target = Sharding.parse('[{"y"}]'), Sharding.parse('[{"x"}]')
        network, shape = SiteNetwork("h100:2x4"), (1 << 21,)
        mesh = Mesh.parse("x=2,y=4")
        made = plan(mesh, shape, 32, source, target, objective="time", topology=network.topology)
        flat = Collective("all_gather", 1 << 21, 1 << 22, groups=((0, 4), (1, 5), (2, 6), (3, 7)))
        counts = compiled(received=made.bytes_received, tile=made.largest_tile_bytes, collectives=1)
        for moved, asked in ((flat,), 2), ((), 1):
            stock = dataclasses.replace(counts, moved=moved)
            child = FakeChild(stock, counts)
            LoneOracle(child).ask(pair_question(f"tensor<{shape[0]}xf32>", (source, target), made, network))
            assert len(child.asked) == asked

    @pytest.mark.parametrize(("network", "asked"), [("v5e:2x4", 2), ("cpu:8", 1)])
    def test_our_form_is_the_one_for_the_platform_of_the_network_which_may_copy_less(self, network, asked):
        """Along the middle dimension TPUs gather in place. Stock XLA copies half of what the plan counts."""
        where, shape, type_ = SiteNetwork(network), (64, 1024, 128), "tensor<64x1024x128xf32>"
        layouts = Sharding.parse('[{}, {"x"}, {}]'), Sharding.parse("[{}, {}, {}]")
        made = plan(Mesh.parse("x=8"), shape, 32, *layouts, objective="time", topology=where.topology)
        moved = collectives(made.tile_program, 32)
        copied = copies(made.tile_program, 32).relaid
        counts = compiled(received=made.bytes_received, tile=made.largest_tile_bytes, collectives=1)
        stock = dataclasses.replace(counts, moved=moved, work=(LocalWork(0, copied),))
        child = FakeChild(stock, counts)
        LoneOracle(child).ask(pair_question(type_, layouts, made, where))
        assert copied and len(child.asked) == asked
        if asked == 2:
            assert child.asked[1] == rewritten_pair(type_, made, "tpu") != rewritten_pair(type_, made)

    def test_our_form_is_compiled_where_stocks_final_program_copies(self):
        counts = compiled(received=96, tile=128, collectives=1)
        final = {"final_bytes_received": 96, "final_moved": counts.moved}
        for work, asked in (((LocalWork(0, 1024),), 2), ((), 1)):
            stock = dataclasses.replace(counts, **final, final_work=work)
            child = FakeChild(stock, dataclasses.replace(counts, **final, final_work=(LocalWork(0, 512),)))
            answer = LoneOracle(child, has_final=True).ask(
                pair_question("tensor<16x8xf32>", self.LAYOUTS, columns_of_rows())
            )
            assert len(child.asked) == asked
            assert Criterion(BETTER, SiteNetwork("cpu:8")).verdict(answer, 8).is_rewrite == (asked == 2)

    def test_layouts_between_are_part_of_the_question(self):
        child = FakeChild(compiled(received=96, tile=128, collectives=1))
        layouts = (self.LAYOUTS[0], Sharding.parse('[{"y"}, {}]'), self.LAYOUTS[1])
        LoneOracle(child).ask(pair_question("tensor<16x8xf32>", layouts, columns_of_rows()))
        assert 'sdy.sharding_constraint %arg0 <@mesh_of_question, [{"y"}, {}]>' in child.asked[0]
