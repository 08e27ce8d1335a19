# SPDX-License-Identifier: Apache-2.0
"""The cause of a collective: why a partitioned program has it, told from the op for which XLA made it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reshard.dialect_utils.ir.diagnostics import text_of_location
from reshard.dialect_utils.ir.ops import CONSTRAINTS, LOOPS, ops_in, short_name
from reshard.dialect_utils.platform.bindings import ir

PLANNED, SITE, PARTIAL_SUMS, LOOKUP = "planned chain", "site", "partial sums", "lookup"
NEIGHBOURS, GATHERED, LAYOUTS, LOOP = "neighbours", "gathered op", "layouts", "loop"
WRITTEN, UNKNOWN, GRADIENT = "written", "unknown", "gradient sum"

# Each kind of cause, as a heading of the ledger explains it.
MEANINGS = {
    PLANNED: "a step of a chain that reshard planned for a site",
    SITE: "a value is converted from the layout that it has to the one that is wanted",
    PARTIAL_SUMS: "a dimension that an op sums over, or reduces, is split, so each device has a part of each result",
    GRADIENT: "a dimension that a parameter's gradient sums over, such as the batch, is split",
    LOOKUP: "an op reads at computed places from an operand that is split, so each device contributes what it has",
    NEIGHBOURS: "an op needs rows that its neighbours have",
    GATHERED: "XLA has no partitioned form of an op for these layouts, so it brings the operands together first",
    LAYOUTS: "the operands and results of an op come in layouts that do not fit together",
    LOOP: "a loop hands on a value in another layout than the one in which it comes",
    WRITTEN: "the program itself has this collective",
    UNKNOWN: "XLA does not say for which op it made this",
}

SUMS = frozenset({"all_reduce", "reduce_scatter"})
_SUMMING = frozenset(
    f"stablehlo.{name}"
    for name in ("dot_general", "dot", "convolution", "reduce", "reduce_window", "scatter", "select_and_scatter")
)
_REDUCING = frozenset(f"stablehlo.{name}" for name in ("reduce", "reduce_window", "scatter"))
_READING = frozenset(
    f"stablehlo.{name}" for name in ("gather", "dynamic_gather", "dynamic_slice", "dynamic_update_slice")
)
_SLIDING = frozenset(
    f"stablehlo.{name}"
    for name in (
        "convolution",
        "reduce_window",
        "select_and_scatter",
        "pad",
        "slice",
        "concatenate",
        "reverse",
        "reshape",
    )
)
_WHOLE = frozenset(
    f"stablehlo.{name}"
    for name in (
        "cholesky", "custom_call", "dynamic_slice", "dynamic_update_slice", "fft", "gather", "reshape", "reverse",
        "rng_bit_generator", "scatter", "sort", "triangular_solve",
    )
)  # fmt: skip
_COLLECTIVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter",
    )
)  # fmt: skip
_STEP = re.compile(r'"reshard/(\d+)(?:/([^"]*))?"')


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a program has a collective.

    Attributes:
      kind: one of `MEANINGS`. text: the same for this very collective, in words.
      site: the number of the site, as in the report of the module; None if the collective belongs to none.
      parameter: the name of the argument of the program whose gradient is summed; "" if none is.
    """

    kind: str
    text: str
    site: int | None = None
    parameter: str = ""


@dataclass(frozen=True, slots=True)
class SiteAt:
    """A site at an op: its number, the reason why it is one, in words, and the axes that its conversion moves.

    `number` is that of the operand or result that is converted. `value_bytes` is the size of the whole value, None if
    that is not known.
    """

    site: int
    why: str
    axes: frozenset[str]
    number: int = 0
    value_bytes: int | None = None

    def may_have(self, tile_bytes: int) -> bool:
        """Returns whether tiles of this size can be of the value; padding makes them larger, but not twice as large."""
        return self.value_bytes is None or tile_bytes <= 2 * self.value_bytes


def cause_of(
    kind: str,
    op: ir.Operation | None,
    axes: Sequence[str],
    sites: Mapping[ir.Operation, Sequence[SiteAt]],
    result: int | None = None,
    parameter: str = "",
    tile_bytes: int = 0,
    may_be: Callable[[int], bool] = lambda site: True,
) -> Cause:
    """Returns the cause of a collective.

    XLA does not say which of several sites at one op it is for: it is for the first one that moves most of the axes,
    and, of those, for one that it may be for.

    Args:
      kind: of the collective, one of `synthesis.programs.traffic.KINDS`.
      op: for which XLA made it; None if that is not known.
      axes: the axes of the mesh along which its devices work together.
      sites: the sites of the module by the ops at which they are; empty if they are not known.
      result: the number of the program's result that it converts, if `op` returns the results.
      parameter: the name of the parameter whose gradient `op` computes; "" if that is not known.
      tile_bytes: of the larger one of the collective's operand and result.
      may_be: whether it may be for a site, by what others receive for it.
    """
    if op is None:
        return Cause(UNKNOWN, MEANINGS[UNKNOWN])
    if step := _STEP.search(text_of_location(op)):
        return Cause(PLANNED, f"site {step[1]}: {step[2] or 'its chain'}", int(step[1]))
    if op.name in _COLLECTIVES:
        written = short_name(op)
        is_whole = kind == "all_reduce" and written == "reduce_scatter"
        how = ", which the compiler sums whole" if is_whole else ""
        return Cause(WRITTEN, f"the program has this {written}{how}")
    if kind in SUMS and op.name in _SUMMING:
        text = f"partial {_combined_by(op)} of this {short_name(op)}"
        return (
            Cause(GRADIENT, f"gradient of {parameter}: {text}", None, parameter)
            if parameter
            else Cause(PARTIAL_SUMS, text)
        )
    if kind in SUMS and op.name in _READING:
        return Cause(LOOKUP, f"this {short_name(op)} reads from a split operand")
    at_op = [each for each in sites.get(op, ()) if result in (None, each.number) and each.may_have(tile_bytes)]
    if at_op:
        site = max(at_op, key=lambda each: (len(each.axes.intersection(axes)), may_be(each.site)))
        return Cause(SITE, f"site {site.site}: {site.why}", site.site)
    return _of_layouts(kind, op)


def _combined_by(op: ir.Operation) -> str:
    """Returns what an op has of each part of a dimension: sums, or what its region computes in their place."""
    if op.name not in _REDUCING:
        return "sums"
    computed = [short_name(each) for each in ops_in(op)][1:-1]
    return {"add": "sums", "maximum": "maxima", "minimum": "minima"}.get(" ".join(computed), "results")


def _of_layouts(kind: str, op: ir.Operation) -> Cause:
    """Returns the cause of a collective that belongs to no site and sums nothing that its op sums."""
    name = short_name(op)
    if op.name in CONSTRAINTS:
        return Cause(SITE, "this sharding constraint")
    if op.name == "func.return":
        return Cause(SITE, "a result of the program is wanted in another layout")
    if op.name in LOOPS:
        return Cause(LOOP, f"this {name} carries a value in another layout")
    if kind == "collective_permute" and op.name in _SLIDING:
        return Cause(NEIGHBOURS, f"this {name} needs rows of neighbouring devices")
    if op.name in _WHOLE:
        return Cause(GATHERED, f"XLA does not partition this {name} in these layouts")
    return Cause(LAYOUTS, f"operands and results of this {name} come in different layouts")
