# SPDX-License-Identifier: Apache-2.0
"""Random JAX programs against stock XLA, and the fuzzer's own parts. `test/fuzz/run.py` runs more of them."""

import json

import extended
import numpy as np
import programs
import pytest
from reducing import reduced
from run import Journal, Worker, _parser, failing_kinds

QUICK = [*range(300, 308)]
SLOW = [*range(400, 450)]
EXTENDED, SLOW_EXTENDED = [1000, 1003], [*range(1004, 1034)]


@pytest.fixture(scope="module")
def worker():
    with Worker() as worker:
        yield worker


def assert_passes(worker: Worker, seed: int, policy: str, draw=programs.recipe) -> dict:
    outcome = worker.check(draw(seed), policy)
    assert not outcome["invalid"] and not outcome["failures"], "\n".join(
        ": ".join(each) for each in outcome["failures"]
    )
    return outcome


@pytest.mark.mostly_slow
@pytest.mark.parametrize("seed", QUICK)
def test_random_program(worker, seed):
    assert_passes(worker, seed, "always")
    assert_passes(worker, seed, "better")


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["better", "always"])
@pytest.mark.parametrize("seed", SLOW)
def test_random_program_of_many(worker, seed, policy):
    assert_passes(worker, seed, policy)


@pytest.mark.slow
@pytest.mark.parametrize("seed", EXTENDED)
def test_random_program_of_extended_operations(worker, seed):
    assert_passes(worker, seed, "always", extended.recipe)
    assert_passes(worker, seed, "better", extended.recipe)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW_EXTENDED)
def test_random_program_of_extended_operations_of_many(worker, seed):
    assert_passes(worker, seed, "always", extended.recipe)
    assert_passes(worker, seed, "better", extended.recipe)


@pytest.mark.parametrize("draw", [programs.recipe, extended.recipe])
def test_a_seed_gives_one_recipe_that_is_plain_data(draw):
    recipe = draw(5)
    assert json.loads(json.dumps(recipe)) == recipe == draw(5)


@pytest.mark.slow
def test_every_construct_with_a_body_is_drawn():
    recipes = map(programs.recipe, range(60))
    drawn = {step["op"] for recipe in recipes for step in recipe["steps"] if programs.bodies_of(step)}
    assert drawn == {"fori", "while", "scan", "switch", "call", "vmap"}


@pytest.mark.slow
def test_a_worker_that_dies_is_a_failure_and_is_started_again(worker):
    assert failing_kinds(worker.check({"seed": 300}, "better")) == {"died"}
    assert_passes(worker, 300, "better")


def test_seeds_of_base_programs_draw_nothing_that_is_extended():
    drawn = {name for seed in range(60) for name in _ops_in(programs.recipe(seed)["steps"])}
    assert drawn and not [name for name in drawn if programs.OPS[name].group == extended.GROUP]


@pytest.mark.slow
def test_every_extended_operation_is_drawn_and_in_bodies_too():
    recipes = [extended.recipe(seed) for seed in range(180)]
    drawn = {name for recipe in recipes for name in _ops_in(recipe["steps"])}
    assert {name for name, op in programs.OPS.items() if op.group == extended.GROUP} <= drawn
    bodies = [body for recipe in recipes for step in recipe["steps"] for body in programs.bodies_of(step)]
    inner = {name for body in bodies for name in _ops_in(body["steps"])}
    assert len([name for name in inner if programs.OPS[name].group == extended.GROUP]) > 8, inner


@pytest.mark.slow
def test_most_extended_programs_use_a_constrained_value_more_than_once():
    assert sum(_has_shared_constraint(extended.recipe(seed)) for seed in range(60)) > 40


def _has_shared_constraint(recipe) -> bool:
    constraints = [step for step in recipe["steps"] if step["op"] == "constraint"]
    constrained = {step["name"]: (step["args"][0], str(step["options"])) for step in constraints}
    used = [constrained[name] for step in recipe["steps"] for name in {*step["args"]} if name in constrained]
    return len(used) > len(set(used))


def test_constraints_of_extended_programs_split_what_they_do_not_divide():
    assert sum(_has_uneven_constraint(extended.recipe(seed)) for seed in range(60)) > 20


def _has_uneven_constraint(recipe) -> bool:
    kinds = {each["name"]: each["kind"][0] for each in recipe["steps"]}
    specs = [(kinds[each["name"]], each["options"]["spec"]) for each in recipe["steps"] if each["op"] == "constraint"]
    dims = [dim for shape, spec in specs for dim in zip(shape, spec, strict=True)]
    shards = [(size, [recipe["mesh"][axis] for axis in programs._axes(entry)]) for size, entry in dims]
    return any(size % int(np.prod(sizes)) for size, sizes in shards)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2020))
def test_what_counts_as_exact_is_whole_and_small(seed):
    """Every output that counts as exact holds small whole numbers on one device.

    Otherwise a sum in another order would count as a wrong value.
    """
    recipe = extended.recipe(seed)
    writer_says = {each["value"]: each["exact"] for each in recipe["outputs"]}
    for value, each in zip(programs.Program({**recipe, "grad": False}).unsharded(), recipe["outputs"], strict=True):
        if not writer_says[each["value"]] or value.dtype.kind in "bi":
            continue
        parts = np.stack([value.real, value.imag]) if value.dtype.kind == "c" else value.astype(np.float64)
        finite = parts[np.isfinite(parts)]
        assert np.array_equal(finite, np.round(finite)) and np.abs(finite).max(initial=0) <= 2.0**24


def test_a_run_goes_on_from_its_journal(tmp_path):
    """The journal keeps policies and kinds of programs apart, and ignores an incomplete last line."""
    flags = _parser().parse_args(["--ops", "extended", "--policy", "both", "--journal", str(tmp_path / "journal")])
    journal = Journal(flags)
    assert not journal.known
    journal.add("better", {"seed": 7, "failures": []})
    with flags.journal.open("a") as file:
        file.write('{"ops": "ext')
    again = Journal(flags)
    assert again.has("better", 7) and not again.has("always", 7) and [each["seed"] for each in again.known] == [7]
    again.add("always", {"seed": 7, "failures": []})
    assert Journal(flags).has("always", 7)
    assert not Journal(_parser().parse_args(["--journal", str(flags.journal)])).has("better", 7)


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


def test_what_is_wrong_in_stock_and_ours_alike_is_noted_where_one_device_is_asked(worker):
    """The program is the gradient of a pool with overlapping windows, in shards that do not divide the array."""
    window = {
        "sizes": [1, 2, 2],
        "strides": [2, 1, 1],
        "padding": [[0, 0], [0, 0], [1, 1]],
        "window_dilation": [1, 1, 1],
    }
    pool = {
        "name": "v2",
        "op": "pool_gradient",
        "args": ["v1"],
        "options": {**window, "does": "min", "mode": "backward"},
    }
    constraint = {"name": "v1", "op": "constraint", "args": ["v0"], "options": {"spec": ["x", "z", "y"]}}
    recipe = {
        "seed": 1058,
        "mesh": {"x": 2, "y": 2, "z": 2},
        "device_order": None,
        "inputs": [{"name": "v0", "shape": [8, 12, 5], "dtype": "float32", "spec": None, "spread": 8}],
        "steps": [{**each, "kind": [[8, 12, 5], "float32"]} for each in (constraint, pool)],
        "outputs": [{"value": "v2", "spec": [["z", "y"], "x", None], "exact": True}],
        "donate": [],
        "grad": False,
    }
    outcome = worker.check(recipe, "better", True)
    assert outcome["stock_wrong"] + outcome["wrong_alike"] + outcome["wrong_left"] == 1 and not outcome["failures"], (
        outcome
    )


@pytest.mark.slow
def test_where_stock_xla_compiles_nothing_values_are_checked_unasked(worker):
    """XLA refuses the gradient of the second pool, but compiles it with islands around it.

    XLA then computes the gradient of the first pool wrongly.
    """
    first = {
        "sizes": [3, 3, 2],
        "strides": [3, 1, 1],
        "padding": [[0, 0], [1, 2], [0, 1]],
        "window_dilation": [1, 1, 1],
    }
    second = {
        "sizes": [3, 2, 1],
        "strides": [1, 2, 1],
        "padding": [[0, 2], [0, 0], [0, 0]],
        "window_dilation": [1, 1, 1],
    }
    made = [
        ("v1", "constraint", ["v0"], {"spec": ["y", None, "x"]}, [12, 10, 12]),
        ("v2", "pool_gradient", ["v1"], {**first, "does": "min", "mode": "backward"}, [12, 10, 12]),
        ("v3", "pool_gradient", ["v2"], {**second, "does": "max", "mode": "forward"}, [12, 5, 12]),
    ]
    recipe = {
        "seed": 662,
        "mesh": {"x": 2, "y": 4},
        "device_order": None,
        "inputs": [{"name": "v0", "shape": [12, 10, 12], "dtype": "float32", "spec": None, "spread": 8}],
        "steps": [
            dict(zip(("name", "op", "args", "options", "kind"), (*each[:4], [each[4], "float32"]))) for each in made
        ],
        "outputs": [{"value": "v3", "spec": ["x", None, None], "exact": True}],
        "donate": [],
        "grad": False,
    }
    outcome = worker.check(recipe, "better", True)
    assert not outcome["failures"], outcome
    if outcome["stock"] != "ok":  # a newer XLA may compile it
        assert any("given back" in each for each in outcome["notes"]), outcome


@pytest.mark.slow
def test_no_island_is_put_where_rows_are_written_into_their_own_array(worker):
    """XLA wrote into the result of an island in place, and then read rows that it had overwritten.

    The page docs/upstream/update-in-place.md describes this error.
    """
    made = [("v3", "constraint", ["v0"], {"spec": [None, "y", None]}, [5, 6, 8])]
    made += [("v4", "constraint", ["v1"], {"spec": [None, None, None]}, [2, 2, 8])]
    made += [("v5", "slice", ["v4"], {"axis": 1, "start": 0, "stop": 1, "stride": 1}, [2, 1, 8])]
    made += [("v6", "dynamic_update", ["v3", "v2", "v3"], {"sizes": [3, 6, 8]}, [5, 6, 8])]
    made += [("v7", "constraint", ["v5"], {"spec": ["y", None, "x"]}, [2, 1, 8])]
    shapes = {"v0": [5, 6, 8], "v1": [2, 2, 8], "v2": []}
    specs = {"v6": [None, None, None], "v7": [None, None, "y"]}
    recipe = {
        "seed": 1053,
        "mesh": {"x": 3, "y": 2},
        "device_order": None,
        "inputs": [
            {"name": n, "shape": s, "dtype": "int32", "spec": [None] * len(s), "spread": 50} for n, s in shapes.items()
        ],
        "steps": [{"name": n, "op": op, "args": a, "options": o, "kind": [s, "int32"]} for n, op, a, o, s in made],
        "outputs": [{"value": name, "spec": spec, "exact": True} for name, spec in specs.items()],
        "donate": [],
        "grad": False,
    }
    outcome = worker.check(recipe, "always", True)
    assert not outcome["failures"] and outcome["rewritten"], outcome


def test_a_failing_recipe_is_reduced_to_the_step_that_fails():
    recipe = next(each for each in map(programs.recipe, range(100)) if _has(each, "dot") and len(each["steps"]) > 5)

    def check(candidate):
        return {"invalid": "", "failures": [["values", ""]] if _has(candidate, "dot") else []}

    smallest = reduced(recipe, check, {"values"})
    assert [step["op"] for step in smallest["steps"]] == ["dot"] and len(smallest["outputs"]) == 1


def _has(recipe, op: str) -> bool:
    return any(step["op"] == op for step in recipe["steps"])


def _ops_in(steps) -> list[str]:
    inner = [name for step in steps for body in programs.bodies_of(step) for name in _ops_in(body["steps"])]
    return [*(step["op"] for step in steps), *inner]
