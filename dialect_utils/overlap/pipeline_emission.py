# SPDX-License-Identifier: Apache-2.0
"""Pipelines of products and travelling blocks, as StableHLO inside of manual computations.

Every hop is a collective_permute, which compilers start and finish apart, with other work between; it is written before
the product that may run meanwhile. Blocks lie where the member says that they came from, a number that differs between
devices: parts of operands are dynamic slices, results are put together by dynamic_update_slice, which works in place.

What one product adds up is added up as float32 at least. Sums that travel are of the collective's own type, and rounded
at each hop, as in a reduce_scatter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from reshard.synthesis.forms.platforms import CPU

from ..emission.exchange_emission import int64s, zeros
from ..emission.per_device import PerDevice
from ..emission.tile_emission import Mark
from ..ir.ops import dense_elements, int32_constant, producer_of, shape_of
from ..platform.bindings import DEVICE_TO_DEVICE, ir, stablehlo
from ..platform.typed import present
from .blocks import TRANSPOSE, along, permutation_of, write_block
from .candidates import Candidate, Pipeline, Use
from .cones import Made
from .products import Shape

_IN_FLIGHT = 2  # parts of an all_to_all; of a sum one each way in each chain


def write_pipeline(pipeline: Pipeline, mark: Mark) -> None:
    """Writes a pipeline in place of a collective and its products, which are erased."""
    candidate = pipeline.candidate
    op = candidate.collective.op
    with ir.InsertionPoint(op), ir.Location.name(mark.name, mark.location):
        writer = _Writer(pipeline, mark)
        if candidate.made_by is not None:
            result = writer.sent()
            op.results[0].replace_all_uses_with(result)
        else:
            blocks = list(writer.arriving(op.operands[0]))
        whole = writer.whole(blocks) if candidate.is_used_whole else None
    for use in candidate.uses:
        with ir.InsertionPoint(use.product.op), ir.Location.name(mark.name, use.product.op.location):
            use.product.op.results[0].replace_all_uses_with(writer.multiplied(use, blocks))
            use.product.op.erase()
    if whole is not None:
        (candidate.conversions[-1] if candidate.conversions else op).results[0].replace_all_uses_with(whole)
    _erase(candidate)


def _erase(candidate: Candidate) -> None:
    if candidate.made_by is not None:
        candidate.collective.op.erase()
        for op in candidate.made_by.ops:
            op.erase()
        return
    for conversion in reversed(candidate.conversions):
        conversion.erase()
    candidate.collective.op.erase()


@dataclass
class _Writer:
    """Writes the ops of one pipeline.

    State: `numbers` has where the blocks of this device lie, computed at the place of the collective; `arrived` what
    permutes have brought so far.
    """

    pipeline: Pipeline
    mark: Mark
    numbers: PerDevice = field(init=False)
    arrived: list[ir.Value] = field(default_factory=list)

    def __post_init__(self):
        self.numbers = PerDevice(self.candidate.collective.mesh.devices)
        self.numbers.prepare(self._numbers())

    @property
    def candidate(self) -> Candidate:
        return self.pipeline.candidate

    # ---- collective, products

    def arriving(self, tile: ir.Value) -> Iterator[tuple[int, ir.Value]]:
        """Yields each block when it is there, with how many positions ahead the member is that had it; own one first.

        What travels next is written before.
        """
        rounds = self._rounds()
        self._write_starts((0, *(offset for offsets in rounds for offset in offsets)))
        held: dict[bool, ir.Value] = {True: tile, False: tile}

        def started(offsets: Sequence[int]) -> list[tuple[int, ir.Value]]:
            return [(offset, self._moved(offset, held, tile)) for offset in offsets]

        yield 0, self._converted(self._own_block(tile))
        moving = started(rounds[0])
        for after in (*rounds[1:], ()):
            here, moving = moving, started(after)
            yield from ((offset, self._converted(block)) for offset, block in here)

    def multiplied(self, use: Use, blocks: Sequence[tuple[int, ir.Value]]) -> ir.Value:
        """Returns the product of an operand that is there block by block."""
        product, role = use.product, self.candidate.role(use)
        other = product.op.operands[1 - use.operand]
        element = _summing(product.element_type) if role.kind == "contracted" else product.element_type
        result: ir.Value | None = None
        for offset, block in blocks:
            part = other if role.other is None else self._part(other, role.other, offset)
            operands = (block, part) if use.operand == 0 else (part, block)
            if self.mark.platform == CPU:  # some of its products of narrow numbers cannot be wide
                operands = [_as(each, element) for each in operands]
            made = product.write(operands, element)
            if role.result is None:
                result = made if result is None else stablehlo.AddOp(result, made).result
            else:
                into = zeros(made, product.result_shape) if result is None else result
                result = self._put(into, made, role.result, offset)
        return _as(present(result), product.element_type)

    def whole(self, blocks: Sequence[tuple[int, ir.Value]]) -> ir.Value:
        """Returns the operand of products, put together from its blocks."""
        result: ir.Value | None = None
        shape = _after_all(self.candidate).shape
        for offset, block in blocks:
            into = zeros(block, tuple(shape)) if result is None else result
            result = self._put(into, block, self.candidate.dim, offset)
        return present(result)

    # ---- product, collective

    def sent(self) -> ir.Value:
        """Returns the result of the collective, whose operand is computed block by block."""
        if self.candidate.kind == "all_to_all":
            return self._swapped()
        part = self._summed()
        return part if self.candidate.reduced is None else self._gathered(part)

    def _summed(self) -> ir.Value:
        hops, chains = present(self.pipeline.hops), range(self.pipeline.chains)
        sums: dict[tuple[int, int], ir.Value] = {}
        for hop in range(max(hops.forward, hops.backward)):
            for chain in chains:
                for way, count in ((1, hops.forward), (-1, hops.backward)):
                    if hop < count:
                        term = self._block(way * (count - hop), chain)
                        sums[way, chain] = self._permuted(self._added(sums.get((way, chain)), term), way)
        totals = []
        for chain in chains:
            total = self._block(0, chain)
            for way in (1, -1):
                total = self._added(sums.get((way, chain)), total)
            totals.append(total)
        return totals[0] if len(totals) == 1 else stablehlo.ConcatenateOp(totals, self.candidate.tile_dim).result

    def _gathered(self, part: ir.Value) -> ir.Value:
        """Returns what all members together have of a sum."""
        collective = self.candidate.collective
        listed = dense_elements(np.array(collective.groups, dtype=np.int64))
        return stablehlo.AllGatherOp(
            [collective.op.results[0].type],
            [part],
            self.candidate.tile_dim,
            listed,
            channel_handle=stablehlo.ChannelHandle.get(next(self.mark.channels), DEVICE_TO_DEVICE),
            use_global_device_ids=True,
        ).results[0]

    def _swapped(self) -> ir.Value:
        candidate = self.candidate
        joined = candidate.collective.in_groups.joined
        shape = tuple(present(shape_of(candidate.collective.op.results[0].type)))
        result: ir.Value | None = None
        for offset in (*range(1, candidate.members), 0):
            block = self._block(offset)
            arrived = self._permuted(block, offset) if offset else block
            result = self._put(zeros(arrived, shape) if result is None else result, arrived, joined, -offset)
        return present(result)

    def _block(self, ahead: int, chain: int = 0) -> ir.Value:
        """Returns the block of the operand that is for the member so many positions ahead, or the part that a chain
        has, as it travels."""
        cone, members = present(self.candidate.made_by), self.candidate.members
        inside, made = set(cone.ops), {each.op: each for each, _ in cone.products}

        def block_of(value: ir.Value, dim: int) -> ir.Value:
            op = producer_of(value)
            if op is None or op not in inside:
                return self._part(value, dim, ahead, chain)
            if op in made:
                return self._block_of_product(made[op], dim, ahead, chain)
            cut = zip(op.operands, present(along(op, dim, members)), strict=True)
            operands = [each if of_operand is None else block_of(each, of_operand) for each, of_operand in cut]
            return write_block(op, operands, dim, members * self.pipeline.chains)

        return block_of(cone.root, self.candidate.tile_dim)

    def _block_of_product(self, product: Made, dim: int, ahead: int, chain: int) -> ir.Value:
        operands = list(product.op.operands)
        for operand, of_operand in product.origins(dim):
            waits = self.pipeline.hops is None or not product.has_price
            whole = self._after_others(operands[operand]) if waits else operands[operand]
            operands[operand] = self._part(whole, of_operand, ahead, chain)
        return product.write(operands)

    @staticmethod
    def _added(one: ir.Value | None, term: ir.Value) -> ir.Value:
        return term if one is None else stablehlo.AddOp(one, term).result

    # ---- blocks

    def _rounds(self) -> list[tuple[int, ...]]:
        """Returns the offsets of the blocks that arrive at the same time."""
        if self.pipeline.hops is not None:
            return list(self.pipeline.hops.rounds())
        return [(-offset,) for offset in range(1, self.candidate.members)]

    def _own_block(self, tile: ir.Value) -> ir.Value:
        if self.pipeline.hops is not None:
            return tile
        return self._part(tile, self.candidate.collective.in_groups.dim, 0)

    def _moved(self, offset: int, held: dict[bool, ir.Value], tile: ir.Value) -> ir.Value:
        """Returns the block of the member `offset` positions ahead, which arrives from a neighbour or from there."""
        if self.pipeline.hops is None:
            part = self._part(self._after_others(tile), self.candidate.collective.in_groups.dim, -offset)
            return self._permuted(part, -offset)
        is_forward = offset < 0
        held[is_forward] = self._permuted(held[is_forward], 1 if is_forward else -1)
        return held[is_forward]

    def _permuted(self, value: ir.Value, offset: int) -> ir.Value:
        pairs = dense_elements(np.array(self.pipeline.rings.pairs(offset), dtype=np.int64))
        channel = stablehlo.ChannelHandle.get(next(self.mark.channels), DEVICE_TO_DEVICE)
        self.arrived.append(stablehlo.CollectivePermuteOp(value, pairs, channel_handle=channel).result)
        return self.arrived[-1]

    def _after_others(self, tile: ir.Value) -> ir.Value:
        """Returns a tile whose next part is cut out once few enough others travel: each takes memory at both ends."""
        hops = self.pipeline.hops
        most = _IN_FLIGHT if hops is None else max(_IN_FLIGHT, self.pipeline.chains * (2 if hops.backward else 1))
        if len(self.arrived) < most:
            return tile
        return stablehlo.OptimizationBarrierOp([tile, self.arrived[-most]]).results[0]

    def _converted(self, block: ir.Value) -> ir.Value:
        for op in self.candidate.conversions:
            if op.name == TRANSPOSE:
                block = stablehlo.TransposeOp(block, permutation_of(op)).result
            else:
                block = _as(block, ir.RankedTensorType(op.results[0].type).element_type)
        return block

    def _part(self, value: ir.Value, dim: int, ahead: int, chain: int = 0) -> ir.Value:
        """Returns the part of a value along a dimension that belongs to the member so many positions ahead, or of that
        the part of a chain."""
        sizes = list(present(shape_of(value.type)))
        size = sizes[dim] // self.candidate.members
        sizes[dim] = size // self.pipeline.chains
        starts = [int32_constant(0)] * len(sizes)
        starts[dim] = self._start(ahead, size)
        if chain:
            starts[dim] = stablehlo.AddOp(starts[dim], int32_constant(chain * sizes[dim])).result
        return stablehlo.DynamicSliceOp(value, starts, int64s(sizes)).result

    def _put(self, into: ir.Value, block: ir.Value, dim: int, ahead: int) -> ir.Value:
        sizes: Shape = tuple(present(shape_of(block.type)))
        starts = [int32_constant(0)] * len(sizes)
        starts[dim] = self._start(ahead, sizes[dim])
        return stablehlo.DynamicUpdateSliceOp(into, block, starts).result

    def _start(self, ahead: int, size: int) -> ir.Value:
        return self.numbers.value(*self._members(ahead, size))

    def _write_starts(self, offsets: Sequence[int]) -> None:
        """Writes where the blocks of products lie before the first product, whichever that is."""
        tile = self.candidate.collective.in_groups
        for offset in offsets:
            self._start(offset, tile.result[self.candidate.tile_dim] // tile.members)

    def _members(self, ahead: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        rings = self.pipeline.rings
        return np.array(rings.devices), np.array(rings.members_at(ahead)) * size

    def _numbers(self) -> Iterator[tuple[np.ndarray, np.ndarray, None]]:
        """Yields all starts that the pipeline asks for."""
        candidate = self.candidate
        tile = candidate.collective.in_groups
        sizes = {tile.result[candidate.tile_dim] // (1 if candidate.kind == "reduce_scatter" else tile.members)}
        if candidate.kind == "all_to_all":
            sizes = {tile.tile[tile.dim] // tile.members, tile.result[tile.joined] // tile.members}
        if candidate.made_by is not None:
            sizes |= {size // tile.members for size in candidate.made_by.sizes}
        for ahead in range(1 - tile.members, tile.members):
            for size in sizes:
                yield (*self._members(ahead, size), None)


def _after_all(candidate: Candidate) -> ir.RankedTensorType:
    """Returns the type of what the products of a candidate take, as a whole."""
    last = candidate.conversions[-1] if candidate.conversions else candidate.collective.op
    return ir.RankedTensorType(last.results[0].type)


def _summing(element: ir.Type) -> ir.Type:
    """Returns the type in which products are added up: float32 for narrower floating-point numbers."""
    return ir.F32Type.get() if isinstance(element, ir.FloatType) and element.width < 32 else element


def _as(value: ir.Value, element: ir.Type) -> ir.Value:
    """Returns a value in elements of another type."""
    kind = ir.RankedTensorType(value.type)
    if kind.element_type == element:
        return value
    return stablehlo.ConvertOp(ir.RankedTensorType.get(kind.shape, element), value).result
