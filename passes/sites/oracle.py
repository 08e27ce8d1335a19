# SPDX-License-Identifier: Apache-2.0
"""The oracle `lone`, which asks stock XLA how it handles a site, and the verdicts of the policies on its answers.

At a constraint, a function result, a loop edge or a call edge, XLA sees the pair of layouts alone. At an operand or a
result of an op, XLA may partition the op in another way, so the op with all its conversions is one question: stock
against rewritten. The answers come from XLA in a child process. They are cached on disk by the text of the question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils.xla.child import UNASKED, Compiled, CompileRequest, XlaChild, as_json, compiled_from
from reshard.passes.sites.network import ANYWHERE, SiteNetwork
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

if TYPE_CHECKING:
    from reshard.synthesis.planner.entry import Plan

REWRITE, KEEP = "rewrite", "keep"
BETTER, STRICT, ALWAYS = "better", "strict", "always"
POLICIES = {
    BETTER: "rewrite what makes the module faster, by its modelled time",
    STRICT: "rewrite what is better in a cost and worse in none: bytes, tiles, temporaries, number of collectives",
    ALWAYS: "rewrite every site that has a chain",
}
# The verb for each status of `Compiled` but "ok".
FAILURES = {"abort": "aborts", "hang": "hangs", "error": "fails", UNASKED: "was not asked"}
# XLA's CPU backend keeps a table of pointers for the pieces of each all-to-all: bookkeeping, not data.
TABLES_OF_POINTERS_BYTES = 1024
UNMEASURED = "nothing is measured as a whole: "  # begins a remark, with the reason
_MOST_LETTERS = 200  # of a reason
SAME_TIME = 1e-3  # relative difference below which modelled times count as equal


@dataclass(frozen=True, slots=True)
class Answer:
    """A question compiled both ways; `ours` is None if stock XLA cannot be beaten, so that nobody compiled our form."""

    stock: Compiled
    ours: Compiled | None

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values; see `from_json`."""
        return {"stock": as_json(self.stock), "ours": self.ours and as_json(self.ours)}

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> Answer:
        """Returns the answer from the plain values that `as_json` returns."""
        return cls(compiled_from(written["stock"]), written["ours"] and compiled_from(written["ours"]))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a site and its reason, with what is known about both ways.

    Attributes:
      stock, ours: the site, or its op, compiled alone both ways.
      stock_s, our_s: their modelled seconds.
      is_possible: whether the site could be rewritten, and costs alone decide.
      is_strict: whether the policy `strict` would rewrite it; False if that is not known.
    """

    action: str
    reason: str
    stock: Compiled | None = field(default=None, hash=False)
    ours: Compiled | None = field(default=None, hash=False)
    stock_s: float | None = None
    our_s: float | None = None
    is_possible: bool = False
    is_strict: bool = False

    @property
    def is_rewrite(self) -> bool:
        return self.action == REWRITE


@dataclass(frozen=True, slots=True)
class Question:
    """One piece of a program in two forms, as modules: how stock XLA converts, and how we do.

    Attributes:
      write_ours: writes our form; called only if it is to be compiled.
      cannot_be_beaten: tells from stock's answer that nobody need compile our form; None: nothing tells.
    """

    stock: str
    write_ours: Callable[[], str]
    mesh: Mesh
    cannot_be_beaten: Callable[[Compiled], bool] | None = None


class LoneOracle:
    """Compiles questions in a child process; other oracles may share `child`.

    Args:
      has_final: whether the final programs of CPU devices are to be priced.
    """

    def __init__(self, child: XlaChild, has_final: bool = False):
        self.child = child
        self._has_final = has_final

    def ask(self, question: Question) -> Answer:
        """Returns both forms of a question, compiled."""
        stock = self.child.compile(question.stock, question.mesh.size, has_final=self._has_final)
        if stock.is_ok and question.cannot_be_beaten is not None and question.cannot_be_beaten(stock):
            return Answer(stock, None)
        return Answer(stock, self.child.compile(question.write_ours(), question.mesh.size, has_final=self._has_final))

    def foresee(self, questions: Iterable[Question]) -> None:
        """Has those modules compiled at the same time that will be compiled in any case when the questions are asked.

        If the final program of stock XLA is known, it can hardly tell that it cannot be beaten.
        """
        modules: list[tuple[str, Mesh]] = []
        for each in questions:
            modules.append((each.stock, each.mesh))
            if self._has_final or each.cannot_be_beaten is None:
                modules.append((each.write_ours(), each.mesh))
        self.child.foresee([CompileRequest(text, mesh.size, has_final=self._has_final) for text, mesh in modules])


def pair_question(
    tensor_type: str,
    layouts: Sequence[Sharding],
    plan: Plan,
    network: SiteNetwork = ANYWHERE,
    num_devices: int | None = None,
) -> Question:
    """Returns the question about a conversion: stock XLA's form of it, and ours by `plan`.

    Stock XLA converts from the first of `layouts` to the last; on one mesh it passes through those between.

    Args:
      network, num_devices: what the plan was made for; None: as many devices as its mesh has. Our form is written for
        the platform of the network.
    """
    from reshard.dialect_utils.emission.mini_modules import (  # loads the writers of collectives
        rewritten_pair,
        stock_pair,
    )

    return Question(
        stock_pair(tensor_type, plan.mesh, layouts, plan.target_mesh),
        lambda: rewritten_pair(tensor_type, plan, network.platform),
        plan.mesh,
        lambda stock: _cannot_be_beaten(stock, plan, network, num_devices or plan.mesh.size),
    )


@dataclass(frozen=True, slots=True)
class Criterion:
    """What makes an answer a verdict: a policy, and the network on which times are modelled."""

    policy: str = BETTER
    network: SiteNetwork = ANYWHERE

    def verdict(self, answer: Answer, num_devices: int) -> Verdict:
        """Returns the verdict of the policy `better` or `strict`."""
        stock, ours = answer.stock, answer.ours
        if ours is None:
            said = f"stock XLA moves {_bytes(stock.costs.bytes_received)} in {_count(stock)}, as we would"
            return Verdict(KEEP, said, stock, is_possible=True)
        if not ours.is_ok:
            return Verdict(KEEP, f"XLA refuses our form: {ours.reason[:_MOST_LETTERS]}", stock, ours)
        if not stock.is_ok:
            said = f"stock XLA {FAILURES[stock.status]}: {stock.reason[:_MOST_LETTERS]}"
            return Verdict(REWRITE, said, stock, ours, is_possible=True, is_strict=True)
        action, reason = strict = compare(stock, ours)
        then, now = (self._seconds(stock, each, num_devices) for each in (stock, ours))
        if self.policy == BETTER:
            action, reason = self._by_time(stock, ours, then, now)
        is_strict = strict[0] == REWRITE
        return Verdict(action, reason, stock, ours, then, now, is_possible=True, is_strict=is_strict)

    def _seconds(self, stock: Compiled, compiled: Compiled, num_devices: int) -> float:
        return self.network.time_beside(stock, compiled, num_devices).seconds

    def _by_time(self, stock: Compiled, ours: Compiled, then: float, now: float) -> tuple[str, str]:
        """Returns (action, reason). Of equal times the strict comparison decides."""
        more = f"{_bytes(stock.costs.bytes_received)} -> {_bytes(ours.costs.bytes_received)}"
        if not self.network.is_known and ours.costs.bytes_received > stock.costs.bytes_received:
            return KEEP, f"it would receive more, {more}, and the network is unknown"
        if is_same_time(then, now):
            return compare(stock, ours)
        times = micros_of_both(then, now)
        if now > then:
            return KEEP, f"stock XLA is faster, modelled {times}"
        return REWRITE, f"faster than stock XLA, modelled {times}, received {more}"


def is_same_time(one: float, other: float) -> bool:
    """Returns whether two modelled times in seconds count as equal."""
    return abs(one - other) <= SAME_TIME * max(one, other)


def micros(seconds: float) -> str:
    """Returns a time as text, in microseconds.

    Example:
      >>> micros(0.0123456)
      '12,345.6 us'
    """
    return f"{seconds * 1e6:,.1f} us"


def micros_of_both(then: float, now: float) -> str:
    """Returns the change of a time as text, with as many digits as it takes to see it.

    Example:
      >>> micros_of_both(1e-5, 9e-6), micros_of_both(6.207e-6, 6.217e-6)
      ('10.0 us -> 9.0 us', '6.21 us -> 6.22 us')
    """
    texts = (tuple(f"{each * 1e6:,.{digits}f} us" for each in (then, now)) for digits in range(1, 7))
    before, after = next((each for each in texts if each[0] != each[1]), (micros(then), micros(now)))
    return f"{before} -> {after}"


def compare(stock: Compiled, ours: Compiled) -> tuple[str, str]:
    """Returns (action, reason) of the policy `strict`: to rewrite if our form is better in a cost and worse in none.

    Costs: received bytes, largest tile of a collective, temporaries, number of collectives (latency).
    """
    costs = _costs(stock, ours)
    worse = [f"{name} {then:,} -> {now:,}" for name, then, now, slack in costs if now > then + slack]
    better = [f"{name} {then:,} -> {now:,}" for name, then, now, slack in costs if now < then - slack]
    if worse:
        return KEEP, "stock XLA is better in " + ", ".join(worse)
    if not better:
        return KEEP, "stock XLA does as well"
    return REWRITE, "better than stock XLA in " + ", ".join(better)


def _costs(stock: Compiled, ours: Compiled) -> list[tuple[str, int, int, int]]:
    """Returns for each cost its name, stock's value, our value, and the difference that does not count."""
    then, now = stock.costs, ours.costs
    return [
        ("received bytes", then.bytes_received, now.bytes_received, 0),
        ("largest collective tile in bytes", then.largest_collective_tile_bytes, now.largest_collective_tile_bytes, 0),
        ("temporaries in bytes", then.temp_bytes, now.temp_bytes, TABLES_OF_POINTERS_BYTES),
        ("collectives", _runs(stock), _runs(ours), 0),
    ]


def _cannot_be_beaten(stock: Compiled, plan: Plan, network: SiteNetwork, num_devices: int) -> bool:
    """Returns whether stock is at most the plan in received bytes, in collectives, in the largest tile and in time.

    Where links differ, a plan may be faster although it is worse in all the others. If stock's final program is known,
    and copies anything, only the final program of the plan tells whether it copies less.
    """
    costs = stock.costs
    if stock.final_work:
        return False
    return (
        costs.bytes_received <= plan.bytes_received
        and _runs(stock) <= plan.collectives
        and costs.largest_collective_tile_bytes <= plan.largest_tile_bytes
        and network.time_of(stock, num_devices).seconds <= min(plan.time_s, _as_written_s(plan, network, num_devices))
    )


def _as_written_s(plan: Plan, network: SiteNetwork, num_devices: int) -> float:
    """Returns the modelled time of a plan in the form for the network's platform, which may copy less than the plan."""
    from reshard.synthesis.forms.in_place import for_platform  # loads numpy, as the plan did
    from reshard.synthesis.network.cost import collective_time_s, copies_time_s
    from reshard.synthesis.programs.tile_program import collectives, copies

    program = for_platform(plan.tile_program, network.platform, plan.bits)
    moved = sum(collective_time_s(network.topology, num_devices, each) for each in collectives(program, plan.bits))
    return moved + copies_time_s(network.topology, copies(program, plan.bits))


def _runs(compiled: Compiled) -> int:
    return sum(each.runs for each in compiled.collectives)


def _count(compiled: Compiled) -> str:
    words = [f"{each.runs} {each.kind}" for each in compiled.collectives]
    return ", ".join(words) or "no collective"


def _bytes(count: int) -> str:
    return f"{count:,} bytes"
