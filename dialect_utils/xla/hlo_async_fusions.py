# SPDX-License-Identifier: Apache-2.0
"""Collectives that a TPU's compiler runs in pieces, inside of fusions with other work.

In the final program such a collective is written several times, with one channel:

    start   a fusion of the collective and a custom call AsyncCollectiveStart
    steps   fusions of other work, such as products, in which the collective goes on
    done    a fusion of the collective and a custom call AsyncCollectiveDone

It runs once. So it counts where it starts, and hides behind the work of its steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .hlo_text import Computation, HloModule, Instruction

START, STEP, DONE = "start", "step", "done"
_PIECE = '"async_collective_fusion_config"'
_TARGET = re.compile(r'custom_call_target="AsyncCollective(Start|Done)"')
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")


@dataclass(frozen=True, slots=True)
class Piece:
    """What a fusion does of a collective.

    Attributes:
      role: START, STEP or DONE. channel: of the collective. name: of the instruction in the fusion that writes it.
    """

    role: str
    channel: int
    name: str


def pieces_in(module: HloModule, instruction: Instruction) -> list[Piece]:
    """Returns the pieces of collectives in an instruction; none if it is no such fusion."""
    if instruction.opcode != "fusion":
        return []
    computation = module.computations.get(instruction.callee("calls") or "")
    if computation is None:
        return []
    found = [each for each in computation.instructions.values() if _is_piece(each)]
    role = _role(computation) if found else STEP
    return [Piece(role, int(channel[1]), each.name) for each in found if (channel := _CHANNEL.search(each.attributes))]


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
