# SPDX-License-Identifier: Apache-2.0
"""Long work reports its progress on stderr, and short work prints nothing."""

import io
import sys
import threading
import time

import pytest

from reshard.dialect_utils.platform import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def hurry(monkeypatch):
    """Sets the waiting times of the progress lines to almost zero."""
    for name, seconds in (("QUIET_S", 0.0), ("REWRITTEN_EVERY_S", 0.001), ("LINE_EVERY_S", 0.001)):
        monkeypatch.setattr(progress, name, seconds)


def work(until, timeout_s: float = 10.0) -> None:
    """Works on op 2 of 3 until `until()` is true or the time is over."""
    progress.at("judging op", 2, 3)
    deadline_s = time.monotonic() + timeout_s
    with progress.waiting_for("XLA compiles"):
        while not until() and time.monotonic() < deadline_s:
            time.sleep(0.001)


def written(monkeypatch, stream, mode: str, mark: str = "judging") -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.shown("in.mlir", mode):
        work(lambda: mark in stream.getvalue(), 10.0 if mark else 0.05)
    return stream.getvalue()


def test_elsewhere_than_on_a_terminal_there_are_lines(hurry, monkeypatch):
    lines = written(monkeypatch, io.StringIO(), "on").splitlines()
    assert "in.mlir: judging op 2 of 3 (XLA compiles), 0 s" in lines and "\r" not in "".join(lines)


def test_on_a_terminal_one_line_is_rewritten_and_erased_in_the_end(hurry, monkeypatch):
    text = written(monkeypatch, Terminal(), "auto")
    assert "\r\033[Kin.mlir: judging op 2 of 3 (XLA compiles), 0 s" in text
    assert text.endswith("\r\033[K") and "\n" not in text


def test_of_a_long_line_the_end_is_shown():
    shown = progress._fitting("a" * 100 + ", 12 s")
    assert len(shown) < 80 and shown.startswith("..a") and shown.endswith("a, 12 s")


@pytest.mark.parametrize("stream, mode", [(io.StringIO, "auto"), (io.StringIO, "off"), (Terminal, "off")])
def test_nothing_is_said_where_nobody_watches_or_it_is_off(stream, mode, hurry, monkeypatch):
    assert written(monkeypatch, stream(), mode, mark="") == ""


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_what_is_quick_says_nothing(stream, monkeypatch):
    assert written(monkeypatch, stream(), "on", mark="") == ""


def test_no_thread_is_left_and_another_thread_tells_of_itself_alone(hurry, monkeypatch):
    stream, before = io.StringIO(), threading.active_count()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.shown("in.mlir", "on"):
        other = threading.Thread(target=lambda: progress.at("something else"))
        other.start()
        other.join()
        work(lambda: "judging" in stream.getvalue())
    assert threading.active_count() == before and "something else" not in stream.getvalue()


def test_work_inside_of_work_is_told_once(hurry, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.shown("outer", "on"), progress.shown("inner", "on"):
        work(lambda: "judging" in stream.getvalue())
    assert "inner" not in stream.getvalue()


def test_a_reader_that_is_gone_stops_nothing(hurry, monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.shown("in.mlir", "on"):
        stream.close()
        progress.at("writing to nobody")
        time.sleep(0.01)


def test_what_a_thread_is_at_is_handed_on_to_another_process(hurry):
    told = []
    with progress.forwarded(told.append):
        work(lambda: "judging op 2 of 3 (XLA compiles)" in told)
    assert told[-1] == "judging op 2 of 3 (XLA compiles)"


def test_nothing_is_handed_on_of_what_is_over_soon():
    told = []
    with progress.forwarded(told.append):
        progress.at("judging op", 1, 1)
    assert not told
