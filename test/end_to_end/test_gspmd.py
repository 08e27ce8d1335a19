# SPDX-License-Identifier: Apache-2.0
"""A program lowered with Shardy's shardings and with GSPMD's has the same sites and values on 8 CPU devices."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import reshard
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline

SWITCH = "jax_use_shardy_partitioner"

pytestmark = pytest.mark.skipif(not hasattr(jax.config, SWITCH), reason="this jax lowers with Shardy only")


@pytest.fixture(params=["shardy", "gspmd"])
def partitioner(request):
    before = getattr(jax.config, SWITCH)
    jax.config.update(SWITCH, request.param == "shardy")
    jax.clear_caches()
    yield request.param
    jax.config.update(SWITCH, before)
    jax.clear_caches()


def mesh():
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def on(*axes):
    return NamedSharding(mesh(), PartitionSpec(*axes))


def program(a, b):
    c = jax.lax.with_sharding_constraint(a + b, on(None, ("x", "y"), None))
    on_tiles = functools.partial(jax.shard_map, mesh=mesh(), check_vma=False)
    x, y, y_x = PartitionSpec("x"), PartitionSpec("y"), PartitionSpec("y", "x")
    island = on_tiles(lambda u: jax.lax.psum(u, "x"), in_specs=y_x, out_specs=y)
    part = on_tiles(lambda u: -u, in_specs=x, out_specs=x, axis_names={"x"})
    return c * 3, part(island(c))


def test_both_lowerings_are_rewritten_alike_and_give_the_same_integers(partitioner):
    before, after = on("y", None, "x"), on(None, ("x", "y"), None)
    a = jax.device_put(np.random.RandomState(0).randint(-99, 99, (16, 16, 16)).astype(np.int32), before)
    b = jax.device_put(np.arange(16**3, dtype=np.int32).reshape(16, 16, 16), after)
    lowered = jax.jit(program, in_shardings=(before, after), out_shardings=(after, before)).lower(a, b)
    assert ("mhlo.sharding" in lowered.as_text()) == (partitioner == "gspmd")
    result = reshard.optimize(lowered, policy="always")
    assert result.is_rewritten and "mhlo.sharding" not in result.module
    chains = [
        str(site["chain"]).replace("axis_0", "x").replace("axis_1", "y") for site in result.report.to_dict()["sites"]
    ]
    assert chains and chains == FIRST_SEEN.setdefault("chains", chains)
    ours, stock = result.compile()(a, b), lowered.compile()(a, b)
    c = np.asarray(a) + np.asarray(b)
    halves = c[:, :8] + c[:, 8:]
    for got, also, want in zip(ours, stock, (c * 3, -halves), strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)
        assert got.sharding == also.sharding


FIRST_SEEN: dict[str, list[str]] = {}  # the chains of the first of the two lowerings


ORDERS = {
    "row-major list": (
        "{devices=[4,2]0,1,4,5,2,3,6,7}",
        "{devices=[4,1,2]0,1,4,5,2,3,6,7 last_tile_dim_replicate}",
        "{devices=[2,4]0,1,4,5,2,3,6,7}",
    ),
    "one odd order": (
        "{devices=[4,2]0,7,4,5,2,3,6,1}",
        "{devices=[4,1,2]0,7,4,5,2,3,1,6 last_tile_dim_replicate}",
        "{devices=[1,2,4]0,4,2,6,7,5,3,1 last_tile_dim_replicate}",
    ),
    "two orders": ("{devices=[4,2]<=[8]}", "{devices=[8,1]7,6,5,4,3,2,1,0}", "{devices=[2,4]<=[8]}"),
    "named and unnamed": ("{mesh['x'=2,'y'=4], [{'y'}, {'x'}]}", "{devices=[2,4]<=[8]}", "{devices=[4,2]<=[8]}"),
}


@pytest.mark.parametrize("name", ORDERS)
def test_xla_places_arguments_and_results_as_the_gspmd_strings_say(name):
    first, second, result = ORDERS[name]
    text = f"""module @m attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{
      func.func public @main(%a: tensor<24x24xi32> {{mhlo.sharding = "{first}"}}, %b: tensor<24x24xi32> {{mhlo.sharding = "{second}"}})
          -> (tensor<24x24xi32> {{mhlo.sharding = "{result}"}}) {{
        %0 = stablehlo.add %a, %b : tensor<24x24xi32>
        return %0 : tensor<24x24xi32>
      }} }}"""  # noqa: E501
    session = Session()
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        pipeline = "import-gspmd,find-mismatches,plan-sites{policy=always},synthesize-collectives,strip-findings"
        Pipeline.parse(pipeline).run(module, session)
        rewritten = str(module)
    assert "mhlo.sharding" not in rewritten
    context, devices = compat.jax_context(), jax.devices()[:8]
    with context:
        module = compat.parse_module(context, rewritten)
        executable = compat.load_executable(module, devices, compat.compile_options(devices, {}))
    stated = [*compat.parameter_shardings(executable, 2), *compat.output_shardings(executable, 1)]
    placed = [compat.array_sharding(each, devices).devices_indices_map((24, 24)) for each in stated]
    for given, got in zip(ORDERS[name], placed, strict=True):
        assert got == _indices(given, devices), given
    a, b = np.arange(576, dtype=np.int32).reshape(24, 24), np.ones((24, 24), np.int32)
    arguments = [jax.device_put(x, compat.array_sharding(each, devices)) for x, each in zip((a, b), stated)]
    for tile in compat.execute_sharded(executable, arguments)[0]:
        (device,) = tile.devices()
        np.testing.assert_array_equal(np.asarray(tile), (a + b)[placed[2][device]])


def _indices(text, devices):
    """Returns the part of a 24x24 array that each device holds, as XLA reads the string."""
    from jaxlib import xla_client

    sharding = xla_client.HloSharding.from_string(text)
    return compat.array_sharding(sharding.to_proto(), devices).devices_indices_map((24, 24))
