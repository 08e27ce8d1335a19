# SPDX-License-Identifier: Apache-2.0
"""The layouts in which a program takes its arguments and gives its results, written where they are left open."""

from __future__ import annotations

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

from ..analysis.module_analysis import before_propagation
from ..analysis.propagation import propagate
from ..ir.diagnostics import error_at
from ..ir.functions import functions_of, public_functions, signature, symbol
from ..platform.bindings import ir
from ..preparation.prepared_clone import prepare
from ..preparation.serials import tagged_clone
from ..shardings.sdy_shardings import SHARDING, sharding_from_attr, sharding_to_attr
from ..shardings.value_layouts import stated_arguments, stated_results
from .written_layouts import mesh_symbol


def keep_signatures(module: ir.Module, mesh: Mesh) -> None:
    """Writes for each argument and result of the public functions the layout that it is given, or else the one that
    propagation finds, closed.

    A caller of the program then sees no difference, whatever layouts are chosen inside.

    Args:
      mesh: the one on which values without a layout are whole on each device.
    Raises: NotPropagatedError, DiagnosedError: as for `analyse`; also for an argument or result with partial sums,
      whose layout cannot be kept.
    """
    explicit = before_propagation(prepare(*tagged_clone(module))).explicit
    propagate(explicit)
    found = {symbol(each): each for each in public_functions(functions_of(explicit))}
    with module.context, ir.Location.unknown():
        whole = mesh_symbol(module, mesh)
        for function in public_functions(functions_of(module.operation)):
            seen, kinds = found[symbol(function)], signature(function)
            arguments = zip(kinds.inputs, stated_arguments(function), stated_arguments(seen), strict=True)
            _write(function, "arg_attrs", [_kept(function, *each, whole) for each in arguments])
            results = zip(kinds.results, stated_results(function), stated_results(seen), strict=True)
            _write(function, "res_attrs", [_kept(function, *each, whole) for each in results])


def _kept(
    function: ir.Operation, kind: ir.Type, stated: ir.Attribute | None, found: ir.Attribute | None, mesh: str
) -> ir.Attribute | None:
    """Returns the layout of an argument or a result: as it is stated if nothing in that is open, else as it was found;
    None for what is no tensor."""
    if not isinstance(kind, ir.RankedTensorType):
        return None
    sharding = None if stated is None else sharding_from_attr(stated)
    if sharding is not None and sharding.unreduced:
        raise error_at(function, f"an argument or a result has partial sums, {stated}: such a layout cannot be kept")
    if sharding is not None and not sharding.open_dims:
        return stated
    return sharding_to_attr(Sharding(((),) * ir.RankedTensorType(kind).rank), mesh) if found is None else found


def _write(function: ir.Operation, name: str, layouts: list[ir.Attribute | None]) -> None:
    attributes = function.attributes
    held = list(ir.ArrayAttr(attributes[name])) if name in attributes else [ir.DictAttr.get({})] * len(layouts)
    written = []
    for layout, each in zip(layouts, held, strict=True):
        entries = {entry.name: entry.attr for entry in ir.DictAttr(each)}
        written.append(ir.DictAttr.get(entries if layout is None else entries | {SHARDING: layout}))
    attributes[name] = ir.ArrayAttr.get(written)
