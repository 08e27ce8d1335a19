# SPDX-License-Identifier: Apache-2.0
"""The process with stock XLA: its frames, its errors, the inputs that it makes up."""

import io

import numpy as np
import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla import worker
from reshard.dialect_utils.xla.worker import pack_frame, read_frame, seeded_inputs


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
