# SPDX-License-Identifier: Apache-2.0
"""What is written around a kernel: random products and lookups next to collectives, in which a collective of a product
or lookup in the kernel's form stands for the kernel, give what they gave, bit for bit on whole numbers."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from reshard.dialect_utils.ir.ops import int64_attr
from reshard.dialect_utils.kernels import kernel_emission, patterns
from reshard.dialect_utils.kernels.sizes import SentProduct, SentRows, SummedProduct
from reshard.dialect_utils.platform.bindings import ir, make_context, stablehlo
from reshard.dialect_utils.xla.child import shared_child
from reshard.dialect_utils.xla.worker import numpy_dtype
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.network import option_text
from reshard.synthesis.layouts.layout import Factor, groups
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Level, Topology
from test.end_to_end.overlap.drawn import MESHES, Drawn, DrawnModule
from test.end_to_end.overlap.drawn_lookups import DrawnLookups

PASS = "overlap-collectives"
FEW = 4  # rows of a product that is added up


class Matrices(DrawnModule):
    """Draws products of operands that are mostly matrices as they lie in memory, each before a collective."""

    def _before_a_collective(self):
        is_summed = self.rng.random() < 0.5
        batch, rows, columns, inner = (self._sizes(most) for most in (0 if is_summed else 1, 2, 2, 2))
        left = self._argument((*batch, *rows, *inner))
        is_transposed = self.rng.random() < 0.5
        right = self._argument((*batch, *(columns + inner if is_transposed else inner + columns)))
        value, shape = self._multiplied(left, right, (batch, rows, columns, inner), is_transposed)
        if is_summed:
            self._collective("all_reduce", value, shape, shape, "")
            return [("%c", shape)]
        fits = [dim for dim, size in enumerate(shape) if size % self.members == 0]
        if not fits:
            return [(value, shape)]
        _, whole = self._exchange(value, "%c", shape=shape, split=fits[0])
        return [("%c", whole)]

    def _sizes(self, most: int) -> list[int]:
        return [self.rng.choice((1, 2, 3, self.members, 2 * self.members)) for _ in range(self.rng.randint(0, most))]

    def _multiplied(self, left: str, right: str, sizes, is_transposed: bool) -> tuple[str, tuple[int, ...]]:
        batch, rows, columns, inner = sizes
        first = [*range(len(batch) + len(rows), len(batch) + len(rows) + len(inner))]
        at = len(batch) + (len(columns) if is_transposed else 0)
        second = [*range(at, at + len(inner))]
        shape = (*batch, *rows, *columns)
        batches = f"batching_dims = {[*range(len(batch))]} x {[*range(len(batch))]}, " if batch else ""
        types = ", ".join(self._kind(self.arguments[int(each[2:])]) for each in (left, right))
        self.lines.append(
            f"%d = stablehlo.dot_general {left}, {right}, {batches}contracting_dims = {first} x {second} : "
            f"({types}) -> {self._kind(shape)}"
        )
        return "%d", shape


class Rows(DrawnLookups):
    """Draws lookups of rows of a table, each before an all_to_all, mostly of their leading dimension."""

    def _before_a_collective(self):
        batches, width = self._shape(self.rng.randint(1, 3)), self.rng.choice((1, 3, self.members))
        vector = self.rng.randint(0, len(batches) + 1)
        indices = (*batches[:vector], 1, *batches[vector:]) if vector <= len(batches) else batches
        numbers = (
            f"offset_dims = [{len(batches)}], collapsed_slice_dims = [0], start_index_map = [0], "
            f"index_vector_dim = {min(vector, len(batches))}"
        )
        entries, shape = self.rng.choice((1, 4, 7)), (*batches, width)
        table, where = self._argument((entries, width)), self._indices(indices)
        self.lines.append(
            f'%look = "stablehlo.gather"({table}, {where}) <{{dimension_numbers = #stablehlo.gather<{numbers}>, '
            f"slice_sizes = array<i64: 1, {width}>}}> : "
            f"({self._kind((entries, width))}, {self._whole_numbers(indices)}) -> {self._kind(shape)}"
        )
        fits = [dim for dim, size in enumerate(shape) if size % self.members == 0]
        if not fits:
            return [("%look", shape)]
        split = fits[0] if self.rng.random() < 0.8 else self.rng.choice(fits)
        _, whole = self._exchange("%look", "%c", shape=shape, split=split)
        return [("%c", whole)]


def drawn(seed: int, draws: type[DrawnModule]) -> Drawn:
    """Returns the module of a seed, in which a product or a lookup is before a collective."""
    rng = random.Random(seed)
    mesh = Mesh.parse(rng.choice(MESHES))
    axes = rng.sample(mesh.axis_names, rng.randint(1, len(mesh.axis_names)))
    factors = tuple(Factor(axis, 1, mesh.axis_size(axis)) for axis in axes)
    module = draws(rng, mesh, groups(mesh, factors).tolist(), rng.choice(("f32", "bf16", "i32")))
    module.is_rounded = False
    return module.drawn("before_a_collective")


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    """Makes kernels of any sizes, types and networks, each written as the collective of a product or of rows."""
    collectives = []
    places = kernel_emission._places

    def noted_places(pipeline):
        collectives.append(pipeline.candidate.collective)
        return places(pipeline)

    monkeypatch.setattr(patterns, "platform_problem", lambda *_: "")
    monkeypatch.setattr(patterns, "_MOST_FEW", FEW)
    for sent in (SentProduct, SentRows):
        monkeypatch.setattr(sent, "problem", lambda _: "")
    monkeypatch.setattr(SummedProduct, "problem", lambda each: "a rest" if each.columns % each.members else "")
    monkeypatch.setattr(kernel_emission, "lowered", lambda asked: {each: each for each in asked})
    monkeypatch.setattr(kernel_emission, "_places", noted_places)
    monkeypatch.setattr(kernel_emission, "_called", lambda key, _, given: stand_in(key[0], given[1:], collectives[-1]))


def stand_in(sizes, operands, collective) -> ir.Value:
    """Inserts the collective of the program, in the kernel's dimensions, of what the kernel makes of its operands."""
    assert [tuple(each.type.shape) for each in operands] == [shape for shape, _ in sizes.operands]
    element = ir.RankedTensorType(collective.op.results[0].type).element_type
    term, result = _MAKERS[type(sizes)](sizes, *operands, element)
    made = collective.op.operation.clone()
    made.operands[0] = term
    made.results[0].set_type(ir.RankedTensorType.get(result, element))
    if not isinstance(sizes, SummedProduct):
        split = 0 if isinstance(sizes, SentRows) else sizes.split
        made.attributes["split_dimension"] = int64_attr(split)
        made.attributes["concat_dimension"] = int64_attr(sizes.joined)
    return made.results[0]


def _sent_product(sizes: SentProduct, left, right, element):
    contracted = 2 if sizes.is_right_transposed else 1
    numbers = stablehlo.DotDimensionNumbers.get([0], [0], [2], [contracted])
    kind = ir.RankedTensorType.get(sizes.whole, element)
    return stablehlo.DotGeneralOp(kind, left, right, numbers).result, sizes.result


def _summed_product(sizes: SummedProduct, left, right, element):
    numbers = stablehlo.DotDimensionNumbers.get([], [], [1], [1 if sizes.is_right_transposed else 0])
    shape = sizes.rows, sizes.columns
    return stablehlo.DotGeneralOp(ir.RankedTensorType.get(shape, element), left, right, numbers).result, shape


def _sent_rows(sizes: SentRows, indices, table, element):
    numbers = stablehlo.GatherDimensionNumbers.get([1], [0], [], [], [0], 1)
    kind = ir.RankedTensorType.get((sizes.count, sizes.width), element)
    return stablehlo.GatherOp(table, indices, numbers, [1, sizes.width], results=[kind]).result, sizes.result


_MAKERS: dict[type, Callable] = {SentProduct: _sent_product, SummedProduct: _summed_product, SentRows: _sent_rows}


def fused(case: Drawn) -> tuple[str, int]:
    """Returns the module after the pass, and how many kernels it has written."""
    session = Session()
    network = option_text(Topology("v5p", (Level("chip", case.mesh.size, "switch", 1e9),), 1e12))
    with make_context():
        module = ir.Module.parse(case.module)
        options = {"policy": "always", "topology": network, "fuse": "kernels"}
        Pipeline.parse(PASS).with_options(options).run(module, session)
        assert module.operation.verify()
        return str(module), session.results.statistics[PASS, "kernels"]


def checked(seed: int, draws: type[DrawnModule]) -> int:
    """Runs both forms of the module of a seed, and returns the number of its kernels."""
    case = drawn(seed, draws)
    module, written = fused(case)
    if not written:
        return 0
    rng = np.random.default_rng(seed)
    arguments = [
        rng.integers(-case.most, case.most + 1, shape).astype(numpy_dtype(case.element)) for shape in case.shapes
    ]
    stock, ours = (shared_child().run(text, arguments, case.mesh.size) for text in (case.module, module))
    assert stock.status == ours.status == "ok", f"seed {seed}: {case.words}: {stock.message} {ours.message}"
    for mine, theirs in zip(ours.outputs, stock.outputs, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=f"seed {seed}: {case.words}")
    return written


@pytest.mark.mostly_slow
@pytest.mark.parametrize("draws", [Matrices, Rows])
def test_random_modules_with_kernels_are_the_same(draws):
    assert sum(checked(seed, draws) for seed in range(30)) >= 8


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 2200, 100))
@pytest.mark.parametrize("draws", [Matrices, Rows])
def test_many_random_modules_with_kernels_are_the_same(draws, start):
    assert sum(checked(seed, draws) for seed in range(start, start + 100)) >= 30
