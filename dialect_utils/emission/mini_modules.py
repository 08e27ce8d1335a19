# SPDX-License-Identifier: Apache-2.0
"""Mini-modules: the smallest module in which stock XLA has to do the conversion of a site.

A *pair* is a function that returns its argument in another layout. A *neighbourhood* is one op with its operands as
arguments, in the layouts that the analysis found. Both have two forms: stock (XLA converts) and rewritten (islands
convert). Their text is canonical: equal questions are equal texts, from any module, site or line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from reshard.synthesis.forms.platforms import CPU
from reshard.synthesis.layouts import padding
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import Plan

from ..ir.ops import ops_in
from ..platform.bindings import ir, make_context, sdy
from ..platform.typed import present
from ..shardings.sdy_shardings import SHARDING, sharding_to_attr
from .exchange_emission import resized, stacked
from .tile_emission import Mark, emit_conversion_on_stacks, emit_plan, unused_channels

_GOAL = "mesh_of_answer"
_MESH = "mesh_of_question"  # no op has this name: an op may refer to a mesh of its own module, which is not here


def stock_pair(tensor_type: str, mesh: Mesh, layouts: Sequence[Sharding], target_mesh: Mesh | None = None) -> str:
    """Returns the module that takes a tensor in the first layout and returns it in the last, through those between.

    XLA changes a layout of an argument or a result whose dimensions do not divide. Such ends are in whole tiles: the
    argument and the result are padded at the end of each dimension, which moves nothing.

    Args:
      tensor_type: the type in MLIR's text, e.g. `tensor<8x8xf32>`.
      layouts: two or more; with `target_mesh`, the mesh of the last one over the same devices, just two.
    """
    pair = _Pair(tensor_type, (mesh, target_mesh or mesh), layouts[0], layouts[-1])
    value, constraints = pair.value, []
    for number, layout in enumerate(layouts[1:-1] if pair.is_whole else layouts[1:]):
        constraints.append(
            f"    %{number} = sdy.sharding_constraint {value} <@{pair.goal_name}, {layout.closed()}> : {tensor_type}"
        )
        value = f"%{number}"
    return pair.module("\n".join(constraints), value)


def rewritten_pair(tensor_type: str, plan: Plan, platform: str = CPU) -> str:
    """Returns the module in which one or two islands carry out `plan`; in whole tiles if `stock_pair` uses them.

    Between meshes over different devices, for example to a single device, the module works on stacks of tiles: it takes
    and returns arrays (devices, *tile) that are split along their first dimension. The islands are in the forms of one
    of `platforms.PLATFORMS`.
    """
    if is_on_stacks(plan):
        return _stacked_pair(tensor_type, plan, platform)
    pair = _Pair(tensor_type, (plan.mesh, plan.goal_mesh), plan.source, plan.target)
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(pair.module("", pair.value))
        *_, function = module.body.operations
        body = function.regions[0].blocks[0]
        value = body.arguments[0] if pair.is_whole else body.operations[1].operation.results[0]
        user = body.operations[len(body.operations) - (1 if pair.is_whole else 2)].operation
        with ir.InsertionPoint(user):
            user.operands[0] = _converted(plan, value, module, pair.goal_name, platform)
        return str(module)


def is_on_stacks(plan: Plan) -> bool:
    """Returns whether `rewritten_pair` works on stacks of tiles: one of the meshes lacks devices of the plan."""
    return any(mesh.size < plan.devices for mesh in (plan.mesh, plan.goal_mesh))


def _stacked_pair(tensor_type: str, plan: Plan, platform: str) -> str:
    element, mesh = parts_of(tensor_type)[1], Mesh((("device", plan.devices),))
    tiles = (plan.tile_program.in_shape, plan.tile_program.out_shape)
    before, after = (f"tensor<{'x'.join(map(str, (plan.devices, *tile)))}x{element}>" for tile in tiles)
    sides = (stacked(mesh, 1 + len(tile)) for tile in tiles)
    ends = [f"#sdy.sharding<@{_MESH}, {side}>" for side in sides]
    text = f"""module @pair attributes {{mhlo.num_partitions = {mesh.size} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @{_MESH} = {mesh}
  func.func public @main(%arg0: {before} {{{SHARDING} = {ends[0]}}}) -> ({after} {{{SHARDING} = {ends[1]}}}) {{
    %0 = ub.poison : {after}
    return %0 : {after}
  }}
}}
"""
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        body = module.body.operations[1].regions[0].blocks[0]
        unset, end = body.operations
        with ir.InsertionPoint(end):
            end.operation.operands[0] = emit_conversion_on_stacks(
                plan.tile_program, body.arguments[0], mesh, _MESH, _mark(module, platform)
            )
        unset.operation.erase()
        return str(module)


class _Pair:
    """The text of a module that takes a tensor in one layout and returns it in another.

    Attributes:
      meshes: the meshes of source and target. goal_name: the symbol name of the target's mesh.
      is_whole: whether all dimensions divide. value: the name of the value to convert.
    """

    def __init__(self, tensor_type: str, meshes: tuple[Mesh, Mesh], source: Sharding, target: Sharding):
        self.tensor_type = tensor_type
        self.meshes = meshes
        self.sides = source, target
        self.goal_name = _MESH if meshes[0] == meshes[1] else _GOAL
        self.whole = tuple(_whole_type(tensor_type, mesh, side) for mesh, side in zip(meshes, self.sides))
        self.is_whole = all(each == tensor_type for each in self.whole)
        self.value = "%arg0" if self.is_whole else "%held"

    def module(self, body: str, value: str) -> str:
        """Returns the text of the module with `body`, which computes the result `value`."""
        if not self.is_whole:
            body, value = self._cut_and_padded(body, value), "%padded"
        (before, after), (source, target) = self.whole, self.sides
        declared = f"  sdy.mesh @{_MESH} = {self.meshes[0]}\n"
        if self.goal_name == _GOAL:
            declared += f"  sdy.mesh @{_GOAL} = {self.meshes[1]}\n"
        counts = f"mhlo.num_partitions = {self.meshes[0].size} : i32, mhlo.num_replicas = 1 : i32"
        argument = f"{before} {{{SHARDING} = #sdy.sharding<@{_MESH}, {source.closed()}>}}"
        result = f"{after} {{{SHARDING} = #sdy.sharding<@{self.goal_name}, {target.closed()}>}}"
        return f"""module @pair attributes {{{counts}}} {{
{declared}  func.func public @main(%arg0: {argument}) -> ({result}) {{
{body}
    return {value} : {after}
  }}
}}
"""

    def _cut_and_padded(self, body: str, value: str) -> str:
        """Returns `body` after a slice of the tensor from whole tiles, and before a pad of `value` to whole tiles."""
        (before, after), tensor_type = self.whole, self.tensor_type
        shape, element = parts_of(tensor_type)
        zero = (
            "(0.0, 0.0)"
            if element.startswith("complex")
            else "false"
            if element == "i1"
            else "0.0"
            if "f" in element
            else "0"
        )
        high = [new - old for new, old in zip(parts_of(after)[0], shape)]
        none = [0] * len(shape)
        cut = ", ".join(f"0:{size}" for size in shape)
        pad_type = f"({tensor_type}, tensor<{element}>) -> {after}"
        return f"""    %cut = stablehlo.slice %arg0 [{cut}] : ({before}) -> {tensor_type}
    %held = sdy.sharding_constraint %cut <@{_MESH}, {self.sides[0].closed()}> : {tensor_type}
    %zero = stablehlo.constant dense<{zero}> : tensor<{element}>
{body}
    %padded = stablehlo.pad {value}, %zero, low = {none}, high = {high}, interior = {none} : {pad_type}"""


def parts_of(tensor_type: str) -> tuple[tuple[int, ...], str]:
    """Returns the shape and the element type of a ranked tensor type.

    Example:
      >>> parts_of("tensor<10x3xcomplex<f32>>")
      ((10, 3), 'complex<f32>')
    """
    sizes, element = present(re.fullmatch(r"tensor<((?:\d+x)*)(.*)>", tensor_type)).groups()
    return tuple(int(size) for size in sizes.split("x")[:-1]), element


def _whole_type(tensor_type: str, mesh: Mesh, side: Sharding) -> str:
    """Returns the type with each dimension filled up to a whole number of tiles."""
    shape, element = parts_of(tensor_type)
    return f"tensor<{''.join(f'{size}x' for size in whole_shape(mesh, shape, side))}{element}>"


def whole_shape(mesh: Mesh, shape: Sequence[int], side: Sharding) -> tuple[int, ...]:
    """Returns the shape with each dimension filled up to a whole number of tiles."""
    return padding.whole_shape(shape, side.shards(mesh))


def neighbourhood(
    op: ir.Operation,
    mesh: Mesh,
    operand_layouts: Sequence[Sharding | None],
    result_layouts: Sequence[Sharding | None],
    operand_plans: Mapping[int, Plan],
    result_plans: Mapping[int, Plan],
    constrained: Collection[int] = (),
) -> str | None:
    """Returns one op as a module, with islands for the given plans; without plans it is the question for stock XLA.

    Args:
      op: an op of any module; its regions must not use values from outside.
      operand_layouts, result_layouts: the layouts of its operands and results; None for a value that is no tensor.
      operand_plans, result_plans: by operand or result number. A result plan starts in the layout the op computes in.
      constrained: numbers of the results that a constraint holds in their layouts.
    Returns: None if the op cannot stand alone: it captures values, or needs symbols.
    """
    if captures_values(op):
        return None
    with op.context, ir.Location.unknown():
        attributes = f"{{mhlo.num_partitions = {mesh.size} : i32, mhlo.num_replicas = 1 : i32}}"
        text = f"module @op attributes {attributes} {{\n  sdy.mesh @{_MESH} = {mesh}\n}}"
        module = ir.Module.parse(text)
        operand_types = [_held_type(v.type, mesh, layout) for v, layout in zip(op.operands, operand_layouts)]
        result_types = [_held_type(v.type, mesh, layout) for v, layout in zip(op.results, result_layouts)]
        with ir.InsertionPoint(module.body):
            function = _function(operand_types, result_types, operand_layouts, result_layouts)
        block = function.regions[0].blocks.append(*operand_types)
        with ir.InsertionPoint(block):
            inputs = [_held(*each) for each in zip(block.arguments, op.operands, operand_layouts)]
            outputs = _cloned_with_plans(op, inputs, operand_plans, result_plans, module)
            for number in constrained:
                held = sharding_to_attr(present(result_layouts[number]).closed(), _MESH)
                outputs[number] = sdy.ShardingConstraintOp(outputs[number], held).result
            outputs = [_whole(*each) for each in zip(outputs, result_types, result_layouts)]
            ir.Operation.create("func.return", operands=outputs)
        return str(module) if _is_valid(module) else None


def _cloned_with_plans(
    op: ir.Operation,
    inputs: Sequence[ir.Value],
    operand_plans: Mapping[int, Plan],
    result_plans: Mapping[int, Plan],
    module: ir.Module,
) -> list[ir.Value]:
    """Inserts a clone of an op on `inputs`, with islands around it for the plans; returns its results after them."""
    inputs = list(inputs)
    for number, plan in operand_plans.items():
        inputs[number] = _converted(plan, inputs[number], module)
    clone = _bare_clone(op)
    for number, value in enumerate(inputs):
        clone.operands[number] = value
    outputs: list[ir.Value] = list(clone.results)
    for number, plan in result_plans.items():
        outputs[number] = _converted(plan, outputs[number], module)
    return outputs


def _held_type(kind: ir.Type, mesh: Mesh, layout: Sharding | None) -> ir.Type:
    """Returns the type of an argument or result of the function: filled up to whole tiles, as in `stock_pair`."""
    if layout is None or not ir.ShapedType(kind).has_static_shape:
        return kind
    return ir.RankedTensorType.get(
        whole_shape(mesh, ir.ShapedType(kind).shape, layout), ir.ShapedType(kind).element_type
    )


def _held(argument: ir.Value, operand: ir.Value, layout: Sharding | None) -> ir.Value:
    """Returns the operand in its layout, cut out of whole tiles if the argument is in whole tiles."""
    if argument.type == operand.type:
        return argument
    cut = resized(argument, tuple(ir.ShapedType(operand.type).shape))
    return sdy.ShardingConstraintOp(cut, sharding_to_attr(present(layout).closed(), _MESH)).result


def _whole(value: ir.Value, kind: ir.Type, layout: Sharding | None) -> ir.Value:
    """Returns a result in its layout, filled up to whole tiles if `kind` is a type of whole tiles."""
    if value.type == kind:
        return value
    held = sdy.ShardingConstraintOp(value, sharding_to_attr(present(layout).closed(), _MESH)).result
    return resized(held, tuple(ir.ShapedType(kind).shape))


def _is_valid(module: ir.Module) -> bool:
    """Returns whether the module verifies; a symbol of the op's own module may be missing."""
    try:
        return module.operation.verify()
    except ir.MLIRError:
        return False


def captures_values(op: ir.Operation) -> bool:
    """Returns whether a region of the op uses a value from outside the op."""
    inside, used = set(), set()

    for nested in ops_in(op.operation, ir.WalkOrder.POST_ORDER):
        if nested.operation != op.operation:
            used.update(nested.operation.operands)
            inside.update(nested.operation.results)
        for region in nested.operation.regions:
            for block in region.blocks:
                inside.update(block.arguments)
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
    """Inserts a copy of the op without our attributes and without its shardings, which name meshes of its module."""
    clone = op.operation.clone().operation
    names = [each if isinstance(each, str) else each.name for each in clone.attributes]
    for name in names:
        if name.startswith(("reshard.", "reshard_verify.")) or name == SHARDING:
            del clone.attributes[name]
    return clone


def _converted(plan: Plan, value: ir.Value, module: ir.Module, goal_name: str = _MESH, platform: str = CPU) -> ir.Value:
    """Inserts an island that carries out the plan; on whole tiles if dimensions do not divide or meshes differ."""
    source, target = sharding_to_attr(plan.source, _MESH), sharding_to_attr(plan.target, goal_name)
    return emit_plan(plan, value, source, target, _mark(module, platform))


def _mark(module: ir.Module, platform: str = CPU) -> Mark:
    return Mark(unused_channels(module), "reshard", ir.Location.unknown(), platform)
