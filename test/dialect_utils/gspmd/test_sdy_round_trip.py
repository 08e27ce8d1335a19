# SPDX-License-Identifier: Apache-2.0
"""XLA's round-trip form is read back; what is not in that form leaves the module as it was."""

import pytest

from reshard.dialect_utils.gspmd.gspmd_statements import RefusedError
from reshard.dialect_utils.gspmd.sdy_round_trip import import_shardings
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context

A, T = "tensor<8xf32>", "tensor<4xf32>"
SPLIT = r"#sdy.sharding_per_value<[<@mesh, [{\22x\22}]>]>"
AXES = r"#sdy<manual_axes{\22x\22}>"


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


def strings(**entries: str) -> str:
    written = ", ".join(f'xla.sdy.{name} = "{text}"' for name, text in entries.items())
    return f"mhlo.frontend_attributes = {{{written}}}"


MESHES = strings(meshes=r"{mesh = #sdy.mesh<[\22x\22=2]>}")
ROWS = strings(sharding=r"#sdy.sharding<@mesh, [{\22x\22}]>")


def module(body: str, others: str = "") -> ir.Module:
    """Returns a module with a function from %a to %r, on a mesh of two devices that a string describes."""
    return ir.Module.parse(f"""
      module attributes {{{MESHES}}} {{
        {others}
        func.func @main(%a: {A} {{{ROWS}}}) -> {A} {{
          {body}
          return %r : {A}
        }}
      }}""")


def call(target: str, operand: str, attributes: str, of: str = A, to: str = A) -> str:
    return f"stablehlo.custom_call @{target}({operand}) {{{attributes}}} : ({of}) -> {to}"


def names(given: ir.Module) -> list[str]:
    return [op.name for op in ops_in(given.operation)]


def test_a_constraint_and_a_barrier_are_shardys_ops_again():
    given = module(f"""%0 = {call("Sharding", "%a", strings(sharding=SPLIT))}
        %r = {call("xla.sdy.PropagationBarrier", "%0", strings(allowed_direction="1 : i64"))}""")
    counts = import_shardings(given).counts
    assert counts == {"meshes": 1, "shardings": 1, "constraints": 1, "regions": 0}
    assert names(given)[1:] == [
        "sdy.mesh",
        "func.func",
        "sdy.sharding_constraint",
        "sdy.propagation_barrier",
        "func.return",
    ]
    assert given.operation.verify() and "frontend_attributes" not in str(given)


BODY = f"func.func private @xla.sdy.manual_computation_body(%t: {T}) -> {T} {{ return %t : {T} }}"
ENTRY = call("xla.sdy.GlobalToLocalShape", "%a", strings(in_shardings=SPLIT, manual_axes=AXES), A, T)
CALL = f"func.call @xla.sdy.manual_computation_body(%0) : ({T}) -> {T}"


def exit_with(**entries: str) -> str:
    return call("xla.sdy.LocalToGlobalShape", "%1", strings(**entries), T, A)


def test_a_call_of_a_body_is_a_manual_computation_again():
    given = module(f"%0 = {ENTRY}\n%1 = {CALL}\n%r = {exit_with(out_shardings=SPLIT, manual_axes=AXES)}", BODY)
    assert import_shardings(given).counts["regions"] == 1
    assert "sdy.manual_computation" in names(given) and "func.call" not in names(given)
    assert "manual_computation_body" not in str(given)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (exit_with(out_shardings=SPLIT, manual_axes="#sdy<manual_axes{}>"), "do not agree on xla.sdy.manual_axes"),
        (exit_with(out_shardings=SPLIT), "do not agree on xla.sdy.manual_axes"),
        (exit_with(manual_axes=AXES), "xla.sdy.out_shardings has 0 shardings for 1 values"),
    ],
)
def test_a_manual_computation_in_another_form_leaves_the_module_unchanged(end, reason):
    given = module(f"%0 = {ENTRY}\n%1 = {CALL}\n%r = {end}", BODY)
    before = str(given)
    with pytest.raises(RefusedError, match=reason):
        import_shardings(given)
    assert str(given) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sharding", "no attribute"),
        ("sharding", "1 : i64"),
        ("allowed_direction", "4 : i64"),
        ("sharding_group_id", AXES),
        ("manual_axes", SPLIT),
    ],
)
def test_a_string_of_another_kind_is_an_error_and_not_the_end_of_the_process(name, text):
    with pytest.raises(DiagnosedError, match=f"cannot read xla.sdy.{name} = "):
        import_shardings(module(f"%r = {call('Sharding', '%a', strings(**{name: text}))}"))


def test_a_group_whose_number_is_missing_is_refused():
    group = call("xla.sdy.ShardingGroup", "%a", "has_side_effect = true", A, "tuple<>")
    given = module(f"%r = stablehlo.tanh %a : {A}\n%g = {group}")
    with pytest.raises(RefusedError, match="it has no xla.sdy.sharding_group_id"):
        import_shardings(given)
