# SPDX-License-Identifier: Apache-2.0
"""`reshard plan` and `reshard explain`: from the command line to a plan and its text. MLIR is imported only on request."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
import json
from pathlib import Path
from typing import TYPE_CHECKING

from reshard.element_types import ElementTypeError, mlir_type, parse_type
from reshard.planning import plan
from reshard.synthesis.mesh import Mesh, MeshError
from reshard.synthesis.plan import NoPlanError, Plan
from reshard.synthesis.sharding import ShardingError
from reshard.synthesis.topology import Topology, TopologyError

if TYPE_CHECKING:
    from reshard.dialect_utils.peers import Answer
    from reshard.tools.reshard_verify import Verdict


class UserError(Exception):
    """What the user should read in one line."""


@dataclass(slots=True)
class Answered:
    """All that a command found; what was not asked for is empty.

    Attributes:
      topology: fitted to the mesh. answers: ours first, if a comparison was asked for.
    """

    plan: Plan
    tensor_type: str
    topology: Topology
    answers: list[Answer] = field(default_factory=list)
    verdict: Verdict | None = None


def drive(flags: argparse.Namespace) -> int:
    """Returns the exit status. Raises: UserError."""
    found = _answered(flags)
    if flags.json:
        print(json.dumps(_as_dict(found), indent=2))
    else:
        from reshard.tools.reshard_plan_text import as_text

        print(as_text(found))
        if flags.command == "explain":
            from reshard.tools.reshard_explain import as_text as explanation

            print(f"\n{explanation(found)}")
    return int(found.verdict is not None and not found.verdict.is_verified)


def _answered(flags: argparse.Namespace) -> Answered:
    try:
        element, shape = parse_type(flags.type)
        source, target = (_sharding_text(text) for text in (flags.source, flags.target))
        topology, mesh = Topology.parse(flags.topology), Mesh.parse(flags.mesh)
        goal = Mesh.parse(flags.to_mesh) if flags.to_mesh is not None else mesh
        options = {"topology": topology, "objective": flags.objective, "reduction": flags.reduction}
        options["target_mesh"] = goal
        planned = plan(source, target, mesh=mesh, shape=shape, dtype=element.name, **options)
        found = Answered(planned, mlir_type(element, shape), topology.fitted(planned.devices))
    except (MeshError, ShardingError, TopologyError, NoPlanError, ElementTypeError) as error:
        raise UserError(" ".join(str(error).split())) from None
    except MemoryError:
        raise UserError(f"planning {flags.type} on {mesh} needs more memory than this machine has") from None
    if planned.source.unreduced or planned.target.unreduced:
        _refuse_partial_sums(flags)
    if planned.target_mesh is not None and flags.compare:
        raise UserError(f"--compare is about pairs on one mesh; here they are {planned.mesh} and {planned.target_mesh}; leave --compare out")
    if flags.compare or flags.verify:
        _ask_xla(found, flags)
    return found


def _refuse_partial_sums(flags: argparse.Namespace) -> None:
    """Raises: UserError where a command cannot handle arrays of partial sums."""
    if flags.compare or flags.verify:
        raise UserError("XLA takes no arrays of partial sums: --compare and --verify need shardings without unreduced axes")
    if flags.command == "explain":
        raise UserError("explain has no words for partial sums yet; use reshard plan")


def _sharding_text(text: str) -> str:
    if not text.startswith("@"):
        return text
    if text == "@":
        raise UserError("@ without the name of a file; write @FILE, or a sharding")
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{text[1:]}: is not text") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{text[1:]}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from None


def _ask_xla(found: Answered, flags: argparse.Namespace) -> None:
    """Fills in the answers of the peers and the verdict, with one child process for all of them."""
    from reshard.dialect_utils.xla_child import XlaChild
    from reshard.tools.reshard_verify import refusal, verify

    if flags.verify and (reason := refusal(found.plan)):
        raise UserError(reason)
    with XlaChild(num_devices=found.plan.devices) as child:
        if flags.compare:
            found.answers = _compared(found, flags.compare, child)
        if flags.verify:
            found.verdict = verify(found.plan, found.tensor_type, child)


def _compared(found: Answered, names: tuple[str, ...], child) -> list[Answer]:
    from reshard.dialect_utils import peers

    ours, tensor = found.plan, found.tensor_type
    answers = [peers.our_answer(tensor, ours, child if "xla" in names else None)]
    for name in names:
        if name == "xla":
            answers.append(peers.xla_answer(tensor, ours.mesh, ours.source, ours.target, child))
        else:
            answers.append(peers.shardy_answer(tensor, ours.mesh, ours.shape, ours.bits, ours.source, ours.target))
    return answers


def _as_dict(found: Answered) -> dict:
    """Returns `Plan.to_dict()`, and `comparison`, `verified` and `measured_peak_bytes` where they were asked for."""
    values = found.plan.to_dict()
    if found.answers or found.verdict:
        from reshard.tools.versions import versions

        values["versions"] |= versions()
    if found.answers:
        values["comparison"] = {each.name: _answer_dict(each, found.topology) for each in found.answers}
    if found.verdict:
        values["verified"] = found.verdict.is_verified
        values["verification"] = found.verdict.text
        values["measured_peak_bytes"] = found.verdict.peak_bytes
    return values


def _answer_dict(answer: Answer, topology: Topology) -> dict:
    time_s = answer.collectives_time_s(topology)
    return {
        "status": answer.status,
        "message": answer.message,
        "bytes_received": answer.bytes_received,
        "collectives": answer.collective_runs if answer.is_ok else None,
        "collectives_time_us": None if time_s is None else round(time_s * 1e6, 6),
        "temp_bytes": answer.temp_bytes,
    }
