# SPDX-License-Identifier: Apache-2.0
"""The search: the worked examples of the design, pruning that keeps the cheapest chain, and its limits."""

import contextlib
import gc

import pytest

from benchmarks.conversions.pairs import Pair, random_pairs, random_reductions
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.pricing import Pricing
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.programs.steps import name
from reshard.synthesis.search.best_first import Search, SearchLimit, cheapest_chain


def chain(mesh: str, shape, source: str, target: str, **options):
    return cheapest_chain(refine(Mesh.parse(mesh), shape, Sharding.parse(source), Sharding.parse(target)), **options)


def kinds(found) -> tuple[str, ...]:
    return tuple(map(name, found.chain))


def test_worked_example_i_is_one_all_to_all_at_the_bound():
    found = chain("x=4,y=2", (16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]')
    assert (kinds(found), found.cost) == (("all_to_all",), (448, 1))


def test_worked_example_ii_slices_a_middle_digit_and_needs_no_permute():
    found = chain("x=2,y=2,z=2", (16, 4), '[{}, {"x"}]', '[{"x", "y", "z"}, {}]')
    assert (kinds(found), found.cost) == (("slice", "all_to_all"), (4, 1))
    assert len(found.chain[0].moves) == 2


def test_equal_layouts_need_nothing():
    found = chain("x=4", (8,), '[{"x"}]', '[{"x"}]')
    assert (kinds(found), found.cost) == ((), (0, 0))


def test_of_equal_chains_the_one_with_smaller_tiles_is_taken():
    # gathering y first and then moving z moves as much, on tiles twice as large
    found = chain("x=2,y=2,z=2", (64,), '[{"y", "x", "z"}]', '[{"z", "x"}]')
    assert kinds(found) == ("permute", "all_gather")


def test_gathers_are_of_one_dimension():
    found = chain("x=2,y=2", (8, 8), '[{"x"}, {"y"}]', "[{}, {}]")
    assert (kinds(found), found.cost) == (("all_gather", "all_gather"), (48, 2))


@pytest.mark.parametrize("pair", random_pairs(11, 60, (4, 6, 8, 12)), ids=str)
def test_pruning_loses_nothing(pair):
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target)
    assert cheapest_chain(problem).cost == cheapest_chain(problem, exhaustive=True).cost


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_pruning_loses_nothing_in_hundreds(seed):
    for pair in random_pairs(100 + seed, 100, (4, 6, 8, 12, 16)):
        problem = refine(pair.mesh, pair.shape, pair.source, pair.target)
        assert cheapest_chain(problem).cost == cheapest_chain(problem, exhaustive=True).cost, pair


@pytest.mark.parametrize("pair", random_pairs(12, 40, (8, 12)), ids=str)
def test_heuristic_never_exceeds_the_cost(pair):
    """With greed 0 the search uses no heuristic and is Dijkstra's algorithm."""
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target)
    assert cheapest_chain(problem).cost == cheapest_chain(problem, greed=0).cost


def test_only_chains_below_a_cost_count():
    problem = refine(Mesh.parse("x=2"), (8, 8), Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]'))
    assert cheapest_chain(problem, below=(16, 1)) is None
    assert cheapest_chain(problem, below=(16, 2)).cost == (16, 1)


def test_a_limit_is_no_answer():
    with pytest.raises(SearchLimit):
        chain("x=4,y=2", (16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]', max_edges=0)


# -- partial sums --


@pytest.mark.parametrize("pair", random_reductions(13, 60, (4, 6, 8)), ids=str)
def test_with_partial_sums_pruning_loses_nothing_and_the_heuristic_never_exceeds_the_cost(pair):
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target)
    found = cheapest_chain(problem)
    limit = {"max_edges": 200_000}
    try:
        assert found.cost == cheapest_chain(problem, exhaustive=True, **limit).cost
        assert found.cost == cheapest_chain(problem, greed=0, **limit).cost
    except SearchLimit:
        assert pair.mesh.size == 8


def test_of_the_sums_of_four_devices_each_keeps_a_part():
    found = chain("x=4", (8, 8), '[{}, {}], unreduced={"x"}', '[{}, {"x"}]')
    assert (kinds(found), found.cost) == (("reduce_scatter",), (48, 1))


def test_slices_come_before_reductions():
    found = chain("x=4,y=2", (8, 8), '[{}, {}], unreduced={"x"}', '[{"y"}, {}]')
    assert (kinds(found), found.cost) == (("slice", "all_reduce"), (48, 1))


def test_replicas_share_an_all_reduce():
    found = chain("x=4,y=2", (8, 8), '[{}, {}], unreduced={"x"}', "[{}, {}]")
    assert (kinds(found), found.cost) == (("slice", "all_reduce", "all_gather"), (80, 2))


def test_what_becomes_unreduced_anyway_is_reduced_for_the_length_of_a_gather():
    found = chain("x=4,y=2", (8, 8), '[{"x"}, {}], unreduced={"y"}', '[{}, {}], unreduced={"y"}')
    assert (kinds(found), found.cost) == (
        ("reduce_scatter", "all_gather", "to_unreduced"),
        (32, 2),
    )  # gathering sums: 48


def test_no_tile_is_padded_above_both_ends():
    found = chain("x=2,y=2", (8,), '[{"x"}]', '[{"y"}], unreduced={"x"}')
    assert all(layout.tile_elements <= 4 for layout in found.chain.layouts)


# -- by time --

NETWORKS = ("uniform", "h100", "v5e:2x2*2", "cpu")


def timed(pair, topology: str, **options):
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target)
    return cheapest_chain(problem, pricing=Pricing(Topology.parse(topology), pair.mesh, 32), **options)


@pytest.mark.parametrize("topology", NETWORKS)
def test_by_time_the_heuristic_never_exceeds_the_cost(topology):
    for pair in random_pairs(14, 25, (8,)):
        assert timed(pair, topology).cost == timed(pair, topology, greed=0).cost, pair


@pytest.mark.slow
@pytest.mark.parametrize("topology", NETWORKS)
def test_by_time_the_heuristic_never_exceeds_the_cost_of_hundreds(topology):
    for pair in random_pairs(15, 300, (8,)):
        assert timed(pair, topology).cost == timed(pair, topology, greed=0).cost, pair


@pytest.mark.parametrize("topology", NETWORKS)
def test_a_search_that_stops_has_a_bound_on_what_it_would_have_found(topology):
    for pair in random_pairs(16, 25, (8,)):
        cost = timed(pair, topology).cost
        for limit in (0, 10, 40):
            try:
                assert timed(pair, topology, max_edges=limit).cost == cost
            except SearchLimit as stopped:
                assert stopped.least_cost <= cost
                assert stopped.best is None or stopped.best.cost >= cost


def test_gathers_along_two_dimensions_are_one_while_the_copy_takes_less_than_a_start():
    mesh, ends = Mesh.parse("x=2,y=2"), (Sharding.parse('[{"x"}, {"y"}]'), Sharding.parse("[{}, {}]"))
    small, large = (timed(Pair(mesh, shape, *ends), "uniform") for shape in ((8, 8), (1 << 14, 1 << 14)))
    assert kinds(small) == ("all_gather",)
    assert kinds(large) == ("all_gather", "all_gather")


def test_what_crosses_a_slow_level_is_spread_over_replicas():
    pair = Pair(Mesh.parse("x=2,y=8"), (1 << 20, 16), Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]'))
    assert "all_gather" in kinds(timed(pair, "h100:2"))
    assert kinds(timed(pair, "uniform")) == ("all_to_all",)


def test_a_homeward_search_finds_a_chain_that_costs_as_much_or_more():
    for pair in random_pairs(17, 60, (8, 12)):
        problem = refine(pair.mesh, pair.shape, pair.source, pair.target)
        found = Search(problem, None).anew(homeward=True).run(None, max_edges=1_000_000)
        assert found is None or found.cost >= cheapest_chain(problem).cost


@pytest.mark.parametrize("homeward", [False, True])
def test_a_search_that_knows_the_bounds_of_another_one_finds_what_it_finds_alone(homeward):
    for pair in random_pairs(19, 40, (16, 24)):
        problem = refine(pair.mesh, pair.shape, pair.source, pair.target)
        pricing = Pricing(Topology.parse("uniform"), pair.mesh, 32)
        before = Search(problem, pricing)
        with contextlib.suppress(SearchLimit):
            before.run(None, max_edges=100)
        alone = Search(problem, pricing).anew(homeward).run(None, max_edges=100_000, greed=3)
        assert before.anew(homeward).run(None, max_edges=100_000, greed=3) == alone, pair


def test_a_search_leaves_nothing_to_the_collector_of_cycles():
    """The all_to_alls of each layout once left a reference cycle; collecting the cycles took a tenth of the time."""
    ends = Sharding.parse('[{"x"}, {"y"}, {}]'), Sharding.parse('[{"y"}, {}, {"x"}]')
    problem = refine(Mesh.parse("x=4,y=4"), (16, 16, 16), *ends)
    gc.collect()
    gc.disable()
    try:
        assert cheapest_chain(problem) is not None
        assert gc.collect() == 0
    finally:
        gc.enable()
