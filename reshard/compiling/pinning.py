# SPDX-License-Identifier: Apache-2.0
"""The argument `pinned` of `reshard.auto`: shardings that arguments have to have."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from reshard.compiling.call_arguments import Argument, Call, Parameters
from reshard.synthesis.layouts.mesh import Mesh


def pinned_structs(
    structs: tuple, pinned: Mapping[int | str, Any], call: Call, parameters: Parameters, mesh: Mesh, jax_mesh: Any
) -> tuple:
    """Returns shapes and types of arguments, those that are pinned with their shardings.

    Args:
      structs: of the arguments of the call that are not static.
      pinned: the number or name of an argument -> a PartitionSpec for all of its leaves; or a tree of them, of its
        structure or the upper part of that. None leaves a part of the tree free.
    Raises: ValueError for a key that is no argument, and for what an argument cannot have.
    """
    import jax

    found, keys = list(structs), {}
    for key, specs in pinned.items():
        at = _place(key, call, parameters)
        if at in keys:
            raise ValueError(f"pinned names one argument twice, as {keys[at]!r} and {key!r}; take one out")
        keys[at] = key
        what = call.dynamic[at].name
        leaves, tree = jax.tree_util.tree_flatten_with_path(structs[at])
        wanted = _for_each_leaf(f"pinned[{key!r}]", what, specs, [path for path, _ in leaves])
        each = zip(leaves, wanted, strict=True)
        found[at] = jax.tree.unflatten(
            tree, [_with_sharding(f"{what}{_text(path)}", leaf, spec, mesh, jax_mesh) for (path, leaf), spec in each]
        )
    return tuple(found)


def _place(key: int | str, call: Call, parameters: Parameters) -> int:
    """Returns which of the arguments that are not static a key of `pinned` names."""
    places = {each: at for at, each in enumerate(call.dynamic)}
    for each in call.arguments:
        if key == (each.name if isinstance(key, str) else each.number):
            if each.is_static:
                raise ValueError(f"pinned names {key!r}, a static argument; only arrays have shardings: take it out")
            return places[each]
    if isinstance(key, str):
        raise ValueError(f"pinned names {key!r}, and {_known(key, call.arguments, parameters)}")
    if isinstance(key, int):
        raise ValueError(f"pinned names argument {key}, and there are {len(call.arguments)}; they count from 0")
    raise ValueError(f"pinned has {key!r} where the number of an argument or its name has to be")


def _known(key: str, arguments: Sequence[Argument], parameters: Parameters) -> str:
    if key in parameters.names:
        return "the call leaves it at its default: give it, or take it out of pinned"
    names = [*parameters.names, *(each.name for each in arguments if each.name not in parameters.names)]
    close = difflib.get_close_matches(key, names, 1)
    hint = f"; do you mean {close[0]}?" if close else "; write one of those, or a number"
    return f"the parameters of the function are {', '.join(names)}{hint}"


def _for_each_leaf(where: str, what: str, specs: Any, paths: Sequence[tuple]) -> list[Any]:
    """Returns what is asked for of each leaf of an argument, whose paths in it are given.

    A PartitionSpec counts for all leaves below its place.
    """
    import jax

    def ends(each) -> bool:
        return each is None or isinstance(each, jax.sharding.PartitionSpec)

    given = jax.tree_util.tree_flatten_with_path(specs, is_leaf=ends)[0]
    for path, spec in given:
        if not ends(spec):
            raise ValueError(
                f"{where}{_text(path)} has {spec!r} where a PartitionSpec has to be, such as PartitionSpec()"
            )
        if spec is not None and not any(leaf[: len(path)] == path for leaf in paths):
            has = _some([f"{what}{_text(leaf)}" for leaf in paths])
            raise ValueError(f"{where} has {_text(path)}, and the argument has {has}; {_LIKE_IT}")
    found = []
    for leaf in paths:
        above = [spec for path, spec in given if leaf[: len(path)] == path]
        if not above:
            has = _some([_text(path) for path, _ in given]) or "nothing"
            raise ValueError(
                f"{where} has {has}, and nothing for {what}{_text(leaf)}; {_LIKE_IT}, or None for what is free"
            )
        found.append(above[0])
    return found


_LIKE_IT = "write one PartitionSpec for the whole argument, or a tree like it"


def _with_sharding(what: str, struct: Any, spec: Any, mesh: Mesh, jax_mesh: Any) -> Any:
    """Returns the shape and type of an array with its sharding. Raises: ValueError if it cannot have that."""
    import jax

    if spec is None:
        return struct
    if problem := _problem(struct.shape, spec, mesh):
        kind = f"{struct.dtype}[{','.join(map(str, struct.shape))}]"
        raise ValueError(f"pinned: {spec} of {what}, {kind}, {problem}")
    sharding = jax.sharding.NamedSharding(jax_mesh, spec)
    return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=sharding, weak_type=struct.weak_type)


def _problem(shape: Sequence[int], spec: Any, mesh: Mesh) -> str:
    """Returns in words why an array of a shape cannot have a PartitionSpec; empty if it can."""
    if len(spec) > len(shape):
        return f"has {len(spec)} entries for {len(shape)} dimensions; write at most {len(shape)}"
    sizes, used = dict(mesh.axes), set()
    for dim, entry in enumerate(spec):
        axes = (entry,) if isinstance(entry, str) else entry if isinstance(entry, tuple) else ()
        for axis in axes:
            if axis not in sizes:
                return f"names the axis {axis}, and the mesh has {', '.join(sizes)}; write one of those"
            if axis in used:
                return f"names the axis {axis} twice, and an axis splits one dimension; take one out"
            used.add(axis)
        parts = math.prod(sizes[axis] for axis in axes)
        if shape[dim] % parts:
            given = ", ".join(f"{axis}={sizes[axis]}" for axis in axes)
            return (
                f"splits dimension {dim} of size {shape[dim]} over {given}, which does not divide it; write None there"
            )
    return ""


def _text(path: tuple) -> str:
    import jax

    return jax.tree_util.keystr(path)


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")
