# SPDX-License-Identifier: Apache-2.0
"""`reshard advise`: the few shardings of a module to change, with the line and the gain of each."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from reshard.planning.byte_sizes import ByteSizeError
from reshard.synthesis.network.topology import TopologyError
from reshard.tools.common.command import UserError, input_name, memory, whole_number, write_output
from reshard.tools.common.versions import versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from reshard.compiling.advising import Advice
    from reshard.dialect_utils.xla.child import XlaChild
    from reshard.passes.sites.network import SiteNetwork
    from reshard.tools.scripts.recording import Recording

SUMMARY = "name the few shardings to change, with the line and the gain of each"
SCRIPT_ENDING = ".py"
EPILOG = """\
A script runs in a child process, with the arguments behind --. Each program that it hands to XLA for more than one
device is recorded, and the longest one advised on. Ctrl-C ends the script, and the advice is on what there is. See
docs/advise.md.

Each line of the program with a sharding constraint may lose it, or get another PartitionSpec; a line without one may
get one. So may parameters, with what the program returns as their new values, and the mesh may get other sizes. Every
set of changes is compiled with stock XLA, and times are modelled on --topology; what is advised needs no more memory.

examples:
  reshard advise train.py --topology h100:4 -- -v    runs the script, and advises on its longest program
  reshard advise train.py --function step            ends the script once it has compiled step, and advises on that
  reshard advise train.py --devices 8                the script sees 8 CPU devices
  reshard advise step.mlir --topology h100:4         at most five changes, those that give most first
  reshard advise step.mlir --most 2 -o better.mlir   also writes the module with the changes
  reshard advise step.mlir --may-change constraints  changes lines alone, not how the program is called
  reshard advise step.mlir --effort 3                compiles up to three times as many programs

exit status: 0 done, also if nothing is to be gained; 1 XLA does not compile the module, the file or --topology has an
error, the script fails or has no such program, or FILE cannot be written; 2 the command line has an error.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command to its parser."""
    parser.add_argument(
        "module",
        metavar="MODULE",
        help="whatever reshard-opt reads, - is stdin; or a Python script, whose name ends in .py, with its arguments "
        "behind --",
    )
    parser.add_argument(
        "--function",
        metavar="NAME",
        default="",
        help="of a script: the program to advise on, such as step or jit_step; the script ends once it is recorded",
    )
    parser.add_argument(
        "--devices", type=whole_number, metavar="N", help="of a script: it sees N CPU devices (default: what is there)"
    )
    parser.add_argument(
        "--topology",
        metavar="NAME",
        help="the network: a preset such as h100:4 or v5e:4x4*2, or a TOML file (default: unknown, one switch, on "
        "which neither received bytes nor operations may rise)",
    )
    parser.add_argument("--most", type=whole_number, default=5, metavar="N", help="changes (default: 5)")
    parser.add_argument(
        "--effort", type=_effort, default=1.0, metavar="X", help="times the usual number of compilations (default: 1)"
    )
    parser.add_argument(
        "--memory-limit",
        type=memory,
        metavar="SIZE",
        help="the memory up to which the changed program may need more, per device, e.g. 12GiB, or 'device' for what a "
        "program may fill on --topology",
    )
    parser.add_argument(
        "--may-change",
        type=_words,
        metavar="WORDS",
        default=("constraints", "lines", "state", "mesh"),
        help="some of constraints; lines, those without a constraint, which may get one; state, the arguments that the "
        "program returns as new values; arguments, all of them; mesh, the sizes of its axes (default: "
        "constraints,lines,state,mesh)",
    )
    parser.add_argument("--stock-only", action="store_true", help="leave out what reshard-opt makes of both programs")
    parser.add_argument("-o", dest="output", metavar="FILE", help="write the module with the changes; - is stdout")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _effort(text: str) -> float:
    try:
        effort = float(text)
    except ValueError:
        effort = 0.0
    if not 0 < effort < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no effort; write a positive number")
    return effort


def _words(text: str) -> tuple[str, ...]:
    known = ("constraints", "lines", "state", "arguments", "mesh")
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in known:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
    return words


def contained_drive(flags: argparse.Namespace) -> int:
    """Returns the exit status of `drive`; what reads modules runs in a child process, whose death is a diagnostic."""
    from reshard.tools.common import contained

    return _drive(flags, contained.run)


def drive(flags: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. Raises: UserError."""
    return _drive(flags, lambda work, _name: work())


def _drive(flags: argparse.Namespace, run: Callable[[Callable[[], int], str], int]) -> int:
    if flags.output == "-" and flags.json:
        print("reshard advise: error: -o - and --json both write to stdout; give -o a file", file=sys.stderr)
        return 2
    recording = _recording(flags)
    return run(lambda: _advised(flags, recording), input_name(flags.module))


def _recording(flags: argparse.Namespace) -> Recording | None:
    """Returns what the script hands to XLA; None for a module. Raises: UserError."""
    if not flags.module.endswith(SCRIPT_ENDING):
        given = {"--function is": flags.function, "--devices is": flags.devices}
        given["arguments behind -- are"] = flags.script_arguments
        if wrong := next((name for name, value in given.items() if value), None):
            module = input_name(flags.module)
            raise UserError(f"{module} is read as a module; {wrong} for scripts, whose names end in {SCRIPT_ENDING}")
        return None
    from reshard.synthesis.network.topology import Topology
    from reshard.tools.scripts.recording import record

    if flags.topology is not None:
        try:
            Topology.parse(flags.topology)  # the script may take hours
        except TopologyError as error:
            raise UserError(str(error)) from None
    return record(flags.module, flags.script_arguments, flags.function, flags.devices)


def _advised(flags: argparse.Namespace, recording: Recording | None) -> int:
    from reshard.dialect_utils.ir.diagnostics import DiagnosedError

    try:
        found = _found(flags) if recording is None else _found_in(flags, recording)
    except DiagnosedError as error:
        print(*(each.in_file(input_name(flags.module)) for each in error.diagnostics), sep="\n", file=sys.stderr)
        return 1
    except (TopologyError, ByteSizeError) as error:
        raise UserError(str(error)) from None
    if flags.json:
        print(json.dumps({**found.to_dict(), "versions": versions()}, indent=2))
    else:
        print(str(found), end="", file=sys.stderr if flags.output == "-" else sys.stdout)
    if flags.output and (module := found.module) is not None:
        write_output(flags.output, module)
    elif flags.output:
        print("no module is written, since nothing is advised", file=sys.stderr)
    if found.found.stock is not None:
        return 0
    print(f"{input_name(flags.module)}: error: nothing is advised: {found.found.problem}", file=sys.stderr)
    return 1


def _found(flags: argparse.Namespace) -> Advice:
    from reshard.compiling.advising import site_network
    from reshard.dialect_utils.ir.module_files import ModuleFile, reading_limit_s
    from reshard.dialect_utils.platform.bindings import ir, make_context
    from reshard.dialect_utils.xla.child import XlaChild
    from reshard.passes.traffic.ledger import main_of, partitions_of
    from reshard.tools.common import contained

    network = site_network(flags.topology, flags.memory_limit)
    file = ModuleFile.read(flags.module)
    contained.enter("reading", cpu_s=reading_limit_s(file))
    with make_context() as context, ir.Location.unknown(context):
        module = file.chunks()[0].parse(context)
        main_of(module)  # raises before anything is compiled
        devices = partitions_of(module)
    network.topology.fitted(devices)  # raises before anything is compiled
    contained.enter("compiling")
    with XlaChild(num_devices=devices) as child:
        return _of_source(flags, file.content, file.name, network, child)


def _found_in(flags: argparse.Namespace, recording: Recording) -> Advice:
    from reshard.compiling.advising import site_network
    from reshard.dialect_utils.xla.child import XlaChild
    from reshard.tools.common import contained
    from reshard.tools.scripts.choosing import chosen

    network = site_network(flags.topology, flags.memory_limit)
    contained.enter("compiling")
    with XlaChild(num_devices=max((each.devices for each in recording.programs), default=1)) as child:
        program = chosen(recording, flags.function, network, child)
        network.topology.fitted(program.devices)  # raises before anything more is compiled
        return _of_source(flags, program.content, f"{recording.script}: {program.name}", network, child)


def _of_source(flags: argparse.Namespace, source: bytes, name: str, network: SiteNetwork, child: XlaChild) -> Advice:
    from reshard.compiling.advising import of_source

    how = {"most": flags.most, "effort": flags.effort, "with_ours": not flags.stock_only}
    how["may_change"] = flags.may_change
    return of_source(source, name, network, child=child, **how)
