# SPDX-License-Identifier: Apache-2.0
"""Small programs, all of whose layouts are tried: the solver has the same optimum, or none where there is none."""

import functools
import math
from dataclasses import replace

import pytest

from benchmarks.exhaustive import comparing
from benchmarks.exhaustive.__main__ import main
from benchmarks.exhaustive.comparing import Compared, compared, drawn
from benchmarks.exhaustive.drawing import Case, draw
from reshard.synthesis.assignment.layout_problem import LayoutProblem
from reshard.synthesis.pairwise import solving
from reshard.synthesis.pairwise.problem import Reduction

KINDS = {
    "impossible by its pins": lambda found: math.isinf(found.free_s),
    "impossible by its limit": lambda found: math.isfinite(found.free_s) and not found.is_possible,
    "slower by its limit": lambda found: found.is_possible and found.is_limit_felt,
    "pinned": lambda found: found.is_possible and found.case.pins > 0,
    "with a loop": lambda found: found.is_possible and "while" in found.case.ops,
}
SEEDS = {
    "impossible by its pins": (98,),
    "impossible by its limit": (67, 119),
    "slower by its limit": (7, 48, 79, 87),
    "pinned": (123, 131),
    "with a loop": (13, 72),
}

TURNED = """sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%x: tensor<4096x4096xf32>) -> tensor<4096x4096xf32> {
  %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %1 = stablehlo.subtract %0, %x : tensor<4096x4096xf32>
  return %1 : tensor<4096x4096xf32>
}
"""
LESS_ITS_TRANSPOSE = Case(0, TURNED, ("transpose", "subtract"), "x=2,y=2", "uniform")


@functools.cache
def of_seed(seed: int) -> Compared:
    found = compared(draw(seed))
    assert found is not None
    return found


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind, seeds in SEEDS.items() for seed in seeds])
def test_the_solver_finds_what_trying_all_layouts_finds(kind, seed):
    found = of_seed(seed)
    assert found.problems == [] and KINDS[kind](found)


def test_a_matrix_less_its_transpose_has_a_layout_that_is_that_of_neither():
    """The result was tied to one operand by a tie that was given up; so one conversion had to cross both axes."""
    found = compared(LESS_ITS_TRANSPOSE)
    assert found is not None and found.problems == []
    assert found.anew.combinations == 81  # nine layouts of the argument, and nine of the result


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("count", [50, 200])
def test_many_programs_have_the_same_optimum(count):
    found = [each for each in drawn(count) if each is not None]
    assert [(each.case.seed, each.problems) for each in found if each.problems] == []
    for kind, of_200 in zip(KINDS, (15, 10, 10, 20, 15)):
        assert sum(map(KINDS[kind], found)) >= of_200 * count // 200, kind
    assert {each.case.mesh_text.count(",") for each in found} == {0, 1} and len({e.case.network for e in found}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("few", "count"), [(solving._FEW, 40), (0, 12)], ids=["elimination", "messages"])
def test_so_have_they_if_nothing_is_reduced_before(few, count, monkeypatch):
    """Reductions decide most small programs. Large ones are searched: by elimination, messages, linear programs."""
    monkeypatch.setattr(solving, "_FEW", few)
    monkeypatch.setattr(Reduction, "run", lambda self: None)
    found = [each for each in drawn(count) if each is not None]
    assert [each.problems for each in found if each.problems] == []
    assert all(each.left for each in found if each.is_possible)


# ---- what does not agree is found


def test_a_solution_that_is_not_the_best_or_a_bound_above_the_best_is_a_problem():
    found = of_seed(87)
    assert found.problems == []
    assert len(replace(found, seconds=found.seconds * 1.001).problems) == 2  # for each way to try all
    assert len(replace(found, bound=found.seconds * 1.001).problems) == 2
    assert len(replace(found, usual_s=found.seconds * 1.02).problems) == 1
    assert len(replace(found, seconds=math.inf, usual_s=math.inf).problems) == 2


@pytest.mark.parametrize("forgotten", ["_fused_s", "_op_s", "_held_s"])
def test_a_cost_of_which_the_stated_problem_forgets_a_part_is_a_problem(forgotten, monkeypatch):
    priced = getattr(LayoutProblem, forgotten)
    monkeypatch.setattr(LayoutProblem, forgotten, lambda self, *args: 0.9 * priced(self, *args))
    found = compared(LESS_ITS_TRANSPOSE)
    assert found is not None and found.problems


def test_a_loop_whose_trips_the_stated_problem_forgets_is_a_problem(monkeypatch):
    monkeypatch.setattr(LayoutProblem, "_conversion_runs", lambda *_: (1, 1))
    assert any((found := compared(draw(seed))) is not None and found.problems for seed in SEEDS["with a loop"])


def test_a_copy_that_memory_forgets_is_a_problem(monkeypatch):
    monkeypatch.setattr(LayoutProblem, "_copy", lambda self, *args: None)
    assert any((found := compared(draw(seed))) is not None and found.problems for seed in SEEDS["slower by its limit"])


def test_the_command_fails_if_something_disagrees(monkeypatch, capsys):
    agreeing, loop = of_seed(87), of_seed(13)
    monkeypatch.setattr("benchmarks.exhaustive.__main__.drawn", lambda *_, **__: iter([agreeing, None, loop]))
    assert main(["--count", "2"]) == 0
    said = capsys.readouterr().out
    assert "| all | 2 |" in said and "1 programs of more than 50,000 combinations were left out" in said
    wrong = replace(loop, bound=2 * loop.seconds)
    monkeypatch.setattr("benchmarks.exhaustive.__main__.drawn", lambda *_, **__: iter([agreeing, wrong]))
    assert main(["--count", "2"]) == 1
    said = capsys.readouterr().out
    assert "seed 13 on x=4, uniform: the bound is" in said and "stablehlo.while" in said


def test_a_program_with_too_many_combinations_is_left_out():
    assert compared(draw(13), most=100) is None and comparing.MOST == 50_000
