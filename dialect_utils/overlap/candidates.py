# SPDX-License-Identifier: Apache-2.0
"""Collectives whose tile is the operand or the result of products, and the modelled time of both as a pipeline.

| pattern                | travels                   | of the product, block by block              |
|------------------------|---------------------------|---------------------------------------------|
| all_gather, product    | the tile, around a ring   | an operand: each block when it is there     |
| all_to_all, product    | a part of the tile each   | an operand: each part when it is there      |
| product, reduce_scatter| a sum, around a ring      | the result: the term for where the sum goes |
| product, all_to_all    | a part of the result each | the result: the part for who gets it        |
| product, all_reduce    | a sum, around a ring      | as before a reduce_scatter; then a gather   |

A lookup of rows in a table, before a collective, is cut as a product is.

Between a collective and the products that take its tile there may be conversions of floating-point numbers, and
transposes; the tile may be used as a whole, too, and is then put together from its blocks. Of products before a
collective there may be several, and other ops between (`cones`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from reshard.synthesis.common.numbers import counted
from reshard.synthesis.forms.platforms import TPU
from reshard.synthesis.hierarchy.redistributions import REDUCING, InGroups
from reshard.synthesis.network.cost import collective_time_s, crossed_level, places_of
from reshard.synthesis.network.link_sharing import shared_by_permutes
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.overlap.pipelines import (
    COMPUTING,
    IN_ANOTHER_SHAPE,
    LINK,
    Span,
    end_s,
    gathered,
    one_after_the_other,
    scattered,
    swapped,
)
from reshard.synthesis.overlap.rings import Hops, Pair, Rings, nearest
from reshard.synthesis.programs.traffic import Collective

from ..hierarchy.explicit_collectives import ExplicitCollective, NotPlannable, explicit_collectives
from ..ir.ops import shape_of, short_name
from ..platform.bindings import ir
from ..platform.typed import present
from .blocks import TRANSPOSE, permutation_of
from .cones import DOT, Cone, Made
from .products import DotProduct, Role, Shape

_GRIDS = frozenset({"ring", "torus"})  # each direction of a connection carries its own blocks
_WORTH_BOTH_WAYS = 1.9  # of a hop, that one each way takes less
_CHAINS = 2
_BLOCKS_HELD = 4  # of an operand, at once: two that travel, at both ends
_SUMS_BITS = 32
_BLOCKS_SLOWER = 1.1  # than the same operations in one product: compilers tile large ones better, and fuse more
# The scheduler of TPUs' compiler prices products so many times as long as they take, and starts a hop of a ring as late
# as it hides behind one by that price (docs/overlap.md).
_PRICE_OF_PRODUCTS = 3
# There, blocks of a result are written by ops of their own: the products' code has read and written them once more, and
# the zeros that they take the place of.
_WRITTEN_APART = 3
_CONVERT = "stablehlo.convert"
_AFTER, _BEFORE = ("all_gather", "all_to_all"), ("reduce_scatter", "all_to_all", "all_reduce")


@dataclass(frozen=True, slots=True)
class Use:
    """A product, and its operand that a collective makes."""

    product: DotProduct
    operand: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A collective, and the products that take its tile, or the products and lookups that make it.

    Attributes:
      uses: the products that take it, and `conversions` the ops between, in the order of the data; empty if the
        products of `made_by` make it.
      is_used_whole: whether something else than products takes it, too.
      reduced: the all_reduce, if the candidate is the reduce_scatter that is half of it.
    """

    collective: ExplicitCollective
    uses: tuple[Use, ...] = ()
    made_by: Cone | None = None
    conversions: tuple[ir.Operation, ...] = ()
    is_used_whole: bool = False
    reduced: ExplicitCollective | None = None

    @property
    def kind(self) -> str:
        return self.collective.in_groups.kind

    @property
    def stock(self) -> ExplicitCollective:
        """Returns the collective as the module has it."""
        return self.reduced or self.collective

    @property
    def members(self) -> int:
        return self.collective.in_groups.members

    @property
    def tile_dim(self) -> int:
        """Returns the dimension of the collective's tile along which blocks are apart."""
        found = self.collective.in_groups
        return found.joined if self.uses and self.kind == "all_to_all" else found.dim

    @property
    def dim(self) -> int:
        """Returns that dimension of the products' operand, behind transposes."""
        dim = self.tile_dim
        for op in self.conversions:
            if op.name == TRANSPOSE:
                dim = permutation_of(op).index(dim)
        return dim

    @property
    def products(self) -> tuple[Made, ...]:
        if self.made_by is not None:
            return tuple(product for product, _ in self.made_by.products)
        return tuple(use.product for use in self.uses)

    @property
    def may_round(self) -> bool:
        """Returns whether floating-point numbers are added in another order."""
        if self.kind in REDUCING:
            return self.collective.may_round
        is_summed = any(self.role(use).kind == "contracted" for use in self.uses)
        return is_summed and any(not isinstance(use.product.element_type, ir.IntegerType) for use in self.uses)

    def role(self, use: Use) -> Role:
        return use.product.role(use.operand, self.dim)

    def sum_bytes(self, use: Use) -> int:
        """Returns the bytes of sums beside the result: they are added up as float32 at least."""
        if self.role(use).kind != "contracted":
            return 0
        result = use.product.sized(*use.product.shapes)
        is_narrow = result.bits[2] < _SUMS_BITS
        return 2 * result.result_bytes * _SUMS_BITS // result.bits[2] if is_narrow else result.result_bytes

    @property
    def word(self) -> str:
        """Returns "product" if there is any, else "lookup"."""
        words = [made.word for made in self.products]
        return DotProduct.word if DotProduct.word in words else words[0]

    @property
    def pattern(self) -> str:
        """Returns in words what becomes of the products of blocks."""
        if self.made_by is not None:
            shaped = IN_ANOTHER_SHAPE if self.word == DotProduct.word and self.made_by.is_reshaped else ""
            return f"{self.word}{shaped}, {self.stock.in_groups.kind}"
        are_added = all(self.role(use).kind == "contracted" for use in self.uses)
        return f"{self.kind}, product {'added up' if are_added else 'put together'}"

    @property
    def text(self) -> str:
        """Returns the pattern in words."""
        words = dict.fromkeys(made.word for made in self.products)
        products = " and ".join(words)
        if len(self.products) > len(words):
            products = f"{len(self.products)} {' and '.join(f'{word}s' for word in words)}"
        return f"{self.kind}, {products}" if self.uses else f"{products}, {self.stock.in_groups.kind}"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a candidate is cut.

    Attributes:
      rings: of members. hops: of blocks around them; None if members swap blocks directly.
      chains: the number of parts in which a sum travels.
      spans, stock_spans: of the collective and its products, as a pipeline and one after the other, as modelled.
      whole_bytes, pipelined_bytes: what either holds between them: the larger tile, or blocks and sums.
      received_bytes: by a device.
    """

    candidate: Candidate
    rings: Rings
    hops: Hops | None
    chains: int
    spans: tuple[Span, ...]
    stock_spans: tuple[Span, ...]
    whole_bytes: int
    pipelined_bytes: int
    received_bytes: int

    @property
    def whole_s(self) -> float:
        return end_s(self.stock_spans)

    @property
    def pipelined_s(self) -> float:
        return end_s(self.spans)

    @property
    def stock(self) -> ExplicitCollective:
        """Returns the collective as the module has it."""
        return self.candidate.stock

    @property
    def ops(self) -> tuple[ir.Operation, ...]:
        """Returns what no other pipeline may take the place of."""
        return (self.stock.op, *(product.op for product in self.candidate.products))

    @property
    def pattern(self) -> str:
        """Returns in words what pipelines are alike for a compiler."""
        return f"{self.candidate.pattern}, {self.candidate.members} blocks"

    @property
    def form(self) -> str:
        return "as a pipeline"

    @property
    def text(self) -> str:
        return self.candidate.text

    @property
    def way(self) -> str:
        """Returns in words how blocks travel."""
        members = self.candidate.members
        if self.hops is None:
            return f"{counted(members - 1, 'block')} to and from each member"
        backward = f", {self.hops.backward} back" if self.hops.backward else ""
        last = ", then an all_gather" if self.candidate.reduced is not None else ""
        return f"around a ring of {members}: {counted(self.hops.forward, 'hop')}{backward}{last}"

    @property
    def sends(self) -> int:
        """Returns the number of its collectives."""
        return (self.candidate.members - 1) * self.chains + (self.candidate.reduced is not None)


def candidates(root: ir.Operation) -> Iterator[tuple[ir.Operation, Candidate | NotPlannable]]:
    """Yields the collectives in manual computations of a module that are next to products, or why they cannot be cut.

    A product between two collectives is in the candidates of both.
    """
    for op, found in list(explicit_collectives(root)):
        if not neighbour_of(op):
            continue
        if isinstance(found, NotPlannable):
            yield op, found
            continue
        try:
            yield op, _candidate(found)
        except NotPlannable as reason:
            yield op, reason


def pipeline_of(candidate: Candidate, topology: Topology) -> Pipeline:
    """Returns how a candidate is cut on a network, with the modelled times."""
    collective = candidate.collective
    devices, block_bytes = collective.mesh.devices, _block_bytes(candidate)
    flat_s = collective_time_s(topology, devices, candidate.stock.flat)

    def hop_s(pairs) -> float:
        return collective_time_s(
            topology, devices, Collective("collective_permute", block_bytes, block_bytes, pairs=pairs)
        )

    block_s, whole_s = _products_s(candidate, topology)
    block_s *= _BLOCKS_SLOWER
    n, chains, hops = candidate.members, 1, None
    if candidate.kind == "all_to_all":
        rings = Rings(collective.groups, tuple(range(n)))
        sends = [hop_s(rings.pairs(offset)) for offset in range(1, n)]
        spans = swapped(block_s, sends, is_sent=not candidate.uses)
    else:
        rings, hop, both_ways = _rings(candidate, topology, hop_s)
        hops = Hops.of(n, both_ways=both_ways)
        if candidate.uses:
            is_late = topology.platform == TPU and _PRICE_OF_PRODUCTS * block_s >= hop
            spans = gathered(hops, block_s, hop, is_late=is_late)
        else:
            chains = 1 if math.gcd(*present(candidate.made_by).sizes) % (_CHAINS * n) else _CHAINS
            add_s = 3 * block_bytes / topology.memory_bandwidth_bytes_per_s
            spans = scattered(hops, block_s, add_s, hop, chains)
    held_bytes = _BLOCKS_HELD * block_bytes + sum(map(candidate.sum_bytes, candidate.uses))
    held_bytes += collective.flat.bytes_after * candidate.is_used_whole
    received_bytes = block_bytes * (n - 1)
    if candidate.reduced is not None:
        gather = Collective("all_gather", block_bytes, block_bytes * n, groups=collective.groups)
        gather_s, now_s = collective_time_s(topology, devices, gather), end_s(spans)
        spans.append(Span(LINK, now_s, now_s + gather_s, "all_gather"))
        held_bytes, received_bytes = held_bytes + gather.bytes_after, 2 * received_bytes
    return Pipeline(
        candidate, rings, hops, chains, tuple(spans), _as_it_is(candidate, flat_s, whole_s),
        collective.flat.largest_tile_bytes, held_bytes, received_bytes,
    )  # fmt: skip


def _rings(
    candidate: Candidate, topology: Topology, hop_s: Callable[[Sequence[Pair]], float]
) -> tuple[Rings, float, bool]:
    """Returns the rings around which blocks travel, the time of a hop, and whether they go both ways at once: where
    both share links, a hop takes longer, and is half as many.

    Args:
      hop_s: the time of a permute of a block, from its pairs.
    """
    collective = candidate.collective
    devices = collective.mesh.devices
    level = crossed_level(topology, devices, collective.flat)
    if level is None or level.kind not in _GRIDS:
        rings = nearest(collective.groups, hop_s)
        return rings, hop_s(rings.pairs(1)), False

    def both_s(pairs: Sequence[Pair]) -> float:
        back = [(there, here) for here, there in pairs]
        return hop_s(pairs) * (1 + shared_by_permutes(topology, devices, pairs, back))

    rings = nearest(collective.groups, both_s, places_of(topology, devices, collective.groups[0]))
    one_s, both = hop_s(rings.pairs(1)), both_s(rings.pairs(1))
    return (rings, both, True) if both < _WORTH_BOTH_WAYS * one_s else (rings, one_s, False)


def _as_it_is(candidate: Candidate, collective_s: float, products_s: float) -> tuple[Span, ...]:
    parts = [(LINK, collective_s, candidate.stock.in_groups.kind), (COMPUTING, products_s, candidate.products[0].word)]
    return tuple(one_after_the_other(*(parts if candidate.uses else reversed(parts))))


def neighbour_of(op: ir.Operation) -> str:
    """Returns what a collective's tile is an operand or the result of: "product" or "lookup"; empty if of neither."""
    kind = short_name(op)
    if kind in _AFTER:
        tile, _ = _after(op.results[0])
        if any(user.name == DOT for user in _users(tile)):
            return DotProduct.word
    if kind in _BEFORE and len(op.operands) == 1:
        for dim in range(len(shape_of(op.operands[0].type) or ())):
            if near := Cone.of(op.operands[0], op.block, dim, 1).near:
                return near[0].word
    return ""


def _after(value: ir.Value) -> tuple[ir.Value, tuple[ir.Operation, ...]]:
    """Returns what conversions and transposes make of a value, as long as nothing else uses it, and these ops."""
    users = _users(value)
    if len(users) != 1 or not _is_passed_through(users[0]):
        return value, ()
    last, ops = _after(users[0].results[0])
    return last, (users[0], *ops)


def _is_passed_through(op: ir.Operation) -> bool:
    """Returns whether blocks of an op's operand make blocks of its result."""
    return op.name == TRANSPOSE or (op.name == _CONVERT and _is_float(op.operands[0]))


def _users(value: ir.Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def _element(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type


def _is_float(value: ir.Value) -> bool:
    return isinstance(ir.RankedTensorType(value.type).element_type, ir.FloatType)


def _candidate(collective: ExplicitCollective) -> Candidate:
    """Returns the candidate of a collective next to products. Raises: NotPlannable."""
    if _element(collective.op.operands[0]) != _element(collective.op.results[0]):
        raise NotPlannable("its result has other elements than its operand")
    if collective.in_groups.members < 2:
        raise NotPlannable("its groups are single devices")
    if collective.in_groups.kind in REDUCING and collective.reduction != "sum":
        raise NotPlannable("its reduction is no sum")
    tile, conversions = _after(collective.op.results[0])
    if collective.in_groups.kind in _AFTER and any(user.name == DOT for user in _users(tile)):
        uses, is_used_whole = _uses(tile, collective.op)
        return _checked(Candidate(collective, uses, None, conversions, is_used_whole))
    found = [(half, Cone.of(half.op.operands[0], half.op.block, half.in_groups.dim, half.in_groups.members))
             for half in _halves(collective)]  # fmt: skip
    half, cone = next((each for each in found if each[1].products), found[0])
    if not cone.products:
        _, why_not = next(iter(cone.left_out), (None, "each of its blocks is made of all that is looked up"))
        raise NotPlannable(why_not)
    return _checked(Candidate(half, made_by=cone, reduced=None if half is collective else collective))


def _halves(collective: ExplicitCollective) -> list[ExplicitCollective]:
    """Returns a collective, or what the first half of an all_reduce may be. Raises: NotPlannable."""
    found = collective.in_groups
    if found.kind != "all_reduce":
        return [collective]
    return [replace(collective, in_groups=replace(found, kind="reduce_scatter", dim=dim)) for dim in _divided(found)]


def _divided(reduced: InGroups) -> list[int]:
    """Returns the dimensions in which members can share a tile, best ones first. Raises: NotPlannable."""
    sizes = [(dim, size) for dim, size in enumerate(reduced.tile) if size and size % reduced.members == 0]
    if not sizes:
        raise NotPlannable("its members divide no dimension of its tile")
    return [dim for dim, size in sorted(sizes, key=lambda each: each[1] % (_CHAINS * reduced.members) > 0)]


def _checked(candidate: Candidate) -> Candidate:
    """Returns a candidate. Raises: NotPlannable if the sizes of its products are unknown."""
    for product in candidate.products:
        types = [value.type for value in (*product.op.operands, product.op.results[0])]
        if not all(ir.RankedTensorType(kind).has_static_shape for kind in types):
            raise NotPlannable(f"the size of the {product.word} next to it is unknown")
        try:
            product.sized(*product.shapes)
        except ValueError as problem:  # elements without a width
            raise NotPlannable(str(problem)) from None
    return candidate


def _uses(tile: ir.Value, op: ir.Operation) -> tuple[tuple[Use, ...], bool]:
    """Returns the products that use a tile, and whether something else does. Raises: NotPlannable."""
    found, is_used_whole = [], False
    for use in tile.uses:
        owner = use.owner.operation
        if owner.name == DOT and owner.block == op.block:
            found.append(Use(DotProduct(owner), use.operand_number))
        else:
            is_used_whole = True
    if not found:
        raise NotPlannable("its products are in another block")
    if len({use.product.op for use in found}) < len(found):
        raise NotPlannable("a product multiplies its tile with itself")
    return tuple(reversed(found)), is_used_whole  # the uses of a value begin with the last


def _block_bytes(candidate: Candidate) -> int:
    """Returns the bytes of what is sent at once."""
    flat = candidate.collective.flat
    parts = 1 if candidate.kind == "all_gather" else candidate.members
    return -(-flat.bytes_before // parts)


def _products_s(candidate: Candidate, topology: Topology) -> tuple[float, float]:
    """Returns the time of the products of one block, and of those as the program has them."""
    block_s = whole_s = 0.0
    for use in candidate.uses:
        product, role = use.product, candidate.role(use)
        whole_s += product.sized(*product.shapes).seconds(topology)
        shapes = list(product.shapes)
        shapes[use.operand] = _part(shapes[use.operand], candidate.dim, candidate.members)
        if role.other is not None:
            shapes[1 - use.operand] = _part(shapes[1 - use.operand], role.other, candidate.members)
        block = product.sized(*shapes)
        block_s += block.seconds(topology, 2 * block.result_bytes)  # a sum so far, or what it is written into
        if topology.platform == TPU and role.kind != "contracted":
            block_s += _WRITTEN_APART * block.result_bytes / topology.memory_bandwidth_bytes_per_s
    for product, dim in candidate.made_by.products if candidate.made_by else ():
        whole_s += product.sized(*product.shapes).seconds(topology)
        shapes = list(product.shapes)
        for operand, of_operand in product.origins(dim):
            shapes[operand] = _part(shapes[operand], of_operand, candidate.members)
        block_s += product.sized(*shapes).seconds(topology)
    return block_s, whole_s


def _part(shape: Shape, dim: int, parts: int) -> Shape:
    return (*shape[:dim], shape[dim] // parts, *shape[dim + 1 :])
