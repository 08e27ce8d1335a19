# SPDX-License-Identifier: Apache-2.0
"""The oracle `lone`, which asks stock XLA how it handles a site, and the verdict of the policy `better`.

At a constraint, a function result, a loop edge or a call edge, XLA sees the pair of layouts alone. At an operand or a
result of an op, XLA may partition the op in another way, so the op with all its conversions is one question: stock
against rewritten. The answers come from XLA in a child process. They are cached on disk by the text of the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils.xla.child import Compiled, XlaChild, as_json, compiled_from
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

if TYPE_CHECKING:
    from reshard.synthesis.planner.entry import Plan

REWRITE, KEEP = "rewrite", "keep"
FAILURES = {"abort": "aborts", "hang": "hangs", "error": "fails"}  # the verb for each status of `Compiled` but "ok"
# XLA's CPU backend keeps a table of pointers for the pieces of each all-to-all: bookkeeping, not data.
TABLES_OF_POINTERS_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a site and its reason, with the costs of both ways if they are known."""

    action: str
    reason: str
    stock: Compiled | None = None
    ours: Compiled | None = None

    @property
    def is_rewrite(self) -> bool:
        return self.action == REWRITE

    def as_json(self) -> dict[str, Any]:
        """Returns the verdict as plain values; see `from_json`."""
        stock, ours = (each and as_json(each) for each in (self.stock, self.ours))
        return {"action": self.action, "reason": self.reason, "stock": stock, "ours": ours}

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> Verdict:
        """Returns the verdict from the plain values that `as_json` returns."""
        stock, ours = (each and compiled_from(each) for each in (written["stock"], written["ours"]))
        return cls(written["action"], written["reason"], stock, ours)


class LoneOracle:
    """Compiles questions in a child process; other oracles may share `child`."""

    def __init__(self, child: XlaChild):
        self.child = child

    def judge_pair(self, tensor_type: str, layouts: Sequence[Sharding], plan: Plan) -> Verdict:
        """Returns the verdict on a conversion by `plan`, against stock XLA on the same conversion.

        Stock XLA converts from the first of `layouts` to the last; on one mesh it passes through those between.
        """
        from reshard.dialect_utils.emission.mini_modules import (  # loads the writers of collectives
            rewritten_pair,
            stock_pair,
        )

        stock = self._compile(stock_pair(tensor_type, plan.mesh, layouts, plan.target_mesh), plan.mesh)
        if stock.is_ok and _cannot_be_beaten(stock, plan):
            return Verdict(
                KEEP, f"stock XLA moves {_bytes(stock.costs.bytes_received)} in {_count(stock)}, as we would", stock
            )
        return self.judge(stock, rewritten_pair(tensor_type, plan), plan.mesh)

    def judge_texts(self, stock: str, ours: str, mesh: Mesh) -> Verdict:
        """Returns the verdict on the rewritten form of a module against its stock form."""
        return self.judge(self._compile(stock, mesh), ours, mesh)

    def judge(self, stock: Compiled, ours_text: str, mesh: Mesh) -> Verdict:
        ours = self._compile(ours_text, mesh)
        action, reason = compare(stock, ours)
        return Verdict(action, reason, stock, ours)

    def _compile(self, text: str, mesh: Mesh) -> Compiled:
        return self.child.compile(text, mesh.size)


def compare(stock: Compiled, ours: Compiled) -> tuple[str, str]:
    """Returns (action, reason): the action is to rewrite if our form is better in a cost and not worse in any other.

    Costs: received bytes, largest tile of a collective, temporaries, number of collectives (latency).
    """
    if not ours.is_ok:
        return KEEP, f"XLA refuses our form: {_first_line(ours.message)}"
    if not stock.is_ok:
        return REWRITE, f"stock XLA {FAILURES[stock.status]}: {_first_line(stock.message)}"
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


def _cannot_be_beaten(stock: Compiled, plan: Plan) -> bool:
    """Returns whether stock is at most the plan in received bytes, in collectives and in the largest tile."""
    costs = stock.costs
    return (
        costs.bytes_received <= plan.bytes_received
        and _runs(stock) <= plan.collectives
        and costs.largest_collective_tile_bytes <= plan.largest_tile_bytes
    )


def _runs(compiled: Compiled) -> int:
    return sum(each.runs for each in compiled.collectives)


def _count(compiled: Compiled) -> str:
    words = [f"{each.runs} {each.kind}" for each in compiled.collectives]
    return ", ".join(words) or "no collective"


def _bytes(count: int) -> str:
    return f"{count:,} bytes"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "no message"
