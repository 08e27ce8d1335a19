# SPDX-License-Identifier: Apache-2.0
"""Messages between the processes of a job before they compile a program: claims, answers and a verdict.

The functions describe in words how two of them differ.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

AGREED, REFUSED, FAILED = "agreed", "refused", "failed"


@dataclass(frozen=True, slots=True)
class Claim:
    """The program that one process is about to compile.

    Fields:
      name: the name for the user, such as "jit_train_step".
      module: its text, without what may differ between processes that run the same program, such as locations.
      settings: (what, value) of all else that the answer depends on: options and versions.
      noun: the word for `module` in messages.
    """

    name: str
    module: str = field(repr=False)
    settings: tuple[tuple[str, str], ...] = ()
    noun: str = "module"

    @property
    def digest(self) -> str:
        """Returns sixteen hexadecimal digits that identify the module."""
        return hashlib.sha256(self.module.encode()).hexdigest()[:16]

    def to_json(self) -> bytes:
        return json.dumps({"module": self.digest, "noun": self.noun, "settings": self.settings}).encode()

    def __str__(self) -> str:
        return f"{self.name} ({self.noun} {self.digest})"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of planning in one process.

    Fields:
      payload: all that the other processes need to do the same.
      decisions: (site, what is done there and why) to tell what two processes that both planned would do otherwise.
    """

    payload: bytes
    decisions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a program that all members follow.

    Fields:
      status: AGREED, take `payload`; REFUSED, do what needs no agreement, such as leaving a program to XLA; FAILED,
        raise.
      claim: the claim of the lead as JSON; without a lead, that of a process that gave up.
      problem: why it is not AGREED, with both values and the next action.
      warnings: messages for the user although all processes agreed.
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


def differences(claims: Mapping[int, bytes]) -> str:
    """Returns a text on how other processes' claims differ from the first process's; empty if all are equal."""
    (first, content), *others = sorted(claims.items())
    reference = json.loads(content)
    expected = dict(map(tuple, reference["settings"]))
    found = []
    for member, content in others:
        claim = json.loads(content)
        given = dict(map(tuple, claim["settings"]))
        names = [name for name in sorted({*expected, *given}) if expected.get(name) != given.get(name)]
        found += [
            f"{name}={given.get(name, 'unset')} in process {member}, "
            f"{name}={expected.get(name, 'unset')} in process {first}"
            for name in names
        ]
        if claim["module"] != reference["module"]:
            found.append(
                f"process {member} has another {claim['noun']} ({claim['module']}) "
                f"than process {first} ({reference['module']})"
            )
    if not found:
        return ""
    return "; ".join(found) + "; start every process with the same program, versions, options and RESHARD_* variables"


def first_difference(verdict: Verdict, claim: Claim) -> str:
    """Returns a text with the first line in which the lead's module and this process's differ; empty if none does."""
    theirs = verdict.payload.decode().splitlines() if verdict.payload else []
    mine = claim.module.splitlines()
    for number, (here, there) in enumerate(zip(mine, theirs), start=1):
        if here != there:
            return f"; line {number} here: {here.strip()[:200]}; in process {verdict.lead}: {there.strip()[:200]}"
    return ""


def other_decisions(claim: Claim, theirs: dict, member: int, ours: dict, lead: int) -> list[str]:
    """Returns a sentence for each site about which another process and the lead decide differently."""
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return [
        f"{claim.name}, {name}: {theirs.get(name, 'nothing')} in process {member}, "
        f"{ours.get(name, 'nothing')} in process {lead}; "
        "compare their caches (RESHARD_CACHE_DIR) and the load of their machines"
        for name in names
    ]
