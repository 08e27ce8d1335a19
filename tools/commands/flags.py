# SPDX-License-Identifier: Apache-2.0
"""The command line of reshard."""

from __future__ import annotations

import argparse

from reshard.planning.byte_sizes import ByteSizeError, byte_size
from reshard.synthesis.programs.tile_program import REDUCTIONS
from reshard.tools.commands import bench as reshard_bench
from reshard.tools.commands import cache as reshard_cache
from reshard.tools.commands import calibrate as reshard_calibrate
from reshard.tools.commands import fix_warnings as reshard_fix_warnings
from reshard.tools.commands import module_verify as reshard_module_verify
from reshard.tools.commands import traffic as reshard_traffic
from reshard.tools.common import completion
from reshard.tools.common.command import whole_number
from reshard.tools.common.suggestions import SuggestingParser

PEERS = ("xla", "shardy", "dtensor")

_DESCRIPTION = "Plans how to turn an array sharded in one way into the same array sharded in another."

_EXAMPLES = """\
examples:
  reshard plan --mesh 'x=4,y=2' --type 'f32[16,16,16]' --from '[{"y"}, {}, {"x"}]' --to '[{}, {"x","y"}, {}]'
  reshard plan ... --topology h100 --json             for 8 GPUs of one node, as JSON
  reshard plan ... --to-mesh 'a=2,b=4' --to '[{}, {"b"}, {}]'
  reshard plan ... --memory-limit 2GiB                in chunks, where all at once takes more
  reshard plan ... --compare xla,shardy --verify      beside what others do, checked on CPU devices; dtensor needs torch
  reshard plan ... --trace FILE                       the modelled schedule, for ui.perfetto.dev
  reshard explain ...                                 layouts, bound and tiles in words
  reshard explain ... --html FILE                     the same as a page with pictures, --svg FILE as a picture
  reshard calibrate --mesh node=2,gpu=4 -o net.toml   measures the devices at hand, for --topology net.toml
  reshard verify module.mlir --policy always          runs a module as it came, as rewritten and unsharded, and compares
  reshard traffic step.mlir --topology h100:4         each collective of a module, with its line and its cause
  reshard fix-warnings train.log                      what XLA warns of gathering whole, and a plan for each
  reshard bench shared --full -o bench                measures against stock XLA, in a checkout
  reshard cache show                                  how much is kept on disk; reshard cache clear removes it

exit status: 0 done, 1 the problem or a file has an error, or --verify failed, 2 the command line has an error;
of reshard verify: 1 what we rewrite is wrong, or an error, 3 stock XLA alone is wrong or fails.
"""


def parse_flags(argv: list[str]) -> argparse.Namespace:
    """Returns the flags; `command` is "plan", "explain", "calibrate", "verify", "traffic", "fix-warnings",
    "bench" or "cache"."""
    parser = make_parser()
    flags = parser.parse_args(_with_negative_limit(argv))
    if not flags.version and not flags.completion and flags.command is None:
        parser.error(
            "no command; write reshard plan, explain, calibrate, verify, traffic, fix-warnings, bench or cache"
        )
    return flags


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line; the completion scripts for shells are made from it too."""
    parser = _Parser(
        prog="reshard", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=_HelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--version", action="store_true", help="print the versions of reshard, jax, jaxlib and Python")
    parser.add_argument(
        "--completion", choices=completion.SHELLS, help="print a script that completes these flags in a shell, and stop"
    )
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", parser_class=_Parser)
    plan = _add_command(commands, "plan", "the cheapest chain, its costs and its bounds")
    explain = _add_command(commands, "explain", "the same, with layouts, tiles and reasons")
    for command in (plan, explain):
        _add_problem(command.add_argument_group("problem"))
        _add_answer(command.add_argument_group("answer"), with_json=command is plan)
    reshard_calibrate.add_flags(_add_command(commands, "calibrate", reshard_calibrate.SUMMARY))
    verify = _add_command(commands, "verify", reshard_module_verify.SUMMARY, epilog=reshard_module_verify.EXIT_STATUS)
    reshard_module_verify.add_flags(verify)
    verify.set_defaults(usage_error=verify.error)
    fix_warnings = _add_command(
        commands, "fix-warnings", reshard_fix_warnings.SUMMARY, epilog=reshard_fix_warnings.EPILOG
    )
    reshard_fix_warnings.add_flags(fix_warnings)
    reshard_traffic.add_flags(_add_command(commands, "traffic", reshard_traffic.SUMMARY, epilog=reshard_traffic.EPILOG))
    reshard_bench.add_flags(_add_command(commands, "bench", reshard_bench.SUMMARY, epilog=reshard_bench.EXIT_STATUS))
    reshard_cache.add_flags(_add_command(commands, "cache", reshard_cache.SUMMARY, epilog=reshard_cache.EPILOG))
    return parser


def _with_negative_limit(argv: list[str]) -> list[str]:
    """Returns the arguments with a negative limit joined to its flag: argparse would read the limit as a flag."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] in ("--memory-limit", "--tile-limit") and word[:1] == "-" and word[1:2].isdigit():
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _add_command(commands, name: str, summary: str, epilog: str | None = None) -> argparse.ArgumentParser:
    description = f"{summary[0].upper()}{summary[1:]}."
    return commands.add_parser(
        name, help=summary, description=description, epilog=epilog, formatter_class=_HelpFormatter, allow_abbrev=False
    )


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30, width=120)


class _Parser(SuggestingParser):
    """A parser that reports an error in one line, without the usage."""

    def error(self, message: str):
        hint = "" if "did you mean" in message else self.suggestion(message)
        self.exit(2, f"{self.prog}: error: {message}{hint} (see {self.prog} --help)\n")


def _add_problem(group) -> None:
    group.add_argument(
        "--mesh", required=True, metavar="MESH", help="""x=4,y=2, or Shardy's <["x"=4, "y"=2], device_ids=[...]>"""
    )
    group.add_argument(
        "--to-mesh",
        metavar="MESH",
        help="the mesh of --to, if it differs from --mesh; <[], device_ids=[3]> is device 3 alone",
    )
    group.add_argument(
        "--type", required=True, metavar="TYPE", help="the type of the whole array: f32[16,16], or tensor<16x16xf32>"
    )
    group.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="SHARDING",
        help="""Shardy's text such as '[{"x"}, {}]', or JAX's such as "P('x', None)"; or @FILE that holds it""",
    )
    group.add_argument("--to", dest="target", required=True, metavar="SHARDING", help="the target, in the same forms")
    group.add_argument(
        "--topology",
        default="uniform",
        metavar="NAME",
        help="h100, v5e:4x4*2, ... or a TOML file; see docs/topologies.md (default: uniform)",
    )
    group.add_argument(
        "--reduction",
        choices=REDUCTIONS,
        default="sum",
        help="how partial sums are combined into the array, where an axis is unreduced",
    )
    group.add_argument(
        "--memory-limit",
        type=_byte_size,
        metavar="SIZE",
        help="largest peak of the plan, per device: 2GiB, 512MB, 4096",
    )
    group.add_argument(
        "--tile-limit",
        type=_byte_size,
        metavar="SIZE",
        help="largest tile per device between source and target: 64KiB (default: the larger of their tiles)",
    )
    group.add_argument(
        "--effort",
        type=whole_number,
        default=1,
        metavar="N",
        help="search N times as long for a cheaper plan, or a proof that there is none (default: 1)",
    )
    group.add_argument(
        "--objective", choices=("time", "bytes"), default="time", help="modelled time (default), or received bytes"
    )


def _add_answer(group, with_json: bool) -> None:
    if with_json:
        group.add_argument("--json", action="store_true", help="print one JSON object")
    else:
        group.set_defaults(json=False)
        group.add_argument(
            "--html", metavar="FILE", help="write one page with pictures of all that is said, and more; - is stdout"
        )
        group.add_argument(
            "--svg",
            metavar="FILE",
            help="write a picture of the tiles before, between and after the steps; - is stdout",
        )
    group.add_argument(
        "--trace", metavar="FILE", help="write the modelled schedule as a trace for ui.perfetto.dev or chrome://tracing"
    )
    group.add_argument(
        "--pareto", action="store_true", help="list the plans that no other one beats in time and in peak"
    )
    group.add_argument(
        "--compare", type=_peers, default=(), metavar="xla,shardy,dtensor", help="show what these make of the same pair"
    )
    group.add_argument(
        "--verify", action="store_true", help="run the plan in a numpy interpreter and with XLA on CPU devices"
    )


def _byte_size(text: str) -> int:
    try:
        return byte_size(text)
    except ByteSizeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"unknown peer '{name}'; known: {', '.join(PEERS)}")
    return names
