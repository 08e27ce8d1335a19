# SPDX-License-Identifier: Apache-2.0
"""Kernels of real sizes are compiled ahead of time for TPUs, alone and in modules that the pass has written."""

import re
from pathlib import Path

import pytest

from reshard.dialect_utils.kernels.lowering import lowered
from reshard.dialect_utils.kernels.sizes import SentProduct, SentRows, SummedProduct
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import XlaChild
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline

TARGETS = ("tpu:v5p:2x2x2", "tpu:v6e:2x4")
DEVICES = 8
WRITTEN = Path(__file__).parents[2] / "passes" / "overlap_collectives_kernels.mlir"


def product(whole, inner, split, joined, dtype="bfloat16", operand_dtype="", **options) -> SentProduct:
    return SentProduct(whole, inner, DEVICES, split, joined, dtype, operand_dtype or dtype, **options)


KERNELS = {
    "rows to rows": product((1, 8192, 8192), 8192, 1, 1),
    "columns to rows, weights transposed": product((1, 8192, 8192), 8192, 2, 1, is_right_transposed=True),
    "experts to columns": product((16, 256, 1024), 1000, 0, 2, "float32"),
    "precise": product((16, 512, 1024), 1024, 1, 0, "float32", is_precise=True),
    "sums as float32": product((1, 4096, 2048), 28672, 1, 2, "float32", "bfloat16"),
    "blocks that are small and many": product((2, 256, 2048), 256, 1, 0, vmem_bytes=1),
    "the longest sums": product((1, 1024, 1024), 65408, 1, 1),
    "the longest vectors": SummedProduct(16, 262144, 4096, DEVICES, "bfloat16", "bfloat16"),
    "a vector": SummedProduct(1, 8192, 8192, DEVICES, "bfloat16", "bfloat16"),
    "few rows, weights transposed": SummedProduct(16, 28672, 8192, DEVICES, "bfloat16", "bfloat16", True),
    "few rows, precise": SummedProduct(5, 4096, 1000, DEVICES, "float32", "float32", is_precise=True),
    "small blocks": SummedProduct(64, 8192, 1024, DEVICES, "float32", "bfloat16", vmem_bytes=1),
    "lookup of rows": SentRows(100_000, 512, 8192, DEVICES, 0, "float32"),
    "lookup of features": SentRows(1000, 128, 65536, DEVICES, 1, "float32"),
}


@pytest.fixture(scope="module")
def child():
    with XlaChild(uses_cache=False, num_devices=1) as child:
        yield child


@pytest.fixture(scope="module")
def texts():
    return lowered([(sizes, DEVICES) for sizes in KERNELS.values()])


@pytest.mark.tpu
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_compiled(name, target, child, texts):
    sizes = KERNELS[name]
    assert sizes.vmem_bytes == 1 or not sizes.problem()
    compiled = child.compile(texts[sizes, DEVICES], DEVICES, target=Target.parse(target))
    assert compiled.is_ok, compiled.message


@pytest.mark.tpu
@pytest.mark.parametrize("target", ["tpu:v5p:2x2x1", "tpu:v6e:2x2"])
def test_modules_with_kernels_are_compiled(target, child):
    session = Session()
    options = {"topology": target.removeprefix("tpu:"), "platform": "tpu", "policy": "always", "fuse": "kernels"}
    with make_context():
        module = ir.Module.parse(WRITTEN.read_text())
        Pipeline.parse("overlap-collectives").with_options(options).run(module, session)
        text = str(module)
    assert session.results.statistics["overlap-collectives", "kernels"] == 8
    mesh = 'sdy.mesh @mesh = <["x"=4]>'
    functions = re.findall(r"^  func\.func .*?^  }$", text, re.DOTALL | re.MULTILINE)
    assert len(functions) == 11
    for function in functions:
        alone = f"module {{\n  {mesh}\n{re.sub('@[a-z_]+', '@main', function, count=1)}\n}}"
        compiled = child.compile(alone, 4, target=Target.parse(target))
        assert compiled.is_ok, compiled.message
