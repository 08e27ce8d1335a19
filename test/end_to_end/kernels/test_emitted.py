# SPDX-License-Identifier: Apache-2.0
"""What is written around a kernel: random products next to collectives, in which an all_to_all or all_reduce of a
product in the kernel's form stands for the kernel, give what they gave, bit for bit on whole numbers."""

import random

import numpy as np
import pytest

from reshard.dialect_utils.ir.ops import int64_attr
from reshard.dialect_utils.kernels import kernel_emission, patterns
from reshard.dialect_utils.kernels.sizes import SentProduct, SummedProduct
from reshard.dialect_utils.platform.bindings import ir, make_context, stablehlo
from reshard.dialect_utils.xla.child import shared_child
from reshard.dialect_utils.xla.worker import numpy_dtype
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.network import option_text
from reshard.synthesis.layouts.layout import Factor, groups
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Level, Topology
from test.end_to_end.overlap.drawn import MESHES, Drawn, _Module

PASS = "overlap-collectives"
FEW = 4  # rows of a product that is added up


class Matrices(_Module):
    """Draws products of operands that are mostly matrices as they lie in memory, each before a collective."""

    def _product_before_a_collective(self):
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


def drawn(seed: int) -> Drawn:
    """Returns the module of a seed."""
    rng = random.Random(seed)
    mesh = Mesh.parse(rng.choice(MESHES))
    axes = rng.sample(mesh.axis_names, rng.randint(1, len(mesh.axis_names)))
    factors = tuple(Factor(axis, 1, mesh.axis_size(axis)) for axis in axes)
    module = Matrices(rng, mesh, groups(mesh, factors).tolist(), rng.choice(("f32", "bf16", "i32")))
    module.is_rounded = False
    return module.drawn("product_before_a_collective")


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    """Makes kernels of any sizes, types and networks, each written as the collective of a product of matrices."""
    collectives = []
    places = kernel_emission._places

    def noted_places(pipeline):
        collectives.append(pipeline.candidate.collective)
        return places(pipeline)

    monkeypatch.setattr(patterns, "platform_problem", lambda *_: "")
    monkeypatch.setattr(patterns, "_MOST_FEW", FEW)
    monkeypatch.setattr(SentProduct, "problem", lambda _: "")
    monkeypatch.setattr(SummedProduct, "problem", lambda each: "a rest" if each.columns % each.members else "")
    monkeypatch.setattr(kernel_emission, "lowered", lambda asked: {each: each for each in asked})
    monkeypatch.setattr(kernel_emission, "_places", noted_places)
    monkeypatch.setattr(kernel_emission, "_called", lambda key, _, given: stand_in(key[0], given, collectives[-1]))


def stand_in(sizes, operands, collective) -> ir.Value:
    """Inserts the product of the kernel's matrices, and the collective of the program in the kernel's dimensions."""
    _, left, right = operands
    batch = [0] if isinstance(sizes, SentProduct) else []
    rows, inner = len(batch), len(batch) + 1
    contracted = inner if sizes.is_right_transposed else rows
    numbers = stablehlo.DotDimensionNumbers.get(batch, batch, [inner], [contracted])
    element = ir.RankedTensorType(collective.op.results[0].type).element_type
    shape = sizes.whole if isinstance(sizes, SentProduct) else (sizes.rows, sizes.columns)
    term = stablehlo.DotGeneralOp(ir.RankedTensorType.get(shape, element), left, right, numbers).result
    made = collective.op.operation.clone()
    made.operands[0] = term
    result = sizes.result if isinstance(sizes, SentProduct) else shape
    made.results[0].set_type(ir.RankedTensorType.get(result, element))
    if isinstance(sizes, SentProduct):
        made.attributes["split_dimension"] = int64_attr(sizes.split)
        made.attributes["concat_dimension"] = int64_attr(sizes.joined)
    return made.results[0]


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


def checked(seed: int) -> int:
    """Runs both forms of the module of a seed, and returns the number of its kernels."""
    case = drawn(seed)
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


def test_random_products_with_kernels_are_the_same():
    assert sum(map(checked, range(30))) >= 8


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 2200, 200))
def test_many_random_products_with_kernels_are_the_same(start):
    assert sum(map(checked, range(start, start + 200))) >= 60
