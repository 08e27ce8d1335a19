# SPDX-License-Identifier: Apache-2.0
"""A compilation that stops when the buffers are assigned says the same as one that goes to the end."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from reshard.dialect_utils.early_stop.buffer_assignment import memory_in
from reshard.dialect_utils.early_stop.entry_shardings import entry_shardings
from reshard.dialect_utils.early_stop.fork_server import IS_AVAILABLE
from reshard.dialect_utils.early_stop.stopped import may_stop, stopped_in
from reshard.dialect_utils.xla import worker
from reshard.dialect_utils.xla.child import XlaChild

EXAMPLES = Path(__file__).parents[3] / "examples"
PADDING = "// a comment\n" * (worker._LARGE // 10)  # with it, every module counts as large

DONATED = """module {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(
      %a: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 1 : i32},
      %b: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
      -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}]>}, tensor<16x8xf32>) {
    %0 = stablehlo.dot %a, %b : (tensor<16x8xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
    %1 = stablehlo.tanh %a : tensor<16x8xf32>
    return %0, %1 : tensor<16x16xf32>, tensor<16x8xf32>
  }
}
"""
ALONE = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"


@pytest.fixture(scope="module")
def child():
    with XlaChild(uses_cache=False, num_devices=8) as child:
        yield child


def both_ways(child: XlaChild, text: str, devices: int):
    wanted = {"keeps_hlo": True, "keeps_schedule": True, "keeps_propagated": True}
    answers = (child.compile(each, devices, **wanted) for each in (text, text + PADDING))
    return [
        replace(each, compile_seconds=0, scheduled_text=with_sorted_configs(each.scheduled_text)) for each in answers
    ]


def with_sorted_configs(text: str | None) -> str:
    """``text`` with the keys of each backend_config in order: XLA prints a hash map, whose order varies by process."""
    decoder = json.JSONDecoder()
    pieces = (text or "").split("backend_config=")
    parsed = ((decoder.raw_decode(piece), piece) for piece in pieces[1:])
    return "backend_config=".join(
        [pieces[0], *(json.dumps(value, sort_keys=True) + piece[end:] for (value, end), piece in parsed)]
    )


@pytest.mark.parametrize("text", [DONATED, ALONE], ids=["donated, open results", "one device"])
def test_it_says_the_same_as_a_finished_one(child, text):
    finished, stopped = both_ways(child, text, 4 if "mesh" in text else 1)
    assert finished.is_ok, finished.message
    assert stopped == finished


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moe_layer", "sequence_parallel_attention", "fft_pencil"])
def test_examples_say_the_same_in_both_ways(child, name, monkeypatch):
    text = (EXAMPLES / f"{name}.mlir").read_text()
    finished, stopped = (
        _compiled_by_a_worker(child, text, 8, is_large)  # the modules themselves may be large
        for is_large in (False, True)
    )
    assert stopped == finished


def _compiled_by_a_worker(child: XlaChild, text: str, devices: int, is_large: bool):
    wanted = {"module": text, "num_devices": devices, "keeps_hlo": True, "keeps_propagated": True, "target": None}
    reply = child._ask({"op": "compile", **wanted, "stops_early": is_large}, devices, 120)
    return {**reply, "compile_seconds": 0, "number": 0}


def test_a_module_that_xla_refuses_has_the_same_message(child):
    broken = DONATED.replace("stablehlo.tanh", "stablehlo.not_an_op")
    finished, stopped = both_ways(child, broken, 4)
    assert stopped.status == finished.status == "error"
    assert stopped.message.splitlines()[0] == finished.message.splitlines()[0]


def test_an_abort_ends_the_fork_alone(child):
    assert child.compile(ALONE, 1).is_ok
    started = child.starts
    asked = {"op": "compile", "module": ALONE, "num_devices": 1, "target": None, "stops_early": True, "aborts": True}
    reply = child._ask(asked, 1, timeout_s=60)
    assert (reply["status"], reply["signal"]) == ("abort", signal.SIGABRT)
    assert reply["message"] == "SIGABRT: made_up.cc:1] Check failed: false"
    again = child.compile(DONATED + PADDING, 4)
    assert again.is_ok and child.starts == started


@pytest.mark.slow
@pytest.mark.skipif(not IS_AVAILABLE, reason="forks are used on Linux only")
def test_without_the_server_of_forks_modules_are_compiled_to_the_end():
    """The kernel may end the server when memory runs out; that is not the module's fault."""
    with XlaChild(uses_cache=False, num_devices=8) as child:
        expected = child.compile(DONATED, 4)
        process = child._process.pid
        for server in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            os.kill(int(server), signal.SIGKILL)
        found = child.compile(DONATED + PADDING, 4)
        assert replace(found, compile_seconds=0) == replace(expected, compile_seconds=0) and found.is_ok
        assert child.starts == 1


class TestBuffers:
    def test_a_parameter_that_holds_a_result_is_an_alias(self):
        text = (
            "BufferAssignment:\n"
            "allocation 0: size 64, parameter 1, shape |f32[16]| at ShapeIndex {}, maybe-live-out:\n"
            " value: <4 p @0> (size=64,offset=0): f32[16]{0}\n"
            "allocation 1: size 8, output shape is |f32[2]|, maybe-live-out:\n"
            "allocation 2: size 4, constant:\n"
            "allocation 3: size 16, thread-local:\n"
            "allocation 4: size 256, preallocated-temp:\n"
        )
        assert memory_in(text) == {"argument_bytes": 64, "output_bytes": 72, "temp_bytes": 256, "alias_bytes": 64}


class TestEntryShardings:
    def test_other_computations_comments_and_strings_do_not_count(self):
        text = (
            "HloModule m\n\n"
            "%body (p: f32[2]) -> f32[2] {\n  ROOT %p = f32[2]{0} parameter(0), sharding={replicated}\n}\n\n"
            "ENTRY %main (a: f32[8], b: f32[8]) -> (f32[8], f32[8]) {\n"
            '  %b = f32[8]{0} parameter(1), metadata={op_name="sharding={x}"}\n'
            "  %a = f32[8]{0} parameter(0), sharding={devices=[2,2]<=[4] last_tile_dim_replicate}\n"
            "  ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%a, /*index=1*/%b), "
            "sharding={{devices=[4]<=[4]}, /*index=1*/{replicated}}\n}\n"
        )
        of_parameters, of_result = entry_shardings(text)
        assert of_parameters == {0: "{devices=[2,2]<=[4] last_tile_dim_replicate}", 1: ""}
        assert of_result == "{{devices=[4]<=[4]}, {replicated}}"

    def test_the_result_may_be_a_parameter(self):
        text = "ENTRY %main (a: f32[8]) -> f32[8] {\n  ROOT %a = f32[8]{0} parameter(0), sharding={replicated}\n}\n"
        assert entry_shardings(text) == ({0: "{replicated}"}, "{replicated}")


def test_without_dumps_nothing_is_known(tmp_path):
    assert not may_stop(tmp_path)
    assert stopped_in(tmp_path) is None


class TestDumpsThatXlaStillWrites:
    """XLA of jaxlib 0.12 writes several dumps at once: the last one may be there when an earlier one is empty."""

    BUFFERS = "allocation 0: size 8, parameter 0:\nallocation 1: size 64, preallocated-temp:\n"
    PROGRAM = "HloModule m\n\nENTRY %main (a: f32[2]) -> f32[2] {\n}\n\n"

    @pytest.mark.parametrize(
        ("buffers", "program", "is_known"),
        [
            (BUFFERS, PROGRAM, True),
            ("", PROGRAM, False),
            (BUFFERS[:40], PROGRAM, False),
            (BUFFERS, PROGRAM[:30], False),
        ],
    )
    def test_nothing_is_known_before_each_is_complete(self, tmp_path, buffers, program, is_known):
        dumps = {
            "m.main.cpu_after_optimizations-memory-usage-report.txt": "Total bytes: 72 (72B)\n",
            "m.main.cpu_after_optimizations-buffer-assignment.txt": buffers,
            "m.main.cpu_after_optimizations.txt": program,
            "m.after_shardy-xla.before_spmd-partitioning.txt": self.PROGRAM,
        }
        for name, text in dumps.items():
            (tmp_path / name).write_text(text)
        assert may_stop(tmp_path) == is_known
