# SPDX-License-Identifier: Apache-2.0
"""Arrays of which a part is written and that are read in smaller tiles: the part is written into these as well.

    %new = dynamic_update_slice %cache, %token      // whole, a result of the program
    reshard %new                                    // split, for who reads it
    ==>
    %tiles = reshard %cache
    dynamic_update_slice %tiles, %token

As many bytes are copied. But a compiler for TPUs arranges an array in memory as it is read best: so it would arrange
the whole one, and copy it for that, and once more for the result of the program.
"""

from __future__ import annotations

from reshard.synthesis.layouts.mesh import Mesh

from ..ir.ops import ops_in, producer_of
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from ..preparation.notes import APART, Note, note
from ..preparation.serials import own_location
from ..shardings.sdy_shardings import SHARDING, mesh_of, module_meshes, sharding_from_attr
from ..shardings.value_layouts import layout
from ..tile_rules.partial_sums import UPDATE
from ..tiles.tiles import dims_of, tile_bytes

MUCH_LARGER = 2  # times: tiles of which smaller ones are copied, in place of being read as a part of them
_RESHARD = "sdy.reshard"


def read_in_tiles(module: ir.Operation, notes: list[Note]) -> None:
    """Changes what reads arrays of which parts are written, in a clone with explicit reshards.

    Args:
      notes: what is done is noted there.
    """
    meshes = module_meshes(module)
    with module.context:
        for reshard in [op for op in ops_in(module) if op.name == _RESHARD]:
            update = producer_of(reshard.operands[0])
            while update is not None and update.name == _RESHARD:
                update = producer_of(update.operands[0])
            if update is not None and update.name == UPDATE and _is_apart(reshard, update, meshes):
                tiles = sharding_from_attr(reshard.attributes["sharding"])
                text = f"{update.results[0].type} is read in tiles of {tiles}, into which the part is written as well"
                notes.append(note(update, APART, text))
                _write_again(reshard, update)


def _is_apart(reshard: ir.Operation, update: ir.Operation, meshes: dict[str, Mesh]) -> bool:
    """Returns whether an array is needed besides in its own, much larger tiles, and no dimension of the smaller ones is
    split of which a part is written. In a loop that takes the array the part would be written in each turn."""
    value, attr = reshard.operands[0], reshard.attributes["sharding"]
    if (
        reshard.block != update.block
        or not _is_small(reshard, meshes)
        or all(_is_small(use.owner.operation, meshes) for use in value.uses)
    ):
        return False
    wanted = dims_of(attr, value.type, present(mesh_of(attr, meshes)))
    whole, part = (ir.RankedTensorType(each.type).shape for each in update.operands[:2])
    return not any(axes for axes, size, written in zip(wanted, whole, part, strict=True) if written < size)


def _is_small(op: ir.Operation, meshes: dict[str, Mesh]) -> bool:
    """Returns whether an op brings a value into much smaller tiles."""
    if op.name != _RESHARD or (mesh := mesh_of(op.attributes["sharding"], meshes)) is None:
        return False
    value = op.operands[0]
    if (held := layout(value)) is not None and mesh_of(held, meshes) != mesh:
        return False
    tiles = (dims_of(each, value.type, mesh) for each in (op.attributes["sharding"], layout(value)))
    small, large = (tile_bytes(value.type, each) for each in tiles)
    return 0 < MUCH_LARGER * small <= large


def _write_again(reshard: ir.Operation, update: ir.Operation) -> None:
    attr = reshard.attributes["sharding"]
    with ir.InsertionPoint(reshard), own_location(update):
        whole, part = (_in_layout(each, attr) for each in update.operands[:2])
        again = ir.Operation.create(
            UPDATE,
            [update.results[0].type],
            [whole, part, *list(update.operands)[2:]],
            {SHARDING: sdy.TensorShardingPerValueAttr.get([attr])},
        )
    reshard.results[0].replace_all_uses_with(again.results[0])
    reshard.erase()


def _in_layout(value: ir.Value, attr: ir.Attribute) -> ir.Value:
    held = layout(value)
    return value if held is not None and held == attr else sdy.ReshardOp(value, attr).result
