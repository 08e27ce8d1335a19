# SPDX-License-Identifier: Apache-2.0
"""Tiles that are at hand: in which layouts, in which scopes, and for how long large ones are used once more."""

from types import SimpleNamespace

import pytest

from reshard.dialect_utils.partitioning.local_ops import OpWriter
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.tiles.tiles import NEAR, Tile, TilesAtHand, grows
from reshard.synthesis.layouts.layout import whole_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

MESH = Mesh.parse("x=4,y=2")
ROWS, COLUMNS, WHOLE = (
    whole_factors(MESH, Sharding.parse(each)) for each in ('[{"x"}, {}]', '[{}, {"x"}]', "[{}, {}]")
)
Y = whole_factors(MESH, Sharding.parse('[{"y"}]'))[0]


@pytest.fixture
def values():
    """Four tensors of 256 bytes: an array, what a constraint makes of it, and two tiles."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse("""func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>, %c: tensor<8x8xf32>,
            %d: tensor<8x8xf32>) { return }""")
        yield list(module.body.operations[0].regions[0].blocks[0].arguments)


def test_a_tile_grows_where_fewer_axes_ROWS_it():
    value = None  # any
    assert grows(Tile(value, ROWS), WHOLE) and not grows(Tile(value, ROWS), COLUMNS)
    assert not grows(Tile(value, WHOLE), ROWS)
    assert not grows(Tile(value, ROWS, partial=Y), WHOLE)


def test_values_with_the_same_elements_share_their_tiles(values):
    array, constrained, tile, part = values
    scope, hand = {array: Tile(tile, WHOLE), constrained: Tile(part, ROWS)}, TilesAtHand()
    assert [*hand.others(constrained, scope)] == []
    hand.hold_twin(array, constrained, scope)
    assert [each.dims for each in hand.others(constrained, scope)] == [WHOLE, ROWS]
    scope[array, COLUMNS] = Tile(part, COLUMNS)
    hand.hold(array, (array, COLUMNS), scope)
    assert COLUMNS in [each.dims for each in hand.others(constrained, scope)]


def test_tiles_of_other_scopes_and_partial_sums_are_not_at_hand(values):
    array, constrained, tile, part = values
    inner, hand = {array: Tile(tile, WHOLE, partial=Y), constrained: Tile(part, ROWS)}, TilesAtHand()
    hand.hold_twin(array, constrained, inner)
    assert [each.dims for each in hand.others(constrained, inner)] == [ROWS]
    assert [*hand.others(constrained, {constrained: Tile(part, COLUMNS)})] == [Tile(part, COLUMNS)]


def test_a_large_tile_is_used_later_as_far_as_there_are_bytes_to_spare(values):
    array, constrained, tile, part = values
    scope, hand = {array: Tile(tile, WHOLE), constrained: Tile(part, ROWS)}, TilesAtHand(spare_bytes=300)
    hand.hold_twin(array, constrained, scope)
    hand.keep(constrained, scope[array])
    assert hand.spare_bytes == 300  # it is near
    hand.ops_written = NEAR
    assert scope[array] in hand.others(constrained, scope)
    hand.keep(constrained, scope[array])
    assert hand.spare_bytes == 300 - 8 * 8 * 4
    assert scope[array] not in hand.others(constrained, scope)


def test_a_large_tile_that_was_used_lately_is_near(values):
    """The tile of one of two values with the same elements, made long before and used now, is at hand for the other."""
    array, constrained, tile, part = values
    scope, hand = {array: Tile(part, ROWS), constrained: Tile(part, ROWS)}, TilesAtHand()
    scope[array, WHOLE] = Tile(tile, WHOLE)
    hand.hold_twin(array, constrained, scope)
    hand.hold(array, (array, WHOLE), scope)
    hand.ops_written = NEAR
    assert WHOLE not in [each.dims for each in hand.others(constrained, scope)]
    writer = OpWriter.__new__(OpWriter)
    writer.changes = SimpleNamespace(at_hand=hand)
    assert writer._in_layout(None, array, WHOLE, scope) == tile
    assert WHOLE in [each.dims for each in hand.others(constrained, scope)]
