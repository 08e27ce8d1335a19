# SPDX-License-Identifier: Apache-2.0
"""`reshard plan` and `reshard explain`: from the command line to a plan and its text.

MLIR is imported only if a flag needs it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshard.planning.element_types import ElementTypeError, mlir_type, parse_type
from reshard.planning.entry import pareto, plan
from reshard.synthesis.explain.alternatives import Alternative, rejected
from reshard.synthesis.explain.proofs import proof_of
from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.layouts.sharding import ShardingError
from reshard.synthesis.network.topology import Topology, TopologyError
from reshard.synthesis.planner.entry import NoPlanError, Plan
from reshard.tools.common.command import UserError, write_output

if TYPE_CHECKING:
    from reshard.dialect_utils.compare.peers import Answer
    from reshard.tools.commands.plan_verify import Verdict


@dataclass(slots=True)
class Answered:
    """All results of a command; a result that the user did not ask for is empty.

    Attributes:
      topology: fitted to the mesh. rejected: the best one first. pareto: the fastest first. answers: ours first, if a
        comparison was asked for.
    """

    plan: Plan
    tensor_type: str
    topology: Topology
    rejected: tuple[Alternative, ...] = ()
    pareto: tuple[Plan, ...] = ()
    answers: list[Answer] = field(default_factory=list)
    verdict: Verdict | None = None


def drive(flags: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. Raises: UserError."""
    found = _answered(flags)
    is_shown = _write_pictures(found, flags)
    if is_shown:
        return _status(found)
    if flags.json:
        print(json.dumps(_as_dict(found), indent=2))
    else:
        from reshard.tools.commands.plan_text import as_text

        print(as_text(found))
        if flags.command == "explain":
            from reshard.tools.commands.explain import as_text as explanation

            print(f"\n{explanation(found)}")
    return _status(found)


def _status(found: Answered) -> int:
    return int(found.verdict is not None and not found.verdict.is_verified)


def _write_pictures(found: Answered, flags: argparse.Namespace) -> bool:
    """Writes the pictures that the flags ask for; returns whether standard output has one, in place of the text."""
    paths = {form: path for form in ("html", "svg", "trace") if (path := getattr(flags, form, None))}
    for form, path in paths.items():
        write_output(path, _PICTURES[form](found, flags))
    return "-" in paths.values()


def _page(found: Answered, flags: argparse.Namespace) -> str:
    from reshard.pictures import explain_page
    from reshard.tools.commands.explain import as_text as explanation
    from reshard.tools.commands.plan_text import as_text

    words = f"{as_text(found)}\n\n{explanation(found)}"
    return explain_page.page_of(found.plan, found.topology, found.rejected, words, flags.memory_limit)


def _svg(found: Answered, flags: argparse.Namespace) -> str:
    from reshard.pictures.drawing import Drawing

    return Drawing(found.plan, found.topology, flags.memory_limit).svg()


def _trace(found: Answered, flags: argparse.Namespace) -> str:
    from reshard.pictures import trace

    return trace.as_json(found.plan, found.topology)


_PICTURES = {"html": _page, "svg": _svg, "trace": _trace}


def _answered(flags: argparse.Namespace) -> Answered:
    try:
        found = _planned(flags)
    except (MeshError, ShardingError, TopologyError, NoPlanError, ElementTypeError) as error:
        raise UserError(" ".join(str(error).split())) from None
    except MemoryError:
        mesh = Mesh.parse(flags.mesh)
        raise UserError(f"planning {flags.type} on {mesh} needs more memory than this machine has") from None
    if flags.compare:
        _check_comparison(found.plan, flags.compare)
    if flags.compare or flags.verify:
        _ask_xla(found, flags)
    return found


def _planned(flags: argparse.Namespace) -> Answered:
    """Returns the plan, its alternatives, and the other plans that the flags ask for."""
    element, shape = parse_type(flags.type)
    source, target = (_sharding_text(text) for text in (flags.source, flags.target))
    topology, mesh = Topology.parse(flags.topology), Mesh.parse(flags.mesh)
    problem = {
        "mesh": mesh,
        "shape": shape,
        "dtype": element.name,
        "topology": topology,
        "reduction": flags.reduction,
        "target_mesh": Mesh.parse(flags.to_mesh) if flags.to_mesh is not None else mesh,
    }
    limits = {"memory_limit": flags.memory_limit, "tile_limit": flags.tile_limit}
    planned = plan(source, target, objective=flags.objective, effort=flags.effort, **limits, **problem)
    found = Answered(planned, mlir_type(element, shape), topology.fitted(planned.devices), rejected(planned))
    if flags.pareto:
        found.pareto = pareto(source, target, **problem)
    return found


def _check_comparison(planned: Plan, names: tuple[str, ...]) -> None:
    """Raises: UserError if the pair cannot be compared with the peers of these names."""
    if "dtensor" in names:
        _refuse_without_torch()
    if planned.target_mesh is not None:
        meshes = f"{planned.mesh} and {planned.target_mesh}"
        raise UserError(f"--compare is about pairs on one mesh; here they are {meshes}; leave --compare out")
    if not planned.mesh.axes:
        raise UserError(f"--compare is about meshes with axes; {planned.mesh} is one device; leave --compare out")


def _refuse_without_torch() -> None:
    """Raises UserError, which names the package to install, if PyTorch is missing."""
    from reshard.dialect_utils.compare import peers_dtensor

    if not peers_dtensor.is_installed():
        raise UserError(peers_dtensor.HOW_TO_INSTALL)


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
    """Adds the peers' answers and the verdict to `found`, if asked for; one child process serves all of them."""
    from reshard.dialect_utils.ir.reductions import UnsupportedReduction
    from reshard.dialect_utils.xla.child import XlaChild
    from reshard.tools.commands.plan_verify import refusal, verify

    if flags.verify and (reason := refusal(found.plan)):
        raise UserError(reason)
    try:
        with XlaChild(num_devices=found.plan.devices) as child:
            if flags.compare:
                found.answers = _compared(found, flags.compare, child)
            if flags.verify:
                found.verdict = verify(found.plan, found.tensor_type, child)
    except UnsupportedReduction as error:
        raise UserError(str(error)) from None


def _compared(found: Answered, names: tuple[str, ...], child) -> list[Answer]:
    from reshard.dialect_utils.compare import peers, peers_dtensor

    ours, tensor = found.plan, found.tensor_type
    answers = [peers.our_answer(tensor, ours, child if "xla" in names else None)]
    for name in names:
        if name == "xla":
            answers.append(peers.xla_answer(tensor, ours.mesh, ours.source, ours.target, child, ours.reduction))
        elif name == "shardy":
            answers.append(peers.shardy_answer(tensor, ours.mesh, ours.shape, ours.bits, ours.source, ours.target))
        else:
            options = {"reduction": ours.reduction, "devices_per_host": found.topology.levels[-1].size}
            answers.append(
                peers_dtensor.dtensor_answer(ours.mesh, ours.shape, ours.bits, ours.source, ours.target, **options)
            )
    return answers


def _as_dict(found: Answered) -> dict:
    """Returns `Plan.to_dict()`, its proof in words, the rejected alternatives, and the results that were asked for.

    These results are `pareto`, `comparison`, `verified`, `verification` and `measured_peak_bytes`.
    """
    proof = proof_of(found.plan)
    values: dict[str, Any] = found.plan.to_dict() | {
        "proof": proof.text if proof else None,
        "rejected": [each.as_dict() for each in found.rejected],
    }
    if found.pareto:
        values["pareto"] = [_pareto_dict(each) for each in found.pareto]
    if found.answers or found.verdict:
        from reshard.tools.common.versions import versions

        values["versions"] |= versions()
    if found.answers:
        values["comparison"] = {each.name: _answer_dict(each, found.topology) for each in found.answers}
    if found.verdict:
        values["verified"] = found.verdict.is_verified
        values["verification"] = found.verdict.text
        values["measured_peak_bytes"] = found.verdict.peak_bytes
    return values


def _pareto_dict(plan: Plan) -> dict:
    totals = plan.to_dict()["totals"]
    shown = ("time_us", "bytes_received", "peak_bytes", "collectives")
    return {"chain": plan.chain_text} | {name: totals[name] for name in shown}


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
