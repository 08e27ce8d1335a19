# SPDX-License-Identifier: Apache-2.0
"""Compares programs as their authors annotated them with the same programs laid out from nothing.

    python -m benchmarks.whole_modules.automatic [--programs NAME,...] [--topologies h100:1x8,v5e:2x4] [--size demo]
        [--limit 1.0] [--meshes 1] [--journal FILE.jsonl] [--out FILE.md] [--verify]

Each program is lowered for its own mesh, whose smallest axis is doubled until there are as many devices as in the
network, or others where its arrays do not divide, and compiled as it is by stock XLA and after `reshard-opt`. Then all
its shardings are taken out, and `reshard auto` chooses the layouts by the model, within `--limit` times the memory of
stock XLA's program (0: no limit). A program with manual computations keeps its mesh. Times are modelled, collectives
and local work one after the other. With `--verify`, the chosen program runs on small random inputs, and its outputs are
compared with those on one device. The exit status is 1 if a program fails, is slower than one of its annotated forms,
or computes other values.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.journal import Journal
from benchmarks.harness.progress import replace_line
from benchmarks.programs.__main__ import use_devices
from reshard.compiling.automatic import choose
from reshard.compiling.optimizing import optimized_module
from reshard.configuration.settings import resolved
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.sdy_shardings import module_meshes
from reshard.dialect_utils.xla.child import Compiled, shared_child
from reshard.passes.layouts.choosing import Candidate, mesh_text, meshes_for
from reshard.passes.sites.network import SiteNetwork, option_text
from reshard.synthesis.common.numbers import mebibytes
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.layouts.mesh import Mesh

TOPOLOGIES = "h100:1x8,v5e:2x4"
_MOST_DEVICES = 64
_SLOWER = 1e-3  # relative difference that counts
_HEADINGS = (
    "program", "network", "mesh", "annotated, stock us", "annotated, ours us", "auto us", "stock / auto", "ours / auto",
    "received, stock", "ours", "auto", "memory, stock", "auto", "model us", "gap", "s", "values",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A program on a network. Times in us, bytes per device; `problem` is why there are none, or what is wrong."""

    program: str
    topology: str
    mesh: str = ""
    stock_us: float = math.inf
    ours_us: float = math.inf
    auto_us: float = math.inf
    stock_received: int = 0
    ours_received: int = 0
    auto_received: int = 0
    stock_peak: int = 0
    auto_peak: int = 0
    model_us: float = 0.0
    gap: float = 0.0
    seconds: float = 0.0
    values: str = ""
    problem: str = ""

    @property
    def is_worse(self) -> bool:
        best = min(self.stock_us, self.ours_us)
        return bool(self.problem) or self.auto_us > best * (1 + _SLOWER) or self.values == "wrong"


def main(arguments: list[str] | None = None) -> int:
    use_devices(_MOST_DEVICES)
    options = _parse(arguments)
    journal = Journal(Path(options.journal)) if options.journal else None
    pairs = [(name, topology) for topology in options.topologies for name in options.programs]
    rows = []
    for number, (name, topology) in enumerate(pairs, 1):
        replace_line(f"{number} of {len(pairs)}: {name} on {topology}")
        key = f"{name} {topology} {options.size} {options.limit} {options.meshes} {options.verify}"
        known = journal.get(key) if journal else None
        rows.append(Row(**known) if known else _measured(name, topology, options))
        if journal and not known:
            journal.add(key, asdict(rows[-1]))
    replace_line("")
    text = markdown_table(_HEADINGS, [_cells(row) for row in rows], "lll" + "r" * 13 + "l") + "\n\n" + _summary(rows)
    print(text)
    if options.out:
        Path(options.out).write_text(f"{text}\n")
    return int(any(row.is_worse for row in rows))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    from benchmarks.programs.catalogue import every_program

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    installed = [program.name for program in every_program() if not program.missing]
    parser.add_argument("--programs", type=lambda text: text.split(","), default=installed)
    parser.add_argument("--topologies", type=lambda text: text.split(","), default=TOPOLOGIES.split(","))
    parser.add_argument("--size", default="demo")
    parser.add_argument("--limit", type=float, default=1.0, help="of the memory, times that of stock XLA's program")
    parser.add_argument(
        "--meshes", type=int, default=1, help="shapes of a mesh that are laid out; the first has one axis"
    )
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--journal")
    parser.add_argument("--out")
    return parser.parse_args(arguments)


def _measured(name: str, topology: str, options: argparse.Namespace) -> Row:
    from benchmarks.programs.catalogue import every_program

    program = next(each for each in every_program() if each.name == name)
    size = options.size if options.size in program.sizes else program.sizes[-1]
    network = SiteNetwork(option_text(topology))
    try:
        _, lowered = program.lower_over(network.topology.size, size)
    except ValueError as error:  # jax's, of an array that does not divide
        return Row(name, topology, problem=str(error).splitlines()[0])
    try:
        content = compat.bytecode(lowered.compiler_ir("stablehlo"))
        return _compared(name, topology, content, network, options)
    except DiagnosedError as error:
        return Row(name, topology, problem=str(error).splitlines()[0])


def _compared(name: str, topology: str, content: bytes, network: SiteNetwork, options: argparse.Namespace) -> Row:
    with make_context() as context:
        module = ir.Module.parse(content, context)
        (own,) = {mesh for mesh in module_meshes(module).values() if mesh.axes}
        is_bound = "manual_computation" in str(module) or "maximal" in str(module)
    child = shared_child()

    def ask(source: bytes) -> Compiled:
        return child.compile(source, own.size, has_final=network.has_final, stands_in=network.stands_in)

    settings = resolved({"topology": network.topology}, {})
    stock, ours = ask(content), ask(optimized_module(content, settings, name, is_from_jax=False).content)
    limit = int(options.limit * (stock.peak_bytes or 0)) or None
    start = time.monotonic()
    meshes = (own,) if is_bound else meshes_for(own.size)[: options.meshes]
    limited = SiteNetwork(network.text, limit)
    best = _chosen(content, name, meshes, limited)
    seconds = time.monotonic() - start
    form = best.ours if best.ours_s <= best.stock_s else best.stock
    assert form is not None
    beside = best.stock if best.stock and best.stock.is_ok else form
    forms = (stock, ours, form)
    times = [_us(network, stock if each is not form else beside, each, own.size) for each in forms]
    received = [each.costs.bytes_received if each.is_ok else 0 for each in forms]
    peaks = [each.peak_bytes or 0 if each.is_ok else 0 for each in (stock, form)]
    found = best.assigned
    return Row(
        name,
        topology,
        mesh_text(best.mesh),
        *(times[0], times[1], times[2]),
        *(received[0], received[1], received[2]),
        *(peaks[0], peaks[1]),
        found.seconds * 1e6,
        found.gap,
        seconds,
        values_of(best.content, name) if options.verify else "",
    )


def _chosen(content: bytes, name: str, meshes: Sequence[Mesh], network: SiteNetwork) -> Candidate:
    """Returns the candidate that the model likes best, compiled; `reshard auto` would compile others too."""
    how = {"keeps_annotations": False, "is_from_jax": False, "compiled_meshes": 1}
    return choose(content, name, meshes, network, **how).best


def _us(network: SiteNetwork, beside: Compiled, compiled: Compiled, devices: int) -> float:
    return network.time_beside(beside, compiled, devices).seconds * 1e6 if compiled.is_ok else math.inf


def values_of(content: bytes, name: str) -> str:
    """Returns "equal" if a module computes on its mesh what it computes on one device, within rounding.

    It is compared as stock XLA partitions it, and after `reshard-opt`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.mlirbc")
        path.write_bytes(content)
        command = [sys.executable, "-m", "reshard.tools.reshard", "verify", str(path)]
        status = subprocess.run(command, capture_output=True, check=False).returncode
    return {0: "equal", 3: "equal; stock XLA is wrong"}.get(status, "wrong")


def _cells(row: Row) -> list[str]:
    if row.problem:
        return [row.program, row.topology, row.problem, *[""] * (len(_HEADINGS) - 3)]
    return [
        row.program,
        row.topology,
        row.mesh,
        *(f"{each:,.0f}" for each in (row.stock_us, row.ours_us, row.auto_us)),
        f"{row.stock_us / row.auto_us:.2f}",
        f"{row.ours_us / row.auto_us:.2f}",
        *(f"{each / 1e6:,.2f}" for each in (row.stock_received, row.ours_received, row.auto_received)),
        mebibytes(row.stock_peak, 1),
        mebibytes(row.auto_peak, 1),
        f"{row.model_us:,.0f}",
        f"{row.gap:.1%}",
        f"{row.seconds:.1f}",
        row.values,
    ]


def _summary(rows: Sequence[Row]) -> str:
    lines = []
    for topology in dict.fromkeys(row.topology for row in rows):
        some = [row for row in rows if row.topology == topology and not row.problem]
        if some:
            means = [
                math.exp(sum(math.log(each(row) / row.auto_us) for row in some) / len(some))
                for each in (lambda row: row.stock_us, lambda row: row.ours_us)
            ]
            lines.append(
                f"{topology}: {len(some)} programs; geomean annotated stock / auto {means[0]:.2f}, ours / auto "
                f"{means[1]:.2f}"
            )
    worse = [f"{row.program} on {row.topology}" for row in rows if row.is_worse]
    return "\n".join([*lines, f"worse or failed: {', '.join(worse) or 'none'}"])


if __name__ == "__main__":
    sys.exit(main())
