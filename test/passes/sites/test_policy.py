# SPDX-License-Identifier: Apache-2.0
"""The policies `better`, `strict` and `always`: which conversions they rewrite, by the costs of stock XLA."""

import pytest
from fake_child import FakeChild, compiled

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import Compiled
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.oracle import KEEP, REWRITE
from reshard.synthesis.layouts.mesh import Mesh

MESH = 'sdy.mesh @mesh = <["x"=4, "y"=2]>'
STOCK = compiled()


def run(text: str, policy: str = "better", child=None) -> Session:
    """Returns the session after find-mismatches and plan-sites on a module."""
    session = Session(RunOptions(xla_child=child))
    passes = f"builtin.module(find-mismatches,plan-sites{{policy={policy} layout-check=off}})"
    with make_context() as context, ir.Location.unknown(context):
        Pipeline.parse(passes).run(ir.Module.parse(text), session)
    return session


def function(arguments: dict[str, str], result: str, body: str, mesh: str = MESH) -> str:
    """Returns a module with one function.

    Args:
      arguments: from `%name: type` to a sharding. result: `type sharding`. body: ops that compute %r.
    """
    sharding = "{{sdy.sharding = #sdy.sharding<@mesh, {}>}}".format
    given = ", ".join(f"{name} {sharding(layout)}" for name, layout in arguments.items())
    type_, layout = result.split(" ", 1)
    return f"""{mesh}
    func.func public @main({given}) -> ({type_} {sharding(layout)}) {{
      {body}
      return %r : {type_}
    }}"""


M = "tensor<16x16xf32>"
DOT = f"%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({M}, {M}) -> {M}"
# Stock XLA partitions the dot in another way than propagation says, and so moves less than our conversions around the
# dot.
STOCK_KNOWS_BETTER = function(
    {f"%a: {M}": '[{"x"}, {}]', f"%b: {M}": '[{}, {"x", "y"}]'}, f'{M} [{{"y"}}, {{"x"}}]', DOT
)
PAIR_WORTH_IT = f"""{MESH}
    func.func public @main(%a: tensor<16x16x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"y"}}, {{}}, {{"x"}}]>}})
        -> (tensor<16x16x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x", "y"}}, {{}}]>}}) {{
      return %a : tensor<16x16x16xf32>
    }}"""

BETWEEN_MESHES = """sdy.mesh @one = <["x"=4, "y"=2]>
    sdy.mesh @two = <["c"=2, "a"=2, "b"=2]>
    func.func public @main(%a: tensor<10x14xf32>) -> tensor<10x14xf32> {
      %0 = sdy.sharding_constraint %a <@one, [{"y"}, {}]> : tensor<10x14xf32>
      %1 = stablehlo.optimization_barrier %0 : tensor<10x14xf32>
      %2 = sdy.sharding_constraint %1 <@two, [{"c", "a", "b"}, {}]> : tensor<10x14xf32>
      %3 = stablehlo.optimization_barrier %2 : tensor<10x14xf32>
      return %3 : tensor<10x14xf32>
    }"""
OPERAND_ON_ANOTHER_MESH = """sdy.mesh @mesh = <["x"=4, "y"=2]>
    sdy.mesh @reversed = <["x"=4, "y"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
    func.func public @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@reversed, [{"x"}, {}]>}, %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
        -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
      %0 = stablehlo.add %a, %b {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }"""  # noqa: E501


class TestPolicy:
    def test_always_asks_nobody(self):
        session = run(STOCK_KNOWS_BETTER, "always", FakeChild())
        assert {row["verdict"] for row in session.results.report_rows} == {REWRITE}
        assert {row["reason"] for row in session.results.report_rows} == {"the policy is always"}

    @pytest.mark.parametrize(
        "policy, reason",
        [
            ("better", "it would receive more, 640 bytes -> 832 bytes, and the network is unknown"),
            ("strict", "stock XLA is better in received bytes 640 -> 832"),
        ],
    )
    def test_an_op_that_stock_partitions_better_is_kept(self, policy, reason):
        session = run(STOCK_KNOWS_BETTER, policy)
        assert [row["kind"] for row in session.results.report_rows] == ["argument", "result"]
        for row in session.results.report_rows:
            assert row["verdict"] == KEEP
            assert row["reason"].startswith(reason)
            assert row["possible"] == "better"
        assert len(session.remarks) == 2 and f"is left to XLA: {reason}" in str(session.remarks[0])

    def test_better_rewrites_a_lone_pair_that_stock_gathers(self):
        (row,) = run(PAIR_WORTH_IT).results.report_rows
        assert (row["verdict"], row["stock_bytes"], row["our_bytes"]) == (REWRITE, 14336, 1792)

    def test_better_rewrites_a_lone_pair_between_two_meshes(self):
        (row,) = (each for each in run(BETWEEN_MESHES).results.report_rows if "target_mesh" in each["problem"])
        assert (row["verdict"], row["chain"]) == (REWRITE, "exchange in 1 round of [2, 14]")
        assert row["our_bytes"] < row["stock_bytes"] and row["problem"]["target_mesh"] == str(Mesh.parse("c=2,a=2,b=2"))

    def test_xla_may_write_the_same_layout_on_another_mesh(self):
        """The layout check once took `y` of one mesh and `b` of the other for different layouts.

        Both name the same digit of the devices.
        """
        with make_context(), ir.Location.unknown():
            module = ir.Module.parse(f"module @m attributes {{mhlo.num_partitions = 8 : i32}} {{ {BETWEEN_MESHES} }}")
            session = Session()
            Pipeline.parse("builtin.module(find-mismatches,plan-sites)").run(module, session)
        assert {row["verdict"] for row in session.results.report_rows if "target_mesh" in row["problem"]} == {REWRITE}

    def test_better_keeps_an_op_with_an_operand_on_another_mesh(self):
        rows = run(OPERAND_ON_ANOTHER_MESH).results.report_rows
        assert {row["verdict"] for row in rows} == {KEEP}
        said = "the op cannot be judged alone: the layouts around it are unknown, or on several meshes"
        assert {row["reason"] for row in rows} == {said}

    def test_an_op_is_decided_as_a_whole(self):
        child = FakeChild(compiled(), compiled(received=1))
        rows = run(STOCK_KNOWS_BETTER, child=child).results.report_rows
        assert len(child.asked) == 2  # one question for both conversions, stock and ours
        assert child.asked[1].count("sdy.manual_computation") == 2
        assert len({row["group"] for row in rows}) == 1
        assert [row["verdict"] for row in rows] == [REWRITE, REWRITE]

    def test_a_stock_abort_leads_to_a_rewrite(self):
        child = FakeChild(Compiled("abort", "SIGFPE"), compiled())
        (row,) = run(PAIR_WORTH_IT, child=child).results.report_rows
        assert (row["verdict"], row["reason"]) == (REWRITE, "stock XLA aborts: SIGFPE")
        assert row["stock_bytes"] is None and row["our_bytes"] == 1000

    def test_equal_questions_are_equal_texts(self):
        """The names of meshes and values do not change a question, so that the cache on disk finds its answer."""
        other = PAIR_WORTH_IT.replace("@mesh", "@devices").replace("%a", "%cube")
        first, second = FakeChild(compiled(), compiled()), FakeChild(compiled(), compiled())
        run(PAIR_WORTH_IT, child=first)
        run(other, child=second)
        assert first.asked == second.asked

    def test_an_operand_of_a_manual_computation_is_a_lone_pair(self):
        """The layout of the operand is fixed, so the question is a lone conversion.

        The mesh has another name than the mesh in questions.
        """
        text = f"""sdy.mesh @devices = <["x"=4, "y"=2]>
            func.func public @main(%a: {M} {{sdy.sharding = #sdy.sharding<@devices, [{{"x"}}, {{}}]>}}) -> {M} {{
              %r = sdy.manual_computation(%a)
                  in_shardings=[<@devices, [{{"y"}}, {{}}]>] out_shardings=[<@devices, [{{"y"}}, {{}}]>]
                  manual_axes={{"y"}} (%b: tensor<8x16xf32>) {{
                sdy.return %b : tensor<8x16xf32>
              }} : ({M}) -> {M}
              return %r : {M}
            }}"""
        (row,) = run(text).results.report_rows
        assert (row["op"], row["group"]) == ("sdy.manual_computation", "site 0")
        assert row["stock_bytes"] is not None

    def test_an_op_that_needs_a_symbol_of_its_module_is_kept(self):
        """A nested constraint names a mesh that the question about this op would not contain."""
        text = f"""{MESH}
            func.func public @main(%a: {M} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}},
                %i: tensor<16x1xi32>, %u: {M} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"y"}}]>}})
                -> ({M} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}) {{
              %r = "stablehlo.scatter"(%a, %i, %u) <{{indices_are_sorted = false, unique_indices = false,
                  scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
                  scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
                ^bb0(%old: tensor<f32>, %new: tensor<f32>):
                  %s = sdy.sharding_constraint %new <@mesh, []> : tensor<f32>
                  stablehlo.return %s : tensor<f32>
              }}) : ({M}, tensor<16x1xi32>, {M}) -> {M}
              return %r : {M}
            }}"""
        rows = [row for row in run(text).results.report_rows if row["op"] == "stablehlo.scatter"]
        assert rows
        assert {row["reason"] for row in rows} == {
            "the op cannot be judged alone: it uses values or symbols from outside"
        }

    def test_a_site_with_a_use_that_is_rewritten_is_reported_as_rewritten(self):
        """A result and an op that want one value in the same layout are one site, but two questions."""
        text = f"""{MESH}
            func.func public @main(%a: {M} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}},
                %b: {M} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}})
                -> ({M} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}, {M} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}) {{
              %0 = stablehlo.add %a, %b : {M}
              return %0, %a : {M}, {M}
            }}"""  # noqa: E501
        kept, worth_it = (STOCK, STOCK), (STOCK, compiled(received=1))
        (row,) = run(text, child=FakeChild(*kept, *worth_it)).results.report_rows
        assert (row["verdict"], row["op"]) == (REWRITE, "func.return")


def test_an_op_in_front_of_a_constraint_is_judged_with_it():
    """XLA gathers the whole array for the constraint; if the question had a result instead, XLA would slice first."""
    kind = "tensor<16x32x64xf32>"
    text = f"""{MESH}
        func.func public @main(%a: {kind} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}, {{}}]>}}) -> {kind} {{
          %0 = stablehlo.tanh %a : {kind}
          %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{"y"}}, {{}}]> : {kind}
          %2 = stablehlo.add %1, %1 : {kind}
          return %2 : {kind}
        }}"""
    child = FakeChild(STOCK, STOCK)
    run(text, child=child)
    assert all("sdy.sharding_constraint" in question and '[{}, {"y"}, {}]' in question for question in child.asked)
    (row,) = run(text).results.report_rows
    assert row["verdict"] == REWRITE
    assert (row["stock_bytes"], row["our_bytes"]) == (98_304, 49_152)
