# SPDX-License-Identifier: Apache-2.0
"""`reshard bench`: runs the benchmarks of a checkout one after the other and writes their results on one page."""

from __future__ import annotations

import argparse
import html
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from reshard.tools.common.command import UserError
from reshard.tools.common.versions import versions

SUMMARY = "run benchmarks of a checkout against XLA, Shardy and DTensor, and write a page"
EXIT_STATUS = (
    "exit status: 0 all suites passed; 1 a suite failed; 130 stopped by Ctrl-C (the same command continues).\n"
)
ROOT = Path(__file__).resolve().parents[2]
DEMO = ("-m", "reshard.tools.demo")


@dataclass(frozen=True, slots=True)
class Suite:
    """A benchmark: Python's arguments for the quick run and for the full one.

    Fields:
      minutes: about how long the quick run takes on two cores.
      keeps: whether it keeps its results in a folder, `--state`, so that a stopped run can continue.
      draws: whether it draws a picture, `--curves`, for the page.
    """

    name: str
    summary: str
    minutes: float
    quick: tuple[str, ...]
    full: tuple[str, ...]
    keeps: bool = False
    draws: bool = False

    def command(self, is_full: bool, state: Path) -> list[str]:
        arguments = self.full if is_full else self.quick
        kept = ["--state", str(state / self.name)] if self.keeps else []
        drawn = ["--curves", str(self.picture(state))] if self.draws else []
        return [sys.executable, *arguments, *kept, *drawn]

    def picture(self, state: Path) -> Path:
        return state / f"{self.name}.svg"


SUITES = (
    Suite(
        "pairs",
        "random pairs compiled for 8 to 64 CPU devices: traffic, memory, crashes of XLA, Shardy, DTensor, the paper, "
        "ours",
        2,
        ("benchmarks/random_pairs.py", "--count", "20", "--show", "2"),
        ("benchmarks/random_pairs.py", "--count", "1000"),
        keeps=True,
        draws=True,
    ),
    Suite(
        "modelled",
        "random pairs on 8 to 512 devices: received bytes over the bound, and modelled time on networks: XLA, "
        "Shardy, ours",
        0.5,
        ("benchmarks/redistributions.py", "--fraction", "0.005", "--presets", "uniform,h100"),
        ("benchmarks/redistributions.py",),
        keeps=True,
    ),
    Suite(
        "shared",
        "random pairs that run on 8 CPU devices sharing one memory",
        1,
        ("benchmarks/run_times.py", "--on", "shared", "--count", "8", "--turns", "3"),
        ("benchmarks/run_times.py", "--on", "shared", "--count", "220"),
        keeps=True,
    ),
    Suite(
        "uniform",
        "random pairs on a network of namespaces, every process with a slow link of its own",
        2,
        ("benchmarks/run_times.py", "--on", "uniform", "--count", "8", "--mib", "16", "--turns", "3"),
        ("benchmarks/run_times.py", "--on", "uniform", "--count", "60"),
        keeps=True,
    ),
    Suite(
        "two-level",
        "random pairs on a network of namespaces, fast inside a node and slow between nodes",
        7,
        ("benchmarks/run_times.py", "--on", "two-level", "--count", "8", "--mib", "16", "--turns", "3"),
        ("benchmarks/run_times.py", "--on", "two-level", "--count", "60"),
        keeps=True,
    ),
    Suite(
        "programs",
        "whole programs, stock XLA's and ours side by side",
        1,
        (*DEMO, "issue_21562", "recommender", "decode_step", "--runs", "3", "--no-color"),
        (*DEMO, *("issue_21562", "llama_train_step", "moe_layer", "sequence_parallel_attention", "fft_pencil"),
         *("vision_transformer", "recommender", "heat_adi", "decode_step"), "--no-color"),
    ),
    Suite(
        "targets",
        "programs compiled ahead of time for a TPU target, stock and ours, where libtpu is installed",
        0.5,
        ("benchmarks/ahead_of_time.py", "--if-installed", "--targets", "tpu:v5e:4x4", "--programs", "issue_21562"),
        ("benchmarks/ahead_of_time.py", "--if-installed", "--size", "pod", "--programs",
         "issue_21562,llama_train_step,moe_layer,sequence_parallel_attention,fft_pencil"),
    ),
    Suite(
        "planner",
        "how long planning takes, and its memory; DTensor's planner too where torch is installed",
        0.5,
        ("benchmarks/planner.py", "--devices", "8,64", "--count", "30", "--dtensor"),
        ("benchmarks/planner.py", "--dtensor"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a suite: its command without paths, exit status, seconds, printed output, and the SVG it drew."""

    name: str
    summary: str
    command: str
    status: int
    seconds: float
    output: str
    picture: str = ""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help=f"the benchmarks to run: {', '.join(each.name for each in SUITES)} (default: all)",
    )
    parser.add_argument(
        "--full", action="store_true",
        help=f"run all of each suite, which takes hours; without it, all suites take about "
             f"{sum(each.minutes for each in SUITES):.0f} minutes on two cores",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the suites and their commands, and stop")
    parser.add_argument(
        "-o", dest="folder", type=Path, default=Path("bench"), metavar="DIR",
        help="the folder for report.md, report.html, report.json and the results of each suite (default: bench)",
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
    state = flags.folder.resolve() / ("full" if flags.full else "quick")
    state.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for number, suite in enumerate(chosen, 1):
        about = "" if flags.full else f", about {suite.minutes:g} min"
        print(f"[{number}/{len(chosen)}] {suite.name}{about}: {suite.summary}", flush=True)
        outcomes.append(_run(suite, flags.full, state))
        print(f"    {'done' if not outcomes[-1].status else 'FAILED'} in {outcomes[-1].seconds:.0f} s\n", flush=True)
        _write(outcomes, flags.folder)
    print(f"written: {flags.folder / 'report.md'}, {flags.folder / 'report.html'}, {flags.folder / 'report.json'}")
    return 1 if any(each.status for each in outcomes) else 0


def _run(suite: Suite, is_full: bool, state: Path) -> Outcome:
    """Runs a suite and returns its outcome. Prints the suite's output at once; its progress goes to our stderr."""
    command = suite.command(is_full, state)
    print(f"    $ {_shown(command)}", flush=True)
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search, "PYTHONUNBUFFERED": "1"}
    suite.picture(state).unlink(missing_ok=True)
    began_s, lines = time.monotonic(), []
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # stdout is a pipe
        try:
            for line in process.stdout:
                line = line.replace(f"{state}{os.sep}", "")  # the page may be read on another machine
                lines.append(line)
                print(f"    {line}", end="", flush=True)
        except BaseException:
            process.terminate()  # Ctrl-C may reach this process alone; the `with` waits for the child
            raise
    seconds = time.monotonic() - began_s
    picture = suite.picture(state).read_text(encoding="utf-8") if suite.picture(state).is_file() else ""
    return Outcome(
        suite.name, suite.summary, _shown(command), process.returncode, seconds, "".join(lines).strip(), picture
    )


def _shown(command: Sequence[str]) -> str:
    """Returns a command as text, without the paths of this machine."""
    kept = list(command[1:])
    for flag in ("--state", "--curves"):
        if flag in kept:
            del kept[kept.index(flag) : kept.index(flag) + 2]
    return " ".join(["python", *kept])


def _write(outcomes: Sequence[Outcome], folder: Path) -> None:
    page = as_markdown(outcomes, environment())
    pictures = {picture_name(each): each.picture for each in outcomes if each.picture}
    for name, picture in pictures.items():
        (folder / name).write_text(picture, encoding="utf-8")
    (folder / "report.md").write_text(page, encoding="utf-8")
    (folder / "report.html").write_text(as_html(page, pictures), encoding="utf-8")
    found = {"schema": "reshard.bench/1", "environment": environment(), "suites": [_as_dict(each) for each in outcomes]}
    (folder / "report.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def _as_dict(outcome: Outcome) -> dict:
    return {**asdict(outcome), "picture": picture_name(outcome) if outcome.picture else None}


def picture_name(outcome: Outcome) -> str:
    """Returns the file name of a suite's picture; the file lies beside the page."""
    return f"{outcome.name}.svg"


def environment() -> dict[str, str]:
    """Returns the facts on which the numbers depend, such as versions and machine, by their names."""
    return {
        **versions(),
        "torch": _torch_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": str(os.cpu_count()),
    }


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "not installed"


def as_markdown(outcomes: Sequence[Outcome], environment: dict[str, str]) -> str:
    """Returns the page in Markdown. A suite's tables stay tables; its other lines are quoted in blocks."""
    lines = ["# reshard bench", "", ", ".join(f"{name} {value}" for name, value in environment.items()), ""]
    lines += ["| suite | what | ended | seconds |", "|---|---|---|---|"]
    for each in outcomes:
        ended = f"with {each.status}" if each.status else "well"
        lines.append(f"| [{each.name}](#{each.name}) | {each.summary} | {ended} | {each.seconds:.0f} |")
    lines.append("")
    for each in outcomes:
        status = "" if not each.status else f" **Ended with {each.status}.**"
        picture = [f"![{each.name}: {each.summary}]({picture_name(each)})", ""] if each.picture else []
        lines += [f"## {each.name}", "", f"{each.summary}: `{each.command}`, {each.seconds:.0f} s.{status}", ""]
        lines += [*picture, *_blocks(each.output), ""]
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


def as_html(page: str, pictures: Mapping[str, str]) -> str:
    """Returns a page of Markdown as one HTML file. Without markdown-it-py the page stays plain text in it.

    Args:
      pictures: SVG by the name by which the page refers to it; they come into the file.
    """
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        body = "".join([*pictures.values(), f"<pre>{html.escape(page)}</pre>"])
    else:
        body = MarkdownIt("commonmark", {"html": False}).enable("table").render(page)
        for name, picture in pictures.items():
            body = re.sub(
                rf'<img src="{re.escape(name)}"[^>]*>', lambda _: f'<span class="picture">{picture}</span>', body
            )
        body = re.sub(r"<h2>([\w-]+)</h2>", r'<h2 id="\1">\1</h2>', body)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>reshard bench</title>\n{_STYLE}\n'
        f"<body>{body}</body></html>\n"
    )


_STYLE = """<meta name="viewport" content="width=device-width">
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2.5rem 0 .5rem; padding-top: 1rem; border-top: 2px solid color-mix(in srgb, currentColor 25%, transparent); }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; font-size: 13px; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); padding: .3rem .7rem; text-align: left; }
td { white-space: nowrap; }
pre { overflow-x: auto; padding: .7rem; background: color-mix(in srgb, currentColor 7%, transparent); border-radius: 4px; font-size: 12.5px; }
.picture svg { display: block; max-width: 100%; height: auto; }
:focus-visible { outline: 3px solid currentColor; }
</style>"""  # noqa: E501
