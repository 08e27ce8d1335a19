# SPDX-License-Identifier: Apache-2.0
"""Modules of bfloat16 are measured as if they were of float16 where CPU devices stand in for others."""

import jax
import jax.numpy as jnp
import pytest

from reshard.dialect_utils.ir.narrow_floats import as_bfloat16, as_float16, has_bfloat16_alone
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import CompileRequest, shared_child
from reshard.passes.sites.network import SiteNetwork

TEXT = """
func.func @main(%a: tensor<4xbf16>, %b: tensor<bf16>, %c: tensor<2x4x!quant.uniform<i8:f32, 1.0>>) {
  %0 = stablehlo.constant dense<0xFF80> : tensor<bf16>
  %1 = stablehlo.custom_call @bf16_call(%a) {backend_config = "tensor<4xbf16>", value = 1.0 : bf16}
    : (tensor<4xbf16>) -> tensor<?xbf16, #stablehlo.bounds<4>>
}
"""

PRODUCTS = """
sdy.mesh @mesh = <["x"=8]>
func.func @main(%a: tensor<512x1024xbf16>,
                %b: tensor<1024x8192xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                %c: tensor<8192x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<512x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<512x1024xbf16>, tensor<1024x8192xbf16>) -> tensor<512x8192xbf16>
  %1 = stablehlo.tanh %0 : tensor<512x8192xbf16>
  %2 = stablehlo.dot_general %1, %c, contracting_dims = [1] x [0]
    : (tensor<512x8192xbf16>, tensor<8192x1024xbf16>) -> tensor<512x1024xbf16>
  return %2 : tensor<512x1024xbf16>
}"""


def layers(x, w):
    for _ in range(3):
        x = jax.nn.silu(x @ w) @ w.T
    return x


def test_only_types_change():
    changed = as_float16(TEXT)
    assert changed.count("bf16") == 2 and '"tensor<4xbf16>"' in changed and "@bf16_call" in changed
    assert changed.count("f16") == TEXT.count("bf16")


def test_a_lowered_program_keeps_its_ops_and_comes_back():
    arguments = jax.ShapeDtypeStruct((64, 128), jnp.bfloat16), jax.ShapeDtypeStruct((128, 256), jnp.bfloat16)
    text = jax.jit(layers).lower(*arguments).as_text(debug_info=True)
    assert has_bfloat16_alone(text)
    changed = as_float16(text)
    assert not has_bfloat16_alone(changed)
    with make_context() as context:
        before, after = (ir.Module.parse(each, context) for each in (text, changed))
        assert after.operation.verify()
        names = [[op.name for op in ops_in(each.operation)] for each in (before, after)]
        assert names[0] == names[1]


@pytest.mark.parametrize("own", ["tensor<4xf16>", "tensor<f16>", "2.0 : f16"])
def test_a_module_with_float16_of_its_own_stays_as_it_is(own):
    assert not has_bfloat16_alone(f"tensor<4xbf16> {own}")


def test_hlo_comes_back():
    hlo = '  %a = f16[4,8]{1,0} fusion(f16[] %b, f32[4] %c), calls=%f16_1, metadata={op_name="to_f16"}'
    assert as_bfloat16(hlo) == hlo.replace(" f16[4", " bf16[4").replace("(f16[", "(bf16[")


@pytest.mark.parametrize("form", [str, bytes])
def test_a_program_that_stands_in_for_others_holds_bfloat16_in_two_bytes(form):
    """XLA's compiler for CPU devices computes products of bfloat16 in float32."""
    module = PRODUCTS
    if form is bytes:
        with make_context() as context:
            module = compat.bytecode(ir.Module.parse(module, context))
    here, other = (shared_child().compile(module, 8, keeps_hlo=True, stands_in=stands_in) for stands_in in ("", "tpu"))
    assert here.is_ok and other.is_ok
    assert other.costs.temp_bytes < 0.75 * here.costs.temp_bytes
    assert other.work == here.work and other.moved == here.moved and other.costs.bytes_received > 0
    assert other.hlo_text.count("bf16[") == here.hlo_text.count("bf16[") > 0 and " f16[" not in other.hlo_text


def test_a_target_gets_the_module_as_it_is():
    assert not CompileRequest("tensor<4xbf16>", 1, target="tpu:v5e:2x4", stands_in="tpu").is_narrowed
    assert CompileRequest("tensor<4xbf16>", 1, stands_in="tpu").is_narrowed


@pytest.mark.parametrize(
    "network, stands_in", [("v5e:2x4", "tpu"), ("h100:2x4", "gpu"), ("cpu:8", ""), ("uniform", ""), ("", "")]
)
def test_cpu_devices_stand_in_for_those_of_other_networks(network, stands_in):
    assert SiteNetwork(network).stands_in == stands_in
