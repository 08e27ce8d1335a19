# SPDX-License-Identifier: Apache-2.0
"""Random conversions, compiled and run by XLA on CPU devices, are right bit for bit and never worse than stock XLA."""

import functools
import math
import re

import numpy as np
import pytest

from benchmarks.conversions.compiled import Compiler, largest_end_bytes, tensor_type
from benchmarks.conversions.pairs import Pair, leftover_axes, random_pairs, rotations
from benchmarks.conversions.pairs_report import CONSTANTS, Row
from reshard.dialect_utils.emission.mini_modules import rewritten_pair
from reshard.dialect_utils.shardings import sdy_shardings
from reshard.dialect_utils.xla.child import shared_child
from reshard.dialect_utils.xla.worker import numpy_dtype
from reshard.synthesis.forms.platforms import CPU, TPU
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import Plan, pareto, plan
from reshard.synthesis.programs.steps import Chunked, Exchanged

DEVICES = (4, 6, 8, 12, 16)


def run_every_tile(
    pair: Pair, element: str = "f32", bits: int = 32, found: Plan | None = None, platform: str = CPU
) -> None:
    """Runs the module of a plan and asserts that every device holds its target tile, bit for bit.

    The plan is `found`, or the planner's plan for the pair. Replicas are compared too.
    """
    found = found or plan(pair.mesh, pair.shape, bits, pair.source, pair.target)
    text, copies = with_every_copy(rewritten_pair(tensor_type(pair, element), found, platform), pair, element)
    value = distinct_values(pair.shape, numpy_dtype(element))
    ran = shared_child().run(text, [value], pair.mesh.size)
    assert ran.status == "ok", ran.message
    assert ran.outputs[0].shape == (copies, *pair.shape)
    for copy in ran.outputs[0]:
        assert copy.dtype == value.dtype
        assert copy.tobytes() == value.tobytes()


def with_every_copy(text: str, pair: Pair, element: str) -> tuple[str, int]:
    """Returns the module with a leading dimension in its result that shows each replica, and the number of replicas.

    A second island gives every tile a leading dimension of 1. Its layout says that the axes which the target does not
    use split this dimension, so that the replicas become different elements of the result.
    """
    leftover = leftover_axes(pair.mesh, pair.target)
    copies = math.prod(axis.resolve(pair.mesh)[1] for axis in leftover)
    stacked = Sharding((leftover, *pair.target.dims))
    mesh = re.search(r"@\w+, ", text)[0]
    tile = "".join(f"{size}x" for size in pair.target.tile_shape(pair.mesh, pair.shape)) + element
    before = tensor_type(pair, element)
    after = f"tensor<{copies}x{before.removeprefix('tensor<')}"
    axes = ", ".join(f'"{name}"' for name in pair.mesh.axis_names)
    value = re.search(r"return (%\w+) : [^\n]*\n  }", text)[1]
    island = f"""%every = sdy.manual_computation({value}) in_shardings=[<{mesh}{pair.target}>] out_shardings=[<{mesh}{stacked}>] manual_axes={{{axes}}} (%tile: tensor<{tile}>) {{
      %one = stablehlo.reshape %tile : (tensor<{tile}>) -> tensor<1x{tile}>
      sdy.return %one : tensor<1x{tile}>
    }} : ({before}) -> {after}
    return %every : {after}
  }}"""  # noqa: E501
    text = re.sub(r"return %\w+ : [^\n]*\n  }", lambda _: island, text)
    head = f"-> ({before} {{{sdy_shardings.SHARDING} = #sdy.sharding<{mesh}{pair.target}>}})"
    assert head in text
    return text.replace(head, f"-> ({after} {{{sdy_shardings.SHARDING} = #sdy.sharding<{mesh}{stacked}>}})"), copies


def distinct_values(shape: tuple[int, ...], dtype) -> np.ndarray:
    """Returns an array with as many different elements as the type allows."""
    count = math.prod(shape)
    rng = np.random.default_rng(0)
    if dtype.itemsize >= 4 and dtype.kind != "c":
        return np.arange(count).reshape(shape).astype(dtype)
    if dtype.kind == "c":
        return (np.arange(count) - 1j * np.arange(count)).reshape(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.integers(0, 8, shape).astype(dtype)  # exact in every small type


@functools.cache
def compiler() -> Compiler:
    return Compiler(max(DEVICES), child=shared_child())


@functools.cache
def measured(pair: Pair) -> Row:
    return Row(pair, "f32", {who: compiler().ask(who, pair) for who in ("ours", "xla")})


def assert_never_worse(row: Row) -> None:
    ours, stock = row.ours, row.found["xla"]
    assert ours.status == "ok", ours.message
    assert (
        ours.bytes_received == plan(row.pair.mesh, row.pair.shape, 32, row.pair.source, row.pair.target).bytes_received
    )
    assert ours.largest_tile_bytes <= largest_end_bytes(row.pair, "f32"), "no tile above both ends"
    if stock.status == "ok":
        assert ours.bytes_received <= stock.bytes_received


QUICK = random_pairs(20, 15, DEVICES)
SLOW = random_pairs(21, 200, DEVICES)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("pair", QUICK, ids=str)
def test_random_pair(pair):
    assert_never_worse(measured(pair))
    run_every_tile(pair)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("pair", QUICK, ids=str)
def test_random_pair_in_the_forms_of_tpus(pair):
    run_every_tile(pair, platform=TPU)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("pair", SLOW, ids=str)
def test_random_pair_of_many(pair):
    assert_never_worse(measured(pair))
    run_every_tile(pair)
    run_every_tile(pair, platform=TPU)


@pytest.mark.slow
def test_temporaries_of_large_arrays_are_rarely_above_stock():
    """At most 5% of the plans need more temporaries than stock XLA, and all plans together need less.

    Most of these plans have 16-way all_to_alls, which the CPU backend splits; benchmarks/random_pairs.py lists them.
    """
    rows = [measured(pair) for pair in random_pairs(22, 100, DEVICES, least_elements=1 << 16)]
    both = [(row, row.ours.temp_bytes, row.found["xla"].temp_bytes) for row in rows if row.found["xla"].is_ok]
    above = [each for each in both if each[1] > each[2] + CONSTANTS]
    for row, ours, stock in above:
        print(f"{ours / stock:.2f} {row.pair}: {row.ours.chain}")
    assert len(above) <= len(both) // 20
    assert sum(ours for _, ours, _ in both) < sum(stock for *_, stock in both)


@pytest.mark.slow
def test_rotations_of_axes_between_the_dimensions_of_a_four_dimensional_array():
    """The mesh is 2x4x2 and the array f32[16,16,16,16]; the test prints the outcomes of stock XLA."""
    pairs = list(rotations(Mesh.parse("x=2,y=4,z=2"), (16, 16, 16, 16)))
    rows = [measured(pair) for pair in pairs]
    for row in rows:
        assert_never_worse(row)
    for pair in pairs[::6]:
        run_every_tile(pair)
    stock = [row.found["xla"].status for row in rows]
    print({status: stock.count(status) for status in set(stock)})


# -- in chunks

ROOM = 512  # bytes by which XLA's peak may be above the model: pointers, alignment, small tables


def table_bytes(found: Plan) -> int:
    """Returns the size of the tables of exchanges: for each round, device and dimension where its window begins."""
    typed = [each.step for each in found.steps]
    typed += [step for each in typed if isinstance(each, Chunked) for step in each.steps]
    rounds = sum(len(each.exchange.rounds) for each in typed if isinstance(each, Exchanged))
    return 4 * found.devices * rounds * len(found.shape)


def chunked(pair: Pair, element_bits: int = 32) -> list[Plan]:
    """Returns the plans of the pair's Pareto list that work in chunks."""
    found = pareto(pair.mesh, pair.shape, element_bits, pair.source, pair.target, with_exchange=True)
    return [each for each in found if any(step.op == "chunks" for step in each.steps)]


def check_peak(pair: Pair, found: Plan) -> int:
    """Asserts that XLA moves the bytes of the plan within its modelled peak; returns XLA's temporaries."""
    compiled = shared_child().compile(rewritten_pair(tensor_type(pair, "f32"), found), pair.mesh.size)
    assert compiled.status == "ok", compiled.message
    assert compiled.bytes_received == found.bytes_received and not compiled.unknown_trip_counts
    most = found.peak_bytes + ROOM + table_bytes(found)
    assert 0.7 * found.peak_bytes <= compiled.peak_bytes <= most, found.chain_text
    return compiled.temp_bytes


def check_chunks(pair: Pair) -> None:
    check_peak(pair, plan(pair.mesh, pair.shape, 32, pair.source, pair.target, objective="time", with_exchange=True))
    for found in chunked(pair)[:2]:
        check_peak(pair, found)
        run_every_tile(pair, found=found)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("pair", random_pairs(23, 8, DEVICES, least_elements=1 << 14), ids=str)
def test_random_pair_in_chunks(pair):
    check_chunks(pair)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("pair", random_pairs(24, 100, DEVICES, least_elements=1 << 16), ids=str)
def test_random_pair_of_many_in_chunks(pair):
    check_chunks(pair)


def test_temporaries_shrink_with_the_chunks():
    pair = Pair(Mesh.parse("x=4"), (512, 256), Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]'))
    whole, *parts = pareto(pair.mesh, pair.shape, 32, pair.source, pair.target)
    tile = 512 * 256 // 4 * 4
    assert check_peak(pair, whole) > 1.5 * tile
    for count, found in zip((2, 4, 8, 16), parts):
        assert found.chain_text == f"{count} chunks along dim 0: all_to_all x: dim 0 -> 1"
        assert check_peak(pair, found) <= 2 * tile // count + ROOM


@pytest.mark.parametrize(
    "ends", [('[{}, {"x"}, {}, {}]', '[{"x"}, {}, {}, {}]'), ('[{"x"}, {}, {}, {}]', '[{}, {"x"}, {}, {}]')]
)
def test_a_tile_with_a_size_of_1_inside_is_not_copied(ends):
    """XLA used to copy a tile that is reshaped to [48,24,1,32], or from it.

    The reshape put the dimension of size 1 at another place in memory than the loop did.
    """
    pair = Pair(Mesh.parse("x=6"), (288, 24, 1, 32), *map(Sharding.parse, ends))
    for found in chunked(pair)[:4]:
        check_peak(pair, found)


@pytest.mark.parametrize("element", ["bf16", "i1", "i4", "complex<f32>"])
def test_element_type_in_chunks(element):
    pair = Pair(
        Mesh.parse('<["x"=2, "y"=2], device_ids=[2, 0, 3, 1]>'),
        (16, 8),
        Sharding.parse('[{"x"}, {}]'),
        Sharding.parse('[{}, {"x"}]'),
    )
    run_every_tile(pair, element, ELEMENTS[element], chunked(pair, ELEMENTS[element])[0])


# A slice, an all_to_all, a permute and an all_gather each, on a mesh with a device order.
STEPS = {
    "slice": ("[{}, {}]", '[{"y"}, {"x"}]'),
    "all_to_all": ('[{"x", "y"}, {}]', '[{}, {"y", "x"}]'),
    "permute": ('[{"x", "y"}, {}]', '[{"y", "x"}, {}]'),
    "all_gather": ('[{"x"}, {"y"}]', "[{}, {}]"),
}
ELEMENTS = {"f32": 32, "bf16": 16, "f64": 64, "i8": 8, "i1": 8, "complex<f32>": 64, "f8E4M3FN": 8, "i4": 4, "ui4": 4}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("element", ["f32", "bf16", "i1"])
def test_element_type(element, step):
    check_element_type(element, step)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("element", [element for element in ELEMENTS if element not in ("f32", "bf16", "i1")])
def test_other_element_type(element, step):
    check_element_type(element, step)


def check_element_type(element: str, step: str) -> None:
    mesh = Mesh.parse('<["x"=2, "y"=2], device_ids=[2, 0, 3, 1]>')
    pair = Pair(mesh, (8, 8), *map(Sharding.parse, STEPS[step]))
    found = plan(mesh, pair.shape, ELEMENTS[element], pair.source, pair.target)
    assert step in [planned.op for planned in found.steps]
    run_every_tile(pair, element, ELEMENTS[element])


# -- a check of the comparison itself --


def test_a_replica_with_other_elements_is_seen():
    """In a module that slices by the wrong axis the first replicas are right, but the second ones are wrong."""
    mesh = Mesh.parse("x=2,y=2")
    pair = Pair(mesh, (4,), Sharding.parse("[{}]"), Sharding.parse('[{"y"}]'))
    wrong = plan(mesh, (4,), 32, pair.source, Sharding.parse('[{"x"}]'))
    text = rewritten_pair("tensor<4xf32>", wrong).replace('[{"x"}]', '[{"y"}]')
    shown, _ = with_every_copy(text, pair, "f32")
    value = np.arange(4, dtype=np.float32)
    ran = shared_child().run(shown, [value], 4)
    assert ran.status == "ok", ran.message
    assert ran.outputs[0].tolist() != [value.tolist()] * 2
