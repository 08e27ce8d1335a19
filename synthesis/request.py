# SPDX-License-Identifier: Apache-2.0
"""What a plan is asked for: one redistribution and how it is judged. Equal requests have equal plans (R5)."""

from __future__ import annotations

from dataclasses import dataclass

from .mesh import Mesh
from .sharding import Sharding
from .topology import Topology

OBJECTIVES = ("bytes", "time")


@dataclass(frozen=True, slots=True)
class Request:
    """One redistribution.

    Attributes:
      shape: the global shape, in elements. bits: of one element.
      source, target: closed shardings, on `mesh` and on `target_mesh`.
      objective: one of OBJECTIVES. topology: what times are modelled on.
      with_exchange: whether exchanges and padded tiles count as ways to do it.
      reduction: what makes an array of partial sums.
      effort: how long to search for a cheaper chain or a proof that there is none; limits are multiplied with it.
      memory_limit: the most that a plan's peak may be, in bytes per device; None for any.
      tile_limit: the most that a tile on the way may have, in bytes per device; None is what the larger one of both ends has (R2).
      target_mesh: None is `mesh`.
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

    @property
    def tile_limit_elements(self) -> int:
        """Returns the elements that a tile on the way may have though both ends' have fewer; 0 where R2 holds as it is."""
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
        """Returns the local shapes of source and target, as XLA stores them: ceil division."""
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
        """Returns the bytes of so many elements, packed bits rounded up."""
        return -(-elements * self.bits // 8)
