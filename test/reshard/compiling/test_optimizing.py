# SPDX-License-Identifier: Apache-2.0
"""Options of `reshard.optimize` reach the passes that have them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import reshard
from reshard.compiling import optimizing
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.passes.sites.network import option_text, topology_of
from reshard.synthesis.network.topology import Topology

ROWS_TO_COLUMNS = """sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  return %a : tensor<8x8xf32>
}
"""


@pytest.mark.parametrize("option", [{"topology": "h100:2x2"}, {"memory_limit": "1GiB"}])
@pytest.mark.parametrize("emit", ["manual", "local", "sdy"])
def test_the_network_and_the_memory_may_be_named_whatever_the_form(emit, option):
    """The form `local` plans no sites, so there they have no effect."""
    assert reshard.optimize(ROWS_TO_COLUMNS, emit=emit, check=False, **option).emit == emit


def test_on_shared_memory_the_final_programs_are_compared():
    """XLA copies before and behind an all_gather along the last dimension; in the partitioned program that is free."""
    gathered = """sdy.mesh @mesh = <["x"=4]>
    func.func @main(%a: tensor<2048x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
        -> (tensor<2048x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
      return %a : tensor<2048x64xf32>
    }
    """
    assert [reshard.optimize(gathered, topology=each).is_rewritten for each in ("cpu:4", "uniform")] == [True, False]


def test_a_target_of_as_many_devices_decides():
    report = reshard.optimize(ROWS_TO_COLUMNS, compile_for="cpu:4").report
    assert "modelled on cpu:4" in str(report)
    with pytest.raises(DiagnosedError, match="the module is for 4 devices, the target has 8"):
        reshard.optimize(ROWS_TO_COLUMNS, compile_for="cpu:8")


def test_a_topology_beside_a_target_counts():
    report = reshard.optimize(ROWS_TO_COLUMNS, compile_for="cpu:4", topology="h100:2x2").report
    assert "modelled on h100:2x2" in str(report) and "asks the compiler" not in str(report)


def test_a_report_for_a_network_alone_names_the_target_whose_compiler_was_not_asked():
    said = str(reshard.optimize(ROWS_TO_COLUMNS, topology="h100:2x2").report)
    assert "compiled for CPU devices; --compile-for=cuda:h100:1x2x2 asks the compiler of the target" in said
    assert "asks the compiler" not in str(reshard.optimize(ROWS_TO_COLUMNS, topology="uniform").report)


@pytest.mark.tpu
def test_the_compiler_of_a_tpu_decides_and_its_answer_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path))
    rows_of_eight = ROWS_TO_COLUMNS.replace('"x"=4', '"x"=8')
    first, second = (reshard.optimize(rows_of_eight, compile_for="tpu:v5e:2x4").report for _ in range(2))
    assert "compiled for tpu:v5e:2x4, modelled on v5e:2x4" in str(first)
    assert str(second) == str(first)
    assert list(tmp_path.glob("results-*"))


def test_the_ledger_of_a_target_has_its_network():
    found = reshard.traffic(ROWS_TO_COLUMNS, compile_for="cpu:4")
    assert found.stock.topology.name == "cpu:4" and found.report is not None


def test_the_ledger_of_a_target_is_for_the_network_around_the_call():
    with reshard.options(topology="h100:2x2"):
        assert reshard.traffic(ROWS_TO_COLUMNS, compile_for="cpu:4").stock.topology.name == "h100:2x2"


@pytest.mark.parametrize(
    ("target", "keeps_order"), [("tpu:v5e:2x4", True), ("tpu:v6e:2x4", False), ("tpu:v5e:2x2:2", False)]
)
def test_devices_of_the_kind_of_the_target_keep_their_order(target, keeps_order, monkeypatch):
    placed = replace(Topology.parse("v5e:2x4"), device_order=(1, 0, 2, 3, 4, 5, 6, 7))
    monkeypatch.setattr(optimizing.device_networks, "topology_of", lambda devices: option_text(placed))
    settings = {"compile_for": target, "topology": None}
    found = optimizing._for_devices(settings, [SimpleNamespace(platform="tpu")] * 8)
    order = topology_of(found["topology"]).device_order
    assert order == (placed.device_order if keeps_order else None) and found["platform"] == "tpu"


def test_cpu_devices_in_several_processes_stay_so_for_a_target_of_cpu_devices():
    devices = [SimpleNamespace(platform="cpu", device_kind="cpu", process_index=each) for each in range(4)]
    found = optimizing._for_devices({"compile_for": "cpu:4", "topology": None}, devices)
    assert found["platform"] == "gloo" and found["topology"] == ""


@pytest.mark.parametrize("status, is_rewritten, is_told", [("abort", False, 1), ("abort", True, 0), ("ok", False, 0)])
def test_a_program_that_stock_xla_aborts_on_is_not_handed_over_as_it_came_without_a_word(
    status, is_rewritten, is_told, caplog
):
    """It would end the process."""
    report = {"totals": {"sites": 0, "rewritten": 0}, "checks": [{"stock": {"status": status}}]}
    found = SimpleNamespace(report=SimpleNamespace(to_dict=lambda: report), is_rewritten=is_rewritten)
    optimizing._tell(found, b"", {"dump_to": None}, "jit_step")
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == is_told
