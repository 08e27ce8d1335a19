# SPDX-License-Identifier: Apache-2.0
"""Modules are compiled for TPU slices and GPUs without the devices; skipped if their compilers are not installed."""

import subprocess
import sys
from functools import cache

import jax
import jax.numpy as jnp
import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import Compiled, KindCount, XlaChild
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline

TILE = 64 * 64 * 64 * 4 // 8
HBM_BYTES = 15.75 * 2**30  # what a program may fill of a v5e


def cube(mesh: str, source: str, target: str) -> str:
    """Returns a module that doubles a cube of 1 MiB and returns it in another layout."""
    type_, sharding = "tensor<64x64x64xf32>", "{{sdy.sharding = #sdy.sharding<@mesh, {}>}}".format
    return f"""module @cube {{
  sdy.mesh @mesh = <{mesh}>
  func.func public @main(%arg0: {type_} {sharding(source)}) -> ({type_} {sharding(target)}) {{
    %0 = stablehlo.add %arg0, %arg0 : {type_}
    return %0 : {type_}
  }}
}}
"""


TO_COLUMNS = cube('["x"=4, "y"=2]', '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]')  # stock XLA gathers the whole cube
# Each update is added to a column; the windows are columns, too, of a matrix with one.
COLUMNS = """module @columns {
  sdy.mesh @mesh = <["x"=8]>
  func.func public @main(%arg0: tensor<512x2048xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
      %arg1: tensor<512x1xi32>, %arg2: tensor<512x512x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>})
      -> (tensor<512x2048xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{scatter_dimension_numbers = #stablehlo.scatter<
        update_window_dims = [0, 2], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<512x2048xf32>, tensor<512x1xi32>, tensor<512x512x1xf32>) -> tensor<512x2048xf32>
    return %0 : tensor<512x2048xf32>
  }
}
"""
# Each sequence of a batch writes the row at its own position, as `vmap` of `dynamic_update_slice` does.
ROWS = """module @rows {
  sdy.mesh @mesh = <["x"=8]>
  func.func public @main(
      %arg0: tensor<256x1024x8x128xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>},
      %arg1: tensor<256x1xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
      %arg2: tensor<256x1x8x128xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>})
      -> (tensor<256x1024x8x128xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>}) {
    %zeros = stablehlo.constant dense<0> : tensor<256x2xi32>
    %starts = stablehlo.concatenate %arg1, %zeros, dim = 1 : (tensor<256x1xi32>, tensor<256x2xi32>) -> tensor<256x3xi32>
    %0 = "stablehlo.scatter"(%arg0, %starts, %arg2) <{scatter_dimension_numbers = #stablehlo.scatter<
        update_window_dims = [1, 2, 3], input_batching_dims = [0], scatter_indices_batching_dims = [0],
        scatter_dims_to_operand_dims = [1, 2, 3], index_vector_dim = 1>}> ({
      ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      stablehlo.return %b : tensor<bf16>
    }) : (tensor<256x1024x8x128xbf16>, tensor<256x3xi32>, tensor<256x1x8x128xbf16>) -> tensor<256x1024x8x128xbf16>
    return %0 : tensor<256x1024x8x128xbf16>
  }
}
"""
# The update of a weight, whose gradient comes as XLA's partitioner for TPUs has it.
UPDATE = """module @update {{
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func public @main(
      %w: tensor<{shape}xf32> {{sdy.sharding = #sdy.sharding<@mesh, {layout}>, tf.aliasing_output = 0 : i32}},
      %m: tensor<{shape}xf32> {{sdy.sharding = #sdy.sharding<@mesh, {layout}>, tf.aliasing_output = 1 : i32}},
      {arguments})
      -> (tensor<{shape}xf32> {{sdy.sharding = #sdy.sharding<@mesh, {layout}>}},
          tensor<{shape}xf32> {{sdy.sharding = #sdy.sharding<@mesh, {layout}>}}) {{
    {gradient}
    %2 = stablehlo.convert %1 : (tensor<{shape}xbf16>) -> tensor<{shape}xf32>
    %3 = stablehlo.add %m, %2 : tensor<{shape}xf32>
    %4 = stablehlo.multiply %3, %3 : tensor<{shape}xf32>
    %5 = stablehlo.subtract %w, %4 : tensor<{shape}xf32>
    return %5, %3 : tensor<{shape}xf32>, tensor<{shape}xf32>
  }}
}}"""
TRANSPOSED = UPDATE.format(
    shape="2048x8192",
    layout='[{"y"}, {"x"}]',
    arguments="""%a: tensor<4096x2048xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>},
      %b: tensor<4096x8192xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}""",
    gradient="""%0 = stablehlo.dot_general %b, %a, contracting_dims = [0] x [0]
      : (tensor<4096x8192xbf16>, tensor<4096x2048xbf16>) -> tensor<8192x2048xbf16>
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<8192x2048xbf16>) -> tensor<2048x8192xbf16>""",
)
IN_PARTS = UPDATE.format(
    shape="8192x2048",
    layout='[{"x"}, {"y"}]',
    arguments='%a: tensor<8192x2048xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y", "x"}]>}',
    gradient="%1 = stablehlo.negate %a : tensor<8192x2048xbf16>",
)
SWAP_OF_TWO = cube('["x"=4, "y"=2]', '[{"x"}, {"y"}, {}]', '[{"x"}, {}, {"y"}]')


def layers(rows: int) -> str:
    """Returns a module that updates the weights of eight layers, whose activations are held on every device."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def loss(weights, x):
        x, _ = jax.lax.scan(lambda x, w: (jnp.sin(jnp.tanh(x @ w) @ w.T), None), x, weights)
        return x.astype(jnp.float32).sum()

    def step(weights, x):
        return weights - jax.grad(loss)(weights, x)

    shapes = (8, 2048, 2048), (rows, 2048)
    args = (jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=whole) for shape in shapes)
    return jax.jit(step, donate_argnums=0, out_shardings=whole).lower(*args).as_text()


@pytest.fixture(scope="module")
def child():
    with XlaChild(uses_cache=False, num_devices=1) as child:
        yield child


@pytest.fixture
def compiled_for(child):
    def compiled(target: str, text: str = TO_COLUMNS, **options) -> Compiled:
        return child.compile(text, Target.parse(target).devices, target=Target.parse(target), **options)

    return compiled


@cache
def shown(target: str, *flags: str) -> tuple[int, str]:
    """Returns the exit status and the stderr of reshard-opt for the cube, with single spaces."""
    command = [
        sys.executable,
        "-m",
        "reshard.tools.reshard_opt",
        "-",
        f"--compile-for={target}",
        "-o",
        "/dev/null",
        *flags,
    ]
    done = subprocess.run(command, input=TO_COLUMNS, capture_output=True, text=True, timeout=300)
    return done.returncode, "\n".join(" ".join(line.split()) for line in done.stderr.splitlines())


PRODUCTS_IN_A_LOOP = """
sdy.mesh @mesh = <["x"=8]>
func.func @main(%a: tensor<32768x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %v: tensor<4096x8192xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> tensor<32768x4096xbf16> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, tensor<32768x4096xbf16>
  cond {
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.dot %x, %v : (tensor<32768x4096xbf16>, tensor<4096x8192xbf16>) -> tensor<32768x8192xbf16>
    %2 = stablehlo.slice %1 [0:32768, 0:4096] : (tensor<32768x8192xbf16>) -> tensor<32768x4096xbf16>
    %3 = stablehlo.slice %1 [0:32768, 4096:8192] : (tensor<32768x8192xbf16>) -> tensor<32768x4096xbf16>
    %4 = stablehlo.add %2, %3 : tensor<32768x4096xbf16>
    %5 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %5, %4 : tensor<i32>, tensor<32768x4096xbf16>
  }
  return %0#1 : tensor<32768x4096xbf16>
}"""


@pytest.mark.tpu
class TestTpu:
    def test_traffic_right_after_partitioning_and_memory(self, compiled_for):
        compiled = compiled_for("tpu:v5e:2x4")
        assert compiled.is_ok, compiled.message
        assert compiled.bytes_received == compiled.bytes_sent == 7 * TILE
        assert (
            compiled.argument_bytes == compiled.output_bytes == 2 * TILE
        )  # rows are padded to the 128 lanes of a chip
        assert compiled.peak_memory_bytes >= 4 * TILE
        assert compiled.final_bytes_received == 7 * TILE and compiled.final_collectives == (
            KindCount("all_gather", 1, 1),
        )

    def test_options_behind_the_target_are_those_of_its_compiler(self, compiled_for):
        schedules = [
            compiled_for(f"tpu:v5e:2x4{options}", keeps_schedule=True).scheduled_text
            for options in ("", "?xla_tpu_enable_async_all_to_all=false", "?xla_enable_async_all_gather=false")
        ]
        assert schedules[0] == schedules[1] != schedules[2] and None not in schedules

    @pytest.mark.parametrize(
        "option",
        ["xla_tpu_no_such=true", "xla_tpu_enable_async_all_to_all=seven", "xla_backend_optimization_level=two"],
    )
    def test_an_option_that_the_compiler_refuses_is_an_error_with_its_name(self, option):
        status, said = shown(f"tpu:v5e:2x4?{option}")
        name = option.partition("=")[0]
        assert status == 1 and "Traceback" not in said
        assert f"error: tpu:v5e:2x4?{option}: its compiler refuses an option: " in said and said.count(name) == 2

    def test_texts_on_request(self, compiled_for):
        compiled = compiled_for("tpu:v5e:2x4", keeps_hlo=True, keeps_propagated=True)
        assert "num_partitions=8" in compiled.hlo_text and "all-gather" in compiled.hlo_text
        assert "sdy.mesh @mesh" in compiled.propagated_text

    def test_shardings_are_told_as_on_cpu_devices(self, child, compiled_for):
        on_cpu, on_tpu = child.compile(TO_COLUMNS, 8), compiled_for("tpu:v5e:2x4")
        assert on_tpu.input_shardings == on_cpu.input_shardings
        assert on_tpu.output_shardings == on_cpu.output_shardings

    def test_the_time_of_a_program_with_nothing_asynchronous_is_estimated_too(self, compiled_for):
        """The program's only collective is an all-to-all, which the compiler makes synchronous by default."""
        compiled = compiled_for("tpu:v5e:2x4", SWAP_OF_TWO)
        assert compiled.collectives == (KindCount("all_to_all", 1, 1),)
        assert compiled.estimated_seconds > 0

    def test_the_code_generator_prices_a_product_near_its_roofline(self, compiled_for):
        """2 x 4096 x 4096 x 8192 operations in each of 3 turns, at 197e12 in a second."""
        compiled = compiled_for("tpu:v5e:2x4", PRODUCTS_IN_A_LOOP)
        least_s = 3 * 2 * 4096 * 4096 * 8192 / 197e12
        assert least_s < compiled.generated_seconds < 3 * least_s
        assert all(each.flops == 0 for each in compiled.generated_without)

    @pytest.mark.parametrize("text", [COLUMNS, ROWS], ids=("columns", "a row of each sequence"))
    def test_the_compiler_has_a_kernel_for_the_scatters_of_modules_written_per_device(self, text, compiled_for):
        """It makes a loop over the updates of the same scatters as they came; see `scatter_windows`."""
        as_it_came = compiled_for("tpu:v5e:2x4", text, keeps_schedule=True)
        assert as_it_came.is_ok and " while(" in as_it_came.scheduled_text
        with make_context() as context, ir.Location.unknown(context):
            module = ir.Module.parse(text)
            Pipeline.emitting("local", {"platform": "tpu"}).run(module, Session())
            found = compiled_for("tpu:v5e:2x4", str(module), keeps_schedule=True)
        assert found.is_ok and " scatter(" in found.scheduled_text and " while(" not in found.scheduled_text

    @pytest.mark.parametrize("text", [TRANSPOSED, IN_PARTS], ids=("a transposed product", "columns in parts"))
    def test_weights_are_updated_in_the_layout_that_they_have(self, text, compiled_for):
        """Else the compiler copies weights and state into that of the gradient; see `transposed_products` and
        `side_by_side`."""
        with make_context() as context, ir.Location.unknown(context):
            module = ir.Module.parse(text)
            Pipeline.emitting("local", {"platform": "tpu"}).run(module, Session())
            found = compiled_for("tpu:v5e:2x4", str(module), keeps_schedule=True)
        assert found.is_ok, found.message
        assert " copy(" not in found.scheduled_text[found.scheduled_text.index("ENTRY") :]
        assert found.generated_seconds  # also without asynchronous ops, whose schedule would say the clock

    def test_temporaries_are_those_for_which_the_compiler_refuses_a_program(self, compiled_for):
        """Its statistics count 0.9 GB more, with which the first program would not fit either."""
        fits, too_large = (compiled_for("tpu:v5e:2x4", layers(rows)) for rows in (112_640, 114_688))
        assert fits.is_ok, fits.message
        assert 0.98 * HBM_BYTES < fits.peak_bytes < HBM_BYTES
        assert not too_large.is_ok and "exceeds available HBM (15.75G)" in too_large.message

    def test_traffic_between_slices_is_not_counted_in_the_final_program(self, compiled_for):
        compiled = compiled_for("tpu:v5e:2x2:2")
        assert compiled.is_ok, compiled.message
        assert compiled.bytes_received == 7 * TILE
        assert {"recv", "send"} <= set(compiled.final_unpriced)

    def test_an_error_in_the_module_is_one(self, compiled_for):
        assert compiled_for("tpu:v5e:2x4", "module {").status == "error"

    @pytest.mark.parametrize("target", ["tpu:v5p:2x2x2", "tpu:v6e:2x4", "tpu:tpu7x:2x2x1", "tpu:v4:2x2x2"])
    def test_other_slices(self, compiled_for, target):
        compiled = compiled_for(target, SWAP_OF_TWO)
        assert compiled.is_ok, compiled.message
        assert compiled.bytes_received == TILE // 2

    def test_reshard_opt_reports_stock_beside_ours(self):
        status, report = shown("tpu:v5e:2x4", "--report=text")
        assert status == 0
        assert "whole module, compiled for tpu:v5e:2x4, modelled on v5e:2x4*1 (us, bytes per device):" in report
        assert (
            f"stock {7 * TILE:,} {7 * TILE:,} 1 all_gather\nours {7 * TILE // 8:,} {7 * TILE // 8:,} 1 all_to_all"
            in report
        )
        assert "estimate: the compiler's own, by bandwidth" in report

    def test_a_slice_of_another_size_is_an_error_with_both_numbers(self):
        status, said = shown("tpu:v5e:4x4")
        assert (
            status == 1 and said.splitlines()[0] == "<stdin>:1:1: error: the module is for 8 devices, the target has 16"
        )

    def test_a_slice_that_there_is_not_is_refused(self, compiled_for):
        compiled = compiled_for("tpu:v5p:3x3x3", TO_COLUMNS)
        assert compiled.status == "target"
        assert compiled.message.startswith("the compiler refuses tpu:v5p:3x3x3: INVALID_ARGUMENT")

    def test_a_child_that_dies_leaves_this_process_and_the_next_answer_alone(self, child, compiled_for):
        assert child._ask({"op": "abort"}, 1, 60)["status"] == "abort"
        assert compiled_for("tpu:v5e:2x4").is_ok

    def test_a_compiler_that_takes_too_long_is_a_hang(self, compiled_for):
        assert compiled_for("tpu:v5e:2x4", timeout_s=0.01).status == "hang"


@pytest.mark.cuda
class TestCuda:
    def test_traffic_memory_and_time(self, compiled_for):
        compiled = compiled_for("cuda:h100:1x1x8")
        assert compiled.is_ok, compiled.message
        assert compiled.bytes_received == compiled.final_bytes_received == 7 * TILE
        assert (compiled.argument_bytes, compiled.output_bytes) == (TILE, TILE)
        assert compiled.peak_memory_bytes >= 2 * TILE and compiled.estimated_seconds > 0

    def test_a_collective_that_its_model_does_not_cover_leaves_no_estimate(self, compiled_for):
        compiled = compiled_for("cuda:a100:1x1x8", SWAP_OF_TWO)
        assert compiled.is_ok, compiled.message
        assert compiled.estimated_seconds is None

    def test_a_gpu_that_the_plug_in_does_not_describe_is_refused(self, compiled_for):
        compiled = compiled_for("cuda:x100:1x1x8")
        assert compiled.status == "target"
        assert compiled.message.startswith("the CUDA plug-in describes no GPU 'x100'; it has a100-")

    def test_reshard_opt_reports_stock_beside_ours(self):
        status, report = shown("cuda:h100:1x1x8", "--report=text")
        assert status == 0
        assert (
            f"stock {7 * TILE:,} {7 * TILE:,} 2 all_gather\nours {7 * TILE // 8:,} {7 * TILE // 8:,} 1 all_to_all"
            in report
        )
