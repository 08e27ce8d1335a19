# SPDX-License-Identifier: Apache-2.0
"""Different programs for the same collective, really run in turns in the processes of a network.

Programs of several jobs share one start of the processes. Of each turn the slowest process counts, of a program the
median of its turns. Answers are kept in a journal, so that a run that was stopped goes on; a job whose programs have
changed is another job.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.calibration import rank_correlation
from benchmarks.harness.journal import Journal
from benchmarks.harness.progress import shown
from benchmarks.networks.program_worker import SUM
from benchmarks.networks.testbed import Network, Testbed
from benchmarks.run_times import MORE_TURNS, PORT, calibrate_on, cpu_devices
from reshard.dialect_utils.emission.tile_modules import tile_module
from reshard.synthesis.forms.platforms import GLOO
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import Plan

NETWORKS = {"2x4": Network(2, 4, 1000, 100), "4x2": Network(4, 2, 1000, 100)}  # nodes x processes of a node
SLOWER = 0.97  # ours is measured again if flat takes less than this much of its time
TOP = 10
NEAR = 1.05
FLAT = "flat"
WORKER = Path(__file__).resolve().parent / "program_worker.py"
_CALIBRATED_AT = "1KiB,4KiB,16KiB,128KiB,512KiB,2MiB"  # small ones tell what a message costs
_BATCH_S = 100.0  # modelled seconds of jobs that share one start
_COMPILE_S = 0.4  # of one program in all processes
_SHORT_S = 0.05  # shorter programs get twice as many turns
_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Job:
    """Programs that do the same with tiles, flat first.

    Attributes:
      plans: by name. ours: the name of the one that is held against flat, maybe `FLAT`.
      element: of a tile, "i32" or "f32". elements: how many of them.
      seeds: of each device's tile. sources: for each device the seeds of the tiles that its result is made of.
      members: for each device its number in its group. result: `SUM` or `PARTS` of the worker.
    """

    title: str
    plans: dict[str, Plan]
    ours: str
    element: str
    elements: int
    seeds: tuple[int, ...]
    sources: tuple[tuple[int, ...], ...]
    members: tuple[int, ...]
    result: str = SUM
    turns: int = 3

    def key(self, network: str) -> str:
        """Returns the question of the journal: what runs where, and how often."""
        chains = "; ".join(f"{name}: {plan.chain_text} on {plan.mesh}" for name, plan in self.plans.items())
        digest = hashlib.sha256(f"{chains} {self.elements} {self.element}".encode()).hexdigest()[:12]
        return f"{network} {self.title} {digest} {self.turns} turns"

    @property
    def seconds(self) -> float:
        """Returns how long the job takes as modelled, with compilation."""
        runs = sum(plan.time_s for plan in self.plans.values()) * (1 + self.turns)
        return runs + _COMPILE_S * len(self.plans)

    def again(self, more: int) -> Job:
        """Returns the job of flat and ours alone, with more turns."""
        kept = {name: self.plans[name] for name in (FLAT, self.ours)}
        return replace(self, plans=kept, turns=more * self.turns)

    def as_dict(self) -> dict:
        """Returns what the worker reads."""
        return {
            "element": self.element,
            "elements": self.elements,
            "turns": self.turns,
            "seeds": self.seeds,
            "from": self.sources,
            "members": self.members,
            "result": self.result,
            "programs": {name: tile_module(_type(plan, self.element), plan, GLOO) for name, plan in self.plans.items()},
        }


def turns_for(plan: Plan, turns: int) -> int:
    """Returns the number of turns of programs that take about as long as a plan."""
    return 2 * turns if plan.time_s < _SHORT_S else turns


def _type(plan: Plan, element: str) -> str:
    return f"tensor<{''.join(f'{size}x' for size in plan.shape)}{element}>"


@dataclass(frozen=True, slots=True)
class Measured:
    """A job that ran: the seconds of each program as the median of its turns, and what went wrong."""

    job: Job
    seconds: dict[str, float]
    problems: tuple[str, ...]

    @property
    def gain(self) -> float:
        """Returns the time of flat in units of ours."""
        return self.seconds[FLAT] / self.seconds[self.job.ours]

    @property
    def fastest(self) -> str:
        return min(self.seconds, key=self.seconds.__getitem__)

    @property
    def best_of_top(self) -> float:
        """Returns the time of the fastest among the model's ten best, in units of the fastest of all."""
        best = sorted(self.seconds, key=lambda name: self.job.plans[name].time_s)[:TOP]
        return min(self.seconds[name] for name in best) / self.seconds[self.fastest]

    @property
    def best_of_model(self) -> float:
        """Returns the time of the program that the model has for the fastest, in units of the fastest of all."""
        return (
            self.seconds[min(self.seconds, key=lambda name: self.job.plans[name].time_s)] / self.seconds[self.fastest]
        )

    @property
    def correlation(self) -> float:
        """Returns the rank correlation of modelled and measured times of its programs."""
        return correlation([self])


def correlation(measured: Iterable[Measured]) -> float:
    """Returns the rank correlation of modelled and measured times of all programs of some jobs."""
    pairs = [(each.job.plans[name].time_s, seconds) for each in measured for name, seconds in each.seconds.items()]
    return rank_correlation([modelled for modelled, _ in pairs], [seconds for _, seconds in pairs])


def calibrated(testbed: Testbed, name: str, state: Path) -> Topology:
    """Returns the topology that `reshard calibrate` fits to a network; it is measured once. Raises: Failed."""
    path = state / f"{name}.toml"
    if not path.exists():
        print(calibrate_on(testbed, path, _CALIBRATED_AT))
    return Topology.parse(str(path))


def run_all(jobs: Sequence[Job], testbed: Testbed, name: str, journal: Journal) -> list[Measured]:
    """Returns the times of all jobs, from the journal or measured now. Raises: Failed.

    Where ours is slower than flat, both are measured again with more turns, and the last answer counts for them.
    """
    found = _answers(jobs, testbed, name, journal)
    for more in MORE_TURNS.values():
        losers = [at for at, each in enumerate(found) if not each.problems and each.gain < SLOWER]
        again = _answers([jobs[at].again(more) for at in losers], testbed, f"{name}, again", journal)
        for at, each in zip(losers, again, strict=True):
            found[at] = replace(found[at], seconds={**found[at].seconds, **each.seconds}, problems=each.problems)
    return found


def _answers(jobs: Sequence[Job], testbed: Testbed, name: str, journal: Journal) -> list[Measured]:
    left = [each for each in jobs if each.key(name) not in journal]
    for batch in shown(list(batches(left)), f"{name}: batches of programs") if left else ():
        for job, answer in zip(batch, _run(batch, testbed), strict=True):
            journal.add(job.key(name), answer)
    return [as_measured(each, journal.answer(each.key(name))) for each in jobs]


def batches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Yields the jobs in lists that take about equally long."""
    batch: list[Job] = []
    for each in jobs:
        if batch and sum(job.seconds for job in [*batch, each]) > _BATCH_S:
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch


def _run(batch: Sequence[Job], testbed: Testbed) -> list[dict]:
    processes = testbed.network.processes
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump([each.as_dict() for each in batch], file)
        file.flush()
        ends = str(processes), f"{testbed.address(0)}:{PORT}"
        commands = [[sys.executable, str(WORKER), file.name, str(rank), *ends] for rank in range(processes)]
        outputs = testbed.run(commands, timeout_s=_TIMEOUT_S, environment=cpu_devices(1))
    per_process = [[json.loads(line[4:]) for line in each.splitlines() if line.startswith("job ")] for each in outputs]
    return [slowest(answers) for answers in zip(*per_process, strict=True)]


def slowest(answers: Sequence[dict[str, dict]]) -> dict[str, dict]:
    """Returns the answer of all processes to a job.

    Example:
      >>> slowest([{"flat": {"seconds": [1, 3], "wrong": False}}, {"flat": {"seconds": [2, 2], "wrong": False}}])
      {'flat': {'seconds': [2, 3], 'wrong': False}}
    """
    found = {}
    for name in answers[0]:
        each = [answer[name] for answer in answers]
        if errors := [one["error"] for one in each if "error" in one]:
            found[name] = {"error": errors[0]}
            continue
        turns = [max(turn) for turn in zip(*(one["seconds"] for one in each), strict=True)]
        found[name] = {"seconds": turns, "wrong": any(one["wrong"] for one in each)}
    return found


def as_measured(job: Job, answer: dict[str, dict]) -> Measured:
    """Returns the times of a job as its journal has them."""
    seconds = {name: statistics.median(each["seconds"]) for name, each in answer.items() if "error" not in each}
    problems = [f"{name}: {each['error']}" for name, each in answer.items() if "error" in each]
    problems += [f"{name}: wrong values" for name, each in answer.items() if each.get("wrong")]
    return Measured(job, seconds, tuple(problems))


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
