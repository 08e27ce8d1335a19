# SPDX-License-Identifier: Apache-2.0
"""XLA's round-trip form: Shardy's meshes and shardings as strings in `mhlo.frontend_attributes`.

HLO dumps hold modules in this form. XLA's own pass `xla-sdy-round-trip-import-shardy-attrs` is in jaxlib and reads the
attributes, also those of function results. The passes that follow it in XLA are not in jaxlib, so this module does
their work: it replaces custom calls that stand for Shardy's ops, and calls that stand for manual computations.
"""

from __future__ import annotations

from ..ir.diagnostics import error_at
from ..ir.functions import callee_of
from ..ir.ops import manual_axes, ops_in
from ..ir.pipelines import run_pipeline
from ..platform.bindings import ir, sdy
from ..platform.typed import asm_of, present
from ..preparation.tuples import take_tuples_apart
from ..shardings.sdy_shardings import SHARDING, per_value
from .gspmd_statements import Imported, RefusedError, call_target, check_call
from .manual_regions import UnliftableError, find_regions, inline, lift

FRONTEND = "mhlo.frontend_attributes"
_IMPORT = "builtin.module(xla-sdy-round-trip-import-shardy-attrs)"
_BODY = "xla.sdy.manual_computation_body"
_ENTRY, _EXIT = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"
_IN, _OUT, _AXES = "xla.sdy.in_shardings", "xla.sdy.out_shardings", "xla.sdy.manual_axes"
_TUPLES = ("xla.sdy.tuple_args_shardings", "xla.sdy.tuple_results_shardings")
_GROUP, _DIRECTION = "xla.sdy.sharding_group_id", "xla.sdy.allowed_direction"
# Frontend attributes whose text is an attribute; XLA ends the process if such a text is not an attribute.
_PARSED = frozenset(
    {"xla.sdy.meshes", "xla.sdy.sharding", "xla.sdy.sharding_rule", _IN, _OUT, _AXES, *_TUPLES, _GROUP, _DIRECTION}
)
_DIRECTIONS = range(4)  # none, forward, backward, both


def import_shardings(module: ir.Module) -> Imported:
    """Gives a module the meshes, shardings and manual computations that its strings describe.

    Raises: DiagnosedError if a string cannot be read; RefusedError, with the module unchanged, if a manual computation
    is
      not in the form that XLA writes.
    """
    for op in ops_in(module.operation):
        for name, attr in _frontend(op):
            _check(op, name, attr)
    clone = ir.Module.parse(
        asm_of(module.operation, enable_debug_info=True, print_generic_op_form=True), module.context
    )
    counts = _import(clone)
    _take_over(module, clone)
    return Imported(counts)


def _import(module: ir.Module) -> dict[str, int]:
    counts = {"meshes": 0, "shardings": 0, "constraints": 0, "regions": 0}
    take_tuples_apart(module.operation)  # the strings of a custom call are per element, as in XLA
    run_pipeline(module.operation, _IMPORT)
    with module.context, ir.Location.unknown():
        for op in ops_in(module.operation):
            counts["constraints"] += _import_custom_call(op)
        counts["regions"] = _import_manual_computations(module)
    counts["meshes"] = sum(op.operation.name == "sdy.mesh" for op in module.body.operations)
    counts["shardings"] = sum(
        SHARDING in ir.DictAttr(attrs)
        for op in ops_in(module.operation)
        for name in ("arg_attrs", "res_attrs")
        if name in op.attributes
        for attrs in ir.ArrayAttr(op.attributes[name])
    )
    return counts


def _take_over(module: ir.Module, clone: ir.Module) -> None:
    """Replaces the ops and attributes of a module by those of a clone."""
    for op in [op.operation for op in module.body.operations]:
        op.erase()
    for name in [entry if isinstance(entry, str) else entry.name for entry in module.operation.attributes]:
        del module.operation.attributes[name]
    for entry in list(clone.operation.attributes):
        name = entry if isinstance(entry, str) else entry.name
        module.operation.attributes[name] = clone.operation.attributes[name]
    for op in [op.operation for op in clone.body.operations]:
        module.body.append(op)


# Strings


def _frontend(op: ir.Operation) -> list[tuple[str, ir.Attribute]]:
    """Returns the frontend attributes of an op, and of the arguments and results of a function."""
    found = [op.attributes[FRONTEND]] if FRONTEND in op.attributes else []
    for name in ("arg_attrs", "res_attrs"):
        for attrs in ir.ArrayAttr(op.attributes[name]) if op.name == "func.func" and name in op.attributes else ():
            entries = ir.DictAttr(attrs)
            found += [entries[FRONTEND]] if FRONTEND in entries else []
    return [(entry.name, entry.attr) for each in found if isinstance(each, ir.DictAttr) for entry in each]


def _check(op: ir.Operation, name: str, attr: ir.Attribute) -> None:
    if name not in _PARSED:
        return
    try:
        _expect(name, _parsed(attr))
    except (ir.MLIRError, ValueError):
        raise error_at(
            op, f"cannot read {name} = {attr}: its text is not the attribute that XLA writes there"
        ) from None


def _expect(name: str, parsed: ir.Attribute) -> None:
    """Checks that an attribute is of the kind that XLA expects. Raises: ValueError."""
    if name == "xla.sdy.meshes":
        is_expected = isinstance(parsed, ir.DictAttr) and all(sdy.MeshAttr.isinstance(entry.attr) for entry in parsed)
    elif name == _AXES:
        is_expected = sdy.ManualAxesAttr.isinstance(parsed)
    elif name in (_GROUP, _DIRECTION):
        is_expected = isinstance(parsed, ir.IntegerAttr) and (name == _GROUP or parsed.value in _DIRECTIONS)
    elif name == "xla.sdy.sharding_rule":
        is_expected = sdy.OpShardingRuleAttr.isinstance(parsed)
    else:
        is_expected = sdy.TensorShardingAttr.isinstance(parsed) or sdy.TensorShardingPerValueAttr.isinstance(parsed)
    if not is_expected:
        raise ValueError


def _value(op: ir.Operation, name: str) -> ir.Attribute | None:
    attr = dict(_frontend(op)).get(name)
    return None if attr is None else _parsed(attr)


def _parsed(attr: ir.Attribute) -> ir.Attribute:
    """Returns the attribute that a frontend attribute has as text; MLIR may have a number instead of a text."""
    if isinstance(attr, ir.IntegerAttr):
        return attr
    if not isinstance(attr, ir.StringAttr):
        raise ValueError
    return ir.Attribute.parse(attr.value_bytes.decode("utf-8"), attr.context)


# Custom calls


def _import_custom_call(op: ir.Operation) -> bool:
    """Replaces a custom call that stands for an op of Shardy; returns whether it was a constraint."""
    target = call_target(op)
    check_call(op, ("Sharding", "xla.sdy.PropagationBarrier"))
    check_call(op, ("xla.sdy.ShardingGroup",), len(op.results))  # a group has no result, or an empty tuple
    if target == "Sharding" and SHARDING in op.attributes:
        with ir.InsertionPoint(op), op.location:
            new = sdy.ShardingConstraintOp(op.operands[0], present(per_value(op))[0]).operation
    elif target == "xla.sdy.ShardingGroup":
        group = _integer(op, _GROUP)
        with ir.InsertionPoint(op), op.location:
            sdy.ShardingGroupOp(op.operands[0], group)
        if any(next(iter(result.uses), None) for result in op.results):
            raise RefusedError(op, "the result of a sharding group is used")
        op.erase()
        return False
    elif target == "xla.sdy.PropagationBarrier":
        direction = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _integer(op, _DIRECTION))
        with ir.InsertionPoint(op), op.location:
            new = sdy.PropagationBarrierOp(op.operands[0], direction).operation
    else:
        return False
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()
    return target == "Sharding"


def _integer(op: ir.Operation, name: str) -> int:
    attr = _value(op, name)
    if attr is None:
        raise RefusedError(op, f"it has no {name}")
    return ir.IntegerAttr(attr).value


# Manual computations


def _import_manual_computations(module: ir.Module) -> int:
    """Replaces entries, calls of bodies and exits by manual computations; returns the number of these."""
    bodies = {
        ir.StringAttr(op.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func" and _BODY in ir.StringAttr(op.attributes["sym_name"]).value
    }
    count = 0
    try:
        blocks = [block for op in ops_in(module.operation) for region in op.regions for block in region.blocks]
        for block in blocks:
            for region in find_regions(block, _is_entry, _is_exit):
                count += 1
                axes = [_value(op, _AXES) for op in (*region.entries, *region.exits)]
                ins = [each for op in region.entries for each in _shardings(op, _IN)]
                outs = [each for op in region.exits for each in _shardings(op, _OUT)]
                if any(each is None for each in axes) or len(set(axes)) != 1:
                    raise UnliftableError(region.ops[0], f"its custom calls do not agree on {_AXES}")
                lift(region, ins, outs, manual_axes(present(axes[0])))
    except UnliftableError as error:
        raise RefusedError(error.op, str(error)) from None
    while calls := [op for op in ops_in(module.operation) if op.name == "func.call" and callee_of(op) in bodies]:
        for call in calls:
            inline(call, bodies[callee_of(call)])
    for body in bodies.values():
        body.erase()
    return count


def _is_entry(op: ir.Operation) -> bool:
    return call_target(op) == _ENTRY


def _is_exit(op: ir.Operation) -> bool:
    return call_target(op) == _EXIT


def _shardings(op: ir.Operation, name: str) -> list[ir.Attribute]:
    attr = _value(op, name)
    values = op.operands if name == _IN else op.results
    shardings = list(sdy.TensorShardingPerValueAttr(attr).shardings) if attr is not None else []
    if len(shardings) != len(values):
        raise UnliftableError(op, f"{name} has {len(shardings)} shardings for {len(values)} values")
    return shardings
