# SPDX-License-Identifier: Apache-2.0
"""Device meshes: ordered named axes with sizes, and an optional order of device ids."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_DEVICES = 1 << 20


class MeshError(ValueError):
    """Raised for a mesh that cannot exist; the message names the value and the rule that it breaks."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """An ordered set of named axes; the first axis is the major one.

    Attributes:
      axes: (name, size) pairs, major to minor.
      device_ids: the device id at each row-major mesh position, a permutation of range(size). None means that position
        and id are equal. A mesh without axes may have any one id: it is that device alone, and Shardy calls a sharding
        on it "maximal".
      size: the number of devices, computed from the axes.
    Raises: MeshError if two axes have one name, a size is below 1, there are too many devices, the ids are no
      permutation, or a mesh without axes has several ids.
    Source: Shardy's `MeshAttr`.
    """

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] | None = None
    size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "size", math.prod([size for _, size in self.axes]))
        names = [name for name, _ in self.axes]
        for name in names:
            if names.count(name) > 1:
                raise MeshError(f'mesh axis "{name}" is declared twice')
        for name, size in self.axes:
            if size < 1:
                raise MeshError(f'mesh axis "{name}" has size {size}; sizes are at least 1')
        if self.size > MAX_DEVICES:
            raise MeshError(f"mesh has {self.size} devices; at most {MAX_DEVICES} are supported")
        if self.device_ids is None:
            return
        if not self.axes:
            self._check_one_device(self.device_ids)
            return
        if sorted(self.device_ids) != list(range(self.size)):
            raise MeshError(f"device_ids is no permutation of 0..{self.size - 1}")
        if self.device_ids == tuple(range(self.size)):
            object.__setattr__(self, "device_ids", None)

    @staticmethod
    def _check_one_device(ids: tuple[int, ...]) -> None:
        if len(ids) != 1:
            raise MeshError(f"a mesh without axes is one device; device_ids {list(ids)} are {len(ids)}")
        if not 0 <= ids[0] < MAX_DEVICES:
            raise MeshError(f"device {ids[0]} is none of the {MAX_DEVICES} devices that are supported")

    @property
    def devices(self) -> int:
        """Returns the largest device id plus 1."""
        return self.size if self.axes or not self.device_ids else 1 + self.device_ids[0]

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Returns the names of the axes, major to minor."""
        return tuple(name for name, _ in self.axes)

    def axis_size(self, name: str) -> int:
        """Returns the size of axis `name`. Raises: MeshError if the mesh has no such axis."""
        for axis, size in self.axes:
            if axis == name:
                return size
        raise MeshError(f'unknown axis "{name}"; {self} has {", ".join(self.axis_names) or "no axes"}')

    def device_at(self, position: int) -> int:
        """Returns the device id at a row-major mesh position."""
        return position if self.device_ids is None else self.device_ids[position]

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Returns the mesh of a text: `x=4,y=2`, or Shardy's `<["x"=4, "y"=2], device_ids=[...]>`.

        Example:
          >>> Mesh.parse("x=4,y=2") == Mesh.parse('<["x"=4, "y"=2]>')
          True
        """
        return _parse_mesh(text)

    @classmethod
    def of(cls, axes: Mapping[str, int]) -> Mesh:
        """Returns the row-major mesh with the axes of a mapping, in the order of the mapping."""
        return cls(tuple((str(name), int(size)) for name, size in axes.items()))

    def __str__(self) -> str:
        axes = ", ".join(f'"{name}"={size}' for name, size in self.axes)
        if self.device_ids is None:
            return f"<[{axes}]>"
        return f"<[{axes}], device_ids=[{', '.join(map(str, self.device_ids))}]>"


_AXIS = re.compile(r'\s*(?:"([^"]+)"|([A-Za-z_][\w.\-]*))\s*=\s*(\d+)\s*')
_SHARDY = re.compile(r"^<\s*\[(?P<axes>[^\]]*)\]\s*(?:,\s*device_ids\s*=\s*\[(?P<ids>[\d\s,]*)\]\s*)?>$", re.S)


@functools.lru_cache(maxsize=256)
def _parse_mesh(text: str) -> Mesh:
    stripped = text.strip().removeprefix("#sdy.mesh").removeprefix("mesh").strip()
    shardy = _SHARDY.match(stripped)
    axes_text = shardy["axes"] if shardy else stripped
    axes = []
    for part in filter(str.strip, axes_text.split(",")):
        axis = _AXIS.fullmatch(part)
        if axis is None:
            raise MeshError(f'cannot read "{part.strip()}" as a mesh axis; write x=4,y=2 or <["x"=4, "y"=2]>')
        axes.append((axis[1] or axis[2], int(axis[3])))
    ids = shardy and shardy["ids"]
    return Mesh(tuple(axes), tuple(int(i) for i in ids.split(",")) if ids else None)
