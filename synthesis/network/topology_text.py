# SPDX-License-Identifier: Apache-2.0
"""Topologies as text: presets with their sizes, and TOML.

One table per dataclass lists the keys of the TOML form. The reader and the writer both follow it, so a key is added in
one line.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from .topology import Level, Topology, TopologyError, dims_text

PRESETS = Path(__file__).parent / "presets"


def preset_names() -> tuple[str, ...]:
    """Returns the names of the presets, sorted."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


# ---- presets and files


_SPEC = re.compile(r"^(?P<name>[A-Za-z][\w\-]*)(?::(?P<sizes>-?\d+(?:x-?\d+)*))?(?:\*(?P<slices>-?\d+))?$")


@functools.lru_cache(maxsize=256)
def parse(text: str) -> Topology:
    """Returns the topology that a preset, a file or TOML text gives; see `Topology.parse`."""
    stripped = text.strip()
    if "\n" in stripped or "[[" in stripped:
        return _read(stripped, "topology")
    spec = _SPEC.fullmatch(stripped)
    if spec and is_preset(stripped):
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


def is_preset(text: str) -> bool:
    """Returns whether a text has the form of a preset with or without sizes, and there is a preset of this name.

    Example:
      >>> is_preset("v5e:4x4*2"), is_preset("./v5e.toml")
      (True, False)
    """
    spec = _SPEC.fullmatch(text.strip())
    return spec is not None and (PRESETS / f"{spec['name']}.toml").is_file()


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
    pod = preset.pod
    if spec["slices"] and pod is None:
        raise TopologyError(f'topology "{text}": "{preset.name}" has no slices; write {preset.name}:4')
    if pod is not None:
        levels[pod] = _with_pod_dims(text, levels[pod], sizes) if sizes else levels[pod]
        slices = int(spec["slices"]) if spec["slices"] else 1
        levels[0] = levels[0].with_size(slices)
    elif len(sizes) > len(levels):
        raise TopologyError(f'topology "{text}": "{preset.name}" has fewer levels: {preset.shape_text}')
    else:
        levels[: len(sizes)] = [level.with_size(size) for level, size in zip(levels, sizes)]
    return replace(preset, name=text, levels=tuple(levels))


def _with_pod_dims(text: str, pod: Level, sizes: tuple[int, ...]) -> Level:
    rank = len(pod.shapes[0])
    if len(sizes) != rank:
        name = text.partition(":")[0]
        hint = f"{name}:{dims_text((4,) * rank)}"
        raise TopologyError(f'topology "{text}": "{name}" has {rank} dimensions; write {hint}')
    return pod.with_dims(sizes)


# ---- the keys of the TOML form


@dataclass(frozen=True, slots=True)
class _Meaning:
    """A kind of values.

    Attributes:
      words: what the value must be, for messages.
      accepts: whether a TOML value is of this kind.
      read: turns a TOML value into the value of a field.
      write: turns the value of a field into the text of a TOML value.
    """

    words: str
    accepts: Callable[[object], bool]
    read: Callable
    write: Callable[..., str]


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of the TOML form, which has the name of the field that it sets.

    Attributes:
      is_required: whether the reader refuses a table without it.
      is_written: whether the writer writes it, given the level or topology. None: if the value is not the default.
    """

    name: str
    meaning: _Meaning
    is_required: bool = False
    is_written: Callable[[Any], bool] | None = None


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_list_of(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(accepts, value))


def _is_text(value) -> bool:
    return isinstance(value, str)


def _is_whole(value) -> bool:
    return type(value) is int


def _is_flag(value) -> bool:
    return isinstance(value, bool)


def _is_shape(value) -> bool:
    return re.fullmatch(r"\d+(x\d+)*", str(value)) is not None


def _read_shapes(values: list) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, str(value).split("x"))) for value in values)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _list_text(values) -> str:
    return json.dumps(list(values))


def _factors_text(factors: tuple[tuple[str, float], ...]) -> str:
    return f"{{ {', '.join(f'{json.dumps(kind)} = {factor!r}' for kind, factor in factors)} }}"


_WORDS = _Meaning("a string", _is_text, str, _quoted)
_NUMBER = _Meaning("a number", _is_number, float, repr)
_WHOLE = _Meaning("a whole number", _is_whole, int, str)
_WHOLES = _Meaning("a list of whole numbers", _is_list_of(_is_whole), tuple, _list_text)
_FLAG = _Meaning("true or false", _is_flag, bool, json.dumps)
_FLAGS = _Meaning(
    "true, false or a list of them",
    lambda value: _is_flag(value) or _is_list_of(_is_flag)(value),
    lambda value: value if _is_flag(value) else tuple(value),
    _list_text,
)
_NAMES = _Meaning("a list of strings", _is_list_of(_is_text), tuple, _list_text)
_SHAPES = _Meaning(
    "a list of strings such as 4x4",
    _is_list_of(_is_shape),
    _read_shapes,
    lambda shapes: _list_text(map(dims_text, shapes)),
)
_FACTORS = _Meaning(
    "a table of numbers",
    lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    lambda table: tuple(sorted((kind, float(factor)) for kind, factor in table.items())),
    _factors_text,
)


def _always(_) -> bool:
    return True


# In the order in which they are written.
_TOPOLOGY_KEYS = (
    _Key("name", _WORDS, is_written=_always),
    _Key("summary", _WORDS, is_written=_always),
    _Key("source", _WORDS, is_written=_always),
    _Key("launch_latency_s", _NUMBER, is_written=_always),
    _Key("further_launch_s", _FACTORS),
    _Key("memory_bandwidth_bytes_per_s", _NUMBER, is_required=True, is_written=_always),
    _Key("slice_bandwidth_bytes_per_s", _NUMBER),
    _Key("flops_per_s", _NUMBER),
    _Key("kernel_s", _NUMBER),
    _Key("device_memory_bytes", _NUMBER),
    _Key("free_before_all_to_all", _NUMBER),
    _Key("device_order", _WHOLES),
    _Key("rings", _NAMES),
    _Key("rings_by_place", _FLAG),
    _Key("trees", _FLAG),
    _Key("platform", _WORDS),
)
_LEVEL_KEYS = (
    _Key("name", _WORDS, is_required=True, is_written=_always),
    _Key("kind", _WORDS, is_required=True, is_written=_always),
    _Key("dims", _WHOLES, is_written=lambda level: level.kind == "torus" and bool(level.dims)),
    _Key("size", _WHOLE, is_written=lambda level: level.kind != "torus" and level.size > 0),
    _Key("bandwidth_bytes_per_s", _NUMBER, is_required=True, is_written=_always),
    _Key("shared_bandwidth_bytes_per_s", _NUMBER),
    _Key("latency_s", _NUMBER, is_written=_always),
    _Key("message_s", _NUMBER),
    _Key("wrap", _FLAGS),
    _Key("wrap_multiple_of", _WHOLE),
    _Key("wrap_together", _FLAG),
    _Key("shapes", _SHAPES),
    _Key("copies_own", _FLAG),
    _Key("slowdown", _FACTORS),
    _Key("slowdown_in_pairs", _FACTORS),
)


# ---- reading


def _read(text: str, where: str) -> Topology:
    """Returns the topology of a TOML text. Raises: TopologyError, whose message starts with `where`."""
    try:
        table = tomllib.loads(text)
        levels = table.pop("level", [])
        if not isinstance(levels, list):
            raise TopologyError("level is a table; write [[level]]")
        found = _fields(table, _TOPOLOGY_KEYS, "")
        return Topology(levels=tuple(_read_level(level) for level in levels), **{"name": where, **found})
    except (tomllib.TOMLDecodeError, TopologyError) as error:
        raise TopologyError(f"{where}: {error}") from error


def _read_level(table: Mapping) -> Level:
    where = f'level "{table.get("name", "?")}": '
    found = _fields(table, _LEVEL_KEYS, where)
    dims = found.get("dims", ())
    if isinstance(found.get("wrap"), bool):
        found["wrap"] = (found["wrap"],) * max(1, len(dims))
    if "size" in found and found["size"] < 1:
        raise TopologyError(f"{where}size = {found['size']}; sizes are at least 1")
    found.setdefault("size", math.prod(dims) if dims else 0)
    if found["kind"] == "torus" and not dims and not found["size"] and not found.get("shapes"):
        raise TopologyError(f"{where}a torus needs dims, e.g. dims = [4, 4]")
    return Level(**found)


def _fields(table: Mapping, keys: tuple[_Key, ...], where: str) -> dict:
    """Returns the values of the fields that a TOML table sets.

    Raises: TopologyError for an unknown key, for a value of the wrong kind, and for a missing key.
    """
    meanings = {key.name: key.meaning for key in keys}
    found = {}
    for name, value in table.items():
        if name not in meanings:
            close = difflib.get_close_matches(name, meanings, n=1)
            raise TopologyError(f'{where}unknown key "{name}"{f"; did you mean {close[0]}?" if close else ""}')
        meaning = meanings[name]
        if not meaning.accepts(value):
            raise TopologyError(f"{where}{name} = {json.dumps(value, default=str)}; {meaning.words} is meant")
        found[name] = meaning.read(value)
    for key in keys:
        if key.is_required and key.name not in table:
            raise TopologyError(f"{where}{key.name} is missing")
    return found


# ---- writing


def to_toml(topology: Topology) -> str:
    """Returns the topology as TOML that `parse` reads back to an equal one."""
    lines = list(_lines(topology, _TOPOLOGY_KEYS))
    for level in topology.levels:
        lines += ["", "[[level]]", *_lines(level, _LEVEL_KEYS)]
    return "\n".join(lines) + "\n"


def _lines(of: Level | Topology, keys: tuple[_Key, ...]) -> Iterator[str]:
    defaults = {field.name: field.default for field in fields(of) if field.default is not MISSING}
    for key in keys:
        value = getattr(of, key.name)
        if key.is_written(of) if key.is_written else value != defaults[key.name]:
            yield f"{key.name} = {key.meaning.write(value)}"
