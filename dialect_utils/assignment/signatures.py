# SPDX-License-Identifier: Apache-2.0
"""The layouts in which a program takes its arguments and gives its results, written where they are left open."""

from __future__ import annotations

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

from ..analysis.module_analysis import before_propagation
from ..analysis.propagation import propagate
from ..ir.functions import functions_of, public_functions, signature, symbol
from ..platform.bindings import ir
from ..preparation.prepared_clone import prepare
from ..preparation.serials import tagged_clone
from ..shardings.sdy_shardings import SHARDING, sharding_to_attr
from ..shardings.value_layouts import stated_arguments, stated_results
from .written_layouts import mesh_symbol


def keep_signatures(module: ir.Module, mesh: Mesh) -> None:
    """Writes for each argument and result of the public functions the layout that propagation finds, closed.

    A caller of the program then sees no difference, whatever layouts are chosen inside.

    Args:
      mesh: the one on which values without a layout are whole on each device.
    Raises: NotPropagatedError, DiagnosedError: as for `analyse`.
    """
    explicit = before_propagation(prepare(*tagged_clone(module))).explicit
    propagate(explicit)
    found = {symbol(each): each for each in public_functions(functions_of(explicit))}
    with module.context, ir.Location.unknown():
        name = mesh_symbol(module, mesh)
        for function in public_functions(functions_of(module.operation)):
            seen, kinds = found[symbol(function)], signature(function)
            _write(function, "arg_attrs", kinds.inputs, stated_arguments(seen), name)
            _write(function, "res_attrs", kinds.results, stated_results(seen), name)


def _write(
    function: ir.Operation, name: str, kinds: list[ir.Type], layouts: list[ir.Attribute | None], mesh: str
) -> None:
    attributes = function.attributes
    held = list(ir.ArrayAttr(attributes[name])) if name in attributes else [ir.DictAttr.get({})] * len(kinds)
    written = []
    for kind, layout, each in zip(kinds, layouts, held, strict=True):
        entries = {entry.name: entry.attr for entry in ir.DictAttr(each)}
        if isinstance(kind, ir.RankedTensorType):
            whole = Sharding(((),) * ir.RankedTensorType(kind).rank)
            entries[SHARDING] = layout if layout is not None else sharding_to_attr(whole, mesh)
        written.append(ir.DictAttr.get(entries))
    attributes[name] = ir.ArrayAttr.get(written)
