# SPDX-License-Identifier: Apache-2.0
"""Functions of a module: visibility, bodies, and symbols that may be unused."""

import pytest

from reshard.dialect_utils.ir.functions import functions_of, has_discardable_symbols, public_functions, symbol
from reshard.dialect_utils.platform.bindings import ir, make_context


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


PUBLIC = "func.func @f() { return }"


def test_public_functions_have_a_body():
    module = ir.Module.parse(f"{PUBLIC} func.func private @g() {{ return }} func.func private @declared()")
    functions = functions_of(module.operation)
    assert [symbol(each) for each in functions] == ["f", "g", "declared"]
    assert [symbol(each) for each in public_functions(functions)] == ["f"]


@pytest.mark.parametrize(
    "other, has", [("", False), ('sdy.mesh @m = <["x"=2]>', False), ("func.func private @g() { return }", True)]
)
def test_only_meshes_and_public_functions_cannot_be_removed(other, has):
    assert has_discardable_symbols(ir.Module.parse(f"{other} {PUBLIC}").operation) == has
