# SPDX-License-Identifier: Apache-2.0
"""Tile programs whose collectives work where their digits lie.

`tile_program.lower` brings the digits of a collective to the front, since a CPU device then sends and receives
contiguous memory. A compiler that chooses layouts in memory by itself has to copy then: the reshapes around the
transposes join dimensions of the array, and so there is no layout in which the transposes cost nothing. The form here
leaves the order of the digits alone, and keeps dimensions apart:

    tile [8, 128, 16, 32], all_to_all of 4:  dim 2 -> 1
      leading axis   [1024, 4, 128] by [1, 0, 2], all_to_all on axis 0, [4, 8, 16384] by [1, 0, 2]
      in place       [8, 128, 4, 4, 32], all_to_all on axis 2, by [0, 2, 1, 3, 4]
    all_gather of 4 along dim 1
      leading axis   all_gather on axis 0, [4, 8, n] by [1, 0, 2]
      in place       all_gather on axis 1

A *digit* is a part of an axis. A first pass reads the program and cuts digits where a reshape does; a reshape that cuts
one number in radices that do not divide each other ends a *segment*. A second pass writes each segment again. It keeps
the digits of the tile in the order of the segment's end, as far as collectives allow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..layouts.layout import Factor
from ..programs.steps import Relayout, Step
from ..programs.tile_program import (
    Gather,
    KeepFirst,
    KeepOwn,
    Loop,
    On,
    Operation,
    PutOwn,
    Reduce,
    ReduceOwn,
    Reshape,
    Send,
    Swap,
    TakeOwn,
    TileProgram,
    Transpose,
    copy_text,
    shape_after,
)
from .platforms import FORMS
from .side_by_side import side_by_side
from .whole_tiles import in_whole_tiles

_Filed = list[tuple[int, Operation]]  # operations, with the number of the step that they belong to


def for_platform(program: TileProgram, platform: str, bits: int) -> TileProgram:
    """Returns an equal program in the forms that suit one of `PLATFORMS`, for elements of some bits."""
    forms = FORMS[platform]
    written = in_place(program) if forms.is_in_place else program
    if forms.has_parts_side_by_side:
        written = side_by_side(written)
    return in_whole_tiles(written, bits) if forms.has_whole_tiles else written


def in_place(program: TileProgram) -> TileProgram:
    """Returns an equal program, with the same collectives, that leaves digits in their places; see the module.

    Args:
      program: as `tile_program.lower` writes it, with collectives on the leading axis.
    """
    if 0 in program.in_shape:
        return program
    operations = [(n, each) for n, (_, operations) in enumerate(program.steps) for each in operations]
    written: _Filed = []
    shape = program.in_shape
    while operations:
        segment = _Segment(shape)
        length = segment.read(operations)
        written += segment.written()
        shape, operations = segment.shape, operations[length:]
        if operations and not isinstance(operations[0][1], Reshape):
            number, operation = operations.pop(0)
            written.append((number, _looped_in_place(operation)))
            shape = shape_after(operation, shape)
    return replace(program, steps=tuple(_by_step(program, written)))


def _looped_in_place(operation: Operation) -> Operation:
    return replace(operation, body=in_place(operation.body)) if isinstance(operation, Loop) else operation


def _by_step(program: TileProgram, written: _Filed) -> Iterable[tuple[Step, tuple[Operation, ...]]]:
    """Yields the steps with their operations; relayouts only where something is copied."""
    for number, (step, _) in enumerate(program.steps):
        operations = tuple(each for of, each in written if of == number)
        if not isinstance(step, Relayout):
            yield step, operations
        elif operations:
            yield Relayout(copy_text(operations)), operations


@dataclass(eq=False, slots=True)
class _Digit:
    """A part of an axis of `size` entries, which may turn out to be made of smaller `parts`, major to minor."""

    size: int
    parts: list[_Digit] = field(default_factory=list)

    @property
    def leaves(self) -> list[_Digit]:
        return [leaf for part in self.parts for leaf in part.leaves] if self.parts else [self]

    def cut(self, major: int) -> None:
        self.parts = [_Digit(major), _Digit(self.size // major)]


_Axes = list[list[_Digit]]


def _leaves(digits: Iterable[_Digit]) -> list[_Digit]:
    return [leaf for digit in digits for leaf in digit.leaves]


def _axis(size: int) -> list[_Digit]:
    return [_Digit(size)] if size > 1 else []


def _size(digits: Iterable[_Digit | Factor]) -> int:
    return math.prod(digit.size for digit in digits)


@dataclass(frozen=True, slots=True)
class _Read:
    """An operation as the first pass understood it.

    Attributes:
      step: the number of its step.
      taken: the digits of each axis that it takes away. given: the digits of each axis that it adds.
    """

    step: int
    operation: Operation
    taken: tuple[list[_Digit], ...] = ()
    given: tuple[list[_Digit], ...] = ()


class _Segment:
    """A run of operations whose reshapes only cut and join digits.

    State while reading: `axes`, the digits of each axis of the tile in the program as it was. State while writing:
    `held`, the digits of each axis of the tile in the program as it becomes; an axis of size 1 has none. `rank` and
    `end_of` say at which place, and in which axis, a digit is at the end; digits that are not there then have neither.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.axes: _Axes = [_axis(size) for size in shape]
        self.held: _Axes = [list(axis) for axis in self.axes]
        self.reads: list[_Read] = []
        self.out: _Filed = []
        self.last_step = 0
        self.rank: dict[_Digit, int] = {}
        self.end_of: dict[_Digit, int] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of the tile after the operations that have been read."""
        return tuple(map(_size, self.axes))

    # ---- the first pass

    def read(self, operations: Sequence[tuple[int, Operation]]) -> int:
        """Reads the operations of the segment; returns how many there are. At least a leading reshape is read."""
        for count, (step, operation) in enumerate(operations):
            self.last_step = step
            if not self._read(step, operation):
                if count == 0 and isinstance(operation, Reshape):
                    return self._begin_with(step, operation)
                self.last_step = operations[max(count - 1, 0)][0]
                return count
        return len(operations)

    def _begin_with(self, step: int, reshape: Reshape) -> int:
        self.out.append((step, reshape))
        self.axes = [_axis(size) for size in reshape.shape]
        self.held = [list(axis) for axis in self.axes]
        return 1

    def _read(self, step: int, operation: Operation) -> bool:
        """Reads one operation; returns False if it does not belong to the segment."""
        taken: tuple[list[_Digit], ...] = ()
        given: tuple[list[_Digit], ...] = ()
        match operation:
            case Reshape(shape):
                return self._read_reshape(shape)
            case Transpose(axes):
                self.axes = [self.axes[axis] for axis in axes]
                return True
            case TakeOwn(picks):
                taken = tuple(self.axes[axis] for axis, _ in picks)
                gone = {axis for axis, _ in picks}
                self.axes = [axis for number, axis in enumerate(self.axes) if number not in gone]
            case Gather(factors):
                given = (_axis(_size(factors)),)
                self.axes[0] = given[0] + self.axes[0]
            case Swap(factors):
                taken, given = (self.axes[0],), (_axis(_size(factors)),)
                self.axes[0] = given[0]
            case ReduceOwn():
                taken = (self.axes[0],)
                self.axes[0] = []
            case PutOwn(factors):
                given = tuple(_axis(factor.size) for factor in factors)
                self.axes = [*given, *self.axes]
            case On() | Send() | Reduce() | KeepFirst():
                pass
            case _:
                return False
        self.reads.append(_Read(step, operation, taken, given))
        return True

    def _read_reshape(self, shape: tuple[int, ...]) -> bool:
        rest = _leaves(itertools.chain(*self.axes))
        cuts: list[tuple[_Digit, int]] = []
        axes: _Axes = []
        for size in shape:
            axis = []
            while size > 1:
                digit = rest.pop(0)
                if size % digit.size == 0:
                    axis.append(digit)
                    size //= digit.size
                elif digit.size % size == 0:
                    cuts.append((digit, size))
                    digit.cut(size)
                    axis.append(digit.parts[0])
                    rest.insert(0, digit.parts[1])
                    size = 1
                else:
                    for cut, _ in reversed(cuts):
                        cut.parts = []
                    return False
            axes.append(axis)
        self.axes = axes
        return True

    # ---- the second pass

    def written(self) -> _Filed:
        """Returns the operations of the segment in their new form."""
        self.held = [_leaves(axis) for axis in self.held]
        ends = [_leaves(axis) for axis in self.axes]
        self.rank = {digit: rank for rank, digit in enumerate(itertools.chain(*ends))}
        self.end_of = {digit: number for number, axis in enumerate(ends) for digit in axis}
        for read in self.reads:
            self._write(read)
        self._restore_order(self.last_step)
        self._view(self.last_step, ends)
        return self.out

    def _write(self, read: _Read) -> None:
        taken = [_leaves(axis) for axis in read.taken]
        given = [_leaves(axis) for axis in read.given]
        match read.operation:
            case TakeOwn(picks):
                for digits, (_, factor) in zip(taken, picks, strict=True):
                    axis = self._leading(read.step, digits)
                    self.out.append((read.step, KeepOwn(((axis, factor),))))
                    self.held[axis] = self.held[axis][len(digits) :]
            case Gather(factors):
                self._restore_order(read.step)
                axis = self._axis_for(read.step, given[0])
                self.out.append((read.step, Gather(factors, axis)))
                self.held[axis] = given[0] + self.held[axis]
            case Swap(factors):
                axis = self._set_apart(read.step, taken[0])
                self.out.append((read.step, Swap(factors, axis)))
                self.held[axis] = given[0]
            case ReduceOwn(factors):
                axis = self._leading(read.step, taken[0])
                self.out.append((read.step, ReduceOwn(factors, axis)))
                self.held[axis] = self.held[axis][len(taken[0]) :]
            case PutOwn():
                self.out.append((read.step, read.operation))
                self.held = given + self.held
            case _:
                self.out.append((read.step, read.operation))

    def _restore_order(self, step: int) -> None:
        """Brings the digits that are there at the end into the order of the end; the others stay where they are."""
        held = list(itertools.chain(*self.held))
        staying = iter(sorted((digit for digit in held if digit in self.rank), key=self.rank.__getitem__))
        self._order(step, [next(staying) if digit in self.rank else digit for digit in held])

    def _order(self, step: int, wanted: list[_Digit]) -> None:
        """Transposes the tile. Only digits that are of one axis before, and at the end, are one axis of the copy."""
        if wanted == list(itertools.chain(*self.held)):
            return
        follows = dict(itertools.pairwise(wanted))
        runs: _Axes = []
        for axis in self.held:
            for place, digit in enumerate(axis):
                before = axis[place - 1] if place else None
                if before and follows.get(before) is digit and self.end_of.get(before) == self.end_of.get(digit):
                    runs[-1].append(digit)
                else:
                    runs.append([digit])
        self._view(step, runs)
        at = {run[0]: number for number, run in enumerate(runs)}
        axes = tuple(at[digit] for digit in wanted if digit in at)
        self.out.append((step, Transpose(axes)))
        self.held = [runs[axis] for axis in axes]

    def _leading(self, step: int, digits: list[_Digit]) -> int:
        """Makes the digits the leading ones of an axis; returns its number."""
        for number, axis in enumerate(self.held):
            if digits and digits[0] in axis:
                start = axis.index(digits[0])
                if axis[start : start + len(digits)] != digits:
                    break
                if start:
                    self._view(step, [*self.held[:number], axis[:start], axis[start:], *self.held[number + 1 :]])
                return number + (start > 0)
        return self._set_apart(step, digits)

    def _set_apart(self, step: int, digits: list[_Digit]) -> int:
        """Makes the digits an axis of their own, in front if they are not neighbours; returns its number."""
        if not digits:
            return self._empty_axis(step, 0)
        held = list(itertools.chain(*self.held))
        start = held.index(digits[0])
        if held[start : start + len(digits)] != digits:
            self._restore_order(step)
            held = list(itertools.chain(*self.held))
            self._order(step, digits + [digit for digit in held if digit not in digits])
        parts: _Axes = []
        for axis in self.held:
            places = [place for place, digit in enumerate(axis) if digit in digits]
            if not places:
                parts.append(axis)
                continue
            before, behind = axis[: places[0]], axis[places[-1] + 1 :]
            parts += [part for part in (before,) if part]
            if axis[places[0]] is digits[0]:
                parts.append(digits)
            parts += [part for part in (behind,) if part]
        self._view(step, parts)
        return self.held.index(digits)

    def _axis_for(self, step: int, digits: list[_Digit]) -> int:
        """Returns the axis along which an all_gather adds `digits` in front: where they are at the end, else the
        leading one."""
        held = list(itertools.chain(*self.held))
        ranks = [self.rank.get(digit) for digit in digits]
        if not digits or None in ranks:
            return self._empty_axis(step, 0)
        before = [digit for digit in held if digit in self.rank and self.rank[digit] < self.rank[digits[0]]]
        behind = [digit for digit in held if digit in self.rank and self.rank[digit] > self.rank[digits[-1]]]
        if len(before) + len(behind) < sum(digit in self.rank for digit in held):
            return self._empty_axis(step, 0)
        start = held.index(before[-1]) + 1 if before else 0
        return self._axis_at(step, start, digits)

    def _axis_at(self, step: int, start: int, digits: list[_Digit]) -> int:
        """Returns the axis whose first digit is the one in place `start`, if it ends up in one axis with `digits`, or
        an axis of size 1 before it."""
        following = list(itertools.chain(*self.held))[start:]
        is_one_axis = bool(following) and self.end_of.get(following[0], -1) == self.end_of[digits[-1]]
        place = 0
        for number, axis in enumerate(self.held):
            if place == start and (not axis or axis and is_one_axis):
                return number
            if place < start < place + len(axis):
                cut = start - place
                self._view(step, [*self.held[:number], axis[:cut], axis[cut:], *self.held[number + 1 :]])
                return number + 1 if is_one_axis else self._empty_axis(step, number + 1)
            if place == start:
                return self._empty_axis(step, number)
            place += len(axis)
        return self._empty_axis(step, len(self.held))

    def _empty_axis(self, step: int, number: int) -> int:
        """Makes an axis of size 1 the axis `number`, unless it is one."""
        if number == len(self.held) or self.held[number]:
            self._view(step, [*self.held[:number], [], *self.held[number:]])
        return number

    def _view(self, step: int, axes: _Axes) -> None:
        shape = tuple(map(_size, axes))
        if shape != tuple(map(_size, self.held)):
            self.out.append((step, Reshape(shape)))
        self.held = [list(axis) for axis in axes]
