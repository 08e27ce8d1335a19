# SPDX-License-Identifier: Apache-2.0
"""Products beside collectives: what the TPU compiler makes of them by itself and by its options, beside our pipelines.

    python -m benchmarks.overlap.vendor [--targets tpu:v5e:2x4,tpu:v5p:2x2x2] [--patterns gather_rows,scatter,layer]
        [--size 8192] [--ratio 1] [--out FILE.md]

The patterns and their widths are those of `schedules`. Each is compiled ahead of time in these forms:

- stock: in `jax.shard_map`, with the collective written down;
- collective matmul: the same, with the compiler's options for collectives next to products;
- partitioned: global arrays with shardings, of which XLA's partitioner may make a windowed einsum by itself;
- windowed einsum: the same, with the threshold from which it makes one at 0;
- pipeline: as the pass overlap-collectives writes it, whatever it decides.

*Estimate* is the end of the compiler's schedule. In it the body of a loop, of which its own forms are made, is not
counted with all its trips, so that it may be shorter than the product alone; ours has no loops. *Modelled* is our time
of the final program with all trips, and with what the schedule runs beside something else.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.progress import shown
from benchmarks.overlap.schedules import network_of, overlapped, width_for
from benchmarks.programs.__main__ import use_devices
from reshard.dialect_utils.xla.child import Compiled, shared_child
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.synthesis.common.text_table import markdown_table

if TYPE_CHECKING:  # it loads jax, whose number of devices is set first
    from benchmarks.overlap.patterns import Pattern

_PATTERNS = ("gather_rows", "gather_inner", "scatter", "layer")  # those of one array per operand
_COLLECTIVE_MATMUL = "&".join(
    f"xla_tpu_{kind}_collective_matmul_mode=POST_SPMD" for kind in ("all_gather", "reduce_scatter")
)
_WINDOWED = "xla_jf_spmd_threshold_for_windowed_einsum_mib=0"
_HEADINGS = (
    "target", "pattern", "width", "form", "estimate in us", "modelled in us", "beside other work", "collectives",
    "temporaries in MB",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", default="tpu:v5e:2x4,tpu:v5p:2x2x2")
    parser.add_argument("--patterns", default="gather_rows,scatter,layer", help=f"of {', '.join(_PATTERNS)}")
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--ratio", type=float, default=1.0, help="of the product's time to the collective's")
    parser.add_argument("--out", type=Path, help="a file for the table besides stdout")
    options = parser.parse_args(arguments)
    if unknown := {*options.patterns.split(",")} - {*_PATTERNS}:
        parser.error(f"no pattern {', '.join(sorted(unknown))}; there are {', '.join(_PATTERNS)}")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    use_devices(max(Target.parse(each).devices for each in options.targets.split(",")))
    pairs = [(target, name) for target in options.targets.split(",") for name in options.patterns.split(",")]
    rows = [row for pair in shown(pairs, "patterns") for row in _rows(*pair, options.size, options.ratio)]
    text = markdown_table(_HEADINGS, rows, "llrlrrrlr")
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0


def _rows(target: str, name: str, size: int, ratio: float) -> Iterator[list[str]]:
    from benchmarks.overlap.patterns import GRAIN, pattern

    width = max(GRAIN, round(width_for(target, name, ratio) / GRAIN) * GRAIN)
    program = pattern(name, Target.parse(target).devices, size, width)
    written, partitioned = overlapped(program, target, "")[0], _partitioned(program)
    forms = [
        ("stock", written, ""),
        ("collective matmul", written, _COLLECTIVE_MATMUL),
        ("partitioned", partitioned, ""),
        ("windowed einsum", partitioned, _WINDOWED),
        ("pipeline", overlapped(program, target, "always")[0], ""),
    ]
    for form, text, options in forms:
        compiler = Target.parse(f"{target}?{options}" if options else target)
        compiled = shared_child().compile(text, program.devices, target=compiler, with_estimate=True)
        yield [target, name, str(width), form, *_cells(compiled, compiler)]


def _cells(compiled: Compiled, target: Target) -> list[str]:
    if not compiled.is_ok:
        return [f"{compiled.status}: {compiled.message.splitlines()[0]}", "", "", "", ""]
    time = network_of(str(replace(target, options=()))).final_time_of(compiled, target.devices)
    estimate = compiled.estimated_seconds
    return [
        "none" if estimate is None else f"{1e6 * estimate:,.0f}",
        "" if time is None else f"{1e6 * time.seconds:,.0f}",
        "" if time is None else f"{1e6 * time.hidden_s:,.0f}",
        ", ".join(f"{each.runs} {each.kind}" for each in compiled.final_collectives),
        f"{(compiled.temp_bytes or 0) / 1e6:,.0f}",
    ]


def _partitioned(program: Pattern) -> str:
    """Returns the pattern as a program on global arrays, whose collectives XLA's partitioner makes."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding

    from benchmarks.overlap.patterns import AXIS

    jax.clear_caches()
    mesh = Mesh(np.array(jax.devices()[: program.devices]), (AXIS,))
    arguments = [jax.ShapeDtypeStruct(shape, program.dtype) for shape in program.shapes]
    shardings = [NamedSharding(mesh, spec) for spec in (*program.specs, program.out)]
    function = _layer if program.name == "layer" else _product
    jitted = jax.jit(function, in_shardings=tuple(shardings[:-1]), out_shardings=shardings[-1])
    return jitted.lower(*arguments).as_text()


def _product(x, w):
    return x @ w


def _layer(x, up, down):
    from jax.nn import gelu

    return x + gelu(x @ up) @ down


if __name__ == "__main__":
    sys.exit(main())
