# SPDX-License-Identifier: Apache-2.0
"""Mini-modules: the least module in which stock XLA faces the conversion that a site stands for.

A *pair* is a function that returns its argument in another layout. A *neighbourhood* is one op with its operands as
arguments, in the layouts that the analysis found. Both come stock (XLA converts) and rewritten (islands convert), and
are canonical text: equal questions are equal texts, whatever module, site or line they come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..synthesis.mesh import Mesh
from ..synthesis.plan import Plan
from ..synthesis.sharding import Sharding
from .bindings import ir, make_context
from .emission import emit_island, unused_channels
from .sdy_shardings import SHARDING, sharding_to_attr

_MESH = "mesh_of_question"  # no name that an op may refer to: the meshes of its own module are not here


def stock_pair(tensor_type: str, mesh: Mesh, layouts: Sequence[Sharding]) -> str:
    """Returns the module that takes a tensor in the first layout and returns it in the last, by way of those between.

    Args:
      tensor_type: as MLIR prints it, e.g. `tensor<8x8xf32>`; layouts: two or more.
    """
    constraints, value = [], "%arg0"
    for number, layout in enumerate(layouts[1:-1]):
        constraints.append(f"    %{number} = sdy.sharding_constraint {value} <@{_MESH}, {layout.closed()}> : {tensor_type}")
        value = f"%{number}"
    return _pair(tensor_type, mesh, layouts[0], layouts[-1], "\n".join(constraints), value)


def rewritten_pair(tensor_type: str, plan: Plan) -> str:
    """Returns the module in which an island does what `plan` says."""
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(_pair(tensor_type, plan.mesh, plan.source, plan.target, "", "%arg0"))
        body = module.body.operations[1].regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(body):
            island = _island(plan, body.arguments[0], module)
        body.operations[1].operation.operands[0] = island.results[0]
        return str(module)


def _pair(tensor_type: str, mesh: Mesh, source: Sharding, target: Sharding, body: str, value: str) -> str:
    return f"""module @pair attributes {{mhlo.num_partitions = {mesh.size} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @{_MESH} = {mesh}
  func.func public @main(%arg0: {tensor_type} {{{SHARDING} = #sdy.sharding<@{_MESH}, {source.closed()}>}}) -> ({tensor_type} {{{SHARDING} = #sdy.sharding<@{_MESH}, {target.closed()}>}}) {{
{body}
    return {value} : {tensor_type}
  }}
}}
"""


def neighbourhood(
    op: ir.Operation,
    mesh: Mesh,
    operand_layouts: Sequence[Sharding | None],
    result_layouts: Sequence[Sharding | None],
    operand_plans: Mapping[int, Plan],
    result_plans: Mapping[int, Plan],
) -> str | None:
    """Returns one op as a module, with islands for the plans given; with none it is what stock XLA faces.

    Args:
      op: of any module; its regions must not use values from outside.
      operand_layouts, result_layouts: of its operands and results, None where the value has none (no tensor).
      operand_plans, result_plans: by operand or result number. A result plan starts in the layout the op computes in.
    Returns: None if the op cannot stand alone: it captures values, or needs symbols.
    """
    if captures_values(op):
        return None
    with op.context, ir.Location.unknown():
        text = f"module @op attributes {{mhlo.num_partitions = {mesh.size} : i32, mhlo.num_replicas = 1 : i32}} {{\n  sdy.mesh @{_MESH} = {mesh}\n}}"
        module = ir.Module.parse(text)
        operand_types, result_types = [v.type for v in op.operands], [v.type for v in op.results]
        with ir.InsertionPoint(module.body):
            function = _function(operand_types, result_types, operand_layouts, result_layouts)
        block = function.regions[0].blocks.append(*operand_types)
        with ir.InsertionPoint(block):
            inputs = list(block.arguments)
            for number, plan in operand_plans.items():
                inputs[number] = _island(plan, inputs[number], module).results[0]
            clone = _bare_clone(op)
            for number, value in enumerate(inputs):
                clone.operands[number] = value
            outputs = list(clone.results)
            for number, plan in result_plans.items():
                outputs[number] = _island(plan, outputs[number], module).results[0]
            ir.Operation.create("func.return", operands=outputs)
        return str(module) if _is_valid(module) else None


def _is_valid(module: ir.Module) -> bool:
    """Returns whether the module verifies; a symbol of the op's own module is what may be missing."""
    try:
        return module.operation.verify()
    except ir.MLIRError:
        return False


def captures_values(op: ir.Operation) -> bool:
    """Returns whether a region of the op uses a value from outside the op."""
    inside, used = set(), set()

    def visit(nested) -> ir.WalkResult:
        if nested.operation != op.operation:
            used.update(nested.operation.operands)
            inside.update(nested.operation.results)
        for region in nested.operation.regions:
            for block in region.blocks:
                inside.update(block.arguments)
        return ir.WalkResult.ADVANCE

    op.operation.walk(visit)
    return not used <= inside


def _function(operand_types, result_types, operand_layouts, result_layouts) -> ir.Operation:
    return ir.Operation.create(
        "func.func",
        regions=1,
        attributes={
            "sym_name": ir.StringAttr.get("main"),
            "sym_visibility": ir.StringAttr.get("public"),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(operand_types, result_types)),
            "arg_attrs": ir.ArrayAttr.get([_layout_attrs(each) for each in operand_layouts]),
            "res_attrs": ir.ArrayAttr.get([_layout_attrs(each) for each in result_layouts]),
        },
    )


def _layout_attrs(layout: Sharding | None) -> ir.Attribute:
    return ir.DictAttr.get({} if layout is None else {SHARDING: sharding_to_attr(layout.closed(), _MESH)})


def _bare_clone(op: ir.Operation) -> ir.Operation:
    """Inserts a copy of the op without our attributes and its shardings, which name meshes of another module."""
    clone = op.operation.clone().operation
    names = [each if isinstance(each, str) else each.name for each in clone.attributes]
    for name in names:
        if name.startswith("reshard.") or name == SHARDING:
            del clone.attributes[name]
    return clone


def _island(plan: Plan, value: ir.Value, module: ir.Module) -> ir.Operation:
    source, target = (sharding_to_attr(side, _MESH) for side in (plan.source, plan.target))
    return emit_island(plan.tile_program, value, source, target, unused_channels(module), "reshard", ir.Location.unknown())


def bits_of(tensor_type: ir.Type) -> int:
    """Returns the bits of one element of a ranked tensor; raises ValueError for types without a width (quantized, token)."""
    element = ir.RankedTensorType(tensor_type).element_type
    if isinstance(element, ir.ComplexType):
        return 2 * ir.ComplexType(element).element_type.width
    width = getattr(element, "width", None)
    if width is None:
        raise ValueError(f"elements of type {element} have no width")
    return 8 if width == 1 else width


