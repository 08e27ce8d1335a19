# SPDX-License-Identifier: Apache-2.0
"""Numbers that differ between devices, such as where a part of a tile begins, in the body of an island."""

from __future__ import annotations

import numpy as np

from ..ir.ops import dense_elements, int32_constant
from ..platform.bindings import ir, stablehlo
from ..platform.typed import present


class PerDevice:
    """Numbers that differ between devices, as scalars tensor<i32> of the current device.

    A number is given by the devices that use it and its values there. `others` is the value on all other devices; with
    None, their value does not matter.
    """

    def __init__(self, devices: int):
        self._devices = devices
        self._partition: ir.Value | None = None
        self._columns: dict[bytes, int] = {}
        self._row: ir.Value | None = None
        self._written: dict[bytes, ir.Value] = {}
        self._digits = _digits(devices)

    def prepare(self, vectors) -> None:
        """Writes the table. It is called once, before `value`, with all numbers that `value` has to return."""
        columns = []
        for devices, values, others in vectors:
            full, matters = self._spread(devices, values, others)
            if self._formula(full, matters) is None and full.tobytes() not in self._columns:
                self._columns[full.tobytes()] = len(columns)
                columns.append(full)
        if columns:
            self._row = self._look_up(np.stack(columns, axis=1))

    def value(self, devices: np.ndarray, values: np.ndarray, others: int | None = None) -> ir.Value:
        full, matters = self._spread(devices, values, others)
        key = full.tobytes() + matters.tobytes()
        if key not in self._written:
            formula = self._formula(full, matters)
            self._written[key] = self._column(full) if formula is None else self._computed(*formula)
        return self._written[key]

    def _spread(self, devices, values, others) -> tuple[np.ndarray, np.ndarray]:
        full = np.full(self._devices, others or 0, np.int32)
        full[devices] = values
        matters = np.full(self._devices, others is not None)
        matters[devices] = True
        return full, matters

    def _formula(self, full: np.ndarray, matters: np.ndarray) -> tuple[int, int, int, int] | None:
        """Returns (a, b, c, d) with number = device / a mod b · c + d on all devices that use it; b = 1: a constant."""
        device = np.flatnonzero(matters)
        wanted = full[device]
        if (wanted == wanted[0]).all():
            return 1, 1, 0, int(wanted[0])
        for (a, b), digit in self._digits.items():
            digit = digit[device]
            other = int(np.argmax(digit != digit[0]))
            step, rest = divmod(int(wanted[other]) - int(wanted[0]), int(digit[other] - digit[0]) or 1)
            start = int(wanted[0]) - step * int(digit[0])
            if rest == 0 and (digit * step + start == wanted).all():
                return a, b, step, start
        return None

    def _computed(self, a: int, b: int, c: int, d: int) -> ir.Value:
        if b == 1:
            return int32_constant(d)
        number = self._own()
        if a > 1:
            number = stablehlo.DivOp(number, int32_constant(a)).result
        if a * b < self._devices:
            number = stablehlo.RemOp(number, int32_constant(b)).result
        if c != 1:
            number = stablehlo.MulOp(number, int32_constant(c)).result
        return stablehlo.AddOp(number, int32_constant(d)).result if d else number

    def _own(self) -> ir.Value:
        if self._partition is None:
            scalar = ir.RankedTensorType.get([], _int32())
            self._partition = stablehlo.ConvertOp(scalar, stablehlo.PartitionIdOp().result).result
        return self._partition

    def _look_up(self, table: np.ndarray) -> ir.Value:
        """Returns the current device's row of a table."""
        constant = stablehlo.ConstantOp(dense_elements(np.ascontiguousarray(table, dtype=np.int32))).result
        return stablehlo.DynamicSliceOp(constant, [self._own(), int32_constant(0)], _int64s([1, table.shape[1]])).result

    def _column(self, full: np.ndarray) -> ir.Value:
        at = self._columns[full.tobytes()]
        entry = stablehlo.SliceOp(present(self._row), _int64s([0, at]), _int64s([1, at + 1]), _int64s([1, 1])).result
        return stablehlo.ReshapeOp(ir.RankedTensorType.get([], _int32()), entry).result


def _digits(devices: int) -> dict[tuple[int, int], np.ndarray]:
    """Returns every mixed-radix digit of a device id, by (place, radix)."""
    divisors = [each for each in range(1, devices + 1) if devices % each == 0]
    device = np.arange(devices)
    return {(a, b): device // a % b for b in reversed(divisors) for a in divisors if b > 1 and devices % (a * b) == 0}


def _int32() -> ir.Type:
    return ir.IntegerType.get_signless(32)


def _int64s(values) -> ir.DenseI64ArrayAttr:
    return ir.DenseI64ArrayAttr.get([int(value) for value in values])
