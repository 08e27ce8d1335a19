#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Interrupts `reshard.optimize` and `reshard-opt` at random moments, each with a fresh cache on disk; what is answered
next has to be what a process answers that was never interrupted, in the same process and in later ones that read the
same cache.

    python3 test/fuzz/interrupts.py --seed 0 --count 200          # half of the moments in each of the two
    python3 test/fuzz/interrupts.py --seed 17 --count 1 --of opt  # one moment again, as far as time can be repeated

`optimize` gets Ctrl-C. `reshard-opt` gets SIGINT, SIGTERM or SIGHUP, alone or with its whole process group. It has to
end at once with status 130, 143 or 129, without an output and with an empty temporary directory; or it ended before the
signal, and its output is right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
PROMPT_S = 3.0  # from the signal to the end of reshard-opt, also on a busy machine
ANSWER_TIMEOUT_S = 300.0
_PAIRS = (
    ('[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]'),
    ('[{"x"}, {"y"}, {}]', '[{}, {"x"}, {"y"}]'),
    ('[{"x", "y"}, {}, {}]', '[{}, {}, {"y", "x"}]'),
    ('[{}, {"y"}, {}]', '[{"y", "x"}, {}, {}]'),
    ('[{"x"}, {}, {}]', '[{"y"}, {"x"}, {}]'),
)


def module_text(variant: int, sites: int = 2) -> str:
    """Returns a module of 8 devices; all its sites differ, so that each question to XLA has a different answer."""
    arguments, results, body = [], [], []
    for site in range(sites):
        source, target = _PAIRS[(variant + site) % len(_PAIRS)]
        kind = f"tensor<{16 + 8 * site}x16x{16 + 8 * variant}xf32>"
        arguments += [f"%a{site}: {kind} {_sharding(source)}", f"%b{site}: {kind} {_sharding(target)}"]
        results.append(f"{kind} {_sharding(target)}")
        body += [
            f"  %t{site} = stablehlo.tanh %a{site} : {kind}",
            f"  %s{site} = stablehlo.add %t{site}, %b{site} : {kind}",
        ]
    kinds = ", ".join(each.partition(" {")[0] for each in results)
    body.append(f"  return {', '.join(f'%s{site}' for site in range(sites))} : {kinds}")
    head = f"func.func public @main({', '.join(arguments)}) -> ({', '.join(results)}) {{"
    return "\n".join(['sdy.mesh @mesh = <["x"=4, "y"=2]>', head, *body, "}"]) + "\n"


def _sharding(text: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {text}>}}"


# ---------------------------------------------------------------------------------------------------------------------
# A process that answers
# ---------------------------------------------------------------------------------------------------------------------


class Asker:
    """A process that calls `reshard.optimize` for each question, reports each start, and continues after Ctrl-C."""

    def __init__(self, cache: Path, temporary: Path):
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(cache, temporary),
            start_new_session=True,
        )

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *exception) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, variant: int, interrupt_after_s: float | None = None, is_cold: bool = False) -> str | None:
        """Returns the answer; None if Ctrl-C came before the answer was complete."""
        self._process.stdin.write(json.dumps({"variant": variant, "is_cold": is_cold}).encode() + b"\n")
        self._process.stdin.flush()
        self._line()  # the call has started
        if interrupt_after_s is not None:
            time.sleep(interrupt_after_s)
            self._process.send_signal(signal.SIGINT)
        return json.loads(self._line())["answer"]

    def _line(self) -> bytes:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process that asks ended with status {self._process.wait()}")
        return line


def serve() -> None:
    """Answers each line of stdin with a line; Ctrl-C interrupts only while a question is open."""
    is_asking = False

    def interrupt(number, frame) -> None:
        if is_asking:
            signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    from reshard.compiling.optimizing import optimize
    from reshard.dialect_utils.xla import child as xla_child

    for line in sys.stdin:
        asked = json.loads(line)
        if asked["is_cold"]:
            xla_child.shared_child().close()
        text, answer = module_text(asked["variant"]), None
        print("begun", flush=True)
        try:
            is_asking = True
            answer = answer_of(optimize(text))
        except KeyboardInterrupt:
            pass
        except Exception as error:  # this is an answer too, which differs from the answer of a clean process
            answer = f"{type(error).__name__}: {error}"
        finally:
            is_asking = False
        print(json.dumps({"answer": answer}), flush=True)


def answer_of(result) -> str:
    """Returns the module and its report, without times."""
    return json.dumps([result.module, _without_times(result.report.to_dict())], sort_keys=True)


def _difference(answer: str | None, clean: str) -> str:
    """Returns a text that shows the first place where an answer differs from the clean one."""
    answer = answer or "none"
    at = next((i for i, (here, there) in enumerate(zip(answer, clean)) if here != there), min(len(answer), len(clean)))
    return f"{answer[max(0, at - 60) : at + 120]!r} and not {clean[max(0, at - 60) : at + 120]!r}"


def _without_times(value):
    if isinstance(value, dict):
        return {
            name: _without_times(each) for name, each in value.items() if "seconds" not in name and name != "from_cache"
        }
    return [_without_times(each) for each in value] if isinstance(value, list) else value


def _environment(cache: Path, temporary: Path) -> dict[str, str]:
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "PYTHONPATH": search,
        "RESHARD_CACHE_DIR": str(cache),
        "TMPDIR": str(temporary),
        "RESHARD_CACHE": "on",
    }


# ---------------------------------------------------------------------------------------------------------------------
# Moments
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """The outcomes of the moments so far."""

    outcomes: Counter = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def fault(self, moment: str, what: str) -> None:
        self.faults.append(f"{moment}: {what}")
        print(self.faults[-1], flush=True)


class Optimizing:
    """Moments of `optimize`: the process that is interrupted, a later reader of its cache, and the clean answers."""

    VARIANTS = 2

    def __init__(self, folder: Path, found: Found):
        self.found, self.cache, self.temporary = found, folder / "cache", folder / "tmp"
        self.temporary.mkdir()
        self.asker, self.reader = (Asker(self.cache, self.temporary) for _ in range(2))
        self.clean, self.seconds = {}, {}
        for variant in range(self.VARIANTS):
            for is_cold in (True, False):
                self._clear()
                began_s = time.monotonic()
                answer = self.reader.ask(variant, is_cold=is_cold)
                self.seconds[variant, is_cold] = time.monotonic() - began_s
                if self.clean.setdefault(variant, answer) != answer:
                    found.fault("before any moment", f"variant {variant} has two answers")

    def __enter__(self) -> Optimizing:
        return self

    def __exit__(self, *exception) -> None:
        self.asker.__exit__()
        self.reader.__exit__()

    def moment(self, seed: int) -> None:
        draw = random.Random(seed)
        variant, is_cold = draw.randrange(self.VARIANTS), draw.random() < 0.3
        after_s = draw.random() * self.seconds[variant, is_cold]
        name = (
            f"seed {seed}, optimize variant {variant}, {'a cold' if is_cold else 'a warm'} child, after {after_s:.3f} s"
        )
        self._clear()
        first = self.asker.ask(variant, after_s, is_cold)
        self.found.outcomes["optimize interrupted" if first is None else "optimize done before"] += 1
        if first not in (None, self.clean[variant]):
            self.found.fault(name, "the answer itself is another one")
        if draw.random() < 0.5:
            self._compare(name, "the same process", self.asker, (variant + 1) % self.VARIANTS)
        self._compare(name, "the same process", self.asker, variant)
        self._compare(name, "another process", self.reader, variant)
        for folder in [*self.cache.glob("results-*"), *self.cache.glob("sites-*")]:
            shutil.rmtree(folder)
        self._compare(name, "another process, from XLA's answers on disk", self.reader, variant)

    def _compare(self, name: str, who: str, asker: Asker, variant: int) -> None:
        if (answer := asker.ask(variant)) != self.clean[variant]:
            self.found.fault(
                name, f"{who} answers otherwise on variant {variant}: {_difference(answer, self.clean[variant])}"
            )

    def _clear(self) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)


class Opting:
    """Moments of `reshard-opt`, each in its own process."""

    VARIANT = 0

    def __init__(self, folder: Path, found: Found):
        self.folder, self.found = folder, found
        self.cache, self.temporary, self.output = folder / "cache", folder / "tmp", folder / "out.mlir"
        self.temporary.mkdir()
        self.source = folder / "in.mlir"
        self.source.write_text(module_text(self.VARIANT, sites=1))
        began_s = time.monotonic()
        status, said = self._finish(self._start())
        self.seconds = time.monotonic() - began_s
        if status:
            raise SystemExit(f"reshard-opt fails without any interrupt: {said}")
        self.clean = self.output.read_bytes()

    def moment(self, seed: int) -> None:
        draw = random.Random(seed)
        number, is_group = signal.Signals[draw.choice(ENDING)], draw.random() < 0.5
        after_s = draw.random() * self.seconds
        name = f"seed {seed}, reshard-opt, {number.name} to {'all' if is_group else 'it alone'}, after {after_s:.3f} s"
        shutil.rmtree(self.cache, ignore_errors=True)
        self.output.unlink(missing_ok=True)
        process = self._start()
        time.sleep(after_s)
        began_s = time.monotonic()
        (os.killpg if is_group else os.kill)(process.pid, number)
        status, said = self._finish(process)
        self.found.slowest_s = max(self.found.slowest_s, time.monotonic() - began_s)
        self._judge(name, number, status, said, time.monotonic() - began_s)
        status, said = self._finish(self._start())
        if status or self.output.read_bytes() != self.clean:
            self.found.fault(name, f"the next run is another one: status {status}, {said}")

    def _judge(self, name: str, number: signal.Signals, status: int, said: str, seconds: float) -> None:
        fault, output = self.found.fault, self.output.read_bytes() if self.output.exists() else None
        is_unborn = (
            "KeyboardInterrupt" in said and "in main\n    return contained" not in said
        )  # Python was still starting
        what = "done before" if status == 0 else "Python was starting" if is_unborn else f"ended with {128 + number}"
        self.found.outcomes[f"reshard-opt: {what}"] += 1
        if status == 0 and output != self.clean:
            fault(name, "status 0 with another output")
        if status and not is_unborn and (status, said) != (128 + number, ""):
            fault(name, f"status {status}, {said!r}")
        if status and output is not None:
            fault(name, f"status {status} with an output")
        if seconds > PROMPT_S:
            fault(name, f"it ended after {seconds:.1f} s only, with status {status}")
        if left := [*map(str, self.temporary.iterdir()), *self.folder.glob("*.tmp"), *_processes_with(self.temporary)]:
            fault(name, f"left behind: {left}")
        for each in self.temporary.iterdir():
            shutil.rmtree(each, ignore_errors=True)

    def _start(self) -> subprocess.Popen:
        command = [sys.executable, "-c", "import sys; from reshard.tools.reshard_opt import main; sys.exit(main())"]
        command += [str(self.source), "--compile-for=cpu:8", "--no-remarks", "-o", str(self.output)]
        env = _environment(self.cache, self.temporary)
        return subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_with_default_signals,
        )

    @staticmethod
    def _finish(process: subprocess.Popen) -> tuple[int, str]:
        """Returns the exit status as a shell shows it, and the text of stderr."""
        said = process.communicate(timeout=ANSWER_TIMEOUT_S)[1]
        return process.returncode if process.returncode >= 0 else 128 - process.returncode, said


def _with_default_signals() -> None:
    """Sets the default handlers: in a shell's background and under nohup some signals would stay ignored."""
    for name in ENDING:
        signal.signal(signal.Signals[name], signal.SIG_DFL)


def _processes_with(path: Path) -> list[str]:
    """Returns the command lines of processes that contain the path (Linux)."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(path) in line:
            found.append(line)
    return found


# ---------------------------------------------------------------------------------------------------------------------


def run(seeds: Sequence[int], of: str, progress: Callable[[str], None]) -> Found:
    """Returns the outcomes of one moment per seed."""
    found = Found()
    kinds = {"both": ("optimize", "opt")}.get(of, (of,))
    with tempfile.TemporaryDirectory(prefix="reshard-interrupts-") as folder:
        for number, kind in enumerate(kinds):
            mine = seeds[number :: len(kinds)]
            place = Path(folder, kind)
            place.mkdir()
            if kind == "opt":
                _moments(Opting(place, found).moment, mine, found, progress)
            else:
                with Optimizing(place, found) as optimizing:
                    _moments(optimizing.moment, mine, found, progress)
    return found


def _moments(
    moment: Callable[[int], None], seeds: Sequence[int], found: Found, progress: Callable[[str], None]
) -> None:
    for seed in seeds:
        moment(seed)
        progress(f"{sum(found.outcomes.values())} moments, {len(found.faults)} faults")


def main(argv: Sequence[str] | None = None) -> int:
    flags = _parser().parse_args(argv)
    if flags.serve:
        sys.path.insert(0, str(ROOT))
        serve()
        return 0
    began_s = time.monotonic()

    def progress(text: str) -> None:
        if flags.progress and int(text.split()[0]) % flags.progress == 0:
            print(f"{text}, {time.monotonic() - began_s:.0f} s", flush=True)

    found = run(range(flags.seed, flags.seed + flags.count), flags.of, progress)
    print(f"{sum(found.outcomes.values())} moments, {len(found.faults)} faults, {time.monotonic() - began_s:.0f} s")
    for what, count in sorted(found.outcomes.items()):
        print(f"  {count} {what}")
    print(f"  reshard-opt took {found.slowest_s:.2f} s to end, at most")
    return int(bool(found.faults))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seed", type=int, default=0, help="the number of the first moment; a later run can continue there"
    )
    parser.add_argument("--count", type=int, default=200, help="moments")
    parser.add_argument("--of", choices=("both", "optimize", "opt"), default="both", help="what is interrupted")
    parser.add_argument("--progress", type=int, default=20, help="print totals after this many moments; 0 never")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
