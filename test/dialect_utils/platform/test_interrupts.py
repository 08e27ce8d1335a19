# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while MLIR calls Python back raises KeyboardInterrupt; it is not lost and becomes no other error."""

import signal

import pytest

from reshard.dialect_utils.ir import ops
from reshard.dialect_utils.ir.diagnostics import Collector
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.platform.interrupts import DeferredInterrupts
from reshard.passes import strip_findings
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("default_signals")
MODULE = (
    "func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> { %0 = stablehlo.tanh %a : tensor<8xf32> return %0 : "
    "tensor<8xf32> }"
)


def test_a_signal_waits_for_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with DeferredInterrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")
    assert done == ["the rest"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_it_is_let_through_it_raises_at_once():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with DeferredInterrupts() as held:
            signal.raise_signal(signal.SIGINT)
            done.append("before")
            with held.let_through():
                done.append("after")
    assert done == ["before"]


def test_the_handler_of_a_time_limit_waits_too():
    came = []
    before = signal.signal(signal.SIGALRM, lambda *_: came.append("late"))
    try:
        with DeferredInterrupts():
            signal.raise_signal(signal.SIGALRM)
            assert not came
        assert came == ["late"]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_walk_is_interrupted_by_ctrl_c_and_not_by_an_error_of_ours(monkeypatch):
    """The bindings turn an exception of a visitor into a RuntimeError; Ctrl-C arrives at the visitor's start."""
    module = ir.Module.parse(MODULE, make_context())
    enter = DeferredInterrupts.__enter__

    def enter_and_interrupt(held):
        enter(held)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(DeferredInterrupts, "__enter__", enter_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        ops.ops_in(module.operation)


def test_a_pass_that_is_interrupted_ends_the_pipeline(monkeypatch):
    """The exception does not pass through C++ code, which cannot be left by an exception."""
    monkeypatch.setattr(strip_findings.StripFindingsPass, "run", lambda *_: signal.raise_signal(signal.SIGINT))
    module = ir.Module.parse(MODULE, make_context())
    session = Session()
    with pytest.raises(KeyboardInterrupt) as interrupt:
        Pipeline.parse("builtin.module(strip-findings)").run(module, session)
    assert interrupt.value.__notes__ == ["in pass strip-findings"] and session.running.element is None


def test_a_message_of_mlir_is_not_lost_by_ctrl_c(monkeypatch):
    collector, context = Collector(), make_context()
    monkeypatch.setattr(collector, "_handle", _interrupted_before(collector._handle))
    with pytest.raises(KeyboardInterrupt), collector.listening(context), DeferredInterrupts():
        ir.Location.unknown(context).emit_error("said by MLIR")
    assert [each.message for each in collector.diagnostics] == ["said by MLIR"]


def _interrupted_before(handle):
    def handle_late(diagnostic) -> bool:
        signal.raise_signal(signal.SIGINT)
        return handle(diagnostic)

    return handle_late
