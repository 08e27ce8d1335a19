# SPDX-License-Identifier: Apache-2.0
"""A long redistribution reports its progress, and a short one prints nothing."""

import re
import time
from types import SimpleNamespace

import pytest

import reshard
from reshard.compiling import child_process
from reshard.dialect_utils.platform import progress as progress_of_work
from reshard.live import progress
from reshard.live.progress import shown
from reshard.passes.results.result_cache import Output

MIB = 1 << 20


def said(capsys, asked: bool | None, monkeypatch, step_s: float = 0.0) -> list[str]:
    now_s = iter(range(1000))
    monkeypatch.setattr(
        progress, "time", SimpleNamespace(monotonic=lambda: next(now_s) * step_s)
    )  # other threads keep their clock
    assert list(shown("abc", (MIB, 2 * MIB, MIB), "redistribute", asked)) == ["a", "b", "c"]
    return capsys.readouterr().err.splitlines()


def test_short_work_says_nothing(capsys, monkeypatch):
    assert said(capsys, None, monkeypatch) == []


def test_long_work_says_how_far_it_is(capsys, monkeypatch):
    assert said(capsys, None, monkeypatch, 20.0) == [
        "redistribute: 1.0 of 4.0 MiB",
        "redistribute: 3.0 of 4.0 MiB",
        "redistribute: 4.0 of 4.0 MiB",
    ]


def test_progress_may_be_asked_for_or_forbidden(capsys, monkeypatch):
    assert said(capsys, True, monkeypatch)[-1] == "redistribute: 4.0 of 4.0 MiB"
    assert said(capsys, False, monkeypatch, 20.0) == []


def test_a_terminal_has_a_bar(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    display = progress._display("redistribute", 8)
    display(3)
    assert display.bar.tasks[0].completed == 3 and display.bar.tasks[0].total == 8
    display.close()


@pytest.mark.parametrize("asked, is_told", [("on", True), ("auto", False), ("off", False)])
def test_optimize_says_what_it_is_at(asked, is_told, capsys, monkeypatch):
    def compute(*_) -> Output:
        progress_of_work.at("plan-sites: judging op", 1, 2)
        time.sleep(1.0)
        return Output(b"", True)

    monkeypatch.setattr(progress_of_work, "QUIET_S", 0.3)
    monkeypatch.setattr(child_process, "output", compute)
    monkeypatch.setenv("RESHARD_CACHE", "off")
    reshard.optimize("func.func @main() { return }", progress=asked)
    told = re.sub(r"\d+ s$", "N s", capsys.readouterr().err, flags=re.MULTILINE)
    assert told == ("reshard: module: plan-sites: judging op 1 of 2, N s\n" if is_told else "")
