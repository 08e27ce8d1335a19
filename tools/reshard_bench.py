# SPDX-License-Identifier: Apache-2.0
"""`reshard bench`: runs suites of benchmarks of a checkout, one after the other, and puts what they found on one page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
import html
import json
import os
from pathlib import Path
import platform
import subprocess
import sys
import time

from reshard.tools.command import UserError
from reshard.tools.versions import versions

SUMMARY = "run benchmarks of a checkout against XLA, Shardy and DTensor, and write a page"
EXIT_STATUS = "exit status: 0 all suites ran and found what they must, 1 one did not, 130 stopped by Ctrl-C; the same command goes on.\n"
ROOT = Path(__file__).resolve().parent.parent
DEMO = ("-m", "reshard.tools.demo")


@dataclass(frozen=True, slots=True)
class Suite:
    """A benchmark: Python's arguments for the quick run and for the full one.

    Fields: keeps: whether it keeps answers in a folder of its own, `--state`, and a run that was stopped goes on.
    """

    name: str
    summary: str
    quick: tuple[str, ...]
    full: tuple[str, ...]
    keeps: bool = False

    def command(self, is_full: bool, state: Path) -> list[str]:
        arguments = self.full if is_full else self.quick
        kept = ["--state", str(state / self.name)] if self.keeps else []
        return [sys.executable, *arguments, *kept]


SUITES = (
    Suite(
        "pairs",
        "received bytes and modelled time of random pairs, 8 to 512 devices: XLA, Shardy, ours",
        ("benchmarks/redistributions.py", "--fraction", "0.005", "--presets", "uniform,h100"),
        ("benchmarks/redistributions.py",),
        keeps=True,
    ),
    Suite(
        "compiled",
        "random pairs compiled for CPU devices: traffic, temporaries, aborts of stock XLA",
        ("benchmarks/random_pairs.py", "--devices", "8,12", "--count", "10"),
        ("benchmarks/random_pairs.py", "--count", "200"),
    ),
    Suite(
        "shared",
        "random pairs that run on 8 CPU devices sharing one memory",
        ("benchmarks/run_times.py", "--on", "shared", "--count", "8", "--turns", "3"),
        ("benchmarks/run_times.py", "--on", "shared", "--count", "220"),
        keeps=True,
    ),
    Suite(
        "uniform",
        "random pairs on a network of namespaces, every process with a slow link of its own",
        ("benchmarks/run_times.py", "--on", "uniform", "--count", "8", "--mib", "16", "--turns", "3"),
        ("benchmarks/run_times.py", "--on", "uniform", "--count", "60"),
        keeps=True,
    ),
    Suite(
        "two-level",
        "random pairs on a network of namespaces, fast inside a node and slow between nodes",
        ("benchmarks/run_times.py", "--on", "two-level", "--count", "8", "--mib", "16", "--turns", "3"),
        ("benchmarks/run_times.py", "--on", "two-level", "--count", "60"),
        keeps=True,
    ),
    Suite(
        "programs",
        "whole programs, stock XLA's and ours side by side",
        (*DEMO, "issue_21562", "recommender", "decode_step", "--runs", "3", "--no-color"),
        (*DEMO, *("issue_21562", "llama_train_step", "moe_layer", "sequence_parallel_attention", "fft_pencil"),
         *("vision_transformer", "recommender", "heat_adi", "decode_step"), "--no-color"),
    ),
    Suite(
        "planner",
        "how long planning takes, and its memory",
        ("benchmarks/planner.py", "--devices", "8,64", "--count", "30"),
        ("benchmarks/planner.py",),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """A suite that ran: its command without paths, exit status, seconds, and what it printed."""

    name: str
    summary: str
    command: str
    status: int
    seconds: float
    output: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(each.name for each in SUITES)} (default: all)")
    parser.add_argument("--full", action="store_true", help="the whole of each, for hours; left out, all take some minutes")
    parser.add_argument("--list", action="store_true", help="print the suites and their commands, and stop")
    parser.add_argument(
        "-o", dest="folder", type=Path, default=Path("bench"), metavar="DIR",
        help="where report.md, report.html, report.json and the answers go (default: bench)",
    )  # fmt: skip


def drive(flags: argparse.Namespace) -> int:
    """Returns the exit status. Raises: UserError outside of a checkout, and for an unknown suite."""
    if not (ROOT / "benchmarks").is_dir():
        raise UserError("the benchmarks are not installed with the package; run this in a checkout")
    known = {each.name: each for each in SUITES}
    if unknown := [name for name in flags.suites if name not in known]:
        raise UserError(f"no suite '{unknown[0]}'; there are {', '.join(known)}")
    chosen = [known[name] for name in flags.suites] or list(SUITES)
    if flags.list:
        for each in chosen:
            print(f"{each.name:10} {each.summary}\n{'':10} {_shown(each.command(flags.full, flags.folder))}")
        return 0
    return _run_all(chosen, flags)


def _run_all(chosen: Sequence[Suite], flags: argparse.Namespace) -> int:
    flags.folder.mkdir(parents=True, exist_ok=True)
    state = flags.folder.resolve() / ("full" if flags.full else "quick")
    outcomes: list[Outcome] = []
    for number, suite in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {suite.name}: {suite.summary}", flush=True)
        outcomes.append(_run(suite, flags.full, state))
        print(f"    {'done' if not outcomes[-1].status else 'FAILED'} in {outcomes[-1].seconds:.0f} s", flush=True)
        _write(outcomes, flags.folder)
    print(f"written: {flags.folder / 'report.md'}, {flags.folder / 'report.html'}, {flags.folder / 'report.json'}")
    return 1 if any(each.status for each in outcomes) else 0


def _run(suite: Suite, is_full: bool, state: Path) -> Outcome:
    """Runs a suite; its progress is on our stderr."""
    command = suite.command(is_full, state)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    began_s = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        output = process.stdout.read()
    seconds = time.monotonic() - began_s
    return Outcome(suite.name, suite.summary, _shown(command), process.returncode, seconds, output.strip())


def _shown(command: Sequence[str]) -> str:
    kept = list(command[1:])
    if "--state" in kept:
        del kept[kept.index("--state") : kept.index("--state") + 2]
    return " ".join(["python", *kept])


def _write(outcomes: Sequence[Outcome], folder: Path) -> None:
    page = as_markdown(outcomes, environment())
    (folder / "report.md").write_text(page, encoding="utf-8")
    (folder / "report.html").write_text(as_html(page), encoding="utf-8")
    found = {"schema": "reshard.bench/1", "environment": environment(), "suites": [asdict(each) for each in outcomes]}
    (folder / "report.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def environment() -> dict[str, str]:
    """Returns what the numbers depend on, by name."""
    cores = str(os.cpu_count())
    return {**versions(), "platform": platform.platform(), "machine": platform.machine(), "cores": cores}


def as_markdown(outcomes: Sequence[Outcome], environment: dict[str, str]) -> str:
    """Returns the page. Tables of a suite stay tables; its other lines are kept as they are, in a block."""
    lines = ["# reshard bench", "", ", ".join(f"{name} {value}" for name, value in environment.items()), ""]
    for each in outcomes:
        status = "" if not each.status else f" **Ended with {each.status}.**"
        lines += [f"## {each.name}", "", f"{each.summary}: `{each.command}`, {each.seconds:.0f} s.{status}", "", *_blocks(each.output), ""]
    return "\n".join(lines)


def _blocks(output: str) -> list[str]:
    lines: list[str] = []
    is_open = False
    for line in output.splitlines():
        is_markdown = line.startswith(("| ", "|-", "## ", "### ", "#### "))
        if is_open == is_markdown and (is_open or line):
            lines += ["```" if is_open else "", "" if is_open else "```"]
            is_open = not is_open
        if line or is_open:
            lines.append(line if not line.startswith("#") else f"#{line}")
        elif lines and lines[-1]:
            lines.append("")
    return [*lines, "```"] if is_open else lines


def as_html(page: str) -> str:
    """Returns a page of Markdown as one HTML file; as plain text where markdown-it-py is not installed."""
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        body = f"<pre>{html.escape(page)}</pre>"
    else:
        body = MarkdownIt("commonmark", {"html": False}).enable("table").render(page)
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>reshard bench</title>\n{_STYLE}\n<body>{body}</body></html>\n'


_STYLE = """<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); padding: .3rem .7rem; text-align: left; }
pre { overflow-x: auto; padding: .7rem; background: color-mix(in srgb, currentColor 7%, transparent); border-radius: 4px; }
</style>"""
