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
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reshard.synthesis.forms.platforms import CPU, GLOO

from ..ir.ops import bits_of, ops_in, producer_of
from ..platform.bindings import ir, stablehlo
from .tile_lives import Gap, Lives

_LEAST_S = 1e-12  # what a conversion takes at least, so that none is free


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


def chosen(block: ir.Block, candidates: Iterable[Candidate], release_bytes: float) -> list[tuple[Candidate, Gap]]:
    """Returns the conversions whose repetition lets a block hold so many bytes less at its fullest moment, and where.

    Those that free most bytes for their time come first. If all together free less, they are returned all the same. Of
    two in a row one is repeated at most, since the other one's result would be held for it.
    """
    lives = Lives(block)
    waiting = [(each, op.block) for each in candidates if (op := producer_of(each.result)) is not None]
    found: list[tuple[Candidate, Gap]] = []
    goal = lives.fullest - release_bytes
    while lives.fullest > goal:
        working = lives.at_fullest()
        options = []
        for each, block_of in waiting:
            own, full = working.get(block_of, (None, 0))
            if own is not None and (gap := own.gap(each.result, each.taken, full)) is not None:
                options.append((gap.freed / max(each.seconds * own.runs, _LEAST_S), each, gap))
        if not options:
            break
        _, best, gap = max(options, key=lambda option: option[0])
        gap.lives.apply(gap)
        in_a_row = best.taken, best.result
        waiting = [
            (each, block_of)
            for each, block_of in waiting
            if each is not best and each.result not in in_a_row and each.taken not in in_a_row[1:]
        ]
        found.append((best, gap))
    return found


def write(gap: Gap, platform: str, converted: Callable[[ir.Value], ir.Value]) -> None:
    """Writes a conversion once more behind a gap, by `converted`, and gives its result to the uses there."""
    with ir.InsertionPoint(gap.before), gap.before.location:
        later = _later_on_cpu if platform in (CPU, GLOO) else _later
        result = converted(later(gap.source, gap.awaited))
    for user, number in gap.uses:
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


_WAITING = ("xor", "broadcast_in_dim", "convert", "subtract", "maximum", "popcnt")  # from the last op to the first


def without_waiting(module: ir.Module) -> None:
    """Has the users of tiles that wait, as `write` makes them for CPU devices, take the tiles that these are made of.

    They have the same values. Ops that take the bits of floats keep a module from having floats of another size.
    """
    for op in ops_in(module.operation):
        if op.name == "stablehlo.bitcast_convert" and (tile := _made_to_wait(op)) is not None:
            op.results[0].replace_all_uses_with(tile)


def _made_to_wait(op: ir.Operation) -> ir.Value | None:
    """Returns the tile of which `_later_on_cpu` has made floats by an op; None for another op."""
    same = above = op.operands[0]
    for name in _WAITING:
        if isinstance(above.owner, ir.Block) or above.owner.operation.name != f"stablehlo.{name}":
            return None
        above = above.owner.operation.operands[-1 if name == "xor" else 0]
    bits = same.owner.operation.operands[0]
    if isinstance(bits.owner, ir.Block) or bits.owner.operation.name != "stablehlo.bitcast_convert":
        return None
    tile = bits.owner.operation.operands[0]
    return tile if tile.type == op.results[0].type else None


def _as_integers(tile: ir.Value) -> ir.Value:
    """Returns a tile of which each float is an integer with its bits."""
    kind = ir.RankedTensorType(tile.type)
    if isinstance(kind.element_type, ir.IntegerType):
        return tile
    return stablehlo.bitcast_convert(_array(kind.shape, _integer(bits_of(kind))), tile)


def _integer(bits: int) -> ir.IntegerType:
    return ir.IntegerType.get_signless(bits)


def _array(shape: Sequence[int], element: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(shape, element)
