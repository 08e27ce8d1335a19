# SPDX-License-Identifier: Apache-2.0
"""Measures the time and memory of the whole pipeline on large modules, beside XLA's own compile time.

    python benchmarks/large_modules.py [--ops 10000,100000] [--devices 8] [--rounds 3] [--no-xla]
    python benchmarks/large_modules.py --examples llama_train_step [--rounds 3]

The module is the training step of an unrolled transformer, lowered by JAX. Each step runs in its own process: JAX
lowers, XLA compiles as in `lowered.compile()`, and `reshard-opt` runs the pipeline on the file three times:
  - cold: nothing is on disk.
  - answers kept: XLA's answers and the plans are on disk, but not the result: the whole pipeline runs.
  - result kept: the same file with the same flags once more: its result is read from disk.
A round is one of each, one after the other. Seconds are medians over the rounds. They are processor time, because other
work on the machine changes it less than the clock. For ours it is the time of the whole process, for XLA that of one
call, after another call that compiles a few ops. With --unoptimized XLA leaves out LLVM's optimisation, as it does when
the oracle asks it about a site. Python's bytecode is on disk, as for an installed package. Memory is the peak of the
`reshard-opt` process with answers kept, less its peak on a module of a few ops; beside it is the same number for a
process that only parses and prints.

With --examples it measures `reshard.optimize(lowered)`, each time in a new process, beside `lowered.compile()` there:
cold without the whole-module check, a new check (XLA compiles the module both ways), answers kept, result kept. The
first two start another process: their times are the whole process's, less a process without that work. The other times
are those of the call alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import jax

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reshard.synthesis.common.text_table import markdown_head, markdown_line  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SMALL = ROOT / "docs" / "tiny.mlir"
PARSE_ALONE = (
    "--pass-pipeline=builtin.module()",
    "--output-split-marker=// -----",
)  # with another marker the text is printed, not copied
OPS_PER_LAYER = 250
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ran:
    """The costs of a process and its children: processor seconds, the peak of the largest in MiB, and its stdout."""

    seconds: float
    mib: float
    output: str


def main(arguments: list[str] | None = None) -> None:
    options = _parse(arguments)
    if options.lower:
        _lower(options.lower, Path(options.out), options.devices)
    elif options.compile:
        print(json.dumps(_compile_seconds(options.compile, options.devices, options.unoptimized)))
    elif options.optimize:
        print(json.dumps(_optimize_seconds(options.optimize, options.what)))
    elif options.examples:
        _print_table(_EXAMPLE_HEADINGS, (_example_row(name, options.rounds) for name in options.examples))
    else:
        _print_table(_HEADINGS, (_row(ops, options) for ops in options.ops))


def _print_table(headings: tuple[str, ...], rows: Iterable[list[str]]) -> None:
    print(markdown_head(headings), flush=True)
    for row in rows:
        print(markdown_line(row), flush=True)


# ---- large modules

_HEADINGS = (
    "ops", "sites", "XLA's compile, s", "cold, s", "answers kept, s", "result kept, s", "answers kept ÷ XLA",
    "result kept ÷ XLA", "parse alone, MiB", "ours, MiB", "ours ÷ parse",
)  # fmt: skip


def _row(ops: int, options: argparse.Namespace) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        module, out, report = (Path(folder) / name for name in ("in.mlir", "out.mlir", "report.json"))
        layers = max(1, round(ops / OPS_PER_LAYER))
        _child(__file__, "--lower", str(layers), "--out", str(module), "--devices", str(options.devices))
        rounds = [
            _round(layers, module, out, Path(folder) / f"cache{number}", options) for number in range(options.rounds)
        ]
        compiled = [compile_s for compile_s, _ in rounds]
        cold, answers, result = ([ran[number] for _, ran in rounds] for number in range(3))
        cache = Path(folder) / "cache0"
        small_parsed, parsed = (_opt(text, out, cache, *PARSE_ALONE).mib for text in (SMALL, module))
        flags = options.flags.split()
        _opt(SMALL, out, cache, *flags)  # fills the cache with XLA's answers
        _drop_results(cache)
        small = _opt(SMALL, out, cache, *flags).mib
        ours, parse = statistics.median(each.mib for each in answers) - small, parsed - small_parsed
        count = sum(line.lstrip().startswith("%") for line in module.read_text().splitlines())
        _opt(module, out, cache, f"--report-file={report}", "--report=json", *flags)
        return [
            f"{count:,}",
            f"{len(json.loads(report.read_text())['sites']):,}",
            "–" if options.no_xla else f"{statistics.median(compiled):.1f}",
            *(f"{_seconds(each):.1f}" for each in (cold, answers)),
            f"{_seconds(result):.2f}",
            *("–" if options.no_xla else f"{_ratio(each, compiled):.3f}" for each in (answers, result)),
            f"{parse:.0f}",
            f"{ours:.0f}",
            f"{ours / parse:.2f}",
        ]


def _round(
    layers: int, module: Path, out: Path, cache: Path, options: argparse.Namespace
) -> tuple[float, tuple[Ran, Ran, Ran]]:
    """Returns XLA's compile time and our three runs: cold, answers kept, result kept."""
    compile_s, flags = 0.0 if options.no_xla else _compile_s(layers, options), options.flags.split()
    cold = _opt(module, out, cache, *flags)
    _drop_results(cache)
    answers = _opt(module, out, cache, *flags)
    return compile_s, (cold, answers, _opt(module, out, cache, *flags))


def _compile_s(layers: int, options: argparse.Namespace) -> float:
    how = ["--unoptimized"] if options.unoptimized else []
    return json.loads(
        _child(__file__, "--compile", str(layers), "--devices", str(options.devices), *how).output.splitlines()[-1]
    )


def _drop_results(cache: Path) -> None:
    for folder in cache.glob("results-*"):
        shutil.rmtree(folder)


def _seconds(runs: list[Ran]) -> float:
    return statistics.median(each.seconds for each in runs)


def _ratio(runs: list[Ran], compiled_s: list[float]) -> float:
    """Returns the median over the rounds of a run's time ÷ XLA's time in the same round."""
    return statistics.median(each.seconds / xla_s for each, xla_s in zip(runs, compiled_s, strict=True))


def _opt(module: Path, out: Path, cache: Path, *flags: str) -> Ran:
    return _child("-m", "reshard.tools.reshard_opt", str(module), "-o", str(out), *flags, cache=cache)


def _child(*arguments: str, cache: Path | None = None) -> Ran:
    env = (
        os.environ
        | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        | ({"RESHARD_CACHE_DIR": str(cache)} if cache else {"RESHARD_CACHE": "off"})
    )
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode is kept, as for an installed package
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=printed, stderr=subprocess.STDOUT if cache else None, env=env
        )
        _, status, usage = os.wait4(process.pid, 0)
        printed.seek(0)
        output = printed.read()
    if status:
        raise SystemExit(f"{' '.join(arguments)}: exit status {os.waitstatus_to_exitcode(status)}\n{output[-2000:]}")
    return Ran(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output)


# ---- examples

_EXAMPLE_HEADINGS = (
    "example", "stock compile, s", "our module's compile, s", "optimize cold, unchecked, s",
    "whole-module check, new, s",
    "answers kept, s", "result kept, s", "cold and check ÷ stock", "answers kept ÷ stock", "result kept ÷ stock",
)  # fmt: skip


def _example_row(name: str, rounds: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        found = [_example_round(name, Path(folder) / f"cache{number}") for number in range(rounds)]
    stock, ours, cold, check, answers, result = (list(each) for each in zip(*found, strict=True))

    def ratio(*parts: list[float]) -> str:
        return f"{statistics.median(sum(each) / stock_s for *each, stock_s in zip(*parts, stock, strict=True)):.3f}"

    medians = [f"{statistics.median(each):.2f}" for each in (stock, ours, cold, check, answers)]
    return [name, *medians, f"{statistics.median(result):.3f}", ratio(cold, check), ratio(answers), ratio(result)]


def _example_round(name: str, cache: Path) -> tuple[float, ...]:
    """Returns seconds: stock compile, our compile, and `optimize` cold, the check alone, answers kept, result kept."""

    def ran(what: str) -> tuple[float, dict[str, float]]:
        child = _child(__file__, "--optimize", name, "--what", what, cache=cache)
        return child.seconds, json.loads(child.output.splitlines()[-1])

    lowering_s, _ = ran("nothing")
    cold_s, _ = ran("unchecked")
    _drop_results(cache)
    _, unchecked = ran("unchecked")
    checked_s, _ = ran("checked")
    _drop_results(cache)
    _, answers = ran("checked")
    _, result = ran("checked and compiled")
    check_s = checked_s - lowering_s - unchecked["optimize"]
    return result["stock"], result["ours"], cold_s - lowering_s, check_s, answers["optimize"], result["optimize"]


# ---- in child processes


def _optimize_seconds(name: str, what: str) -> dict[str, float]:
    """Returns the seconds of `reshard.optimize` for an example, and of both compiles if `what` asks for them."""
    from reshard.dialect_utils.platform.compat import cpu_devices_environment

    os.environ |= cpu_devices_environment(8)
    from examples.programs import program
    from reshard import optimize

    lowered = program(name).lower("demo")
    if what == "nothing":
        return {}
    result, optimize_s = _timed(lambda: optimize(lowered, check=what != "unchecked"))
    if "compiled" not in what:
        return {"optimize": optimize_s}
    return {"optimize": optimize_s, "ours": _timed(result.compile)[1], "stock": _timed(lowered.compile)[1]}


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    start_s = time.process_time()
    return work(), time.process_time() - start_s


def _lower(layers: int, out: Path, devices: int) -> None:
    out.write_text(_lowered(layers, devices).as_text())


def _compile_seconds(layers: int, devices: int, is_unoptimized: bool) -> float:
    """Returns the seconds of `lowered.compile()`; a small compile before it does the work of a process's first one."""
    lowered = _lowered(layers, devices)
    import jax

    options: dict[str, Any] = {"xla_backend_optimization_level": 0} if is_unoptimized else {}
    jax.jit(lambda x: x * 2 + 1).lower(1.0).compile(options)
    return _timed(lambda: lowered.compile(options))[1]


def _lowered(layers: int, devices: int) -> jax.stages.Lowered:
    """Returns the training step of an unrolled transformer, data x model parallel, lowered by JAX.

    The residual stream is split along the sequence.
    """
    from reshard.dialect_utils.platform.compat import cpu_devices_environment

    os.environ |= cpu_devices_environment(devices)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.lax import with_sharding_constraint
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()[:devices]).reshape(2, devices // 2), ("data", "model"))
    width, heads, hidden, batch, length = 64, 8, 256, 8, 32

    def on(x, *spec):
        return with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def norm(x, scale):
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale

    def layer(x, w):
        y = on(norm(x, w["first"]), "data", None, None)
        q, k, v = (on(jnp.einsum("blw,whd->blhd", y, w[name]), "data", None, "model", None) for name in ("q", "k", "v"))
        scores = jnp.einsum("blhd,bmhd->bhlm", q, k) * (width // heads) ** -0.5
        attended = jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(scores, axis=-1), v)
        x = on(x + jnp.einsum("blhd,hdw->blw", attended, w["o"]), "data", "model", None)
        y = on(norm(x, w["second"]), "data", None, None)
        inner = on(jax.nn.gelu(y @ w["up"]), "data", None, "model")
        return on(x + inner @ w["down"], "data", "model", None)

    def loss(weights, x):
        x = on(x, "data", "model", None)
        for each in weights:
            x = layer(x, each)
        return jnp.mean(x * x)

    def step(weights, x):
        gradients = jax.grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    head = (width, heads, width // heads)
    shapes = {"first": (width,), "second": (width,), "q": head, "k": head, "v": head}
    shapes |= {"o": (heads, width // heads, width), "up": (width, hidden), "down": (hidden, width)}
    specs = {
        "q": P(None, "model"),
        "k": P(None, "model"),
        "v": P(None, "model"),
        "o": P("model"),
        "up": P(None, "model"),
        "down": P("model"),
    }
    weights = [
        {
            name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, specs.get(name, P())))
            for name, shape in shapes.items()
        }
        for _ in range(layers)
    ]
    x = jax.ShapeDtypeStruct((batch, length, width), jnp.float32, sharding=NamedSharding(mesh, P("data", "model")))
    sys.setrecursionlimit(100_000)
    return jax.jit(step).lower(weights, x)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add(
        "--ops",
        type=lambda text: tuple(map(int, text.split(","))),
        default=(10_000, 100_000),
        help="about how many ops each module has, default %(default)s",
    )
    add("--devices", type=int, default=8, help="default %(default)s")
    add("--rounds", type=int, default=3, help="default %(default)s")
    add(
        "--examples",
        type=lambda text: text.split(","),
        help="examples to time instead, by their names in examples/programs.py",
    )
    add("--no-xla", action="store_true", help="do not compile with XLA, which takes long")
    add("--unoptimized", action="store_true", help="let XLA compile without LLVM's optimisation")
    add("--flags", default="--no-check", help="more flags for reshard-opt, in one text")
    for name in ("--lower", "--compile", "--optimize", "--what", "--out"):
        add(name, type=int if name in ("--lower", "--compile") else str, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
