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
from dataclasses import dataclass, replace

from ..platform.typed import present
from .diagnostics import Place, is_in_library, package_path, place_in, text_of_location

_FRAME = re.compile(r'(?:"((?:[^"\\]|\\.)*)"\()?("(?:[^"\\]|\\.)*":\d+:\d+(?: to \d*:\d+)?)')
_MANY = 4  # functions of packages; what is a helper, such as an einsum with a fallback, has fewer


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

    Models may be installed packages. A line of the user's is an *entry* to such packages if the relevant ops that have
    it as their innermost line come from many functions there: `model(tokens)`, or the line that lowers the whole step,
    tells nothing of what is below. For such ops, and those without a line of the user's, frames in packages count too,
    all but those of frameworks. There a function is also a helper if it is called from twice as many places as it has
    lines: the layers that models are made of.

    State: for each function, by file and name, the places in it and the chains of frames around it; for each line, the
    functions of packages below it.

    Args:
      shows_packages: whether lines in installed packages may be reported beside the user's.
    """

    def __init__(self, chains: Iterable[tuple[Frame, ...]], shows_packages: bool = True):
        self._places: dict[tuple[str, str], set[Place]] = {}
        self._around: dict[tuple[str, str], set[tuple[Frame, ...]]] = {}
        self._below: dict[Place, set[tuple[str, str]]] = {}
        self._shows_packages = shows_packages
        for chain in set(chains):
            for depth, frame in enumerate(chain):
                self._places.setdefault(_function(frame), set()).add(frame.place)
                self._around.setdefault(_function(frame), set()).add(chain[depth + 1 :])
            if own := _own(chain):
                inner = chain[: chain.index(own[0])]
                below = self._below.setdefault(own[0].place, set())
                below |= {_function(frame) for frame in inner if package_path(frame.place.file)}

    def place(self, chain: tuple[Frame, ...]) -> Place | None:
        """Returns the line to report for an op; None for an op without one. Files of packages are named inside of the
        folder of all packages."""
        own = _own(chain)
        if self._shows_packages and (not own or len(self._below.get(own[0].place, ())) >= _MANY):
            own = [each for each in chain if each in own or package_path(each.place.file)]
        for frame in own:
            if frame is own[-1] or not self._is_helper(frame):
                return _shown((own[0] if self._is_helper(frame) else frame).place)
        return chain[0].place if chain else None

    def _is_helper(self, frame: Frame) -> bool:
        key = _function(frame)
        lines, callers = len(self._places.get(key, ())), len(self._around.get(key, ()))
        is_plain = lines == 1 or bool(package_path(frame.place.file))
        return bool(frame.function) and is_plain and callers >= 2 * lines > 0


def _own(chain: tuple[Frame, ...]) -> list[Frame]:
    return [frame for frame in chain if not is_in_library(frame.place.file)]


def _function(frame: Frame) -> tuple[str, str]:
    return frame.place.file, frame.function


def _shown(place: Place) -> Place:
    return replace(place, file=package_path(place.file) or place.file)
