# SPDX-License-Identifier: Apache-2.0
"""The device groups and the pairs of devices of a collective in HLO text."""

import re
from math import prod
from typing import cast

import numpy as np

from ..platform.typed import present

_IOTA = r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?"
_GROUPS = re.compile(
    r"replica_groups=(?:(?P<lists>\{(?:\s*\{[^}]*\}\s*,?)*\s*\})"
    rf"|(?P<mesh>mesh\[(?P<axes>[^\]]*)\](?:,\s*device_ids=\((?P<ids>[^{{]*)\))?\s*\{{(?P<grouped>[^}}]*)\}})"
    rf"|(?P<iota>{_IOTA}))"
)
_AXIS_REF = re.compile(r"'?([^':,\s]+)'?(?::\((\d+)\)(\d+))?")


def parse_groups(attributes: str) -> tuple[tuple[int, ...], ...]:
    """Returns the `replica_groups` of a collective in any of HLO's three notations; () if it is empty or absent.

    Example:
      >>> parse_groups("replica_groups={{0,2},{1,3}}")
      ((0, 2), (1, 3))
      >>> parse_groups("replica_groups=[2,2]<=[2,2]T(1,0)")
      ((0, 2), (1, 3))
      >>> parse_groups("replica_groups=mesh['x'=2,'y'=2] {'x'}")
      ((0, 2), (1, 3))
    """
    match = _GROUPS.search(attributes)
    if match is None:
        return ()
    if match["lists"]:
        return tuple(integers(group) for group in re.findall(r"\{([\d,\s]*)\}", match["lists"][1:-1]))
    groups = _mesh_groups(match) if match["mesh"] else _iota_ids(match["iota"])
    return tuple(tuple(group) for group in groups.tolist())


def parse_pairs(attributes: str) -> tuple[tuple[int, int], ...]:
    """Returns the `source_target_pairs` of a collective-permute.

    Example:
      >>> parse_pairs("channel_id=1, source_target_pairs={{0,1},{1,0}}")
      ((0, 1), (1, 0))
    """
    match = re.search(r"source_target_pairs=\{((?:\{[^}]*\},?\s*)*)\}", attributes)
    pairs = tuple(integers(pair) for pair in re.findall(r"\{([^}]*)\}", match[1])) if match else ()
    return cast(tuple[tuple[int, int], ...], pairs)  # XLA writes two numbers in each


def integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())


def _iota_ids(text: str) -> np.ndarray:
    """Returns the ids of an iota form: [4,2]<=[2,4]T(1,0) is iota(8), reshaped to 2x4, transposed, reshaped to 4x2."""
    shape, source, order = (integers(part or "") for part in present(re.fullmatch(_IOTA, text)).groups())
    ids = np.arange(prod(shape)).reshape(source or shape)
    return (ids.transpose(order) if order else ids).reshape(shape)


def _mesh_groups(match: re.Match) -> np.ndarray:
    """Returns the groups along some axes of a mesh: mesh['x'=4,'y'=2], device_ids=(...) {'x':(2)2,'y'}."""
    axes = [axis.replace("'", "").rsplit("=", 1) for axis in match["axes"].split(",")]
    sizes = {name.strip(): int(size) for name, size in axes}
    references = _AXIS_REF.findall(match["grouped"])
    grouped = [(name, int(pre or 1), int(size or sizes[name])) for name, pre, size in references]
    digits = [digit for axis, size in sizes.items() for digit in _axis_digits(axis, size, grouped)]
    ids = _mesh_device_ids(match["ids"], prod(sizes.values())).reshape([size for _, _, size in digits])
    last = [digits.index(digit) for digit in grouped]
    first = [position for position in range(len(digits)) if position not in last]
    return ids.transpose(first + last).reshape(-1, prod(size for _, _, size in grouped))


def _axis_digits(axis: str, size: int, grouped: list) -> list[tuple[str, int, int]]:
    """Splits an axis at its grouped sub-axes: 8 with (2)2 is the digits (axis, 1, 2), (axis, 2, 2), (axis, 4, 2)."""
    digits, done = [], 1
    for reference in sorted(ref for ref in grouped if ref[0] == axis):
        if reference[1] > done:
            digits.append((axis, done, reference[1] // done))
        digits.append(reference)
        done = reference[1] * reference[2]
    return [*digits, (axis, done, size // done)] if done < size else digits


def _mesh_device_ids(text: str | None, size: int) -> np.ndarray:
    if text is None:
        return np.arange(size)
    return _iota_ids(_as_iota(text)) if "[" in text else np.array(integers(text))


def _as_iota(text: str) -> str:
    """`[4,2]T(1,0)`, as a mesh prints its iota, is iota(8) in that shape, transposed: give it the common form."""
    shape, _, order = present(re.fullmatch(_IOTA, text.strip())).groups()
    return f"[{prod(integers(shape))}]<=[{shape}]" + (f"T({order})" if order else "")
