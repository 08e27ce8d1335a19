# SPDX-License-Identifier: Apache-2.0
"""reshard place: text and JSON; diagnostics for modules, networks and flags."""

import json

import pytest

from reshard.tools import reshard as tool

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

# The sum over x is large, what y gathers is small: x belongs inside the nodes.
SUM = """sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @main(%w: tensor<1024x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                       %x: tensor<2048x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>})
    -> (tensor<2048x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2048x1024xf32>, tensor<1024x1024xf32>) -> tensor<2048x1024xf32>
  return %0 : tensor<2048x1024xf32>
}
"""  # noqa: E501


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "sum.mlir"
    path.write_text(SUM)
    return path


HLO = """HloModule step, num_partitions=8

ENTRY main.1 {
  x.1 = f32[64,64]{1,0} parameter(0), sharding={devices=[4,2]<=[8]}
  tanh.1 = f32[64,64]{1,0} tanh(x.1)
  ROOT moved.1 = f32[64,64]{1,0} custom-call(tanh.1), custom_call_target="Sharding", sharding={devices=[8,1]<=[8]}
}
"""


def test_a_module_may_be_hlo_text(capsys, tmp_path):
    module = tmp_path / "step.hlo"
    module.write_text(HLO)
    assert tool.main(["place", str(module), "--topology", "h100:1x8", "--compiled", "1"]) == 0
    assert "placement of the mesh axis_0=4, axis_1=2" in capsys.readouterr().out


def test_an_axis_with_large_sums_is_placed_inside_the_nodes(module, capsys):
    assert tool.main(["place", str(module), "--topology", "h100:2x4"]) == 0
    text = capsys.readouterr().out
    first = text.splitlines()[3]
    assert first.startswith("x: gpu 4; y: node 2") and "row-major" not in first
    assert "device_ids=[0, 4, 1, 5, 2, 6, 3, 7]>" in text and 'reshape(4, 2), ["x", "y"])' in text


def test_a_module_with_shardings_of_gspmd_alone_has_the_mesh_of_these(tmp_path, capsys):
    path = tmp_path / "gspmd.mlir"
    path.write_text("""module attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
      func.func public @main(%x: tensor<64x64xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"})
          -> (tensor<64x64xf32> {mhlo.sharding = "{devices=[2,4]<=[4,2]T(1,0)}"}) {
        return %x : tensor<64x64xf32>
      }
    }""")
    assert tool.main(["place", str(path), "--topology", "h100:2x4"]) == 0
    assert "on h100:2x4" in capsys.readouterr().out


def test_placements_as_json(module, capsys):
    assert tool.main(["place", str(module), "--topology", "h100:2x4", "--compiled", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "reshard.place/1" and found["device_ids"] == [0, 4, 1, 5, 2, 6, 3, 7]
    best, *others = found["placements"]
    assert all(best["stock_us"] < each["stock_us"] and each["our_us"] is None for each in others)
    assert [each["names"] for each in others] == [["row-major", "jax"]]


def test_a_mesh_with_device_ids_is_the_same_program_and_may_be_placed_well_already(module, tmp_path, capsys):
    found = []
    for ids in ("", ", device_ids=[0, 4, 1, 5, 2, 6, 3, 7]", ", device_ids=[7, 6, 5, 4, 3, 2, 1, 0]"):
        path = tmp_path / "ids.mlir"
        path.write_text(SUM.replace('"y"=2]>', f'"y"=2]{ids}>'))
        assert tool.main(["place", str(path), "--topology", "h100:2x4", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["placements"])
        assert tool.main(["place", str(path), "--topology", "h100:2x4", "--compiled", "0"]) == 0
        assert ("nothing is to be gained" in capsys.readouterr().out) == ("[0, 4" in ids)
    times = [
        [each["stock_us"] for each in places if "as it came" not in each["names"] or len(places) == 2]
        for places in found
    ]
    assert times[0] == times[1] == times[2]
    assert [each["names"] for each in found[1]] == [["as it came"], ["row-major", "jax"]]


def test_the_order_of_the_ids_stays_where_nothing_is_gained(module, capsys):
    assert tool.main(["place", str(module), "--topology", "h100:1x8", "--compiled", "0"]) == 0
    assert "nothing is to be gained" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "topology", "said"),
    [
        (SUM, "h100:3x4", "= 12 devices; the mesh has 8"),
        (SUM, "h1000", 'unknown topology "h1000"'),
        ("func.func public @main() { return }", "h100:2x4", "the module has no mesh"),
        ('sdy.mesh @a = <["x"=8]>\nsdy.mesh @b = <["y"=8]>', "h100:2x4", "the module has 2 meshes"),
    ],
)
def test_what_cannot_be_placed_is_said(tmp_path, capsys, text, topology, said):
    path = tmp_path / "other.mlir"
    path.write_text(text)
    status = tool.main(["place", str(path), "--topology", topology, "--compiled", "0"])
    assert status == 1 and said in capsys.readouterr().err


def test_a_negative_count_is_a_wrong_command_line(module, capsys):
    with pytest.raises(SystemExit) as end:
        tool.main(["place", str(module), "--topology", "h100:2x4", "--compiled", "-1"])
    assert end.value.code == 2 and "'-1' is no whole number of at least 0" in capsys.readouterr().err
