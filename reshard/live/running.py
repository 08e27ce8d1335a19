# SPDX-License-Identifier: Apache-2.0
"""One run of a schedule: it launches batches, frees donated sources, and reports the arrays after an interrupt."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from reshard.dialect_utils.platform.interrupts import DeferredInterrupts
from reshard.live.leaves import (
    LEAST_BITS,
    Ends,
    RedistributeError,
    bits_of,
)
from reshard.live.programs import Move, moved, rewrapped
from reshard.live.progress import shown
from reshard.live.transfers import DEVICE_PUT, MOVES, SHARES, STAYS, Transfer

if TYPE_CHECKING:
    from reshard.live.tree_schedule import Schedule

_log = logging.getLogger("reshard.redistribute")


def refuse_shapes(paths: Sequence[str], leaves: Sequence) -> None:
    """Raises: RedistributeError if a leaf has no elements to move."""
    for path, leaf in zip(paths, leaves):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise RedistributeError(
                f"{path} is a shape without elements; pass an array, or ask plan_tree what would be done"
            )


def check_leaf(leaf, transfer: Transfer) -> None:
    """Raises: RedistributeError if a leaf is not the one that was planned for."""
    found = Ends(transfer.path, leaf, None)
    planned, given = ((each.source, each.shape, str(each.dtype)) for each in (transfer, found))
    if planned != given:
        raise RedistributeError(f"{transfer.path} is {given}, the schedule is for {planned}; plan the tree anew")
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise RedistributeError(f"{transfer.path} has been deleted or donated; pass a live array")


class Run:
    """One run of a schedule.

    `moved` has the new arrays so far, by the number of the leaf. `consumed` has the numbers of the donated leaves whose
    sources are gone.
    """

    def __init__(self, schedule: Schedule, leaves: Sequence):
        self.schedule = schedule
        self.leaves = leaves
        self.moved: dict[int, Any] = {}
        self.consumed: list[int] = []
        self.pending: list[tuple[int, ...]] = []
        transfers = schedule.transfers
        self.buffers = [_buffer(leaf) for leaf in leaves] if schedule.donate else []
        uses = Counter(self.buffers)
        self.keeps = {i for i, buffer in enumerate(self.buffers) if uses[buffer] > 1}
        self.keeps |= {i for i, each in enumerate(transfers) if each.kind in (STAYS, SHARES)}
        self.waits = 0 if schedule.donate or schedule.memory_limit is not None else 1

    def results(self, progress: bool | None):
        """Runs the batches and returns the tree of new arrays."""
        transfers, batches = self.schedule.transfers, self.schedule.batches
        sizes = [sum(transfers[i].target_bytes * len(transfers[i].goal.device_set) for i in batch) for batch in batches]
        try:
            for batch in shown(batches, sizes, "redistribute", progress):
                self._launch(batch)
                self._settle(self.waits)
            _log.info(
                "leaves moved: %d, batches: %d, peak %d bytes", len(self.moved), len(batches), self.schedule.peak_bytes
            )
            results = [self._result(number) for number in range(len(transfers))]
            self._free_used_again()
            return jax.tree_util.tree_unflatten(self.schedule._structure, results)
        except BaseException as error:
            self._explain(error)
            raise

    def _launch(self, batch: tuple[int, ...]) -> None:
        transfers = self.schedule.transfers
        first = transfers[batch[0]]
        if first.kind == DEVICE_PUT:
            with DeferredInterrupts():  # a donated source is gone before its new array is noted
                self.moved[batch[0]] = self._put(batch[0])
        else:
            self.moved |= zip(batch, moved([_move(self.leaves[i], transfers[i]) for i in batch]))
        self.pending.append(batch)

    def _put(self, number: int):
        leaf = self.leaves[number]
        is_donated = self._is_freed(number)
        if (
            isinstance(leaf, jax.Array)
            and leaf.is_fully_addressable
            and (bits_of(leaf.dtype) or LEAST_BITS) < LEAST_BITS
        ):
            return jax.device_put(np.asarray(leaf), self.schedule.transfers[number].target)
        result = jax.device_put(leaf, self.schedule.transfers[number].target, donate=is_donated)
        if is_donated:
            self.consumed.append(number)
        return result

    def _is_freed(self, number: int) -> bool:
        return self.schedule.donate and number not in self.keeps and isinstance(self.leaves[number], jax.Array)

    def _settle(self, waits: int) -> None:
        """Waits until at most `waits` batches run; frees the donated sources of the batches that are done."""
        while len(self.pending) > waits:
            batch = self.pending[0]
            jax.block_until_ready([self.moved[number] for number in batch])
            for number in batch:
                if self._is_freed(number) and self.schedule.transfers[number].kind == MOVES:
                    self.leaves[number].delete()
                    self.consumed.append(number)
            self.pending.pop(0)

    def _first(self, number: int) -> int:
        """Returns the number of the leaf whose new array this leaf shares; its own number if it shares none."""
        same_as = self.schedule.transfers[number].same_as
        return number if same_as is None else self._first(same_as)

    def _result(self, number: int):
        number = self._first(number)
        transfer = self.schedule.transfers[number]
        if transfer.kind == STAYS:
            return self.leaves[number]
        if transfer.kind == SHARES:
            return rewrapped(self.leaves[number], transfer.goal)
        return self.moved[number]

    def _free_used_again(self) -> None:
        """Frees donated buffers that several leaves shared, unless a result holds them."""
        if not self.schedule.donate:
            return
        shared = (STAYS, SHARES, DEVICE_PUT)
        kept = {buffer for buffer, each in zip(self.buffers, self.schedule.transfers) if each.kind in shared}
        for leaf, buffer in zip(self.leaves, self.buffers):
            if isinstance(leaf, jax.Array) and buffer not in kept and not leaf.is_deleted():
                leaf.delete()

    def _explain(self, error: BaseException) -> None:
        """Adds to an exception the names of the donated leaves that are gone, and their new arrays."""
        paths = [each.path for each in self.schedule.transfers]
        gone = [number for number, leaf in enumerate(self.leaves) if number in self.consumed or _is_deleted(leaf)]
        firsts = {number: self._first(number) for number in gone}
        arrays = {paths[number]: self.moved[first] for number, first in firsts.items() if first in self.moved}
        error.moved = arrays  # pyright: ignore[reportAttributeAccessIssue]  # an attribute for whoever catches it
        if not gone:
            error.add_note("reshard.redistribute stopped; all sources are intact")
            return
        names = ", ".join(paths[number] for number in gone)
        error.add_note(
            f"reshard.redistribute stopped after {len(gone)} donated leaves, whose sources are consumed: {names}; "
            "their new arrays are in the attribute `moved` of this exception, by path; all other sources are intact"
        )


def _is_deleted(leaf) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _buffer(leaf) -> Hashable:
    """Returns a key that is the same for arrays that share buffers, even under different shardings."""
    if not isinstance(leaf, jax.Array) or jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return id(leaf)
    shards = leaf.addressable_shards
    return ("at", shards[0].device.id, shards[0].data.unsafe_buffer_pointer()) if shards else id(leaf)


def _move(array: jax.Array, transfer: Transfer) -> Move:
    key = (transfer.question, str(transfer.dtype), transfer.chosen.text)
    return Move(array, transfer.goal, transfer.chosen.stages, key)
