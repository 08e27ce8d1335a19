# SPDX-License-Identifier: Apache-2.0
"""The layouts of a program as one pairwise problem, and its solution in words of the program.

Nodes are clusters of tensors, with a state for each layout, and ops that do not tie, with a state for each *way*: which
mesh axis splits which factor. A way of a matrix product that splits the contracted factor leaves partial sums. Edges
are conversions, from a cluster to what an op's way needs of an operand, and from what it makes to the result's cluster.
A tensor that several ops take has a node of its own between, so that they share a conversion.

The cost is in seconds of one run: conversions by the planner; ops by their roofline on tiles. Nothing overlaps, as in
`program_time`. With a memory limit, what is in memory at the fullest moments has to fit (`memory`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..layouts.mesh import Mesh
from ..layouts.sharding import Sharding
from ..network.topology import Topology
from ..pairwise.problem import PairwiseProblem
from ..pairwise.solving import SMALL_GAP, TIME_LIMIT_S, InfeasibleError, Solution, solve
from .axes import FORMS, WHOLE, Axes
from .clusters import Clusters, clusters_of
from .factored_program import Dims, FactoredOp, FactoredProgram, Interval
from .lives import IN_PLACE
from .memory import Copy, Memory, Tile, Timeline, hills
from .moves import NOWHERE, PARTIAL, PASS_ON, prices_for
from .repeats import Repeat, repeats_of
from .roles import Roles
from .tactics import FREE, SHARDS, STATE_IN_SHARDS, Tactic

MOMENTS = 8  # at which the memory is limited
MANY_LAYERS = 8  # of which people want to see one
_HELD = 1e-3  # of the time to read an argument or result, which decides between layouts that are equally fast
_LEADING = 1e-3  # of that, for each dimension that stands before the one that is split
_LEAST_SHARED_BYTES = 1 << 10  # of a tensor whose conversion is worth a node of its own
_FUSED = frozenset({"reduce", "broadcast_in_dim", "reshape", "iota", "convert"})  # into the loops of their neighbours


@dataclass(frozen=True, slots=True)
class Move:
    """A conversion in a solution.

    Attributes:
      tensor: its number. op: the number of the op that takes it, or makes it; None for one that several take.
      source, target: layouts. runs: how often. seconds: of all runs.
    """

    tensor: int
    op: int | None
    source: Sharding
    target: Sharding
    runs: int
    seconds: float


@dataclass(frozen=True)
class Assignment:
    """The layouts of a program.

    Attributes:
      layouts: for each tensor its sharding; None for one without a dimension to split.
      ways: for each op that does not tie, the numbers of the parts of axes that split each factor.
      moves: the conversions, the longest first.
      solution: of the pairwise problem. nodes: the number of its nodes.
      local_s: the seconds of the ops.
      memory_bytes: per device, at the fullest moment.
      axes: the mesh, and the parts of its axes.
    """

    layouts: tuple[Sharding | None, ...]
    ways: dict[int, tuple[tuple[int, ...], ...]]
    moves: tuple[Move, ...]
    solution: Solution
    nodes: int
    local_s: float
    memory_bytes: int
    axes: Axes

    @property
    def seconds(self) -> float:
        """Returns the seconds of one run by this model."""
        return self.solution.cost

    def layout_in(self, dims: Dims, way: Sequence[tuple[int, ...]]) -> Sharding:
        """Returns the layout in which a way of an op takes an operand, or makes a result but for partial sums."""
        return Sharding(tuple(self.axes.named(part for factor in factors for part in way[factor]) for factors in dims))


@dataclass
class _Edges:
    """What an edge stands for: the conversion of a tensor, with the layouts of both its ends by state."""

    tensor: int
    op: int | None
    source: int
    target: int
    sources: np.ndarray
    targets: np.ndarray
    runs: int
    runs_if_larger: int


@dataclass
class LayoutProblem:
    """The problem of a program on a mesh.

    Args:
      tactics: axis -> what it may be for; others may be for anything.
      form: of the axes, as `FORMS` has them. Arguments and results are split by whole axes.
    """

    program: FactoredProgram
    mesh: Mesh
    topology: Topology
    memory_limit: int | None = None
    tactics: Mapping[str, Tactic] = field(default_factory=dict)
    form: str = WHOLE
    problem: PairwiseProblem = field(init=False, default_factory=PairwiseProblem)

    def __post_init__(self) -> None:
        self.axes = FORMS[self.form](self.mesh)
        self.prices = prices_for(self.topology, self.axes.parts)
        self.clusters: Clusters = clusters_of(self.program)
        self.roles = Roles(self.program, self.clusters)
        self._edges: list[_Edges] = []
        self._priced: dict[tuple[int, bytes, bytes], np.ndarray] = {}  # what looks alike is priced once
        self._spaces = [self._space(number) for number in range(len(self.clusters.all))]
        for number, space in enumerate(self._spaces):
            self.problem.add(self._fused_s(number, space) + self._held_s(number, space))
        self._op_nodes: dict[int, int] = {}
        self._ways: dict[int, np.ndarray] = {}
        self._shared = self._shared_nodes()
        for number, op in enumerate(self.program.ops):
            if number not in self.clusters.ties:
                self._add_op(number, op)
        if self.memory_limit is not None:
            self._limit(hills(self.memory.whole(), MOMENTS), self.memory_limit)

    def solve(
        self, *, time_limit_s: float = TIME_LIMIT_S, gap: float = SMALL_GAP, below_s: float = math.inf
    ) -> Assignment:
        """Returns the best layouts. Raises: InfeasibleError, NotBelowError as `solve`.

        Where a solution is above the memory limit at other moments, these are limited too, and it is solved anew.
        """
        while True:
            found = solve(self.problem, time_limit_s=time_limit_s, gap=gap, below=below_s)
            used, limit = self.memory.used(found.states), self.memory_limit
            if limit is None or used.max(initial=0.0) <= limit:
                return self.assignment(found)
            self._limit([each for each in hills(used, MOMENTS) if used[each] > limit], limit)

    @functools.cached_property
    def repeats(self) -> tuple[Repeat, ...]:
        """Returns the layers that repeat, where there are many."""
        return repeats_of(self.program, self.clusters.ties, MANY_LAYERS)

    def assignment(self, solution: Solution) -> Assignment:
        """Returns a solution in words of the program."""
        states = solution.states
        layouts = tuple(self._layout(number, states) for number in range(len(self.program.tensors)))
        ways = {
            number: tuple(
                tuple(int(part) for part in np.flatnonzero(self._ways[number][states[node]] == factor))
                for factor in range(len(self.program.ops[number].sizes))
            )
            for number, node in self._op_nodes.items()
        }
        moves = sorted(self._moves(states), key=lambda move: -move.seconds)
        local_s = solution.cost - sum(move.seconds for move in moves)
        nodes, memory = len(self.problem.costs), self.memory.peak(states)
        return Assignment(layouts, ways, tuple(moves), solution, nodes, local_s, memory, self.axes)

    # ---- nodes

    def _space(self, cluster: int) -> np.ndarray:
        """Returns the layouts of a cluster: for each of them, the named dimension that each axis splits."""
        members = set(self.clusters.all[cluster].members)
        may_be_partial = len(members) == 1 and members <= self.clusters.partial
        sizes = self.clusters.all[cluster].sizes
        found = _places_of(
            sizes, range(len(sizes)), self.axes.parts, may_be_partial, self._uneven.get(cluster, frozenset())
        )
        kept = np.ones(len(found), dtype=bool)
        for tensor, pinned in self.program.pinned:
            if tensor in members:
                kept &= self._keeps(found, tensor, pinned)
        if members & {*self.program.arguments, *self.program.results}:
            for parts in self.axes.groups:
                kept &= (found[:, parts] == found[:, parts[:1]]).all(axis=1)
        if not kept.any():
            names = ", ".join(self.program.tensors[each].name or f"tensor {each}" for each in sorted(members)[:3])
            raise InfeasibleError(f"no even layout of {names} on {self.mesh} is the one that is asked for")
        if members & self.roles.parameters:
            is_weight = any(weight in members for weight, _ in self.program.weights)
            kept &= self._keeps_tactics(found, kept, is_weight)
        return found[kept]

    @functools.cached_property
    def _uneven(self) -> dict[int, frozenset[int]]:
        """Returns for each cluster the named dimensions that tiles may split unevenly: elements move along them anyway.

        Arguments and results are split evenly.
        """
        held = {self.clusters.of[each] for each in (*self.program.arguments, *self.program.results)}
        found: dict[int, set[int]] = {}
        for op in self.program.ops:
            for tensor, dims in (*zip(op.operands, op.operand_dims), *zip(op.results, op.result_dims)):
                if self.clusters.of[tensor] not in held:
                    named = self.clusters.dims[tensor]
                    moved = {name for name, factors in zip(named, dims) if name >= 0 and op.moved.issuperset(factors)}
                    found.setdefault(self.clusters.of[tensor], set()).update(moved)
        return {cluster: frozenset(each) for cluster, each in found.items()}

    def _keeps_tactics(self, layouts: np.ndarray, possible: np.ndarray, is_weight: bool) -> np.ndarray:
        """Returns which layouts of state keep the tactics, for each axis as far as any possible one does.

        `is_weight`: it is that of a weight which has another one than what the optimizer makes of it.
        """
        kept = np.ones(len(layouts), dtype=bool)
        for axis, ref in enumerate(self.axes.refs):
            state = self.tactics[ref.name].state if ref.name in self.tactics else FREE
            if state == FREE:
                continue
            in_shards = state == SHARDS or (state == STATE_IN_SHARDS and not is_weight)
            wanted = kept & ((layouts[:, axis] >= 0) == in_shards)
            kept = wanted if (wanted & possible).any() else kept
        return kept

    def _keeps(self, layouts: np.ndarray, tensor: int, pinned: Sequence[tuple[str, ...] | None]) -> np.ndarray:
        kept = np.ones(len(layouts), dtype=bool)
        for dim, axes in enumerate(pinned):
            if axes is not None:
                named = self.clusters.dims[tensor][dim]
                wanted = np.array([ref.name in axes for ref in self.axes.refs])
                counts = np.array([size > 1 for _, size in self.axes.parts.axes])
                kept &= (((layouts == named) == wanted) | ~counts).all(axis=1) | (named < 0)
        return kept

    def _fused_s(self, cluster: int, space: np.ndarray) -> np.ndarray:
        """Returns the seconds of the ops that tie a cluster, by layout: compilers fuse them into loops.

        A loop reads what comes from other ops and writes what goes to other ops; nothing between goes to memory.
        """
        return self._fused_bytes[cluster] / self.topology.memory_bandwidth_bytes_per_s / self.prices.shards(space)

    def _held_s(self, cluster: int, space: np.ndarray) -> np.ndarray:
        """Returns next to nothing, less for smaller tiles of arguments and results: of equals, the smallest.

        Of those that are as small, the one that splits leading dimensions, such as the batch.
        """
        members = set(self.clusters.all[cluster].members)
        held = members & {*self.program.arguments, *self.program.results}
        seconds = sum(self.program.tensors[each].bytes for each in held) / self.topology.memory_bandwidth_bytes_per_s
        behind = np.where(space > 0, space, 0).sum(axis=1)
        return _HELD * seconds * (1 + _LEADING * behind) / self.prices.shards(space)

    @functools.cached_property
    def _fused_bytes(self) -> list[int]:
        """Returns for each cluster the bytes, of whole tensors, that its loops read and write in all runs."""
        made, taken = set(), set()  # by ops that tie
        others: set[int] = set(self.program.results)  # taken by other ops
        runs: dict[int, int] = {}
        for number, op in enumerate(self.program.ops):
            if number not in self.clusters.ties:
                others.update(op.operands)
            elif not op.is_free:
                made.update(op.results)
                taken.update(op.operands)
                for tensor in (*op.operands, *op.results):
                    runs[tensor] = max(runs.get(tensor, 0), op.runs)
        found = [0] * len(self.clusters.all)
        for tensor in sorted((taken - made) | (made & others)):
            found[self.clusters.of[tensor]] += self.program.tensors[tensor].bytes * runs[tensor]
        return found

    @functools.cached_property
    def _takers(self) -> dict[int, list[int]]:
        """Returns for each tensor the ops that take it and do not tie."""
        found: dict[int, list[int]] = {}
        for number, op in enumerate(self.program.ops):
            for tensor in () if number in self.clusters.ties else dict.fromkeys(op.operands):
                found.setdefault(tensor, []).append(number)
        return found

    def _shared_nodes(self) -> dict[int, tuple[int, np.ndarray]]:
        """Adds a node for each tensor that several ops take each time it is made; returns tensor -> (node, layouts)."""
        found = {}
        for tensor, ops in self._takers.items():
            value = self.program.tensors[tensor]
            sharing = [op for op in ops if self._is_shared_by(self.program.ops[op], tensor)]
            if len(sharing) > 1 and value.bytes >= _LEAST_SHARED_BYTES:
                layouts = _layouts(value.shape, self.axes.parts, self._uneven_of(tensor))
                found[tensor] = self.problem.add(np.zeros(len(layouts))), layouts
                cluster = self.clusters.of[tensor]
                self._join(tensor, None, cluster, found[tensor][0], self._of_tensor(tensor), layouts, value.runs)
        return found

    def _is_shared_by(self, op: FactoredOp, tensor: int) -> bool:
        """Returns whether an op may share the conversion of a tensor with others: it runs as often as theirs."""
        return {*self._conversion_runs(op, tensor)} == {self.program.tensors[tensor].runs}

    def _uneven_of(self, tensor: int) -> frozenset[int]:
        """Returns the dimensions of a tensor that tiles may split unevenly."""
        names = self._uneven.get(self.clusters.of[tensor], frozenset())
        return frozenset(dim for dim, name in enumerate(self.clusters.dims[tensor]) if name in names)

    def _of_tensor(self, tensor: int) -> np.ndarray:
        """Returns the layouts of a tensor's cluster in dimensions of the tensor."""
        named = self.clusters.dims[tensor]
        dim_of = np.full(max(named) + 3, NOWHERE)
        dim_of[PARTIAL] = PARTIAL
        for dim, each in enumerate(named):
            if each >= 0:
                dim_of[each] = dim
        return dim_of[self._spaces[self.clusters.of[tensor]]]

    def _add_op(self, number: int, op: FactoredOp) -> None:
        ways = self._ways[number] = _ways(op, self.axes.parts, number in self.clusters.sums)
        node = self._op_nodes[number] = self.problem.add(self._op_s(op, ways) + self._forbidden(op, ways))
        for tensor, dims in zip(op.operands, op.operand_dims, strict=True):
            needed = _places(ways, dims, op)
            runs = self._conversion_runs(op, tensor)
            if tensor in self._shared and self._is_shared_by(op, tensor):
                source, layouts = self._shared[tensor]
            else:
                source, layouts = self.clusters.of[tensor], self._of_tensor(tensor)
            self._join(tensor, number, source, node, layouts, needed, *runs)
        reduced = _reduced(ways, op)
        for tensor, dims in zip(op.results, op.result_dims, strict=True):
            made = np.where(reduced, PARTIAL, _places(ways, dims, op))
            self._join(tensor, number, node, self.clusters.of[tensor], made, self._of_tensor(tensor), op.runs)

    def _conversion_runs(self, op: FactoredOp, tensor: int) -> tuple[int, int]:
        """Returns how often an operand is converted, and how often if its tiles get larger by that.

        Once outside of a loop, if it is made there. But of a stack of layers, of which each run takes one, the layer
        is gathered after it is sliced, since the whole stack may not fit.
        """
        value = self.program.tensors[tensor]
        takes_part = sum(self.program.tensors[each].bytes for each in op.results) < value.bytes and not op.flops
        runs = op.runs if op.name == "copy" else min(op.runs, value.runs)
        return runs, op.runs if takes_part else runs

    def _join(
        self,
        tensor: int,
        op: int | None,
        source: int,
        target: int,
        sources: np.ndarray,
        targets: np.ndarray,
        runs: int,
        runs_if_larger: int | None = None,
    ) -> None:
        edge = _Edges(tensor, op, source, target, sources, targets, runs, runs_if_larger or runs)
        self.problem.join(source, target, self._runs_of(edge) * self._move_s(tensor, sources, targets))
        self._edges.append(edge)

    def _runs_of(self, edge: _Edges) -> np.ndarray:
        """Returns how often each conversion of an edge runs, one row per source, one column per target."""
        larger = self.prices.shards(edge.targets)[None, :] < self.prices.shards(edge.sources)[:, None]
        return np.where(larger, edge.runs_if_larger, edge.runs)

    def _move_s(self, tensor: int, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns the seconds of all conversions of a tensor, each pair of different layouts priced once."""
        num_bytes = self.program.tensors[tensor].bytes
        key = num_bytes, sources.tobytes(), targets.tobytes()
        if key not in self._priced:
            some, row = np.unique(sources, axis=0, return_inverse=True)
            others, column = np.unique(targets, axis=0, return_inverse=True)
            priced = self.prices.seconds(num_bytes, some, others)
            self._priced[key] = priced[row.reshape(-1)][:, column.reshape(-1)]
        return self._priced[key]

    def _op_s(self, op: FactoredOp, ways: np.ndarray) -> np.ndarray:
        if op.is_free:
            return np.zeros(len(ways))
        split = self.prices.shards(ways)
        computing = op.flops / self.topology.flops_per_s / split if self.topology.flops_per_s else 0.0
        moved = np.zeros(len(ways))
        halo = np.zeros(len(ways))
        along = np.isin(ways, list(op.moved)) if op.moved else np.zeros(ways.shape, dtype=bool)
        for tensor, dims in (*zip(op.operands, op.operand_dims), *zip(op.results, op.result_dims)):
            tile = self.program.tensors[tensor].bytes / self.prices.shards(_places(ways, dims, op))
            if self._moves_bytes(op, tensor):
                moved += tile
            if tensor in op.operands and along.any():
                share = self._border(op, tensor, dims, ways)
                bordering = tile * share, along @ (1 << np.arange(ways.shape[1]))
                near, far = (self.prices.of_step(kind, bordering[1], bordering[0]) for kind in (PASS_ON, "all_to_all"))
                halo = np.maximum(halo, np.where(along.any(axis=1), np.where(share < 1, near, far), 0.0))
        local = np.maximum(computing, moved / self.topology.memory_bandwidth_bytes_per_s)
        return op.runs * (local + halo)

    def _border(self, op: FactoredOp, tensor: int, dims: Dims, ways: np.ndarray) -> np.ndarray:
        """Returns which share of an operand's tile other devices need, by way: below 1 its neighbours alone.

        What is cut off or added along a dimension shifts the blocks by as much at most, and no more than is left moves.
        """
        sizes = self._sizes_alone(tensor, dims)
        made = self._sizes_alone(op.results[0], op.result_dims[0]) if op.results else {}
        share = np.zeros(len(ways))
        for factor in op.moved & sizes.keys():
            size, left = sizes[factor], made.get(factor, 0)
            shift = min(abs(size - left), left) or size
            shards = np.prod(np.where(ways == factor, self.prices.sizes, 1), axis=1)
            share = np.where(shards > 1, np.maximum(share, np.minimum(1.0, shift * shards / size)), share)
        return share

    def _sizes_alone(self, tensor: int, dims: Dims) -> dict[int, int]:
        """Returns the sizes of the dimensions that are made of one factor, by factor."""
        sizes = zip(dims, self.program.tensors[tensor].shape, strict=True)
        return {factors[0]: size for factors, size in sizes if len(factors) == 1}

    def _forbidden(self, op: FactoredOp, ways: np.ndarray) -> np.ndarray:
        """Returns infinity for the ways of a matrix product that no tactic allows, else 0."""
        found = np.zeros(len(ways))
        for axis, ref in enumerate(self.axes.refs if op.flops else ()):
            if (name := ref.name) in self.tactics:
                others = [
                    factor
                    for factor in range(len(op.sizes))
                    if self.roles.of(op, factor) not in self.tactics[name].roles
                ]
                found[np.isin(ways[:, axis], others)] = np.inf
        return found

    def _moves_bytes(self, op: FactoredOp, tensor: int) -> bool:
        """Returns whether an op reads or writes a tensor as a whole, in memory."""
        if op.flops:
            return True
        if op.name in IN_PLACE:
            made = max(self.program.tensors[each].bytes for each in op.results)
            return tensor in op.operands and self.program.tensors[tensor].bytes < made
        return tensor in op.results and op.name not in _FUSED

    # ---- memory

    @functools.cached_property
    def memory(self) -> Memory:
        """What is in memory, by the states of the nodes."""
        timeline = Timeline(self.program)
        tiles = (self._tile(each, timeline) for each in self.program.lives)
        copies = (self._copy(edge, timeline) for edge in self._edges)
        return Memory(tuple(tiles), tuple(each for each in copies if each is not None))

    def _tile(self, life: Interval, timeline: Timeline) -> Tile:
        cluster, size = self.clusters.of[life.tensor], self.program.tensors[life.tensor].bytes
        span = timeline.of_moments(life.first, life.last)
        if cluster < 0:
            return Tile(span, None, np.full(1, float(size)))
        return Tile(span, cluster, size / self.prices.shards(self._spaces[cluster]))

    def _copy(self, edge: _Edges, timeline: Timeline) -> Copy | None:
        """Returns what a conversion adds to memory; None if nothing needs it."""
        op, tensor, is_source = edge.op, edge.tensor, False
        if op is None:
            span = timeline.of_shared(tensor, self._takers[tensor])
        elif self.program.ops[op].name == "copy" and timeline.makes(op):
            return None  # it is the result, which has a tile
        elif edge.source == self._op_nodes[op]:
            span, is_source = timeline.of_result(op, tensor), timeline.makes(op)
        else:
            span = timeline.of_operand(op, tensor, edge.runs_if_larger < self.program.ops[op].runs)
        if span is None:
            return None
        sizes = self.program.tensors[tensor].bytes / self.prices.shards(edge.sources if is_source else edge.targets)
        return Copy(span, edge.source, edge.target, edge.sources, edge.targets, sizes, is_source)

    def _limit(self, places: Iterable[int], limit: int) -> None:
        self.problem.limits += [self.memory.limit(place, limit) for place in places]

    # ---- solutions

    def _sharding(self, places: np.ndarray, rank: int) -> Sharding:
        dims = tuple(self.axes.named(np.flatnonzero(places == dim)) for dim in range(rank))
        return Sharding(dims, unreduced=self.axes.named(np.flatnonzero(places == PARTIAL)))

    def _layout(self, tensor: int, states: Sequence[int]) -> Sharding | None:
        cluster = self.clusters.of[tensor]
        if cluster < 0:
            return None
        return self._sharding(self._of_tensor(tensor)[states[cluster]], len(self.program.tensors[tensor].shape))

    def _moves(self, states: Sequence[int]) -> list[Move]:
        found = []
        for edge in self._edges:
            source, target = edge.sources[states[edge.source]], edge.targets[states[edge.target]]
            if (source == target).all():
                continue
            runs = int(self._runs_of(edge)[states[edge.source], states[edge.target]])
            seconds = runs * float(self._move_s(edge.tensor, source[None], target[None])[0, 0])
            if seconds:
                rank = len(self.program.tensors[edge.tensor].shape)
                ends = self._sharding(source, rank), self._sharding(target, rank)
                found.append(Move(edge.tensor, edge.op, *ends, runs, seconds))
        return found


def _layouts(sizes: Sequence[int], mesh: Mesh, uneven: frozenset[int] = frozenset()) -> np.ndarray:
    """Returns all layouts of a tensor that split evenly: for each, the dimension that each axis of the mesh splits.

    Args:
      uneven: the dimensions that may be split unevenly.

    Example:
      >>> _layouts((4, 3), Mesh.parse("x=2,y=2")).tolist()
      [[-1, -1], [-1, 0], [0, -1], [0, 0]]
    """
    return _places_of(sizes, range(len(sizes)), mesh, uneven=uneven)


def _places_of(
    sizes: Sequence[int],
    able: Sequence[int],
    mesh: Mesh,
    may_be_partial: bool = False,
    uneven: frozenset[int] = frozenset(),
) -> np.ndarray:
    some = [
        [
            NOWHERE,
            *([PARTIAL] if may_be_partial and size > 1 else []),
            *(dim for dim in able if size > 1 and sizes[dim] > 1 and (dim in uneven or sizes[dim] % size == 0)),
        ]
        for _, size in mesh.axes
    ]
    found = np.array(list(itertools.product(*some)), dtype=np.int64).reshape(-1, len(mesh.axes))
    kept = np.ones(len(found), dtype=bool)
    axis_sizes = np.array([size for _, size in mesh.axes], dtype=np.int64)
    for dim in able:
        counts = np.prod(np.where(found == dim, axis_sizes, 1), axis=1)
        kept &= _may_split(sizes[dim], counts, dim in uneven)
    return found[kept]


def _may_split(size: int, counts: np.ndarray, is_uneven: bool) -> np.ndarray:
    """Returns whether a dimension may be split into so many tiles: even ones, or uneven ones of which none is empty.

    Example:
      >>> _may_split(9, np.array([1, 3, 2, 8]), True).tolist(), _may_split(9, np.array([1, 3, 2, 8]), False).tolist()
      ([True, True, True, False], [True, True, False, False])
    """
    is_even = size % counts == 0
    return is_even | (-(-size // counts) * (counts - 1) < size) if is_uneven else is_even


def _ways(op: FactoredOp, mesh: Mesh, is_sum_of_sums: bool = False) -> np.ndarray:
    """Returns the ways of an op: for each, the factor that each axis of the mesh splits; PARTIAL for a sum of sums.

    A factor behind another one in a dimension cannot be split, since only the leading part of a dimension can.
    """
    behind = {
        factor
        for dims in (*op.operand_dims, *op.result_dims)
        for factors in dims
        for factor in [each for each in factors if op.sizes[each] > 1][1:]
    }
    able = [factor for factor in range(len(op.sizes)) if factor not in op.whole and factor not in behind]
    return _places_of(op.sizes, able, mesh, is_sum_of_sums, op.moved)


def _places(ways: np.ndarray, dims: Dims, op: FactoredOp) -> np.ndarray:
    """Returns for each way the layout of an operand or result."""
    dim_of = np.full(len(op.sizes) + 2, NOWHERE)  # the last entries are what NOWHERE and PARTIAL find
    dim_of[PARTIAL] = PARTIAL
    for dim, factors in enumerate(dims):
        for factor in factors:
            dim_of[factor] = dim
    return dim_of[ways]


def _reduced(ways: np.ndarray, op: FactoredOp) -> np.ndarray:
    return np.isin(ways, list(op.reduced)) if op.reduced else np.zeros(ways.shape, dtype=bool)
