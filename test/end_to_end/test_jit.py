# SPDX-License-Identifier: Apache-2.0
"""`reshard.jit` and `reshard.enabled` act like jax.jit, with rewritten programs, and leave no change in jax behind."""

import sys
import threading
from functools import partial, wraps

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compiler
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard

ROWS_AND_PLANES, COLUMNS = P("y", None, "x"), P(None, ("x", "y"), None)
SHAPE = (16, 16, 16)


@pytest.fixture(autouse=True)
def fresh_caches():
    jax.clear_caches()


@pytest.fixture(scope="module")
def mesh():
    assert len(jax.devices()) >= 8, "jax was started before test/end_to_end/conftest.py set XLA_FLAGS"
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])


@pytest.fixture
def cube(mesh):
    """Returns a cube in a layout from which stock XLA gathers the whole cube to reach COLUMNS."""
    return placed(mesh, np.arange(16**3, dtype=np.float32).reshape(SHAPE))


def placed(mesh, values):
    return jax.device_put(values, NamedSharding(mesh, ROWS_AND_PLANES))


def into_columns(mesh, value):
    return with_sharding_constraint(value, NamedSharding(mesh, COLUMNS))


def assert_equal_trees(ours, stock):
    assert jax.tree.structure(ours) == jax.tree.structure(stock)
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(stock)):
        assert mine.dtype == theirs.dtype
        assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim)
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def compared(function, *args, rewritten=True, **kwargs):
    """Returns the result of a function; asserts that it is the same under both jits and whether ours is rewritten."""
    stock = jax.jit(function)(*args, **kwargs)
    with reshard.enabled() as programs:
        ours = jax.jit(function)(*args, **kwargs)
    assert any(each.is_rewritten for each in programs) == rewritten, programs
    assert_equal_trees(ours, stock)
    assert_equal_trees(reshard.jit(function)(*args, **kwargs), stock)
    return ours


@pytest.mark.slow
class TestWhatAFunctionMayHave:
    def test_pytrees_and_keyword_arguments(self, mesh, cube):
        def function(state, *, pair):
            return {"sum": into_columns(mesh, state["a"]) + 1, "rest": (pair[1], [pair[0]])}

        compared(function, {"a": cube}, pair=(jnp.float32(2), jnp.arange(3)))

    def test_arrays_in_the_closure(self, mesh, cube):
        weights = np.linspace(0, 1, 16, dtype=np.float32)
        row = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(mesh, P("x")))
        compared(lambda a: into_columns(mesh, a) * weights + row, cube)

    def test_static_arguments(self, mesh, cube):
        @partial(reshard.jit, static_argnums=1, static_argnames=("offset",))
        def function(a, factor, offset):
            assert isinstance(factor, int) and isinstance(offset, float)
            return into_columns(mesh, a) * factor + offset

        expected = np.asarray(cube)
        np.testing.assert_array_equal(np.asarray(function(cube, 3, offset=1.0)), expected * 3 + 1)
        np.testing.assert_array_equal(np.asarray(function(cube, 4, offset=1.0)), expected * 4 + 1)

    def test_donated_arguments(self, mesh, cube):
        function = reshard.jit(lambda a, b: (a + 1, into_columns(mesh, b)), donate_argnums=0)
        other = placed(mesh, np.ones(SHAPE, np.float32))
        first, second = function(cube, other)
        assert cube.is_deleted() and not other.is_deleted()
        np.testing.assert_array_equal(np.asarray(first), np.arange(16**3).reshape(SHAPE) + 1)
        np.testing.assert_array_equal(np.asarray(second), 1)

    def test_output_shardings_that_were_left_open_are_those_of_stock(self, mesh, cube):
        compared(lambda a: (into_columns(mesh, a), a.T, jnp.sum(a)), cube)

    def test_input_shardings_that_were_left_open_are_those_of_stock(self, mesh, cube):
        def function(a):
            return into_columns(mesh, a) + with_sharding_constraint(a, NamedSharding(mesh, ROWS_AND_PLANES))

        shape = jax.ShapeDtypeStruct(cube.shape, cube.dtype)
        stock = jax.jit(function).lower(shape).compile()
        ours = reshard.jit(function, reshard_options={"policy": "always"}).lower(shape).compile()
        assert "reshard/0/" in ours.as_text()
        assert ours.input_shardings == stock.input_shardings and ours.output_shardings == stock.output_shardings
        compared(function, np.asarray(cube))

    def test_gradients_inside(self, mesh, cube):
        small = placed(mesh, np.asarray(cube) % 5)  # the sums of these values are exact in any order
        compared(jax.value_and_grad(lambda a: jnp.sum(into_columns(mesh, a * a) ** 2)), small)

    def test_vmap_inside(self, mesh, cube):
        pair = jax.device_put(np.stack([np.asarray(cube)] * 2), NamedSharding(mesh, P(None, *ROWS_AND_PLANES)))
        compared(jax.vmap(lambda a: into_columns(mesh, a) + 1), pair)

    def test_scan_inside(self, mesh, cube):
        def step(carry, factor):
            moved = into_columns(mesh, carry * factor)
            return with_sharding_constraint(moved + 1, NamedSharding(mesh, ROWS_AND_PLANES)), jnp.sum(moved)

        compared(lambda a, factors: jax.lax.scan(step, a, factors), cube, jnp.arange(3, dtype=np.float32))

    def test_remat_inside(self, mesh, cube):
        layer = jax.checkpoint(lambda a: jnp.sin(into_columns(mesh, a)))
        compared(jax.grad(lambda a: jnp.sum(layer(layer(a)))), cube)

    def test_shard_map_inside(self, mesh, cube):
        def rows(tile):
            return tile - jax.lax.pmax(tile, "x")

        inside = jax.shard_map(rows, mesh=mesh, in_specs=ROWS_AND_PLANES, out_specs=P("y"), check_vma=False)
        compared(lambda a: into_columns(mesh, a) + jnp.sum(inside(a)), cube)

    def test_custom_vjp_inside(self, mesh, cube):
        @jax.custom_vjp
        def double(a):
            return into_columns(mesh, a) * 2

        double.defvjp(lambda a: (double(a), None), lambda _, g: (into_columns(mesh, g) * 3,))
        compared(jax.value_and_grad(lambda a: jnp.sum(double(a))), cube)

    def test_nested_jits(self, mesh, cube):
        inner = reshard.jit(lambda a: into_columns(mesh, a) + 1)
        compared(lambda a: inner(a) * jax.jit(jnp.sin)(inner(a)), cube)

    def test_random_keys(self, mesh, cube):
        compared(lambda a, key: into_columns(mesh, a) + jax.random.normal(key, SHAPE), cube, jax.random.key(0))

    def test_a_method_and_a_partial_function(self, mesh, cube):
        class Layer:
            def __call__(self, a):
                return into_columns(mesh, a) + 1

        layer = Layer()
        assert_equal_trees(reshard.jit(layer.__call__)(cube), jax.jit(layer.__call__)(cube))
        assert_equal_trees(reshard.jit(partial(into_columns, mesh))(cube), jax.jit(partial(into_columns, mesh))(cube))

    def test_wide_types(self, mesh):
        with jax.enable_x64(True):
            cube = placed(mesh, np.arange(16**3, dtype=np.float64).reshape(SHAPE) / 3)
            ours = compared(lambda a: into_columns(mesh, a) + 1, cube)
            assert ours.dtype == np.float64

    def test_an_abstract_mesh(self, mesh, cube):
        abstract = jax.sharding.NamedSharding(mesh.abstract_mesh, COLUMNS)
        compared(lambda a: with_sharding_constraint(a, abstract) + 1, cube)

    def test_gspmd_as_the_partitioner(self, mesh, cube):
        jax.config.update("jax_use_shardy_partitioner", False)
        try:
            compared(lambda a: into_columns(mesh, a) + 1, cube)
        finally:
            jax.config.update("jax_use_shardy_partitioner", True)


@pytest.mark.slow
class TestHostCallbacks:
    def test_pure_callback(self, mesh, cube):
        def function(a):
            moved = into_columns(mesh, a)
            return moved + jax.pure_callback(
                lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct((), np.float32), jnp.sum(a)
            )

        compared(function, cube)

    def test_io_callback(self, mesh, cube):
        """The callback is unordered, since jax has no ordered callbacks over several devices."""
        from jax.experimental import io_callback

        seen = []

        def function(a):
            moved = into_columns(mesh, a)
            io_callback(lambda x: seen.append(float(x)), None, jnp.sum(a))
            return moved

        compared(function, cube)
        jax.effects_barrier()
        assert len(set(seen)) == 1 and len(seen) >= 3

    def test_debug_print(self, mesh, cube, capfd):
        def function(a):
            jax.debug.print("the sum is {}", jnp.sum(a))
            return into_columns(mesh, a)

        compared(function, cube)
        jax.effects_barrier()
        assert capfd.readouterr().out.count("the sum is") >= 3


class TestExplicitMeshes:
    def test_reshard_in_the_types(self):
        mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:8])
        with jax.sharding.set_mesh(mesh):
            cube = jax.device_put(
                np.arange(16**3, dtype=np.float32).reshape(SHAPE), NamedSharding(mesh, ROWS_AND_PLANES)
            )
            found = compared(lambda a: jax.sharding.reshard(a, COLUMNS) + 1, cube)
            assert jax.typeof(found).sharding.spec == P(None, ("x", "y"), None)


class TestTheJittedObject:
    def test_is_one_of_jax(self, mesh, cube):
        function = reshard.jit(partial(into_columns, mesh))
        assert type(function) is type(jax.jit(jnp.sin))
        assert isinstance(function, jax.stages.Wrapped)

    def test_a_call_that_is_compiled_for_runs_no_python(self, mesh, cube):
        """jax dispatches in C++: the call runs no Python code of ours or of jax."""
        function = reshard.jit(lambda a: into_columns(mesh, a) + 1)
        function(cube).block_until_ready()
        called = []
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_qualname) if event == "call" else None)
        try:
            function(cube)
        finally:
            sys.setprofile(None)
        assert called == []

    def test_its_stages(self, mesh, cube):
        function = reshard.jit(lambda a: into_columns(mesh, a) + 1)
        assert function.eval_shape(cube).shape == SHAPE
        for lowered in (function.lower(cube), function.trace(cube).lower()):
            assert "all_to_all" not in lowered.as_text()
            compiled = lowered.compile()
            assert isinstance(lowered, jax.stages.Lowered) and isinstance(compiled, jax.stages.Compiled)
            assert "all-to-all" in compiled.as_text()
            assert_equal_trees(compiled(cube), function(cube))
        function.clear_cache()
        assert_equal_trees(function(cube), jax.jit(lambda a: into_columns(mesh, a) + 1)(cube))

    def test_what_it_lowers_can_be_optimized_too(self, mesh, cube):
        function = reshard.jit(lambda a: into_columns(mesh, a) + 1)
        result = reshard.optimize(function.lower(cube))
        assert result.is_rewritten
        assert_equal_trees(result.compile()(cube), function(cube))

    def test_has_its_own_programs(self, mesh, cube):
        """The same function with jax.jit, with reshard.jit, and with other options gives three programs."""

        def function(a):
            return into_columns(mesh, a) + 1

        jax.jit(function)(cube)
        ours, left = reshard.jit(function), reshard.jit(function, reshard_options={"policy": "always"})
        assert_equal_trees(ours(cube), left(cube))
        assert "all-to-all" not in jax.jit(function).lower(cube).compile().as_text()
        assert "all-to-all" in ours.lower(cube).compile().as_text()

    def test_the_name_of_the_program_is_that_of_jax(self, mesh, cube):
        function = partial(into_columns, mesh)
        assert reshard.jit(function).lower(cube).as_text()[:80] == jax.jit(function).lower(cube).as_text()[:80]

    def test_decorators(self, mesh, cube):
        @reshard.jit
        def plain(a):
            """Says what it does."""
            return into_columns(mesh, a)

        @reshard.jit(reshard_options={"policy": "always"}, static_argnames="n")
        def with_options(a, n):
            return into_columns(mesh, a) * n

        assert plain.__name__ == "plain" and plain.__doc__ == "Says what it does."
        assert_equal_trees(plain(cube), with_options(cube, n=1))

    @pytest.mark.slow
    def test_under_other_transformations_it_is_jax_jit(self, mesh, cube):
        def function(a):
            return into_columns(mesh, a) * a

        ours, stock = reshard.jit(function), jax.jit(function)
        for around in (
            lambda f: jax.jit(f),
            lambda f: jax.grad(lambda a: jnp.sum(f(a))),
            lambda f: lambda a: jax.vmap(f)(jnp.stack([a, a])),
            lambda f: lambda a: jax.jvp(f, (a,), (a,)),
            lambda f: jax.jit(jax.checkpoint(f)),
        ):
            assert_equal_trees(around(ours)(cube), around(stock)(cube))
        (mine,), (theirs,) = (jax.make_jaxpr(each)(cube).eqns for each in (ours, stock))
        assert (mine.primitive, mine.params["name"]) == (theirs.primitive, theirs.params["name"])

    def test_what_is_around_it_is_lowered_and_traced_as_itself(self, mesh, cube):
        """A function around ours does not become ours.

        jax.jit and functools.wraps copy the attributes of a function, but not those that mark a function as ours.
        """
        ours = reshard.jit(lambda a: into_columns(mesh, a) + 1)
        outer = jax.jit(ours)
        assert [eqn.primitive.name for eqn in outer.trace(cube).jaxpr.eqns] == ["jit"]
        assert "all-to-all" not in outer.lower(cube).compile().as_text()
        assert "all-to-all" in reshard.jit(ours).lower(cube).compile().as_text()
        assert not hasattr(wraps(ours)(lambda *args: ours(*args)), "lower")

    def test_is_exported_as_it_was_written(self, mesh, cube):
        exported = jax.export.export(reshard.jit(lambda a: into_columns(mesh, a)))(cube)
        assert "all_to_all" not in str(exported.mlir_module())


class TestEnabled:
    def test_what_was_compiled_outside_is_compiled_anew(self, mesh, cube):
        function = jax.jit(lambda a: into_columns(mesh, a) + 1)
        stock = function(cube)
        with reshard.enabled() as programs:
            ours = function(cube)
        assert [each.is_rewritten for each in programs] == [True]
        assert_equal_trees(ours, stock)

    def test_what_was_compiled_inside_is_not_run_outside(self, mesh, cube):
        function = jax.jit(lambda a: into_columns(mesh, a) + 1)
        with reshard.enabled() as programs:
            function(cube)
            assert "all-to-all" in function.lower(cube).compile().as_text()
        assert programs
        assert "all-to-all" not in function.lower(cube).compile().as_text()

    def test_is_undone_after_an_error(self):
        before = compiler.compile_or_get_cached
        with pytest.raises(KeyError), reshard.enabled():
            assert compiler.compile_or_get_cached is not before
            raise KeyError
        assert compiler.compile_or_get_cached is before

    def test_an_error_of_xla_leaves_nothing_behind(self, mesh, cube):
        before = compiler.compile_or_get_cached
        function = reshard.jit(lambda a: into_columns(mesh, a), compiler_options={"xla_no_such_flag": 1})
        with pytest.raises(Exception, match="xla_no_such_flag"):
            function(cube)
        assert compiler.compile_or_get_cached is before

    def test_other_threads_are_left_alone(self, mesh, cube):
        texts = {}

        def elsewhere():
            texts["elsewhere"] = jax.jit(lambda a: into_columns(mesh, a) + 2).lower(cube).compile().as_text()

        with reshard.enabled() as programs:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        assert "all-to-all" not in texts["elsewhere"] and not programs

    def test_nested_blocks(self, mesh, cube):
        before = compiler.compile_or_get_cached
        with reshard.enabled(policy="always") as outer:
            with reshard.enabled(check=False) as inner:
                jax.jit(lambda a: into_columns(mesh, a) + 3)(cube)
            jax.jit(lambda a: into_columns(mesh, a) + 4)(cube)
        assert len(inner) == len(outer) == 1
        assert not inner[0].report.to_dict()["checks"] and outer[0].report.to_dict()["checks"]
        assert compiler.compile_or_get_cached is before

    def test_programs_on_one_device_are_not_looked_at(self):
        with reshard.enabled() as programs:
            assert jax.jit(lambda a: a + 1)(np.float32(1)) == 2
        assert programs == []

    def test_pmap(self):
        with reshard.enabled():
            found = jax.pmap(lambda a: jax.lax.psum(a, "i"), axis_name="i", devices=jax.devices()[:8])(np.arange(8.0))
        np.testing.assert_array_equal(np.asarray(found), 28)

    def test_a_lowered_program_of_outside(self, mesh, cube):
        lowered = jax.jit(lambda a: into_columns(mesh, a) + 1).lower(cube)
        with reshard.enabled():
            assert "all-to-all" in lowered.compile().as_text()


class TestFaultsOfOurs:
    @pytest.fixture
    def broken(self, monkeypatch):
        def fail(*_, **__):
            raise AssertionError("no such layout")

        monkeypatch.setattr("reshard.compiling.jitting.optimized_module", fail)

    def test_are_a_warning_and_the_program_of_stock(self, mesh, cube, broken):
        def function(a):
            return into_columns(mesh, a) + 5

        with pytest.warns(
            RuntimeWarning, match="jit_function is compiled as it is, by a fault of reshard: AssertionError: no such"
        ):
            ours = reshard.jit(function)(cube)
        assert_equal_trees(ours, jax.jit(function)(cube))


class TestMistakes:
    def test_options_at_the_decorator(self):
        with pytest.raises(
            ValueError, match="reshard_options: unknown option 'polcy'; known: policy, .*did you mean 'policy'"
        ):
            reshard.jit(jnp.sin, reshard_options={"polcy": "always"})
        with pytest.raises(
            ValueError, match="reshard_options: policy=never is not available; choose from better, strict, always"
        ):
            reshard.jit(jnp.sin, reshard_options={"policy": "never"})

    def test_a_target_of_other_devices_is_warned_of(self, mesh):
        array = jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("x")))
        program = reshard.jit(lambda a: a + 2, reshard_options={"compile_for": "cpu:4"})
        with pytest.warns(RuntimeWarning, match="is compiled as it is: it is for 8 devices, and cpu:4 has 4"):
            program(array)

    def test_a_topology_of_other_devices_is_warned_of(self, mesh):
        array = jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("x")))
        program = reshard.jit(lambda a: a + 1, reshard_options={"topology": "h100:4"})
        with pytest.warns(RuntimeWarning, match="is compiled as it is: .*32 devices; the mesh has 8"):
            assert (program(array) == 2).all()

    def test_a_limit_that_the_network_does_not_say_is_no_fault_of_reshard(self, mesh):
        array = jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("x")))
        options = {"topology": "ethernet:1x8", "memory_limit": "device"}
        program = reshard.jit(lambda a: a + 3, reshard_options=options)
        with pytest.warns(RuntimeWarning, match="is compiled as it is: memory_limit: how much memory a device has"):
            assert (program(array) == 4).all()

    def test_what_xla_does_not_read(self):
        with pytest.raises(ValueError, match="XLA does not read the collectives of emit=sdy"):
            reshard.jit(jnp.sin, reshard_options={"emit": "sdy"})

    def test_what_xla_does_not_read_from_around(self, mesh, monkeypatch):
        array = jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("x")))
        said = "XLA does not read the collectives of emit=sdy; choose auto, manual or local"
        with reshard.options(emit="sdy"):
            with pytest.raises(ValueError, match=said), reshard.enabled():
                pass
            with pytest.raises(ValueError, match=said):
                reshard.auto(lambda a: a + 3, array, mesh="x=8")
        monkeypatch.setenv("RESHARD_EMIT", "sdy")
        with pytest.raises(ValueError, match=said):
            reshard.jit(lambda a: a + 3)(array)

    def test_options_that_contradict_each_other(self, mesh):
        said = "policy='always' decides nothing with emit='local'"
        with pytest.raises(ValueError, match=said):
            reshard.jit(jnp.sin, reshard_options={"emit": "local", "policy": "always"})
        array = jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("x")))
        with reshard.options(policy="always"), pytest.raises(ValueError, match=said):
            reshard.jit(lambda a: a + 4, reshard_options={"emit": "local"})(array)

    def test_an_option_of_jax_that_is_none(self):
        with pytest.raises(TypeError, match="static_argnum"):
            reshard.jit(jnp.sin, static_argnum=0)
