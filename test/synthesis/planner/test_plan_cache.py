# SPDX-License-Identifier: Apache-2.0
"""Plans on disk: the plan is the same with the cache and without it, also with damaged files and other processes."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.conversions.pairs import Pair, random_pairs, random_reductions
from reshard.synthesis.common import store
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner import plan_cache
from reshard.synthesis.planner.canonical import canonical
from reshard.synthesis.planner.entry import Plan
from reshard.synthesis.planner.planner import planned
from reshard.synthesis.plans.request import Request
from reshard.synthesis.search.best_first import tally

ROOT = Path(__file__).resolve().parents[3]
PAIRS = random_pairs(81, 25, (6, 8, 12)) + random_reductions(82, 15, (4, 6, 8))


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty folder for caches, in which plans of any size are kept."""
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("RESHARD_CACHE", raising=False)
    monkeypatch.setattr(plan_cache, "LEAST_EDGES", 0)
    return tmp_path / "cache"


def request_of(pair: Pair, objective="time", topology="h100") -> Request:
    has_sums = bool(pair.source.unreduced or pair.target.unreduced)
    ends, on = (pair.source.closed(), pair.target.closed()), Topology.parse(topology)
    return canonical(Request(pair.mesh, pair.shape, 32, *ends, objective, on, not has_sums, "sum"))


ISSUE = Pair(
    Mesh.parse("x=4,y=2"),
    (16, 16, 16),
    *(Sharding.parse(text) for text in ('[{"y"}, {}, {"x"}]', '[{}, {"x","y"}, {}]')),
)
PENCIL = Pair(
    Mesh.parse("r=4,c=2"), (16, 16, 16), *(Sharding.parse(text) for text in ('[{"r"},{"c"},{}]', '[{},{"r"},{"c"}]'))
)


def entries(root: Path) -> list[Path]:
    return sorted(root.glob("plans-*/*.entry"))


def entry_of(root: Path, request: Request) -> Path:
    """Returns the file of a request, after planning it."""
    plan_cache.planned_or_read(request)
    (path,) = entries(root)
    return path


def content(plan: Plan) -> tuple:
    """Returns the contents of a plan for comparison; an exchange is compared by its text."""
    typed = [repr(step.step) if step.op != "exchange" else step.text for step in plan.steps]
    return plan.to_dict(), plan.is_optimal, typed, plan.tile_program.in_shape, plan.tile_program.out_shape


@pytest.fixture
def no_searches(monkeypatch):
    """Returns a function; after its call a test fails that plans anew instead of reading a plan."""

    def forbid():
        monkeypatch.setattr(plan_cache, "planned", lambda request: pytest.fail("planned anew"))

    return forbid


# ---- the same plan


@pytest.mark.draws
@pytest.mark.parametrize("objective", ["bytes", "time"])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_same_plan_with_and_without_cache(pair, objective, root):
    request = request_of(pair, objective, "uniform")
    without = planned(request)
    assert content(plan_cache.planned_or_read(request)) == content(without)
    read = plan_cache.planned_or_read(request)
    assert content(read) == content(without)
    assert read.tile_program == without.tile_program or "exchange" in read.chain_text


@pytest.mark.parametrize("pair", [ISSUE, PENCIL], ids=str)
def test_what_is_kept_is_read(pair, root, no_searches):
    first = plan_cache.planned_or_read(request_of(pair))
    no_searches()
    assert content(plan_cache.planned_or_read(request_of(pair))) == content(first)


def test_a_chain_with_an_exchange_is_read(root, no_searches):
    request = request_of(PENCIL, "bytes")
    first = plan_cache.planned_or_read(request)
    assert first.chain_text == "exchange in 4 rounds of 4 x [4, 4, 8]"
    no_searches()
    assert content(plan_cache.planned_or_read(request)) == content(first)


def test_only_what_took_work_is_kept(root, monkeypatch):
    before = tally.edges
    planned(request_of(ISSUE))
    work = tally.edges - before
    monkeypatch.setattr(plan_cache, "LEAST_EDGES", work + 1)
    plan_cache.planned_or_read(request_of(ISSUE))
    assert not entries(root)
    monkeypatch.setattr(plan_cache, "LEAST_EDGES", work)
    plan_cache.planned_or_read(request_of(ISSUE))
    assert len(entries(root)) == 1


def test_every_field_of_a_request_counts(root):
    requests = [
        request_of(ISSUE),
        request_of(ISSUE, "bytes"),
        request_of(ISSUE, topology="h100:2x4"),
        request_of(PENCIL),
    ]
    for number, request in enumerate(requests, 1):
        plan_cache.planned_or_read(request)
        assert len(entries(root)) == number


# ---- damaged entries


def _garbage(key: str, entry: bytes) -> dict[str, bytes]:
    body = json.loads(store.opened(key, entry))
    other_steps = {**body, "steps": body["steps"][:-1]}

    def signed(body: dict) -> bytes:
        return store.sealed(key, json.dumps(body, sort_keys=True).encode())

    return {
        "empty": b"",
        "torn": entry[: len(entry) // 2],
        "not JSON": b"\xff\xfe\x00",
        "another JSON": b"[1, 2]",
        "a changed letter": entry.replace(b"all_to_all", b"all_to_alm", 1),
        "nested beyond measure": b"[" * 100_000,
        "steps that lead elsewhere": signed(other_steps),
        "a step that breaks its rule": signed({**body, "steps": body["steps"] * 2}),
        "a step that nobody knows": signed({**body, "steps": [{"op": "teleport"}]}),
        "gathers all": signed({**body, "steps": _through_a_whole_array()}),
        "another request's": store.sealed(store.key("another request"), json.dumps(body).encode()),
    }


def _through_a_whole_array() -> list[dict]:
    x, y = ["axis00", 1, 4], ["axis01", 1, 2]
    return [{"op": "all_gather", "factors": [x, y]}, {"op": "slice", "moves": [[x, [1, 1, 4]], [y, [1, 4, 8]]]}]


KINDS = [
    "empty",
    "torn",
    "not JSON",
    "another JSON",
    "a changed letter",
    "nested beyond measure",
    "steps that lead elsewhere",
]
KINDS += ["a step that breaks its rule", "a step that nobody knows", "gathers all", "another request's"]


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_is_planned_anew_and_replaced(kind, root):
    path = entry_of(root, request_of(ISSUE))
    good = path.read_bytes()
    path.write_bytes(_garbage(path.stem, good)[kind])
    assert content(plan_cache.planned_or_read(request_of(ISSUE))) == content(planned(request_of(ISSUE)))
    assert path.read_bytes() == good


def test_a_folder_in_place_of_an_entry_is_no_obstacle(root):
    path = entry_of(root, request_of(ISSUE))
    path.unlink()
    path.mkdir()
    assert content(plan_cache.planned_or_read(request_of(ISSUE))) == content(planned(request_of(ISSUE)))


def test_a_pipe_in_place_of_an_entry_is_not_waited_for(root):
    path = entry_of(root, request_of(ISSUE))
    good = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    assert content(plan_cache.planned_or_read(request_of(ISSUE))) == content(planned(request_of(ISSUE)))
    assert path.read_bytes() == good


def test_an_interrupt_while_an_entry_is_written_leaves_the_old_one_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "entry"
    store.replace(path, b"old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.replace(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["entry"] and path.read_bytes() == b"old"


# ---- folders that cannot be used


def test_a_place_that_cannot_be_written_is_no_obstacle(root):
    root.parent.mkdir(exist_ok=True)
    root.write_text("a file")
    assert content(plan_cache.planned_or_read(request_of(ISSUE))) == content(planned(request_of(ISSUE)))


@pytest.mark.parametrize("call", ["open", "replace"])
def test_a_full_disk_is_no_obstacle_and_leaves_nothing(call, root, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, call, full)
    assert content(plan_cache.planned_or_read(request_of(ISSUE))) == content(planned(request_of(ISSUE)))
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_no_home_is_no_obstacle(monkeypatch):
    for name in ("RESHARD_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(plan_cache, "LEAST_EDGES", 0)

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(store.Path, "home", nobody)
    assert plan_cache.planned_or_read(request_of(ISSUE)).collectives == 1


@pytest.mark.parametrize("value", ["off", "OFF", "0", "no"])
def test_it_can_be_switched_off(value, root, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", value)
    plan_cache.planned_or_read(request_of(ISSUE))
    assert not root.exists()


# ---- versions, size


def test_another_planner_does_not_read_these_plans(root, monkeypatch):
    path = entry_of(root, request_of(ISSUE))
    monkeypatch.setattr(plan_cache, "PLANS", replace(plan_cache.PLANS, facts=lambda: "another"))
    plan_cache.planned_or_read(request_of(ISSUE))
    assert len(entries(root)) == 2 and path in entries(root)


def test_old_versions_go(root, monkeypatch):
    most = plan_cache.PLANS.limits.versions
    for number in range(most + 3):
        monkeypatch.setattr(plan_cache, "PLANS", replace(plan_cache.PLANS, facts=lambda: number))
        plan_cache.planned_or_read(request_of(ISSUE))
        for age, folder in enumerate(sorted(root.glob("plans-*"))):
            os.utime(folder, (1000 + age, 1000 + age))
    assert len(list(root.glob("plans-*"))) == most


def test_old_entries_go(root, monkeypatch):
    limits = replace(plan_cache.PLANS.limits, entries=3)
    path = entry_of(root, request_of(ISSUE))
    monkeypatch.setattr(plan_cache, "PLANS", replace(plan_cache.PLANS, limits=limits))  # as in another process
    for number in range(10):
        old = path.with_name(f"{number:016x}.tmp" if number % 2 else f"{number:064x}.entry")
        old.write_text("")
        os.utime(old, (1000 + number, 1000 + number))
    path.unlink()
    plan_cache.planned_or_read(request_of(ISSUE))
    assert {each.name for each in path.parent.iterdir()} == {f"{8:064x}.entry", f"{9:016x}.tmp", path.name}


# ---- processes

_PLAN_ALL = """
import sys
from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.planner import plan_cache
from reshard.synthesis.planner.entry import plan
plan_cache.LEAST_EDGES = 1
for pair in random_pairs(83, 40, (6, 8, 12)):
    found = plan(pair.mesh, pair.shape, 32, pair.source, pair.target, objective="time", with_exchange=True)
    print(found.to_dict() | {"versions": 0}, found.tile_program.in_shape)
"""


def _process(seed: int, **environment: str) -> subprocess.Popen:
    search_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    changed = {"PYTHONHASHSEED": str(seed), "PYTHONPATH": search_path, **environment}
    return subprocess.Popen(
        [sys.executable, "-c", _PLAN_ALL], env=os.environ | changed, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_two_processes_at_once_and_one_without_cache_plan_alike(root):
    at_once = [_process(seed, RESHARD_CACHE_DIR=str(root)) for seed in (1, 2)]
    outputs = [process.communicate(timeout=300)[0] for process in at_once]
    outputs.append(_process(3, RESHARD_CACHE_DIR=str(root)).communicate(timeout=300)[0])
    outputs.append(_process(4, RESHARD_CACHE="off").communicate(timeout=300)[0])
    assert outputs[0].count("\n") == 40 and len(set(outputs)) == 1
    assert entries(root) and not list(root.rglob("*.tmp"))
