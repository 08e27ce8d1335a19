# SPDX-License-Identifier: Apache-2.0
"""The demo: each example compiled and run by stock XLA and by reshard on eight CPU devices, side by side.

Prints a table as it goes and writes everything to a report. A failure of stock XLA is a result, not a failure of the
demo.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path

from reshard.dialect_utils.xla.child import XlaChild
from reshard.tools.common import command
from reshard.tools.common.versions import versions
from reshard.tools.demo import table as demo_table
from reshard.tools.demo.run import DEVICES, ROOT, Measured, WorkerFailed, measure

_EPILOG = """\
exit status: 0 all outputs are equal, and reshard never needs more temporaries than stock XLA;
1 otherwise; 2 the command line has an error. With --policy always only the outputs count.
"""


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 for success, 1 if an example fails, outputs differ or ours is worse.

    Raises SystemExit(2) for a wrong command line.
    """
    try:
        with command.interruptible(is_process=argv is None):
            return _demonstrate(argv)
    except command.Interrupted as interrupt:
        return 128 + interrupt.number


def _demonstrate(argv: list[str] | None) -> int:
    began = time.monotonic()
    parser = _parser()
    flags = parser.parse_args(argv)
    names = _chosen(flags.names, parser)
    paint = demo_table.paint_with(_is_colored(flags))
    print(about(flags), demo_table.LEGEND, demo_table.heading(paint), sep="\n", flush=True)
    found, failures = _measure_all(names, flags, paint)
    failures += complaints(found, flags.policy)
    flags.report.parent.mkdir(parents=True, exist_ok=True)
    flags.report.write_text(demo_table.page(found, about(flags)))
    print(_summary(found, failures))
    print(f"every site: {demo_table.relative(str(flags.report))} ({time.monotonic() - began:.0f} s)")
    return 1 if failures else 0


def _measure_all(
    names: list[str], flags: argparse.Namespace, paint: demo_table.Paint
) -> tuple[list[Measured], list[str]]:
    """Returns the measurements, and the failures of examples that do not run. Prints examples as they are measured."""
    found, failures = [], []
    with XlaChild(num_devices=DEVICES) as child:
        for number, name in enumerate(names, 1):
            with _Progress(f"[{number}/{len(names)}] {name}") as progress:
                try:
                    each = measure(
                        name, size=flags.size, policy=flags.policy, runs=flags.runs, child=child, say=progress.say
                    )
                except WorkerFailed as failure:
                    failures.append(f"{name} does not run: {failure}")
                    continue
            found.append(each)
            print(demo_table.block(each, paint), flush=True)
    return found, failures


# The costs that a policy never makes worse. On a known network, more bytes may take less time.
_REFUSED = {"better": ("temporaries",), "strict": ("received bytes", "temporaries"), "always": ()}


def complaints(found: list[Measured], policy: str) -> list[str]:
    """Returns the reasons why the demo fails, one sentence each."""
    complaints = []
    for each in found:
        if each.ours.problem:
            complaints.append(f"{each.name}: ours does not run: {each.ours.problem}")
        if each.comparison is not None and not each.comparison.is_equal:
            complaints.append(f"{each.name}: the outputs are not equal")
        if refused := [cost for cost in each.worse if cost in _REFUSED[policy]]:
            complaints.append(f"{each.name}: ours is worse than stock XLA in {' and '.join(refused)}")
    return complaints


def about(flags: argparse.Namespace) -> str:
    """Returns the versions, the devices and the given options, in one line."""
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"{used}; {DEVICES} CPU devices on {os.cpu_count()} cores; size {flags.size}, policy {flags.policy}"


def _summary(found: list[Measured], failures: list[str]) -> str:
    if failures:
        return "\n".join(f"FAILED: {each}" for each in failures)
    ran = sum(each.comparison is not None for each in found)
    rewritten = sum(each.is_rewritten for each in found)
    worse = [each.name for each in found if each.worse]
    return (
        f"{ran} of {len(found)} examples ran both ways, with equal outputs; {rewritten} rewritten, "
        f"{', '.join(worse) if worse else 'none'} worse in received bytes or temporaries"
    )


def _chosen(names: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Returns the names of the examples to run; ends the process with exit status 2 if one cannot run."""
    if not (ROOT / "examples" / "programs.py").is_file():
        parser.error(
            "the examples are not installed with the package; run this in a checkout: python3 tools/dev.py demo"
        )
    known = _known_examples()
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no example {unknown[0]!r}; there are {', '.join(known)}")
    chosen = names or _usual_examples()
    missing = [package for package in ("flax", "optax") if importlib.util.find_spec(package) is None]
    if missing and "llama_train_step" in chosen:
        others = " ".join(name for name in known if name != "llama_train_step")
        parser.error(
            f"llama_train_step needs {' and '.join(missing)}: pip install flax optax; or name others: {others}"
        )
    return chosen


def _known_examples() -> list[str]:
    sys.path.append(str(ROOT))
    from examples.programs import all_programs

    return [entry.name for entry in all_programs()]


def _usual_examples() -> list[str]:
    from examples.programs import PROGRAMS

    return [entry.name for entry in PROGRAMS]


def _is_colored(flags: argparse.Namespace) -> bool:
    return sys.stdout.isatty() and not flags.no_color and "NO_COLOR" not in os.environ


class _Progress:
    """The progress on stderr: one line that changes on a terminal, one line per example elsewhere."""

    def __init__(self, title: str):
        self.title = title
        self.is_terminal = sys.stderr.isatty()
        if not self.is_terminal:
            print(title, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        if self.is_terminal:
            print(f"\r\x1b[K{self.title}: {text} ...", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *exception) -> None:
        if self.is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reshard.tools.demo",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="the examples to run (default: those of examples/programs.py)"
    )
    parser.add_argument(
        "--size", choices=("demo", "small"), default="demo", help="the size of the arrays (default: demo)"
    )
    parser.add_argument(
        "--policy",
        choices=("better", "always"),
        default="better",
        help="rewrite only the sites that get better (better, default), or every site (always)",
    )
    parser.add_argument(
        "--runs", type=_positive, metavar="N", help="timed runs of each program (default: a few seconds' worth)"
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=ROOT / "demo" / "report.md",
        metavar="FILE",
        help="the Markdown file for all costs and sites (default: demo/report.md)",
    )
    parser.add_argument("--no-color", action="store_true", help="no colors, even on a terminal")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no positive number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
