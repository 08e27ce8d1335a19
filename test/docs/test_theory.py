# SPDX-License-Identifier: Apache-2.0
"""The examples on the pages about the theory and topologies run.

The statements of the theory about exhaustive search and about the heuristic's gap are true.
"""

import doctest
import importlib.util
import itertools
import random
import re
from pathlib import Path

import numpy as np
import pytest

from reshard.synthesis.layouts.layout import Factor, Layout, LayoutError, Slot, blocked
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import Problem
from reshard.synthesis.search.cost_to_go import CostToGo
from reshard.synthesis.search.digits import Digits

ROOT = Path(__file__).resolve().parents[2]
_BRUTE_FORCE = importlib.util.spec_from_file_location(
    "brute_force", ROOT / "test/synthesis/planner/test_brute_force.py"
)
brute_force = importlib.util.module_from_spec(_BRUTE_FORCE)
_BRUTE_FORCE.loader.exec_module(brute_force)


@pytest.mark.parametrize("page", ["theory.md", "topologies.md"])
def test_examples_of(page):
    result = doctest.testfile(str(ROOT / "docs" / page), module_relative=False, encoding="utf-8")
    assert result.attempted > 0
    assert result.failed == 0


def test_links_lead_somewhere():
    page = ROOT / "docs" / "theory.md"
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")) if "://" not in link]
    assert links
    assert not [link for link in links if not (page.parent / link).exists()]


# Section 3 and 4: the results of exhaustive search


def _is_blocked(layout: Layout) -> bool:
    ends = [0] * len(layout.shape)
    for _, slot in layout.owners:
        if slot.start != (ends[slot.dim] or 1):
            return False
        ends[slot.dim] = slot.end
    return True


@pytest.mark.parametrize(("with_all_digits", "received"), [(False, 12), (True, 4)])
def test_blocked_layouts_move_three_times_as_much(with_all_digits, received):
    graph = brute_force.Graph(Mesh.parse("x=2,y=2,z=2"), (16, 4))
    x, y, z = graph.factors
    source, target = blocked((16, 4), ((), (x,))), blocked((16, 4), ((x, y, z), ()))
    if not with_all_digits:
        for node, layout in enumerate(graph.layouts):
            if _is_blocked(layout):
                graph.edges[node] = [e for e in graph._edges_of(node) if _is_blocked(graph.layouts[e[0]])]
    costs = graph.least_costs(source, max(source.tile_elements, target.tile_elements))
    assert costs[graph.number[target]] == (received, 1)


@pytest.mark.parametrize("shape", [(4, 4, 2), (4, 8, 4)])
def test_no_chain_turns_the_pencil_below_five_quarters_of_a_tile(shape):
    graph = brute_force.Graph(Mesh.parse("rows=4,cols=2"), shape)
    major, minor, cols = graph.factors
    source, target = blocked(shape, ((major, minor), (cols,), ())), blocked(shape, ((), (major, minor), (cols,)))
    received, _ = graph.least_costs(source, source.tile_elements)[graph.number[target]]
    assert received * 4 == source.tile_elements * 5


# Section 6: the heuristic's gap


def _random_layouts(rng: random.Random) -> tuple[Layout, Layout]:
    """Returns a random layout X and a random blocked layout T of one array; most factors own a digit in both."""
    factors = [Factor(name, 1, rng.choice((2, 2, 3, 3, 4, 6))) for name in "abcd"[: rng.randint(2, 4)]]
    shape = tuple(rng.choice((12, 24, 36, 48, 72, 144, 216)) for _ in range(rng.choice((1, 1, 1, 2))))
    pieces = [[] for _ in shape]
    for factor in rng.sample(factors, len(factors)):
        if rng.random() < 0.9:
            rng.choice(pieces).append(factor)
    owners = []
    for factor in factors:
        slots = [slot for slot in brute_force._slots(shape, factor.size) if all(slot.agrees_with(s) for _, s in owners)]
        if slots and rng.random() < 0.9:
            owners.append((factor, rng.choice(slots)))
    return Layout(shape, tuple(owners)), blocked(shape, tuple(map(tuple, pieces)))


def _most_lacked(mesh: Mesh, before: Layout, after: Layout) -> int:
    """Returns the most elements that a device lacks: those in its tile after, but not in its tile before.

    It looks at each index of each dimension.
    """
    found = 0
    for place in itertools.product(*(range(size) for _, size in mesh.axes)):
        coordinate = dict(zip(mesh.axis_names, place))
        common = 1
        for dim, size in enumerate(before.shape):
            index, held = np.arange(size), np.ones(size, bool)
            for factor, slot in (*before.owners, *after.owners):
                if slot.dim == dim:
                    held &= index // (size // slot.end) % slot.size == coordinate[factor.axis]
            common *= int(held.sum())
        found = max(found, after.tile_elements - common)
    return found


def _is_in_the_gap(before: Layout, after: Layout) -> bool:
    """Returns whether two factors each move between two agreeing slots of the same misaligned cluster of slots."""
    clusters: list[set[Slot]] = []
    for slot in {slot for layout in (before, after) for _, slot in layout.owners}:
        joined = [each for each in clusters if any(not slot.agrees_with(other) for other in each)]
        clusters = [each for each in clusters if each not in joined] + [{slot}.union(*joined)]
    moves = [(slot, after.slot_of(factor)) for factor, slot in before.owners if after.slot_of(factor)]
    moves = [(old, new) for old, new in moves if old != new and old.agrees_with(new)]
    return any(sum(old in each and new in each for old, new in moves) > 1 for each in clusters)


@pytest.mark.parametrize(("is_in_the_gap", "count"), [(False, 500), (True, 50)])
def test_r4_heuristic_is_at_most_what_the_busiest_device_lacks(is_in_the_gap, count):
    rng, compared = random.Random(0), 0
    while compared < count:
        try:
            before, after = _random_layouts(rng)
        except LayoutError:
            continue
        factors = sorted({factor for layout in (before, after) for factor, _ in layout.owners})
        mesh = Mesh(tuple((factor.axis, factor.size) for factor in factors))
        if not factors or mesh.size > 100 or is_in_the_gap and not _is_in_the_gap(before, after):
            continue
        slots = tuple(tuple({s for s in (before.slot_of(f), after.slot_of(f)) if s}) for f in factors)
        digits = Digits(Problem(mesh, before.shape, before, after, tuple(factors), slots))
        assert CostToGo(digits, None)(digits.source)[1] <= _most_lacked(mesh, before, after), (before, after)
        compared += 1
