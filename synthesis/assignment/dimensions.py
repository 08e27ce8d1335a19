# SPDX-License-Identifier: Apache-2.0
"""Named dimensions: which dimensions of which tensors are split alike, wherever no conversion is between.

Two dimensions are one *named dimension* if an op has the same factor leading in both, since it works on tiles only if
they are split alike. So the batch is one from the tokens to the loss, through all products that do not contract it. A
*conflict* is a tensor in which two dimensions have one name, such as the scores of queries and keys that are made of
the same positions: an axis can split one of the two, and where the other one is wanted stands a conversion.

Here names go through all ops, in `clusters` only through those between which no conversion can be worth its price.

Source: Alabed et al., "TOAST: Fast and scalable auto-partitioning based on principled static analysis" (arXiv
2508.15010).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from ..layouts.sharding import Sharding
from .factored_program import FactoredOp, FactoredProgram
from .repeats import Repeat

Place = tuple[int, int]  # the number of a tensor, and that of one of its dimensions


@dataclass(frozen=True, slots=True)
class NamedDimension:
    """A named dimension.

    Attributes:
      name: a letter or more.
      places: the dimensions that it names, in the program's order.
      sizes: of these, the largest first; more than one where ops cut dimensions, or merge them.
      conflicts: the tensors that have it twice or more.
    """

    name: str
    places: tuple[Place, ...]
    sizes: tuple[int, ...]
    conflicts: tuple[int, ...]

    def shares(self, program: FactoredProgram, layouts: Sequence[Sharding | None]) -> dict[str, float]:
        """Returns for each axis, or part of one, that splits it the share of the bytes of its tensors in which it does.

        Args:
          layouts: for each tensor of the program its sharding; None for one without.
        """
        split: dict[str, set[int]] = {}  # axis -> tensors
        for tensor, dim in self.places:
            layout = layouts[tensor]
            for axis in () if layout is None else layout.dims[dim]:
                split.setdefault(str(axis).replace('"', ""), set()).add(tensor)
        whole = _bytes(program, dict(self.places))
        return {axis: _bytes(program, tensors) / whole for axis, tensors in sorted(split.items())}


def named_dimensions(program: FactoredProgram, repeats: Sequence[Repeat] = ()) -> tuple[NamedDimension, ...]:
    """Returns the named dimensions of a program, those of the most bytes first.

    Args:
      repeats: layers that repeat; what is the same in each of them has one name.

    Example: x[8, 16] @ w[16, 4], the rows of x are those of the result.
      >>> from .factored_program import Tensor
      >>> tensors = tuple(Tensor(shape, 32) for shape in ((8, 16), (16, 4), (8, 4)))
      >>> dot = FactoredOp("dot", (0, 1), (2,), (((0,), (2,)), ((2,), (1,))), (((0,), (1,)),), (8, 4, 16))
      >>> [(each.name, each.places) for each in named_dimensions(FactoredProgram(tensors, (dot,)))]
      [('a', ((0, 1), (1, 0))), ('b', ((0, 0), (2, 0))), ('c', ((1, 1), (2, 1)))]
    """
    first: dict[Place, Place] = {}  # a dimension -> another one of the same name; of the first one itself

    def stands_for(place: Place) -> Place:
        path = []
        while first.setdefault(place, place) != place:
            path.append(place)
            place = first[place]
        first.update(dict.fromkeys(path, place))
        return place

    def name_alike(one: Place, other: Place) -> None:
        kept, left = sorted((stands_for(one), stands_for(other)))
        first[left] = kept

    for op in program.ops:
        named: dict[int, Place] = {}
        for factor, place in _leading(op):
            name_alike(named.setdefault(factor, place), place)
    alike = (pair for repeat in repeats for pair in repeat.alike())
    same = (pair for here, there in alike for pair in zip(_tensors(program.ops[here]), _tensors(program.ops[there])))
    for one, other in (*program.weights, *same):
        for dim in range(len(program.tensors[one].shape)):
            name_alike((one, dim), (other, dim))
    groups: dict[Place, list[Place]] = {}
    for tensor, dim in sorted(first):
        if program.tensors[tensor].shape[dim] > 1:
            groups.setdefault(stands_for((tensor, dim)), []).append((tensor, dim))
    ordered = sorted(groups.values(), key=lambda places: (-_bytes(program, dict(places)), places))
    return tuple(_named(program, number, places) for number, places in enumerate(ordered))


def _leading(op: FactoredOp) -> Iterator[tuple[int, Place]]:
    """Returns the factors that lead a dimension and may be split, each with that dimension."""
    for tensor, dims in zip(_tensors(op), (*op.operand_dims, *op.result_dims), strict=True):
        for dim, factors in enumerate(dims):
            leading = next((factor for factor in factors if op.sizes[factor] > 1), None)
            if leading is not None and leading not in op.whole:
                yield leading, (tensor, dim)


def _tensors(op: FactoredOp) -> tuple[int, ...]:
    return *op.operands, *op.results


def _bytes(program: FactoredProgram, tensors: Iterable[int]) -> int:
    return sum(program.tensors[tensor].bytes for tensor in tensors)


def _named(program: FactoredProgram, number: int, places: Sequence[Place]) -> NamedDimension:
    counts: dict[int, int] = {}
    for tensor, _ in places:
        counts[tensor] = counts.get(tensor, 0) + 1
    sizes = sorted({program.tensors[tensor].shape[dim] for tensor, dim in places}, reverse=True)
    twice = tuple(tensor for tensor, count in counts.items() if count > 1)
    return NamedDimension(_letters(number), tuple(places), tuple(sizes), twice)


def _letters(number: int) -> str:
    """Returns a, b, ..., z, aa, ab, ...

    Example:
      >>> [_letters(number) for number in (0, 25, 26, 27)]
      ['a', 'z', 'aa', 'ab']
    """
    higher, last = divmod(number, len(ascii_lowercase))
    return (_letters(higher - 1) if higher else "") + ascii_lowercase[last]
