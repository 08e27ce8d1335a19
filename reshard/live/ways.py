# SPDX-License-Identifier: Apache-2.0
"""Ways of one live array from its source to its target: tile programs over devices, with their costs.

Between two placements over the same devices a way is a plan. Between different devices it is an exchange over all of
them, in which each target tile receives exactly what it lacks. If the target has copies of its tiles, there is another
way: the source sends every part of a tile once, and the target's devices gather the parts. So the source does not send
the same bytes once for each copy.

No jax here: devices are ids. A *rank* is the place of an id in the sorted ids of the devices that take part; it is
the partition id of the program that runs there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from reshard.synthesis.layouts.blocks import Blocks
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding
from reshard.synthesis.network.pricing import Pricing
from reshard.synthesis.network.topology import DEFAULT, Topology
from reshard.synthesis.planner.entry import Plan, pareto, plan
from reshard.synthesis.programs.exchange import plan_exchange
from reshard.synthesis.programs.peak import peak_bytes
from reshard.synthesis.programs.steps import Exchanged
from reshard.synthesis.programs.tile_program import Rounds, TileProgram

Box = tuple[tuple[int, int], ...]  # (start, stop) of each dimension


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of an array: its box on every device, and its mesh and sharding if there are any.

    Attributes:
      device_ids: the devices, in the order of the mesh if there is one.
      boxes: the box of each device in `device_ids`; all have the same size.
      axes: the axes of the mesh, major to minor; () for a single device. None if only the boxes are known.
      sharding: the sharding on these axes; None if only the boxes are known.
    """

    device_ids: tuple[int, ...]
    boxes: tuple[Box, ...]
    axes: tuple[tuple[str, int], ...] | None = None
    sharding: Sharding | None = None

    @property
    def tile_shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.boxes[0])

    def places_like(self, other: Placement) -> bool:
        """Returns whether every device holds the same box."""
        return dict(zip(self.device_ids, self.boxes)) == dict(zip(other.device_ids, other.boxes))

    def mesh(self, ids: tuple[int, ...]) -> Mesh:
        """Returns the mesh; its devices are ranks among the sorted `ids`."""
        ranks = tuple(map(ids.index, self.device_ids))
        if len(ranks) == 1:
            return Mesh((), ranks)
        assert self.axes is not None  # else it is no mesh
        return Mesh(self.axes, ranks)

    def blocks(self, ids: tuple[int, ...], shape: tuple[int, ...]) -> Blocks:
        """Returns the boxes by rank among the sorted `ids`; the other devices hold nothing."""
        bounds = np.zeros((len(ids), len(shape), 2), np.int64)
        for device, box in zip(self.device_ids, self.boxes):
            bounds[ids.index(device)] = box
        return Blocks(shape, self.tile_shape, bounds[..., 0], bounds[..., 1])


@dataclass(frozen=True, slots=True)
class Question:
    """One array to move from `source` to `target`; equal questions have equal answers, in every process.

    Attributes:
      shape: the global shape, in elements; at least one dimension, and no size is 0. bits: the bits of one element.
      topology, objective: the same as for `reshard.plan`.
    """

    shape: tuple[int, ...]
    bits: int
    source: Placement
    target: Placement
    topology: Topology | None = None
    objective: str = "time"

    def bytes_of(self, placement: Placement) -> int:
        """Returns the bytes of a tile."""
        return -(-math.prod(placement.tile_shape) * self.bits // 8)


@dataclass(frozen=True, slots=True)
class Stage:
    """A tile program over the devices `device_ids`, by partition id.

    A device without a tile takes and returns any tile.
    """

    device_ids: tuple[int, ...]
    program: TileProgram


@dataclass(frozen=True, slots=True)
class Way:
    """Stages that take an array to its target, one after the other, with the costs of the busiest device.

    Attributes:
      text: the steps in one line. bound_bytes: the bytes that the busiest device must receive by any method.
      peak_bytes: modelled, with the source and the target tile.
    """

    stages: tuple[Stage, ...]
    text: str
    bytes_received: int
    bytes_sent: int
    bound_bytes: int
    time_s: float
    peak_bytes: int


@functools.lru_cache(maxsize=16384)
def fastest(question: Question) -> Way:
    """Returns the cheapest way by the question's objective.

    Raises: NoPlanError, TopologyError as `reshard.plan` says.
    """
    if not _are_over_same_devices(question):
        return min(_between_devices(question), key=_key(question))
    options = {"objective": question.objective, "topology": question.topology, "with_exchange": True}
    return _of_plan(question, plan(*_ends(question), **options, target_mesh=_goal(question)))


@functools.lru_cache(maxsize=4096)
def by_peak(question: Question) -> tuple[Way, ...]:
    """Returns the ways that no other way beats in both time and peak, the fastest first."""
    if not _are_over_same_devices(question):
        ways = sorted(_between_devices(question), key=lambda each: (each.time_s, each.peak_bytes))
        return tuple(way for i, way in enumerate(ways) if all(way.peak_bytes < other.peak_bytes for other in ways[:i]))
    plans = pareto(*_ends(question), topology=question.topology, with_exchange=True, target_mesh=_goal(question))
    return tuple(_of_plan(question, each) for each in plans)


def _key(question: Question):
    by_bytes = question.objective == "bytes"
    return lambda way: (
        (way.bytes_received, way.bytes_sent, way.time_s) if by_bytes else (way.time_s, way.bytes_received)
    )


def _are_over_same_devices(question: Question) -> bool:
    """Returns whether both placements are shardings over the same devices; the planner has chains for these."""
    source, target = question.source, question.target
    is_known = source.axes is not None and target.axes is not None
    return is_known and sorted(source.device_ids) == sorted(target.device_ids)


def _devices(question: Question) -> tuple[int, ...]:
    return tuple(sorted({*question.source.device_ids, *question.target.device_ids}))


def _ends(question: Question) -> tuple:
    ids = _devices(question)
    return question.source.mesh(ids), question.shape, question.bits, question.source.sharding, question.target.sharding


def _goal(question: Question) -> Mesh:
    return question.target.mesh(_devices(question))


def _of_plan(question: Question, found: Plan) -> Way:
    return Way(
        stages=(Stage(_devices(question), found.tile_program),) if found.steps else (),
        text=found.chain_text,
        bytes_received=found.bytes_received,
        bytes_sent=found.bytes_sent,
        bound_bytes=found.bound_bytes,
        time_s=found.time_s,
        peak_bytes=found.peak_bytes,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Between different devices
# ---------------------------------------------------------------------------------------------------------------------


def _between_devices(question: Question) -> list[Way]:
    """Returns the exchange; if the target has copies, also ways that send every part once and then gather."""
    found = [_exchange_way(question)]
    for split in _splits_over_copies(question):
        parts = _exchange_way(replace(question, target=split))
        gathered = fastest(replace(question, source=split, topology=None))
        found.append(_in_sequence(question, found[0], parts, gathered))
    return found


def _exchange_way(question: Question) -> Way:
    ids = _devices(question)
    ends = [each.blocks(ids, question.shape) for each in (question.source, question.target)]
    mesh = Mesh((("device", len(ids)),))
    pricing = Pricing(question.topology or Topology.parse(DEFAULT), mesh, question.bits)
    is_by_time = question.objective == "time"
    distance = None if pricing.is_flat else pricing.distance
    found = plan_exchange(*ends, distance=distance, round_elements=pricing.round_elements() if is_by_time else 0)
    program = TileProgram(
        mesh, question.source.tile_shape, question.target.tile_shape, ((Exchanged(found, None), (Rounds(found),)),)
    )
    return Way(
        stages=(Stage(ids, program),),
        text=found.text,
        bytes_received=found.bytes_received(question.bits),
        bytes_sent=found.bytes_sent(question.bits),
        bound_bytes=-(-found.bound_elements * question.bits // 8),
        time_s=pricing.exchange_seconds(found) + pricing.relayout_seconds(math.prod(question.target.tile_shape)),
        peak_bytes=peak_bytes(program, question.bits),
    )


def _splits_over_copies(question: Question) -> Iterator[Placement]:
    """Yields the target's placement with each tile cut along one dimension, into one part for each of its copies."""
    target = question.target
    if not target.axes or target.sharding is None:
        return
    split = target.sharding.dims
    used = {axis.name for dim in split for axis in dim}
    spare = tuple(AxisRef(name) for name, size in target.axes if name not in used and size > 1)
    copies = math.prod(dict(target.axes)[axis.name] for axis in spare)
    for dim, size in enumerate(target.tile_shape if spare else ()):
        if size % copies == 0:
            dims = (axes + spare * (number == dim) for number, axes in enumerate(split))
            yield _blocked(question.shape, target, Sharding(tuple(dims)))


def _blocked(shape: tuple[int, ...], like: Placement, sharding: Sharding) -> Placement:
    assert like.axes is not None
    mesh = Mesh(like.axes)
    held = Blocks.of_sharding(mesh, shape, sharding)
    boxes = tuple(tuple(zip(low, high)) for low, high in zip(held.starts.tolist(), held.stops.tolist()))
    return Placement(like.device_ids, boxes, like.axes, sharding)


def _in_sequence(question: Question, direct: Way, first: Way, second: Way) -> Way:
    """Returns the way of two stages. The first stage's result is freed when the second stage is done."""
    held = question.bytes_of(question.source)
    return Way(
        stages=(*first.stages, *second.stages),
        text=f"{first.text}; {second.text}",
        bytes_received=first.bytes_received + second.bytes_received,
        bytes_sent=max(first.bytes_sent, second.bytes_sent)
        if _are_apart(question)
        else first.bytes_sent + second.bytes_sent,
        bound_bytes=direct.bound_bytes,
        time_s=first.time_s + second.time_s,
        peak_bytes=max(first.peak_bytes, held + second.peak_bytes),
    )


def _are_apart(question: Question) -> bool:
    return not {*question.source.device_ids} & {*question.target.device_ids}
