# SPDX-License-Identifier: Apache-2.0
"""Modules that are kept from Shardy's passes, since those would end the process or take all memory.

MLIR reads each of these modules, but no program is compiled from them: XLA refuses the module, or no machine holds it.
So the module is left as it came, with the reason; nothing is lost by that.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar

from ..platform.bindings import ir, sdy
from .diagnostics import ERROR, DiagnosedError, Diagnostic, place_of

MOST_INLINED = 500_000  # ops of a module once calls are inlined, unless it has half as many itself
_MOST_NESTED = 4  # functions around each other have the ops of the inner ones each, until they are inlined themselves
_MOST_DEVICES = 2**63 - 1
_OF_PROPAGATION = frozenset(  # Shardy's passes put them in and take them out
    {"sdy.named_computation", "sdy.data_flow_edge", "sdy.func_data_flow_edge"}
)
_COLLECTIVES = frozenset(  # their operands have to have layouts
    {
        "sdy.all_gather",
        "sdy.all_reduce",
        "sdy.all_slice",
        "sdy.all_to_all",
        "sdy.collective_permute",
        "sdy.reduce_scatter",
        "sdy.replicated_to_unreduced",
        "sdy.sharded_to_unreduced",
    }
)


class NotPropagatedError(DiagnosedError):
    """No shardings are propagated through a module because of one op; `place` is the place of that op."""

    def __init__(self, op: ir.Operation, reason: str):
        self.place = place_of(op)
        self.reason = reason
        super().__init__([Diagnostic(ERROR, reason, self.place)])


class RiskyModuleError(Exception):
    """The module is of a kind on which Shardy's passes have ended the process before; see `refusing_risky`."""


_refuses_risky: ContextVar[bool] = ContextVar("refuses_risky", default=False)


@contextlib.contextmanager
def refusing_risky() -> Iterator[None]:
    """Makes risky modules raise RiskyModuleError inside the `with`.

    It is for a process that must not end, and that can hand the work to another process.
    """
    before = _refuses_risky.set(True)
    try:
        yield
    finally:
        _refuses_risky.reset(before)


def refuse_risky() -> None:
    """Refuses a module of a risky kind. Raises: RiskyModuleError inside of `refusing_risky`."""
    if _refuses_risky.get():
        raise RiskyModuleError


def refuse_ops(names: Collection[str], ops: Sequence[ir.Operation]) -> None:
    """Refuses ops that Shardy's passes make for themselves, and crash on in a module that comes with them.

    Args:
      names: the names of all `ops`.
    Raises: NotPropagatedError.
    """
    if found := _OF_PROPAGATION.intersection(names):
        op = next(each for each in ops if each.name in found)
        raise NotPropagatedError(
            op, f"{op.name} is for the inside of Shardy's propagation, and XLA compiles no module with one"
        )
    for op in ops if _WINDOWS in names else ():
        if op.name == _WINDOWS and (kind := _windows_of_arrays(op)):
            raise NotPropagatedError(
                op, f"{op.name} starts from {kind}, and Shardy and XLA know such windows of scalars only"
            )


_WINDOWS = "stablehlo.reduce_window"


def _windows_of_arrays(op: ir.Operation) -> ir.Type | None:
    """Returns the type of an initial value of a reduce_window that is no scalar; None if all are."""
    kinds = [value.type for value in list(op.operands)[len(op.operands) // 2 :]]
    return next(
        (kind for kind in kinds if isinstance(kind, ir.RankedTensorType) and ir.RankedTensorType(kind).rank), None
    )


def refuse_meshes(module: ir.Operation) -> None:
    """Refuses meshes with more devices than Shardy can count: it would divide by zero. Raises: NotPropagatedError."""
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name != "sdy.mesh":
            continue
        axes = sdy.MeshAttr(op.attributes["mesh"]).axes
        if math.prod(sdy.MeshAxisAttr(axis).size for axis in axes) > _MOST_DEVICES:
            name = ir.StringAttr(op.attributes["sym_name"]).value
            raise NotPropagatedError(op.operation, f"mesh @{name} has more than 2^63-1 devices; make its axes smaller")


def refuse_bodiless(call: ir.Operation, callee: str) -> None:
    """Refuses a call of a function without a body: XLA has nothing to compile there. Raises: NotPropagatedError."""
    raise NotPropagatedError(
        call, f"@{callee}, which is called here, has no body, and XLA compiles no such call; link it in"
    )


def refuse_collectives(ops: Iterable[ir.Operation]) -> None:
    """Refuses collectives of Shardy among the ops of a function that is called. Raises: NotPropagatedError."""
    for op in ops:
        if op.name in _COLLECTIVES:
            what = f"{op.name} is in a function that is called, whose arguments lose their layouts where it is inlined"
            raise NotPropagatedError(op, f"{what}; inline the function")


def refuse_growth(
    order: Sequence[str], functions: Mapping[str, ir.Operation], calls: Mapping[str, list], own: Mapping[str, int]
) -> None:
    """Refuses a module in which inlining, which XLA does too, would make too many ops.

    Args:
      order: the names of the functions, callees first. calls: (call, callee) for each call in each function.
      own: the number of ops of each function.
    Raises: NotPropagatedError.
    """
    most = max(MOST_INLINED, 2 * sum(own.values()))
    sizes: dict[str, int] = {}
    total = 0
    for name in order:
        sizes[name] = own[name] + sum(sizes.get(callee, _CALL) - _CALL for _, callee in calls[name])
        total += sizes[name]
        if sizes[name] > most or total > _MOST_NESTED * most:
            what = f"the calls in @{name} make more than {most:,} ops of this module, which XLA inlines all"
            raise NotPropagatedError(functions[name], f"{what}; call a function fewer times, or in a loop")


_CALL = 3  # ops that vanish when a call is inlined: the call, the function and its return
