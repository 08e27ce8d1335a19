# SPDX-License-Identifier: Apache-2.0
"""The checks of the sources find faults, and name them by their paths in the checkout."""

import sys
import tomllib
from pathlib import Path

import pytest

from reshard.tools import lint

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Returns a small checkout that takes the place of this checkout."""
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 120\n")
    for name in ("reshard", *lint.SUBPACKAGES, *lint.OTHERS):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    return tmp_path


def test_sources_are_laid_out_as_they_are_installed(checkout, tmp_path_factory):
    (checkout / "synthesis" / "layouts").mkdir()
    (checkout / "synthesis" / "layouts" / "mesh.py").write_text("import reshard\n")
    folder = tmp_path_factory.mktemp("sources")
    lint.lay_out(folder)
    assert (folder / "reshard" / "synthesis" / "layouts" / "mesh.py").read_text() == "import reshard\n"
    assert (folder / "benchmarks" / "__init__.py").is_file() and not (folder / "synthesis").exists()


def test_messages_name_the_files_of_the_checkout():
    place = {"start": {"line": 6, "character": 2}}
    diagnostic = {"file": "/x/reshard/passes/verify.py", "range": place, "severity": "error", "message": "is None"}
    summary = {"errorCount": 1, "filesAnalyzed": 9, "timeInSec": 1.6}
    found = {"generalDiagnostics": [{**diagnostic, "rule": "reportReturnType"}], "summary": summary}
    first, last = lint.messages(found, Path("/x"))
    assert first.replace("\\", "/") == "passes/verify.py:7:3: error: is None (reportReturnType)"
    assert last == "1 errors in 9 files, 2 s"


def test_a_pyright_that_does_not_start_fails_and_says_why(checkout, monkeypatch, capfd):
    stub = checkout / "no_pyright.py"
    stub.write_text("import sys; print('npm: no network', file=sys.stderr); sys.exit(1)\n")
    monkeypatch.setattr(lint, "PYRIGHT", [sys.executable, str(stub)])
    assert lint.main(["--part=types"]) == 1
    said = capfd.readouterr()
    assert "0 passed, 1 failed, 0 skipped" in said.out
    assert "needs a network" in said.err and "npm: no network" in said.err


def test_pyright_checks_every_folder_that_is_installed():
    """A folder that is excluded would not be checked, and nobody would notice."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    assert "exclude" not in settings and "ignore" not in settings
    assert "reshard" in settings["include"]


def _place(name: str) -> Path:
    return lint.path_in_checkout(Path("/x", name), Path("/x"))


def test_versions_of_the_linters_are_pinned():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all("==" in each for each in extras["lint"])
