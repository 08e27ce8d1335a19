# SPDX-License-Identifier: Apache-2.0
"""Really runs sums on a network with two levels: one all_reduce, the planner's chain, and other programs, in turns.

    python -m benchmarks.networks.reductions [--on two-nodes,four-nodes] [--kib 16,64,256,1024,2048] [--others 10]
        [--turns 5] [--state DIR] [--out FILE.md]

8 processes on the networks of `testbed.py`, which needs root; gloo carries the data, and `reshard calibrate` fits the
topology. The *pairs* are those of P² (arXiv 2110.10548): sizes of axes, a placement of the axes on the levels, the axes
that are summed over, and a number of bytes per device. Pairs whose groups are the same are one. *Flat* is one
all_reduce, *ours* the planner's chain, and the others are programs of reduce_scatters, all_reduces and all_gathers over
parts of the groups, those first that the model takes to be fastest. Values are whole numbers, so every order of a sum
gives the same bits. For each turn the slowest process counts, for a program the median of the turns; a pair in which
ours is slower than 0.97 of flat is measured again with more turns. The exit status is 1 if a value is wrong, or a pair
stays slower.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.calibration import rank_correlation
from benchmarks.harness.journal import Journal, default_folder
from benchmarks.harness.progress import shown
from benchmarks.networks.testbed import CannotShape, Failed, Network, Testbed
from benchmarks.run_times import MORE_TURNS, PORT, calibrate_on, one_device
from reshard.dialect_utils.emission.tile_emission import Mark, unused_channels
from reshard.dialect_utils.hierarchy.explicit_collectives import NotPlannable, explicit_collectives
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.layouts.choosing import products
from reshard.synthesis.common.numbers import milliseconds
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.forms.platforms import GLOO
from reshard.synthesis.hierarchy.redistributions import InGroups, redistribution_of
from reshard.synthesis.layouts.layout import Factor, Slot, groups
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.network.cost import collective_time_s
from reshard.synthesis.network.pricing import Pricing
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.placement.enumeration import placements
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.plans.costing import Costing
from reshard.synthesis.plans.plan import Plan
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs.chain import Chain
from reshard.synthesis.programs.steps import AllGather, AllReduce, ReduceScatter, RuleError
from reshard.synthesis.programs.tile_program import collectives

DEVICES = 8
BITS = 32
NETWORKS = {"two-nodes": Network(2, 4, 1000, 100), "four-nodes": Network(4, 2, 1000, 100)}
WORKER = Path(__file__).resolve().parent / "reduction_worker.py"
FLAT, OURS = "flat", "ours"
SLOWER = 0.97
NEAR = 1.05  # times the fastest that counts as the fastest
_NAMES = "xyz"
_SIZES = "16KiB,256KiB,1MiB,4MiB"  # tiles for calibration
_BATCH = 6  # pairs for one start of the processes
_TIMEOUT_S = 900.0
_HEADINGS = ("network", "axes", "summed", "KiB", "flat in ms", "ours in ms", "flat / ours", "best in ms", "chain")
_Pieces = tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Axes on a network, and a sum over some of them of so many elements on each device."""

    network: str
    mesh: Mesh
    summed: tuple[str, ...]
    elements: int

    @property
    def collective(self) -> InGroups:
        factors = tuple(Factor(name, 1, self.mesh.axis_size(name)) for name in self.summed)
        return InGroups("all_reduce", (self.elements,), factors)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(each) for each in groups(self.mesh, self.collective.factors).tolist())


@dataclass(frozen=True, slots=True)
class Problem:
    """A pair with its programs as text of modules, the modelled seconds of each, and the planner's chain in words."""

    pair: Pair
    programs: dict[str, str]
    modelled: dict[str, float]
    chain: str

    @property
    def key(self) -> str:
        text = "\0".join([*self.programs, *self.programs.values()])
        return f"{self.pair} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the network would stay and block the next one
    try:
        return _measure(options)
    except CannotShape as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--on", type=lambda text: text.split(","), default=[*NETWORKS], help="default: all")
    parser.add_argument(
        "--kib", type=lambda text: [int(each) for each in text.split(",")], default=[16, 64, 256, 1024, 2048]
    )
    parser.add_argument("--others", type=int, default=10, help="programs beside flat and ours; default %(default)s")
    parser.add_argument("--turns", type=int, default=5, help="runs of each program; default %(default)s")
    parser.add_argument("--state", type=Path, help="where topologies and answers are kept; default: the user's cache")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    options.state = options.state or default_folder() / "reductions"
    return options


def _measure(options: argparse.Namespace) -> int:
    options.state.mkdir(parents=True, exist_ok=True)
    timed: list[tuple[Problem, dict[str, float]]] = []
    wrong: list[str] = []
    for name in options.on:
        with Testbed(NETWORKS[name]) as testbed:
            testbed.check()
            topology = _calibrated(name, testbed, options)
            problems = [problem_of(pair, topology, options.others) for pair in pairs(name, options.kib)]
            for problem, seconds in _timed(problems, testbed, options):
                if seconds is None:
                    wrong.append(str(problem.pair))
                else:
                    timed.append((problem, seconds))
    text = report(timed, wrong)
    print(text)
    if options.out:
        options.out.write_text(f"{text}\n", encoding="utf-8")
    return int(bool(wrong) or any(seconds[FLAT] / seconds[OURS] < SLOWER for _, seconds in timed))


def _calibrated(name: str, testbed: Testbed, options: argparse.Namespace) -> Topology:
    path = options.state / f"{name}.toml"
    if not path.exists():
        print(calibrate_on(testbed, path, _SIZES))
    return Topology.parse(str(path))


# Pairs and programs


def pairs(name: str, kib: Sequence[int]) -> Iterator[Pair]:
    """Yields the pairs of a network: all meshes of eight devices, placements, sums and sizes; equal groups once."""
    network = NETWORKS[name]
    place = Topology.parse(f"h100:{network.nodes}x{network.per_node}")  # the levels alone count
    seen: set[frozenset[tuple[int, ...]]] = set()
    for rank in (1, 2, 3):
        for sizes in products(DEVICES, rank):
            axes = Mesh(tuple(zip(_NAMES, sizes)))
            for placed in placements(place, axes, with_orders=False):
                for count in range(1, rank + 1):
                    for summed in itertools.combinations(axes.axis_names, count):
                        pair = Pair(name, placed.mesh, summed, 0)
                        if (key := frozenset(pair.groups)) not in seen:
                            seen.add(key)
                            yield from (replace(pair, elements=each * 1024 * 8 // BITS) for each in kib)


def problem_of(pair: Pair, topology: Topology, others: int) -> Problem:
    """Returns the programs of a pair: flat, ours unless it is flat, and so many others, the fastest by the model."""
    asked = redistribution_of(pair.mesh, pair.collective, pair.mesh.axis_names)
    ours = plan(pair.mesh, asked.shape, BITS, asked.source, asked.target, objective="time", topology=topology)
    flat_s = collective_time_s(topology, DEVICES, pair.collective.flat(pair.groups, BITS))
    modelled, programs = {FLAT: flat_s}, {FLAT: flat_text(pair)}
    if flat_s > _seconds(ours, topology):
        modelled[OURS], programs[OURS] = _seconds(ours, topology), text_of(pair, ours)
    known = {ours.chain_text}
    ranked = sorted(
        ((_seconds(each, topology), each.chain_text, each) for each in chains(pair, topology)), key=lambda x: x[:2]
    )
    for seconds, text, each in ranked:
        if text not in known and len(programs) < others + 2 and each.collectives > 1:
            known.add(text)
            modelled[text], programs[text] = seconds, text_of(pair, each)
    return Problem(pair, programs, modelled, ours.chain_text if OURS in programs else FLAT)


def _seconds(found: Plan, topology: Topology) -> float:
    """Returns the modelled time of a chain, with its groups in the order in which they are written."""
    written = collectives(found.tile_program, BITS)
    return max(found.time_s, sum(collective_time_s(topology, DEVICES, each) for each in written))


def chains(pair: Pair, topology: Topology) -> Iterator[Plan]:
    """Yields the sums that reduce_scatters and all_reduces over parts of the groups make, with all_gathers behind."""
    asked = redistribution_of(pair.mesh, pair.collective, pair.mesh.axis_names)
    problem = refine(pair.mesh, asked.shape, asked.source, asked.target, into_primes=True)
    request = Request.of(pair.mesh, asked.shape, BITS, asked.source, asked.target, topology=topology, objective="time")
    costing = Costing(request, Pricing(topology, pair.mesh, BITS))
    dim = len(asked.shape) - 1
    for parts in _ordered_partitions(problem.source.unreduced):
        for kinds in itertools.product((False, True), repeat=len(parts)):
            scattered = [part for part, is_scattered in zip(parts, kinds) if is_scattered]
            for is_joint in (False, True)[: 1 + (len(scattered) > 1)]:
                chain, start = Chain(problem.source), 1
                for part, is_scattered in zip(parts, kinds):
                    if not is_scattered:
                        chain = chain.then(AllReduce(part))
                        continue
                    ends = list(
                        itertools.accumulate((factor.size for factor in part), initial=start, func=lambda a, b: a * b)
                    )
                    chain = chain.then(
                        ReduceScatter(tuple((f, Slot(dim, a, b)) for f, a, b in zip(part, ends, ends[1:])))
                    )
                    start = ends[-1]
                gathers = [tuple(itertools.chain(*scattered))] if is_joint else scattered[::-1]
                chain = chain.then(*(AllGather(part) for part in gathers))
                try:
                    yield costing.of_chain(chain)
                except RuleError:
                    continue


def _ordered_partitions(factors: _Pieces) -> Iterator[tuple[_Pieces, ...]]:
    """Yields all sequences of disjoint parts that together are the factors."""
    if not factors:
        yield ()
        return
    for count in range(1, len(factors) + 1):
        for first in itertools.combinations(factors, count):
            rest = tuple(factor for factor in factors if factor not in first)
            yield from ((first, *others) for others in _ordered_partitions(rest))


def flat_text(pair: Pair) -> str:
    """Returns the module with one all_reduce: each device has a row of a matrix, and gets the sum of its group's."""
    tile = f"tensor<{pair.elements}xf32>"
    row, rows = f"tensor<1x{pair.elements}xf32>", f"tensor<{DEVICES}x{pair.elements}xf32>"
    axes = ", ".join(f'"{name}"' for name in pair.mesh.axis_names)
    own = f"[<@mesh, [{{{axes}}}, {{}}]>]"
    listed = [list(group) for group in pair.groups]
    return f"""module @sum attributes {{mhlo.num_partitions = {DEVICES} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = {pair.mesh}
  func.func public @main(%arg0: {rows} {{sdy.sharding = #sdy.sharding<@mesh, [{{{axes}}}, {{}}]>}})
      -> ({rows} {{sdy.sharding = #sdy.sharding<@mesh, [{{{axes}}}, {{}}]>}}) {{
    %0 = sdy.manual_computation(%arg0) in_shardings={own} out_shardings={own} manual_axes={{{axes}}} (%arg1: {row}) {{
      %1 = stablehlo.reshape %arg1 : ({row}) -> {tile}
      %2 = "stablehlo.all_reduce"(%1) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<{listed}> : tensor<{len(listed)}x{len(listed[0])}xi64>, use_global_device_ids}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %5 = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %5 : tensor<f32>
      }}) : ({tile}) -> {tile}
      %3 = stablehlo.reshape %2 : ({tile}) -> {row}
      sdy.return %3 : {row}
    }} : ({rows}) -> {rows}
    return %0 : {rows}
  }}
}}
"""


def text_of(pair: Pair, chain: Plan) -> str:
    """Returns the module with a chain in place of the all_reduce."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(flat_text(pair))
        ((_, found),) = explicit_collectives(module.operation)
        if isinstance(found, NotPlannable):
            raise found
        found.replace(chain, Mark(unused_channels(module), "reshard", ir.Location.unknown(), GLOO))
        return str(module)


# Running


def _timed(
    problems: Sequence[Problem], testbed: Testbed, options: argparse.Namespace
) -> Iterator[tuple[Problem, dict[str, float] | None]]:
    """Yields each problem with the seconds of its programs; None if a value is wrong or a program fails."""
    journal = Journal(options.state / "answers.jsonl")
    batches = [problems[at : at + _BATCH] for at in range(0, len(problems), _BATCH)]
    for batch in shown(batches, f"{problems[0].pair.network}: batches of {_BATCH} pairs"):
        answers = _answers(batch, options.turns, testbed, journal)
        for more in MORE_TURNS.values():
            slower = [each for each in batch if _ratio(answers[each.key]) < SLOWER]
            again = [replace(each, programs={name: each.programs[name] for name in (FLAT, OURS)}) for each in slower]
            for first, second in zip(slower, again, strict=True):
                found = _answers([second], more * options.turns, testbed, journal)[second.key]
                answers[first.key] = {**answers[first.key], **found}
        for each in batch:
            yield each, _seconds_of(answers[each.key])


def _ratio(answer: dict) -> float:
    seconds = _seconds_of(answer)
    return math.inf if seconds is None else seconds[FLAT] / seconds[OURS]


def _seconds_of(answer: dict) -> dict[str, float] | None:
    if any("error" in each or each["wrong"] for each in answer.values()):
        return None
    seconds = {name: statistics.median(each["seconds"]) for name, each in answer.items()}
    return {OURS: seconds[FLAT], **seconds}


def _answers(batch: Sequence[Problem], turns: int, testbed: Testbed, journal: Journal) -> dict[str, dict]:
    """Returns the answers of a batch by key, from the journal or measured now."""
    left = [each for each in batch if f"{each.key} {turns}" not in journal]
    for each, answer in zip(left, _run(left, turns, testbed) if left else (), strict=True):
        journal.add(f"{each.key} {turns}", answer)
    return {each.key: journal.answer(f"{each.key} {turns}") for each in batch}


def _run(batch: Sequence[Problem], turns: int, testbed: Testbed) -> list[dict]:
    jobs = [{"groups": each.pair.groups, "turns": turns, "programs": each.programs} for each in batch]
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(jobs, file)
        file.flush()
        command = [sys.executable, str(WORKER), file.name]
        ends = str(DEVICES), f"{testbed.address(0)}:{PORT}"
        commands = [[*command, str(rank), *ends] for rank in range(DEVICES)]
        try:
            outputs = testbed.run(commands, timeout_s=_TIMEOUT_S, environment=one_device())
        except Failed as failure:
            return [{FLAT: {"error": str(failure)[-300:]}}] * len(batch)
    found = [[json.loads(line[4:]) for line in each.splitlines() if line.startswith("job ")] for each in outputs]
    return [_slowest(processes) for processes in zip(*found, strict=True)]


def _slowest(processes: Sequence[dict]) -> dict:
    """Returns the answer of all processes to a job: of each turn the slowest counts."""
    answer = {}
    for name in processes[0]:
        each = [process[name] for process in processes]
        seconds = [max(turn) for turn in zip(*(one["seconds"] for one in each), strict=True)]
        answer[name] = {"seconds": seconds, "wrong": any(one["wrong"] for one in each)}
    return answer


# Words


def report(timed: Sequence[tuple[Problem, dict[str, float]]], wrong: Sequence[str]) -> str:
    """Returns the table of pairs, slowest ratio first, and what they say together."""
    if not timed:
        return f"wrong or failed: {'; '.join(wrong)}"
    ordered = sorted(timed, key=lambda each: each[1][FLAT] / each[1][OURS])
    rows = markdown_table(_HEADINGS, [_cells(*each) for each in ordered], "lllrrrrrl")
    ratios = [seconds[FLAT] / seconds[OURS] for _, seconds in timed]
    unlike = [ratio for (problem, _), ratio in zip(timed, ratios) if OURS in problem.programs]
    nearly = sum(_is_found(*each) for each in timed)
    ranks = [
        rank_correlation(
            [problem.modelled[name] for name in problem.programs], [seconds[name] for name in problem.programs]
        )
        for problem, seconds in timed
        if len(problem.programs) > 3
    ]
    every = [(problem.modelled[name], seconds[name]) for problem, seconds in timed for name in problem.programs]
    overall = rank_correlation([one for one, _ in every], [other for _, other in every])
    lines = [
        f"{len(timed)} pairs, {len(unlike)} with another program than flat; "
        f"wrong or failed: {'; '.join(wrong) or 'none'}",
        f"flat / ours: geomean {_geomean(ratios):.3f} over all, {_geomean(unlike):.3f} over those that differ; "
        f"least {min(ratios):.3f}; below {SLOWER}: {sum(ratio < SLOWER for ratio in ratios)}",
        f"the fastest program, within 5 %, is flat, or ours, or among the model's best, in {nearly} of {len(timed)}; "
        f"ours itself is within 5 % of the fastest in {sum(_is_fastest(*each) for each in timed)}",
        f"rank correlation of modelled and measured times: {overall:.3f} over all {len(every)} programs; "
        f"median within a pair {statistics.median(ranks or [1.0]):.3f}",
    ]
    return rows + "\n\n" + "\n".join(f"- {line}" for line in lines)


def _is_found(problem: Problem, seconds: dict[str, float]) -> bool:
    """Returns whether one of the ten programs that the model takes to be fastest is nearly the fastest."""
    best = sorted(problem.programs, key=lambda name: problem.modelled[name])[:10]
    return min(seconds[name] for name in best) <= NEAR * min(seconds.values())


def _is_fastest(_problem: Problem, seconds: dict[str, float]) -> bool:
    return seconds[OURS] <= NEAR * min(seconds.values())


def _geomean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.mean(map(math.log, ratios or [1.0])))


def _cells(problem: Problem, seconds: dict[str, float]) -> tuple[str, ...]:
    pair = problem.pair
    return (
        pair.network,
        " x ".join(f"{name}={size}" for name, size in pair.mesh.axes)
        + (f" {pair.mesh.device_ids}" if pair.mesh.device_ids else ""),
        " ".join(pair.summed),
        str(pair.elements * BITS // 8 // 1024),
        milliseconds(seconds[FLAT]),
        milliseconds(seconds[OURS]),
        f"{seconds[FLAT] / seconds[OURS]:.3f}",
        milliseconds(min(seconds.values())),
        problem.chain,
    )


if __name__ == "__main__":
    sys.exit(main())
