# SPDX-License-Identifier: Apache-2.0
"""Axes cut into parts: names of parts and back, and what they gain where no dimension divides by the whole axis."""

import itertools

import pytest

from reshard.synthesis.assignment.axes import MOST_PARTS, cut_axes, swapped_axes, whole_axes
from reshard.synthesis.assignment.clusters import clusters_of
from reshard.synthesis.assignment.description import uses_of
from reshard.synthesis.assignment.dimensions import named_dimensions
from reshard.synthesis.assignment.factored_program import FactoredOp, FactoredProgram, Tensor
from reshard.synthesis.assignment.layout_problem import LayoutProblem
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology

NETWORK, FOUR = Topology.parse("v5e:2x4"), Topology.parse("v5e:2x2")
HEADS = ((0,), (1,), (2,), (3,))  # of [batch, heads, rows, columns]


@pytest.mark.parametrize(
    ("mesh", "sizes"),
    [
        ("x=8", (2, 2, 2)),
        ("x=4,y=2", (2, 2, 2)),
        ("x=2,y=4", (2, 2, 2)),
        ("x=16", (2, 2, 4)),
        ("x=5,y=1", (5, 1)),
        ("x=2,y=2,z=4", (2, 2, 4)),
    ],
)
def test_the_largest_axes_are_cut_as_long_as_there_are_few_parts(mesh, sizes):
    cut = cut_axes(Mesh.parse(mesh))
    assert tuple(size for _, size in cut.parts.axes) == sizes and cut.parts.size == cut.mesh.size
    assert cut.are_whole == (len(sizes) == len(cut.mesh.axes)) and len(sizes) <= max(MOST_PARTS, len(cut.mesh.axes))
    assert whole_axes(cut.mesh).are_whole


@pytest.mark.parametrize("mesh", ["x=8", "x=4,y=2", "x=12", "a=3,b=4", "x.0=2,x=4", "x=4,x.0=2"])
def test_parts_that_are_named_are_found_again(mesh):
    cut = cut_axes(Mesh.parse(mesh))
    for count in range(len(cut.refs) + 1):
        for parts in itertools.combinations(range(len(cut.refs)), count):
            named = cut.named(parts)
            assert cut.parts_of(named) == set(parts)
            sizes = [each.resolve(cut.mesh)[1] for each in named]
            assert all(one.name != other.name or sizes for one, other in itertools.pairwise(named))
    assert [str(each) for each in cut.named(range(len(cut.refs)))] == [f'"{name}"' for name in cut.mesh.axis_names]


def attention(batch: int, heads: int, rows: int) -> FactoredProgram:
    """Returns scores @ scores, for each example and head; the result is summed over its columns."""
    shape = batch, heads, rows, rows
    tensors = (Tensor(shape, 32, name="scores"), Tensor(shape, 32), Tensor(shape[:3], 32))
    dims = (((0,), (1,), (2,), (4,)), ((0,), (1,), (4,), (3,)))
    dot = FactoredOp(
        "dot", (0, 0), (1,), dims, (HEADS,), (*shape, rows), frozenset({4}), flops=2 * batch * heads * rows**3
    )
    total = FactoredOp("reduce", (1,), (2,), (HEADS,), (HEADS[:3],), shape, frozenset({3}))
    return FactoredProgram(tensors, (dot, total), (0,), (2,))


def test_examples_and_heads_share_an_axis_that_neither_divides():
    program = attention(2, 4, 1024)
    whole, parts = (
        LayoutProblem(program, Mesh.parse("x=8"), NETWORK, form=each).solve() for each in ("whole", "parts")
    )
    assert str(parts.layouts[1]) == '[{"x":(1)2}, {"x":(2)4}, {}, {}]'
    assert parts.seconds < whole.seconds
    assert ":(" not in str(parts.layouts[0]) and ":(" not in str(parts.layouts[2])  # which callers see
    shares = {each.sizes: each.shares(program, parts.layouts) for each in named_dimensions(program)}
    assert shares[2,].keys() == {"x:(1)2"} and shares[4,].keys() == {"x:(2)4"}
    assert all(0 < share <= 1 for each in shares.values() for share in each.values())
    uses = uses_of(program, clusters_of(program), parts)
    assert [use.axis for use in uses] == ["x:(1)2", "x:(2)2", "x:(4)2"] and [use.size for use in uses] == [2, 2, 2]


@pytest.mark.mostly_slow
@pytest.mark.parametrize("shape", [(4, 4, 64), (2, 2, 64), (1, 2, 256), (3, 4, 32)])
def test_parts_are_never_worse_than_whole_axes_at_the_same_prices(shape):
    program = attention(*shape)
    whole, parts = (LayoutProblem(program, Mesh.parse("x=4"), FOUR, form=each).solve() for each in ("whole", "parts"))
    assert parts.seconds <= whole.seconds * (
        1 + 1e-6
    )  # which dimension an argument is split along counts next to nothing


def test_what_is_pinned_to_an_axis_is_split_by_all_its_parts():
    program = attention(8, 4, 64)
    pinned = FactoredProgram(program.tensors, program.ops, (0,), (2,), pinned=((1, ((), ("x",), (), ())),))
    found = LayoutProblem(pinned, Mesh.parse("x=4"), FOUR, form="parts").solve()
    assert str(found.layouts[1]) == '[{}, {"x"}, {}, {}]'


def test_of_two_axes_the_last_one_may_be_first():
    """A tensor that both axes split along its rows is taken with rows split by y alone: x is gathered.

    As the mesh has them, x is the first of both, and what lies next to each other on a device is apart in the tensor.
    """
    shape = (4096, 4096)
    tensors = (Tensor(shape, 32), Tensor(shape, 32))
    dims = ((0,), (1,))
    tanh = FactoredOp("sort", (0,), (1,), (dims,), (dims,), shape, whole=frozenset({1}))
    pinned = ((0, (("x", "y"), ())), (1, (("y",), ())))
    program = FactoredProgram(tensors, (tanh,), (0,), (1,), pinned=pinned)
    mesh = Mesh.parse("x=2,y=4")
    whole, swapped = (LayoutProblem(program, mesh, NETWORK, form=form).solve() for form in ("whole", "swapped"))
    assert str(whole.layouts[0]) == '[{"x", "y"}, {}]' and str(swapped.layouts[0]) == '[{"y", "x"}, {}]'
    assert swapped.seconds < whole.seconds
    assert swapped_axes(Mesh.parse("x=8")).are_whole and swapped_axes(Mesh.parse("x=2,y=2,z=2")).are_whole
