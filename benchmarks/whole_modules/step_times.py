# SPDX-License-Identifier: Apache-2.0
"""Really runs whole programs, stock XLA's module and ours in turns, on a network with slow links.

    python -m benchmarks.whole_modules.step_times [--programs NAME,...] [--on two-level]

8 processes with a CPU device each, on a network of `networks/testbed.py`, which needs root; gloo carries the data. With
`--on unshaped` they are processes of this machine without a network of their own, which needs nothing; with `--on
shared` there is one process with 8 devices that share its memory, and the topology is the preset `cpu:8`. Else `reshard
calibrate` fits a topology to this network first, and all processes multiply matrices at once, for the rate of the local
work. Then each program is lowered, decided under every policy for this topology, and run: its *forms* are stock XLA's
module and those of the policies, and of `--emit=auto`, equal ones only once. For each turn the slowest process counts,
for a form the median of the turns. A short step gets more turns (`--seconds`). The first of `chosen`, `auto` and
`better` that is among the policies is judged: if it takes more than 1.03 of stock's time, both are measured again with
three times as many turns, and if it still does, with nine times as many; the last answer counts.

Results are compared with those of stock XLA's module: equal in all bits where data only moves, else within what passes
as rounding in the program's coarsest type and its sums. A form that differs by more runs once more with floats of 64
bits, as does stock's: if the difference is as good as gone, it was rounding, which a step like that of Adam enlarges
where a gradient is near zero. Modules are decided by `reshard.optimize`, whose results are kept on disk, and times in a
journal, so a run that was stopped continues where it ended. The exit status is 1 if a program fails, its values are
wrong, the judged policy is slower than 1.03 of stock, or the modelled times of all forms rank their measured times with
a correlation of less than 0.9.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import pickle
import socket
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import reshard
from benchmarks.calibration import rank_correlation
from benchmarks.harness.journal import Journal, default_folder
from benchmarks.harness.progress import shown
from benchmarks.networks.testbed import Failed, Network, Testbed, run_together, status_of
from benchmarks.programs.__main__ import use_devices
from benchmarks.run_times import MORE_TURNS, NETWORKS, PORT, calibrate_on, cpu_devices
from benchmarks.whole_modules.policies import known, text_of
from benchmarks.whole_modules.step_worker import STOCK
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver.registry import AUTO, CHOSEN, MANUAL
from reshard.passes.sites.network import SiteNetwork, option_text
from reshard.passes.sites.oracle import BETTER, POLICIES
from reshard.synthesis.common.numbers import milliseconds
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.network.topology import Topology

WORKER = Path(__file__).resolve().parent / "step_worker.py"
DEVICES = 8
SIZES = "16KiB,256KiB,1MiB,4MiB"  # tiles for calibration: steps have collectives of a few KB as well
MOST = 1.03  # times stock's step; a program that is slower with ours is a loser
LEAST_CORRELATION = 0.9
TIMEOUT_S = 900.0
UNSHAPED, SHARED = "unshaped", "shared"
JUDGED = (CHOSEN, AUTO, BETTER)  # policies that promise not to be slower than stock; the first one asked for is judged
_MOVES = frozenset(
    f"stablehlo.{name}"
    for name in ("reshape", "transpose", "concatenate", "slice", "pad", "reverse", "broadcast_in_dim")
) | {"sdy.sharding_constraint"}


class Unshaped:
    """Stands in for a testbed: processes of this machine, whose links are as fast as it is."""

    network = Network(DEVICES, 1, 0)

    def __enter__(self) -> Unshaped:
        return self

    def __exit__(self, *_failure) -> None:
        pass

    def check(self) -> list[tuple[str, float, float]]:
        return []

    def address(self, rank: int) -> str:
        return "127.0.0.1"

    def free_port(self) -> int:
        """Returns a port that nobody uses: other processes of this machine may run such a network, too."""
        with socket.socket() as found:
            found.bind((self.address(0), 0))
            return found.getsockname()[1]

    def run(self, commands, *, timeout_s: float, environment: Mapping[str, str] | None = None) -> list[str]:
        return run_together(commands, timeout_s=timeout_s, environment=environment)


class Shared(Unshaped):
    """Stands in for a testbed: one process of this machine, whose devices share its memory."""

    network = Network(1, 1, 0)


@dataclass(frozen=True, slots=True)
class Program:
    """A program that can run: the modules of its forms, the modelled seconds of each, and what its results may differ.

    Attributes:
      texts: by form, stock's first, then those of policies that are unlike the forms before.
      same: for each policy the form that it decides for.
      limits: for each result the largest difference that passes as rounding.
    """

    name: str
    texts: dict[str, str]
    modelled: dict[str, float]
    same: dict[str, str]
    limits: tuple[float, ...]

    @property
    def judged(self) -> str:
        """Returns the policy that must not be slower than stock."""
        return next(each for each in JUDGED if each in self.same)

    def key(self, what: str) -> str:
        """Returns the question of the journal for a measurement: a program that is decided otherwise is another."""
        texts = hashlib.sha256("\0".join(self.texts.values()).encode()).hexdigest()[:16]
        return f"{self.name} {texts} {what}"


@dataclass(frozen=True, slots=True)
class Step:
    """A measured program: the seconds of each form, and its largest difference from stock's values.

    Attributes:
      of_limit: by form, the largest difference in units of what passes as rounding.
      rounded: forms whose difference is larger, but rounding all the same, as floats of 64 bits show.
    """

    program: Program
    seconds: dict[str, float]
    difference: dict[str, float]
    of_limit: dict[str, float]
    errors: dict[str, str]
    rounded: frozenset[str] = frozenset()

    @property
    def ratio(self) -> float:
        """Returns the time of the form for which the judged policy decides, in units of stock's."""
        return self.ratio_of(self.program.judged)

    def ratio_of(self, policy: str) -> float:
        return self.seconds[self.program.same[policy]] / self.seconds[STOCK]

    @property
    def is_right(self) -> bool:
        return not self.errors and not self.beyond - self.rounded

    @property
    def beyond(self) -> frozenset[str]:
        """Returns the forms that differ by more than what passes as rounding."""
        return frozenset(form for form, of_limit in self.of_limit.items() if of_limit > 1)


def main(arguments: list[str] | None = None) -> int:
    use_devices(DEVICES)
    options = _parse(arguments)
    return status_of(lambda: _measure(options))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    networks = [name for name, each in NETWORKS.items() if each.processes == DEVICES]
    parser.add_argument("--on", choices=(*networks, UNSHAPED, SHARED), default="two-level", help="default %(default)s")
    parser.add_argument("--programs", type=lambda text: text.split(","), help="default: all")
    parser.add_argument(
        "--policies",
        type=lambda text: text.split(","),
        default=[*POLICIES, AUTO],
        help="auto is better with --emit=auto, chosen that with --layouts=chosen; default: all but the last",
    )
    parser.add_argument("--size", default="demo", help="small, demo or large; default %(default)s")
    parser.add_argument(
        "--turns", type=int, default=5, help="runs of each form, the median counts, default %(default)s"
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="a short step gets turns for so long, default %(default)s"
    )
    parser.add_argument("--topology", type=Path, help="a calibrated topology; without it, the network is measured")
    parser.add_argument(
        "--state", type=Path, help="the folder for topologies and answers; default: in the user's cache"
    )
    options = parser.parse_args(arguments)
    if not set(options.policies) & set(JUDGED):
        parser.error(f"--policies {','.join(options.policies)} is without any of {', '.join(JUDGED)}")
    options.state = options.state or default_folder() / "step-times"
    options.programs = options.programs or known()
    return options


def _measure(options: argparse.Namespace) -> int:
    options.state.mkdir(parents=True, exist_ok=True)
    with _testbed(options.on) as testbed:
        for what, as_set, seen in testbed.check():
            print(f"link {what}: {as_set:.0f} Mbit/s as set, {seen:.0f} Mbit/s of payload as measured")
        preset = f"cpu:{DEVICES}" if options.on == SHARED else None
        topology = Topology.parse(str(options.topology or preset or calibrated_file(options, testbed)))
        steps, problems = [], []
        for name in shown(options.programs, f"{options.on}: programs"):
            try:
                program = _decided(name, topology, options)
                steps.append(_timed(program, testbed, options))
            except (DiagnosedError, Failed, ValueError) as error:
                problems.append(f"{name}: {str(error).splitlines()[-1][:300]}")
        print(report(steps, problems, topology))
    return int(bool(problems) or not passes(steps))


# The network


def _testbed(on: str) -> Testbed | Unshaped:
    stand_ins = {UNSHAPED: Unshaped, SHARED: Shared}
    return stand_ins[on]() if on in stand_ins else Testbed(NETWORKS[on])


def calibrated_file(options: argparse.Namespace, testbed) -> Path:
    """Returns the file of the topology of a network, with the rate of local work; it is measured once."""
    path = options.state / f"{options.on}.toml"
    if not path.exists():
        measured = options.state / f"{options.on}-network.toml"
        print(calibrate_on(testbed, measured, SIZES))
        with_rate = replace(Topology.parse(str(measured)), flops_per_s=_flops_per_s(testbed))
        path.write_text(with_rate.to_toml(), encoding="utf-8")
    return path


def _flops_per_s(testbed) -> float:
    """Returns the rate of one device in matrix products while all multiply; the slowest process counts."""
    outputs = run_on(testbed, "multiply")
    return min(float(line.split()[1]) for each in outputs for line in each.splitlines() if line.startswith("flops"))


def run_on(testbed, what: str) -> list[str]:
    """Returns what the worker prints in each process of a network. Raises: Failed."""
    processes = testbed.network.processes
    ends = str(processes), f"{testbed.address(0)}:{testbed.free_port() if isinstance(testbed, Unshaped) else PORT}"
    commands = [[sys.executable, str(WORKER), what, str(rank), *ends] for rank in range(processes)]
    return testbed.run(commands, timeout_s=TIMEOUT_S, environment=cpu_devices(DEVICES // processes))


# Deciding


_HOW = {AUTO: {"emit": AUTO}, CHOSEN: {"emit": AUTO, "layouts": CHOSEN}}


def _decided(name: str, topology: Topology, options: argparse.Namespace) -> Program:
    """Returns the forms of a program for a topology. Raises: DiagnosedError, ValueError if XLA does not compile one."""
    network = SiteNetwork(option_text(topology))
    stock, limits = _without_locations(text_of(name, DEVICES, options.size))
    texts, same = {STOCK: stock}, {}
    for policy in options.policies:
        how = _HOW.get(policy) or {"policy": policy, "emit": MANUAL}
        decided = reshard.optimize(stock, **how, topology=topology, check=True)
        text = _without_locations(decided.module)[0] if decided.is_rewritten else stock
        same[policy] = next((form for form, each in texts.items() if each == text), policy)
        texts.setdefault(same[policy], text)
    return Program(name, texts, {form: _modelled(text, network) for form, text in texts.items()}, same, limits)


def _without_locations(text: str) -> tuple[str, tuple[float, ...]]:
    """Returns the text of a module as all its forms are written, and the limits of rounding of its results."""
    from reshard.dialect_utils.platform.bindings import ir, make_context

    with make_context() as context:
        module = ir.Module.parse(text, context)
        return str(module), limits_of(module)


def limits_of(module) -> tuple[float, ...]:
    """Returns for each result the largest difference that passes as rounding; 0 where data only moves."""
    from reshard.dialect_utils.compare.rounding import ops_behind, roundings_of_results

    limits = [each.limit for each in roundings_of_results(module)]
    is_moved = [all(op.name in _MOVES for op in ops_behind(number, module)) for number in range(len(limits))]
    return tuple(0.0 if moved else limit for limit, moved in zip(limits, is_moved))


def _modelled(text: str, network: SiteNetwork) -> float:
    compiled = shared_child().compile(text, DEVICES, has_final=network.has_final)
    if not compiled.is_ok:
        raise ValueError(f"XLA: {compiled.status} {compiled.message[:200]}")
    return network.time_beside(compiled, compiled, DEVICES).seconds


# Running


def _timed(program: Program, testbed, options: argparse.Namespace) -> Step:
    """Returns the times of a program's forms, from the journal or measured now. Raises: Failed."""
    journal = Journal(options.state / "answers.jsonl")
    measure = functools.partial(_answer, program, testbed, journal, options)
    answers = measure(tuple(program.texts), 1)
    step = as_step(program, answers)
    rounded = frozenset(form for form in sorted(step.beyond) if _is_rounding(program, form, testbed, journal, options))
    step = replace(step, rounded=rounded)
    for more in MORE_TURNS.values():
        if not step.is_right or step.ratio <= MOST:
            break
        answers = {**answers, **measure((STOCK, program.same[program.judged]), more)}
        step = replace(as_step(program, answers), rounded=rounded)
    return step


def _answer(program: Program, testbed, journal: Journal, options, forms: Sequence[str], more: int) -> dict[str, dict]:
    """Returns for each of some forms the seconds, turn by turn, and the differences of its values; or its error."""
    turns, least_s = more * options.turns, more * options.seconds
    question = program.key(f"{options.on} {options.size} {','.join(forms)}: {turns} turns, {least_s} s")
    if question not in journal:
        journal.add(question, run(program, testbed, forms, turns, least_s, options.size))
    return journal.answer(question)


def _is_rounding(program: Program, form: str, testbed, journal: Journal, options) -> bool:
    """Returns whether the difference of a form from stock's values is gone with floats of 64 bits. Raises: Failed."""
    question = program.key(f"{options.size}: rounding of {form}")
    if question not in journal:
        journal.add(question, {"is_rounding": run_widened(program, form, testbed, options.size)})
    return journal.answer(question)["is_rounding"]


def run_widened(program: Program, form: str, testbed, size: str) -> bool:
    """Runs stock's module and a form, both also with floats of 64 bits, and returns whether that is as good as equal.
    Raises: Failed."""
    from reshard.dialect_utils.compare.rounding import roundings_of_results
    from reshard.dialect_utils.compare.widened import widened
    from reshard.dialect_utils.platform.bindings import ir, make_context

    texts = [program.texts[each] for each in (STOCK, form)]
    with make_context() as context:
        modules = [ir.Module.parse(each, context) for each in texts]
        roundings = [(each.epsilon, each.terms) for each in roundings_of_results(modules[0])]
        wide = [widened(each) for each in modules]
        if any(each is None for each in wide):
            return False
        texts += map(str, wide)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.mlir") for number in range(len(texts))]
        for path, text in zip(paths, texts):
            path.write_text(text, encoding="utf-8")
        job = {"modules": list(map(str, paths[:2])), "widened": list(map(str, paths[2:])), "roundings": roundings}
        return all(_found(job, program.name, testbed, size, Path(folder)))


def run(program: Program, testbed, forms: Sequence[str], turns: int, least_s: float, size: str) -> dict[str, dict]:
    """Runs forms in turns on the processes of a network; of each turn the slowest process counts. Raises: Failed."""
    with tempfile.TemporaryDirectory() as folder:
        modules = {form: Path(folder, f"{form}.mlir") for form in forms}
        for form, path in modules.items():
            path.write_text(program.texts[form], encoding="utf-8")
        job = {"turns": turns, "least_s": least_s, "limits": program.limits}
        job |= {"modules": {form: str(path) for form, path in modules.items()}}
        found = _found(job, program.name, testbed, size, Path(folder))
    return {form: _slowest([each[form] for each in found]) for form in forms}


def _found(job: dict, name: str, testbed, size: str, folder: Path) -> list:
    """Returns what each process of a network answers to a job with a program's arguments. Raises: Failed."""
    inputs, path = folder / "inputs.pickle", folder / "job.json"
    inputs.write_bytes(pickle.dumps(_inputs(name, size)))
    path.write_text(json.dumps({**job, "inputs": str(inputs)}))
    outputs = run_on(testbed, str(path))
    return [json.loads(line[4:]) for each in outputs for line in each.splitlines() if line.startswith("job ")]


def _slowest(answers: Sequence[dict]) -> dict:
    """Returns the answer of all processes to a form."""
    if errors := [each["error"] for each in answers if "error" in each]:
        return {"error": errors[0]}
    seconds = [max(turn) for turn in zip(*(each["seconds"] for each in answers), strict=True)]
    return {"seconds": seconds, **{what: max(each[what] for each in answers) for what in ("difference", "of_limit")}}


def _inputs(name: str, size: str) -> list:
    """Returns the arguments of a program's module, on the host."""
    import jax
    import numpy as np

    from benchmarks.programs.catalogue import every_program
    from reshard.dialect_utils.platform import compat

    entry = next(each for each in every_program() if each.name == name)
    leaves = jax.tree.leaves(entry.arguments(entry.mesh(), size))
    leaves = [leaves[at] for at in compat.kept_arguments(entry.lower(size), len(leaves))]
    is_key = [jax.numpy.issubdtype(each.dtype, jax.dtypes.prng_key) for each in leaves]
    return [np.asarray(jax.random.key_data(each) if key else each) for each, key in zip(leaves, is_key)]


def as_step(program: Program, answers: Mapping[str, dict]) -> Step:
    right = {form: each for form, each in answers.items() if "error" not in each}
    return Step(
        program,
        {form: statistics.median(each["seconds"]) for form, each in right.items()},
        {form: each["difference"] for form, each in right.items()},
        {form: each["of_limit"] for form, each in right.items()},
        {form: each["error"] for form, each in answers.items() if "error" in each},
    )


# Reporting


def passes(steps: Sequence[Step]) -> bool:
    """Returns whether all values are right, no program is slower, and the model ranks the forms as they are."""
    is_right = all(each.is_right and each.ratio <= MOST for each in steps)
    return is_right and (sum(len(each.seconds) for each in steps) < 3 or correlation(steps) >= LEAST_CORRELATION)


def correlation(steps: Sequence[Step]) -> float:
    """Returns the rank correlation of modelled and measured times over programs x forms."""
    pairs = [(each.program.modelled[form], seconds) for each in steps for form, seconds in each.seconds.items()]
    return rank_correlation([modelled for modelled, _ in pairs], [seconds for _, seconds in pairs])


def report(steps: Sequence[Step], problems: Sequence[str], topology: Topology) -> str:
    """Returns the table and its summary as Markdown."""
    headings = ("program", "form", "modelled", "measured", "stock ÷ form", "values")
    rows = [row for each in steps for row in _rows(each)]
    lines = [f"topology: {topology.source}", "", markdown_table(headings, rows, "llrrrl"), ""]
    lines += [f"failed: {each}" for each in problems]
    lines += [f"failed: {each.program.name}, {form}: {text}" for each in steps for form, text in each.errors.items()]
    if timed := [each for each in steps if not each.errors]:
        lines += _summary(timed)
    return "\n".join(lines)


def _rows(step: Step) -> Iterator[tuple[str, ...]]:
    stock_s = step.seconds.get(STOCK)
    for form, seconds in step.seconds.items():
        policies = [policy for policy, same in step.program.same.items() if same == form]
        name = ", ".join(policies if form != STOCK else [STOCK, *policies])
        ratio = f"{stock_s / seconds:.3f}" if stock_s and form != STOCK else ""
        times = milliseconds(step.program.modelled[form]), milliseconds(seconds)
        yield step.program.name, name, *times, ratio, _values(step, form)


def _values(step: Step, form: str) -> str:
    if form == STOCK:
        return ""
    if not step.difference[form]:
        return "equal in all bits"
    what = "rounding, shown with 64 bits" if form in step.rounded else "WRONG"
    return f"{what if form in step.beyond else 'within rounding'}: {step.difference[form]:.0e}"


def _summary(steps: Sequence[Step]) -> Iterator[str]:
    judged = steps[0].program.judged
    ours = [each for each in steps if each.program.same[judged] != STOCK]
    worst = max(steps, key=lambda each: each.ratio)
    forms = sum(len(each.seconds) for each in steps)
    for policy in sorted(steps[0].program.same, key=lambda policy: policy != judged):
        mean = statistics.geometric_mean(1 / each.ratio_of(policy) for each in steps)
        yield f"geomean of stock ÷ {policy}: {mean:.3f} over {len(steps)} programs"
    if ours:
        mean = statistics.geometric_mean(1 / each.ratio for each in ours)
        yield f"of {judged} over the {len(ours)} programs that it rewrites: {mean:.3f}"
    yield f"worst ratio of {judged} to stock: {worst.ratio:.3f}, {worst.program.name}"
    yield f"slower than {MOST} of stock: {', '.join(e.program.name for e in steps if e.ratio > MOST) or 'none'}"
    if forms > 2:
        yield f"rank correlation of modelled and measured times: {correlation(steps):.3f} over {forms} forms"


if __name__ == "__main__":
    sys.exit(main())
