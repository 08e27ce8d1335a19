# SPDX-License-Identifier: Apache-2.0
"""Devices that this machine need not have: names of GPUs, and the order of a TPU's chips in a mesh."""

import subprocess
import sys
from dataclasses import dataclass

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import child_environment
from reshard.dialect_utils.xla.compile_targets import Target, TargetError
from reshard.dialect_utils.xla.target_devices import (
    _same_gpu,
    gpu_named,
    gpu_specs,
    in_mesh_order,
    mesh_sizes,
    places_of_partitions,
)

_A100S = ("a100-80gb-pcie", "a100-sxm4-40gb", "a100-sxm4-80gb")
KNOWN = (*_A100S, "b200", "b200-mig-1g-23gb", "gh200-96gb", "gh200-144gb", "v100-sxm2-16gb")


def spec(description: str, platform: str = "CUDA") -> bytes:
    return (
        f'gpu_device_info {{ core_count: 1 }}\nplatform_name: "{platform}"\ndevice_description_str: '
        f'"{description}"\n'.encode()
    )


class TestGpus:
    def test_specs_lie_among_other_constants(self):
        constants = [b"code", spec("NVIDIA B200"), b'device_description_str: "NVIDIA X"', spec("MI300X", "ROCM")]
        specs = gpu_specs(b"\0".join([*constants, spec("NVIDIA A1 80GB"), b""]))
        assert list(specs) == ["a1-80gb", "b200"]
        assert specs["b200"].encode() == spec("NVIDIA B200")

    @pytest.mark.parametrize(
        ("name", "found"),
        [
            ("b200", "b200"),
            ("v100", "v100-sxm2-16gb"),
            ("a100", "a100-sxm4-80gb"),
            ("a100-sxm4-40gb", "a100-sxm4-40gb"),
        ],
    )
    def test_short_names(self, name, found):
        assert gpu_named(name, KNOWN) == found

    def test_a_name_for_several_is_refused(self):
        with pytest.raises(TargetError, match="'gh200' may be any of gh200-96gb, gh200-144gb"):
            gpu_named("gh200", KNOWN)

    def test_a_name_for_none_is_refused_with_those_there_are(self):
        with pytest.raises(TargetError, match="describes no GPU 'b2'; it has a100-80gb-pcie, .*, v100-sxm2-16gb"):
            gpu_named("b2", KNOWN)


@dataclass(frozen=True)
class Device:
    """A device with the attributes that jax's meshes read."""

    id: int
    slice_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"
    process_index: int = 0


class TestOrder:
    def test_outer_axes_go_over_slices(self):
        devices = [Device(number, slice_index=number % 2) for number in range(8)]
        assert [each.id for each in in_mesh_order(devices, (4, 2), slices=2)] == [0, 2, 4, 6, 1, 3, 5, 7]

    @pytest.mark.parametrize("sizes", [(5, 3), (15,), (4, 4)])
    def test_devices_stay_as_they_come_where_a_mesh_has_no_place_for_slices(self, sizes):
        devices = [Device(number, slice_index=number % 2) for number in range(15)]
        assert in_mesh_order(devices, sizes, slices=2) == devices

    def test_a_mesh_over_other_devices_says_nothing_about_these(self):
        devices = [Device(number, slice_index=0) for number in range(8)]
        assert in_mesh_order(devices, (2, 2)) == devices


# Each call starts its own process, since libtpu stays in the process that loads it.
def ids_in_order(target: str, *sizes: int) -> list[int]:
    """Returns the ids of a target's devices in the order of a mesh."""
    program = f"""
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.dialect_utils.xla.target_devices import target_devices
print(*(each.id for each in target_devices(Target.parse("{target}"), {sizes})))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=child_environment(1), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return list(map(int, done.stdout.split()))


@pytest.mark.tpu
class TestTpu:
    def test_the_order_is_that_of_jax_on_the_chips(self):
        """The axis of size 4 runs along the first row of four chips and back along the second row."""
        assert ids_in_order("tpu:v5e:2x4", 4, 2) == [0, 1, 2, 3, 7, 6, 5, 4]

    def test_axes_that_are_no_physical_ones_are_split(self):
        ids = ids_in_order("tpu:v5p:4x4x4", 8, 8)
        assert ids[:8] == [0, 4, 1, 5, 2, 6, 3, 7] and sorted(ids) == list(range(64))

    def test_slices_are_outermost(self):
        """The id of a device is its number plus 100000 in the first slice, and plus 200000 in the second slice."""
        ids = ids_in_order("tpu:v5e:2x2:2", 2, 4)
        assert [each // 100000 for each in ids] == [1] * 4 + [2] * 4

    @pytest.mark.parametrize(
        ("target", "devices"), [("tpu:v4:2x2x1", 4), ("tpu:tpu7x:2x2x1", 8), ("tpu:v3:2x2", 8), ("tpu:v6e:2x4", 8)]
    )
    def test_every_kind_of_chip_has_as_many_devices_as_the_target_says(self, target, devices):
        assert len(set(ids_in_order(target, devices))) == devices


@pytest.mark.cuda
@pytest.mark.parametrize("target", ["cuda:h100:1x1x8", "cuda:b200:1x2x4", "cuda:a100:1x1x8"])
def test_gpus_are_in_the_order_of_their_hosts(target):
    assert ids_in_order(target, 2, 4) == list(range(8))


def test_a_plugin_without_descriptions_compiles_for_the_gpu_that_is_there_alone():
    _same_gpu("h100", "NVIDIA H100 80GB HBM3")
    _same_gpu("h200", "NVIDIA H200 141GB HBM3e")
    with pytest.raises(TargetError, match="describes no GPUs.* the one here is NVIDIA L4, not 'h100'"):
        _same_gpu("h100", "NVIDIA L4")


class TestPlaces:
    @pytest.mark.parametrize(
        ("target", "sizes", "places"),
        [
            ("tpu:v5e:2x4", (2, 4), (0, 4, 1, 5, 7, 3, 6, 2)),
            ("tpu:v5e:2x2:2", (2, 4), (0, 2, 3, 1, 4, 6, 7, 5)),
            ("tpu:v5e:2x4", (3, 3), (0, 4, 1, 5, 7, 3, 6, 2)),  # no mesh of it, so that of one axis
        ],
    )
    def test_partitions_lie_where_jax_puts_a_mesh(self, target, sizes, places):
        assert places_of_partitions(Target.parse(target), sizes) == places

    def test_the_first_mesh_over_all_devices_without_an_order_counts(self):
        meshes = """sdy.mesh @of_two = <["x"=2]>
        sdy.mesh @ordered = <["x"=4], device_ids=[3, 2, 1, 0]>
        sdy.mesh @all = <["a"=2, "b"=1, "c"=2]>"""
        with make_context() as context, ir.Location.unknown(context):
            assert mesh_sizes(ir.Module.parse(meshes), 4) == (2, 1, 2)
            assert mesh_sizes(ir.Module.parse(meshes), 8) == (8,)

    @pytest.mark.tpu
    @pytest.mark.parametrize(
        ("target", "meshes"),
        [
            ("tpu:v5e:4x4", [(16,), (2, 8), (8, 2), (4, 2, 2), (2, 2, 2, 2)]),
            ("tpu:v5p:2x2x4", [(16,), (4, 4), (2, 8), (2, 2, 4)]),
            ("tpu:v4:2x2x4", [(8, 2)]),
            ("tpu:v6e:4x4:2", [(2, 16), (4, 8), (32,)]),
            ("tpu:tpu7x:2x2x2", [(16,), (8, 2), (2, 4, 2)]),
        ],
    )
    def test_they_are_the_places_of_the_devices_of_libtpu(self, target, meshes):
        script = f"""if True:
            from reshard.dialect_utils.xla.compile_targets import Target
            from reshard.dialect_utils.xla.target_devices import target_devices
            for sizes in {meshes}:
                devices = target_devices(Target.parse({target!r}), sizes)
                places = [(getattr(each, "slice_index", 0), *each.coords, each.core_on_chip) for each in devices]
                print(*map(sorted(places).index, places))"""
        command = [sys.executable, "-c", script]
        ran = subprocess.run(command, env=child_environment(1), capture_output=True, text=True, check=True)
        ours = (places_of_partitions(Target.parse(target), sizes) for sizes in meshes)
        assert ran.stdout.splitlines() == [" ".join(map(str, each)) for each in ours]
