# SPDX-License-Identifier: Apache-2.0
"""The line of the user's program that an op comes from, where its location has a chain of calls.

Frameworks give an op the whole chain, innermost first:

    callsite("wsc"("model.py":8:11) at callsite("layer"("model.py":40:8) at "step"("train.py":7:4)))

The innermost frame is often no help: it lies in a library, or in a helper such as a `wsc()` around a sharding
constraint, through which all constraints of the program go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..platform.typed import present
from .diagnostics import Place, is_in_library, place_in, text_of_location

_FRAME = re.compile(r'(?:"((?:[^"\\]|\\.)*)"\()?("(?:[^"\\]|\\.)*":\d+:\d+(?: to \d*:\d+)?)')


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a chain of calls; `function` is empty if the location names none."""

    function: str
    place: Place

    def __str__(self) -> str:
        return f"{self.place} in {self.function}" if self.function else str(self.place)


def frames_of(where) -> tuple[Frame, ...]:
    """Returns the frames in the location of an op, a value or a location, innermost first.

    Of a fused location it returns the frames of the first one.

    Example:
      >>> from ..platform.bindings import ir, make_context
      >>> calls = 'callsite("wsc"("a.py":8:1) at "layer"("a.py":40:8 to :20))'
      >>> with make_context():
      ...     module = ir.Module.parse(f'module {{}} loc("jit(f)/tanh"({calls}))')
      ...     frames = frames_of(module.operation)
      >>> [str(each) for each in frames]
      ['a.py:8:1 in wsc', 'a.py:40:8 in layer']
    """
    text, frames, end = text_of_location(where), [], 0
    for found in _FRAME.finditer(text):
        if frames and " at " not in text[end : found.start()]:
            break
        frames.append(Frame(found[1] or "", present(place_in(found[2]))))
        end = found.end()
    return tuple(frames)


class SourceLines:
    """The lines of the user's program to report for ops, chosen with all relevant ops of the program in view.

    A function is a *helper* if all relevant ops that come through it do so in one of its lines, from several places.
    The reported line is that of the innermost frame that is neither in a library nor in a helper. If there is none, it
    is the innermost frame.

    State: for each function, by file and name, the places in it and the chains of frames around it.
    """

    def __init__(self, chains: Iterable[tuple[Frame, ...]]):
        self._places: dict[tuple[str, str], set[Place]] = {}
        self._around: dict[tuple[str, str], set[tuple[Frame, ...]]] = {}
        for chain in set(chains):
            for depth, frame in enumerate(chain):
                self._places.setdefault(_function(frame), set()).add(frame.place)
                self._around.setdefault(_function(frame), set()).add(chain[depth + 1 :])

    def place(self, chain: tuple[Frame, ...]) -> Place | None:
        """Returns the line to report for an op; None for an op without one."""
        own = [frame for frame in chain if not is_in_library(frame.place.file)]
        for frame in own:
            if frame is own[-1] or not self._is_helper(frame):
                return (own[0] if self._is_helper(frame) else frame).place
        return chain[0].place if chain else None

    def _is_helper(self, frame: Frame) -> bool:
        key = _function(frame)
        return bool(frame.function) and len(self._places.get(key, ())) == 1 and len(self._around[key]) > 1


def _function(frame: Frame) -> tuple[str, str]:
    return frame.place.file, frame.function
