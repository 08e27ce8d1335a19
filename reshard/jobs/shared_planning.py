# SPDX-License-Identifier: Apache-2.0
"""Modules that one process of a job plans for all: the other processes get its output and its report.

`agreement` tells which process plans, and what is done if the processes disagree.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.jobs import agreement
from reshard.jobs.claims import REFUSED, Answer, Claim
from reshard.passes.driver.base import Session
from reshard.passes.results import result_cache
from reshard.passes.results.result_cache import Output

_log = logging.getLogger("reshard.jobs.agreement")
_MADE, _DIAGNOSED = b"made ", b"diagnosed "


def run(
    members: Sequence[int],
    name: str,
    text: str,
    settings: Mapping[str, Any],
    session: Session,
    compute: Callable[[], Output],
) -> Output:
    """Returns the output of `compute` in the process that plans for all; the session gets its messages and results.

    If the processes disagree, the output is empty and marked as unchanged, and the session gets the reason.

    Args:
      members: the result of `agreement.members_of` for the program's devices; not ().
      name: the name of the module. text: the module without locations.
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

    claim = Claim(
        name, text, (*agreement.versions(), *((option, str(settings[option])) for option in sorted(settings)))
    )
    verdict = agreement.reach(members, claim, plan)
    if verdict.status == REFUSED:
        session.reset()  # the plans of this process are not used
        session.results.left_whole = f"{name} is left to XLA in all processes: {verdict.problem}"
        _log.warning("%s", session.results.left_whole)
        return Output(b"", is_unchanged=True, is_lasting=False)
    if verdict.payload.startswith(_DIAGNOSED):
        written = json.loads(verdict.payload.removeprefix(_DIAGNOSED))
        raise DiagnosedError([result_cache.diagnostic(each) for each in written])
    if made and verdict.lead == agreement.this_process():
        return made[0]
    return _replayed(verdict.payload.removeprefix(_MADE), session, name, verdict.lead)


def _replayed(entry: bytes, session: Session, name: str, lead: int) -> Output:
    session.reset()  # the plans of this process are not used
    _log.info("%s was planned by process %d", name, lead)
    return result_cache.replayed(entry, session)


def _decisions(session: Session, output: Output) -> tuple[tuple[str, str], ...]:
    """Returns the decision about each site with its reason, and a digest of the output module."""
    sites = [(f"site {row['site']}", f"{_action(row)}: {row['reason']}") for row in session.results.report_rows]
    return (*sites, ("module", hashlib.sha256(output.content).hexdigest()[:16]))


def _action(row: Mapping[str, Any]) -> str:
    return f"rewritten as {row['chain']}" if row.get("is_rewritten") else "left to XLA"
