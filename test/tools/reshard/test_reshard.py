# SPDX-License-Identifier: Apache-2.0
"""reshard plan and explain: text, JSON, errors, comparison, verification."""

import dataclasses
import json
from pathlib import Path
import subprocess
import sys

import pytest

import reshard
from reshard.dialect_utils.xla_child import XlaChild
from reshard.synthesis.mesh import Mesh
from reshard.tools import reshard as tool
from reshard.tools.reshard_verify import verify

ISSUE = {"--mesh": "x=4,y=2", "--type": "f32[16,16,16]", "--from": '[{"y"}, {}, {"x"}]', "--to": '[{}, {"x","y"}, {}]'}
UNEVEN = {"--mesh": "x=4", "--type": "f32[10,3]", "--from": '[{"x"}, {}]', "--to": '[{}, {"x"}]'}
ANY_ORDER = '<["u"=3, "v"=2], device_ids=[5, 3, 1, 0, 2, 4]>'
SMALL = {"--mesh": "x=4", "--type": "f32[8]", "--from": '[{"x"}]', "--to": "[{}]"}


def run(*arguments, command="plan", problem=ISSUE) -> int:
    flags = [each for pair in problem.items() for each in pair]
    try:
        return tool.main([command, *flags, *map(str, arguments)])
    except SystemExit as end:
        return end.code


def output(capsys, *arguments, status=0, **options) -> str:
    assert run(*arguments, **options) == status
    out, err = capsys.readouterr()
    assert err == ""
    return out


# ---- text


def test_text_of_a_plan(capsys):
    lines = output(capsys, "--objective", "bytes").splitlines()
    assert lines[:4] == [
        'f32[16,16,16] on <["x"=4, "y"=2]>, 8 devices',
        'from:  [{"y"}, {}, {"x"}]',
        'to:    [{}, {"x", "y"}, {}]',
        "chain: all_to_all x: dim 2 -> 1, y: dim 0 -> 1",
    ]
    (step,) = [line.split() for line in lines if "all_to_all" in line and "chain" not in line]
    assert step[-6:] == ["1", "2,048", "2,048", "1,792", "37.27", "us"]
    numbers = {line[:19].strip(): line[19:].split() for line in lines}
    assert numbers["bytes received"] == numbers["bytes sent"] == ["1,792", "1,792", "1.000"]
    assert numbers["largest tile, bytes"] == ["2,048", "2,048", "1.000"]
    assert numbers["time"][:4] == ["37.28", "us", "18.07", "us"]
    assert lines[-2].startswith("1 collective; peak ") and lines[-2].endswith("; proved optimal by bytes")
    assert lines[-1] == "topology: uniform, 8 device; device: switch, 25 GB/s, 9.6 us"


def test_text_and_json_name_both_meshes(capsys):
    problem = {**SMALL, "--to-mesh": "a=2,b=2", "--to": '[{"b"}]'}
    assert 'to:    [{"b"}] on <["a"=2, "b"=2]>' in output(capsys, problem=problem).splitlines()
    found = json.loads(output(capsys, "--json", problem=problem))
    assert (found["mesh"], found["target_mesh"]) == ('<["x"=4]>', '<["a"=2, "b"=2]>')
    assert found["bounds"]["bytes_received"] > 0 < found["bounds"]["bytes_sent"]


def test_explain_shows_the_places_in_both_meshes(capsys):
    problem = {**SMALL, "--to-mesh": "<[], device_ids=[3]>", "--to": "[]"}
    out = output(capsys, command="explain", problem=problem)
    assert "two meshes have no common digits" in out and "     3  3     [6:8]   [0:8]" in out and "     2  2  -  [4:6]   nothing" in out


def test_a_plan_that_moves_nothing(capsys):
    out = output(capsys, problem={**SMALL, "--to": '[{"x"}]'})
    assert "chain: nothing" in out and "0 collectives" in out and "proved optimal" in out


def test_topology_and_shardings_from_files(capsys, tmp_path):
    (tmp_path / "source").write_text(ISSUE["--from"] + "\n")
    shardy = '<["x"=4, "y"=2], device_ids=[7,6,5,4,3,2,1,0]>'
    problem = {**ISSUE, "--mesh": shardy, "--from": f"@{tmp_path / 'source'}", "--type": "tensor<16x16x16xf32>"}
    out = output(capsys, "--topology", "h100", problem=problem)
    assert "device_ids=[7, 6, 5, 4, 3, 2, 1, 0]" in out and "topology: h100, 1 node x 8 gpu; gpu: switch, 450 GB/s" in out


def test_explain_shows_layouts_bounds_and_tiles(capsys):
    out = output(capsys, command="explain")
    assert "source      [y*8, 16, x*4]" in out and "all_to_all  [16, x*y*2, 16]" in out
    assert "device 0 needs 512 elements in the end and has 64 of them; the other 448 are 1,792 bytes" in out
    assert "1,792 bytes have to enter one device" in out
    assert "     5  2,1  [8:16, 0:16, 8:12]   [0:16, 10:12, 0:16]" in out
    assert "before, dim 0 down, dim 2 across" in out and " 0:8  0    2    4     6" in out


def test_explain_counts_what_enters_a_node(capsys):
    problem = {**SMALL, "--mesh": "x=16", "--type": "f32[16384]"}
    out = output(capsys, "--topology", "h100:2", command="explain", problem=problem)
    assert "32,768 bytes have to enter one node" in out and "61,440 bytes have to enter one gpu" in out


@pytest.mark.parametrize("problem", [UNEVEN, {**SMALL, "--type": "f32[]", "--from": "[]", "--to": "[]"}, {**SMALL, "--type": "f32[0]"}])
def test_explain_has_something_to_say_of_odd_problems(problem, capsys):
    out = output(capsys, command="explain", problem=problem)
    assert "layouts" in out and "bounds" in out and "tiles:" in out


def test_explain_lists_no_thousand_devices(capsys):
    assert "too many to list" in output(capsys, command="explain", problem={**SMALL, "--mesh": "x=64", "--type": "f32[64]"})


# ---- JSON


def test_json_has_the_schema_field_by_field(capsys):
    found = json.loads(output(capsys, "--json"))
    fields = "schema mesh dtype global_shape source target steps totals bounds optimal objective topology target_mesh seconds versions"
    assert list(found) == fields.split()
    assert found["schema"] == "reshard.plan/1"
    assert found["mesh"] == found["target_mesh"] == '<["x"=4, "y"=2]>'
    assert (found["dtype"], found["global_shape"]) == ("f32", [16, 16, 16])
    assert (found["source"], found["target"]) == ('[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]')
    assert (found["objective"], found["topology"]) == ("time", "uniform")
    assert isinstance(found["optimal"], bool) and found["seconds"] > 0
    assert set(found["versions"]) >= {"reshard", "python"}
    step_fields = ["op", "bytes_received", "tile_bytes_before", "tile_bytes_after", "time_us", "text"]
    assert all(list(step) == step_fields for step in found["steps"])
    (moved,) = [step for step in found["steps"] if step["op"] != "relayout"]
    assert moved["op"] == "all_to_all" and moved["text"] == "all_to_all x: dim 2 -> 1, y: dim 0 -> 1"
    assert [moved[name] for name in step_fields[1:4]] == [1792, 2048, 2048]
    totals = "bytes_received bytes_sent time_us peak_bytes largest_tile_bytes collectives"
    bounds = "bytes_received bytes_sent time_us largest_tile_bytes"
    assert (list(found["totals"]), list(found["bounds"])) == (totals.split(), bounds.split())
    assert sum(step["time_us"] for step in found["steps"]) == pytest.approx(found["totals"]["time_us"], abs=1e-5)
    assert found["totals"]["collectives"] == 1
    for name in ("bytes_received", "bytes_sent", "largest_tile_bytes"):
        assert found["totals"][name] == found["bounds"][name] == {"largest_tile_bytes": 2048}.get(name, 1792)


def test_byte_fields_are_integers_and_packed_bits_round_up(capsys):
    problem = {"--mesh": "x=3", "--type": "i4[9]", "--from": '[{"x"}]', "--to": "[{}]"}
    found = json.loads(output(capsys, "--json", problem=problem))
    numbers = [found[group][name] for group in ("totals", "bounds") for name in found[group] if "bytes" in name]
    numbers += [step[name] for step in found["steps"] for name in step if "bytes" in name]
    assert all(type(number) is int for number in numbers)
    assert found["totals"]["largest_tile_bytes"] == 5 and found["bounds"]["bytes_received"] == 3


def test_json_is_what_the_api_gives(capsys):
    found = json.loads(output(capsys, "--json", "--objective", "bytes"))
    planned = reshard.plan(
        ISSUE["--from"], ISSUE["--to"], mesh="x=4,y=2", shape=(16, 16, 16), dtype="float32", objective="bytes"
    ).to_dict()
    assert {**found, "seconds": 0} == {**json.loads(json.dumps(planned)), "seconds": 0}


# ---- errors


NONSENSE = [
    ({"--mesh": "x=4,x=2"}, 'mesh axis "x" is declared twice'),
    ({"--mesh": "x=0"}, 'mesh axis "x" has size 0; sizes are at least 1'),
    ({"--mesh": "x=-4"}, 'cannot read "x=-4" as a mesh axis'),
    ({"--mesh": "x=1000000000"}, "mesh has 1000000000 devices; at most 1048576 are supported"),
    ({"--mesh": '<["x"=4], device_ids=[0,1]>'}, "device_ids is no permutation of 0..3"),
    ({"--from": '[{"x","x"}]'}, 'axis "x" is used twice in [{"x", "x"}]'),
    ({"--from": '[{"z"}]'}, 'unknown axis "z"; <["x"=4]> has x'),
    ({"--from": '[{"x":(1)3}]'}, 'sub-axis "x":(1)3 does not divide axis "x" of size 4'),
    ({"--from": '[{"x"}, {}]'}, 'sharding [{"x"}, {}] has rank 2, the array has rank 1'),
    ({"--from": '[{"x"'}, "cannot read sharding"),
    ({"--from": "@/nowhere"}, "/nowhere: no such file or directory"),
    ({"--from": "@"}, "@ without the name of a file"),
    ({"--type": "f7[8]"}, "unknown dtype 'f7'"),
    ({"--type": "f32[8"}, 'cannot read type "f32[8"'),
    ({"--type": "f32[8,,8]"}, 'cannot read type "f32[8,,8]"'),
    ({"--type": "tensor<?xf32>"}, 'cannot read type "tensor<?xf32>"'),
    ({"--type": "f32[99999999999999999999]"}, "f32[99999999999999999999] is larger than 2^57 bytes"),
    ({"--to-mesh": "y=4", "--to": '[{"x"}]'}, 'unknown axis "x"; <["y"=4]> has y'),
    ({"--to-mesh": "y=0"}, 'mesh axis "y" has size 0'),
    ({"--to-mesh": "<[], device_ids=[-1]>"}, "cannot read"),
    ({"--to-mesh": "<[], device_ids=[3, 4]>"}, "a mesh without axes is one device; device_ids [3, 4] are 2"),
    ({"--to-mesh": "<[], device_ids=[9999999]>"}, "device 9999999 is none of the 1048576 devices that are supported"),
    ({"--to-mesh": "y=8", "--from": '[{}], unreduced={"x"}', "--to": "[{}]"}, "partial sums on 4 of 8 devices are not moved"),
    ({"--to-mesh": "y=8", "--topology": "v5e:2x2", "--to": "[{}]"}, "the mesh has 8"),
    ({"--topology": "h100:4"}, 'topology "h100:4" has 4 node x 8 gpu = 32 devices; the mesh has 4'),
    ({"--topology": "h1000"}, 'unknown topology "h1000"; did you mean h100'),
    ({"--topology": "none.toml"}, 'no topology file "none.toml"'),
]


@pytest.mark.parametrize("changes, text", NONSENSE)
def test_nonsense_is_refused_in_one_line(changes, text, capsys):
    assert run(problem={**SMALL, **changes}) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("reshard: error: ") and text in err and err.count("\n") == 1


@pytest.mark.parametrize("changes, text", [row for row in NONSENSE if not {"--type", "@"} & {*row[0], row[0].get("--from", "")[:1]}])
def test_the_api_refuses_nonsense_in_the_same_words(changes, text, capsys):
    problem = {**SMALL, **changes}
    assert run(problem=problem) == 1
    names = {"--mesh": "mesh", "--to-mesh": "target_mesh", "--topology": "topology"}
    options = {names[flag]: value for flag, value in problem.items() if flag in names}
    with pytest.raises(ValueError) as refusal:
        reshard.plan(problem["--from"], problem["--to"], shape=(8,), **options)
    assert f"reshard: error: {refusal.value}\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--memory-limit", "2GiB"], "--memory-limit is not available yet"),
        (["--memory-limit=2GiB"], "--memory-limit is not available yet"),
        (["--pareto"], "--pareto is not available yet"),
        (["--compare", "xla,dtensor"], "dtensor is not available yet; known: xla, shardy"),
        (["--compare", "alpa"], "unknown peer 'alpa'; known: xla, shardy"),
        (["--objective", "speed"], "invalid choice: 'speed'"),
        (["--nope"], "unrecognized arguments: --nope"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(arguments, text, capsys):
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and text in err and err.count("\n") == 1


@pytest.mark.parametrize("arguments, text", [([], "no command"), (["plan"], "required: --mesh, --type, --from, --to"), (["draw"], "'draw'")])
def test_a_command_is_needed(arguments, text, capsys):
    with pytest.raises(SystemExit) as end:
        tool.main(arguments)
    assert end.value.code == 2 and text in capsys.readouterr().err


def test_help_does_not_promise_what_is_not_there(capsys):
    with pytest.raises(SystemExit) as end:
        tool.main(["plan", "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0 and "--topology" in out
    assert not any(word in out for word in ("--memory-limit", "--pareto", "dtensor"))


def test_a_comparison_needs_one_mesh(capsys):
    assert run("--compare", "xla", problem={**SMALL, "--to-mesh": "y=4"}) == 1
    assert "--compare is about pairs on one mesh" in capsys.readouterr().err


def test_an_array_too_large_to_run_is_not_verified(capsys):
    assert run("--verify", problem={**SMALL, "--type": "f32[1073741824]"}) == 1
    assert "verify a smaller array" in capsys.readouterr().err


# ---- comparison and verification


def test_comparison_of_the_issue(capsys):
    found = json.loads(output(capsys, "--compare", "xla,shardy", "--verify", "--json"))
    rows = found["comparison"]
    assert {name: row["status"] for name, row in rows.items()} == {"ours": "ok", "xla": "ok", "shardy": "ok"}
    assert {name: row["bytes_received"] for name, row in rows.items()} == {"ours": 1792, "xla": 14336, "shardy": 2560}
    assert {name: row["collectives"] for name, row in rows.items()} == {"ours": 1, "xla": 2, "shardy": 2}
    assert rows["ours"]["temp_bytes"] < rows["xla"]["temp_bytes"] and rows["shardy"]["temp_bytes"] is None
    assert rows["ours"]["collectives_time_us"] < min(rows[name]["collectives_time_us"] for name in ("xla", "shardy"))
    assert found["verified"] is True and found["measured_peak_bytes"] > 0
    assert found["versions"]["jaxlib"]


def test_comparison_as_text(capsys):
    lines = output(capsys, "--compare", "shardy", problem=UNEVEN).splitlines()
    assert lines[-4].split()[0] == "received"
    assert lines[-2].startswith("ours ") and lines[-2].endswith("ok")
    assert lines[-1].split()[:5] == ["shardy", "36", "27.60", "us", "-"]
    assert " 1 all_to_all " in lines[-1] and lines[-1].endswith(" ok: padded to [12, 4]")


@pytest.mark.parametrize(
    "problem",
    [
        UNEVEN,
        {"--mesh": "x=2,y=3", "--type": "c64[7,5]", "--from": '[{"x", "y"}, {}]', "--to": '[{"y"}, {"x"}]'},
        {"--mesh": "x=2,y=3", "--type": "bf16[12,4]", "--from": '[{"x"}, {}]', "--to": '[{"y"}, {}]'},
        {"--mesh": '<["u"=3,"v"=2], device_ids=[5,3,1,0,2,4]>', "--type": "pred[12]", "--from": '[{"u"}]', "--to": '[{"v","u"}]'},
        {"--mesh": "x=2,y=3", "--type": "i8[7,5]", "--from": '[{"x"}, {}]', "--to-mesh": "a=3,b=2", "--to": '[{"a"}, {"b"}]'},
        {"--mesh": "x=2,y=3", "--type": "i4[12,6]", "--from": '[{"x"}, {}]', "--to-mesh": ANY_ORDER, "--to": '[{}, {"u"}]'},
        {"--mesh": "x=2,y=3", "--type": "u8[7,5]", "--from": '[{"x"}, {}]', "--to-mesh": "<[], device_ids=[4]>", "--to": "[]"},
        {"--mesh": "<[], device_ids=[4]>", "--type": "f64[7,5]", "--from": "[]", "--to-mesh": "x=2,y=3", "--to": '[{"y"}, {}]'},
        {"--mesh": "x=2", "--type": "f16[7]", "--from": '[{"x"}]', "--to-mesh": "a=6", "--to": '[{"a"}]'},
    ],
    ids=lambda problem: problem["--type"],
)
def test_plans_are_verified(problem, capsys):
    devices = max(Mesh.parse(problem[flag]).devices for flag in ("--mesh", "--to-mesh") if flag in problem)
    out = output(capsys, "--verify", problem=problem)
    line = f"verified: the numpy interpreter and XLA on {devices} CPU devices end with the target's elements, bit for bit"
    assert line in out and "XLA's own peak is" in out


def test_a_wrong_plan_is_not_verified():
    right, wrong = (reshard.plan(source, "[{}]", mesh="x=4", shape=(8,)) for source in ('[{"x"}]', '[{"x":(2)2, "x":(1)2}]'))
    broken = dataclasses.replace(right, tile_program=wrong.tile_program)
    with XlaChild(uses_cache=False, num_devices=4) as child:
        verdict = verify(broken, "tensor<8xf32>", child)
    assert not verdict.is_verified and verdict.text.startswith("not verified: numpy interpreter: device 0 holds other elements")


def test_what_is_not_verified_ends_with_status_1(monkeypatch, capsys):
    monkeypatch.setattr("reshard.tools.reshard_verify._interpret", _wrong)
    assert output(capsys, "--verify", status=1).endswith("not verified: numpy interpreter: wrong\n")
    assert json.loads(output(capsys, "--verify", "--json", status=1))["verified"] is False


def _wrong(plan):
    raise AssertionError("wrong")


# ---- start-up


def test_neither_jax_nor_mlir_is_imported():
    program = "import sys; from reshard.tools.reshard import main; main(sys.argv[1:]); print(*sys.modules)"
    flags = [each for pair in ISSUE.items() for each in pair]
    done = subprocess.run([sys.executable, "-c", program, "plan", *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = done.stdout.splitlines()[-1].split()
    assert "numpy" in modules and not [name for name in modules if name.partition(".")[0] in ("jax", "jaxlib", "scipy")]


def test_it_runs_as_a_file_from_anywhere(tmp_path):
    flags = [each for pair in SMALL.items() for each in pair]
    script = Path(tool.__file__).resolve()
    done = subprocess.run([sys.executable, script, "plan", *flags], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "chain: all_gather x: dim 0" in done.stdout, done.stderr


def test_version(capsys):
    assert tool.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"reshard {reshard.__version__}\n")


def test_partial_sums_are_scattered_where_the_target_is_sharded(capsys):
    problem = {**SMALL, "--from": '[{}], unreduced={"x"}', "--to": '[{"x"}]'}
    found = json.loads(output(capsys, "--json", problem=problem))
    assert [step["op"] for step in found["steps"]] == ["reduce_scatter"]
    assert found["totals"]["bytes_received"] == found["bounds"]["bytes_received"] == 24


@pytest.mark.parametrize(("flags", "command"), [(["--verify"], "plan"), (["--compare", "xla"], "plan"), ([], "explain")])
def test_what_cannot_handle_partial_sums_says_so(flags, command, capsys):
    assert run(*flags, command=command, problem={**SMALL, "--from": '[{}], unreduced={"x"}', "--to": '[{"x"}]'}) == 1
    assert capsys.readouterr().err.count("partial sums") == 1
