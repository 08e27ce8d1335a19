# SPDX-License-Identifier: Apache-2.0
"""Modules in the child process: same results, same errors; if the child dies or hangs, the caller continues."""

import signal
import textwrap

import pytest

import reshard
from reshard.compiling import child_process, optimizing
from reshard.dialect_utils.ir.diagnostics import DiagnosedError

NOTHING = "func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }"
ROTATED = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.tanh %a : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
"""
SORTED = ROTATED.replace("stablehlo.tanh %a", "stablehlo.custom_call @unknown(%a)").replace(
    ": tensor<8x8xf32>\n  return", ": (tensor<8x8xf32>) -> tensor<8x8xf32>\n  return"
)

# A worker that fails within a module with one of these names, as MLIR or an error of ours would make it fail.
ODD_WORKER = """
import os, signal, time
from reshard.compiling import child_process_worker, optimizing

answered = []

recorded = optimizing.recorded_output

def odd(source, settings, name, enter):
    enter("running the passes", None)
    if b"@killed" in source:
        os.write(2, b"LLVM ERROR: made up\\n")
        os.abort()
    if b"@faulty" in source:
        raise KeyError("made up")
    if b"@endless" in source:
        time.sleep(60)
    if b"@spent" in source and answered:  # what earlier modules left takes the time of this one
        os.kill(os.getpid(), signal.SIGXCPU)
    if b"@long" in source:
        os.kill(os.getpid(), signal.SIGXCPU)
    answered.append(name)
    return recorded(source, settings, name, enter)

optimizing.recorded_output = odd
child_process_worker.main()
"""


@pytest.fixture
def odd_worker(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(ODD_WORKER))
    monkeypatch.setenv("RESHARD_CACHE", "off")
    monkeypatch.setattr(child_process, "_WORKER", (str(script),))
    child_process._child().stop()
    yield
    child_process._child().stop()


def named(name: str) -> str:
    return NOTHING.replace("@main", f"@{name}")


def test_a_death_is_an_error_and_the_next_module_has_a_new_child(odd_worker):
    with pytest.raises(DiagnosedError) as raised:
        reshard.optimize(named("killed"))
    error, fatal, fault = str(raised.value).splitlines()
    assert error == "<module>: error: running the passes ended the process that it ran in (SIGABRT)"
    assert fatal == "note: LLVM ERROR: made up"
    assert fault.startswith(
        "note: this is a fault of reshard or of the MLIR in jaxlib; the module can be compiled as it came; "
    )
    assert not reshard.optimize(NOTHING).is_rewritten


def test_a_fault_in_the_child_is_raised_with_its_traceback(odd_worker):
    with pytest.raises(KeyError, match="made up") as raised:
        reshard.explain(named("faulty"))
    assert "in odd" in raised.value.__notes__[0]


def test_ctrl_c_ends_the_child_and_not_the_next_module(odd_worker):
    assert reshard.explain(NOTHING)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            reshard.explain(named("endless"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert child_process._child()._process is None
    assert reshard.explain(NOTHING)


def in_process(monkeypatch) -> None:
    monkeypatch.setattr(child_process, "output", lambda *given: None)


def test_a_module_becomes_the_same_in_the_child(monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", "off")
    apart = reshard.optimize(ROTATED, emit="local")
    in_process(monkeypatch)
    here = reshard.optimize(ROTATED, emit="local")
    assert apart.is_rewritten
    assert (apart.module, apart.report.to_dict()) == (here.module, here.report.to_dict())
    assert str(apart.report) == str(here.report)


@pytest.mark.parametrize("text", [SORTED, "func.func @main(", "this is no module"])
def test_an_error_is_the_same_from_the_child(text, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", "off")
    with pytest.raises(DiagnosedError) as apart:
        reshard.optimize(text, emit="local")
    in_process(monkeypatch)
    with pytest.raises(DiagnosedError) as here:
        reshard.optimize(text, emit="local")
    assert apart.value.diagnostics == here.value.diagnostics


def test_damaged_bytecode_does_not_end_the_caller(monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", "off")
    from reshard.dialect_utils.platform.bindings import ir, make_context
    from reshard.dialect_utils.platform.compat import bytecode

    with make_context() as context, ir.Location.unknown(context):
        whole = bytecode(ir.Module.parse(ROTATED))
    outcomes = []
    for at in range(40, len(whole), 60):
        damaged = bytearray(whole)
        damaged[at] ^= 0x7F
        try:
            reshard.optimize(bytes(damaged), emit="local")
            outcomes.append("read")
        except DiagnosedError:
            outcomes.append("refused")
    assert "refused" in outcomes


def test_what_jax_lowers_is_worked_on_here(monkeypatch):
    import jax

    asked = []
    monkeypatch.setattr(child_process, "output", lambda *given: asked.append(given))
    monkeypatch.setenv("RESHARD_CACHE", "off")
    assert not reshard.optimize(jax.jit(jax.numpy.sin).lower(1.0)).is_rewritten
    assert not asked


@pytest.mark.slow
def test_what_jax_lowers_with_partial_sums_goes_to_the_child(monkeypatch):
    from reshard.dialect_utils.platform.bindings import ir, make_context
    from reshard.dialect_utils.platform.compat import bytecode

    asked = []
    output = child_process.output
    monkeypatch.setattr(child_process, "output", lambda *given: asked.append(given) or output(*given))
    monkeypatch.setenv("RESHARD_CACHE", "off")
    sums = ROTATED.replace('[{"x"}, {}]>', '[{"x"}, {}], unreduced={"y"}>')
    with make_context() as context, ir.Location.unknown(context):
        source = bytecode(ir.Module.parse(sums))
    found = optimizing.optimized_module(source, optimizing.resolved({"check": False}, {}))
    assert asked and not found.is_rewritten
    assert found.report.to_dict() == reshard.optimize(sums, check=False).report.to_dict()


def test_the_child_sees_where_its_parent_keeps_results(tmp_path, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", "off")
    assert reshard.explain(NOTHING)
    first = child_process._child()._process
    assert reshard.explain(NOTHING)
    assert child_process._child()._process is first
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path))
    assert reshard.explain(NOTHING)
    assert child_process._child()._process is not first


def test_without_child_processes_it_is_done_here(monkeypatch):
    def refuse(*given, **named):
        raise OSError("no processes here")

    child_process._child().stop()
    monkeypatch.setenv("RESHARD_CACHE", "off")
    monkeypatch.setattr(child_process.subprocess, "Popen", refuse)
    assert not optimizing.optimize(NOTHING).is_rewritten


@pytest.mark.slow
def test_a_child_that_runs_out_of_time_after_other_modules_is_replaced_once(odd_worker):
    reshard.optimize(named("first"))
    reshard.optimize(named("spent"))
    for _ in range(2):  # in a child that has answered before, and in a new one
        with pytest.raises(DiagnosedError, match="running the passes took too long"):
            reshard.optimize(named("long"))
    reshard.optimize(named("last"))
