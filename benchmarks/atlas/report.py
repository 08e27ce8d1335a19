# SPDX-License-Identifier: Apache-2.0
"""Prints the findings of the atlas: counts for each op, and for each row of the table of miscompilations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.atlas import layouts, programs
from reshard.dialect_utils.analysis import miscompilations
from reshard.dialect_utils.emission import shared_windows
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

SHARED = "shared windows"
_STATUSES = ("right", "wrong", "refused", "died", "hung")


@dataclass(frozen=True)
class Outcome:
    """A case that was run. `row` is the name of the row of the table that applies to it, empty if no row does."""

    number: int
    at: int
    family: str
    status: str
    row: str
    traits: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.number}:{self.at}"


def outcomes(rows: Mapping[int, Sequence[dict]], families: Sequence[str]) -> Iterator[Outcome]:
    """Yields the outcome of every case, with the row that applies to it."""
    with make_context() as context, ir.Location.unknown(context):
        for number, found in sorted(rows.items()):
            program = programs.drawn(number, families)
            module = ir.Module.parse(layouts.unsharded_text(program))
            for each in found:
                case = layouts.drawn(program, f"{number} {each['case']}")
                row = explanation(program, case, module)
                yield Outcome(number, each["case"], program.family, each["status"], row, tuple(program.traits))


def explanation(program: programs.Program, case: layouts.Case, module: ir.Module) -> str:
    """Returns the name of the row of the table that applies to a case; empty if no row does.

    Args:
      module: the program unsharded; a current context is that of the module.
    """
    main = module.body.operations[0].operation.regions[0].blocks[0]
    mesh = Mesh(case.mesh)
    held = {argument: _sharding(layout) for argument, layout in zip(main.arguments, case.operands)}
    given = dict(zip(main.operations[len(main.operations) - 1].operands, map(_sharding, case.results)))
    for op in (each.operation for each in main.operations):
        operands, results = ([_layout(value, held, given) for value in side] for side in (op.operands, op.results))
        at = miscompilations.AtOp(op, mesh, operands, results)
        if (row := miscompilations.miscompilation_of(at)) is not None:
            return row.name
    return SHARED if shared_windows.are_confused(module, main.arguments) else ""


def _layout(value: ir.Value, held: Mapping[ir.Value, Sharding], given: Mapping[ir.Value, Sharding]) -> Sharding | None:
    """Returns the layout of a value; a value inside the program has that of the first result of its shape."""
    if value in held or value in given:
        return held.get(value) or given.get(value)
    if not isinstance(value.type, ir.RankedTensorType):
        return None
    shape = ir.RankedTensorType(value.type).shape
    alike = (layout for result, layout in given.items() if ir.RankedTensorType(result.type).shape == shape)
    return next(alike, Sharding(((),) * len(shape)))


def _sharding(layout: layouts.Axes) -> Sharding:
    return Sharding(tuple(tuple(map(AxisRef, axes)) for axes in layout))


def tell(found: Sequence[Outcome]) -> int:
    """Prints the tables, and returns 1 if no row of the table explains some difference, else 0."""
    from reshard.synthesis.common.text_table import table

    print(f"{len(found):,} cases")
    print(table(*_by_family(found), "l" + "r" * len(_STATUSES)))
    print(table(*_by_row(found), "lrrl"))
    unexplained = [each for each in found if each.status == "wrong" and not each.row]
    for each in unexplained:
        print(f"unexplained: {each.name} {each.family} {', '.join(each.traits)}")
    print(f"{len(unexplained)} differences that the table does not explain")
    return int(bool(unexplained))


def _by_family(found: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    counts: dict[str, Counter] = {}
    for each in found:
        counts.setdefault(each.family, Counter())[each.status] += 1
    rows = [[family, *(f"{count[status]:,}" for status in _STATUSES)] for family, count in sorted(counts.items())]
    return ["op", *_STATUSES], rows


def _by_row(found: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    met, wrong = Counter(each.row for each in found), Counter(each.row for each in found if each.status == "wrong")
    first = {each.row: each.name for each in reversed(found) if each.status == "wrong"}
    rows = [[name or "none", f"{met[name]:,}", f"{wrong[name]:,}", first.get(name, "")] for name in sorted(met)]
    return ["row of the table", "cases that meet it", "wrong", "the first"], rows
