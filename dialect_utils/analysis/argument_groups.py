# SPDX-License-Identifier: Apache-2.0
"""Arguments of a program whose shardings belong together, by the names that JAX gives them.

*State* are arguments that the program returns as new values. A result is the new value of an argument whose place it
takes, or of one with the same keys: a guess, which needs a donated argument, two named keys, or most arrays of a tree.

A parameter is state in more than one place: in each layer, and beside it as the momentum of an optimizer. Their
shardings come from one PartitionSpec, so a *group* has all of them: state of one shape with one sharding, whose paths
are alike but for the numbers of layers. A path is alike, too, if it has more in front, in another tree:
`opt_state[0].mu['head']` goes with `params['head']`. Arguments that others make are groups by themselves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

from ..ir.functions import functions_of, public_functions, signature
from ..ir.ops import shape_of
from ..platform.bindings import ir
from ..shardings.annotations import Annotation
from ..shardings.sdy_shardings import mesh_of, module_meshes, sharding_from_attr
from ..shardings.value_layouts import stated_arguments, stated_results
from .named_values import name_of

_KEY = re.compile(r"""\[(?:'([^']*)'|"([^"]*)"|(\d+))\]|\.(\w+)""")
_LAYER = re.compile(r"(?<=_)\d+(?=/|$)")  # the number of a layer, as in `layers_3` and `block_0/mlp`
_ESCAPE = re.compile(rb'\\(?:([\\"])|([0-9A-Fa-f]{2}))')
_RESULT_INFO = "jax.result_info"
_ALIASED = "tf.aliasing_output"
_DONOR = "jax.buffer_donor"  # donated to whichever result fits, since XLA chooses the shardings of results
_ANY = "*"
_WRAPPERS = ("value",)  # the last key of a parameter that is an object with an array in it
_TREES = ("params", "model")  # the first key of a tree of parameters inside a larger one
_LEAST_KEYS = 2  # of a result that takes no argument's place, to be the new value of the one with the same keys

_Keys = tuple[str | int, ...]
_Kind = tuple[tuple[int, ...], Sharding, Mesh]


@dataclass(frozen=True, slots=True)
class Name:
    """A name that JAX gives an argument or result: the tree, and the keys behind it, numbers as integers.

    Leading numbers belong to the tree, as in `state[0]`, and so does `params` in front of other keys. `parts` are the
    keys as they are written.
    """

    tree: str
    keys: _Keys
    parts: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Name:
        """Returns the parts of a name.

        Example:
          >>> Name.parse("state[1]['mu']['layers'][3]['down'].value")
          Name(tree='state[1]', keys=('mu', 'layers', 3, 'down'))
        """
        found = list(_KEY.finditer(text))
        if not found or _KEY.sub("", text[found[0].start() :]):
            return cls(text, ())
        keys: list[str | int] = [int(each[3]) if each[3] else each[1] or each[2] or each[4] or "" for each in found]
        while len(keys) > 1 and keys[-1] in _WRAPPERS:
            del keys[-1]
        first = 0
        while first < len(keys) and isinstance(keys[first], int):
            first += 1
        while first < len(keys) - 1 and keys[first] in _TREES:
            first += 1
        tree = text[: found[first].start()] if first < len(keys) else text
        return cls(tree, tuple(keys[first:]), tuple(each[0] for each in found[first : len(keys)]))

    @property
    def named(self) -> int:
        """Returns the number of keys that are no numbers."""
        return sum(isinstance(key, str) for key in self.keys)

    @property
    def path(self) -> tuple[str, ...]:
        """Returns the keys with `*` for numbers of layers, which have other keys behind them; the tree without keys."""
        last = max((at for at, key in enumerate(self.keys) if isinstance(key, str)), default=-1)
        found = []
        for at, key in enumerate(self.keys):
            if isinstance(key, int):
                found.append(_ANY if at < last else f"[{key}]")
            else:
                head, slash, leaf = key.rpartition("/")
                found.append(_LAYER.sub(_ANY, key) if at < last else _LAYER.sub(_ANY, head) + slash + leaf)
        return tuple(found) or (self.tree,)

    @property
    def text(self) -> str:
        """Returns the name for people, with `*` for numbers of layers."""
        shown = zip(self.keys, self.parts, self.path if self.keys else ())
        return self.tree + "".join(
            f"[{_ANY}]" if path == _ANY else part if isinstance(key, int) else part.replace(key, path)
            for key, part, path in shown
        )


@dataclass(slots=True)
class _Argument:
    number: int
    name: Name
    kind: _Kind
    type: str
    is_donated: bool = False
    result: int | None = None


def argument_groups(module: ir.Module, first: int = 0) -> list[Annotation]:
    """Returns the groups of arguments with a sharding that may change, in the order of their first arguments.

    Args:
      first: the number of the first group among the module's annotations.
    Returns: none for a module that has several public functions. Groups of state have results.
    """
    mains = public_functions(functions_of(module.operation))
    if len(mains) != 1:
        return []
    main, meshes = mains[0], module_meshes(module)
    arguments = _arguments(main, meshes)
    _match_results(main, meshes, arguments)
    groups: list[list[_Argument]] = [[each] for each in arguments if each.result is None]
    state = [each for each in arguments if each.result is not None]
    for each in sorted(state, key=lambda each: (len(each.name.path), each.number)):
        joined = next((group for group in groups if group[0].result is not None and _is_alike(group[0], each)), None)
        if joined is None:
            groups.append([each])
        else:
            joined.append(each)
    groups.sort(key=lambda group: min(each.number for each in group))
    return [_annotation(first + number, group) for number, group in enumerate(groups)]


def _arguments(main: ir.Operation, meshes: dict[str, Mesh]) -> list[_Argument]:
    found = []
    stated = stated_arguments(main)
    attributes = _attributes(main, "arg_attrs", len(stated))
    for number, argument in enumerate(main.regions[0].blocks[0].arguments):
        kind = _kind(argument.type, stated[number], meshes)
        if kind is not None:
            name = Name.parse(_unescaped(name_of(argument)) or f"argument {number}")
            held = attributes[number]
            found.append(_Argument(number, name, kind, str(argument.type), held is not None and _DONOR in held))
    return found


def _unescaped(text: str) -> str:
    r"""Returns a text as it was before MLIR printed it.

    Example:
      >>> _unescaped("p['\\C3\\A9']")
      "p['é']"
    """
    return _ESCAPE.sub(lambda each: each[1] or bytes([int(each[2], 16)]), text.encode()).decode(errors="replace")


def _kind(type_: ir.Type, stated: ir.Attribute | None, meshes: dict[str, Mesh]) -> _Kind | None:
    """Returns what members of a group have in common; None for an array whose sharding cannot change."""
    shape = shape_of(type_)
    mesh = None if stated is None else mesh_of(stated, meshes)
    if stated is None or mesh is None or not shape or min(shape) < 0:
        return None
    sharding = sharding_from_attr(stated)
    return None if sharding.unreduced else (tuple(shape), sharding, mesh)


def _is_alike(one: _Argument, other: _Argument) -> bool:
    """Returns whether two arguments are one parameter: in two layers, or in a tree and in one of more keys."""
    if one.kind != other.kind:
        return False
    short, long = one.name.path, other.name.path
    is_inside = one.name.tree != other.name.tree and bool(one.name.keys) and long[-len(short) :] == short
    return short == long or is_inside


def _match_results(main: ir.Operation, meshes: dict[str, Mesh], arguments: list[_Argument]) -> None:
    """Gives arguments the results that are their new values."""
    types, stated = signature(main).results, stated_results(main)
    kinds = [_kind(type_, attr, meshes) for type_, attr in zip(types, stated, strict=True)]
    infos = [_text(each, _RESULT_INFO) for each in _attributes(main, "res_attrs", len(types))]
    names = [Name.parse(each) for each in infos]
    free = set(range(len(types)))

    def may_be(argument: _Argument, result: int) -> bool:
        same = argument.kind == kinds[result] or stated[result] is None and argument.type == str(types[result])
        return same and result in free

    for argument, result in _aliased_results(main).items():
        for each in arguments:
            if each.number == argument and may_be(each, result):
                each.result = result
                free.discard(result)
    by_keys: dict[_Keys, list[int]] = {}
    for number, name in enumerate(names):
        by_keys.setdefault(name.keys, []).append(number)
    guessed: dict[str, list[tuple[_Argument, int]]] = {}
    for each in arguments:
        able = [number for number in by_keys.get(each.name.keys, []) if each.name.named and may_be(each, number)]
        if each.result is None and able:
            guessed.setdefault(each.name.tree, []).append((each, able[0]))
    sizes = Counter(each.name.tree for each in arguments)
    for tree, pairs in guessed.items():
        is_returned = len(pairs) >= _LEAST_KEYS and 2 * len(pairs) > sizes[tree]
        for each, result in pairs:
            if (is_returned or each.is_donated or each.name.named >= _LEAST_KEYS) and result in free:
                each.result = result
                free.discard(result)


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


def _annotation(number: int, group: list[_Argument]) -> Annotation:
    shape, sharding, mesh = group[0].kind
    members = sorted(group, key=lambda each: each.number)
    return Annotation(
        number,
        None,
        False,
        sharding,
        mesh,
        tuple(dict.fromkeys(each.type for each in members)),
        (shape,),
        ops=(),
        names=tuple(dict.fromkeys(each.name.text for each in members)),
        arguments=tuple(each.number for each in members),
        results=tuple(sorted(each.result for each in members if each.result is not None)),
    )
