# SPDX-License-Identifier: Apache-2.0
"""reshard advise: text, JSON and the changed module; diagnostics for files, networks and flags."""

import json
from pathlib import Path

import pytest

from reshard.passes.advice.advising import BY_DEFAULT, MAY_CHANGE, MOST_CHANGES
from reshard.tools import reshard as tool
from reshard.tools.commands.flags import parse_flags

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = str(ROOT / "examples" / "issue_21562.mlir")
BAD = """sdy.mesh @mesh = <["x"=8]>
func.func public @main(%arg0: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.tanh %arg0 : tensor<64x64xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<64x64xf32>
  %2 = stablehlo.dot_general %1, %1, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %3 = sdy.sharding_constraint %2 <@mesh, [{}, {"x"}]> : tensor<64x64xf32>
  %4 = stablehlo.exponential %3 : tensor<64x64xf32>
  return %4 : tensor<64x64xf32>
}
"""  # noqa: E501

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
    assert tool.main(["advise", str(module), "--topology", "h100:1x8", "--effort", "0.01", "--json"]) == 0
    titles = [each["title"] for each in json.loads(capsys.readouterr().out)["forms"]]
    assert {"as it came", "as it came, optimized"} <= {*titles}


def test_the_flags_have_the_defaults_of_the_function():
    flags = parse_flags(["advise", "step.mlir"])
    assert (flags.most, flags.may_change) == (MOST_CHANGES, BY_DEFAULT)
    every = ",".join(MAY_CHANGE)
    assert parse_flags(["advise", "step.mlir", "--may-change", every]).may_change == tuple(MAY_CHANGE)


@pytest.mark.slow
def test_a_change_is_named_with_its_line_and_the_changed_module_is_written(capsys, tmp_path):
    module, changed = tmp_path / "step.mlir", tmp_path / "better.mlir"
    module.write_text(BAD)
    assert tool.main(["advise", str(module), "--topology", "h100", "--stock-only", "-o", str(changed)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{module}: 8 devices, times modelled on h100, 1 node x 8 gpu\n")
    assert f"1. {module}:7:" in text and "(1 constraint, f32[64,64])" in text and "P(None, 'x') -> " in text
    assert "2 annotations (a line with one sharding)" in text
    assert tool.main(["traffic", str(changed), "--stock-only", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)["stock"]["bytes_received"]
    assert tool.main(["traffic", str(module), "--stock-only", "--json"]) == 0
    assert after < json.loads(capsys.readouterr().out)["stock"]["bytes_received"]


@pytest.mark.slow
def test_what_reshard_opt_makes_of_the_program_as_it_came_counts_against_a_change(capsys):
    assert tool.main(["advise", EXAMPLE, "--topology", "h100:2x4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "reshard.advice/1" and data["changes"] == []
    assert [each["title"] for each in data["forms"]] == [
        "as it came",
        "with 1 change",
        "as it came, optimized",
        "with changes, optimized",
    ]
    assert data["problem"].startswith("reshard-opt makes the program as it came as fast")


def test_no_module_is_written_if_nothing_is_advised(capsys, tmp_path):
    output = tmp_path / "better.mlir"
    assert tool.main(["advise", EXAMPLE, "--topology", "h100:2x4", "-o", str(output)]) == 0
    assert "no module is written, since nothing is advised" in capsys.readouterr().err and not output.exists()


def test_a_file_with_several_modules_has_no_function_to_begin_with(capsys, tmp_path):
    module = tmp_path / "several.mlir"
    module.write_text("module { }\n// -----\nmodule { }\n")
    assert tool.main(["advise", str(module)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err == f"{module}: error: the module has no function @main, with which XLA begins\n"


def test_a_form_that_xla_does_not_read_is_written_as_one_that_it_reads(capsys, monkeypatch):
    monkeypatch.setenv("RESHARD_EMIT", "sdy")
    assert tool.main(["advise", EXAMPLE, "--effort", "0.01", "--json"]) == 0
    forms = {each["title"]: each for each in json.loads(capsys.readouterr().out)["forms"]}
    assert forms["as it came, optimized"]["bytes_received"] < forms["as it came"]["bytes_received"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere.mlir"], 1, "nowhere.mlir: error: no such file or directory"),
        ([EXAMPLE, "--topology", "h100:3"], 1, "the mesh has 8"),
        ([EXAMPLE, "--topology", "h1000"], 1, "h1000"),
        ([EXAMPLE, "--json", "-o", "-"], 2, "both write to stdout"),
    ],
)
def test_bad_input(capsys, arguments, status, message):
    assert tool.main(["advise", *arguments]) == status
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["--effort", "0"], ["--may-change", "all"], ["--most", "no"], ["--memory-limit", "12GX"]]
)
def test_wrong_flags(capsys, wrong):
    with pytest.raises(SystemExit) as stopped:
        tool.main(["advise", EXAMPLE, *wrong])
    assert stopped.value.code == 2 and wrong[0] in capsys.readouterr().err
