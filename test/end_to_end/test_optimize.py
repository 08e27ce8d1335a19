# SPDX-License-Identifier: Apache-2.0
"""`reshard.optimize(lowered)`: the compiled program is called like the stock one and computes the same."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.passes.driver.pipeline import Pipeline

ROWS_AND_PLANES, COLUMNS = P("y", None, "x"), P(None, ("x", "y"), None)


@pytest.fixture(scope="module")
def mesh():
    assert len(jax.devices()) >= 8, "jax was started before test/end_to_end/conftest.py set XLA_FLAGS"
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])


@pytest.fixture
def cube(mesh):
    """Returns a cube in a layout from which stock XLA gathers the whole cube to reach COLUMNS."""
    return jax.device_put(np.arange(16**3, dtype=np.float32).reshape(16, 16, 16), NamedSharding(mesh, ROWS_AND_PLANES))


def into_columns(mesh, value):
    return with_sharding_constraint(value, NamedSharding(mesh, COLUMNS))


def optimized(function, *args, **options):
    """Returns the lowered function and the result of optimize; asserts that it is rewritten."""
    jax.clear_caches()
    lowered = function.lower(*args)
    result = reshard.optimize(lowered, **options)
    assert result.is_rewritten, result.report.text()
    return lowered, result


def assert_equal_trees(ours, stock):
    assert jax.tree.structure(ours) == jax.tree.structure(stock)
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(stock)):
        assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim)
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


class TestCalledLikeStock:
    def test_pytrees(self, mesh, cube):
        @jax.jit
        def function(state, pair):
            return {"sum": into_columns(mesh, state["a"]) + 1, "rest": (pair[1], [pair[0]])}

        args = ({"a": cube}, (jnp.float32(2), jnp.arange(3)))
        lowered, result = optimized(function, *args)
        assert_equal_trees(result.compile()(*args), lowered.compile()(*args))

    def test_keyword_and_static_arguments(self, mesh, cube):
        @partial(jax.jit, static_argnames=("factor",))
        def function(a, *, factor, b):
            return into_columns(mesh, a) * factor + b

        jax.clear_caches()
        lowered = function.lower(cube, factor=3, b=jnp.float32(1))
        result = reshard.optimize(lowered)
        assert result.is_rewritten
        assert_equal_trees(result.compile()(cube, b=jnp.float32(1)), lowered.compile()(cube, b=jnp.float32(1)))

    def test_donated_buffers_are_gone(self, mesh, cube):
        @partial(jax.jit, donate_argnums=0)
        def function(a, b):
            return a + 1, into_columns(mesh, b)

        other = jax.device_put(np.ones((16, 16, 16), np.float32), cube.sharding)
        _, result = optimized(function, cube, other)
        compiled = result.compile()
        first, second = compiled(cube, other)
        assert cube.is_deleted() and not other.is_deleted()
        np.testing.assert_array_equal(np.asarray(first), np.arange(16**3).reshape(16, 16, 16) + 1)
        np.testing.assert_array_equal(np.asarray(second), 1)
        assert compiled.memory_analysis().alias_size_in_bytes == 16**3 * 4 // 8

    def test_a_donated_buffer_that_is_converted(self, mesh, cube):
        function = jax.jit(
            lambda a: into_columns(mesh, a) * 2, donate_argnums=0, out_shardings=NamedSharding(mesh, ROWS_AND_PLANES)
        )
        expected = np.asarray(cube) * 2
        _, result = optimized(function, cube, policy="always")
        np.testing.assert_array_equal(np.asarray(result.compile()(cube)), expected)
        assert cube.is_deleted()

    def test_output_shardings_are_those_of_the_caller(self, mesh, cube):
        function = jax.jit(lambda a: a, out_shardings=NamedSharding(mesh, COLUMNS))
        lowered, result = optimized(function, cube)
        output = result.compile()(cube)
        assert output.sharding == lowered.compile()(cube).sharding == NamedSharding(mesh, COLUMNS)

    def test_output_shardings_that_were_left_open_are_those_of_stock(self, mesh, cube):
        function = jax.jit(lambda a: (into_columns(mesh, a), a.T, jnp.sum(a)))
        lowered, result = optimized(function, cube)
        assert_equal_trees(result.compile()(cube), lowered.compile()(cube))

    def test_arrays_in_the_closure(self, mesh, cube):
        weights = np.linspace(0, 1, 16, dtype=np.float32)
        placed = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(mesh, P("x")))
        lowered, result = optimized(jax.jit(lambda a: into_columns(mesh, a) * weights + placed), cube)
        assert_equal_trees(result.compile()(cube), lowered.compile()(cube))

    @pytest.mark.mostly_slow
    @pytest.mark.parametrize("dtype", ["bool", "uint8", "bfloat16", "complex64", "int4", "float8_e4m3fn"])
    def test_dtypes(self, mesh, dtype):
        """The cast is inside, since jax 0.10 compiles int4 arguments as packed but passes them unpacked."""
        values = (np.arange(16**3) % 7).reshape(16, 16, 16)
        placed = jax.device_put(values, NamedSharding(mesh, ROWS_AND_PLANES))
        function = jax.jit(
            lambda a: into_columns(mesh, jax.lax.optimization_barrier(a.astype(dtype))).astype("complex64")
        )
        _, result = optimized(function, placed, policy="always")
        np.testing.assert_array_equal(
            np.asarray(result.compile()(placed)), values.astype(jnp.dtype(dtype)).astype("complex64")
        )

    def test_a_compiled_object_of_jax(self, mesh, cube):
        _, result = optimized(jax.jit(partial(into_columns, mesh)), cube)
        compiled = result.compile()
        assert isinstance(compiled, jax.stages.Compiled)
        assert compiled.input_shardings[0][0].is_equivalent_to(cube.sharding, 3)
        assert "all-to-all" in compiled.as_text()
        with pytest.raises(TypeError):
            compiled(np.zeros(3, np.float32))


class TestTheLoweredObject:
    def test_stays_as_it_is(self, mesh, cube):
        jax.clear_caches()
        lowered = jax.jit(partial(into_columns, mesh)).lower(cube)
        before = lowered.as_text()
        result = reshard.optimize(lowered)
        assert result.is_rewritten
        assert lowered.as_text() == before != result.lowered.as_text()
        assert "sdy.manual_computation" in result.module and "sdy.manual_computation" not in before
        assert "all-to-all" not in lowered.compile().as_text()

    def test_one_that_is_compiled_already_is_compiled_anew(self, mesh, cube):
        """jit may return a lowering that it has compiled before."""
        function = jax.jit(partial(into_columns, mesh))
        function(cube)
        lowered = function.lower(cube)
        stock = lowered.compile()
        result = reshard.optimize(lowered)
        assert "all-to-all" in result.compile().as_text()
        assert "all-to-all" not in stock.as_text()
        assert_equal_trees(result.compile()(cube), function(cube))

    def test_is_handed_back_if_no_site_is_worth_it(self, mesh):
        matrix = jax.device_put(np.zeros((16, 8), np.float32), NamedSharding(mesh, P("x")))
        lowered = jax.jit(lambda a: a, out_shardings=NamedSharding(mesh, P(None, "x"))).lower(matrix)
        result = reshard.optimize(lowered)
        assert result.lowered is lowered
        assert not result.is_rewritten
        assert result.report.to_dict()["totals"]["sites"] == 1

    @pytest.mark.slow
    def test_is_handed_back_if_the_check_takes_everything_back(self, mesh):
        """Each of six conversions is better alone; stock XLA makes all of them of one gather."""
        axes = [(None,) * dim + (order,) for dim in (1, 3, 4) for order in (("x", "y"), ("y", "x"))]
        array = jax.device_put(np.ones((8,) * 5, np.float32), NamedSharding(mesh, P("y", None, "x")))
        outputs = [NamedSharding(mesh, P(*each)) for each in axes]
        lowered = jax.jit(lambda a: [a] * 6, out_shardings=outputs).lower(array)
        result = reshard.optimize(lowered)
        assert result.lowered is lowered and not result.is_rewritten
        (check,) = result.report.to_dict()["checks"]
        assert check["attempts"] and check["ours"] == check["stock"]
        assert reshard.optimize(lowered, policy="always").is_rewritten

    def test_is_handed_back_without_sites(self):
        lowered = jax.jit(jnp.sin).lower(np.float32(1))
        result = reshard.optimize(lowered)
        assert result.lowered is lowered
        assert result.report.text().startswith("reshard: no site")


class TestKeptOnDisk:
    @pytest.fixture
    def runs(self, tmp_path, monkeypatch):
        """Returns the list of the pipelines that ran since the start with an empty cache."""
        monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path))
        monkeypatch.delenv("RESHARD_CACHE", raising=False)
        found, run = [], Pipeline.run

        def counted(pipeline, *arguments):
            found.append(str(pipeline))
            return run(pipeline, *arguments)

        monkeypatch.setattr(Pipeline, "run", counted)
        return found

    def test_the_same_program_is_read_and_computes_the_same(self, mesh, cube, runs):
        function = jax.jit(lambda x: into_columns(mesh, x) + 1)
        found = [(*optimized(function, cube), len(runs)) for _ in range(2)]  # one line: locations hold the call's line
        (_, first, ran), (lowered, again, ran_again) = found
        assert ran_again == ran
        assert again.module == first.module and again.report.to_dict() == first.report.to_dict()
        assert_equal_trees(again.compile()(cube), lowered.compile()(cube))

    def test_one_that_is_left_alone_is_read_too(self, runs):
        lowered = jax.jit(jnp.sin).lower(np.float32(1))
        first = reshard.optimize(lowered)
        ran = len(runs)
        again = reshard.optimize(lowered)
        assert len(runs) == ran and again.lowered is lowered and again.module == first.module

    def test_another_location_option_or_program_is_not(self, mesh, cube, runs):
        for function in (
            lambda x: into_columns(mesh, x) + 1,
            lambda x: into_columns(mesh, x) + 1,
            lambda x: into_columns(mesh, x) + 2,
        ):
            ran = len(runs)
            optimized(jax.jit(function), cube)
            assert len(runs) > ran
        for options in ({"check": False}, {"policy": "always"}):
            ran = len(runs)
            optimized(jax.jit(function), cube, **options)
            assert len(runs) > ran


class TestReport:
    def test_text_and_plain_data(self, mesh, cube):
        _, result = optimized(jax.jit(partial(into_columns, mesh)), cube)
        text, data = str(result.report), result.report.to_dict()
        assert "1 site: 1 rewritten, 0 left to XLA\n" in text
        received = "1,792 bytes received per device, 14,336 with stock XLA"
        assert f"  sum over the rewritten sites, each compiled alone: {received}" in text
        assert text.startswith("whole module, as XLA compiles it") and data["not_measured"] is None
        assert "test_optimize.py:" in text
        assert json.loads(json.dumps(data)) == data
        assert data["schema"] == "reshard.report/1"
        (site,) = data["sites"]
        assert (site["kind"], site["source"], site["target"]) == (
            "constraint",
            '[{"y"}, {}, {"x"}]',
            '[{}, {"x", "y"}, {}]',
        )
        assert (site["source_spec"], site["target_spec"]) == ("P('y', None, 'x')", "P(None, ('x', 'y'), None)")
        assert data["checks"][0]["ours"]["bytes_received"] == 1792


class TestMistakes:
    def test_an_unknown_option(self):
        with pytest.raises(ValueError, match="unknown option 'polcy'; known: policy, oracle, emit"):
            reshard.optimize(jax.jit(jnp.sin).lower(1.0), polcy="always")

    def test_an_unknown_value(self):
        with pytest.raises(ValueError, match="policy=never is not available; choose from better, strict, always"):
            reshard.optimize(jax.jit(jnp.sin).lower(1.0), policy="never")

    def test_a_function_that_is_not_lowered(self):
        with pytest.raises(TypeError, match=r"takes what jax.jit\(f\).lower\(\*args\) returns"):
            reshard.optimize(jnp.sin)


@pytest.mark.slow
def test_the_report_lists_the_longest_collectives_unless_they_are_off(monkeypatch, tmp_path):
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path / "cache"))
    text = (Path(__file__).resolve().parents[2] / "docs" / "tiny.mlir").read_text()

    def listed(**options):
        return "where the bytes go" in reshard.optimize(text, topology="h100:2x4", **options).report.text()

    assert listed() and not listed(traffic="off") and listed(traffic="on")
    with reshard.options(traffic="off"):
        assert not listed()
