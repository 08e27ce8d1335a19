# SPDX-License-Identifier: Apache-2.0
"""Which program of a recording is the one to advise on: the one that is asked for, or the longest one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from reshard.dialect_utils.xla.child import Compiled, CompileRequest, XlaChild
from reshard.passes.sites.network import SiteNetwork
from reshard.synthesis.common.numbers import counted, microseconds
from reshard.synthesis.common.text_table import table
from reshard.synthesis.network.topology import TopologyError
from reshard.tools.common.command import UserError
from reshard.tools.scripts.recording import Recorded, Recording

_MOST_ROWS = 10
_LEAST_SHARE = 0.01  # of the longest time: eager code compiles many small programs


@dataclass(frozen=True, slots=True)
class Timed:
    """A program with its modelled time as stock XLA compiles it; `problem` is why it has none."""

    program: Recorded
    seconds: float | None
    problem: str = ""


def chosen(recording: Recording, function: str, network: SiteNetwork, child: XlaChild) -> Recorded:
    """Returns the program that a function's name asks for, or the one with the longest modelled time.

    It says on standard error what was recorded, and which program it is.

    Raises: UserError if there is none; TopologyError if the network fits none.
    """
    if recording.is_interrupted:
        print(f"{recording.script}: ended by Ctrl-C", file=sys.stderr)
    if function:
        program = recording.named(function)
        if program is None:
            raise UserError(_no_such(recording, function))
        print(f"{recording.script}: advises on {program.name}, {counted(program.devices, 'device')}", file=sys.stderr)
        return program
    if not recording.programs:
        raise UserError(_no_program(recording))
    timed = sorted(
        _timed(recording.programs, network, child), key=lambda each: (each.seconds is None, -(each.seconds or 0.0))
    )
    print(_text(recording, timed), file=sys.stderr)
    if timed[0].seconds is None:
        raise UserError(f"{recording.script}: no program has a modelled time: {timed[0].problem}")
    return timed[0].program


def _timed(programs: Sequence[Recorded], network: SiteNetwork, child: XlaChild) -> list[Timed]:
    unfit = {each.devices: _misfit(network, each.devices) for each in programs}
    if all(unfit.values()):
        raise TopologyError(unfit[programs[0].devices])
    fitting = [each for each in programs if not unfit[each.devices]]
    requests = [CompileRequest(each.content, each.devices, has_final=network.has_final) for each in fitting]
    child.foresee(requests)
    compiled = [child.compile(each.module, each.num_devices, has_final=network.has_final) for each in requests]
    times = [_of(each, found, network) for each, found in zip(fitting, compiled)]
    return [*times, *(Timed(each, None, unfit[each.devices]) for each in programs if unfit[each.devices])]


def _misfit(network: SiteNetwork, devices: int) -> str:
    try:
        network.topology.fitted(devices)
    except TopologyError as error:
        return str(error)
    return ""


def _of(program: Recorded, compiled: Compiled, network: SiteNetwork) -> Timed:
    if not compiled.is_ok:
        return Timed(program, None, f"XLA does not compile it: {compiled.status}: {compiled.reason}")
    return Timed(program, network.time_beside(compiled, compiled, program.devices).seconds)


def _text(recording: Recording, timed: Sequence[Timed]) -> str:
    """Returns the programs with their times, the longest first, and how to choose another one."""
    name = timed[0].program.name
    if len(timed) == 1:
        return f"{recording.script}: advises on {name}, its only program for more than one device"
    alike: dict[tuple[str, int], list[Timed]] = {}
    for each in timed:
        alike.setdefault((each.program.name, each.program.devices), []).append(each)
    least = _LEAST_SHARE * (timed[0].seconds or 0.0)
    rows = [
        (name, str(devices), str(len(forms)), _time_text(forms[0]))
        for (name, devices), forms in alike.items()
        if (forms[0].seconds or 0.0) >= least
    ][:_MOST_ROWS]
    more = len(alike) - len(rows)
    return "\n".join(
        [
            f"{recording.script}: {len(timed)} programs for more than one device",
            table(("program", "devices", "forms", "modelled"), rows, "lrrr"),
            *([f"and {counted(more, 'other')}"] if more else []),
            *dict.fromkeys(f"{each.program.name} has no time: {each.problem}" for each in timed if each.problem),
            f"advises on {name}, the longest one; --function NAME chooses another",
            "",
        ]
    )


def _time_text(timed: Timed) -> str:
    return "-" if timed.seconds is None else microseconds(timed.seconds)


def _no_such(recording: Recording, function: str) -> str:
    names = ", ".join(dict.fromkeys(each.name for each in recording.programs))
    known = f"its programs for more than one device are {names}" if names else _no_program(recording, "it")
    return f"{recording.script}: no program for more than one device is named {function}; {known}"


def _no_program(recording: Recording, subject: str = "") -> str:
    """Returns in words that there is no program for more than one device, and what to do."""
    subject = subject or f"{recording.script}: the script"
    if not recording.singles:
        return f"{subject} hands no program to XLA through jax.jit"
    singles = counted(len(recording.singles), "program")
    return (
        f"{subject} hands {singles} to XLA, each for one device; give its arrays a mesh, and the script 8 CPU devices "
        "with --devices 8 if it sees only one"
    )
