#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a virtual environment for this checkout, and runs the demo, the tests or the checks of the sources in it.

Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 11)
MOST_JOBS = 8  # a worker and its XLA child need about a gigabyte
STAMP = "reshard-stamp"
THEORY = "test/synthesis"  # depends on Python alone, not on jax
COMPILER = ("test/dialect_utils", "test/passes", "test/reshard", "test/end_to_end", "test/fuzz")  # what runs jax
PARTS = ("lit", "theory", "compiler", "rest")
LINTS = ("check", "format", "types")

_EXAMPLES = """\
examples:
  python3 tools/dev.py demo                            five programs, stock and rewritten, run on 8 CPU devices
  python3 tools/dev.py test                            quick tier: some minutes, the more so at first
  python3 tools/dev.py test --jobs 1                   one test at a time
  python3 tools/dev.py test --tier all --filter plan   every test whose name holds 'plan'
  python3 tools/dev.py test --tier all --every-draw    all random cases, not some of them: before a release
  python3 tools/dev.py test --python python3.12        another interpreter, in its own environment
  python3 tools/dev.py lint                            what .ci/run checks before the tests
  python3 tools/dev.py test --jax 0.10.0               the oldest supported jax, in its own environment
"""


class Failure(Exception):
    """An error for the user: the cause, and the next action."""


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 for success, 1 after a failure, 2 for a wrong command line."""
    flags = _parser().parse_args(argv)
    try:
        return flags.run(flags)
    except Failure as failure:
        print(f"dev.py: error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def setup(flags: argparse.Namespace) -> int:
    environment(flags)
    return 0


def demo(flags: argparse.Namespace) -> int:
    return subprocess.run([environment(flags), "-m", "reshard.tools.demo"], cwd=ROOT).returncode


def test(flags: argparse.Namespace) -> int:
    python = environment(flags)
    parts = flags.part or PARTS
    outcomes = Counter()
    with tempfile.TemporaryDirectory() as folder:
        if "lit" in parts:
            outcomes += _run_lit(python, flags, Path(folder, "lit.json"))
        if {*parts} - {"lit"}:
            outcomes += _run_pytest(python, flags, parts, Path(folder, "pytest.xml"))
    if flags.filter and not outcomes.total():
        raise Failure(f"no test of tier {flags.tier} has '{flags.filter}' in its name")
    print(f"\n{outcomes['passed']} passed, {outcomes['failed']} failed, {outcomes['skipped']} skipped")
    return 1 if outcomes["failed"] else 0


def lint(flags: argparse.Namespace) -> int:
    python = environment(flags)
    _install_linters(python)
    return subprocess.run(
        [python, "tools/lint.py", *(f"--part={part}" for part in flags.part or ())], cwd=ROOT
    ).returncode


def clean(_flags: argparse.Namespace) -> int:
    """Removes the files that this tool and the tests made, and returns the exit status."""
    made = [*ROOT.glob(".venv*"), *ROOT.glob("*.egg-info"), *ROOT.glob("*/__pycache__"), *ROOT.glob("*/*/__pycache__")]
    made += [ROOT / name for name in ("build", "dist", ".pytest_cache", ".hypothesis")]
    for path in made:
        shutil.rmtree(path, ignore_errors=True)
    return 0


# ---- the environment


def environment(flags: argparse.Namespace) -> str:
    """Returns the environment's interpreter; makes the environment again if pyproject.toml or Python has changed."""
    base = _interpreter(flags.python)
    folder = ROOT / _environment_name(flags, base)
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    stamp = _stamp(base, flags.jax)
    if (folder / STAMP).is_file() and (folder / STAMP).read_text() == stamp:
        return python
    _say(f"creating {folder.name} with Python {base['version']}")
    _checked([base["path"], "-m", "venv", "--clear", str(folder)], _NO_VENV)
    pinned = [f"jax=={flags.jax}", f"jaxlib=={flags.jax}"] if flags.jax else []
    _say("installing reshard with what its tests and examples need; a minute or two the first time")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _checked([*pip, "-e", f"{ROOT}[test,examples]", *pinned], _NO_INSTALL)
    (folder / STAMP).write_text(stamp)
    return python


def _install_linters(python: str) -> None:
    """Installs the pinned versions of ruff and pyright into an environment that lacks them."""
    stamp = Path(python).parent.parent / "reshard-linters"
    linters = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["lint"]
    if stamp.is_file() and stamp.read_text() == str(linters):
        return
    _say(f"installing {' and '.join(linters)}")
    _checked([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *linters], _NO_INSTALL)
    stamp.write_text(str(linters))


_NO_VENV = "could not make a virtual environment; on Debian and Ubuntu: apt install python3-venv"
_NO_INSTALL = (
    "pip could not install what pyproject.toml names (see above). The first run needs a package index: check the "
    "network, "
    "or point PIP_INDEX_URL or PIP_FIND_LINKS at one; then run the same command again"
)


def _interpreter(path: str | None) -> dict[str, str]:
    """Returns path, prefix and version of the interpreter that makes the environment. Raises: Failure."""
    command = [
        path or sys.executable,
        "-c",
        "import sys; print(sys.base_prefix, sys.executable, *sys.version_info[:3], sep='\\n')",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failure(f"cannot run {command[0]}: {getattr(error, 'stderr', '') or error}") from None
    prefix, executable, *version = done.stdout.split("\n")[:5]
    if tuple(map(int, version)) < OLDEST_PYTHON:
        raise Failure(f"{executable} is Python {'.'.join(version)}; reshard needs 3.11 or newer, see --python")
    return {"path": executable, "prefix": prefix, "version": ".".join(version)}


def _environment_name(flags: argparse.Namespace, base: dict[str, str]) -> str:
    """Returns the name of the environment's folder: `.venv`, or with flags such as `.venv-py3.12-jax0.10.0`."""
    minor = ".".join(base["version"].split(".")[:2])
    parts = [f"py{minor}"] if flags.python or flags.jax else []
    parts += [f"jax{flags.jax}"] if flags.jax else []
    return "-".join([".venv", *parts])


def _stamp(base: dict[str, str], jax: str | None) -> str:
    told = [str(ROOT), (ROOT / "pyproject.toml").read_text(), base["prefix"], base["version"], jax or "newest"]
    return hashlib.sha256("\0".join(told).encode()).hexdigest()


def _checked(command: list[str], what_to_do: str) -> None:
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise Failure(what_to_do)


def _say(text: str) -> None:
    print(f"dev.py: {text}", flush=True)


# ---- the tests


def _run_lit(python: str, flags: argparse.Namespace, results: Path) -> Counter:
    _say(f"lit, tier {flags.tier}")
    lit = [python, "-c", "import sys; from lit.main import main; sys.exit(main())"]
    command = [
        *lit,
        "test",
        "--param",
        f"tier={flags.tier}",
        "--allow-empty-runs",
        "-o",
        str(results),
        f"-j{flags.jobs}",
    ]
    command += ["--verbose" if flags.verbose else "--quiet"]
    command += ["--filter", flags.filter] if flags.filter else []
    command += [f"--num-shards={flags.one_case_in}", "--run-shard=1"] if flags.one_case_in > 1 else []
    return _counted(command, results, _lit_outcomes, {0})


def _run_pytest(python: str, flags: argparse.Namespace, parts: Sequence[str], results: Path) -> Counter:
    _say(f"pytest, tier {flags.tier}")
    command = [python, "-m", "pytest", "--tier", flags.tier, f"--junitxml={results}"]
    command += ["--verbose" if flags.verbose else "--quiet"]
    command += ["-n", str(flags.jobs), "--dist", "worksteal"] if flags.jobs > 1 else []
    command += _selected(parts)
    command += ["-k", flags.filter] if flags.filter else []
    command += ["--every-draw"] if flags.every_draw else []
    command += ["--slow-turn", flags.slow_turn] if flags.slow_turn else []
    command += [f"--one-case-in={flags.one_case_in}"] if flags.one_case_in > 1 else []
    return _counted(command, results, _pytest_outcomes, {0, 5})  # 5: no test was selected


def _selected(parts: Sequence[str]) -> list[str]:
    """Returns the folders of some parts, or those that are left out if the rest is one of the parts."""
    folders = {"theory": (THEORY,), "compiler": COMPILER}
    if "rest" not in parts:
        return [each for part in parts for each in folders.get(part, ())]
    return [f"--ignore={each}" for part, some in folders.items() if part not in parts for each in some]


def _counted(command: list[str], results: Path, read, good: set[int]) -> Counter:
    """Returns how many tests had each outcome; a runner that fails without a failed test counts as one failure."""
    began = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, env=_caching_bytecode()).returncode
    outcomes = read(results) if results.is_file() else Counter()
    if status not in good and not outcomes["failed"]:
        outcomes["failed"] = 1
    _say(f"{outcomes['passed']} passed, {outcomes['failed']} failed in {time.monotonic() - began:.0f} s")
    return outcomes


def _caching_bytecode() -> dict[str, str]:
    """Returns an environment in which Python keeps its bytecode, because tests start hundreds of processes."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _lit_outcomes(results: Path) -> Counter:
    kinds = {"PASS": "passed", "FLAKYPASS": "passed", "XFAIL": "passed"}
    kinds |= {"UNSUPPORTED": "skipped", "SKIPPED": "skipped", "EXCLUDED": "skipped"}
    tests = json.loads(results.read_text())["tests"]
    return Counter(kinds.get(each["code"], "failed") for each in tests if each["code"] != "EXCLUDED")


def _pytest_outcomes(results: Path) -> Counter:
    outcomes = Counter()
    for suite in ElementTree.parse(results).getroot().iter("testsuite"):
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        outcomes.update(failed=failed, skipped=skipped, passed=int(suite.get("tests", 0)) - failed - skipped)
    return outcomes


# ---- the command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dev.py", description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="setup|demo|test|lint|clean")
    selection = argparse.ArgumentParser(add_help=False)
    selection.add_argument("--python", metavar="PATH", help="interpreter to use (default: the one that runs this)")
    selection.add_argument("--jax", metavar="VERSION", help="version of jax and jaxlib (default: the newest)")
    _add(commands, setup, "make the environment, which the other commands make too when they need it", selection)
    _add(commands, demo, "show what reshard does, on CPU devices", selection)
    tests = _add(commands, test, "run the tests: lit, then pytest", selection)
    tests.add_argument(
        "--tier", choices=("quick", "slow", "all"), default="quick", help="quick (default), slow, or both"
    )
    tests.add_argument(
        "--every-draw", action="store_true", help="run all cases of tests that draw many, instead of some"
    )
    tests.add_argument(
        "--slow-turn",
        metavar="K/N",
        type=_turn,
        help="of the slow tests of pytest only the K-th of N parts, such as 1/3",
    )
    tests.add_argument(
        "--one-case-in",
        metavar="N",
        type=_positive,
        default=1,
        help="run one in N cases of each test that has some, and one in N lit tests",
    )
    tests.add_argument(
        "--part",
        choices=PARTS,
        action="append",
        help="lit tests; theory, which needs no jax; what runs jax and its compiler; the rest; may be repeated "
        "(default: all)",
    )
    tests.add_argument(
        "--jobs",
        metavar="N",
        type=_positive,
        default=_usable_cores(),
        help="tests that run at once (default: %(default)s)",
    )
    tests.add_argument("--filter", metavar="WORD", help="only tests whose name holds this")
    tests.add_argument("-v", "--verbose", action="store_true", help="print each test")
    linting = _add(commands, lint, "check the sources: ruff, its format, and types with pyright", selection)
    linting.add_argument(
        "--part", choices=LINTS, action="append", help="only this check; may be repeated (default: all)"
    )
    _add(commands, clean, "remove environments, caches and build folders")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of at least 1")
    return int(text)


def _turn(text: str) -> str:
    turn, _, turns = text.partition("/")
    if not (turn.isdecimal() and turns.isdecimal() and 1 <= int(turn) <= int(turns)):
        raise argparse.ArgumentTypeError(f"'{text}' is no part such as 1/3")
    return text


def _usable_cores() -> int:
    """Returns the number of cores that this process may use, at most MOST_JOBS."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MOST_JOBS)


def _add(commands, run, help: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser = commands.add_parser(run.__name__, help=help, description=f"{help}.".capitalize(), parents=parents)
    parser.set_defaults(run=run)
    return parser


if __name__ == "__main__":
    if sys.version_info < OLDEST_PYTHON:
        version = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"dev.py: error: this is Python {version}; run it with Python 3.11 or newer")
    sys.exit(main())
