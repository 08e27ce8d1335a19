# SPDX-License-Identifier: Apache-2.0
"""Measures how long it takes to choose the layouts of large programs, and how far from the best they may be.

    python -m benchmarks.whole_modules.layout_times [--programs NAME,...] [--out FILE.md]

Programs are lowered in their real size, or read from files NAME.mlir. Their shardings are taken out, and
`assign-layouts` solves them for meshes of up to 512 devices, without a memory limit, and writes the layouts as
constraints. Nothing is compiled.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from benchmarks.harness.progress import replace_line
from benchmarks.programs.__main__ import use_devices
from reshard.dialect_utils.assignment.factored_modules import factored_module, inline_calls_of
from reshard.dialect_utils.assignment.written_layouts import free_of_shardings, write_layouts
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.assignment.layout_problem import LayoutProblem
from reshard.synthesis.common.text_table import markdown_table
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology

_MESHES = (("x=8", "v5e:2x4"), ("x=8,y=8", "v5e:8x8"), ("x=2,y=16,z=16", "v5e:16x16*2"))
_TIME_LIMIT_S = 120.0
_HEADINGS = (
    *("program", "mesh", "ops", "choices", "read in s", "stated in s", "solved in s", "gap"),
    *("written in s", "constraints", "most memory, GiB"),
)


def main(arguments: list[str] | None = None) -> int:
    use_devices(8)
    from benchmarks.programs.catalogue import every_program

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=lambda text: text.split(","), default=["llama_train_step", "penzai_llama"])
    parser.add_argument("--out")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.programs:
        if name.endswith(".mlir"):
            content: str | bytes = Path(name).read_text()
        else:
            program = next(each for each in every_program() if each.name == name)
            size = "large" if "large" in program.sizes else program.sizes[-1]
            content = compat.bytecode(program.lower(size).compiler_ir("stablehlo"))
        for mesh, topology in _MESHES:
            replace_line(f"{name} on {mesh}")
            rows.append([name, mesh, *_solved(content, Mesh.parse(mesh), Topology.parse(topology))])
    replace_line("")
    text = markdown_table(_HEADINGS, rows, "llrrrrrrrrr")
    print(text)
    if options.out:
        Path(options.out).write_text(f"{text}\n")
    return 0


def _solved(content: str | bytes, mesh: Mesh, topology: Topology) -> list[str]:
    with make_context() as context:
        module = ir.Module.parse(content, context)
        free_of_shardings(module)
        inline_calls_of(module)
        start = time.monotonic()
        factored = factored_module(module)
        read = time.monotonic()
        problem = LayoutProblem(factored.program, mesh, topology)
        stated = time.monotonic()
        found = problem.solve(time_limit_s=_TIME_LIMIT_S)
        solved = time.monotonic()
        written = write_layouts(module, factored, found, mesh)
        ended = time.monotonic()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    counts = map(str, (len(factored.program.ops), len(problem.problem.costs)))
    times = (f"{each:.1f}" for each in (read - start, stated - read, solved - stated))
    said = f"{written.constraints}" + (f", {written.left} layouts differ" if written.left else "")
    return [*counts, *times, f"{found.solution.gap:.1%}", f"{ended - solved:.1f}", said, f"{peak:.1f}"]


if __name__ == "__main__":
    sys.exit(main())
