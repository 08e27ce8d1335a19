# SPDX-License-Identifier: Apache-2.0
"""How long the whole pipeline takes on large modules, beside XLA's own compile time of them, and how much memory.

    python benchmarks/large_modules.py [--ops 10000,100000] [--devices 8] [--no-xla]

The module is the training step of an unrolled transformer, lowered by JAX. Each step runs in a process of its own: JAX lowers,
XLA compiles, `reshard-opt` runs the pipeline on the file, cold (nothing kept on disk) and then warm. Memory is the most that the
process of `reshard-opt` had, less what it has on a module of a few ops, beside the same of one that only parses and prints.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
import json
import os
from pathlib import Path
import resource
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROOT = Path(__file__).resolve().parent.parent
SMALL = ROOT / "docs" / "tiny.mlir"
PARSE_ALONE = "--pass-pipeline=builtin.module()"
OPS_PER_LAYER = 250


@dataclass(frozen=True, slots=True)
class Ran:
    """A process: wall seconds, the most memory it had in MiB, what it printed on stdout."""

    seconds: float
    mib: float
    output: str


def main(arguments: list[str] | None = None) -> None:
    options = _parse(arguments)
    if options.lower:
        _lower(options.lower, Path(options.out), options.devices)
        return
    if options.compile:
        print(_compile_seconds(Path(options.compile), options.devices))
        return
    headings = ["ops", "XLA's compile, s", "ours cold, s", "ours warm, s", "warm ÷ XLA", "sites", "parse alone, MiB", "ours, MiB", "ours ÷ parse"]
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}", flush=True)
    for ops in options.ops:
        print(f"| {' | '.join(_row(ops, options))} |", flush=True)


def _row(ops: int, options: argparse.Namespace) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        module, out, cache = (Path(folder) / name for name in ("in.mlir", "out.mlir", "cache"))
        layers = max(1, round(ops / OPS_PER_LAYER))
        _child(__file__, "--lower", str(layers), "--out", str(module), "--devices", str(options.devices))
        compiled_s = None if options.no_xla else float(_child(__file__, "--compile", str(module), "--devices", str(options.devices)).output)
        report = Path(folder) / "report.json"
        flags = [f"--report-file={report}", "--report=json", *options.flags.split()]
        (small_parsed, parsed) = (_opt(text, out, cache, PARSE_ALONE).mib for text in (SMALL, module))
        _, small, cold, warm = (_opt(text, out, cache, *flags) for text in (SMALL, SMALL, module, module))
        ours, parse = warm.mib - small.mib, parsed - small_parsed
        count = sum(line.lstrip().startswith("%") for line in module.read_text().splitlines())
        return [
            f"{count:,}",
            "–" if compiled_s is None else f"{compiled_s:.1f}",
            f"{cold.seconds:.1f}",
            f"{warm.seconds:.1f}",
            "–" if compiled_s is None else f"{warm.seconds / compiled_s:.3f}",
            f"{len(json.loads(report.read_text())['sites']):,}",
            f"{parse:.0f}",
            f"{ours:.0f}",
            f"{ours / parse:.2f}",
        ]


def _opt(module: Path, out: Path, cache: Path, *flags: str) -> Ran:
    return _child("-m", "reshard.tools.reshard_opt", str(module), "-o", str(out), *flags, cache=cache)


def _child(*arguments: str, cache: Path | None = None) -> Ran:
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | ({"RESHARD_CACHE_DIR": str(cache)} if cache else {"RESHARD_CACHE": "off"})
    start_s = time.perf_counter()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen([sys.executable, *arguments], stdout=printed, stderr=subprocess.STDOUT if cache else None, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start_s
        printed.seek(0)
        output = printed.read()
    if status:
        raise SystemExit(f"{' '.join(arguments)}: exit status {os.waitstatus_to_exitcode(status)}\n{output[-2000:]}")
    return Ran(seconds, usage.ru_maxrss / 1024, output)


# ---- in child processes


def _lower(layers: int, out: Path, devices: int) -> None:
    """Writes the training step of an unrolled transformer: data x model parallel, the residual stream split along the sequence."""
    from reshard.dialect_utils.compat import cpu_devices_environment

    os.environ |= cpu_devices_environment(devices)
    import jax
    import jax.numpy as jnp
    from jax.lax import with_sharding_constraint
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import numpy as np

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
    specs = {"q": P(None, "model"), "k": P(None, "model"), "v": P(None, "model"), "o": P("model"), "up": P(None, "model"), "down": P("model")}
    weights = [
        {name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, specs.get(name, P()))) for name, shape in shapes.items()}
        for _ in range(layers)
    ]
    x = jax.ShapeDtypeStruct((batch, length, width), jnp.float32, sharding=NamedSharding(mesh, P("data", "model")))
    sys.setrecursionlimit(100_000)
    out.write_text(jax.jit(step).lower(weights, x).as_text())


def _compile_seconds(module: Path, devices: int) -> float:
    from reshard.dialect_utils.xla_child import XlaChild

    with XlaChild() as child:
        compiled = child.compile(module.read_text(), devices, timeout_s=7200)
        if compiled.status != "ok":
            raise SystemExit(f"XLA: {compiled.status}: {compiled.message}")
        return compiled.compile_seconds


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ops", type=lambda text: tuple(map(int, text.split(","))), default=(10_000, 100_000), help="about so many, default %(default)s")
    add("--devices", type=int, default=8, help="default %(default)s")
    add("--no-xla", action="store_true", help="do not compile with XLA, which takes long")
    add("--flags", default="", help="further flags of reshard-opt, in one text")
    for name in ("--lower", "--compile", "--out"):
        add(name, type=int if name == "--lower" else str, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
