# SPDX-License-Identifier: Apache-2.0
"""Compares layouts of PyTorch's AutoParallel with ours, for the training step of one transformer block.

    python -m benchmarks.whole_modules.peer_layouts --python PYTHON [--mesh 8,8] [--topologies h100:8x8,v5e:8x8]
        [--block 64,256,48,6144,24576] [--limit 1.1] [--out FILE.md]

PYTHON is an interpreter that has torch and AutoParallel (see `peer_layouts_worker`). Both lay out the same block on
the same mesh, inputs and results split by batch over the first axis, as AutoParallel's own example has them, and
their parameters in shards over all devices. AutoParallel decides by its own costs of an H100. Its layouts of
parameters and of their gradients are then stated in the same block, written in jax, whose other layouts are chosen by
our model: so the strategies are compared by the same costs, with everything that AutoParallel does not say in its
favour. Ours may use `--limit` times the memory of that. Both programs are compiled by stock XLA and after `reshard-
opt`. The exit status is 1 if ours takes longer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.programs.__main__ import use_devices
from reshard.compiling.automatic import choose
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.sdy_shardings import module_meshes
from reshard.passes.layouts.assigning import assign
from reshard.passes.layouts.choosing import Candidate
from reshard.passes.sites.network import SiteNetwork, option_text
from reshard.synthesis.common.numbers import mebibytes
from reshard.synthesis.common.text_table import markdown_table

AXES = ("data", "model")
BLOCK = "64,256,48,6144,24576"  # AutoParallel's example: sequences, positions, heads, width, hidden features
_WORKER = Path(__file__).with_name("peer_layouts_worker.py")
_HEADINGS = (
    "network",
    "layouts",
    "model us",
    "gap",
    "stock XLA us",
    "reshard us",
    "received MB",
    "memory MiB",
    "laid out in s",
)
Placements = dict[str, list[int | None]]  # of each weight: which dimension each axis splits


@dataclass(frozen=True, slots=True)
class Row:
    """Layouts on a network; `seconds` is how long it took to choose them, without compilations."""

    topology: str
    whose: str
    found: Candidate
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    sizes = [int(each) for each in options.mesh.split(",")]
    use_devices(sizes[0] * sizes[1])
    answer = asked(options.python, options.mesh, options.block)
    print(
        f"AutoParallel, torch {answer['torch']}: {answer['build_s']:.0f} s to trace, {answer['solve_s']:.1f} s to solve"
    )
    for name, placements in answer["weights"].items():
        print(f"  {name}: {spec_of(placements)}")
    rows = [row for topology in options.topologies.split(",") for row in compared(topology, sizes, options, answer)]
    text = markdown_table(_HEADINGS, list(map(_cells, rows)), "ll" + "r" * 7)
    print(text)
    if options.out:
        Path(options.out).write_text(f"{text}\n")
    return int(any(ours.found.best_s > theirs.found.best_s for theirs, ours in zip(rows[::2], rows[1::2])))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True, help="an interpreter with torch and AutoParallel")
    parser.add_argument("--mesh", default="8,8")
    parser.add_argument("--topologies", default="h100:8x8,v5e:8x8")
    parser.add_argument("--block", default=BLOCK, help="sequences, positions, heads, width, hidden features")
    parser.add_argument("--limit", type=float, default=1.1, help="of the memory of ours, times that of AutoParallel's")
    parser.add_argument("--out")
    return parser.parse_args(arguments)


def asked(python: str, mesh: str, block: str) -> dict:
    """Returns AutoParallel's answer. Raises: SystemExit with the end of what it said if there is none."""
    command = [python, str(_WORKER), mesh, *block.split(",")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"AutoParallel failed: {' '.join(command)}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def spec_of(placements: Sequence[int | None]):
    """Returns the PartitionSpec of a matrix.

    Example:
      >>> spec_of([0, 0]), spec_of([1, 0]), spec_of([None, 1])
      (PartitionSpec(('data', 'model'), None), PartitionSpec('model', 'data'), PartitionSpec(None, 'model'))
    """
    from jax.sharding import PartitionSpec

    split = [tuple(axis for axis, dim in zip(AXES, placements) if dim == at) for at in range(2)]
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in split))


def compared(topology: str, sizes: Sequence[int], options: argparse.Namespace, answer: dict) -> list[Row]:
    """Returns AutoParallel's layouts and ours, on a network."""
    network = SiteNetwork(option_text(topology))
    theirs = _chosen(topology, "AutoParallel", lowered(sizes, options.block, answer["weights"]), network)
    limit = int(options.limit * (theirs.found.peak_bytes or 0)) or None
    ours = _chosen(topology, "reshard", lowered(sizes, options.block, None), SiteNetwork(network.text, limit))
    return [theirs, ours]


def _chosen(topology: str, whose: str, content: bytes, network: SiteNetwork) -> Row:
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(content, context)
        (mesh,) = module_meshes(module).values()
        start = time.perf_counter()
        assign(module, mesh, network, memory_limit=network.memory_limit)
        seconds = time.perf_counter() - start
    best = choose(content, "block", (mesh,), network, is_from_jax=False, compiled_meshes=1).best
    return Row(topology, whose, best, seconds)


def lowered(sizes: Sequence[int], block: str, weights: Placements | None) -> bytes:
    """Returns the block's step with the layouts of its weights, or none of them, as bytecode."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    batch, length, heads, width, hidden = map(int, block.split(","))
    mesh = jax.make_mesh(tuple(sizes), AXES, axis_types=(AxisType.Auto,) * 2)
    by_batch = NamedSharding(mesh, PartitionSpec("data"))
    shapes = {name: (width, width) for name in ("query", "key", "value", "out")}
    shapes |= {"up": (hidden, width), "down": (width, hidden)}
    placed = {name: NamedSharding(mesh, spec_of(weights[name])) if weights else None for name in shapes}

    def forward(w, x):
        q, k, v = ((x @ w[name].T).reshape(batch, length, heads, -1) for name in ("query", "key", "value"))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(batch, length, width) @ w["out"].T
        return x + jax.nn.relu(x @ w["up"].T) @ w["down"].T

    def step(w, x, tangent):
        y, pull_back = jax.vjp(forward, w, x)
        return y, *pull_back(tangent)

    function = jax.jit(step, in_shardings=(placed, by_batch, by_batch), out_shardings=(by_batch, placed, by_batch))
    x = jax.ShapeDtypeStruct((batch, length, width), jnp.float32)
    args = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}, x, x
    return compat.bytecode(function.lower(*args).compiler_ir("stablehlo"))


def _cells(row: Row) -> list[str]:
    found, stock, ours = row.found, row.found.stock, row.found.ours
    best = ours if found.ours_s <= found.stock_s else stock
    assert best is not None
    return [
        row.topology,
        row.whose,
        f"{found.assigned.seconds * 1e6:,.0f}",
        f"{found.assigned.gap:.1%}",
        f"{found.stock_s * 1e6:,.0f}",
        f"{found.ours_s * 1e6:,.0f}",
        f"{best.costs.bytes_received / 1e6:,.0f}",
        mebibytes(best.peak_bytes or 0, 0),
        f"{row.seconds:.0f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
