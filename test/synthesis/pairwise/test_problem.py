# SPDX-License-Identifier: Apache-2.0
"""The reductions of pairwise problems: what is looked at in few states is what is true in all."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from reshard.synthesis.pairwise.problem import _least_sums, _never_more

COSTS = st.sampled_from([0.0, 1.0, 2.0, 3.0, float("inf")])


def table(rows: int, columns: int):
    return arrays.arrays(np.float64, (rows, columns), elements=COSTS)


@st.composite
def nodes(draw):
    """Returns the costs of a node, and a table for each of its neighbours."""
    states = draw(st.integers(2, 6))
    costs = draw(arrays.arrays(np.float64, states, elements=COSTS))
    return costs, [draw(table(states, draw(st.integers(1, 5)))) for _ in range(draw(st.integers(0, 3)))]


@given(nodes())
def test_a_state_is_dominated_if_another_one_never_costs_more(node):
    costs, tables = node
    found = _never_more(costs, tables)
    for t, s in np.ndindex(len(costs), len(costs)):
        if t == s:
            continue
        with np.errstate(invalid="ignore"):
            more = [costs[t] - costs[s]]
            for each in tables:  # where both are impossible, neither is worse
                both = np.isinf(each[t]) & np.isinf(each[s])
                more.append(np.where(both, 0.0, each[t] - each[s]).max())
            wanted = sum(more) <= 0
        assert (found is not None and found[t, s]) == wanted, (t, s)


@given(st.data())
def test_the_best_state_of_a_node_for_each_state_of_its_neighbours(data):
    states = data.draw(st.integers(1, 5))
    costs = data.draw(arrays.arrays(np.float64, states, elements=COSTS))
    tables = [data.draw(table(data.draw(st.integers(1, 4)), states)) for _ in range(data.draw(st.integers(0, 2)))]
    least, best = _least_sums(costs, tables)
    for at in np.ndindex(*map(len, tables)):
        total = costs + sum(each[row] for each, row in zip(tables, at, strict=True))
        assert least[at] == total.min() and best[at] == total.argmin()
