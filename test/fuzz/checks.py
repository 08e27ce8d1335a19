# SPDX-License-Identifier: Apache-2.0
"""Checks one random program: the program that `reshard` rewrites is compared with stock XLA's.

As a script, this file is the worker of `run.py`. Each failure has a kind:
  crash       our code raised an exception.
  refused     XLA does not compile our form, although it compiles the stock form.
  values      our outputs are neither stock's nor those of one device. If only stock's are wrong, this is counted. If
              stock XLA compiles nothing and the policy is always, which runs here without the whole-module check, a
              wrong output is a note if that check, which is on by default, gives the rewrite back.
  shardings   an output has another sharding than stock's.
  worse       under the policy better: a longer modelled time or more temporaries than stock; unless ours is handed over
              because stock's values are wrong, and they do differ from those of one device.
  changed     the lowered program has changed, or findings cannot be stripped again.
  again       under the policy better: the pipeline rewrites its own output once more. Under always this is only
              counted: if a chain of constraints is gone, other users of its first value may get their own conversion.

With the reference, outputs on which stock and ours agree are also compared with one device, and so are programs in
which nothing was rewritten. An output that is wrong in both is a note: it is counted in `wrong_alike` if something was
rewritten, and in `wrong_left` if nothing was.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from unittest import mock

import extended  # noqa: F401 - its operations are in recipes
import jax
import numpy as np
from programs import Program

import reshard
from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.platform.global_arrays import as_numpy
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver import registry
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import chosen_layouts
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.whole_module.module_cost import ModuleCriterion

TIMEOUT_S = 60.0
# Forms of the output, which stand where a policy may: the policy is then `better`. `released` is local, with all
# conversions repeated that hold something, `held` with all held that loops would convert or reduce in each turn;
# `chosen` is auto with chosen layouts, which are taken if they may be.
AUTO, LOCAL, RELEASED, HELD, CHOSEN = "auto", "local", "released", "held", "chosen"
_FORMS_OF_LOCAL = {
    RELEASED: "import-gspmd,convert-to-local{release=1000000000000}",
    HELD: "import-gspmd,convert-to-local{hold=1000000000000}",
}
_LOCAL = frozenset({LOCAL, *_FORMS_OF_LOCAL})
_FINDINGS = "find-mismatches,strip-findings"


@dataclass
class Outcome:
    """The outcome of one program.

    `stock` and `ours` say how XLA's compilation ended, `stock` also if the stock program failed when it ran; `ours` is
    "" if nothing was rewritten.
    """

    seed: int
    failures: list[list[str]] = field(default_factory=list)
    stock: str = ""
    ours: str = ""
    invalid: str = ""
    found: Counter = field(default_factory=Counter)
    rewritten: Counter = field(default_factory=Counter)
    kept: Counter = field(default_factory=Counter)
    skipped: Counter = field(default_factory=Counter)
    values: Counter = field(default_factory=Counter)
    dropped: int = 0
    again: int = 0
    stock_wrong: int = 0
    wrong_alike: int = 0
    wrong_left: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def fail(self, kind: str, detail: str) -> None:
        self.failures.append([kind, detail])


class Subject:
    """One program, its form compiled by stock XLA, and its outputs; each part is computed when it is first used.

    Attributes:
      has_failed: whether what stock XLA compiled failed when it ran: its FFT wants another layout, say.
    """

    def __init__(self, recipe: Mapping):
        self.program = Program(recipe)
        self.has_failed = False

    @cached_property
    def lowered(self) -> jax.stages.Lowered:
        return self.program.lower()

    @cached_property
    def text(self) -> str:
        return _text(self.lowered)

    @cached_property
    def compiled(self):
        return _compiled(self.text)

    @cached_property
    def outputs(self) -> Sequence[jax.Array] | None:
        """The outputs of stock XLA; None if it does not compile the program, or if the run fails."""
        if not self.compiled.is_ok:
            return None
        try:
            return _run(self.program, self.lowered.compile())
        except jax.errors.JaxRuntimeError:
            self.has_failed = True
            return None

    @cached_property
    def reference(self) -> list[np.ndarray]:
        return self.program.unsharded()


@lru_cache(maxsize=1)  # for the next policy
def _subject(recipe_text: str) -> Subject:
    return Subject(json.loads(recipe_text))


def check(recipe: Mapping, policy: str, with_reference: bool = False, verifies_values: bool = False) -> Outcome:
    """Returns the outcome for one recipe; under the policy "always" every chain is rewritten, without the check.

    Args:
      with_reference: see above. verifies_values: whether `optimize` checks values too; what it gives back is a note.
    """
    outcome, start = Outcome(recipe["seed"]), time.perf_counter()
    subject = _subject(json.dumps(recipe))
    try:
        _ = subject.text  # makes the module
    except Exception as error:
        outcome.invalid = f"{type(error).__name__}: {error}"[:300]
        return outcome
    try:
        _check(subject, policy, with_reference, verifies_values, outcome)
    except Exception:
        if problem := _refused_by_jax(subject):
            outcome.invalid = problem
            return outcome
        outcome.fail("crash", traceback.format_exc())
    outcome.seconds = time.perf_counter() - start
    return outcome


def _refused_by_jax(subject: Subject) -> str:
    """Returns the error with which jax refuses stock XLA's program; "" if jax accepts it.

    The layouts of gradients are left open, and XLA may split them unevenly, which jax does not support.
    """
    try:
        subject.lowered.compile() if subject.compiled.is_ok else None
        list(map(np.asarray, subject.outputs or ()))  # jax cannot join tiles into an array that they do not divide
    except ValueError as error:
        return f"{type(error).__name__}: {error}"[:300]
    except Exception:
        return ""
    return ""


def _check(subject: Subject, policy: str, with_reference: bool, verifies_values: bool, outcome: Outcome) -> None:
    is_checked = policy in ("better", AUTO, CHOSEN)
    is_taken = mock.patch.object(chosen_layouts, "is_clearly_faster", return_value=True)
    try:
        with (
            mock.patch.dict(registry.EMISSIONS, {LOCAL: _FORMS_OF_LOCAL[policy]} if policy in _FORMS_OF_LOCAL else {}),
            is_taken if policy == CHOSEN else contextlib.nullcontext(),
        ):
            result = reshard.optimize(
                subject.lowered, **_options(policy), check=is_checked, verify_values=verifies_values
            )
    except DiagnosedError as refusal:
        if policy not in _LOCAL:
            raise
        outcome.skipped[_reason(str(refusal).splitlines()[0].split(": ", 3)[-1])] += 1
        return
    if _text(subject.lowered) != subject.text:
        outcome.fail("changed", "optimize changed the lowered program")
    _count(result, outcome)
    _check_stripping(subject.text, outcome)
    stock = subject.compiled
    outcome.stock = stock.status
    if not result.is_rewritten:
        if with_reference:
            outcome.wrong_left = _note_what_is_wrong(subject, outcome)
        return
    ours = _compiled(result.module)
    outcome.ours = ours.status
    if not ours.is_ok:
        if stock.is_ok or is_checked:
            outcome.fail("refused", f"{ours.status}: {ours.message[:600]}")
        return
    if is_checked and stock.is_ok and (problem := _problem(stock, ours, result.module, policy)):
        claims_wrong = any(each.get("wrong_stock") for each in result.report.to_dict()["checks"])
        if not (claims_wrong and _is_stock_wrong(subject)):
            outcome.fail("worse", problem)
    if policy not in (AUTO, CHOSEN, *_LOCAL):
        _check_again(result, policy, outcome)
    _check_values(subject, result, with_reference, policy, outcome)


def _options(policy: str) -> dict[str, str]:
    if policy in _LOCAL:
        return {"emit": LOCAL}
    if policy == CHOSEN:
        return {"emit": AUTO, "layouts": CHOSEN}
    return {"emit": AUTO} if policy == AUTO else {"policy": policy, "emit": "manual"}


def _problem(stock, ours, module: str, policy: str) -> str:
    with make_context() as context:
        devices = devices_of(ir.Module.parse(module, context))
    network = SiteNetwork(f"cpu:{devices}")  # that of the devices of a lowered program
    return ModuleCriterion("better", network, devices).problem(stock, ours, with_time=policy != CHOSEN)


def _text(lowered: jax.stages.Lowered) -> str:
    return lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True)


def _compiled(text: str):
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        return shared_child().compile(str(module), devices_of(module), timeout_s=TIMEOUT_S, has_final=True)


def _count(result: reshard.compiling.optimizing.Result, outcome: Outcome) -> None:
    for row in result.report.to_dict()["sites"]:
        outcome.found[row["kind"]] += 1
        if row.get("is_rewritten"):
            outcome.rewritten[row["kind"]] += 1
        else:
            outcome.kept[_reason(row["reason"])] += 1
    outcome.dropped = sum(len(each["dropped"]) for each in result.report.to_dict()["checks"])
    for each in result.report.to_dict().get("value_checks", ()):
        outcome.values[each["status"]] += 1
        if each["status"] == "given back":
            outcome.notes.append(f"sites {each['dropped']} are given back: {each['message']}")
    for remark in result.report.to_dict()["remarks"]:
        if "is left alone" in remark:
            outcome.skipped[_reason(remark.split("is left alone: ")[1])] += 1


def _reason(text: str) -> str:
    """Returns a reason without the numbers and names of this program."""
    words = text.removeprefix("no chain: ").split(":")[0].split(",")[0].split()
    kept = [word for word in words if not any(char.isdigit() for char in word) and not word.startswith(("[", "{", "@"))]
    return " ".join(kept)[:60]


def _check_stripping(source: str, outcome: Outcome) -> None:
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(source)
        before = module.operation.get_asm(enable_debug_info=True)
        Pipeline.parse(_FINDINGS).run(module, Session())
        if module.operation.get_asm(enable_debug_info=True) != before:
            outcome.fail("changed", "strip-findings does not restore the module")


def _check_again(result: reshard.compiling.optimizing.Result, policy: str, outcome: Outcome) -> None:
    if outcome.dropped or outcome.kept or outcome.skipped:
        return  # a site that was left to XLA may get another verdict next to islands
    session = Session()
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(result.module)
        Pipeline.default().with_options({"policy": policy}).run(module, session)
    rows = [row for row in session.results.report_rows if row.get("is_rewritten")]
    if rows and policy == "always":
        outcome.again += 1
    elif rows:
        shown = ("kind", "op", "type", "source", "target", "why", "reason")
        outcome.fail("again", "\n".join(str({name: row[name] for name in shown}) for row in rows[:3]))


def _is_given_back(subject: Subject, number: int) -> bool:
    """Returns whether an output is right if `optimize` rewrites every site and its checks run, as by default."""
    result = reshard.optimize(subject.lowered, policy="always")
    if not result.is_rewritten:
        return True
    mine = np.asarray(_run(subject.program, result.compile())[number])
    return not _difference(mine, subject.reference[number], subject.program.exact[number])


def _check_values(subject: Subject, result, with_reference: bool, policy: str, outcome: Outcome) -> None:
    program = subject.program
    ours = _run(program, result.compile())
    stock = subject.outputs
    has_stock = stock is not None
    if subject.has_failed:
        outcome.stock = "error"
    if has_stock:
        for number, (mine, theirs) in enumerate(zip(ours, stock, strict=True)):
            if policy not in _LOCAL and not mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim):
                outcome.fail("shardings", f"output {number} is {mine.sharding}, with stock XLA {theirs.sharding}")
        stock = [np.asarray(each) for each in stock]
    else:
        stock = subject.reference
    alike = []
    for number, (mine, theirs) in enumerate(zip(map(as_numpy, ours), stock, strict=True)):
        is_exact = program.exact[number]
        if not _difference(mine, theirs, is_exact):
            alike.append(number)
            continue
        reference = subject.reference[number]
        problem = _difference(mine, reference, is_exact)
        if has_stock and not is_exact and _is_rounding(mine, theirs, reference, program.epsilon):
            continue
        if not problem:
            outcome.stock_wrong += 1
            continue
        if not has_stock and policy == "always" and _is_given_back(subject, number):
            outcome.notes.append(
                f"output {number} is wrong where stock XLA fails, unless the module is checked: {problem}"
            )
            continue
        stock_problem = _difference(theirs, reference, is_exact) or "equal"
        outcome.fail(
            "values", f"output {number} against one device: {problem}; stock against one device: {stock_problem}"
        )
    if with_reference and has_stock:
        outcome.wrong_alike = _note_what_is_wrong(subject, outcome, alike)


def _note_what_is_wrong(subject: Subject, outcome: Outcome, among: Sequence[int] | None = None) -> int:
    """Returns the number of stock's outputs that differ from those of one device; adds a note for each."""
    if subject.outputs is None:
        outcome.stock = "error" if subject.has_failed else outcome.stock
        return 0
    notes = []
    for number in range(len(subject.outputs)) if among is None else among:
        theirs, reference = np.asarray(subject.outputs[number]), subject.reference[number]
        is_exact = subject.program.exact[number]
        problem = _difference(theirs, reference, is_exact)
        if problem and (is_exact or _error(_wide(theirs), _wide(reference)) > 16 * subject.program.epsilon):
            notes.append(f"output {number} is wrong with stock XLA and with ours: {problem}")
    outcome.notes += notes
    return len(notes)


def _is_stock_wrong(subject: Subject) -> bool:
    """Returns whether an output of stock XLA differs from that of one device."""
    pairs = zip(subject.outputs or (), subject.reference, subject.program.exact)
    return any(_difference(np.asarray(theirs), reference, is_exact) for theirs, reference, is_exact in pairs)


def _run(program: Program, compiled: jax.stages.Compiled) -> Sequence[jax.Array]:
    shardings = compiled.input_shardings[0]
    arguments = [
        jax.device_put(value, sharding) for value, sharding in zip(program.arguments(), shardings, strict=True)
    ]
    return jax.block_until_ready(compiled(*arguments))


def _difference(mine: np.ndarray, theirs: np.ndarray, is_exact: bool) -> str:
    """Returns a text on how two outputs differ; it is empty if they are equal, or within rounding where allowed."""
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return f"{mine.dtype}{mine.shape} for {theirs.dtype}{theirs.shape}"
    mine, theirs = _wide(mine), _wide(theirs)
    if np.array_equal(mine, theirs, equal_nan=True):
        return ""
    error = _error(mine, theirs)
    if not is_exact and error <= 1e-3:
        return ""
    return f"{np.count_nonzero(mine != theirs)} of {mine.size} entries, by {error:.2g} of the largest"


def _is_rounding(mine: np.ndarray, theirs: np.ndarray, reference: np.ndarray, epsilon: float) -> bool:
    """Returns whether the difference may be rounding: stock may gather before a sum and round no partial sums."""
    mine, theirs, reference = map(_wide, (mine, theirs, reference))
    return _error(mine, reference) <= 8 * _error(theirs, reference) + max(1e-3, 2 * epsilon)


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _error(mine: np.ndarray, theirs: np.ndarray) -> float:
    if not mine.size or np.array_equal(mine, theirs, equal_nan=True):
        return 0.0
    if not np.array_equal(np.isfinite(mine), np.isfinite(theirs)):
        return float("inf")
    is_finite = np.isfinite(theirs)
    scale = np.max(np.abs(theirs[is_finite]), initial=1e-6)
    return float(np.max(np.abs(mine[is_finite] - theirs[is_finite]), initial=0.0) / scale)


def _hurry_the_child() -> None:
    """Lets the child with stock XLA compile with the flags of this process.

    With these flags small programs may have other temporaries, but the values are the same.
    """
    stock = compat.cpu_devices_environment
    own = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    compat.cpu_devices_environment = lambda count: (
        stock(count) | {"XLA_FLAGS": " ".join([stock(count)["XLA_FLAGS"], *own])}
    )


def main() -> None:
    """Answers each line of stdin, a recipe and a policy, by a line with its outcome."""
    if "--fast" in sys.argv:
        _hurry_the_child()
    warnings.filterwarnings("ignore", message="Some donated buffers")
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        outcome = check(
            request["recipe"], request["policy"], request.get("reference", False), request.get("values", False)
        )
        print(json.dumps(vars(outcome)), file=answers, flush=True)


if __name__ == "__main__":
    main()
