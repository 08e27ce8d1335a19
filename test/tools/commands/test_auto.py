# SPDX-License-Identifier: Apache-2.0
"""reshard auto: text, JSON and the module with its layouts; diagnostics for files, networks and flags."""

import json
import re

import pytest

from reshard.tools import reshard as tool

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

MLP = """func.func public @main(%up: tensor<64x128xf32>, %x: tensor<256x64xf32>) -> tensor<256x128xf32> {
  %0 = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] : (tensor<256x64xf32>, tensor<64x128xf32>) -> tensor<256x128xf32>
  return %0 : tensor<256x128xf32>
}
"""  # noqa: E501

HLO = """HloModule step, num_partitions=8

ENTRY main.1 {
  x.1 = f32[64,64]{1,0} parameter(0), sharding={devices=[4,2]<=[8]}
  tanh.1 = f32[64,64]{1,0} tanh(x.1)
  ROOT moved.1 = f32[64,64]{1,0} custom-call(tanh.1), custom_call_target="Sharding", sharding={devices=[8,1]<=[8]}
}
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "mlp.mlir"
    path.write_text(MLP)
    return path


@pytest.mark.slow
def test_the_shapes_of_a_mesh_are_compared_and_the_module_is_written(module, capsys, tmp_path):
    out = tmp_path / "sharded.mlir"
    assert tool.main(["auto", str(module), "--devices", "8", "--topology", "v5e:2x4", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    for mesh in ("x=8", "x=2, y=4", "x=4, y=2", "x=2, y=2, z=2"):
        assert f"\n{mesh} " in text
    assert "what each axis is for" in text and "arguments" in text
    assert "sdy.mesh @mesh" in out.read_text() and "sdy.sharding" in out.read_text()


@pytest.mark.slow
def test_one_mesh_as_json(module, capsys):
    assert tool.main(["auto", str(module), "--mesh", "a=4,b=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "reshard.auto/1" and found["mesh"] == {"a": 4, "b": 2}
    assert {"mesh", "modelled_us", "gap", "our_us", "our_peak_bytes"} <= set(found["candidates"][0])


def test_named_dimensions_are_listed_with_the_axes_that_split_them(module, capsys):
    assert tool.main(["auto", str(module), "--mesh", "x=8", "--topology", "v5e:2x4", "--dimensions"]) == 0
    text = capsys.readouterr().out
    table = text.partition("named dimensions")[2]
    assert re.search(r"^[abc] +256 +2 +argument 1 0 +x in 100%$", table, re.M), table
    assert re.search(r"^[abc] +128 +2 +argument 0 1$", table, re.M) and re.search(
        r"^[abc] +64 +2 +argument 0 0, argument 1 1$", table, re.M
    )
    assert tool.main(["auto", str(module), "--mesh", "x=8", "--topology", "v5e:2x4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["repeats"] == [] and {each["sizes"][0] for each in found["dimensions"]} == {64, 128, 256}
    (batch,) = (each for each in found["dimensions"] if each["sizes"] == [256])
    assert batch["split"] == {"x": 1.0} and batch["conflicts"] == 0


def test_layers_that_repeat_are_named_and_listed_once(capsys, tmp_path):
    layers = [
        f"%h{i + 1} = stablehlo.dot_general %t{i}, %w{i}, contracting_dims = [1] x [0] : "
        "(tensor<256x64xf32>, tensor<64x64xf32>) -> tensor<256x64xf32>\n"
        f"%t{i + 1} = stablehlo.tanh %h{i + 1} : tensor<256x64xf32>"
        for i in range(9)
    ]
    weights = ", ".join(f"%w{i}: tensor<64x64xf32>" for i in range(9))
    path = tmp_path / "layers.mlir"
    path.write_text(
        f"func.func public @main({weights}, %t0: tensor<256x64xf32>) -> tensor<256x64xf32> {{\n"
        + "\n".join(layers)
        + "\nreturn %t9 : tensor<256x64xf32>\n}\n"
    )
    assert tool.main(["auto", str(path), "--mesh", "x=8", "--dimensions"]) == 0
    text = capsys.readouterr().out
    assert "\nlayers that repeat: 9 of 2 ops\n" in text
    assert re.search(r"^[ab] +64 +28 +argument 0 0, argument 0 1 and 17 more +f32.64,64.$", text, re.M), text


def test_what_cannot_be_is_said(module, capsys):
    assert tool.main(["auto", str(module), "--mesh", "x=8", "--memory-limit", "1KiB"]) == 1
    said = capsys.readouterr().err
    assert "error: no layout fits into 1.0 KiB: with every tensor split" in said
    ((needed, enough),) = re.findall(r"at least ([\d.]+) KiB are alive at once; allow (\d+)KiB or more", said)
    assert 1 < float(needed) <= float(enough) < float(needed) + 1 and "or use more devices, a smaller batch" in said
    assert tool.main(["auto", str(module)]) == 2
    assert "how many devices? give --mesh, --devices or --compile-for" in capsys.readouterr().err
    assert tool.main(["auto", str(module), "--compile-for", "cpu:8", "--mesh", "x=4"]) == 1
    assert "cpu:8 has 8 devices, and the mesh is for 4" in capsys.readouterr().err
    assert tool.main(["auto", str(module), "--compile-for", "tpv:v5e:2x4"]) == 1
    assert "cannot compile for 'tpv'; available: cpu, tpu, cuda" in capsys.readouterr().err
    assert tool.main(["auto", str(module), "--mesh", "x=8", "-o", "-", "--json"]) == 2
    assert tool.main(["auto", str(module.parent / "none.mlir"), "--mesh", "x=8"]) == 1


def test_a_sharding_on_another_mesh_may_be_left_out(module, capsys):
    split = '%up: tensor<64x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}'
    module.write_text('sdy.mesh @mesh = <["a"=8]>\n' + MLP.replace("%up: tensor<64x128xf32>", split))
    assert tool.main(["auto", str(module), "--mesh", "x=8"]) == 1
    said = capsys.readouterr().err
    assert 'is on the mesh <["a"=8]>, and layouts are chosen for <["x"=8]>; --free leaves such shardings out' in said
    assert tool.main(["auto", str(module), "--mesh", "x=8", "--free"]) == 0


def test_a_mesh_that_is_left_out_need_not_fit_the_network(module, capsys, tmp_path):
    split = '%up: tensor<64x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}'
    module.write_text('sdy.mesh @mesh = <["a"=8]>\n' + MLP.replace("%up: tensor<64x128xf32>", split))
    written = tmp_path / "written.mlir"
    network = ["--topology", "h100:1x4"]
    assert tool.main(["auto", str(module), "--mesh", "x=4", "--free", *network, "-o", str(written)]) == 0
    assert 'sdy.mesh @mesh = <["x"=4]>' in written.read_text() and '"a"' not in written.read_text()
    assert tool.main(["traffic", str(written), "--stock-only", *network]) == 0
    capsys.readouterr()


def test_shardings_of_gspmd_are_kept_or_left_out_as_those_of_shardy(capsys, tmp_path):
    module, written = tmp_path / "step.hlo", tmp_path / "written.mlir"
    module.write_text(HLO)
    assert tool.main(["auto", str(module), "--mesh", "x=8"]) == 1
    said = 'is on the mesh <["axis_0"=4, "axis_1"=2]>, and layouts are chosen for <["x"=8]>; --free leaves such'
    assert said in capsys.readouterr().err
    assert tool.main(["auto", str(module), "--mesh", "axis_0=4,axis_1=2", "--json"]) == 0
    (first, *_) = json.loads(capsys.readouterr().out)["arguments"]
    assert first["sharding"] == "P('axis_0', 'axis_1')"
    assert tool.main(["auto", str(module), "--mesh", "x=4", "--free", "-o", str(written)]) == 0
    text = written.read_text()
    assert "mhlo.sharding" not in text and "axis_0" not in text and "@Sharding" not in text
    capsys.readouterr()


def test_a_manual_computation_on_another_mesh_is_an_error_that_says_what_helps(module, capsys):
    module.write_text("""sdy.mesh @mesh = <["a"=8]>
    func.func public @main(%x: tensor<16xf32>) -> tensor<16xf32> {
      %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a"}]>] out_shardings=[<@mesh, [{"a"}]>]
        manual_axes={"a"} (%y: tensor<2xf32>) { sdy.return %y : tensor<2xf32> } : (tensor<16xf32>) -> tensor<16xf32>
      return %0 : tensor<16xf32>
    }""")
    for free in ([], ["--free"]):
        assert tool.main(["auto", str(module), "--mesh", "x=8", *free]) == 1
        said = capsys.readouterr().err
        assert 'of a manual computation is on the mesh <["a"=8]>, and layouts are chosen for <["x"=8]>; manual' in said
        assert "choose layouts for their mesh" in said and "--free" not in said
    assert tool.main(["auto", str(module), "--mesh", "a=8", "--free"]) == 0


def test_tactics_say_what_axes_are_for(module, capsys):
    assert tool.main(["auto", str(module), "--mesh", "x=8", "--tactics", "x=megatron", "--json"]) == 0
    (axis,) = json.loads(capsys.readouterr().out)["axes"]
    assert "data" not in axis["work"]
    assert tool.main(["auto", str(module), "--mesh", "x=8", "--tactics", "megatron", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["axes"] == [axis]
    assert tool.main(["auto", str(module), "--mesh", "x=8", "--tactics", "x=zer3"]) == 2
    assert (
        "'zer3' is none of data, zero1, zero3, sequence, megatron, expert, auto; do you mean zero3?"
        in capsys.readouterr().err
    )
    assert tool.main(["auto", str(module), "--mesh", "x=8", "--tactics", "y=data"]) == 2
    assert "the mesh has no axis y; its axes are x" in capsys.readouterr().err
    assert tool.main(["auto", str(module), "--devices", "8", "--tactics", "x=data"]) == 2


def test_a_mesh_that_xla_does_not_compile_for_is_a_mistake_on_the_command_line(module, capsys):
    for asked in (["--mesh", "x=4000"], ["--devices", "100000"]):
        assert tool.main(["auto", str(module), *asked]) == 2
        assert "XLA compiles for at most 2,048 CPU devices" in capsys.readouterr().err


def test_errors_of_a_module_name_its_file(tmp_path, capsys):
    path = tmp_path / "open.mlir"
    path.write_text("module {")
    assert tool.main(["auto", str(path), "--mesh", "x=8"]) == 1
    assert f"{path}:1:7: error:" in capsys.readouterr().err


@pytest.mark.tpu
@pytest.mark.slow
def test_the_compiler_of_a_tpu_judges(module, capsys):
    assert tool.main(["auto", str(module), "--compile-for", "tpu:v5e:2x4", "--mesh", "x=8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["topology"].startswith("v5e:2x4")
    (candidate,) = found["candidates"]
    assert candidate["our_us"] > 0 and candidate["our_peak_bytes"] > 0
