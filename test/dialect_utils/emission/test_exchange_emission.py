# SPDX-License-Identifier: Apache-2.0
"""Emitted exchanges are valid, bit-equal on XLA's CPU devices, and have exactly the traffic of the plan."""

import numpy as np
import pytest

from reshard.dialect_utils.emission.exchange_emission import (
    OnTiles,
    Side,
    UnsupportedExchange,
    emit_between,
    emit_on_stacks,
    write_rounds,
)
from reshard.dialect_utils.emission.tile_emission import unused_channels
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import XlaChild
from reshard.dialect_utils.xla.worker import numpy_dtype
from reshard.synthesis.layouts.blocks import Blocks, cut
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.programs.exchange import Exchange, plan_exchange

ANY_ORDER = '<["u"=3,"v"=2], device_ids=[5,3,1,0,2,4]>'
FEW_ROUNDS = 1 << 40


@pytest.fixture(scope="module")
def child():
    with XlaChild(uses_cache=False, num_devices=8) as child:
        yield child


def maximal(device: int) -> str:
    return f"<[], device_ids=[{device}]>"


def on_tiles(exchange: Exchange, module: ir.Module) -> OnTiles:
    tiles, channels = (exchange.source.tile_shape, exchange.target.tile_shape), unused_channels(module)
    return OnTiles(*tiles, exchange.source.devices, lambda tile: write_rounds(exchange, tile, channels))


def on_one_device(mesh: str, shape: tuple[int, ...], devices: int) -> Blocks:
    """Returns the placement of a whole array on the device of a mesh; the other `devices` hold nothing."""
    return Blocks.of_sharding(Mesh.parse(mesh), shape, Sharding(((),) * len(shape))).over(devices)


class Case:
    """A module that takes an array in one placement and returns it in another.

    XLA accepts no split arguments whose dimensions do not divide; these are replicated, with a constraint inside.
    """

    def __init__(self, source, target, shape, dtype="f32", round_elements=0):
        (self.source_mesh, source_text), (self.target_mesh, target_text) = source, target
        self.shape, self.dtype = shape, dtype
        self.tensor = f"tensor<{'x'.join([*map(str, shape), dtype])}>"
        self.texts = source_text, target_text
        self.devices = next(Mesh.parse(m).size for m in (self.source_mesh, self.target_mesh) if "<[]" not in m)
        sides = [self._blocks(mesh, text) for mesh, text in (source, target)]
        self.exchange = plan_exchange(*sides, round_elements=round_elements)

    def _blocks(self, mesh: str, text: str) -> Blocks:
        if mesh.startswith("<[]"):
            return on_one_device(mesh, self.shape, self.devices)
        return Blocks.of_sharding(Mesh.parse(mesh), self.shape, Sharding.parse(text))

    def _side(self, symbol: str, mesh: str, text: str) -> Side:
        attr = ir.Attribute.parse(f"#sdy.sharding<@{symbol}, {text}>")
        if mesh.startswith("<[]"):
            return Side(attr, None, None)
        return Side(attr, Mesh.parse(mesh), Sharding.parse(text))

    @property
    def is_even(self) -> bool:
        sides = ((self.source_mesh, self.texts[0]), (self.target_mesh, self.texts[1]))
        shards = [Sharding.parse(text).shards(Mesh.parse(mesh)) for mesh, text in sides if not mesh.startswith("<[]")]
        return not any(size % count for counts in shards for size, count in zip(self.shape, counts))

    def module(self, gathers: bool = False) -> str:
        """Returns the module; with `gathers` its result is replicated, since XLA returns no array on one device."""
        replicated = "[" + ", ".join(["{}"] * len(self.shape)) + "]"
        ends = [f"@a, {self.texts[0]}", f"@b, {self.texts[1]}"] if self.is_even else [f"@a, {replicated}"] * 2
        if gathers:
            ends[1] = f"@a, {replicated}"
        meshes = [m if m.startswith("<[]") else str(Mesh.parse(m)) for m in (self.source_mesh, self.target_mesh)]
        text = f"""module @exchange attributes {{mhlo.num_partitions = {self.devices} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @a = {meshes[0]}
  sdy.mesh @b = {meshes[1]}
  func.func public @main(%x: {self.tensor} {{sdy.sharding = #sdy.sharding<{ends[0]}>}}) -> ({self.tensor} {{sdy.sharding = #sdy.sharding<{ends[1]}>}}) {{
    %0 = sdy.sharding_constraint %x <@a, {self.texts[0]}> : {self.tensor}
    %1 = sdy.sharding_constraint %0 <@b, {self.texts[1]}> : {self.tensor}
    return %1 : {self.tensor}
  }}
}}"""  # noqa: E501
        with make_context(), ir.Location.unknown():
            module = ir.Module.parse(text)
            before, after, _ = module.body.operations[2].regions[0].blocks[0].operations
            sides = self._side("a", self.source_mesh, self.texts[0]), self._side("b", self.target_mesh, self.texts[1])
            with ir.InsertionPoint(after):
                found = emit_between(
                    on_tiles(self.exchange, module), before.result, *sides, "site", ir.Location.unknown()
                )
            after.operation.operands[0] = found
            assert module.operation.verify()
            return str(module)

    def input(self) -> np.ndarray:
        numbers = np.arange(1, 1 + np.prod(self.shape, dtype=int)).reshape(self.shape)
        return (numbers % 3 == 0) if self.dtype == "i1" else (numbers % 113).astype(numpy_dtype(self.dtype))


def on(mesh: str, source: str, target: str, *rest, **options) -> Case:
    return Case((mesh, source), (mesh, target), *rest, **options)


CASES = {
    "halves to thirds": on("x=2,y=3", '[{"x"}, {}]', '[{"y"}, {}]', (12, 4)),
    "halves to thirds exactly": on("x=2,y=3", '[{"x", "y"}, {}]', '[{"y"}, {"x"}]', (12, 4), "bf16"),
    "all to all": on("x=8", '[{"x"}, {}]', '[{}, {"x"}]', (16, 16), "i8"),
    "gather over replicas": on("x=4,y=2", '[{"x"}, {}]', "[{}, {}]", (8, 8), "complex<f32>"),
    "rank 3": on("x=2,y=3", '[{"x"}, {"y"}, {}]', '[{"y"}, {}, {"x"}]', (6, 6, 4), "f64"),
    "sub-axis": on("x=8", '[{"x":(1)2}, {}]', '[{}, {"x":(2)4}]', (8, 8)),
    "device order": Case(
        ("x=2,y=3", '[{"x", "y"}]'), ('<["x"=2,"y"=3], device_ids=[5,3,1,0,2,4]>', '[{"x", "y"}]'), (12,)
    ),
    "nothing moves": on("x=2,y=3", '[{"x"}, {}]', '[{"x"}, {"y"}]', (4, 6)),
    "uneven": on("x=2,y=3", '[{"x", "y"}, {}]', '[{"y"}, {"x"}]', (7, 5)),
    "uneven in few rounds": on(
        "x=2,y=3", '[{"x", "y"}, {}]', '[{"y"}, {"x"}]', (7, 5), "i1", round_elements=FEW_ROUNDS
    ),
    "empty last shards": on("x=2,y=3", '[{"x", "y"}]', '[{"y", "x"}]', (8,), "i32"),
    "uneven in another order": on(ANY_ORDER, '[{"u"}, {}]', '[{"v", "u"}, {}]', (11, 3)),
    "two meshes": Case(("x=2,y=3", '[{"x"}, {}]'), ("u=3,v=2", '[{"u"}, {"v"}]'), (12, 4)),
    "two meshes, uneven": Case(("x=2,y=3", '[{"x"}, {}]'), ("u=6", '[{"u"}, {}]'), (13, 4)),
    "two meshes in two orders": Case(("x=2,y=3", '[{"x"}, {}]'), (ANY_ORDER, '[{"u"}, {"v"}]'), (12, 4)),
    "two meshes in two orders, uneven": Case(("x=2,y=3", '[{"x"}, {}]'), (ANY_ORDER, '[{"u"}, {"v"}]'), (11, 3), "i1"),
    "one device receives": Case(("x=2,y=3", '[{"x"}, {"y"}]'), (maximal(3), "[]"), (4, 6)),
}


@pytest.mark.mostly_slow
@pytest.mark.parametrize("name", CASES)
def test_runs_bit_equal(child, name):
    case = CASES[name]
    ran = child.run(case.module(gathers="one device" in name), [case.input()], case.devices)
    assert ran.status == "ok", ran.message
    assert np.array_equal(ran.outputs[0], case.input())


@pytest.mark.mostly_slow
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].is_even])
def test_traffic_is_that_of_the_plan(child, name):
    case = CASES[name]
    compiled = child.compile(case.module(), case.devices)
    bits = 8 * case.input().dtype.itemsize
    assert (compiled.bytes_received, compiled.bytes_sent) == (
        case.exchange.bytes_received(bits),
        case.exchange.bytes_sent(bits),
    )
    assert sum(count.ops for count in compiled.collectives) == len(case.exchange.rounds)


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].is_even])
def test_padding_and_slicing_move_nothing(child, name):
    """Only the rounds of the exchange and the all_gather of the replicated result move data."""
    case = CASES[name]
    compiled = child.compile(case.module(), case.devices)
    permutes = [count.ops for count in compiled.collectives if count.kind == "collective_permute"]
    assert permutes in ([len(case.exchange.rounds)], []) and {count.kind for count in compiled.collectives} <= {
        "collective_permute",
        "all_gather",
    }


def test_a_regular_exchange_has_no_mask_but_arithmetic():
    text = on("x=8", '[{"x"}, {}]', '[{}, {"x"}]', (16, 16)).module()
    assert text.count("stablehlo.collective_permute") == 7
    assert "stablehlo.select" not in text and "stablehlo.pad" not in text
    assert text.count("stablehlo.dynamic_update_slice") == 8


def test_devices_that_get_nothing_keep_what_they_have():
    text = Case(("x=4", '[{"x"}]'), ('<["x"=4], device_ids=[0,2,1,3]>', '[{"x"}]'), (8,)).module()
    assert text.count("stablehlo.select") == 2  # the local copy, and the round


def test_a_source_on_one_device_is_refused():
    case = Case((maximal(3), "[]"), ("x=2,y=3", '[{"x"}, {"y"}]'), (4, 6))
    with pytest.raises(UnsupportedExchange, match="on one device.*redistribute"):
        case.module()


def test_stacks_serve_a_source_on_one_device(child):
    mesh, devices, shape = Mesh.parse("d=6"), 6, (5, 7)
    before = on_one_device(maximal(2), shape, devices)
    after = Blocks.of_sharding(Mesh.parse("x=2,y=3"), shape, Sharding.parse('[{"x"}, {"y"}]'))
    exchange = plan_exchange(before, after)
    text = """module @stacks attributes {mhlo.num_partitions = 6 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @d = <["d"=6]>
  func.func public @main(%x: tensor<6x5x7xf32> {sdy.sharding = #sdy.sharding<@d, [{"d"}, {}, {}]>}) -> (tensor<6x3x3xf32> {sdy.sharding = #sdy.sharding<@d, [{"d"}, {}, {}]>}) {
    %0 = stablehlo.constant dense<0.0> : tensor<6x3x3xf32>
    return %0 : tensor<6x3x3xf32>
  }
}"""  # noqa: E501
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        body = module.body.operations[1].regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(body):
            found = emit_on_stacks(
                on_tiles(exchange, module), body.arguments[0], mesh, "d", "site", ir.Location.unknown()
            )
        body.operations[-1 + len(body.operations)].operation.operands[0] = found
        assert module.operation.verify()
        text = str(module)
    array = np.arange(35, dtype=np.float32).reshape(shape)
    stack = np.stack([tile for _, tile in sorted(cut(array, before, padding=-1).items())])
    ran = child.run(text, [stack], devices)
    assert ran.status == "ok", ran.message
    for device, tile in cut(array, after).items():
        assert np.array_equal(ran.outputs[0][device], tile)
