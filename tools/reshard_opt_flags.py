# SPDX-License-Identifier: Apache-2.0
"""The command line of reshard-opt; it follows mlir-opt where that has the flag."""

from __future__ import annotations

import argparse
import re
import sys

from reshard.passes import registry

_DESCRIPTION = """\
Finds the places in a StableHLO module where a tensor is produced with one sharding and used with another, and replaces
each by a chain of collectives with small memory and little traffic. With no pass named it runs the whole pipeline.
"""

_EXAMPLES = """\
examples:
  reshard-opt in.mlir -o out.mlir                       rewrite every site where that is better
  reshard-opt in.mlir --report=text >/dev/null          only say what would be done, and why
  reshard-opt in.mlir --find-mismatches                 run one pass
  reshard-opt in.mlir --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always},func.func(cse))'
  cat in.mlir | reshard-opt - --emit-bytecode -o out.mlirbc

exit status: 0 done, 1 the module or a file has an error (file:line:col: error: ...), 2 the command line has one.
"""

_PASS_HELP = "run this pass, in the order of the flags; --list-passes describes it"

EMIT_HELP = (
    "what is written: sites as StableHLO collectives on tiles (manual, default); sites as Shardy's collectives, to read and for "
    "Shardy's tools, not for XLA (sdy); the whole module per device, with no work for XLA's partitioner (local)"
)
_NOT_COMPARED = {
    "sdy": "--emit=sdy writes ops that XLA does not read; leave out --compile-for, or write --emit=manual",
    "local": "--emit=local compares nothing with stock XLA; leave out --compile-for, or write --emit=manual",
}

# Values of flags whose value may be left out; argparse alone would take the input file for the value.
_BARE_FLAGS = {"--verify-diagnostics": "all"}


def parse_flags(argv: list[str]) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """Returns the flags and the parser, whose `error(text)` ends the process with exit status 2."""
    parser = _parser()
    flags = parser.parse_args([_spell_out(each) for each in argv])
    if flags.passes and flags.pass_pipeline is not None:
        parser.error("--pass-pipeline cannot be combined with flags of single passes")
    if flags.check and not flags.compile_for:
        parser.error("--check compiles the module before and after; say what for with --compile-for=PLATFORM:DEVICES")
    if flags.compile_for and flags.emit in _NOT_COMPARED:
        parser.error(_NOT_COMPARED[flags.emit])
    if flags.report_file and not flags.report:
        parser.error("--report-file needs --report=text or --report=json")
    if flags.report_file and flags.report_file == flags.output:
        parser.error(f"-o and --report-file both write {flags.output}; choose two files")
    has_no_stdin = sys.stdin is None or sys.stdin.isatty()
    if flags.input is None and has_no_stdin and not (flags.version or flags.list_passes):
        parser.error("no input; give a file, or - for standard input")
    return flags, parser


def pipeline_text(flags: argparse.Namespace) -> str:
    """Returns the pipeline that the flags ask for."""
    if flags.pass_pipeline is not None:
        return flags.pass_pipeline
    return ",".join(flags.passes) or registry.DEFAULT_PIPELINE


def _spell_out(argument: str) -> str:
    """Rewrites `--plan-sites=policy=always` to `--pass=plan-sites{policy=always}`, and flags that were left bare."""
    flag, _, value = argument.partition("=")
    name = flag.removeprefix("--")
    if flag.startswith("--") and (name in registry.PASSES or name in registry.PIPELINES):
        return f"--pass={name}{{{value}}}" if value else f"--pass={name}"
    return f"{argument}={_BARE_FLAGS[argument]}" if argument in _BARE_FLAGS else argument


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34, width=120)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reshard-opt",
        usage="reshard-opt [INPUT] [-o OUTPUT] [flags]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    _add_files(parser.add_argument_group("files"))
    _add_passes(parser.add_argument_group("passes"))
    _add_rewriting(parser.add_argument_group("rewriting"))
    _add_report(parser.add_argument_group("report"))
    _add_debugging(parser.add_argument_group("debugging"))
    parser.add_argument("--version", action="store_true", help="print the versions of reshard, jax, jaxlib and Python")
    return parser


def _add_files(group) -> None:
    group.add_argument(
        "input",
        nargs="?",
        metavar="INPUT",
        help="MLIR text or bytecode, a StableHLO portable artifact, a jax.export file or HLO text; - is stdin",
    )
    group.add_argument("-o", dest="output", default="-", metavar="FILE", help="output, written only on success; - is stdout")
    form = group.add_mutually_exclusive_group()
    form.add_argument("--emit-text", action="store_true", help="write MLIR text (default, but jax.export files stay such files)")
    form.add_argument("--emit-bytecode", action="store_true", help="write MLIR bytecode")
    form.add_argument("--emit-portable-artifact", action="store_true", help="write a StableHLO portable artifact")
    group.add_argument("--split-input-file", action="store_true", help="treat parts between lines '// -----' on their own")
    group.add_argument("--allow-unregistered-dialect", action="store_true", help="accept ops of unknown dialects")


def _add_passes(group) -> None:
    group.add_argument("--pass-pipeline", metavar="TEXT", help="passes as 'builtin.module(a,b{option=value},func.func(c))'")
    group.add_argument("--pass", dest="passes", action="append", default=[], help=argparse.SUPPRESS)
    for name in registry.PASSES:
        group.add_argument(f"--{name}", dest="passes", nargs="?", metavar="=OPTIONS", help=_PASS_HELP)
    group.add_argument("--list-passes", action="store_true", help="describe every pass with its options, and stop")
    group.add_argument("--dump-pass-pipeline", action="store_true", help="print the pipeline on stderr before it runs")


def _add_rewriting(group) -> None:
    group.add_argument("--policy", metavar="better|always", help="rewrite where that is better (default), or every site")
    group.add_argument("--oracle", metavar="NAME", help="what a rewrite is compared with")
    group.add_argument("--emit", metavar="manual|sdy|local", help=EMIT_HELP)
    group.add_argument(
        "--compile-for", type=_target, metavar="PLATFORM:DEVICES", help="a target to compile for, such as cpu:8"
    )
    group.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        help="compile the module before and after, and drop rewrites that do not help (default with --compile-for)",
    )


def _add_report(group) -> None:
    group.add_argument("--report", choices=("text", "json"), help="report what was done at every site, and why")
    group.add_argument("--report-file", metavar="FILE", help="where to (default stderr)")
    group.add_argument("--no-remarks", action="store_true", help="print errors and warnings only")


def _add_debugging(group) -> None:
    group.add_argument(
        "--verify-diagnostics",
        choices=("all", "only-expected"),
        metavar="all|only-expected",
        help="compare diagnostics with comments '// expected-error@+1 {{text}}'",
    )
    group.add_argument("--mlir-print-ir-before-all", action="store_true", help="print the IR before each pass on stderr")
    group.add_argument("--mlir-print-ir-after-all", action="store_true", help="print the IR after each pass on stderr")
    group.add_argument("--mlir-timing", action="store_true", help="print the time of each pass on stderr")
    group.add_argument("--mlir-pass-statistics", action="store_true", help="print what each pass counted on stderr")
    group.add_argument("--mlir-print-debuginfo", action="store_true", help="keep locations in the output")


def _target(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"([a-z0-9]+):([1-9][0-9]*)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not PLATFORM:DEVICES, such as cpu:8")
    if found[1] != "cpu":
        raise argparse.ArgumentTypeError(f"cannot compile for '{found[1]}'; available: cpu")
    return found[1], int(found[2])
