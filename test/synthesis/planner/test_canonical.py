# SPDX-License-Identifier: Apache-2.0
"""The names of axes, axes of size 1 and the spelling of a sharding do not change a plan."""

import random
import re

import pytest

from benchmarks.conversions.pairs import Pair, random_pairs, random_reductions
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding
from reshard.synthesis.planner.entry import NoPlanError, plan
from reshard.synthesis.plans.plan_layouts import layouts
from reshard.synthesis.programs import interpreter as semantics
from reshard.synthesis.programs.steps import Relayout, text
from reshard.synthesis.search.best_first import tally

PAIRS = random_pairs(71, 60, (4, 6, 8, 12, 16)) + random_reductions(72, 30, (4, 6, 8, 12))


def renamed(pair: Pair, seed: int) -> tuple[Pair, dict[str, str]]:
    """Returns the pair with other axis names, in another alphabetical order, and with additional axes of size 1."""
    rng = random.Random(seed)
    fresh = rng.sample([f"{a}{b}" for a in "qzam" for b in "xib"], len(pair.mesh.axes))
    names = dict(zip(pair.mesh.axis_names, fresh))
    axes = [(names[name], size) for name, size in pair.mesh.axes]
    for number in range(2):
        axes.insert(rng.randint(0, len(axes)), (f"one{number}", 1))

    def side(sharding: Sharding) -> Sharding:
        def refs(axes):
            return tuple(AxisRef(names[axis.name], axis.pre_size, axis.size) for axis in axes)

        dims = [refs(axes) for axes in sharding.dims]
        dims[0] = (AxisRef("one0"), *dims[0])
        return Sharding(tuple(dims), unreduced=refs(sharding.unreduced))

    return Pair(Mesh(tuple(axes), pair.mesh.device_ids), pair.shape, side(pair.source), side(pair.target)), names


@pytest.mark.draws
@pytest.mark.parametrize("seed, pair", list(enumerate(PAIRS)), ids=str)
def test_other_names_same_plan(seed, pair):
    other, names = renamed(pair, seed)
    mine, theirs = (
        plan(p.mesh, p.shape, 32, p.source, p.target, objective="time", with_exchange=True) for p in (pair, other)
    )
    assert (theirs.mesh, theirs.source, theirs.target) == (other.mesh, other.source, other.target)
    numbers = (
        "bytes_received bytes_sent time_s peak_bytes largest_tile_bytes is_optimal collectives bound_bytes bound_time_s"
    )
    assert all(getattr(mine, name) == getattr(theirs, name) for name in numbers.split())
    translated = [re.sub(r"\b[xyzwuv]\b(?! \[)", lambda name: names[name[0]], step.text) for step in mine.steps]
    assert translated == [step.text for step in theirs.steps]
    semantics.check(theirs.tile_program, other.shape, other.source, other.target)


@pytest.mark.parametrize("pair", PAIRS[:30], ids=str)
def test_texts_say_what_the_steps_do(pair):
    """The texts of a plan come from the canonical plan.

    If the axes of the mesh are in alphabetical order, these texts equal the texts of the steps.
    """
    found = plan(pair.mesh, pair.shape, 32, pair.source, pair.target)
    for step, before in zip(found.steps, layouts(found)):
        assert isinstance(step.step, Relayout) or step.text == text(before, step.step, found.mesh)


def test_errors_name_the_callers_axes():
    mesh, ends = Mesh.parse("rows=6"), (Sharding.parse('[{"rows":(1)2}]'), Sharding.parse('[{"rows":(1)3}]'))
    with pytest.raises(NoPlanError, match='axis "rows" is cut at'):
        plan(mesh, (6,), 32, *ends)
    with pytest.raises(NoPlanError, match=r'shards of \[\{"rows"\}\]'):
        plan(mesh, (7,), 32, Sharding.parse('[{"rows"}]'), Sharding.parse("[{}]"))


def test_pieces_of_an_axis_and_the_axis_are_one():
    mesh, target = Mesh.parse("x=4,y=2"), Sharding.parse('[{}, {"y"}]')
    whole, pieces = (
        plan(mesh, (8, 8), 32, Sharding.parse(text), target) for text in ('[{"x"}, {}]', '[{"x":(1)2, "x":(2)2}, {}]')
    )
    assert whole.steps == pieces.steps and str(pieces.source) == '[{"x":(1)2, "x":(2)2}, {}]'


def test_problems_that_differ_in_names_share_one_search():
    ends = Sharding.parse('[{"u"}, {"v"}, {}]'), Sharding.parse('[{}, {"u"}, {"v"}]')
    others = Sharding.parse('[{"b"}, {"a"}, {}]'), Sharding.parse('[{}, {"b"}, {"a"}]')
    before = tally.edges
    plan(Mesh.parse("u=4,v=2"), (16, 16, 48), 32, *ends)
    searched = tally.edges
    plan(Mesh.parse("b=4,one=1,a=2"), (16, 16, 48), 32, *others)
    assert before < searched == tally.edges
