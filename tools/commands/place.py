# SPDX-License-Identifier: Apache-2.0
"""`reshard place`: which device of a network belongs where in the mesh of a module."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from reshard.synthesis.network.topology import TopologyError
from reshard.tools.common.command import UserError, input_name
from reshard.tools.common.versions import versions

if TYPE_CHECKING:
    from reshard.compiling.placing import Places

SUMMARY = "find the order of devices in which a module is fastest on a network"
EPILOG = """\
A placement says which part of which mesh axis lies on which level of the network: data: node 4; model: gpu 8. The
module is compiled once with stock XLA, and its collectives are priced under every placement; for the fastest ones it
goes through reshard-opt, too. The order of the device ids and jax's own order stand beside. See docs/place.md.

examples:
  reshard place step.mlir --topology h100:4x8              four nodes of eight GPUs
  reshard place step.mlir --topology v5p:4x4x4 --json      one JSON object, with the device ids of each placement
  reshard place step.mlir --topology v5e:4x4*2 --compiled 0   prices stock XLA's program only

exit status: 0 done, also if nothing is to be gained; 1 XLA does not compile the module, or the file or --topology has
an error; 2 the command line has an error.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command to its parser."""
    parser.add_argument("module", metavar="MODULE", help="whatever reshard-opt reads; - is stdin")
    parser.add_argument(
        "--topology", metavar="NAME", required=True, help="the network: a preset such as h100:4x8, or a TOML file"
    )
    parser.add_argument(
        "--compiled",
        type=_count,
        default=3,
        metavar="N",
        help="placements for which the module goes through reshard-opt (default: 3)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of at least 0")
    return int(text)


def contained_drive(flags: argparse.Namespace) -> int:
    """Returns the exit status of `drive`, which runs in a child process; the child's death is a diagnostic."""
    from reshard.tools.common import contained

    return contained.run(lambda: drive(flags), input_name(flags.module))


def drive(flags: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. Raises: UserError."""
    from reshard.dialect_utils.ir.diagnostics import DiagnosedError

    try:
        found = _found(flags)
    except DiagnosedError as error:
        print(*(each.in_file(input_name(flags.module)) for each in error.diagnostics), sep="\n", file=sys.stderr)
        return 1
    except TopologyError as error:
        raise UserError(str(error)) from None
    print(
        json.dumps({**found.to_dict(), "versions": versions()}, indent=2) if flags.json else str(found),
        end="\n" if flags.json else "",
    )
    return 0


def _found(flags: argparse.Namespace) -> Places:
    from reshard.compiling.placing import mesh_to_place, of_source
    from reshard.dialect_utils.ir.module_files import ModuleFile, reading_limit_s
    from reshard.dialect_utils.platform.bindings import ir, make_context
    from reshard.dialect_utils.xla.child import XlaChild
    from reshard.synthesis.network.topology import Topology
    from reshard.tools.common import contained

    topology = Topology.parse(flags.topology)
    file = ModuleFile.read(flags.module)
    contained.enter("reading", cpu_s=reading_limit_s(file))
    with make_context() as context, ir.Location.unknown(context):
        mesh = mesh_to_place(file.chunks()[0].parse(context))
    topology.fitted(mesh.size)  # raises before anything is compiled
    contained.enter("compiling")
    with XlaChild(num_devices=mesh.size) as child:
        return of_source(file.content, file.name, topology, compiled=flags.compiled, child=child)
