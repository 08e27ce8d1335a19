# SPDX-License-Identifier: Apache-2.0
"""Topologies: the network between devices, as levels from outer to inner.

**Levels.** A device has one coordinate per level, and its position is the mixed-radix number of these: with levels
`node` of size 4 and `gpu` of size 8, position 13 is GPU 5 of node 1. A level connects *units*: a unit of level `node`
is one node, a unit of the innermost level is one device. Two devices talk at the outermost level where their
coordinates differ. Each level has ports of its own (a GPU has NVLink ports and a network card), so levels work at once.

| kind | what connects the units of one group | `bandwidth_bytes_per_s` is that of |
|---|---|---|
| switch | a crossbar with full bisection | one device's port, in each direction |
| bus | a medium that all share, e.g. the memory of a host | the medium, all transfers together |
| ring | neighbours, around a circle if it wraps | one link, in each direction |
| torus | neighbours along each of its dimensions | one link, in each direction |

A level may be *open* (size 0): it takes as many units as the mesh needs. `Topology.fitted` closes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
import difflib
import functools
import json
import math
from pathlib import Path
import re
import tomllib

import numpy as np

from .mesh import MAX_DEVICES
from .traffic import KINDS as COLLECTIVES

SWAP = "swap"
MAY_BE_RINGS = ("all_gather", "reduce_scatter", "all_reduce")
IN_PAIRS = (*MAY_BE_RINGS, "all_to_all")
KINDS = ("switch", "bus", "ring", "torus")
DEFAULT = "uniform"
PRESETS = Path(__file__).parent / "presets"


class TopologyError(ValueError):
    """A topology that cannot be read, or that does not fit; the message is one line in the user's words."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the network.

    Attributes:
      name: what a unit of the level is: slice, node, chip.
      size: units per group; 0 is open, as many as the mesh needs.
      kind: one of `KINDS`; what the bandwidth is that of depends on it, see the module's docstring.
      bandwidth_bytes_per_s: in one direction.
      latency_s: of one step: a message through a switch or a bus, a hop along a ring or torus.
      shared_bandwidth_bytes_per_s: what one unit as a whole may send, and may receive, at this level, where that is
        less than its devices together: a node with fewer network cards than GPUs. None is no such limit.
      dims: the sizes of a torus, major to minor; their product is `size`. A ring has one.
      wrap: per dimension, whether its ends are connected.
      wrap_multiple_of: without `wrap`: a dimension wraps if its size is a multiple of this; 0 is never.
      wrap_together: with `wrap_multiple_of`: no dimension wraps unless all may.
      shapes: of an open torus: the dims to choose from.
      slowdown: (kind of collective, factor of at least 1) pairs: how much slower than the model a library is here. `SWAP` is
        for two devices that send to each other at once, in permutes and in groups of two: 2 where it goes one way at a time.
      slowdown_in_pairs: the same for groups of two, `SWAP` included, where it is known: of all_to_all, whose larger groups are
        between that and `slowdown`, and of gathering kinds.
      copies_own: whether in groups a device's own part takes as long as what others send: within one memory all is copied.
        Of a switch or a bus.
    """

    name: str
    size: int
    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    shared_bandwidth_bytes_per_s: float | None = None
    dims: tuple[int, ...] = ()
    wrap: tuple[bool, ...] | None = None
    wrap_multiple_of: int = 1
    wrap_together: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()
    slowdown: tuple[tuple[str, float], ...] = ()
    slowdown_in_pairs: tuple[tuple[str, float], ...] = ()
    copies_own: bool = False

    def __post_init__(self):
        if self.kind not in KINDS:
            raise TopologyError(f'level "{self.name}" is of unknown kind "{self.kind}"; known: {", ".join(KINDS)}')
        if self.size < 0 or any(size < 1 for size in self.dims):
            raise TopologyError(f'level "{self.name}" has size {self.size or _by(self.dims)}; sizes are at least 1')
        self._check_numbers()
        if self.kind == "ring" and not self.dims and self.size:
            object.__setattr__(self, "dims", (self.size,))
        if self.kind in ("ring", "torus"):
            self._check_dims()
            if self.copies_own:
                raise TopologyError(f'level "{self.name}" copies_own, but is of kind {self.kind}; that belongs to a switch or a bus')
        elif self.dims or self.shapes:
            raise TopologyError(f'level "{self.name}" has dims, but is of kind {self.kind}; dims belong to a torus')

    def _check_numbers(self):
        for what, value in (
            ("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s),
            ("shared_bandwidth_bytes_per_s", self.shared_bandwidth_bytes_per_s),
        ):
            if value is not None and not 0 < value < math.inf:
                raise TopologyError(f'level "{self.name}" has {what} = {value}; bandwidths are positive')
        if not 0 <= self.latency_s < math.inf:
            raise TopologyError(f'level "{self.name}" has latency_s = {self.latency_s}; latencies are not negative')
        if self.wrap_multiple_of < 0:
            raise TopologyError(f'level "{self.name}" has wrap_multiple_of = {self.wrap_multiple_of}; 0 or more is meant')
        for key, factors, known in (
            ("slowdown", self.slowdown, (*COLLECTIVES, SWAP)),
            ("slowdown_in_pairs", self.slowdown_in_pairs, IN_PAIRS),
        ):
            for kind, factor in factors:
                if kind not in known:
                    raise TopologyError(f'level "{self.name}" has a {key} for "{kind}"; known: {", ".join(known)}')
                if not 1 <= factor < math.inf:
                    raise TopologyError(f'level "{self.name}" has {key} {factor} for {kind}; factors are at least 1')

    def _check_dims(self):
        if self.dims and math.prod(self.dims) != self.size:
            raise TopologyError(f'level "{self.name}" has size {self.size}, but dims {_by(self.dims)}')
        if self.size and not self.dims:
            raise TopologyError(f'level "{self.name}" is a torus of size {self.size} without dims; write dims = [4, 4]')
        if self.wrap is not None and self.dims and len(self.wrap) != len(self.dims):
            raise TopologyError(f'level "{self.name}" has {len(self.wrap)} wrap flags for dims {_by(self.dims)}')

    @property
    def is_open(self) -> bool:
        return self.size == 0

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Returns per dimension whether it wraps.

        Example:
          >>> Level("chip", 64, "torus", 1e9, dims=(4, 16), wrap_multiple_of=16).wraps
          (False, True)
        """
        if self.wrap is not None:
            return self.wrap
        may = tuple(bool(self.wrap_multiple_of) and size % self.wrap_multiple_of == 0 for size in self.dims)
        return tuple(all(may) for _ in may) if self.wrap_together else may

    def slowdown_of(self, kind: str) -> float:
        """Returns the factor by which a library's collectives of `kind` are slower here than the model."""
        return next((factor for name, factor in self.slowdown if name == kind), 1.0)

    def slowdown_of_size(self, kind: str, size: int) -> float:
        """Returns by what factor more groups of so many devices are slower than the level's slowdown of `kind` says.

        Of an all_to_all, the more partners a device has the less it waits for one of them: by the logarithm of the size.

        Example:
          >>> level = Level("host", 8, "switch", 1e9, slowdown=(("all_to_all", 1.3),), slowdown_in_pairs=(("all_to_all", 2.6),))
          >>> [round(level.slowdown_of_size("all_to_all", size), 2) for size in (2, 4, 8)]
          [2.0, 1.41, 1.0]
        """
        in_pairs = next((factor for name, factor in self.slowdown_in_pairs if name == kind), None)
        if in_pairs is None or self.size <= 2:
            return self.slowdown_of(SWAP) if size == 2 else 1.0
        if size >= self.size or (size > 2 and kind != "all_to_all"):
            return 1.0
        return (in_pairs / self.slowdown_of(kind)) ** (math.log(self.size / size) / math.log(self.size / 2))

    def with_size(self, size: int) -> Level:
        """Returns the level with another size; not for a torus, which needs dims."""
        return replace(self, size=size, dims=(size,) if self.kind == "ring" else ())

    def with_dims(self, dims: tuple[int, ...]) -> Level:
        return replace(self, size=math.prod(dims), dims=dims, shapes=())


@dataclass(frozen=True, slots=True)
class Topology:
    """A network of devices.

    Attributes:
      levels: outer to inner.
      memory_bandwidth_bytes_per_s: of one device's memory, for local relayouts; reads and writes together.
      slice_bandwidth_bytes_per_s: the same for slices, whose results are copied out of their tiles; None where slices are free.
      free_before_all_to_all: the share of relayouts and slices that costs nothing right before an all_to_all, which copies its parts
        out of the tile anyway.
      launch_latency_s: what every collective costs before the first byte moves.
      summary, source: one line on what it is; where the figures were published, and which ones are estimates.
      device_order: the device id at each position; None is row-major.
      rings: the kinds of collectives that the library runs around one ring of a group's members, in the order of their
        positions, whatever levels they are on; it runs the others level by level.
    """

    name: str
    levels: tuple[Level, ...]
    memory_bandwidth_bytes_per_s: float
    launch_latency_s: float = 0.0
    summary: str = ""
    source: str = ""
    device_order: tuple[int, ...] | None = None
    rings: tuple[str, ...] = ()
    slice_bandwidth_bytes_per_s: float | None = None
    free_before_all_to_all: float = 0.0

    def __post_init__(self):
        for kind in self.rings:
            if kind not in MAY_BE_RINGS:
                raise TopologyError(f'rings has "{kind}"; known: {", ".join(MAY_BE_RINGS)}')
        if not self.levels:
            raise TopologyError(f'topology "{self.name}" has no levels')
        names = [level.name for level in self.levels]
        for name in names:
            if names.count(name) > 1:
                raise TopologyError(f'topology "{self.name}" has two levels "{name}"')
        for what in ("memory_bandwidth_bytes_per_s", "slice_bandwidth_bytes_per_s"):
            bandwidth = getattr(self, what)
            if bandwidth is not None and not 0 < bandwidth < math.inf:
                raise TopologyError(f"{what} = {bandwidth}; bandwidths are positive")
        if not 0 <= self.free_before_all_to_all <= 1:
            raise TopologyError(f"free_before_all_to_all = {self.free_before_all_to_all}; a share is between 0 and 1")
        if not 0 <= self.launch_latency_s < math.inf:
            raise TopologyError(f"launch_latency_s = {self.launch_latency_s}; latencies are not negative")
        if self.size > MAX_DEVICES:
            raise TopologyError(f'topology "{self.name}" has {self.size} devices; at most {MAX_DEVICES} are supported')
        if self.device_order is not None and sorted(self.device_order) != list(range(len(self.device_order))):
            raise TopologyError(f"device_order is no permutation of 0..{len(self.device_order) - 1}")
        if self.device_order is not None and self.size and len(self.device_order) != self.size:
            raise TopologyError(f"device_order has {len(self.device_order)} devices, topology \"{self.name}\" {self.size}")

    @property
    def size(self) -> int:
        """Returns the number of devices, 0 if a level is open."""
        return math.prod(level.size for level in self.levels)

    @property
    def shape_text(self) -> str:
        """Returns the sizes in words, e.g. `4 node x 8 gpu`."""
        sizes = (_by(level.dims) if len(level.dims) > 1 else level.size or "any" for level in self.levels)
        return " x ".join(f"{size} {level.name}" for size, level in zip(sizes, self.levels))

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Reads a preset (`h100`, `h100:4`, `v5e:4x4*2`), a path to a TOML file, or TOML itself.

        `name:AxB` gives the dims of a torus, or the sizes of the levels, outer to inner; `*k` is k slices. Without
        sizes a preset is open and takes those of the mesh.

        Raises: TopologyError in one line, with the closest names for an unknown preset.

        Example:
          >>> Topology.parse("v5e:4x4*2").shape_text
          '2 slice x 4x4 chip'
        """
        return _parse(text)

    def fitted(self, num_devices: int) -> Topology:
        """Returns this topology with its open levels closed for `num_devices` devices.

        Raises: TopologyError if the sizes do not multiply to it.

        Example:
          >>> [Topology.parse("h100").fitted(n).shape_text for n in (4, 32)]
          ['1 node x 4 gpu', '4 node x 8 gpu']
        """
        return _fitted(self, num_devices)

    def positions(self) -> np.ndarray:
        """Returns the position of each device id, int64."""
        order = np.arange(self.size) if self.device_order is None else np.asarray(self.device_order)
        positions = np.empty(len(order), np.int64)
        positions[order] = np.arange(len(order))
        return positions

    def coordinates(self) -> np.ndarray:
        """Returns the coordinate of each device id at each level, an int array of shape (size, levels).

        Example:
          >>> Topology.parse("h100:4").coordinates()[13].tolist()
          [1, 5]
        """
        sizes = [level.size for level in self.levels]
        return np.stack(np.unravel_index(self.positions(), sizes), axis=1)

    def to_toml(self) -> str:
        """Returns the topology as TOML that `parse` reads back to an equal one."""
        return _to_toml(self)


def preset_names() -> tuple[str, ...]:
    """Returns the names of the presets, sorted."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


# Fitting


@functools.lru_cache(maxsize=256)
def _fitted(topology: Topology, num_devices: int) -> Topology:
    if num_devices < 1:
        raise TopologyError(f"topology for {num_devices} devices; at least 1 is needed")
    if topology.size == num_devices:
        return topology
    levels, left = list(topology.levels), num_devices
    has_open = topology.size == 0
    for at in reversed(range(len(levels))):
        level = levels[at]
        opens_outside = any(other.is_open for other in levels[:at])
        if level.is_open and level.kind == "torus":
            levels[at] = level.with_dims(_largest_shape(topology, level, _outermost_share(left, levels[:at])))
        elif level.is_open:
            levels[at] = level.with_size(_outermost_share(left, levels[:at]))
        elif opens_outside and left < level.size and level.kind != "torus":
            levels[at] = level.with_size(left)
        left = left // levels[at].size if left % levels[at].size == 0 else 0
    if left != 1 or not has_open:
        raise TopologyError(
            f'topology "{topology.name}" has {topology.shape_text}{f" = {topology.size}" if topology.size else ""} devices; '
            f"the mesh has {num_devices}"
        )
    return replace(topology, levels=tuple(levels))


def _outermost_share(left: int, outside: list[Level]) -> int:
    """Returns how many of the devices that are left each unit of the closed levels outside gets."""
    return max(1, left // math.prod(level.size or 1 for level in outside))


def _largest_shape(topology: Topology, level: Level, left: int) -> tuple[int, ...]:
    fitting = [shape for shape in level.shapes if left % math.prod(shape) == 0]
    if not fitting:
        raise TopologyError(f'topology "{topology.name}" needs the dims of level "{level.name}"; write {topology.name}:AxB')
    return max(fitting, key=math.prod)


# Reading


_SPEC = re.compile(r"^(?P<name>[A-Za-z][\w\-]*)(?::(?P<sizes>-?\d+(?:x-?\d+)*))?(?:\*(?P<slices>-?\d+))?$")


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> Topology:
    stripped = text.strip()
    if "\n" in stripped or "[[" in stripped:
        return _read(stripped, "topology")
    spec = _SPEC.fullmatch(stripped)
    if spec and (PRESETS / f"{spec['name']}.toml").is_file():
        return _sized(_preset(spec["name"]), spec)
    path = Path(stripped)
    if stripped and path.is_file():
        return _read(_text_of(path), str(path))
    if stripped.endswith(".toml"):
        raise TopologyError(f'no topology file "{stripped}"')
    known = preset_names()
    close = difflib.get_close_matches(spec["name"] if spec else stripped, known, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
    raise TopologyError(f'unknown topology "{stripped}"; {hint}')


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{path}: cannot be read: {error}") from error


@functools.lru_cache(maxsize=64)
def _preset(name: str) -> Topology:
    return _read((PRESETS / f"{name}.toml").read_text(encoding="utf-8"), name)


def _sized(preset: Topology, spec: re.Match) -> Topology:
    """Returns the preset with the sizes that `:AxB` and `*k` name."""
    if spec["sizes"] is None and spec["slices"] is None:
        return preset
    text, levels = spec[0], list(preset.levels)
    sizes = tuple(int(size) for size in spec["sizes"].split("x")) if spec["sizes"] else ()
    if min(sizes, default=1) < 1 or (spec["slices"] and int(spec["slices"]) < 1):
        raise TopologyError(f'topology "{text}": sizes are at least 1')
    is_pod = levels[-1].kind == "torus"
    if spec["slices"] and not is_pod:
        raise TopologyError(f'topology "{text}": "{preset.name}" has no slices; write {preset.name}:4')
    if is_pod:
        levels[-1] = _with_pod_dims(text, preset, sizes) if sizes else levels[-1]
        slices = int(spec["slices"]) if spec["slices"] else 1
        levels[0] = levels[0].with_size(slices)
    elif len(sizes) > len(levels):
        raise TopologyError(f'topology "{text}": "{preset.name}" has fewer levels: {preset.shape_text}')
    else:
        levels[: len(sizes)] = [level.with_size(size) for level, size in zip(levels, sizes)]
    return replace(preset, name=text, levels=tuple(levels))


def _with_pod_dims(text: str, preset: Topology, sizes: tuple[int, ...]) -> Level:
    rank = len(preset.levels[-1].shapes[0])
    if len(sizes) != rank:
        hint = f"{preset.name}:{_by((4,) * rank)}"
        raise TopologyError(f'topology "{text}": "{preset.name}" has {rank} dimensions; write {hint}')
    return preset.levels[-1].with_dims(sizes)


_WORDS, _NUMBER, _WHOLE, _WHOLES = "a string", "a number", "a whole number", "a list of whole numbers"
_FLAG, _FLAGS = "true or false", "true, false or a list of them"
_NAMES, _SHAPES, _FACTORS = "a list of strings", "a list of strings such as 4x4", "a table of numbers"
_TOPOLOGY_KEYS = {
    "name": _WORDS,
    "summary": _WORDS,
    "source": _WORDS,
    "launch_latency_s": _NUMBER,
    "memory_bandwidth_bytes_per_s": _NUMBER,
    "slice_bandwidth_bytes_per_s": _NUMBER,
    "free_before_all_to_all": _NUMBER,
    "device_order": _WHOLES,
    "rings": _NAMES,
}
_LEVEL_KEYS = {
    "name": _WORDS,
    "kind": _WORDS,
    "size": _WHOLE,
    "bandwidth_bytes_per_s": _NUMBER,
    "shared_bandwidth_bytes_per_s": _NUMBER,
    "latency_s": _NUMBER,
    "dims": _WHOLES,
    "wrap": _FLAGS,
    "wrap_multiple_of": _WHOLE,
    "wrap_together": _FLAG,
    "shapes": _SHAPES,
    "slowdown": _FACTORS,
    "slowdown_in_pairs": _FACTORS,
    "copies_own": _FLAG,
}


def _read(text: str, where: str) -> Topology:
    """Reads TOML. Raises: TopologyError that starts with `where`."""
    try:
        table = tomllib.loads(text)
        levels = table.pop("level", [])
        if not isinstance(levels, list):
            raise TopologyError("level is a table; write [[level]]")
        fields = _checked(table, _TOPOLOGY_KEYS, "", ("memory_bandwidth_bytes_per_s",))
        return Topology(levels=tuple(_read_level(level) for level in levels), **{"name": where, **fields})
    except tomllib.TOMLDecodeError as error:
        raise TopologyError(f"{where}: {error}") from error
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from error


def _read_level(table: Mapping) -> Level:
    where = f'level "{table.get("name", "?")}": '
    fields = _checked(table, _LEVEL_KEYS, where, ("name", "kind", "bandwidth_bytes_per_s"))
    dims = fields.get("dims", ())
    if isinstance(fields.get("wrap"), bool):
        fields["wrap"] = (fields["wrap"],) * max(1, len(dims))
    if "size" in fields and fields["size"] < 1:
        raise TopologyError(f"{where}size = {fields['size']}; sizes are at least 1")
    fields.setdefault("size", math.prod(dims) if dims else 0)
    if fields["kind"] == "torus" and not dims and not fields["size"] and not fields.get("shapes"):
        raise TopologyError(f"{where}a torus needs dims, e.g. dims = [4, 4]")
    return Level(**fields)


def _checked(table: Mapping, keys: Mapping[str, str], where: str, required: tuple[str, ...]) -> dict:
    fields = {}
    for key, value in table.items():
        if key not in keys:
            close = difflib.get_close_matches(key, keys, n=1)
            raise TopologyError(f'{where}unknown key "{key}"{f"; did you mean {close[0]}?" if close else ""}')
        fields[key] = _converted(value, keys[key], f"{where}{key}")
    for key in required:
        if key not in table:
            raise TopologyError(f"{where}{key} is missing")
    return fields


def _converted(value, meant: str, where: str):
    """Returns a TOML value as its field has it. Raises: TopologyError if it is not what is `meant`."""
    is_list = isinstance(value, list)
    if meant == _WORDS and isinstance(value, str):
        return value
    if meant == _NUMBER and _is_number(value):
        return float(value)
    if meant == _WHOLE and type(value) is int:
        return value
    if meant == _WHOLES and is_list and all(type(item) is int for item in value):
        return tuple(value)
    if meant in (_FLAG, _FLAGS) and isinstance(value, bool):
        return value
    if meant == _FLAGS and is_list and all(isinstance(item, bool) for item in value):
        return tuple(value)
    if meant == _NAMES and is_list and all(isinstance(item, str) for item in value):
        return tuple(value)
    if meant == _SHAPES and is_list and all(re.fullmatch(r"\d+(x\d+)*", str(item)) for item in value):
        return tuple(tuple(int(size) for size in str(item).split("x")) for item in value)
    if meant == _FACTORS and isinstance(value, dict) and all(map(_is_number, value.values())):
        return tuple(sorted((kind, float(factor)) for kind, factor in value.items()))
    raise TopologyError(f"{where} = {json.dumps(value, default=str)}; {meant} is meant")


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# Writing


def _to_toml(topology: Topology) -> str:
    lines = [f"{key} = {_quoted(getattr(topology, key))}" for key in ("name", "summary", "source")]
    lines.append(f"launch_latency_s = {topology.launch_latency_s!r}")
    lines.append(f"memory_bandwidth_bytes_per_s = {topology.memory_bandwidth_bytes_per_s!r}")
    if topology.slice_bandwidth_bytes_per_s is not None:
        lines.append(f"slice_bandwidth_bytes_per_s = {topology.slice_bandwidth_bytes_per_s!r}")
    if topology.free_before_all_to_all:
        lines.append(f"free_before_all_to_all = {topology.free_before_all_to_all!r}")
    if topology.device_order is not None:
        lines.append(f"device_order = {list(topology.device_order)}")
    if topology.rings:
        lines.append(f"rings = {json.dumps(list(topology.rings))}")
    for level in topology.levels:
        lines += ["", "[[level]]", *_level_lines(level)]
    return "\n".join(lines) + "\n"


def _level_lines(level: Level):
    yield f"name = {_quoted(level.name)}"
    yield f'kind = "{level.kind}"'
    if level.dims and level.kind == "torus":
        yield f"dims = {list(level.dims)}"
    elif level.size:
        yield f"size = {level.size}"
    yield f"bandwidth_bytes_per_s = {level.bandwidth_bytes_per_s!r}"
    if level.shared_bandwidth_bytes_per_s is not None:
        yield f"shared_bandwidth_bytes_per_s = {level.shared_bandwidth_bytes_per_s!r}"
    yield f"latency_s = {level.latency_s!r}"
    if level.wrap is not None:
        yield f"wrap = {json.dumps(list(level.wrap))}"
    if level.wrap_multiple_of != 1:
        yield f"wrap_multiple_of = {level.wrap_multiple_of}"
    if level.wrap_together:
        yield "wrap_together = true"
    if level.shapes:
        yield f"shapes = {json.dumps([_by(shape) for shape in level.shapes])}"
    if level.copies_own:
        yield "copies_own = true"
    if level.slowdown:
        yield f"slowdown = {_factors(level.slowdown)}"
    if level.slowdown_in_pairs:
        yield f"slowdown_in_pairs = {_factors(level.slowdown_in_pairs)}"


def _factors(factors: tuple[tuple[str, float], ...]) -> str:
    return f"{{ {', '.join(f'{json.dumps(kind)} = {factor!r}' for kind, factor in factors)} }}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _by(sizes) -> str:
    return "x".join(map(str, sizes))
