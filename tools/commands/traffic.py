# SPDX-License-Identifier: Apache-2.0
"""`reshard traffic`: each collective of a module, with its line, its bytes, its modelled time and its cause."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from reshard.synthesis.network.topology import DEFAULT, Topology, TopologyError
from reshard.tools.common.command import UserError, target_of, write_output
from reshard.tools.common.versions import versions

if TYPE_CHECKING:
    from reshard.compiling.traffic import Traffic

SUMMARY = "list each collective of a compiled module: its line, bytes, time, and why it is there"
EPILOG = """\
The module is compiled with stock XLA as it came, and after reshard-opt; each collective of both programs is one row,
the longest first. Times are modelled on --topology, one collective after the other. See docs/traffic.md.

examples:
  reshard traffic step.mlir                          the 20 longest collectives of both programs
  reshard traffic step.mlir --by line                a row for each line of the program
  reshard traffic step.mlir --topology v5e:4x4*2     on two TPU slices
  reshard traffic step.mlir --html traffic.html      a page with tables to sort and to filter
  reshard traffic step.mlir --topology v5e:4x4*2 --trace trace.json
                                                     the steps of both programs over time, for ui.perfetto.dev

exit status: 0 stock XLA compiles the module; 1 it does not, or the file or --topology has an error; 2 the command line
has an error.
"""
GROUPINGS = ("line", "kind", "cause", "axis", "level")
MOST = 20


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command to its parser."""
    parser.add_argument("module", metavar="MODULE", help="whatever reshard-opt reads; - is stdin")
    parser.add_argument(
        "--topology",
        default=DEFAULT,
        metavar="NAME",
        help="the network: a preset such as h100:4 or v5e:4x4*2, or a TOML file (default: uniform, one switch)",
    )
    parser.add_argument("--by", choices=GROUPINGS, help="a row for each line, kind, ..., in place of each collective")
    parser.add_argument(
        "--top", type=_rows, default=MOST, metavar="N", help=f"rows of a table; 0 for all (default: {MOST})"
    )
    parser.add_argument("--stock-only", action="store_true", help="leave out what reshard-opt makes of the module")
    parser.add_argument("--policy", choices=("better", "strict", "always"), help="of reshard-opt (default: better)")
    parser.add_argument("--compile-for", metavar="TARGET", help="compile ahead of time, e.g. for tpu:v5e:2x4")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a page with tables to sort and to filter; - is stdout")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write the modelled run of both programs as a trace for ui.perfetto.dev or chrome://tracing; - is stdout",
    )
    parser.set_defaults(usage_error=parser.error)


def _rows(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rows; write 0 for all")
    return int(text)


def contained_drive(flags: argparse.Namespace) -> int:
    """Returns the exit status of `drive`, which runs in a child process; the child's death is a diagnostic."""
    from reshard.tools.common import contained

    return contained.run(lambda: drive(flags), _name(flags))


def _name(flags: argparse.Namespace) -> str:
    return "<stdin>" if flags.module == "-" else flags.module


def drive(flags: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. Raises: UserError."""
    from reshard.dialect_utils.ir.diagnostics import DiagnosedError

    _check(flags)
    try:
        found = _found(flags)
    except DiagnosedError as error:
        print(*(each.in_file(_name(flags)) for each in error.diagnostics), sep="\n", file=sys.stderr)
        return 1
    except TopologyError as error:
        raise UserError(str(error)) from None
    if found.stock.compiled.status == "target":
        raise UserError(found.stock.compiled.message)
    if flags.html:
        write_output(flags.html, found.html())
    if flags.trace and found.stock.compiled.is_ok:
        write_output(flags.trace, _trace(found))
    if "-" in (flags.html, flags.trace):
        pass  # a page or a trace has taken the place of the rest
    elif flags.json:
        print(json.dumps({**found.to_dict(), "versions": versions()}, indent=2))
    else:
        print(found.text(flags.by, flags.top or None), end="")
    if (stock := found.stock.compiled).is_ok:
        return 0
    print(f"{_name(flags)}: error: XLA does not compile the module: {stock.reason}", file=sys.stderr)
    return 1


def _check(flags: argparse.Namespace) -> None:
    """Ends with a message if there is no network to show in a trace."""
    if flags.trace and flags.topology == DEFAULT:
        flags.usage_error(
            "--trace needs --topology, whose levels it shows, and uniform has none; name the network, e.g. h100:2x4"
        )


def _trace(found: Traffic) -> str:
    from reshard.synthesis.common import trace_events

    return trace_events.as_json(found.trace())


def _found(flags: argparse.Namespace) -> Traffic:
    from reshard.compiling.traffic import of_source
    from reshard.dialect_utils.ir.module_files import ModuleFile, reading_limit_s
    from reshard.dialect_utils.platform.bindings import ir, make_context
    from reshard.dialect_utils.xla.child import XlaChild
    from reshard.passes.traffic.ledger import partitions_of
    from reshard.tools.common import contained

    topology, target = Topology.parse(flags.topology), target_of(flags.compile_for)
    file = ModuleFile.read(flags.module)
    contained.enter("reading", cpu_s=reading_limit_s(file))
    with make_context() as context, ir.Location.unknown(context):
        devices = partitions_of(file.chunks()[0].parse(context))
    if target and target.devices != devices:
        raise UserError(f"the module is for {devices} devices, {target} has {target.devices}")
    topology.fitted(devices)  # raises before anything is compiled
    contained.enter("compiling")
    options = {} if flags.policy is None else {"policy": flags.policy}
    if flags.topology != DEFAULT:
        options["topology"] = flags.topology
    how = {"with_ours": not flags.stock_only, "options": options, "target": target, "file": file.name}
    with XlaChild(num_devices=1 if target else devices) as child:
        return of_source(file.content, file.name, topology, child=child, **how)
