"""The example programs lower, compile and run under stock XLA, and their checked-in StableHLO is up to date."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("issue_21562", "llama_train_step", "moe_layer", "sequence_parallel_attention", "fft_pencil")
QUICK = ("issue_21562", "fft_pencil")  # each of the others takes seconds to compile or to lower
TIERED = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
MORE = ("vision_transformer", "recommender", "heat_adi", "decode_step")

# Prints {name: facts about its outputs}. It runs in a child, since XLA may abort and reads its flags at jax's start.
RUN = """
import json, sys
import jax, numpy as np
from examples.programs import program

def run(entry):
    function, args = entry.build(entry.mesh(), size="small")
    compiled = function.lower(*args).compile()
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*args))]
    return {
        "devices": entry.mesh().size,
        "finite": all(np.isfinite(leaf).all().item() for leaf in leaves),
        "norms": [float(np.linalg.norm(leaf)) for leaf in leaves],
    }

print(json.dumps({name: run(program(name)) for name in sys.argv[1:]}))
"""

# Prints {name: [number of rewritten sites, whether all outputs are equal within rounding]}.
OPTIMIZE_MORE = """
import json
import jax, numpy as np
import reshard
from examples.more_programs import MORE_PROGRAMS

def run(entry):
    function, args = entry.build(entry.mesh(), size="small")
    lowered = function.lower(*args)
    result = reshard.optimize(lowered, check=False, policy="always")
    ours = jax.tree.map(np.asarray, result.compile()(*jax.tree.map(lambda x: x.copy(), args)))
    stock = jax.tree.map(np.asarray, lowered.compile()(*args))
    close = jax.tree.map(lambda a, b: bool(np.max(np.abs(a - b)) <= 1e-5 * max(1e-3, np.max(np.abs(b)))), ours, stock)
    return [sum(bool(row.get("is_rewritten")) for row in result.report.to_dict()["sites"]), all(jax.tree.leaves(close))]

print(json.dumps({entry.name: run(entry) for entry in MORE_PROGRAMS}))
"""

# Prints {name: [number of rewritten sites, status of the check by values, its message]}.
VERIFY_VALUES = """
import json
import jax, reshard
from examples.more_programs import MORE_PROGRAMS
from examples.programs import PROGRAMS

def run(entry):
    function, args = entry.build(entry.mesh(), size="small")
    with reshard.options(verify_values=True, policy="always", check=False):
        report = reshard.optimize(function.lower(*args)).report.to_dict()
    (found,) = report["value_checks"]
    return [report["totals"]["rewritten"], found["status"], found["message"]]

print(json.dumps({entry.name: run(entry) for entry in (*PROGRAMS, *MORE_PROGRAMS)}))
"""

PARSE_ALL = """
import sys
from reshard.dialect_utils.platform.bindings import ir, make_context

for path in sys.argv[1:]:
    with open(path) as file:
        ir.Module.parse(file.read(), make_context()).operation.verify()
"""


def run_python(*arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )


@functools.cache
def outputs(*names: str) -> dict:
    child = run_python("-c", RUN, *names)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", TIERED)
def test_program_runs_on_eight_devices(name):
    found = outputs(*(QUICK if name in QUICK else NAMES))[name]
    assert found["devices"] == 8
    assert found["finite"]
    assert any(norm > 0 for norm in found["norms"])


def test_fft_and_its_inverse_keep_the_norm():
    assert outputs(*QUICK)["fft_pencil"]["norms"] == pytest.approx([1.0], rel=1e-5)


def test_checked_in_modules_parse():
    child = run_python("-c", PARSE_ALL, *(str(ROOT / "examples" / f"{name}.mlir") for name in NAMES))
    assert child.returncode == 0, child.stderr


@pytest.mark.parametrize("name", NAMES)
def test_checked_in_module_names_files_relative_to_the_repository(name):
    text = (ROOT / "examples" / f"{name}.mlir").read_text()
    files = set(re.findall(r'loc\("([^"]*\.py)"', text))
    assert any(file.startswith("examples/") for file in files)
    assert not [file for file in files if file.startswith("/")]


@pytest.mark.parametrize("names", [QUICK, pytest.param((), id="all", marks=pytest.mark.slow)])
def test_checked_in_modules_are_up_to_date(names):
    child = run_python("examples/generate.py", *names, "--check")
    if child.returncode == 2:
        pytest.skip("the modules were lowered with other versions of jax, flax or optax")
    assert child.returncode == 0, child.stderr


@pytest.mark.slow
def test_more_programs_give_the_same_with_every_site_rewritten():
    child = run_python("-c", OPTIMIZE_MORE)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout.splitlines()[-1])
    assert {name: is_equal for name, (_, is_equal) in found.items()} == dict.fromkeys(MORE, True)
    assert all(rewritten for rewritten, _ in found.values())


@pytest.mark.slow
def test_every_program_gives_the_same_values_with_every_site_rewritten():
    child = run_python("-c", VERIFY_VALUES)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout.splitlines()[-1])
    assert set(found) == {*NAMES, *MORE} and all(rewritten for rewritten, _, _ in found.values())
    assert {status for _, status, _ in found.values()} <= {"equal", "within tolerance", "rounded"}, found


def test_unknown_program_is_a_usage_error_that_names_the_known_ones_which_are_all_tested():
    child = run_python("examples/generate.py", "fft")
    assert child.returncode == 2
    known = re.search(r"no example program 'fft'; there are (.*)", child.stderr)[1]
    assert known.split(", ") == [*NAMES, *MORE]
