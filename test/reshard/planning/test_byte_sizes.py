# SPDX-License-Identifier: Apache-2.0
"""Limits of memory: in bytes, or as much as a device has."""

from dataclasses import replace

import pytest

import reshard
from reshard.compiling.advising import site_network
from reshard.compiling.optimizing import _pipeline
from reshard.configuration.settings import SettingError, resolved
from reshard.planning.byte_sizes import DEVICE, ByteSizeError, memory_limit
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.network.topology_text import preset_names

UNKNOWN_TO = {"ethernet", "gb200", "uniform"}


@pytest.mark.parametrize("name", sorted({*preset_names()} - UNKNOWN_TO))
def test_a_device_has_less_than_its_data_sheet_says_and_more_than_half_of_it(name):
    sheets = {"a100": 80e9, "a2mega": 40e9, "h100": 80e9, "h200": 141e9, "v100": 16e9}
    chips = {"v4": 32, "v5e": 16, "v5p": 96, "v6e": 32, "tpu7x": 192 / 2}
    sheets |= {version: size * 2**30 for version, size in chips.items()}
    if name == "cpu":  # an equal part of this host's
        whole, half = (memory_limit(DEVICE, Topology.parse(f"cpu:{count}")) for count in (8, 16))
        assert 0 < half == whole // 2
    else:
        assert 0.5 < memory_limit(DEVICE, Topology.parse(name)) / sheets[name] < 1


@pytest.mark.parametrize("name", sorted(UNKNOWN_TO))
def test_where_it_is_not_known_the_error_says_what_to_give(name):
    with pytest.raises(ByteSizeError, match=f"network '{name}'; name one that says it, such as v5e:2x4, or the bytes"):
        memory_limit(DEVICE, Topology.parse(name))


def test_a_host_is_not_shared_by_a_number_of_devices_that_nobody_says():
    with pytest.raises(ByteSizeError, match="how many devices .* 'cpu'; name one that says it, such as cpu:8"):
        memory_limit(DEVICE, Topology.parse("cpu"))


def test_a_network_of_ones_own_may_say_it():
    own = replace(Topology.parse("ethernet"), device_memory_bytes=12e9)
    assert memory_limit(DEVICE, Topology.parse(own.to_toml())) == 12_000_000_000
    with pytest.raises(reshard.TopologyError, match="device_memory_bytes = 0"):
        replace(own, device_memory_bytes=0)


def test_it_reaches_the_passes_and_the_search_for_layouts_as_bytes():
    settings = {"topology": "v5e:2x4", "memory_limit": DEVICE}
    limits = {each.memory_limit for each in _pipeline(resolved(settings)).passes if hasattr(each, "memory_limit")}
    assert limits == {16_911_433_728}
    assert site_network("v5e:2x4", DEVICE).memory_limit == 16_911_433_728


def test_settings_without_a_network_that_says_it_are_refused():
    with pytest.raises(SettingError, match="memory_limit: how much memory a device has is not known"):
        _pipeline(resolved({"topology": "ethernet:1x8", "memory_limit": DEVICE}))
    with pytest.raises(ValueError, match="'devices' is no number of bytes"):
        resolved({"memory_limit": "devices"})
