# SPDX-License-Identifier: Apache-2.0
"""Imports of GSPMD's shardings: all or nothing."""

import pytest

from reshard.dialect_utils.gspmd.gspmd_statements import RefusedError, call_target, import_shardings
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context

M = "tensor<8x8xf32>"


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


def module(argument: str, constraint: str, kind: str = M, config: str = "") -> ir.Module:
    return ir.Module.parse(f"""
      func.func @main(%a: {kind} {{mhlo.sharding = "{argument}"}}) -> {kind} {{
        %0 = stablehlo.custom_call @Sharding(%a) {{{config} mhlo.sharding = "{constraint}"}} : ({kind}) -> {kind}
        return %0 : {kind}
      }}""")


def test_strings_become_a_mesh_shardings_and_constraints():
    given = module("{devices=[4,1]<=[4]}", "{devices=[2,2]<=[4]}")
    found = import_shardings(given)
    (mesh,) = found.meshes.values()
    assert list(found.meshes) == ["mesh"] and mesh.size == 4
    assert found.counts == {"meshes": 1, "shardings": 1, "constraints": 1, "regions": 0}
    assert given.operation.verify() and "mhlo.sharding" not in str(given) and "custom_call" not in str(given)


def test_a_name_that_is_taken_is_no_name_of_a_mesh():
    given = module("{devices=[4,1]<=[4]}", "{replicated}")
    other = ir.Module.parse(f"func.func private @mesh({M})")
    given.body.append(other.body.operations[0].operation)
    assert list(import_shardings(given).meshes) == ["mesh_0"]


def test_a_module_that_splits_nothing_is_left_as_it_is():
    given = module("{replicated}", "{replicated}")
    before = str(given)
    found = import_shardings(given)
    assert (dict(found.counts), dict(found.meshes), str(given)) == ({}, {}, before)


def test_unspecified_dimensions_are_open():
    given = module("{devices=[4,1]<=[4]}", "{devices=[1,4]<=[4]}", config='backend_config = "unspecified_dims=[0]",')
    import_shardings(given)
    (constraint,) = [op for op in ops_in(given.operation) if op.name == "sdy.sharding_constraint"]
    assert "[{?}, {" in str(constraint.attributes["sharding"])


@pytest.mark.parametrize(
    ("argument", "constraint", "reason"),
    [
        ("{devices=[3,1]<=[3]}", "{replicated}", "dimension 0 of argument 0 .* does not divide into 3 shards"),
        ("{devices=[4,1]<=[4]}", "{maximal device=0}", "no counterpart of"),
        ("{devices=[4,1]<=[4]}", "{manual}", "is outside of a region between SPMDFullToShardShape and"),
        ("{{devices=[4,1]<=[4]},{replicated}}", "{replicated}", "2 shardings for 1 values"),
    ],
)
def test_what_shardy_cannot_say_leaves_the_module_unchanged(argument, constraint, reason):
    given = module(argument, constraint)
    before = str(given)
    with pytest.raises(RefusedError, match=reason):
        import_shardings(given)
    assert str(given) == before


@pytest.mark.parametrize(
    ("sharding", "message"),
    [("{devices=[4]<=[4]}", "is for an array of rank 1, the type is"), ("{devices=", "sharding")],
)
def test_what_is_no_sharding_is_an_error(sharding, message):
    with pytest.raises(DiagnosedError, match=message):
        import_shardings(module(sharding, "{replicated}"))


def test_a_module_with_shardys_shardings_too_is_refused():
    given = module("{devices=[4,1]<=[4]}", "{replicated}")
    mesh = ir.Module.parse('sdy.mesh @mesh = <["x"=4]>')
    given.body.append(mesh.body.operations[0].operation)
    with pytest.raises(RefusedError, match="it has Shardy's shardings too"):
        import_shardings(given)


def test_only_custom_calls_have_a_target():
    ops = ops_in(module("{replicated}", "{replicated}").operation)
    assert [call_target(op) for op in ops] == ["", "", "Sharding", ""]
