# SPDX-License-Identifier: Apache-2.0
"""`reshard.optimize` of exports and of modules in every form, and `reshard.explain`."""

import html
import json
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.dialect_utils.platform.bindings import ir, make_context

ROWS_AND_PLANES, COLUMNS = P("y", None, "x"), P(None, ("x", "y"), None)
SHAPE = (16, 16, 16)


@pytest.fixture(scope="module")
def mesh():
    assert len(jax.devices()) >= 8, "jax was started before test/end_to_end/conftest.py set XLA_FLAGS"
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])


@pytest.fixture(scope="module")
def cube(mesh):
    """Returns a cube of small numbers in a layout from which stock XLA gathers the whole cube to reach COLUMNS."""
    values = np.arange(16**3, dtype=np.float32).reshape(SHAPE) % 7
    return jax.device_put(values, NamedSharding(mesh, ROWS_AND_PLANES))


@pytest.fixture(scope="module")
def function(mesh):
    return lambda a: with_sharding_constraint(a, NamedSharding(mesh, COLUMNS)) ** 3 + 1


@pytest.fixture(scope="module")
def there_and_back(mesh):
    """Returns a function whose derivative has as many sites as the function."""

    def into(value, spec):
        return with_sharding_constraint(value, NamedSharding(mesh, spec))

    return lambda state, b: {"out": into(into(state["a"] ** 3, COLUMNS) * b, ROWS_AND_PLANES)}


COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b")


def hlo(exported, *args) -> str:
    return jax.jit(exported.call).lower(*args).compile().as_text()


def all_to_alls(exported) -> int:
    return str(exported.mlir_module()).count("stablehlo.all_to_all")


def assert_equal_trees(ours, stock):
    assert jax.tree.structure(ours) == jax.tree.structure(stock)
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(stock)):
        assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim)
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


class TestExported:
    @pytest.mark.slow
    def test_is_called_like_the_one_that_was_given(self, mesh, cube, there_and_back):
        args = {"a": cube}, jnp.float32(2)
        exported = jax.export.export(jax.jit(there_and_back))(*args)
        result = reshard.optimize(exported)
        assert result.is_rewritten and result.lowered is None
        ours = result.exported
        for name in (
            "fun_name",
            "in_tree",
            "in_avals",
            "out_tree",
            "out_avals",
            "nr_devices",
            "platforms",
            "calling_convention_version",
        ):
            assert getattr(ours, name) == getattr(exported, name), name
        assert (all_to_alls(ours), all_to_alls(exported)) == (0, 0)
        assert COLLECTIVES.search(hlo(exported, *args)) and not COLLECTIVES.search(hlo(ours, *args))
        assert_equal_trees(jax.jit(ours.call)(*args), jax.jit(exported.call)(*args))

    @pytest.mark.slow
    def test_derivatives_are_optimized_too(self, cube, there_and_back):
        args = {"a": cube}, jnp.float32(2)
        exported = jax.export.export(jax.jit(there_and_back))(*args)
        ours = reshard.optimize(exported).exported
        assert all_to_alls(ours.vjp()) > 0 == all_to_alls(exported.vjp())

        def loss(call):
            return jax.jit(jax.grad(lambda a: jnp.sum(call({"a": a}, jnp.float32(2))["out"] ** 2)))

        assert_equal_trees(loss(ours.call)(cube), loss(exported.call)(cube))

    @pytest.mark.slow
    def test_is_serialized_with_its_derivatives(self, cube, there_and_back):
        args = {"a": cube}, jnp.float32(2)
        exported = jax.export.export(jax.jit(there_and_back))(*args)
        again = jax.export.deserialize(reshard.optimize(exported).exported.serialize(vjp_order=2))
        assert not COLLECTIVES.search(hlo(again, *args))
        assert all_to_alls(again.vjp()) > 0
        assert again.vjp().vjp().has_vjp() is False
        assert_equal_trees(jax.jit(again.call)(*args), jax.jit(exported.call)(*args))

        def loss(call):
            return jax.jit(jax.grad(lambda a: jnp.sum(call({"a": a}, jnp.float32(2))["out"] ** 2)))

        assert_equal_trees(loss(again.call)(cube), loss(exported.call)(cube))

    def test_that_was_read_from_a_file(self, cube, function):
        """Optimizes the bytes that `serialize` wrote, and the export that `deserialize` reads from them."""
        exported = jax.export.export(jax.jit(function))(cube)
        content = exported.serialize()
        for given in (content, bytes(content), jax.export.deserialize(content)):
            result = reshard.optimize(given)
            assert result.is_rewritten and not result.exported.has_vjp()
            assert_equal_trees(jax.jit(result.exported.call)(cube), jax.jit(function)(cube))

    def test_for_several_platforms(self, cube, function):
        exported = jax.export.export(jax.jit(function), platforms=("cpu", "cuda"))(cube)
        ours = reshard.optimize(exported).exported
        assert ours.platforms == ("cpu", "cuda") and all_to_alls(ours) == 1
        assert_equal_trees(jax.jit(ours.call)(cube), jax.jit(exported.call)(cube))

    def test_with_symbolic_sizes_is_left_as_it_is(self):
        (size,) = jax.export.symbolic_shape("n")
        exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((size,), np.float32))
        result = reshard.optimize(exported)
        assert not result.is_rewritten
        assert result.exported.mlir_module_serialized == exported.mlir_module_serialized
        np.testing.assert_array_equal(result.exported.call(np.ones(3, np.float32)), jnp.sin(np.ones(3, np.float32)))

    def test_has_nothing_to_compile(self, cube, function):
        result = reshard.optimize(jax.export.export(jax.jit(function))(cube))
        with pytest.raises(
            ValueError, match=r"only a lowered program can be compiled; write jax.jit\(result.exported.call\)"
        ):
            result.compile()


class TestModules:
    @pytest.fixture
    def lowered(self, cube, function):
        return jax.jit(function).lower(cube)

    def test_in_every_form_become_the_same(self, lowered):
        text = lowered.as_text(debug_info=True)
        expected = reshard.optimize(text)
        assert expected.is_rewritten and "stablehlo.all_to_all" in expected.module
        with make_context():
            parsed = ir.Module.parse(text)
            before = str(parsed)
            of_module = reshard.optimize(parsed)
            assert str(parsed) == before
        artifact = jax.export.export(jax.jit(lambda a: a))(jnp.zeros(3)).mlir_module_serialized
        assert not reshard.optimize(artifact).is_rewritten
        for found in (reshard.optimize(text.encode()), of_module, reshard.optimize(lowered)):
            assert found.module == expected.module
            assert found.report.to_dict()["totals"] == expected.report.to_dict()["totals"]

    def test_of_our_own_output_nothing_is_rewritten(self, lowered):
        once = reshard.optimize(lowered.as_text()).module
        again = reshard.optimize(once)
        assert not again.is_rewritten and again.module == once

    def test_that_cannot_be_read(self):
        with pytest.raises(Exception, match="error"):
            reshard.optimize("func.func @main() { nonsense }")


class TestExplain:
    def test_takes_functions_lowered_and_exported_programs(self, cube, function):
        jitted = jax.jit(function)
        of_function = reshard.explain(function, cube)
        rows = of_function.to_dict()["sites"]
        assert [row["chain"] for row in rows] == ["all_to_all x: dim 2 -> 1, y: dim 0 -> 1"]
        assert of_function.to_dict()["checks"] == []
        shape = jax.ShapeDtypeStruct(cube.shape, cube.dtype, sharding=cube.sharding)
        for report in (
            reshard.explain(jitted, shape),
            reshard.explain(reshard.jit(function), a=cube),
            reshard.explain(jitted.lower(cube)),
            reshard.explain(jax.export.export(jitted)(cube)),
        ):
            assert [row["chain"] for row in report.to_dict()["sites"]] == [row["chain"] for row in rows]

    def test_checks_the_whole_module_if_it_is_asked_to(self, cube, function):
        with reshard.options(check=True):
            assert len(reshard.explain(function, cube).to_dict()["checks"]) == 1

    def test_arguments_of_no_function(self, cube, function):
        with pytest.raises(TypeError, match="explain takes arguments of a function only, and Lowered is none"):
            reshard.explain(jax.jit(function).lower(cube), cube)

    def test_in_a_notebook_is_a_page_in_a_frame(self, cube, function):
        framed = reshard.explain(function, cube)._repr_html_()
        page = html.unescape(framed.partition('srcdoc="')[2].rpartition('"')[0])
        assert framed.count("<iframe") == 1 and '<section class="card" id="card-0">' in page
        assert "[{&quot;y&quot;}, {}, {&quot;x&quot;}]" in page and "1 of 1 site rewritten" in page


class TestDumps:
    def test_are_numbered_by_module(self, cube, function, tmp_path):
        folder = tmp_path / "dumps"
        with reshard.options(dump_to=str(folder)):
            reshard.explain(function, cube)
            reshard.optimize(jax.jit(jnp.sin).lower(0.0))
        names = sorted(path.name for path in folder.iterdir())
        first, second = "0001.jit__lambda", "0002.jit_sin"
        assert names == [
            *(f"{first}.{end}" for end in ("after.mlir", "before.mlir", "report.json", "report.txt")),
            *(f"{second}.{end}" for end in ("before.mlir", "report.json", "report.txt")),
        ]
        assert "all_to_all" not in (folder / f"{first}.before.mlir").read_text()
        assert not reshard.optimize((folder / f"{first}.after.mlir").read_text()).is_rewritten
        assert json.loads((folder / f"{first}.report.json").read_text())["totals"]["rewritten"] == 1

    def test_a_folder_that_cannot_be_written_is_a_warning_in_the_log(self, tmp_path, caplog):
        (tmp_path / "file").write_text("")
        with reshard.options(dump_to=tmp_path / "file" / "folder"), caplog.at_level(logging.WARNING, "reshard"):
            reshard.optimize(jax.jit(jnp.sin).lower(0.0))
        assert "cannot dump jit_sin to" in caplog.text and "not a directory" in caplog.text

    def test_of_jax_have_what_xla_gets(self, cube, function, tmp_path):
        jax.clear_caches()
        jax.config.update("jax_dump_ir_to", str(tmp_path))
        try:
            reshard.jit(function)(cube)
        finally:
            jax.config.update("jax_dump_ir_to", None)
        assert any("stablehlo.all_to_all" in path.read_text() for path in tmp_path.rglob("*.mlir"))


class TestNames:
    """XLA compiles the ops of chains under the names `reshard/<site>/<step>`, which profiles show."""

    def names(self, text):
        return {part for part in text.split('"') if part.startswith("reshard/")}

    def test_of_steps(self, cube, function):
        text = reshard.optimize(jax.jit(function).lower(cube)).compile().as_text()
        assert self.names(text) == {"reshard/0/all_to_all", "reshard/0/relayout"}

    def test_of_dimensions_that_do_not_divide(self, mesh):
        def spread(a, spec):
            return with_sharding_constraint(a, NamedSharding(mesh, spec))

        move = jax.jit(
            lambda a: spread(jnp.sin(spread(a, P("x"))), P(None, "x")), out_shardings=NamedSharding(mesh, P())
        )
        result = reshard.optimize(move.lower(jnp.ones((10, 5))), policy="always", check=False)
        assert result.is_rewritten
        names = [name.split("/") for name in self.names(result.compile().as_text())]
        assert {site for _, site, *_ in names} <= {"0", "1", "2"}
        steps = {step for _, _, *rest in names for step in rest}  # the name of a whole island has no step
        assert steps & {"all_to_all", "exchange"} and "pad" in steps

    def test_survive_reading_and_writing(self, cube, function):
        result = reshard.optimize(jax.export.export(jax.jit(function))(cube))
        assert 'reshard/0/all_to_all"' in hlo(jax.export.deserialize(result.exported.serialize()), cube)
