# SPDX-License-Identifier: Apache-2.0
"""Whole results on disk: what a pipeline made of a module, so that the same module is read instead of compiled again.

**What is kept.** The output, and all that a run adds to its session: diagnostics, report rows, statistics, whole-module checks.
A hit puts the same into the session and returns the same bytes (R5).

**Under which key.** A digest of the module's bytes, locations and all; the pipeline with every option; the session's options;
what else the caller says that the output depends on. Entries lie in a folder named by a digest of the sources of reshard and the
versions of Python, jax and jaxlib: another reshard has another folder. A few newest folders stay.

**What is not kept.** Runs with passes other than ours, runs that print or time passes, failed runs, and runs in which XLA gave an
answer that another try may not give: it was out of time or memory.

**Processes.** As in `synthesis.plan_cache`: an entry is written to a file of its own and renamed, there are no locks, what cannot be
read counts as missing, what cannot be written is lost, the oldest entries go. `RESHARD_CACHE=off` keeps and reads nothing.

Example, of a caller:

    key = result_cache.key(source, pipeline, session, written_as="text")
    output = result_cache.run(key, session, lambda: compiled(source))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import contextlib
from dataclasses import asdict, dataclass
import functools
import hashlib
from importlib.util import find_spec
import json
from pathlib import Path
import sys
from typing import TYPE_CHECKING, Any
import zlib

from reshard.dialect_utils import compat, xla_child
from reshard.dialect_utils.compile_targets import Target
from reshard.dialect_utils.diagnostics import Diagnostic, Place
from reshard.dialect_utils.xla_child import Compiled, KindCount
from reshard.passes import registry
from reshard.passes.base import Session
from reshard.passes.instrumentation import Instrumentation
from reshard.passes.pipeline import Pipeline
from reshard.synthesis import cache_place

if TYPE_CHECKING:
    from reshard.passes.values_check import ValuesCheck
    from reshard.passes.whole_module_check import Check

MOST_ENTRIES = 1_000  # of a version
MOST_BYTES = 256 << 20  # of a version's entries together
MOST_ENTRY_BYTES = 64 << 20
MOST_VERSIONS = 4
_PACKAGES = ("reshard", "reshard.synthesis", "reshard.dialect_utils", "reshard.passes", "reshard.tools")
_OPTIONS = frozenset({"compile_for", "input", "with_provenance"})  # of a session: those that a key says all about
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Output:
    """What was made of a module.

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
    instrumentation: Instrumentation = Instrumentation(),
    **asked: str | int | bool | None,
) -> str | None:
    """Returns the name of the result; None if it is not to be kept, whatever it is.

    Args:
      source: the module as the pipeline gets it, locations included.
      asked: what else the output depends on, such as the form in which it is written.
    """
    if not cache_place.is_on() or not instrumentation.is_default or not _is_known(pipeline, session):
        return None
    digest = hashlib.sha256(repr((str(pipeline), sorted(session.options.items()), sorted(asked.items()))).encode())
    digest.update(hashlib.sha256(source).digest())
    return digest.hexdigest()


def run(key: str | None, session: Session, compute: Callable[[], Output]) -> Output:
    """Returns what `compute` returns, and lets the session have what that adds to it, from disk if it is there.

    Args:
      key: as `key` gives it; None computes. compute: runs passes in `session`; what it raises is raised and nothing is kept.
    """
    folder = None if key is None else folder_of_version("results")
    if folder is None:
        return compute()
    if (kept := _read(folder, key)) is not None:
        kept.into(session)
        return kept.output
    before, passing_before = _Mark.of(session), xla_child.shared_child().passing_answers
    output = compute()
    if output.is_lasting and xla_child.shared_child().passing_answers == passing_before:
        _write(folder, key, before.kept(session, output))
    return output


def recorded(session: Session, compute: Callable[[], Output]) -> tuple[Output, bytes]:
    """Returns what `compute` returns, and that with what it adds to the session as bytes, for `replayed`."""
    before = _Mark.of(session)
    output = compute()
    return output, _encoded("", before.kept(session, output))


def replayed(entry: bytes, session: Session) -> Output:
    """Returns the output in what `recorded` wrote, and lets the session have what it added to its own."""
    kept = _decoded("", entry)
    kept.into(session)
    return kept.output


def _is_known(pipeline: Pipeline, session: Session) -> bool:
    """Returns whether the key says all that the output depends on: a pipeline of ours, options that are plain values."""
    names = [getattr(each, "name", None) for each in pipeline.elements]  # MLIR's passes are text
    target = session.options.get("compile_for")
    return (
        names in [text.split(",") for text in registry.PIPELINES.values()]
        and all(type(each) is registry.load(each.name) for each in pipeline.passes)
        and session.options.keys() <= _OPTIONS
        and (target is None or target.platform == "cpu")  # the versions of other compilers are not in the key
    )


# What a run adds to a session


@dataclass(frozen=True, slots=True)
class _Kept:
    """An output with what its run added to the session."""

    output: Output
    diagnostics: tuple[Diagnostic, ...]
    rows: tuple[dict, ...]
    statistics: tuple[tuple[str, str, int], ...]
    checks: tuple[Check, ...]
    left_whole: str
    value_checks: tuple[ValuesCheck, ...] = ()

    def into(self, session: Session) -> None:
        session.left_whole = session.left_whole or self.left_whole
        session.diagnostics.diagnostics += self.diagnostics
        session.report_rows += self.rows
        session.statistics.update({(name, statistic): amount for name, statistic, amount in self.statistics})
        session.checks += self.checks
        session.value_checks += self.value_checks


@dataclass(frozen=True, slots=True)
class _Mark:
    """How much a session had before a run."""

    diagnostics: int
    rows: int
    statistics: Counter
    checks: int
    value_checks: int

    @classmethod
    def of(cls, session: Session) -> _Mark:
        counts = len(session.diagnostics.diagnostics), len(session.report_rows)
        return cls(*counts, Counter(session.statistics), len(session.checks), len(session.value_checks))

    def kept(self, session: Session, output: Output) -> _Kept:
        added = sorted((session.statistics - self.statistics).items())
        return _Kept(
            output,
            tuple(session.diagnostics.diagnostics[self.diagnostics :]),
            tuple(session.report_rows[self.rows :]),
            tuple((name, statistic, amount) for (name, statistic), amount in added),
            tuple(session.checks[self.checks :]),
            session.left_whole,
            tuple(session.value_checks[self.value_checks :]),
        )


# Entries: a digest of the rest; compressed, a line of JSON and the output's content


def _encoded(key: str, kept: _Kept) -> bytes:
    facts = _facts(key, kept)
    body = zlib.compress(json.dumps(facts).encode() + b"\n" + kept.output.content, 1)
    return hashlib.sha256(body).digest() + body


def _facts(key: str, kept: _Kept) -> dict[str, Any]:
    """Returns all but the content of the output, as JSON has it: lists and plain values."""
    return {
        "key": key,
        "is_unchanged": kept.output.is_unchanged,
        "diagnostics": [written(each) for each in kept.diagnostics],
        "rows": list(kept.rows),
        "statistics": [list(each) for each in kept.statistics],
        "checks": [asdict(each) for each in kept.checks],
        "left_whole": kept.left_whole,
        "value_checks": [asdict(each) for each in kept.value_checks],
    }


def _read_facts(key: str, entry: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the facts in an entry and the content of the output. Raises: any error if it is no entry of this key."""
    digest, body = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("the entry is not what was written")
    line, _, content = zlib.decompress(body).partition(b"\n")
    facts = json.loads(line)
    if facts["key"] != key:
        raise ValueError("the entry is another one's")
    return facts, content


def _decoded(key: str, entry: bytes) -> _Kept:
    """Returns what an entry holds. Raises: any error if it is no entry of this key."""
    facts, content = _read_facts(key, entry)
    return _Kept(
        Output(content, facts["is_unchanged"]),
        tuple(map(diagnostic, facts["diagnostics"])),
        tuple(facts["rows"]),
        tuple(map(tuple, facts["statistics"])),
        tuple(map(_check, facts["checks"])),
        facts["left_whole"],
        tuple(map(_value_check, facts["value_checks"])),
    )


def written(said: Diagnostic) -> list:
    """Returns a diagnostic as lists of plain values, for there may be thousands; see `diagnostic`."""
    place = said.place and [said.place.file, said.place.line, said.place.column]
    return [said.severity, said.message, place, [written(each) for each in said.notes]]


def diagnostic(written: list) -> Diagnostic:
    """Returns the diagnostic that `written` took apart."""
    severity, message, place, notes = written
    return Diagnostic(severity, message, place and Place(*place), tuple(map(diagnostic, notes)))


def _check(written: dict[str, Any]) -> Check:
    from reshard.passes.whole_module_check import Check  # with all that plans: a result that is read needs none of it

    dropped = tuple((tuple(sites), problem) for sites, problem in written["dropped"])
    target = written["target"] and Target(**{**written["target"], "shape": tuple(written["target"]["shape"])})
    return Check(_compiled(written["stock"]), _compiled(written["ours"]), dropped, written["is_rewritten"], target)


def _value_check(written: dict[str, Any]) -> ValuesCheck:
    from reshard.passes.values_check import ValuesCheck  # as above

    return ValuesCheck(**{**written, "dropped": tuple(written["dropped"])})


def _compiled(written: dict[str, Any]) -> Compiled:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
    return Compiled(**{**values, "collectives": tuple(KindCount(**each) for each in written["collectives"])})


# Files


def folder_of_version(kind: str) -> Path | None:
    """Returns the folder of what this reshard keeps of a kind; None if there is no place, or no sources to tell the version from."""
    try:
        version = _fingerprint()
        return None if version is None else cache_place.cache_root() / f"{kind}-{version[:16]}"
    except (OSError, RuntimeError):
        return None


@functools.cache
def _fingerprint() -> str | None:
    """Returns a digest of all of reshard's sources and of what they run on; None if they are not files, or one is missing."""
    try:
        digest = hashlib.sha256(repr((compat.jax_versions(), sys.version_info[:])).encode())
        folders = [Path(find_spec(name).submodule_search_locations[0]) for name in _PACKAGES]
        for path in sorted(each for folder in folders for end in ("*.py", "presets/*.toml") for each in folder.glob(end)):
            text = path.read_bytes()
            digest.update(f"{path.parent.name}/{path.name} {len(text)}\n".encode() + text)
    except (OSError, ImportError, AttributeError):
        return None
    return digest.hexdigest()


def _read(folder: Path, key: str) -> _Kept | None:
    try:
        return _decoded(key, cache_place.read(_path(folder, key), MOST_ENTRY_BYTES))
    except Exception:  # whatever is wrong with an entry, the passes know better
        return None


def _write(folder: Path, key: str, kept: _Kept) -> None:
    """Writes an entry, if what can be read from it is the result."""
    try:
        entry = _encoded(key, kept)
        if len(entry) > MOST_ENTRY_BYTES or not _says(entry, key, kept):
            return
    except Exception:  # a result that this file has no words for
        return
    with contextlib.suppress(OSError):
        if not folder.exists():
            import shutil

            for old in cache_place.newest_first(folder.parent.glob("results-*"))[MOST_VERSIONS - 1 :]:
                shutil.rmtree(old, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        _make_room(folder, len(entry))
        cache_place.replace(_path(folder, key), entry)


def _says(entry: bytes, key: str, kept: _Kept) -> bool:
    """Returns whether what can be read from an entry is the result; of thousands of diagnostics the plain values are compared."""
    if kept.checks or kept.value_checks:
        return _decoded(key, entry) == kept
    return _read_facts(key, entry) == (_facts(key, kept), kept.output.content)


def _make_room(folder: Path, size: int) -> None:
    """Removes the oldest files, unfinished ones too, for one more of `size` bytes; another process may be at the same."""
    left = MOST_BYTES - size
    for number, path in enumerate(cache_place.newest_first(folder.iterdir()), start=1):
        with contextlib.suppress(OSError):
            left -= path.stat().st_size
        if number >= MOST_ENTRIES or left < 0:
            path.unlink(missing_ok=True)


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}.result"
