# SPDX-License-Identifier: Apache-2.0
"""What the code generator of a compiler says of the local work of a final program.

XLA's compiler for TPUs writes the cycles of each fusion into the program, as the code that it generates takes them by
its own model: it knows the shapes of tiles, padding, and what fits into the memory on the chip. Its scheduler has other
prices, made before there is any code, and a roofline has none of this. Copies between memories that start and end
apart, and some small ops, have no price; their work stands beside the cycles.

An elementwise op, a broadcast or a reduction that is no part of a fusion has a price of another kind, which does not
count: an exponential alone is priced 1.6 to 2 times as high as a fusion of an exponential, a product and a tanh of the
same array, and zeros written in bfloat16 at seven to ten times what the memory takes for them (`python -m
benchmarks.overlap.generated_prices`).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from reshard.synthesis.network.program_time import LocalWork

from .text import Computation, Instruction, parse_module
from .trip_counts import Scope
from .work import ELEMENTWISE, Piece, ProgramWork, local_work

_ALONE = ELEMENTWISE | {"broadcast", "reduce"}
_CYCLES = re.compile(r'"estimated_cycles":"([1-9]\d*)"')


@dataclass(frozen=True, slots=True)
class Generated:
    """The local work of one run of a program.

    Fields:
      cycles: of what has a price that counts, loops counted. others: the work of the rest, equal rows merged, sorted.
    """

    cycles: int
    others: tuple[LocalWork, ...]


def generated_in(hlo_text: str) -> Generated | None:
    """Returns what the code generator says of a final program; None if the text has no price at all.

    Args:
      hlo_text: of a scheduled program.

    Example:
      >>> generated_in('''HloModule m, is_scheduled=true
      ... %squared (p: f32[256]) -> f32[256] {
      ...   %p = f32[256]{0} parameter(0)
      ...   ROOT %m = f32[256]{0} multiply(%p, %p)
      ... }
      ... ENTRY %main (a: f32[256]) -> f32[256] {
      ...   %a = f32[256]{0} parameter(0)
      ...   %b = f32[256]{0} fusion(%a), kind=kLoop, calls=%squared, backend_config={"estimated_cycles":"700"}
      ...   ROOT %c = f32[256]{0} negate(%b)
      ... }''')
      Generated(cycles=700, others=(LocalWork(flops=0, bytes_moved=2048, runs=1, kernels=1),))
    """
    if not _CYCLES.search(hlo_text):
        return None
    module = parse_module(hlo_text)
    rows = PricedWork(module, reads_lines=False).work(Scope(module, module.entry, ()))
    others = Counter({row[:3]: runs for row, runs in rows.items() if not row[3]})
    return Generated(sum(cycles * runs for (*_, cycles), runs in rows.items()), local_work(others))


def cycles_of(instruction: Instruction) -> int:
    """Returns the cycles of an instruction by the code generator; 0 if it has no price, or one that does not count."""
    priced = None if instruction.opcode in _ALONE else _CYCLES.search(instruction.attributes)
    return int(priced[1]) if priced else 0


class PricedWork(ProgramWork):
    """Files each piece of work with its cycles, 0 for one without a price. Of a conditional the branch with the most
    cycles counts."""

    def _row(self, computation: Computation, piece: Piece) -> tuple[int, ...]:
        return *super()._row(computation, piece), cycles_of(computation.instructions[piece.names[-1]])

    def _weight(self, rows: Counter[tuple[int, ...]]) -> float:
        return sum(row[3] * runs for row, runs in rows.items())
