# SPDX-License-Identifier: Apache-2.0
"""The command line of reshard-opt; flags that mlir-opt has too work as in mlir-opt."""

from __future__ import annotations

import argparse
import re
import sys

from reshard.dialect_utils.xla.compile_targets import Target, TargetError
from reshard.passes.driver import registry
from reshard.passes.results.checks import MOST_VALUE_BYTES, effort_of
from reshard.planning.byte_sizes import ByteSizeError, byte_size
from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.tools.common import completion
from reshard.tools.common.command import ORACLE_HELP, memory, topology_text
from reshard.tools.common.suggestions import SuggestingParser, meant

_DESCRIPTION = """\
Finds the places in a StableHLO module where a tensor is produced with one sharding and used with another, and replaces
each by a chain of collectives with small memory and little traffic. If no pass is named, it runs the whole pipeline.
"""

_EXAMPLES = """\
examples:
  reshard-opt in.mlir -o out.mlir                       rewrite the sites that get better
  reshard-opt in.mlir --report=text >/dev/null          only report what would be done, and why
  reshard-opt in.mlir --find-mismatches                 run one pass
  reshard-opt in.mlir --pass-pipeline='builtin.module(find-mismatches,plan-sites{policy=always},func.func(cse))'
  reshard-opt in.mlir --auto-partition --mesh x=8       choose all layouts first, for a module without shardings
  cat in.mlir | reshard-opt - --emit-bytecode -o out.mlirbc

exit status: 0 done; 1 the module or a file has an error (file:line:col: error: ...); 2 the command line has an error;
130, 143, 129 ended by Ctrl-C, SIGTERM, SIGHUP.
"""

_PASS_HELP = "run this pass; several run in the order of their flags; see --list-passes"

EMIT_HELP = (
    "how sites are written: as StableHLO collectives on tiles (manual); as Shardy's collectives, for people "
    "and for Shardy's tools, since XLA does not read them (sdy); together with the whole module, all on tiles, so that "
    "XLA's partitioner has nothing to do (local); or as manual or local, whichever makes the whole module faster "
    "(auto, default)"
)
_FUSE_HELP = (
    "with --overlap-collectives: write a product or lookup and the collective behind it as operations of StableHLO "
    "(stablehlo, default), or as a Pallas kernel on TPUs that it is for (kernels)"
)
REPORT_HELP = (
    "report what was done at every site, and why: as a table (text), plain data (json), a page with pictures (html), "
    "or the text of this page (details)"
)
_NOT_COMPARED = {
    "sdy": "--emit=sdy writes ops that XLA does not read; leave out --compile-for, or write --emit=manual",
    "local": "--emit=local compares nothing with stock XLA; add --no-check, or write --emit=manual",
}

# The values of flags that are written without one; argparse alone would take the input file for the value.
_BARE_FLAGS = {"--verify-diagnostics": "all", "--split-input-file": "// -----"}
_TRUE, _FALSE = ("true", "1"), ("false", "0")
_LONG_FLAG = re.compile(r"--?([A-Za-z][\w-]+)(?:=(.*))?", re.DOTALL)


def parse_flags(argv: list[str]) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """Returns the flags and the parser, whose `error(text)` ends the process with exit status 2."""
    parser = make_parser(with_plugins=any(each in ("-h", "--help") or each.startswith("--completion") for each in argv))
    flags = parser.parse_args([word for each in _with_two_dashes(argv) for word in _spelled_out(each, parser)])
    if flags.passes and flags.pass_pipeline is not None:
        parser.error("--pass-pipeline cannot be combined with flags of single passes")
    if flags.compile_for and flags.emit in _NOT_COMPARED and (flags.check or flags.emit == "sdy"):
        parser.error(_NOT_COMPARED[flags.emit])
    for name, default in (("policy", "better"), ("oracle", "lone")):
        given = getattr(flags, name)
        if flags.emit == "local" and given not in (None, default):
            parser.error(f"--{name}={given} decides nothing with --emit=local, which rewrites everything")
    if flags.mesh and not flags.auto_partition:
        parser.error("--mesh needs --auto-partition; other passes work on the meshes of the module")
    if flags.report_file and not flags.report:
        parser.error("--report-file needs --report=text, json, html or details")
    if flags.report_file and flags.report_file == flags.output:
        parser.error(f"-o and --report-file both write {flags.output}; choose two files")
    _check_prints(flags, parser)
    has_no_stdin = sys.stdin is None or (flags.input is None and sys.stdin.isatty())
    if flags.input in (None, "-") and has_no_stdin and not asks_for_no_module(flags):
        parser.error("no input; give a file, or - for standard input")
    return flags, parser


def asks_for_no_module(flags: argparse.Namespace) -> bool:
    """Returns whether the flags ask about the tool itself and so need no module."""
    return bool(flags.version or flags.list_passes or flags.show_dialects or flags.completion)


def pipeline_text(flags: argparse.Namespace) -> str:
    """Returns the pipeline that the flags ask for."""
    if flags.pass_pipeline is not None:
        return flags.pass_pipeline
    return ",".join(flags.passes) or registry.DEFAULT_PIPELINE


def flags_of_reproducer(flags: argparse.Namespace, pipeline: str, *, with_split: bool = True) -> list[str]:
    """Returns the flags on which the output depends, with `pipeline` in place of the flags that name passes."""
    made = [f"--pass-pipeline={pipeline}"]
    made += [
        f"--{name.replace('_', '-')}={value}"
        for name in ("policy", "oracle", "emit", "fuse", "topology", "memory_limit")
        if (value := getattr(flags, name)) is not None
    ]
    if flags.effort > 1:
        made.append(f"--effort={flags.effort}")
    if flags.layouts != registry.GIVEN:
        made.append(f"--layouts={flags.layouts}")
    if flags.compile_for:
        made.append(f"--compile-for={flags.compile_for}")
    if not flags.check:
        made.append("--no-check")
    if with_split and flags.split_input_file:
        made.append(f"--split-input-file={flags.split_input_file}")
    made += [] if flags.verify_each else ["--verify-each=false"]
    bare = (
        "allow_unregistered_dialect",
        "emit_text",
        "emit_bytecode",
        "emit_portable_artifact",
        "mlir_print_debuginfo",
    )
    return made + [f"--{name.replace('_', '-')}" for name in bare if getattr(flags, name)]


def unknown_flag(name: str) -> str:
    """Returns the error for a flag that is neither a flag of the tool nor a pass."""
    known = [flag.removeprefix("--") for action in make_parser()._actions for flag in action.option_strings]
    every = (*known, *registry.names(), *registry.MLIR_PASSES)
    return f"unrecognized arguments: --{name}" + meant(f"--{name}", [f"--{each}" for each in every])


def _check_prints(flags: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    if flags.mlir_print_ir_after_change and not flags.mlir_print_ir_after_all:
        parser.error("--mlir-print-ir-after-change needs --mlir-print-ir-after-all")
    around_all = flags.mlir_print_ir_before_all or flags.mlir_print_ir_after_all or flags.mlir_print_ir_after_failure
    if flags.mlir_print_ir_module_scope and not around_all:
        parser.error("--mlir-print-ir-module-scope needs --mlir-print-ir-before-all, -after-all or -after-failure")


def _with_two_dashes(argv: list[str]) -> list[str]:
    """Returns the arguments with two dashes in place of one: `-cse` becomes `--cse`, as in mlir-opt; `-ofile` stays."""
    is_short = [
        each.startswith("-") and not each.startswith(("--", "-o")) and _LONG_FLAG.fullmatch(each) for each in argv
    ]
    return [f"-{each}" if short else each for each, short in zip(argv, is_short)]


def _spelled_out(argument: str, parser: argparse.ArgumentParser) -> list[str]:
    """Returns an argument as the words that argparse reads.

    For example `--plan-sites=policy=always` becomes `--pass=plan-sites{policy=always}`.

    Flags without a value may have `=true` or `=false`, as in mlir-opt. Flags that are not declared are passes of MLIR.
    """
    found = _LONG_FLAG.fullmatch(argument)
    if found is None or not argument.startswith("--"):
        return [argument]
    name, value = found.groups()
    if argument in _BARE_FLAGS:
        return [f"{argument}={_BARE_FLAGS[argument]}"]
    action = parser._option_string_actions.get(f"--{name}")
    if action is None or action.dest == "passes" and name != "pass":
        return [f"--pass={name}{{{value}}}" if value else f"--pass={name}"]
    if action.nargs == 0 and value in (*_TRUE, *_FALSE):
        return [f"--{name}"] if value in _TRUE else []
    return [argument]


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34, width=120)


def make_parser(with_plugins: bool = True) -> argparse.ArgumentParser:
    """Returns the parser of the command line.

    Args:
      with_plugins: whether it has the flags of passes of other packages, which take long to find. What is not declared
        counts as a pass, so that they matter only to who lists the flags.
    """
    parser = SuggestingParser(
        prog="reshard-opt",
        usage="reshard-opt [INPUT] [-o OUTPUT] [flags]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    _add_files(parser.add_argument_group("files"))
    _add_passes(parser.add_argument_group("passes"), registry.names() if with_plugins else tuple(registry.PASSES))
    _add_rewriting(parser.add_argument_group("rewriting"))
    _add_report(parser.add_argument_group("report"))
    _add_debugging(parser.add_argument_group("debugging"))
    _add_about(parser.add_argument_group("about the tool"))
    return parser


def _add_files(group) -> None:
    group.add_argument(
        "input",
        nargs="?",
        metavar="INPUT",
        help="a file: MLIR text or bytecode, a StableHLO portable artifact, a jax.export file or HLO text; - is stdin",
    )
    group.add_argument(
        "-o",
        dest="output",
        default="-",
        metavar="FILE",
        help="the output file, written only on success; - is stdout (default)",
    )
    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "--emit-text",
        action="store_true",
        help="write MLIR text (default; a jax.export file stays a jax.export file without this flag)",
    )
    form.add_argument("--emit-bytecode", action="store_true", help="write MLIR bytecode")
    form.add_argument("--emit-portable-artifact", action="store_true", help="write a StableHLO portable artifact")
    group.add_argument(
        "--split-input-file",
        nargs="?",
        metavar="=MARKER",
        help="treat each part of the file as its own module; the marker, by default '// -----', separates them",
    )
    group.add_argument(
        "--output-split-marker",
        metavar="MARKER",
        help="the line that separates the parts of the output (default: the input's marker)",
    )
    group.add_argument("--allow-unregistered-dialect", action="store_true", help="accept ops of unknown dialects")


def _add_passes(group, names: tuple[str, ...]) -> None:
    group.add_argument(
        "--pass-pipeline", metavar="TEXT", help="the passes to run, as 'builtin.module(a,b{option=value},func.func(c))'"
    )
    group.add_argument("--pass", dest="passes", action="append", default=[], help=argparse.SUPPRESS)
    for name in names:
        group.add_argument(f"--{name}", dest="passes", nargs="?", metavar="=OPTIONS", help=_PASS_HELP)
    group.add_argument("--dump-pass-pipeline", action="store_true", help="print the pipeline on stderr before it runs")
    group.add_argument(
        "--verify-each",
        metavar="true|false",
        type=_truth,
        default=True,
        help="verify the module after each pass (default: true)",
    )


def _add_rewriting(group) -> None:
    group.add_argument(
        "--policy",
        metavar="better|strict|always",
        help="rewrite what makes the module faster by its modelled time (better, default), what is better in a cost "
        "and worse in none, the number of collectives included (strict), or every site (always)",
    )
    group.add_argument(
        "--topology",
        type=topology_text,
        metavar="NAME",
        help="the network that plans and times are for: a preset such as h100:4 or v5e:4x4*2, or a TOML file (default: "
        "that of --compile-for; without it the network is unknown, and received bytes may not rise)",
    )
    group.add_argument(
        "--memory-limit",
        type=memory,
        metavar="SIZE",
        help="the most memory of the module and of each plan, per device, e.g. 12GiB, or 'device' for what a program "
        "may fill on --topology, else on --compile-for (default: stock XLA's)",
    )
    group.add_argument(
        "--auto-partition",
        action="store_true",
        help="first choose the layouts of the whole program: the pass assign-layouts, before all others but imports; "
        "shardings that the module has are kept",
    )
    group.add_argument(
        "--mesh",
        type=_mesh,
        metavar="AXES",
        help="with --auto-partition: the mesh, e.g. x=4,y=2 (default: the module's only mesh)",
    )
    group.add_argument(
        "--layouts",
        choices=(registry.GIVEN, registry.CHOSEN),
        default=registry.GIVEN,
        help="layouts between the arguments and the results of the program: those that propagation finds (given, "
        "default), or better ones where they make the module clearly faster (chosen); arguments, results and what the "
        "program constrains stay as they are",
    )
    group.add_argument(
        "--effort",
        type=_effort,
        default=1,
        metavar="N",
        help="search N times as long for the best set of sites (default: 1, at most 8 compilations)",
    )
    group.add_argument("--oracle", metavar="lone", help=ORACLE_HELP)
    group.add_argument("--emit", metavar="manual|sdy|local|auto", help=EMIT_HELP)
    group.add_argument("--fuse", metavar="stablehlo|kernels", help=_FUSE_HELP)
    group.add_argument(
        "--compile-for",
        type=_target,
        metavar="PLATFORM:DEVICES",
        help="the devices to compile for: cpu:8; or devices that this machine need not have: tpu:v5p:4x4x4, "
        "tpu:v5e:8x8:2 (2 slices), cuda:h100:1x1x8; options of their compiler stand behind: tpu:v5e:8x8?NAME=VALUE&...",
    )
    group.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compile the module before and after, and choose the sites that make it faster as a whole (default); with "
        "--no-check sites are chosen one by one, and nothing is measured as a whole",
    )
    group.add_argument(
        "--verify-values",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="run the module before and after on small random inputs, and drop rewrites that change values",
    )
    group.add_argument(
        "--verify-values-bytes",
        metavar="SIZE",
        type=_byte_size,
        default=MOST_VALUE_BYTES,
        help=f"run no module that needs more memory, on all devices together (default: {MOST_VALUE_BYTES >> 20}MiB)",
    )


def _add_report(group) -> None:
    group.add_argument("--report", choices=("text", "json", "html", "details"), help=REPORT_HELP)
    group.add_argument("--report-file", metavar="FILE", help="the file for the report (default: stderr)")
    group.add_argument(
        "--report-locations",
        choices=("user", "chain"),
        default="user",
        help="what the report names for each site: the line of the user's program, outside of libraries and helpers "
        "(user, default), or also the calls that lead to it (chain)",
    )
    group.add_argument(
        "--remarks",
        choices=("sum", "all", "none"),
        default="sum",
        help="print what is left as it is: for each reason the first place and a count (sum, default), every place "
        "(all), or nothing (none)",
    )
    group.add_argument(
        "--no-remarks",
        dest="remarks",
        action="store_const",
        const="none",
        help="the same as --remarks=none: print only errors and warnings",
    )
    group.add_argument(
        "--no-progress",
        action="store_true",
        help="print no progress on stderr when work takes longer than two seconds; RESHARD_PROGRESS=off does the same",
    )


def _add_debugging(group) -> None:
    group.add_argument(
        "--verify-diagnostics",
        choices=("all", "only-expected"),
        nargs="?",
        metavar="=all|only-expected",
        help="compare diagnostics with comments '// expected-error@+1 {{text}}'",
    )
    for when in ("before", "after"):
        group.add_argument(
            f"--mlir-print-ir-{when}", metavar="PASS,...", action="extend", type=_names, default=[],
            help=f"print the IR {when} these passes on stderr",
        )  # fmt: skip
        group.add_argument(
            f"--mlir-print-ir-{when}-all", action="store_true", help=f"print the IR {when} each pass on stderr"
        )
    group.add_argument(
        "--mlir-print-ir-after-change",
        action="store_true",
        help="with --mlir-print-ir-after-all: only after passes that changed the IR",
    )
    group.add_argument(
        "--mlir-print-ir-after-failure", action="store_true", help="print the IR after a pass that fails"
    )
    group.add_argument(
        "--mlir-print-ir-module-scope",
        action="store_true",
        help="with --mlir-print-ir-before-all, -after-all or -after-failure: print the whole module",
    )
    group.add_argument("--mlir-timing", action="store_true", help="print the time of each pass on stderr")
    group.add_argument(
        "--mlir-timing-display",
        choices=("tree", "list"),
        default="tree",
        help="show the times as the passes nest (tree, default), or the longest first (list)",
    )
    group.add_argument("--mlir-pass-statistics", action="store_true", help="print what each pass counted on stderr")
    group.add_argument(
        "--mlir-pass-statistics-display",
        choices=("pipeline", "list"),
        default="pipeline",
        help="show the counts in the order of the pipeline (default), or sorted by name (list)",
    )
    group.add_argument("--mlir-print-debuginfo", action="store_true", help="keep locations in the output")
    group.add_argument("--mlir-print-op-generic", action="store_true", help="write ops in their generic form")
    group.add_argument(
        "--mlir-print-local-scope", action="store_true", help="write attributes and locations without aliases"
    )
    group.add_argument(
        "--mlir-elide-elementsattrs-if-larger",
        type=int,
        metavar="N",
        help="do not print the values of constants with more than N elements",
    )
    group.add_argument(
        "--mlir-pass-pipeline-crash-reproducer",
        metavar="FILE",
        help="write a reproducer to FILE if the pipeline fails (default: a new file, and only for a fault of reshard)",
    )
    group.add_argument(
        "--mlir-generate-reproducer", metavar="FILE", help="write a reproducer to FILE before the pipeline runs"
    )


def _add_about(group) -> None:
    group.add_argument("--list-passes", action="store_true", help="describe every pass with its options, and stop")
    group.add_argument("--show-dialects", action="store_true", help="list the MLIR dialects that can be read, and stop")
    group.add_argument(
        "--completion", choices=completion.SHELLS, help="print a script that completes these flags in a shell, and stop"
    )
    group.add_argument("--version", action="store_true", help="print the versions of reshard, jax, jaxlib and Python")


def _names(text: str) -> list[str]:
    return [each for each in text.split(",") if each]


def _truth(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise argparse.ArgumentTypeError(f"'{text}' is neither true nor false")
    return text.lower() in _TRUE


def _mesh(text: str) -> str:
    try:
        Mesh.parse(text)
    except MeshError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return "".join(text.split())


def _byte_size(text: str) -> int:
    try:
        return byte_size(text)
    except ByteSizeError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _effort(text: str) -> int:
    try:
        return effort_of(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _target(text: str) -> Target:
    try:
        return Target.parse(text)
    except TargetError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
