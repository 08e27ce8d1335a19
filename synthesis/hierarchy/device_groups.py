# SPDX-License-Identifier: Apache-2.0
"""Groups of devices, as programs list them, and the mesh factors along which their members differ."""

from __future__ import annotations

import numpy as np

from ..layouts.layout import Factor, groups
from ..layouts.mesh import Mesh

Groups = tuple[tuple[int, ...], ...]


def factors_of(mesh: Mesh, listed: Groups) -> tuple[Factor, ...] | None:
    """Returns the factors of which `groups` makes the listed groups, members in the listed order; None without such.

    Groups that are not all of one size, or that cross the mesh in no regular way, have none.

    Example:
      >>> factors_of(Mesh.parse("x=2,y=4"), ((0, 2, 4, 6), (1, 3, 5, 7)))
      (Factor(axis='x', pre=1, size=2), Factor(axis='y', pre=1, size=2))
    """
    if not listed or len({len(group) for group in listed}) > 1 or len(listed) * len(listed[0]) != mesh.size:
        return None
    found = _along(mesh, listed[0])
    if found is None or {tuple(row) for row in groups(mesh, found).tolist()} != set(listed):
        return None
    return found


def _along(mesh: Mesh, group: tuple[int, ...]) -> tuple[Factor, ...] | None:
    """Returns the only factors that a group may be along, major to minor.

    Members 0, s, 2s, ... of a group, where s is the product of the minor sizes, differ along the next factor alone. The
    factor is as long as they go on in equal steps; pieces of an axis that touch are one factor.
    """
    sizes = [size for _, size in mesh.axes]
    at = {mesh.device_at(position): position for position in range(mesh.size)}
    if not set(group) <= at.keys():
        return None
    places = np.array([np.unravel_index(at[device], sizes) for device in group])
    found: list[Factor] = []
    passed = 1
    while passed < len(group):
        step = places[passed] - places[0]
        (axes,) = step.nonzero()
        if len(axes) != 1 or len(group) % passed:
            return None
        count, stride = _equal_steps(places[::passed], step), int(step[axes[0]])
        if stride < 1 or sizes[axes[0]] % (stride * count):
            return None
        found.append(Factor(mesh.axis_names[axes[0]], sizes[axes[0]] // (stride * count), count))
        passed *= count
    return tuple(reversed(found))


def _equal_steps(places: np.ndarray, step: np.ndarray) -> int:
    """Returns how many of the places, from the first one on, are a step behind each other."""
    count = 1
    while count < len(places) and (places[count] - places[0] == count * step).all():
        count += 1
    return count
