# SPDX-License-Identifier: Apache-2.0
"""Which computations an HLO instruction runs, and how often: the step of every walk through a program.

Loops run their body as often as their trip count says, conditionals one of their branches, and calls, fusions and
asynchronous operations what they call. The computations that reductions, sorts and scatters apply to elements are not
among them. Right after partitioning the bodies of manual computations are calls; XLA inlines all calls before it fuses.

**Pieces.** A TPU's compiler runs some collectives in pieces, inside of fusions with other work. In the final program
such a collective is written several times, with one channel:

    start   a fusion of the collective and a custom call AsyncCollectiveStart
    steps   fusions of other work, such as products, in which the collective goes on
    done    a fusion of the collective and a custom call AsyncCollectiveDone

It runs once. So it counts where it starts, and hides behind the work of its steps.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ..platform.typed import present
from .text import WITHOUT_OPERANDS, Computation, HloModule, Instruction
from .trip_counts import Scope, trip_count

START, STEP, DONE = "start", "step", "done"
_PIECE = '"async_collective_fusion_config"'
_TARGET = re.compile(r'custom_call_target="AsyncCollective(Start|Done)"')
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")
_MOST_INLINED = 100_000  # instructions in all computations
_DEEPEST_CALL = 100
_INDEX = re.compile(r"\bindex=(\d+)")
_CALLS = frozenset(("call", "fusion", "async-start", "custom-call"))


@dataclass(frozen=True, slots=True)
class LoopRuns:
    """A `while` with what it runs.

    Fields:
      condition, body: its computations, with the values that they may know.
      trip_count: how often the body runs; None if that could not be derived.
    """

    condition: Scope
    body: Scope
    trip_count: int | None

    @property
    def body_runs(self) -> int:
        """Returns how often the body is counted: once if nobody knows."""
        return 1 if self.trip_count is None else self.trip_count

    @property
    def condition_runs(self) -> int:
        return self.body_runs + 1


def loop_runs(scope: Scope, loop: Instruction) -> LoopRuns:
    """Returns what a `while` of `scope` runs."""
    known, state = trip_count(scope, loop)
    condition = scope.callee(loop.callee("condition"), (state,))
    return LoopRuns(condition, scope.callee(loop.callee("body"), (state,)), known)


def branches(scope: Scope, conditional: Instruction) -> list[Scope]:
    """Returns the computations of which a `conditional` of `scope` runs one."""
    names = conditional.callees("branch_computations") or [
        conditional.callee("true_computation"),
        conditional.callee("false_computation"),
    ]
    arguments = scope.values(conditional.operands)[1:]
    return [scope.callee(name, (argument,)) for name, argument in zip(names, arguments, strict=True)]


def callees(scope: Scope, instruction: Instruction) -> Iterator[Scope]:
    """Yields the computations that a call, a fusion or the like runs once; nothing for any other instruction."""
    if instruction.opcode not in _CALLS:
        return
    callee = instruction.callee("to_apply") or instruction.callee("calls")
    names = [callee] if callee else instruction.callees("called_computations")
    arguments = scope.values(instruction.operands) if names else ()
    yield from (scope.callee(name, arguments) for name in names)


# ---- pieces


@dataclass(frozen=True, slots=True)
class AsyncPiece:
    """What a fusion does of a collective.

    Attributes:
      role: START, STEP or DONE. channel: of the collective. name: of the instruction in the fusion that writes it.
    """

    role: str
    channel: int
    name: str


def async_pieces(module: HloModule, instruction: Instruction) -> list[AsyncPiece]:
    """Returns the pieces of collectives in an instruction; none if it is no such fusion."""
    if instruction.opcode != "fusion":
        return []
    computation = module.computations.get(instruction.callee("calls") or "")
    if computation is None:
        return []
    found = [each for each in computation.instructions.values() if _is_piece(each)]
    role = _role(computation) if found else STEP
    return [
        AsyncPiece(role, int(channel[1]), each.name) for each in found if (channel := _CHANNEL.search(each.attributes))
    ]


def is_counted_elsewhere(computation: Computation, collective: Instruction) -> bool:
    """Returns whether a collective of a computation is a piece of one that has started before."""
    return _is_piece(collective) and _role(computation) != START


def _is_piece(instruction: Instruction) -> bool:
    return _PIECE in instruction.attributes and instruction.opcode != "fusion"


def _role(computation: Computation) -> str:
    targets = (_TARGET.search(each.attributes) for each in computation.instructions.values() if _is_call(each))
    return next((found[1].lower() for found in targets if found), STEP)


def _is_call(instruction: Instruction) -> bool:
    return instruction.opcode == "custom-call"


def with_calls_inlined(module: HloModule) -> HloModule:
    """Returns a module whose calls are replaced by what they run, as XLA does it before it fuses ops.

    Instructions of a callee are named after the call and themselves; a call and the parameters become views. A module
    with calls in calls that would become very large stays as it is.

    Example:
      >>> from .text import parse_module
      >>> module = with_calls_inlined(parse_module('''HloModule m
      ... %negated (p: f32[4]) -> f32[4] {
      ...   %p = f32[4]{0} parameter(0)
      ...   ROOT %n = f32[4]{0} negate(%p)
      ... }
      ... ENTRY %main (a: f32[4]) -> f32[4] {
      ...   %a = f32[4]{0} parameter(0)
      ...   ROOT %c = f32[4]{0} call(%a), to_apply=%negated
      ... }'''))
      >>> [(each.name, each.opcode, each.operands) for each in module.entry.instructions.values()][1:]
      [('c/p', 'bitcast', ['a']), ('c/n', 'negate', ['c/p']), ('c', 'bitcast', ['c/n'])]
    """
    if not any(each.opcode == "call" for one in module.computations.values() for each in one.instructions.values()):
        return module
    inliner = _Inliner(module.computations, lambda each: each.opcode == "call", "to_apply")
    if not inliner.can_inline(module.computations):
        return module
    found = {name: inliner.inlined(name) for name in module.computations}
    return replace(module, computations=found, entry=found[module.entry.name])


def with_fusions_inlined(module: HloModule, computation: Computation) -> Computation:
    """Returns the computation of a fusion whose fusions are replaced by what they compute, but for those in which a
    collective starts or ends. One that would become very large stays as it is.

    Example:
      >>> from .text import parse_module
      >>> module = parse_module('''HloModule m
      ... %negated (p: f32[4]) -> f32[4] {
      ...   %p = f32[4]{0} parameter(0)
      ...   ROOT %n = f32[4]{0} negate(%p)
      ... }
      ... %fused (q: f32[4]) -> f32[4] {
      ...   %q = f32[4]{0} parameter(0)
      ...   ROOT %f = f32[4]{0} fusion(%q), kind=kLoop, calls=%negated
      ... }
      ... ENTRY %main (a: f32[4]) -> f32[4] {
      ...   %a = f32[4]{0} parameter(0)
      ...   ROOT %c = f32[4]{0} fusion(%a), kind=kLoop, calls=%fused
      ... }''')
      >>> list(with_fusions_inlined(module, module.computations["fused"]).instructions)
      ['q', 'f/p', 'f/n', 'f']
    """

    def is_inlined(each: Instruction) -> bool:
        return each.opcode == "fusion" and all(piece.role == STEP for piece in async_pieces(module, each))

    inliner = _Inliner(module.computations, is_inlined, "calls")
    return inliner.inlined(computation.name) if inliner.can_inline([computation.name]) else computation


def name_in_text(instruction: Instruction) -> str:
    """Returns the name that an instruction has in the text, where it may be in a callee."""
    return instruction.name.rpartition("/")[2]


class _Inliner:
    """Inlines calls, or what else runs one computation once.

    Args:
      is_call: whether an instruction is inlined. callee: its attribute that names what it runs.
    State: `_found`, the computations without calls, by name.
    """

    def __init__(self, computations: dict[str, Computation], is_call: Callable[[Instruction], bool], callee: str):
        self._computations, self._is_call, self._callee = computations, is_call, callee
        self._found: dict[str, Computation] = {}

    def can_inline(self, names: Iterable[str]) -> bool:
        """Returns whether computations without calls have not too many instructions, and no call is too deep."""
        sizes: dict[str, int] = {}

        def size(name: str, depth: int) -> int:
            if name not in sizes:
                if depth > _DEEPEST_CALL:
                    raise RecursionError
                own = self._computations[name].instructions
                called = [present(each.callee(self._callee)) for each in own.values() if self._is_call(each)]
                sizes[name] = len(own) + sum(size(each, depth + 1) for each in called)
            return sizes[name]

        try:
            return sum(size(name, 0) for name in names) <= _MOST_INLINED
        except RecursionError:
            return False

    def inlined(self, name: str) -> Computation:
        if name not in self._found:
            own = self._computations[name]
            has_calls = any(self._is_call(each) for each in own.instructions.values())
            self._found[name] = self._without_calls(own) if has_calls else own
        return self._found[name]

    def _without_calls(self, computation: Computation) -> Computation:
        body: dict[str, Instruction] = {}
        tuples: dict[str, Instruction] = {}  # what calls return, until somebody needs it as a whole
        for name, each in computation.instructions.items():
            operands = [] if each.opcode in WITHOUT_OPERANDS else each.operands
            if each.opcode == "get-tuple-element" and operands[0] in tuples:
                index = int(present(_INDEX.search(each.attributes))[1])
                body[name] = _view(name, each.shape, tuples[operands[0]].operands[index])
                continue
            for operand in operands:
                if (whole := operand.split("#")[0]) in tuples:
                    body[whole] = tuples.pop(whole)
            if not self._is_call(each):
                body[name] = each
                continue
            *steps, root = self._body_of(each)
            body.update((step.name, step) for step in steps)
            if root.opcode == "tuple":
                tuples[name] = replace(root, name=name)
            else:
                body |= {root.name: root, name: _view(name, each.shape, root.name)}
        if computation.root in tuples:
            body[computation.root] = tuples[computation.root]
        return replace(computation, instructions=body)

    def _body_of(self, call: Instruction) -> list[Instruction]:
        """Returns the instructions that a call runs, named after it, the root last."""
        callee = self.inlined(present(call.callee(self._callee)))
        found = []
        for each in callee.instructions.values():
            name = f"{call.name}/{each.name}"
            if each.opcode == "parameter":
                found.append(_view(name, each.shape, call.operands[int(each.arguments)]))
            elif each.opcode in WITHOUT_OPERANDS:
                found.append(replace(each, name=name))
            else:
                arguments = ", ".join(f"{call.name}/{operand}" for operand in each.operands)
                found.append(replace(each, name=name, arguments=arguments))
        at = next(i for i, each in enumerate(found) if each.name == f"{call.name}/{callee.root}")
        return [*found[:at], *found[at + 1 :], found[at]]


def _view(name: str, shape: str, operand: str) -> Instruction:
    return Instruction(name, shape, "bitcast", operand, "")
