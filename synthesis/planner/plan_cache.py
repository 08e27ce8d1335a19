# SPDX-License-Identifier: Apache-2.0
"""Plans on disk: no process repeats a long search that another process has done.

**What is kept.** The typed steps of a canonical request's plan, as JSON, and whether the plan is proved optimal; not
the plan itself. When an entry is read, the typing rules lead from the source through the steps to the target (R1), R2
is checked, and all costs are computed again. So no entry can give a wrong plan, and the plan is the same as that of a
search (R5).

**Which requests.** Requests whose search considers many steps. Smaller ones are planned faster than an entry is read.
The number is the same in every process.

**Where.** In the store on disk, under a digest of the request; see `synthesis.common.store`.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ..common import store
from ..layouts.layout import Factor, Layout, Slot, layout_of
from ..plans.plan import Plan
from ..plans.plan_layouts import in_pieces
from ..plans.request import Request
from ..programs.chain import Chain
from ..programs.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchanged,
    Permute,
    ReduceScatter,
    Relayout,
    Slice,
    Step,
    ToUnreduced,
    name,
)
from ..search.best_first import tally
from .planner import chain_plan, exchange_between, planned

LEAST_EDGES = 2_000  # a plan is kept if its search considers at least so many steps
PLANS = store.Store("plans", store.Limits(1 << 20, 16_384, 128 << 20), ("reshard.synthesis",))


def planned_or_read(request: Request) -> Plan:
    """Returns the plan of a canonical request, read from disk if it is there, otherwise made by the planner.

    Raises: the errors of `planner.planned`.
    """
    if not store.is_on():
        return planned(request)
    key = store.key(repr(request))
    if (plan := PLANS.read(key, lambda entry: _decoded(entry, request))) is not None:
        return plan
    before = tally.edges
    plan = planned(request)
    if tally.edges - before >= LEAST_EDGES:
        _keep(key, request, plan)
    return plan


def _keep(key: str, request: Request, plan: Plan) -> None:
    """Writes the steps of a plan to disk, if the plan can be made from them again."""
    try:
        entry = _encoded(plan)
        if _decoded(entry, request).to_dict() != plan.to_dict():
            return
    except Exception:  # some plans have steps that entries cannot hold
        return
    PLANS.write(key, entry)


# ---- entries


def _encoded(plan: Plan) -> bytes:
    steps = [_as_json(each.step) for each in plan.steps if not isinstance(each.step, Relayout)]
    entry = {"steps": steps, "is_optimal": plan.is_optimal, "proved_gap": plan.proved_gap}
    return json.dumps(entry, sort_keys=True).encode()


def _decoded(entry: bytes, request: Request) -> Plan:
    """Returns the plan of an entry. Raises: any error if its steps do not solve the request."""
    read = json.loads(entry)
    return _replayed(request, read["steps"], bool(read["is_optimal"]), read["proved_gap"])


def _replayed(request: Request, written: list, is_optimal: bool, proved_gap: float | None) -> Plan:
    """Returns the plan with these steps; each step starts from the layout that the steps before it lead to."""
    draft = [_READERS[step["op"]](step, request.shape) for step in written]
    chain = Chain(in_pieces(layout_of(request.mesh, request.shape, request.source), draft))
    for step in draft:
        if isinstance(step, Exchanged) and step.after is not None:
            step = Exchanged(exchange_between(request, chain.target, step.after), step.after)
        chain = chain.then(step)
    return chain_plan(request, chain, is_optimal, proved_gap)


def _as_json(step: Step) -> dict:
    match step:
        case Slice(moves) | AllToAll(moves) | ReduceScatter(moves):
            return {"op": name(step), "moves": [[_factor_json(factor), _slot_json(slot)] for factor, slot in moves]}
        case AllGather(factors) | AllReduce(factors) | ToUnreduced(factors):
            return {"op": name(step), "factors": [_factor_json(factor) for factor in factors]}
        case Permute(after) | Exchanged(_, after) if after is not None:
            owners = [[_factor_json(factor), _slot_json(slot)] for factor, slot in after.owners]
            return {
                "op": name(step),
                "owners": owners,
                "unreduced": [_factor_json(factor) for factor in after.unreduced],
            }
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
    # `_replayed` schedules the exchange, when it knows the layout before it.
    "exchange": lambda written, shape: Exchanged(None, _layout(written, shape)),  # pyright: ignore[reportArgumentType]
    "reduce_scatter": lambda written, shape: ReduceScatter(_moves(written, shape)),
    "all_reduce": lambda written, shape: AllReduce(_factors(written, shape)),
    "to_unreduced": lambda written, shape: ToUnreduced(_factors(written, shape)),
}
