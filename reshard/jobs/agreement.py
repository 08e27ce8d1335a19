# SPDX-License-Identifier: Apache-2.0
"""Agreement of one job's processes on each program: one plans, and all use its answer, or all use stock XLA's.

A program that spans devices of several processes must be compiled from the same module in each of them, or their
collectives wait for each other for ever. What a plan depends on can differ from process to process: caches, answers of
stock XLA that came too late, versions, options. So the members of a program, the processes that own its devices, agree
on it before they compile it, through the key-value store of `jax.distributed`:

  1. every member writes its *claim*: the module, the versions, the options;
  2. the first member, the *lead*, compares the claims and plans;
  3. it writes the *verdict*: its answer, or the reason why all leave the program to XLA; all members act on it.

A verdict is written once and never changes. A member that waits in vain for another one writes the verdict "left to
XLA", and members that come later find it. A verdict does not depend on the reader or on the time, so all members act on
the same one.

In the mode "verify" the other members plan too, and decisions that differ from the lead's are reported; all members
still use the lead's answer.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from reshard.dialect_utils.platform import compat
from reshard.jobs.claims import (
    AGREED,
    FAILED,
    REFUSED,
    Answer,
    Claim,
    Verdict,
    differences,
    first_difference,
    other_decisions,
)
from reshard.synthesis.common.version import __version__

_log = logging.getLogger("reshard.jobs.agreement")

LEAD, VERIFY, OFF = MODES = ("lead", "verify", "off")
DEFAULT_TIMEOUT_S = 300.0
_ROOT = "reshard/agreement/1"
_FIRST_NOTICE_S = 10.0  # of waiting before the log names the process that is waited for
_SIGNS_PER_TIMEOUT = 20  # signs of life that a working process gives in the time after which it counts as gone
_PATIENCE_WITH_ABSENT = 0.05  # of the timeout, for a process that was waited for in vain before


class DisagreementError(RuntimeError):
    """Raised if a job's processes would do different things without a common fallback; the message is one line."""


class PeerError(RuntimeError):
    """Raised if the process that plans for all has failed, with its message.

    That process raises its own error; the other processes raise this one.
    """


class Store(Protocol):
    """The shared store: `compat.JobStore` of jax's distributed runtime, or any store that keeps bytes by key."""

    def put(self, key: str, value: bytes) -> None:
        """Stores a value under a key; it replaces an older value."""

    def put_once(self, key: str, value: bytes) -> bool:
        """Stores a value if the key has none, and returns whether it did; of several callers at once, one gets True."""
        ...

    def get(self, key: str, timeout_s: float = 0) -> bytes | None:
        """Returns the value of a key; None if there is still no value after `timeout_s` seconds."""


class Agreement:
    """One process's part in all agreements of a job.

    State: `_seen`: for each group of members and each name the claims made so far, in the order in which they were
    first made. Claims of different processes meet by their place in this order: the n-th program "jit_f" of one process
    is compared with the n-th of another process.
    `_absent`: processes that were waited for in vain; later waits for them are short.
    `_small`: verdicts without a payload, by key, because a request to the store takes a millisecond or two.

    Args:
      store: shared by all processes. process: this one's index.
      timeout_s: seconds without a sign of life from another process after which it counts as missing.
      verifies: whether processes other than the lead plan as well, to report differences.
    """

    def __init__(self, store: Store, process: int, *, timeout_s: float = DEFAULT_TIMEOUT_S, verifies: bool = False):
        self._store = store
        self._process = process
        self._timeout_s = timeout_s
        self._verifies = verifies
        self._seen: dict[tuple[tuple[int, ...], str], list[bytes]] = {}
        self._absent: set[int] = set()
        self._small: dict[str, Verdict] = {}
        self._lock = threading.Lock()

    def reach(self, members: Sequence[int], claim: Claim, plan: Callable[[], Answer]) -> Verdict:
        """Returns the verdict that all members act on, AGREED or REFUSED.

        Args:
          members: process indices, this one among them; the lowest is the lead.
          plan: called here if this process is the lead, or verifies; may take long.
        Raises: what `plan` raises in the lead; PeerError in the others.
        """
        members = tuple(sorted(members))
        claim = replace(claim, settings=(*claim.settings, ("RESHARD_AGREEMENT", VERIFY if self._verifies else LEAD)))
        key = self._key(members, claim)
        if key in self._small:
            return self._small[key]
        content = self._store.get(f"{key}/verdict")
        if content is None:
            self._store.put(f"{key}/claim/{self._process}", claim.to_json())
            with self._giving_signs(key, claim):
                act = self._lead if self._process == members[0] else self._follow
                content = act(key, members, claim, plan)
        verdict = self._obeyed(Verdict.from_bytes(content), claim)
        if not verdict.payload:
            self._small[key] = verdict
        return verdict

    def _key(self, members: tuple[int, ...], claim: Claim) -> str:
        with self._lock:
            seen = self._seen.setdefault((members, claim.name), [])
            content = claim.to_json()
            if content not in seen:
                seen.append(content)
            place = seen.index(content)
        group = hashlib.sha256(repr(members).encode()).hexdigest()[:8]
        return f"{_ROOT}/{group}/{claim.name}/{place}"

    # -- the lead --

    def _lead(self, key: str, members: tuple[int, ...], claim: Claim, plan: Callable[[], Answer]) -> bytes:
        claims, absences = self._claims(key, members, claim)
        if problem := "; ".join(absences) or differences(claims):
            has_other_module = any(json.loads(each)["module"] != claim.digest for each in claims.values())
            return self._settle(
                key, claim, REFUSED, problem, payload=claim.module.encode() if has_other_module else b""
            )
        try:
            answer = plan()
        except BaseException as error:
            problem = f"process {self._process} could not plan {claim.name}: {type(error).__name__}: {error}"
            self._settle(key, claim, FAILED, problem)
            raise
        warnings = self._other_answers(key, members, claim, answer) if self._verifies else ()
        return self._settle(key, claim, AGREED, warnings=warnings, payload=answer.payload)

    def _claims(self, key: str, members: tuple[int, ...], claim: Claim) -> tuple[dict[int, bytes], list[str]]:
        """Returns the claim of each member, and a sentence for each member that did not come in time."""
        start_s = time.monotonic()
        claims, absences = {self._process: claim.to_json()}, []
        for member in members[1:]:
            patience_s = self._patience_s(member)
            left_s = start_s + patience_s - time.monotonic()
            content = self._await(f"{key}/claim/{member}", key, member, claim, left_s)
            self._remember(member, content is not None)
            if content is None:
                absences.append(self._absence(member, claim, patience_s))
            else:
                claims[member] = content
        return claims, absences

    def _other_answers(self, key: str, members: tuple[int, ...], claim: Claim, answer: Answer) -> tuple[str, ...]:
        """Returns a sentence for each decision of another member that differs from the lead's."""
        warnings = []
        for member in members[1:]:
            content = self._await(f"{key}/answer/{member}", key, member, claim, self._timeout_s)
            if content is None:
                warnings.append(f"{claim.name}: process {member} did not say what it would have done")
                continue
            theirs = json.loads(content)
            if "error" in theirs:
                warnings.append(f"{claim.name}: process {member} could not plan it: {theirs['error']}")
                continue
            warnings += other_decisions(claim, dict(theirs["decisions"]), member, dict(answer.decisions), self._process)
        return tuple(warnings)

    # -- the others --

    def _follow(self, key: str, members: tuple[int, ...], claim: Claim, plan: Callable[[], Answer]) -> bytes:
        if self._verifies:
            self._store.put(f"{key}/answer/{self._process}", _own_answer(plan))
        lead = members[0]
        patience_s = self._patience_s(lead)
        content = self._await(f"{key}/verdict", key, lead, claim, patience_s)
        self._remember(lead, content is not None)
        return content or self._settle(key, claim, REFUSED, self._absence(lead, claim, patience_s))

    # -- all --

    def _settle(
        self, key: str, claim: Claim, status: str, problem: str = "", warnings: tuple = (), payload: bytes = b""
    ) -> bytes:
        """Writes the verdict if there is none yet; returns the verdict that is valid."""
        content = Verdict(status, claim.to_json(), self._process, problem, warnings, payload).to_bytes()
        if self._store.put_once(f"{key}/verdict", content):
            return content
        found = self._store.get(f"{key}/verdict", self._timeout_s)
        assert found is not None  # put_once has said that it is there
        return found

    def _obeyed(self, verdict: Verdict, claim: Claim) -> Verdict:
        for each in verdict.warnings:
            _log.warning("%s; all processes do as process %d", each, verdict.lead)
        if verdict.status == FAILED:
            raise PeerError(verdict.problem)
        if verdict.status == AGREED and verdict.claim != claim.to_json():
            problem = differences({verdict.lead: verdict.claim, self._process: claim.to_json()})
            return Verdict(REFUSED, verdict.claim, verdict.lead, problem)
        if verdict.status == REFUSED:
            return replace(verdict, problem=verdict.problem + first_difference(verdict, claim))
        return verdict

    def _await(self, wanted: str, key: str, of: int, claim: Claim, patience_s: float) -> bytes | None:
        """Returns the value of `wanted`, a key that process `of` writes; None if `of` gives no sign of life."""
        slice_s = min(1.0, self._timeout_s / _SIGNS_PER_TIMEOUT)
        start_s = now_s = time.monotonic()
        deadline_s, last_sign, has_noticed = start_s + patience_s, None, False
        while (content := self._store.get(wanted, slice_s)) is None:
            sign, now_s = self._store.get(f"{key}/sign/{of}"), time.monotonic()
            if sign is not None and sign != last_sign:
                deadline_s, last_sign = now_s + self._timeout_s, sign
            if now_s > deadline_s:
                return None
            if now_s - start_s > _FIRST_NOTICE_S and not has_noticed:
                has_noticed = True
                level = logging.WARNING if sign is None else logging.INFO
                _log.log(
                    level,
                    "process %d waits for process %d at %s; %s",
                    self._process,
                    of,
                    claim.name,
                    self._whereabouts(of),
                )
        return content

    @contextlib.contextmanager
    def _giving_signs(self, key: str, claim: Claim) -> Iterator[None]:
        """Tells the other processes that this process works on a program, until the `with` block ends."""
        is_over = threading.Event()
        at = f"{_ROOT}/at/{self._process}"

        def give() -> None:
            count = 0
            with contextlib.suppress(Exception):  # the job may end meanwhile
                while not is_over.is_set():
                    count += 1
                    self._store.put(f"{key}/sign/{self._process}", str(count).encode())
                    is_over.wait(self._timeout_s / _SIGNS_PER_TIMEOUT)

        self._store.put(at, f"it is at {claim}".encode())
        thread = threading.Thread(target=give, name="reshard-agreement", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._store.put(at, f"what it agreed on last is {claim}".encode())

    def _patience_s(self, member: int) -> float:
        return self._timeout_s * (_PATIENCE_WITH_ABSENT if member in self._absent else 1)

    def _remember(self, member: int, is_there: bool) -> None:
        (self._absent.discard if is_there else self._absent.add)(member)

    def _absence(self, member: int, claim: Claim, waited_s: float) -> str:
        return (
            f"process {member} did not answer at {claim} within {waited_s:g} s, where process "
            f"{self._process} is; {self._whereabouts(member)}; compile the same programs with reshard in every "
            "process, or raise RESHARD_AGREEMENT_TIMEOUT_S"
        )

    def _whereabouts(self, member: int) -> str:
        content = self._store.get(f"{_ROOT}/at/{member}")
        return content.decode() if content else "it has come to none yet"


def _own_answer(plan: Callable[[], Answer]) -> bytes:
    try:
        return json.dumps({"decisions": plan().decisions}).encode()
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()


# ---------------------------------------------------------------------------------------------------------------------
# In a job of jax.distributed
# ---------------------------------------------------------------------------------------------------------------------


def members_of(devices: Collection) -> tuple[int, ...]:
    """Returns the processes that have to agree on a program for `devices`; () if a single process owns them all.

    The result is also () without `jax.distributed`, for devices that are a target of compilation only, and with
    RESHARD_AGREEMENT=off.
    """
    processes = tuple(sorted({device.process_index for device in devices}))
    if len(processes) < 2 or _mode() == OFF or compat.job_store() is None:
        return ()
    return processes if compat.are_attached(tuple(devices)) else ()


def reach(members: Sequence[int], claim: Claim, plan: Callable[[], Answer]) -> Verdict:
    """Returns the result of `Agreement.reach` for this process and job.

    The variables RESHARD_AGREEMENT_* are read at the first call.
    """
    with _lock:
        part = _of_job(compat.job_store())
    return part.reach(members, claim, plan)


def require(devices: Collection, claim: Claim) -> None:
    """Returns once all processes that own some of `devices` claim the same; at once if they did so before.

    Raises: DisagreementError in all of them if they do not.
    """
    members = members_of(devices)
    if not members:
        return
    verdict = reach(members, claim, lambda: Answer(b""))
    if verdict.status != AGREED:
        raise DisagreementError(f"{claim.name}: {verdict.problem}")


def versions() -> tuple[tuple[str, str], ...]:
    """Returns the versions that a plan depends on, as settings of a claim."""
    jax, jaxlib = compat.jax_versions()
    return ("jax", jax), ("jaxlib", jaxlib), ("reshard", __version__)


def this_process() -> int:
    """Returns the index of this process in its job."""
    return compat.process_index()


_lock = threading.Lock()


@functools.lru_cache(maxsize=1)
def _of_job(store: Store) -> Agreement:
    return Agreement(store, compat.process_index(), timeout_s=_timeout_s(), verifies=_mode() == VERIFY)


def _mode() -> str:
    mode = os.environ.get("RESHARD_AGREEMENT", LEAD)
    if mode not in MODES:
        raise ValueError(f"RESHARD_AGREEMENT={mode} is not available; choose from {', '.join(MODES)}")
    return mode


def _timeout_s() -> float:
    text = os.environ.get("RESHARD_AGREEMENT_TIMEOUT_S", str(DEFAULT_TIMEOUT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"RESHARD_AGREEMENT_TIMEOUT_S={text} is no number of seconds; set it to some, as 300")
    return seconds
