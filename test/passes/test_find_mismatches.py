# SPDX-License-Identifier: Apache-2.0
"""find-mismatches on programs that JAX lowers: it finds the sites known by hand, and agrees with XLA's propagation.

Each site leads back to an op of the original module.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reshard.dialect_utils.analysis import layout_check
from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.ir.ops import CONSTRAINTS, ops_around, ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.serials import serial_of
from reshard.dialect_utils.shardings.sdy_shardings import sharding_from_attr
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.find_mismatches import FindMismatchesPass
from reshard.passes.sites import findings as kinds
from reshard.passes.sites.findings import Finding, Findings, Skipped, read_findings, strip_findings, write_findings
from reshard.passes.sites.specialization import merge_clones

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.mlir"))

PRELUDE = """
import json, jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
def constrain(value, *spec): return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, P(*spec)))
def array(shape, *spec): return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))
def lower(function, *args, out=None):
    jitted = jax.jit(function, out_shardings=out and NamedSharding(mesh, P(*out)))
    return jitted.lower(*args).as_text()
programs = {}
"""

# Each text sets programs[name]; all are lowered together, once, in a child with 8 CPU devices.
PROGRAMS = """
def swap(a): return constrain(jax.lax.optimization_barrier(jnp.tanh(constrain(a, "x"))), None, "x")
programs["swap"] = lower(swap, array((8, 8), "x"), out=(None, "x"))

def chain(a): return constrain(constrain(constrain(a, "x"), None, "x"), "y", "x")
programs["chain"] = lower(chain, array((8, 8), "x"), out=("y", "x"))

def scanned(a, w):
    def body(carry, layer):
        hidden = constrain(carry, None, "x")
        return constrain(jnp.tanh(hidden * layer), "x", None), ()
    return jax.lax.scan(body, a, w)[0]
programs["scanned"] = lower(scanned, array((8, 8), "x"), array((3, 8, 8), None, None, "x"), out=("x",))

def backward(a):
    def loss(v): return jnp.sum(jnp.sin(constrain(constrain(v, "x"), None, "y")) ** 2)
    return jax.grad(loss)(a)
programs["backward"] = lower(backward, array((8, 8), "x"), out=("x",))

def scanned_backward(a, w):
    def loss(v):
        def body(carry, layer): return constrain(constrain(jnp.tanh(carry @ layer), None, "x"), "x"), ()
        return jnp.sum(jax.lax.scan(body, v, w)[0])
    return jax.grad(loss)(a)
programs["scanned_backward"] = lower(scanned_backward, array((8, 8), "x"), array((3, 8, 8), None, "y"), out=("x",))

helper = jax.jit(lambda a: constrain(jnp.tanh(constrain(a, None, "x")), None, "x"))
def helped_alike(a): return helper(constrain(helper(constrain(a, "x")), "x"))
programs["helped_alike"] = lower(helped_alike, array((8, 8), "x"))
def helped_unlike(a): return helper(constrain(helper(constrain(a, "x")), "y"))
programs["helped_unlike"] = lower(helped_unlike, array((8, 8), "x"))

def branched(a, flag): return jax.lax.cond(flag, lambda v: v @ v.T, lambda v: constrain(v, "x", "y"), constrain(a, None, "x"))
programs["branched"] = lower(branched, array((8, 8), "x"), jax.ShapeDtypeStruct((), jnp.bool_))

def mapped(a):
    gather = lambda tile: jax.lax.all_gather(jnp.tanh(tile), "x", axis=0, tiled=True)
    return jax.shard_map(gather, mesh=mesh, in_specs=P("x", "y"), out_specs=P(None, "y"), check_vma=False)(a)
programs["mapped"] = lower(mapped, array((8, 8), None, "x"), out=("x",))

def attention(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", constrain(q, "y", "x"), k))
    return constrain(jnp.einsum("bhqk,bkhd->bqhd", scores, v), "y", None, "x")
programs["attention"] = lower(attention, *[array((4, 8, 8, 16), "y", None, "x")] * 3)

def noisy(key, a): return a + constrain(jax.random.normal(key, (16, 16)), "x", "y")
programs["noisy"] = lower(noisy, jax.ShapeDtypeStruct((2,), jnp.uint32), array((16, 16), "y"))

def rematerialized(a, w):
    layer = jax.checkpoint(lambda h, l: constrain(jax.nn.gelu(h @ l[0], approximate=False), "x", "y") @ l[1])
    def loss(a, w):
        def body(h, l): return layer(h, l), jnp.max(h, keepdims=True) * h
        last, scaled = jax.lax.scan(body, a, w)
        return jnp.sum(last ** 2) + scaled.sum()
    return jax.grad(loss, argnums=(0, 1))(a, w)
weights = array((4, 16, 32), None, None, "y"), array((4, 32, 16), None, "y", None)
programs["rematerialized"] = lower(rematerialized, array((8, 16), "x"), weights)

def normalized(a): return constrain(a, "x") / jnp.linalg.norm(a, axis=1, keepdims=True)
programs["normalized"] = lower(normalized, array((16, 16), "y"))

def unsharded(a): return a + 1
programs["unsharded"] = jax.jit(unsharded).lower(jnp.ones(8)).as_text()

print(json.dumps(programs))
"""  # noqa: E501


@functools.cache
def programs() -> dict[str, str]:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    child = subprocess.run(
        [sys.executable, "-c", PRELUDE + PROGRAMS], env=environment, capture_output=True, text=True, timeout=300
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


NAMES = (
    "swap", "chain", "scanned", "backward", "scanned_backward", "helped_alike", "helped_unlike", "branched", "mapped",
    "attention", "noisy", "rematerialized", "normalized", "unsharded",
)  # fmt: skip


@pytest.fixture
def context():
    context = make_context()
    with context, ir.Location.unknown():
        yield context


def find(text: str, **options) -> tuple[ir.Module, Findings, Session]:
    module = ir.Module.parse(text)
    session = Session()
    Pipeline((FindMismatchesPass(**options),)).run(module, session)
    return module, read_findings(module), session


def edges(found: Findings) -> list[tuple[str, str, str, str]]:
    """Returns (kind, op, source, target) of each edge."""
    return [
        (
            each.kind,
            each.op.name.split(".")[1],
            str(sharding_from_attr(each.source)),
            str(sharding_from_attr(each.target)),
        )
        for each in found.edges
    ]


def test_constraint_behind_a_barrier(context):
    _, found, _ = find(programs()["swap"])
    assert edges(found) == [("constraint", "sharding_constraint", '[{"x"}, {}]', '[{}, {"x"}]')]


def test_each_constraint_of_a_chain_is_a_site(context):
    _, found, _ = find(programs()["chain"])
    assert edges(found) == [
        ("constraint", "sharding_constraint", '[{"x"}, {}]', '[{}, {"x"}]'),
        ("constraint", "sharding_constraint", '[{}, {"x"}]', '[{"y"}, {"x"}]'),
    ]
    assert [each.site for each in found.edges] == [0, 1]


def test_sites_inside_a_loop(context):
    """The value of the second constraint already has its layout, so the mismatch is at the op before the constraint."""
    _, found, _ = find(programs()["scanned"])
    assert edges(found) == [
        ("constraint", "sharding_constraint", '[{"x"}, {}]', '[{}, {"x"}]'),
        ("result", "tanh", '[{}, {"x"}]', '[{"x"}, {}]'),
    ]


def test_backward_sites_mirror_forward_sites(context):
    _, found, _ = find(programs()["backward"])
    moves = [(source, target) for kind, _, source, target in edges(found) if kind == kinds.CONSTRAINT]
    assert ('[{"x"}, {}]', '[{}, {"y"}]') in moves
    assert ('[{}, {"y"}]', '[{"x"}, {}]') in moves


def test_backward_of_a_loop(context):
    _, found, _ = find(programs()["scanned_backward"])
    moves = [(source, target) for kind, _, source, target in edges(found) if kind == kinds.CONSTRAINT]
    assert moves.count(('[{"x"}, {}]', '[{}, {"x"}]')) >= 1
    assert moves.count(('[{}, {"x"}]', '[{"x"}, {}]')) >= 1


def test_calls_alike_have_one_site_in_the_callee(context):
    _, found, session = find(programs()["helped_alike"])
    assert not found.skipped and not session.remarks
    inside = [each for each in found.edges if _function(each) != "main"]
    assert [(each.kind, str(sharding_from_attr(each.source))) for each in inside] == [("constraint", '[{"x"}, {}]')]


def test_calls_unlike_have_a_function_each(context):
    module, found, session = find(programs()["helped_unlike"])
    assert not found.skipped and not session.remarks
    inside = [
        (_function(each), each.kind, str(sharding_from_attr(each.source)))
        for each in found.edges
        if _function(each) != "main"
    ]
    (first, _, _), (second, _, _) = inside
    assert second == f"{first}_1"
    assert inside == [(first, "constraint", '[{"x"}, {}]'), (second, "constraint", '[{"y"}, {}]')]
    assert _callees(module) == [first, second]


def test_a_manual_computation_wants_its_operand(context):
    _, found, _ = find(programs()["mapped"])
    assert edges(found)[0] == ("argument", "manual_computation", '[{}, {"x"}]', '[{"x"}, {"y"}]')


def test_a_split_broadcast_is_left_alone(context):
    _, found, _ = find(programs()["normalized"])
    assert [each.reason for each in found.skipped] == ["XLA writes this broadcast as several ops"]


def test_a_program_without_shardings_has_no_sites(context):
    _, found, _ = find(programs()["unsharded"])
    assert found == Findings(())


def _function(finding: Finding) -> str:
    function = next(op for op in ops_around(finding.op) if op.name == "func.func")
    return ir.StringAttr(function.attributes["sym_name"]).value


def _callees(module: ir.Module) -> list[str]:
    calls = (op for op in ops_in(module.operation) if op.name == "func.call")
    return [ir.FlatSymbolRefAttr(op.attributes["callee"]).value for op in calls]


@pytest.mark.parametrize("name", NAMES)
def test_the_original_is_unchanged_but_for_findings(name, context):
    module, _, _ = find(programs()[name])
    merge_clones(module)
    strip_findings(module)
    assert str(module) == str(ir.Module.parse(programs()[name]))


@pytest.mark.parametrize("name", NAMES)
def test_findings_are_valid_and_read_back_as_written(name, context):
    module, found, _ = find(programs()[name])
    module.operation.verify()
    again = ir.Module.parse(str(module))
    assert edges(read_findings(again)) == edges(found)
    assert read_findings(again).skipped == found.skipped
    for each in found.edges:
        rank = len(ir.ShapedType(each.value.type).shape)
        assert sharding_from_attr(each.source).rank == sharding_from_attr(each.target).rank == rank
        assert not sharding_from_attr(each.source).open_dims and not sharding_from_attr(each.target).open_dims


@pytest.mark.parametrize("name", NAMES)
def test_same_findings_every_time(name, context):
    first, second = (str(find(programs()[name])[0]) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", NAMES)
def test_every_op_of_the_clone_leads_to_its_original(name, context):
    module = ir.Module.parse(programs()[name])
    analysis = analyse(module)
    for op in ops_in(analysis.explicit):
        serial = serial_of(op)
        if serial is None or analysis.origin[serial] is None or op.name in CONSTRAINTS:
            continue
        original = analysis.originals[analysis.origin[serial]]
        split = {"stablehlo.broadcast_in_dim", "stablehlo.reshape"}
        assert op.name == original.name or {op.name, original.name} <= split or original.name.startswith("chlo.")
        assert [each.type for each in op.results] == [each.type for each in original.results]


def test_extras_of_later_passes_survive_a_round_trip(context):
    module, found, _ = find(programs()["chain"])
    verdict = {"verdict": ir.StringAttr.get("keep"), "reason": ir.StringAttr.get("no faster")}
    write_findings(
        module, Findings(tuple(each.with_extras(verdict) for each in found.edges), (Skipped("loop", "here", "so"),))
    )
    again = read_findings(ir.Module.parse(str(module)))
    assert {str(each.extra("verdict")) for each in again.edges} == {'"keep"'}
    assert again.edges[0].extra("chain") is None
    assert again.skipped == (Skipped("loop", "here", "so"),)
    assert again.by_site().keys() == {0, 1}


def test_a_composite_keeps_its_decomposition(context):
    """Shardy once ended the process here, since an uncalled private function was propagated as the program."""
    text = """
      sdy.mesh @mesh = <["x"=4]>
      func.func private @impl(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> { return %arg0 : tensor<8x8xf32> }
      func.func public @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
        %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
        %1 = stablehlo.composite "my.op" %0 {decomposition = @impl} : (tensor<8x8xf32>) -> tensor<8x8xf32>
        return %1 : tensor<8x8xf32>
      }"""  # noqa: E501
    _, found, _ = find(text)
    assert [edge.kind for edge in found.edges] == ["constraint"]


# Agreement with XLA


def layout_check_of(text: str) -> layout_check.Disagreements:
    module = ir.Module.parse(text)
    return layout_check.compare_with_xla(module, analyse(module), shared_child())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "unsharded"])
def test_xla_propagates_the_same_layouts(name, context):
    found = layout_check_of(programs()[name])
    assert not found.failure and found.compared > 0
    assert not found.reasons


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_xla_propagates_the_same_layouts_in_examples(path, context):
    found = layout_check_of(path.read_text())
    assert not found.failure and found.compared > 0
    assert not found.reasons


def test_marks_of_clones_stay_on_functions_alone_and_strip_findings_leaves_none():
    text = """
      sdy.mesh @mesh = <["x"=2]>
      func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
        %0 = stablehlo.tanh %arg0 {reshard.clone_of = "tanh"} : tensor<8x8xf32>
        %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
        return %1 : tensor<8x8xf32>
      }"""
    module = ir.Module.parse(text, make_context())
    session = Session()
    Pipeline.parse("find-mismatches,strip-findings").run(module, session)
    assert "reshard." not in str(module)
    assert session.results.statistics["find-mismatches", "sites"] == 1
