# SPDX-License-Identifier: Apache-2.0
"""Plans as JSON: one object, `reshard.plan/1`.

| field | |
|---|---|
| `schema` | "reshard.plan/1"; readers ignore fields that they do not know |
| `mesh`, `target_mesh` | of source and target, as Shardy's text |
| `dtype`, `global_shape`, `source`, `target` | the array, and its two shardings as Shardy's text |
| `source_spec`, `target_spec` | the shardings as JAX writes them; null where a `PartitionSpec` says less (sub-axes) |
| `steps` | in execution order: `op`, `bytes_received`, `tile_bytes_before`, `tile_bytes_after`, `time_us`, `text` |
| `steps[].chunks` | where `op` is "chunks": `count` slices along `dim`, and the `steps` on one of them, likewise |
| `totals` | `bytes_received`, `bytes_sent`, `time_us`, `peak_bytes`, `largest_tile_bytes`, `collectives` |
| `bounds` | lower bounds for every method: `bytes_received`, `bytes_sent`, `time_us`, `largest_tile_bytes` |
| `optimal` | whether the plan is proved to be the cheapest by `objective` ("time" or "bytes") |
| `proved_gap` | by `objective`, no plan costs less by a larger factor; 1 if `optimal`, null if nothing is proved |
| `topology` | its name |
| `seconds` | how long planning took |
| `versions` | of reshard, Python and numpy |

Bytes are those of the busiest device, whole numbers; packed bits are rounded up. Times are modelled.
"""

from __future__ import annotations

import math
import platform
from typing import TYPE_CHECKING

import numpy as np

from ..common.version import __version__
from ..layouts import partition_specs
from ..network import bounds
from ..programs.steps import Chunked

if TYPE_CHECKING:
    from .plan import Plan, PlannedStep

SCHEMA = "reshard.plan/1"


def as_dict(plan: Plan) -> dict:
    """Returns the plan as the object that the module's docstring describes."""
    return {
        "schema": SCHEMA,
        "mesh": str(plan.mesh),
        "dtype": plan.dtype or f"{plan.bits} bits",
        "global_shape": list(plan.shape),
        "source": str(plan.source),
        "target": str(plan.target),
        "source_spec": partition_specs.text_of(plan.source),
        "target_spec": partition_specs.text_of(plan.target),
        "steps": [_step(each) for each in plan.steps],
        "totals": {
            "bytes_received": plan.bytes_received,
            "bytes_sent": plan.bytes_sent,
            "time_us": _microseconds(plan.time_s),
            "peak_bytes": plan.peak_bytes,
            "largest_tile_bytes": plan.largest_tile_bytes,
            "collectives": plan.collectives,
        },
        "bounds": {
            "bytes_received": plan.bound_bytes,
            "bytes_sent": bound_bytes_sent(plan),
            "time_us": _microseconds(plan.bound_time_s),
            "largest_tile_bytes": bound_tile_bytes(plan),
        },
        "optimal": plan.is_optimal,
        "proved_gap": plan.proved_gap,
        "objective": plan.objective,
        "topology": plan.topology,
        "target_mesh": str(plan.goal_mesh),
        "seconds": plan.seconds,
        "versions": {"reshard": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }


def bound_bytes_sent(plan: Plan) -> int:
    """Returns a lower bound on the bytes that the busiest device sends."""
    elements = bounds.sent_elements_bound(plan.mesh, plan.shape, plan.source, plan.target, plan.target_mesh)
    return -(-elements * plan.bits // 8)


def bound_tile_bytes(plan: Plan) -> int:
    """Returns the bytes of the larger of the tiles of source and target; every method holds both."""
    return max(tile_bytes(plan))


def tile_bytes(plan: Plan) -> tuple[int, ...]:
    """Returns the bytes of the source's and of the target's tile."""
    ends = (plan.tile_program.in_shape, plan.tile_program.out_shape)
    return tuple(-(-math.prod(shape) * plan.bits // 8) for shape in ends)


def _step(step: PlannedStep) -> dict:
    values = {
        "op": step.op,
        "bytes_received": step.bytes_received,
        "tile_bytes_before": step.tile_bytes_before,
        "tile_bytes_after": step.tile_bytes_after,
        "time_us": _microseconds(step.time_s),
        "text": step.text,
    }
    if isinstance(step.step, Chunked):
        values["chunks"] = {
            "dim": step.step.dim,
            "count": step.step.count,
            "steps": [_step(each) for each in step.inside],
        }
    return values


def _microseconds(seconds: float) -> float:
    """Returns microseconds, rounded to picoseconds, the unit of the cost model."""
    return round(seconds * 1e6, 6)
