# SPDX-License-Identifier: Apache-2.0
"""Asks `reshard advise` about programs, applies what it says, and compiles again: what was predicted, and what came.

    python -m benchmarks.whole_modules.advice [--programs NAME,...] [--topology v5e:2x4] [--may-change WORDS]
        [--memory-limit SIZE] [--out FILE.md]

Each step is a command in a process of its own. If only the mesh changes, the program is lowered anew with that mesh,
else the changed module is compiled. Times are modelled on the topology, of stock XLA's programs. The exit status is 1
if an advised program is slower than it was, or differs from what was predicted by more than a tenth.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.progress import replace_line
from benchmarks.harness.tables import show

_PROGRAMS = "mixed_gpt,llama_train_step,moe_layer,fft_pencil,haiku_two_tower,vision_transformer"
_TOLERANCE = 0.1
_HEADINGS = (
    "program", "network", "changes", "us: as it came", "predicted", "applied", "received MB: as it came", "predicted",
    "applied", "memory MB: as it came", "predicted",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """What stock XLA makes of a module: seconds of a step by the model, received bytes per device."""

    seconds: float
    received: int


@dataclass(frozen=True, slots=True)
class Row:
    """A program and its advice; without changes the last three are as the program came.

    Attributes:
      was: the program as it came. predicted: by the report. applied: measured anew.
      peaks: memory in bytes per device, as it came and predicted.
    """

    program: str
    network: str
    changes: int
    was: Traffic
    predicted: Traffic
    applied: Traffic
    peaks: tuple[int, int]

    @property
    def is_wrong(self) -> bool:
        """Returns whether the advice does not give what it says."""
        said, came = self.predicted, self.applied
        pairs = (said.seconds, came.seconds), (said.received, came.received)
        is_off = any(abs(one - other) > _TOLERANCE * max(one, other) for one, other in pairs)
        return is_off or came.seconds > self.was.seconds

    def cells(self) -> list[str]:
        all_three = (self.was, self.predicted, self.applied)
        return [
            self.program, self.network, str(self.changes), *(f"{each.seconds * 1e6:,.0f}" for each in all_three),
            *(f"{each.received / 1e6:,.2f}" for each in all_three), *(f"{each / 1e6:,.1f}" for each in self.peaks),
        ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=lambda text: text.split(","), default=_PROGRAMS.split(","))
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--may-change", help="as for `reshard advise`")
    parser.add_argument("--memory-limit", help="as for `reshard advise`")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = [_advised(name, Path(folder), options) for name in options.programs]
    show(_HEADINGS, [row.cells() for row in rows], "ll" + "r" * 9, options.out)
    return int(any(row.is_wrong for row in rows))


def _advised(name: str, folder: Path, options: argparse.Namespace) -> Row:
    replace_line(f"{name}: advice")
    module, changed = folder / f"{name}.mlir", folder / f"{name}_changed.mlir"
    _run("benchmarks.programs", "lower", name, "-o", module)
    flags = [f"--topology={options.topology}"]
    asked = [f"--{flag}={value}" for flag in ("may-change", "memory-limit") if (value := _of(options, flag))]
    report = json.loads(_run("reshard.tools.reshard", "advise", module, "--json", "-o", changed, *flags, *asked))
    forms, changes = report["forms"], report["changes"]
    was, predicted = forms[0], forms[1] if changes else forms[0]
    applied = _of_form(was)
    if changes:
        replace_line(f"{name}: {len(changes)} applied")
        if [each["kind"] for each in changes] == ["mesh"]:
            mesh = ",".join(f"{axis}={size}" for axis, size in changes[0]["advised"].items())
            _run("benchmarks.programs", "lower", name, "--mesh", mesh, "-o", changed)
        stock = json.loads(_run("reshard.tools.reshard", "traffic", changed, "--json", *flags))["stock"]
        applied = Traffic(stock["program_seconds"], stock["bytes_received"])
    peaks = was["peak_bytes"], predicted["peak_bytes"]
    return Row(name, options.topology, len(changes), _of_form(was), _of_form(predicted), applied, peaks)


def _of(options: argparse.Namespace, flag: str) -> str | None:
    return getattr(options, flag.replace("-", "_"))


def _of_form(form: dict) -> Traffic:
    return Traffic(form["modelled_s"], form["bytes_received"])


def _run(module: str, *arguments: str | Path) -> str:
    """Returns what `python -m module` prints. Raises: SystemExit with its errors, if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"python -m {module} {' '.join(map(str, arguments))}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
