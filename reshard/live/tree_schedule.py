# SPDX-License-Identifier: Apache-2.0
"""The schedule of a tree: each leaf with its way, and the order that keeps a memory limit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from reshard.dialect_utils.platform import jax_seam
from reshard.jobs import agreement
from reshard.jobs.claims import Claim
from reshard.live.leaves import (
    RedistributeError,
    flattened,
)
from reshard.live.running import Run, check_leaf, refuse_shapes
from reshard.live.scheduling import Going, Job, LimitError, scheduled
from reshard.live.transfers import DEVICE_PUT, MOVES, Transfer, mesh_text
from reshard.live.ways import by_peak
from reshard.synthesis.common import text_table

SCHEMA = "reshard.schedule/1"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The plan of a redistribution: the way of each leaf, and the batches of leaves in their order.

    Attributes:
      transfers: for each leaf, in the order of the tree, how it moves.
      batches: the leaves that move together, as indices into `transfers`, in the order of the batches.
      peak_bytes: the most bytes that a device holds at once for sources, targets and temporaries, as modelled.
      memory_limit: the limit that `peak_bytes` keeps, in bytes per device; None if there is none.
      donate: whether a source array may be deleted as soon as its target exists.
    """

    transfers: tuple[Transfer, ...]
    batches: tuple[tuple[int, ...], ...]
    peak_bytes: int
    memory_limit: int | None
    donate: bool
    _structure: Any = field(repr=False)

    def run(self, tree, *, progress: bool | None = None):
        """Returns the redistributed tree.

        Args:
          tree: a tree with the structure, shapes, dtypes and shardings of the tree that was planned.
          progress: the same as for `redistribute`.
        Raises: RedistributeError if `tree` is another one than was planned; DisagreementError as `redistribute`.
        """
        paths, leaves, structure = flattened(tree)
        if structure != self._structure:
            raise RedistributeError(f"the schedule is for {self._structure}, not for {structure}; plan the tree anew")
        refuse_shapes(paths, leaves)
        for leaf, transfer in zip(leaves, self.transfers):
            check_leaf(leaf, transfer)
        if any(each.kind == MOVES for each in self.transfers) and jax_seam.is_tracing():
            raise RedistributeError(
                "jax is tracing here; redistribute moves arrays at once, call it outside of the trace"
            )
        self._agree()
        return Run(self, leaves).results(progress)

    def _agree(self) -> None:
        """Makes sure that all processes which own some of the devices follow the same schedule."""
        ends = (end for each in self.transfers for end in (each.source, each.target) if end is not None)
        devices = {device for end in ends for device in end.device_set}
        if agreement.members_of(devices):
            claim = Claim("redistribute", json.dumps(self.to_dict(), indent=1), agreement.versions(), "schedule")
            agreement.require(devices, claim)

    @property
    def bytes_received(self) -> int:
        """Returns an upper bound of the bytes that the busiest device receives.

        It is the sum over the leaves that the planner moves.
        """
        return sum(each.chosen.bytes_received for each in self._moving)

    @property
    def bound_bytes(self) -> int:
        """Returns the bytes that the busiest device must receive by any method, summed over the same leaves."""
        return sum(each.chosen.bound_bytes for each in self._moving)

    @property
    def _moving(self) -> list[Transfer]:
        return [each for each in self.transfers if each.kind == MOVES and each.same_as is None]

    def to_dict(self) -> dict:
        """Returns the schedule as plain data, schema `reshard.schedule/1`.

        `leaves` has an entry for each leaf, `batches` the paths of the leaves of each batch, and `totals` the bytes per
        device.
        """
        return {
            "schema": SCHEMA,
            "leaves": [each.to_dict() for each in self.transfers],
            "batches": [[self.transfers[number].path for number in batch] for batch in self.batches],
            "totals": {
                "bytes_received": self.bytes_received,
                "bound_bytes": self.bound_bytes,
                "peak_bytes": self.peak_bytes,
            },
            "memory_limit": self.memory_limit,
            "donate": self.donate,
        }

    def text(self) -> str:
        """Returns a table with a row for each kind of leaf, and the totals."""
        alike: dict[tuple, list[Transfer]] = {}
        for each in self.transfers:
            row = each.to_dict()
            alike.setdefault(tuple(row[name] for name in row if name != "path"), []).append(each)
        meshes = sorted(
            {text for each in self.transfers for text in map(mesh_text, (each.source, each.target)) if text}
        )
        rows = [_cells(group, names_meshes=len(meshes) > 1) for group in alike.values()]
        return "\n".join([text_table.table(_HEADINGS, rows, "lllllrrr"), "", self._summary(meshes)])

    def _summary(self, meshes: list[str]) -> str:
        limit = "no limit" if self.memory_limit is None else f"limit {self.memory_limit:,}"
        on = f" on {meshes[0] if len(meshes) == 1 else f'{len(meshes)} meshes'}" if meshes else ""
        return (
            f"leaves: {len(self.transfers)}{on}; batches: {len(self.batches)}; "
            f"{'donated' if self.donate else 'sources kept'}\n"
            f"received {self.bytes_received:,} bytes per device, bound {self.bound_bytes:,}; "
            f"peak {self.peak_bytes:,}, {limit}"
        )

    def __str__(self) -> str:
        return self.text()


_HEADINGS = ("leaves", "type", "from", "to", "way", "received", "bound", "peak")


def _cells(group: Sequence[Transfer], names_meshes: bool) -> tuple[str, ...]:
    row = group[0].to_dict()
    name = row["path"] if len(group) == 1 else f"{row['path']} and {len(group) - 1} more"
    ends = (
        f"{row[end]} on {row[f'{end}_mesh']}" if names_meshes and row[f"{end}_mesh"] else row[end]
        for end in ("from", "to")
    )
    numbers = ("-" if row[key] is None else f"{row[key]:,}" for key in ("bytes_received", "bound_bytes", "peak_bytes"))
    return (name, row["type"], *ends, row["chain"], *numbers)


def _ids(sharding) -> tuple[int, ...]:
    return () if sharding is None else tuple(sorted(device.id for device in sharding.device_set))


def bytes_held(leaves: Sequence, transfers: Sequence[Transfer]) -> dict[int, int]:
    """Returns the bytes of the sources on each device; an array that occurs twice is counted once."""
    held: Counter[int] = Counter()
    seen = set()
    for leaf, transfer in zip(leaves, transfers):
        if isinstance(leaf, jax.Array) and id(leaf) in seen:
            continue
        seen.add(id(leaf))
        held.update(dict.fromkeys(_ids(transfer.source), transfer.source_bytes))
    return dict(held)


def arrays_used_again(leaves: Sequence) -> set[int]:
    """Returns the numbers of the leaves whose array occurs more than once."""
    uses = Counter(id(leaf) for leaf in leaves if isinstance(leaf, jax.Array))
    return {number for number, leaf in enumerate(leaves) if uses[id(leaf)] > 1}


def scheduled_transfers(transfers, held, used_again: set[int], structure, limit: int | None, donate: bool) -> Schedule:
    """Returns the schedule. If the fastest ways exceed the limit, ways with smaller peaks are tried too.

    Raises: RedistributeError if none fits.
    """
    going = [i for i, each in enumerate(transfers) if each.kind in (MOVES, DEVICE_PUT) and each.same_as is None]
    frees = {i for i in going if donate and i not in used_again and transfers[i].source is not None}
    try:
        found = scheduled(_jobs(transfers, going, frees), held, limit)
    except LimitError:
        transfers = _with_small_ways(transfers, going)
        try:
            found = scheduled(_jobs(transfers, going, frees), held, limit)
        except LimitError as error:
            raise RedistributeError(f"memory limit: {error}") from None
    if limit is not None and found.peak_bytes > limit:
        least = found.peak_bytes
        raise RedistributeError(
            f"memory limit: the sources alone are {least:,} bytes on a device, limit {limit:,}; "
            f"raise the limit to {least}"
        )
    batches = tuple(tuple(each.job for each in batch) for batch in found.batches)
    return Schedule(_with_ways(transfers, found.batches), batches, found.peak_bytes, limit, donate, structure)


def _jobs(transfers: Sequence[Transfer], going: Sequence[int], frees: set[int]) -> list[Job]:
    kinds: dict[Hashable, int] = {}
    companies: dict[Hashable, int] = {}
    jobs = []
    for number in going:
        each = transfers[number]
        kind = (each.question, str(each.dtype)) if each.kind == MOVES else ("put", number)
        company = tuple(stage.device_ids for stage in each.chosen.stages) if each.kind == MOVES else ("put", number)
        jobs.append(
            Job(
                number,
                kind=kinds.setdefault(kind, len(kinds)),
                company=companies.setdefault(company, len(companies)),
                source_bytes=each.source_bytes,
                target_bytes=each.target_bytes,
                sources=_ids(each.source),
                targets=_ids(each.target),
                peaks=tuple(way.peak_bytes for way in each.ways) or (each.peak_bytes,),
                frees=number in frees,
            )
        )
    return jobs


def _with_small_ways(transfers: Sequence[Transfer], going: Sequence[int]) -> tuple[Transfer, ...]:
    """Returns the transfers with further ways: those that need less memory than the chosen way."""
    found = list(transfers)
    for number in going:
        each = found[number]
        if each.kind == MOVES:
            smaller = tuple(way for way in by_peak(each.question) if way.peak_bytes < each.chosen.peak_bytes)
            found[number] = replace(each, ways=(each.chosen, *smaller))
    return tuple(found)


def _with_ways(transfers: Sequence[Transfer], batches: Sequence[Sequence[Going]]) -> tuple[Transfer, ...]:
    """Returns the transfers, each with only the way that the schedule takes."""
    found = list(transfers)
    for going in (each for batch in batches for each in batch):
        if found[going.job].kind == MOVES:
            found[going.job] = replace(found[going.job], ways=(found[going.job].ways[going.way],))
    for number, each in enumerate(found):
        if each.same_as is not None:
            found[number] = replace(each, ways=found[each.same_as].ways)
    return tuple(found)
