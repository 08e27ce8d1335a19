# SPDX-License-Identifier: Apache-2.0
"""Conversions that are written once more where their result is needed late, so that less is held in between.

    %g = all_gather %x             for the forward pass
    ... %g ...
    ...                            the fullest moment: %x is held, %g is not
    %y, %d = optimization_barrier %x, %d
    %h = all_gather %y             for the backward pass
    ... %h ...

What compilers make again to save memory are single ops; no collective is among them. The barrier keeps the second
conversion from being the first one again, and from being done as early: it waits for a result from behind the fullest
moment.

Lives are a model, in the order of the text, as compilers fuse: an op that may be fused and has one use is computed
where it is used, and so are constants, broadcasts and reshapes; everything else is in memory from its op to its last
use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from reshard.synthesis.forms.platforms import CPU, GLOO

from ..emission.mini_modules import bits_of
from ..ir.fusing import may_be_fused
from ..ir.ops import CONSTANTS, parent_of, producer_of, terminator_of
from ..platform.bindings import ir, stablehlo
from ..platform.typed import present

_MADE_WHERE_USED = CONSTANTS | {f"stablehlo.{name}" for name in ("broadcast_in_dim", "iota", "reshape")}
_NEAREST = 32  # results before a late use, of which the smallest is what the conversion waits for
Use = tuple[ir.Operation, int]  # an op, and the number of its operand


@dataclass(frozen=True, slots=True)
class Candidate:
    """A conversion that may be written once more.

    Attributes:
      number: of the conversion. taken: its one operand. result: what it makes. seconds: its time, or another cost.
    """

    number: int
    taken: ir.Value
    result: ir.Value
    seconds: float


@dataclass(frozen=True, slots=True)
class Repeated:
    """A conversion to be written once more.

    Attributes:
      candidate: the conversion. before: the op in whose place it is written. uses: what takes the new result.
      awaited: a result that has to be there before.
    """

    candidate: Candidate
    before: ir.Operation
    uses: tuple[Use, ...]
    awaited: ir.Value


def chosen(block: ir.Block, candidates: Iterable[Candidate], release_bytes: float) -> list[Repeated]:
    """Returns the conversions whose repetition lets a block hold so many bytes less at its fullest moment.

    Those that free most bytes for their time come first. If all together free less, they are returned all the same.
    """
    lives = _Lives(block)
    waiting = [each for each in candidates if (op := producer_of(each.result)) is not None and op.block == block]
    found: list[Repeated] = []
    goal = lives.fullest - release_bytes
    while lives.fullest > goal:
        options = [(each, option) for each in waiting if (option := lives.without(each)) is not None]
        if not options:
            break
        best, option = max(options, key=lambda pair: pair[1].freed / max(pair[0].seconds, 1e-12))
        lives.apply(option)
        waiting.remove(best)
        found.append(Repeated(best, lives.ops[option.until], option.uses, option.awaited))
    return found


def write(each: Repeated, platform: str, converted: Callable[[ir.Value], ir.Value]) -> None:
    """Writes a conversion once more, by `converted`, and gives its result to the late uses."""
    with ir.InsertionPoint(each.before), each.before.location:
        later = _later_on_cpu if platform in (CPU, GLOO) else _later
        result = converted(later(each.candidate.taken, each.awaited))
    for user, number in each.uses:
        user.operands[number] = result


def _later(tile: ir.Value, awaited: ir.Value) -> ir.Value:
    """Returns a tile that is there once `awaited` is."""
    return stablehlo.OptimizationBarrierOp([tile, awaited]).results[0]


def _later_on_cpu(tile: ir.Value, awaited: ir.Value) -> ir.Value:
    """Returns the bits of a tile, made of them and of 0, which is made of an element of `awaited`.

    XLA's CPU backend drops barriers before it orders the ops. The 0 is what the ones in the element are above 64, which
    no rule of XLA's knows to be 0.
    """
    rank = ir.RankedTensorType(awaited.type).rank
    first = _as_integers(stablehlo.slice(awaited, [0] * rank, [1] * rank, [1] * rank))
    element = stablehlo.reshape(_array((), ir.RankedTensorType(first.type).element_type), first)
    ones = stablehlo.popcnt(stablehlo.convert(_array((), _integer(64)), element))
    most = stablehlo.constant(ir.DenseElementsAttr.get_splat(ones.type, ir.IntegerAttr.get(_integer(64), 64)))
    nothing = stablehlo.subtract(stablehlo.maximum(ones, most), most)
    bits = _as_integers(tile)
    kind = ir.RankedTensorType(bits.type)
    zeros = stablehlo.broadcast_in_dim(kind, stablehlo.convert(_array((), kind.element_type), nothing), [])
    same = stablehlo.xor(bits, zeros)
    return same if bits == tile else stablehlo.bitcast_convert(tile.type, same)


def _as_integers(tile: ir.Value) -> ir.Value:
    """Returns a tile of which each float is an integer with its bits."""
    kind = ir.RankedTensorType(tile.type)
    if isinstance(kind.element_type, ir.IntegerType):
        return tile
    return stablehlo.bitcast_convert(_array(kind.shape, _integer(bits_of(kind))), tile)


def _has_bits(value: ir.Value) -> bool:
    """Returns whether a value is a tensor of integers, or of floats with as many bits as some integer."""
    if not isinstance(value.type, ir.RankedTensorType):
        return False
    kind = ir.RankedTensorType(value.type).element_type
    return isinstance(kind, ir.IntegerType) or isinstance(kind, ir.FloatType) and bits_of(value.type) in (8, 16, 32, 64)


def _integer(bits: int) -> ir.IntegerType:
    return ir.IntegerType.get_signless(bits)


def _array(shape: Sequence[int], element: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(shape, element)


@dataclass(frozen=True, slots=True)
class _Option:
    """A conversion whose result is not held from behind op `since` to op `until`, where it is made again.

    Its operand, of `taken_bytes`, is held until then instead, from behind `taken_since` on. `freed`: the bytes that are
    held less at the fullest moment.
    """

    since: int
    until: int
    result_bytes: float
    taken: ir.Value
    taken_bytes: float
    taken_since: int
    freed: float
    uses: tuple[Use, ...]
    awaited: ir.Value


@dataclass
class _Lives:
    """The tiles in memory at each op of a block.

    State: `held`, the bytes at each op; `last`, the last op that needs a value, by its place.
    """

    block: ir.Block
    ops: list[ir.Operation] = field(init=False)
    held: np.ndarray = field(init=False)
    last: dict[ir.Value, int] = field(init=False, default_factory=dict)

    def __post_init__(self):
        self.ops = [op.operation for op in self.block.operations]
        self._place = {op: at for at, op in enumerate(self.ops)}
        self._end = len(self.ops) - 1
        for at in range(self._end, -1, -1):
            for result in self.ops[at].results:
                self.last[result] = max((self._needed_until(*use) for use in _uses(result)), default=at)
        for argument in self.block.arguments:
            self.last[argument] = self._end  # the caller's
        self.held = np.zeros(len(self.ops))
        for at, op in enumerate(self.ops):
            for result in op.results:
                self.held[at : self.last[result] + 1] += self._bytes(result)

    @property
    def fullest(self) -> float:
        return float(self.held.max())

    def without(self, candidate: Candidate) -> _Option | None:
        """Returns how a conversion is repeated behind the fullest moment; None if that frees nothing there."""
        full = int(self.held.argmax())
        made, taken = self._place[present(producer_of(candidate.result))], candidate.taken
        if made > full or self.last[candidate.result] <= full or not _has_bits(taken):
            return None
        uses = _uses(candidate.result)
        late = tuple(use for use in uses if self._place[self._top(use[0])] > full)
        early = [self._needed_until(*use) for use in uses if use not in late]
        since = max(early, default=made)
        if not late or since >= full:
            return None
        until = min(self._place[self._top(user)] for user, _ in late)
        awaited = self._awaited(full, until)
        if awaited is None:
            return None
        result_bytes, taken_since = _tile_bytes(candidate.result), self.last[taken]
        taken_bytes = _tile_bytes(taken) if taken_since < until else 0.0
        freed = result_bytes - (taken_bytes if taken_since < full else 0.0)
        if freed <= 0:
            return None
        return _Option(since, until, result_bytes, taken, taken_bytes, taken_since, freed, late, awaited)

    def apply(self, option: _Option) -> None:
        self.held[option.since + 1 : option.until] -= option.result_bytes
        if option.taken_bytes:
            self.held[option.taken_since + 1 : option.until + 1] += option.taken_bytes
            self.last[option.taken] = option.until

    def _awaited(self, full: int, until: int) -> ir.Value | None:
        """Returns the smallest of the last results from behind the fullest moment that are in memory."""
        made = [
            result
            for op in self.ops[max(full + 1, until - _NEAREST) : until]
            for result in op.results
            if _has_bits(result) and self._bytes(result)
        ]
        return min(made, key=_tile_bytes, default=None)

    def _needed_until(self, user: ir.Operation, number: int) -> int:
        """Returns the place of the op for which an operand has to be in memory: that of its user, or a later one into
        which the user is fused."""
        top = self._top(user)
        at = self._place[top]
        if top != user or number >= len(top.operands) or not self._is_made_where_used(top):
            return at
        return max((self.last[result] for result in top.results), default=at)

    def _bytes(self, value: ir.Value) -> float:
        """Returns the bytes of a value in memory; 0 for one that is only computed where it is used."""
        producer = producer_of(value)
        if producer is None or self._is_made_where_used(producer):
            return 0.0
        return _tile_bytes(value)

    def _is_made_where_used(self, op: ir.Operation) -> bool:
        if op.name in _MADE_WHERE_USED:
            return True
        if not may_be_fused(op) or len(op.results) != 1:
            return False
        uses = _uses(op.results[0])
        return len(uses) == 1 and uses[0][0] != terminator_of(self.block)

    def _top(self, op: ir.Operation) -> ir.Operation:
        """Returns the op of the block that is, or holds, an op."""
        while op.block != self.block:
            op = parent_of(op)
        return op


def _uses(value: ir.Value) -> list[Use]:
    return [(use.owner.operation, use.operand_number) for use in value.uses]


def _tile_bytes(value: ir.Value) -> float:
    if not isinstance(value.type, ir.RankedTensorType):
        return 0.0
    kind = ir.RankedTensorType(value.type)
    try:
        return bits_of(kind) * math.prod(kind.shape) / 8 if kind.has_static_shape else 0.0
    except ValueError:  # a quantized type
        return 0.0
