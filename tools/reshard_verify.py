# SPDX-License-Identifier: Apache-2.0
"""Two witnesses for a plan: the numpy interpreter, and XLA on CPU devices. Both must end with the target's elements."""

from __future__ import annotations

from dataclasses import dataclass
import math

import numpy as np

from reshard.dialect_utils.mini_modules import is_on_stacks, parts_of, rewritten_pair, whole_shape
from reshard.dialect_utils.xla_child import XlaChild
from reshard.dialect_utils.xla_worker import numpy_dtype
from reshard.synthesis import semantics
from reshard.synthesis.blocks import Blocks, both_ends, cut
from reshard.synthesis.plan import Plan

MOST_DEVICES = 256  # CPU devices that one machine simulates in acceptable time
MOST_ELEMENTS = 1 << 25  # over all devices; the interpreter holds each as eight bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the witnesses say.

    Attributes:
      text: one line. peak_bytes: arguments, outputs and temporaries per device as XLA allocates them, None if unknown.
    """

    is_verified: bool
    text: str
    peak_bytes: int | None = None


def refusal(plan: Plan) -> str | None:
    """Returns why a plan is too large to be run here, None if it is not."""
    if plan.devices > MOST_DEVICES:
        return f"--verify runs on at most {MOST_DEVICES} CPU devices; the plan has {plan.devices}; plan without it"
    tiles = max(math.prod(shape) for shape in (plan.tile_program.in_shape, plan.tile_program.out_shape))
    if tiles * plan.devices > MOST_ELEMENTS:
        return f"--verify holds at most {MOST_ELEMENTS:,} elements on all devices; here they are {tiles * plan.devices:,}; verify a smaller array"
    return None


def verify(plan: Plan, tensor_type: str, child: XlaChild) -> Verdict:
    """Returns what both witnesses say of a plan."""
    try:
        _interpret(plan)
    except AssertionError as error:
        return Verdict(False, f"not verified: numpy interpreter: {error}")
    module, devices = rewritten_pair(tensor_type, plan), plan.devices
    compiled = child.compile(module, devices)
    values = _values(tensor_type)
    take, give = (_stack, _unstacked) if is_on_stacks(plan) else (_in_whole_tiles, _cut)
    ran = child.run(module, [take(values, plan)], devices)
    if ran.status != "ok":
        return Verdict(False, f"not verified: XLA on CPU devices: {ran.status}: {_first_line(ran.message)}", compiled.peak_bytes)
    if not all(_is_equal(*each) for each in give(ran.outputs[0], values, plan)):
        return Verdict(False, "not verified: XLA on CPU devices ends with other values", compiled.peak_bytes)
    text = f"verified: the numpy interpreter and XLA on {devices} CPU devices end with the target's elements, bit for bit"
    return Verdict(True, text, compiled.peak_bytes)


def _interpret(plan: Plan) -> None:
    """Raises: AssertionError if a device ends with other elements than the target puts there."""
    semantics.check(plan.tile_program, plan.shape, plan.source, plan.target, plan.target_mesh)


def _is_equal(got: np.ndarray, wanted: np.ndarray) -> bool:
    return got.dtype == wanted.dtype and got.shape == wanted.shape and got.tobytes() == wanted.tobytes()


def _values(tensor_type: str) -> np.ndarray:
    """Returns an array of the type with as many distinct values as it has room for, all of them exact."""
    shape, element = parts_of(tensor_type)
    dtype = numpy_dtype(element)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    if dtype.kind == "b":
        return numbers % 3 == 0
    return (numbers % _distinct(dtype)).astype(dtype)


def _distinct(dtype: np.dtype) -> int:
    """Returns a prime below which all whole numbers are exact."""
    for words, prime in _PRIMES:
        if any(dtype.name.startswith(word) for word in words):
            return prime
    return 16777213


_PRIMES = (
    (("int2", "uint2", "float4_", "float6_"), 2),
    (("int4", "uint4"), 7),
    (("float8",), 3),
    (("int8", "uint8"), 127),
    (("bfloat16",), 251),
    (("float16", "int16", "uint16"), 2039),
)


def _in_whole_tiles(values: np.ndarray, plan: Plan) -> np.ndarray:
    """Returns the array filled up with zeros to a whole number of tiles."""
    wide = np.zeros(whole_shape(plan.mesh, plan.shape, plan.source), values.dtype)
    wide[tuple(map(slice, values.shape))] = values
    return wide


def _cut(output: np.ndarray, values: np.ndarray, plan: Plan) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(output[tuple(map(slice, plan.shape))], values)]


def _stack(values: np.ndarray, plan: Plan) -> np.ndarray:
    """Returns the source tile of every device, zeros where it holds nothing."""
    held, _ = _placements(plan)
    tiles = cut(values.reshape(held.shape), held)
    return np.stack([tiles[device].reshape(plan.tile_program.in_shape) for device in range(plan.devices)])


def _unstacked(output: np.ndarray, values: np.ndarray, plan: Plan) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns for each device what it holds of the array, and what the target puts there."""
    _, wanted = _placements(plan)
    values, found = values.reshape(wanted.shape), []
    for device, tile in enumerate(output.reshape(plan.devices, *wanted.tile_shape)):
        box = tuple(map(slice, wanted.starts[device], wanted.stops[device]))
        right = values[box]
        found.append((tile[tuple(map(slice, right.shape))], right))
    return found


def _placements(plan: Plan) -> tuple[Blocks, Blocks]:
    return both_ends(plan.mesh, plan.shape, plan.source, plan.target, plan.target_mesh)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "no message"
