# SPDX-License-Identifier: Apache-2.0
"""Changes of partial sums for which Shardy's explicit reshards have no step, split into two steps that they have.

A value that is unreduced along x and wanted unreduced along y, or along an axis of another mesh, has to be summed
first. Shardy asserts that this does not occur and ends the process. If it does occur, the clone gets a reshard to the
same layout without partial sums in between.

    sdy.reshard %a : unreduced={"x"} -> unreduced={"y"}
      ==>
    sdy.reshard %a : unreduced={"x"} -> all summed -> unreduced={"y"}

Source: `insertUnreducedCollectives` and `insertAllReduceIfUnreducedToReplicated` in explicit_reshards_util.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from reshard.synthesis.layouts.mesh import Mesh

from ..ir.shardy_limits import NotPropagatedError
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from .sdy_shardings import mesh_of, mesh_reference, sharding_from_attr, sharding_to_attr

Layouts = Sequence[ir.Attribute | None]
_RESHARDS = frozenset({"sdy.sharding_constraint", "sdy.reshard"})


def has_partial_sums(attrs: Iterable[ir.Attribute | None]) -> bool:
    """Returns whether any value is unreduced along an axis, by the attributes that hold the layouts of values."""
    return any("unreduced=" in str(attr) for attr in attrs)


def layouts_between(
    source: ir.Attribute | None, target: ir.Attribute | None, op: ir.Operation, meshes: dict[str, Mesh]
) -> Layouts:
    """Returns the layouts between two layouts of an operand: the source without partial sums, the target without them.

    Args:
      source, target: the layout of the operand, and the layout that the op wants.
    """
    given, wanted = _unreduced(source), _unreduced(target)
    if source is None or not (given or wanted):
        return ()
    is_elsewhere = target is not None and mesh_of(source, meshes) != mesh_of(target, meshes)
    is_exchange = op.name in _RESHARDS and bool(wanted) and not {*given} <= {*wanted} and not {*wanted} <= {*given}
    is_summed = given and (is_elsewhere or is_exchange or not len(op.results))
    return (*([_summed(source)] if is_summed else []), *([_summed(present(target))] if wanted and is_elsewhere else []))


def refuse_different_sums(op: ir.Operation, layouts: Layouts) -> None:
    """Refuses results of an op that are partial sums along different axes. Raises: NotPropagatedError."""
    if len({_unreduced(attr) for attr in layouts}) > 1:
        raise NotPropagatedError(
            op, f"results of {op.name} are partial sums along different axes; reduce them before they meet"
        )


def refuse_sums_of_unlike(
    op: ir.Operation, rule: sdy.OpShardingRuleAttr, sources: Layouts, result: ir.Attribute | None
) -> None:
    """Refuses an op that gives partial sums over a dimension that its operands split in different ways.

    Args:
      sources: the layout of each operand. result: the layout of the results.
    Raises: NotPropagatedError.
    """
    for factor in rule.reduction_factors if _unreduced(result) else ():
        splits = [
            split for attr, mapping in zip(sources, rule.operand_mappings) for split in _splits(attr, mapping, factor)
        ]
        if len({*splits}) > 1:
            what = f"{op.name} gives partial sums over a dimension that its operands split in different ways"
            raise NotPropagatedError(
                op, f"{what}: {' and '.join(dict.fromkeys(map(_as_text, splits)))}; shard them alike"
            )


def _splits(attr: ir.Attribute | None, mapping: ir.Attribute, factor: int) -> list[tuple]:
    """Returns the axes of the dimension of an operand that has a factor; nothing if none has it."""
    dims = [sdy.DimMappingAttr(dim).factor_indices for dim in sdy.TensorMappingAttr(mapping).dim_mappings]
    axes = ((),) * len(dims) if attr is None else sharding_from_attr(attr).dims
    return [each for factors, each in zip(dims, axes) if factor in list(factors)]


def _as_text(axes: tuple) -> str:
    return f"{{{', '.join(map(str, axes))}}}"


def _unreduced(attr: ir.Attribute | None) -> tuple:
    return () if attr is None else sharding_from_attr(attr).unreduced


def _summed(attr: ir.Attribute) -> ir.Attribute:
    return sharding_to_attr(replace(sharding_from_attr(attr).closed(), unreduced=()), mesh_reference(attr))
