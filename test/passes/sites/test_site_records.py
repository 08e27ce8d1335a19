# SPDX-License-Identifier: Apache-2.0
"""Site records on disk: with a record no site is planned or judged again; a damaged record counts as missing."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla import child as xla_child
from reshard.dialect_utils.xla.child import Compiled, KindCount
from reshard.passes.driver import stores
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites import site_plans

MODULE = """
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {"x"}]> : tensor<8x8xf32>
  %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
"""  # noqa: E501
PIPELINE = "find-mismatches,plan-sites{layout-check=off}"
CHEAP = Compiled(
    "ok", bytes_received=1, largest_collective_tile_bytes=1, collectives=(KindCount("all-to-all", 1, 1),), temp_bytes=0
)
DEAR = Compiled(
    "ok",
    bytes_received=9999,
    largest_collective_tile_bytes=9999,
    collectives=(KindCount("all-gather", 5, 5),),
    temp_bytes=0,
)


class Child:
    """Takes the place of XLA: a module without islands is expensive."""

    def __init__(self, passes: bool = False):
        self.asked, self.passing_answers, self._passes = 0, 0, passes

    def propagate(self, module: str, num_devices: int) -> Compiled:
        return self.compile(module, num_devices)

    def prepare(self, num_devices) -> None:
        pass

    def foresee(self, requests) -> None:
        """Nothing is foreseen, so that `asked` counts what was needed."""

    def compile(self, module: str, num_devices: int, **_) -> Compiled:
        self.asked += 1
        self.passing_answers += self._passes
        return CHEAP if "sdy.manual_computation" in module else DEAR


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("RESHARD_CACHE", raising=False)
    return tmp_path


@pytest.fixture
def planned(monkeypatch) -> list:
    """Returns the list of the arguments of each call of the planner."""
    found, plan = [], site_plans.site_plan
    monkeypatch.setattr(site_plans, "site_plan", lambda *asked: found.append(asked) or plan(*asked))
    return found


def run(monkeypatch, child: Child, given: str = "", **options) -> tuple[str, list[dict]]:
    """Returns the module with its findings, and the report's rows."""
    monkeypatch.setattr(xla_child, "shared_child", lambda: child)
    session = Session(RunOptions(**options))
    module = ir.Module.parse(MODULE, make_context())
    Pipeline.parse(PIPELINE.replace("layout-check=off", f"layout-check=off {given}".strip())).run(module, session)
    return str(module), session.results.report_rows


def records(root: Path) -> list[Path]:
    return sorted(root.glob("sites-*/*.entry"))


def test_what_a_record_has_is_neither_planned_nor_asked_again(root, monkeypatch, planned):
    first = Child()
    fresh = run(monkeypatch, first)
    assert {row["verdict"] for row in fresh[1]} == {"rewrite"} and first.asked and planned
    assert len(records(root)) == 1
    planned.clear()
    second = Child()
    assert run(monkeypatch, second) == fresh
    assert not second.asked and not planned


@pytest.mark.parametrize("damage", [b"", b"no digest", b"cut", b"changed"])
def test_a_record_that_is_not_what_was_written_is_none(root, monkeypatch, damage):
    fresh = run(monkeypatch, Child())
    (path,) = records(root)
    entry = path.read_bytes()
    path.write_bytes({b"cut": entry[:-9], b"changed": entry.replace(b"9999", b"9998")}.get(damage, damage))
    child = Child()
    assert run(monkeypatch, child) == fresh
    assert child.asked and path.read_bytes() == entry


def test_another_policy_asks_xla_nothing_new(root, monkeypatch):
    """What is on disk are the answers of XLA; the verdicts on them are made anew."""
    verdicts = {}
    for policy in ("better", "strict"):
        child = Child()
        rows = run(monkeypatch, child, f"policy={policy}")[1]
        verdicts[policy] = [row["reason"] for row in rows]
        assert bool(child.asked) == (policy == "better")
    assert verdicts["strict"] and all(reason.startswith("better than stock XLA in") for reason in verdicts["strict"])


def test_plans_for_another_network_or_another_memory_are_other_questions(root, monkeypatch, planned):
    for count, option in enumerate(("", "topology=h100:2x2", "memory-limit=4096"), 1):
        planned.clear()
        for is_first in (True, False):
            child = Child()
            run(monkeypatch, child, option)
            assert (bool(child.asked), bool(planned)) == (is_first, is_first)
            planned.clear()
        assert len(records(root)) == count


def test_a_pipe_in_place_of_a_record_is_not_waited_for(root, monkeypatch):
    fresh = run(monkeypatch, Child())
    (path,) = records(root)
    entry = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    assert run(monkeypatch, Child()) == fresh
    assert path.read_bytes() == entry


def test_another_reshard_has_other_records(root, monkeypatch):
    for number in (1, 2):
        monkeypatch.setattr(stores, "SITES", replace(stores.SITES, facts=lambda: number))
        child = Child()
        run(monkeypatch, child)
        assert child.asked
    assert len(records(root)) == 2


def test_answers_that_may_pass_are_not_kept(root, monkeypatch):
    run(monkeypatch, Child(passes=True))
    assert not records(root)


def test_answers_of_a_child_of_the_callers_are_not_kept(root, monkeypatch):
    run(monkeypatch, Child(), xla_child=Child())
    assert not records(root)


def test_without_a_cache_there_are_no_records(root, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", "off")
    child = Child()
    fresh = run(monkeypatch, child)
    asked = child.asked
    assert run(monkeypatch, child) == fresh
    assert child.asked == 2 * asked and not records(root)


def test_a_place_that_cannot_be_written_keeps_nothing(root, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(root / "file" / "below"))
    (root / "file").write_text("")
    assert run(monkeypatch, Child()) == run(monkeypatch, Child())
