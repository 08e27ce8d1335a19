# SPDX-License-Identifier: Apache-2.0
"""All layouts of all values of a program, each priced anew from the program: a second reading of what a layout costs.

Of the code that states and solves layout problems this takes: which ops tie and which may add partial sums
(`clusters_of`), the prices of conversions (`prices_for`), and the places of ops on the timeline (`Timeline`). There are
no clusters, no nodes and no matrices here: a value has a layout, an op a way, and a tensor that several ops take a
layout in between. Layouts that disagree across an op that ties are thrown out; or they are kept, with conversions
before and behind that op, to see what is lost by ties.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from reshard.synthesis.assignment.clusters import clusters_of
from reshard.synthesis.assignment.factored_program import Dims, FactoredOp, FactoredProgram
from reshard.synthesis.assignment.memory import Timeline
from reshard.synthesis.assignment.moves import NOWHERE, PARTIAL, prices_for
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology

from .stated import Least

Places = tuple[int, ...]  # for each axis the dimension, or for a way the factor, that it splits; NOWHERE; PARTIAL
Key = tuple[str, int]  # "value" or "shared" and a tensor, or "way" and an op
Span = tuple[int, int]

_NEXT_TO_NOTHING = 1e-3  # of the time to read an argument or result
_BEHIND = 1e-3  # of that, for each dimension that stands before one that is split
_WORTH_SHARING = 1024  # bytes
_ROUNDING = 1e-6  # bytes
_IN_LOOPS = {"reduce", "broadcast_in_dim", "reshape", "iota", "convert"}  # of their neighbours: they write nothing
_IN_PLACE = {"dynamic_update_slice", "scatter"}


@dataclass(frozen=True, slots=True)
class _Conversion:
    """A tensor that may be converted.

    Attributes:
      op: the one that takes it, or makes it; None if several share the conversion. number: of the operand, or result.
      source, target: the choices at both ends.
    """

    tensor: int
    op: int | None
    number: int
    source: Key
    target: Key

    @property
    def is_made(self) -> bool:
        """Returns whether it is a result of the op."""
        return self.source[0] == "way"


@dataclass
class _Rows:
    """Combinations: one row each, one column per choice, with the number of what is chosen in its `domain`."""

    domains: dict[Key, list[Places]] = field(default_factory=dict)
    rows: np.ndarray = field(default_factory=lambda: np.zeros((1, 0), np.int16))

    def add(self, key: Key, domain: list[Places]) -> None:
        count, size = len(self.rows), len(domain)
        chosen = np.tile(np.arange(size, dtype=np.int16), count)[:, None]
        self.rows = np.concatenate([np.repeat(self.rows, size, axis=0), chosen], axis=1)
        self.domains[key] = domain

    def of(self, key: Key) -> np.ndarray:
        return self.rows[:, list(self.domains).index(key)]

    def looked_up(self, keys: Sequence[Key], value: Callable[..., float]) -> np.ndarray:
        """Returns for each row the value of what is chosen for some keys."""
        table = _table([self.domains[key] for key in keys], value)
        return table[tuple(self.of(key) for key in keys)]


def _table(domains: Sequence[list[Places]], value: Callable[..., float]) -> np.ndarray:
    flat = [value(*choice) for choice in itertools.product(*domains)]
    return np.array(flat, dtype=float).reshape([len(each) for each in domains])


class FromProgram:
    """The layouts of a program on a mesh, by value.

    Args:
      is_tied: whether the values at an op that ties have one layout. Otherwise it has ways and conversions, as others
        have. What its loop then writes for a conversion to read costs nothing: the least cost is a bound.
    """

    def __init__(self, program: FactoredProgram, mesh: Mesh, topology: Topology, is_tied: bool = True):
        self.program, self.mesh, self.topology = program, mesh, topology
        self.sizes = tuple(size for _, size in mesh.axes)
        self._clusters, self._prices = clusters_of(program), prices_for(topology, mesh)
        self._ties = [op for number, op in enumerate(program.ops) if number in self._clusters.ties]
        self._others = {n: op for n, op in enumerate(program.ops) if n not in self._clusters.ties}
        self._with_ways = self._others if is_tied else dict(enumerate(program.ops))
        self._is_tied = is_tied
        self._kept = {*program.arguments, *program.results}
        self._timeline = Timeline(program)
        self._seconds: dict[Hashable, float] = {}

    def least(self, limit: int | None) -> Least:
        """Returns the least cost of all combinations; with a limit, of those that keep it."""
        rows = self._layouts()
        for tensor in self._shared():
            rows.add(("shared", tensor), self._domain(tensor, is_free=True))
        if limit is not None:
            for number, op in self._with_ways.items():
                rows.add(("way", number), self._ways(number, op))
        total = np.zeros(len(rows.rows))
        for tensor in range(len(self.program.tensors)):
            total += rows.looked_up([("value", tensor)], lambda layout, tensor=tensor: self._value_s(tensor, layout))
        for each in self._conversions():
            if each.source in rows.domains and each.target in rows.domains:
                total += rows.looked_up([each.source, each.target], self._converting(each))
        for number, op in self._with_ways.items():
            if limit is not None:
                total += rows.looked_up([("way", number)], lambda way, number=number: self._op_s(number, way))
            else:
                total += self._best_way(number, op, rows)
        possible = np.isfinite(total)
        if limit is not None and len(total):
            possible &= self._most_used(rows) <= limit + _ROUNDING
        return Least.of(total, possible)

    def combinations(self) -> int:
        """Returns how many combinations of layouts there are at most, whether they agree or not."""
        values = (len(self._domain(tensor)) for tensor in range(len(self.program.tensors)))
        return math.prod(values) * math.prod(len(self._domain(tensor, is_free=True)) for tensor in self._shared())

    # ---- choices

    def _layouts(self) -> _Rows:
        """Returns all layouts of all values that agree across the ops that tie."""
        rows, left = _Rows(), list(self._ties) if self._is_tied else []
        for tensor in range(len(self.program.tensors)):
            rows.add(("value", tensor), self._domain(tensor))
            for op in [each for each in left if all(("value", t) in rows.domains for t in _tensors(each))]:
                left.remove(op)
                self._agree(op, rows)
        return rows

    def _agree(self, op: FactoredOp, rows: _Rows) -> None:
        """Throws out what splits the factors of the tensors of an op differently."""

        def factors(dims: Dims, layout: Places) -> Places:
            alone = [next((each for each in factors if op.sizes[each] > 1), NOWHERE) for factors in dims]
            return tuple(alone[dim] if dim >= 0 else dim for dim in layout)

        numbers: dict[Places, int] = {}
        found = []
        for tensor, dims in _with_dims(op):
            found.append(
                rows.looked_up(
                    [("value", tensor)],
                    lambda layout, dims=dims: numbers.setdefault(factors(dims, layout), len(numbers)),
                )
            )
        rows.rows = rows.rows[np.all([each == found[0] for each in found], axis=0)]

    def _domain(self, tensor: int, is_free: bool = False) -> list[Places]:
        """Returns the layouts of a tensor; `is_free`: as several ops share it, whatever somebody has pinned."""
        shape = self.program.tensors[tensor].shape
        uneven = self._uneven()[tensor]
        partial = [PARTIAL] if self._may_be_partial(tensor) and not is_free else []
        found = []
        for places in itertools.product([NOWHERE, *partial, *range(len(shape))], repeat=len(self.sizes)):
            used = {dim for dim in places if dim >= 0}
            if all(shape[dim] > 1 and self._may_split(shape[dim], places, dim, dim in uneven) for dim in used):
                found.append(places)
        for pinned_tensor, pinned in () if is_free else self.program.pinned:
            if pinned_tensor == tensor:
                found = [places for places in found if self._keeps(places, pinned)]
        return found

    def _keeps(self, places: Places, pinned: Sequence[tuple[str, ...] | None]) -> bool:
        split = [{name for name, at in zip(self.mesh.axis_names, places) if at == dim} for dim in range(len(pinned))]
        return all(axes is None or set(axes) == some for axes, some in zip(pinned, split))

    def _may_split(self, size: int, places: Places, dim: int, is_uneven: bool) -> bool:
        """Returns whether the axes at a place may split a size: evenly, or so that no tile is empty."""
        counts = [count for count, at in zip(self.sizes, places) if at == dim]
        tiles = math.prod(counts)
        if size % tiles == 0:
            return True
        tile = -(-size // tiles)
        return is_uneven and tile * (tiles - 1) < size

    def _may_be_partial(self, tensor: int) -> bool:
        return tensor in self._clusters.partial and not any(tensor in _tensors(op) for op in self._ties)

    def _uneven(self) -> list[set[int]]:
        """Returns for each tensor the dimensions along which elements move, of it or of tensors that are tied to it."""
        found: list[set[int]] = [set() for _ in self.program.tensors]
        for op in self.program.ops:
            for tensor, dims in _with_dims(op):
                found[tensor] |= {dim for dim, factors in enumerate(dims) if factors and op.moved.issuperset(factors)}
        even = {*self._kept}
        while True:
            before = [len(each) for each in found], len(even)
            for op in self._ties:
                split = {f for tensor, dims in _with_dims(op) for dim in found[tensor] for f in dims[dim]}
                for tensor, dims in _with_dims(op):
                    found[tensor] |= {dim for dim, factors in enumerate(dims) if split & {*factors}}
                if even & {*_tensors(op)}:
                    even |= {*_tensors(op)}
            if before == ([len(each) for each in found], len(even)):
                return [set() if tensor in even else each for tensor, each in enumerate(found)]

    def _ways(self, number: int, op: FactoredOp) -> list[Places]:
        """Returns the ways of an op. Only the leading factor of a dimension can be split."""
        behind = set()
        for _, dims in _with_dims(op):
            for factors in dims:
                behind |= {*[each for each in factors if op.sizes[each] > 1][1:]}
        able = [f for f, size in enumerate(op.sizes) if size > 1 and f not in behind and f not in op.whole]
        partial = [PARTIAL] if number in self._clusters.sums else []
        return [
            places
            for places in itertools.product([NOWHERE, *partial, *able], repeat=len(self.sizes))
            if all(self._may_split(op.sizes[f], places, f, f in op.moved) for f in {*places} if f >= 0)
        ]

    # ---- conversions

    def _takers(self, tensor: int) -> list[int]:
        return [number for number, op in self._others.items() if tensor in op.operands]

    def _shared(self) -> list[int]:
        """Returns the tensors of which several ops share a conversion."""
        large = [n for n, each in enumerate(self.program.tensors) if each.bytes >= _WORTH_SHARING]
        return [n for n in large if sum(self._shares(op, n) for op in self._takers(n)) > 1]

    def _shares(self, number: int, tensor: int) -> bool:
        runs = self.program.tensors[tensor].runs
        return self._runs(number, tensor) == (runs, runs)

    def _runs(self, number: int, tensor: int) -> tuple[int, int]:
        """Returns how often an operand is converted to smaller tiles, and to larger ones."""
        op, value = self.program.ops[number], self.program.tensors[tensor]
        made = sum(self.program.tensors[each].bytes for each in op.results)
        once = op.runs if op.name == "copy" else min(op.runs, value.runs)
        return once, op.runs if made < value.bytes and not op.flops else once

    def _conversions(self) -> Iterator[_Conversion]:
        shared = self._shared()
        for tensor in shared:
            yield _Conversion(tensor, None, 0, ("value", tensor), ("shared", tensor))
        for number, op in self._with_ways.items():
            for at, tensor in enumerate(op.operands):
                is_shared = number in self._others and tensor in shared and self._shares(number, tensor)
                yield _Conversion(tensor, number, at, ("shared" if is_shared else "value", tensor), ("way", number))
            for at, tensor in enumerate(op.results):
                yield _Conversion(tensor, number, at, ("way", number), ("value", tensor))

    def _converting(self, conversion: _Conversion) -> Callable[[Places, Places], float]:
        """Returns the seconds of a conversion by what is chosen at its ends."""

        def seconds(before: Places, after: Places) -> float:
            here, there = self._ends(conversion, before, after)
            tensor, op = conversion.tensor, conversion.op
            if op is None:
                runs = self.program.tensors[tensor].runs
            elif conversion.is_made:
                runs = self.program.ops[op].runs
            else:
                smaller, larger = self._runs(op, tensor)
                runs = larger if self._tiles(there) < self._tiles(here) else smaller
            return runs * self._conversion_s(tensor, here, there)

        return seconds

    def _ends(self, conversion: _Conversion, before: Places, after: Places) -> tuple[Places, Places]:
        """Returns the layouts at both ends of a conversion."""
        if conversion.op is None:
            return before, after
        op = self.program.ops[conversion.op]
        if not conversion.is_made:
            return before, _layout_of(after, op.operand_dims[conversion.number])
        made = _layout_of(before, op.result_dims[conversion.number])
        return tuple(PARTIAL if factor in op.reduced else each for factor, each in zip(before, made)), after

    def _conversion_s(self, tensor: int, here: Places, there: Places) -> float:
        if here == there:
            return 0.0
        key = tensor, here, there
        if key not in self._seconds:
            ends = np.array([here]), np.array([there])
            self._seconds[key] = float(self._prices.seconds(self.program.tensors[tensor].bytes, *ends)[0, 0])
        return self._seconds[key]

    # ---- seconds

    def _tiles(self, layout: Places) -> int:
        return math.prod(size for size, place in zip(self.sizes, layout) if place >= 0)

    def _read_s(self, tensor: int) -> float:
        return self.program.tensors[tensor].bytes / self.topology.memory_bandwidth_bytes_per_s

    def _value_s(self, tensor: int, layout: Places) -> float:
        """Returns what a value costs: reading or writing it in the loops of the ops that tie, and next to nothing."""
        loops = [op for op in self._ties if not op.is_free]
        made, taken = {t for op in loops for t in op.results}, {t for op in loops for t in op.operands}
        outside = {t for op in self._others.values() for t in op.operands} | {*self.program.results}
        seconds = 0.0
        if (tensor in taken and tensor not in made) or (tensor in made and tensor in outside):
            seconds += self._read_s(tensor) * max(op.runs for op in loops if tensor in _tensors(op))
        if tensor in self._kept:
            named = self._clusters.dims[tensor]
            behind = sum(named[dim] for dim in layout if dim >= 0)
            seconds += _NEXT_TO_NOTHING * (1 + _BEHIND * behind) * self._read_s(tensor)
        return seconds / self._tiles(layout)

    def _op_s(self, number: int, way: Places) -> float:
        """Returns the roofline of an op on tiles, and the exchange of the borders along which elements move."""
        op = self.program.ops[number]
        if op.is_free or number not in self._others:  # what ties costs is with the values
            return 0.0
        computing = op.flops / (self.topology.flops_per_s or math.inf) / self._tiles(way)
        moving, exchanging = 0.0, 0.0
        for at, (tensor, dims) in enumerate(_with_dims(op)):
            tile = self._read_s(tensor) / self._tiles(_layout_of(way, dims))
            is_operand = at < len(op.operands)
            moving += tile if self._goes_through_memory(op, tensor, is_operand) else 0.0
            if tensor in op.operands:
                exchanging = max(exchanging, self._border_s(op, tensor, dims, way))
        return op.runs * (max(computing, moving) + exchanging)

    def _goes_through_memory(self, op: FactoredOp, tensor: int, is_operand: bool) -> bool:
        if op.flops:
            return True
        if op.name in _IN_PLACE:
            made = max(self.program.tensors[each].bytes for each in op.results)
            return is_operand and self.program.tensors[tensor].bytes < made
        return not is_operand and op.name not in _IN_LOOPS

    def _border_s(self, op: FactoredOp, tensor: int, dims: Dims, way: Places) -> float:
        """Returns the time to fetch the share of a tile that is on other devices: on neighbours if it is below 1."""
        axes = [axis for axis, factor in enumerate(way) if factor in op.moved]
        if not axes:
            return 0.0
        value, first = self.program.tensors[tensor], op.results[0]
        sizes = {factors[0]: size for factors, size in zip(dims, value.shape) if len(factors) == 1}
        made = zip(op.result_dims[0], self.program.tensors[first].shape)
        left = {factors[0]: size for factors, size in made if len(factors) == 1}
        share = 0.0
        for factor in {way[axis] for axis in axes} & sizes.keys():
            size, rest = sizes[factor], left.get(factor, 0)
            shift = min(abs(size - rest), rest) or size
            tiles = math.prod(count for count, at in zip(self.sizes, way) if at == factor)
            share = max(share, min(1.0, shift * tiles / size))
        tile = value.bytes / self._tiles(_layout_of(way, dims)) * share
        kind = "collective_permute" if share < 1 else "all_to_all"
        mask = np.array([sum(1 << axis for axis in axes)])
        return float(self._prices.of_step(kind, mask, np.array([tile]))[0])

    def _best_way(self, number: int, op: FactoredOp, rows: _Rows) -> np.ndarray:
        """Returns for each row the seconds of an op and of its conversions in the best of its ways."""
        ways = self._ways(number, op)
        own = np.array([self._op_s(number, way) for way in ways])
        total = np.broadcast_to(own, (len(rows.rows), len(ways)))
        for each in self._conversions():
            if each.op != number:
                continue
            if each.is_made:
                table = _table([ways, rows.domains[each.target]], self._converting(each))
                total = total + table.T[rows.of(each.target)]
            else:
                table = _table([rows.domains[each.source], ways], self._converting(each))
                total = total + table[rows.of(each.source)]
        return total.min(axis=1)

    # ---- memory

    def _most_used(self, rows: _Rows) -> np.ndarray:
        """Returns for each row the bytes at its fullest place."""
        pieces: list[tuple[Span, np.ndarray]] = []
        for life in self.program.lives:
            num_bytes = self.program.tensors[life.tensor].bytes
            sizes = rows.looked_up(
                [("value", life.tensor)], lambda layout, num_bytes=num_bytes: num_bytes / self._tiles(layout)
            )
            pieces.append((self._timeline.of_moments(life.first, life.last), sizes))
        for each in self._conversions():
            span, is_before = self._span_of(each)
            if span is not None:
                sizes = rows.looked_up([each.source, each.target], self._copying(each, is_before))
                pieces.append((span, sizes))
        most = np.zeros(len(rows.rows))
        for place in {span[0] for span, _ in pieces}:
            here = [sizes for (first, last), sizes in pieces if first <= place <= last]
            most = np.maximum(most, np.sum(here, axis=0))
        return most

    def _copying(self, conversion: _Conversion, is_before: bool) -> Callable[[Places, Places], float]:
        """Returns the bytes that a conversion adds, by what is chosen at its ends: the tile at one of them."""

        def added(before: Places, after: Places) -> float:
            here, there = self._ends(conversion, before, after)
            tiles = self._tiles(here if is_before else there)
            return 0.0 if here == there else self.program.tensors[conversion.tensor].bytes / tiles

        return added

    def _span_of(self, conversion: _Conversion) -> tuple[Span | None, bool]:
        """Returns when a copy is in memory, and whether it is the tile before the conversion."""
        tensor, op = conversion.tensor, conversion.op
        if op is None:
            return self._timeline.of_shared(tensor, self._takers(tensor)), False
        makes = self._timeline.makes(op)
        if self.program.ops[op].name == "copy" and makes:
            return None, False
        if conversion.is_made:
            return self._timeline.of_result(op, tensor), makes
        is_hoisted = self._runs(op, tensor)[1] < self.program.ops[op].runs
        return self._timeline.of_operand(op, tensor, is_hoisted), False


def _tensors(op: FactoredOp) -> tuple[int, ...]:
    return (*op.operands, *op.results)


def _with_dims(op: FactoredOp) -> list[tuple[int, Dims]]:
    return [*zip(op.operands, op.operand_dims), *zip(op.results, op.result_dims)]


def _layout_of(way: Places, dims: Dims) -> Places:
    """Returns the layout in which an op that works in a way takes an operand, or makes a result."""
    dim_of = {factor: dim for dim, factors in enumerate(dims) for factor in factors}
    dim_of |= {NOWHERE: NOWHERE, PARTIAL: PARTIAL}
    return tuple(dim_of.get(place, NOWHERE) for place in way)
