# SPDX-License-Identifier: Apache-2.0
"""reshard plan and explain: text, JSON, errors, comparison, verification."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

import reshard
from benchmarks.conversions.pairs import random_reductions
from reshard.dialect_utils.compare import peers
from reshard.dialect_utils.xla.child import XlaChild
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.programs import traffic
from reshard.tools import reshard as tool
from reshard.tools.commands import plan as reshard_plan
from reshard.tools.commands import plan_text as reshard_plan_text
from reshard.tools.commands.plan_verify import verify

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

ISSUE = {"--mesh": "x=4,y=2", "--type": "f32[16,16,16]", "--from": '[{"y"}, {}, {"x"}]', "--to": '[{}, {"x","y"}, {}]'}
UNEVEN = {"--mesh": "x=4", "--type": "f32[10,3]", "--from": '[{"x"}, {}]', "--to": '[{}, {"x"}]'}
PENCIL = {
    "--mesh": "rows=4,cols=2",
    "--type": "f32[16,16,16]",
    "--from": '[{"rows"},{"cols"},{}]',
    "--to": '[{},{"rows"},{"cols"}]',
}
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
        """from:  [{"y"}, {}, {"x"}]    P('y', None, 'x')""",
        """to:    [{}, {"x", "y"}, {}]  P(None, ('x', 'y'), None)""",
        "chain: all_to_all x: dim 2 -> 1, y: dim 0 -> 1",
    ]
    (step,) = [line.split() for line in lines if "all_to_all x: dim 2 -> 1, y: dim 0 -> 1 " in line]
    assert step[-6:] == ["1", "2,048", "2,048", "1,792", "37.27", "us"]
    numbers = {line[:19].strip(): line[19:].split() for line in lines}
    assert numbers["bytes received"] == numbers["bytes sent"] == ["1,792", "1,792", "1.000"]
    assert numbers["largest tile, bytes"] == ["2,048", "2,048", "1.000"]
    assert numbers["time"][:4] == ["37.28", "us", "18.07", "us"]
    facts = next(at for at, line in enumerate(lines) if line.startswith("1 collective; peak "))
    assert lines[facts].endswith("; proved optimal by bytes")
    assert lines[facts + 1] == "topology: uniform, 8 device; device: switch, 25 GB/s, 9.6 us"
    assert [line.split("  ")[-1] for line in lines[facts + 5 : facts + 8]] == [
        "7 collectives instead of 1",
        "receives 1.43x as much",
        "receives 2.86x as much",
    ]
    assert lines[-1].startswith("  leading axes alone: all_to_all x:(2)2: dim 2 -> 1; ")


def test_text_and_json_name_both_meshes(capsys):
    problem = {**SMALL, "--to-mesh": "a=2,b=2", "--to": '[{"b"}]'}
    assert """to:    [{"b"}] on <["a"=2, "b"=2]>  P('b')""" in output(capsys, problem=problem).splitlines()
    found = json.loads(output(capsys, "--json", problem=problem))
    assert (found["mesh"], found["target_mesh"]) == ('<["x"=4]>', '<["a"=2, "b"=2]>')
    assert found["bounds"]["bytes_received"] > 0 < found["bounds"]["bytes_sent"]


def test_explain_shows_the_places_in_both_meshes(capsys):
    problem = {**SMALL, "--to-mesh": "<[], device_ids=[3]>", "--to": "[]"}
    out = output(capsys, command="explain", problem=problem)
    assert (
        "two meshes have no common digits" in out
        and "     3  3     [6:8]   [0:8]" in out
        and "     2  2  -  [4:6]   nothing" in out
    )


# For these plans the text lists faster ways: with a tile beyond R2, or with an exchange, also in the table of peers.
# So they are not called optimal by time.
GATHERED = {"--mesh": "x=2,y=4", "--type": "f32[48]", "--from": '[{"y"}]', "--to": '[{"x"}]', "--topology": "h100"}
ROUNDS = {
    **GATHERED,
    "--mesh": "x=2,y=2",
    "--type": "f32[12,12,48]",
    "--from": "P(None, 'x')",
    "--to": "P(None, None, 'x')",
}


AMONG_CHAINS = "proved: no chain within R2 and without exchanges takes less time"


def proof(text: str) -> str:
    return next(line for line in text.splitlines() if "; peak " in line).split("; ")[-1]


@pytest.mark.parametrize(
    "problem, said",
    [
        (GATHERED, AMONG_CHAINS),
        (ROUNDS, "within 1.01x of the least time"),
        ({**GATHERED, "--objective": "bytes"}, "proved optimal by bytes"),
    ],
)
def test_optimal_says_among_what_where_a_row_below_costs_less(problem, said, capsys):
    assert proof(output(capsys, problem=problem)) == said
    found = json.loads(output(capsys, "--json", problem=problem))
    assert (found["optimal"], found["proof"]) == (True, said)  # `optimal` leaves out copies and exchanges


def test_optimal_says_among_what_where_a_peer_is_faster():
    collective = traffic.Collective("all_gather", 24, 192, groups=(tuple(range(8)),))
    plan = reshard.plan('[{"y"}]', '[{"x"}]', mesh="x=2,y=4", shape=(48,), dtype="f32", topology="h100")
    topology = Topology.parse("h100").fitted(8)
    answers = [peers.our_answer("tensor<48xf32>", plan), peers.Answer("xla", 8, collectives=(collective,))]
    found = reshard_plan.Answered(plan, "tensor<48xf32>", topology, answers=answers)
    assert proof(reshard_plan_text.as_text(found)) == AMONG_CHAINS


def test_a_plan_that_moves_nothing(capsys):
    out = output(capsys, problem={**SMALL, "--to": '[{"x"}]'})
    assert "chain: nothing" in out and "0 collectives" in out and "proved optimal" in out


def test_topology_and_shardings_from_files(capsys, tmp_path):
    (tmp_path / "source").write_text(ISSUE["--from"] + "\n")
    shardy = '<["x"=4, "y"=2], device_ids=[7,6,5,4,3,2,1,0]>'
    problem = {**ISSUE, "--mesh": shardy, "--from": f"@{tmp_path / 'source'}", "--type": "tensor<16x16x16xf32>"}
    out = output(capsys, "--topology", "h100", problem=problem)
    assert (
        "device_ids=[7, 6, 5, 4, 3, 2, 1, 0]" in out and "topology: h100, 1 node x 8 gpu; gpu: switch, 450 GB/s" in out
    )


def test_explain_shows_layouts_bounds_and_tiles(capsys):
    out = output(capsys, command="explain")
    assert "source      [y*8, 16, x*4]" in out and "all_to_all  [16, x*y*2, 16]" in out
    assert "device 0 needs 512 elements in the end and has 64 of them; the other 448 are 1,792 bytes" in out
    assert "1,792 bytes have to enter one device" in out
    assert "     5  2,1  [8:16, 0:16, 8:12]   [0:16, 10:12, 0:16]" in out
    assert "before, dim 0 down, dim 2 across" in out and " 0:8  0    2    4     6" in out


def test_explain_says_what_each_step_is_for(capsys):
    out = output(capsys, "--topology", "h100:2x4", command="explain", problem=PENCIL)
    rows = {line.split()[0]: line for line in out.split("what it is for\n")[1].splitlines()[1:5]}
    assert "gpu, 450 GB/s" in rows["2"] and "brings cols to the place that the target names" in rows["2"]
    assert "node, 50 GB/s" in rows["4"] and "brings rows to the place that the target names" in rows["4"]
    shares = [int(row.split("%")[0].split()[-1]) for row in rows.values()]
    assert sum(shares) == 100 and max(shares) == int(rows["4"].split("%")[0].split()[-1])


def test_explain_says_where_the_distance_to_the_bound_comes_from(capsys):
    out = output(capsys, "--objective", "time", command="explain", problem=PENCIL)
    assert "distance to the bounds: received 1.250 x the bound, time " in out
    assert (
        "step 2 receives 1,536 bytes and brings the target 1,024 closer: the rest is passed on later, or was here "
        "before" in out
    )
    assert " to start 2 collectives, " in out
    assert "received at the bound" in output(capsys, "--objective", "bytes", command="explain")


def test_explain_of_every_kind_of_step_has_a_purpose(capsys):
    """The text distinguishes moves that only make room from moves to the final place."""
    striped = {
        "--mesh": "node=4,gpu=8",
        "--type": "f32[4096,4096]",
        "--from": '[{"node"}, {}]',
        "--to": '[{}, {"node"}]',
    }
    out = output(capsys, "--topology", "v5e:2x4*4", command="explain", problem=striped)
    assert "makes tiles smaller along gpu for the steps behind it" in out and "takes gpu off its digit" not in out
    assert "brings node to the place that the target names" in out and "the target has the whole along gpu" in out
    out = output(capsys, command="explain", problem={**SMALL, "--from": '[{"x":(2)2, "x":(1)2}]', "--to": '[{"x"}]'})
    assert "hands blocks to the devices that the target names" in out


def test_explain_counts_what_enters_a_node(capsys):
    problem = {**SMALL, "--mesh": "x=16", "--type": "f32[16384]"}
    out = output(capsys, "--topology", "h100:2", command="explain", problem=problem)
    assert "32,768 bytes have to enter one node" in out and "61,440 bytes have to enter one gpu" in out


@pytest.mark.parametrize(
    "problem", [UNEVEN, {**SMALL, "--type": "f32[]", "--from": "[]", "--to": "[]"}, {**SMALL, "--type": "f32[0]"}]
)
def test_explain_has_something_to_say_of_odd_problems(problem, capsys):
    out = output(capsys, command="explain", problem=problem)
    assert "layouts" in out and "bounds" in out and "tiles:" in out


def test_explain_lists_no_thousand_devices(capsys):
    assert "too many to list" in output(
        capsys, command="explain", problem={**SMALL, "--mesh": "x=64", "--type": "f32[64]"}
    )


# ---- memory

TRANSPOSE = {"--mesh": "x=4", "--type": "f32[64,64]", "--from": '[{"x"}, {}]', "--to": '[{}, {"x"}]'}


def test_a_limit_is_kept_in_chunks(capsys):
    lines = output(capsys, "--memory-limit", "10KiB", problem=TRANSPOSE).splitlines()
    assert lines[3] == "chain: 4 chunks along dim 0: all_to_all x: dim 0 -> 1"
    rows = [line.split() for line in lines[7:10]]
    assert rows[0][:5] == ["1", "4", "chunks", "along", "dim"] and rows[0][-5:-2] == ["4,096", "4,096", "3,072"]
    assert (
        rows[1][0] == "relayout" and rows[2][:2] == ["all_to_all", "x:"] and rows[2][-5:-2] == ["1,024", "1,024", "768"]
    )
    assert "4 collectives; peak 10,240 bytes" in "\n".join(lines)


def test_effort_searches_longer(monkeypatch, capsys):
    efforts = []
    monkeypatch.setattr(
        reshard_plan,
        "plan",
        lambda *ends, **options: efforts.append(options["effort"]) or reshard.plan(*ends, **options),
    )
    assert run("--effort", "4") == 0 and run() == 0
    assert efforts == [4, 1]


def test_a_limit_below_what_is_needed_is_refused_with_the_least_that_does(capsys):
    assert run("--memory-limit", "8KB", problem=TRANSPOSE) == 1
    out, err = capsys.readouterr()
    assert out == "" and err == (
        "reshard: error: needs at least 8,704 bytes per device (source tile 4,096 + target tile 4,096 + temporaries "
        "512), "
        "limit 8,000; raise the limit to 8704\n"
    )
    assert run("--memory-limit", "8704", problem=TRANSPOSE) == 0


def test_a_chunked_plan_is_verified_within_its_peak(capsys):
    problem = {**TRANSPOSE, "--type": "f32[512,64]"}
    found = json.loads(output(capsys, "--memory-limit", "80KiB", "--verify", "--json", problem=problem))
    assert found["verified"] is True and found["steps"][0]["op"] == "chunks"
    assert (
        found["totals"]["peak_bytes"] <= 80 << 10
        and found["measured_peak_bytes"] <= found["totals"]["peak_bytes"] + 512
    )


def test_uneven_arrays_come_in_chunks_too(capsys):
    problem = {**UNEVEN, "--type": "f32[10,64,3]", "--from": '[{"x"}, {}, {}]', "--to": '[{}, {}, {"x"}]'}
    out = output(capsys, "--memory-limit", "8KiB", "--verify", problem=problem)
    assert "8 chunks along dim 1: all_to_all" in out and "verified: the numpy interpreter and XLA" in out


def test_explain_of_a_chunked_plan_has_its_layouts(capsys):
    out = output(capsys, "--memory-limit", "10KiB", command="explain", problem=TRANSPOSE)
    assert "source  [x*16, 64]" in out and "chunks  [64, x*16]" in out


def test_the_pareto_list(capsys):
    lines = output(capsys, "--pareto", problem=TRANSPOSE).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("time against peak"))
    assert lines[at].split()[-3:] == ["time", "received", "peak"]
    rows = [line.split() for line in lines[at + 2 :]]
    peaks = [int(row[-1].replace(",", "")) for row in rows]
    assert peaks == sorted(peaks, reverse=True) and peaks[0] == 16384 and peaks[-1] == 8704
    listed = json.loads(output(capsys, "--pareto", "--json", problem=TRANSPOSE))["pareto"]
    assert [each["peak_bytes"] for each in listed] == peaks
    assert list(listed[0]) == ["chain", "time_us", "bytes_received", "peak_bytes", "collectives"]


# ---- JSON


def test_json_has_the_schema_field_by_field(capsys):
    found = json.loads(output(capsys, "--json"))
    fields = (
        "schema mesh dtype global_shape source target source_spec target_spec steps totals bounds optimal proved_gap "
        "objective topology target_mesh seconds"
    )
    fields += " versions proof rejected"
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
    assert {**found, "seconds": 0} == {
        **json.loads(json.dumps(planned)),
        "seconds": 0,
        "rejected": found["rejected"],
        "proof": found["proof"],
    }


def test_json_of_rejected_alternatives(capsys):
    found = json.loads(output(capsys, "--json"))["rejected"]
    assert 0 < len(found) <= 3 and len({each["chain"] for each in found}) == len(found)
    assert all(list(each) == "way chain bytes_received time_us peak_bytes collectives reason".split() for each in found)
    one_at_a_time = next(each for each in found if each["way"] == "one axis at a time")
    assert one_at_a_time["collectives"] == 2 and one_at_a_time["bytes_received"] == 2560
    assert one_at_a_time["reason"].startswith("takes 1.") and "as long: " in one_at_a_time["reason"]


def test_what_moves_nothing_has_no_alternatives(capsys):
    assert json.loads(output(capsys, "--json", problem={**SMALL, "--to": '[{"x"}]'}))["rejected"] == []


@pytest.mark.parametrize("source", ["P('y',None,'x')", 'jax.sharding.PartitionSpec("y", (), ("x",),)'])
def test_shardings_in_the_spelling_of_jax(source, capsys):
    spelled = output(capsys, "--json", problem={**ISSUE, "--from": source, "--to": "P(None, ('x', 'y'))"})
    as_ever = output(capsys, "--json")
    assert {**json.loads(spelled), "seconds": 0} == {**json.loads(as_ever), "seconds": 0}


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
    ({"--from": "('x', None)"}, """column 1 has "(", expected "[", as in [{"x"}, {}], or JAX's P('x', None)"""),
    (
        {"--from": "P(x)"},
        "cannot read sharding 'P(x)': column 3 has \"x\", expected None, an axis in quotes such as 'x', or",
    ),
    ({"--from": "P('z')"}, 'unknown axis "z"; <["x"=4]> has x'),
    ({"--from": "P('x', None)"}, "P('x', None) has 2 entries, the array has rank 1"),
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
    (
        {"--to-mesh": "y=8", "--from": '[{}], unreduced={"x"}', "--to": "[{}]"},
        "partial sums on 4 of 8 devices are not moved",
    ),
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


@pytest.mark.parametrize(
    "changes, text", [row for row in NONSENSE if not {"--type", "@"} & {*row[0], row[0].get("--from", "")[:1]}]
)
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
        (["--memory-limit", "much"], "'much' is no number of bytes; write 2GiB, 512MB or 4096"),
        (["--memory-limit=2GG"], "unknown unit 'GG' in '2GG'; known: B, KiB, KB, MiB, MB, GiB, GB, TiB, TB"),
        (["--memory-limit", "-2GiB"], "'-2GiB' is negative; a number of bytes is 0 or more"),
        (["--effort", "0"], "'0' is no whole number of at least 1"),
        (["--effort", "-3"], "'-3' is no whole number of at least 1"),
        (["--compare", "alpa"], "unknown peer 'alpa'; known: xla, shardy, dtensor"),
        (["--objective", "speed"], "invalid choice: 'speed'"),
        (["--nope"], "reshard plan: error: unrecognized arguments: --nope (see reshard plan --help)"),
        (["--html", "x"], "unrecognized arguments: --html x; --html is a flag of reshard explain, traffic (see"),
        (["--compar", "xla"], "unrecognized arguments: --compar xla; did you mean --compare?"),
        (["--objective", "tim"], "; did you mean time?"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(arguments, text, capsys):
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and text in err and err.count("\n") == 1


def test_two_pictures_are_not_written_into_one_file(capsys):
    for path, said in (("-", "both write to stdout"), ("x", "both write x")):
        assert run("--svg", path, "--html", path, command="explain") == 2
        assert f"--html and --svg {said}; choose two files" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "--mesh", "x=4", "--type", "f32[8]", "--from", "P()", "--to", "P()", "--svg"],
        ["auto", "step.mlir", "--devices", "8", "-o"],
        ["advise", "train.py", "-o"],
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(arguments, capsys, tmp_path):
    assert tool.main([*arguments, str(tmp_path / "none" / "out")]) == 1  # not even the input is read
    said = f"{tmp_path / 'none' / 'out'}: no such directory: {tmp_path / 'none'}"
    assert capsys.readouterr().err == f"reshard: error: {said}\n"
    assert tool.main([*arguments, str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"reshard: error: {tmp_path}: is a directory\n"


@pytest.mark.parametrize(
    "name", ["plan", "calibrate", "verify", "fix-warnings", "traffic", "auto", "advise", "place", "bench", "cache"]
)
def test_no_line_of_a_help_is_too_long(name, capsys):
    with pytest.raises(SystemExit):
        tool.main([name, "--help"])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 120
    assert "exit status: " in said or name == "cache"


def test_only_what_a_command_needs_is_asked_for(capsys):
    with pytest.raises(SystemExit):
        tool.main(["fix-warnings"])
    assert "the following arguments are required: LOG (see" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, text",
    [
        ([], "no command"),
        (["plan"], "required: --mesh, --type, --from, --to (see"),
        (["draw"], "'draw'"),
        (["paln"], "; did you mean plan? (see reshard --help)"),
        (["plan", "--mesg", "x=4"], "--from, --to; did you mean --mesh instead of --mesg?"),
    ],
)
def test_a_command_is_needed(arguments, text, capsys):
    with pytest.raises(SystemExit) as end:
        tool.main(arguments)
    assert end.value.code == 2 and text in capsys.readouterr().err


def test_help_names_the_flags(capsys):
    with pytest.raises(SystemExit) as end:
        tool.main(["plan", "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0 and "--topology" in out and "--to-mesh" in out


def test_a_comparison_needs_one_mesh(capsys):
    assert run("--compare", "xla", problem={**SMALL, "--to-mesh": "y=4"}) == 1
    assert "--compare is about pairs on one mesh" in capsys.readouterr().err


@pytest.mark.parametrize(
    "problem",
    [
        {"--mesh": "x=1", "--type": "f32[16]", "--from": '[{"x"}]', "--to": "[{}]"},
        {"--mesh": "x=1", "--type": "f32[16]", "--from": '[{}], unreduced={"x"}', "--to": "[{}]"},
        {"--mesh": "x=1", "--type": "f32[16]", "--from": '[{"x"}]', "--to-mesh": "y=1,z=1", "--to": '[{"z"}]'},
        {"--mesh": "<[], device_ids=[0]>", "--type": "f32[16]", "--from": "[]", "--to": "[]"},
    ],
)
def test_a_plan_on_one_device_is_verified_without_xla(problem, capsys):
    said = "verified: the numpy interpreter ends with the target's elements; one device has nothing to run with XLA"
    assert output(capsys, "--verify", problem=problem).splitlines()[-1] == said


def test_one_device_alone_is_not_compared(capsys):
    alone = {"--mesh": "<[], device_ids=[0]>", "--type": "f32[16]", "--from": "[]", "--to": "[]"}
    assert run("--compare", "xla", problem=alone) == 1
    assert "--compare is about meshes with axes; <[], device_ids=[0]> is one device" in capsys.readouterr().err


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
    assert lines[-1].split()[:7] == ["shardy", "36", "27.60", "us", "27.60", "us", "-"]
    assert " 1 all_to_all " in lines[-1] and lines[-1].endswith(" ok: padded to [12, 4]")


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    "problem",
    [
        UNEVEN,
        {"--mesh": "x=2,y=3", "--type": "c64[7,5]", "--from": '[{"x", "y"}, {}]', "--to": '[{"y"}, {"x"}]'},
        {"--mesh": "x=2,y=3", "--type": "bf16[12,4]", "--from": '[{"x"}, {}]', "--to": '[{"y"}, {}]'},
        {
            "--mesh": '<["u"=3,"v"=2], device_ids=[5,3,1,0,2,4]>',
            "--type": "pred[12]",
            "--from": '[{"u"}]',
            "--to": '[{"v","u"}]',
        },
        {
            "--mesh": "x=2,y=3",
            "--type": "i8[7,5]",
            "--from": '[{"x"}, {}]',
            "--to-mesh": "a=3,b=2",
            "--to": '[{"a"}, {"b"}]',
        },
        {
            "--mesh": "x=2,y=3",
            "--type": "i4[12,6]",
            "--from": '[{"x"}, {}]',
            "--to-mesh": ANY_ORDER,
            "--to": '[{}, {"u"}]',
        },
        {
            "--mesh": "x=2,y=3",
            "--type": "u8[7,5]",
            "--from": '[{"x"}, {}]',
            "--to-mesh": "<[], device_ids=[4]>",
            "--to": "[]",
        },
        {
            "--mesh": "<[], device_ids=[4]>",
            "--type": "f64[7,5]",
            "--from": "[]",
            "--to-mesh": "x=2,y=3",
            "--to": '[{"y"}, {}]',
        },
        {"--mesh": "x=2", "--type": "f16[7]", "--from": '[{"x"}]', "--to-mesh": "a=6", "--to": '[{"a"}]'},
    ],
    ids=lambda problem: problem["--type"],
)
def test_plans_are_verified(problem, capsys):
    devices = max(Mesh.parse(problem[flag]).devices for flag in ("--mesh", "--to-mesh") if flag in problem)
    out = output(capsys, "--verify", problem=problem)
    line = (
        f"verified: the numpy interpreter and XLA on {devices} CPU devices end with the target's elements, bit for bit"
    )
    assert line in out and "XLA's own peak is" in out


def test_a_wrong_plan_is_not_verified():
    right, wrong = (
        reshard.plan(source, "[{}]", mesh="x=4", shape=(8,)) for source in ('[{"x"}]', '[{"x":(2)2, "x":(1)2}]')
    )
    broken = dataclasses.replace(right, tile_program=wrong.tile_program)
    with XlaChild(uses_cache=False, num_devices=4) as child:
        verdict = verify(broken, "tensor<8xf32>", child)
    assert not verdict.is_verified and verdict.text.startswith(
        "not verified: numpy interpreter: device 0 holds other elements"
    )


def test_what_is_not_verified_ends_with_status_1(monkeypatch, capsys):
    monkeypatch.setattr("reshard.tools.commands.plan_verify._interpret", _wrong)
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


def test_dtensor_without_torch_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("reshard.dialect_utils.compare.peers_dtensor.is_installed", lambda: False)
    assert run("--compare", "dtensor") == 1
    assert capsys.readouterr().err.endswith("PyTorch, which is not installed here; run: pip install 'torch>=2.13'\n")


def test_dtensor_is_compared_on_partial_sums_too(monkeypatch, capsys):
    from reshard.dialect_utils.compare import peers, peers_dtensor

    asked = {}
    answer = peers.Answer("dtensor", 4, "unsupported", "no words")
    monkeypatch.setattr(peers_dtensor, "is_installed", lambda: True)
    monkeypatch.setattr(peers_dtensor, "dtensor_answer", lambda *_, **options: asked.update(options) or answer)
    problem = {**SMALL, "--from": '[{}], unreduced={"x"}', "--to": '[{"x"}]'}
    rows = json.loads(output(capsys, "--compare", "dtensor", "--reduction", "max", "--json", problem=problem))[
        "comparison"
    ]
    assert asked == {"reduction": "max", "devices_per_host": 4}
    assert rows["ours"]["bytes_received"] == 24 and rows["dtensor"]["status"] == "unsupported"


SUMS = {"--mesh": "x=4,y=2", "--type": "f32[16,8]", "--from": '[{}, {"y"}], unreduced={"x"}', "--to": '[{"x"}, {}]'}


def test_partial_sums_are_explained(capsys):
    out = output(capsys, command="explain", problem=SUMS)
    assert "source          [16, y*4] unreduced x" in out and "reduce_scatter  [x*4, y*4]" in out
    assert "adds up the sums along x, each device the part that the target gives it" in out
    assert "each element is 4 partial sums in the source and itself in the target" in out and "are 256 bytes" in out
    assert "     7  3,1  [0:16, 4:8] of sum 3  [12:16, 0:8]" in out


def test_partial_sums_are_compared(capsys):
    rows = json.loads(output(capsys, "--compare", "xla,shardy", "--json", problem=SUMS))["comparison"]
    assert {name: row["status"] for name, row in rows.items()} == {"ours": "ok", "xla": "ok", "shardy": "unsupported"}
    assert (rows["ours"]["bytes_received"], rows["xla"]["bytes_received"]) == (256, 640)
    assert rows["ours"]["temp_bytes"] is not None and "adds nothing up" in rows["shardy"]["message"]


def test_partial_sums_that_stay_are_compared_with_shardy(capsys):
    problem = {**SUMS, "--from": '[{"y"}, {}], unreduced={"x"}', "--to": '[{}, {"y"}], unreduced={"x"}'}
    rows = json.loads(output(capsys, "--compare", "xla,shardy", "--json", problem=problem))["comparison"]
    assert (
        rows["shardy"]["status"] == "ok" and rows["shardy"]["bytes_received"] == rows["ours"]["bytes_received"] == 128
    )


def test_other_reductions_are_not_what_xla_does(capsys):
    flags = ("--compare", "xla", "--json", "--reduction", "max")
    row = json.loads(output(capsys, *flags, problem=SUMS))["comparison"]["xla"]
    assert row["status"] == "unsupported" and "max is asked for" in row["message"]


@pytest.mark.parametrize(
    ("element", "reduction", "words"),
    [
        ("f32", "sum", "each within twice the rounding error of its additions"),
        ("bf16", "sum", "each within twice"),
        ("c64", "sum", "each within twice"),
        ("f32", "prod", "each within twice"),
        ("f16", "max", "bit for bit"),
        ("i8", "sum", "bit for bit"),
        ("i32", "prod", "bit for bit"),
        ("ui16", "min", "bit for bit"),
        ("pred", "or", "bit for bit"),
    ],
)
def test_partial_sums_are_verified(element, reduction, words, capsys):
    out = output(capsys, "--verify", "--reduction", reduction, problem={**SUMS, "--type": f"{element}[16,8]"})
    assert "verified: the numpy interpreter and XLA on 8 CPU devices end with the target's sums, " + words in out


@pytest.mark.parametrize("target", ['[{}, {}], unreduced={"y"}', '[{}, {"x":(1)2}], unreduced={"x":(2)2}'])
def test_targets_of_partial_sums_are_verified(target, capsys):
    assert "end with the target's sums" in output(capsys, "--verify", problem={**SUMS, "--to": target})


def test_a_plan_with_wrong_sums_is_not_verified(monkeypatch):
    right = reshard.plan('[{}], unreduced={"x"}', "[{}]", mesh="x=4", shape=(8,))
    wrong = reshard.plan("[{}]", '[{}], unreduced={"x"}', mesh="x=4", shape=(8,))
    broken = dataclasses.replace(right, tile_program=wrong.tile_program)
    with XlaChild(uses_cache=False, num_devices=4) as child:
        assert verify(broken, "tensor<8xf32>", child).text.startswith(
            "not verified: numpy interpreter: device 1 holds another"
        )
        monkeypatch.setattr("reshard.tools.commands.plan_verify._interpret", lambda plan: None)
        assert verify(broken, "tensor<8xf32>", child).text == "not verified: XLA on CPU devices ends with other sums"


def test_a_reduction_that_a_type_has_not_is_one_line(capsys):
    assert run("--verify", "--reduction", "and", problem=SUMS) == 1
    err = capsys.readouterr().err
    assert err.startswith("reshard: error: ") and "elements of type f32 have no and" in err and err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("element", ["f32", "bf16", "i16"])
def test_random_partial_sums_are_verified(element):
    with XlaChild(num_devices=8) as child:
        for pair in random_reductions(95, 25, (4, 6, 8)):
            found = reshard.plan(pair.source, pair.target, mesh=pair.mesh, shape=pair.shape, dtype=element)
            tensor = f"tensor<{'x'.join(map(str, (*pair.shape, element)))}>"
            assert (verdict := verify(found, tensor, child)).is_verified, (str(pair), verdict.text)


TWO_MESHES = {
    "--mesh": "y=4,v=2",
    "--to-mesh": "a=2,z=4",
    "--type": "f32[4,4]",
    "--from": '[{"y"}, {}]',
    "--to": '[{"a"}, {"z"}]',
}
TO_MORE = {
    "--mesh": "y=2",
    "--to-mesh": "u=4,x=2",
    "--type": "i4[]",
    "--from": "[]",
    "--to": "[]",
    "--topology": "h100:1x8",
}
SUMS_OF_TWO = {"--mesh": "y=6", "--to-mesh": "u=3,w=2", "--type": "f32[1]"}
SUMS_OF_TWO |= {"--from": '[{}], unreduced={"y"}', "--to": '[{}], unreduced={"w"}'}
PADDED_SUMS = {
    "--mesh": "x=2,z=2",
    "--type": "f32[15]",
    "--from": '[{}], unreduced={"x"}',
    "--to": '[{"z"}], unreduced={"x"}',
}
SUMS_BEHIND_ROUNDS = {"--mesh": "x=7,z=3", "--type": "c64[9,2]", "--objective": "bytes"}
SUMS_BEHIND_ROUNDS |= {"--from": '[{"z"}, {}], unreduced={"x"}', "--to": '[{"x"}, {}], unreduced={"z"}'}
GATHERED_BEHIND_ROUNDS = {
    "--mesh": "y=4",
    "--type": "i2[5,10,6,4]",
    "--from": '[{}, {"y":(1)2}, {}, {"y":(2)2}]',
    "--to": '[{}, {"y"}, {}, {}]',
}
EXPLAINED = [TWO_MESHES, TO_MORE, SUMS_OF_TWO, PADDED_SUMS, SUMS_BEHIND_ROUNDS, GATHERED_BEHIND_ROUNDS]


@pytest.mark.parametrize(
    "problem", EXPLAINED, ids=["two meshes", "more devices", "sums", "padded", "rounds and sums", "rounds"]
)
def test_explain_says_why_where_axes_are_of_two_meshes_or_tiles_padded(problem, capsys):
    """Each of these problems once ended in a traceback."""
    text = output(capsys, command="explain", problem=problem)
    assert "why" in text and "distance to the bounds" in text and "tiles:" in text


def test_text_says_if_nothing_is_proved(capsys):
    sums = {
        "--mesh": "z=2,w=2",
        "--type": "f32[8,2]",
        "--from": '[{"w"}, {}], unreduced={"z"}',
        "--to": '[{}, {"w"}], unreduced={"z"}',
    }
    assert "how far from the least time is not proved" in output(capsys, "--memory-limit", 115, problem=sums)
    assert json.loads(output(capsys, "--memory-limit", 115, "--json", problem=sums))["proved_gap"] is None
