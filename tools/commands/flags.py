# SPDX-License-Identifier: Apache-2.0
"""The command line of reshard."""

from __future__ import annotations

import argparse
import os
import textwrap

from reshard.planning.byte_sizes import ByteSizeError, byte_size
from reshard.synthesis.programs.tile_program import REDUCTIONS
from reshard.tools.commands import advise as reshard_advise
from reshard.tools.commands import auto as reshard_auto
from reshard.tools.commands import bench as reshard_bench
from reshard.tools.commands import cache as reshard_cache
from reshard.tools.commands import calibrate as reshard_calibrate
from reshard.tools.commands import fix_warnings as reshard_fix_warnings
from reshard.tools.commands import module_verify as reshard_module_verify
from reshard.tools.commands import place as reshard_place
from reshard.tools.commands import traffic as reshard_traffic
from reshard.tools.common import completion
from reshard.tools.common.command import whole_number
from reshard.tools.common.suggestions import SuggestingParser

_WIDTH = 120
_OUTPUTS = {"-o": "output", "--trace": "trace", "--html": "html", "--svg": "svg"}

PEERS = ("xla", "shardy", "dtensor")

_DESCRIPTION = (
    "Plans how an array moves from one sharding to another, and checks what XLA and reshard make of programs."
)

_EXAMPLES = """\
examples:
  reshard plan --mesh 'x=4,y=2' --type 'f32[16,16,16]' --from '[{"y"}, {}, {"x"}]' --to '[{}, {"x","y"}, {}]'
  reshard plan ... --topology h100 --json             for 8 GPUs of one node, as JSON
  reshard plan ... --to-mesh 'a=2,b=4' --to '[{}, {"b"}, {}]'
  reshard plan ... --memory-limit 2GiB                moves slices one after the other if all at once needs more
  reshard plan ... --compare xla,shardy --verify      compares with XLA and Shardy, and runs the plan on CPU devices
  reshard plan ... --trace FILE                       writes the modelled schedule, for ui.perfetto.dev
  reshard explain ...                                 also shows layouts, tiles and the reasons for the choice
  reshard explain ... --html FILE                     writes the same as a page with pictures
  reshard calibrate --mesh node=2,gpu=4 -o net.toml   measures the network of these devices, for --topology net.toml
  reshard verify module.mlir --policy always          compares the outputs with those of stock XLA and of one device
  reshard traffic step.mlir --topology h100:4         lists each collective of a module with its line and its cause
  reshard auto step.mlir --devices 8 -o sharded.mlir  chooses the mesh and all layouts of a module without shardings
  reshard advise step.mlir --topology h100:4          names the few sharding constraints to change, and their gains
  reshard advise train.py --devices 8 -- --steps 2    the same for the longest program that a script compiles
  reshard place step.mlir --topology h100:4x8         finds the order of devices in which the module is fastest
  reshard fix-warnings train.log                      plans a way for each tensor that XLA warns of gathering whole
  reshard bench shared --full -o bench                runs a benchmark; needs a checkout of the sources
  reshard cache show                                  shows the size of the caches; reshard cache clear empties them

exit status: 0 done; 1 the problem or a file has an error, or --verify failed; 2 the command line has an error.
reshard verify: 1 the rewritten module is wrong, or an error; 3 only stock XLA is wrong or fails.
"""

_EXIT_STATUS = (
    "exit status: 0 done; 1 the problem or a file has an error, or --verify failed; 2 the command line has an error."
)


def parse_flags(argv: list[str]) -> argparse.Namespace:
    """Returns the flags; `command` is "plan", "explain", "calibrate", "verify", "traffic", "auto", "advise", "place",
    "fix-warnings", "bench" or "cache"."""
    parser = make_parser()
    argv, script_arguments = _without_script_arguments(argv)
    flags = parser.parse_args(_with_negative_limit(argv))
    flags.script_arguments = script_arguments
    written: dict[str, str] = {}
    for flag, path in output_files(flags).items():
        if (other := written.setdefault(path if path == "-" else os.path.realpath(path), flag)) != flag:
            parser.error(f"{other} and {flag} both write {'to stdout' if path == '-' else path}; choose two files")
    if not flags.version and not flags.completion and flags.command is None:
        parser.error(
            "no command; write reshard plan, explain, calibrate, verify, traffic, auto, advise, place, fix-warnings, "
            "bench or cache"
        )
    return flags


def output_files(flags: argparse.Namespace) -> dict[str, str]:
    """Returns the files that a command is to write, by the flags that name them; `-` is standard output."""
    return {flag: path for flag, name in _OUTPUTS.items() if (path := getattr(flags, name, None)) is not None}


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
    plan = _add_command(
        commands,
        "plan",
        "print the cheapest steps that turn one sharding into another, with their costs and bounds",
        epilog=_EXIT_STATUS,
    )
    explain = _add_command(
        commands,
        "explain",
        "print what plan prints, and the layouts, the tiles and the reasons for the choice",
        epilog=_EXIT_STATUS,
    )
    for command in (plan, explain):
        _add_problem(command.add_argument_group("problem"))
        _add_answer(command.add_argument_group("answer"), with_json=command is plan)
    calibrate = _add_command(commands, "calibrate", reshard_calibrate.SUMMARY, epilog=reshard_calibrate.EPILOG)
    reshard_calibrate.add_flags(calibrate)
    verify = _add_command(commands, "verify", reshard_module_verify.SUMMARY, epilog=reshard_module_verify.EXIT_STATUS)
    reshard_module_verify.add_flags(verify)
    verify.set_defaults(usage_error=verify.error)
    fix_warnings = _add_command(
        commands, "fix-warnings", reshard_fix_warnings.SUMMARY, epilog=reshard_fix_warnings.EPILOG
    )
    reshard_fix_warnings.add_flags(fix_warnings)
    reshard_traffic.add_flags(_add_command(commands, "traffic", reshard_traffic.SUMMARY, epilog=reshard_traffic.EPILOG))
    reshard_auto.add_flags(_add_command(commands, "auto", reshard_auto.SUMMARY, epilog=reshard_auto.EPILOG))
    reshard_advise.add_flags(_add_command(commands, "advise", reshard_advise.SUMMARY, epilog=reshard_advise.EPILOG))
    reshard_place.add_flags(_add_command(commands, "place", reshard_place.SUMMARY, epilog=reshard_place.EPILOG))
    reshard_bench.add_flags(_add_command(commands, "bench", reshard_bench.SUMMARY, epilog=reshard_bench.EXIT_STATUS))
    reshard_cache.add_flags(_add_command(commands, "cache", reshard_cache.SUMMARY, epilog=reshard_cache.EPILOG))
    return parser


def _without_script_arguments(argv: list[str]) -> tuple[list[str], list[str]]:
    """Returns the command line, and the arguments of the script that `advise` runs, which are behind `--`."""
    if argv[:1] != ["advise"] or "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


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
        name,
        help=summary,
        description=description,
        epilog=epilog and _wrapped(epilog),
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )


def _wrapped(text: str) -> str:
    """Returns a text whose paragraphs are wrapped as the help of flags is; one with indented lines stays as it is.

    Example:
      >>> print(_wrapped("one\\ntwo\\n\\nexamples:\\n  reshard plan\\n"))
      one two
      <BLANKLINE>
      examples:
        reshard plan
    """
    paragraphs = text.strip("\n").split("\n\n")
    return "\n\n".join(
        each if "\n " in each else textwrap.fill(each, _WIDTH, break_on_hyphens=False, break_long_words=False)
        for each in paragraphs
    )


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30, width=_WIDTH)


class _Parser(SuggestingParser):
    """A parser that reports an error in one line, without the usage."""

    def error(self, message: str):
        prog = self._command().prog
        hint = "" if "did you mean" in message else self._hint(message)
        self.exit(2, f"{prog}: error: {message}{hint} (see {prog} --help)\n")

    def _commands(self) -> dict[str, argparse.ArgumentParser]:
        found = [each.choices for each in self._actions if isinstance(each, argparse._SubParsersAction)]
        return {name: parser for choices in found for name, parser in choices.items()}

    def _command(self) -> argparse.ArgumentParser:
        """Returns the parser of the command that is given: what it does not know, argparse reports at the top."""
        first = next((word for word in self._given if not word.startswith("-")), "")
        return self._commands().get(first, self)

    def _hint(self, message: str) -> str:
        is_unknown = message.startswith("unrecognized arguments")
        if is_unknown and (hint := self._hint_of_scripts() or self._hint_of_commands(message)):
            return hint
        return self.suggestion(message)

    def _hint_of_commands(self, message: str) -> str:
        """Returns which other commands have the first unknown flag; empty if none has it."""
        words = message.partition(": ")[2].split()
        flag = next((word.partition("=")[0] for word in words if word.startswith("--")), "")
        having = [name for name, each in self._commands().items() if flag in each._option_string_actions]
        return f"; {flag} is a flag of reshard {', '.join(having)}" if having else ""

    def _hint_of_scripts(self) -> str:
        is_script = self._given[:1] == ("advise",) and any(each.endswith(".py") for each in self._given)
        return "; arguments of a script come behind --" if is_script else ""


def _add_problem(group) -> None:
    group.add_argument(
        "--mesh",
        required=True,
        metavar="MESH",
        help="""the mesh: x=4,y=2, or Shardy's <["x"=4, "y"=2], device_ids=[...]>""",
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
        help="""the sharding before: Shardy's text such as '[{"x"}, {}]', JAX's text such as "P('x', None)", or @FILE to
        read it from a file""",
    )
    group.add_argument(
        "--to", dest="target", required=True, metavar="SHARDING", help="the sharding after, in the same forms"
    )
    group.add_argument(
        "--topology",
        default="uniform",
        metavar="NAME",
        help="the network: a preset such as h100 or v5e:4x4*2, or a TOML file; see docs/topologies.md "
        "(default: uniform)",
    )
    group.add_argument(
        "--reduction",
        choices=REDUCTIONS,
        default="sum",
        help="how partial sums are combined, if an axis is unreduced (default: sum)",
    )
    group.add_argument(
        "--memory-limit",
        type=_byte_size,
        metavar="SIZE",
        help="the most memory that a device may use at once: 2GiB, 512MB, or bytes (default: no limit)",
    )
    group.add_argument(
        "--tile-limit",
        type=_byte_size,
        metavar="SIZE",
        help="the largest tile allowed between the steps: 64KiB, or bytes per device (default: the larger one of the "
        "source tile and the target tile)",
    )
    group.add_argument(
        "--effort",
        type=whole_number,
        default=1,
        metavar="N",
        help="search N times as long for a cheaper plan, or for a proof that there is none (default: 1)",
    )
    group.add_argument(
        "--objective",
        choices=("time", "bytes"),
        default="time",
        help="find the plan with the shortest modelled time (default), or with the fewest received bytes",
    )


def _add_answer(group, with_json: bool) -> None:
    if with_json:
        group.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    else:
        group.set_defaults(json=False)
        group.add_argument(
            "--html", metavar="FILE", help="write a page with all of the text, and with pictures; - is stdout"
        )
        group.add_argument(
            "--svg",
            metavar="FILE",
            help="write a picture of the tiles before and after each step; - is stdout",
        )
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="write the modelled schedule as a trace for ui.perfetto.dev or chrome://tracing; - is stdout, in place of "
        "the rest",
    )
    group.add_argument(
        "--pareto",
        action="store_true",
        help="also list the plans that no other plan beats in both time and peak memory",
    )
    group.add_argument(
        "--compare",
        type=_peers,
        default=(),
        metavar="xla,shardy,dtensor",
        help="also show how these convert between the same shardings; dtensor needs PyTorch",
    )
    group.add_argument(
        "--verify",
        action="store_true",
        help="run the plan with numpy and with XLA on CPU devices, and compare every element",
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
