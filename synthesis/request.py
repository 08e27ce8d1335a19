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
      source, target: closed shardings on `mesh`.
      objective: one of OBJECTIVES. topology: what times are modelled on.
      with_exchange: whether exchanges count as ways to do it; never where an axis is unreduced.
      reduction: what makes an array of partial sums.
      effort: how long to search for a cheaper chain or a proof that there is none; limits are multiplied with it.
      memory_limit: the most that a plan's peak may be, in bytes per device; None for any.
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

    @property
    def has_sums(self) -> bool:
        """Returns whether tiles of source or target are partial sums."""
        return bool(self.source.unreduced or self.target.unreduced)

    def bytes_of(self, elements: int) -> int:
        """Returns the bytes of so many elements, packed bits rounded up."""
        return -(-elements * self.bits // 8)
