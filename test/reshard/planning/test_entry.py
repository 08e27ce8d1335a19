# SPDX-License-Identifier: Apache-2.0
"""`reshard.plan`: its arguments, the arguments that it refuses, and the contents of `to_dict`."""

from types import SimpleNamespace

import numpy as np
import pytest

import reshard
from reshard.planning.byte_sizes import ByteSizeError, byte_size
from reshard.planning.element_types import ElementTypeError, element_type, parse_type
from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.layouts.sharding import ShardingError
from reshard.synthesis.network.topology import Topology, TopologyError
from reshard.synthesis.network.topology_text import PRESETS
from reshard.synthesis.planner.entry import NoPlanError, Plan

PROBLEM = {"source": '[{"x"}, {}]', "target": '[{}, {"x"}]', "mesh": "x=4", "shape": (8, 8), "dtype": "f32"}


def plan(**changes) -> Plan:
    problem = {**PROBLEM, **changes}
    return reshard.plan(problem.pop("source"), problem.pop("target"), **problem)


@pytest.mark.parametrize("mesh", ["x=4", '<["x"=4]>', {"x": 4}, Mesh.of({"x": 4})])
def test_meshes(mesh):
    assert plan(mesh=mesh) == plan()


@pytest.mark.parametrize("dtype", ["f32", "float32", np.float32, np.dtype("float32"), "F32"])
def test_dtypes(dtype):
    assert plan(dtype=dtype) == plan() and plan(dtype=dtype).dtype == "f32"


@pytest.mark.parametrize(
    "topology", ["h100", Topology.parse("h100"), PRESETS / "h100.toml", str(PRESETS / "h100.toml")]
)
def test_topologies(topology):
    found = plan(topology=topology)
    assert "h100" in found.topology
    assert found.time_s == plan(topology="h100").time_s < plan().time_s and plan().topology == "uniform"


def test_objectives():
    assert plan().objective == "time"
    assert plan(objective="bytes").objective == "bytes"
    with pytest.raises(ValueError, match='unknown objective "speed"'):
        plan(objective="speed")


@pytest.mark.parametrize("limit", [192, "192", "192B", "0.192KB"])
def test_memory_limits(limit):
    assert plan().peak_bytes == 256
    assert plan(memory_limit=limit).peak_bytes == 192


def test_a_memory_limit_that_no_plan_keeps():
    with pytest.raises(
        NoPlanError, match=r"\(source tile 64 \+ target tile 64 \+ .*, limit 128; raise the limit to \d+$"
    ):
        plan(memory_limit=128)
    with pytest.raises(ByteSizeError, match="'-1' is negative"):
        plan(memory_limit=-1)


def test_pareto():
    found = reshard.pareto(
        PROBLEM["source"], PROBLEM["target"], mesh="x=4", shape=(8, 8), dtype="bf16", topology="h100"
    )
    assert {each.dtype for each in found} == {"bf16"} and {each.objective for each in found} == {"time"}
    assert found[0] == plan(dtype="bf16", topology="h100") and len(found) > 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("2 GB", 2 * 10**9),
        ("1.5KiB", 1536),
        ("7", 7),
        ("7B", 7),
        ("3kB", 3000),
        ("1TiB", 1 << 40),
        (" 5 MB ", 5 * 10**6),
        (12, 12),
    ],
)
def test_byte_sizes(text, size):
    assert byte_size(text) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no number of bytes"),
        ("2 3", "'2 3' is no number of bytes"),
        ("1e9", "unknown unit 'e' in '1e9'|is no number of bytes"),
        ("2Gb", "unknown unit 'Gb' in '2Gb'; known: B, KiB"),
        ("-3KB", "'-3KB' is negative"),
        (-3, "'-3' is negative"),
        (2.5, "2.5 is no whole number of bytes"),
    ],
)
def test_byte_sizes_that_are_none(text, message):
    with pytest.raises(ByteSizeError, match=message):
        byte_size(text)


def test_jax_shardings():
    jax = pytest.importorskip("jax")
    P, mesh = jax.sharding.PartitionSpec, jax.sharding.AbstractMesh((4,), ("x",))
    assert plan(source=P("x"), target=P(None, ("x",)), mesh=mesh) == plan()
    sides = (jax.sharding.NamedSharding(mesh, spec) for spec in (P("x"), P(None, "x")))
    assert reshard.plan(*sides, shape=(8, 8)) == plan()
    other = jax.sharding.NamedSharding(jax.sharding.AbstractMesh((2, 2), ("a", "b")), P("b", "a"))
    found = plan(target=other)
    assert (str(found.target_mesh), str(found.target)) == ('<["a"=2, "b"=2]>', '[{"b"}, {"a"}]')
    with pytest.raises(MeshError, match="is on mesh .*, not on .*; leave target_mesh out"):
        plan(target=other, target_mesh="x=4")


class TestDevicesOfJax:
    """The ids of a mesh's devices say which devices are close; if the ids are not 0 to n - 1, their ranks count."""

    def mesh(self, *ids, shape=(2, 2), names=("x", "y")):
        jax = pytest.importorskip("jax")
        devices = np.array([SimpleNamespace(id=each, process_index=0, platform="cpu") for each in ids], dtype=object)
        return SimpleNamespace(shape=dict(zip(names, shape)), devices=devices.reshape(shape), jax=jax)

    def test_a_meshs_order_is_that_of_its_ids(self):
        found = plan(mesh=self.mesh(3, 1, 0, 2), target='[{}, {"x"}]')
        assert found.mesh == Mesh.parse('<["x"=2, "y"=2], device_ids=[3, 1, 0, 2]>')

    def test_ids_are_ranked(self):
        assert plan(mesh=self.mesh(16, 40, 24, 32)).mesh == Mesh.parse('<["x"=2, "y"=2], device_ids=[0, 3, 1, 2]>')

    def test_order_matters_where_devices_are_not_equally_near(self):
        near, far = (
            plan(mesh=self.mesh(*ids), topology="h100:2x2", shape=(4096, 4096)) for ids in ((0, 2, 1, 3), (0, 1, 2, 3))
        )
        assert near.time_s < far.time_s / 2

    def test_devices_of_two_meshes_are_ranked_together(self):
        found = plan(source=PROBLEM["source"], mesh=self.mesh(8, 9, 16, 17), target_mesh=self.mesh(17, 16, 9, 8))
        assert found.target_mesh == Mesh.parse('<["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>')

    def test_other_devices_are_refused(self):
        with pytest.raises(
            MeshError, match=r"has devices \[2, 3\] of \[0, 1, 2, 3\]; plans are between meshes over the same"
        ):
            plan(mesh=self.mesh(0, 1, 2, 3), target_mesh=self.mesh(2, 3, shape=(2, 1)))

    def test_named_shardings_and_one_device(self):
        jax = pytest.importorskip("jax")
        device, P = jax.devices()[0], jax.sharding.PartitionSpec
        one = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array([device]), "x"), P("x"))
        found = reshard.plan(one, jax.sharding.SingleDeviceSharding(device), shape=(8,))
        assert (str(found.mesh), str(found.goal_mesh), found.chain_text) == (
            '<["x"=1]>',
            "<[], device_ids=[0]>",
            "nothing",
        )


@pytest.mark.parametrize("shape, target", [((10, 3), '[{}, {"x"}]'), ((7, 5), "[{}, {}]")])
def test_dimensions_need_not_divide(shape, target):
    found = plan(shape=shape, target=target)
    assert found.bytes_received >= found.bound_bytes > 0 and found.to_dict()["steps"]


def test_axes_in_two_radices_are_planned():
    found = plan(mesh="x=2,y=3", source='[{"x"}, {}]', target='[{"y"}, {}]', shape=(6, 2), objective="bytes")
    assert found.bytes_received == found.bound_bytes == found.to_dict()["totals"]["bytes_received"]


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"mesh": None}, MeshError, "no mesh"),
        ({"mesh": {"x": 0}}, MeshError, "sizes are at least 1"),
        ({"source": '[{"z"}, {}]'}, MeshError, 'unknown axis "z"'),
        ({"source": '[{"x"}]'}, ShardingError, "has rank 1, the array has rank 2"),
        ({"source": '[{"x"}, {"x"}]'}, ShardingError, "is used twice"),
        ({"topology": "h100:2"}, TopologyError, "the mesh has 4"),
        ({"dtype": "f7"}, ElementTypeError, "unknown dtype 'f7'"),
        ({"dtype": object}, ElementTypeError, "unknown dtype 'object'"),
        ({"shape": (8, -8)}, ElementTypeError, r"f32\[8,-8\] has a negative size"),
        ({"shape": (8, 10**20)}, ElementTypeError, "larger than"),
        ({"shape": (8, 8.5)}, TypeError, "integer"),
    ],
)
def test_nonsense_is_refused(changes, error, text):
    with pytest.raises(error, match=text):
        plan(**changes)


def test_a_plan_is_not_changed_by_who_asks():
    first, second = plan(), plan()
    assert first == second and first.to_dict() | {"seconds": 0} == second.to_dict() | {"seconds": 0}


@pytest.mark.parametrize(
    "text, name, bits, mlir, shape",
    [
        ("f32[]", "f32", 32, "f32", ()),
        ("bf16[ 4 , 2 ]", "bf16", 16, "bf16", (4, 2)),
        ("pred[3]", "i1", 8, "i1", (3,)),
        ("s8[3]", "i8", 8, "i8", (3,)),
        ("u4[3]", "u4", 4, "ui4", (3,)),
        ("tensor<4x2xf8E4M3FN>", "f8e4m3fn", 8, "f8E4M3FN", (4, 2)),
        ("tensor<complex<f64>>", "c128", 128, "complex<f64>", ()),
        ("float8_e5m2[1]", "f8e5m2", 8, "f8E5M2", (1,)),
    ],
)
def test_types(text, name, bits, mlir, shape):
    element, found = parse_type(text)
    assert (element.name, element.bits, element.mlir, found) == (name, bits, mlir, shape)


@pytest.mark.parametrize(
    "text", ["", "f32", "[4]", "f32[4", "f32[4,]", "f32[a]", "f32[4][4]", "tensor<4xf32", "tensor<4>", "tensor<x4xf32>"]
)
def test_types_that_cannot_be_read(text):
    with pytest.raises(ElementTypeError):
        parse_type(text)


def test_every_numpy_name_of_a_type_is_known():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    names = [each for each in dir(ml_dtypes) if each.startswith(("float", "bfloat", "int", "uint")) and each[-1] != "_"]
    names = [name for name in names if name[-1].isalnum() and name not in ("finfo", "iinfo", "int1", "uint1")]
    assert all(element_type(name).bits for name in names) and len(names) > 10
