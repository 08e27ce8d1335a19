# SPDX-License-Identifier: Apache-2.0
"""The process with stock XLA: its frames, its errors, the inputs that it makes up."""

import io
from types import SimpleNamespace

import numpy as np
import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla import worker
from reshard.dialect_utils.xla.child import compiled_from
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.dialect_utils.xla.worker import pack_frame, read_frame, seeded_inputs
from reshard.synthesis.network.program_time import LocalWork


def test_a_frame_is_read_back_and_the_end_of_the_stream_is_none():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    stream = io.BytesIO(pack_frame({"word": "one", "array": array}) + pack_frame({"word": "two"}))
    first, second, end = (read_frame(stream) for _ in range(3))
    assert first["word"] == "one" and np.array_equal(first["array"], array)
    assert (second, end) == ({"word": "two"}, None)


def test_a_frame_that_is_cut_off_is_no_message():
    assert read_frame(io.BytesIO(pack_frame({"word": "one"})[:3])) is None


def test_requests_for_many_modules_that_wait_are_answered_together():
    ops = ["compile_all", "compile_all", "hello", "compile_all"]
    stream = io.BytesIO(b"".join(pack_frame({"op": op, "number": number}) for number, op in enumerate(ops)))
    waiting = worker._Waiting(stream)
    while waiting._frames.qsize() <= len(ops):  # the end of the stream is one more
        continue
    batches = [[each["number"] for each in waiting.next_together()] for _ in range(4)]
    assert batches == [[0, 1], [2], [3], []]


def test_a_disk_that_is_full_is_not_the_fault_of_the_module(monkeypatch):
    def fill_the_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(worker._OPERATIONS, "compile", fill_the_disk)
    assert worker._reply({"op": "compile"}, None)["is_passing"]


@pytest.mark.parametrize("element", ["f32", "bf16", "i1", "ui8", "complex<f32>"])
def test_made_up_inputs_depend_on_the_seed_alone(element):
    with make_context():
        types = [ir.Type.parse(f"tensor<16x4x{element}>")]
    (one,), (again,), (other,) = (seeded_inputs(types, seed) for seed in (1, 1, 2))
    assert one.shape == (16, 4) and one.dtype == worker.numpy_dtype(element)
    assert one.tobytes() == again.tobytes() != other.tobytes()


def test_the_code_generators_cycles_are_seconds_by_the_clock_of_the_schedule():
    text = """HloModule m, is_scheduled=true
%squared (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %m = f32[8]{0} multiply(%p, %p)
}
ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} fusion(%a), kind=kLoop, calls=%squared, backend_config={"estimated_cycles":"3000"}
  ROOT %c = f32[8]{0} negate(%b)
}
"""
    found = worker._generated(text, 1.5e9)
    assert found == {"generated_seconds": 2e-6, "generated_without": [(0, 64, 1, 1)]}
    read = compiled_from({"status": "ok", **found})
    assert read.generated_without == (LocalWork(0, 64, 1, 1),) and read.generated_seconds == 2e-6
    assert worker._generated(text, None) == worker._generated("HloModule m", 1.5e9) == {}


def test_a_program_without_a_schedule_has_the_clock_of_one_that_has(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(worker, "_compiled_for", lambda *each: asked.append(each))
    monkeypatch.setattr(worker, "_schedule", lambda _: "  cycles_per_microsecond: 940\n")
    monkeypatch.setattr(worker, "_clocks", {})
    tpu, gpu = map(Target.parse, ("tpu:v5e:2x4", "cuda:h100:1x1x8"))
    assert worker._clock(tpu, "  cycles_per_microsecond: 1500\n", tmp_path) == 1.5e9
    assert worker._clock(gpu, None, tmp_path) is None and not asked
    assert [worker._clock(tpu, None, tmp_path) for _ in range(2)] == [9.4e8, 9.4e8] and len(asked) == 1
    (target, request, _, options, _), *_ = asked
    assert target == tpu and options == worker._ASYNC_OPTIONS["tpu"] and "tensor<64x1024xf32>" in request["module"]


@pytest.mark.parametrize("is_mispriced", [True, False])
def test_an_estimate_of_mispriced_instructions_is_missing_and_is_not_asked_for_again(
    is_mispriced, monkeypatch, tmp_path
):
    """Another compilation would price them in the same way."""
    program = SimpleNamespace(to_string=lambda: "ENTRY %main {}")
    stats = SimpleNamespace(peak_memory_in_bytes=7)
    executable = SimpleNamespace(hlo_modules=lambda: [program], get_compiled_memory_stats=lambda: stats)
    main = SimpleNamespace(inputs=(), results=())
    monkeypatch.setattr(worker, "_compiled_for", lambda *_: (executable, main, 1.0))
    monkeypatch.setattr(worker, "_schedule", lambda _: "schedule")
    monkeypatch.setattr(worker, "is_mispriced", lambda *asked: is_mispriced and asked == ("schedule", "ENTRY %main {}"))
    monkeypatch.setattr(worker, "estimated_seconds", lambda *_, **__: 2.5)
    for name in ("_memory", "_final_traffic", "_canonical"):
        monkeypatch.setattr(worker, name, lambda *_: {})
    monkeypatch.setattr(worker, "_traffic", lambda *_: {"bytes_received": 1})
    for name in ("parameter_shardings", "output_shardings"):
        monkeypatch.setattr(worker.compat, name, lambda *_: ())
    request = {"target": "tpu:v5e:2x4", "keeps_propagated": False, "keeps_hlo": False, "estimated_for": 1}
    found = worker._compile_ahead_of_time(request, tmp_path)
    assert found["scheduled_seconds"] == (None if is_mispriced else 2.5) and found["estimated_seconds"] is None
    assert found["lacks_estimate"] is not is_mispriced
    asked_again = {"estimated_seconds": None} if is_mispriced else {"estimated_seconds": 2.5, "estimated_without": []}
    assert worker._estimate(request, tmp_path) == asked_again


SCATTERED = """HloModule m, entry_computation_layout={{(f32[8]{{0}})->f32[2]{{0}}}}, num_partitions=4

%f (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[8]) -> f32[2] {{
  %x = f32[8]{{0}} parameter(0)
  ROOT %{name} = f32[2]{{0}} reduce-scatter(%x), channel_id=1, replica_groups=[1,4]<=[4], dimensions={{0}}, to_apply=%f
}}
"""


@pytest.mark.parametrize(
    ("target", "name", "count"),
    [("tpu:v5e:2x2", "scattered", 1), ("tpu:v5e:2x2", "of-an-all-reduce", 0), ("cuda:h100:4", "scattered", 0)],
)
def test_reduce_scatters_that_a_schedule_of_tpus_has_for_free_are_told(target, name, count, monkeypatch):
    monkeypatch.setattr(
        worker, "instructions_for_free", lambda schedule: {"scattered"} if schedule == "times" else set()
    )
    text = SCATTERED.format(name=name)
    found = worker._for_free(SimpleNamespace(platform=target.partition(":")[0]), "times", text)
    assert [each[0] for each in found] == ["reduce_scatter"] * count
    assert worker._for_free(SimpleNamespace(platform="tpu"), None, text) == []
    apart = text.replace("reduce-scatter(", "reduce-scatter-start(")
    assert worker._for_free(SimpleNamespace(platform="tpu"), "times", apart) == []
