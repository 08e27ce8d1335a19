# SPDX-License-Identifier: Apache-2.0
"""GSPMD's sharding strings: their forms and how they are read. Plain Python and numpy, no MLIR.

Three forms, as `mhlo.sharding` holds them:
  V1  {devices=[2,4]0,1,2,3,4,5,6,7}          the device of each tile, row-major over the tiles
  V2  {devices=[4,2]<=[2,4]T(1,0)}            the same list as an iota, reshaped and transposed
  V3  {mesh['x'=2,'y'=4], [{'y'}, {'x'}]}     axes of a named mesh
V1 and V2 have no mesh; `mesh_synthesis` finds one for all shardings of a module.

Source: `HloSharding`, `TileAssignment`, `NamedSharding` and `ParseSharding` in XLA.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from reshard.synthesis.layouts.mesh import MAX_DEVICES, Mesh, MeshError
from reshard.synthesis.layouts.sharding import AxisRef, Sharding, ShardingError

from ..platform.typed import present

REPLICATED, MANUAL, UNREDUCED, UNKNOWN = "replicated", "manual", "unreduced", "unknown"


class GspmdError(ValueError):
    """A string that is no GSPMD sharding; the message names the text and the rule it breaks."""


class InexpressibleError(ValueError):
    """A valid GSPMD sharding that no Shardy sharding expresses; the message describes it."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """A sharding with one word for all devices: `{replicated}`, `{manual}`, `{unreduced}`; `{unknown}` is open."""

    kind: str

    def __str__(self) -> str:
        return f"{{{self.kind}}}"


@dataclass(frozen=True, slots=True)
class Maximal:
    """A sharding that puts the whole array on one device."""

    device: int

    def __str__(self) -> str:
        return f"{{maximal device={self.device}}}"


@dataclass(frozen=True, slots=True)
class Tiled:
    """A sharding that gives the device of each tile.

    Attributes:
      tiles: number of tiles along each array dimension, then the size of each group that `groups` names.
      devices: V1, the device of each tile, row-major; None for V2.
      iota, transpose: V2, the shape in which device ids count up row-major and the order in which its dimensions are
        read.
      groups: the relation of the devices along each trailing entry of `tiles`: REPLICATED, MANUAL or UNREDUCED.
    Raises: GspmdError if the devices are no permutation of 0 to n - 1, or there are more or fewer devices than tiles.
    """

    tiles: tuple[int, ...]
    devices: tuple[int, ...] | None = None
    iota: tuple[int, ...] = ()
    transpose: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()

    def __post_init__(self):
        if self.devices is None and not self.transpose:
            object.__setattr__(self, "transpose", tuple(range(len(self.iota))))
        count = math.prod(self.tiles)
        if min(self.tiles, default=0) < 1 or len(self.groups) > len(self.tiles):
            raise GspmdError(f"{self} has no tile for each array dimension and group")
        if count > MAX_DEVICES:
            raise GspmdError(f"{count} devices; at most {MAX_DEVICES} are supported")
        given = math.prod(self.iota) if self.devices is None else len(self.devices)
        if given != count:
            raise GspmdError(f"{given} devices for {count} tiles")
        if self.devices is not None and sorted(self.devices) != list(range(count)):
            raise GspmdError(f"the devices are no permutation of 0..{count - 1}")
        if sorted(self.transpose) != list(range(len(self.iota))):
            raise GspmdError(
                f"T({','.join(map(str, self.transpose))}) is no permutation of the {len(self.iota)} dimensions"
            )

    @property
    def rank(self) -> int:
        """Returns the rank of the arrays that have this sharding."""
        return len(self.tiles) - len(self.groups)

    def assignment(self) -> np.ndarray:
        """Returns the device of each tile, an int64 array of shape `tiles`."""
        if self.devices is not None:
            return np.array(self.devices, dtype=np.int64).reshape(self.tiles)
        devices = np.arange(math.prod(self.tiles), dtype=np.int64).reshape(self.iota)
        return devices.transpose(self.transpose).reshape(self.tiles)

    def __str__(self) -> str:
        text = f"{{devices=[{_joined(self.tiles)}]"
        if self.devices is not None:
            text += _joined(self.devices)
        elif self.transpose == tuple(range(len(self.iota))):
            text += f"<=[{math.prod(self.iota)}]"
        else:
            text += f"<=[{_joined(self.iota)}]T({_joined(self.transpose)})"
        if self.groups == (REPLICATED,):
            return text + " last_tile_dim_replicate}"
        return text + (f" last_tile_dims={{{', '.join(self.groups)}}}}}" if self.groups else "}")


@dataclass(frozen=True, slots=True)
class Named:
    """A sharding in form V3: it names axes of a mesh.

    Attributes:
      sharding: its dims, open dims, replicated and unreduced axes; None if `kind` says all there is.
      manual: the axes along which the array is one device's tile.
      kind: REPLICATED, MANUAL or UNREDUCED for an array of any rank; "" with a `sharding`.
    """

    mesh: Mesh
    sharding: Sharding | None = None
    manual: tuple[AxisRef, ...] = ()
    kind: str = ""

    def __str__(self) -> str:
        axes = ",".join(f"'{name}'={size}" for name, size in self.mesh.axes)
        ids = "" if self.mesh.device_ids is None else f", device_ids=({_joined(self.mesh.device_ids)})"
        if self.sharding is None:
            return f"{{mesh[{axes}]{ids}, {self.kind}}}"
        text = str(self.sharding)
        if self.manual:
            text += f", manual={{{', '.join(map(str, self.manual))}}}"
        return f"{{mesh[{axes}]{ids}, {text.replace(chr(34), chr(39))}}}"


Leaf = Uniform | Maximal | Tiled | Named


def parse(text: str) -> Leaf | tuple[Leaf, ...]:
    """Returns the sharding of an array, or the shardings of a tuple's elements.

    Raises: GspmdError if the text is no sharding, InexpressibleError for a shard group (`shard_as`, `shard_like`).
    Example:
      >>> print(parse("{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}"))
      {devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}
      >>> [str(each) for each in parse("{{replicated}, {maximal device=3}}")]
      ['{replicated}', '{maximal device=3}']
    """
    return _parse(text)


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> Leaf | tuple[Leaf, ...]:
    try:
        return _Reader(text).sharding()
    except (MeshError, ShardingError) as error:
        raise GspmdError(f"cannot read the sharding {text!r}: {error}") from None
    except GspmdError as error:
        raise GspmdError(f"cannot read the sharding {_shortened(text)!r}: {error}") from None


class _Reader:
    """A recursive-descent reader of one string."""

    _TOKEN = re.compile(
        r"""\s*(?:(?P<word>[A-Za-z_]\w*)|(?P<number>\d+)|(?P<name>'[^']*'|"[^"]*")|(?P<mark><=|.))""", re.S
    )

    def __init__(self, text: str):
        found = self._TOKEN.finditer(text.strip())
        self.tokens = [(match.lastgroup, match[present(match.lastgroup)]) for match in found]
        self.at = 0

    def sharding(self) -> Leaf | tuple[Leaf, ...]:
        found = self._tuple() if [token for _, token in self.tokens[:2]] in (["{", "{"], ["{", "}"]) else self._leaf()
        if self.at < len(self.tokens):
            self._fail("the end")
        return found

    def _tuple(self) -> tuple[Leaf, ...]:
        leaves: list[Leaf] = []
        self._expect("{")
        while not self._accept("}"):
            if leaves:
                self._expect(",")
            leaves.append(self._leaf())
        return tuple(leaves)

    def _leaf(self) -> Leaf:
        self._expect("{")
        word = self._word()
        if word in (REPLICATED, MANUAL, UNREDUCED, UNKNOWN):
            leaf: Leaf = Uniform(word)
        elif word == "maximal":
            self._word("device")
            self._expect("=")
            leaf = Maximal(self._number())
        elif word == "devices":
            leaf = self._tiled()
        elif word in ("mesh", "maximal_mesh", "single_device"):
            leaf = self._named() if word == "mesh" else self._maximal_mesh()
        else:
            raise GspmdError(f"unknown word '{word}'")
        self._metadata()
        self._expect("}")
        return leaf

    def _tiled(self) -> Tiled:
        self._expect("=")
        tiles, devices, iota, transpose, groups = self._numbers("[", "]"), None, (), (), ()
        if self._accept("<="):
            iota = self._numbers("[", "]")
            if self._accept("T"):
                transpose = self._numbers("(", ")")
        else:
            devices = self._numbers_until_word()
        while self.at < len(self.tokens) and self.tokens[self.at][1] in ("last_tile_dim_replicate", "last_tile_dims"):
            groups = (REPLICATED,) if self._word() == "last_tile_dim_replicate" else self._groups()
        return Tiled(tiles, devices, iota, transpose, groups)

    def _groups(self) -> tuple[str, ...]:
        groups: list[str] = []
        self._expect("=")
        self._expect("{")
        while not self._accept("}"):
            if groups:
                self._expect(",")
            groups.append(self._word())
            if groups[-1] not in (REPLICATED, MANUAL, UNREDUCED):
                raise InexpressibleError(f"devices that are '{groups[-1]}' to each other")
        return tuple(groups)

    def _named(self) -> Named:
        axes: list[tuple[str, int]] = []
        self._expect("[")
        while not self._accept("]"):
            if axes:
                self._expect(",")
            name = self._name()
            self._expect("=")
            axes.append((name, self._number()))
        self._expect(",")
        ids = None
        if self._accept("device_ids"):
            self._expect("=")
            ids = self._device_ids(math.prod(size for _, size in axes))
            self._expect(",")
        mesh = Mesh(tuple(axes), ids)
        if self._kind() == "word":
            return Named(mesh, kind=self._word(REPLICATED, MANUAL, UNREDUCED))
        return self._axes_of_named(mesh)

    def _axes_of_named(self, mesh: Mesh) -> Named:
        dims: list[tuple[AxisRef, ...]] = []
        open_dims = set()
        self._expect("[")
        while not self._accept("]"):
            if dims:
                self._expect(",")
            axes, is_open = self._axes()
            if is_open:
                open_dims.add(len(dims))
            dims.append(axes)
        groups: dict[str, tuple[AxisRef, ...]] = {REPLICATED: (), UNREDUCED: (), MANUAL: ()}
        while self._accept(","):
            word = self._word(*groups)
            self._expect("=")
            groups[word], _ = self._axes()
        sharding = Sharding(tuple(dims), frozenset(open_dims), groups[REPLICATED], groups[UNREDUCED])
        replace(sharding, replicated=(*sharding.replicated, *groups[MANUAL])).check(mesh, len(dims))
        return Named(mesh, sharding, groups[MANUAL])

    def _maximal_mesh(self) -> Maximal:
        self._expect("[")
        self._word("device_id")
        self._expect("=")
        device = self._number()
        self._expect("]")
        return Maximal(device)

    def _device_ids(self, count: int) -> tuple[int, ...]:
        self._expect("(")
        if self._value() != "[":
            ids = self._numbers_until(")")
            self._expect(")")
            return ids
        shape, transpose = self._numbers("[", "]"), ()
        if self._accept("T"):
            transpose = self._numbers("(", ")")
        self._expect(")")
        return tuple(Tiled((count,), iota=shape, transpose=transpose).assignment().tolist())

    def _axes(self) -> tuple[tuple[AxisRef, ...], bool]:
        axes, is_open = [], False
        self._expect("{")
        while not self._accept("}"):
            if axes or is_open:
                self._expect(",")
            if self._accept("?"):
                is_open = True
                continue
            name = self._name()
            if self._accept(":"):
                (pre,) = self._numbers("(", ")")
                axes.append(AxisRef(name, pre, self._number()))
            else:
                axes.append(AxisRef(name))
        return tuple(axes), is_open

    def _metadata(self) -> None:
        """Skips `metadata={...}`, the origin of a sharding. Raises: InexpressibleError for shard groups."""
        while self._kind() == "word" or self._value() == ",":
            if self._accept(","):
                continue
            word = self._word("metadata", "shard_as", "shard_like")
            if word != "metadata":
                raise InexpressibleError(f"a shard group ({word})")
            self._expect("=")
            self._expect("{")
            depth = 1
            while depth:
                depth += {"{": 1, "}": -1}.get(self._value(), 0)
                if self.at >= len(self.tokens):
                    self._fail('"}"')
                self.at += 1

    def _numbers(self, opening: str, closing: str) -> tuple[int, ...]:
        self._expect(opening)
        numbers = self._numbers_until(closing)
        self._expect(closing)
        return numbers

    def _numbers_until(self, closing: str) -> tuple[int, ...]:
        numbers = [] if self._value() == closing else [self._number()]
        while self._accept(","):
            numbers.append(self._number())
        return tuple(numbers)

    def _numbers_until_word(self) -> tuple[int, ...]:
        return self._numbers_until("}")

    def _number(self) -> int:
        if self._kind() != "number":
            self._fail("a number")
        self.at += 1
        text = self.tokens[self.at - 1][1]
        if len(text) > 9:
            raise GspmdError(f"{_shortened(text)} is too large a number")
        return int(text)

    def _name(self) -> str:
        if self._kind() != "name":
            self._fail("the name of an axis in quotes")
        self.at += 1
        return self.tokens[self.at - 1][1][1:-1]

    def _word(self, *choices: str) -> str:
        if self._kind() != "word" or (choices and self._value() not in choices):
            self._fail(" or ".join(choices) or "a word")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def _kind(self) -> str | None:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else None

    def _value(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else "the end"

    def _accept(self, value: str) -> bool:
        if self.at >= len(self.tokens) or self.tokens[self.at][1] != value:
            return False
        self.at += 1
        return True

    def _expect(self, value: str) -> None:
        if not self._accept(value):
            self._fail(f"'{value}'")

    def _fail(self, wanted: str):
        raise GspmdError(f"found '{_shortened(self._value())}', expected {wanted}")


def _joined(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
