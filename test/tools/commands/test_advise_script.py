# SPDX-License-Identifier: Apache-2.0
"""reshard advise of a script: the program that it advises on, lines of the script, and errors."""

import json
from pathlib import Path

import pytest

from reshard.tools import reshard as tool
from reshard.tools.commands.flags import parse_flags

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

ROOT = Path(__file__).resolve().parents[3]
MODULE = str(ROOT / "docs" / "two_lines.mlir")
SCRIPT = """\
import sys
import jax
import jax.numpy as jnp
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


@jax.jit
def evaluate(a):
    return jnp.sum(with_sharding_constraint(a, NamedSharding(mesh, P("x", None))))


@jax.jit
def step(a):
    a = with_sharding_constraint(jnp.tanh(a), P(None, "x"))  # the bad one
    return with_sharding_constraint(a + 1, P("x", None))


@jax.jit
def mixed(a):
    b = jnp.exp(jax.lax.with_sharding_constraint(jnp.sin(a), NamedSharding(mesh, P(None, "x"))))  # mixed
    return with_sharding_constraint(b, P("x", None))


with jax.set_mesh(mesh):
    a = jax.device_put(jnp.ones((1024, 1024)), P("x", None))
    if "--mixed" in sys.argv:
        mixed(a)
    for _ in range(2):
        a = step(a)
    print("sum", evaluate(a))
"""
FOR_8 = ["--devices", "8", "--topology", "h100", "--stock-only"]


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Returns a script in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    return "train.py"


def line_of(comment: str) -> int:
    return 1 + next(number for number, line in enumerate(SCRIPT.split("\n")) if line.endswith(f"# {comment}"))


@pytest.mark.slow
def test_the_longest_program_is_advised_on_at_the_line_of_the_script(capfd, script, tmp_path):
    assert tool.main(["advise", script, *FOR_8, "-o", "better.mlir"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("train.py: jit_step: 8 devices, times modelled on h100, 1 node x 8 gpu\n")
    assert f"1. {tmp_path / script}:{line_of('the bad one')}:" in out
    assert '     - a = with_sharding_constraint(jnp.tanh(a), P(None, "x"))  # the bad one\n' in out
    assert "     + a = jnp.tanh(a)  # the bad one\n" in out
    assert "sum " in err and "programs for more than one device\n" in err
    assert "advises on jit_step, the longest one; --function NAME chooses another\n" in err
    rows = {line.split()[0]: line.split()[1:] for line in err.split("\n") if line.startswith("jit_")}
    assert rows["jit_step"][0] == "8" and "jit_evaluate" in rows and next(iter(rows)) == "jit_step"
    assert "jit_step" in Path("better.mlir").read_text()


@pytest.mark.slow
def test_the_program_that_is_asked_for_is_advised_on_and_the_script_ends_there(capfd, script):
    assert tool.main(["advise", script, *FOR_8, "--function", "mixed", "--json", "--", "--mixed"]) == 0
    out, err = capfd.readouterr()
    (change,) = json.loads(out)["changes"]
    assert change["place"].rpartition(":")[0].endswith(f"train.py:{line_of('mixed')}")
    assert change["diff"][1].startswith("+ b = jnp.exp(jnp.sin(a))")
    assert err == "train.py: advises on jit_mixed, 8 devices\n"


def test_arguments_behind_two_dashes_are_the_scripts():
    flags = parse_flags(["advise", "train.py", "--most", "2", "--", "--most", "3", "--", "x"])
    assert (flags.module, flags.most, flags.script_arguments) == ("train.py", 2, ["--most", "3", "--", "x"])
    assert parse_flags(["advise", "step.mlir"]).script_arguments == []


@pytest.mark.parametrize("flag", ["--steps", "--seed"])  # the second one is a flag of another command
def test_arguments_of_a_script_without_dashes_are_an_error_that_says_where_they_go(flag, capsys):
    with pytest.raises(SystemExit):
        parse_flags(["advise", "train.py", flag, "2"])
    assert f"{flag} 2; arguments of a script come behind --" in capsys.readouterr().err


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (SCRIPT, [*FOR_8, "--function", "stp"], "is named stp; its programs for more than one device are jit_"),
        ("import jax\njax.jit(lambda x: x + 1)(1.0)\n", [], "the script hands 1 program to XLA, each for one device;"),
        ("import jax\njax.jit(lambda x: x + 1)(1.0)\n", ["--function", "f"], "with --devices 8 if it sees only one"),
        ("print(1)\n", [], "the script hands no program to XLA through jax.jit"),
        (SCRIPT + "raise ValueError\n", FOR_8, "train.py: the script ended with exit status 1; nothing is advised"),
        (SCRIPT, ["--devices", "8", "--topology", "h100:3"], "h100"),
        ("raise ValueError", ["--topology", "h1000"], 'unknown topology "h1000"'),
    ],
)
def test_errors(capfd, script, text, arguments, message):
    Path(script).write_text(text)
    assert tool.main(["advise", script, *arguments]) == 1
    out, err = capfd.readouterr()
    assert out == "" and message in err.splitlines()[-1]
    assert ("Traceback" in err) == text.endswith("raise ValueError\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "nowhere.py: no such file or directory"),
        ([MODULE, "--function", "step"], f"{MODULE} is read as a module; --function is for scripts"),
        ([MODULE, "--devices", "8"], f"{MODULE} is read as a module; --devices is for scripts"),
        ([MODULE, "--", "x"], f"{MODULE} is read as a module; arguments behind -- are for scripts"),
    ],
)
def test_what_fits_no_script_is_an_error(capsys, arguments, message):
    assert tool.main(["advise", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_programs_on_as_many_devices_as_the_network_has_are_chosen_from(capfd, script):
    text = SCRIPT + "\nhalf = jax.make_mesh((4,), ('x',), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])\n"
    text += "b = jax.ShapeDtypeStruct((16, 16), jnp.float32, sharding=NamedSharding(half, P('x')))\n"
    Path(script).write_text(text + "jax.jit(lambda b: b.T @ b).lower(b).compile()\n")
    assert tool.main(["advise", script, "--devices", "8", "--topology", "h100:1x4", "--stock-only"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("train.py: jit__lambda: 4 devices, times modelled on h100:1x4")
    assert "advises on jit__lambda, the longest one" in err
    assert "\njit_step has no time: topology " in err and "the mesh has 8\n" in err


@pytest.mark.slow
def test_programs_of_one_name_are_one_row_and_short_ones_are_counted(capfd, script):
    text = (
        SCRIPT
        + "\nwith jax.set_mesh(mesh):\n    step(jnp.concatenate([a, a])), jax.jit(jnp.exp)(a), jax.jit(jnp.log)(a)\n"
    )
    Path(script).write_text(text)
    assert tool.main(["advise", script, *FOR_8, "--may-change", "state"]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("jit_step ")] == [["jit_step", "8", "2"]]
    assert [line for line in lines if line.startswith("and ") and line.endswith(" others")]
