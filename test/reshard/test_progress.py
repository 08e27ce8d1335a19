# SPDX-License-Identifier: Apache-2.0
"""What a long redistribution says, and what a short one does not."""

from types import SimpleNamespace

import pytest

from reshard import progress
from reshard.progress import shown

MIB = 1 << 20


def said(capsys, asked: bool | None, monkeypatch, step_s: float = 0.0) -> list[str]:
    now_s = iter(range(1000))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now_s) * step_s))  # other threads keep theirs
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
