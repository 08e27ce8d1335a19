# SPDX-License-Identifier: Apache-2.0
"""Reads HLO text and returns the collectives that one run of the program executes.

The text is what XLA dumps right after SPMD partitioning (`*after_spmd-partitioning*.txt`): shapes are tiles, dtypes are
the program's, and neither combiners nor backend rewrites have run. The scheduled HLO of an executable reads as well.

It follows `while` bodies times their trip count, the callees of `call`, `fusion` and `async-start`, and the branch of a
`conditional` with the most traffic. XLA writes `known_trip_count` only late in its pipeline, so right after
partitioning the count is derived from the induction variable (`trip_counts`). A collective that a TPU runs in
pieces counts where it starts (`walk`).
"""

from dataclasses import dataclass, replace
from functools import cached_property

from reshard.synthesis.network.program_time import LocalWork
from reshard.synthesis.programs import traffic
from reshard.synthesis.programs.traffic import Collective

from .copies import _is_in_place
from .device_groups import parse_groups, parse_pairs
from .text import Computation, HloModule, Instruction, has_channel, op_name, parse_module, shape_bytes
from .trip_counts import Scope
from .walk import branches, callees, is_counted_elsewhere, loop_runs

_COLLECTIVES = {kind.replace("_", "-"): kind for kind in traffic.KINDS}
# What XLA's partitioner makes of a conversion, of which only those of results have no names.
_OF_CONVERSIONS = frozenset(
    ("all-gather", "all-to-all", "bitcast", "collective-permute", "concatenate", "copy", "dynamic-slice", "pad")
    + ("reshape", "slice", "transpose")
)
_FLATTENED_IDS_KINDS = ("all_gather", "all_reduce", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class CollectiveOp:
    """A collective with the instruction that it is.

    Fields:
      collective: what it moves, and how often it runs.
      name: of the instruction. shape: of its result, one device's tile, as HLO writes it.
      op_name: the name in its metadata, which is that of the op for which XLA made it; else that of the first
        op that uses it, or "". One that brings what a loop or a branch hands on into another layout has the name of the
        loop, or of the conditional.
      loops: the names of the `while` ops around it, outermost first.
      result: the number of the program's result that it brings into the layout that is asked for; None if it is made
        for an op, or for what a loop or a branch hands on.
      turns: how often the innermost loop around it runs it, each time that the loop itself runs.
      share_of_bits: how much of its values it moves, where a compiler moves only the bits that are read.
      added_bytes: what a device moves in its memory in each run to add up parts before, where a compiler does it there.
    """

    collective: Collective
    name: str
    shape: str
    op_name: str = ""
    loops: tuple[str, ...] = ()
    result: int | None = None
    turns: int = 1
    share_of_bits: float = 1.0
    added_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HloCollectives:
    """The collectives of an HLO module.

    Fields:
      ops: the collectives in program order; one in loops has the product of their trip counts.
      num_devices: replicas times partitions.
      unknown_trip_counts: names of the `while` ops with collectives whose trip count could not be derived; each is
        counted once, so the bytes are then a lower bound.
      unpriced: opcodes that move data between devices and are not counted (send, recv), sorted.
    """

    ops: tuple[CollectiveOp, ...]
    num_devices: int
    unknown_trip_counts: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()

    @property
    def collectives(self) -> tuple[Collective, ...]:
        return tuple(op.collective for op in self.ops)

    @property
    def added_work(self) -> tuple[LocalWork, ...]:
        return tuple(LocalWork(0, op.added_bytes, op.collective.trip_count) for op in self.ops if op.added_bytes)

    @property
    def bytes_received(self) -> int:
        return traffic.bytes_received(self.collectives, self.num_devices)

    @property
    def bytes_sent(self) -> int:
        return traffic.bytes_sent(self.collectives, self.num_devices)

    @property
    def largest_collective_tile_bytes(self) -> int:
        """Returns the size of the largest operand or result of a collective, in bytes per device."""
        return max((collective.largest_tile_bytes for collective in self.collectives), default=0)


def collectives_in(hlo_text: str) -> HloCollectives:
    """Returns the collectives of the HLO module in `hlo_text`.

    Raises: ValueError if the text has no entry computation.

    Example:
      >>> hlo = collectives_in('''HloModule m, num_partitions=4
      ... ENTRY %main (p: f32[8]) -> f32[32] {
      ...   %p = f32[8]{0} parameter(0)
      ...   ROOT %g = f32[32]{0} all-gather(%p), channel_id=1, replica_groups=[1,4]<=[4], use_global_device_ids=true
      ... }''')
      >>> hlo.bytes_received, hlo.largest_collective_tile_bytes
      (96, 128)
    """
    return _Walk(parse_module(hlo_text)).result()


class _Names:
    """The names of ops that the instructions of one computation have.

    XLA gives a conversion of what enters or leaves a computation no name, or the name of the parameter that it
    converts, which is not the name of an op.
    """

    def __init__(self, computation: Computation):
        self._computation = computation
        parameters = [each for each in computation.instructions.values() if each.opcode == "parameter"]
        self._of_parameters = frozenset(map(op_name, parameters))

    def own(self, instruction: Instruction) -> str:
        """Returns the name of the op for which XLA made an instruction; "" if it has none."""
        name = op_name(instruction)
        return "" if name in self._of_parameters else name

    @cached_property
    def of_users(self) -> dict[str, str]:
        """Returns for each conversion without a name the name of the first instruction that uses it, or ""."""
        users: dict[str, list[Instruction]] = {}
        for instruction in self._computation.instructions.values():
            for operand in instruction.operands:
                users.setdefault(operand.partition("#")[0], []).append(instruction)
        found: dict[str, str] = {}
        for instruction in reversed(self._computation.instructions.values()):  # users come behind what they use
            if self._is_nameless_conversion(instruction):
                names = (self.own(user) or found.get(user.name, "") for user in users.get(instruction.name, ()))
                found[instruction.name] = next(filter(None, names), "")
        return found

    @cached_property
    def results(self) -> dict[str, int]:
        """Returns the conversions without names that bring results of the computation into another layout.

        Returns: their names -> the number of the result, the first one of several.
        """
        computation = self._computation
        root = computation.instructions.get(computation.root)
        found: dict[str, int] = {}
        for number, result in enumerate(root.operands if root and root.opcode == "tuple" else [computation.root]):
            left = [result]
            while left:
                instruction = computation.instructions.get(left.pop().partition("#")[0])
                if instruction and instruction.name not in found and self._is_nameless_conversion(instruction):
                    found[instruction.name] = number
                    left += instruction.operands
        return found

    def _is_nameless_conversion(self, instruction: Instruction) -> bool:
        return instruction.opcode in _OF_CONVERSIONS and not self.own(instruction)


def _is_reduce_scatter(instruction: Instruction) -> bool:
    """Returns whether a fusion is an all-reduce of which each device keeps a part, which TPUs run as one op."""
    return instruction.opcode == "fusion" and (instruction.callee("calls") or "").startswith("all-reduce-scatter")


def _scattered(op: CollectiveOp) -> CollectiveOp:
    """Returns an all-reduce of such a fusion as the reduce-scatter that it is; another op as it is."""
    moved = op.collective
    if moved.kind != "all_reduce":
        return op
    members = max((len(group) for group in moved.groups), default=1)
    after = traffic.tile_bytes_after("reduce_scatter", moved.bytes_before, members)
    return replace(op, collective=replace(moved, kind="reduce_scatter", bytes_after=after))


def _named_after(owner: Instruction, scope: Scope, ops: list[CollectiveOp]) -> list[CollectiveOp]:
    """Returns the collectives of a computation; those of its results get the name of the op that it belongs to."""
    results, name = _Names(scope.computation).results, op_name(owner)
    return [replace(op, op_name=name) if not op.op_name and op.name in results else op for op in ops]


class _Walk:
    """Collects the collectives of a module in program order.

    Invariant: `times` is the product of the trip counts of the loops that the walk is in, `_loops` are their names.
    """

    def __init__(self, module: HloModule):
        self._module = module
        self._unknown_trip_counts: list[str] = []
        self._unpriced: set[str] = set()
        self._loops: tuple[str, ...] = ()

    def result(self) -> HloCollectives:
        entry = Scope(self._module, self._module.entry, ())
        results = _Names(self._module.entry).results
        ops = tuple(
            op if op.op_name else replace(op, result=results.get(op.name)) for op in self._visit(entry, times=1)
        )
        unknown = tuple(dict.fromkeys(self._unknown_trip_counts))
        return HloCollectives(ops, self._module.num_devices, unknown, tuple(sorted(self._unpriced)))

    def _visit(self, scope: Scope, times: int) -> list[CollectiveOp]:
        found: list[CollectiveOp] = []
        for instruction in scope.computation.instructions.values():
            found += self._visit_instruction(scope, instruction, times)
        own, names = scope.computation.instructions, _Names(scope.computation)
        for at, op in enumerate(found):
            if (instruction := own.get(op.name)) is not None:
                found[at] = replace(op, op_name=names.own(instruction) or names.of_users.get(op.name, ""))
        return found

    def _visit_instruction(self, scope: Scope, instruction: Instruction, times: int) -> list[CollectiveOp]:
        kind = _COLLECTIVES.get(instruction.opcode.removesuffix("-start"))
        if kind is not None and is_counted_elsewhere(scope.computation, instruction):
            return []
        if kind is not None:
            moved = self._collective(kind, scope.computation, instruction, times)
            return [CollectiveOp(moved, instruction.name, instruction.shape, loops=self._loops)]
        match instruction.opcode:
            case "while":
                return self._visit_while(scope, instruction, times)
            case "conditional":
                return self._visit_conditional(scope, instruction, times)
            case "send" | "recv":
                self._unpriced.add(instruction.opcode)
        found = [found for callee in callees(scope, instruction) for found in self._visit(callee, times)]
        return list(map(_scattered, found)) if _is_reduce_scatter(instruction) else found

    def _visit_while(self, scope: Scope, loop: Instruction, times: int) -> list[CollectiveOp]:
        runs = loop_runs(scope, loop)
        around, self._loops = self._loops, (*self._loops, loop.name)
        found = self._visit(runs.condition, times * runs.condition_runs)
        inside = _named_after(loop, runs.body, self._visit(runs.body, times * runs.body_runs))
        found += [replace(op, turns=runs.body_runs) if op.loops == self._loops else op for op in inside]
        self._loops = around
        if found and runs.trip_count is None:
            self._unknown_trip_counts.append(loop.name)
        return found

    def _visit_conditional(self, scope: Scope, conditional: Instruction, times: int) -> list[CollectiveOp]:
        """Returns the collectives of the branch in which the busiest device receives most."""
        found = [_named_after(conditional, each, self._visit(each, times)) for each in branches(scope, conditional)]
        return max(found, key=self._bytes_received)

    def _bytes_received(self, ops: list[CollectiveOp]) -> int:
        return traffic.bytes_received([op.collective for op in ops], self._module.num_devices)

    def _collective(self, kind: str, within: Computation, instruction: Instruction, times: int) -> Collective:
        operand_bytes = [shape_bytes(within.shape_of(operand)) for operand in instruction.operands]
        if kind == "collective_permute":
            pairs = self._device_pairs(instruction.attributes)
            before = operand_bytes[0] if _is_in_place(operand_bytes, instruction) else sum(operand_bytes)
            return Collective(kind, before, before, pairs=pairs, trip_count=times)
        groups = self._device_groups(kind, instruction.attributes)
        if kind == "ragged_all_to_all":
            return Collective(kind, operand_bytes[0], operand_bytes[1], groups, trip_count=times)
        before = sum(operand_bytes)
        group_size = max((len(group) for group in groups), default=1)
        after = traffic.tile_bytes_after(kind, before, group_size)
        arrays = 1 if kind == "all_to_all" else len(operand_bytes)  # its operands are the parts of one array
        return Collective(kind, before, after, groups, trip_count=times, arrays=arrays)

    def _device_groups(self, kind: str, attributes: str) -> tuple[tuple[int, ...], ...]:
        """Returns the groups as device ids, device = replica · partitions + partition.

        The ids in `replica_groups` are flattened device ids with `use_global_device_ids`, else partition ids or
        replica ids depending on `channel_id`; no groups at all means one group of everything.
        Source: XLA's GetCollectiveOpGroupMode.
        """
        replicas, partitions = range(self._module.num_replicas), self._module.num_partitions
        listed = tuple(group for group in parse_groups(attributes) if group)
        if "use_global_device_ids=true" in attributes:
            return listed or (tuple(range(self._module.num_devices)),)
        if not has_channel(attributes):
            listed = listed or (tuple(replicas),)
            return tuple(tuple(r * partitions + p for r in g) for p in range(partitions) for g in listed)
        if kind in _FLATTENED_IDS_KINDS:
            listed = listed or (tuple(replicas),)
            return tuple(tuple(r * partitions + p for r in g for p in range(partitions)) for g in listed)
        listed = listed or (tuple(range(partitions)),)
        return tuple(tuple(r * partitions + p for p in g) for r in replicas for g in listed)

    def _device_pairs(self, attributes: str) -> tuple[tuple[int, int], ...]:
        """Returns the pairs as device ids; they are partition ids with a `channel_id`, else replica ids."""
        replicas, partitions = self._module.num_replicas, self._module.num_partitions
        pairs = parse_pairs(attributes)
        if has_channel(attributes):
            return tuple((r * partitions + i, r * partitions + j) for r in range(replicas) for i, j in pairs)
        return tuple((i * partitions + p, j * partitions + p) for p in range(partitions) for i, j in pairs)
