# SPDX-License-Identifier: Apache-2.0
"""Measures redistributions, stock XLA's beside ours, on CPU devices or on a network with slow links.

    python benchmarks/run_times.py --on shared       8 CPU devices that share one memory, or --devices 16
    python benchmarks/run_times.py --on uniform      8 processes, a link of 200 Mbit/s each
    python benchmarks/run_times.py --on uniform-12   12 of them
    python benchmarks/run_times.py --on two-level    2 nodes of 4 processes: 1000 Mbit/s inside, 100 Mbit/s for a node

The networks are made of Linux namespaces (`networks/testbed.py`) and need root; gloo carries the data. First the links
are measured, with plain TCP. `reshard calibrate` fits a topology to the times of collectives there, and our plans are
made for it; `--topology` takes one that was calibrated before. On shared memory it is the preset `cpu:N`, as in `jit`
on CPU devices. Programs for one pair take turns. For each turn the slowest process counts, for a program the median
of the turns. A pair that is slower than 0.95 of stock is measured again with three times as many turns, and if it is
still slower, with nine times as many. The last answer counts, because most of these are noise. A run that was stopped
continues where it ended (`--state`).

On a network our plan is that of `reshard plan`, with exchanges. On shared memory it is a chain, as at most sites of a
module. The first line of the table has this plan for every pair. The second line has what a user gets: the pair is a
module with one site, and `reshard.optimize` hands over a module by the policy `better` on this topology, with its check
of the whole module. A pair whose module comes out unchanged counts as 1. The third line is a perfect choice between
stock XLA's program and ours.

All processes keep the memory of freed arrays (`KEEPS_MEMORY`), as an accelerator's allocator does. Otherwise most of
the time on shared memory would be the system's, which maps and clears pages, and this is the same for all programs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.calibration import rank_correlation  # noqa: E402
from benchmarks.conversions.pairs import Pair, random_pairs  # noqa: E402
from benchmarks.harness.progress import shown  # noqa: E402
from benchmarks.networks.testbed import Failed, Network, Testbed, run_together, status_of  # noqa: E402
from reshard.compiling.optimizing import optimize  # noqa: E402
from reshard.dialect_utils.emission.mini_modules import rewritten_pair, stock_pair  # noqa: E402
from reshard.dialect_utils.xla.child import shared_child  # noqa: E402
from reshard.passes.sites.oracle import BETTER  # noqa: E402
from reshard.synthesis.common.numbers import milliseconds  # noqa: E402
from reshard.synthesis.common.text_table import markdown_line  # noqa: E402
from reshard.synthesis.network.bounds import received_elements_bound  # noqa: E402
from reshard.synthesis.network.topology import Topology  # noqa: E402
from reshard.synthesis.planner.entry import Plan, pareto, plan  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
BITS = 32
NETWORKS = {"uniform": Network(8, 1, 200), "uniform-12": Network(12, 1, 200), "two-level": Network(2, 4, 1000, 100)}
BATCH = 8  # number of jobs for one start of the processes
TIMEOUT_S = 900.0
POLICY = "policy"  # the name of the program that is handed over, beside those of plans
CLOCKS = {"wall": "seconds", "processor": "processor_seconds"}  # the key of a worker's answers
SLOWER = 0.95  # a pair with a smaller speed-up is a loser
NETWORK_SIZES = "256KiB,1MiB,4MiB"  # tiles for calibration on a network
TOP = 10
MOST_OTHERS = 3
MORE_TURNS = {"again": 3, "again-2": 9}  # factors for the turns of the second and the third measurement of a pair
PORT = 23398
KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36), "MALLOC_ARENA_MAX": "1"}  # of glibc
WORKER = Path(__file__).resolve().parent / "networks" / "timed_worker.py"


@dataclass(frozen=True, slots=True)
class Problem:
    """A pair with our plan, other plans that the model has to rank, and what the policy does with the pair.

    Attributes:
      handed_over: the module that `optimize` hands over for the pair; empty if it is the module as it came.
      reason: why.
    """

    pair: Pair
    plans: dict[str, Plan]
    handed_over: str
    reason: str

    @property
    def programs(self) -> dict[str, str]:
        """Returns the programs to run as text of modules; the text of stock XLA's is empty."""
        programs = {"stock": ""} | {name: rewritten_pair(_type(self.pair), each) for name, each in self.plans.items()}
        return programs | ({POLICY: self.handed_over} if self.handed_over else {})

    @property
    def key(self) -> str:
        """Returns the key of an answer, made of the pair and the programs, so that changed ones are measured anew."""
        chains = "; ".join(f"{name}: {each.chain_text}" for name, each in self.plans.items())
        return f"{self.pair} {hashlib.sha256(f'{chains}; {self.handed_over}'.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Timed:
    """A measured pair: its problem, and the seconds of each program."""

    problem: Problem
    seconds: dict[str, float]

    @property
    def speedup(self) -> float:
        return self.seconds["stock"] / self.seconds["ours"]

    @property
    def speedup_by_policy(self) -> float:
        """Returns the speed-up under the policy; it is 1 if the policy leaves the pair to stock XLA."""
        return self.seconds["stock"] / self.seconds[POLICY] if self.problem.handed_over else 1.0

    @property
    def best_speedup(self) -> float:
        """Returns the speed-up if the fastest of stock XLA's program, our plan's and the policy's is always taken."""
        return max(1.0, self.speedup, self.speedup_by_policy)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    return status_of(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    options.state.mkdir(parents=True, exist_ok=True)
    if options.on == "shared":
        return _with(options, None)
    with Testbed(NETWORKS[options.on]) as testbed:
        for what, as_set, seen in testbed.check():
            print(f"link {what}: {as_set:.0f} Mbit/s as set, {seen:.0f} Mbit/s of payload as measured")
        return _with(options, testbed)


def _with(options: argparse.Namespace, testbed: Testbed | None) -> int:
    devices = options.devices if testbed is None else testbed.network.processes
    topology = _topology(options, testbed)
    problems, refused = _problems(options, devices, topology)
    stem = f"{options.on}-{devices}-{options.seed}-{options.mib}-{options.turns}-{options.others}"
    known = _answered(problems, options.state / f"{stem}.jsonl", options.turns, devices, testbed, options.on)
    for name, more in MORE_TURNS.items() if options.again else ():
        losers = [each for each in problems if _is_slower(known[each.key], options.clock)]
        path, turns = options.state / f"{stem}-{name}.jsonl", more * options.turns
        known |= _answered(losers, path, turns, devices, testbed, f"{options.on}, {name}")
    answers = [(each, known[each.key]) for each in problems if each.key in known]
    report, is_right = _report(answers, refused, topology, options.clock)
    print(report)
    if options.out:
        options.out.write_text(report + "\n", encoding="utf-8")
    return 0 if is_right else 1


def _answered(
    problems: Sequence[Problem], answers: Path, turns: int, devices: int, testbed: Testbed | None, what: str
) -> dict[str, dict]:
    """Returns the times of each problem's programs, from a file of answers or measured now."""
    known = _known(answers)
    left = [each for each in problems if each.key not in known]
    batches = [left[start : start + BATCH] for start in range(0, len(left), BATCH)]
    for batch in shown(batches, f"{what}: {BATCH} pairs at a time") if batches else ():
        found = _run(batch, devices, testbed, turns)
        with answers.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(each) + "\n" for each in found)
        known |= {each["key"]: each["programs"] for each in found}
    return {each.key: known[each.key] for each in problems}


def _medians(programs: dict[str, dict], clock: str) -> dict[str, float]:
    """Returns the seconds of each program by a clock, the median of its turns."""
    return {name: statistics.median(each[CLOCKS[clock]]) for name, each in programs.items()}


def _is_slower(programs: dict[str, dict], clock: str) -> bool:
    if any("error" in each for each in programs.values()):
        return False
    seconds = _medians(programs, clock)
    return any(seconds["stock"] < SLOWER * seconds[name] for name in ("ours", POLICY) if name in seconds)


# Problems


def _problems(options: argparse.Namespace, devices: int, topology: Topology) -> tuple[list[Problem], int]:
    """Returns the pairs that stock XLA compiles, with our plans, and the number of pairs that it does not compile."""
    least = options.mib * (1 << 20) * 8 // BITS
    drawn = random_pairs(options.seed, options.count, (devices,), sub_axes=0.0, device_order=0.0, least_elements=least)
    found, refused = [], 0
    for pair in shown(drawn, "planning, and asking stock XLA in a child process"):
        if not received_elements_bound(pair.mesh, pair.shape, pair.source, pair.target):
            continue
        stock = stock_pair(_type(pair), pair.mesh, (pair.source, pair.target))
        if not shared_child().compile(stock, devices).is_ok:
            refused += 1
            continue
        plans = _plans(pair, topology, options.others, options.on != "shared")
        found.append(Problem(pair, plans, *_handed_over(stock, topology)))
    return found, refused


def _handed_over(module: str, topology: Topology) -> tuple[str, str]:
    """Returns the module that `optimize` makes of one with a single site, empty if it changes nothing, and why."""
    result = optimize(module, policy=BETTER, topology=topology)
    reasons = [site["reason"] for site in result.report.to_dict()["sites"]]
    return result.module if result.is_rewritten else "", "; ".join(reasons) or "no site"


def _plans(pair: Pair, topology: Topology, with_others: bool, with_exchange: bool) -> dict[str, Plan]:
    """Returns our plan by time, and others for the model to rank: chains by time, by bytes and of the Pareto list."""
    ends = pair.mesh, pair.shape, BITS, pair.source, pair.target
    plans = {"ours": plan(*ends, topology=topology, objective="time", with_exchange=with_exchange)}
    if not with_others:
        return plans
    others = [
        *(plan(*ends, topology=topology, objective=each) for each in ("time", "bytes")),
        *pareto(*ends, topology=topology)[:MOST_OTHERS],
    ]
    for number, other in enumerate(others):
        if all(other.chain_text != each.chain_text for each in plans.values()):
            plans[f"other {number}"] = other
    return plans


def _type(pair: Pair) -> str:
    return f"tensor<{''.join(f'{size}x' for size in pair.shape)}f32>"


# Running


def _topology(options: argparse.Namespace, testbed: Testbed | None) -> Topology:
    """Returns the topology that was given, the preset of shared memory, or what `reshard calibrate` fits to a network.

    The last one is measured once and kept with the answers.
    """
    if options.topology or testbed is None:
        return Topology.parse(str(options.topology or f"cpu:{options.devices}"))
    path = options.state / f"{options.on}.toml"
    if not path.exists():
        print(calibrate_on(testbed, path))
    return Topology.parse(str(path))


def calibrate_on(testbed: Testbed, path: Path, sizes: str = NETWORK_SIZES) -> str:
    """Writes the topology that `reshard calibrate` fits on a network to a file, and returns the tool's report.

    Raises: Failed.
    """
    network = testbed.network
    levels = f"host={network.nodes}" if network.per_node == 1 else f"node={network.nodes},host={network.per_node}"
    commands = [
        ["env", *_slurm(testbed, rank), *_calibrate(path), "--mesh", levels, "--distributed", "--sizes", sizes]
        for rank in range(network.processes)
    ]
    return testbed.run(commands, timeout_s=TIMEOUT_S, environment=cpu_devices(1))[0]


def _calibrate(path: Path) -> list[str]:
    return [sys.executable, str(ROOT / "tools" / "reshard.py"), "calibrate", "-o", str(path), "--repeats", "5"]


def _slurm(testbed: Testbed, rank: int) -> list[str]:
    """Returns Slurm's variables, by which `--distributed` finds the other processes."""
    processes = testbed.network.processes
    return [
        f"SLURM_JOB_ID={os.getpid()}", f"SLURM_STEP_NODELIST={testbed.address(0)}", f"SLURM_NTASKS={processes}",
        f"SLURM_PROCID={rank}", "SLURM_LOCALID=0", f"SLURM_STEP_NUM_NODES={processes}",
    ]  # fmt: skip


def cpu_devices(number: int) -> dict[str, str]:
    """Returns the environment of a process with so many CPU devices that keeps the memory of freed arrays."""
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={number}", **KEEPS_MEMORY}


def _run(batch: Sequence[Problem], devices: int, testbed: Testbed | None, turns: int) -> list[dict]:
    """Returns for each problem the seconds of its programs; in each turn the slowest process counts."""
    jobs = [_job(each, turns) for each in batch]
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(jobs, file)
        file.flush()
        command = [sys.executable, str(WORKER), file.name]
        try:
            if testbed is None:
                environment = cpu_devices(devices)
                outputs = run_together([command], timeout_s=TIMEOUT_S, environment=environment)
            else:
                ends = f"{devices}", f"{testbed.address(0)}:{PORT}"
                outputs = testbed.run(
                    [[*command, str(rank), *ends] for rank in range(devices)],
                    timeout_s=TIMEOUT_S,
                    environment=cpu_devices(1),
                )
        except Failed as failure:
            return [{"key": each.key, "programs": {"ours": {"error": str(failure)[-300:]}}} for each in batch]
    per_process = [[json.loads(line[4:]) for line in each.splitlines() if line.startswith("job ")] for each in outputs]
    return [_slowest([process[number] for process in per_process]) for number in range(len(jobs))]


def _job(problem: Problem, turns: int) -> dict:
    pair = problem.pair
    sides = {
        side: [[axis.name for axis in axes] for axes in sharding.dims]
        for side, sharding in (("source", pair.source), ("target", pair.target))
    }
    return {
        "key": problem.key,
        "mesh": pair.mesh.axes,
        "shape": pair.shape,
        "turns": turns,
        "programs": problem.programs,
        **sides,
    }


def _slowest(answers: Sequence[dict]) -> dict:
    programs = {}
    for name in answers[0]["programs"]:
        each = [answer["programs"][name] for answer in answers]
        errors = [one["error"] for one in each if "error" in one] + ["wrong output"] * any(
            one.get("wrong") for one in each
        )
        turns = zip(*(one.get("seconds", ()) for one in each))
        used = zip(*(one.get("processor_seconds", ()) for one in each))
        times = {"seconds": [max(turn) for turn in turns], "processor_seconds": [max(turn) for turn in used]}
        programs[name] = {"error": errors[0]} if errors else times
    return {"key": answers[0]["key"], "programs": programs}


def _known(answers: Path) -> dict[str, dict]:
    if not answers.exists():
        return {}
    lines = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    return {each["key"]: each["programs"] for each in lines}


# Reporting


def _report(answers: Sequence[tuple[Problem, dict]], refused: int, topology: Topology, clock: str) -> tuple[str, bool]:
    """Returns the report as text, and whether it has no failures."""
    failures = [
        f"{problem.pair}: {name}: {program['error']}"
        for problem, programs in answers
        for name, program in programs.items()
        if "error" in program
    ]
    timed = [
        Timed(problem, _medians(programs, clock))
        for problem, programs in answers
        if not any("error" in each for each in programs.values())
    ]
    lines = [
        f"{len(timed)} pairs, {len(failures)} failures; {refused} more that stock XLA does not compile; topology: "
        f"{topology.name}"
    ]
    lines += [f"  failed: {each}" for each in failures]
    if timed:
        lines += ["", *_table(timed), "", *_ranking(timed), *_losers(timed)]
    return "\n".join(lines), not failures


def _table(timed: Sequence[Timed]) -> Iterator[str]:
    yield "| stock ÷ ours | pairs | geomean | min | 10 % | median | 90 % | max | slower than 0.95 of stock |"
    yield "|---|---|---|---|---|---|---|---|---|"
    taken = sum(bool(each.problem.handed_over) for each in timed)
    yield _line("the plan", [each.speedup for each in timed])
    yield _line(f"by policy better, which takes {taken}", [each.speedup_by_policy for each in timed])
    yield _line("by a perfect choice", [each.best_speedup for each in timed])


def _line(title: str, speedups: Sequence[float]) -> str:
    speedups = sorted(speedups)
    places = [speedups[int(share * (len(speedups) - 1))] for share in (0, 0.1, 0.5, 0.9, 1)]
    cells = [
        title,
        str(len(speedups)),
        f"{statistics.geometric_mean(speedups):.2f}",
        *(f"{each:.2f}" for each in places),
    ]
    return markdown_line([*cells, str(sum(each < SLOWER for each in speedups))])


def _ranking(timed: Sequence[Timed]) -> Iterator[str]:
    """Yields lines on how well the model ranks the plans: all plans, those without chunks, and those of one pair."""
    plans = [(each.seconds[name], found) for each in timed for name, found in each.problem.plans.items()]
    measured, predicted = [seconds for seconds, _ in plans], [found.time_s for _, found in plans]
    whole = [(seconds, found.time_s) for seconds, found in plans if not any(step.inside for step in found.steps)]
    fastest = sorted(range(len(measured)), key=measured.__getitem__)[:TOP]
    expected = sorted(range(len(measured)), key=predicted.__getitem__)[:TOP]
    several = [each for each in timed if len(each.problem.plans) > 1]
    best = [min(each.problem.plans, key=each.seconds.__getitem__) for each in several]
    regret = [each.seconds["ours"] / each.seconds[name] for each, name in zip(several, best)]
    yield f"model: rank correlation {rank_correlation(measured, predicted):.3f} over {len(measured)} plans"
    if 1 < len(whole) < len(plans):
        correlation = rank_correlation([seconds for seconds, _ in whole], [time_s for _, time_s in whole])
        yield f"and {correlation:.3f} over the {len(whole)} of them that are not in chunks;"
    yield f"of the {TOP} fastest {len({*fastest} & {*expected})} are among the {TOP} that were predicted;"
    if several:
        yield (
            f"of {len(several)} pairs with several plans ours is the fastest or within 5 % of it in "
            f"{sum(r < 1.05 for r in regret)}"
        )


def _losers(timed: Sequence[Timed]) -> Iterator[str]:
    losers = sorted((each for each in timed if _least(each) < SLOWER), key=_least)
    if losers:
        yield "\nslower than stock, as a plan and by policy:"
    for each in losers:
        ours = each.problem.plans["ours"]
        yield f"  {each.speedup:.2f} {each.speedup_by_policy:.2f}  {each.problem.pair}"
        yield (
            f"        ours {milliseconds(each.seconds['ours'])}, predicted {milliseconds(ours.time_s)}: "
            f"{ours.chain_text}"
        )
        yield f"        stock {milliseconds(each.seconds['stock'])}; policy better: {each.problem.reason}"


def _least(timed: Timed) -> float:
    """Returns the lower one of the speed-ups of the plan and of the policy."""
    return min(timed.speedup, timed.speedup_by_policy)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--on", choices=("shared", *NETWORKS), default="shared", help="default %(default)s")
    parser.add_argument(
        "--devices",
        type=int,
        choices=(4, 8, 16),
        default=8,
        help="number of CPU devices that share a memory, default %(default)s",
    )
    parser.add_argument("--count", type=int, default=40, help="number of random pairs, default %(default)s")
    parser.add_argument("--mib", type=int, default=64, help="least size of the arrays in MiB, default %(default)s")
    parser.add_argument(
        "--turns", type=int, default=5, help="runs of each program, the median counts, default %(default)s"
    )
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="on shared memory, processor is the time of all threads, which other work on the machine disturbs less; "
        "default %(default)s",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--others",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also run other plans, to check how the model ranks them",
    )
    parser.add_argument(
        "--again",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure pairs that are slower than 0.95 of stock again, with more turns",
    )
    parser.add_argument(
        "--topology",
        help="a topology, such as the file of a calibration; without it, a network is measured first, and shared "
        "memory has the preset cpu:N",
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=Path(tempfile.gettempdir()) / "reshard-run-times",
        help="the folder for the answers",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the report to this file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
