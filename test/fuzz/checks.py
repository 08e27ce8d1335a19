# SPDX-License-Identifier: Apache-2.0
"""Checks one random program: what `reshard` makes of it against stock XLA. Run as a script it is the worker of `run.py`.

Each failure has a kind:
  crash       our code raised.
  refused     XLA does not compile our form, though it compiles the stock one.
  values      our outputs are neither stock's nor those of one device. Where only stock's are wrong, that is counted. Where
              stock XLA compiles nothing and the policy is always, which is tried without the check, it is a note if the check,
              which is on by default, gives it back.
  shardings   an output has another sharding than stock's.
  worse       under the policy better: more received bytes or temporaries than stock.
  changed     the lowered program is not what it was, or findings cannot be stripped again.
  again       under the policy better: the pipeline rewrites its own output once more. Under always this is counted only: with a
              chain of constraints gone, other users of its first value may get a conversion of their own.

Asked for the reference, it compares with one device also what stock and ours agree on, and what nothing was rewritten in. An
output that is wrong in both alike is a note: `wrong_alike` where something was rewritten, `wrong_left` where nothing was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
import json
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import jax
import numpy as np

import extended  # noqa: F401 - its operations are in recipes
from programs import Program
import reshard
from reshard.dialect_utils import compat
from reshard.dialect_utils.bindings import ir, make_context
from reshard.dialect_utils.canary import devices_of
from reshard.dialect_utils.xla_child import shared_child
from reshard.passes.base import Session
from reshard.passes.pipeline import Pipeline
from reshard.passes.whole_module_check import what_is_worse

TIMEOUT_S = 60.0
_FINDINGS = "find-mismatches,strip-findings"


@dataclass
class Outcome:
    """What became of one program. stock, ours: how XLA's compilation ended, and the run of what stock XLA compiled; ours is "" where nothing was rewritten."""

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
    """One program and what stock XLA and one device make of it; each part is made when it is first asked for.

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
        """What stock XLA computes; None where it does not compile the program, or where that fails."""
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
        subject.text
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
    """Returns why jax has no form for what stock XLA compiled: gradients are left open, and XLA may split them unevenly."""
    try:
        subject.lowered.compile() if subject.compiled.is_ok else None
        list(map(np.asarray, subject.outputs or ()))  # jax puts no array together of tiles that do not divide it
    except ValueError as error:
        return f"{type(error).__name__}: {error}"[:300]
    except Exception:
        return ""
    return ""


def _check(subject: Subject, policy: str, with_reference: bool, verifies_values: bool, outcome: Outcome) -> None:
    result = reshard.optimize(subject.lowered, policy=policy, check=policy == "better", verify_values=verifies_values)
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
        if stock.is_ok or policy == "better":
            outcome.fail("refused", f"{ours.status}: {ours.message[:600]}")
        return
    if policy == "better" and stock.is_ok and (problem := what_is_worse(stock, ours)):
        outcome.fail("worse", problem)
    _check_again(result, policy, outcome)
    _check_values(subject, result, with_reference, policy, outcome)


def _text(lowered: jax.stages.Lowered) -> str:
    return lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True)


def _compiled(text: str):
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        return shared_child().compile(str(module), devices_of(module), timeout_s=TIMEOUT_S)


def _count(result: reshard.optimizing.Result, outcome: Outcome) -> None:
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


def _check_again(result: reshard.optimizing.Result, policy: str, outcome: Outcome) -> None:
    if outcome.dropped or outcome.kept or outcome.skipped:
        return  # what was left to XLA may be judged otherwise around islands
    session = Session()
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(result.module)
        Pipeline.default().with_options({"policy": policy}).run(module, session)
    rows = [row for row in session.report_rows if row.get("is_rewritten")]
    if rows and policy == "always":
        outcome.again += 1
    elif rows:
        shown = ("kind", "op", "type", "source", "target", "why", "reason")
        outcome.fail("again", "\n".join(str({name: row[name] for name in shown}) for row in rows[:3]))


def _is_given_back(subject: Subject, number: int) -> bool:
    """Returns whether an output is right in what `optimize` makes of the program with every site and its checks, which are on by default."""
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
            if not mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim):
                outcome.fail("shardings", f"output {number} is {mine.sharding}, with stock XLA {theirs.sharding}")
        stock = [np.asarray(each) for each in stock]
    else:
        stock = subject.reference
    alike = []
    for number, (mine, theirs) in enumerate(zip(map(np.asarray, ours), stock, strict=True)):
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
            outcome.notes.append(f"output {number} is wrong where stock XLA fails, unless the module is checked: {problem}")
            continue
        stock_problem = _difference(theirs, reference, is_exact) or "equal"
        outcome.fail("values", f"output {number} against one device: {problem}; stock against one device: {stock_problem}")
    if with_reference and has_stock:
        outcome.wrong_alike = _note_what_is_wrong(subject, outcome, alike)


def _note_what_is_wrong(subject: Subject, outcome: Outcome, among: Sequence[int] | None = None) -> int:
    """Returns how many of stock's outputs one device contradicts; in words they are notes."""
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


def _run(program: Program, compiled: jax.stages.Compiled) -> Sequence[jax.Array]:
    shardings = compiled.input_shardings[0]
    arguments = [jax.device_put(value, sharding) for value, sharding in zip(program.arguments(), shardings, strict=True)]
    return jax.block_until_ready(compiled(*arguments))


def _difference(mine: np.ndarray, theirs: np.ndarray, is_exact: bool) -> str:
    """Returns in words how two outputs differ; empty if they do not, but for rounding where that may be."""
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
    """Returns whether ours may be right too: stock may gather what it sums, and then rounds no partial sums."""
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
    """Lets the child with stock XLA compile with the flags of this process. Temporaries of small programs come out otherwise, values do not."""
    stock = compat.cpu_devices_environment
    own = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    compat.cpu_devices_environment = lambda count: stock(count) | {"XLA_FLAGS": " ".join([stock(count)["XLA_FLAGS"], *own])}


def main() -> None:
    """Answers each line of stdin, a recipe and a policy, by a line with its outcome."""
    if "--fast" in sys.argv:
        _hurry_the_child()
    warnings.filterwarnings("ignore", message="Some donated buffers")
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        outcome = check(request["recipe"], request["policy"], request.get("reference", False), request.get("values", False))
        print(json.dumps(vars(outcome)), file=answers, flush=True)


if __name__ == "__main__":
    main()
