# SPDX-License-Identifier: Apache-2.0
"""reshard fix-warnings: logs with XLA's warnings of gathers of whole tensors, modules with the warnings' places.

The output is text or JSON.
"""

import io
import json
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import plan as synthesized
from reshard.tools import reshard as tool

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

ISSUE = ("{devices=[2,1,4]<=[4,2]T(1,0)}", "{devices=[1,8,1]<=[8]}")
NAMED = ("{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}", "{mesh['x'=4,'y'=2], [{}, {'x', 'y'}, {}]}")
MODULE = """
#file = loc("train.py":12:3)
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%arg0: tensor<15x16x18xf32> loc("a")) -> tensor<15x16x18xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<15x16x18xf32> loc("jit(step)/tanh"(#file))
  %1 = stablehlo.sine %0 : tensor<15x16x18xf32> loc("jit(step)/sin"("train.py":14:3))
  %2 = sdy.sharding_constraint %1 <@mesh, [{"y"}, {}, {"x"}]> : tensor<15x16x18xf32> loc("wsc"("train.py":15:3))
  %3 = sdy.sharding_constraint %2 <@mesh, [{}, {"x", "y"}, {}]> : tensor<15x16x18xf32> loc("wsc"("train.py":16:3))
  return %3 : tensor<15x16x18xf32>
}
"""


def warning(sharding=ISSUE, tile="f32[8,16,4]", op="sine", metadata='op_name="jit(step)/sin" stack_frame_id=7') -> str:
    return (
        f"W1122 01:53:39.981694 6450 spmd_partitioner.cc:667] [SPMD] Involuntary full rematerialization. The "
        f"compiler cannot go from "
        f"sharding {sharding[0]} to {sharding[1]} efficiently for HLO operation %op.1 = {tile}{{2,1,0}} {op}(%a.1), "
        f"sharding={sharding[0]}, metadata={{{metadata}}}. As the last resort, SPMD will replicate the tensor and "
        f"then partition it.\n"
    )


@pytest.fixture
def run(capsys, tmp_path):
    """Returns a function that runs the command for a log and modules, and returns its output.

    It compiles conversions only if a test passes `compiled`.
    """

    def runs(log: str, *arguments: str, modules=(), compiled=False) -> str:
        path = tmp_path / "train.log"
        path.write_text(log)
        paths = []
        for number, text in enumerate(modules):
            paths.append(tmp_path / f"module{number}.mlir")
            paths[-1].write_text(text)
        flags = () if compiled else ("--no-compile",)
        assert tool.main(["fix-warnings", str(path), *map(str, paths), *arguments, *flags]) == 0
        return capsys.readouterr().out.replace(str(path), "train.log")

    return runs


def sites(run, log: str, *arguments, **options) -> list[dict]:
    return json.loads(run(log, "--json", *arguments, **options))["sites"]


# ---- text


def test_text_of_a_site(run):
    assert run(warning(NAMED), compiled=True) == (
        "train.log: 1 warning, 1 site\n"
        "\n"
        "1. jit(step)/sin (1 warning)\n"
        '   tensor  f32[16,16,16] on <["x"=4, "y"=2]>, 8 devices\n'
        '   from    [{"y"}, {}, {"x"}]\n'
        '   to      [{}, {"x", "y"}, {}]\n'
        "   XLA     compiled alone, 2 all_gather: a device receives 14,336 bytes\n"
        "   ours    all_to_all x: dim 2 -> 1, y: dim 0 -> 1: receives 1,792; no method receives less than 1,792\n"
        "   so      faster than stock XLA, modelled 46.2 us -> 37.3 us, received 14,336 bytes -> 1,792 bytes\n"
        "   next    compile with reshard.jit in place of jax.jit; or, if no conversion is meant, make the tensor as "
        "P(None, ('x', 'y'), None)\n"
        "\n"
        "sizes are those of whole tiles, which is what XLA names; with the program's MODULE they are exact\n"
    )


def test_without_compiling_the_warning_is_believed(run):
    lines = run(warning(NAMED)).splitlines()
    assert "   XLA     says that it gathers the whole tensor: a device receives 14,336 bytes and holds 16,384" in lines
    assert not [line for line in lines if line.startswith("   so ")]


def test_nothing_found_is_said(run):
    assert run("step 1: loss 2.0\n") == "train.log: no warning of involuntary full rematerialization\n"


def test_equal_warnings_are_one_site(run):
    log = warning() + "[1]: " + warning() + warning(tile="f32[16,16,4]") + warning()
    found = sites(run, log)
    assert [(site["count"], site["type"]) for site in found] == [
        (1, "tensor<32x16x16xf32>"),
        (3, "tensor<16x16x16xf32>"),
    ]


def test_most_to_gain_comes_first(run):
    found = sites(run, warning(tile="bf16[8,16,4]") + warning(tile="f64[8,16,4]") + warning(tile="f32[8,16,4]"))
    assert [site["tile_type"] for site in found] == ["f64[8,16,4]", "f32[8,16,4]", "bf16[8,16,4]"]


def test_what_cannot_be_read_is_counted(run):
    cut = warning()
    text = run(warning() + cut[: cut.index("%op.1")] + "\n" + cut[: cut.index("to {")] + "\n")
    assert text.startswith("train.log: 3 warnings, 1 site\n")
    assert text.endswith(
        "2 warnings could not be read, the first because it names no tensor: it is cut off, torn apart, or of an XLA "
        "that does not say more\n"
    )


def test_log_from_stdin_that_is_no_utf8(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff\xfe" + warning().encode() + b"\xff")))
    assert tool.main(["fix-warnings", "-"]) == 0
    assert capsys.readouterr().out.startswith("<stdin>: 1 warning, 1 site\n")


# ---- plans


def test_the_plan_is_that_of_the_passes(run):
    (site,) = sites(run, warning(NAMED))
    planned = synthesized(
        Mesh.parse("x=4,y=2"), (16, 16, 16), 32, *map(Sharding.parse, ('[{"y"}, {}, {"x"}]', '[{}, {"x","y"}, {}]'))
    )
    assert site["plan"]["steps"] == json.loads(json.dumps(planned.to_dict()["steps"]))
    assert site["plan"]["objective"] == "bytes"
    assert site["said"] == {"bytes_received": 14336, "largest_tile_bytes": 16384}


def test_what_takes_an_exchange_is_planned(run):
    (site,) = sites(
        run,
        warning(
            ("{devices=[2,1,3]<=[6] last_tile_dim_replicate}", "{devices=[1,3,2]<=[6] last_tile_dim_replicate}"),
            "f32[6,12]",
        ),
    )
    assert site["plan"]["totals"]["bytes_received"] > 0


def test_what_xla_does_is_measured(run):
    (site,) = sites(run, warning(NAMED), compiled=True)
    found = site["xla"]
    assert (found["status"], found["bytes_received"], found["largest_tile_bytes"]) == ("ok", 14336, 16384)
    assert found["collectives"] == {"all_gather": 2} and found["is_ours_better"]


def test_what_xla_does_well_has_nothing_to_do(run):
    sharding = ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", "{devices=[1,2,2]<=[4] last_tile_dim_replicate}")
    (site,) = sites(run, warning(sharding, "f32[8,16]"), compiled=True)
    assert site["xla"]["bytes_received"] == site["plan"]["totals"]["bytes_received"] < site["said"]["bytes_received"]
    assert not site["xla"]["is_ours_better"]
    assert site["next"].startswith("nothing, if the conversion is meant")


def test_fewer_bytes_in_more_collectives_are_for_policy_always(run):
    sharding = ("{devices=[8,1,1]<=[8]}", "{devices=[1,1,4,2]<=[8] last_tile_dim_replicate}")
    (site,) = sites(run, warning(sharding, "f32[8,16,64]"), compiled=True)
    assert site["xla"]["reason"] == "stock XLA is faster, modelled 46.4 us -> 48.0 us"
    assert 'reshard_options={"policy": "always"}' in site["next"]


def test_axes_are_those_of_the_given_mesh(run):
    (site,) = sites(run, warning(), "--mesh", "x=4,y=2")
    assert (site["plan"]["source"], site["plan"]["target"]) == ('[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]')
    assert site["next"].endswith("make the tensor as P(None, ('x', 'y'), None)")


def test_a_named_mesh_explains_a_list_of_devices(run):
    (site,) = sites(run, warning((NAMED[0], ISSUE[1])))  # jax 0.12 has both in one warning
    assert (site["plan"]["source"], site["plan"]["target"]) == ('[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]')


def test_a_mesh_of_another_size_names_nothing(run):
    (site,) = sites(run, warning(), "--mesh", "x=4,y=4")
    assert site["plan"]["source"] == '[{"axis_1"}, {}, {"axis_0"}]'


def test_partly_replicated_source(run):
    sharding = ("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", "{devices=[1,8]<=[8]}")
    (site,) = sites(run, warning(sharding, "f32[4,16]"))
    assert site["type"] == "tensor<16x16xf32>"
    assert site["said"] == {"bytes_received": 768, "largest_tile_bytes": 1024}


def test_tensor_on_one_device(run):
    (site,) = sites(run, warning(("{maximal device=2}", "{devices=[4,1]<=[4]}"), "f32[16,16]"), compiled=True)
    assert site["plan"]["mesh"] == "<[], device_ids=[2]>"
    assert site["said"] == {"bytes_received": 1024, "largest_tile_bytes": 1024}
    assert site["xla"] is None
    assert site["plan"]["totals"]["bytes_received"] == 256
    assert site["next"].startswith("one device has the tensor: constrain it to ")


def test_manual_axes_are_those_of_other_groups(run):
    sharding = tuple(f"{{devices=[{tiles},2]<=[8] last_tile_dims={{manual}}}}" for tiles in ("2,1,2", "1,2,2"))
    (site,) = sites(run, warning(sharding, "f32[8,16,64]"))
    assert site["plan"]["mesh"] == '<["axis_0"=2, "axis_1"=2]>'
    assert site["type"] == "tensor<16x16x128xf32>"


def test_two_device_orders(run):
    sharding = ("{devices=[4]0,1,2,3}", "{devices=[4]0,2,3,1}")
    (site,) = sites(run, warning(sharding, "f32[8]"))
    assert site["plan"]["target_mesh"] != site["plan"]["mesh"]
    assert site["plan"]["totals"]["bytes_received"] == 32


@pytest.mark.parametrize(
    "sharding, tile, problem",
    [
        (
            ("{devices=[1,1,2,2]<=[4] last_tile_dim_replicate}", "{devices=[2,2]<=[4]}"),
            "f64[96]",
            "is of rank 3, the tensor f64[96] of rank 1",
        ),
        (ISSUE, "token[8,16,4]", "unknown dtype 'token'"),
        (("{unknown}", ISSUE[1]), "f32[8,16,4]", "{unknown} does not say which device holds what"),
        (("{{replicated}, {replicated}}", ISSUE[1]), "f32[8,16,4]", "is of a tuple"),
        (("{replicated}", "{replicated}"), "f32[8,16,4]", "name no mesh"),
        (("{devices=[2,2,1]<=[8]}", ISSUE[1]), "f32[8,16,4]", "8 devices for 4 tiles"),
        (("{devices=[2,1,2]<=[4]}", ISSUE[1]), "f32[8,16,4]", "shardings for 4 and 8 devices"),
        (
            ("{devices=[2,1,2,2]<=[8] last_tile_dims={manual}}", ISSUE[1]),
            "f32[8,16,4]",
            "not manual along the same axes",
        ),
    ],
)
def test_what_has_no_plan_says_why(run, sharding, tile, problem):
    text = run(warning(sharding, tile))
    (line,) = [line for line in text.splitlines() if line.startswith("   ours ")]
    assert line.startswith("   ours    no plan: ")
    assert problem in line
    assert f"   from    {sharding[0]}\n" in text


# ---- modules


def test_a_module_names_places_meshes_and_exact_sizes(run):
    (site,) = sites(run, warning(tile="f32[8,16,5]"), modules=[MODULE])
    assert site["places"] == ["train.py:14"]
    assert (site["type"], site["is_exact"]) == ("tensor<15x16x18xf32>", True)
    assert site["plan"]["source"] == '[{"y"}, {}, {"x"}]'


def test_without_a_module_sizes_are_those_of_whole_tiles(run):
    (site,) = sites(run, warning(tile="f32[8,16,5]"))
    assert (site["places"], site["type"], site["is_exact"]) == ([], "tensor<16x16x20xf32>", False)


def test_a_constraint_is_told_from_another_by_its_sharding(run):
    log = warning(tile="f32[15,2,18]", sharding=ISSUE[::-1], metadata='op_name="jit(step)/while/body/wsc"')
    (site,) = sites(run, log, modules=[MODULE])
    assert site["places"] == ["train.py:16"]


def test_arguments_have_exact_sizes_and_no_place(run):
    (site,) = sites(run, warning(tile="f32[8,16,5]", metadata='op_name="a"'), modules=[MODULE])
    assert (site["places"], site["type"]) == ([], "tensor<15x16x18xf32>")


def test_a_namesake_of_another_shape_is_another_value(run):
    (site,) = sites(run, warning(tile="f32[9,16,5]"), modules=[MODULE])
    assert (site["type"], site["is_exact"]) == ("tensor<18x16x20xf32>", False)


def test_the_warning_s_own_place_counts(run):
    log = warning(metadata='op_name="jit(step)/sin" source_file="other.py" source_line=3')
    assert sites(run, log, modules=[MODULE])[0]["places"] == ["other.py:3"]


# ---- mistakes


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["no_such.log"], "reshard: error: no_such.log: no such file or directory\n"),
        (["."], "reshard: error: .: is a directory\n"),
        (["{log}", "no_such.mlir"], "no_such.mlir: error: no such file or directory\n"),
        (["{log}", "{log}"], "{log}:1:1: error: "),
        (["{log}", "--mesh", "x"], "reshard: error: "),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, arguments, expected):
    log = tmp_path / "train.log"
    log.write_text(warning())
    assert tool.main(["fix-warnings", *(each.format(log=log) for each in arguments)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(expected.format(log=log))
    assert "Traceback" not in err


def test_the_command_contains_what_reads_modules(tmp_path):
    (tmp_path / "train.log").write_text(warning())
    (tmp_path / "step.mlir").write_text(MODULE)
    command = [
        sys.executable,
        "-m",
        "reshard.tools.reshard",
        "fix-warnings",
        tmp_path / "train.log",
        tmp_path / "step.mlir",
        "--no-compile",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1. train.py:14, jit(step)/sin (1 warning)\n" in done.stdout


def test_damaged_logs_are_read_to_the_end(run):
    rng = random.Random(0)
    log = warning() + warning(NAMED) + warning(("{maximal device=2}", "{devices=[4,1]<=[4]}"), "f32[16,16]")
    for _ in range(60):
        at, length = rng.randrange(len(log)), rng.choice((1, 1, 3, 40))
        put = rng.choice(
            (
                "",
                "}",
                "{",
                "[0",
                "999999999999",
                '"',
                "\n",
                "\x1b[1m",
                "<=",
                "-1",
                "0",
                log[rng.randrange(len(log)) :][:50],
            )
        )
        out = run(log[:at] + put + log[at + length :])
        assert out.startswith(("train.log: 3 warnings", "train.log: 2 warnings", "train.log: 4 warnings"))
