# SPDX-License-Identifier: Apache-2.0
"""Which ops of a program belong to the way back of its gradient, by the names that JAX gives them.

    jit(step)/jvp()/tanh                                                   the way forward
    jit(step)/transpose(jvp())/mul                                         the way back
    jit(step)/transpose(jvp())/checkpoint/rematted_computation/tanh        computed again: as on the way forward

The body of a `scan`, or of a function that is jitted inside another one, may be a function of the module. The names in
it begin there, so what calls it says the rest.
"""

from __future__ import annotations

from ..platform.bindings import ir
from .functions import FUNCTION, calls_by_name, is_public, symbol
from .ops import location_inside, name_of, parent_of

_BACKWARD, _AGAIN = "transpose(", "rematted_computation"
_Said = tuple[bool, bool]  # whether the names of an op, and of what it is in, have each of these


class WayBack:
    """The ops of one module that belong to the way back.

    State: `_calls` has the calls of each function, by its name; `_known` what names say of the insides of an op, for
    each way to come there.
    """

    def __init__(self, module: ir.Operation):
        self._calls = calls_by_name(module)
        self._known: dict[ir.Operation, frozenset[_Said]] = {}

    def has(self, op: ir.Operation) -> bool:
        """Returns whether an op runs on the way back alone; what is computed again there does not belong to it."""
        return all(is_backward and not is_again for is_backward, is_again in self._said(op))

    def _said(self, op: ir.Operation) -> frozenset[_Said]:
        names = _names(op.location)
        own_back, own_again = (any(each in name for name in names) for each in (_BACKWARD, _AGAIN))
        return frozenset((own_back or back, own_again or again) for back, again in self._around(op))

    def _around(self, op: ir.Operation) -> frozenset[_Said]:
        around = parent_of(op)
        if around not in self._known:
            self._known[around] = frozenset()  # of a function that calls itself, its other calls count
            self._known[around] = self._inside(around)
        return self._known[around]

    def _inside(self, around: ir.Operation) -> frozenset[_Said]:
        if around.parent is None:
            return frozenset({(False, False)})
        if around.name != FUNCTION:
            return self._said(around)
        calls = self._calls.get(symbol(around), [])
        outside: set[_Said] = {(False, False)} if is_public(around) or not calls else set()
        return frozenset(outside).union(*map(self._said, calls))


def _names(location: ir.Location) -> list[str]:
    """Returns the names of a location, such as `"jit:"("jit(f)/jit"(...))`, which JAX 0.12 writes behind calls."""
    found = []
    while (name := name_of(location)) is not None:
        found.append(name)
        location = location_inside(location)
    return found
