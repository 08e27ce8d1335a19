# SPDX-License-Identifier: Apache-2.0
"""Really runs products next to collectives on slow networks: as programs have them, and as pipelines.

    python -m benchmarks.overlap.on_network [--on uniform,2x4] [--patterns NAME,...] [--size 1024] [--widths 256,1024]

8 processes with one CPU device each, gloo between them, on a network of Linux namespaces with limited links; it needs
root, `ip` and `tc`. Both forms of a program take turns after a barrier; a time is the median of its turns, on the
slowest process. The processes share the cores of this machine, so what a pipeline could hide is waiting. The exit
status is 1 if values differ; products are of whole numbers, so sums are the same in any order.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass

from benchmarks.harness.arguments import among
from benchmarks.networks.testbed import Network, Testbed, status_of
from benchmarks.run_times import PORT, cpu_devices
from reshard.synthesis.common.numbers import milliseconds
from reshard.synthesis.common.text_table import markdown_table

PROCESSES = 8
NETWORKS = {
    "uniform": Network(nodes=1, per_node=PROCESSES, inside_mbit=200),
    "2x4": Network(nodes=2, per_node=4, inside_mbit=1000, across_mbit=100),
}
STOCK, PIPELINE = "stock", "pipeline"
_NAMES = ("gather_rows", "gather_inner", "scatter", "combine", "dispatch")
_TIMEOUT_S = 1800
_HEADINGS = ("network", "pattern", "size", "width", "stock", "pipeline", "stock ÷ pipeline")


@dataclass(frozen=True, slots=True)
class Row:
    """Median times of both forms of a pattern, in seconds, and whether they give the same."""

    network: str
    name: str
    size: int
    width: int
    stock_s: float
    pipeline_s: float
    is_same: bool


def main(arguments: list[str] | None = None) -> int:
    if arguments is None and sys.argv[1:2] == ["--worker"]:
        _work(json.loads(sys.argv[2]), *sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--on", type=among(tuple(NETWORKS)), default=tuple(NETWORKS), help="networks; default: all")
    parser.add_argument("--patterns", type=among(_NAMES), default=_NAMES)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--widths", default="256,1024,4096", help="of products, default %(default)s")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args(arguments)
    return status_of(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    rows = [row for name in options.on for row in _on(name, options)]
    print(report(rows))
    return int(not all(row.is_same for row in rows))


def report(rows: list[Row]) -> str:
    """Returns the table, and the geometric mean for each network."""
    cells = [
        (row.network, row.name, str(row.size), str(row.width), milliseconds(row.stock_s), milliseconds(row.pipeline_s),
         f"{row.stock_s / row.pipeline_s:.2f}" + ("" if row.is_same else ", values differ"))
        for row in rows
    ]  # fmt: skip
    lines = [markdown_table(_HEADINGS, cells, "llrrrrr"), ""]
    for name in dict.fromkeys(row.network for row in rows):
        mean = statistics.geometric_mean(row.stock_s / row.pipeline_s for row in rows if row.network == name)
        lines.append(f"{name}: {mean:.2f} times as fast in the geomean")
    return "\n".join(lines)


def _on(name: str, options: argparse.Namespace) -> list[Row]:
    cases = [(each, options.size, int(width)) for each in options.patterns for width in options.widths.split(",")]
    job = json.dumps({"cases": cases, "turns": options.turns, "network": name})
    with Testbed(NETWORKS[name]) as testbed:
        testbed.check()
        ends = str(PROCESSES), f"{testbed.address(0)}:{PORT}"
        module = [sys.executable, "-m", "benchmarks.overlap.on_network", "--worker", job]
        commands = [[*module, str(rank), *ends] for rank in range(PROCESSES)]
        outputs = testbed.run(commands, timeout_s=_TIMEOUT_S, environment=cpu_devices(1))
    found = [[json.loads(line) for line in output.splitlines() if line.startswith("{")] for output in outputs]
    rows = []
    for (each, size, width), *told in zip(cases, *found, strict=True):
        times = {form: max(statistics.median(one[form]) for one in told) for form in (STOCK, PIPELINE)}
        is_same = all(one["same"] for one in told)
        rows.append(Row(name, each, size, width, times[STOCK], times[PIPELINE], is_same))
    return rows


# ---- in a process of the network


def _work(job: dict, rank: str, processes: str, address: str) -> None:
    from benchmarks.networks.timed_worker import join

    out, sys.stdout = sys.stdout, sys.stderr
    join(rank, processes, address)
    for name, size, width in job["cases"]:
        print(json.dumps(_timed(name, size, width, job["turns"])), file=out, flush=True)


def _timed(name: str, size: int, width: int, turns: int) -> dict:
    """Returns the seconds of each turn of both forms on this process, and whether their values are the same."""
    import jax
    import numpy as np

    from benchmarks.networks.timed_worker import barrier
    from benchmarks.overlap.patterns import AXIS, pattern

    program = pattern(name, PROCESSES, size, width, "float32")
    mesh = jax.sharding.Mesh(np.array(jax.devices()), (AXIS,))
    arguments = []
    for shape, spec in zip(program.shapes, program.specs, strict=True):
        sharding = jax.sharding.NamedSharding(mesh, spec)
        arguments.append(jax.make_array_from_callback(shape, sharding, lambda index, shape=shape: _whole(shape, index)))
    forms = {STOCK: program.lowered().compile(), PIPELINE: _pipeline(program).compile()}
    results = {form: jax.block_until_ready(each(*arguments)) for form, each in forms.items()}
    shards = [[np.asarray(shard.data) for shard in each.addressable_shards] for each in results.values()]
    found: dict = {STOCK: [], PIPELINE: [], "same": all(np.array_equal(*pair) for pair in zip(*shards, strict=True))}
    together = barrier(mesh)
    for _ in range(turns):
        for form, each in forms.items():
            together()
            began_s = time.perf_counter()
            jax.block_until_ready(each(*arguments))
            found[form].append(time.perf_counter() - began_s)
    return found


def _whole(shape: tuple[int, ...], index):
    """Returns a part of an array of small whole numbers."""
    import numpy as np

    starts = [range(size)[part] for size, part in zip(shape, index, strict=True)]
    rows, columns = (np.arange(each.start, each.stop) for each in starts)
    return ((rows[:, None] * 7 + columns[None, :] * 3) % 5 - 2).astype(np.float32)


def _pipeline(program):
    """Returns the lowered program as a pipeline."""
    from reshard.passes.driver.base import Session
    from reshard.passes.driver.pipeline import Pipeline

    lowered = program.lowered()
    session = Session()
    Pipeline.parse("overlap-collectives{policy=always}").run(lowered.compiler_ir("stablehlo"), session)
    assert session.results.statistics["overlap-collectives", "overlapped"], program.name
    return lowered


if __name__ == "__main__":
    sys.exit(main())
