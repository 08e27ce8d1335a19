# SPDX-License-Identifier: Apache-2.0
"""`reshard auto`: the mesh and the layouts of a whole module, chosen and compiled."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING

from reshard.planning.byte_sizes import ByteSizeError
from reshard.synthesis.layouts.mesh import MeshError
from reshard.synthesis.network.topology import TopologyError
from reshard.tools.common.command import UserError, input_name, memory, target_of, whole_number, write_output
from reshard.tools.common.versions import versions

if TYPE_CHECKING:
    from reshard.passes.layouts.choosing import Choice

MOST_DEVICES = 2048  # CPU devices of one process of XLA
SUMMARY = "choose the mesh and all layouts of a module, without annotations"
EPILOG = """\
The module needs no sharding. Which mesh axis splits which dimension of which tensor is chosen for the whole program at
once, by its modelled time on --topology, within --memory-limit. The most promising meshes are compiled. See
docs/auto.md.

examples:
  reshard auto step.mlir --devices 8 --topology h100:1x8 -o sharded.mlir    tries the shapes of a mesh of 8 devices
  reshard auto step.mlir --mesh x=4,y=2 --memory-limit 16GiB                one mesh, and a limit
  reshard auto step.mlir --mesh x=4,y=2 --tactics x=zero3,y=megatron        says what each axis is for
  reshard auto step.mlir --mesh data=8 --dimensions                         also lists which dimensions are split alike
  reshard auto step.mlir --mesh data=8 --free                              leaves out the shardings that it has
  reshard auto step.mlir --compile-for tpu:v5e:2x4 --memory-limit 16GiB     the compiler of a TPU judges the meshes

exit status: 0 done, or ended by Ctrl-C with the best program so far; 1 no layout keeps the limit, XLA does not compile
the module, or a file has an error; 2 the command line has an error.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command to its parser."""
    parser.add_argument("module", metavar="MODULE", help="whatever reshard-opt reads; - is stdin")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--mesh", metavar="AXES", help="the mesh, e.g. x=4,y=2")
    where.add_argument("--devices", type=whole_number, metavar="N", help="their number; the shapes of a mesh are tried")
    parser.add_argument(
        "--topology",
        metavar="NAME",
        help="the network: a preset such as h100:4 or v5e:4x4*2, or a TOML file (default: that of --compile-for, "
        "or unknown, one switch)",
    )
    parser.add_argument(
        "--compile-for",
        metavar="PLATFORM:DEVICES",
        help="the devices whose compiler judges the meshes, which need not be there: tpu:v5p:2x2x2, cuda:h100:1x1x8 "
        "(default: CPU devices, with times modelled on --topology)",
    )
    parser.add_argument(
        "--memory-limit",
        type=memory,
        metavar="SIZE",
        help="of each device, e.g. 16GiB, or 'device' for what a program may fill on --topology, else on --compile-for "
        "(default: none)",
    )
    parser.add_argument(
        "--compiled", type=whole_number, default=3, metavar="N", help="meshes that are compiled (default: 3)"
    )
    parser.add_argument(
        "--budget",
        type=whole_number,
        default=math.inf,
        metavar="SECONDS",
        help="try no other mesh after so long, once there is a program; Ctrl-C does the same (default: try all)",
    )
    parser.add_argument(
        "--tactics",
        default="",
        metavar="AXIS=TACTIC,...",
        help="what axes of --mesh may be for: data, zero1, zero3, sequence, megatron, expert, or several joined by +; "
        "without AXIS= all of them",
    )
    parser.add_argument("--free", action="store_true", help="leave out the shardings that the module has")
    parser.add_argument(
        "--dimensions",
        action="store_true",
        help="also list the named dimensions: what is split alike, over which axes, and where it conflicts",
    )
    parser.add_argument("-o", dest="output", metavar="FILE", help="write the module with its layouts; - is stdout")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def contained_drive(flags: argparse.Namespace) -> int:
    """Returns the exit status of `drive`, which runs in a child process; the child's death is a diagnostic."""
    from reshard.tools.common import contained

    return contained.run(lambda: drive(flags), input_name(flags.module))


def drive(flags: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. Raises: UserError."""
    from reshard.dialect_utils.assignment.factored_modules import KeptShardingError
    from reshard.dialect_utils.ir.diagnostics import DiagnosedError

    if flags.output == "-" and flags.json:
        print("reshard auto: error: -o - and --json both write to stdout; give -o a file", file=sys.stderr)
        return 2
    if not (flags.mesh or flags.devices or flags.compile_for):
        print("reshard auto: error: how many devices? give --mesh, --devices or --compile-for", file=sys.stderr)
        return 2
    if flags.tactics and not flags.mesh:
        print("reshard auto: error: --tactics names axes; name the mesh with --mesh", file=sys.stderr)
        return 2
    if problem := _problem_of_names(flags):
        print(f"reshard auto: error: {problem}", file=sys.stderr)
        return 2
    try:
        choice = _choice(flags)
    except DiagnosedError as error:
        if isinstance(error, KeptShardingError):
            error = error.with_hint("--free leaves such shardings out")
        print(*(each.in_file(input_name(flags.module)) for each in error.diagnostics), sep="\n", file=sys.stderr)
        return 1
    except (TopologyError, MeshError, ByteSizeError) as error:
        raise UserError(str(error)) from None
    from reshard.passes.layouts import choice_text
    from reshard.passes.layouts.choosing import INTERRUPTED
    from reshard.tools.common import contained

    if choice.ended == INTERRUPTED:
        contained.enter(contained.FINISHING)
    if flags.json:
        print(json.dumps({**choice_text.as_dict(choice), "versions": versions()}, indent=2))
    else:
        text = choice_text.as_text(choice, with_dimensions=flags.dimensions)
        print(text, end="", file=sys.stderr if flags.output == "-" else sys.stdout)
    if flags.output:
        write_output(flags.output, _text(choice))
    return 0


def _problem_of_names(flags: argparse.Namespace) -> str:
    """Returns in words what is wrong with the axes that --mesh and --tactics name, or with their sizes."""
    from reshard.synthesis.assignment.tactics import TacticError, check, parse
    from reshard.synthesis.layouts.mesh import Mesh

    try:
        mesh = Mesh.parse(flags.mesh) if flags.mesh else None
        axes = mesh.axis_names if mesh else ()
        check(parse(flags.tactics, axes), axes)
    except (MeshError, TacticError) as error:
        return str(error)
    devices = mesh.size if mesh else flags.devices or 0
    if not flags.compile_for and devices > MOST_DEVICES:
        return f"{devices:,} devices: XLA compiles for at most {MOST_DEVICES:,} CPU devices, which stand for the others"
    return ""


def _text(choice: Choice) -> str:
    from reshard.dialect_utils.platform.bindings import ir, make_context
    from reshard.dialect_utils.platform.typed import asm_of

    with make_context() as context, ir.Location.unknown(context):
        return asm_of(ir.Module.parse(choice.best.content).operation, enable_debug_info=True)


def _choice(flags: argparse.Namespace) -> Choice:
    from reshard.compiling.advising import site_network
    from reshard.compiling.automatic import choose
    from reshard.dialect_utils.ir.module_files import ModuleFile, reading_limit_s
    from reshard.dialect_utils.platform.bindings import ir, make_context
    from reshard.dialect_utils.xla.child import XlaChild
    from reshard.passes.layouts.choosing import meshes_for
    from reshard.passes.sites.network import of_target
    from reshard.synthesis.assignment.tactics import parse
    from reshard.synthesis.layouts.mesh import Mesh
    from reshard.tools.common import contained

    target = target_of(flags.compile_for)
    devices = flags.devices or (target.devices if target else 1)
    meshes = (Mesh.parse(flags.mesh),) if flags.mesh else meshes_for(devices)
    if target and meshes[0].size != target.devices:
        raise UserError(f"{flags.compile_for} has {target.devices} devices, and the mesh is for {meshes[0].size}")
    tactics = parse(flags.tactics, meshes[0].axis_names)
    network = site_network(flags.topology or (of_target(target) or None if target else None), flags.memory_limit)
    network.topology.fitted(meshes[0].size)  # raises before anything is compiled
    file = ModuleFile.read(flags.module)
    contained.enter("reading", cpu_s=reading_limit_s(file))
    with make_context() as context, ir.Location.unknown(context):
        file.chunks()[0].parse(context)  # its errors name the file
    contained.enter("compiling")
    with XlaChild(num_devices=1 if target else meshes[0].size) as child:
        return choose(
            file.content,
            file.name,
            meshes,
            network,
            compiled_meshes=flags.compiled,
            keeps_annotations=not flags.free,
            tactics=tactics,
            child=child,
            target=target,
            is_from_jax=False,
            budget_s=flags.budget,
            takes_interrupts=True,
        )
