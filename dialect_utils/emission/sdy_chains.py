# SPDX-License-Identifier: Apache-2.0
"""Chains as collectives of Shardy's dialect, for people and for Shardy's tools; XLA does not read them.

%1 = sdy.all_to_all [{"x"}: 2->1] %0 out_sharding=<@mesh, [{"y"}, {"x"}, {}]> : tensor<16x16x16xf32>
%2 = sdy.all_to_all [{"y"}: 0->1] %1 out_sharding=<@mesh, [{}, {"x", "y"}, {}]> : tensor<16x16x16xf32>
"""

from __future__ import annotations

from reshard.synthesis.programs.blocked_chains import BlockedChain, Move

from ..ir.ops import ops_in, producer_of
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from ..shardings.sdy_shardings import mesh_reference, sharding_from_attr, sharding_to_attr
from ..shardings.value_layouts import layout

COLLECTIVES = frozenset(
    f"sdy.{kind}"
    for kind in ("all_gather", "all_slice", "all_to_all", "collective_permute", "reduce_scatter", "all_reduce")
)


def first_collective(module: ir.Module) -> ir.Operation | None:
    """Returns the first collective of Shardy's dialect in a module, which XLA cannot read; None if it has none."""
    return next((op for op in ops_in(module.operation) if op.name in COLLECTIVES), None)


def emit_sdy_chain(
    chain: BlockedChain, value: ir.Value, source: ir.Attribute, target: ir.Attribute, name: str, location: ir.Location
) -> ir.Value:
    """Inserts, at the current insertion point, the ops that turn `value` from `source` into `target`.

    Shardy checks each collective against the sharding of its operand. An op of Shardy may state this sharding; if not,
    a constraint is inserted. Shardy does not see the sharding on arguments and on ops of StableHLO while a portable
    artifact is written.

    Args:
      chain: between the two shardings, with at least one step.
      name: the name of the site. location: the location in the user's program.
    Returns: the result of the last op.
    """
    closed = sharding_from_attr(source).closed()
    producer = producer_of(value)
    if producer is None or not producer.name.startswith("sdy.") or sharding_from_attr(present(layout(value))) != closed:
        value = sdy.ShardingConstraintOp(value, sharding_to_attr(closed, mesh_reference(source)), loc=location).result
    for step in chain.steps:
        attributes = {"out_sharding": sharding_to_attr(step.after, mesh_reference(target)), **_axes_of(step)}
        here = ir.Location.name(f"{name}/{step.kind}", location)
        value = ir.Operation.create(
            f"sdy.{step.kind}", results=[value.type], operands=[value], attributes=attributes, loc=here
        ).results[0]
    return value


def _axes_of(step: Move) -> dict[str, ir.Attribute]:
    """Returns the attribute that names the axes that move; it is parsed, since the bindings have no class for it."""
    match step.kind:
        case "all_slice":
            return {"slicing_axes": _per_dimension(step, 2)}
        case "all_gather":
            return {"gathering_axes": _per_dimension(step, 1)}
        case "all_to_all":
            _, before, after = step.moved[0]
            axes = ", ".join(str(axis) for axis, *_ in step.moved)
            return {"params": ir.Attribute.parse(f"#sdy<all_to_all_param_list[{{{axes}}}: {before}->{after}]>")}
    return {}


def _per_dimension(step: Move, end: int) -> ir.Attribute:
    """Returns for each dimension the axes that leave it (end 1) or enter it (end 2)."""
    lists = [", ".join(str(each[0]) for each in step.moved if each[end] == d) for d in range(step.after.rank)]
    return ir.Attribute.parse(f"#sdy<list_of_axis_ref_lists[{', '.join(f'{{{axes}}}' for axes in lists)}]>")
