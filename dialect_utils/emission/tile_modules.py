# SPDX-License-Identifier: Apache-2.0
"""Tile modules: one island that takes and returns the tiles of all devices, with partial sums and replicas.

Arguments of XLA are arrays, and partial sums are not an array. So all tiles enter as one *stack*: an array with a
leading dimension for each unreduced axis and one for the axes that are left over, before the dimensions of the array.
Each leading dimension is split so that every device has its own tile. The result is a stack, too.
"""

from __future__ import annotations

from reshard.synthesis.forms.platforms import CPU
from reshard.synthesis.layouts.layout import leftover_axes
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import Plan

from ..platform.bindings import ir, make_context, sdy, stablehlo
from ..shardings.sdy_shardings import SHARDING, sharding_to_attr
from .mini_modules import parts_of
from .tile_emission import Mark, unused_channels, write_program

_MESH = "mesh"


def stacked(mesh: Mesh, side: Sharding) -> Sharding:
    """Returns the sharding of a stack: a leading dimension per unreduced axis, and one for the axes left over.

    Example:
      >>> print(stacked(Mesh.parse("x=2,y=2,z=2"), Sharding.parse('[{"x"}, {}], unreduced={"y"}')))
      [{"y"}, {"z"}, {"x"}, {}]
    """
    return Sharding((*((axis,) for axis in side.unreduced), leftover_axes(mesh, side), *side.dims))


def leading_sizes(mesh: Mesh, side: Sharding) -> tuple[int, ...]:
    """Returns the sizes of a stack's leading dimensions: of each unreduced axis, and the number of replicas."""
    return stacked(mesh, side).shards(mesh)[: len(side.unreduced) + 1]


def tile_module(tensor_type: str, plan: Plan, platform: str = CPU) -> str:
    """Returns the module whose one island carries out a plan on the stack of the source's tiles.

    Args:
      tensor_type: the type of the array in MLIR's text; its dimensions divide.
      platform: one of `platforms.PLATFORMS`, in whose forms the island is written.
    Raises: UnsupportedReduction if the type of element does not have the plan's reduction.
    """
    shape, element = parts_of(tensor_type)
    ends = plan.source, plan.target
    types = [f"tensor<{''.join(f'{n}x' for n in (*leading_sizes(plan.mesh, side), *shape))}{element}>" for side in ends]
    layouts = [stacked(plan.mesh, side) for side in ends]
    counts = f"mhlo.num_partitions = {plan.mesh.size} : i32, mhlo.num_replicas = 1 : i32"
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(
            f"""module @tiles attributes {{{counts}}} {{
  sdy.mesh @{_MESH} = {plan.mesh}
}}"""
        )
        with ir.InsertionPoint(module.body):
            function = _function(types, layouts)
        with ir.InsertionPoint(function.regions[0].blocks[0]):
            result = _island(plan, function.regions[0].blocks[0].arguments[0], types[1], layouts, module, platform)
            ir.Operation.create("func.return", operands=[result])
        return str(module)


def _function(types: list[str], layouts: list[Sharding]) -> ir.Operation:
    taken, given = (ir.Type.parse(each) for each in types)
    attributes = [ir.ArrayAttr.get([ir.DictAttr.get({SHARDING: sharding_to_attr(each, _MESH)})]) for each in layouts]
    function = ir.Operation.create(
        "func.func",
        regions=1,
        attributes={
            "sym_name": ir.StringAttr.get("main"),
            "sym_visibility": ir.StringAttr.get("public"),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get([taken], [given])),
            "arg_attrs": attributes[0],
            "res_attrs": attributes[1],
        },
    )
    function.regions[0].blocks.append(taken)
    return function


def _island(
    plan: Plan, value: ir.Value, result_type: str, layouts: list[Sharding], module: ir.Module, platform: str
) -> ir.Value:
    """Inserts the island and returns its result. On one device, a stack is the device's tile, reshaped."""
    program, element = plan.tile_program, ir.RankedTensorType(value.type).element_type
    ones = ((1,) * len(leading_sizes(plan.mesh, side)) for side in (plan.source, plan.target))
    taken, given = ((*one, *tile) for one, tile in zip(ones, (program.in_shape, program.out_shape)))
    ins, outs = (sdy.TensorShardingPerValueAttr.get([sharding_to_attr(each, _MESH)]) for each in layouts)
    island = sdy.ManualComputationOp(
        [ir.Type.parse(result_type)],
        [value],
        ins,
        outs,
        sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in plan.mesh.axis_names]),
    )
    body = island.operation.regions[0].blocks.append(ir.RankedTensorType.get(taken, element))
    with ir.InsertionPoint(body):
        tile = stablehlo.ReshapeOp(ir.RankedTensorType.get(program.in_shape, element), body.arguments[0]).result
        tile = write_program(program, tile, Mark(unused_channels(module), "reshard", ir.Location.unknown(), platform))
        sdy.ReturnOp([stablehlo.ReshapeOp(ir.RankedTensorType.get(given, element), tile).result])
    return island.operation.results[0]
