# SPDX-License-Identifier: Apache-2.0
"""reshard-opt reads every form of input in docs/inputs.md, and rewrites every site; the results run on 8 CPU devices.

`reshard verify` does this: it runs the file as stock XLA partitions it, as we rewrite it, and unsharded on one device,
and compares the values.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from reshard.dialect_utils.platform.bindings import ir, make_context, passmanager
from reshard.passes.results.module_verification import RIGHT
from reshard.tools.reshard import main as tool
from reshard.tools.reshard_opt import main as reshard_opt

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

HEAD = "mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32"
ALWAYS = (
    "builtin.module(import-gspmd,find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives)"
)
AS_IT_IS = "--pass-pipeline=builtin.module()"


def shardy(op: str) -> str:
    return f"""module @m attributes {{{HEAD}}} {{
  sdy.mesh @mesh = <["x"=4, "y"=2]>
  func.func public @main(%arg0: tensor<16x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{"y"}}]>}})
      -> (tensor<16x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"y"}}, {{"x"}}]>}}) {{
    %0 = {op} : tensor<16x16xf32>
    return %0 : tensor<16x16xf32>
  }}
}}
"""


def gspmd(before: str, after: str) -> str:
    return f"""module @m attributes {{{HEAD}}} {{
  func.func public @main(%arg0: tensor<16x16xi32> {{mhlo.sharding = "{before}"}}) -> (tensor<16x16xi32> {{mhlo.sharding = "{after}"}}) {{
    %0 = stablehlo.negate %arg0 : tensor<16x16xi32>
    return %0 : tensor<16x16xi32>
  }}
}}
"""  # noqa: E501


NEGATED = shardy("stablehlo.negate %arg0")
HLO = Path(__file__).parent.parent / "tools" / "reshard-opt" / "Inputs" / "dump.hlo"

CONSTRAINT = f"""module @m attributes {{{HEAD}}} {{
  func.func public @main(%arg0: tensor<16x16xi32> {{mhlo.sharding = "{{devices=[8,1]<=[8]}}"}}) -> tensor<16x16xi32> {{
    %0 = stablehlo.negate %arg0 : tensor<16x16xi32>
    %1 = stablehlo.custom_call @Sharding(%0) {{mhlo.sharding = "{{devices=[1,8]<=[8]}}"}} : (tensor<16x16xi32>) -> tensor<16x16xi32>
    %2 = stablehlo.custom_call @Sharding(%1) {{mhlo.sharding = "{{replicated}}"}} : (tensor<16x16xi32>) -> tensor<16x16xi32>
    return %2 : tensor<16x16xi32>
  }}
}}
"""  # noqa: E501


def in_tiles(ends: tuple[str, str], around: str, inside: str, tile: str) -> str:
    """Returns a module with a region that computes on tiles.

    Args:
      around, inside: the shardings of the value around the region and of the ops inside. tile: the type of a tile.
    """
    array = "tensor<16x16xi32>"
    return f"""module @m attributes {{{HEAD}}} {{
  func.func public @main(%arg0: {array} {{mhlo.sharding = "{ends[0]}"}}) -> ({array} {{mhlo.sharding = "{ends[1]}"}}) {{
    %0 = stablehlo.custom_call @Sharding(%arg0) {{mhlo.sharding = "{around}"}} : ({array}) -> {array}
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = "{inside}"}} : ({array}) -> {tile}
    %2 = stablehlo.negate %1 : {tile}
    %3 = stablehlo.custom_call @Sharding(%2) {{mhlo.sharding = "{inside}"}} : ({tile}) -> {tile}
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {{mhlo.sharding = "{around}"}} : ({tile}) -> {array}
    return %4 : {array}
  }}
}}
"""


MANUAL = in_tiles(
    ("{devices=[8,1]<=[8]}", "{devices=[4,2]<=[8]}"), "{devices=[2,4]<=[8]}", "{manual}", "tensor<8x4xi32>"
)
SUBGROUPS = in_tiles(
    ("{devices=[1,8]<=[8]}", "{devices=[8,1]<=[8]}"),
    "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
    "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}",
    "tensor<8x16xi32>",
)

ROUND_TRIP = f"""module @m attributes {{{HEAD}, mhlo.frontend_attributes = {{xla.sdy.meshes = "{{mesh = #sdy.mesh<[\\22x\\22=4, \\22y\\22=2]>}}"}}}} {{
  func.func public @main(%arg0: tensor<16x16xi32> {{mhlo.frontend_attributes = {{xla.sdy.sharding = "#sdy.sharding<@mesh, [{{\\22x\\22}}, {{\\22y\\22}}]>"}}}}) -> tensor<16x16xi32> {{
    %0 = stablehlo.negate %arg0 : tensor<16x16xi32>
    %1 = stablehlo.custom_call @xla.sdy.FuncResultSharding(%0) {{has_side_effect = true, mhlo.frontend_attributes = {{xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{{\\22y\\22}}, {{\\22x\\22}}]>]>"}}}} : (tensor<16x16xi32>) -> tensor<16x16xi32>
    return %1 : tensor<16x16xi32>
  }}
}}
"""  # noqa: E501

TEXTS = {
    "StableHLO text": NEGATED,
    "CHLO": shardy("chlo.erf %arg0").replace(
        ": tensor<16x16xf32>\n    return", ": tensor<16x16xf32> -> tensor<16x16xf32>\n    return"
    ),
    "lists of devices": gspmd("{devices=[2,4]0,1,2,3,4,5,6,7}", "{devices=[4,2]0,4,1,5,2,6,3,7}"),
    "a list that no mesh explains": CONSTRAINT.replace("{devices=[8,1]<=[8]}", "{devices=[4,2]0,7,4,5,2,3,6,1}"),
    "iotas": gspmd("{devices=[4,2]<=[8]}", "{devices=[2,4]<=[4,2]T(1,0)}"),
    "last_tile_dim_replicate": gspmd(
        "{devices=[4,1,2]<=[4,2] last_tile_dim_replicate}", "{devices=[1,4,2]<=[8] last_tile_dim_replicate}"
    ),
    "last_tile_dims": gspmd("{devices=[4,1,2]<=[8] last_tile_dims={replicated}}", "{devices=[2,4]<=[8]}"),
    "named meshes": gspmd("{mesh['x'=2,'y'=4], [{'y'}, {'x'}]}", "{mesh['x'=2,'y'=4], [{'x'}, {'y'}]}"),
    "replicated": gspmd("{replicated}", "{devices=[2,4]<=[8]}"),
    "Sharding": CONSTRAINT,
    "manual": MANUAL,
    "manual subgroups": SUBGROUPS,
    "round-trip form": ROUND_TRIP,
    "HLO text": HLO.read_text(),
}
FLAGS = {"MLIR bytecode": "--emit-bytecode", "portable artifact": "--emit-portable-artifact"}
FORMS = [*TEXTS, *FLAGS, "VHLO text", "jax.export file"]


def write(form: str, path: Path) -> None:
    """Writes a module in the form to a file."""
    if form in TEXTS:
        path.write_text(TEXTS[form])
    elif form in FLAGS:
        text = path.with_suffix(".mlir")
        text.write_text(NEGATED)
        assert reshard_opt([str(text), AS_IT_IS, FLAGS[form], "-o", str(path)]) == 0
    elif form == "VHLO text":
        with make_context():
            module = ir.Module.parse(TEXTS["iotas"])
            passmanager.PassManager.parse("builtin.module(stablehlo-legalize-to-vhlo)").run(module.operation)
            path.write_text(str(module))
    else:
        mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
        before, after = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("x", "y"), ("y", "x")))
        shape = jax.ShapeDtypeStruct((16, 16), np.int32, sharding=before)
        exported = jax.export.export(jax.jit(jnp.negative, out_shardings=after))(shape)
        path.write_bytes(bytes(exported.serialize()))


@pytest.mark.mostly_slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_input_is_read_rewritten_and_gives_what_it_gives_unsharded(form, tmp_path, capsys):
    path = tmp_path / "module"
    write(form, path)
    assert tool(["verify", str(path), "--policy", "always", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["devices"] == 8 and found["is_rewritten"], found
    assert found["ours"]["status"] in ("equal", "rounded"), found


LINEAR_ALGEBRA = {
    "cholesky": lambda a: jnp.linalg.cholesky(a + 8 * jnp.eye(16)),
    "qr": jnp.linalg.qr,
    "svd": lambda a: jnp.linalg.svd(a, compute_uv=False),
    "solve": lambda a: jnp.linalg.solve(a + 8 * jnp.eye(16), a),
    "eigh": lambda a: jnp.linalg.eigvalsh(a),
}


def linear_algebra(name: str) -> jax.stages.Lowered:
    """Returns a program whose HLO calls LAPACK.

    Such a call returns a tuple in HLO, and holds Shardy's rule as a string.
    """
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    rows, columns = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("x", "y"), ("y", "x")))

    def program(a):
        a = jax.lax.with_sharding_constraint(jnp.tanh(jax.lax.with_sharding_constraint(a, rows)), columns)
        return LINEAR_ALGEBRA[name](a)

    return jax.jit(program, in_shardings=rows).lower(jax.ShapeDtypeStruct((16, 16), np.float32))


@pytest.mark.mostly_slow
@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_hlo_of_linear_algebra_is_read_and_rewritten(name, tmp_path, capsys):
    (tmp_path / "module.hlo").write_text(linear_algebra(name).compiler_ir("hlo").as_hlo_text())
    assert reshard_opt([str(tmp_path / "module.hlo"), f"--pass-pipeline={ALWAYS}"]) == 0
    written = capsys.readouterr().out
    assert "sdy.manual_computation" in written and "tuple<" not in written


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cholesky", "qr"])
def test_hlo_of_linear_algebra_gives_what_it_gives_unsharded(name, tmp_path, capsys):
    (tmp_path / "module.hlo").write_text(linear_algebra(name).compiler_ir("hlo").as_hlo_text())
    assert tool(["verify", str(tmp_path / "module.hlo"), "--policy", "always", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_rewritten"] and found["ours"]["status"] in RIGHT, found  # LAPACK's rounding depends on its blocks
