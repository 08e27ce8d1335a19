# SPDX-License-Identifier: Apache-2.0
"""Arguments of a program whose shardings belong together, by the names that JAX gives them.

A parameter stands in a program more than once: in each layer, beside it as the momentum of an optimizer, and as the
updated one among the results. Their shardings come from one PartitionSpec, so a group has all of them: arguments and
results of one shape with one sharding, whose paths are alike but for numbers. A path is alike, too, if it only has more
in front: `opt_state[0].mu['head']` goes with `params['head']`.

A group with results is *state*: what the program returns stays in its sharding from step to step. Others make the rest,
in the sharding that it has today.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

from ..ir.functions import functions_of, public_functions, signature
from ..ir.ops import shape_of
from ..platform.bindings import ir
from ..platform.typed import present
from ..shardings.annotations import Annotation
from ..shardings.sdy_shardings import mesh_of, module_meshes, sharding_from_attr
from ..shardings.value_layouts import stated_arguments, stated_results
from .named_values import name_of

_KEY = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|([^\]]*))\]|\.(\w+)")
_INDEX = re.compile(r"\[\d+\]")
_LAYER = re.compile(r"(?<=_)\d+(?=['\"\]./]|$)")  # the number of a layer, as in `layers_3` and `block_0/mlp`
_RESULT_INFO = "jax.result_info"
_ALIASED = "tf.aliasing_output"
_ANY = "*"
_WRAPPERS = ("value",)  # the last key of a parameter that is an object with an array in it

_Path = tuple[str, ...]
_Kind = tuple[tuple[int, ...], Sharding, Mesh]


@dataclass(slots=True)
class _Group:
    """Arguments and results that belong together. `name` is that of the first argument, with `*` for numbers."""

    name: str
    path: _Path
    kind: _Kind
    types: dict[str, None] = field(default_factory=dict)
    arguments: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def has(self, path: _Path) -> bool:
        return bool(path) and path[-len(self.path) :] == self.path


def argument_groups(module: ir.Module, first: int = 0) -> list[Annotation]:
    """Returns the groups of arguments with a sharding that may change, in the order of their first arguments.

    Args:
      first: the number of the first group among the module's annotations.
    Returns: none for a module that has several public functions.
    """
    mains = public_functions(functions_of(module.operation))
    if len(mains) != 1:
        return []
    main, meshes = mains[0], module_meshes(module)
    groups: dict[_Kind, list[_Group]] = {}
    arguments = list(enumerate(main.regions[0].blocks[0].arguments))
    named = [(number, name_of(argument) or f"argument {number}", argument) for number, argument in arguments]
    stated = stated_arguments(main)
    for number, name, argument in sorted(named, key=lambda each: len(path_of(each[1]))):
        kind = _kind(argument.type, stated[number], meshes)
        if kind is not None:
            group = _joined(groups.setdefault(kind, []), name, kind)
            group.types[str(argument.type)] = None
            group.arguments.append(number)
    _add_results(main, meshes, groups)
    made = sorted((each for some in groups.values() for each in some), key=lambda group: min(group.arguments))
    return [_annotation(first + number, group) for number, group in enumerate(made)]


def path_of(name: str) -> _Path:
    """Returns the keys of a name behind its root, with `*` for numbers; the root itself if there are none.

    Example:
      >>> path_of("state[1]['mu']['layers_3']['down'].value"), path_of("tokens")
      (('mu', 'layers_*', 'down'), ('tokens',))
    """
    keys = ["".join(found) for found in _KEY.findall(name)]
    path = [_ANY if key.isdigit() else _LAYER.sub(_ANY, key) for key in keys]
    while path and path[0] == _ANY:
        del path[0]
    while len(path) > 1 and path[-1] in _WRAPPERS:
        del path[-1]
    return tuple(path) or (_root(name),)


def _root(name: str) -> str:
    return _KEY.sub("", name)


def _kind(type_: ir.Type, stated: ir.Attribute | None, meshes: dict[str, Mesh]) -> _Kind | None:
    """Returns what members of a group have in common; None for an array whose sharding cannot change."""
    shape = shape_of(type_)
    mesh = None if stated is None else mesh_of(stated, meshes)
    if stated is None or mesh is None or not shape or min(shape) < 0:
        return None
    sharding = sharding_from_attr(stated)
    return None if sharding.unreduced else (tuple(shape), sharding, mesh)


def _joined(groups: list[_Group], name: str, kind: _Kind) -> _Group:
    """Returns the group of a name; a new one, which is added, if it has none. Shorter paths come first."""
    path = path_of(name)
    found = next((each for each in groups if each.has(path)), None)
    if found is None:
        found = _Group(_LAYER.sub(_ANY, _INDEX.sub(f"[{_ANY}]", name)), path, kind)
        groups.append(found)
    return found


def _add_results(main: ir.Operation, meshes: dict[str, Mesh], groups: dict[_Kind, list[_Group]]) -> None:
    """Adds the results that are updated arguments: those that take an argument's place, or have its path."""
    types = signature(main).results
    named = [_text(each, _RESULT_INFO) for each in _attributes(main, "res_attrs", len(types))]
    every = [group for some in groups.values() for group in some]
    aliased = _aliased_results(main)
    by_number = {aliased[argument]: group for group in every for argument in group.arguments if argument in aliased}
    for number, (type_, stated) in enumerate(zip(types, stated_results(main), strict=True)):
        kind = _kind(type_, stated, meshes)
        if stated is not None and kind is None:
            continue
        path = path_of(named[number]) if _KEY.search(named[number]) else ()
        able = [each for each in every if kind == each.kind or stated is None and str(type_) in each.types]
        group = by_number.get(number)
        group = group if group in able else next((each for each in able if each.has(path)), None)
        if group is not None:
            group.results.append(number)


def _aliased_results(main: ir.Operation) -> dict[int, int]:
    """Returns the result that takes the place of each donated argument."""
    attributes = enumerate(_attributes(main, "arg_attrs", len(signature(main).inputs)))
    return {number: ir.IntegerAttr(each[_ALIASED]).value for number, each in attributes if each and _ALIASED in each}


def _attributes(function: ir.Operation, name: str, count: int) -> Sequence[ir.DictAttr | None]:
    if name not in function.attributes:
        return [None] * count
    return [ir.DictAttr(each) for each in ir.ArrayAttr(function.attributes[name])]


def _text(attributes: ir.DictAttr | None, name: str) -> str:
    return ir.StringAttr(attributes[name]).value if attributes and name in attributes else ""


def _annotation(number: int, group: _Group) -> Annotation:
    shape, sharding, mesh = group.kind
    return Annotation(
        number,
        None,
        False,
        sharding,
        mesh,
        tuple(group.types),
        (shape,),
        ops=(),
        name=group.name,
        arguments=_numbers(group.arguments),
        results=_numbers(group.results),
    )


def _numbers(found: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(present(each) for each in found))
