# SPDX-License-Identifier: Apache-2.0
"""Records on disk: the answers of planning and of XLA for the sites of a module, kept for the next run.

**Contents.** Answers by their questions, as plain values. A question is a text with everything on which its answer
depends, except the sources of reshard and the versions of Python, jax and jaxlib, which are in the fingerprint of the
store. A record belongs to one set of questions: those of one module, or of modules that ask the same.

**Not kept.** All answers of a run in which XLA gave an answer that may differ at another try, because it was
out of time or memory; and answers of an XLA child that the caller has passed.

**The place.** The store on disk, under a digest of the questions; see `synthesis.common.store`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from reshard.passes.driver import stores
from reshard.synthesis.common import store


class SiteRecord:
    """The answers to some questions. A missing answer is computed, and `keep` writes it with the others.

    Args:
      key: the key of the record on disk; None for a record that is never kept.
    State: `_answers` by question; `_is_changed` if there is an answer that the record on disk does not have.

    Example:
      >>> SiteRecord(None).answer("how many?", lambda: 2)
      2
    """

    def __init__(self, key: str | None):
        self._key = key
        self._answers: dict[str, Any] = {} if key is None else stores.SITES.read(key, _decoded) or {}
        self._is_changed = False

    @property
    def is_new(self) -> bool:
        """Returns whether there is no answer yet."""
        return not self._answers

    def has(self, question: str) -> bool:
        """Returns whether the answer to a question is there."""
        return question in self._answers

    def answer(self, question: str, find: Callable[[], Any]) -> Any:
        """Returns the kept answer, or calls `find` for it. Answers are plain values that JSON can hold."""
        if question not in self._answers:
            self._answers[question] = find()
            self._is_changed = True
        return self._answers[question]

    def keep(self, is_lasting: bool = True) -> None:
        """Writes the answers to disk, if some of them are new, all are lasting, and the record has a key."""
        if self._key is not None and self._is_changed and is_lasting:
            stores.SITES.write(self._key, json.dumps(self._answers).encode())


def record_of(questions: Iterable[str]) -> SiteRecord:
    """Returns the record for a set of questions; if the caches are switched off, a record that is never kept."""
    return SiteRecord(store.key(*sorted(set(questions))) if store.is_on() else None)


def _decoded(entry: bytes) -> dict[str, Any]:
    """Returns the answers in an entry. Raises: TypeError, ValueError if there are none."""
    return dict(json.loads(entry))
