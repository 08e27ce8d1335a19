# SPDX-License-Identifier: Apache-2.0
"""Tactics: what a mesh axis may be for, by the names of the field.

| tactic | the axis may split | parameters and state |
|---|---|---|
| `data` | the batch | whole |
| `zero1` | the batch | parameters whole, the optimizer's state in shards, where it divides evenly |
| `zero3` | the batch | in shards, where they divide evenly |
| `sequence` | other dimensions of tokens | whole |
| `megatron` | features and heads | free |
| `expert` | experts | free |
| `auto` | anything | free |

Tactics of one axis are joined by `+`: it may be for any of them. Of what they say about parameters and state, the later
one in `whole`, `zero1`'s, `in shards`, `free` counts. Ops other than matrix products are free, and follow. A tactic
without an axis is for all axes of the mesh.

With `zero1` the optimizer works on shards: gradients are reduced and scattered, and new parameters gathered. So a
parameter and what the optimizer makes of it have layouts of their own (`FactoredProgram.weights`).

Source: the names are those of GSPMD (arXiv 2105.04663), ZeRO (1910.02054), Megatron-LM (1909.08053) and automap
(2112.02958), from which the idea of composing them comes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from .roles import DATA, EXPERT, SEQUENCE, TENSOR

FREE, WHOLE, SHARDS, STATE_IN_SHARDS = "free", "whole", "shards", "state in shards"
_STRONGEST_FIRST = (FREE, SHARDS, STATE_IN_SHARDS, WHOLE)
AUTO = "auto"
_ROLES = frozenset({DATA, SEQUENCE, TENSOR, EXPERT})
TACTICS = {
    "data": (frozenset({DATA}), WHOLE),
    "zero1": (frozenset({DATA}), STATE_IN_SHARDS),
    "zero3": (frozenset({DATA}), SHARDS),
    "sequence": (frozenset({SEQUENCE}), WHOLE),
    "megatron": (frozenset({TENSOR}), FREE),
    "expert": (frozenset({EXPERT}), FREE),
    AUTO: (_ROLES, FREE),
}


class TacticError(ValueError):
    """Tactics cannot be what was asked for."""


@dataclass(frozen=True, slots=True)
class Tactic:
    """What one axis may be for.

    Attributes:
      roles: that it may have in matrix products. state: FREE, WHOLE, SHARDS or STATE_IN_SHARDS.
    """

    roles: frozenset[str]
    state: str


def parse(text: str, axes: tuple[str, ...] = ()) -> dict[str, Tactic]:
    """Returns the tactic of each axis that a text names; of each of `axes`, those of the mesh, if it names none.

    Raises: TacticError.

    Example:
      >>> parse("x=zero3,y=megatron+sequence")["x"]
      Tactic(roles=frozenset({'data'}), state='shards')
      >>> list(parse("data+megatron", ("x", "y")))
      ['x', 'y']
    """
    found: dict[str, Tactic] = {}
    parts = [part for each in text.split(",") if (part := each.strip())]
    if len(parts) == 1 and "=" not in parts[0] and axes:
        return dict.fromkeys(axes, _joined(parts[0].split("+")))
    for part in parts:
        axis, equals, names = part.partition("=")
        if not equals or not axis:
            raise TacticError(f"tactics: {part!r} is not AXIS=TACTIC, such as x=zero3 or y=megatron+sequence")
        if axis in found:
            raise TacticError(f"tactics: axis {axis} is named twice")
        found[axis] = _joined(names.split("+"))
    return found


def check(tactics: Mapping[str, Tactic], axes: tuple[str, ...]) -> None:
    """Raises TacticError if an axis is named that the mesh lacks."""
    if unknown := [axis for axis in tactics if axis not in axes]:
        raise TacticError(f"tactics: the mesh has no axis {unknown[0]}; its axes are {', '.join(axes)}")


def separate_weights(tactics: Mapping[str, Tactic]) -> bool:
    """Returns whether parameters and what the optimizer makes of them have layouts of their own."""
    return any(each.state == STATE_IN_SHARDS for each in tactics.values())


def _joined(names: list[str]) -> Tactic:
    for name in names:
        if name not in TACTICS:
            close = difflib.get_close_matches(name, TACTICS, 1)
            hint = f"; do you mean {close[0]}?" if close else ""
            raise TacticError(f"tactics: {name!r} is none of {', '.join(TACTICS)}{hint}")
    states = {TACTICS[name][1] for name in names}
    roles = frozenset().union(*(TACTICS[name][0] for name in names))
    return Tactic(roles, next(state for state in _STRONGEST_FIRST if state in states))
