# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md names the wings of the source tree, and the functions that a run calls for one site."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reshard.tools.docs import import_graph

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STATION = re.compile(r"^\d+\. \[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)", re.MULTILINE)
MOST_STATIONS = 15

# Runs reshard-opt and records every call of a named function; a forked child, which may do the work, records them too.
NOTING = """
import os, sys
noted, root, wanted = sys.argv[1], sys.argv[2], dict(pair.split("=") for pair in sys.argv[3].split(","))
noted = os.open(noted, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and wanted.get(code.co_qualname) == os.path.relpath(code.co_filename, root):
        os.write(noted, f"{code.co_qualname}\\n".encode())
from reshard.tools import reshard_opt
sys.argv = ["reshard-opt", "docs/tiny.mlir", "-o", os.devnull]
sys.setprofile(note)
sys.exit(reshard_opt.main())
"""


def stations() -> list[tuple[str, str]]:
    """Returns the function and the file of each station, in the order of the page."""
    return STATION.findall(PAGE.partition("## The same way, function by function")[2].partition("\n## ")[0])


def functions_of(path: str) -> set[str]:
    """Returns the qualified names of the functions and methods of a file."""
    body = ast.parse((ROOT / path).read_text()).body
    methods = {
        f"{owner.name}.{each.name}"
        for owner in body
        if isinstance(owner, ast.ClassDef)
        for each in owner.body
        if isinstance(each, ast.FunctionDef)
    }
    return methods | {each.name for each in body if isinstance(each, ast.FunctionDef)}


def test_the_way_has_few_stations_and_each_is_a_function_of_its_file():
    assert 10 <= len(stations()) <= MOST_STATIONS
    missing = [f"{path} has no {name}" for name, path in stations() if name not in functions_of(path)]
    assert not missing, "the walk in docs/architecture.md names functions that moved or were renamed"


@pytest.mark.slow
def test_a_run_comes_by_all_stations_in_their_order(tmp_path):
    noted = tmp_path / "noted"
    wanted = ",".join(f"{name}={path}" for name, path in stations())
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "RESHARD_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", NOTING, str(noted), str(ROOT), wanted]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    calls = iter(noted.read_text().split())
    for name, path in stations():
        assert name in calls, f"the run does not come by {name} of {path} after the stations before it"


def test_every_wing_has_a_row_in_the_order_of_its_package():
    rows = re.findall(r"^\| `([\w/]+)` \|", PAGE, re.MULTILINE)
    names = [
        package if wing == import_graph.OWN else f"{package}/{wing}"
        for package in import_graph.PACKAGES
        for wing in import_graph.wings()[package]
        if (package, wing) != ("reshard", import_graph.OWN)  # it has no other modules than its wings
    ]
    assert rows == names
