# SPDX-License-Identifier: Apache-2.0
"""A wheel holds everything that the commands need; they run from any folder."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS = ("synthesis", "dialect_utils", "passes", "tools")
PLAN = [
    "plan",
    "--mesh",
    "x=8",
    "--type",
    "f32[8,8]",
    "--from",
    '[{"x"}, {}]',
    "--to",
    '[{}, {"x"}]',
    "--topology",
    "h100",
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Returns a folder with the contents of this checkout's wheel; a real wheel would need more than setuptools."""
    pytest.importorskip("setuptools")
    checkout, site = (tmp_path_factory.mktemp(name) for name in ("checkout", "site"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for name in ("reshard", *FOLDERS):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-c", "import setuptools; setuptools.setup()", "--quiet", "build", f"--build-lib={site}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(build, cwd=checkout, env=environment, check=True, timeout=300)
    return site


def test_every_folder_with_modules_is_a_package_and_no_other():
    folders = {path.parent for name in FOLDERS for path in (ROOT / name).rglob("*.py")}
    named = {".".join(["reshard", *path.relative_to(ROOT).parts]) for path in folders}
    named |= {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "reshard").rglob("*.py")}
    packages = SETTINGS["packages"]
    assert sorted(packages) == sorted(named) and len(packages) == len(set(packages))


def test_every_preset_is_data_of_a_package():
    data = {
        path
        for package, patterns in SETTINGS["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    presets = {path for name in ("reshard", *FOLDERS) for path in (ROOT / name).rglob("*.toml")}
    assert presets and presets <= data


@pytest.mark.slow
def test_a_wheel_holds_every_module_and_preset(installed):
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".toml")]
    assert [path for path in files if not (installed / "reshard" / path.relative_to(ROOT)).is_file()] == []
    assert [
        path for path in (ROOT / "reshard").rglob("*.py") if not (installed / path.relative_to(ROOT)).is_file()
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "module, arguments, said",
    [
        ("reshard", PLAN, "chain: all_to_all x: dim 0 -> 1"),
        ("reshard", ["explain", *PLAN[1:], "--html=-"], "</html>"),
        ("reshard_opt", ["--version"], "reshard 0."),
        ("reshard_opt", [str(ROOT / "docs/tiny.mlir")], "stablehlo.all_to_all"),
    ],
)
def test_commands_of_a_wheel_run_in_another_folder(installed, tmp_path, module, arguments, said):
    program = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); from reshard.tools.{module} import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(installed), "RESHARD_CACHE": "off"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and said in done.stdout, done.stderr
