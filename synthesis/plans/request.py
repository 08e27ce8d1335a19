# SPDX-License-Identifier: Apache-2.0
"""Requests: one redistribution and the objective that judges its plans. Equal requests have equal plans (R5)."""

from __future__ import annotations

from dataclasses import dataclass

from ..layouts.mesh import Mesh
from ..layouts.refinement import NoPlanError
from ..layouts.sharding import Sharding
from ..network.topology import DEFAULT, Topology
from ..programs.tile_program import REDUCTIONS

OBJECTIVES = ("bytes", "time")


@dataclass(frozen=True, slots=True)
class Request:
    """One redistribution.

    Attributes:
      shape: the global shape, in elements. bits: the size of an element.
      source, target: closed shardings, on `mesh` and on `target_mesh`.
      objective: one of OBJECTIVES. topology: the network for which times are modelled.
      with_exchange: whether a plan may use exchanges and padded tiles.
      reduction: the operation that turns partial sums into the array.
      effort: the limits of the search for a cheaper chain, or for a proof that none exists, are multiplied by it.
      memory_limit: the largest peak of a plan, in bytes per device; None for no limit.
      tile_limit: the size that a tile between the steps may have, in bytes per device, even if the tiles of source
        and target are smaller; None for no more than the larger of these two (R2).
      target_mesh: the mesh of the target; None if it is `mesh`.
    """

    mesh: Mesh
    shape: tuple[int, ...]
    bits: int
    source: Sharding
    target: Sharding
    objective: str
    topology: Topology
    with_exchange: bool
    reduction: str
    effort: int = 1
    memory_limit: int | None = None
    target_mesh: Mesh | None = None
    tile_limit: int | None = None

    @staticmethod
    def of(
        mesh: Mesh,
        shape: tuple[int, ...],
        bits: int,
        source: Sharding,
        target: Sharding,
        *,
        target_mesh: Mesh | None = None,
        topology: Topology | None = None,
        objective: str = "bytes",
        with_exchange: bool = False,
        reduction: str = "sum",
        effort: int = 1,
        memory_limit: int | None = None,
        tile_limit: int | None = None,
    ) -> Request:
        """Returns the request in its normal form, checked; see `entry.plan` for the arguments.

        Raises: ShardingError, MeshError, NoPlanError, ValueError for values that no plan can be made for.
        """
        goal = target_mesh or mesh
        source, target = _for_rank(mesh, source, len(shape)), _for_rank(goal, target, len(shape))
        found = Request(
            mesh,
            tuple(shape),
            bits,
            source.closed(),
            target.closed(),
            objective,
            topology or Topology.parse(DEFAULT),
            with_exchange,
            reduction,
            effort=effort,
            memory_limit=memory_limit,
            target_mesh=None if goal == mesh else goal,
            tile_limit=tile_limit,
        )
        found._check()
        return found

    def _check(self) -> None:
        for words, limit in (("memory limit", self.memory_limit), ("tile limit", self.tile_limit)):
            if limit is not None and limit < 0:
                raise NoPlanError(f"{words} {limit} is negative; it is in bytes per device")
        if self.objective not in OBJECTIVES:
            raise ValueError(f'unknown objective "{self.objective}"; choose from {", ".join(OBJECTIVES)}')
        if self.reduction not in REDUCTIONS:
            raise ValueError(f'unknown reduction "{self.reduction}"; choose from {", ".join(REDUCTIONS)}')
        if self.effort < 1:
            raise ValueError(f"effort is {self.effort}; the least is 1")
        self.source.check(self.mesh, len(self.shape))
        self.target.check(self.goal_mesh, len(self.shape))
        if min(self.shape, default=0) < 0:
            raise NoPlanError(f"shape {list(self.shape)} has a negative size")

    @property
    def tile_limit_elements(self) -> int:
        """Returns the tile limit in elements; 0 if there is none."""
        return 0 if self.tile_limit is None else 8 * self.tile_limit // self.bits

    @property
    def goal_mesh(self) -> Mesh:
        """Returns the mesh that `target` is on."""
        return self.target_mesh or self.mesh

    @property
    def devices(self) -> int:
        """Returns the number of devices of both meshes together."""
        return self.mesh.devices if self.target_mesh is None else max(self.mesh.devices, self.target_mesh.devices)

    @property
    def widest_mesh(self) -> Mesh:
        """Returns the mesh that has all devices; one of a single axis if neither has."""
        found = [mesh for mesh in (self.mesh, self.goal_mesh) if mesh.size == self.devices]
        return found[0] if found else Mesh((("device", self.devices),))

    @property
    def tile_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the tile shapes of source and target as XLA stores them; uneven dimensions are rounded up."""
        return self.source.tile_shape(self.mesh, self.shape), self.target.tile_shape(self.goal_mesh, self.shape)

    @property
    def is_even(self) -> bool:
        """Returns whether all dimensions divide by their shards, on one mesh."""
        return self.target_mesh is None and self._divides(self.source) and self._divides(self.target)

    @property
    def is_source_padded(self) -> bool:
        """Returns whether tiles of the source reach beyond the array's end."""
        return not self._divides(self.source)

    def _divides(self, side: Sharding) -> bool:
        """Returns whether all dimensions divide by the shards of a sharding on `mesh`."""
        return not any([size % n for size, n in zip(self.shape, side.shards(self.mesh))])

    @property
    def has_sums(self) -> bool:
        """Returns whether tiles of source or target are partial sums."""
        return bool(self.source.unreduced or self.target.unreduced)

    def bytes_of(self, elements: int) -> int:
        """Returns the bytes of a number of elements, rounded up to whole bytes."""
        return -(-elements * self.bits // 8)


def _for_rank(mesh: Mesh, sharding: Sharding, rank: int) -> Sharding:
    """Returns the sharding; on a mesh without axes, where Shardy may write no dimensions, that of the rank."""
    return Sharding(((),) * rank) if not mesh.axes and sharding == Sharding(()) else sharding
