# SPDX-License-Identifier: Apache-2.0
"""What compilers for TPUs and GPUs make of a partitioned program's collectives, where CPU devices stand in for them.

XLA's partitioner is the same for every platform. What comes behind it is not: the compiler for CPU devices leaves most
collectives as they are, those for accelerators change them. A program as it is right after partitioning, priced as it
stands, would take time on them that it never takes, stock XLA's most of all. The rules, in this order, with the names
of XLA's passes for them:

A1  A sum of sums of one kind is one sum: all_reduce over x of an all_reduce over y is one over both (AllReduceFolder).
A2  An addition of two sums over the same devices, or of the same parts of them, is one sum of their addition
    (AllReduceReassociate, ReduceScatterReassociate).
A3  A sum of which each device keeps its part is a reduce_scatter (ReduceScatterCreator). On TPUs it is one only if
    parts fill tiles of memory (`whole_tiles`, W1 and W2); else, and where the program has a reduce_scatter of such
    parts itself, every device gets the whole sum.
A4  A sum in a loop that is only added to what the loop carries is taken once, behind the loop
    (WhileLoopAllReduceCodeMotion).
A5  TPUs gather no more bits than are used: a value that is converted to a narrower type, or multiplied in bfloat16 as
    products of float32 are by default, is gathered so.
A6  Collectives of one kind, over the same devices and of one type, none of which needs another, run as one, up to
    30 MiB (AllReduceCombiner, ReduceScatterCombiner, on GPUs AllGatherCombiner too). Each has its share of the start.

Sources: `RunCollectiveOptimizationPasses` and `RunPostFusionPasses` in XLA's compiler for GPUs; what libtpu makes of
partitioned programs and of single reduce_scatters (`python -m benchmarks.whole_modules.promised`). Not done: gathers
that are equal, motion of other sums, what runs beside work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from reshard.synthesis.forms.platforms import GPU, TPU
from reshard.synthesis.forms.whole_tiles import is_kept
from reshard.synthesis.programs import traffic
from reshard.synthesis.programs.traffic import Collective

from .collectives import CollectiveOp, HloCollectives
from .partition_values import PartitionValues
from .text import WITHOUT_OPERANDS, Computation, HloModule, Instruction, dtype_bits, shape_arrays

ACCELERATORS = (TPU, GPU)
_VIEWS = frozenset(("bitcast", "copy", "reshape", "transpose"))  # in products before, or in how memory is read
_PASSES_ON = _VIEWS | {"broadcast", "slice"}
_JOINED = {TPU: ("all_reduce", "reduce_scatter"), GPU: ("all_gather", "all_reduce", "reduce_scatter")}
_MOST_JOINED_BYTES, _MOST_JOINED = 30 << 20, 256
_MOST_OPEN = 128  # the last ones, that another one may join
_BFLOAT16_BITS = 16
_ARRAYS_OF_AN_ADDITION = 3
_DIMENSIONS = re.compile(r"\bdimensions=\{([\d,]*)\}")
_PRECISION = re.compile(r"\boperand_precision=\{([^}]*)\}")


def as_run_by(platform: str, found: HloCollectives, module: HloModule) -> HloCollectives:
    """Returns the collectives of a program right after partitioning as the compiler for a platform runs them.

    Args:
      platform: one of `ACCELERATORS`; for any other one they stay as they are.

    Example: each of two devices keeps its half of a sum.
      >>> from .collectives import collectives_in
      >>> from .text import parse_module
      >>> text = '''HloModule m, num_partitions=2
      ... %sum (a: f32[], b: f32[]) -> f32[] {
      ...   %a = f32[] parameter(0)
      ...   %b = f32[] parameter(1)
      ...   ROOT %c = f32[] add(%a, %b)
      ... }
      ... ENTRY %main (p: f32[8]) -> f32[4] {
      ...   %p = f32[8]{0} parameter(0)
      ...   %all = f32[8] all-reduce(%p), replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%sum
      ...   %id = u32[] partition-id()
      ...   %half = u32[] constant(4)
      ...   %start = u32[] multiply(%id, %half)
      ...   ROOT %own = f32[4]{0} dynamic-slice(%all, %start), dynamic_slice_sizes={4}
      ... }'''
      >>> found = collectives_in(text)
      >>> [each.kind for each in found.collectives], found.bytes_received
      (['all_reduce'], 32)
      >>> found = as_run_by("gpu", found, parse_module(text))
      >>> [each.kind for each in found.collectives], found.bytes_received
      (['reduce_scatter'], 16)
    """
    if platform not in ACCELERATORS or module.num_replicas != 1:
        return found
    moved = {op.name: op.collective for op in found.ops}
    changes: dict[str, _Change] = {}
    bodies = frozenset(each.callee("body") for one in module.computations.values() for each in _loops(one))
    for computation in module.computations.values():
        if own := {name: moved[name] for name in computation.instructions if name in moved}:
            changes |= _Compiler(platform, module, computation, computation.name in bodies, own).changes()
    return replace(found, ops=tuple(_changed(op, changes[op.name]) for op in found.ops if not changes[op.name].is_gone))


@dataclass(slots=True)
class _Change:
    """What becomes of one collective.

    Attributes:
      moved, dtype, shape: what it moves, of which type, and its result as HLO writes it.
      share_of_bits, added_bytes: as in `CollectiveOp`.
      starts: the values that say where the part of each device begins, of a reduce_scatter.
      is_gone: whether another one does its work. is_behind_loop: whether it runs once, behind the loop around it.
      together: how many run as one with it, itself included.
    """

    moved: Collective
    dtype: str
    shape: str
    share_of_bits: float = 1.0
    added_bytes: int = 0
    starts: tuple[str, ...] = ()
    is_gone: bool = False
    is_behind_loop: bool = False
    together: int = 1


def _changed(op: CollectiveOp, change: _Change) -> CollectiveOp:
    moved = change.moved
    collective = replace(
        op.collective,
        kind=moved.kind,
        groups=moved.groups,
        bytes_before=moved.bytes_before,
        bytes_after=moved.bytes_after,
        together=change.together,
    )
    how = {"shape": change.shape, "share_of_bits": change.share_of_bits, "added_bytes": change.added_bytes}
    if change.is_behind_loop and op.turns:
        runs = collective.trip_count // op.turns
        return replace(op, collective=replace(collective, trip_count=runs), loops=op.loops[:-1], turns=1, **how)
    return replace(op, collective=collective, **how)


@dataclass
class _Compiler:
    """Applies the rules to one computation.

    Attributes:
      is_body: whether the computation is the body of a loop.
      own: the collectives of the computation by the names of their instructions.
    State:
      _changes: what becomes of each so far. _sum_of: values that are a sum as it is, by the collective that sums it.
      _into: collectives that are gone, and the one that does their work.
    """

    platform: str
    module: HloModule
    computation: Computation
    is_body: bool
    own: dict[str, Collective]
    _changes: dict[str, _Change] = field(default_factory=dict)
    _sum_of: dict[str, str] = field(default_factory=dict)
    _into: dict[str, str] = field(default_factory=dict)

    def changes(self) -> dict[str, _Change]:
        for name, moved in self.own.items():
            shape = self._of(name).shape
            self._changes[name] = _Change(moved, next((each.dtype for each in shape_arrays(shape)), ""), shape)
            summed = [self.computation.shape_of(each) for each in _operands(self._of(name))]
            if moved.kind == "reduce_scatter" and len(summed) == 1 and not self._is_scattered(summed[0], shape):
                whole = replace(moved, kind="all_reduce", bytes_after=moved.bytes_before)
                self._changes[name].moved = whole
        for instruction in self.computation.instructions.values():
            self._follow_sums(instruction)
        for name in self.own:
            if self.platform == TPU and self._changes[name].moved.kind == "all_gather":
                self._narrow(name)
        self._join()
        return self._changes

    def _of(self, name: str) -> Instruction:
        return self.computation.instructions[name]

    @cached_property
    def _users(self) -> dict[str, list[Instruction]]:
        """Returns the instructions that use a value; the caller of the computation counts as one, the root itself."""
        found: dict[str, list[Instruction]] = {}
        for each in self.computation.instructions.values():
            for operand in _operands(each):
                found.setdefault(operand.partition("#")[0], []).append(each)
        found.setdefault(self.computation.root, []).append(self._of(self.computation.root))
        return found

    @cached_property
    def _numbers(self) -> PartitionValues:
        return PartitionValues(self.computation, self.module.num_partitions)

    # ---- A1 to A4

    def _follow_sums(self, instruction: Instruction) -> None:
        name, operands = instruction.name, _operands(instruction)
        summed = self._only_sum(operands[0]) if operands else None
        if name in self.own and self.own[name].kind == "all_reduce" and len(operands) == 1:
            self._sum_of[name] = name
            if summed is not None and self._reducer(summed) == self._reducer(name):
                self._fold(name, summed)
        elif instruction.opcode == "dynamic-slice":
            self._scatter(instruction)
        elif instruction.opcode in _VIEWS and summed is not None:
            self._sum_of[name] = summed
        elif len(operands) == 2:
            other = self._only_sum(operands[1])
            if summed is not None and other is not None:
                self._add(instruction, summed, other)
            elif summed is not None:
                self._accumulate(instruction, summed, operands[1])
            elif other is not None:
                self._accumulate(instruction, other, operands[0])

    def _only_sum(self, name: str) -> str | None:
        """Returns the collective whose sum a value is, if one instruction uses that value."""
        return self._sum_of.get(name) if self._is_used_once(name) else None

    def _is_used_once(self, name: str) -> bool:
        return len(self._users.get(name, ())) == 1

    def _reducer(self, name: str) -> str:
        """Returns the opcode with which a collective reduces two elements; "" if it is not one of one instruction."""
        applied = self.module.computations.get(self._of(name).callee("to_apply") or "")
        if applied is None or len(applied.instructions) != 3:
            return ""
        return applied.instructions[applied.root].opcode

    def _fold(self, outer: str, inner: str) -> None:
        change = self._changes[inner]
        groups = _product(change.moved.groups, self._changes[outer].moved.groups)
        if groups is not None and self._reducer(inner) and change.moved.kind == "all_reduce":
            change.moved = replace(change.moved, groups=groups)
            self._replace(outer, inner)
            self._sum_of[outer] = inner

    def _add(self, added: Instruction, lhs: str, rhs: str) -> None:
        if rhs == lhs or not added.opcode == self._reducer(rhs) == self._reducer(lhs):
            return
        of_lhs, of_rhs = self._changes[lhs], self._changes[rhs]
        if _summed(of_lhs) == _summed(of_rhs):
            self._replace(rhs, lhs)
            self._sum_of[added.name] = lhs
            if of_lhs.moved.kind == "reduce_scatter":  # whole tiles are added, where parts were
                more = of_lhs.moved.bytes_before - of_lhs.moved.bytes_after
                of_lhs.added_bytes += of_rhs.added_bytes + _ARRAYS_OF_AN_ADDITION * more

    def _accumulate(self, added: Instruction, summed: str, other: str) -> None:
        change, root = self._changes[summed], self._of(self.computation.root)
        carried, mark, number = other.partition("#")
        is_carried = mark and number.isdigit() and self._of(carried).opcode == "parameter"
        if not is_carried or added.opcode != self._reducer(summed) or change.moved.kind != "all_reduce":
            return
        reads = sum(_operands(each).count(other) for each in self._users[carried])
        is_handed_on = root.opcode == "tuple" and _operands(root)[int(number) : int(number) + 1] == [added.name]
        if reads == 1 and is_handed_on and self._is_used_once(added.name) and self.is_body:
            change.is_behind_loop = True

    def _replace(self, gone: str, by: str) -> None:
        self._changes[gone].is_gone = True
        self._into[gone] = by

    def _scatter(self, instruction: Instruction) -> None:
        whole = _operands(instruction)[0]
        summed = self._sum_of.get(whole)
        if (
            summed is None
            or not self._reducer(summed)
            or not all(_is_equal(instruction, each) for each in self._users[whole])
        ):
            return
        change = self._changes[summed]
        is_part = change.moved.kind == "all_reduce" and self._is_own_part(instruction, change.moved.groups)
        if is_part and self._is_scattered(self._of(whole).shape, instruction.shape):
            members = len(change.moved.groups[0])
            after = traffic.tile_bytes_after("reduce_scatter", change.moved.bytes_before, members)
            change.moved = replace(change.moved, kind="reduce_scatter", bytes_after=after)
            change.shape, change.starts = instruction.shape, tuple(_operands(instruction)[1:])
        if change.moved.kind == "reduce_scatter" and change.starts == tuple(_operands(instruction)[1:]):
            self._sum_of[instruction.name] = summed

    def _is_scattered(self, whole: str, part: str) -> bool:
        """Returns whether the compiler has a reduce_scatter for sums of a shape, of which devices keep parts."""
        if self.platform != TPU:
            return True
        (before,), (after,) = (list(shape_arrays(each)) for each in (whole, part))
        split = next((dim for dim, (one, other) in enumerate(zip(before.sizes, after.sizes)) if one != other), None)
        if split is None:
            return False
        return is_kept(before.sizes, split, before.sizes[split] // after.sizes[split], dtype_bits(before.dtype))

    def _is_own_part(self, sliced: Instruction, groups: tuple[tuple[int, ...], ...]) -> bool:
        """Returns whether each device of a group takes another part of a dimension, all of it together."""
        whole, *starts = _operands(sliced)
        (before,), (after,) = (list(shape_arrays(each)) for each in (self._of(whole).shape, sliced.shape))
        split = [dim for dim, (one, other) in enumerate(zip(before.sizes, after.sizes)) if one != other]
        if len(split) != 1 or len(starts) != len(before.sizes) or any(len(each) != len(groups[0]) for each in groups):
            return False
        size = after.sizes[split[0]]
        begins = self._numbers.of(starts[split[0]]) if size * len(groups[0]) == before.sizes[split[0]] else None
        if begins is None:
            return False
        wanted = list(range(0, before.sizes[split[0]], size))
        return all(sorted(begins[list(each)].tolist()) == wanted for each in groups)

    # ---- A5

    def _narrow(self, name: str) -> None:
        change = self._changes[name]
        wide = dtype_bits(change.dtype)
        needed = self._needed_bits(name, change.dtype) if wide else 0
        if 0 < needed < wide:
            before, after = (
                -(-each * needed // wide) for each in (change.moved.bytes_before, change.moved.bytes_after)
            )
            change.moved, change.share_of_bits = (
                replace(change.moved, bytes_before=before, bytes_after=after),
                needed / wide,
            )
            if needed == _BFLOAT16_BITS:
                change.shape = re.sub(rf"\b{change.dtype}\[", "bf16[", change.shape)

    def _needed_bits(self, name: str, dtype: str) -> int:
        """Returns the most bits of an element that a user of a value reads."""
        return max((self._read_bits(user, name, dtype) for user in self._users.get(name, ())), default=0)

    def _read_bits(self, user: Instruction, name: str, dtype: str) -> int:
        all_bits = dtype_bits(dtype)
        if user.name == name:  # the caller
            return all_bits
        if user.opcode in _PASSES_ON:
            return self._needed_bits(user.name, dtype)
        if user.opcode == "convert":
            to = next((each.dtype for each in shape_arrays(user.shape)), dtype)
            return min(all_bits, dtype_bits(to)) if _is_float(to) and _is_float(dtype) else all_bits
        if user.opcode in ("convolution", "dot") and dtype == "f32" and _has_default_precision(user):
            return _BFLOAT16_BITS
        return all_bits

    # ---- A6

    def _join(self) -> None:
        """Joins collectives, in the order of the program, each with the first ones that it does not need."""
        joined: dict[tuple, list[_Joined]] = {}
        of_several: list[_Joined] = []
        for name, needed in self._needs().items():
            change, bit = self._changes[name], self._bits[name]
            if change.moved.kind not in _JOINED[self.platform]:
                continue
            alike = joined.setdefault(self._key(name), [])
            needed = 0 if change.is_behind_loop else _closed(needed, of_several)
            into = next((each for each in alike[-_MOST_OPEN:] if each.takes(change.moved, needed)), None)
            if into is None:
                into = _Joined()
                alike.append(into)
            elif len(into.names) == 1:
                of_several.append(into)
            into.add(name, change.moved, bit, needed)
        for each in of_several:
            for name in each.names:
                self._changes[name].together = len(each.names)

    def _key(self, name: str) -> tuple:
        change, instruction = self._changes[name], self._of(name)
        dims = _DIMENSIONS.search(instruction.attributes)
        how = (dims and dims[1]) if change.moved.kind == "all_gather" else self._reducer(name)
        return change.moved.kind, change.moved.groups, change.dtype, how, change.is_behind_loop

    @cached_property
    def _bits(self) -> dict[str, int]:
        """Returns a bit for each collective that is left."""
        left = [name for name in self.own if not self._changes[name].is_gone]
        return {name: 1 << at for at, name in enumerate(left)}

    def _needs(self) -> dict[str, int]:
        """Returns the bits of what each collective that is left needs, in the order of their last operands."""
        found: dict[str, int] = {}
        needed: dict[str, int] = {}
        for name, instruction in self.computation.instructions.items():
            bits = 0
            for operand in _operands(instruction):
                bits |= needed.get(operand.partition("#")[0], 0)
            if name in self.own:
                runs = name
                while runs in self._into:
                    runs = self._into[runs]
                bit = self._bits[runs]
                found[runs] = (found.pop(runs, 0) | bits) & ~bit
                bits |= bit
            needed[name] = bits
        return found


@dataclass
class _Joined:
    """Collectives that run as one. `bits` of them, and of all that they need."""

    names: list[str] = field(default_factory=list)
    bytes: int = 0
    bits: int = 0
    needed: int = 0

    def takes(self, moved: Collective, needed: int) -> bool:
        has_room = len(self.names) < _MOST_JOINED and self.bytes + moved.bytes_before <= _MOST_JOINED_BYTES
        return has_room and not needed & self.bits

    def add(self, name: str, moved: Collective, bit: int, needed: int) -> None:
        self.names.append(name)
        self.bytes += moved.bytes_before
        self.bits |= bit
        self.needed |= needed


def _closed(needed: int, of_several: list[_Joined]) -> int:
    """Returns the bits of what is needed with all that runs together with it, and what these need."""
    before = None
    while needed != before:
        before = needed
        for each in of_several:
            if each.bits & needed:
                needed |= each.bits | each.needed
    return needed


def _loops(computation: Computation) -> Iterator[Instruction]:
    return (each for each in computation.instructions.values() if each.opcode == "while")


def _summed(change: _Change) -> tuple:
    """Returns what is equal of sums that may be added before."""
    return change.moved.kind, change.moved.groups, change.dtype, change.shape, change.starts


def _operands(instruction: Instruction) -> list[str]:
    return [] if instruction.opcode in WITHOUT_OPERANDS else instruction.operands


def _is_equal(one: Instruction, other: Instruction) -> bool:
    return (one.opcode, one.shape, one.operands) == (other.opcode, other.shape, other.operands)


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("f", "bf"))


def _has_default_precision(product: Instruction) -> bool:
    found = _PRECISION.search(product.attributes)
    return found is None or set(re.split(r"[,\s]+", found[1].strip())) <= {"default"}


def _product(
    inner: tuple[tuple[int, ...], ...], outer: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], ...] | None:
    """Returns the groups of one sum over both, inner groups first; None if no group has each sum of an inner one once.

    Example:
      >>> _product(((0, 1), (2, 3)), ((0, 2), (1, 3))), _product(((0, 1), (2, 3)), ((0, 1), (2, 3)))
      (((0, 1, 2, 3),), None)
    """
    group_of = {device: set(group) for group in inner for device in group}
    if {device for group in outer for device in group} != set(group_of):
        return None
    found: dict[tuple[int, ...], None] = {}
    for group in outer:
        joined = set().union(*(group_of[device] for device in group))
        if len(joined) != sum(len(group_of[device]) for device in group):
            return None
        found[tuple(sorted(joined))] = None
    is_whole = sum(map(len, found)) == len(group_of)
    return tuple(found) if is_whole else None
