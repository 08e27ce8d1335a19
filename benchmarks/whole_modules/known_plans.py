# SPDX-License-Identifier: Apache-2.0
"""Sets plans that have a name beside what `reshard auto` makes of the same program without a word of sharding.

    python -m benchmarks.whole_modules.known_plans [--plans 'NAME;...'] [--topology v5e:2x4] [--size demo]
        [--limit 1.0] [--target tpu:v5e:2x4] [--out FILE.md]

Each plan of `benchmarks/programs/manual/known_plans.py` is compiled three times for a mesh of 8 devices: with its
collectives written by hand; laid out for what the plan's axis is for (`--tactics`); and laid out from nothing, within
`--limit` times the memory of the one by hand. Collectives and received bytes are those of a layer, forward and
backward, as XLA's compiler for CPU devices has them right after partitioning, and of what is outside of the layers;
times are modelled on the network; with `--target`, time and bytes of the final program of that target's compiler stand
beside. The exit status is 1 if a step receives more than by hand, or takes longer by the model.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.progress import replace_line
from benchmarks.harness.tables import show
from benchmarks.programs.__main__ import use_devices
from reshard.compiling.automatic import choose
from reshard.dialect_utils.hlo.accelerators import as_run_by
from reshard.dialect_utils.hlo.collectives import CollectiveOp, collectives_in
from reshard.dialect_utils.hlo.text import op_name, parse_module
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla.child import shared_child
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.layouts.choosing import Candidate
from reshard.passes.sites.network import SiteNetwork, option_text
from reshard.synthesis.assignment.tactics import parse
from reshard.synthesis.common.numbers import mebibytes
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.programs import traffic

if TYPE_CHECKING:  # jax is imported once the number of its devices is set
    from benchmarks.programs.manual.known_plans import Plan

TACTICS, NOTHING = "its tactics", "from nothing"
WAYS = (TACTICS, NOTHING)  # in which the plain program is laid out
PLACES = ("forward", "backward", "outside")
_MORE = 0.01  # relative difference that counts
_HEADINGS = (
    "plan", "program", "forward", "KB", "backward", "KB", "outside of layers", "KB", "step, us", "memory, MiB",
)  # fmt: skip
_OF_TARGET = ("final, us", "final, MB")


@dataclass(frozen=True, slots=True)
class Moved:
    """Collectives by kind, and the bytes that a device receives by them."""

    counts: dict[str, float] = field(default_factory=dict)
    received: float = 0.0

    @property
    def text(self) -> str:
        return ", ".join(f"{count:g} {kind}" for kind, count in sorted(self.counts.items())) or "–"


@dataclass(frozen=True, slots=True)
class Row:
    """A program of a plan. Times in us, of a step; bytes per device.

    Attributes:
      places: what it moves for one layer, by `PLACES`. received: by the whole step.
      final_us, final_received: of the final program of a target; None without one, or if it has ops without price.
    """

    plan: str
    program: str
    places: tuple[Moved, ...] = ()
    us: float = 0.0
    memory: int = 0
    received: float = 0.0
    final_us: float | None = None
    final_received: int | None = None


def main(arguments: list[str] | None = None) -> int:
    use_devices(8)
    from benchmarks.programs.manual.known_plans import PLANS

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--plans", type=lambda text: text.split(";"), help="their names, with ; between; default: all")
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--size", default="demo")
    parser.add_argument("--limit", type=float, default=1.0, help="of the memory, times that by hand")
    parser.add_argument("--target", type=Target.parse, help="whose final programs stand beside")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if unknown := sorted({*(options.plans or ())} - {plan.name for plan in PLANS}):
        parser.error(f"no plan is called {unknown[0]!r}; known: {'; '.join(plan.name for plan in PLANS)}")
    network = SiteNetwork(option_text(options.topology))
    rows, is_well = [], True
    for plan in PLANS:
        if not options.plans or plan.name in options.plans:
            replace_line(plan.name)
            rows += (three := measured(plan, options.size, network, options.limit, options.target))
            is_well &= all(is_as_good(each, three[0]) for each in three[1:])
    headings = (*_HEADINGS, *(_OF_TARGET if options.target else ()))
    count = len(headings)
    show(headings, [_cells(row)[:count] for row in rows], "lllrlrlrrrrr"[:count], options.out)
    return int(not is_well)


def measured(
    plan: Plan, size: str, network: SiteNetwork, limit: float = 1.0, target: Target | None = None
) -> list[Row]:
    """Returns the rows of a plan: by hand, by its tactics, and from nothing."""
    from benchmarks.programs.manual.known_plans import AXIS, DEVICES

    layers, mesh = plan.config(size).layers, Mesh(((AXIS, DEVICES),))
    function, shapes = plan.by_hand(size)
    by_hand = compat.bytecode(function.lower(*shapes).compiler_ir("stablehlo"))
    rows = [_row(plan.name, "by hand", by_hand, network, layers, target)]
    function, shapes = plan.plain(size)
    content = compat.bytecode(function.lower(*shapes).compiler_ir("stablehlo"))
    most = int(limit * rows[0].memory)
    for name in WAYS:
        tactics = parse(f"{AXIS}={plan.tactics}") if name == TACTICS else {}
        limited = network if tactics else SiteNetwork(network.text, most)
        best = choose(content, plan.name, [mesh], limited, is_from_jax=False, tactics=tactics).best
        rows.append(_row(plan.name, name, _faster(best), network, layers, target))
    return rows


def _faster(best: Candidate) -> bytes:
    return best.content if best.stock_s <= best.ours_s else best.optimized


def _row(plan: str, program: str, content: bytes, network: SiteNetwork, layers: int, target: Target | None) -> Row:
    devices = network.topology.size
    compiled = shared_child().compile(content, devices, keeps_hlo=True, stands_in=network.stands_in)
    assert compiled.is_ok, compiled.message
    final = shared_child().compile(content, devices, target=target) if target else None
    text = present(compiled.hlo_text)
    found, loops = as_run_by(compiled.run_by, collectives_in(text), parse_module(text)), _loops(text)
    by_place: dict[str, list[CollectiveOp]] = {place: [] for place in PLACES}
    for op in found.ops:
        by_place[_place(op, loops)].append(op)
    places = tuple(_moved(by_place[place], found.num_devices, 1 if place == "outside" else layers) for place in PLACES)
    seconds = network.time_of(compiled, found.num_devices).seconds
    memory = present(compiled.peak_bytes)
    row = Row(plan, program, places, seconds * 1e6, memory, found.bytes_received)
    if final is None:
        return row
    time = network.final_time_of(final, devices)
    final_us = None if time is None else time.seconds * 1e6
    return replace(row, final_us=final_us, final_received=final.final_bytes_received)


def _loops(text: str) -> dict[str, str]:
    """Returns the names of the loops of an HLO text, with those that JAX gave them."""
    computations = parse_module(text).computations.values()
    ops = (each for computation in computations for each in computation.instructions.values())
    return {each.name: op_name(each) for each in ops if each.opcode == "while"}


def _place(op: CollectiveOp, loops: dict[str, str]) -> str:
    if not op.loops:
        return "outside"
    return "backward" if any("transpose(" in loops[each] for each in op.loops) else "forward"


def _moved(ops: Sequence[CollectiveOp], devices: int, layers: int) -> Moved:
    """Returns what collectives move for one of as many layers."""
    counts: dict[str, float] = defaultdict(float)
    for op in ops:
        counts[op.collective.kind] += op.collective.trip_count / layers
    return Moved(counts, traffic.bytes_received([op.collective for op in ops], devices) / layers)


def is_as_good(row: Row, by_hand: Row) -> bool:
    return row.received <= by_hand.received * (1 + _MORE) and row.us <= by_hand.us * (1 + _MORE)


def _cells(row: Row) -> list[str]:
    moved = [cell for place in row.places for cell in (place.text, f"{place.received / 1e3:,.1f}")]
    of_target = (
        "–" if row.final_us is None else f"{row.final_us:,.0f}",
        "–" if row.final_received is None else f"{row.final_received / 1e6:,.1f}",
    )
    return [row.plan, row.program, *moved, f"{row.us:,.0f}", mebibytes(row.memory, 1), *of_target]


if __name__ == "__main__":
    sys.exit(main())
