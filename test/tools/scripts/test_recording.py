# SPDX-License-Identifier: Apache-2.0
"""Scripts run as Python runs them, and what they hand to XLA is recorded."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from reshard.tools.common.command import Interrupted, UserError
from reshard.tools.scripts import recorder
from reshard.tools.scripts.recording import environment_with, record

HEAD = """\
from __future__ import annotations
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, P("x"))
x = jax.ShapeDtypeStruct((16,), jnp.float32, sharding=rows)
"""
ENDING = "import time\nopen({ready!r}, 'w')\ntry:\n    time.sleep(600)\nfinally:\n    open({ended!r}, 'w')\n"


@pytest.fixture
def script(tmp_path):
    """Returns a function from text to the path of a script with it."""

    def written(text: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return written


def test_programs_are_recorded_as_they_come_and_equal_ones_once(script, capfd):
    text = """
def step(x): return x + x[::-1]
for number in (2, 2, 3):
    jax.jit(step).lower(x).compile()
    jax.jit(lambda x: x * number).lower(x).compile()
alone = jax.jit(jnp.tanh).lower(1.0).compile()
print("done")
"""
    found = record(script(HEAD + text), devices=8)
    assert [(each.name, each.devices) for each in found.programs] == [
        ("jit_step", 8),
        ("jit__lambda", 8),
        ("jit__lambda", 8),
    ]
    assert len({each.content for each in found.programs}) == 3 and b"train.py" in found.programs[0].content
    assert found.singles == ("jit_tanh",) and not found.is_interrupted
    said = capfd.readouterr()
    assert said.out == "" and said.err.endswith("done\n")


@pytest.mark.slow
def test_what_reshard_rewrites_is_recorded_as_it_came(script):
    """It is the same program as without reshard, which is recorded once."""
    text = """
import reshard
at = [NamedSharding(mesh, P(*each)) for each in (("y", None, "x"), (None, ("x", "y"), None))]
a = jax.ShapeDtypeStruct((16, 16, 16), jnp.float32, sharding=at[0])
def f(a): return jax.lax.with_sharding_constraint(jnp.tanh(a), at[1])
jax.jit(f).lower(a).compile()
with reshard.enabled(policy="always", check=False) as programs:
    jax.jit(f).lower(a).compile()
assert [each.is_rewritten for each in programs] == [True]
reshard.jit(f, reshard_options={"policy": "always", "check": False}).lower(a).compile()
"""
    head = HEAD.replace('(8,), ("x",)', '(4, 2), ("x", "y")').replace("(AxisType.Auto,)", "(AxisType.Auto,) * 2")
    assert [each.name for each in record(script(head + text), devices=8).programs] == ["jit_f"]


def test_programs_of_explicit_mode_and_of_threads_are_recorded(script):
    text = """
import threading
mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
with jax.set_mesh(mesh):
    y = jnp.ones((16,), out_sharding=P("x"))
    jax.jit(lambda y: y + 1, static_argnums=()).lower(y).compile()
thread = threading.Thread(target=lambda: jax.jit(jnp.sinh).lower(x).compile())
thread.start()
thread.join()
"""
    assert {"jit__lambda", "jit_sinh"} <= {each.name for each in record(script(HEAD + text), devices=8).programs}


def test_a_script_runs_as_python_runs_it(script, tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    text = """\
from __future__ import annotations
import os, pickle, sys
import beside
os.environ["JAX_ENABLE_X64"] = "1"  # read when jax is loaded
import jax
def f() -> NoSuchName: pass
is_found = pickle.loads(pickle.dumps(f)) is f
said = [__name__, is_found, sys.argv, sys.path[0], __file__, beside.NAME, jax.config.jax_enable_x64, __spec__]
print(said, file=open("said", "w"))
"""
    monkeypatch.chdir(tmp_path)
    record(script(text), ["--steps", "2"])
    path = str(tmp_path / "train.py")
    assert (tmp_path / "said").read_text() == (
        f"{['__main__', True, [path, '--steps', '2'], str(tmp_path.resolve()), path, 'beside', True, None]}\n"
    )


def test_the_script_ends_once_its_function_is_recorded(script, tmp_path):
    text = f"""
import atexit
atexit.register(lambda: open({str(tmp_path / "ended")!r}, "w"))
jax.jit(jnp.tanh).lower(x).compile()
jax.jit(jnp.sinh).lower(x).compile()
raise ValueError
"""
    found = record(script(HEAD + text), function="sinh", devices=8)
    assert found.named("sinh").name == "jit_sinh" and found.named("cosh") is None
    assert not (tmp_path / "ended").exists()


@pytest.mark.parametrize(
    ("text", "how", "said"),
    [
        ("def f():\n    raise ValueError('bad')\nf()\n", "ended with exit status 1", 'train.py", line 3, in <module>'),
        ("import sys\nsys.exit('no data')\n", "ended with exit status 1", "no data"),
        ("import sys\nsys.exit(3)\n", "ended with exit status 3", ""),
        ("x = = 1\n", "ended with exit status 1", "SyntaxError"),
        ("import os\nos.abort()\n", "was ended by SIGABRT", ""),
    ],
)
def test_a_script_that_fails_is_an_error(script, capfd, text, how, said):
    path = script(text)
    with pytest.raises(UserError, match=f"train.py: the script {how}; nothing is advised"):
        record(path)
    err = capfd.readouterr().err
    assert said in err and "recorder" not in err
    if "Error" in err:
        alone = subprocess.run([sys.executable, path], capture_output=True, text=True)
        assert err == alone.stderr


def test_a_script_that_ends_well_is_none(script):
    assert record(script("import sys\nsys.exit()\n")).programs == ()


def test_a_missing_script_is_an_error(tmp_path):
    with pytest.raises(UserError, match="nowhere.py: no such file or directory"):
        record(str(tmp_path / "nowhere.py"))


def test_a_jax_without_the_seam_is_an_error(script, tmp_path):
    """A package in the script's folder stands for another jax."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    with pytest.raises(UserError, match="train.py: programs cannot be recorded: .*; upgrade reshard"):
        record(script("import jax\nraise ValueError\n"))


def ended_when_ready(number: int, ready, more: float | None = None):
    """Sends this process a signal once a file is there, and again after some seconds."""

    def send():
        while not ready.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), number)
        if more is not None:
            time.sleep(more)
            os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.usefixtures("default_signals")
def test_interrupted_it_gives_what_there_is(script, tmp_path, capfd):
    ready, ended = tmp_path / "ready", tmp_path / "ended"
    ended_when_ready(signal.SIGINT, ready)
    ending = ENDING.format(ready=str(ready), ended=str(ended))
    found = record(script(f"{HEAD}jax.jit(jnp.tanh).lower(x).compile()\n{ending}"), devices=8)
    assert found.is_interrupted and [each.name for each in found.programs] == ["jit_tanh"]
    assert ended.exists() and "Traceback" not in capfd.readouterr().err


@pytest.mark.usefixtures("default_signals")
def test_interrupted_twice_it_is_killed(script, tmp_path):
    ready = tmp_path / "ready"
    ended_when_ready(signal.SIGINT, ready, more=0.5)
    text = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    started = time.monotonic()
    found = record(script(f"{text}open({str(ready)!r}, 'w')\ntime.sleep(600)"))
    assert found.is_interrupted and time.monotonic() - started < 9


@pytest.mark.usefixtures("default_signals")
def test_another_signal_ends_both(script, tmp_path):
    ready = tmp_path / "ready"
    ended_when_ready(signal.SIGTERM, ready)
    with pytest.raises(Interrupted) as raised:
        record(script(f"import time\nopen({str(ready)!r}, 'w')\ntime.sleep(600)"))
    assert raised.value.number == signal.SIGTERM


def test_the_environment_of_devices_keeps_other_flags():
    flags = "--xla_a=1 --xla_force_host_platform_device_count=2 --xla_b"
    found = environment_with({"XLA_FLAGS": flags, "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cuda", "A": "b"}, 4)
    assert found["XLA_FLAGS"].split()[:3] == ["--xla_a=1", "--xla_b", "--xla_force_host_platform_device_count=4"]
    assert (found["JAX_PLATFORMS"], found["A"]) == ("cpu", "b") and found["JAX_NUM_CPU_DEVICES"] == "4"


@pytest.mark.parametrize(
    ("name", "asked", "is_named"),
    [("jit_step", "step", True), ("jit_step", "jit_step", True), ("jit_train_step", "step", False)],
)
def test_a_program_has_the_name_of_its_module_or_function(name, asked, is_named):
    assert recorder.is_named(name, asked) is is_named
