# SPDX-License-Identifier: Apache-2.0
"""Whole results on disk: the output of a pipeline for a module, so that the same module is not compiled again.

**Contents.** The output, and everything that a run adds to its session: diagnostics, report rows, statistics,
checks. A later run with the same key adds the same to its session and returns the same bytes (R5).

**The key.** A digest of the module's bytes, including locations; the pipeline with every option; the session's
options; all other values on which the output depends, which the caller gives. The fingerprint of the store adds the
sources of reshard and the versions of Python, jax and jaxlib.

**Not kept.** Runs with passes other than ours, runs that print or time passes, failed runs, and runs in which
XLA gave an answer that may differ at another try, because it was out of time or memory.

**The place.** The store on disk; see `synthesis.common.store`.

Example of a caller:

    key = result_cache.key(source, pipeline, session, written_as="text")
    output = result_cache.run(key, session, lambda: compiled(source))
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils.ir.diagnostics import Diagnostic, Place
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.child import as_json, compiled_from
from reshard.dialect_utils.xla.compile_targets import Target, compiler_version
from reshard.passes.driver import registry, stores
from reshard.passes.driver.base import Session
from reshard.passes.driver.instrumentation import Instrumentation
from reshard.passes.driver.pipeline import Pipeline
from reshard.synthesis.common import store

if TYPE_CHECKING:
    from reshard.passes.results.values_check import ValuesCheck
    from reshard.passes.whole_module.check_record import Check

_PLAIN = Instrumentation()


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a run for a module.

    Attributes:
      content: the module as it is handed over. is_unchanged: whether it is the module that came.
      is_lasting: whether the same question has the same answer next time, as far as the caller knows.
    """

    content: bytes
    is_unchanged: bool
    is_lasting: bool = True


def key(
    source: bytes,
    pipeline: Pipeline,
    session: Session,
    instrumentation: Instrumentation = _PLAIN,
    **asked: str | int | bool | None,
) -> str | None:
    """Returns the key of the result; None if the result must not be kept.

    Args:
      source: the module as the pipeline gets it, locations included.
      asked: everything else on which the output depends, such as the form in which it is written.
    """
    if not store.is_on() or not instrumentation.is_default or not _is_known(pipeline, session):
        return None
    compiler = compiler_version(session.options.compile_for) if session.options.compile_for else ""
    return store.key(repr((str(pipeline), session.options, compiler, sorted(asked.items()))), source)


def run(key: str | None, session: Session, compute: Callable[[], Output]) -> Output:
    """Returns the output of `compute`, from disk if it is there; the session gets the same additions either way.

    Args:
      key: the key of the result; with None nothing is read or kept.
      compute: runs passes in `session`. If it raises an error, the error is raised and nothing is kept.
    """
    if key is None:
        return compute()
    if (kept := stores.RESULTS.read(key, _decoded)) is not None:
        kept.into(session)
        return kept.output
    before, passing_before = _Mark.of(session), xla_child.shared_child().passing_answers
    output = compute()
    if output.is_lasting and xla_child.shared_child().passing_answers == passing_before:
        _keep(key, before.kept(session, output))
    return output


def _keep(key: str, kept: _Kept) -> None:
    """Writes a result to disk, if the same result can be read from its entry."""
    try:
        entry = _encoded(kept)
        if not _says(entry, kept):
            return
    except Exception:  # a result may have values that an entry cannot hold
        return
    stores.RESULTS.write(key, entry)


def recorded(session: Session, compute: Callable[[], Output]) -> tuple[Output, bytes]:
    """Returns the output of `compute`, and bytes for `replayed` with this output and the additions to the session."""
    before = _Mark.of(session)
    output = compute()
    return output, _encoded(before.kept(session, output))


def replayed(entry: bytes, session: Session) -> Output:
    """Returns the output from the bytes of `recorded`, and makes the additions of the recorded run to the session."""
    kept = _decoded(entry)
    kept.into(session)
    return kept.output


def _is_known(pipeline: Pipeline, session: Session) -> bool:
    """Returns whether the key has all that the output depends on: a pipeline of ours, options of plain values."""
    names = [getattr(each, "name", None) for each in pipeline.elements]  # MLIR's passes are text
    return (
        names in [text.split(",") for text in registry.PIPELINES.values()]
        and all(type(each) is registry.load(each.name) for each in pipeline.passes)
        and session.options.xla_child is None
    )


# The additions of a run to a session


@dataclass(frozen=True, slots=True)
class _Kept:
    """An output with the additions of its run to the session."""

    output: Output
    diagnostics: tuple[Diagnostic, ...]
    rows: tuple[dict, ...]
    statistics: tuple[tuple[str, str, int], ...]
    checks: tuple[Check, ...]
    left_whole: str
    value_checks: tuple[ValuesCheck, ...] = ()

    def into(self, session: Session) -> None:
        session.results.left_whole = session.results.left_whole or self.left_whole
        session.results.diagnostics.diagnostics += self.diagnostics
        session.results.report_rows += self.rows
        session.results.statistics.update({(name, statistic): amount for name, statistic, amount in self.statistics})
        session.results.checks += self.checks
        session.results.value_checks += self.value_checks


@dataclass(frozen=True, slots=True)
class _Mark:
    """The amounts of everything that a session had before a run."""

    diagnostics: int
    rows: int
    statistics: Counter
    checks: int
    value_checks: int

    @classmethod
    def of(cls, session: Session) -> _Mark:
        counts = len(session.results.diagnostics.diagnostics), len(session.results.report_rows)
        return cls(
            *counts, Counter(session.results.statistics), len(session.results.checks), len(session.results.value_checks)
        )

    def kept(self, session: Session, output: Output) -> _Kept:
        added = sorted((session.results.statistics - self.statistics).items())
        return _Kept(
            output,
            tuple(session.results.diagnostics.diagnostics[self.diagnostics :]),
            tuple(session.results.report_rows[self.rows :]),
            tuple((name, statistic, amount) for (name, statistic), amount in added),
            tuple(each.without_work() for each in session.results.checks[self.checks :]),
            session.results.left_whole,
            tuple(session.results.value_checks[self.value_checks :]),
        )


# Entries: compressed, a line of JSON and the content of the output


def _encoded(kept: _Kept) -> bytes:
    return zlib.compress(json.dumps(_facts(kept)).encode() + b"\n" + kept.output.content, 1)


def _facts(kept: _Kept) -> dict[str, Any]:
    """Returns a result without the content of its output, as JSON has it: lists and plain values."""
    return {
        "is_unchanged": kept.output.is_unchanged,
        "diagnostics": [written(each) for each in kept.diagnostics],
        "rows": list(kept.rows),
        "statistics": [list(each) for each in kept.statistics],
        "checks": [_check_facts(each) for each in kept.checks],
        "left_whole": kept.left_whole,
        "value_checks": [asdict(each) for each in kept.value_checks],
    }


def _read_facts(entry: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the facts in an entry and the content of the output."""
    line, _, content = zlib.decompress(entry).partition(b"\n")
    return json.loads(line), content


def _decoded(entry: bytes) -> _Kept:
    """Returns the result in an entry. Raises: any error if there is none."""
    facts, content = _read_facts(entry)
    return _Kept(
        Output(content, facts["is_unchanged"]),
        tuple(map(diagnostic, facts["diagnostics"])),
        tuple(facts["rows"]),
        tuple(map(tuple, facts["statistics"])),
        tuple(map(_check, facts["checks"])),
        facts["left_whole"],
        tuple(map(_value_check, facts["value_checks"])),
    )


def _says(entry: bytes, kept: _Kept) -> bool:
    """Returns whether the same result can be read from an entry.

    Results without checks are compared as plain values, which is faster for thousands of diagnostics.
    """
    if kept.checks or kept.value_checks:
        return _decoded(entry) == kept
    return _read_facts(entry) == (_facts(kept), kept.output.content)


def written(said: Diagnostic) -> list:
    """Returns a diagnostic as lists of plain values, which are quick to read and write; see `diagnostic`."""
    place = said.place and [said.place.file, said.place.line, said.place.column]
    return [said.severity, said.message, place, [written(each) for each in said.notes]]


def diagnostic(written: list) -> Diagnostic:
    """Returns the diagnostic from the lists that `written` returns."""
    severity, message, place, notes = written
    return Diagnostic(severity, message, place and Place(*place), tuple(map(diagnostic, notes)))


def _check(written: dict[str, Any]) -> Check:
    # Imported here because it loads the planner, which is not needed to read a result without checks.
    from reshard.passes.whole_module.check_record import Check, Kept
    from reshard.passes.whole_module.other_orders import OtherOrder
    from reshard.synthesis.network.program_time import ProgramTime

    changes = {name: tuple((tuple(sites), reason) for sites, reason in written[name]) for name in ("dropped", "added")}
    times = {name: written[name] and ProgramTime(**written[name]) for name in ("stock_time", "our_time")}
    target = written["target"] and Target.parse(written["target"])
    sides = {name: compiled_from(written[name]) for name in ("stock", "ours")}
    generated_s, order = written["kept"]["generated_s"], written["kept"]["other_order"]
    kept = Kept(generated_s and tuple(generated_s), order and OtherOrder(**order))
    return Check(**{**written, **changes, **times, **sides, "target": target, "kept": kept})


def _check_facts(check: Check) -> dict[str, Any]:
    """Returns a check as plain values; see `_check`."""
    facts = {each.name: getattr(check, each.name) for each in fields(check)}
    for name in ("stock_time", "our_time"):
        facts[name] = facts[name] and asdict(facts[name])
    facts["target"] = facts["target"] and str(facts["target"])
    facts["kept"] = asdict(facts["kept"])
    return facts | {name: as_json(facts[name]) for name in ("stock", "ours")}


def _value_check(written: dict[str, Any]) -> ValuesCheck:
    from reshard.passes.results.values_check import ValuesCheck  # as above

    return ValuesCheck(**{**written, "dropped": tuple(written["dropped"])})
