# SPDX-License-Identifier: Apache-2.0
"""The topology of devices of jax, from made-up devices: kinds, hosts, coordinates."""

import itertools
from types import SimpleNamespace

import pytest

from reshard.passes.sites.network import topology_of as topology_of_text
from reshard.planning.device_networks import target_of, topology_of


def device(platform: str, kind: str, number: int, process: int = 0, **places) -> SimpleNamespace:
    return SimpleNamespace(platform=platform, device_kind=kind, id=number, process_index=process, **places)


def cpus(*processes: int) -> list:
    return [device("cpu", "cpu", number, process) for number, process in enumerate(processes)]


def gpus(*processes: int, kind: str = "NVIDIA H100 80GB HBM3") -> list:
    return [device("gpu", kind, number, process) for number, process in enumerate(processes)]


def tpus(*sizes: int, kind: str = "TPU v5 lite", slices: int = 1, start: int = 0) -> list:
    """Returns the TPUs of some slices, row-major; coordinates have three numbers."""
    sides = [range(start, start + size) for size in sizes]
    coords = [(*each, 0, 0)[:3] for each in itertools.product(*sides)]
    return [
        device("tpu", kind, number, 0, coords=place, slice_index=part)
        for number, (part, place) in enumerate(itertools.product(range(slices), coords))
    ]


def dies(*sizes: int) -> list:
    """Returns the devices of a slice whose chips have two each, the core fastest."""
    chips = itertools.product(*map(range, sizes))
    places = enumerate(itertools.product(chips, range(2)))
    return [device("tpu", "TPU7x", number, coords=place, core_on_chip=core) for number, (place, core) in places]


@pytest.mark.parametrize(
    "devices, text",
    [
        (cpus(0, 0, 0, 0), "cpu:4"),
        (cpus(0, 0, 1, 1), ""),  # processes may be on one host or on two
        (gpus(0, 0, 1, 1), "h100:2x2"),
        (gpus(0, 0, 0, 0), "h100:1x4"),
        (gpus(0, 0, 0, 1), ""),
        (gpus(0, 0, kind="NVIDIA A100-SXM4-80GB"), "a100:1x2"),
        (gpus(0, 0, kind="NVIDIA GeForce GTX 1080"), ""),
        (tpus(4, 4), "v5e:4x4*1"),
        (tpus(4, 4, slices=2), "v5e:4x4*2"),
        (tpus(2, 2, start=2), "v5e:2x2*1"),
        (tpus(2, 2, 4, kind="TPU v5p"), "v5p:2x2x4*1"),
        (tpus(2, 2, 1, kind="TPU v5"), "v5p:2x2x1*1"),
        (dies(2, 2, 2), "tpu7x:2x2x2*1"),
        (tpus(2, 2, kind="TPU v9"), ""),
        (cpus(0, 0) + gpus(0, 0), ""),
        ([device("tpu", "TPU v5 lite", 0)], ""),  # a plug-in's device without coordinates
        ([], ""),
    ],
)
def test_in_order(devices, text):
    found = topology_of(devices)
    assert (found == text) or (bool(text) and topology_of_text(found) == topology_of_text(text))


@pytest.mark.parametrize(
    "devices, target",
    [
        (tpus(4, 4), "tpu:v5e:4x4"),
        (tpus(4, 4)[::-1], "tpu:v5e:4x4"),
        (tpus(2, 2, 4, kind="TPU v5p", slices=2), "tpu:v5p:2x2x4:2"),
        (dies(2, 2, 2), "tpu:tpu7x:2x2x2"),
        (tpus(4, 4)[:-1], "None"),
        (tpus(2, 2, kind="TPU v9"), "None"),
        (gpus(0, 0), "None"),
        (cpus(0, 0), "None"),
        ([], "None"),
    ],
)
def test_tpus_that_fill_a_slice_are_a_target(devices, target):
    assert str(target_of(devices)) == target


def test_tpus_out_of_order_have_a_device_order():
    """jax orders a mesh along the torus, so partition 1 need not be beside partition 0 in row-major order."""
    devices = tpus(2, 4)
    turned = [devices[each] for each in (0, 4, 1, 5, 2, 6, 3, 7)]
    found = topology_of_text(topology_of(turned))
    assert found.device_order == (0, 2, 4, 6, 1, 3, 5, 7)  # the partition at each position of the torus
    assert [turned[each].coords for each in found.device_order] == [each.coords for each in devices]


def test_gpus_of_two_hosts_that_take_turns_have_a_device_order():
    found = topology_of_text(topology_of(gpus(0, 1, 0, 1)))
    assert found.device_order == (0, 2, 1, 3)


@pytest.mark.parametrize("left_out", [0, 3, 7])
def test_a_part_of_a_torus_that_is_no_box_is_unknown(left_out):
    devices = tpus(2, 4)
    del devices[left_out]
    assert topology_of(devices) == ""


def test_one_device_twice_is_unknown():
    devices = tpus(2, 2)
    assert topology_of([*devices[:3], devices[0]]) == ""
