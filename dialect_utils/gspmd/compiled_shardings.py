# SPDX-License-Identifier: Apache-2.0
"""The shardings of a compiled program, in Shardy's terms: its compiler decides where the caller leaves them open."""

from __future__ import annotations

import re

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

from .gspmd_shardings import REPLICATED, InexpressibleError, Named, Tiled
from .mesh_synthesis import synthesize

_TILED = re.compile(r"\{devices=\[([\d,]+)\]x(\d+) (?:<=\[(\d+)\]|([\d,]+))\}")


def sharding_on(mesh: Mesh, text: str, rank: int) -> Sharding | None:
    """Returns the sharding of an array of `rank` in a compiled program, on a mesh; None if no sharding on this mesh
    places these tiles.

    Args:
      text: as in `Compiled.output_shardings`: the tiles per dimension, the copies of each, and the devices.

    Example:
      >>> mesh = Mesh((("x", 2), ("y", 4)))
      >>> print(sharding_on(mesh, "{devices=[1,2]x4 <=[8]}", 2), sharding_on(mesh, "{replicated}", 1))
      [{}, {"x"}] [{}]
    """
    if text == f"{{{REPLICATED}}}":
        return Sharding(((),) * rank)
    found = _TILED.fullmatch(text)
    if found is None:
        return None
    tiles, copies = tuple(map(int, found[1].split(","))), int(found[2])
    devices = tuple(range(int(found[3])) if found[3] else map(int, found[4].split(",")))
    groups = (REPLICATED,) if copies > 1 else ()
    leaf = Tiled(tiles + (copies,) * len(groups), devices, groups=groups)
    try:
        translation = synthesize([Named(mesh, kind=REPLICATED), leaf]).translation(leaf)
    except InexpressibleError:
        return None
    return translation.sharding.closed() if translation.mesh == 0 and leaf.rank == rank else None
