# SPDX-License-Identifier: Apache-2.0
"""`reshard cache` prints a table of the files on disk, and clears the caches."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from reshard.synthesis.common import store
from reshard.synthesis.planner import plan_cache
from reshard.tools import reshard as tool

PROBLEM = ("--mesh", "x=4,y=2", "--type", "f32[16,16,16]", "--from", '[{"y"},{},{"x"}]', "--to", '[{},{"x","y"},{}]')


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("RESHARD_CACHE", raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield tmp_path / "cache"
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def filled(root) -> Path:
    """A cache with two plans of two versions and an answer of XLA, written in 2001 and 2002."""
    for number, (kind, size, time_s) in enumerate(
        (("plans", 1_000, 1_000_000_000), ("plans", 35, 1_030_000_000), ("xla", 9, 1_030_000_060))
    ):
        cache = replace(plan_cache.PLANS, kind=kind, packages=(), facts=lambda: number)
        cache.write(store.key("one"), b"." * size)
        (path,) = cache.folder().iterdir()
        os.utime(path, (time_s, time_s))
    return root


def run(capsys, *arguments: str, status: int = 0) -> str:
    try:
        assert tool.main(["cache", *arguments]) == status
    except SystemExit as end:
        assert end.code == status
    out, err = capsys.readouterr()
    assert bool(err) == bool(status)
    return out + err


def test_the_table(filled, capsys):
    assert run(capsys, "show") == (
        f"{filled}\n"
        "\n"
        "kind     entries  bytes  versions  oldest            newest            folder\n"
        "-------  -------  -----  --------  ----------------  ----------------  ---------\n"
        "plans          2  1,165         2  2001-09-09 01:46  2002-08-22 07:06  plans-*\n"
        "results        0      0         0  -                 -                 results-*\n"
        "sites          0      0         0  -                 -                 sites-*\n"
        "xla            1     74         1  2002-08-22 07:07  2002-08-22 07:07  xla-*\n"
        "total          3  1,239\n"
    )


def test_the_table_of_some_kinds(filled, capsys):
    lines = run(capsys, "show", "xla").splitlines()
    assert [line.split()[:3] for line in lines[4:]] == [["xla", "1", "74"], ["total", "1", "74"]]


def test_the_table_without_a_folder(root, capsys):
    assert run(capsys, "show").splitlines()[-1].split() == ["total", "0", "0"]
    assert not root.exists()


def test_the_table_says_that_the_caches_are_off(filled, capsys, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", "off")
    lines = run(capsys, "show").splitlines()
    assert lines[1] == "RESHARD_CACHE switches the caches off: nothing is read or written"
    assert lines[-1].split() == ["total", "3", "1,239"]


def test_clear_says_what_it_removes(filled, capsys):
    (filled / "notes.txt").write_text("mine")
    assert run(capsys, "clear") == (
        "plans: removed 2 entries of 2 versions, 1,165 bytes\n"
        "results: removed 0 entries of 0 versions, 0 bytes\n"
        "sites: removed 0 entries of 0 versions, 0 bytes\n"
        "xla: removed 1 entry of 1 version, 74 bytes\n"
    )
    assert [path.name for path in filled.iterdir()] == ["notes.txt"]


def test_clear_of_one_kind_leaves_the_others(filled, capsys):
    assert run(capsys, "clear", "plans") == "plans: removed 2 entries of 2 versions, 1,165 bytes\n"
    assert store.usage(filled, "plans").entries == 0 and store.usage(filled, "xla").entries == 1


def test_clear_without_a_folder_removes_nothing(root, capsys):
    assert run(capsys, "clear", "sites") == "sites: removed 0 entries of 0 versions, 0 bytes\n"
    assert not root.exists()


def test_clear_fails_if_entries_are_left(filled, capsys, monkeypatch):
    def denied(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", denied)
    said = run(capsys, "clear", status=1)
    assert said.endswith(
        f"reshard: error: cannot remove everything in {filled}; left are plans: 2 entries; xla: 1 entry\n"
    )


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((), "the following arguments are required: show|clear"),
        (("empty",), "invalid choice: 'empty'"),
        (("clear", "xls"), "unknown kind 'xls'; known: plans, results, sites, xla; did you mean xla?"),
    ],
)
def test_a_wrong_command_line_removes_nothing(arguments, said, filled, capsys):
    assert said in run(capsys, *arguments, status=2)
    assert store.usage(filled, "plans").entries == 2


def test_help_names_the_kinds_and_the_variables(capsys):
    with pytest.raises(SystemExit):
        tool.main(["cache", "--help"])
    said = capsys.readouterr().out
    for word in (*store.KINDS, "RESHARD_CACHE_DIR", "RESHARD_CACHE=off", "reshard cache clear"):
        assert word in said


def test_no_home_is_said(root, capsys, monkeypatch):
    for name in ("RESHARD_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    said = run(capsys, "show", status=1)
    assert said == "reshard: error: no folder for caches: there is no home directory; set RESHARD_CACHE_DIR\n"


def test_what_plan_keeps_is_shown(root, capsys, monkeypatch):
    monkeypatch.setattr(plan_cache, "LEAST_EDGES", 0)
    assert tool.main(["plan", *PROBLEM]) == 0
    capsys.readouterr()
    assert store.usage(root, "plans").entries > 0
    run(capsys, "clear")
    assert store.usage(root, "plans").entries == 0
