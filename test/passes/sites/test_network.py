# SPDX-License-Identifier: Apache-2.0
"""The network of sites: option texts of topologies, the default for a target, topologies that do not fit a module."""

import dataclasses

import pytest

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import Compiled
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.decompose_collectives import DecomposeCollectivesPass
from reshard.passes.driver.base import OptionError
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.plan_sites import PlanSitesPass
from reshard.passes.sites.network import SiteNetwork, of_target, option_text, refuse_unfit, topology_of
from reshard.synthesis.network.topology import Level, Topology, TopologyError
from reshard.synthesis.network.topology_text import to_toml
from reshard.synthesis.programs.traffic import Collective

PRESETS = ["uniform", "cpu:8", "h100:4", "h100:2x8", "v5e:4x4*2", "v5p:2x2x4"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_own_text(name):
    assert option_text(name) == name
    assert topology_of(option_text(name)) == Topology.parse(name)


@pytest.mark.parametrize("name", PRESETS)
def test_any_topology_comes_back_from_its_text_which_is_one_word(name):
    size = Topology.parse(name).size or 4
    mine = dataclasses.replace(Topology.parse(name).fitted(size), device_order=tuple(reversed(range(size))))
    text = option_text(mine)
    assert topology_of(text) == mine
    assert not set(text) & set(" \n{}=\"'")
    assert option_text(text) == text


def test_a_file_is_read_at_once_even_if_its_path_has_spaces(tmp_path):
    path = tmp_path / "our two racks.toml"
    path.write_text(to_toml(Topology.parse("h100:2x2")).replace('"h100:2x2"', '"racks"'))
    text = option_text(str(path))
    assert text == option_text(path.read_text())
    path.unlink()
    assert topology_of(text).name == "racks"


def test_a_pipeline_with_the_text_of_a_file_can_be_parsed_again(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(to_toml(Topology.parse("h100:2x2")).replace('"h100:2x2"', '"racks"'))
    pipeline = Pipeline.default().with_options({"topology": option_text(str(path)), "memory-limit": "4096"})
    again = Pipeline.parse(str(pipeline))
    assert str(again) == str(pipeline)
    (planner,) = (each for each in again.passes if isinstance(each, PlanSitesPass))
    assert planner.network == SiteNetwork(option_text(str(path)), 4096)


def test_unknown_names_and_negative_limits_are_refused():
    with pytest.raises(TopologyError, match='unknown topology "h10"'):
        option_text("h10")
    with pytest.raises(OptionError, match="topology=h10"):
        PlanSitesPass(topology="h10")
    with pytest.raises(OptionError, match="memory-limit=-1 is negative"):
        PlanSitesPass(memory_limit=-1)


@pytest.mark.parametrize(
    "target, text",
    [
        ("cpu:8", "cpu:8"),
        ("tpu:v5e:4x4", "v5e:4x4*1"),
        ("tpu:v5e:4x4:2", "v5e:4x4*2"),
        ("cuda:h100:1x2x8", "h100:2x8"),
        ("tpu:v2:2x2", ""),
    ],
)
def test_a_target_has_the_topology_of_its_devices(target, text):
    parsed = Target.parse(target)
    assert of_target(parsed) == text
    assert not text or Topology.parse(text).fitted(parsed.devices)


def test_a_program_takes_longer_over_the_slow_level():
    def across(groups) -> float:
        moved = (Collective("all_gather", 10**6, 2 * 10**6, groups=groups),)
        return SiteNetwork("h100:2x2").time_of(Compiled("ok", moved=moved), 4).seconds

    assert across(((0, 2), (1, 3))) > 2 * across(((0, 1), (2, 3)))


def test_the_final_program_has_a_time_only_if_all_of_it_is_priced():
    network, moved = SiteNetwork("cpu:2"), (Collective("all_gather", 10, 20, groups=((0, 1),)),)
    assert network.final_time_of(Compiled("ok"), 2) is None
    final = Compiled("ok", final_bytes_received=10, final_moved=moved)
    assert network.final_time_of(final, 2).seconds > 0
    assert network.final_time_of(dataclasses.replace(final, final_unpriced=("send",)), 2) is None


@pytest.mark.parametrize(("text", "is_here"), [("cpu:8", True), ("h100:2x2", False), ("", False)])
def test_final_programs_are_wanted_where_xla_compiles_for_the_devices_themselves(text, is_here):
    assert SiteNetwork(text).has_final == is_here


def refused(meshes: str, topology: str, target: str | None = None) -> str:
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(meshes)
        try:
            refuse_unfit(module, SiteNetwork(topology), target and Target.parse(target))
        except DiagnosedError as error:
            return str(error)
    return ""


EIGHT = 'sdy.mesh @mesh = <["x"=8]>'


def test_a_topology_for_other_devices_is_refused_at_the_module():
    assert 'error: topology "h100:2x2"' in refused(EIGHT, "h100:2x2")
    assert not refused(EIGHT, "h100:2x4")
    assert not refused(EIGHT, "")


def test_a_mesh_of_one_device_may_stand_beside():
    assert not refused(f'{EIGHT} sdy.mesh @one = <["x"=1]> sdy.mesh @third = <[], device_ids=[3]>', "h100:2x4")


def test_the_error_names_the_target_if_the_topology_is_its_own():
    said = "the module is for 8 devices, the target has 4"
    assert said in refused(EIGHT, "cpu:4", "cpu:4")
    assert said not in refused(EIGHT, "h100:2x2", "cpu:4")


def test_collectives_are_written_for_gloo_where_cpu_devices_are_in_several_processes():
    def written_for(network: Topology, platform: str = "cpu") -> str:
        found = Pipeline.parse("decompose-collectives").with_options(
            {"topology": option_text(network), "platform": platform}
        )
        (planned,) = found.passes
        assert isinstance(planned, DecomposeCollectivesPass)
        return planned.written_for

    cores = Level("core", 4, "switch", 1e10, copies_own=True)
    processes = Topology("job", (Level("host", 2, "switch", 1e8), cores), 1e10, platform="cpu")
    assert written_for(processes) == "gloo"
    assert written_for(processes, "gpu") == "gpu"
    assert written_for(Topology("alone", (cores,), 1e10, platform="cpu")) == "cpu"
    assert written_for(Topology.parse("uniform")) == "cpu"


@pytest.mark.parametrize("inside, is_alone", [("", True), ("copies_own = true\n", False)])
def test_processes_that_have_several_of_the_devices_are_told_apart(inside, is_alone):
    levels = "".join(
        f'[[level]]\nname = "{name}"\nsize = 2\nkind = "switch"\nbandwidth_bytes_per_s = 1e9\n{more}'
        for name, more in (("process", ""), ("device", inside))
    )
    head = 'name = "own"\nplatform = "cpu"\nmemory_bandwidth_bytes_per_s = 1e10\n'
    network = SiteNetwork(option_text(Topology.parse(head + levels)))
    assert network.has_processes and network.has_processes_alone is is_alone
