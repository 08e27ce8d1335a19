# SPDX-License-Identifier: Apache-2.0
# pyright: reportMissingImports=false
# torch is imported in a child process only, where it is installed.
"""The answer of PyTorch DTensor's redistribute planner to a pair, priced like the plans of this project.

Torch is an optional dependency.

A DTensor lives on a mesh of which each dimension shards one tensor dimension (`Shard(d)`), replicates (`Replicate()`)
or holds partial sums (`Partial(op)`); a *shard order* says which mesh dimension cuts a tensor dimension first. So
sub-axes become mesh dimensions of their own: the mesh is refined at the places at which the two shardings cut its axes.
A pair that no refinement of the mesh expresses has the status "unsupported".

Torch has two planners: `redistribute` is greedy where both shard orders ascend and searches for the cheapest path
(Dijkstra) where they do not, or on request (`use_min_cost_redistribution_plan`). Both are asked, and the plan that
receives less counts. Its steps are one mesh dimension each; neighbouring gathers and reductions are
merged as torch merges them where it finds a flattened mesh. Nothing is charged for local copies; arrays that do not
divide are padded until they do.

Planning needs neither devices nor a process group. It runs in a child process: torch takes seconds to import, the
search is exponential in the number of mesh dimensions. The planner is private to torch; tried with 2.13.

Source: pytorch/pytorch, torch/distributed/tensor/_redistribute.py and _collective_utils.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reshard.synthesis.layouts.layout import Factor, groups, unreduced_factors, whole_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.programs import traffic
from reshard.synthesis.programs.traffic import Collective

from ..platform.typed import present
from ..xla.child import cause_of_death, child_environment
from .peers import Answer

TIMEOUT_S = 120.0
LEFT_OUT = "DTensor is left out: PyTorch is not installed here; run: pip install 'torch>=2.13'"
HOW_TO_INSTALL = "--compare dtensor plans with PyTorch, which is not installed here; run: pip install 'torch>=2.13'"

_REDUCE_OPS = {"sum": "sum", "prod": "product", "min": "min", "max": "max"}
_KINDS = {"SR": "all_gather", "SS": "all_to_all", "PR": "all_reduce", "PS": "reduce_scatter"}  # the others are local
_MERGED = ("all_gather", "all_reduce", "reduce_scatter")
_BITS = (8, 16, 32, 64, 128)  # the widths of torch's types; narrower elements are planned as bytes


class _Unsupported(ValueError):
    """A pair that DTensor cannot express; the message says why in one line."""


class _Failure(RuntimeError):
    """The planner gave no plan; `status` is "error", "abort" or "hang"."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class State:
    """Placements on a refined mesh.

    Attributes:
      dims: per tensor dimension the mesh dimensions that cut it, in order.
      partial: the mesh dimensions of partial sums.
    """

    dims: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...] = ()

    def place_of(self, mesh_dim: int) -> str:
        """Returns `S1`, `P` or `R`.

        Example:
          >>> [State(((), (2, 0)), (1,)).place_of(i) for i in range(4)]
          ['S1', 'P', 'S1', 'R']
        """
        if mesh_dim in self.partial:
            return "P"
        return next((f"S{d}" for d, mesh_dims in enumerate(self.dims) if mesh_dim in mesh_dims), "R")

    def after(self, step: Step) -> State:
        """Returns the state after a step.

        Raises: ValueError if the step does not start here: a mesh dimension leaves a tensor dimension last in, first
        out.

        Example:
          >>> State(((0, 1), ())).after(Step((1,), "S0", "S1"))
          State(dims=((0,), (1,)), partial=())
        """
        dims, partial = list(self.dims), self.partial
        moved = set(step.mesh_dims)
        if step.source[0] == "S":
            at = int(step.source[1:])
            if set(dims[at][-len(moved) :]) != moved:
                raise ValueError(f"{step} does not start from {self}")
            dims[at] = dims[at][: -len(moved)]
        elif any(self.place_of(m) != step.source for m in moved):
            raise ValueError(f"{step} does not start from {self}")
        partial = tuple(m for m in partial if m not in moved)
        if step.target[0] == "S":
            dims[int(step.target[1:])] += step.mesh_dims
        elif step.target == "P":
            partial = tuple(sorted((*partial, *moved)))
        return State(tuple(dims), partial)


@dataclass(frozen=True, slots=True)
class Step:
    """Mesh dimensions that change their placement, e.g. from `S0` to `R`."""

    mesh_dims: tuple[int, ...]
    source: str
    target: str

    @property
    def kind(self) -> str | None:
        """Returns the kind of collective; None for a local step."""
        return _KINDS.get(self.source[0] + self.target[0])

    def joined(self, following: Step) -> Step | None:
        """Returns this step and the next as one collective; None if torch does not merge them.

        Gathers have to run from the minor to the major mesh dimension, reduce-scatters the other way.

        Example:
          >>> Step((1,), "S0", "R").joined(Step((0,), "S0", "R")).mesh_dims
          (0, 1)
          >>> Step((0,), "S0", "R").joined(Step((1,), "S0", "R"))
        """
        if self.kind not in _MERGED or (self.source, self.target) != (following.source, following.target):
            return None
        order = (
            (*following.mesh_dims, *self.mesh_dims)
            if self.kind == "all_gather"
            else (*self.mesh_dims, *following.mesh_dims)
        )
        if self.kind != "all_reduce" and order != tuple(sorted(order)):
            return None
        return Step(tuple(sorted(order)), self.source, self.target)


def is_installed() -> bool:
    return importlib.util.find_spec("torch") is not None


def dtensor_answer(
    mesh: Mesh,
    shape: Sequence[int],
    bits: int,
    source: Sharding,
    target: Sharding,
    *,
    reduction: str = "sum",
    devices_per_host: int | None = None,
    in_child: bool = True,
    search_s: float | None = None,
) -> Answer:
    """Returns the better plan of DTensor's two planners for the pair.

    Args:
      bits: the bits of one element.
      devices_per_host: for torch's cost model, which knows fast and slow links; None means all devices.
      in_child: if false, torch is imported in this process.
      search_s: seconds for each planner, by SIGALRM, so in a main thread only; None leaves the limit of the child.
    """
    try:
        pieces = refined(mesh, (source, target))
        ends = [state_of(mesh, pieces, side) for side in (source, target)]
        request = _request(mesh, pieces, shape, bits, ends, reduction, devices_per_host)
        request |= {} if search_s is None else {"search_s": search_s}
        plans = _plans_of_child(request) if in_child else list(_plans(request))
        return _better(mesh, pieces, tuple(shape), bits, ends, plans)
    except _Unsupported as reason:
        return Answer("dtensor", mesh.size, "unsupported", str(reason))
    except _Failure as failure:
        return Answer("dtensor", mesh.size, failure.status, str(failure))


def planning_time(
    mesh: Mesh, shape: Sequence[int], bits: int, source: Sharding, target: Sharding, *, search_s: float
) -> tuple[str, float]:
    """Returns how long torch's planner needs for the plan that `redistribute` makes of itself.

    Args:
      search_s: see `dtensor_answer`.
    Returns: a status as in `Answer`, and the seconds of processor time; 0.0 if the planner did not run.
    """
    try:
        pieces = refined(mesh, (source, target))
        ends = [state_of(mesh, pieces, side) for side in (source, target)]
        planner, specs = _planner_and_specs(_request(mesh, pieces, shape, bits, ends, "sum", None))
    except _Unsupported:
        return "unsupported", 0.0
    searches, status, start_s = not _have_default_order(specs), "ok", time.thread_time()
    try:
        with _limited_to(search_s):
            planner._gen_transform_infos_non_cached(*specs, searches)
    except _OutOfTime:
        status = "hang"
    except Exception:  # any exception of torch is its answer
        status = "error"
    return status, time.thread_time() - start_s


# ---- from shardings to placements


def refined(mesh: Mesh, sides: Sequence[Sharding]) -> tuple[Factor, ...]:
    """Returns the dimensions of the mesh after each axis is cut where the shardings cut it, major to minor.

    Example:
      >>> mesh, sides = Mesh.parse("x=4,y=2"), [Sharding.parse(text) for text in ('[{"x":(1)2}, {"y"}]', '[{"x"}, {}]')]
      >>> [piece.text(mesh) for piece in refined(mesh, sides)]
      ['x:(1)2', 'x:(2)2', 'y']
    """
    used = [
        factor
        for side in sides
        for dim in (*whole_factors(mesh, side), unreduced_factors(mesh, side))
        for factor in dim
    ]
    pieces = []
    for axis, size in mesh.axes:
        places = sorted({1, size, *(end for f in used if f.axis == axis for end in (f.pre, f.pre * f.size))})
        for start, stop in zip(places, places[1:]):
            if stop % start:
                raise _Unsupported(
                    f'axis "{axis}" of size {size} is cut at {start} and at {stop}, which no mesh of sub-axes has'
                )
            pieces.append(Factor(axis, start, stop // start))
    return tuple(pieces)


def state_of(mesh: Mesh, pieces: Sequence[Factor], sharding: Sharding) -> State:
    """Returns a sharding as placements on the refined mesh.

    Example:
      >>> mesh, side = Mesh.parse("x=4,y=2"), Sharding.parse('[{"y", "x"}, {}]')
      >>> state_of(mesh, refined(mesh, [side]), side)
      State(dims=((1, 0), ()), partial=())
    """
    dims = (tuple(m for f in factors for m in _inside(pieces, f)) for factors in whole_factors(mesh, sharding))
    partial = (m for f in unreduced_factors(mesh, sharding) for m in _inside(pieces, f))
    return State(tuple(dims), tuple(sorted(partial)))


def _inside(pieces: Sequence[Factor], factor: Factor) -> list[int]:
    stop = factor.pre * factor.size
    return [m for m, piece in enumerate(pieces) if piece.axis == factor.axis and factor.pre <= piece.pre < stop]


def _request(
    mesh: Mesh, pieces, shape, bits: int, ends: Sequence[State], reduction: str, devices_per_host: int | None
) -> dict:
    if any(end.partial for end in ends) and reduction not in _REDUCE_OPS:
        raise _Unsupported(f'DTensor has no partial sums by "{reduction}"; it has {", ".join(_REDUCE_OPS)}')
    return {
        "sizes": [piece.size for piece in pieces] or [1],
        "shape": list(shape),
        "bits": next((each for each in _BITS if each >= bits), _BITS[-1]),
        "ends": [{"dims": end.dims, "partial": end.partial} for end in ends],
        "reduce_op": _REDUCE_OPS.get(reduction, "sum"),
        "devices_per_host": devices_per_host or mesh.size,
    }


# ---- from steps to collectives


def _better(mesh: Mesh, pieces, shape, bits: int, ends: Sequence[State], plans: Sequence[dict]) -> Answer:
    """Returns the plan that receives less, or the first of equal ones; a failure only if there is no plan."""
    answers = [_priced(mesh, pieces, shape, bits, ends, plan) for plan in plans if "steps" in plan]
    if not answers:
        failed = next(iter(plans), {"error": "the planner gave no plan"})
        raise _Failure(failed.get("status", "error"), failed["error"])
    return min(answers, key=lambda answer: (answer.bytes_received, answer.collective_runs))


def _priced(mesh: Mesh, pieces, shape: tuple[int, ...], bits: int, ends: Sequence[State], plan: dict) -> Answer:
    steps = merged([Step(tuple(dims), source, target) for dims, source, target in plan["steps"]])
    states = [ends[0]]
    for step in steps:
        states.append(states[-1].after(step))
    if states[-1] != ends[1]:
        raise _Failure("error", f"the plan ends in {states[-1]}")
    padded = _divisible(pieces, shape, states)
    found = [_collective(mesh, pieces, padded, bits, step, before) for step, before in zip(steps, states) if step.kind]
    remarks = [plan["how"], *([f"padded to {list(padded)}"] if padded != shape else [])]
    return Answer("dtensor", mesh.size, message=", ".join(remarks), collectives=tuple(found))


def merged(steps: Sequence[Step]) -> list[Step]:
    """Returns the steps with neighbours that torch merges as one."""
    found: list[Step] = []
    for step in steps:
        joined = found[-1].joined(step) if found else None
        found[-1:] = [joined] if joined else [*found[-1:], step]
    return found


def _divisible(pieces, shape: tuple[int, ...], states: Sequence[State]) -> tuple[int, ...]:
    """Returns the shape with each dimension filled up until all the states divide it."""
    counts = [math.lcm(*(_shards(pieces, state.dims[dim]) for state in states)) for dim in range(len(shape))]
    return tuple(-(-size // count) * count for size, count in zip(shape, counts))


def _shards(pieces, mesh_dims: Sequence[int]) -> int:
    return math.prod(pieces[m].size for m in mesh_dims)


def _collective(mesh: Mesh, pieces, shape, bits: int, step: Step, before: State) -> Collective:
    elements = math.prod(size // _shards(pieces, mesh_dims) for size, mesh_dims in zip(shape, before.dims))
    members = groups(mesh, tuple(pieces[m] for m in step.mesh_dims))
    num_bytes = -(-elements * bits // 8)
    kind = present(step.kind)
    after_bytes = traffic.tile_bytes_after(kind, num_bytes, members.shape[1])
    return Collective(kind, num_bytes, after_bytes, groups=tuple(tuple(map(int, group)) for group in members))


# ---- the child process


def _plans_of_child(request: dict) -> list[dict]:
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=child_environment(1),
        )
    except subprocess.TimeoutExpired as late:
        plans = _read(late.stdout)
        if not plans:
            raise _Failure("hang", f"no answer after {TIMEOUT_S:g} s") from None
        return [
            {**plan, "how": f"{plan['how']}; its search took more than {TIMEOUT_S:g} s"}
            for plan in plans
            if "steps" in plan
        ]
    if done.returncode:
        raise _Failure("abort", cause_of_death(done.returncode, done.stderr))
    return _read(done.stdout)


def _read(output: str | bytes | None) -> list[dict]:
    text = output.decode() if isinstance(output, bytes) else output or ""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def _main() -> None:
    """Reads a request from stdin and prints a line of JSON per planner: the child process."""
    for plan in _plans(json.loads(sys.stdin.read())):
        print(json.dumps(plan), flush=True)


def _plans(request: dict):
    """Yields the answer of each planner: {"how", "steps"}, steps as (mesh dims, source, target), or {"error"}."""
    planner, ends = _planner_and_specs(request)
    is_default = _have_default_order(ends)
    for how, searches in ((("planned greedily", False),) if is_default else ()) + (("planned by search", True),):
        try:
            with _limited_to(request.get("search_s")):
                found = planner._gen_transform_infos_non_cached(*ends, searches)
            yield {"how": how, "steps": [_step_of(planner, each) for each in found]}
        except _OutOfTime as late:
            yield {"error": f"{how}: {late}", "status": "hang"}
        except Exception as error:  # any exception of torch is its answer
            yield {"error": " ".join(f"{how}: {error}".split())}


def _planner_and_specs(request: dict) -> tuple:
    """Returns torch's module that plans, and the source and target as its arguments."""
    try:
        from torch.distributed.tensor import _redistribute as planner

        return planner, _specs(request)
    except (ImportError, AttributeError, TypeError) as error:
        raise _Failure("error", f"torch {_torch_version()} has no planner that is known here: {error}") from None


def _have_default_order(specs: Sequence) -> bool:
    """Returns whether `redistribute` plans greedily, as it does where both shard orders ascend."""
    return all(type(spec).is_default_device_order(spec.shard_order) for spec in specs)


class _OutOfTime(Exception):
    """A planner takes too long."""


@contextlib.contextmanager
def _limited_to(seconds: float | None) -> Iterator[None]:
    """Limits the seconds inside the `with`. Raises: _OutOfTime."""
    if seconds is None:
        yield
        return

    def stop(*_) -> None:
        raise _OutOfTime(f"no answer after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _specs(request: dict) -> list:
    """Returns source and target as DTensorSpec, on a mesh without process groups."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import _collective_utils
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
    from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

    sizes, shape = request["sizes"], request["shape"]
    _collective_utils._mesh_resources.num_devices_per_host = lambda _: request["devices_per_host"]
    _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()
    mesh = DeviceMesh("cpu", torch.arange(math.prod(sizes)).reshape(sizes), _init_backend=False, _rank=0)
    types = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64, 128: torch.complex128}
    tensor = TensorMeta(
        torch.Size(shape), tuple(math.prod(shape[d + 1 :]) for d in range(len(shape))), types[request["bits"]]
    )
    found = []
    for end in request["ends"]:
        placements = [Replicate() for _ in sizes]
        for m, place in [(m, Shard(d)) for d, dims in enumerate(end["dims"]) for m in dims]:
            placements[m] = place
        for m in end["partial"]:
            placements[m] = Partial(request["reduce_op"])
        order = tuple(
            ShardOrderEntry(tensor_dim=d, mesh_dims=tuple(dims)) for d, dims in enumerate(end["dims"]) if dims
        )
        found.append(
            DTensorSpec(mesh, tuple(placements), tensor, shard_order=order, use_strided_shard_as_shard_order=False)
        )
    return found


def _step_of(planner, info) -> tuple[list[int], str, str]:
    source, target = (f"S{p.dim}" if p.is_shard() else "P" if p.is_partial() else "R" for p in info.src_dst_placements)
    if (source[0], target) == ("S", "P") and not hasattr(
        planner.DTensorRedistributePlanner, "_get_shard_to_partial_target_states"
    ):
        raise _Failure("error", f"torch {_torch_version()} turns no shards into partial sums")
    return [info.mesh_dim], source, target


def _torch_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "?"


if __name__ == "__main__":
    try:
        _main()
    except _Failure as failure:
        print(json.dumps({"error": str(failure)}))
