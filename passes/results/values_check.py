# SPDX-License-Identifier: Apache-2.0
"""The check by values: a rewritten program that computes other values than the original is not handed over.

Both modules run in the XLA child on the same random inputs, those of `reshard verify`, and each pair of outputs is
compared: integers bit by bit, floats at a tolerance for their coarsest type and their sums. If they differ,
`module_verification` decides which module is right, by a run of the unsharded module on one device:

- If ours is right, the rewrites stay, and a warning says that stock XLA computes the program wrongly.
- If ours is wrong, or the question is open, sites are left to XLA until the rest is right. They are found by halving.

If stock XLA compiles the rewritten module but not the original, values are checked even if the user does not ask.

If a run would take too much memory, or would not show the values of the program (callbacks, random numbers without a
key), values are not checked, and a remark says so.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.compare import instrumented as watched_modules
from reshard.dialect_utils.compare.array_differences import Difference, difference
from reshard.dialect_utils.compare.rounding import Rounding, roundings_of_results
from reshard.dialect_utils.compare.widened import is_rounding, widened, widened_inputs
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import asm_of, present
from reshard.dialect_utils.xla import at_hand
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.child import Ran
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import checks, module_verification, suspects
from reshard.passes.results.module_verification import FAILED, UNKNOWN, WRONG, Verification
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.sites.oracle import KEEP
from reshard.passes.synthesize_collectives import SynthesizeCollectivesPass
from reshard.passes.whole_module import check_record, whole_module_check
from reshard.passes.whole_module.replanned import Replanned
from reshard.passes.whole_module.site_groups import groups_by_gain

MOST_DEVICES = 64
MOST_SECONDS = 60.0  # for one run, compilation included
MOST_ATTEMPTS = 12  # runs of rewritten modules before nothing is rewritten at all
SEED = 0

EQUAL, WITHIN, ROUNDED = module_verification.EQUAL, module_verification.WITHIN, module_verification.ROUNDED
STOCK_IS_WRONG, GIVEN_BACK, NOT_CHECKED = "stock XLA is wrong", "given back", "not checked"
_TALKS_TO_OTHERS = frozenset({"stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv"})


@dataclass(frozen=True, slots=True)
class ValuesCheck:
    """The result of the check by values of one module.

    Attributes:
      status: EQUAL, bit for bit; WITHIN tolerance; ROUNDED: the difference is larger, but every op is right for its
        operands; STOCK_IS_WRONG; GIVEN_BACK: sites were left to XLA again; NOT_CHECKED.
      message: the reason for the status; it may be empty.
      dropped: sites that were left to XLA again.
      outputs: the number of outputs that were compared.
      runs: the number of modules that ran in the child. seconds: the time of the whole check.
    """

    status: str
    message: str = ""
    dropped: tuple[int, ...] = ()
    outputs: int = 0
    runs: int = 0
    seconds: float = 0.0


class _NotChecked(Exception):
    """Raised if values cannot be checked; the message is the reason."""


def check(
    original: ir.Module,
    rewritten: ir.Module,
    pipeline: Pipeline,
    session: Session,
    rows: Sequence[dict],
    *,
    most_bytes: int = checks.MOST_VALUE_BYTES,
    is_checked_as_a_whole: bool = False,
) -> ir.Module:
    """Returns the rewritten module without the sites that change its values, and records a `ValuesCheck`.

    Args:
      original: the module before `pipeline` ran, which made `rewritten` of it in `session`.
      rows: the rows of `session.results.report_rows` that belong to this module.
      most_bytes: the most memory that a run may take on all devices together; a larger program is not run.
      is_checked_as_a_whole: whether the last of `session.results.checks` is this module's; then a smaller rewrite is
        compared with stock again.
    """
    if not any(row.get("is_rewritten") for row in rows):
        return rewritten
    whole_module_check.import_shardings(original, pipeline, session)
    checker = _Checker(original, rewritten, pipeline, session, list(rows), most_bytes, is_checked_as_a_whole)
    start_s = time.perf_counter()
    try:
        with original.context, ir.Location.unknown():
            module, found = checker.run()
    except _NotChecked as reason:
        module, found = rewritten, ValuesCheck(NOT_CHECKED, str(reason))
        session.remark(original.operation, f"values were not checked: {reason}")
    session.results.value_checks.append(replace(found, runs=checker.runs, seconds=time.perf_counter() - start_s))
    return module


def compared(
    original: ir.Module, ours: ir.Module, pipeline: Pipeline, session: Session, *, most_bytes: int
) -> ValuesCheck:
    """Returns what runs say of a module that takes the place of another one and stays as it is.

    Ours is right if it computes what stock XLA makes of the original, or else what the original computes unsharded on
    one device. The status is one of those of a module that is right, WRONG or NOT_CHECKED.

    Args:
      pipeline: the one that says how the original is sharded. most_bytes: as for `check`.
    """
    whole_module_check.import_shardings(original, pipeline, session)
    checker = _Checker(original, ours, pipeline, session, [], most_bytes, False)
    start_s = time.perf_counter()
    try:
        with original.context, ir.Location.unknown():
            progress.at("checking values")
            found = checker.beside_ours()
    except _NotChecked as reason:
        found = ValuesCheck(NOT_CHECKED, str(reason))
    return replace(found, runs=checker.runs, seconds=time.perf_counter() - start_s)


def problem_of_stock(
    original: ir.Module, pipeline: Pipeline, session: Session, *, most_bytes: int = checks.MOST_VALUE_BYTES
) -> str:
    """Returns in words where stock XLA computes a module wrongly; empty if it is right, or if that is not known.

    The module runs, on CPU devices and unsharded on one, only if it has an op that XLA may compute wrongly.
    """
    whole_module_check.import_shardings(original, pipeline, session)
    with original.context, ir.Location.unknown():
        if not suspects.may_be_wrong(original):
            return ""
        progress.at("whole-module check: looking whether stock XLA computes it rightly")
        try:
            return _Checker(original, original, pipeline, session, [], most_bytes, False).problem_of_stock()
        except _NotChecked:
            return ""


@dataclass
class _Checker:
    """The check of one module. State: `inputs`; the number of `runs`, and of `attempts`: the runs with fewer sites."""

    original: ir.Module
    rewritten: ir.Module
    pipeline: Pipeline
    session: Session
    rows: list[dict]
    most_bytes: int
    is_checked_as_a_whole: bool
    inputs: list[np.ndarray] = field(default_factory=list)
    runs: int = 0
    attempts: int = 0

    def run(self) -> tuple[ir.Module, ValuesCheck]:
        self._refuse_what_cannot_run()
        self._refuse_what_is_large()
        stock = self._run_stock()
        ours = self._run(self.rewritten)
        if stock.status == ours.status == "ok":
            status = self._status(stock.outputs, ours.outputs)
            if status != WRONG:
                return self.rewritten, ValuesCheck(status, _what_compares_nothing(stock), outputs=len(stock.outputs))
        found = self._verified()
        if found.ours.status == UNKNOWN:
            raise _NotChecked(
                f"there is nothing to compare with: {found.no_reference}, and with stock XLA: {found.stock.message}"
            )
        if found.ours.is_right and not found.no_reference or found.is_same_fault:
            return self.rewritten, self._kept(found)
        return self._without_what_is_wrong(found, stock)

    def beside_ours(self) -> ValuesCheck:
        """Returns how ours compares with stock, or with the unsharded module if they differ."""
        self._refuse_what_cannot_run()
        self._refuse_what_is_large()
        stock, ours = self._run_stock(), self._run(self.rewritten)
        if ours.status != "ok":
            return ValuesCheck(WRONG, module_verification.failure_text(ours))
        outputs = len(ours.outputs)
        if stock.status == "ok" and (status := self._status(stock.outputs, ours.outputs)) != WRONG:
            return ValuesCheck(status, _what_compares_nothing(stock), outputs=outputs)
        alone = self._run_unsharded()
        if alone is None:
            said = "it differs from stock XLA" if stock.status == "ok" else f"stock XLA: {stock.message}"
            raise _NotChecked(f"{said}, and it cannot run on one device")
        differences = self._differences(alone.outputs, ours.outputs)
        if off := [at for at, each in enumerate(differences) if not each.is_within_limit]:
            if self._is_rounding(self.rewritten, differences, alone):
                return ValuesCheck(ROUNDED, module_verification.ROUNDED_TEXT, outputs=outputs)
            return ValuesCheck(WRONG, f"output {off[0]} {_off(differences[off[0]])}", outputs=outputs)
        if stock.status != "ok":
            return ValuesCheck(WITHIN, module_verification.failure_text(stock), outputs=outputs)
        if self._is_rounding(self.original, self._differences(alone.outputs, stock.outputs), alone):
            return ValuesCheck(WITHIN, f"stock XLA is further off: {module_verification.ROUNDED_TEXT}", outputs=outputs)
        return ValuesCheck(STOCK_IS_WRONG, "stock XLA computes this program wrongly, ours is right", outputs=outputs)

    def _is_rounding(self, module: ir.Module, before: Sequence[Difference], alone: Ran) -> bool:
        """Returns whether a module differs from the unsharded one, whose run is given, by rounding, since it does not
        with floats of 64 bits."""
        wide = [None if each is None else widened(each) for each in (self._unsharded, module)]
        if wide[0] is None or wide[1] is None:
            return False
        inputs = widened_inputs(self.inputs)
        runs = self._run(wide[0], 1, inputs), self._run(wide[1], inputs=inputs)
        if any(each.status != "ok" for each in runs):
            return False
        roundings = roundings_of_results(self.original)
        return is_rounding(before, alone.outputs, runs[0].outputs, runs[1].outputs, roundings)

    def _run_unsharded(self) -> Ran | None:
        """Returns a run of the original on one device; None if there is none."""
        if self._unsharded is None:
            return None
        ran = self._run(self._unsharded, devices=1)
        return ran if ran.status == "ok" else None

    @functools.cached_property
    def _unsharded(self) -> ir.Module | None:
        numbered = self._copy(self.original)
        watched_modules.number_ops(numbered)
        try:
            return watched_modules.unsharded(numbered)
        except watched_modules.NoUnshardedForm:
            return None

    def problem_of_stock(self) -> str:
        self._refuse_what_cannot_run()
        self._refuse_what_is_large()
        numbered = self._copy(self.original)
        watched_modules.number_ops(numbered)
        devices = devices_of(numbered)
        try:
            found = module_verification.verify(numbered, None, devices, self._child, seed=SEED, timeout_s=MOST_SECONDS)
        except DiagnosedError as error:
            raise _NotChecked(error.diagnostics[0].message) from None
        return _problem_of(found.stock) if found.stock.status == WRONG else ""

    # ---- programs that are not run

    def _refuse_what_cannot_run(self) -> None:
        if devices_of(self.original) > MOST_DEVICES:
            raise _NotChecked(
                f"the module is for {devices_of(self.original)} devices, at most {MOST_DEVICES} are emulated"
            )
        if self.pipeline.emission == "sdy":
            raise _NotChecked("XLA does not read Shardy's collectives")
        for each in self.original.body.operations:
            for op in ops_in(each.operation):
                if problem := _why_not_run(op):
                    raise _NotChecked(problem)

    def _refuse_what_is_large(self) -> None:
        """Checks the bytes of a run. The arguments and results come first, because they need no compilation."""
        devices = devices_of(self.original)
        if (least := _bytes_of_signature(self.original)) > self.most_bytes:
            raise _NotChecked(f"arguments and outputs are {least:,} bytes, the limit is {self.most_bytes:,}")
        both = self.original, self.rewritten
        compiled = [self._child.compile(str(each), devices, timeout_s=MOST_SECONDS) for each in both]
        if compiled[1].status == "hang":
            raise _NotChecked(f"XLA does not compile the module in {MOST_SECONDS:g} s")
        total = max((present(each.peak_bytes) * devices for each in compiled if each.is_ok), default=0)
        if total > self.most_bytes:
            raise _NotChecked(f"a run takes {total:,} bytes on {devices} devices, the limit is {self.most_bytes:,}")

    # ---- runs

    @property
    def _child(self) -> xla_child.XlaChild:
        return at_hand.asked(self.session.options.at_hand, self.session.options.xla_child)

    def _run(self, module: ir.Module, devices: int | None = None, inputs: Sequence[np.ndarray] | None = None) -> Ran:
        self.runs += 1
        devices = devices or devices_of(self.original)
        inputs = self.inputs if inputs is None else inputs
        text = watched_modules.without_numbers(module)
        return self._child.run(text, inputs, devices, timeout_s=MOST_SECONDS, optimizes=False)

    def _run_stock(self) -> Ran:
        """Runs the original on inputs of both signs, or on positive ones if these give fewer infinities and NaNs.

        Infinite and NaN entries compare nothing.
        """
        try:
            self.inputs = module_verification.seeded(self.original, SEED)
        except DiagnosedError as error:
            raise _NotChecked(error.diagnostics[0].message) from None
        ran = self._run(self.original)
        if ran.status == "hang":
            raise _NotChecked(f"it does not end within {MOST_SECONDS:g} s")
        if not any(map(module_verification.not_finite, ran.outputs)):
            return ran
        normal, self.inputs = self.inputs, [module_verification.made_positive(each) for each in self.inputs]
        again = self._run(self.original)
        if again.status == "ok" and _not_finite(again) < _not_finite(ran):
            return again
        self.inputs = normal
        return ran

    # ---- the verdicts

    def _verified(self) -> Verification:
        """Returns the results of both modules and of the unsharded one, with the op at which a module departs."""
        numbered = self._copy(self.original)
        watched_modules.number_ops(numbered)
        rewritten = self._rewritten(numbered, self._sites())
        self.runs += 3  # the runs of the search are not counted
        return module_verification.verify(
            numbered, rewritten, devices_of(numbered), self._child, seed=SEED, timeout_s=MOST_SECONDS
        )

    def _status(self, expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> str:
        differences = self._differences(expected, found)
        if all(each.is_equal for each in differences):
            return EQUAL
        return WITHIN if all(each.is_within_limit for each in differences) else WRONG

    def _differences(self, expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> list[Difference]:
        limits: list[Rounding] = roundings_of_results(self.original)
        return [difference(a, b, each.limit) for a, b, each in zip(expected, found, limits, strict=True)]

    def _kept(self, found: Verification) -> ValuesCheck:
        if found.stock.is_right:
            return ValuesCheck(found.ours.status, found.ours.message, outputs=found.outputs)
        problem = _problem_of(found.stock)
        who = "stock XLA computes this program wrongly, and so does the rewritten one" if found.is_same_fault else (
            "stock XLA computes this program wrongly, the rewritten one does not"
        )  # fmt: skip
        if found.stock.status == module_verification.FAILED and not found.is_same_fault:
            who = "stock XLA does not run this program, the rewritten one is right"
        self.session.warning(self.original.operation, f"{who}: {problem}; run reshard verify on it")
        return ValuesCheck(STOCK_IS_WRONG, f"{who}: {problem}", outputs=found.outputs)

    # ---- giving back

    def _without_what_is_wrong(self, found: Verification, stock: Ran) -> tuple[ir.Module, ValuesCheck]:
        expected = self._expected(found, stock)
        rewritten = [row for row in self.rows if row.get("is_rewritten")]
        groups = groups_by_gain(rewritten)[::-1]  # the groups that gain most are tried first
        kept = self._largest_right([], groups, expected) if expected is not None and self._leaves_sites() else []
        problem = _problem_of(found.ours)
        if found.no_reference and found.ours.status == WRONG:
            problem = f"{problem}, compared with stock XLA alone: {found.no_reference}"
        dropped = self._drop([group for group in groups if group not in kept], problem)
        module = self._rewritten(self.original, _sites_in(kept)) if kept else self.original
        if self.is_checked_as_a_whole:
            module, worse = self._checked_again(module, kept)
            dropped += worse
        return module, ValuesCheck(GIVEN_BACK, problem, tuple(sorted(dropped)), found.outputs)

    def _expected(self, found: Verification, stock: Ran) -> Sequence[np.ndarray] | None:
        if found.no_reference:
            return stock.outputs if stock.status == "ok" else None
        ran = self._run_unsharded()
        return None if ran is None else ran.outputs

    def _leaves_sites(self) -> bool:
        return any(isinstance(each, SynthesizeCollectivesPass) for each in self.pipeline.passes)

    def _largest_right(self, kept: list, groups: list, expected: Sequence[np.ndarray]) -> list:
        """Returns the groups that may be rewritten beside `kept` with right values; wrong groups are halved."""
        half = len(groups) // 2
        if not half:
            return []
        first = self._if_right(kept, groups[:half], expected)
        is_second_wrong = len(first) == half  # both halves together are wrong, and the first half is right
        search = self._largest_right if is_second_wrong else self._if_right
        return first + search(kept + first, groups[half:], expected)

    def _if_right(self, kept: list, groups: list, expected: Sequence[np.ndarray]) -> list:
        if self.attempts >= MOST_ATTEMPTS:
            return []
        self.attempts += 1
        ran = self._run(self._rewritten(self.original, _sites_in(kept + groups)))
        if ran.status == "ok" and self._status(expected, ran.outputs) != WRONG:
            return groups
        return self._largest_right(kept, groups, expected)

    def _checked_again(self, module: ir.Module, kept: list) -> tuple[ir.Module, list[int]]:
        """Returns the module, or the original if the kept rewrites make it worse, and the sites dropped then."""
        devices, last = devices_of(self.original), self.session.results.checks[-1]
        network = SiteNetwork(last.topology)
        how = {"target": last.target, "has_final": network.has_final, "stands_in": network.stands_in}
        ours = self._child.compile(str(module), devices, **how) if kept else last.stock
        dropped: list[int] = []
        if kept and (problem := check_record.problem_of(last.stock, ours, self.original, self.pipeline)):
            dropped = self._drop(kept, f"without others the whole module is worse: {problem}")
            module, ours = self.original, last.stock
        handed_over = None if module is self.original else module
        self.session.results.checks[-1] = check_record.with_ours(
            last, ours, self.original, handed_over, self._sites(), self._child
        )
        return module, dropped

    def _drop(self, groups: list[list[int]], problem: str) -> list[int]:
        sites = sorted(_sites_in(groups))
        for row in self.rows:
            if row["site"] in sites:
                row["verdict"], row["is_rewritten"] = KEEP, False
                row["reason"] = f"with it the program computes other values: {problem}"
        noun = "site" if len(sites) == 1 else "sites"
        numbers = ", ".join(map(str, sites))
        self.session.warning(
            self.original.operation, f"{noun} {numbers} left to XLA: with the rewrite values differ: {problem}"
        )
        return sites

    # ---- modules

    def _sites(self) -> list[int]:
        return [row["site"] for row in self.rows if row.get("is_rewritten")]

    def _rewritten(self, original: ir.Module, sites: Sequence[int]) -> ir.Module:
        """Returns a copy of the original after another run of the pipeline, which rewrites these sites alone."""
        if not self._leaves_sites():
            module = self._copy(original)
            self.pipeline.run(module, Session(self.session.options))
            return module
        replanned = self._replanned if original is self.original else self._replanning(original)
        return replanned.with_sites(sites)

    @functools.cached_property
    def _replanned(self) -> Replanned:
        return self._replanning(self.original)

    def _replanning(self, original: ir.Module) -> Replanned:
        return Replanned(original, self.pipeline, self.session)

    def _copy(self, module: ir.Module) -> ir.Module:
        with module.context:
            return ir.Module.parse(asm_of(module.operation, enable_debug_info=True))


def _sites_in(groups: Sequence[Sequence[int]]) -> list[int]:
    return [site for group in groups for site in group]


def _not_finite(ran: Ran) -> int:
    return sum(map(module_verification.not_finite, ran.outputs))


def _bytes_of_signature(module: ir.Module) -> int:
    """Returns the bytes of all arguments and outputs of static shape; elements of unknown width count 8 bytes."""
    function = watched_modules.entry_function(module)
    types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    tensors = [
        ir.RankedTensorType(each) for each in (*types.inputs, *types.results) if isinstance(each, ir.RankedTensorType)
    ]
    fixed = [each for each in tensors if each.has_static_shape]
    return sum(math.prod(each.shape) * max(1, getattr(each.element_type, "width", 64) // 8) for each in fixed)


def _what_compares_nothing(ran: Ran) -> str:
    count, entries = _not_finite(ran), sum(each.size for each in ran.outputs)
    return f"{count:,} of {entries:,} entries are infinite or NaN, and compare nothing" if count else ""


def _why_not_run(op: ir.Operation) -> str:
    """Returns the reason why a program with this op is not run; empty if it may run."""
    if op.name in _TALKS_TO_OTHERS:
        return f"{op.name} talks to others than XLA"
    if op.name == "stablehlo.rng":
        return "stablehlo.rng gives other numbers each time"
    if op.name != "stablehlo.custom_call":
        return ""
    target = ir.StringAttr(op.attributes["call_target_name"]).value
    has_effect = "has_side_effect" in op.attributes and ir.BoolAttr(op.attributes["has_side_effect"]).value
    return f"the custom call {target} reaches beyond the program" if has_effect or "callback" in target else ""


def _problem_of(verdict: module_verification.Verdict) -> str:
    """Returns in words why one way to run the module failed or gave wrong outputs."""
    if verdict.status == FAILED:
        return verdict.message
    found = verdict.difference
    if found is None:  # the run before this one was compiled without LLVM's optimizations, or took too long
        return "one run fails or departs from stock XLA, another run has equal outputs"
    place = f" at {verdict.fault.place}" if verdict.fault and verdict.fault.place else ""
    first = f"; {verdict.fault.op}{place} is the first op that departs" if verdict.fault else ""
    return f"output {verdict.output} {_off(found)}{first}"


def _off(found: Difference) -> str:
    return found.problem or f"is off by {found.fraction:.3g} of its largest magnitude"
