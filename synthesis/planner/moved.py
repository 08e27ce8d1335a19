# SPDX-License-Identifier: Apache-2.0
"""Plans that move a part of one array to its place in another array, as slices, pads and concatenations do.

The part is an array of its own, and both ends place it: the source has boxes of it somewhere in its tiles, and the
target's tiles have room for boxes of it. An exchange between these two placements sends exactly what a device lacks.
So a slice of a split dimension needs no tile of the whole dimension. Several parts of one array, as in a roll, move in
the rounds of one exchange.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..layouts.blocks import Blocks
from ..layouts.mesh import Mesh
from ..layouts.sharding import Sharding
from ..network.pricing import PER_SECOND
from ..network.topology import Topology
from ..plans.plan import Plan
from ..plans.request import Request
from ..programs.exchange import MOST_PIECES_BESIDE_CHAIN, Exchange, merged
from ..programs.steps import Exchanged
from ..programs.tile_program import Rounds, TileProgram
from .generators import Context


@dataclass(frozen=True, slots=True)
class End:
    """An array that has the part: its shape in elements, its sharding, and the index at which the part begins.

    Attributes:
      mirrored: the dimensions along which the array, and each of its tiles, is turned round before.
    """

    shape: tuple[int, ...]
    sharding: Sharding
    start: tuple[int, ...]
    mirrored: tuple[int, ...] = ()

    def blocks(self, mesh: Mesh, size: tuple[int, ...]) -> Blocks:
        """Returns the placement of the part, which has a size along each dimension."""
        stop = [start + each for start, each in zip(self.start, size, strict=True)]
        return Blocks.of_sharding(mesh, self.shape, self.sharding).mirrored(self.mirrored).part(self.start, stop)


Part = tuple[tuple[int, ...], End, End]  # the size of a part in elements, and the arrays that it moves between


@functools.lru_cache(maxsize=128)  # an exchange over thousands of devices has megabytes
def plan_move(
    mesh: Mesh,
    bits: int,
    size: tuple[int, ...],
    source: End,
    target: End,
    *,
    objective: str = "bytes",
    topology: Topology | None = None,
    memory_limit: int | None = None,
) -> Plan:
    """Returns the plan of the exchange that moves a part from one array into another.

    What the target's tiles have outside of the part is not defined after it.

    Args:
      bits: of one element. size: of the part, in elements along each dimension.
      objective, topology, memory_limit: as for `entry.plan`.
    Raises: TooManyPieces if the exchange is too large to schedule; TopologyError, as `entry.plan`.

    Example: the second half of 8 elements on 2 devices moves to the first device and the second one.
      >>> half = Sharding.parse('[{"x"}]')
      >>> found = plan_move(Mesh.parse("x=2"), 32, (4,), End((8,), half, (4,)), End((4,), half, (0,)))
      >>> found.chain_text, found.bytes_received
      ('exchange in 1 round of [2]', 8)
    """
    context = _context(mesh, bits, source, target, objective, topology, memory_limit)
    return _plan(mesh, context, _exchange(mesh, context, (size, source, target)))


@functools.lru_cache(maxsize=128)
def plan_moves(
    mesh: Mesh,
    bits: int,
    parts: tuple[Part, ...],
    *,
    objective: str = "bytes",
    topology: Topology | None = None,
    memory_limit: int | None = None,
) -> Plan | None:
    """Returns the plan of one exchange that moves several parts of one array to different places of another one.

    None if the parts cannot be moved by one exchange; each has a plan of its own then.

    Args and Raises: as for `plan_move`; `parts` are of one source array and one target array, in one layout each.

    Example: a roll by one element: the last element and the others move in one round.
      >>> half = Sharding.parse('[{"x"}]')
      >>> last = (1,), End((8,), half, (7,)), End((8,), half, (0,))
      >>> others = (7,), End((8,), half, (0,)), End((8,), half, (1,))
      >>> plan_moves(Mesh.parse("x=2"), 32, (last, others)).chain_text
      'exchange in 1 round of [1]'
    """
    context = _context(mesh, bits, parts[0][1], parts[0][2], objective, topology, memory_limit)
    exchange = merged([_exchange(mesh, context, part) for part in parts])
    return None if exchange is None else _plan(mesh, context, exchange)


def _context(mesh: Mesh, bits: int, source: End, target: End, objective, topology, memory_limit) -> Context:
    asked = Request.of(
        mesh, target.shape, bits, source.sharding, target.sharding,
        topology=topology, objective=objective, with_exchange=True, memory_limit=memory_limit,
    )  # fmt: skip
    return Context(asked)


def _exchange(mesh: Mesh, context: Context, part: Part) -> Exchange:
    size, source, target = part
    return context.exchange(source.blocks(mesh, size), target.blocks(mesh, size), MOST_PIECES_BESIDE_CHAIN)


def _plan(mesh: Mesh, context: Context, exchange: Exchange) -> Plan:
    step = Exchanged(exchange, None)
    held, wanted = exchange.source, exchange.target
    program = TileProgram(mesh, held.tile_shape, wanted.tile_shape, ((step, (Rounds(exchange),)),))
    costing = context.costing
    costing.bound = exchange.bound_elements
    costing.bound_time_s = context.pricing.least_picoseconds(exchange.bound_elements) / PER_SECOND
    largest = max(held.tile_elements, wanted.tile_elements)
    return costing.plan_of(program, (costing.priced_exchange(step),), largest, False)
