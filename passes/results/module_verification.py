# SPDX-License-Identifier: Apache-2.0
"""Verifies a module: it runs as stock XLA partitions it, as we rewrite it, and unsharded on one device.

All three runs take the same inputs. If outputs depart from those of the unsharded run, the first wrong op is searched:
the module runs in a form that returns the operands and results of each op, and each op is applied once more, unsharded,
to the operands that it had. See `dialect_utils.compare.instrumented`. If every op is right for its operands, the
outputs depart by rounding alone, which a comparison, a rounding to integers or a cancellation has made large. Ops in
loops and calls are not watched; if the search ends there, the module and the unsharded one run once more with floats of
64 bits, in which rounding shrinks and a fault does not (`dialect_utils.compare.widened`). If that does not tell, and no
op was found, the unsharded program says how far its outputs change by rounding alone
(`dialect_utils.compare.unstable`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from reshard.dialect_utils.analysis import layout_check
from reshard.dialect_utils.compare import instrumented as watched_modules
from reshard.dialect_utils.compare.array_differences import Difference, difference, largest_magnitude
from reshard.dialect_utils.compare.instrumented import ARGUMENT, OPERAND, RESULT, Key, NoUnshardedForm, WatchedOp
from reshard.dialect_utils.compare.rounding import Rounding, ops_behind, rounding_of, roundings_of_results
from reshard.dialect_utils.compare.unstable import explains, nudged
from reshard.dialect_utils.compare.widened import is_rounding, widened, widened_inputs
from reshard.dialect_utils.ir.diagnostics import Place, error_at, place_of
from reshard.dialect_utils.ir.reductions import reduction_of
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla import worker as xla_worker
from reshard.dialect_utils.xla.child import DEFAULT_TIMEOUT_S, Ran, XlaChild

EQUAL, WITHIN, ROUNDED = "equal", "within tolerance", "rounded"
WRONG, FAILED, UNKNOWN = "wrong", "failed", "unknown"
RIGHT = (EQUAL, WITHIN, ROUNDED)
ROUNDED_TEXT = "with floats of 64 bits it is right, so this is rounding, which the program enlarges"
UNSTABLE_TEXT = "no op is wrong, and on one device inputs that are one rounding off change the outputs as much"
AS_STOCK_TEXT = "it computes what stock XLA does, of which every op is right"
_SUMS = frozenset({"stablehlo.add", "stablehlo.subtract"})
_PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
_HOLD_OTHERS = frozenset(
    {"func.call", "stablehlo.case", "stablehlo.composite", "stablehlo.if", "stablehlo.while"}
)  # these may hold islands of ours
_NUDGES = 3  # runs of the unsharded program with inputs that are one rounding off
MOST_WATCHED_BYTES = 1 << 29  # of results that a run returns beside the outputs; with more, ops need several runs


@dataclass(frozen=True, slots=True)
class Fault:
    """The first op that is wrong for its operands, or whose operand differs from the value that its producer gave.

    Attributes:
      op: the name of the op. number: its number in the entry function. place: its location.
      what: the wrong value: "result 0", "operand 1" or "output 0".
      difference: how the value differs from the right one.
      how: how the op was found, if not by watching all ops at once.
    """

    op: str
    number: int
    place: Place | None
    what: str
    difference: Difference
    how: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one way to run the module.

    Attributes:
      status: EQUAL, bit for bit; WITHIN; ROUNDED, further off, but by rounding alone; WRONG; FAILED, XLA
        aborted, hung or refused; UNKNOWN, nothing to compare with.
      message: why it failed; what is to be known of the search.
      output: number of the output that `difference` is about: the first that departs, else the one that is furthest
        off.
    """

    status: str
    message: str = ""
    output: int | None = None
    difference: Difference | None = None
    fault: Fault | None = None

    @property
    def is_right(self) -> bool:
        return self.status in RIGHT


@dataclass(frozen=True, slots=True)
class Verification:
    """The results of the three ways to run the module.

    Attributes:
      stock, ours: against the unsharded run; without one, stock is UNKNOWN, and ours is against stock.
      is_rewritten: whether ours is another module than stock.
      is_same_fault: whether both are wrong with the same outputs or at the same op: then the fault is not in what we
        rewrote.
      no_reference: why there is no unsharded run; empty if there is one.
      outputs: the number of outputs that were compared.
      not_finite: the number of entries of the unsharded outputs that are infinite or NaN; they are not compared.
      inputs: a description of the inputs.
    """

    stock: Verdict
    ours: Verdict
    is_rewritten: bool
    is_same_fault: bool = False
    no_reference: str = ""
    outputs: int = 0
    not_finite: int = 0
    inputs: str = ""


def verify(
    original: ir.Module,
    rewritten: ir.Module | None,
    devices: int,
    child: XlaChild,
    *,
    seed: int = 0,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    every_op: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Runs a module in three ways and returns the results.

    Args:
      original: the module with Shardy's shardings and numbered ops (`watched_modules.number_ops`).
      rewritten: the rewritten module, whose ops have the same numbers; None if nothing was rewritten.
      seed: the seed of the inputs. timeout_s: the limit for each run with its compilation; a longer run is a hang.
      every_op: whether each op is compared even if the outputs are right.
    """
    return _Verifier(original, rewritten, devices, child, seed, timeout_s, every_op, progress).verify()


@dataclass
class _Verifier:
    """Verifies one module. State: `inputs`, and the unsharded module `reference`; None if it has no unsharded form."""

    original: ir.Module
    rewritten: ir.Module | None
    devices: int
    child: XlaChild
    seed: int
    timeout_s: float
    every_op: bool
    progress: Callable[[str], None]
    inputs: list[np.ndarray] = field(default_factory=list)
    inputs_text: str = ""
    reference: ir.Module | None = None
    expected: tuple[np.ndarray, ...] = ()
    roundings: list[Rounding] = field(default_factory=list)

    def verify(self) -> Verification:
        no_reference = self._run_reference()
        self.progress(f"running as stock XLA partitions it, on {self.devices} devices")
        stock = self._run(watched_modules.without_numbers(self.original))
        ours = stock
        if self.rewritten is not None:
            self.progress(f"running as rewritten, on {self.devices} devices")
            ours = self._run(watched_modules.without_numbers(self.rewritten))
        if no_reference:
            return self._without_reference(stock, ours, no_reference)
        first = self._judged(self.original, stock, "stock XLA")
        second = first
        if self.rewritten is not None:
            second = self._as_stock(first, stock, ours) or self._judged(self.rewritten, ours, "our module")
        are_wrong = first.status == second.status == WRONG
        is_same = self.rewritten is None or (are_wrong and self._is_same(first, second, stock, ours))
        return Verification(
            first,
            second,
            is_rewritten=self.rewritten is not None,
            is_same_fault=is_same and not second.is_right,
            outputs=len(self.expected),
            not_finite=sum(not_finite(each) for each in self.expected),
            inputs=self.inputs_text,
        )

    # ---- the runs

    def _run(self, text: str, inputs: Sequence[np.ndarray] | None = None, devices: int | None = None) -> Ran:
        inputs = self.inputs if inputs is None else inputs
        return self.child.run(text, inputs, devices or self.devices, timeout_s=self.timeout_s)

    def _run_reference(self) -> str:
        """Runs the unsharded module; returns the reason if it cannot run, else an empty text.

        If inputs of both signs make outputs infinite or NaN, which compare nothing, positive inputs are tried.
        """
        self.inputs = seeded(self.original, self.seed)
        self.inputs_text = "normal floats, integers from 0 to 6"
        try:
            self.reference = watched_modules.unsharded(self.original)
        except NoUnshardedForm as reason:
            place = place_of(reason.op)
            return f"{place}: {reason}" if place else str(reason)
        self.progress("running unsharded, on one device")
        text = watched_modules.without_numbers(self.reference)
        ran = self._run(text, devices=1)
        if ran.status == "ok" and any(map(not_finite, ran.outputs)):
            positive = [made_positive(each) for each in self.inputs]
            again = self._run(text, positive, devices=1)
            if again.status == "ok" and sum(map(not_finite, again.outputs)) < sum(map(not_finite, ran.outputs)):
                self.inputs, ran = positive, again
                self.inputs_text = "small positive floats, as others gave infinities or NaNs, integers from 0 to 6"
        if ran.status != "ok":
            return f"one device: {failure_text(ran)}"
        self.expected = ran.outputs
        self.roundings = roundings_of_results(self.reference)
        return ""

    # ---- the verdicts

    def _without_reference(self, stock: Ran, ours: Ran, reason: str) -> Verification:
        """Compares our module with stock, at a tolerance for the coarsest type and all sums of the module."""
        rounding = Rounding()
        for op in watched_modules.entry_function(self.original).regions[0].blocks[0].operations:
            rounding |= rounding_of(op.operation, self.original)
        self.expected, self.roundings = stock.outputs, [rounding] * len(stock.outputs)
        first = Verdict(UNKNOWN) if stock.status == "ok" else Verdict(FAILED, failure_text(stock))
        if self.rewritten is None or ours.status != "ok":
            second = first if self.rewritten is None else Verdict(FAILED, failure_text(ours))
        else:
            second = Verdict(UNKNOWN) if stock.status != "ok" else self._compared(ours)
        return Verification(
            first,
            second,
            self.rewritten is not None,
            no_reference=reason,
            outputs=len(self.expected),
            inputs=self.inputs_text,
        )

    def _judged(self, module: ir.Module, ran: Ran, name: str) -> Verdict:
        if ran.status != "ok":
            return Verdict(FAILED, failure_text(ran))
        verdict = self._compared(ran)
        if verdict.status != WRONG and self.every_op:
            self.progress(f"judging every op of {name}")
            return _Search(self, module, verdict).run_on_every_op()
        if verdict.status != WRONG:
            return verdict
        self.progress(f"{name} departs at output {verdict.output}; searching for the op")
        found = _Search(self, module, verdict).run()
        if found.status != WRONG or not _is_inside_others(found.fault):
            return found
        self.progress(f"running {name} with floats of 64 bits")
        found = self._if_rounded(found, ran, module)
        return self._if_unstable(found, ran) if found.status == WRONG and found.fault is None else found

    def _as_stock(self, first: Verdict, stock: Ran, ours: Ran) -> Verdict | None:
        """Returns ROUNDED if our outputs are off like those of stock XLA, within the limits, and these are ROUNDED."""
        if first.status != ROUNDED or ours.status != "ok" or not self._are_alike(stock, ours):
            return None
        verdict = self._compared(ours)
        return replace(verdict, status=ROUNDED, message=AS_STOCK_TEXT) if verdict.status == WRONG else None

    def _if_rounded(self, verdict: Verdict, ran: Ran, module: ir.Module) -> Verdict:
        """Returns ROUNDED for a module that is wrong if that is gone with floats of 64 bits."""
        expected, ours = self._wide_reference, self._run_widened(module)
        if expected is None or ours is None:
            return verdict
        if not is_rounding(self._differences(ran), self.expected, expected.outputs, ours.outputs, self.roundings):
            return verdict
        return replace(verdict, status=ROUNDED, message=ROUNDED_TEXT, fault=None)

    def _if_unstable(self, verdict: Verdict, ran: Ran) -> Verdict:
        """Returns ROUNDED for a module whose outputs are off as much as rounding changes those of the unsharded one."""
        own = self._own_changes
        if own is None or not explains(own, self._differences(ran)):
            return verdict
        return replace(verdict, status=ROUNDED, message=UNSTABLE_TEXT)

    @functools.cached_property
    def _own_changes(self) -> list[Difference] | None:
        """Returns how far each output of the unsharded module changes by rounding alone; None if a run fails."""
        self.progress("running unsharded, with inputs that are one rounding off")
        text = watched_modules.without_numbers(present(self.reference))
        runs = [self.child.run(text, self.inputs, 1, timeout_s=self.timeout_s, optimizes=False)]
        runs += [self._run(text, nudged(self.inputs, seed), devices=1) for seed in range(_NUDGES)]
        if any(ran.status != "ok" for ran in runs):
            return None
        changes = zip(*map(self._differences, runs), strict=True)
        return [max(each, key=lambda change: change.fraction) for each in changes]

    @functools.cached_property
    def _wide_reference(self) -> Ran | None:
        return self._run_widened(present(self.reference), devices=1)

    def _run_widened(self, module: ir.Module, devices: int | None = None) -> Ran | None:
        wide = widened(module)
        if wide is None:
            return None
        ran = self._run(watched_modules.without_numbers(wide), widened_inputs(self.inputs), devices)
        return ran if ran.status == "ok" else None

    def _differences(self, ran: Ran) -> list[Difference]:
        return [
            difference(a, b, limit.limit)
            for a, b, limit in zip(self.expected, ran.outputs, self.roundings, strict=True)
        ]

    def _compared(self, ran: Ran) -> Verdict:
        found = self._differences(ran)
        wrong = [number for number, each in enumerate(found) if not each.is_within_limit]
        if wrong:
            return Verdict(WRONG, output=wrong[0], difference=found[wrong[0]])
        inexact = [number for number, each in enumerate(found) if not each.is_equal]
        if not inexact:
            return Verdict(EQUAL)
        worst = max(inexact, key=lambda number: found[number].fraction / found[number].limit)
        return Verdict(WITHIN, output=worst, difference=found[worst])

    def _is_same(self, stock_verdict: Verdict, our_verdict: Verdict, stock: Ran, ours: Ran) -> bool:
        """Returns whether both have the same fault: wrong results of the same op, or the same wrong outputs.

        An op that holds others does not count, because islands of ours may be in it.
        """
        first, second = stock_verdict.fault, our_verdict.fault
        if first and second and first.number == second.number and second.what.startswith("result"):
            if not _is_inside_others(second):
                return True
        return self._are_alike(stock, ours)

    def _are_alike(self, stock: Ran, ours: Ran) -> bool:
        pairs = zip(stock.outputs, ours.outputs, self.roundings, strict=True)
        return all(difference(a, b, rounding.limit).is_within_limit for a, b, rounding in pairs)


class _Search:
    """The search for the op at which a partitioned module departs from the unsharded one.

    State: `is_complete` tells whether the module had all ops that were looked for so far.
    """

    def __init__(self, verifier: _Verifier, module: ir.Module, verdict: Verdict):
        self.verifier, self.module, self.verdict = verifier, self._pinned(verifier, module), verdict
        self.reference = present(verifier.reference)
        *self.all_ops, self.end = watched_modules.watched_ops(self.reference)
        wrong = [] if verdict.status != WRONG else ops_behind(self._output, self.reference)
        behind = {watched_modules.number_of(op) for op in wrong}
        self.ops = [op for op in self.all_ops if op.number in behind]
        own = self._watched_by_number()
        self.rounding = {number: rounding_of(op, self.reference) for number, op in own.items()}
        self.sums = {number for number, op in own.items() if _adds_up(op)}
        self.products = {number for number, op in own.items() if op.name in _PRODUCTS}
        self.is_complete = True

    @property
    def _output(self) -> int:
        """Returns the number of the output that departs; there is one if the verdict is WRONG."""
        return present(self.verdict.output)

    def run(self) -> Verdict:
        """Returns the verdict with the fault; ROUNDED if the outputs differ, but every op is right for its operands."""
        is_seen = True
        for window in self._told_windows(self.ops):
            outcome = self._watch(window)
            if isinstance(outcome, str):
                return self._bisected(f"the module with all ops watched: {outcome}")
            fault, departs = outcome
            if fault is not None:
                return replace(self.verdict, fault=fault)
            is_seen = is_seen and departs
        if not is_seen:
            return self._bisected("the fault vanishes when all ops are watched")
        if not self.is_complete:
            return self._bisected("the module lacks ops of the original")
        return replace(self.verdict, status=ROUNDED, message="every op is right for what it took, so this is rounding")

    def run_on_every_op(self) -> Verdict:
        """Returns a verdict for a module whose outputs are right; WRONG if an op is wrong for its operands."""
        for window in self._told_windows(self.all_ops):
            outcome = self._watch(window)
            if isinstance(outcome, str):
                return replace(self.verdict, message=f"not every op could be judged: {outcome}")
            if outcome[0] is not None:
                return replace(
                    self.verdict, status=WRONG, message="the outputs are right, an op is not", fault=outcome[0]
                )
        message = "so is every op" if self.is_complete else "so is every op that is still there"
        return replace(self.verdict, message=message)

    def _told_windows(self, ops: Sequence[WatchedOp]) -> Iterator[list[WatchedOp]]:
        windows = list(_windows(ops))
        for count, window in enumerate(windows, start=1):
            self.verifier.progress(f"watching ops: run {count} of {len(windows)}")
            yield window

    @staticmethod
    def _pinned(verifier: _Verifier, module: ir.Module) -> ir.Module:
        """Returns the module with XLA's layouts on its ops, or the module itself if XLA does not give its layouts.

        With layouts on all ops, watching an op does not change them.
        """
        text = layout_check.tagged_text(module)
        told = verifier.child.compile(
            text, verifier.devices, timeout_s=verifier.timeout_s, keeps_propagated=True
        ).propagated_text
        return module if told is None else watched_modules.pinned(module, told)

    # ---- all ops at once

    def _watch(self, window: Sequence[WatchedOp]) -> tuple[Fault | None, bool] | str:
        """Returns the first fault among some ops, and whether the output departs in this run; a text if a run fails."""
        watched = watched_modules.watched(self.module, window)
        ran = self.verifier._run(watched.text)
        if ran.status != "ok":
            return failure_text(ran)
        count = len(self.verifier.expected)
        outputs, values = ran.outputs[:count], dict(zip(watched.keys, ran.outputs[count:], strict=True))
        values |= {Key(ARGUMENT, 0, number): each for number, each in enumerate(self.verifier.inputs)}
        values |= {key: values[known] for key, known in watched.aliases if known in values}
        self.is_complete = self.is_complete and all(key in values for op in window for key in op.results)
        replayed = self._replay(window, values, dict(watched.aliases))
        if isinstance(replayed, str):
            return replayed
        fault = next(filter(None, (self._fault_of(op, values, replayed) for op in window)), None)
        if fault is not None or self.verdict.status != WRONG:
            return fault, False
        output = self._output
        limit = self.verifier.roundings[output].limit
        departs = not difference(self.verifier.expected[output], outputs[output], limit).is_within_limit
        return self._fault_of_output(outputs[output], values), departs

    def _replay(
        self, window: Sequence[WatchedOp], values: Mapping[Key, np.ndarray], aliases: Mapping[Key, Key]
    ) -> dict | str:
        """Returns the results of each op, computed unsharded from the operands that it had."""
        sources = {Key(OPERAND, op.number, at): source for op in window for at, source in enumerate(op.sources)}
        converted = [key for key in values if key.kind == OPERAND and aliases.get(key) != sources[key]]
        module = watched_modules.replayed(
            self.reference, window, [*(key for key in values if key.kind == RESULT), *converted]
        )
        ran = self.verifier._run(module.text, [values[key] for key in module.arguments], 1)
        return dict(zip(module.results, ran.outputs, strict=True)) if ran.status == "ok" else failure_text(ran)

    def _fault_of(
        self, op: WatchedOp, values: Mapping[Key, np.ndarray], replayed: Mapping[Key, np.ndarray]
    ) -> Fault | None:
        for number, source in enumerate(op.sources):
            seen = values.get(Key(OPERAND, op.number, number))
            if seen is not None and source in values:
                arrived = difference(values[source], seen, 0.0)
                if not arrived.is_within_limit:
                    return Fault(op.name, op.number, op.place, f"operand {number}", arrived)
        for key in op.results:
            if key in values and key in replayed:
                limit, least = self.rounding[op.number].limit, self._largest_terms(op, values)
                given = difference(replayed[key], values[key], limit, least)
                if not given.is_within_limit:
                    return Fault(op.name, op.number, op.place, f"result {key.number}", given)
        return None

    def _fault_of_output(self, output: np.ndarray, values: Mapping[Key, np.ndarray]) -> Fault | None:
        """Returns the fault of an output of the function that differs from the value that its producer computed."""
        source = self.end.sources[self._output]
        if source not in values:
            return None
        left = difference(values[source], output, 0.0)
        if left.is_within_limit:
            return None
        return Fault(self.end.name, self.end.number, self.end.place, f"output {self._output}", left)

    # ---- one op at a time

    def _bisected(self, why: str) -> Verdict:
        """Returns the verdict with the first op whose results depart from the unsharded run; each is watched alone."""
        low, high, last = 0, len(self.ops) - 1, None
        while low <= high:
            middle = (low + high) // 2
            self.verifier.progress(f"watching one op: {high - low + 1} left")
            departed = self._departure(self.ops[middle])
            if departed is None:
                low = middle + 1
            else:
                high, last = middle - 1, (self.ops[middle], departed)
        if last is None:
            return replace(self.verdict, message=f"{why}; no single op departs when it is watched")
        op, (number, off) = last
        how = f"{why}; found by watching one op at a time"
        return replace(self.verdict, fault=Fault(op.name, op.number, op.place, f"result {number}", off, how))

    def _departure(self, op: WatchedOp) -> tuple[int, Difference] | None:
        watched, count = watched_modules.watched(self.module, [op], operands=False), len(self.verifier.expected)
        ran = self.verifier._run(watched.text)
        right = self.verifier._run(watched_modules.watched(self.reference, [op], operands=False).text, devices=1)
        if ran.status != "ok" or right.status != "ok":
            return None
        limit = self.verifier.roundings[self._output].limit
        for key, expected, found in zip(watched.keys, right.outputs[count:], ran.outputs[count:]):
            off = difference(expected, found, limit)
            if not off.is_within_limit:
                return key.number, off
        return None

    def _watched_by_number(self) -> dict[int, ir.Operation]:
        body = watched_modules.entry_function(self.reference).regions[0].blocks[0].operations
        ops = [each.operation for each in body if watched_modules.NUMBER in each.operation.attributes]
        return {watched_modules.number_of(op): op for op in ops}

    def _largest_terms(self, op: WatchedOp, values: Mapping[Key, np.ndarray]) -> float:
        """Returns the magnitude of what an op adds up, at most: its terms may cancel, their rounding stays. 0 for an op
        that adds nothing, or a product of which not both sides were seen."""
        keys = [Key(OPERAND, op.number, number) for number in range(len(op.sources))]
        found = [largest_magnitude(values[key]) for key in keys if key in values]
        if op.number in self.products and len(found) == len(keys):
            return math.prod(found)
        return max(found, default=0.0) if op.number in self.sums else 0.0


def _windows(ops: Sequence[WatchedOp]) -> Iterator[list[WatchedOp]]:
    """Yields the ops in groups that return at most MOST_WATCHED_BYTES; a larger op is a group of its own."""
    window, size = [], 0
    for op in ops:
        if window and size + op.bytes > MOST_WATCHED_BYTES:
            yield window
            window, size = [], 0
        window.append(op)
        size += op.bytes
    if window:
        yield window


def _adds_up(op: ir.Operation) -> bool:
    """Returns whether an op adds up its operands, or their elements."""
    return op.name in _SUMS or op.name == "stablehlo.reduce" and reduction_of(op) == "sum"


def _is_inside_others(fault: Fault | None) -> bool:
    """Returns whether the wrong op may be one in a loop, a branch or a call, which is not watched."""
    return fault is None or fault.op.split()[0] in _HOLD_OTHERS


def seeded(module: ir.Module, seed: int) -> list[np.ndarray]:
    """Returns inputs for a module. Raises: DiagnosedError for an argument that is no array of a fixed shape."""
    function = watched_modules.entry_function(module)
    types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    for noun, each in (("argument", types.inputs), ("result", types.results)):
        for number, type_ in enumerate(each):
            if not isinstance(type_, ir.RankedTensorType) or not ir.RankedTensorType(type_).has_static_shape:
                raise error_at(function, f"{noun} {number} is {type_}; verify runs modules on arrays of fixed shapes")
    try:
        return xla_worker.seeded_inputs(types.inputs, seed)
    except (AttributeError, KeyError, TypeError) as error:
        shown = ", ".join(dict.fromkeys(str(ir.RankedTensorType(each).element_type) for each in types.inputs))
        raise error_at(function, f"verify cannot make inputs of all of these types: {shown}") from error


def failure_text(ran: Ran) -> str:
    """Returns in words how a run ended.

    Example:
      >>> failure_text(Ran("abort", "SIGABRT: made_up.cc:1] Check failed: false"))
      'XLA aborts: SIGABRT: made_up.cc:1] Check failed: false'
    """
    verb = {"abort": "XLA aborts", "hang": "XLA hangs", "error": "XLA refuses"}[ran.status]
    lines = ran.message.strip().splitlines()
    return f"{verb}: {lines[0][:300] if lines else 'no message'}"


def not_finite(array: np.ndarray) -> int:
    if array.dtype.kind in "biu" or "int" in array.dtype.name:
        return 0
    return int(array.size - np.count_nonzero(np.isfinite(array.astype(np.complex128))))


def made_positive(array: np.ndarray) -> np.ndarray:
    """Returns floats as small positive ones, not near zero, so that nothing saturates; other arrays as they are."""
    if array.dtype.kind in "biuc" or "int" in array.dtype.name:
        return array
    return (0.1 * np.abs(array.astype(np.float64)) + 0.05).astype(array.dtype)
