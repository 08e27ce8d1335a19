# SPDX-License-Identifier: Apache-2.0
"""Between which numbers the elements of integer tensors lie, beside what XLA computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from reshard.dialect_utils.ir.index_ranges import Ranges
from reshard.dialect_utils.ir.ops import ops_in, terminator_of
from reshard.dialect_utils.platform.bindings import ir, make_context

I32 = (-(2**31), 2**31 - 1)
TYPES = (np.int8, np.uint8, np.int32, np.uint32)


def ranges_in(function, *arguments, name="stablehlo.dynamic_slice"):
    """Returns for the first op of a name the ranges of its operands that are integers."""
    module = jax.jit(function).lower(*arguments).compiler_ir("stablehlo")
    with module.context:
        op = next(op for op in ops_in(module.operation) if op.name == name)
        return [each for operand in op.operands if (each := Ranges().of(operand)) is not None]


def range_of_result(function, *arguments, along=None):
    """Returns the range of a result; with `along`, a dimension and a place on it, of the elements there."""
    module = jax.jit(function).lower(*arguments).compiler_ir("stablehlo")
    with module.context:
        main = next(op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main")
        result = terminator_of(main.regions[0].blocks[0]).operands[0]
        return Ranges().of(result) if along is None else Ranges().along(result, *along)


X = np.zeros((8, 4), np.float32)
N = np.int32(3)


def test_slices_of_a_scan_start_inside():
    assert ranges_in(lambda x: lax.scan(lambda c, row: (c + row, row), x[0], x), X) == [(0, 7), (0, 0)]


def test_slices_of_a_reversed_scan_start_inside():
    assert ranges_in(lambda x: lax.scan(lambda c, row: (c + row, row), x[0], x, reverse=True), X) == [(0, 7), (0, 0)]


def test_slices_of_the_gradient_of_a_scan_start_inside():
    def loss(x):
        return lax.scan(lambda c, row: (jnp.tanh(c * row), None), x[0], x)[0].sum()

    module = jax.jit(jax.grad(loss)).lower(X).compiler_ir("stablehlo")
    with module.context:
        slices = [op for op in ops_in(module.operation) if op.name == "stablehlo.dynamic_slice"]
        assert {Ranges().of(op.operands[1]) for op in slices} == {(0, 7)}


def test_a_loop_that_counts_in_steps_up_to_an_argument():
    def count(x, n):
        def body(carried):
            i, total = carried
            return i + 2, total + lax.dynamic_slice(x, (i, 0), (1, 4))

        return lax.while_loop(lambda c: c[0] < n, body, (jnp.int32(1), jnp.zeros((1, 4))))

    assert ranges_in(count, X, N)[0] == I32  # the last step may wrap around
    assert ranges_in(lambda x, n: count(x, jnp.clip(n, 0, 6)), X, N)[0] == (1, 5)
    assert ranges_in(lambda x, n: count(x, jnp.clip(n, -3, 0)), X, N)[0] == (1, 1)  # no turn


def test_a_loop_that_counts_down_has_any_number():
    def count(x):
        def body(carried):
            i, total = carried
            return i - 1, total + lax.dynamic_slice(x, (i, 0), (1, 4))

        return lax.while_loop(lambda c: c[0] > 0, body, (jnp.int32(7), jnp.zeros((1, 4))))

    assert ranges_in(count, X)[0] == I32


def test_a_number_that_a_loop_only_hands_on_is_what_it_was():
    def run(x, n):
        k = lax.clamp(jnp.int32(2), n, jnp.int32(5))
        return lax.fori_loop(
            0, 4, lambda i, c: (c[0], c[1] + lax.dynamic_slice(x, (c[0], jnp.int32(0)), (1, 4))), (k, jnp.zeros((1, 4)))
        )

    assert ranges_in(run, X, N)[0] == (2, 5)


def test_a_counter_behind_its_loop_is_beyond_its_end():
    def run(x):
        last = lax.while_loop(lambda i: i < 6, lambda i: i + 4, jnp.int32(0))
        return lax.dynamic_slice(x, (last, 0), (1, 4))

    assert ranges_in(run, X)[0] == (0, 9)


@pytest.mark.parametrize(
    "function, found",
    [
        (lambda n: n, I32),
        (lambda n: lax.rem(n, jnp.int32(5)), (-4, 4)),
        (lambda n: lax.rem(lax.max(n, jnp.int32(0)), jnp.int32(5)), (0, 4)),
        (lambda n: lax.rem(n, lax.min(n, jnp.int32(5))), I32),  # by zero or less
        (lambda n: n & 6, (0, 6)),
        (lambda n: n + 1, I32),
        (lambda n: lax.clamp(jnp.int32(3), n, jnp.int32(1)), (1, 1)),
        (lambda n: lax.div(lax.clamp(jnp.int32(-7), n, jnp.int32(9)), jnp.int32(2)), (-3, 4)),
        (lambda n: (n > 0).astype(jnp.int32) * 3 - 1, (-1, 2)),
        (lambda n: jnp.where(lax.clamp(jnp.int32(0), n, jnp.int32(4)) < 0, jnp.int32(-9), jnp.int32(2)), (2, 2)),
        (lambda n: lax.broadcasted_iota(jnp.int32, (3, 5), 1).T.reshape(15) * 2, (0, 8)),
        (lambda n: jnp.asarray([4, -2, 7], jnp.int32)[::-1], (-2, 7)),
        (lambda n: jnp.concatenate([jnp.arange(3), jnp.full((2,), -1)]), (-1, 2)),
        (lambda n: jnp.asarray(2.5 * n, jnp.int8), (-128, 127)),
        (lambda n: lax.clamp(jnp.int32(0), n, jnp.int32(300)).astype(jnp.uint8), (0, 255)),
        (lambda n: n.astype(jnp.float32), None),
    ],
)
def test_arithmetic(function, found):
    assert range_of_result(function, N) == found


FUNCTIONS = """
func.func private @half(%a: tensor<i32>) -> tensor<i32> {
  %two = stablehlo.constant dense<2> : tensor<i32>
  %h = stablehlo.divide %a, %two : tensor<i32>
  return %h : tensor<i32>
}
func.func @main(%n: tensor<i32>) -> tensor<i32> {
  %ten = stablehlo.constant dense<10> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %0 = func.call @half(%ten) : (tensor<i32>) -> tensor<i32>
  %1 = func.call @half(%four) : (tensor<i32>) -> tensor<i32>
  OTHER
  return %0 : tensor<i32>
}"""
COMPOSITE = '%2 = stablehlo.composite "t.half" %n {decomposition = @half} : (tensor<i32>) -> tensor<i32>'


@pytest.mark.parametrize(
    "text, halves",
    [
        (FUNCTIONS.replace("OTHER", ""), (2, 5)),
        (FUNCTIONS.replace("OTHER", COMPOSITE), (-(2**30), 2**30 - 1)),
        (FUNCTIONS.replace("OTHER", "").replace("private ", ""), (-(2**30), 2**30 - 1)),
    ],
)
def test_a_result_is_that_of_its_call_and_an_argument_that_of_all_calls(text, halves):
    with make_context() as context:
        module = ir.Module.parse(text, context)
        calls = [op for op in ops_in(module.operation) if op.name == "func.call"]
        assert [Ranges().of(call.results[0]) for call in calls] == [(5, 5), (2, 2)]
        divided = next(op for op in ops_in(module.operation) if op.name == "stablehlo.divide")
        assert Ranges().of(divided.results[0]) == halves


def range_returned(text: str):
    """Returns the range of what the function `main` of a module returns."""
    with make_context() as context:
        module = ir.Module.parse(text, context)
        main = next(op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main")
        return Ranges().of(terminator_of(main.regions[0].blocks[0]).operands[0])


@pytest.mark.parametrize(
    "constant, kind, found",
    [
        ("dense<3>", "tensor<i4>", (-8, 7)),
        ("dense<[1, 2]>", "tensor<2xui4>", (0, 15)),
        ("dense<1>", "tensor<0xi32>", I32),
        ("dense<true>", "tensor<i1>", (1, 1)),
        ("dense<[true, false]>", "tensor<2xi1>", (0, 1)),
        ("dense<200>", "tensor<ui8>", (200, 200)),
    ],
)
def test_constants_that_are_narrow_or_empty_have_the_range_of_their_type(constant, kind, found):
    text = f"func.func @main() -> {kind} {{ %c = stablehlo.constant {constant} : {kind} return %c : {kind} }}"
    assert range_returned(text) == found


def test_calls_that_fan_out_are_looked_at_once():
    levels = 40
    call = "%{0} = func.call @f{1}(%a) : (tensor<i32>) -> tensor<i32>"
    functions = "".join(
        f"""func.func private @f{level}(%a: tensor<i32>) -> tensor<i32> {{
          {call.format("x", level + 1)} {call.format("y", level + 1)}
          %m = stablehlo.maximum %x, %y : tensor<i32> return %m : tensor<i32> }} """
        for level in range(levels)
    )
    last = f"func.func private @f{levels}(%a: tensor<i32>) -> tensor<i32> {{ return %a : tensor<i32> }}"
    main = f"""func.func @main() -> tensor<i32> {{ %a = stablehlo.constant dense<7> : tensor<i32>
      {call.format("r", 38)} return %r : tensor<i32> }}"""
    assert range_returned(functions + last + main) == (7, 7)
    assert range_returned(functions + last + main.replace("@f38", "@f0")) in ((7, 7), I32)  # too deep to be known


def starts_of_a_batch(rows):
    """Returns starts as JAX writes them for a batch of updates in [8, 16, 4]: each clamped, some of them known."""
    columns = jnp.full_like(rows, 7)
    starts = jnp.stack([rows, columns, jnp.zeros_like(rows)], axis=1)
    return lax.clamp(jnp.int32(0), starts, jnp.broadcast_to(jnp.asarray([7, 12, 0], jnp.int32), starts.shape))


@pytest.mark.parametrize(("component", "found"), [(0, (0, 7)), (1, (7, 7)), (2, (0, 0))])
def test_components_of_starts_have_ranges_of_their_own(component, found):
    assert range_of_result(starts_of_a_batch, np.zeros(5, np.int32)) == (0, 12)
    assert range_of_result(starts_of_a_batch, np.zeros(5, np.int32), along=(1, component)) == found


@pytest.mark.parametrize(("place", "found"), [(127, (127, 127)), (128, (-128, 127)), (299, (-128, 127))])
def test_an_iota_that_wraps_around_may_be_any_number(place, found):
    assert range_of_result(lambda: lax.iota(np.int8, 300), along=(0, place)) == found


def test_a_value_that_is_used_twice_is_looked_at_once():
    def doubled(x):
        for _ in range(40):
            x = lax.min(x, lax.max(x, -x))
        return jnp.stack([x, x], axis=1) + jnp.asarray([[1, 2]], jnp.int32)

    least, most = range_of_result(doubled, np.zeros(3, np.int32), along=(1, 1))
    assert least <= 2 <= most


def test_places_are_found_behind_reshapes_that_keep_the_dimension_and_only_there():
    def places(x, shape):
        return jnp.reshape(x + lax.broadcasted_iota(jnp.int32, (3, 4), 1), shape)

    x = np.zeros((3, 4), np.int32)
    for shape, along, found in (((3, 1, 4), (2, 3), (3, 3)), ((4, 3), (0, 3), (0, 3)), ((12,), (0, 5), (0, 3))):
        assert range_of_result(lambda x, to=shape: places(lax.clamp(0, x, 0), to), x, along=along) == found


@st.composite
def expressions(draw, kind, depth=4):
    """Returns a function of three vectors of a type, made of random arithmetic."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        number = draw(st.integers(0, 4))
        if number < 3:
            return lambda *vectors: vectors[number]
        value = int(np.clip(draw(st.integers(-130, 260)), np.iinfo(kind).min, np.iinfo(kind).max))
        return lambda *vectors: jnp.full(5, value, kind)
    name = draw(st.sampled_from(["add", "sub", "mul", "div", "rem", "min", "max", "and", "clamp", "select", "cast"]))
    one, other, third = (draw(expressions(kind, depth - 1)) for _ in range(3))
    if name == "clamp":
        return lambda *v: lax.clamp(one(*v), other(*v), third(*v))
    if name == "select":
        compare = draw(st.sampled_from([lax.lt, lax.le, lax.gt, lax.ge, lax.eq, lax.ne]))
        return lambda *v: lax.select(compare(one(*v), other(*v)), third(*v), one(*v))
    if name == "cast":
        through = draw(st.sampled_from(TYPES))
        return lambda *v: one(*v).astype(through).astype(kind)
    if name in ("div", "rem"):
        function = getattr(lax, name)
        return lambda *v: function(one(*v), lax.max(other(*v), jnp.full(5, 1, kind)))
    function = {"min": lax.min, "max": lax.max, "and": lax.bitwise_and}.get(name) or getattr(lax, name)
    return lambda *v: function(one(*v), other(*v))


@pytest.mark.slow
@settings(deadline=None)
@given(st.data())
def test_what_is_computed_lies_between(data):
    kind = data.draw(st.sampled_from(TYPES))
    function = data.draw(expressions(kind))
    bounds = np.iinfo(kind)
    numbers = st.integers(int(bounds.min), int(bounds.max)) | st.integers(0, 9)
    vectors = [np.asarray(data.draw(st.lists(numbers, min_size=5, max_size=5)), kind) for _ in range(2)]
    few = lax.iota(kind, 5)
    least, most = range_of_result(lambda a, b: function(a, b, few), *vectors)
    values = np.asarray(jax.jit(lambda a, b: function(a, b, few))(*vectors)).astype(np.int64)
    assert least <= values.min() and values.max() <= most

    def table(a, b):
        return jnp.concatenate([function(a, b, few)[:, None], jnp.stack([a, few], axis=1)], axis=1) + few[:3]

    shown = np.asarray(jax.jit(table)(*vectors)).astype(np.int64)
    for dimension, place in ((0, 4), (1, 0), (1, 1), (1, 2)):
        least, most = range_of_result(table, *vectors, along=(dimension, place))
        part = shown.take(place, dimension)
        assert least <= part.min() and part.max() <= most
