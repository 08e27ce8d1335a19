# SPDX-License-Identifier: Apache-2.0
"""GSPMD's sharding strings, and the meshes on which they become `Sharding`s. Plain Python and numpy, no MLIR.

Three forms, as `mhlo.sharding` holds them:
  V1  {devices=[2,4]0,1,2,3,4,5,6,7}          the device of each tile, row-major over the tiles
  V2  {devices=[4,2]<=[2,4]T(1,0)}            the same list as an iota, reshaped and transposed
  V3  {mesh['x'=2,'y'=4], [{'y'}, {'x'}]}     axes of a named mesh
V1 and V2 have no mesh; `synthesize` finds one for all shardings of a module. A device's position on a row-major mesh is a
mixed-radix number, a mesh axis or sub-axis a digit of it, and a tile assignment is explained by a mesh iff along each
tile dimension the position is a run of such digits:

    >>> tiled = parse("{devices=[4,2]<=[2,4]T(1,0)}")
    >>> found = synthesize([tiled, parse("{devices=[2,1,4]<=[8] last_tile_dim_replicate}")])
    >>> print(found.meshes[0], found.translation(tiled).sharding)
    <["axis_0"=2, "axis_1"=4]> [{"axis_1"}, {"axis_0"}]

Source: `HloSharding`, `TileAssignment`, `NamedSharding` and `ParseSharding` in XLA.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
import functools
import math
import re

import numpy as np

from ..synthesis.mesh import MAX_DEVICES, Mesh, MeshError
from ..synthesis.sharding import AxisRef, Sharding, ShardingError

REPLICATED, MANUAL, UNREDUCED, UNKNOWN = "replicated", "manual", "unreduced", "unknown"
_MAX_MESHES = 8  # a module with more incompatible device orders than this is left alone


class GspmdError(ValueError):
    """A string that is no GSPMD sharding; the message names the text and the rule it breaks."""


class InexpressibleError(ValueError):
    """A valid GSPMD sharding that no Shardy sharding expresses; the message says what it is."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """The same on all devices: `{replicated}`, `{manual}`, `{unreduced}`; or `{unknown}`, left to propagation."""

    kind: str

    def __str__(self) -> str:
        return f"{{{self.kind}}}"


@dataclass(frozen=True, slots=True)
class Maximal:
    """The whole array on one device."""

    device: int

    def __str__(self) -> str:
        return f"{{maximal device={self.device}}}"


@dataclass(frozen=True, slots=True)
class Tiled:
    """A device for each tile.

    Attributes:
      tiles: number of tiles along each array dimension, then the size of each group that `groups` names.
      devices: V1, the device of each tile, row-major; None for V2.
      iota, transpose: V2, the shape in which device ids count up row-major and the order in which its dimensions are read.
      groups: what the devices are to each other along each trailing entry of `tiles`: REPLICATED, MANUAL or UNREDUCED.
    Raises: GspmdError if the devices are no permutation of 0 to n - 1, or their number is not that of the tiles.
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
            raise GspmdError(f"T({','.join(map(str, self.transpose))}) is no permutation of the {len(self.iota)} dimensions")

    @property
    def rank(self) -> int:
        """Returns the rank of the arrays that this shards."""
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
    """V3: axes of a mesh.

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


# Reading


def parse(text: str) -> Leaf | tuple[Leaf, ...]:
    """Returns the sharding of an array, or those of a tuple's elements.

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

    _TOKEN = re.compile(r"""\s*(?:(?P<word>[A-Za-z_]\w*)|(?P<number>\d+)|(?P<name>'[^']*'|"[^"]*")|(?P<mark><=|.))""", re.S)

    def __init__(self, text: str):
        self.tokens = [(match.lastgroup, match[match.lastgroup]) for match in self._TOKEN.finditer(text.strip())]
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
        """Skips `metadata={...}`, which says where a sharding comes from; refuses shard groups."""
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


# Meshes


@dataclass(frozen=True, slots=True)
class Translation:
    """A sharding in Shardy's terms: its mesh (an index of `Synthesis.meshes`), and the axes that are manual."""

    mesh: int
    sharding: Sharding
    manual: tuple[AxisRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Synthesis:
    """Meshes for the shardings of a module, and what each sharding is on them."""

    meshes: tuple[Mesh, ...]
    _translations: dict[Tiled | Named, Translation]

    def translation(self, leaf: Tiled | Named) -> Translation:
        """Returns what one of the shardings became; KeyError for one that was not given to `synthesize`."""
        return self._translations[leaf]


def synthesize(leaves: Sequence[Tiled | Named], axis_prefix: str = "axis_") -> Synthesis:
    """Returns meshes on which every sharding is expressible.

    The fewest that a greedy cover finds: meshes of V3 shardings first, in the order of the shardings; then for those that are
    left, the device order that explains most of them, and so on. A mesh has an axis for each digit on which the shardings
    that it explains agree; where they cut the same axis in ways that are no refinement of each other, sub-axes do.

    Raises: InexpressibleError if the shardings are for different numbers of devices, or need too many meshes.
    """
    counts = dict.fromkeys(leaf.mesh.size if isinstance(leaf, Named) else math.prod(leaf.tiles) for leaf in leaves)
    if len(counts) > 1:
        raise InexpressibleError(f"shardings for {' and '.join(map(str, counts))} devices in one module")
    meshes = list(dict.fromkeys(leaf.mesh for leaf in leaves if isinstance(leaf, Named)))
    translations: dict[Tiled | Named, Translation] = {
        leaf: Translation(meshes.index(leaf.mesh), leaf.sharding, leaf.manual)
        for leaf in leaves
        if isinstance(leaf, Named) and leaf.sharding is not None
    }
    left = {leaf: leaf.assignment() for leaf in leaves if isinstance(leaf, Tiled)}
    for index, mesh in enumerate(meshes):
        position = _positions(np.array([mesh.device_at(place) for place in range(mesh.size)]))
        for leaf, devices in list(left.items()):
            digits = _digits(_canonical(position[devices], leaf))
            found = digits and _on_mesh(leaf, digits, mesh, index)
            if found:
                translations[leaf] = found
                del left[leaf]
    while left:
        order, explained = _best_order(left)
        if len(meshes) >= _MAX_MESHES:
            raise InexpressibleError(f"shardings with more than {_MAX_MESHES} orders of the devices that no mesh explains")
        members = [(leaf, digits) for (leaf, _), digits in zip(left.items(), explained, strict=True) if digits is not None]
        mesh = _refined_mesh([digits for _, digits in members], order, axis_prefix)
        for leaf, digits in members:
            found = _on_mesh(leaf, digits, mesh, len(meshes))
            assert found is not None, f"{mesh} was made for {leaf}"
            translations[leaf] = found
            del left[leaf]
        meshes.append(mesh)
    return Synthesis(tuple(meshes), translations)


_Digits = tuple[tuple[tuple[int, int], ...], ...]  # for each tile dimension (stride of the position, size), major to minor


def _canonical(positions: np.ndarray, leaf: Tiled) -> np.ndarray:
    """Returns the positions with those of devices that hold the same tile in ascending order: theirs has no meaning."""
    same = [leaf.rank + i for i, group in enumerate(leaf.groups) if group == REPLICATED]
    if not same:
        return positions
    axes = [*(axis for axis in range(positions.ndim) if axis not in same), *same]
    moved = positions.transpose(axes)
    kept = moved.shape[: positions.ndim - len(same)]
    moved = np.sort(moved.reshape(*kept, -1), axis=-1).reshape(moved.shape)
    return moved.transpose(np.argsort(axes))


def _positions(order: np.ndarray) -> np.ndarray:
    """Returns the position of each device in an order of devices."""
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    return position


def _digits(positions: np.ndarray) -> _Digits | None:
    """Returns along which digits of the position each tile dimension runs; None if it is no mixed-radix number.

    Example:
      >>> _digits(np.arange(8).reshape(2, 4).T.reshape(4, 2))
      (((1, 4),), ((4, 2),))
    """
    if positions.flat[0] != 0:
        return None
    dims, total = [], np.zeros((), np.int64)
    for dim in range(positions.ndim):
        line = positions[tuple(slice(None) if axis == dim else 0 for axis in range(positions.ndim))]
        digits = _digits_of_line(line)
        if digits is None:
            return None
        dims.append(digits)
        total = np.add.outer(total, line)
    if not np.array_equal(total, positions):
        return None
    reached = 1
    for stride, size in sorted(digit for digits in dims for digit in digits):
        if stride != reached:
            return None
        reached *= size
    return tuple(dims)


def _digits_of_line(line: np.ndarray) -> tuple[tuple[int, int], ...] | None:
    """Returns the digits that a line of positions counts through, major to minor; None if it does not count."""
    digits: list[tuple[int, int]] = []
    while len(line) > 1:
        stride = int(line[1])
        straight = line == stride * np.arange(len(line))
        size = len(line) if straight.all() else int(np.argmin(straight))
        if stride < 1 or len(line) % size:
            return None
        blocks = line.reshape(-1, size)
        if not np.array_equal(blocks, blocks[:, :1] + stride * np.arange(size)):
            return None
        digits.append((stride, size))
        line = blocks[:, 0]
    return tuple(digits[::-1])


def _best_order(assignments: Mapping[Tiled, np.ndarray]) -> tuple[np.ndarray, list[_Digits | None]]:
    """Returns the order of devices that explains most shardings, and their digits on it; the first of equals.

    Candidates are the ids counting up, each assignment read row-major, and the order by the tiles of several together, which
    finds a mesh that only partly replicated shardings show.
    """

    def explained_by(order: np.ndarray) -> list[_Digits | None]:
        position = _positions(order)
        return [_digits(_canonical(position[each], leaf)) for leaf, each in assignments.items()]

    identity = np.arange(next(iter(assignments.values())).size)
    best = identity, explained_by(identity)
    if None not in best[1]:
        return best
    unexplained = [each for each, digits in zip(assignments.values(), best[1], strict=True) if digits is None]
    flat = {each.tobytes(): each.reshape(-1) for each in assignments.values()}
    groups = unexplained, list(assignments.values())
    together = [np.lexsort([identity, *(_tile_of_device(each) for each in some[::-1])]) for some in groups]
    for order in (*flat.values(), *together):
        found = explained_by(order)
        if found.count(None) < best[1].count(None):
            best = order, found
    return best


def _tile_of_device(assignment: np.ndarray) -> np.ndarray:
    """Returns for each device the number of the first entry of its line along the last dimension: its tile, if that replicates."""
    lines = assignment.reshape(-1, assignment.shape[-1])
    tile = np.empty(assignment.size, np.int64)
    tile[lines] = np.arange(len(lines))[:, None]
    return tile


def _refined_mesh(explained: Sequence[_Digits], order: np.ndarray, prefix: str) -> Mesh:
    """Returns the mesh whose axes end wherever a digit does, but for ends that do not divide each other: sub-axes have these."""
    devices = len(order)
    cuts = {1, devices}
    for digits in explained:
        cuts |= {cut for dim in digits for stride, size in dim for cut in (stride, stride * size)}
    agreed = sorted(cut for cut in cuts if all(cut % other == 0 or other % cut == 0 for other in cuts))
    sizes = [high // low for low, high in zip(agreed, agreed[1:])][::-1]
    axes = tuple((f"{prefix}{number}", size) for number, size in enumerate(sizes))
    return Mesh(axes, tuple(order.tolist()))


def _on_mesh(leaf: Tiled, digits: _Digits, mesh: Mesh, index: int) -> Translation | None:
    """Returns the sharding on a mesh; None if its digits are no axes or sub-axes there."""
    axes: list[tuple[AxisRef, ...]] = []
    for dim in digits:
        found = [_axes_of_digit(digit, mesh) for digit in dim]
        if None in found:
            return None
        axes.append(_merged([axis for each in found for axis in each], mesh))
    grouped = {kind: () for kind in (REPLICATED, MANUAL, UNREDUCED)}
    for kind, of_group in zip(leaf.groups, axes[leaf.rank :], strict=True):
        grouped[kind] += of_group
    unreduced = tuple(sorted(grouped[UNREDUCED], key=lambda axis: (mesh.axis_names.index(axis.name), axis.pre_size or 1)))
    return Translation(index, Sharding(tuple(axes[: leaf.rank]), unreduced=unreduced), grouped[MANUAL])


def _axes_of_digit(digit: tuple[int, int], mesh: Mesh) -> list[AxisRef] | None:
    """Returns the axes and sub-axes of a mesh that are one digit (stride, size) of the position, major to minor."""
    low, high = digit[0], digit[0] * digit[1]
    axes, end = [], mesh.size
    for name, size in mesh.axes:
        start = end // size
        bottom, top = max(low, start), min(high, end)
        if bottom < top:
            if bottom % min(low, start) or max(high, end) % top or top % bottom or end % top:
                return None
            whole = (bottom, top) == (start, end)
            axes.append(AxisRef(name) if whole else AxisRef(name, end // top, top // bottom))
        end = start
    return axes


def _merged(axes: list[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    """Returns the axes with neighbouring pieces of one axis as one, as Shardy wants them."""
    merged: list[AxisRef] = []
    for axis in axes:
        pre, size = axis.resolve(mesh)
        if merged and merged[-1].name == axis.name:
            before, so_far = merged[-1].resolve(mesh)
            if before * so_far == pre:
                whole = (before, so_far * size) == (1, mesh.axis_size(axis.name))
                merged[-1] = AxisRef(axis.name) if whole else AxisRef(axis.name, before, so_far * size)
                continue
        merged.append(axis)
    return tuple(merged)
