# SPDX-License-Identifier: Apache-2.0
"""Shardy's verifier and its pass to tiles accept the chains that `emit=sdy` writes."""

import random

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context, passmanager
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.synthesis.programs import blocked_chains

PIPELINE = "find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives{emit=sdy},strip-findings"
TILES = "builtin.module(sdy-convert-global-to-local)"


def module(mesh: str, source: str, target: str) -> str:
    shapes = "tensor<48x96xf32>"
    return f"""sdy.mesh @mesh = <[{mesh}]>
      func.func @main(%arg0: {shapes} {{sdy.sharding = #sdy.sharding<@mesh, {source}>}}) -> {shapes} {{
        %0 = sdy.sharding_constraint %arg0 <@mesh, {target}> : {shapes}
        return %0 : {shapes}
      }}"""


def pairs():
    rng = random.Random(3)
    for mesh in ('"x"=2, "y"=2, "z"=2', '"x"=4, "y"=2', '"x"=2, "y"=3, "z"=4'):
        for _ in range(6):
            yield mesh, *(sharding(rng, mesh.count("=")) for _ in range(2))


def sharding(rng: random.Random, count: int) -> str:
    axes = rng.sample("xyz"[:count], count)
    cut = sorted(rng.choices(range(count + 1), k=2))
    dims = axes[: cut[0]], axes[cut[0] : cut[1]]
    return "[" + ", ".join("{" + ", ".join(f'"{axis}"' for axis in dim) + "}" for dim in dims) + "]"


@pytest.mark.parametrize(("mesh", "source", "target"), list(pairs()))
def test_shardy_takes_the_chain(mesh, source, target):
    with make_context() as context, ir.Location.unknown(context):
        written = ir.Module.parse(module(mesh, source, target))
        session = Session()
        Pipeline.parse(PIPELINE).run(written, session)
        assert written.operation.verify() and not session.errors
        ops = [op.operation for op in written.body.operations[1].regions[0].blocks[0].operations]
        last = [str(op.attributes["out_sharding"]) for op in ops if "out_sharding" in op.attributes][-1:]
        assert last == ([] if source == target else [f"#sdy.sharding<@mesh, {target}>"])
        for op in ops:
            if op.name == "sdy.sharding_constraint":  # repeats the present layout; the pass accepts no constraints
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
        passmanager.PassManager.parse(TILES).run(written.operation)


def test_a_site_without_a_chain_is_left_with_a_remark(monkeypatch):
    monkeypatch.setattr(blocked_chains, "MOST_STATES", 0)
    blocked_chains.blocked_chain.cache_clear()
    with make_context() as context, ir.Location.unknown(context):
        written = ir.Module.parse(module('"x"=4, "y"=2', '[{"x"}, {}]', '[{}, {"x"}]'))
        session = Session()
        Pipeline.parse(PIPELINE).run(written, session)
        assert "sdy.sharding_constraint %arg0" in str(written) and "sdy.all_to_all" not in str(written)
    blocked_chains.blocked_chain.cache_clear()
    assert (
        "site 0 is left to XLA: Shardy's collectives do not express the chain all_to_all x: dim 0 -> 1; "
        "--emit=manual does" in (each.message for each in session.remarks)
    )
