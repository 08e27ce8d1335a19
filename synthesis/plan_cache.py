# SPDX-License-Identifier: Apache-2.0
"""Plans on disk: what a search decided, so that no process has to search for it again.

**What is kept.** The typed steps of a canonical request's plan, as JSON, and whether it is optimal; not the plan. On a hit the
typing rules lead from the source through the steps to the target again (R1), R2 is checked, and all is priced anew. So no entry,
whatever is in it, gives a wrong plan, and the plan is the one that a search gives (R5).

**Which requests.** Those whose searches considered many steps; smaller ones are planned sooner than read. The number is the
same in every process.

**Versions.** Entries lie in a folder named by a digest of the planner's own sources: another planner has another folder. A
few newest folders stay.

**Processes.** An entry is written to a file of its own and renamed, so readers see all of it or nothing; there are no locks. What
cannot be read, does not match its digest or does not fit its request counts as missing, what cannot be written is lost. Each
folder is bounded: its oldest entries go.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
import hashlib
import json
from pathlib import Path
import shutil

from . import cache_place
from .layout import Factor, Layout, Slot, layout_of
from .plan_layouts import in_pieces
from .planned import Plan
from .planner import chain_plan, exchange_between, planned
from .problem import Problem
from .request import Request
from .search import tally
from .steps import AllGather, AllReduce, AllToAll, Exchanged, Permute, ReduceScatter, Relayout, Slice, Step, ToUnreduced, apply, name

LEAST_EDGES = 2_000  # steps considered from which on a plan is worth a file
MOST_ENTRIES = 64  # in each of the 256 folders of a version
MOST_VERSIONS = 4
MOST_BYTES = 1 << 20  # of an entry that is read


def planned_or_read(request: Request) -> Plan:
    """Returns the plan of a canonical request, from disk if it is there, else from the planner.

    Raises: what `planner.planned` does.
    """
    folder = _folder() if cache_place.is_on() else None
    if folder is not None and (plan := _read(folder, request)) is not None:
        return plan
    before = tally.edges
    plan = planned(request)
    if folder is not None and tally.edges - before >= LEAST_EDGES:
        _write(folder, request, plan)
    return plan


# ---- files


def _folder() -> Path | None:
    """Returns the folder of this planner's plans; None if there is no place, or no sources to tell the version from."""
    try:
        version = _fingerprint()
        return None if version is None else cache_place.cache_root() / f"plans-{version[:16]}"
    except (OSError, RuntimeError):
        return None


@functools.cache
def _fingerprint() -> str | None:
    """Returns a digest of all sources of this package; None if they are not files."""
    digest, here = hashlib.sha256(), Path(__file__).resolve().parent
    try:
        for path in sorted(here.glob("*.py")):
            text = path.read_bytes()
            digest.update(f"{path.name} {len(text)}\n".encode() + text)
    except OSError:
        return None
    return digest.hexdigest()


def _path(folder: Path, request: Request) -> Path:
    key = hashlib.sha256(repr(request).encode()).hexdigest()
    return folder / key[:2] / f"{key}.json"


def _read(folder: Path, request: Request) -> Plan | None:
    try:
        return _decoded(cache_place.read(_path(folder, request), MOST_BYTES), request)
    except Exception:  # whatever is wrong with an entry, the planner knows better
        return None


def _write(folder: Path, request: Request, plan: Plan) -> None:
    """Writes an entry, if what can be read from it is the plan."""
    try:
        entry = _encoded(request, plan)
        if _decoded(entry, request).to_dict() != plan.to_dict():
            return
    except Exception:  # a plan that this file has no words for
        return
    path = _path(folder, request)
    with contextlib.suppress(OSError):
        if not folder.exists():
            _drop_old_versions(folder.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_oldest(path.parent, MOST_ENTRIES - 1)
        cache_place.replace(path, entry)


def _drop_oldest(folder: Path, keep: int) -> None:
    """Removes the oldest files of a folder, unfinished ones too, down to `keep`; another process may be at the same."""
    for path in cache_place.newest_first(folder.iterdir())[keep:]:
        path.unlink(missing_ok=True)


def _drop_old_versions(root: Path) -> None:
    for path in cache_place.newest_first(root.glob("plans-*"))[MOST_VERSIONS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


# ---- entries


def _encoded(request: Request, plan: Plan) -> bytes:
    typed = [_as_json(each.step) for each in plan.steps if not isinstance(each.step, Relayout)]
    proof = {"is_optimal": plan.is_optimal, "proved_gap": plan.proved_gap}
    body = json.dumps({"request": repr(request), "steps": typed, **proof}, sort_keys=True)
    return json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body}).encode()


def _decoded(entry: bytes, request: Request) -> Plan:
    """Returns the plan of an entry. Raises: any error if it is not an entry of this request."""
    outer = json.loads(entry)
    if hashlib.sha256(outer["body"].encode()).hexdigest() != outer["sha256"]:
        raise ValueError("the entry is not what was written")
    body = json.loads(outer["body"])
    if body["request"] != repr(request):
        raise ValueError("the entry is of another request")
    return _replayed(request, body["steps"], bool(body["is_optimal"]), body["proved_gap"])


def _replayed(request: Request, written: list, is_optimal: bool, proved_gap: float | None) -> Plan:
    """Returns the plan of written steps; each is read on the layout that those before lead to."""
    draft = [_READERS[step["op"]](step, request.shape) for step in written]
    source, target = (in_pieces(layout_of(request.mesh, request.shape, side), draft) for side in (request.source, request.target))
    problem = Problem(request.mesh, request.shape, source, target, (), ())
    typed: list[Step] = []
    layout = source
    for step in draft:
        if isinstance(step, Exchanged):
            step = Exchanged(exchange_between(request, layout, step.after), step.after)
        typed.append(step)
        layout = apply(layout, step)
    return chain_plan(request, problem, typed, is_optimal, proved_gap)


def _as_json(step: Step) -> dict:
    match step:
        case Slice(moves) | AllToAll(moves) | ReduceScatter(moves):
            return {"op": name(step), "moves": [[_factor_json(factor), _slot_json(slot)] for factor, slot in moves]}
        case AllGather(factors) | AllReduce(factors) | ToUnreduced(factors):
            return {"op": name(step), "factors": [_factor_json(factor) for factor in factors]}
        case Permute(after) | Exchanged(_, after):
            owners = [[_factor_json(factor), _slot_json(slot)] for factor, slot in after.owners]
            return {"op": name(step), "owners": owners, "unreduced": [_factor_json(factor) for factor in after.unreduced]}
    raise TypeError(step)


def _factor_json(factor: Factor) -> list:
    return [factor.axis, factor.pre, factor.size]


def _slot_json(slot: Slot) -> list:
    return [slot.dim, slot.start, slot.end]


def _moves(written: dict, shape: tuple[int, ...]) -> tuple[tuple[Factor, Slot], ...]:
    return tuple((Factor(*factor), Slot(*slot)) for factor, slot in written["moves"])


def _factors(written: dict, shape: tuple[int, ...]) -> tuple[Factor, ...]:
    return tuple(Factor(*factor) for factor in written["factors"])


def _layout(written: dict, shape: tuple[int, ...]) -> Layout:
    owners = tuple((Factor(*factor), Slot(*slot)) for factor, slot in written["owners"])
    return Layout(shape, owners, tuple(Factor(*factor) for factor in written["unreduced"]))


_READERS: dict[str, Callable[[dict, tuple[int, ...]], Step]] = {
    "slice": lambda written, shape: Slice(_moves(written, shape)),
    "all_gather": lambda written, shape: AllGather(_factors(written, shape)),
    "all_to_all": lambda written, shape: AllToAll(_moves(written, shape)),
    "permute": lambda written, shape: Permute(_layout(written, shape)),
    "exchange": lambda written, shape: Exchanged(None, _layout(written, shape)),
    "reduce_scatter": lambda written, shape: ReduceScatter(_moves(written, shape)),
    "all_reduce": lambda written, shape: AllReduce(_factors(written, shape)),
    "to_unreduced": lambda written, shape: ToUnreduced(_factors(written, shape)),
}
