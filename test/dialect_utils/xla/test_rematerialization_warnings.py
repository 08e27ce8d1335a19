# SPDX-License-Identifier: Apache-2.0
"""XLA's warnings of involuntary full rematerialization are read from logs of every kind."""

import os
import subprocess
import sys
import textwrap

import pytest

from reshard.dialect_utils.xla.rematerialization_warnings import Rematerialization, UnreadableWarning, warnings_in

# The warning of jaxlib 0.10.0 and 0.10.2, that of 0.12, and that of older versions.
V1 = (
    "W1122 01:53:39.981694    6450 spmd_partitioner.cc:667] [SPMD] Involuntary full rematerialization. The compiler "
    "cannot go from "
    "sharding {devices=[2,1,4]<=[4,2]T(1,0)} to {devices=[1,8,1]<=[8]} efficiently for HLO operation %add.4 = "
    "f32[8,16,4]{2,1,0} "
    'add(%sin.2, %squeeze.0), sharding={devices=[2,1,4]<=[4,2]T(1,0)}, metadata={op_name="jit(f)/while/body/add" '
    "stack_frame_id=7}. "
    "As the last resort, SPMD will replicate the tensor and then partition it to obtain the target sharding, which "
    "is inefficient. "
    "This issue will be fixed by Shardy partitioner in the future, which is tracked in b/433785288. Contact Shardy "
    "or XLA team for help.\n"
)
V3 = (
    "W1122 01:53:47.112188    6505 spmd_partitioner.cc:666] [SPMD] Involuntary full rematerialization. The compiler "
    "cannot go from "
    "sharding {mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]} to {mesh['x'=4,'y'=2], [{}, {'x', 'y'}, {}]} efficiently for "
    "HLO operation "
    "%param = f32[8,16,4]{2,1,0} parameter(0), sharding={mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}, "
    'metadata={op_name="a"}. As the last '
    "resort, SPMD will replicate the tensor and then partition it to obtain the target sharding, which is "
    "inefficient.\n"
)
WITH_SOURCE = (
    "2025-04-14 17:55:24.092274: E external/xla/xla/service/spmd/spmd_partitioner.cc:621] [spmd] Involuntary full "
    "rematerialization. The "
    "compiler was not able to go from sharding {maximal device=0} to {devices=[4,1]<=[4]} without doing a full "
    "rematerialization of the "
    "tensor for HLO operation: %get-tuple-element = f32[512,64]{1,0} get-tuple-element((token[], f32[512,64]{1,0}) "
    "%x), index=1, "
    'metadata={op_name="jit(init)/normal" source_file="train.py" source_line=103}. You probably want to enrich the '
    "sharding annotations "
    "to prevent this from happening.\n"
)
WITHOUT_OPERATION = (
    "[spmd] Involuntary full rematerialization. The compiled was not able to go from sharding {devices=[4,1]0,1,2,3} "
    "to "
    "{devices=[2,2]0,1,2,3} without doing a full rematerialization of the tensor. You probably want to enrich the "
    "sharding annotations "
    "to prevent this from happening.\n"
)

READ_V1 = Rematerialization(
    "{devices=[2,1,4]<=[4,2]T(1,0)}", "{devices=[1,8,1]<=[8]}", "f32[8,16,4]", "add", "jit(f)/while/body/add"
)
READ_V3 = Rematerialization(
    "{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}",
    "{mesh['x'=4,'y'=2], [{}, {'x', 'y'}, {}]}",
    "f32[8,16,4]",
    "parameter",
    "a",
)
READ_SOURCE = Rematerialization(
    "{maximal device=0}", "{devices=[4,1]<=[4]}", "f32[512,64]", "get-tuple-element", "jit(init)/normal", "train.py:103"
)


def read(log: str) -> list:
    return [str(each) if isinstance(each, UnreadableWarning) else each for each in warnings_in(log)]


@pytest.mark.parametrize("text, expected", [(V1, READ_V1), (V3, READ_V3), (WITH_SOURCE, READ_SOURCE)])
def test_every_form_is_read(text, expected):
    assert read(f"step 1\n{text}step 2\n") == [expected]


def test_a_warning_without_an_operation_is_unreadable():
    (why,) = read(WITHOUT_OPERATION)
    assert "names no tensor" in why


@pytest.mark.parametrize("width", [20, 77, 80, 133])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_wrapped_anywhere(width, end):
    log = V1 + V3 + WITH_SOURCE
    wrapped = end.join(log[at : at + width] for at in range(0, len(log), width))
    assert read(wrapped) == [READ_V1, READ_V3, READ_SOURCE]


def test_lines_wrapped_at_words():
    assert read("\n".join(textwrap.wrap(V1, 80, drop_whitespace=False, break_on_hyphens=False))) == [READ_V1]


def test_prefixes_of_processes_and_progress_bars():
    log = (
        f"(Worker pid=1, ip=10.0.0.1) {V1}[0]: {V3} 91%|####| 69/76 [00:07<00:01]\r(Worker pid=2) {V1}worker-3 | "
        f"{WITH_SOURCE}"
    )
    assert read(log) == [READ_V1, READ_V3, READ_V1, READ_SOURCE]


def test_colours():
    coloured = (
        V1.replace("[SPMD]", "\x1b[1;33m[SPMD]").replace("%add.4", "\x1b[0m%add.4").replace("f32", "\x1b[38;5;2mf32")
    )
    assert read(coloured) == [READ_V1]


def test_lines_of_json():
    escaped = V1.replace('"', '\\"').replace("\n", "\\n")
    assert read(f'{{"severity": "WARNING", "textPayload": "{escaped}"}}\n{{"textPayload": "done"}}\n') == [READ_V1]


def test_metadata_within_shardings():
    text = V1.replace("T(1,0)}", 'T(1,0) metadata={op_name="a}b" source_file="other.py" source_line=1}}')
    assert read(text)[0].op_name == "jit(f)/while/body/add"
    assert read(text)[0].place == ""


@pytest.mark.parametrize(
    "cut_after, expected",
    [
        ("Involuntary full remat", None),
        ("Involuntary full rematerialization. The compiler", "it does not say from which sharding to which"),
        ("{devices=[2,1", "it ends within a sharding"),
        ("T(1,0)} to", "it ends before the sharding to which XLA goes"),
        ("{devices=[1,8", "it ends within a sharding"),
        ("%add.4", "names no tensor"),
        ("f32[8,16", "names no tensor"),
    ],
)
def test_cut_off_before_the_tensor(cut_after, expected):
    log = V1[: V1.index(cut_after) + len(cut_after)] + "\nstep 2: f32[8]{0}, loss = {0.1}, sharding {a}\n" + V3
    found = read(log)
    assert found[-1] == READ_V3
    assert len(found) == (1 if expected is None else 2)
    assert expected is None or expected in found[0]


def test_cut_off_after_the_tensor_names_no_operation():
    log = V1[: V1.index("metadata")] + "\nstep 2\n"
    (found,) = read(log)
    assert (found.tile_type, found.op, found.op_name) == ("f32[8,16,4]", "add", "")


def test_torn_apart_by_another_process():
    at = V1.index("efficiently")
    found = read(V1[:at] + V3 + V1[at:])
    assert found[1:] == [READ_V3]
    assert "names no tensor" in found[0]


def test_a_tuple_is_unreadable():
    assert read(V1.replace("f32[8,16,4]{2,1,0} add", "(f32[8], f32[8]) add")) == ["%add.4 is a tuple"]


def test_the_installed_jaxlib_writes_what_is_read():
    program = """
import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
a = jax.ShapeDtypeStruct((16, 16, 16), "float32", sharding=NamedSharding(mesh, P("y", None, "x")))
jax.jit(lambda a: a + 1, out_shardings=NamedSharding(mesh, P(None, ("x", "y"), None))).lower(a).compile()
"""
    flags = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "0",
    }
    flags["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | flags, capture_output=True, text=True, timeout=300
    )
    (found,) = read(done.stderr)
    assert found.tile_type == "f32[8,16,4]"
    assert (found.source, found.target) in {(each.source, each.target) for each in (READ_V1, READ_V3)}
