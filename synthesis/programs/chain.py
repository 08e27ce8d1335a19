# SPDX-License-Identifier: Apache-2.0
"""Chains: sequences of typed steps, with the layouts before, between and after them.

A chain is the sequence of its steps: it has a length, and `chain[start:stop]` is the chain of some of them. The layouts
before, between and after the steps follow from the typing rules (R1). They are derived once, when they are first
needed, and a chain that is made from another one keeps the layouts that both have in common.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from ..layouts.layout import Factor, Layout, Slot
from ..layouts.mesh import Mesh
from . import steps as rules
from .steps import AllGather, AllToAll, RuleError, Slice, Step


@dataclass(frozen=True)
class Chain:
    """A sequence of typed steps, and the layout before the first step.

    Example:
      >>> from ..layouts.layout import Factor, Slot
      >>> x = Factor("x", 1, 2)
      >>> chain = Chain(Layout((8,), ()), (Slice(((x, Slot(0, 1, 2)),)),)).then(AllGather((x,)))
      >>> chain.text(Mesh.parse("x=2"))
      'slice x: dim 0; all_gather x: dim 0'
      >>> [layout.tile_elements for layout in chain.layouts], chain.received_elements
      ([8, 4, 8], 4)
    """

    source: Layout
    steps: tuple[Step, ...] = ()

    @functools.cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Returns the layouts before, between and after the steps. Raises: RuleError if a rule forbids a step."""
        return tuple(itertools.accumulate(self.steps, rules.apply, initial=self.source))

    @property
    def target(self) -> Layout:
        """Returns the layout after the last step."""
        return self.layouts[-1]

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> Chain: ...
    def __getitem__(self, at):
        """Returns one step, or the chain of neighbouring steps."""
        if not isinstance(at, slice):
            return self.steps[at]
        start, stop, _ = at.indices(len(self.steps))
        stop = max(start, stop)
        return _known(self.layouts[start : stop + 1], self.steps[start:stop])

    def then(self, *steps: Step) -> Chain:
        """Returns the chain with more steps at its end. Raises: RuleError if a rule forbids one of them."""
        behind = itertools.accumulate(steps, rules.apply, initial=self.target)
        return _known((*self.layouts[:-1], *behind), (*self.steps, *steps))

    def with_steps(self, start: int, stop: int, *steps: Step) -> Chain:
        """Returns the chain with other steps in place of those from `start` to `stop`."""
        return self[:start].then(*steps, *self.steps[stop:])

    @property
    def moves(self) -> Iterator[tuple[Layout, Step, Layout]]:
        """Returns each step with the layouts before and after it."""
        return zip(self.layouts, self.steps, self.layouts[1:])

    @property
    def largest_tile(self) -> int:
        """Returns the elements of the largest tile before, between and after the steps."""
        return max([layout.tile_elements for layout in self.layouts])

    @property
    def received_elements(self) -> int:
        """Returns the sum over the steps of the elements that the busiest device receives in each."""
        return sum(map(rules.received_elements, self.layouts, self.steps))

    @property
    def collectives(self) -> int:
        """Returns the number of collectives that the steps run."""
        return sum(map(rules.collectives, self.steps))

    def text(self, mesh: Mesh) -> str:
        """Returns the steps in one line of text."""
        return "; ".join(map(functools.partial(rules.text, mesh=mesh), self.layouts, self.steps))

    # Other chains with the same effect

    @property
    def has_joint_gather(self) -> bool:
        """Returns whether a step gathers along several dimensions at once, after which the large tile is copied."""
        return any(map(is_joint_gather, self.layouts, self.steps))

    def with_gathers_apart(self) -> Chain:
        """Returns the chain with one gather per dimension, so that only the last gather copies a large tile."""
        apart: list[Step] = []
        for before, step, _ in self.moves:
            apart += _gathers_by_dimension(before, step) if isinstance(step, AllGather) else [step]
        return Chain(self.source, tuple(apart)).with_last_dimension_first()

    def with_last_dimension_first(self) -> Chain:
        """Returns the chain with consecutive gathers sorted; one along dimension 0 needs no copy and comes last."""
        is_row = [isinstance(a, AllGather) and isinstance(b, AllGather) for a, b in itertools.pairwise(self.steps)]
        if not any(is_row):
            return self
        ordered: list[Step] = []
        keyed = [(isinstance(step, AllGather), before, step) for before, step, _ in self.moves]
        for is_gather, run in itertools.groupby(keyed, lambda each: each[0]):
            row = [(before, step) for _, before, step in run]
            if is_gather:
                row.sort(key=lambda each: -_first_dimension(*each))
            ordered += [step for _, step in row]
        return Chain(self.source, tuple(ordered))

    def with_joint_moves(self) -> Chain:
        """Returns the chain with consecutive all_to_alls joined into one, where the typing rule allows it."""
        found = Chain(self.source)
        for _, step, after in self.moves:
            joint = _joint_move(found, step, after)
            found = found.then(step) if joint is None else joint
        return found

    def inverted(self) -> Chain:
        """Returns the chain that leads back from the target to the source: slices become gathers, and gathers slices.

        The chain consists of slices, gathers and all_to_alls.
        """
        return Chain(self.target, tuple(_undone(before, step) for before, step, _ in reversed(list(self.moves))))


def _known(layouts: tuple[Layout, ...], steps: tuple[Step, ...]) -> Chain:
    """Returns the chain of steps whose layouts are known."""
    found = Chain(layouts[0], steps)
    found.__dict__["layouts"] = layouts  # where `cached_property` keeps them
    return found


def is_joint_gather(before: Layout, step: Step) -> bool:
    """Returns whether a step from a layout gathers along several dimensions."""
    return isinstance(step, AllGather) and len({before.owned_slot(factor).dim for factor in step.factors}) > 1


def _first_dimension(before: Layout, gather: Step) -> int:
    """Returns the first dimension along which a gather works."""
    assert isinstance(gather, AllGather)
    return min(before.owned_slot(factor).dim for factor in gather.factors)


def _gathers_by_dimension(before: Layout, step: AllGather) -> list[Step]:
    dim_of = {factor: before.owned_slot(factor).dim for factor in step.factors}
    return [AllGather(tuple(f for f in step.factors if dim_of[f] == dim)) for dim in sorted(set(dim_of.values()))]


def _joint_move(chain: Chain, step: Step, after: Layout) -> Chain | None:
    """Returns the chain with its last step and the next one as one all_to_all to `after`; None if there is none."""
    if not chain or not isinstance(step, AllToAll) or not isinstance(chain[-1], AllToAll):
        return None
    before = chain.layouts[-2]
    moves = tuple((factor, slot) for factor, slot in after.owners if before.slot_of(factor) != slot)
    with contextlib.suppress(RuleError):
        joint = chain[:-1].then(AllToAll(moves))
        return joint if joint.target == after else None
    return None


def _undone(before: Layout, step: Step) -> Step:
    match step:
        case Slice(moves):
            return AllGather(tuple(factor for factor, _ in moves))
        case AllGather(factors):
            return Slice(_slots(before, factors))
        case AllToAll():
            return AllToAll(_slots(before, step.factors))
    raise RuleError(f"no step undoes {rules.name(step)}")


def _slots(layout: Layout, factors: Sequence[Factor]) -> tuple[tuple[Factor, Slot], ...]:
    return tuple((factor, layout.owned_slot(factor)) for factor in factors)
