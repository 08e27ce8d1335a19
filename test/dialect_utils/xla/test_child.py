# SPDX-License-Identifier: Apache-2.0
"""The child process with stock XLA: its answers; if the child dies, this process continues."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import numpy as np
import pytest

from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.child import CompileRequest, Costs, KindCount, XlaChild
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.synthesis.common import store
from reshard.tools.docs import import_graph
from reshard.tools.docs.import_graph import Module


def pair(mesh: str, shape: tuple[int, ...], source: str, target: str, dtype: str = "f32") -> str:
    tensor = f"tensor<{'x'.join(map(str, shape))}x{dtype}>"
    sharding = "{{sdy.sharding = #sdy.sharding<@mesh, {}>}}".format
    return f"""module @pair {{
  sdy.mesh @mesh = <{mesh}>
  func.func public @main(%arg0: {tensor} {sharding(source)}) -> ({tensor} {sharding(target)}) {{
    return %arg0 : {tensor}
  }}
}}
"""


ISSUE_21562 = pair('["x"=4, "y"=2]', (16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]')
GATHER = pair('["x"=4]', (8, 6), '[{"x"}, {}]', "[{}, {}]", dtype="bf16")
REVERSED_IN_A_LOOP = """module @loop {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, tensor<16x8xf32>
      cond {
        %limit = stablehlo.constant dense<7> : tensor<i32>
        %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %1 : tensor<i1>
      } do {
        %step = stablehlo.constant dense<2> : tensor<i32>
        %1 = stablehlo.add %i, %step : tensor<i32>
        %2 = sdy.sharding_constraint %a <@mesh, [{"x"}, {}]> : tensor<16x8xf32>
        %3 = stablehlo.reverse %2, dims = [0] : tensor<16x8xf32>
        %4 = stablehlo.tanh %3 : tensor<16x8xf32>
        stablehlo.return %1, %4 : tensor<i32>, tensor<16x8xf32>
      }
    return %0#1 : tensor<16x8xf32>
  }
}
"""


@pytest.fixture(scope="module")
def child():
    with XlaChild(uses_cache=False, num_devices=8) as child:
        yield child


@pytest.fixture
def caching_child(child, tmp_path, monkeypatch):
    """Returns a child with its own cache; the child of this module answers the questions that are not in the cache."""
    caching = XlaChild(cache_dir=tmp_path, num_devices=8)
    monkeypatch.setattr(caching, "_ask", child._ask)
    return caching


class TestCompile:
    def test_traffic_of_a_gather_in_the_dtype_of_the_program(self, child):
        compiled = child.compile(GATHER, 4)
        assert compiled.is_ok, compiled.message
        assert compiled.bytes_received == compiled.bytes_sent == 3 * (2 * 6 * 2)
        assert compiled.collectives == (KindCount("all_gather", 1, 1),)
        assert compiled.largest_collective_tile_bytes == 8 * 6 * 2
        assert (compiled.argument_bytes, compiled.output_bytes) == (24, 96)

    def test_full_rematerialization_of_issue_21562_is_seen(self, child):
        compiled = child.compile(ISSUE_21562, 8)
        assert compiled.bytes_received == 7 * (16**3 * 4 // 8)
        assert compiled.largest_collective_tile_bytes == 16**3 * 4
        assert compiled.rematerializations == 1
        assert compiled.temp_bytes > 16**3 * 4
        assert compiled.costs == Costs(7 * (16**3 * 4 // 8), 16**3 * 4, compiled.temp_bytes)
        assert compiled.peak_bytes == compiled.argument_bytes + compiled.output_bytes + compiled.temp_bytes

    def test_decided_shardings_are_told(self, child):
        compiled = child.compile(ISSUE_21562, 8)
        assert compiled.input_shardings == ("{devices=[2,1,4]x1 0,2,4,6,1,3,5,7}",)
        assert compiled.output_shardings == ("{devices=[1,8,1]x1 <=[8]}",)

    def test_open_shardings_are_for_xla_to_decide(self, child):
        text = GATHER.replace(
            ") -> (tensor<8x6xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})", ") -> tensor<8x6xbf16>"
        )
        compiled = child.compile(text, 4)
        assert compiled.output_shardings == compiled.input_shardings == ("{devices=[4,1]x1 <=[4]}",)
        assert compiled.bytes_received == 0

    def test_equal_placements_have_equal_texts(self, child):
        split = child.compile(pair('["a"=2, "b"=2]', (8,), '[{"a"}]', '[{"a", "b"}]'), 4)
        whole = child.compile(pair('["x"=4]', (8,), '[{"x":(1)2}]', '[{"x"}]'), 4)
        assert split.input_shardings == whole.input_shardings == ("{devices=[2]x2 <=[4]}",)
        assert split.output_shardings == whole.output_shardings

    def test_loops_multiply_traffic(self, child):
        compiled = child.compile(REVERSED_IN_A_LOOP, 4)
        assert compiled.is_ok, compiled.message
        assert compiled.unknown_trip_counts == ()
        assert compiled.collectives
        assert all(count.runs == 4 * count.ops for count in compiled.collectives)  # 0, 2, 4, 6

    def test_texts_on_request(self, child):
        assert child.compile(GATHER, 4).hlo_text is None
        compiled = child.compile(GATHER, 4, keeps_hlo=True, keeps_propagated=True)
        assert "all-gather" in compiled.hlo_text
        assert "sdy.mesh @mesh" in compiled.propagated_text

    def test_one_device(self, child):
        compiled = child.compile("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }", 1)
        assert (compiled.status, compiled.bytes_received) == ("ok", 0)

    def test_bytecode_is_the_same_module(self, child):
        from reshard.dialect_utils.platform.bindings import ir, make_context

        bytecode = io.BytesIO()
        with make_context(), ir.Location.unknown():
            ir.Module.parse(GATHER).operation.write_bytecode(bytecode)
        assert child.compile(bytecode.getvalue(), 4).bytes_received == child.compile(GATHER, 4).bytes_received

    def test_portable_artifact_is_the_same_module(self, child):
        from reshard.dialect_utils.platform.bindings import ir, make_context, stablehlo

        text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
        with make_context(), ir.Location.unknown():
            version = stablehlo.get_current_version()
            artifact = stablehlo.serialize_portable_artifact(ir.Module.parse(text), version)
        assert child.compile(artifact, 1).output_bytes == 16

    def test_a_module_that_does_not_parse_is_an_error(self, child):
        compiled = child.compile("module {", 4)
        assert compiled.status == "error"
        assert compiled.bytes_received is None and compiled.peak_bytes is None
        assert "parse" in compiled.message
        with pytest.raises(AssertionError):
            _ = compiled.costs

    def test_too_few_devices_for_the_mesh_is_an_error(self, child):
        assert child.compile(GATHER, 2).status == "error"

    def test_cpu_devices_are_the_target_that_need_not_be_named(self, child):
        named, unnamed = child.compile(GATHER, 4, target=Target.parse("cpu:4")), child.compile(GATHER, 4)
        assert replace(named, compile_seconds=0) == replace(unnamed, compile_seconds=0)

    def test_a_target_that_cannot_be_is_told_apart_from_a_module_that_cannot(self, child):
        """No TPU slice has this shape; without libtpu no TPU slice is available at all."""
        compiled = child.compile(GATHER, 9, target=Target.parse("tpu:v5e:3x3"))
        assert compiled.status == "target"
        assert compiled.message.startswith("the compiler refuses tpu:v5e:3x3: ") and "\n" not in compiled.message

    def test_an_error_leaves_the_child_as_it_was(self, child):
        modules = [(GATHER, 4), ("no module", 4), (ISSUE_21562, 8)]
        assert [child.compile(*module).status for module in modules] == ["ok", "error", "ok"]

    @pytest.mark.slow
    def test_more_devices_than_the_child_has_restart_it(self):
        with XlaChild(uses_cache=False, num_devices=2) as child:
            assert child.compile(pair('["x"=2]', (4,), '[{"x"}]', "[{}]"), 2).is_ok
            assert child.compile(ISSUE_21562, 8).is_ok
            assert child.starts == 2


class TestRun:
    def test_outputs_are_global_arrays(self, child):
        x = np.arange(16**3, dtype=np.float32).reshape(16, 16, 16)
        ran = child.run(ISSUE_21562, [x], 8, repeats=3)
        assert ran.status == "ok", ran.message
        assert np.array_equal(ran.outputs[0], x)
        assert 0 < ran.median_seconds < 60

    def test_seeded_inputs_are_the_same_each_time(self, child):
        first, second = (child.run(GATHER, None, 4, seed=3).outputs[0] for _ in range(2))
        assert first.dtype.name == "bfloat16"
        assert np.array_equal(first, second)

    def test_several_results_of_wide_types(self, child):
        text = """func.func @main(%x: tensor<4xi64>, %y: tensor<2xf64>, %b: tensor<3xi1>)
          -> (tensor<4xi64>, tensor<2xf64>, tensor<3xi1>) {
          return %x, %y, %b : tensor<4xi64>, tensor<2xf64>, tensor<3xi1> }"""
        inputs = [np.arange(4) + 2**40, np.array([0.1, 0.2]), np.array([True, False, True])]
        outputs = child.run(text, inputs, 1).outputs
        assert [o.dtype for o in outputs] == [np.int64, np.float64, bool]
        assert all(np.array_equal(o, i) for o, i in zip(outputs, inputs, strict=True))

    def test_wrong_number_of_inputs_is_an_error(self, child):
        assert child.run(GATHER, [], 4).status == "error"


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux only")
class TestForesight:
    GATHERS = [pair('["x"=4]', (8, size), '[{"x"}, {}]', "[{}, {}]") for size in range(1, 12)]

    @pytest.mark.slow
    def test_many_small_modules_have_the_answers_that_each_has_alone(self, child):
        broken = "func.func @main() { stablehlo.not_an_op }"
        requests = [CompileRequest(text, 4, has_final=True) for text in (*self.GATHERS, ISSUE_21562, broken)]
        requests[-2] = replace(requests[-2], num_devices=8)
        alone = [child.compile(each.module, each.num_devices, has_final=True) for each in requests]
        child.foresee(requests)
        asked = child._questions
        together = [child.compile(each.module, each.num_devices, has_final=True) for each in requests]
        assert child._questions == asked and not child._foreseen
        assert [replace(each, compile_seconds=0) for each in together] == [
            replace(each, compile_seconds=0) for each in alone
        ]
        assert together[-2].rematerializations and together[-1].status == "error"

    def test_few_modules_are_not_worth_it(self, child):
        asked = child._questions
        child.foresee([CompileRequest(text, 4) for text in self.GATHERS[:2]])
        assert child._questions == asked

    def test_an_abort_takes_only_answers_that_were_not_there_yet(self, child):
        started = child.starts
        requests = [asdict(CompileRequest(text, 4)) for text in self.GATHERS]
        requests[4] |= {"aborts": True}
        replies = child._ask({"op": "compile_all", "requests": requests}, 4, timeout_s=60)["replies"]
        missing = [number for number, reply in enumerate(replies) if reply is None]
        assert 4 in missing and set(missing) < set(range(len(requests)))
        assert all(each["status"] == "ok" for each in filter(None, replies))
        assert child.compile(GATHER, 4).is_ok and child.starts == started

    def test_what_no_fork_answers_is_compiled_alone_with_what_xla_says_of_it(self, child):
        """Few small modules beside large ones: XLA's warnings are counted for each of them."""
        texts = [ISSUE_21562 + "// a comment\n" * count for count in (0, 2000, 2001)]
        child.foresee([CompileRequest(text, 8) for text in texts])
        assert len(child._foreseen) == 2
        assert [child.compile(text, 8).rematerializations for text in texts] == [1] * 3

    def test_answers_that_do_not_last_are_not_foreseen(self, child, monkeypatch):
        replies = [{"status": "abort", "exit_code": -signal.SIGKILL, "said": ""}] * len(self.GATHERS)
        monkeypatch.setattr(child, "_ask", lambda *_: {"status": "ok", "replies": replies})
        passing = child.passing_answers
        child.foresee([CompileRequest(text, 4) for text in self.GATHERS])
        assert not child._foreseen and child.passing_answers == passing

    def test_after_a_hang_nothing_more_is_foreseen(self, monkeypatch):
        child, asked = XlaChild(uses_cache=False, num_devices=8), []
        monkeypatch.setattr(child, "_ask", lambda *each: asked.append(each) or {"status": "hang", "message": ""})
        for _ in range(2):
            child.foresee([CompileRequest(text, 4) for text in self.GATHERS])
        assert len(asked) == 1 and not child._foreseen

    LARGE = [ISSUE_21562 + "// a comment\n" * count for count in (2000, 2001)]

    def test_what_is_begun_is_answered_meanwhile(self, child):
        alone = [child.compile(text, 8) for text in self.LARGE]
        child.begin([CompileRequest(text, 8) for text in self.LARGE])
        asked = child._questions
        assert child._begun and child.compile(GATHER, 4).is_ok  # another question, in between
        assert child._questions == asked + 1 and len(child._foreseen) == 2
        meanwhile = [child.compile(text, 8) for text in self.LARGE]
        assert child._questions == asked + 1 and not child._foreseen
        assert [replace(each, compile_seconds=0) for each in meanwhile] == [
            replace(each, compile_seconds=0) for each in alone
        ]

    def test_what_is_begun_behind_other_modules_waits_for_none_of_them(self):
        """Not even for the child to start."""
        with XlaChild(uses_cache=False, num_devices=8) as child:
            for text in self.LARGE:
                child.begin([CompileRequest(text, 8)])
                child.begin([CompileRequest(text, 8)])  # begun already
            assert [len(each.requests) for each in child._begun] == [1, 1] and child._greeting is not None
            assert child.compile(self.LARGE[0], 8).is_ok and child.compile(self.LARGE[1], 8).is_ok
            assert child._questions == 3 and child.starts == 1  # the greeting is one of them

    def test_a_child_with_more_devices_is_started_for_what_is_begun(self):
        with XlaChild(uses_cache=False, num_devices=8) as child:
            child.begin([CompileRequest(self.LARGE[0], 8)])
            child.begin([CompileRequest(self.LARGE[1], 16)])
            assert len(child._foreseen) == 1 and len(child._begun) == 1 and child.starts == 2

    def test_the_answer_to_what_is_begun_is_waited_for(self, child):
        child.begin([CompileRequest(self.LARGE[0], 8)])
        asked = child._questions
        assert child.compile(self.LARGE[0], 8).is_ok and child._questions == asked and not child._begun
        child.begin([CompileRequest(self.LARGE[1], 8)])
        child.prepare(4)  # it runs with enough devices, though it works
        child.begin([CompileRequest(self.LARGE[0], 8)])
        assert all(child.compile(text, 8).is_ok for text in self.LARGE) and child._questions == asked + 2

    def test_small_modules_are_not_begun(self, child):
        asked = child._questions
        child.begin([CompileRequest(self.LARGE[0], 8), CompileRequest(GATHER, 4)])
        assert child._questions == asked and not child._begun

    @pytest.mark.slow
    def test_a_child_that_ends_meanwhile_is_started_again(self):
        with XlaChild(uses_cache=False, num_devices=8) as child:
            child.begin([CompileRequest(self.LARGE[0], 8)])
            child._process.kill()
            assert child.compile(self.LARGE[0], 8).is_ok and child.starts == 2
            child.begin([CompileRequest(self.LARGE[1], 8)])
            child._process.kill()
            child._process.wait()
            assert child.compile(GATHER, 4).is_ok and child.starts == 3

    @pytest.mark.slow
    def test_what_takes_too_long_meanwhile_is_compiled_alone(self, monkeypatch):
        monkeypatch.setattr(xla_child, "_GRACE_S", 0.0)
        with XlaChild(uses_cache=False, num_devices=8) as child:
            child.begin([CompileRequest(self.LARGE[0], 8)], timeout_s=0.0)
            assert child.compile(self.LARGE[0], 8).is_ok and child.starts == 2
            child.begin([CompileRequest(self.LARGE[1], 8)])
            assert not child._begun  # nothing more is foreseen

    def test_propagation_alone_says_the_same_as_a_whole_compilation(self, child):
        whole, alone = child.compile(ISSUE_21562, 8, keeps_propagated=True), child.propagate(ISSUE_21562, 8)
        assert alone.is_ok and alone.propagated_text == whole.propagated_text
        assert child.propagate("func.func @main() { stablehlo.not_an_op }", 8).status == "error"


class TestDeaths:
    @pytest.mark.slow
    def test_abort_is_an_answer_and_the_next_request_is_served(self):
        with XlaChild(uses_cache=False, num_devices=8) as child:
            reply = child._ask({"op": "abort"}, 8, timeout_s=60)
            assert reply["status"] == "abort"
            assert reply["message"] == "SIGABRT: made_up.cc:1] Check failed: false"
            assert child.compile(GATHER, 4).is_ok
            assert child.starts == 2

    @pytest.mark.slow
    def test_modules_on_which_xla_dies_or_not(self, child):
        """A rotation on mesh 2x4x2 ends some XLA versions with SIGFPE; this process continues in each case."""
        mesh = '["x"=2, "y"=4, "z"=2]'
        source, target = '[{"z"}, {}, {"x"}, {"y"}]', '[{}, {"z"}, {"y"}, {"x"}]'
        with XlaChild(uses_cache=False, num_devices=16) as child:
            compiled = child.compile(pair(mesh, (16, 16, 16, 16), source, target), 16)
            assert compiled.status in ("ok", "abort")
            assert compiled.is_ok or compiled.message.startswith("SIG")
            assert child.compile(GATHER, 4).is_ok

    def test_hang_is_an_answer(self):
        with XlaChild(uses_cache=False, num_devices=1) as child:
            start_s = time.monotonic()
            reply = child._ask({"op": "sleep", "seconds": 60}, 1, timeout_s=0.2)
            assert reply == {"status": "hang", "message": "no answer after 0.2 s"}
            assert time.monotonic() - start_s < 30

    @pytest.mark.slow
    def test_a_prepared_child_answers_and_one_that_died_before_it_could_is_started_again(self):
        with XlaChild(uses_cache=False, num_devices=8) as child:
            child.prepare(4)
            assert child.compile(GATHER, 4).is_ok and child.starts == 1
        with XlaChild(uses_cache=False, num_devices=8) as child:
            child.prepare(4)
            child._process.kill()
            child._process.wait()
            assert child.compile(GATHER, 4).is_ok and child.starts == 2

    @pytest.mark.slow
    def test_kill_from_outside_between_requests_is_survived(self):
        with XlaChild(uses_cache=False, num_devices=8) as child:
            child.compile(GATHER, 4)
            child._process.kill()
            child._process.wait()
            assert child.compile(GATHER, 4).is_ok

    def test_flags_of_this_process_do_not_reach_the_child(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path} --no_such_flag")
        monkeypatch.setenv("JAX_PLATFORMS", "no_such_platform")
        monkeypatch.setenv("PYTHONSTARTUP", "/no/such/file")
        with XlaChild(uses_cache=False, num_devices=8) as child:
            assert child.compile(GATHER, 4).is_ok
        assert list(tmp_path.iterdir()) == []

    def test_closing_ends_the_process_and_removes_its_files(self):
        child = XlaChild(uses_cache=False, num_devices=1)
        child._ask({"op": "hello"}, 1, timeout_s=60)
        process, scratch = child._process, child._scratch
        child.close()
        assert process.poll() is not None
        assert not scratch.exists()

    @pytest.mark.parametrize("ending", ["exit", "kill"])
    def test_child_ends_with_its_parent(self, ending):
        program = f"""
import os, signal, sys
from reshard.dialect_utils.xla.child import shared_child
shared_child()._ask({{"op": "hello"}}, 1, 60)
print(shared_child()._process.pid, shared_child()._scratch, flush=True)
if "{ending}" == "kill":
    os.kill(os.getpid(), {signal.SIGKILL:d})
"""
        output = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60).stdout
        pid, scratch = output.split()
        assert _within(10, lambda: not _is_running(int(pid)) and not os.path.exists(scratch))


FAKE_WORKER = """
import os, sys, time
from reshard.dialect_utils.xla.worker import pack_frame, read_frame

late = None
while (request := read_frame(sys.stdin.buffer)) is not None:
    time.sleep(request.get("after_s", 0))
    reply = {"status": "ok", "word": request.get("word"), "number": request["number"]}
    if request.get("is_late"):
        late = reply
        continue
    os.write(1, (pack_frame(late) if late else b"") + pack_frame(reply))
    late = None
"""


@pytest.fixture
def fake_child(tmp_path, monkeypatch):
    """A child without XLA that answers with the word of the question, for some questions late."""
    script = tmp_path / "fake_worker.py"
    script.write_text(FAKE_WORKER)
    started = subprocess.Popen

    def start(command, **options):
        return started([sys.executable, str(script), command[-1]], **options)

    monkeypatch.setattr(xla_child.subprocess, "Popen", start)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with XlaChild(uses_cache=False, num_devices=1) as child:
        yield child


def said(child: XlaChild, word: str, **how) -> str:
    return child._ask({"op": "say", "word": word, **how}, 1, 60)["word"]


@pytest.mark.usefixtures("default_signals")
class TestInterrupts:
    @pytest.mark.parametrize("after_s", [0.05, 0.3])
    def test_after_ctrl_c_the_next_question_has_its_own_answer(self, fake_child, after_s):
        assert said(fake_child, "first") == "first"
        with _interrupted(after_s), pytest.raises(KeyboardInterrupt):
            said(fake_child, "second", after_s=0.5)
        assert fake_child._process is None
        assert [said(fake_child, word) for word in ("third", "fourth")] == ["third", "fourth"]

    @pytest.mark.parametrize("closed", [0, 1])
    def test_a_child_that_does_not_start_is_an_error_that_says_so(self, monkeypatch, closed):
        """Whether it ends before it is greeted or behind that."""
        started = subprocess.Popen
        program = "import os, time; os.read(0, 1); os.close(1)" if closed else "pass"

        def start(command, **options):
            process = started([sys.executable, "-c", program], **options)
            if not closed:
                process.wait()
            return process

        monkeypatch.setattr(xla_child.subprocess, "Popen", start)
        with XlaChild(uses_cache=False, num_devices=1) as child:
            child.begin([CompileRequest(TestForesight.LARGE[0], 1)])
            with pytest.raises(RuntimeError, match="the XLA child did not start"):
                child.compile(GATHER, 1)
            assert child._process is None and not child._begun

    def test_ctrl_c_while_the_child_starts_leaves_nothing(self, fake_child, monkeypatch, tmp_path):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(fake_child, "_receive", _raise(KeyboardInterrupt()))
            said(fake_child, "first")
        assert fake_child._process is None and not list(tmp_path.glob("reshard-xla-*"))
        assert said(fake_child, "second") == "second"

    def test_ctrl_c_while_the_process_is_made_loses_no_process(self, fake_child, monkeypatch):
        start, made = xla_child.subprocess.Popen, []

        def interrupted(command, **options):
            signal.raise_signal(signal.SIGINT)
            made.append(start(command, **options))
            return made[-1]

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(xla_child.subprocess, "Popen", interrupted)
            said(fake_child, "first")
        assert made[0].returncode is not None and fake_child._process is None

    @pytest.mark.parametrize(
        "error", [KeyboardInterrupt(), SystemExit(), MemoryError(), TimeoutError("a user's"), EOFError()]
    )
    def test_any_exception_ends_the_child_and_is_raised(self, fake_child, monkeypatch, error):
        """This includes exceptions from the caller's signal handlers, such as a time limit; the child did not hang."""
        said(fake_child, "first")
        with monkeypatch.context() as patch, pytest.raises(type(error)):
            patch.setattr(xla_child, "_wait", _raise(error))
            said(fake_child, "second")
        assert fake_child._process is None
        assert said(fake_child, "third") == "third"

    def test_an_answer_that_comes_late_is_not_taken_for_the_next(self, fake_child):
        said(fake_child, "first")
        fake_child._questions += 1
        fake_child._send(
            {"op": "say", "word": "late", "is_late": True, "number": fake_child._questions}, time.monotonic() + 60
        )
        assert said(fake_child, "second") == "second"
        assert fake_child.starts == 1

    def test_a_child_with_an_open_question_is_not_asked_another(self, fake_child):
        said(fake_child, "first")
        fake_child._is_asked = True  # as after any failure during a question
        assert said(fake_child, "second") == "second" and fake_child.starts == 2

    def test_ctrl_c_in_a_terminal_does_not_reach_the_child(self, fake_child):
        said(fake_child, "first")
        assert os.getsid(fake_child._process.pid) != os.getsid(0)

    def test_a_forked_process_has_a_child_of_its_own(self, tmp_path):
        program = """
import os
from reshard.dialect_utils.xla.child import XlaChild
child = XlaChild(uses_cache=False, num_devices=1)
child._ask({"op": "hello"}, 1, 60)
forked = os.fork()
if forked == 0:
    os._exit(3 if child._process is None and child._scratch is None else 4)
status = os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
print(status, child._ask({"op": "hello"}, 1, 60)["status"], child.starts)
"""
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60)
        assert done.stdout == "3 ok 1\n"

    def test_the_files_of_a_dead_child_are_not_waited_for_and_those_of_a_living_one_are(self, fake_child, monkeypatch):
        said(fake_child, "first")
        scratch = fake_child._scratch
        timer = threading.Timer(0.3, fake_child._process.kill)
        timer.start()
        began_s = time.monotonic()
        xla_child.clear_after(os.getpid())
        assert time.monotonic() - began_s > 0.2 and not scratch.exists()
        scratch.mkdir()
        (scratch / "stderr.txt").touch()
        xla_child.clear_after(os.getpid())
        assert not scratch.exists()

    def test_files_go_at_once_with_a_process_that_is_killed(self, tmp_path):
        program = """
import os, signal
from reshard.dialect_utils.xla.child import shared_child
shared_child()._ask({"op": "hello"}, 1, 60)
os.kill(os.getpid(), signal.SIGKILL)
"""
        killed = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)})
        killed.wait(60)
        began_s = time.monotonic()
        while list(tmp_path.iterdir()) and time.monotonic() < began_s + 10:
            time.sleep(0.01)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        "reply, is_lasting",
        [
            ({"status": "ok"}, True),
            ({"status": "hang"}, True),
            ({"status": "error"}, True),
            ({"status": "error", "is_passing": True}, False),
            ({"status": "target"}, False),
            ({"status": "abort", "signal": signal.SIGABRT, "message": "Check failed: sliced"}, True),
            ({"status": "abort", "signal": signal.SIGFPE, "message": ""}, True),
            ({"status": "abort", "signal": signal.SIGABRT, "message": "terminate called after std::bad_alloc"}, False),
            ({"status": "abort", "signal": signal.SIGINT, "message": ""}, False),
            ({"status": "abort", "signal": signal.SIGTERM, "message": ""}, False),
            ({"status": "abort", "signal": signal.SIGKILL, "message": ""}, False),
            ({"status": "abort", "signal": -1, "message": "exit code 1"}, False),
        ],
    )
    def test_what_came_from_outside_is_not_kept(self, reply, is_lasting):
        assert xla_child._is_lasting(reply) == is_lasting


def _raise(error: BaseException):
    def raising(*_, **__):
        raise error

    return raising


@contextlib.contextmanager
def _interrupted(after_s: float):
    """Sends Ctrl-C to this process once, after `after_s` seconds."""
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


class TestCache:
    def test_what_older_versions_wrote_is_not_read(self, caching_child, monkeypatch, tmp_path):
        """An older child gave the answer to an interrupted question to the next question, also in the cache on disk."""
        older = replace(xla_child.ANSWERS, root=tmp_path, facts=lambda: "an older version")
        key = xla_child._cache_key(CompileRequest(GATHER, 4))
        older.write(key, xla_child._encoded(xla_child.Compiled("ok", bytes_received=1), timeout_s=5))
        monkeypatch.setattr(caching_child, "_ask", lambda *_: {"status": "ok", "bytes_received": 7})
        assert caching_child.compile(GATHER, 4).bytes_received == 7
        assert len(list(tmp_path.glob("xla-*/*.entry"))) == 2

    @pytest.mark.slow
    def test_the_sources_that_answers_depend_on_are_those_that_the_worker_imports(self):
        unseen, seen = {Module("dialect_utils", "xla", "worker")}, set()
        while unseen:
            seen |= unseen
            unseen = {each.imported for each in import_graph.imports() if each.importer in unseen} - seen
        assert len(seen) > 5
        assert {f"reshard.{each.package}.{each.wing}" for each in seen} <= set(xla_child.ANSWERS.packages)

    @pytest.mark.parametrize("kind", ["a pipe", "a folder", "another's entry", "nested beyond measure"])
    def test_what_is_no_entry_in_the_place_of_one_is_made_anew(self, tmp_path, monkeypatch, kind):
        child = XlaChild(cache_dir=tmp_path, num_devices=1)
        monkeypatch.setattr(child, "_ask", lambda *_: {"status": "ok", "bytes_received": 7})
        child.compile(GATHER, 4)
        (entry,) = tmp_path.glob("*/*.entry")
        written = entry.read_text()
        entry.unlink()
        if kind == "a pipe":
            os.mkfifo(entry)
        elif kind == "a folder":
            entry.mkdir()
        else:
            value = b"[" * 100_000 if kind.startswith("nested") else written.partition("\n")[2].encode()
            key = entry.stem if kind.startswith("nested") else store.key("another")
            entry.write_bytes(store.sealed(key, value))
        assert (again := child.compile(GATHER, 4)).bytes_received == 7 and not again.from_cache
        assert kind == "a folder" or entry.read_text() == written

    def test_second_request_comes_from_disk_without_a_child(self, caching_child, tmp_path):
        first = caching_child.compile(GATHER, 4)
        with XlaChild(cache_dir=tmp_path) as other:
            second = other.compile(GATHER, 4)
            assert other.starts == 0
        assert not first.from_cache and second.from_cache
        assert replace(second, from_cache=False) == first

    def test_locations_do_not_matter_and_devices_do(self, caching_child):
        here, there = (GATHER.replace("xbf16>\n", f'xbf16> loc("{place}")\n') for place in ("here", "there"))
        assert not caching_child.compile(here, 4).from_cache
        assert caching_child.compile(there, 4).from_cache
        assert not caching_child.compile(there, 2).from_cache

    @pytest.mark.mostly_slow
    @pytest.mark.parametrize(
        "damage",
        ["", "{", "[]", '{"compiled": {}}', '{"compiled": {"status": "ok", "collectives": [1]}, "timeout_s": 1}'],
    )
    @pytest.mark.parametrize("is_sealed", [False, True])
    def test_corrupted_entries_are_made_anew(self, caching_child, tmp_path, damage, is_sealed):
        first = caching_child.compile(GATHER, 4)
        (entry,) = tmp_path.glob("*/*.entry")
        entry.write_bytes(store.sealed(entry.stem, damage.encode()) if is_sealed else damage.encode())
        again = caching_child.compile(GATHER, 4)
        assert not again.from_cache and again.bytes_received == first.bytes_received
        assert json.loads(entry.read_text().partition("\n")[2])["compiled"]["status"] == "ok"

    def test_hang_counts_for_callers_who_would_wait_no_longer(self, caching_child):
        key = xla_child._cache_key(CompileRequest(GATHER, 4))
        caching_child._answers.write(key, xla_child._encoded(xla_child.Compiled("hang"), timeout_s=5))
        assert caching_child.compile(GATHER, 4, timeout_s=5).status == "hang"
        assert caching_child.compile(GATHER, 4, timeout_s=60).is_ok

    @pytest.mark.parametrize(
        ("target", "of", "seconds"),
        [
            (None, None, 300),
            ("cpu:8", None, 300),
            ("tpu:v5e:2x4", None, 1800),
            ("tpu:v5e:2x4", xla_child.Compiled("ok", compile_seconds=20.0), 300),
            ("tpu:v5e:2x4", xla_child.Compiled("ok", compile_seconds=206.0), 1236),
            (None, xla_child.Compiled("ok", compile_seconds=100.0), 600),
            ("tpu:v5e:2x4", xla_child.Compiled("abort", compile_seconds=206.0), 1800),
        ],
    )
    def test_a_large_program_may_take_the_compiler_of_a_target_long_and_another_form_of_it_six_times_as_long(
        self, target, of, seconds
    ):
        assert xla_child.patience_s(Target.parse(target) if target else None, of) == seconds

    def test_who_names_no_limit_waits_as_long_as_the_target_takes(self, caching_child, monkeypatch):
        limits = []
        monkeypatch.setattr(caching_child, "_ask", lambda *asked: limits.append(asked[2]) or {"status": "ok"})
        for number, target in enumerate((None, Target.parse("tpu:v5e:2x4"))):
            caching_child.compile(f"// {number}", 8, target=target, with_estimate=False)
        caching_child.compile("// 2", 8, timeout_s=5, with_estimate=False)
        assert limits == [300, 1800, 5]

    def test_answers_that_hang_on_the_clock_or_on_memory_are_counted(self, caching_child, monkeypatch):
        key = xla_child._cache_key(CompileRequest(GATHER, 4))
        caching_child._answers.write(key, xla_child._encoded(xla_child.Compiled("hang"), timeout_s=5))
        caching_child.compile(GATHER, 4, timeout_s=5)
        assert caching_child.passing_answers == 1
        for status, number, count in (
            ("hang", None, 2),
            ("abort", signal.SIGKILL, 3),
            ("abort", signal.SIGABRT, 3),
            ("ok", None, 3),
        ):
            monkeypatch.setattr(caching_child, "_ask", lambda *_: {"status": status, "signal": number})
            caching_child.compile(f"// {status} {number}", 4)
            assert caching_child.passing_answers == count

    def test_a_target_that_cannot_be_is_not_kept(self, caching_child, tmp_path):
        """Its compiler may be installed before it is asked for again."""
        assert caching_child.compile(GATHER, 9, target=Target.parse("tpu:v5e:3x3")).status == "target"
        assert not list(tmp_path.glob("*/*.entry"))

    def test_targets_and_versions_of_their_compilers_have_entries_of_their_own(self, monkeypatch):
        requests = [CompileRequest(GATHER, 4, target=target) for target in (None, "tpu:v5e:2x2", "tpu:v6e:2x2")]
        keys = [xla_child._cache_key(each) for each in requests]
        monkeypatch.setattr(xla_child, "compiler_version", lambda _: "1.2.3")
        assert len({*keys, xla_child._cache_key(requests[1])}) == 4
        assert xla_child._cache_key(requests[0]) == keys[0]

    def test_an_estimate_that_takes_another_compilation_is_asked_for_once_and_only_if_wanted(
        self, caching_child, monkeypatch
    ):
        asked, target = [], Target.parse("tpu:v5e:2x2")

        def answer(request, *_):
            asked.append(request["op"])
            if request["op"] == "compile":
                return {"status": "ok", "bytes_received": 7, "lacks_estimate": True}
            assert request["estimated_for"] == 7
            without = [["reduce_scatter", 1, 2, [[0, 1, 2, 3]]]]
            return {"status": "ok", "estimated_seconds": 1e-3, "estimated_without": without}

        monkeypatch.setattr(caching_child, "_ask", answer)
        without = caching_child.compile(GATHER, 4, target=target, with_estimate=False)
        assert without.lacks_estimate and without.estimated_seconds is None
        for found in (
            caching_child.compile(GATHER, 4, target=target),
            caching_child.estimated(without, GATHER, 4, target),
        ):
            assert (found.estimated_seconds, found.bytes_received, found.lacks_estimate) == (1e-3, 7, False)
            assert [each.kind for each in found.estimated_without] == ["reduce_scatter"] and not found.scheduled_without
        assert asked == ["compile", "estimate"]

    def test_a_cache_that_cannot_be_written_is_no_obstacle(self, tmp_path):
        (tmp_path / "file").write_text("")
        with XlaChild(cache_dir=tmp_path / "file" / "below", num_devices=8) as child:
            assert child.compile(GATHER, 4).is_ok

    def test_it_can_be_switched_off(self, monkeypatch, tmp_path):
        monkeypatch.setenv("RESHARD_CACHE", "off")
        with XlaChild(cache_dir=tmp_path, num_devices=8) as child:
            assert child.compile(GATHER, 4).is_ok
        assert not list(tmp_path.iterdir())

    def test_place(self, monkeypatch, tmp_path):
        monkeypatch.delenv("RESHARD_CACHE_DIR", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        place = xla_child.ANSWERS.folder()
        assert place.parent == tmp_path / "reshard"
        assert re.fullmatch("xla-[0-9a-f]{16}", place.name)
        monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path / "own"))
        assert xla_child.ANSWERS.folder().parent == tmp_path / "own"

    def test_another_jaxlib_has_another_place(self, monkeypatch):
        # The cached function would keep the made-up version for all later tests of this process.
        monkeypatch.setattr(store, "fingerprint", store.fingerprint.__wrapped__)
        place = xla_child.ANSWERS.folder()
        monkeypatch.setattr(compat, "jaxlib_version", lambda: "0.0.1")
        assert xla_child.ANSWERS.folder() not in (place, None)


@pytest.mark.parametrize(
    "message, reason",
    [
        ("", "no message"),
        ("\nno registered call\nmore of it", "no registered call"),
        (
            "INTERNAL: partitioner: Traceback (most recent call last):\n  File ...\nKeyError: 7\n\nSuspected Location:",
            "INTERNAL: partitioner: KeyError: 7",
        ),
    ],
)
def test_the_reason_is_the_first_line_or_the_exception_of_a_traceback_in_it(message, reason):
    assert xla_child.Compiled("error", message).reason == reason


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def _within(seconds: float, condition) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not condition():
        time.sleep(0.1)
    return condition()
