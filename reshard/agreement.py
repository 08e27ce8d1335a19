# SPDX-License-Identifier: Apache-2.0
"""How the processes of one job come to run the same program: one plans, and all take its answer or all take stock XLA's.

A program that spans devices of several processes must be compiled from the same module in each of them, or their
collectives wait for each other for ever. What a plan depends on can differ from process to process: caches, answers of
stock XLA that came too late, versions, options. So the members of a program, the processes that own its devices, agree on
it before they compile it, through the key-value store of `jax.distributed`:

  1. every member writes its *claim*: the module, the versions, the options;
  2. the first member, the *lead*, compares the claims and plans;
  3. it writes the *verdict*: its answer, or that all leave the program to XLA and why; all members act on that.

A verdict is written once and stands: whoever waits in vain for another writes "left to XLA", and whoever comes later finds
it there. No verdict depends on who reads it when, so no two members can act on different ones.

With the mode "verify" the others plan too, and what they would have done otherwise is reported; all still take the lead's.
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
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from reshard._version import __version__
from reshard.dialect_utils import compat

_log = logging.getLogger("reshard.agreement")

LEAD, VERIFY, OFF = MODES = ("lead", "verify", "off")
DEFAULT_TIMEOUT_S = 300.0
_ROOT = "reshard/agreement/1"
_FIRST_NOTICE_S = 10.0  # of waiting, before the log says for whom
_SIGNS_PER_TIMEOUT = 20  # signs of life that a working process gives in the time after which it counts as gone
_PATIENCE_WITH_ABSENT = 0.05  # of the timeout, for a process that was waited for in vain before

AGREED, REFUSED, FAILED = "agreed", "refused", "failed"


class DisagreementError(RuntimeError):
    """The processes of a job do not do the same, and there is nothing else that they could all do; the message is one line."""


class PeerError(RuntimeError):
    """The process that plans for all has failed; the message is its own. It raises what it met, the others raise this."""


class Store(Protocol):
    """What is shared: `compat.JobStore` of jax's distributed runtime, or anything that keeps bytes by key."""

    def put(self, key: str, value: bytes) -> None:
        """Keeps a value, in place of an older one."""

    def put_once(self, key: str, value: bytes) -> bool:
        """Keeps a value unless there is one; returns whether it did. Of several callers at once one gets True."""

    def get(self, key: str, timeout_s: float = 0) -> bytes | None:
        """Returns a value, waiting for it; None if there is none by then."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one process is about to compile.

    Fields:
      name: what the user would call it, as "jit_train_step".
      module: its text, without what may differ between processes that run the same program, such as locations.
      settings: (what, value) of all else that the answer depends on: options and versions.
      noun: what `module` is, for messages.
    """

    name: str
    module: str = field(repr=False)
    settings: tuple[tuple[str, str], ...] = ()
    noun: str = "module"

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that stand for the module."""
        return hashlib.sha256(self.module.encode()).hexdigest()[:16]

    def to_json(self) -> bytes:
        return json.dumps({"module": self.digest, "noun": self.noun, "settings": self.settings}).encode()

    def __str__(self) -> str:
        return f"{self.name} ({self.noun} {self.digest})"


@dataclass(frozen=True, slots=True)
class Answer:
    """What planning gave.

    Fields:
      payload: all that the other processes need to do the same.
      decisions: (site, what is done there and why) to tell what two processes that both planned would do otherwise.
    """

    payload: bytes
    decisions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all members do with a program.

    Fields:
      status: AGREED, take `payload`; REFUSED, do what needs no agreement, such as leaving a program to XLA; FAILED, raise.
      claim: of the lead, as JSON; of whoever gave up if there was none.
      problem: why it is not AGREED, with both values and the next action.
      warnings: what a user should look at though all agreed.
      payload: the lead's answer; where modules differ, the lead's.
      lead: the process that planned, or gave up.
    """

    status: str
    claim: bytes
    lead: int
    problem: str = ""
    warnings: tuple[str, ...] = ()
    payload: bytes = b""

    def to_bytes(self) -> bytes:
        head = [self.status, self.claim.decode(), self.lead, self.problem, self.warnings]
        return json.dumps(head).encode() + b"\n" + zlib.compress(self.payload)

    @classmethod
    def from_bytes(cls, content: bytes) -> Verdict:
        head, _, payload = content.partition(b"\n")
        status, claim, lead, problem, warnings = json.loads(head)
        return cls(status, claim.encode(), lead, problem, tuple(warnings), zlib.decompress(payload))


class Agreement:
    """One process's part in all agreements of a job.

    State: `_seen`, for each group of members and name the claims made so far, in order of their first time. The place in
    that order is where claims of different processes meet: the n-th program "jit_f" of one with the n-th of another.
    `_absent`: processes that were waited for in vain, for which later waits are short.

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
        self._lock = threading.Lock()

    def reach(self, members: Sequence[int], claim: Claim, plan: Callable[[], Answer]) -> Verdict:
        """Returns what all members do, AGREED or REFUSED.

        Args:
          members: process indices, this one among them; the lowest is the lead.
          plan: called here if this process is the lead, or verifies; may take long.
        Raises: what `plan` raises in the lead; PeerError in the others.
        """
        members = tuple(sorted(members))
        claim = replace(claim, settings=(*claim.settings, ("RESHARD_AGREEMENT", VERIFY if self._verifies else LEAD)))
        key = self._key(members, claim)
        content = self._store.get(f"{key}/verdict")
        if content is None:
            self._store.put(f"{key}/claim/{self._process}", claim.to_json())
            with self._giving_signs(key, claim):
                act = self._lead if self._process == members[0] else self._follow
                content = act(key, members, claim, plan)
        return self._obeyed(Verdict.from_bytes(content), claim)

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
        if problem := "; ".join(absences) or _differences(claims):
            has_other_module = any(json.loads(each)["module"] != claim.digest for each in claims.values())
            return self._settle(key, claim, REFUSED, problem, payload=claim.module.encode() if has_other_module else b"")
        try:
            answer = plan()
        except BaseException as error:
            problem = f"process {self._process} could not plan {claim.name}: {type(error).__name__}: {error}"
            self._settle(key, claim, FAILED, problem)
            raise
        warnings = self._other_answers(key, members, claim, answer) if self._verifies else ()
        return self._settle(key, claim, AGREED, warnings=warnings, payload=answer.payload)

    def _claims(self, key: str, members: tuple[int, ...], claim: Claim) -> tuple[dict[int, bytes], list[str]]:
        """Returns what each member claims, and in words which ones did not come in time."""
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
        """Returns in words what the other members would have done otherwise."""
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
            warnings += _other_decisions(claim, dict(theirs["decisions"]), member, dict(answer.decisions), self._process)
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

    def _settle(self, key: str, claim: Claim, status: str, problem: str = "", warnings: tuple = (), payload: bytes = b"") -> bytes:
        """Writes the verdict unless there is one; returns the one that stands."""
        content = Verdict(status, claim.to_json(), self._process, problem, warnings, payload).to_bytes()
        if self._store.put_once(f"{key}/verdict", content):
            return content
        return self._store.get(f"{key}/verdict", self._timeout_s)

    def _obeyed(self, verdict: Verdict, claim: Claim) -> Verdict:
        for each in verdict.warnings:
            _log.warning("%s; all processes do as process %d", each, verdict.lead)
        if verdict.status == FAILED:
            raise PeerError(verdict.problem)
        if verdict.status == AGREED and verdict.claim != claim.to_json():
            problem = _differences({verdict.lead: verdict.claim, self._process: claim.to_json()})
            return Verdict(REFUSED, verdict.claim, verdict.lead, problem)
        if verdict.status == REFUSED:
            return replace(verdict, problem=verdict.problem + _first_difference(verdict, claim))
        return verdict

    def _await(self, wanted: str, key: str, of: int, claim: Claim, patience_s: float) -> bytes | None:
        """Returns the value of the key `wanted`, which `of` will write; None if that gives no sign of life for long."""
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
                _log.log(level, "process %d waits for process %d at %s; %s", self._process, of, claim.name, self._whereabouts(of))
        return content

    @contextlib.contextmanager
    def _giving_signs(self, key: str, claim: Claim) -> Iterator[None]:
        """Tells the others while it lasts that this process is at work on a program."""
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
            f"{self._process} is; {self._whereabouts(member)}; compile the same programs with reshard in every process, or "
            "raise RESHARD_AGREEMENT_TIMEOUT_S"
        )

    def _whereabouts(self, member: int) -> str:
        content = self._store.get(f"{_ROOT}/at/{member}")
        return content.decode() if content else "it has come to none yet"


def _own_answer(plan: Callable[[], Answer]) -> bytes:
    try:
        return json.dumps({"decisions": plan().decisions}).encode()
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()


def _differences(claims: Mapping[int, bytes]) -> str:
    """Returns in words what the claims of other processes have otherwise than the first one's; empty if nothing."""
    (first, content), *others = sorted(claims.items())
    reference = json.loads(content)
    expected = dict(map(tuple, reference["settings"]))
    found = []
    for member, content in others:
        claim = json.loads(content)
        given = dict(map(tuple, claim["settings"]))
        names = [name for name in sorted({*expected, *given}) if expected.get(name) != given.get(name)]
        found += [
            f"{name}={given.get(name, 'unset')} in process {member}, {name}={expected.get(name, 'unset')} in process {first}"
            for name in names
        ]
        if claim["module"] != reference["module"]:
            found.append(
                f"process {member} has another {claim['noun']} ({claim['module']}) than process {first} ({reference['module']})"
            )
    if not found:
        return ""
    return "; ".join(found) + "; start every process with the same program, versions, options and RESHARD_* variables"


def _first_difference(verdict: Verdict, claim: Claim) -> str:
    """Returns the first line in which the lead's module and this process's differ; empty where they do not."""
    theirs = verdict.payload.decode().splitlines() if verdict.payload else []
    mine = claim.module.splitlines()
    for number, (here, there) in enumerate(zip(mine, theirs), start=1):
        if here != there:
            return f"; line {number} here: {here.strip()[:200]}; in process {verdict.lead}: {there.strip()[:200]}"
    return ""


def _other_decisions(claim: Claim, theirs: dict, member: int, ours: dict, lead: int) -> list[str]:
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return [
        f"{claim.name}, {name}: {theirs.get(name, 'nothing')} in process {member}, {ours.get(name, 'nothing')} in process {lead}; "
        "compare their caches (RESHARD_CACHE_DIR) and the load of their machines"
        for name in names
    ]


# ---------------------------------------------------------------------------------------------------------------------
# In a job of jax.distributed
# ---------------------------------------------------------------------------------------------------------------------


def members_of(devices: Sequence) -> tuple[int, ...]:
    """Returns the processes that have to agree on a program for `devices`: () unless several own some of them.

    Also () without `jax.distributed`, for devices that are only compiled for, and with RESHARD_AGREEMENT=off.
    """
    processes = tuple(sorted({device.process_index for device in devices}))
    if len(processes) < 2 or _mode() == OFF or compat.job_store() is None:
        return ()
    return processes if compat.are_attached(devices) else ()


def reach(members: Sequence[int], claim: Claim, plan: Callable[[], Answer]) -> Verdict:
    """As `Agreement.reach`, with the agreements of this process in this job; RESHARD_AGREEMENT_* are read at the first one."""
    with _lock:
        part = _of_job(compat.job_store())
    return part.reach(members, claim, plan)


def require(devices: Sequence, claim: Claim) -> None:
    """Returns if all processes that own some of `devices` claim the same, at once if they have before.

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
