# SPDX-License-Identifier: Apache-2.0
"""Records on disk: what planning, and judging with XLA's answers, came to at the sites of a module, so that neither is done again.

**What is kept.** Answers by their questions, as plain values. A question is a text that has all that its answer depends on but
reshard itself and the versions that it runs on: the folder is named by a digest of these, as that of `result_cache`. A record is
of one set of conversions: that of the same module, or of one that is like it in what matters here.

**What is not kept.** Answers behind which XLA gave one that another try may not give (it was out of time or memory), and those of
an XLA child of the caller's own.

**Processes.** As in `synthesis.plan_cache`: a record is written to a file of its own and renamed, there are no locks, what cannot be
read counts as missing, what cannot be written is lost, the oldest records go. `RESHARD_CACHE=off` keeps and reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from reshard.passes import result_cache
from reshard.synthesis import cache_place

KIND = "sites"
MOST_RECORDS = 1_000  # of a version
MOST_VERSIONS = 4
MOST_BYTES = 16 << 20  # of a record


class SiteRecord:
    """The answers to some questions; what is not there is answered, and kept with the rest by `keep`.

    State: `_answers` by question; `_is_changed` once one is there that the file has not.

    Example:
      >>> SiteRecord(None).answer("how many?", lambda: 2)
      2
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._answers: dict[str, Any] = {} if path is None else _read(path)
        self._is_changed = False

    def answer(self, question: str, find: Callable[[], Any]) -> Any:
        """Returns the answer that is kept, else what `find` returns: plain values, as JSON has them."""
        if question not in self._answers:
            self._answers[question] = find()
            self._is_changed = True
        return self._answers[question]

    def keep(self, is_lasting: bool = True) -> None:
        """Writes the answers, if there are new ones, they are lasting and there is a place for them."""
        if self._path is not None and self._is_changed and is_lasting:
            _write(self._path, self._answers)


def record_of(questions: Iterable[str]) -> SiteRecord:
    """Returns the record for modules with these questions, in any order; without a place on disk one that is never kept."""
    folder = result_cache.folder_of_version(KIND) if cache_place.is_on() else None
    if folder is None:
        return SiteRecord(None)
    key = hashlib.sha256(repr(sorted(set(questions))).encode()).hexdigest()
    return SiteRecord(folder / f"{key}.json")


# Files: a digest of the rest, a line of JSON


def _read(path: Path) -> dict[str, Any]:
    try:
        digest, _, body = cache_place.read(path, MOST_BYTES).partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return {}
        answers = json.loads(body)
    except (OSError, ValueError):
        return {}
    return answers if isinstance(answers, dict) else {}


def _write(path: Path, answers: dict[str, Any]) -> None:
    body = json.dumps(answers).encode()
    entry = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    if len(entry) > MOST_BYTES:
        return
    folder = path.parent
    with contextlib.suppress(OSError):
        if not folder.exists():
            import shutil

            for old in cache_place.newest_first(folder.parent.glob(f"{KIND}-*"))[MOST_VERSIONS - 1 :]:
                shutil.rmtree(old, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        for old in cache_place.newest_first(folder.iterdir())[MOST_RECORDS - 1 :]:
            old.unlink(missing_ok=True)
        cache_place.replace(path, entry)
