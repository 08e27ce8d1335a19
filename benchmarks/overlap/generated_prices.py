# SPDX-License-Identifier: Apache-2.0
"""What the code generator of a TPU compiler says of work that memory bounds, beside the bandwidth of the memory.

    python -m benchmarks.overlap.generated_prices [--targets tpu:v5e:2x4,tpu:v5p:2x2x2] [--rows 4096] [--columns 8192]

Each program does one thing to arrays of a device. *Cycles* are those of its instructions in the final program; *memory*
is what the bytes that are read and written take at the bandwidth of the target's network preset, in the same cycles.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator

from reshard.dialect_utils.xla.child import shared_child
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.sites.network import SiteNetwork, of_target
from reshard.synthesis.common.text_table import markdown_table

_BYTES = {"bf16": 2, "f32": 4}
_CYCLES_PER_SECOND = {"v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9}  # as their schedules say
_HEADINGS = ("target", "program", "element", "instruction", "cycles", "memory", "cycles / memory")


def programs(rows: int, columns: int, element: str) -> Iterator[tuple[str, str, int]]:
    """Yields the name of a program, its module for one device, and the arrays that it reads and writes."""
    kind = f"tensor<{rows}x{columns}x{element}>"
    zero = f"%zero = stablehlo.constant dense<0.0> : tensor<{element}>"
    yield "zeros", f"{zero} %0 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<{element}>) -> {kind}", 1
    yield "a + b", f"%0 = stablehlo.add %a, %b : {kind}", 3
    yield "exp a", f"%0 = stablehlo.exponential %a : {kind}", 2
    exp = f"%1 = stablehlo.exponential %a : {kind} %2 = stablehlo.multiply %1, %a : {kind}"
    yield "tanh(a exp a)", f"{exp} %0 = stablehlo.tanh %2 : {kind}", 2


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", default="tpu:v5e:2x4,tpu:v5p:2x2x2")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=8192)
    options = parser.parse_args(arguments)
    cells = [cell for target in options.targets.split(",") for cell in _cells(target, options.rows, options.columns)]
    print(markdown_table(_HEADINGS, cells, "llllrrr"))
    return 0


def _cells(text: str, rows: int, columns: int) -> Iterator[list[str]]:
    target = Target.parse(text)
    bandwidth = SiteNetwork(of_target(target)).topology.memory_bandwidth_bytes_per_s
    for element, size in _BYTES.items():
        for name, body, arrays in programs(rows, columns, element):
            kind = f"tensor<{rows}x{columns}x{element}>"
            module = f"""sdy.mesh @mesh = <["x"={target.devices}]>
                func.func public @main(%a: {kind}, %b: {kind}) -> {kind} {{ {body} return %0 : {kind} }}"""
            compiled = shared_child().compile(
                module, target.devices, target=target, with_estimate=False, keeps_schedule=True
            )
            if not compiled.is_ok or compiled.scheduled_text is None:
                raise SystemExit(f"error: {name} on {text}: {compiled.reason}")
            found = re.findall(r"(?:ROOT )?%([\w-]+)[^\n]*\"estimated_cycles\":\"(\d+)\"", compiled.scheduled_text)
            memory = arrays * size * rows * columns / bandwidth * _CYCLES_PER_SECOND[target.model]
            cycles = sum(int(each) for _, each in found)
            names = ", ".join(each for each, _ in found)
            yield [text, name, element, names, f"{cycles:,}", f"{memory:,.0f}", f"{cycles / memory:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
