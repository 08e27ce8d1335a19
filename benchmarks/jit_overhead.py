# SPDX-License-Identifier: Apache-2.0
"""The cost of `reshard.jit`: per call, and for compiling a program, beside `jax.jit` in the same run.

    python benchmarks/jit_overhead.py [--program llama_train_step] [--size demo] [--repeats 5] [--calls 20000]
    [--topology v5e:2x4] [--no-cold]

**Per call**: compiled functions are called in turns; the median of the turns counts. The program is one addition on one
device, so that the time is that of dispatch.

**Compiling**: the time that jax takes from the lowered program to the executable, in turns: stock; ours *warm*, with
the whole result on disk; ours *unkept*, with XLA's answers and plans on disk, but no whole results; ours *cold*, with
nothing on disk, once, and once more without the whole-module check. The time that reshard adds is also measured by
itself, because XLA's own time varies by more than that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")


def main(arguments: list[str] | None = None) -> None:
    options = _parse(arguments)
    if options.cold:
        print(json.dumps(_bench(options).ours(check=options.cold == "checked", **_network(options))))
        return
    with contextlib.nullcontext(options.cache) if options.cache else tempfile.TemporaryDirectory() as cache:
        os.environ["RESHARD_CACHE_DIR"] = cache
        _calls(options)
        _compiles(options, cache)


def _calls(options: argparse.Namespace) -> None:
    import jax
    import numpy as np

    import reshard

    x = jax.device_put(np.float32(1))
    functions = {"jax.jit": jax.jit(lambda a: a + 1), "reshard.jit": reshard.jit(lambda a: a + 1)}
    turns = {name: [] for name in functions}
    for turn in range(options.repeats + 1):
        for name, function in functions.items():
            began_s = time.perf_counter()
            for _ in range(options.calls):
                function(x)
            seconds = (time.perf_counter() - began_s) / options.calls
            if turn:  # the first turn warms up
                turns[name].append(seconds)
    medians = {name: statistics.median(each) for name, each in turns.items()}
    print("| | µs per call | of jax.jit's |\n|---|---|---|")
    for name, seconds in medians.items():
        print(f"| {name} | {1e6 * seconds:.2f} | {seconds / medians['jax.jit']:.3f} |", flush=True)
    print()


def _compiles(options: argparse.Namespace, cache: str) -> None:
    bench = _bench(options)
    rows = {"stock": [], "unkept": [], "warm": []}
    if not options.no_cold:
        rows |= {"cold": [_cold(options, "checked")], "cold, check=False": [_cold(options, "unchecked")]}
    for _ in range(options.repeats):
        rows["stock"].append(bench.stock())
        with _no_results(cache):
            rows["unkept"].append(bench.ours(**_network(options)))
        rows["warm"].append(
            [bench.ours(**_network(options)) for _ in range(2)][1]
        )  # called on one line: the module has the location of the call
    stock_s = statistics.median(whole for whole, _ in rows["stock"])
    print(f"{options.program}, {options.size}:\n")
    print("| | compile, s | added by reshard, s | added ÷ stock's compile |\n|---|---|---|---|")
    for name, turns in rows.items():
        whole_s, added_s = (statistics.median(column) for column in zip(*turns))
        print(f"| {name} | {whole_s:.2f} | {added_s:.3f} | {added_s / stock_s:.3f} |", flush=True)


def _network(options: argparse.Namespace) -> dict[str, str]:
    return {"topology": options.topology} if options.topology else {}


def _bench(options: argparse.Namespace) -> _Bench:
    from benchmarks.programs.catalogue import every_program

    entry = next(each for each in every_program() if each.name == options.program)
    return _Bench(*entry.build(entry.mesh(), size=options.size))


def _cold(options: argparse.Namespace, how: str) -> tuple[float, float]:
    """Returns the times of a new process with empty caches on disk."""
    with tempfile.TemporaryDirectory() as empty:
        command = [sys.executable, __file__, "--cold", how, "--program", options.program, "--size", options.size]
        command += ["--topology", options.topology] if options.topology else []
        env = os.environ | {"RESHARD_CACHE_DIR": empty}
        printed = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    return tuple(json.loads(printed.splitlines()[-1]))


class _Bench:
    """Compiles one program repeatedly. Times are pairs of seconds: the whole compile, and reshard's part of it."""

    def __init__(self, function, args):
        self.function, self.args = function, args
        self.added_s = 0.0

    def stock(self) -> tuple[float, float]:
        return self._compiled(contextlib.nullcontext())

    def ours(self, **options) -> tuple[float, float]:
        import reshard

        return self._compiled(reshard.enabled(**options))

    def _compiled(self, around) -> tuple[float, float]:
        import jax

        jax.clear_caches()
        lowered = self.function.lower(*self.args)
        self.added_s = 0.0
        with self._timed(), around:
            began_s = time.perf_counter()
            lowered.compile()
            return time.perf_counter() - began_s, self.added_s

    @contextlib.contextmanager
    def _timed(self):
        from reshard.compiling import jitting

        original = jitting._Enabled.rewritten

        def timed(*args):
            began_s = time.perf_counter()
            try:
                return original(*args)
            finally:
                self.added_s += time.perf_counter() - began_s

        jitting._Enabled.rewritten = timed  # pyright: ignore[reportAttributeAccessIssue]  # put back below
        try:
            yield
        finally:
            jitting._Enabled.rewritten = original


@contextlib.contextmanager
def _no_results(cache: str):
    """Hides the whole results in the cache during the `with` block, and removes those that the block writes."""
    folders = [path.rename(path.with_name(f"kept-{path.name}")) for path in Path(cache).glob("results-*")]
    try:
        yield
    finally:
        for path in Path(cache).glob("results-*"):
            shutil.rmtree(path)
        for path in folders:
            path.rename(path.with_name(path.name.removeprefix("kept-")))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--program", default="llama_train_step", help="a program of benchmarks/programs")
    parser.add_argument("--size", default="demo", choices=("demo", "small"))
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each measurement")
    parser.add_argument("--calls", type=int, default=20_000, help="calls in each repeat")
    parser.add_argument("--topology", help="the network that times are modelled on; default: that of the devices here")
    parser.add_argument("--cache", help="the folder of reshard's caches; without it, an empty one, which is removed")
    parser.add_argument(
        "--no-cold", action="store_true", help="skip the slowest measurement: compiling with empty caches"
    )
    parser.add_argument("--cold", choices=("checked", "unchecked"), help=argparse.SUPPRESS)  # one compile, in a child
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
