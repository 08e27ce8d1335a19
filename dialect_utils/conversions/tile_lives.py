# SPDX-License-Identifier: Apache-2.0
"""Which tiles are in memory, op by op, and which moment is the fullest one, in loops too.

This is a model, in the order of the text, as compilers fuse: an op that may be fused and has one use is computed where
it is used, and so are constants, broadcasts and reshapes; everything else is in memory from its op to its last use. The
body of a loop holds what it makes beside what is held around the loop; its arguments are results of the loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ..ir.fusing import may_be_fused
from ..ir.loop_trips import ASSUMED_TRIPS, known_trips_of
from ..ir.ops import CONSTANTS, LOOPS, bits_of, parent_of, producer_of
from ..platform.bindings import ir
from ..platform.typed import present

MADE_WHERE_USED = CONSTANTS | {f"stablehlo.{name}" for name in ("broadcast_in_dim", "iota", "reshape")}
_NEAREST = 32  # results before a late use, of which the smallest is what a conversion waits for
_HOLDING = LOOPS | {"stablehlo.case"}  # ops whose blocks have tiles in memory
Use = tuple[ir.Operation, int]  # an op, and the number of its operand


@dataclass(frozen=True, slots=True)
class Gap:
    """A result that need not be held from behind op `since` to op `until` of a block, where it is made again.

    What it is made of, of `source_bytes`, is held until then instead, from behind `source_since` on.

    Attributes:
      freed: the bytes that are held less at the fullest moment.
      uses: those behind the gap. awaited: a result from behind the fullest moment, which is in memory before `until`.
    """

    lives: Lives
    since: int
    until: int
    result_bytes: float
    source: ir.Value
    source_bytes: float
    source_since: int
    freed: float
    uses: tuple[Use, ...]
    awaited: ir.Value

    @property
    def before(self) -> ir.Operation:
        """Returns the op in whose place the result is made again."""
        return self.lives.ops[self.until]


@dataclass
class Lives:
    """The tiles in memory at each op of a block.

    Attributes:
      around: the block around the op that has this block, and the place of that op; None at the outermost one.
      runs: how often the block runs.

    State: `own`, the bytes of this block's values at each op, and `within`, those that the op's blocks hold at most;
    `last`, the place of the last op that needs a value; `inside`, the blocks of ops; `_placed`, the uses of results,
    with the places of the users and of what needs them last; `_coming_from`, for places the places that come from them.
    """

    block: ir.Block
    around: tuple[Lives, int] | None = None
    runs: int = 1
    ops: list[ir.Operation] = field(init=False)
    own: np.ndarray = field(init=False)
    within: np.ndarray = field(init=False)
    last: dict[ir.Value, int] = field(init=False, default_factory=dict)
    inside: dict[int, list[Lives]] = field(init=False, default_factory=dict)
    _placed: dict[ir.Value, list[tuple[Use, int, int]]] = field(init=False, default_factory=dict)
    _coming_from: dict[int, set[int]] = field(init=False, default_factory=dict)

    def __post_init__(self):
        self.ops = [op.operation for op in self.block.operations]
        self._place = {op: at for at, op in enumerate(self.ops)}
        self._end = len(self.ops) - 1
        for at in range(self._end, -1, -1):
            for result in self.ops[at].results:
                self.last[result] = max((self._needed_until(user) for user, _ in uses_of(result)), default=at)
        self.own, self.within = np.zeros(len(self.ops)), np.zeros(len(self.ops))
        for at, op in enumerate(self.ops):
            for result in op.results:
                self.own[at : self.last[result] + 1] += self._bytes(result)
            if op.name in _HOLDING:
                runs = self.runs * ((known_trips_of(op) or ASSUMED_TRIPS) if op.name in LOOPS else 1)
                blocks = [block for region in op.regions for block in region.blocks]
                self.inside[at] = [Lives(block, (self, at), runs) for block in blocks]
                self._renew(at)

    @property
    def fullest(self) -> float:
        return float(np.max(self.own + self.within))

    def at_fullest(self) -> dict[ir.Block, tuple[Lives, int]]:
        """Returns the blocks that are at work at the fullest moment, the outermost first, and the places of the ops."""
        lives: Lives | None = self
        found: dict[ir.Block, tuple[Lives, int]] = {}
        while lives is not None:
            full = int(np.argmax(lives.own + lives.within))
            found[lives.block] = lives, full
            lives = max(lives.inside.get(full, ()), key=lambda each: each.fullest, default=None)
        return found

    def gap(self, result: ir.Value, source: ir.Value, full: int) -> Gap | None:
        """Returns how a result of the block, made of `source`, is made again behind op `full`, the fullest moment; None
        if that frees nothing there."""
        made = self._place[present(producer_of(result))]
        if made > full or self.last[result] <= full or not _has_bits(source):
            return None
        if result not in self._placed:
            uses = uses_of(result)
            self._placed[result] = [
                (use, self._place[top_in(self.block, use[0])], self._needed_until(use[0])) for use in uses
            ]
        placed = self._placed[result]
        late = tuple(use for use, place, _ in placed if place > full)
        since = max((needed for _, place, needed in placed if place <= full), default=made)
        if not late or since >= full:
            return None
        until = min(place for _, place, _ in placed if place > full)
        awaited = self._awaited(full, until)
        if awaited is None:
            return None
        source_since = self.last.get(source, self._end)  # arguments and what is from outside are held all the time
        source_bytes = tile_bytes(source) if source_since < until else 0.0
        freed = tile_bytes(result) - (source_bytes if source_since < full else 0.0)
        if freed <= 0:
            return None
        again = (tile_bytes(result), source, source_bytes, source_since, freed)
        return Gap(self, since, until, *again, late, awaited)

    def apply(self, gap: Gap) -> None:
        """Notes that a result of the block is made again."""
        self.own[gap.since + 1 : gap.until] -= gap.result_bytes
        if gap.source_bytes:
            self.own[gap.source_since + 1 : gap.until + 1] += gap.source_bytes
            self.last[gap.source] = gap.until
        lives = self
        while lives.around is not None:
            lives, at = lives.around
            lives._renew(at)

    def _renew(self, at: int) -> None:
        self.within[at] = max((each.fullest for each in self.inside[at]), default=0.0)

    def _awaited(self, full: int, until: int) -> ir.Value | None:
        """Returns the smallest of the last results before op `until` that are in memory and come from op `full`, so
        that they cannot be there earlier."""
        if full not in self._coming_from:
            self._coming_from[full] = self._places_from(full)
        coming = self._coming_from[full]
        made = [
            result
            for at in range(max(full, until - _NEAREST), until)
            if at in coming
            for result in self.ops[at].results
            if _has_bits(result) and self._bytes(result)
        ]
        return min(made, key=tile_bytes, default=None)

    def _places_from(self, full: int) -> set[int]:
        """Returns the places of the ops that take what op `full` makes, or what such ops make."""
        found, waiting = {full}, [full]
        while waiting:
            users = {
                self._place[top_in(self.block, user)]
                for result in self.ops[waiting.pop()].results
                for user, _ in uses_of(result)
            }
            waiting += users - found
            found |= users
        return found

    def _needed_until(self, user: ir.Operation) -> int:
        """Returns the place of the op for which an operand has to be in memory: that of its user, or a later one into
        which the user is fused."""
        top = top_in(self.block, user)
        at = self._place[top]
        if top != user or not is_made_where_used(top, self.ops[-1]):
            return at
        return max((self.last[result] for result in top.results), default=at)

    def _bytes(self, value: ir.Value) -> float:
        """Returns the bytes of a value in memory; 0 for one that is only computed where it is used."""
        return 0.0 if is_made_where_used(present(producer_of(value)), self.ops[-1]) else tile_bytes(value)


def is_made_where_used(op: ir.Operation, last: ir.Operation) -> bool:
    """Returns whether an op is computed where its result is used, and not held in memory; `last` ends its block."""
    if op.name in MADE_WHERE_USED:
        return True
    if not may_be_fused(op) or len(op.results) != 1:
        return False
    uses = uses_of(op.results[0])
    return len(uses) == 1 and uses[0][0] != last


def top_in(block: ir.Block, op: ir.Operation) -> ir.Operation:
    """Returns the op of a block that is, or holds, an op."""
    while op.block != block:
        op = parent_of(op)
    return op


def uses_of(value: ir.Value) -> list[Use]:
    """Returns the uses of a value."""
    return [(use.owner.operation, use.operand_number) for use in value.uses]


def _has_bits(value: ir.Value) -> bool:
    """Returns whether a value is a tensor of integers, or of floats with as many bits as some integer."""
    if not isinstance(value.type, ir.RankedTensorType):
        return False
    kind = ir.RankedTensorType(value.type).element_type
    return isinstance(kind, ir.IntegerType) or isinstance(kind, ir.FloatType) and bits_of(value.type) in (8, 16, 32, 64)


def tile_bytes(value: ir.Value) -> float:
    """Returns the bytes of a tensor; 0 where its size is not known."""
    if not isinstance(value.type, ir.RankedTensorType):
        return 0.0
    kind = ir.RankedTensorType(value.type)
    try:
        return bits_of(kind) * math.prod(kind.shape) / 8 if kind.has_static_shape else 0.0
    except ValueError:  # a quantized type
        return 0.0
