# SPDX-License-Identifier: Apache-2.0
"""The cost of a compiled module, and whether one form of a module may take the place of another.

One function prices stock XLA's program, ours and any mixture: `SiteNetwork.time_beside`. Beside the time stand the
memory, the received bytes, and for targets of compilation ahead of time the compiler's own estimate and the time by its
code generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reshard.dialect_utils.xla.child import Compiled, comparable_schedules, may_be_estimated
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.sites.oracle import (
    ALWAYS,
    BETTER,
    FAILURES,
    STRICT,
    TABLES_OF_POINTERS_BYTES,
    is_same_time,
    micros,
    micros_of_both,
)
from reshard.passes.whole_module.joint_choice import Outcome

if TYPE_CHECKING:  # loading it loads numpy
    from reshard.synthesis.network.program_time import ProgramTime

SAME_ESTIMATE = 0.1  # relative difference below which estimates count as equal under `strict`
SAME_MEMORY = 500  # a part of the memory by which two forms may differ and still need the same
LEAST_GAIN_OF_WHOLE = 0.1  # share of the time: where every op is written anew, the model's errors count more
LEAST_GAIN_OF_SENDING = 0.05  # share of the time between processes, about which the model is surer
LEAST_GAIN_CONFIRMED = 0.01  # share of the compiler's own estimate, which then takes the place of that
LEAST_GAIN_GENERATED = 0.05  # share of the time by its code generator, where there are no estimates to compare
LEAST_GAIN_FOR_BYTES = 0.02  # share of the time that a form gains which receives more bytes than stock XLA's
SAME_BYTES = 0.001  # part by which received bytes may be more and count as the same
EITHER_WAY = "either way"  # ends what is said of forms that are alike
LONGER_ESTIMATE = 0.02  # by how much the time may be longer by the compiler's own estimate or its code generator


@dataclass(frozen=True, slots=True)
class ModuleCriterion:
    """What decides between two forms of a module.

    Attributes:
      policy, network, num_devices: see `plan-sites`.
      counts_arguments: whether memory is that of arguments, results and temporaries together, for forms whose arguments
        have other shardings.
      compares_shardings: whether the program has to be called as stock XLA's. Compiled for other devices than those of
        the target it need not be: results that the caller left open have the layouts of the target's program.
    """

    policy: str
    network: SiteNetwork
    num_devices: int
    counts_arguments: bool = False
    compares_shardings: bool = True

    def outcome(self, stock: Compiled, ours: Compiled, sites: int) -> Outcome:
        """Returns what is known about a form of the module in which a number of sites are rewritten."""
        problem = self.problem(stock, ours, with_time=False)
        if not ours.is_ok:
            return Outcome(problem, float("inf"), of=ours)
        if self.policy != BETTER:  # as many of the chosen sites as may be
            return Outcome(problem, 0.0, (-sites,), ours)
        time, ties = self.time(stock, ours), (ours.costs.bytes_received, ours.costs.temp_bytes, sites)
        is_sent = self.network.has_processes_alone and time.seconds > 0
        sent = time.collectives_s / time.seconds if is_sent else 0.0
        return Outcome(problem, time.seconds, ties, ours, sent, self.generated_s(ours))

    def generated_s(self, compiled: Compiled) -> float | None:
        """Returns the time of a program with local work as the compiler's code generator prices it; None if it does
        not."""
        if compiled.generated_seconds is None or not self.network.is_known:
            return None
        return self.network.generated_time_of(compiled, self.num_devices)

    def estimates_us(self, stock: Compiled, ours: Compiled) -> tuple[float, float]:
        """Returns both of the compiler's time estimates in us, with the reduce_scatters that are free in them at their
        modelled times; zeros if one is missing or made in another way."""
        kind = comparable_schedules(stock, ours)
        if not kind:
            return 0.0, 0.0
        return self._estimated_us(stock, kind), self._estimated_us(ours, kind)

    def _estimated_us(self, compiled: Compiled, kind: str) -> float:
        free = getattr(compiled, f"{kind}_without")
        free_s = self.network.collectives_s(free, self.num_devices) if free and self.network.is_known else 0.0
        return round(1e6 * (getattr(compiled, f"{kind}_seconds") + free_s), 1)

    def time(self, stock: Compiled, compiled: Compiled) -> ProgramTime:
        """Returns the modelled time of stock XLA's program, or of another one, for comparison with stock XLA's."""
        return self.network.time_beside(stock, compiled, self.num_devices)

    def problem(self, stock: Compiled, ours: Compiled, *, with_time: bool = True) -> str:
        """Returns in words why our form may not take the place of stock XLA's; an empty text if it may.

        Args:
          with_time: whether a longer modelled time is a reason; `outcome` has the time beside the reason.
        """
        if not ours.is_ok:
            also = "" if stock.is_ok else "; it cannot compile the module as it came either"
            return f"XLA {FAILURES[ours.status]}: {ours.reason}{also}"
        if not stock.is_ok or self.policy == ALWAYS:
            return ""
        worse = _other_shardings(stock, ours) if self.compares_shardings else []
        if self.policy == STRICT:
            return ", ".join(self._strict_costs(stock, ours) + worse)
        worse = self._little_for_more(stock, ours) + worse
        if with_time:
            worse = self._longer(stock, ours) + worse
        return ", ".join(self._costs(stock, ours) + worse)

    def may_replace_wrong(self, stock: Compiled, ours: Compiled) -> bool:
        """Returns whether our form may take the place of a program of stock XLA that computes wrong values.

        It may cost more, but has to be called in the same way.
        """
        return ours.is_ok and not _other_shardings(stock, ours)

    def excess_memory(self, stock: Compiled, ours: Compiled) -> float:
        """Returns the factor, at least 1, by which our form needs more memory than stock XLA's, if that is too much."""
        _, then, now = _memory(stock, ours, self.counts_arguments)
        return now / then if then and self._memory_costs(stock, ours) else 1.0

    def excess_bytes(self, stock: Compiled, ours: Compiled) -> int:
        """Returns the bytes that our form needs above stock XLA's; 0 for one that needs no more."""
        _, then, now = _memory(stock, ours, self.counts_arguments)
        return max(0, now - then)

    def spare_bytes(self, stock: Compiled, ours: Compiled) -> int:
        """Returns the bytes that our form might need more than it does, and still be taken."""
        limit, (_, then, now) = self.network.memory_limit, _memory(stock, ours, self.counts_arguments)
        return max(0, then - now, 0 if limit is None else limit - ours.limited_bytes)

    def missing_limit(self, stock: Compiled, ours: Compiled) -> int | None:
        """Returns the memory limit in bytes with which our form could be taken; None if memory is not all it lacks."""
        if self.policy != BETTER or not (stock.is_ok and ours.is_ok) or not self._memory_costs(stock, ours):
            return None
        limited = replace(self, network=replace(self.network, memory_limit=ours.limited_bytes))
        return None if limited.problem(stock, ours) else ours.limited_bytes

    def _longer(self, stock: Compiled, ours: Compiled) -> list[str]:
        then, now = (self.time(stock, each).seconds for each in (stock, ours))
        return [] if now <= then or is_same_time(then, now) else [f"modelled time {micros_of_both(then, now)}"]

    def _little_for_more(self, stock: Compiled, ours: Compiled) -> list[str]:
        """Returns the bytes that ours receives more than stock XLA's, if it gains less than the model may err."""
        received, receives = _received(stock, ours)
        if not self.network.is_known or receives <= (1 + SAME_BYTES) * received:
            return []
        then, now = (self.time(stock, each).seconds for each in (stock, ours))
        if now <= (1 - LEAST_GAIN_FOR_BYTES) * then or now > then:  # that it is slower is known
            return []
        return [f"received bytes {received:,} -> {receives:,} for {1 - now / then:.1%} of the time"]

    def _costs(self, stock: Compiled, ours: Compiled) -> list[str]:
        """Returns the costs in which ours may not be worse: memory, bytes on an unknown network, and the time by the
        compiler's own estimate and by its code generator."""
        worse = self._memory_costs(stock, ours)
        if not self.network.is_known and ours.costs.bytes_received > stock.costs.bytes_received:
            more = f"{stock.costs.bytes_received:,} -> {ours.costs.bytes_received:,}"
            worse.append(f"received bytes per device {more} on an unknown network")
        then, now = self.estimates_us(stock, ours)
        if now > then * (1 + LONGER_ESTIMATE):
            worse.append(f"the compiler's own estimate in us {then:,} -> {now:,}")
        generated = self.generated(stock, ours)
        if generated and generated[1] > generated[0] * (1 + LONGER_ESTIMATE):
            worse.append(f"time by the compiler's code generator {micros_of_both(*generated)}")
        return worse

    def generated(self, stock: Compiled, ours: Compiled) -> tuple[float, float] | None:
        """Returns the times of two programs by the code generator; None if it does not say both."""
        then, now = self.generated_s(stock), self.generated_s(ours)
        return None if then is None or now is None else (then, now)

    def _memory_costs(self, stock: Compiled, ours: Compiled) -> list[str]:
        """Returns the memory if it is above stock XLA's and above the caller's limit.

        0.2 % more are not counted: scalars, flags of asynchronous ops and the rounding of buffers make as much.
        """
        limit, peak = self.network.memory_limit, ours.limited_bytes
        name, then, now = _memory(stock, ours, self.counts_arguments)
        slack = max(_bookkeeping_bytes(stock, ours), then // SAME_MEMORY)
        if now <= then + slack or (limit is not None and peak <= limit):
            return []
        return [f"{name} {then:,} -> {now:,}" + ("" if limit is None else f", the limit of the whole is {limit:,}")]

    def _strict_costs(self, stock: Compiled, ours: Compiled) -> list[str]:
        """Returns the costs that are worse in our form; no sum of gains makes up for one of them."""
        then, now = self.estimates_us(stock, ours)
        return [
            f"{name} {before:,} -> {after:,}"
            for name, before, after, slack in (
                ("received bytes per device", stock.costs.bytes_received, ours.costs.bytes_received, 0),
                ("received bytes per device in the final program", *_final_bytes(stock, ours), 0),
                (*_memory(stock, ours), _bookkeeping_bytes(stock, ours)),
                ("the compiler's own estimate in us", then, now, then * SAME_ESTIMATE),
            )
            if after > before + slack
        ]


def _other_shardings(stock: Compiled, ours: Compiled) -> list[str]:
    differs = []
    if stock.input_shardings != ours.input_shardings:
        differs.append("the input shardings differ from stock XLA's")
    if stock.output_shardings != ours.output_shardings:
        differs.append("the output shardings differ from stock XLA's")
    return differs


def _memory(stock: Compiled, ours: Compiled, counts_arguments: bool = False) -> tuple[str, int, int]:
    """Returns the name of the memory to compare and its bytes in both modules.

    The memory is the temporaries, or all that a limit counts if the compiler gives a peak.
    """
    has_peaks = stock.peak_memory_bytes is not None and ours.peak_memory_bytes is not None
    if counts_arguments or has_peaks:
        return "memory in bytes", stock.limited_bytes, ours.limited_bytes
    return "temporaries in bytes", stock.costs.temp_bytes, ours.costs.temp_bytes


def _final_bytes(stock: Compiled, ours: Compiled) -> tuple[int, int]:
    """Returns the bytes that both final programs receive; zeros if one is unknown or has an op without a price."""
    then, now = stock.final_bytes_received, ours.final_bytes_received
    return (0, 0) if then is None or now is None or stock.final_unpriced or ours.final_unpriced else (then, now)


def _received(stock: Compiled, ours: Compiled) -> tuple[int, int]:
    """Returns the bytes that both programs receive, the final ones if these are known."""
    then, now = _final_bytes(stock, ours)
    return (then, now) if then or now else (stock.costs.bytes_received, ours.costs.bytes_received)


def _bookkeeping_bytes(stock: Compiled, ours: Compiled) -> int:
    """Returns the bytes of temporaries that are not tensors: a table of pointers for each new all-to-all."""
    return TABLES_OF_POINTERS_BYTES * max(1, _all_to_alls(ours) - _all_to_alls(stock))


def _all_to_alls(compiled: Compiled) -> int:
    return sum(each.ops for each in compiled.collectives if each.kind == "all_to_all")


def is_better(one: Outcome, other: Outcome) -> bool:
    """Returns whether the first of two outcomes is better: usable, then faster, then fewer bytes and temporaries."""
    if bool(one.problem) != bool(other.problem):
        return not one.problem
    if one.problem:
        return False
    if is_same_time(one.seconds, other.seconds):
        return one.ties < other.ties
    return one.seconds < other.seconds


def best_of(outcomes: Sequence[Outcome], least: Outcome) -> int | None:
    """Returns the number of the best outcome that is better than `least`; None if there is none."""
    best = None
    for number, outcome in enumerate(outcomes):
        if is_better(outcome, least):
            best, least = number, outcome
    return best


def clearly_less_s(islands: Outcome) -> float:
    """Returns the seconds in which another form has to run, in which every op is written anew, so that the model is not
    wrong about which of the two is faster.

    Its errors are mostly those of local work. Where data moves between processes, both forms wait for the same network,
    whose measured bandwidth most of the time depends on.
    """
    local = (1 - islands.sent) * LEAST_GAIN_OF_WHOLE
    return (1 - local - islands.sent * LEAST_GAIN_OF_SENDING) * islands.seconds


def is_clearly_faster(whole: Outcome, islands: Outcome, criterion: ModuleCriterion) -> bool:
    """Returns whether the module written per device is faster by more than the model may be wrong about it, or by a
    second witness: the estimate of the target's own compiler."""
    if islands.problem or whole.seconds <= clearly_less_s(islands):
        return True
    if whole.of is None or islands.of is None or whole.seconds >= islands.seconds:
        return False
    theirs, mine = criterion.estimates_us(islands.of, whole.of)
    return 0 < mine <= (1 - LEAST_GAIN_CONFIRMED) * theirs or _is_generated_faster(whole, islands)


def _is_generated_faster(whole: Outcome, islands: Outcome) -> bool:
    """Returns whether the module written per device is faster by the compiler's code generator, in place of estimates
    that there are none of."""
    theirs, mine = islands.generated_s, whole.generated_s
    if theirs is None or mine is None or may_be_estimated(islands.of, whole.of):
        return False
    return mine <= (1 - LEAST_GAIN_GENERATED) * theirs


def compared(rewritten: Outcome, left: Outcome, so: str = "with the rewrite", not_so: str = "without") -> str:
    """Returns in words how the module with some sites rewritten compares with the one in which XLA has them.

    Args:
      so, not_so: what the first one is, and the second one.
    """
    if rewritten.problem or left.problem:
        return rewritten.problem or left.problem
    if rewritten.seconds == left.seconds:
        names = ("received bytes", "temporaries in bytes")  # more rewritten sites make it no worse, and no better
        differing = [each for each in zip(names, rewritten.ties, left.ties) if each[1] != each[2]]
        if not differing:
            return f"modelled time {micros(rewritten.seconds)} {EITHER_WAY}"
        name, mine, others = differing[0]
        return f"{name} {mine:,} {so}, {others:,} {not_so}, in the same time"
    mine, others = micros(rewritten.seconds), micros(left.seconds)
    if mine == others:
        return f"modelled time {mine} {EITHER_WAY}"
    return f"modelled time {mine} {so}, {others} {not_so}"
