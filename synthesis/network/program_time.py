# SPDX-License-Identifier: Apache-2.0
"""The modelled time of a whole partitioned program: its collectives and its local work, one after the other.

Stock XLA's program, ours and any mixture have one measure, so that they can be compared:

- **collectives**: each by the cost model of the planner (`cost`), times its runs;
- **local work**: a roofline. A row of work takes as long as its operations on the matrix unit, or as its bytes through
  the memory, or as any kernel takes at least, whichever takes longest, times its runs.

What runs beside what is known of a scheduled program whose collectives start and end apart (`schedule_time`). Elsewhere
nothing overlaps in the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..programs.traffic import Collective
from . import cost
from .topology import Topology


@dataclass(frozen=True, slots=True)
class LocalWork:
    """The work of one op, or of one loop that a compiler makes of several ops, on one device.

    Attributes:
      flops: floating-point operations of its matrix products; a multiplication with an addition counts 2.
      bytes_moved: bytes that it reads from memory and writes to it. Both may be 0 of a kernel that works on the chip.
      runs: the number of times that it runs, loops counted.
      kernels: what one run of it starts; 0 of a copy that runs beside kernels.
    """

    flops: int
    bytes_moved: int
    runs: int = 1
    kernels: int = 1


@dataclass(frozen=True, slots=True)
class ProgramTime:
    """The modelled seconds of one run of a program, by what takes them.

    Attributes:
      collectives_s: in which a device does nothing else. hidden_s: those of collectives that run beside something else.
    """

    collectives_s: float
    local_s: float
    hidden_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.collectives_s + self.local_s


def program_time(
    topology: Topology,
    num_devices: int,
    collectives: Iterable[Collective],
    work: Iterable[LocalWork] = (),
) -> ProgramTime:
    """Returns the modelled time of a program on a topology, which is fitted to the number of devices.

    Raises: TopologyError if the topology does not fit.

    Example:
      >>> gather = Collective("all_gather", 1000, 4000, groups=((0, 1, 2, 3),), trip_count=10)
      >>> time = program_time(Topology.parse("uniform"), 4, [gather], [LocalWork(0, 2_039_000, 10)])
      >>> round(time.collectives_s * 1e6, 1), round(time.local_s * 1e6, 1)
      (277.2, 10.0)
    """
    moved_s = sum(cost.collective_time_s(topology, num_devices, each) for each in collectives)
    return ProgramTime(moved_s, sum(roofline_s(topology, each) for each in work))


def roofline_s(topology: Topology, work: LocalWork) -> float:
    """Returns the modelled time of a row of work, all its runs together."""
    computing_s = work.flops / topology.flops_per_s if topology.flops_per_s else 0.0
    moving_s = work.bytes_moved / topology.memory_bandwidth_bytes_per_s
    return work.runs * max(computing_s, moving_s, work.kernels * topology.kernel_s)
