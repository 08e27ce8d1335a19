# SPDX-License-Identifier: Apache-2.0
"""Really runs small collectives of a program apart and as one, on a network of two levels.

    python -m benchmarks.networks.joined [--counts 4,16] [--sizes 1KiB,4KiB,16KiB,64KiB] [--topology FILE]

8 processes with a CPU device each, on a network of `testbed.py`, which needs root; gloo carries the data. A program has
as many sums over all devices, or gathers of all tiles, as `--counts` says, none of which needs another; the pass
join-collectives writes them as one. Both run in turns; of each turn the slowest process counts, then the median. Values
have to be equal bit for bit. The table says what the model has, and what the pass decides. The exit status is 1 if
values differ, or if what the pass takes is slower than 1.03 of what it leaves.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.journal import default_folder
from benchmarks.harness.progress import shown
from benchmarks.harness.tables import show
from benchmarks.networks.testbed import Testbed, status_of
from benchmarks.programs.__main__ import use_devices
from benchmarks.run_times import NETWORKS
from benchmarks.whole_modules.step_times import DEVICES, MOST, calibrated_file, run_on
from benchmarks.whole_modules.step_worker import STOCK
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.network import option_text
from reshard.passes.sites.oracle import ALWAYS
from reshard.planning.byte_sizes import byte_size
from reshard.synthesis.common.numbers import bytes_text, milliseconds
from reshard.synthesis.network.topology import Topology

NETWORK, TOGETHER = "two-level", "together"
KINDS = ("sums", "gathers")
_ELEMENT_BYTES, _TURNS, _LEAST_S = 4, 9, 3.0
_HEADINGS = ("collectives", "each", "apart", "as one", "apart ÷ as one", "modelled", "the pass takes")


@dataclass(frozen=True, slots=True)
class Job:
    """Collectives of one kind in both forms. `is_taken`: whether the pass joins them. `modelled`: apart ÷ as one."""

    kind: str
    count: int
    num_bytes: int
    texts: dict[str, str]
    is_taken: bool
    modelled: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The seconds of both forms of a job. `is_equal`: whether the values are."""

    job: Job
    seconds: dict[str, float]
    is_equal: bool

    @property
    def gain(self) -> float:
        return self.seconds[STOCK] / self.seconds[TOGETHER]

    @property
    def is_right(self) -> bool:
        """Returns whether the values are equal, and what the pass takes is not slower than what it leaves."""
        return self.is_equal and not (self.job.is_taken and self.gain < 1 / MOST)


def main(arguments: list[str] | None = None) -> int:
    use_devices(DEVICES)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--counts", type=lambda text: [*map(int, text.split(","))], default=[4, 16])
    parser.add_argument("--sizes", type=lambda text: [*map(byte_size, text.split(","))], default=None)
    parser.add_argument("--topology", type=Path, help="a calibrated topology; without it, the network is measured")
    parser.add_argument("--state", type=Path, default=default_folder() / "step-times", help="the folder for topologies")
    parser.add_argument("--out", type=Path, help="a file for the table, too")
    options = parser.parse_args(arguments)
    options.on, options.sizes = (
        NETWORK,
        options.sizes or [byte_size(each) for each in ("1KiB", "4KiB", "16KiB", "64KiB")],
    )
    return status_of(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    options.state.mkdir(parents=True, exist_ok=True)
    with Testbed(NETWORKS[NETWORK]) as testbed:
        testbed.check()
        topology = Topology.parse(str(options.topology or calibrated_file(options, testbed)))
        jobs = [job_of(*each, topology) for each in _asked(options.counts, options.sizes)]
        found = [_timed(each, testbed) for each in shown(jobs, f"{NETWORK}: programs")]
    show(_HEADINGS, [_cells(each) for each in found], "lrrrrrl", options.out)
    return int(not all(each.is_right for each in found))


def _asked(counts: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    return ((kind, count, size) for kind in KINDS for count in counts for size in sizes)


def job_of(kind: str, count: int, num_bytes: int, topology: Topology) -> Job:
    """Returns so many collectives of tiles of so many bytes, apart and as one."""
    from reshard.dialect_utils.hierarchy.joined_collectives import joined_in
    from reshard.dialect_utils.platform.bindings import ir, make_context

    text = _module(kind, count, num_bytes)
    with make_context() as context:
        module = ir.Module.parse(text, context)
        every = joined_in(module.operation, topology, is_always=True)
        is_taken = bool(joined_in(module.operation, topology))
        options = {"topology": option_text(topology), "policy": ALWAYS}
        Pipeline.parse("join-collectives").with_options(options).run(module, Session())
        texts = {STOCK: text, TOGETHER: str(module)}
    alone_s, together_s = sum(each.alone_s for each in every), sum(each.together_s for each in every)
    return Job(kind, count, num_bytes, texts, is_taken, alone_s / together_s if every else 1.0)


def _module(kind: str, count: int, num_bytes: int) -> str:
    """Returns the text of a module with so many collectives of all devices."""
    size = num_bytes // _ELEMENT_BYTES
    tile, whole = f"tensor<{size}xi32>", f"tensor<{DEVICES * size}xi32>"
    given = ", ".join(f"%arg{number}: {whole}" for number in range(count))
    tiles = ", ".join(f"%tile{number}: {tile}" for number in range(count))
    listed = {name: ", ".join(f"%{name}{number}" for number in range(count)) for name in ("arg", "made")}
    split, alike = ", ".join(['<@mesh, [{"x"}]>'] * count), ", ".join(["<@mesh, [{}]>"] * count)
    made, result = (tile, split) if kind == "sums" else (whole, alike)
    wholes, mades = ", ".join([whole] * count), ", ".join([made] * count)
    body = "\n".join(_collective(kind, number, tile, made) for number in range(count))
    return f"""
module attributes {{mhlo.num_partitions = {DEVICES} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["x"={DEVICES}]>
  func.func public @main({given}) -> ({wholes}) {{
    %0:{count} = sdy.manual_computation({listed["arg"]})
        in_shardings=[{split}] out_shardings=[{result}] manual_axes={{"x"}} ({tiles}) {{
{body}
      sdy.return {listed["made"]} : {mades}
    }} : ({wholes}) -> ({wholes})
    return {", ".join(f"%0#{number}" for number in range(count))} : {wholes}
  }}
}}
"""


def _collective(kind: str, number: int, tile: str, made: str) -> str:
    groups = f"dense<[{list(range(DEVICES))}]> : tensor<1x{DEVICES}xi64>, use_global_device_ids"
    channel = f"channel_handle = #stablehlo.channel_handle<handle = {number + 1}, type = 1>, replica_groups = {groups}"
    if kind == "gathers":
        gather = f'"stablehlo.all_gather"(%tile{number}) <{{all_gather_dim = 0 : i64, {channel}}}>'
        return f"      %made{number} = {gather} : ({tile}) -> {made}"
    return f"""      %made{number} = "stablehlo.all_reduce"(%tile{number}) <{{{channel}}}> ({{
      ^bb0(%a: tensor<i32>, %b: tensor<i32>):
        %sum = stablehlo.add %a, %b : tensor<i32>
        stablehlo.return %sum : tensor<i32>
      }}) : ({tile}) -> {made}"""


def _timed(job: Job, testbed) -> Measured:
    import numpy as np

    size = DEVICES * job.num_bytes // _ELEMENT_BYTES
    inputs = [np.random.default_rng(number).integers(0, 100, size, dtype=np.int32) for number in range(job.count)]
    with tempfile.TemporaryDirectory() as folder:
        paths = {form: Path(folder, f"{form}.mlir") for form in job.texts}
        for form, path in paths.items():
            path.write_text(job.texts[form], encoding="utf-8")
        Path(folder, "inputs.pickle").write_bytes(pickle.dumps(inputs))
        asked = {"turns": _TURNS, "least_s": _LEAST_S, "limits": [0.0] * job.count}
        asked |= {"inputs": f"{folder}/inputs.pickle", "modules": {form: str(path) for form, path in paths.items()}}
        Path(folder, "job.json").write_text(json.dumps(asked))
        outputs = run_on(testbed, str(Path(folder, "job.json")))
    answers = [json.loads(line[4:]) for each in outputs for line in each.splitlines() if line.startswith("job ")]
    seconds = {
        form: statistics.median(map(max, zip(*(each[form]["seconds"] for each in answers), strict=True)))
        for form in job.texts
    }
    return Measured(job, seconds, all(not each[TOGETHER]["difference"] for each in answers))


def _cells(measured: Measured) -> tuple[str, ...]:
    job, seconds = measured.job, measured.seconds
    taken = "one" if job.is_taken else "apart"
    return (
        f"{job.count} {job.kind}",
        bytes_text(job.num_bytes),
        milliseconds(seconds[STOCK]),
        milliseconds(seconds[TOGETHER]),
        f"{measured.gain:.2f}" if measured.is_equal else "WRONG",
        f"{job.modelled:.2f}",
        taken,
    )


if __name__ == "__main__":
    sys.exit(main())
