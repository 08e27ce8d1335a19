# SPDX-License-Identifier: Apache-2.0
"""reshard traffic: text, JSON and a page; diagnostics for files and networks that do not fit."""

import json
from pathlib import Path

import pytest

from reshard.passes.traffic.ledger import GROUPINGS
from reshard.tools import reshard as tool
from reshard.tools.commands import traffic

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = str(ROOT / "examples" / "issue_21562.mlir")


def test_the_groupings_are_those_of_the_ledger():
    assert traffic.GROUPINGS == tuple(GROUPINGS)


def test_text_has_the_totals_and_both_tables(capsys):
    assert tool.main(["traffic", EXAMPLE]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{EXAMPLE}: 8 devices, times modelled on uniform, 8 device\n")
    assert "stock XLA, the longest first" in text and "ours, the longest first" in text
    assert "received by the busiest device   58.72 MB  " in text and "site 0: " in text


def test_a_row_per_group(capsys):
    assert tool.main(["traffic", EXAMPLE, "--by", "kind", "--stock-only"]) == 0
    text = capsys.readouterr().out
    assert "collectives  runs  kind" in text and "all_gather" in text and "ours" not in text.splitlines()[2]
    assert "leaves the program as it is" not in text  # nobody asked


def test_a_program_that_is_left_as_it_is_has_one_table_and_says_so(capsys):
    assert tool.main(["traffic", str(ROOT / "examples" / "moe_layer.mlir")]) == 0
    text = capsys.readouterr().out
    assert "reshard leaves the program as it is" in text and "ours, the longest first" not in text


def test_json_has_every_collective_and_the_groups(capsys):
    assert tool.main(["traffic", EXAMPLE, "--json", "--topology", "v5e:2x4"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "reshard.traffic/1" and data["topology"].startswith("v5e:2x4")
    stock, ours = data["stock"], data["ours"]
    assert sum(each["bytes_received"] for each in stock["collectives"]) == stock["bytes_received"] == 58_720_256
    assert ours["bytes_received"] < stock["bytes_received"] and ours["explained_share"] == 1
    assert {each["cause"] for each in ours["collectives"]} == {"planned chain"}
    assert set(stock["by"]) == set(GROUPINGS)


def test_a_page_is_written_beside_the_text_or_in_its_place(capsys, tmp_path):
    page = tmp_path / "traffic.html"
    assert tool.main(["traffic", EXAMPLE, "--stock-only", "--html", str(page)]) == 0
    assert "stock XLA" in capsys.readouterr().out and page.read_text().startswith("<!doctype html>")
    assert tool.main(["traffic", EXAMPLE, "--stock-only", "--html", "-"]) == 0
    assert capsys.readouterr().out == page.read_text()
    assert tool.main(["traffic", EXAMPLE, "--stock-only", "--html", "-", "--json"]) == 0
    assert capsys.readouterr().out == page.read_text()  # never both on one stream
    assert tool.main(["traffic", EXAMPLE, "--stock-only", "--html", str(tmp_path / "none" / "x.html")]) == 1
    assert "no such directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([EXAMPLE, "--topology", "h100:4x8"], "32 devices; the mesh has 8"),
        ([EXAMPLE, "--topology", "h1000"], 'unknown topology "h1000"'),
        ([EXAMPLE, "--compile-for", "tpu:v9:2x2"], "tpu:v9"),
        ([EXAMPLE, "--compile-for", "cpu:4"], "the module is for 8 devices, cpu:4 has 4"),
        (["missing.mlir"], "missing.mlir"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_1(arguments, message, capsys):
    assert tool.main(["traffic", *arguments]) == 1
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


def test_a_trace_is_written_beside_the_text_or_in_its_place(capsys, tmp_path):
    path, known = tmp_path / "trace.json", ["--topology", "h100:2x4"]
    assert tool.main(["traffic", EXAMPLE, *known, "--trace", str(path)]) == 0
    assert "modelled time of the program" in capsys.readouterr().out
    trace = json.loads(path.read_text())
    assert {each["pid"] for each in trace["traceEvents"]} == {1, 2}  # both programs
    assert tool.main(["traffic", EXAMPLE, *known, "--trace", "-", "--json"]) == 0
    assert capsys.readouterr().out == path.read_text()
    assert tool.main(["traffic", EXAMPLE, *known, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    for side in ("stock", "ours"):
        assert trace["otherData"][side]["modelled_us"] == pytest.approx(data[side]["program_seconds"] * 1e6)
        assert trace["otherData"][side]["in_collectives_us"] == pytest.approx(data[side]["seconds"] * 1e6)


@pytest.mark.parametrize("flag", ["--trace", "--html"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_compiled(flag, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(traffic, "_found", lambda flags: pytest.fail("compiled"))
    none = tmp_path / "none"
    for path, said in ((none / "x.json", f"no such directory: {none}"), (tmp_path, "is a directory")):
        assert tool.main(["traffic", EXAMPLE, "--topology", "h100:2x4", flag, str(path)]) == 1
        assert capsys.readouterr().err == f"reshard: error: {path}: {said}\n"


def test_no_trace_is_written_if_anything_fails(capsys, tmp_path):
    path, module = tmp_path / "trace.json", tmp_path / "m.mlir"
    module.write_text(RESULT.replace("return %a", "%0 = stablehlo.custom_call @nobody(%a) : (tensor<16x16x16xf32>) -> "
                                     "tensor<16x16x16xf32>\n  return %0"))  # fmt: skip
    assert tool.main(["traffic", str(module), "--topology", "h100:2x4", "--trace", str(path)]) == 1
    assert tool.main(["traffic", EXAMPLE, "--topology", "h100:4x8", "--trace", str(path)]) == 1
    page = str(tmp_path / "none" / "x.html")
    assert tool.main(["traffic", EXAMPLE, "--topology", "h100:2x4", "--trace", str(path), "--html", page]) == 1
    assert not path.exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "--trace needs --topology, whose levels it shows, and uniform has none; name the network, e.g. h100:2x4"),
        (["--topology", "uniform"], "--trace needs --topology"),
        (["--topology", "h100:2x4", "--html", "FILE"], "--trace and --html both write FILE; choose two files"),
    ],
)
def test_a_trace_without_a_network_or_a_file_of_its_own_is_exit_status_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        tool.main(["traffic", EXAMPLE, "--trace", "FILE", *arguments])
    assert ended.value.code == 2 and message in capsys.readouterr().err
    assert not Path("FILE").exists()


@pytest.mark.parametrize("arguments", [["--top", "-1"], ["--top", "many"], ["--by", "day"], ["--policy", "worse"]])
def test_a_wrong_command_line_is_exit_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        tool.main(["traffic", EXAMPLE, *arguments])
    assert ended.value.code == 2 and "reshard traffic: error: " in capsys.readouterr().err


@pytest.mark.tpu
def test_the_program_of_a_target_is_that_of_its_compiler(capsys):
    example = str(ROOT / "examples" / "moe_layer.mlir")
    assert tool.main(["traffic", example, "--compile-for", "tpu:v5e:2x4", "--topology", "v5e:2x4", "--json"]) == 0
    stock = json.loads(capsys.readouterr().out)["stock"]
    assert stock["bytes_received"] > 0 and stock["explained_share"] >= 0.95


def test_a_program_that_xla_refuses_is_exit_status_1(capsys, tmp_path):
    path = tmp_path / "m.mlir"
    path.write_text(
        "func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n  %0 = stablehlo.custom_call @nobody(%a) : "
        "(tensor<8xf32>) -> tensor<8xf32>\n  return %0 : tensor<8xf32>\n}\n"
    )
    for command, said in (("traffic", "XLA does not compile the module: "), ("advise", "nothing is advised: XLA does")):
        assert tool.main([command, str(path)]) == 1
        printed = capsys.readouterr()
        assert "error: " in printed.out and printed.err.startswith(f"{path}: error: {said}")


RESULT = """sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%a: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
    -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
  return %a : tensor<16x16x16xf32>
}
"""


def test_lines_of_a_text_are_in_the_file_that_was_named_in_both_programs(capsys, tmp_path):
    path = tmp_path / "m.mlir"
    path.write_text(RESULT)
    assert tool.main(["traffic", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ours"]["collectives"]
    for each in data["ours"]["collectives"]:
        assert each["location"] == f"{path}:4:3" and each["location_chain"] == [f"{path}:4:3"]


def test_errors_of_the_passes_are_at_lines_of_the_file(capsys, tmp_path):
    path = tmp_path / "m.mlir"
    path.write_text(RESULT.replace("16x16x16xf32", "15x15x15xf32"))
    assert tool.main(["traffic", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"{path}:2:1: error: argument 0 of type tensor<15x15x15xf32> is sharded")
