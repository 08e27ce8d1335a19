# SPDX-License-Identifier: Apache-2.0
"""Modules planned once for all processes of a job: what one process made, with its report, is there in the others.

See `agreement` for who plans, and for what is done where the processes disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import hashlib
import json
import logging
from typing import Any

from reshard import agreement
from reshard.agreement import REFUSED, Answer, Claim
from reshard.dialect_utils.diagnostics import DiagnosedError
from reshard.passes import result_cache
from reshard.passes.base import Session
from reshard.passes.result_cache import Output

_log = logging.getLogger("reshard.agreement")
_MADE, _DIAGNOSED = b"made ", b"diagnosed "


def run(
    members: Sequence[int],
    name: str,
    text: str,
    settings: Mapping[str, Any],
    session: Session,
    compute: Callable[[], Output],
) -> Output:
    """Returns what `compute` returns in the process that plans for all, and lets the session have what that adds to it.

    Where the processes disagree, that is no output, unchanged, and the reason in the session.

    Args:
      members: what `agreement.members_of` says of the program's devices; not ().
      name: of the module. text: the module without locations.
      settings: the options that the output depends on.
      compute: runs passes in `session`.
    Raises: DiagnosedError in all processes if `compute` does; see `agreement.reach` for other errors.
    """
    made: list[Output] = []

    def plan() -> Answer:
        try:
            output, entry = result_cache.recorded(session, compute)
        except DiagnosedError as error:
            return Answer(_DIAGNOSED + json.dumps([result_cache.written(each) for each in error.diagnostics]).encode())
        made.append(output)
        return Answer(_MADE + entry, _decisions(session, output))

    claim = Claim(name, text, (*agreement.versions(), *((option, str(settings[option])) for option in sorted(settings))))
    verdict = agreement.reach(members, claim, plan)
    if verdict.status == REFUSED:
        _forget(session)
        session.left_whole = f"{name} is left to XLA in all processes: {verdict.problem}"
        _log.warning("%s", session.left_whole)
        return Output(b"", is_unchanged=True, is_lasting=False)
    if verdict.payload.startswith(_DIAGNOSED):
        written = json.loads(verdict.payload.removeprefix(_DIAGNOSED))
        raise DiagnosedError([result_cache.diagnostic(each) for each in written])
    if made and verdict.lead == agreement.this_process():
        return made[0]
    return _replayed(verdict.payload.removeprefix(_MADE), session, name, verdict.lead)


def _replayed(entry: bytes, session: Session, name: str, lead: int) -> Output:
    _forget(session)
    _log.info("%s was planned by process %d", name, lead)
    return result_cache.replayed(entry, session)


def _forget(session: Session) -> None:
    """Empties a session of what this process planned, since something else is done."""
    session.diagnostics.diagnostics.clear()
    session.report_rows.clear()
    session.statistics.clear()
    session.checks.clear()
    session.value_checks.clear()


def _decisions(session: Session, output: Output) -> tuple[tuple[str, str], ...]:
    """Returns what is done at each site and why, and a digest of what came out."""
    sites = [(f"site {row['site']}", f"{_action(row)}: {row['reason']}") for row in session.report_rows]
    return (*sites, ("module", hashlib.sha256(output.content).hexdigest()[:16]))


def _action(row: Mapping[str, Any]) -> str:
    return f"rewritten as {row['chain']}" if row.get("is_rewritten") else "left to XLA"
