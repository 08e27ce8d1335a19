# SPDX-License-Identifier: Apache-2.0
"""Checks the sources with `ruff check`, `ruff format --check` and pyright, whose settings are in pyproject.toml.

`python3 tools/dev.py lint` installs the pinned versions and runs this file. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# In a checkout these folders are beside `reshard/`. They are installed inside it, and pyright must see them there.
SUBPACKAGES = ("synthesis", "dialect_utils", "passes", "tools")
PYRIGHT = [sys.executable, "-m", "pyright"]
OTHERS = ("benchmarks", "examples", "test", "docs")
_NO_PYRIGHT = """\
error: pyright did not start. The package from PyPI fetches pyright itself, an npm package, when it first runs, and for
that it needs a network. Check the network and run the same command again. pyright said:"""


def main(argv: list[str] | None = None) -> int:
    """Runs the checks, prints how many passed, and returns the exit status: 1 if a check found something."""
    parser = argparse.ArgumentParser(prog="dev.py lint", description=__doc__)
    parser.add_argument("--part", choices=tuple(CHECKS), action="append", help="only this check; may be repeated")
    parts = parser.parse_args(argv).part or list(CHECKS)
    failed = [part for part in parts if not _passes(part)]
    print(f"\n{len(parts) - len(failed)} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


def _passes(part: str) -> bool:
    print(f"lint: {part}", flush=True)
    return CHECKS[part]()


def check() -> bool:
    """Returns whether `ruff check` reports no fault."""
    return _ruff("check", "--output-format=concise")


def formatting() -> bool:
    """Returns whether `ruff format` would change no file."""
    return _ruff("format", "--check")


def _ruff(*arguments: str) -> bool:
    return subprocess.run([sys.executable, "-m", "ruff", *arguments, "."], cwd=ROOT).returncode == 0


def types() -> bool:
    """Returns whether pyright finds no error. Prints pyright's messages with the paths of this checkout."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        lay_out(folder)
        command = [*PYRIGHT, "--outputjson", "--pythonpath", sys.executable, "--project", name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    try:
        found = json.loads(done.stdout)
    except json.JSONDecodeError:
        print(_NO_PYRIGHT, done.stdout + done.stderr, sep="\n", file=sys.stderr)
        return False
    print(*messages(found, folder), sep="\n")
    return done.returncode == 0


def lay_out(folder: Path) -> None:
    """Copies the sources into a folder as they are installed: the subpackages are inside `reshard/`."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("reshard", *OTHERS):
        _copy(ROOT / name, folder / name)
    for name in SUBPACKAGES:
        _copy(ROOT / name, folder / "reshard" / name)


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*.py"):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


def messages(found: dict, folder: Path) -> Iterator[str]:
    """Yields pyright's messages, one line each, then a line with their number.

    Args:
      found: the JSON that pyright wrote. folder: the folder with the copies of `lay_out`.
    """
    for each in found["generalDiagnostics"]:
        start = each["range"]["start"]
        where = f"{path_in_checkout(Path(each['file']), folder)}:{start['line'] + 1}:{start['character'] + 1}"
        text = each["message"].partition("\n")[0]
        yield f"{where}: {each['severity']}: {text} ({each.get('rule', 'syntax')})"
    summary = found["summary"]
    yield f"{summary['errorCount']} errors in {summary['filesAnalyzed']} files, {summary['timeInSec']:.0f} s"


def path_in_checkout(path: Path, folder: Path) -> Path:
    """Returns the path in the checkout, relative to its root, of a source that `lay_out` copied.

    Example:
      >>> path_in_checkout(Path("/x/reshard/passes/verify.py"), Path("/x")).as_posix()
      'passes/verify.py'
      >>> path_in_checkout(Path("/x/reshard/live/ways.py"), Path("/x")).as_posix()
      'reshard/live/ways.py'
    """
    parts = path.relative_to(folder).parts
    return Path(*parts[1:]) if parts[0] == "reshard" and parts[1] in SUBPACKAGES else Path(*parts)


CHECKS: dict[str, Callable[[], bool]] = {"check": check, "format": formatting, "types": types}

if __name__ == "__main__":
    sys.exit(main())
