# SPDX-License-Identifier: Apache-2.0
"""Compares our chains with stock XLA on random redistributions: traffic, temporaries, crashes.

    python benchmarks/random_pairs.py --devices 4,8,16 --count 200 --seed 0 [--out FILE.json]

Each pair is compiled twice for CPU devices in a child process: as stock XLA converts it, and with our island. What
compiling found is cached on disk, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
import json
import math
from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.arguments import device_counts  # noqa: E402
from benchmarks.pairs import Pair, random_pairs  # noqa: E402
from benchmarks.progress import replace_line  # noqa: E402
from reshard.dialect_utils.mini_modules import rewritten_pair, stock_pair  # noqa: E402
from reshard.dialect_utils.xla_child import XlaChild, shared_child  # noqa: E402
from reshard.synthesis.plan import NoPlanError, plan  # noqa: E402

BITS = {"i1": 8, "i4": 4, "i8": 8, "bf16": 16, "f32": 32, "f64": 64}


@dataclass(frozen=True, slots=True)
class Measured:
    """One pair, planned and compiled both ways; bytes are per device and None where nothing compiled.

    Fields:
      largest_tile: of source and target, in bytes. bound: what any method has to receive.
      our_status: "ok", "no plan", or XLA's: "error", "abort", "hang"; stock_status likewise.
      our_tile, stock_tile: the largest operand or result of a collective.
    """

    pair: str
    devices: int
    chain: str
    bound: int
    planned: int
    largest_tile: int
    our_status: str
    our_bytes: int | None
    our_temps: int | None
    our_tile: int | None
    stock_status: str
    stock_bytes: int | None
    stock_temps: int | None
    stock_tile: int | None
    message: str = ""


def tensor_type(pair: Pair, element: str) -> str:
    """Returns the pair's global type as MLIR prints it."""
    return f"tensor<{''.join(f'{size}x' for size in pair.shape)}{element}>"


def measure(pair: Pair, *, element: str = "f32", child: XlaChild | None = None) -> Measured:
    """Returns what our plan and stock XLA make of a pair."""
    child = child or shared_child()
    type_text, devices = tensor_type(pair, element), pair.mesh.size
    stock = child.compile(stock_pair(type_text, pair.mesh, (pair.source, pair.target)), devices)
    theirs = (stock.status, stock.bytes_received, stock.temp_bytes, stock.largest_collective_tile_bytes)
    tiles = (side.tile_shape(pair.mesh, pair.shape) for side in (pair.source, pair.target))
    largest = max(map(math.prod, tiles)) * BITS[element] // 8
    try:
        found = plan(pair.mesh, pair.shape, BITS[element], pair.source, pair.target)
    except NoPlanError as error:
        return Measured(str(pair), devices, "", 0, 0, largest, "no plan", None, None, None, *theirs, str(error))
    ours = child.compile(rewritten_pair(type_text, found), devices)
    return Measured(
        str(pair),
        devices,
        found.chain_text,
        found.bound_bytes,
        found.bytes_received,
        largest,
        ours.status,
        ours.bytes_received,
        ours.temp_bytes,
        ours.largest_collective_tile_bytes,
        *theirs,
        ours.message or stock.message,
    )


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    rows: list[Measured] = []
    for devices in options.devices:
        for pair in random_pairs(options.seed, options.count, (devices,), least_elements=options.least_elements):
            rows.append(measure(pair, element=options.element))
            replace_line(f"{devices} devices: {len(rows)} of {options.count * len(options.devices)}")
    replace_line("")
    print(table(rows))
    print(_list_of("above the bound", ((_ratio(r.planned, r.bound), r) for r in rows), options.show))
    both = [r for r in rows if r.our_status == r.stock_status == "ok"]
    print(_list_of("more bytes than stock", ((_ratio(r.our_bytes, r.stock_bytes), r) for r in both), options.show))
    print(_list_of("more temporaries than stock", ((_ratio(r.our_temps, r.stock_temps), r) for r in both), options.show))
    for row in rows:
        if row.our_status != "ok":
            print(f"ours: {row.our_status}: {row.pair}: {row.message}")
    if options.out:
        options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return int(any(row.our_status != "ok" for row in rows))


def table(rows: list[Measured]) -> str:
    """Returns a Markdown table with a line per device count."""
    head = (
        "devices",
        "pairs",
        "stock not ok",
        "ours ÷ bound: geomean, max",
        "stock ÷ bound: geomean, max",
        "stock beyond max tile",
        "temporaries, ours ÷ stock: geomean, max, larger",
    )
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for devices in sorted({row.devices for row in rows}):
        lines.append(f"| {' | '.join(_cells(devices, [row for row in rows if row.devices == devices]))} |")
    return "\n".join(lines)


def _cells(devices: int, rows: list[Measured]) -> Iterable[str]:
    moved = [row for row in rows if row.bound]
    stock_ok = [row for row in rows if row.stock_status == "ok"]
    both = [row for row in stock_ok if row.our_status == "ok"]
    bad = Counter(row.stock_status for row in rows if row.stock_status != "ok")
    beyond = sum(row.stock_tile > row.largest_tile for row in stock_ok)
    temps = [_ratio(row.our_temps, row.stock_temps) for row in both]
    yield str(devices)
    yield str(len(rows))
    yield ", ".join(f"{count} {status}" for status, count in sorted(bad.items())) or "0"
    yield _geomean_and_max([row.planned / row.bound for row in moved])
    yield _geomean_and_max([row.stock_bytes / row.bound for row in moved if row.stock_status == "ok"])
    yield f"{beyond / max(1, len(stock_ok)):.0%}"
    yield f"{_geomean_and_max([t for t in temps if 0 < t < math.inf])}, {sum(t > 1 for t in temps)}"


def _geomean_and_max(ratios: list[float]) -> str:
    if not ratios:
        return "–"
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}, {max(ratios):.2f}"


def _ratio(mine: int, other: int) -> float:
    """Returns mine ÷ other; 1 where both are zero."""
    if mine == other:
        return 1.0
    return mine / other if other else math.inf


def _list_of(title: str, ratios: Iterable[tuple[float, Measured]], show: int) -> str:
    """Returns the pairs with a ratio above 1, the worst first."""
    worse = sorted((item for item in ratios if item[0] > 1), key=lambda item: (-item[0], item[1].pair))
    lines = [f"\n{title}: {len(worse)}"]
    lines += [
        f"  {ratio:5.2f}  {row.pair}\n         {row.chain}\n         bytes {row.planned}, stock {row.stock_bytes}, bound {row.bound}; "
        f"temporaries {row.our_temps}, stock {row.stock_temps}"
        for ratio, row in worse[:show]
    ]
    return "\n".join(lines)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=device_counts, default=(4, 6, 8, 12, 16), help="mesh sizes, default %(default)s")
    parser.add_argument("--count", type=int, default=40, help="pairs per mesh size, default %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least-elements", type=int, default=1 << 16, help="of the global array, default %(default)s")
    parser.add_argument("--element", choices=tuple(BITS), default="f32", help="element type, default %(default)s")
    parser.add_argument("--show", type=int, default=10, help="pairs listed under each heading, default %(default)s")
    parser.add_argument("--out", type=Path, help="write every row as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
