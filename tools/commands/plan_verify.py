# SPDX-License-Identifier: Apache-2.0
"""Two witnesses for a plan: the numpy interpreter, and XLA on CPU devices. Both must end with the target's elements.

Partial sums are random numbers. Sums without rounding, such as those of integers, must be equal bit for bit. Sums of
floating-point numbers must be equal within the rounding error that additions in any order may have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from reshard.dialect_utils.emission.mini_modules import is_on_stacks, parts_of, rewritten_pair, whole_shape
from reshard.dialect_utils.emission.tile_modules import leading_sizes, tile_module
from reshard.dialect_utils.xla.child import XlaChild
from reshard.dialect_utils.xla.worker import numpy_dtype
from reshard.synthesis.common.text_table import first_line
from reshard.synthesis.layouts.blocks import Blocks, both_ends, cut
from reshard.synthesis.planner.entry import Plan
from reshard.synthesis.programs import interpreter as semantics

MOST_DEVICES = 256  # one machine simulates so many CPU devices in acceptable time
MOST_ELEMENTS = 1 << 25  # on all devices together; the interpreter holds each element as eight bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """The results of both checks of a plan.

    Attributes:
      text: one line. peak_bytes: arguments, outputs and temporaries per device as XLA allocates them, None if unknown.
    """

    is_verified: bool
    text: str
    peak_bytes: int | None = None


def refusal(plan: Plan) -> str | None:
    """Returns why a plan cannot be run here, or None if it can be run."""
    if plan.devices > MOST_DEVICES:
        return f"--verify runs on at most {MOST_DEVICES} CPU devices; the plan has {plan.devices}; plan without it"
    elements = plan.devices * max(
        math.prod(shape) for shape in (plan.tile_program.in_shape, plan.tile_program.out_shape)
    )
    if elements > MOST_ELEMENTS:
        return (
            f"--verify holds at most {MOST_ELEMENTS:,} elements on all devices; here they are {elements:,}; "
            f"verify a smaller array"
        )
    has_sums = plan.source.unreduced or plan.target.unreduced
    if has_sums and (plan.target_mesh or _is_padded(plan)):
        return "--verify runs partial sums on one mesh, of arrays that divide into their shards; plan without it"
    return None


def _is_padded(plan: Plan) -> bool:
    return any(whole_shape(plan.mesh, plan.shape, side) != plan.shape for side in (plan.source, plan.target))


def verify(plan: Plan, tensor_type: str, child: XlaChild) -> Verdict:
    """Returns the results of both checks of a plan."""
    try:
        _interpret(plan)
    except AssertionError as error:
        return Verdict(False, f"not verified: numpy interpreter: {error}")
    if plan.devices == 1:  # without partitions XLA does not read Shardy's ops
        said = "verified: the numpy interpreter ends with the target's elements; one device has nothing to run with XLA"
        return Verdict(True, said)
    if plan.source.unreduced or plan.target.unreduced:
        return _verify_sums(plan, tensor_type, child)
    module, devices = rewritten_pair(tensor_type, plan), plan.devices
    compiled = child.compile(module, devices)
    values = _values(tensor_type)
    take, give = (_stack, _unstacked) if is_on_stacks(plan) else (_in_whole_tiles, _cut)
    ran = child.run(module, [take(values, plan)], devices)
    if ran.status != "ok":
        return Verdict(
            False, f"not verified: XLA on CPU devices: {ran.status}: {first_line(ran.message)}", compiled.peak_bytes
        )
    if not all(_is_equal(*each) for each in give(ran.outputs[0], values, plan)):
        return Verdict(False, "not verified: XLA on CPU devices ends with other values", compiled.peak_bytes)
    text = (
        f"verified: the numpy interpreter and XLA on {devices} CPU devices end with the target's elements, bit for bit"
    )
    return Verdict(True, text, compiled.peak_bytes)


# ---- partial sums


def _verify_sums(plan: Plan, tensor_type: str, child: XlaChild) -> Verdict:
    """Returns the verdict on a plan with partial sums, which XLA runs on random tiles.

    The input is a stack of random tiles; the tiles of the output are added up.
    """
    module, devices = tile_module(tensor_type, plan), plan.mesh.size
    compiled = child.compile(module, devices)
    sums = _partial_sums(plan, tensor_type)
    *along, replicas = leading_sizes(plan.mesh, plan.source)
    stack = np.repeat(sums.reshape(*along, 1, *plan.shape), replicas, axis=len(along))
    ran = child.run(module, [stack], devices)
    if ran.status != "ok":
        return Verdict(
            False, f"not verified: XLA on CPU devices: {ran.status}: {first_line(ran.message)}", compiled.peak_bytes
        )
    got = ran.outputs[0].reshape(-1, leading_sizes(plan.mesh, plan.target)[-1], *plan.shape)
    expected, error = _sum_and_error(sums, plan.reduction)
    totals = _reduced(got, plan.reduction)
    if not _are_near(totals, expected[None], None if error is None else error[None]):
        return Verdict(False, "not verified: XLA on CPU devices ends with other sums", compiled.peak_bytes)
    how = "bit for bit" if error is None else f"each within {_TOLERANCE}"
    text = f"verified: the numpy interpreter and XLA on {devices} CPU devices end with the target's sums, {how}"
    return Verdict(True, text, compiled.peak_bytes)


_TOLERANCE = "twice the rounding error of its additions"


def _partial_sums(plan: Plan, tensor_type: str) -> np.ndarray:
    """Returns a stack of random arrays, one for each partial sum of the source.

    Integers are over the whole range of their type; floating-point numbers have magnitudes from 0.5 to 1.5.
    """
    shape, element = parts_of(tensor_type)
    count, dtype, rng = (
        math.prod(leading_sizes(plan.mesh, plan.source)[:-1]),
        numpy_dtype(element),
        np.random.default_rng(0),
    )
    if dtype.kind == "b":
        return rng.integers(0, 2, (count, *shape)).astype(dtype)
    if dtype.kind in "iu" or dtype.name.startswith(("int", "uint")):
        return rng.integers(-(1 << 62), 1 << 62, (count, *shape)).astype(dtype)
    values = rng.uniform(0.5, 1.5, (count, *shape)) * rng.choice((-1, 1), (count, *shape))
    return (values * (1 + 1j) if dtype.kind == "c" else values).astype(dtype)


def _reduced(arrays: np.ndarray, reduction: str) -> np.ndarray:
    """Returns a stack of arrays reduced along its first dimension.

    An exact reduction is in the array's own type, in which integers wrap; the others are in double precision.
    """
    if not _is_exact(arrays.dtype, reduction):
        arrays = arrays.astype(np.complex128 if arrays.dtype.kind == "c" else np.float64)
    return semantics.UFUNCS[reduction].reduce(arrays, axis=0, dtype=arrays.dtype)


def _is_exact(dtype: np.dtype, reduction: str) -> bool:
    return dtype.kind in "biu" or dtype.name.startswith(("int", "uint")) or reduction in ("min", "max")


def _sum_and_error(sums: np.ndarray, reduction: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the reduced array, and the largest error of a reduction in any order (None if nothing is rounded).

    To first order, the error of n - 1 additions is at most (n - 1)·u·Σ|x|, where u is half the distance from 1 to the
    next number; for multiplications it has |Πx|. Here the bound is doubled, and n is one larger, because the target's
    tiles are rounded once more.
    """
    total = _reduced(sums, reduction)
    if _is_exact(sums.dtype, reduction):
        return total, None
    magnitude = _reduced(np.abs(sums.astype(np.complex128)).astype(np.float64), reduction)
    return total, len(sums) * _epsilon(sums.dtype) * magnitude


def _epsilon(dtype: np.dtype) -> float:
    """Returns the distance from 1 to the next number of a type; for complex types, four times that distance.

    A complex product takes several operations, and each of them rounds.
    """
    if dtype.kind == "c":
        return 4 * float(np.finfo(dtype).eps)
    from ml_dtypes import finfo

    return float(finfo(dtype).eps)


def _are_near(got: np.ndarray, expected: np.ndarray, error: np.ndarray | None) -> bool:
    if error is None:
        return bool((got == expected).all())
    return bool((np.abs(got - expected) <= error).all())


def _interpret(plan: Plan) -> None:
    """Runs the interpreter. Raises: AssertionError if a device ends with other elements than the target puts there."""
    semantics.check(plan.tile_program, plan.shape, plan.source, plan.target, plan.target_mesh)


def _is_equal(got: np.ndarray, wanted: np.ndarray) -> bool:
    return got.dtype == wanted.dtype and got.shape == wanted.shape and got.tobytes() == wanted.tobytes()


def _values(tensor_type: str) -> np.ndarray:
    """Returns an array of the type with as many distinct values as the type represents exactly."""
    shape, element = parts_of(tensor_type)
    dtype = numpy_dtype(element)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    if dtype.kind == "b":
        return numbers % 3 == 0
    return (numbers % _distinct(dtype)).astype(dtype)


def _distinct(dtype: np.dtype) -> int:
    """Returns a prime; the type represents all whole numbers below it exactly."""
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
    """Returns the array, padded with zeros to a whole number of tiles."""
    wide = np.zeros(whole_shape(plan.mesh, plan.shape, plan.source), values.dtype)
    wide[tuple(map(slice, values.shape))] = values
    return wide


def _cut(output: np.ndarray, values: np.ndarray, plan: Plan) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(output[tuple(map(slice, plan.shape))], values)]


def _stack(values: np.ndarray, plan: Plan) -> np.ndarray:
    """Returns a stack of the source tiles of all devices; a device that holds nothing has zeros."""
    held, _ = _placements(plan)
    tiles = cut(values.reshape(held.shape), held)
    return np.stack([tiles[device].reshape(plan.tile_program.in_shape) for device in range(plan.devices)])


def _unstacked(output: np.ndarray, values: np.ndarray, plan: Plan) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns for each device the part of the array in its output tile, and the part that the target puts there."""
    _, wanted = _placements(plan)
    values, found = values.reshape(wanted.shape), []
    for device, tile in enumerate(output.reshape(plan.devices, *wanted.tile_shape)):
        box = tuple(map(slice, wanted.starts[device], wanted.stops[device]))
        right = values[box]
        found.append((tile[tuple(map(slice, right.shape))], right))
    return found


def _placements(plan: Plan) -> tuple[Blocks, Blocks]:
    return both_ends(plan.mesh, plan.shape, plan.source, plan.target, plan.target_mesh)
