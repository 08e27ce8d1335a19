# SPDX-License-Identifier: Apache-2.0
"""Reduces a failing recipe: removes parts as long as the program still fails."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping

from programs import _outer_names, bodies_of


def reduced(recipe: Mapping, check: Callable[[Mapping], Mapping], kinds: set[str]) -> dict:
    """Returns the smallest recipe found that still fails in one of the ways of `kinds`.

    Args:
      check: recipe -> outcome.
    """
    best, is_smaller = copy.deepcopy(dict(recipe)), True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(best):
            if _fails(check(candidate), kinds):
                best, is_smaller = candidate, True
                break
    return best


def _fails(outcome: Mapping, kinds: set[str]) -> bool:
    return not outcome["invalid"] and any(kind in kinds for kind, _ in outcome["failures"])


def _smaller(recipe: dict) -> Iterator[dict]:
    """Yields the recipes that are one change smaller, the larger changes first."""
    for changes in (_with_simpler_ends, _with_fewer_steps, _with_simpler_bodies, _with_fewer_layouts):
        yield from changes(recipe)


def _with_simpler_ends(recipe: dict) -> Iterator[dict]:
    """Yields the recipe without its gradient, without one output, without donation and without its device order."""
    if recipe["grad"]:
        yield _edited(recipe, lambda new: new.update(grad=False))
    for number in range(len(recipe["outputs"])):
        if len(recipe["outputs"]) > 1:
            yield _edited(recipe, lambda new: new["outputs"].pop(number))
    if recipe["donate"]:
        yield _edited(recipe, lambda new: new.update(donate=[]))
    if recipe["device_order"]:
        yield _edited(recipe, lambda new: new.update(device_order=None))


def _with_fewer_steps(recipe: dict) -> Iterator[dict]:
    """Yields the recipe with one step replaced by an input, then by an earlier value of the same type."""
    for number in range(len(recipe["steps"])):
        yield _edited(recipe, lambda new: _replace_by_input(new, number))
    for number in range(len(recipe["steps"])):
        same = _earlier_alike(recipe, number)
        if same is not None:
            yield _edited(recipe, lambda new: _rename(new, new["steps"].pop(number)["name"], same))


def _with_simpler_bodies(recipe: dict) -> Iterator[dict]:
    """Yields the recipe with one step less in the body of a loop or branch, or with one result that is a parameter."""
    for path in _bodies(recipe):
        body = _at(recipe, path)
        for number in range(len(body["steps"])):
            same = _alike_in_body(recipe, body, number)
            if same is not None:
                yield _edited(recipe, lambda new: _drop_step(_at(new, path), number, same))
        for number, (name, parameter) in enumerate(zip(body["results"], body["params"])):
            if name != parameter:
                yield _edited(recipe, lambda new: _at(new, path)["results"].__setitem__(number, parameter))


def _with_fewer_layouts(recipe: dict) -> Iterator[dict]:
    """Yields the recipe without one layout, without one constraint, and with one loop that runs once."""
    for group in ("inputs", "outputs"):
        for number, each in enumerate(recipe[group]):
            if each["spec"] is not None:
                yield _edited(recipe, lambda new: new[group][number].update(spec=None))
    for number, step in enumerate(recipe["steps"]):
        if step["options"].get("between"):
            yield _edited(recipe, lambda new: new["steps"][number]["options"]["between"].pop())
        if step["options"].get("trips", 1) > 1:
            yield _edited(recipe, lambda new: new["steps"][number]["options"].update(trips=1))


def _drop_step(body: dict, number: int, same: str) -> None:
    """Removes a step of a body; the value `same` replaces its value."""
    _rename(body, body["steps"].pop(number)["name"], same)


def _edited(recipe: dict, edit: Callable[[dict], object]) -> dict:
    new = copy.deepcopy(recipe)
    edit(new)
    return _without_dead_code(new)


def _replace_by_input(recipe: dict, number: int) -> None:
    step = recipe["steps"].pop(number)
    shape, dtype = step["kind"]
    recipe["inputs"].append({"name": step["name"], "shape": shape, "dtype": dtype, "spec": None})


def _earlier_alike(recipe: dict, number: int) -> str | None:
    step = recipe["steps"][number]
    kinds = _kinds(recipe)
    earlier = [each["name"] for each in recipe["inputs"]] + [each["name"] for each in recipe["steps"][:number]]
    return next((name for name in [*step["args"], *earlier] if name in earlier and kinds[name] == step["kind"]), None)


def _alike_in_body(recipe: dict, body: dict, number: int) -> str | None:
    step, kinds = body["steps"][number], {each["name"]: each["kind"] for each in body["steps"]}
    kinds |= _kinds(recipe)
    own = set(body["params"])
    fitting = [name for name in step["args"] if name in kinds and kinds[name] == step["kind"]]
    # The recipe does not hold the kinds of parameters; elementwise steps have the kind of their argument.
    return next(iter(fitting), None) or next((name for name in step["args"] if name in own), None)


def _kinds(recipe: dict) -> dict[str, list]:
    found = {each["name"]: [each["shape"], each["dtype"]] for each in recipe["inputs"]}
    return found | {each["name"]: each["kind"] for each in recipe["steps"]}


def _bodies(recipe: dict) -> list[tuple]:
    found: list[tuple] = []

    def visit(steps, path) -> None:
        for number, step in enumerate(steps):
            for which, body in enumerate(bodies_of(step)):
                here = (*path, number, which)
                found.append(here)
                visit(body["steps"], here)

    visit(recipe["steps"], ())
    return found


def _at(recipe: dict, path: tuple) -> dict:
    steps, body = recipe["steps"], recipe
    for number, which in zip(path[::2], path[1::2]):
        body = bodies_of(steps[number])[which]
        steps = body["steps"]
    return body


def _rename(where: dict, old: str, new: str) -> None:
    for step in where["steps"]:
        step["args"] = [new if each == old else each for each in step["args"]]
        for body in bodies_of(step):
            _rename(body, old, new)
    if "results" in where:
        where["results"] = [new if each == old else each for each in where["results"]]
    for output in where.get("outputs", ()):
        output["value"] = new if output["value"] == old else output["value"]


def _without_dead_code(recipe: dict) -> dict:
    used = {each["value"] for each in recipe["outputs"]}
    recipe["steps"] = _live(recipe["steps"], used)
    recipe["inputs"] = [each for each in recipe["inputs"] if each["name"] in used]
    recipe["donate"] = [name for name in recipe["donate"] if name in used]
    return recipe


def _live(steps: list[dict], used: set[str]) -> list[dict]:
    kept = []
    for step in reversed(steps):
        if step["name"] not in used:
            continue
        kept.insert(0, step)
        used |= set(step["args"])
        for body in bodies_of(step):
            body["steps"] = _live(body["steps"], set(body["results"]))
            used |= _outer_names(body)
    return kept
