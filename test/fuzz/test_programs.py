# SPDX-License-Identifier: Apache-2.0
"""Random JAX programs against stock XLA, and the fuzzer's own parts. `test/fuzz/run.py` runs more of them."""

import json

import pytest

import programs
from reducing import reduced
from run import Worker, failing_kinds

QUICK = [*range(300, 308)]
SLOW = [*range(400, 450)]


@pytest.fixture(scope="module")
def worker():
    with Worker() as worker:
        yield worker


def assert_passes(worker: Worker, seed: int, policy: str) -> dict:
    outcome = worker.check(programs.recipe(seed), policy)
    assert not outcome["invalid"] and not outcome["failures"], "\n".join(": ".join(each) for each in outcome["failures"])
    return outcome


@pytest.mark.parametrize("seed", QUICK)
def test_random_program(worker, seed):
    assert_passes(worker, seed, "always")
    assert_passes(worker, seed, "better")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["better", "always"])
@pytest.mark.parametrize("seed", SLOW)
def test_random_program_of_many(worker, seed, policy):
    assert_passes(worker, seed, policy)


def test_a_seed_gives_one_recipe_that_is_plain_data():
    recipe = programs.recipe(5)
    assert json.loads(json.dumps(recipe)) == recipe == programs.recipe(5)


def test_every_construct_with_a_body_is_drawn():
    recipes = map(programs.recipe, range(60))
    drawn = {step["op"] for recipe in recipes for step in recipe["steps"] if programs.bodies_of(step)}
    assert drawn == {"fori", "while", "scan", "switch", "call", "vmap"}


def test_a_worker_that_dies_is_a_failure_and_is_started_again(worker):
    assert failing_kinds(worker.check({"seed": 300}, "better")) == {"died"}
    assert_passes(worker, 300, "better")


def test_partial_sums_rounded_to_bfloat16_are_no_failure(worker):
    """Stock XLA gathers the operands of this dot; after the rewrite it adds partial sums, each rounded to bfloat16."""
    made = [("v2", "sin", "v1", {}, [4, 16, 8]), ("v3", "constraint", "v2", {"spec": [None, "x", "y"]}, [4, 16, 8])]
    made += [("v4", "reshape", "v3", {"shape": [2, 2, 16, 8]}, [2, 2, 16, 8])]
    steps = [{"name": n, "op": op, "args": [a], "options": o, "kind": [s, "bfloat16"]} for n, op, a, o, s in made]
    dot = {"name": "v5", "op": "dot", "args": ["v0", "v4"], "options": {"contract": [0, 2], "batch": []}}
    recipe = {
        "seed": 230,
        "mesh": {"x": 2, "y": 4},
        "device_order": None,
        "inputs": [
            {"name": "v0", "shape": [16, 8], "dtype": "bfloat16", "spec": ["y", None]},
            {"name": "v1", "shape": [4, 16, 8], "dtype": "bfloat16", "spec": None},
        ],
        "steps": [*steps, {**dot, "kind": [[8, 2, 2, 8], "bfloat16"]}],
        "outputs": [{"value": "v5", "spec": ["y", None, None, None], "exact": False}],
        "donate": [],
        "grad": False,
    }
    outcome = worker.check(recipe, "always")
    assert outcome["rewritten"] and not outcome["failures"], outcome["failures"]


def test_what_stock_alone_computes_wrongly_is_counted_and_is_no_failure(worker):
    """Stock XLA does not clamp the offset of an update along a dimension that it splits; the update is lost."""
    step = {"name": "v2", "op": "dynamic_update_slice", "args": ["v0", "v1"], "options": {"axis": 1, "size": 1}}
    recipe = {
        "seed": 708,
        "mesh": {"x": 4, "y": 2},
        "device_order": None,
        "inputs": [
            {"name": "v0", "shape": [8, 2], "dtype": "float32", "spec": [["x", "y"], None]},
            {"name": "v1", "shape": [], "dtype": "int32", "spec": None},
        ],
        "steps": [{**step, "kind": [[8, 2], "float32"]}],
        "outputs": [{"value": "v2", "spec": [None, "y"], "exact": True}],
        "donate": [],
        "grad": False,
    }
    assert programs.Program(recipe).arguments()[1] % 8 > 1, "the offset is within the array"
    outcome = worker.check(recipe, "always")
    assert outcome["stock_wrong"] == 1 and not outcome["failures"], outcome["failures"]


def test_a_failing_recipe_is_reduced_to_the_step_that_fails():
    recipe = next(each for each in map(programs.recipe, range(100)) if _has(each, "dot") and len(each["steps"]) > 5)

    def check(candidate):
        return {"invalid": "", "failures": [["values", ""]] if _has(candidate, "dot") else []}

    smallest = reduced(recipe, check, {"values"})
    assert [step["op"] for step in smallest["steps"]] == ["dot"] and len(smallest["outputs"]) == 1


def _has(recipe, op: str) -> bool:
    return any(step["op"] == op for step in recipe["steps"])
