# SPDX-License-Identifier: Apache-2.0
"""What decides between two forms of a module: time, memory, bytes on an unknown network, the compiler's estimate."""

from dataclasses import replace

import pytest

from reshard.dialect_utils.xla.child import Compiled
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.sites.oracle import ALWAYS, BETTER, STRICT
from reshard.passes.whole_module.joint_choice import Outcome
from reshard.passes.whole_module.module_cost import ModuleCriterion, compared, is_better, is_clearly_faster
from reshard.synthesis.network.program_time import LocalWork
from reshard.synthesis.programs.traffic import Collective

UNKNOWN, TWO_NODES = SiteNetwork(), SiteNetwork("h100:2x2")
INSIDE, ACROSS = ((0, 1), (2, 3)), ((0, 2), (1, 3))


def program(received: int, groups=INSIDE, temp: int = 5000, **more) -> Compiled:
    moved = (Collective("all_gather", received, 2 * received, groups=groups),)
    memory = {"argument_bytes": 100, "output_bytes": 100, "temp_bytes": temp, "alias_bytes": 0}
    sides = {"bytes_sent": received, "largest_collective_tile_bytes": 0, "moved": moved}
    return Compiled("ok", bytes_received=received, **sides, **memory, **more)


def problem(stock: Compiled, ours: Compiled, network=UNKNOWN, policy=BETTER) -> str:
    return ModuleCriterion(policy, network, 4).problem(stock, ours)


def test_what_is_equal_or_faster_has_no_problem():
    stock = program(10**6)
    assert problem(stock, stock) == problem(stock, program(10**5)) == ""


@pytest.mark.parametrize("policy", [BETTER, STRICT])
def test_bytes_may_not_rise_on_an_unknown_network(policy):
    found = problem(program(10**6), program(10**6 + 1), policy=policy)
    assert found.startswith("received bytes per device 1,000,000 -> 1,000,001")


def test_on_a_known_network_bytes_may_rise_if_time_falls():
    stock, ours = program(10**7, ACROSS), program(12 * 10**6, INSIDE)
    assert problem(stock, ours, TWO_NODES) == ""
    assert "received bytes" in problem(stock, ours, TWO_NODES, STRICT)
    assert problem(ours, stock, TWO_NODES).startswith("modelled time ")


def test_memory_may_not_rise_above_stock_unless_the_limit_allows_it():
    stock, ours = program(10**6), program(10**5, temp=50_000)
    assert problem(stock, ours) == "temporaries in bytes 5,000 -> 50,000"
    assert problem(stock, ours, SiteNetwork("", 60_000)) == ""
    assert "the limit of the whole is 40,000" in problem(stock, ours, SiteNetwork("", 40_000))


def test_what_a_program_keeps_on_the_chip_is_no_memory_that_it_needs():
    stock, ours = (program(10**6, temp=1000, peak_memory_bytes=peak, peak_has_chip=True) for peak in (1500, 2**27))
    assert problem(stock, ours) == "" and ours.limited_bytes == ours.peak_bytes
    more = replace(ours, temp_bytes=20_000)
    assert problem(stock, more) == f"memory in bytes {stock.peak_bytes:,} -> {more.peak_bytes:,}"
    assert "memory in bytes" in problem(stock, replace(ours, peak_has_chip=False))


def test_the_limit_is_named_with_which_a_form_that_lacks_only_memory_could_be_taken():
    stock, ours = program(10**6), program(10**5, temp=50_000)
    criterion = ModuleCriterion(BETTER, SiteNetwork(), 8)
    limit = criterion.missing_limit(stock, ours)
    assert problem(stock, ours, SiteNetwork("", limit)) == "" != problem(stock, ours, SiteNetwork("", limit - 1))
    assert criterion.missing_limit(stock, program(10**5)) is None  # it lacks nothing
    assert criterion.missing_limit(stock, replace(ours, output_shardings=("b",))) is None
    assert criterion.missing_limit(replace(stock, status="abort"), ours) is None


def test_the_compilers_own_estimate_may_be_two_percent_longer():
    stock = program(10**6, estimated_seconds=1e-3)
    assert problem(stock, program(10**5, estimated_seconds=1.01e-3)) == ""
    assert "the compiler's own estimate in us" in problem(stock, program(10**5, estimated_seconds=1.03e-3))


GENERATED = {"final_bytes_received": 0}  # the code generator prices the final program's local work


@pytest.mark.parametrize(
    "then, now",
    [
        ({}, {}),
        ({"scheduled_seconds": 1e-3}, {}),
        ({"lacks_estimate": True}, {"lacks_estimate": True}),
        ({"scheduled_seconds": 1e-3}, {"scheduled_seconds": 1e-3}),
    ],
)
def test_the_code_generators_time_may_be_two_percent_longer_beside_estimates_and_without(then, now):
    stock = program(10**6, generated_seconds=1e-3, **GENERATED, **then)
    near, far, without = (
        program(10**5, generated_seconds=each, **GENERATED, **now) for each in (1.01e-3, 1.03e-3, None)
    )
    assert problem(stock, near, TWO_NODES) == problem(stock, without, TWO_NODES) == ""
    assert problem(stock, far, TWO_NODES).startswith("time by the compiler's code generator 1,000.0 us -> 1,030.0 us")


def test_the_code_generators_time_has_collectives_and_what_has_no_price_by_the_model():
    """1.8e9 bytes at the bandwidth of an H100's memory, 3.35e12 bytes/s, take 537 us."""
    criterion = ModuleCriterion(BETTER, TWO_NODES, 4)
    moved = (Collective("all_gather", 10**7, 2 * 10**7, groups=INSIDE),)
    priced = program(10**7, generated_seconds=1e-3, final_bytes_received=10**7, final_moved=moved)
    collectives_s = criterion.time(priced, priced).collectives_s
    assert collectives_s > 0 and criterion.generated_s(priced) == pytest.approx(1e-3 + collectives_s)
    more = replace(priced, generated_without=(LocalWork(0, 1_800_000_000, 1),))
    assert criterion.generated_s(more) == pytest.approx(1e-3 + collectives_s + 1.8e9 / 3.35e12)
    assert criterion.generated_s(replace(priced, final_unpriced=("recv",))) is None
    assert ModuleCriterion(BETTER, UNKNOWN, 4).generated_s(priced) is None


def test_the_final_program_may_not_take_longer_if_it_is_priced():
    stock = program(10**6, final_bytes_received=10, final_moved=program(10**6).moved)
    ours = replace(program(10**5), final_bytes_received=10, final_moved=program(10**7).moved)
    assert problem(stock, ours).startswith("modelled time 58.0 us -> ")
    assert problem(stock, replace(ours, final_unpriced=("recv",))) == ""


@pytest.mark.parametrize("policy", [BETTER, STRICT])
def test_shardings_of_inputs_and_outputs_stay(policy):
    stock = replace(program(10**6), input_shardings=("a",), output_shardings=("b",))
    ours = replace(program(10**5), input_shardings=("c",), output_shardings=("d",))
    for side in ("input", "output"):
        assert f"the {side} shardings differ from stock XLA's" in problem(stock, ours, policy=policy)


def test_always_asks_only_that_xla_compiles():
    assert problem(program(1), program(10**9, temp=10**9), policy=ALWAYS) == ""
    assert problem(program(1), Compiled("abort", "SIGABRT"), policy=ALWAYS) == "XLA aborts: SIGABRT"


def test_outcomes_are_ordered_by_use_then_time_then_bytes():
    usable = Outcome("", 2.0, (5,))
    assert is_better(usable, Outcome("worse", 1.0))
    assert not is_better(Outcome("worse", 1.0), usable)
    assert is_better(Outcome("", 1.0, (9,)), usable)
    assert is_better(Outcome("", 2.0001, (4,)), usable) and not is_better(usable, usable)


def test_forms_that_differ_in_the_number_of_rewritten_sites_alone_are_alike_in_words():
    stock, network = program(10**6), ModuleCriterion(BETTER, TWO_NODES, 4)
    with_sites, without = (network.outcome(stock, stock, sites) for sites in (6, 0))
    said = compared(with_sites, without)
    assert said.startswith("modelled time ") and said.endswith(" us either way")
    less = network.outcome(stock, program(10**6, temp=4000), 6)
    assert compared(less, without) == "temporaries in bytes 4,000 with the rewrite, 5,000 without, in the same time"


def test_under_strict_as_many_sites_as_may_be_are_best():
    criterion = ModuleCriterion(STRICT, UNKNOWN, 4)
    few, many = (criterion.outcome(program(10**6), program(10**5), sites) for sites in (1, 3))
    assert is_better(many, few)


def test_times_of_final_programs_are_never_compared_with_times_after_partitioning():
    """Ours has an op without a price in its final program, which takes ten times as long as after partitioning."""
    long = (Collective("all_gather", 10**8, 2 * 10**8, groups=INSIDE),)
    stock = program(10**6, final_bytes_received=10**8, final_moved=long)
    ours = program(2 * 10**6, final_bytes_received=0, final_unpriced=("send",))
    criterion = ModuleCriterion(BETTER, TWO_NODES, 4)
    then, now = (criterion.time(stock, each).seconds for each in (stock, ours))
    after_partitioning = [TWO_NODES.time_of(each, 4).seconds for each in (stock, ours)]
    assert now / then == pytest.approx(after_partitioning[1] / after_partitioning[0]) and now > then
    assert problem(stock, ours, TWO_NODES).startswith("modelled time ")
    assert not is_better(criterion.outcome(stock, ours, 1), criterion.outcome(stock, stock, 0))


def test_the_limit_holds_for_the_allocation_too_where_the_compilers_peak_leaves_out_a_part():
    stock = program(10**6, temp=1000, peak_memory_bytes=1000)
    ours = program(10**5, temp=50_000, peak_memory_bytes=2000)
    assert problem(stock, ours, SiteNetwork("", 60_000)) == ""
    assert "the limit of the whole is 40,000" in problem(stock, ours, SiteNetwork("", 40_000))


def test_estimates_have_the_reduce_scatters_that_the_compiler_has_for_free_at_their_modelled_times():
    free, criterion = (
        (Collective("reduce_scatter", 10**8, 2 * 10**8, groups=INSIDE),),
        ModuleCriterion(BETTER, TWO_NODES, 4),
    )
    added_us = 1e6 * TWO_NODES.collectives_s(free, 4)
    stock = program(10**5, scheduled_seconds=2e-3, estimated_seconds=1e-3)
    ours = replace(stock, scheduled_without=free)
    assert criterion.estimates_us(stock, ours) == (2000.0, pytest.approx(2000 + added_us, abs=0.1))
    assert criterion.estimates_us(ours, ours)[0] == criterion.estimates_us(ours, ours)[1]
    assert problem(stock, ours, TWO_NODES).startswith("the compiler's own estimate in us 2,000.0 -> ")
    assert problem(stock, replace(ours, scheduled_without=()), TWO_NODES) == problem(ours, ours, TWO_NODES) == ""
    assert criterion.outcome(stock, ours, 1).of == ours  # what is reported is the compiler's own number
    of_other_schedule = replace(ours, scheduled_seconds=None)
    assert criterion.estimates_us(stock, of_other_schedule) == (1000.0, 1000.0)
    longer = replace(of_other_schedule, estimated_without=free)
    assert criterion.estimates_us(stock, longer) == (1000.0, pytest.approx(1000 + added_us, abs=0.1))
    assert ModuleCriterion(BETTER, UNKNOWN, 4).estimates_us(stock, ours) == (2000.0, 2000.0)


def test_a_second_witness_counts_what_is_free_in_both():
    free = (Collective("reduce_scatter", 10**8, 2 * 10**8, groups=INSIDE),)
    criterion = ModuleCriterion(BETTER, TWO_NODES, 4)
    less_s = TWO_NODES.collectives_s(free, 4) / 2
    seconds = (2e-3, 2e-3 - less_s)
    islands, whole = (program(10**5, scheduled_seconds=each, scheduled_without=free) for each in seconds)
    outcomes = [Outcome("", seconds, (), of) for seconds, of in ((0.95, whole), (1.0, islands))]
    assert is_clearly_faster(*outcomes, criterion)
    bare = replace(outcomes[1], of=replace(islands, scheduled_without=()))
    assert not is_clearly_faster(outcomes[0], bare, criterion)
