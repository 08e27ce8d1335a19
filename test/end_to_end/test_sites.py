# SPDX-License-Identifier: Apache-2.0
"""Sites of every kind are named rightly and rewritten, and XLA runs them with the values of the stock program."""

import re
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline

STEPS = Path(__file__).parent.parent / "passes" / "steps"
MESH = 'sdy.mesh @mesh = <["x"=4, "y"=2]>'


def rewritten(text: str, policy: str = "always") -> tuple[str, list[dict]]:
    """Returns the module after the pipeline, and the report rows."""
    session = Session()
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        Pipeline.default().with_options({"policy": policy}).run(module, session)
        assert module.operation.verify()
        return str(module), session.results.report_rows


def devices(text: str) -> int:
    with make_context() as context:
        return devices_of(ir.Module.parse(text, context))


def sites(rows: Sequence[dict]) -> list[tuple[str, str]]:
    return [(row["kind"], row["op"].split(".")[-1]) for row in rows]


def runs_like_stock(text: str, inputs=None, *, exact: bool = True) -> tuple:
    """Rewrites every site, runs both forms, asserts that the outputs are equal, and returns ours."""
    module, _ = rewritten(text)
    assert module.count("sdy.manual_computation(") > text.count("sdy.manual_computation("), "no site is rewritten"
    stock = shared_child().run(text, inputs, devices(text))
    ours = shared_child().run(module, inputs, devices(text))
    assert ours.status == "ok", ours.message
    assert stock.status == "ok", stock.message
    for mine, theirs in zip(ours.outputs, stock.outputs, strict=True):
        if exact:
            assert mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes()
        else:
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    return ours.outputs


# ---------------------------------------------------------------------------------------------------------------------
# Modules whose sites are known by hand; integers, so that values are exact
# ---------------------------------------------------------------------------------------------------------------------

T = "tensor<16x16xi32>"
ROWS, COLUMNS, BLOCKS, BY_Y = '[{"x"}, {}]', '[{}, {"x"}]', '[{"x"}, {"y"}]', '[{"y"}, {}]'


def tensor(name: str, layout: str, mesh: str = "mesh") -> str:
    return f"{name}{T} {{sdy.sharding = #sdy.sharding<@{mesh}, {layout}>}}"


def constraint(name: str, value: str, layout: str) -> str:
    return f"{name} = sdy.sharding_constraint {value} <@mesh, {layout}> : {T}\n"


def main(arguments: dict[str, str], results: Sequence[str], body: str, mesh: str = MESH) -> str:
    given = ", ".join(tensor(f"{name}: ", layout) for name, layout in arguments.items())
    return (
        f"{mesh}\nfunc.func public @main({given}) -> ({', '.join(tensor('', each) for each in results)}) {{\n"
        f"{body}\n}}\n"
    )


def loop(initial: str, body: str) -> str:
    """Returns a loop with three turns that carries %v; `body` computes the next value, %next; the result is %l#1."""
    return f"""
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %l:2 = stablehlo.while(%i = %zero, %v = {initial}) : tensor<i32>, {T}
        cond {{
          %n = stablehlo.constant dense<3> : tensor<i32>
          %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %go : tensor<i1>
        }} do {{
          %one = stablehlo.constant dense<1> : tensor<i32>
          %j = stablehlo.add %i, %one : tensor<i32>
          {body}
          stablehlo.return %j, %next : tensor<i32>, {T}
        }}
    """


BARRIER = f"%k = stablehlo.optimization_barrier %a : {T}\n"

# name -> (module, its sites as (kind, op), the outputs for inputs a, b as numpy computes them)
BY_HAND = {
    "constraint": (
        main({"%a": ROWS}, [COLUMNS], BARRIER + constraint("%r", "%k", COLUMNS) + f"return %r : {T}"),
        [("constraint", "sharding_constraint")],
        lambda a: [a],
    ),
    "argument": (
        main({"%a": ROWS, "%b": BY_Y}, [ROWS], f"%r = stablehlo.subtract %a, %b : {T}\nreturn %r : {T}"),
        [("argument", "subtract")],
        lambda a, b: [a - b],
    ),
    "function_result": (
        main({"%a": ROWS}, [COLUMNS], f"return %a : {T}"),
        [("function_result", "return")],
        lambda a: [a],
    ),
    "result": (
        main({"%a": ROWS}, [COLUMNS], f"%r = stablehlo.negate %a : {T}\nreturn %r : {T}"),
        [("result", "negate")],
        lambda a: [-a],
    ),
    "operand": (
        main(
            {"%a": ROWS, "%b": BY_Y},
            [BY_Y],
            f"%k = stablehlo.negate %a : {T}\n"
            + constraint("%c", "%k", ROWS)
            + f"%r = stablehlo.subtract %c, %b : {T}\nreturn %r : {T}",
        ),
        [("operand", "subtract")],
        lambda a, b: [-a - b],
    ),
    "call": (
        main({"%a": ROWS, "%b": COLUMNS}, [COLUMNS], f"%r = func.call @f(%a, %b) : ({T}, {T}) -> {T}\nreturn %r : {T}")
        + f"func.func private @f(%a: {T}, %b: {T}) -> {T} {{ %r = stablehlo.subtract %a, %b : {T} return %r : {T} }}",
        [("call", "subtract")],
        lambda a, b: [a - b],
    ),
    "loop": (
        main(
            {"%a": ROWS},
            [ROWS],
            loop("%a", constraint("%k", "%v", COLUMNS) + f"%next = stablehlo.negate %k : {T}") + f"return %l#1 : {T}",
        ),
        [("constraint", "sharding_constraint"), ("loop", "return")],
        lambda a: [-a],
    ),
    "loop_that_starts_otherwise": (
        main(
            {"%a": ROWS},
            [COLUMNS],
            loop("%a", constraint("%k", "%v", COLUMNS) + f"%next = stablehlo.negate %k : {T}") + f"return %l#1 : {T}",
        ),
        [("loop", "while")],
        lambda a: [-a],
    ),
    "a_private_function_in_a_loop_and_after_it": (
        main(
            {"%a": ROWS},
            [ROWS],
            loop("%a", f"%next = func.call @f(%v) : ({T}) -> {T}")
            + f"%r = func.call @f(%l#1) : ({T}) -> {T}\nreturn %r : {T}",
        )
        + f"func.func private @f(%a: {T}) -> {T} {{\n{constraint('%0', '%a', COLUMNS)} %1 = stablehlo.add %0, %0 : "
        f"{T}\n" + f"{constraint('%2', '%1', ROWS)} %3 = stablehlo.optimization_barrier %2 : {T}\nreturn %3 : {T} }}",
        [("loop", "while"), ("loop", "return"), ("result", "add")],
        lambda a: [16 * a],
    ),
    "one_value_returned_and_constrained": (
        main({"%a": ROWS}, [COLUMNS, ROWS], BARRIER + constraint("%r", "%k", COLUMNS) + f"return %r, %k : {T}, {T}"),
        [("constraint", "sharding_constraint"), ("function_result", "return")],
        lambda a: [a, a],
    ),
    "the_same_constraint_twice_and_one_behind_it": (
        main(
            {"%a": ROWS},
            [COLUMNS, BY_Y],
            BARRIER
            + constraint("%r", "%k", COLUMNS)
            + constraint("%s", "%k", COLUMNS)
            + constraint("%u", "%s", BY_Y)
            + f"return %r, %u : {T}, {T}",
        ),
        [("constraint", "sharding_constraint"), ("constraint", "sharding_constraint")],
        lambda a: [a, a],
    ),
    "sub_axes": (
        main({"%a": '[{"x":(2)2}, {"x":(1)2}]'}, ['[{"x":(1)2}, {"y", "x":(2)2}]'], f"return %a : {T}"),
        [("function_result", "return")],
        lambda a: [a],
    ),
    "open_dimensions": (
        main({"%a": '[{"x"}, {?}]'}, ['[{?}, {"x", ?}]'], BARRIER + f"return %k : {T}"),
        [("argument", "optimization_barrier")],
        lambda a: [a],
    ),
    "device_order": (
        main(
            {"%a": ROWS},
            ['[{"y"}, {"x"}]'],
            f"return %a : {T}",
            'sdy.mesh @mesh = <["x"=4, "y"=2], device_ids=[3, 1, 4, 7, 5, 0, 2, 6]>',
        ),
        [("function_result", "return")],
        lambda a: [a],
    ),
    "axes_of_size_one": (
        main(
            {"%a": '[{"one", "x"}, {"uno"}]'},
            ['[{"uno"}, {"y", "one", "x"}]'],
            f"return %a : {T}",
            'sdy.mesh @mesh = <["one"=1, "x"=4, "uno"=1, "y"=2]>',
        ),
        [("function_result", "return")],
        lambda a: [a],
    ),
    "two_names_of_one_mesh": (
        main({"%a": ROWS}, [COLUMNS], f"return %a : {T}", MESH + '\nsdy.mesh @other = <["x"=4, "y"=2]>').replace(
            "@mesh, [{}", "@other, [{}"
        ),
        [("function_result", "return")],
        lambda a: [a],
    ),
    "around_a_manual_computation": (
        main(
            {"%a": ROWS},
            [COLUMNS],
            f"""%m = sdy.manual_computation(%a) in_shardings=[<@mesh, {BY_Y}>] out_shardings=[<@mesh, {BY_Y}>] manual_axes={{"y"}} (%t: tensor<8x16xi32>) {{
                  %s = stablehlo.add %t, %t : tensor<8x16xi32>
                  sdy.return %s : tensor<8x16xi32>
                }} : ({T}) -> {T}
                return %m : {T}""",  # noqa: E501
        ),
        [("argument", "manual_computation"), ("function_result", "return")],
        lambda a: [2 * a],
    ),
    "a_sharding_group": (
        main(
            {"%a": ROWS, "%b": COLUMNS},
            [COLUMNS],
            BARRIER
            + constraint("%c", "%k", COLUMNS)
            + f"""sdy.sharding_group %c group_id=0 : {T}
                %n = stablehlo.negate %b : {T}
                sdy.sharding_group %n group_id=0 : {T}
                %r = stablehlo.add %c, %n : {T}
                return %r : {T}""",
        ),
        [("constraint", "sharding_constraint")],
        lambda a, b: [a - b],
    ),
}


@pytest.mark.mostly_slow
@pytest.mark.parametrize("name", BY_HAND)
def test_sites_of_a_module(name):
    text, expected, numpy_outputs = BY_HAND[name]
    module, rows = rewritten(text)
    assert sites(rows) == expected
    assert rewritten(module)[0] == module
    inputs = [np.arange(256, dtype=np.int32).reshape(16, 16) ** (1 + n) for n in range(text.count("%b: ") and 2 or 1)]
    outputs = runs_like_stock(text, inputs)
    for mine, wanted in zip(outputs, numpy_outputs(*inputs), strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize("branch", [0, 1])
def test_only_the_branch_that_is_taken_converts(branch):
    text = f"""{MESH}
      func.func public @main(%p: tensor<i32>, {tensor("%a: ", ROWS)}) -> ({tensor("", ROWS)}) {{
        %r = "stablehlo.case"(%p) ({{
          {constraint("%c", "%a", COLUMNS)}
          %s = stablehlo.add %c, %c : {T}
          stablehlo.return %s : {T}
        }}, {{
          stablehlo.return %a : {T}
        }}) : (tensor<i32>) -> {T}
        return %r : {T}
      }}"""
    a = np.arange(256, dtype=np.int32).reshape(16, 16)
    (output,) = runs_like_stock(text, [np.int32(branch), a])
    np.testing.assert_array_equal(output, a if branch else 2 * a)


class TestLeftAlone:
    def test_meshes_over_different_devices(self):
        text = main({"%a": ROWS}, ['[{}, {"z"}]'], f"return %a : {T}", MESH + '\nsdy.mesh @half = <["z"=4]>').replace(
            '@mesh, [{}, {"z"}', '@half, [{}, {"z"}'
        )
        module, (row,) = rewritten(text)
        assert "sdy.manual_computation" not in module
        assert row["reason"].startswith("source and target are on meshes over different devices")

    def test_one_device(self):
        text = main({"%a": '[{"x"}, {}]'}, ['[{}, {"x"}]'], f"return %a : {T}", 'sdy.mesh @mesh = <["x"=1]>')
        module, rows = rewritten(text)
        assert rows == [] and "sdy.manual_computation" not in module


# ---------------------------------------------------------------------------------------------------------------------
# Meshes whose size is no power of two: stock XLA may abort, our programs must not
# ---------------------------------------------------------------------------------------------------------------------

SIX, TWENTY_FOUR = 'sdy.mesh @mesh = <["x"=3, "y"=2]>', 'sdy.mesh @mesh = <["a"=2, "b"=3, "c"=4]>'


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    "mesh, shape, source, target",
    [
        (SIX, (12, 18), '[{"y"}, {"x"}]', '[{"x"}, {"y"}]'),
        (SIX, (12, 18), '[{"y"}, {}]', '[{}, {"y", "x"}]'),
        (SIX, (12, 18), '[{"x", "y"}, {}]', '[{}, {"y", "x"}]'),
        (TWENTY_FOUR, (24, 48, 12), '[{"b"}, {"c"}, {}]', '[{"c", "a"}, {}, {"b"}]'),
        (TWENTY_FOUR, (48, 48, 48), '[{"a"}, {"b"}, {"c"}]', '[{}, {}, {"b", "c"}]'),
        (TWENTY_FOUR, (48, 48, 48), '[{"b", "a"}, {"c"}, {}]', '[{"a"}, {"c"}, {"b"}]'),
    ],
)
def test_meshes_that_are_no_power_of_two(mesh, shape, source, target):
    type_ = f"tensor<{'x'.join(map(str, shape))}xi32>"
    text = f"""{mesh}
      func.func public @main(%a: {type_} {{sdy.sharding = #sdy.sharding<@mesh, {source}>}})
          -> ({type_} {{sdy.sharding = #sdy.sharding<@mesh, {target}>}}) {{ return %a : {type_} }}"""
    value = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    module, (row,) = rewritten(text, "better")
    stock = shared_child().compile(text, devices(text))
    if not stock.is_ok:
        assert stock.status == "abort"
        assert row["reason"].startswith("stock XLA aborts: SIGABRT") and row["is_rewritten"]
    module, _ = rewritten(text)
    ran = shared_child().run(module, [value], devices(text))
    assert ran.status == "ok", ran.message
    np.testing.assert_array_equal(ran.outputs[0], value)


# ---------------------------------------------------------------------------------------------------------------------
# Runs of the chains that test/passes/steps shows
# ---------------------------------------------------------------------------------------------------------------------


def functions_of_steps() -> list:
    found = []
    for path in sorted(STEPS.glob("*.mlir")):
        text = re.sub(r"^\s*//.*\n", "", path.read_text(), flags=re.MULTILINE)
        meshes = "\n".join(re.findall(r"^sdy\.mesh.*$", text, re.MULTILINE))
        for function in re.findall(r"^func\.func public @\w+.*?^}", text, re.MULTILINE | re.DOTALL):
            name = re.search(r"@(\w+)", function)[1]
            used = next(line for line in meshes.splitlines() if f"<@{line.split('@')[1].split()[0]}," in function)
            found.append(pytest.param(f"{used}\n{function.replace(f'@{name}', '@main', 1)}", id=f"{path.stem}-{name}"))
    return found


@pytest.mark.mostly_slow
@pytest.mark.parametrize("text", functions_of_steps())
def test_chains_of_the_step_files_move_the_values_where_stock_xla_does(text):
    runs_like_stock(text)


# ---------------------------------------------------------------------------------------------------------------------
# JAX programs, forward and backward
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mesh():
    assert len(jax.devices()) >= 8, "jax was started before test/end_to_end/conftest.py set XLA_FLAGS"
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])


def programs(mesh):
    """Returns name -> (function, arguments): conversions inside and outside of scans, forward and backward."""

    def into(value, *axes):
        return with_sharding_constraint(value, NamedSharding(mesh, P(*axes)))

    def placed(*axes):
        values = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)
        return jax.device_put(values, NamedSharding(mesh, P(*axes)))

    def layer(h, w):
        h = into(jnp.tanh(into(h @ w, "x", "y")), None, ("x", "y"))
        return into(h @ w.T, "y", "x"), jnp.sum(h, axis=0)

    def scanned(h, w):
        h, sums = jax.lax.scan(lambda carried, _: layer(carried, w), into(h, None, "x"), None, length=3)
        return into(h, ("y", "x"), None), sums

    def loss(h, w):
        h, sums = scanned(h, w)
        return jnp.sum(h**2) + jnp.sum(sums)

    def moved(a):
        return jax.lax.scan(
            lambda c, _: (into(into(c, None, "x") * 2, "x", None), into(c.T, "y", "x")), a, None, length=3
        )

    h, w = placed("x"), placed(None, "y")
    return {
        "moved": (moved, (h,)),
        "forward": (scanned, (h, w)),
        "backward": (jax.grad(loss, (0, 1)), (h, w)),
        "backward_of_a_checkpoint": (jax.grad(lambda h, w: jnp.sum(jax.checkpoint(layer)(h, w)[0]) ** 2), (h, w)),
    }


@pytest.mark.parametrize(
    "name",
    ["moved", pytest.param("forward"), pytest.param("backward", marks=pytest.mark.slow), "backward_of_a_checkpoint"],
)
def test_jax_programs(mesh, name):
    function, arguments = programs(mesh)[name]
    jax.clear_caches()
    lowered = jax.jit(function).lower(*arguments)
    result = reshard.optimize(lowered, policy="always", check=False)
    assert result.is_rewritten
    ours, stock = result.compile()(*arguments), lowered.compile()(*arguments)
    alone = jax.tree.map(lambda array: jax.device_put(np.asarray(array), jax.devices()[0]), arguments)
    with jax.disable_jit():
        expected = stock if name != "moved" else _moved_by_numpy(*map(np.asarray, alone))
    for mine, theirs, wanted in zip(*map(jax.tree.leaves, (ours, stock, expected)), strict=True):
        assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim)
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(np.asarray(mine), np.asarray(wanted), rtol=2e-5, atol=2e-5)


def _moved_by_numpy(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return 8 * a, np.stack([a.T, 2 * a.T, 4 * a.T])


@pytest.mark.slow
def test_a_checked_backward_pass_is_no_worse_than_stock(mesh):
    function, arguments = programs(mesh)["backward"]
    jax.clear_caches()
    lowered = jax.jit(function).lower(*arguments)
    result = reshard.optimize(lowered)
    for check in result.report.to_dict()["checks"]:
        assert check["ours"]["bytes_received"] <= check["stock"]["bytes_received"]
    ours, stock = result.compile()(*arguments), lowered.compile()(*arguments)
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(stock), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=2e-5, atol=2e-5)
