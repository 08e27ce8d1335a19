# SPDX-License-Identifier: Apache-2.0
"""The checks that run after the pipeline, and their limits."""

from types import SimpleNamespace

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import Compiled
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.dialect_utils.xla.target_devices import places_of_partitions
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import checks, values_check
from reshard.passes.sites.network import topology_of
from reshard.passes.whole_module import check_record, whole_module_check

REWRITTEN = [{"site": 0, "is_rewritten": True}]


@pytest.fixture
def ran(monkeypatch) -> list[tuple]:
    """Replaces both checks by fakes, and returns the list of those that ran, in order.

    Modules are strings here. The fake of the whole-module check adds its result to the session.
    """
    found = []

    def compiled(original, module, pipeline, session, rows, **_):
        found.append(("compiled", original, module))
        failed = Compiled("error", "no compiler")
        session.results.checks.append(check_record.Check(failed, failed, (), False))
        return "compiled module"

    def run(original, module, pipeline, session, rows, **limits):
        found.append(("run", original, module, limits["most_bytes"], limits["is_checked_as_a_whole"]))
        return "run module"

    monkeypatch.setattr(whole_module_check, "check", compiled)
    monkeypatch.setattr(check_record, "needs_values", lambda session: False)
    monkeypatch.setattr(values_check, "check", run)
    return found


def checked(rows, compiles, value_bytes) -> str:
    asked = {"compiles": compiles, "value_bytes": value_bytes}
    session = Session()
    session.results.report_rows += rows
    return checks.checked(lambda: "original", "module", Pipeline(()), session, rows, **asked)


def test_values_are_checked_behind_the_whole_module(ran):
    assert checked(REWRITTEN, compiles=True, value_bytes=7) == "run module"
    assert ran == [("compiled", "original", "module"), ("run", "original", "compiled module", 7, True)]


def test_each_check_runs_alone(ran):
    assert checked(REWRITTEN, compiles=True, value_bytes=None) == "compiled module"
    assert checked(REWRITTEN, compiles=False, value_bytes=7) == "run module"
    assert [each[0] for each in ran] == ["compiled", "run"] and ran[1][-1] is False


def test_where_stock_xla_fails_values_are_checked_unasked_within_the_default_limit(ran, monkeypatch):
    monkeypatch.setattr(check_record, "needs_values", lambda session: True)
    checked(REWRITTEN, compiles=True, value_bytes=None)
    checked(REWRITTEN, compiles=True, value_bytes=7)
    assert [each[3] for each in ran if each[0] == "run"] == [checks.MOST_VALUE_BYTES, 7]


def test_a_check_of_another_module_of_the_file_asks_for_no_values(ran, monkeypatch):
    """XLA compiles the second module neither way, so it has no check; stock XLA failed on the first one."""
    monkeypatch.setattr(check_record, "needs_values", lambda session: True)
    monkeypatch.setattr(whole_module_check, "check", lambda original, module, *_, **__: module)
    session = Session()
    session.results.checks.append("the check of the first module")
    asked = {"compiles": True, "value_bytes": None}
    assert checks.checked(lambda: "original", "module", Pipeline(()), session, REWRITTEN, **asked) == "module"
    assert not ran


def test_nothing_runs_where_nothing_is_rewritten(ran):
    assert checked([{"site": 0}], compiles=True, value_bytes=7) == "module" and not ran


def test_a_module_with_kernels_is_compared_with_nothing(ran):
    rows = [{"site": 0, "kind": "overlap", "is_rewritten": True, "chain": "a kernel: 7 parts to and from each member"}]
    said = []
    session = SimpleNamespace(remark=lambda op, text: said.append(text))
    module = SimpleNamespace(operation=None)
    for asked, remarks in (({"compiles": True, "value_bytes": 1}, 1), ({"compiles": False, "value_bytes": None}, 0)):
        said.clear()
        assert checks.checked(lambda: "original", module, Pipeline.parse(""), session, rows, **asked) is module
        assert ran == [] and len(said) == remarks


PLACED = """sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> { return %a : tensor<8x8xf32> }"""


@pytest.mark.parametrize(
    ("target", "topology", "order"),
    [
        (
            "tpu:v5e:2x4",
            "v5e:2x4*1",
            (0, 2, 7, 5, 1, 3, 6, 4),
        ),  # along the ring (0, 0), (1, 0), (0, 1), (1, 1), (1, 3) ...
        ("tpu:v5e:2x4", "v5e:2x4", (0, 2, 7, 5, 1, 3, 6, 4)),
        ("tpu:v5e:2x4", "v5p:2x2x2", None),
        ("tpu:v5e:4x4", "v5e:4x4*1", None),  # of other devices, which is an error later
        ("cpu:8", "cpu:8", None),
    ],
)
def test_passes_plan_for_the_order_in_which_a_target_compiles_partitions(target, topology, order):
    session = Session(RunOptions(compile_for=Target.parse(target)))
    pipeline = Pipeline.emitting("auto", {"topology": topology})
    with make_context() as context, ir.Location.unknown(context):
        found = checks.placed(pipeline, lambda: ir.Module.parse(PLACED), session)
    texts = {each.topology for each in found.passes if hasattr(each, "topology")}
    assert {topology_of(each).device_order for each in texts} == {order}
    assert found.emission == "auto" and (found == pipeline) == (order is None)


def test_the_mesh_of_a_module_with_gspmds_shardings_is_that_after_their_import():
    """Sixteen devices as a mesh of one axis lie along a ring, as 4x4 they do not."""
    text = """module attributes {mhlo.num_partitions = 16 : i32} {
      func.func @main(%a: tensor<16x16xf32> {mhlo.sharding = "{devices=[4,4]<=[16]}"}) -> tensor<16x16xf32> {
        return %a : tensor<16x16xf32>
      }
    }"""
    target = Target.parse("tpu:v5e:4x4")
    session, pipeline = Session(RunOptions(compile_for=target)), Pipeline.emitting("auto", {"topology": "v5e:4x4*1"})
    with make_context() as context, ir.Location.unknown(context):
        found = checks.placed(pipeline, lambda: ir.Module.parse(text), session)
    (order,) = {topology_of(each.topology).device_order for each in found.passes if hasattr(each, "topology")}
    square, ring = (
        tuple(sorted(range(16), key=places_of_partitions(target, each).__getitem__)) for each in ((4, 4), (16,))
    )
    assert order == square != ring
