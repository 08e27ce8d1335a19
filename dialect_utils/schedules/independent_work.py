# SPDX-License-Identifier: Apache-2.0
"""The work that a device could do while a collective runs.

An instruction may run beside a collective if neither needs the result of the other: in the graph of their computation
it is neither an ancestor nor a descendant. Such work is an upper limit for what a scheduler can hide behind the
collective. It needs memory, and several collectives may share it. Only the computation of the collective is looked at:
of a loop, that is one iteration of its body.
"""

from dataclasses import dataclass

from reshard.synthesis.programs import traffic

from ..hlo.text import HloModule, Instruction, op_name, shape_bytes
from ..hlo.trip_counts import Scope
from ..hlo.walk import branches, callees, loop_runs
from ..hlo.work import flops_of

COLLECTIVES = frozenset(kind.replace("_", "-") for kind in traffic.KINDS)
# What is no product, and yet no cheap part of a fusion: its bytes are counted.
_BY_BYTES = frozenset(
    ("cholesky", "custom-call", "fft", "gather", "reduce", "reduce-window", "scatter", "select-and-scatter", "sort")
    + ("triangular-solve",)
)


@dataclass(frozen=True, slots=True)
class Work:
    """Work of instructions on one device, all runs together.

    Fields:
      flops: as `hlo.work` counts them.
      bytes: that these, and other instructions which no fusion makes cheap, read and write.
    """

    flops: int = 0
    bytes: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, runs: int) -> "Work":
        return Work(self.flops * runs, self.bytes * runs)

    def seconds(self, flops_per_s: float | None, bytes_per_s: float) -> float:
        """Returns the time of a roofline: of computing or of reading and writing, whatever is longer."""
        computing_s = self.flops / flops_per_s if flops_per_s else 0.0
        return max(computing_s, self.bytes / bytes_per_s)


@dataclass(frozen=True, slots=True)
class Beside:
    """What may run beside one run of a collective.

    Fields:
      work: of all instructions that are independent of it.
      opcode, op_name: of the largest of them, the one with the most FLOPs, then bytes; "" if there is none. `op_name`
        is the name in its metadata.
    """

    work: Work = Work()
    opcode: str = ""
    op_name: str = ""

    @property
    def is_any(self) -> bool:
        return bool(self.opcode)


def independent_work(module: HloModule) -> dict[str, Beside]:
    """Returns for each collective, by the name of its instruction, what may run beside it.

    Example: the dot needs the gathered operand, the sort does not.
      >>> from ..hlo.text import parse_module
      >>> beside = independent_work(parse_module('''HloModule m, num_partitions=4
      ... ENTRY %main (p: f32[8,8], q: f32[64]) -> (f32[32,8], f32[64]) {
      ...   %p = f32[8,8]{1,0} parameter(0)
      ...   %q = f32[64]{0} parameter(1)
      ...   %g = f32[32,8]{1,0} all-gather(%p), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}
      ...   %d = f32[32,8]{1,0} dot(%g, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      ...   %s = f32[64]{0} sort(%q), dimensions={0}
      ...   ROOT %t = (f32[32,8]{1,0}, f32[64]{0}) tuple(%d, %s)
      ... }'''))
      >>> beside["g"].opcode, beside["g"].work
      ('sort', Work(flops=0, bytes=512))
    """
    found: dict[str, Beside] = {}
    _Walk(found).visit(Scope(module, module.entry, ()))
    return found


class _Walk:
    """Computes the work of computations. State: `found` has what may run beside the collectives seen so far."""

    def __init__(self, found: dict[str, Beside]):
        self._found = found

    def visit(self, scope: Scope) -> Work:
        """Returns the work of one run of a computation."""
        instructions = list(scope.computation.instructions.values())
        works = [self._work(scope, each) for each in instructions]
        collectives = [at for at, each in enumerate(instructions) if each.opcode.removesuffix("-start") in COLLECTIVES]
        if collectives:
            busy = [at for at, work in enumerate(works) if work.flops or work.bytes]
            needs = _ancestors(instructions)
            for at in collectives:
                free = [each for each in busy if not needs[at] >> each & 1 and not needs[each] >> at & 1]
                self._found[instructions[at].name] = _beside(instructions, works, free)
        return sum(works, Work())

    def _work(self, scope: Scope, instruction: Instruction) -> Work:
        if instruction.opcode == "while":
            runs = loop_runs(scope, instruction)
            return self.visit(runs.body).times(runs.body_runs)
        if instruction.opcode == "conditional":
            works = map(self.visit, branches(scope, instruction))
            return max(works, key=lambda work: (work.flops, work.bytes))
        own = flops_of(scope.computation, instruction)
        is_counted = own or instruction.opcode in _BY_BYTES
        work = Work(own, _moved_bytes(scope, instruction) if is_counted else 0)
        return sum(map(self.visit, callees(scope, instruction)), work)


def _beside(instructions: list[Instruction], works: list[Work], free: list[int]) -> Beside:
    if not free:
        return Beside()
    largest = instructions[max(free, key=lambda at: (works[at].flops, works[at].bytes))]
    return Beside(sum((works[at] for at in free), Work()), largest.opcode, op_name(largest))


def _ancestors(instructions: list[Instruction]) -> list[int]:
    """Returns for each instruction the instructions whose results it needs, one bit each, in the order of the list."""
    numbers = {each.name: at for at, each in enumerate(instructions)}
    found: list[int] = []
    for each in instructions:  # operands come before their users
        needs = 0
        if each.opcode not in ("constant", "parameter"):
            for operand in (*each.operands, *each.callees("control-predecessors")):
                at = numbers[operand.partition("#")[0]]
                needs |= found[at] | 1 << at
        found.append(needs)
    return found


def _moved_bytes(scope: Scope, instruction: Instruction) -> int:
    read = sum(shape_bytes(scope.computation.shape_of(operand)) for operand in instruction.operands)
    return read + shape_bytes(instruction.shape)
