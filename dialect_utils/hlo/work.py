# SPDX-License-Identifier: Apache-2.0
"""Reads HLO text and returns what one run of the program does on one device: FLOPs and bytes of its memory.

The text is what XLA dumps right after SPMD partitioning, before anything is fused, or the scheduled HLO of an
executable. Collectives are not counted here: their operands and results cost nothing, and what writes an operand does.

- W1 Times: bodies of loops count as often as their trip count says, once if nobody knows it; of a conditional the
  branch with the most work counts; asynchronous operations count what they call, and calls are inlined before anything
  is fused.
- W2 FLOPs: 2 per multiply-add of matrix products and convolutions (none for padding and for gaps of dilated operands),
  5 n log2 n of a Fourier transform, n³/3 of a Cholesky factor, n² per column of a triangular solve. A complex
  multiply-add counts 4 real ones. Elementwise ops have none: they wait for memory.
- W3 Bytes: an op reads its operands and writes its results. A slice or a gather reads the elements that it takes.
  Updates of a larger array are in place, also those that are made or not; a scatter reads and writes the elements
  that it updates. Single elements and views are free: bitcasts, reshapes, copies, transposes that move only dimensions
  of size 1. So is what lies in a TPU's own vector memory, `S(1)`.
- W4 Loops: ops that compute element by element, or rearrange elements, become one loop with their neighbours. A loop
  reads each array once, and writes results and what ops outside of it use. Reductions and in-place updates are the last
  ops of a loop. If an op that is in no loop, or the last of one, lies between two ops, they are not in the same loop.
- W5 Parts: what is only sliced is only computed in part.
- W6 Twice: a value that other loops use too is computed again there, if it is computed from few arrays that are
  together not larger than what is used of it, such as masks and broadcasts; else it is written and read.
- W7 Scheduled: in scheduled HLO each op is a loop of its own, and each fusion is one; copies and reshapes are no views.
  An operand that a fusion hands on in its place is not moved. A fusion is a kernel even if it moves nothing; a copy
  that starts and ends apart is none.
- W8 Lines: the loops of XLA's CPU backend run in the order of their result. If that is not the order of what they read,
  memory gives whole lines all the same, and a loop uses the rest of a line only if it returns before the line has
  left the cache (`copies.reads_of_lines`). An update in place of rows shorter than a line reads and writes the rest
  of these lines.
- W9 Windows: before anything is scheduled, a scatter whose windows have a place to choose along a dimension counts as a
  run for each window. Compilers of TPUs make a loop of it, in which each turn takes as long as a kernel at least. They
  have a kernel for scatters whose indices point into inserted dimensions alone (`preparation.scatter_windows`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd, log2, prod

from reshard.synthesis.network.program_time import LocalWork
from reshard.synthesis.programs import traffic

from .copies import _keeps_order, bytes_beside_updates, reads_of_lines
from .device_groups import integers
from .text import (
    WITHOUT_OPERANDS,
    Computation,
    HloModule,
    Instruction,
    parse_module,
    shape_arrays,
    sizes_of,
    tuple_elements,
)
from .trip_counts import Scope
from .walk import STEP, async_pieces, branches, callees, loop_runs, with_calls_inlined, with_fusions_inlined

ELEMENTWISE = frozenset(
    ("abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan2", "atanh", "cbrt", "ceil", "clamp", "compare")
    + ("complex", "convert", "cosh", "cosine", "count-leading-zeros", "divide", "erf", "exponential")
    + ("exponential-minus-one", "floor", "imag", "is-finite", "log", "log-plus-one", "logistic", "map", "maximum")
    + ("minimum", "multiply", "negate", "not", "or", "popcnt", "power", "real", "reduce-precision", "remainder")
    + ("round-nearest-afz", "round-nearest-even", "rsqrt", "select", "shift-left", "shift-right-arithmetic")
    + ("shift-right-logical", "sign", "sine", "sinh", "sqrt", "stochastic-convert", "subtract", "tan", "tanh", "xor")
)
_REARRANGING = frozenset(
    ("bitcast", "bitcast-convert", "broadcast", "concatenate", "copy", "dynamic-slice", "iota", "pad", "reshape")
    + ("reverse", "slice", "transpose")
)
_LAST_OF_LOOPS = frozenset(("dynamic-update-slice", "reduce", "reduce-window"))
_MATRIX_PRODUCTS = frozenset(("dot", "ragged-dot", "scaled-dot"))
_SLICES = frozenset(("dynamic-slice", "gather", "slice"))
_COLLECTIVES = frozenset(kind.replace("_", "-") for kind in traffic.KINDS)
_FREE = frozenset(
    ("add-dependency", "after-all", "async-done", "async-start", "async-update", "call", "conditional", "constant")
    + ("copy-done", "domain", "get-dimension-size", "get-tuple-element", "infeed", "opt-barrier", "outfeed")
    + ("parameter", "partition-id", "recv", "recv-done", "replica-id", "rng-get-and-update-state", "send", "send-done")
    + ("set-dimension-size", "tuple", "while")
    + tuple(_COLLECTIVES)
    + tuple(f"{kind}-{step}" for kind in _COLLECTIVES for step in ("start", "done"))
)
_FREE_CALLS = re.compile(
    r'custom_call_target="(?:Sharding|SPMDFullToShardShape|SPMDShardToFullShape|AllocateBuffer|annotate_|xla\.sdy\.)'
)
_PRODUCT_CALLS = re.compile(r'custom_call_target="(?:__cublas\$|__onednn\$matmul|__triton_gemm)')
_MOST_SOURCES = 4  # what is computed from more arrays is not computed twice
_FLOPS_PER_BYTE = 250  # about what accelerators do in the same time, to compare branches


def work_in(hlo_text: str, *, reads_lines: bool = False) -> tuple[LocalWork, ...]:
    """Returns what one run of the program in `hlo_text` computes and moves in the memory of one device.

    Args:
      reads_lines: whether loops read whole lines of memory, see W8.
    Returns: equal FLOPs and bytes in one row, sorted; collectives are in none.

    Raises: ValueError if the text has no entry computation.

    Example:
      >>> work_in('''HloModule m, num_partitions=4
      ... ENTRY %main (a: f32[8,4], b: f32[4,2]) -> f32[8,2] {
      ...   %a = f32[8,4]{1,0} parameter(0)
      ...   %b = f32[4,2]{1,0} parameter(1)
      ...   ROOT %d = f32[8,2]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      ... }''')
      (LocalWork(flops=128, bytes_moved=224, runs=1, kernels=1),)
    """
    module = parse_module(hlo_text)
    module = module if module.is_scheduled else with_chosen_updates_in_place(with_calls_inlined(module))
    rows = ProgramWork(module, reads_lines).work(Scope(module, module.entry, ()))
    return local_work(rows)


def local_work(rows: Mapping[tuple[int, ...], int]) -> tuple[LocalWork, ...]:
    """Returns rows of (FLOPs, bytes, kernels) with their runs, sorted."""
    return tuple(LocalWork(flops, moved, runs, kernels) for (flops, moved, kernels), runs in sorted(rows.items()))


def with_chosen_updates_in_place(module: HloModule) -> HloModule:
    """Returns a module in which a choice between an array and its update is that update.

    XLA simplifies it so: it chooses what to write, and not which array goes on.

    Example:
      >>> text = '''HloModule m
      ... ENTRY %main (p: pred[], a: f32[64], u: f32[2], i: s32[]) -> f32[64] {
      ...   %p = pred[] parameter(0)
      ...   %a = f32[64]{0} parameter(1)
      ...   %u = f32[2]{0} parameter(2)
      ...   %i = s32[] parameter(3)
      ...   %d = f32[64]{0} dynamic-update-slice(%a, %u, %i)
      ...   %all = pred[64]{0} broadcast(%p), dimensions={}
      ...   ROOT %s = f32[64]{0} select(%all, %d, %a)
      ... }'''
      >>> [each.opcode for each in with_chosen_updates_in_place(parse_module(text)).entry.instructions.values()][-2:]
      ['broadcast', 'dynamic-update-slice']
      >>> work_in(text)
      (LocalWork(flops=0, bytes_moved=16, runs=1, kernels=1),)
    """
    found = {name: _with_chosen_updates(each) for name, each in module.computations.items()}
    return replace(module, computations=found, entry=found[module.entry.name])


def _with_chosen_updates(computation: Computation) -> Computation:
    body = computation.instructions
    chosen = {}
    for each in body.values():
        if each.opcode == "select" and len(each.operands) == 3:
            _, one, other = each.operands
            for update, array in ((one, other), (other, one)):
                made = body.get(update)
                if made is not None and made.opcode == "dynamic-update-slice" and made.operands[0] == array:
                    chosen[each.name] = replace(made, name=each.name)
    if not chosen:
        return computation
    updates = {made.arguments for made in chosen.values()}
    left = {name: chosen.get(name, each) for name, each in body.items()}
    used = Counter(
        operand.partition("#")[0]
        for each in left.values()
        if each.opcode not in WITHOUT_OPERANDS
        for operand in each.operands
    )
    unused = {name for name, each in left.items() if each.arguments in updates and not used[name]} - {computation.root}
    return replace(
        computation, instructions={name: each for name, each in left.items() if name not in unused or name in chosen}
    )


_Rows = Counter[tuple[int, ...]]  # (FLOPs, bytes, kernels) -> runs


@dataclass(frozen=True, slots=True)
class Piece:
    """The work that is one row: an op, or a loop that a compiler makes of several ops; see W4.

    Fields:
      names: of its instructions, in the order of the text.
      flops, bytes_moved: of one run. runs: each time that the computation runs; see W9. kernels: see W7.
    """

    names: tuple[str, ...]
    flops: int
    bytes_moved: int
    runs: int = 1
    kernels: int = 1


class ProgramWork:
    """Adds up the work of the computations that a module runs; see W1."""

    def __init__(self, module: HloModule, reads_lines: bool):
        self._module = module
        self._reads_lines = reads_lines
        self._own: dict[str, _Rows] = {}

    def work(self, scope: Scope) -> _Rows:
        """Returns the work of one run of a computation."""
        name = scope.computation.name
        if name not in self._own:
            self._own[name] = self._rows_of(scope.computation)
        found = Counter(self._own[name])
        for instruction in scope.computation.instructions.values():
            match instruction.opcode:
                case "while":
                    runs = loop_runs(scope, instruction)
                    _add(found, self.work(runs.condition), runs.condition_runs)
                    _add(found, self.work(runs.body), runs.body_runs)
                case "conditional":
                    _add(found, max((self.work(each) for each in branches(scope, instruction)), key=self._weight))
                case "call" | "async-start" | "custom-call":
                    for callee in callees(scope, instruction):
                        _add(found, self.work(callee))
        return found

    def heaviest(self, scopes: list[Scope]) -> Scope:
        """Returns the branch of a conditional that `work` counts: the one with the most work."""
        return max(scopes, key=lambda each: self._weight(self.work(each)))

    def _rows_of(self, computation: Computation) -> _Rows:
        """Returns the work of a computation without that of the computations that it runs."""
        rows: _Rows = Counter()
        for each in pieces_of(self._module, computation, reads_lines=self._reads_lines):
            rows[self._row(computation, each)] += each.runs
        return rows

    def _row(self, computation: Computation, piece: Piece) -> tuple[int, ...]:
        """Returns what the work of a piece is filed as: FLOPs, bytes, kernels, and what a subclass adds."""
        return piece.flops, piece.bytes_moved, piece.kernels

    def _weight(self, rows: _Rows) -> float:
        """Returns what decides which branch of a conditional counts."""
        return sum((row[0] + _FLOPS_PER_BYTE * row[1]) * runs for row, runs in rows.items())


def _add(rows: _Rows, more: _Rows, runs: int = 1) -> None:
    for row, count in more.items():
        rows[row] += count * runs


def pieces_of(module: HloModule, computation: Computation, *, reads_lines: bool = False) -> list[Piece]:
    """Returns the work of a computation without that of the computations that it runs, fusions excepted."""
    loops = _Loops(computation, is_fused=not module.is_scheduled)
    found = loops.pieces()
    for each in computation.instructions.values():
        if each.opcode == "fusion":
            found.append(Piece((each.name,), *_work_of_fusion(module, each, reads_lines)))
        elif each.opcode not in _FREE and not loops.has(each.name):
            windows = 1 if module.is_scheduled else _windows(computation, each)
            moved = loops.bytes_of(each) // windows
            starts = 0 if each.opcode.endswith("-start") else 1
            found.append(Piece((each.name,), flops_of(computation, each), moved, windows, starts))
    kernels = _kernels(module, computation) if module.is_scheduled else ()
    return [each for each in found if each.flops or each.bytes_moved or each.names[-1] in kernels]


def _kernels(module: HloModule, computation: Computation) -> frozenset[str]:
    """Returns the instructions of a scheduled computation that are kernels, whatever they move. W7"""
    return frozenset(
        each.name
        for each in computation.instructions.values()
        if each.opcode == "fusion" and all(piece.role == STEP for piece in async_pieces(module, each))
    )


def _windows(computation: Computation, each: Instruction) -> int:
    """Returns how many windows a scatter writes one after the other; 1 for another op, or if there is a kernel. W9"""
    if each.opcode != "scatter":
        return 1
    names = ("scatter_dims_to_operand_dims", "inserted_window_dims", "update_window_dims")
    listed = (re.search(rf"\b{name}={{([\d,]*)}}", each.attributes) for name in names)
    pointed, inserted, window = (frozenset(integers(found[1]) if found else ()) for found in listed)
    if pointed <= inserted:
        return 1
    updates = next(iter(shape_arrays(computation.shape_of(each.operands[_updates(each.operands, 0)]))))
    return max(1, prod(size for dim, size in enumerate(updates.sizes) if dim not in window))


def operands_of(module: HloModule, computation: Computation) -> dict[str, list[str]]:
    """Returns the instructions of a computation that are no views, in order, each with its operands behind views."""
    return _Body(computation, has_views=not module.is_scheduled).operands


def _work_of_fusion(module: HloModule, fusion: Instruction, reads_lines: bool = False) -> tuple[int, int]:
    """Returns FLOPs and bytes of a fusion, which is one loop with those inside of it."""
    if any(piece.role != STEP for piece in async_pieces(module, fusion)):
        return 0, 0  # it starts or ends a collective
    computation = with_fusions_inlined(module, module.computations[str(fusion.callee("calls"))])
    inside = computation.instructions.values()
    flops = sum(flops_of(computation, each) for each in inside if each.opcode not in _FREE)
    flops += sum(_work_of_fusion(module, each)[0] for each in inside if each.opcode == "fusion")
    read, written = _Loops(computation, is_fused=True, is_one=True).bytes_of_all(_in_place(fusion))
    return flops, read + written + (_unused_of_lines(computation, read) if reads_lines else 0)


def _in_place(fusion: Instruction) -> frozenset[int]:
    """Returns the numbers of the results of a fusion that lie where operands lie."""
    found = re.search(r"\boutput_to_operand_aliasing=\{(.*?\))\}", fusion.attributes)
    numbers = re.findall(r"\{(\d*)\}: \(", found[1]) if found else []
    return frozenset(int(number or 0) for number in numbers)


def _unused_of_lines(fusion: Computation, read: int) -> int:
    """Returns the bytes that the loop of a fusion moves beside those that it needs; `read` of these it reads. W8"""
    inside = fusion.instructions.values()
    moves = [each for each in inside if each.opcode in ("copy", "transpose")]
    unused = (round(min(read, _size(each.shape)[1]) * (reads_of_lines(fusion, each) - 1)) for each in moves)
    updates = (bytes_beside_updates(fusion, each) for each in inside if each.opcode == "dynamic-update-slice")
    return max(unused, default=0) + sum(updates)


# ---- bytes


class _Body:
    """The instructions of a computation, in which views are what they show.

    Fields:
      instructions: those that are no views, by name, in order: each behind its operands.
      operands: their operands; a view of a value is that value.
      results: what the computation returns.
    """

    def __init__(self, computation: Computation, *, has_views: bool):
        self._computation = computation
        self._has_views = has_views
        self._sizes: dict[str, tuple[int, int]] = {}
        self.instructions: dict[str, Instruction] = {}
        self.operands: dict[str, list[str]] = {}
        shown: dict[str, str] = {}
        for name, each in computation.instructions.items():
            listed = [] if each.opcode in WITHOUT_OPERANDS else each.operands
            operands = [shown.get(operand, operand) for operand in listed]
            if self._is_view(each):
                shown[name] = operands[0]
            else:
                self.instructions[name], self.operands[name] = each, operands
        root = shown.get(computation.root, computation.root)
        is_tuple = root in self.instructions and self.instructions[root].opcode == "tuple"
        self.results = self.operands[root] if is_tuple else [root]

    def _is_view(self, each: Instruction) -> bool:
        match each.opcode:
            case "bitcast":
                return True
            case "bitcast-convert" | "copy" | "reshape":
                return self._has_views
            case "transpose":
                return self._has_views and _keeps_order(self._computation, each)
            case "broadcast":
                same = _size(each.shape)[0] == _size(self._computation.shape_of(each.operands[0]))[0]
                return self._has_views and same
        return False

    def size(self, value: str) -> tuple[int, int]:
        """Returns elements and bytes of a value."""
        if value not in self._sizes:
            self._sizes[value] = _size(self._computation.shape_of(value))
        return self._sizes[value]

    def elements_read(self, name: str, position: int, needed: int) -> int:
        """Returns how many elements of an operand are read, for a number of elements of the result."""
        opcode, operands = self.instructions[name].opcode, self.operands[name]
        size, _ = self.size(operands[position])
        if opcode in _SLICES:
            return min(size, needed) if position == 0 else size
        if opcode == "dynamic-update-slice":
            return 0 if position == 0 else size
        if opcode == "scatter":
            return self.size(operands[_updates(operands, position)])[0] if position < len(operands) // 2 else size
        if opcode in ("broadcast", "pad"):
            return min(size, needed)
        if opcode in ELEMENTWISE or opcode in _REARRANGING:
            whole, _ = self.size(name)
            return size if needed >= whole else -(-size * needed // whole)
        return 0 if opcode in _FREE else size

    def bytes_read(self, name: str, position: int, needed: int) -> int:
        size, whole = self.size(self.operands[name][position])
        count = self.elements_read(name, position, needed) if whole else 0
        return whole * count // size if count > 1 else 0

    def bytes_written(self, name: str) -> int:
        """Returns the bytes that an op writes, all of its result unless it updates an array."""
        each, operands = self.instructions[name], self.operands[name]
        if each.opcode == "dynamic-update-slice":
            return self.size(operands[1])[1]
        if each.opcode == "scatter":
            return sum(self.size(operands[_updates(operands, at)])[1] for at in range(len(operands) // 2))
        return 0 if each.opcode in _FREE else self.size(name)[1]


def _updates(operands: list[str], position: int) -> int:
    """Returns the position of the updates of an operand of a scatter: (operands..., indices, updates...)."""
    return len(operands) // 2 + 1 + position


@lru_cache(maxsize=4096)
def _size(shape: str) -> tuple[int, int]:
    """Returns elements and bytes of an HLO shape; scalars and what lies in a TPU's vector memory have no bytes."""
    arrays = list(shape_arrays(shape))
    counted = sum(each.bytes for each in arrays if each.elements > 1 and "S(1)" not in each.layout)
    return sum(each.elements for each in arrays), counted


class _Loops:
    """The loops over memory that a compiler makes of one computation; see W4 to W6.

    State, once `_plan` has run: `_needed` has the ops that are in loops and are used, with the number of elements that
    somebody uses; `_level` counts backwards how many memory values lie between an op and the end, and ops of one loop
    have the same; `_written` are the ops in loops whose values go to memory.
    """

    def __init__(self, computation: Computation, *, is_fused: bool, is_one: bool = False):
        self._body = _Body(computation, has_views=is_fused)
        self._is_fused = is_fused
        self._is_one = is_one
        self._needed: dict[str, int] = {}
        self._level: dict[str, int] = {}
        self._written: set[str] = set()
        self._plan()

    def has(self, name: str) -> bool:
        """Returns whether an op is in a loop, or is a view, and not one on its own."""
        each = self._body.instructions.get(name)
        return each is None or self._is_in_loop(each)

    def _is_in_loop(self, each: Instruction) -> bool:
        if self._is_one:
            return each.opcode not in ("parameter", "constant")
        if each.opcode in _LAST_OF_LOOPS:
            return each.shape[0] != "("
        return each.opcode in ELEMENTWISE or each.opcode in _REARRANGING

    @cached_property
    def _members(self) -> frozenset[str]:
        return frozenset(name for name, each in self._body.instructions.items() if self._is_in_loop(each))

    @cached_property
    def _followed(self) -> frozenset[str]:
        """The ops whose values the ops of the same loop can use without memory."""
        if not self._is_fused:
            return frozenset()
        instructions = self._body.instructions
        return frozenset(name for name in self._members if self._is_one or not self._is_last(instructions[name]))

    def _is_last(self, each: Instruction) -> bool:
        if each.opcode == "reduce":  # without elements to add up it is a reshape
            return self._body.size(each.name)[0] != self._body.size(self._body.operands[each.name][0])[0]
        return each.opcode in _LAST_OF_LOOPS

    def _is_in_place(self, name: str, position: int) -> bool:
        """Returns whether an operand is an array in memory of which an op writes a part."""
        return position == 0 and self._body.instructions[name].opcode == "dynamic-update-slice"

    def _plan(self) -> None:
        """Goes from users to what they use."""
        body, needed, level = self._body, self._needed, self._level
        for result in body.results:
            self._use(result, written=True)
        for name in reversed(body.operands):
            is_member = name in self._members
            if is_member and name not in needed:
                continue  # nobody uses it
            count = needed[name] if is_member and self._is_fused else body.size(name)[0]
            for position, operand in enumerate(body.operands[name]):
                is_near = is_member and operand in self._followed and not self._is_in_place(name, position)
                level[operand] = min(level.get(operand, 0), level.get(name, 0) - (not is_near))
                if operand in self._members:
                    self._use(operand, body.elements_read(name, position, count), written=not is_near)

    def _use(self, name: str, elements: int = 0, *, written: bool) -> None:
        if name not in self._members:
            return
        whole, _ = self._body.size(name)
        self._needed[name] = whole if written else min(whole, self._needed.get(name, 0) + elements)
        if written:
            self._written.add(name)

    def bytes_of(self, each: Instruction) -> int:
        """Returns the bytes that an op reads and writes that is in no loop."""
        if each.opcode == "custom-call" and _FREE_CALLS.search(each.attributes):
            return 0
        if each.opcode == "copy-start":  # (result, operand, context)
            return _size(each.shape)[1]
        if each.opcode in ("slice-start", "dynamic-slice-start"):  # ((operands), result, context)
            elements, written = _size(tuple_elements(each.shape)[1])
            size, whole = self._body.size(self._body.operands[each.name][0])
            return written + whole * elements // max(1, size)
        if each.opcode.endswith("-done"):
            return 0
        body, (elements, _) = self._body, self._body.size(each.name)
        read = sum(body.bytes_read(each.name, at, elements) for at in range(len(body.operands[each.name])))
        return read + body.bytes_written(each.name)

    def bytes_of_all(self, in_place: frozenset[int]) -> tuple[int, int]:
        """Returns the bytes that a computation which is one loop reads, and those that it writes.

        Args:
          in_place: the numbers of results that lie where operands lie; a parameter among them is not moved.
        """
        body = self._body
        reads: Counter[str] = Counter()
        for name, needed in self._needed.items():
            for position, operand in enumerate(body.operands[name]):
                if body.instructions.get(operand, _NO_OP).opcode == "parameter":
                    reads[operand] += body.bytes_read(name, position, needed)
        results = [name for at, name in enumerate(body.results) if at not in in_place or name in self._members]
        for result in sorted(set(results) - self._members):  # a view of a parameter is a copy here
            reads[result] += body.size(result)[1]
        written = sum(body.bytes_written(name) if name in self._members else body.size(name)[1] for name in results)
        return sum(min(moved, body.size(operand)[1]) for operand, moved in reads.items()), written

    def pieces(self) -> list[Piece]:
        """Returns the loops with the bytes that each reads and writes."""
        parents = {name: name for name in self._needed}
        reads = self._reads(parents)
        moved: Counter[str] = Counter()
        for name, needed in self._needed.items():
            if name in self._written or name not in self._followed:
                whole, _ = self._body.size(name)
                part = needed if name in self._followed and whole else whole
                moved[_find(parents, name)] += self._body.bytes_written(name) * part // max(1, whole)
        by_loop: dict[str, dict[str, int]] = {}
        for name, found in reads.items():
            of_loop = by_loop.setdefault(_find(parents, name), {})
            for operand, count in found.items():
                _read(of_loop, operand, count)
        for loop, of_loop in by_loop.items():
            moved[loop] += sum(min(count, self._body.size(operand)[1]) for operand, count in of_loop.items())
        names: dict[str, list[str]] = {}
        for name in self._body.operands:
            if name in self._needed:
                names.setdefault(_find(parents, name), []).append(name)
        return [Piece(tuple(names[loop]), 0, count) for loop, count in moved.items()]

    def _reads(self, parents: dict[str, str]) -> dict[str, dict[str, int]]:
        """Returns for each op in a loop the bytes that it reads of each value in memory; joins ops of one loop."""
        body, reads = self._body, {}
        sources: dict[str, dict[str, int] | None] = {}  # the same with all that lies between an op and memory
        for name in body.operands:
            if name not in self._needed:
                continue
            own: dict[str, int] = {}
            behind: list[dict[str, int] | None] = [own]
            for position, operand in enumerate(body.operands[name]):
                count = body.bytes_read(name, position, self._needed[name])
                again = sources.get(operand)
                if operand not in self._followed or self._is_in_place(name, position):
                    _read(own, operand, count)
                elif self._level.get(operand, 0) == self._level.get(name, 0):
                    parents[_find(parents, operand)] = _find(parents, name)
                    behind.append(again)
                elif again is not None and sum(again.values()) <= count:
                    for source, moved in again.items():
                        _read(own, source, moved)
                else:
                    self._written.add(operand)
                    _read(own, operand, count)
            reads[name], sources[name] = own, _all_of(behind)
        return reads


_NO_OP = Instruction("", "", "", "", "")


def _read(reads: dict[str, int], operand: str, count: int) -> None:
    if count:
        reads[operand] = reads.get(operand, 0) + count


def _all_of(parts: Iterable[dict[str, int] | None]) -> dict[str, int] | None:
    """Returns the union of what parts read; None if that is more than a few arrays."""
    union: dict[str, int] = {}
    for part in parts:
        if part is None:
            return None
        for source, count in part.items():
            union[source] = max(count, union.get(source, 0))
    return union if len(union) <= _MOST_SOURCES else None


def _find(parents: dict[str, str], name: str) -> str:
    while parents[name] != name:
        parents[name] = name = parents[parents[name]]
    return name


# ---- FLOPs


def flops_of(within: Computation, each: Instruction) -> int:
    """Returns the FLOPs of an op itself, without those of what it calls; see W2."""
    match each.opcode:
        case opcode if opcode in _MATRIX_PRODUCTS:
            return _flops_of_product(within, each)
        case "convolution":
            return _flops_of_convolution(within, each)
        case "fft":
            length = prod(integers(_attribute(each, "fft_length")))
            points = max(_size(each.shape)[0], _size(within.shape_of(each.operands[0]))[0])
            return round(5 * points * log2(length))
        case "cholesky":
            return _size(each.shape)[0] * sizes_of(each.shape)[-1] // 3
        case "triangular-solve":
            return _size(each.shape)[0] * sizes_of(within.shape_of(each.operands[0]))[-1]
        case "custom-call" if _PRODUCT_CALLS.search(each.attributes):
            return _flops_of_library_product(within, each)
    return 0


def _flops_of_product(within: Computation, dot: Instruction) -> int:
    lhs = within.shape_of(dot.operands[0])
    contracted = integers(_attribute(dot, "lhs_contracting_dims"))
    flops = _per_multiply_add(lhs) * _size(dot.shape)[0] * prod(sizes_of(lhs)[dim] for dim in contracted)
    if dot.opcode == "ragged-dot" and set(integers(_attribute(dot, "lhs_ragged_dims"))) & set(contracted):
        return flops // max(1, _size(within.shape_of(dot.operands[2]))[0])  # each group has a part of the sum
    return flops


def _per_multiply_add(shape: str) -> int:
    return 8 if shape.lstrip("(").startswith("c") else 2


def _flops_of_convolution(within: Computation, each: Instruction) -> int:
    lhs, kernel = (sizes_of(within.shape_of(operand)) for operand in each.operands[:2])
    result = sizes_of(each.shape)
    labels = re.search(r"\bdim_labels=(\w+)_(\w+)->(\w+)", each.attributes)
    if labels is None:
        return 0
    found = re.search(r"\bwindow=\{([^}]*)\}", each.attributes)
    window = dict(re.findall(r"(\w+)=(\S+)", found[1])) if found else {}
    spatial = sorted(label for label in labels[3] if label.isdigit())
    positions = [
        _positions(
            lhs[labels[1].index(label)],
            kernel[labels[2].index(label)],
            result[labels[3].index(label)],
            tuple(_of_window(window, key, int(label)) for key in ("stride", "pad", "lhs_dilate", "rhs_dilate")),
        )
        for label in spatial
    ]
    outside = prod(size for label, size in zip(labels[3], result) if label not in spatial)
    features = kernel[labels[2].index("i")]  # those of one group
    return _per_multiply_add(each.shape) * outside * features * prod(positions)


def _of_window(window: dict[str, str], key: str, dim: int) -> int:
    """Returns what a window has for a dimension; of its padding, that at the start."""
    if key not in window:
        return 0 if key == "pad" else 1
    return int(window[key].split("x")[dim].split("_")[0])


@lru_cache(maxsize=1024)
def _positions(size: int, kernel: int, result: int, window: tuple[int, ...]) -> int:
    """Returns how many pairs of an element of the result and one of the kernel meet an element, along a dimension.

    Args:
      size, kernel, result: the sizes of the dimension. window: stride, padding at the start, dilation of the operand
        and of the kernel.

    Example:
      >>> _positions(4, 3, 4, (1, 1, 1, 1)), _positions(8, 8, 8, (7, 0, 8, 1))
      (10, 8)
    """
    stride, pad, dilation, kernel_dilation = window
    last, found = (size - 1) * dilation, 0
    period = dilation // gcd(dilation, stride)
    for at in range(kernel):
        offset = at * kernel_dilation - pad
        first, end = max(0, -(offset // stride)), min(result, (last - offset) // stride + 1)
        met = next((o for o in range(first, min(end, first + period)) if (o * stride + offset) % dilation == 0), end)
        found += max(0, -(-(end - met) // period))
    return found


def _flops_of_library_product(within: Computation, call: Instruction) -> int:
    """Returns the FLOPs of C[b,m,n] = A[b,m,k] B[b,k,n] by a library: b m k times b k n is (b m n) b k²."""
    result = next(shape_arrays(call.shape))
    lhs, rhs = (_size(within.shape_of(operand))[0] for operand in call.operands[:2])
    batch = prod(result.sizes[:-2])
    if not result.elements or lhs * rhs % (result.elements * batch):
        return 0
    contracted = round((lhs * rhs / (result.elements * batch)) ** 0.5)
    return 2 * result.elements * contracted


def _attribute(each: Instruction, name: str) -> str:
    match = re.search(rf"\b{name}=\{{([\d,\s]*)\}}", each.attributes)
    return match[1] if match else ""
