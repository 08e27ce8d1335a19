# SPDX-License-Identifier: Apache-2.0
"""Layouts for a whole program: which mesh axis splits which dimension, chosen together, with a bound on what is left.

>>> problem = PairwiseProblem()
>>> one, other = problem.add([0.0, 1.0]), problem.add([3.0, 0.0])
>>> problem.join(one, other, np.array([[0.0, 2.0], [2.0, 0.0]]))
>>> solve(problem).states
(1, 1)
"""

import numpy as np

from .pairwise import PairwiseProblem
from .solving import solve

__all__ = [
    "clusters",
    "description",
    "factored_program",
    "layout_problem",
    "pairwise",
    "solving",
]
