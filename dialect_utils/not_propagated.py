# SPDX-License-Identifier: Apache-2.0
"""Modules that are kept from Shardy's passes: what ends the process there, or would take all memory.

Each of these is a module that MLIR reads and that no program is compiled from: XLA refuses it, or no machine holds it. So it is
left as it came, with the reason; nothing is lost by that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
import contextlib
from contextvars import ContextVar
import math

from .bindings import ir, sdy
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
    """A module through which no shardings are propagated, because of one op, of which `place` is the place."""

    def __init__(self, op: ir.Operation, reason: str):
        self.place = place_of(op)
        self.reason = reason
        super().__init__([Diagnostic(ERROR, reason, self.place)])


class RareError(Exception):
    """A module is of a kind on which Shardy's passes have ended the process before; see `only_common`."""


_takes_common_only: ContextVar[bool] = ContextVar("takes_common_only", default=False)


@contextlib.contextmanager
def only_common() -> Iterator[None]:
    """Lets what is rare raise RareError inside the `with`: for a process that must not end and has another one to do the work."""
    before = _takes_common_only.set(True)
    try:
        yield
    finally:
        _takes_common_only.reset(before)


def refuse_rare() -> None:
    """Raises: RareError inside of `only_common`."""
    if _takes_common_only.get():
        raise RareError


def refuse_ops(names: Collection[str], ops: Sequence[ir.Operation]) -> None:
    """Raises: NotPropagatedError for ops that Shardy's passes expect to make themselves, and crash on where a module has them.

    Args:
      names: of all `ops`.
    """
    if found := _OF_PROPAGATION.intersection(names):
        op = next(each for each in ops if each.name in found)
        raise NotPropagatedError(op, f"{op.name} is for the inside of Shardy's propagation, and XLA compiles no module with one")
    for op in ops if _WINDOWS in names else ():
        if op.name == _WINDOWS and (kind := _windows_of_arrays(op)):
            raise NotPropagatedError(op, f"{op.name} starts from {kind}, and Shardy and XLA know such windows of scalars only")


_WINDOWS = "stablehlo.reduce_window"


def _windows_of_arrays(op: ir.Operation) -> ir.Type | None:
    """Returns the type of an initial value of a reduce_window that is no scalar; None if all are."""
    kinds = [value.type for value in list(op.operands)[len(op.operands) // 2 :]]
    return next((kind for kind in kinds if isinstance(kind, ir.RankedTensorType) and ir.RankedTensorType(kind).rank), None)


def refuse_meshes(module: ir.Operation) -> None:
    """Raises: NotPropagatedError for a mesh whose devices Shardy cannot count: it would divide by what is left of the product."""
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name != "sdy.mesh":
            continue
        axes = sdy.MeshAttr(op.attributes["mesh"]).axes
        if math.prod(sdy.MeshAxisAttr(axis).size for axis in axes) > _MOST_DEVICES:
            name = ir.StringAttr(op.attributes["sym_name"]).value
            raise NotPropagatedError(op.operation, f"mesh @{name} has more than 2^63-1 devices; make its axes smaller")


def refuse_bodiless(call: ir.Operation, callee: str) -> None:
    """Raises: NotPropagatedError for a call of a function that is declared only: XLA has nothing to compile there."""
    raise NotPropagatedError(call, f"@{callee}, which is called here, has no body, and XLA compiles no such call; link it in")


def refuse_collectives(ops: Iterable[ir.Operation]) -> None:
    """Raises: NotPropagatedError for a collective of Shardy's among the ops of a function that is called."""
    for op in ops:
        if op.name in _COLLECTIVES:
            what = f"{op.name} is in a function that is called, whose arguments lose their layouts where it is inlined"
            raise NotPropagatedError(op, f"{what}; inline the function")


def refuse_growth(
    order: Sequence[str], functions: Mapping[str, ir.Operation], calls: Mapping[str, list], own: Mapping[str, int]
) -> None:
    """Raises: NotPropagatedError if calls of functions that call again make too many ops of a module; XLA inlines them too.

    Args:
      order: the names of the functions, callees first. calls: (call, callee) of each function. own: how many ops each has.
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


_CALL = 3  # what goes when a call is inlined: the call, and the function and the return around what it computes
