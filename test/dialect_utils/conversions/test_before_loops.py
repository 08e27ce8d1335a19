# SPDX-License-Identifier: Apache-2.0
"""Work that leaves less to hold through a loop is done before it, and computes what it computed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.dialect_utils.conversions.before_loops import LEAST_BYTES, shrink_before_loops
from reshard.dialect_utils.ir.functions import public_functions
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child

LARGE, SMALL = f"tensor<{LEAST_BYTES // 2048}x1024xf32>", "tensor<1024xf32>"  # 2 MiB
ROWS = LARGE.partition("<")[2].partition("x")[0]


@pytest.fixture(autouse=True)
def context():
    with make_context():
        yield


def summed(name: str, of: str) -> str:
    """Returns the sum over rows of a large value."""
    return f"""%{name} = stablehlo.reduce(%{of} init: %zero) applies stablehlo.add across dimensions = [0]
      : ({LARGE}, tensor<f32>) -> {SMALL}"""


def with_loop(before: str, behind: str, *, carried: str = "%c", inside: str = "", hands_on: str = "") -> ir.Module:
    """Returns a module with a loop of three turns, which doubles a small value, and may hand a large one on."""
    large, also, kind = (f", %b = {hands_on}", ", %b", f", {LARGE}") if hands_on else ("", "", "")
    return ir.Module.parse(f"""
    module attributes {{mhlo.num_partitions = 1 : i32}} {{
    func.func public @main(%x: {LARGE}, %y: {SMALL}) -> ({SMALL}, {SMALL}) {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %none = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %three = stablehlo.constant dense<3> : tensor<i32>
      %c = stablehlo.sine %y : {SMALL}
      {before}
      %l:{3 if hands_on else 2} = stablehlo.while(%i = %none, %a = {carried}{large}) : tensor<i32>, {SMALL}{kind}
      cond {{
        %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %1 : tensor<i1>
      }} do {{
        {inside}
        %1 = stablehlo.add %i, %one : tensor<i32>
        %2 = stablehlo.add %a, %a : {SMALL}
        stablehlo.return %1, %2{also} : tensor<i32>, {SMALL}{kind}
      }}
      {behind}
      return %l#1, %s : {SMALL}, {SMALL}
    }}}}""")


# A large value that two ops take, so that it is in memory: a sum before the loop, which is in memory, too, and what is
# behind it.
MADE = f"%g = stablehlo.cosine %x : {LARGE}\n{summed('early', 'g')}\n%d = stablehlo.sine %early : {SMALL}"


def moved_in(module: ir.Module) -> int:
    (function,) = public_functions(ops_in(module.operation))
    return shrink_before_loops(function.regions[0].blocks[0])


def order_of(module: ir.Module) -> list[str]:
    (function,) = public_functions(ops_in(module.operation))
    names = [each.operation.name.removeprefix("stablehlo.") for each in function.regions[0].blocks[0].operations]
    return [each for each in names if each not in ("constant", "func.return")]


def values_of(module: str) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in ((int(ROWS), 1024), (1024,))]
    ran = shared_child().run(module, inputs, 1)
    assert ran.status == "ok", ran.message
    return ran.outputs


def test_what_is_made_of_a_large_value_is_made_before_the_loop():
    module = with_loop(
        MADE, f"{summed('late', 'g')}\n%e = stablehlo.add %late, %early : {SMALL}\n%s = stablehlo.add %e, %d : {SMALL}"
    )
    before = str(module)
    assert moved_in(module) == 1
    assert module.operation.verify()
    assert order_of(module) == [
        "sine", "cosine", "reduce", "sine", "reduce", "optimization_barrier", "while", "add", "add"
    ]  # fmt: skip
    after = str(module)
    assert [each.tobytes() for each in values_of(before)] == [each.tobytes() for each in values_of(after)]
    assert moved_in(module) == 0


def test_ops_that_it_takes_results_of_come_along():
    behind = f"%t = stablehlo.tanh %g : {LARGE}\n{summed('late', 't')}\n%e = stablehlo.add %late, %early : {SMALL}"
    behind += f"\n%s = stablehlo.add %e, %d : {SMALL}"
    module = with_loop(MADE, behind)
    assert moved_in(module) == 2
    assert order_of(module)[2:7] == ["reduce", "sine", "tanh", "reduce", "optimization_barrier"]


FREE = f"{summed('late', 'g')}\n%e = stablehlo.add %late, %early : {SMALL}"


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda: with_loop("", f"{summed('s', 'x')}"), id="an argument is held anyway"),
        pytest.param(
            lambda: with_loop(f"%g = stablehlo.cosine %x : {LARGE}", summed("s", "g")),
            id="a value that is computed where it is used",
        ),
        pytest.param(
            lambda: with_loop(MADE, f"{FREE}\n%s = stablehlo.add %e, %d : {SMALL}", inside=summed("held", "g")),
            id="each turn needs what it is made of",
        ),
        pytest.param(
            lambda: with_loop(MADE, f"{FREE}\n%s = stablehlo.add %e, %d : {SMALL}", hands_on="%g"),
            id="the loop hands on what it is made of",
        ),
        pytest.param(
            lambda: with_loop(
                MADE,
                f"""%b = stablehlo.broadcast_in_dim %l#1, dims = [1] : ({SMALL}) -> {LARGE}
      %h = stablehlo.add %g, %b : {LARGE}
      {summed("s", "h")}""",
            ),
            id="it needs the loop",
        ),
        pytest.param(
            lambda: with_loop(
                MADE,
                f"""{summed("late", "g")}
      %b = stablehlo.broadcast_in_dim %l#1, dims = [1] : ({SMALL}) -> {LARGE}
      %h = stablehlo.add %g, %b : {LARGE}
      {summed("more", "h")}
      %s = stablehlo.add %late, %more : {SMALL}""",
            ),
            id="something else needs it behind the loop",
        ),
        pytest.param(
            lambda: with_loop(MADE, f"{FREE}\n%s = stablehlo.add %e, %d : {SMALL}", carried="%y"),
            id="a loop that takes nothing computed",
        ),
    ],
)
def test_the_rest_stays(module):
    module = module()
    before = str(module)
    assert moved_in(module) == 0 and str(module) == before


@given(st.data())
def test_any_order_computes_the_same(data):
    """Ops behind the loop at random, of values from before it, from the loop, and of each other."""
    lines, large, small = [], ["g", "x"], ["early", "c", "y", "l#1"]
    for number in range(data.draw(st.integers(1, 6))):
        name = f"v{number}"
        kind = data.draw(st.sampled_from(["sum", "map", "spread", "add"]))
        if kind == "sum":
            lines.append(summed(name, data.draw(st.sampled_from(large))))
            small.append(name)
        elif kind == "map":
            lines.append(f"%{name} = stablehlo.tanh %{data.draw(st.sampled_from(large))} : {LARGE}")
            large.append(name)
        elif kind == "spread":
            of = data.draw(st.sampled_from(small))
            lines.append(f"%{name} = stablehlo.broadcast_in_dim %{of}, dims = [1] : ({SMALL}) -> {LARGE}")
            large.append(name)
        else:
            one, other = (data.draw(st.sampled_from(small)) for _ in range(2))
            lines.append(f"%{name} = stablehlo.add %{one}, %{other} : {SMALL}")
            small.append(name)
    lines.append(summed("sum", data.draw(st.sampled_from(large))))
    lines.append(f"%s = stablehlo.add %sum, %{data.draw(st.sampled_from(small))} : {SMALL}")
    with make_context():
        module = with_loop(MADE, "\n".join(lines))
        before = str(module)
        moved = moved_in(module)
        assert module.operation.verify()
        after = str(module)
    assert (before == after) == (moved == 0)
    assert [each.tobytes() for each in values_of(before)] == [each.tobytes() for each in values_of(after)]
