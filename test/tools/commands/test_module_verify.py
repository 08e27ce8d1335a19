# SPDX-License-Identifier: Apache-2.0
"""reshard verify says whether values are right, and if not, whether stock XLA or we are wrong, and from which op on."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from reshard.dialect_utils.compare import instrumented as watched_modules
from reshard.dialect_utils.compare.rounding import Rounding
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import Ran, XlaChild
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import module_verification
from reshard.passes.results.module_verification import EQUAL, FAILED, ROUNDED, UNKNOWN, WITHIN, WRONG, Verdict
from reshard.tools import reshard as tool
from reshard.tools.commands.module_verify import OURS_IS_WRONG, RIGHT, STOCK_IS_WRONG, exit_status

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>'
HEAD = f"module @m attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{\n  {MESH}\n"


def sharded(dims: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, [{dims}]>}}"


COLUMN_MAJOR = f"""{HEAD}
  func.func public @main(%arg0: tensor<4x8xf32> {sharded('{"x"}, {}').replace("{", '{mhlo.layout_mode = "{0,1}", ', 1)}) -> (tensor<4x8xf32> {sharded('{}, {"x"}')}) {{
    %0 = stablehlo.negate %arg0 : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }}
}}
"""  # noqa: E501

# The result needs the sum in another layout than the sum has: one site.
MOVED = f"""{HEAD}
  func.func public @main(%arg0: tensor<8x16xf32> {sharded('{"x"}, {}')}, %arg1: tensor<8x16xf32> {sharded('{"x"}, {}')})
      -> (tensor<8x16xf32> {sharded('{}, {"x"}')}) {{
    %0 = stablehlo.negate %arg0 : tensor<8x16xf32> loc("moved.py":1:1)
    %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{"x"}}]> : tensor<8x16xf32> loc("moved.py":2:1)
    %2 = stablehlo.floor %1 : tensor<8x16xf32> loc("moved.py":3:1)
    return %2 : tensor<8x16xf32>
  }}
}}
"""

# A dot whose sums have another order on several devices.
SUMMED = f"""{HEAD}
  func.func public @main(%arg0: tensor<8x512xf32> {sharded('{}, {"x", "y"}')}, %arg1: tensor<512x8xf32> {sharded('{"x", "y"}, {}')})
      -> (tensor<8x8xf32> {sharded('{"z"}, {}')}) {{
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x512xf32>, tensor<512x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }}
}}
"""  # noqa: E501

# Stock XLA does not clamp the offset of an update along a dimension that it splits. The offset is 6 and the dimension
# has size 2, so the update is lost.
UPDATED = f"""{HEAD}
  func.func public @main(%arg0: tensor<8x2xf32> {sharded('{"x", "y"}, {}')}) -> (tensor<8x2xf32> {sharded('{}, {"y"}')}) {{
    %0 = stablehlo.sine %arg0 : tensor<8x2xf32>
    %1 = stablehlo.slice %0 [0:8, 0:1] : (tensor<8x2xf32>) -> tensor<8x1xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<6> : tensor<i32>
    %far = stablehlo.optimization_barrier %c_0 : tensor<i32>
    %2 = stablehlo.dynamic_update_slice %0, %1, %c, %far : (tensor<8x2xf32>, tensor<8x1xf32>, tensor<i32>, tensor<i32>) -> tensor<8x2xf32> loc("updated.py":9:1)
    %3 = stablehlo.negate %2 : tensor<8x2xf32>
    return %3 : tensor<8x2xf32>
  }}
}}
"""  # noqa: E501

# XLA wrongly sums over the axes of the output features if a spatial dimension is split too: the values are twice too
# large, stock's and ours alike.
CONVOLVED = f"""{HEAD}
  func.func public @main(%arg0: tensor<16x8x8xf32> {sharded('{}, {}, {"x"}')}, %arg1: tensor<8x8x3xf32> {sharded('{"y"}, {}, {}')})
      -> (tensor<16x8x4xf32> {sharded('{}, {"y"}, {"x"}')}) {{
    %0 = stablehlo.sine %arg0 : tensor<16x8x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{"y"}}, {{"x"}}]> : tensor<16x8x8xf32>
    %2 = stablehlo.convolution(%1, %arg1) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {{stride = [2], pad = [[0, 1]]}}
      {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : (tensor<16x8x8xf32>, tensor<8x8x3xf32>) -> tensor<16x8x4xf32> loc("conv.py":4:1)
    return %2 : tensor<16x8x4xf32>
  }}
}}
"""  # noqa: E501

# Nearly equal sums are multiplied by a large number and then rounded to integers.
FLIPPED = f"""{HEAD}
  func.func public @main(%arg0: tensor<8x512xf32> {sharded('{}, {"x", "y"}')}, %arg1: tensor<512x8xf32> {sharded('{"x", "y"}, {}')})
      -> tensor<8x8xi32> {{
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x512xf32>, tensor<512x8xf32>) -> tensor<8x8xf32>
    %large = stablehlo.constant dense<1.0e6> : tensor<8x8xf32>
    %1 = stablehlo.multiply %0, %large : tensor<8x8xf32>
    %2 = stablehlo.convert %1 : (tensor<8x8xf32>) -> tensor<8x8xi32>
    return %2 : tensor<8x8xi32>
  }}
}}
"""  # noqa: E501

TILED = f"""{HEAD}
  func.func public @main(%arg0: tensor<8x16xf32> {sharded('{"x"}, {}')}) -> (tensor<8x16xf32> {sharded('{}, {"x"}')}) {{
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{{"x"}}, {{}}]>] out_shardings=[<@mesh, [{{"x"}}, {{}}]>]
        manual_axes={{"x"}} (%t: tensor<4x16xf32>) {{
      %2 = stablehlo.sine %t : tensor<4x16xf32>
      sdy.return %2 : tensor<4x16xf32>
    }} : (tensor<8x16xf32>) -> tensor<8x16xf32> loc("tiled.py":7:1)
    return %0 : tensor<8x16xf32>
  }}
}}
"""

LOOPED = f"""{HEAD}
  func.func public @main(%arg0: tensor<8x16xf32> {sharded('{"x"}, {}')}, %arg1: tensor<8x16xf32> {sharded('{"y"}, {}')})
      -> (tensor<8x16xf32> {sharded('{}, {"x"}')}) {{
    %c = stablehlo.constant dense<0> : tensor<i32>
    %s = stablehlo.sine %arg1 : tensor<8x16xf32>
    %0:2 = stablehlo.while(%i = %c, %a = %arg0) : tensor<i32>, tensor<8x16xf32>
      cond {{
        %n = stablehlo.constant dense<3> : tensor<i32>
        %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      }} do {{
        %one = stablehlo.constant dense<1> : tensor<i32>
        %j = stablehlo.add %i, %one : tensor<i32>
        %b = stablehlo.add %a, %s : tensor<8x16xf32>
        stablehlo.return %j, %b : tensor<i32>, tensor<8x16xf32>
      }}
    %1 = func.call @twice(%0#1) : (tensor<8x16xf32>) -> tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }}
  func.func private @twice(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {{
    %0 = stablehlo.add %arg0, %arg0 : tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }}
}}
"""


@pytest.fixture(scope="module")
def child():
    with XlaChild(uses_cache=False, num_devices=8) as child:
        yield child


@pytest.fixture
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield context


def numbered(text: str) -> ir.Module:
    module = ir.Module.parse(text)
    watched_modules.number_ops(module)
    return module


def rewritten(module: ir.Module) -> ir.Module:
    copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=True))
    Pipeline.default().with_options({"policy": "always"}).run(copy, Session())
    assert "sdy.manual_computation" in str(copy)
    return copy


def verify(text: str, child, tamper=None, rewrites: bool = True, **options):
    original = numbered(text)
    ours = rewritten(original) if rewrites else None
    if tamper is not None:
        ours = ir.Module.parse(tamper(ours.operation.get_asm(enable_debug_info=True)))
    return module_verification.verify(original, ours, 8, child, **options)


def with_negated_island(text: str) -> str:
    """Returns a rewritten module in which the first region of tiles, here always an island, negates its result."""
    assert "sdy.return" in text
    return re.sub(
        r"sdy\.return (%\w+) : (tensor<[^>]*>)",
        r"%bad = stablehlo.negate \1 : \2\n sdy.return %bad : \2",
        text,
        count=1,
    )


def with_ceiling(text: str) -> str:
    assert "stablehlo.floor" in text
    return text.replace("stablehlo.floor", "stablehlo.ceil")


# ---- verdicts


@pytest.mark.slow
def test_what_moves_data_is_equal_bit_for_bit(context, child):
    found = verify(MOVED, child)
    assert (found.stock.status, found.ours.status) == (EQUAL, EQUAL)
    assert found.is_rewritten and exit_status(found) == RIGHT


def test_a_demand_on_the_layout_in_memory_is_no_fault(context, child):
    found = verify(COLUMN_MAJOR, child)
    assert found.stock.status == EQUAL and found.ours.is_right


def test_sums_in_another_order_are_equal_within_a_tolerance_that_grows_with_their_terms(context, child):
    found = verify(SUMMED, child, rewrites=False)
    assert found.stock.status == WITHIN
    assert 0 < found.stock.difference.fraction < found.stock.difference.limit
    assert found.stock.difference.limit == pytest.approx((64 + 2 * 512**0.5) * 2**-23)


def test_rounding_made_large_is_no_fault(context, child):
    found = verify(FLIPPED, child, rewrites=False)
    assert found.stock.status == ROUNDED and found.stock.difference.problem.endswith("integers")
    assert exit_status(found) == RIGHT


@pytest.mark.parametrize(
    ("status", "shift", "found"),
    [(ROUNDED, 0.0, ROUNDED), (ROUNDED, 1e-6, ROUNDED), (ROUNDED, 1e-3, None), (WRONG, 0.0, None), (WITHIN, 0.0, None)],
)
def test_what_is_off_like_stock_xla_is_rounding_if_that_is(status, shift, found):
    """Ours is written per device and lacks ops, so none of its ops can be judged; its outputs are those of stock."""
    expected, off = np.ones(4, np.float32), np.full(4, 1.0005, np.float32)
    judge = module_verification._Verifier(None, None, 8, None, 0, 1.0, False, print)
    judge.expected, judge.roundings = (expected,), [Rounding(2**-23)]
    stock, ours = Ran("ok", outputs=(off,)), Ran("ok", outputs=(off + np.float32(shift),))
    verdict = judge._as_stock(Verdict(status), stock, ours)
    assert (verdict and verdict.status) == found
    assert judge._as_stock(Verdict(ROUNDED), stock, Ran("ok", outputs=(expected,))) is None


def test_what_stock_xla_alone_computes_wrongly_is_told_with_its_op(context, child):
    found = verify(UPDATED, child)
    assert found.stock.status == WRONG and found.ours.is_right
    fault = found.stock.fault
    assert (fault.op, str(fault.place), fault.what) == ("stablehlo.dynamic_update_slice", "updated.py:9:1", "result 0")
    assert found.stock.output == 0 and fault.difference.index == (0, 1)
    assert exit_status(found) == STOCK_IS_WRONG


def test_what_stock_xla_and_our_module_compute_wrongly_alike_is_no_fault_of_ours(context, child):
    found = verify(CONVOLVED, child)
    assert found.stock.status == found.ours.status == WRONG and found.is_same_fault
    assert {each.fault.op for each in (found.stock, found.ours)} == {"stablehlo.convolution"}
    assert exit_status(found) == STOCK_IS_WRONG


def test_a_wrong_island_is_our_fault_and_is_told_at_the_operand_that_it_brings(context, child):
    found = verify(MOVED, child, tamper=with_negated_island)
    assert found.stock.status == EQUAL and found.ours.status == WRONG
    fault = found.ours.fault
    assert (fault.op, str(fault.place), fault.what) == ("stablehlo.floor", "moved.py:3:1", "operand 0")
    assert float(fault.difference.found) == -float(fault.difference.expected)
    assert exit_status(found) == OURS_IS_WRONG


def test_a_wrong_op_of_ours_is_told_though_all_it_takes_is_right(context, child):
    found = verify(MOVED, child, tamper=with_ceiling)
    assert (found.ours.fault.op, found.ours.fault.what) == ("stablehlo.floor", "result 0")
    assert exit_status(found) == OURS_IS_WRONG


def test_our_fault_is_told_beside_one_of_stock_xla(context, child):
    found = verify(CONVOLVED, child, tamper=with_negated_island)
    assert found.stock.status == found.ours.status == WRONG and not found.is_same_fault
    assert found.ours.fault.what.startswith(("operand", "output"))
    assert exit_status(found) == OURS_IS_WRONG


@pytest.mark.parametrize("tamper", [None, with_negated_island])
def test_a_module_with_manual_computations_is_compared_with_stock_xla_alone(context, child, tamper):
    found = verify(TILED, child, tamper)
    assert "tiled.py:7:1: sdy.manual_computation" in found.no_reference
    assert found.stock.status == UNKNOWN and found.ours.status == (WRONG if tamper else EQUAL)
    assert exit_status(found) == (OURS_IS_WRONG if tamper else RIGHT)


# ---- the search


def test_a_fault_that_cannot_be_watched_is_found_one_op_at_a_time(context, child, monkeypatch):
    monkeypatch.setattr(module_verification._Search, "_watch", lambda self, window: "XLA hangs: no answer after 1 s")
    found = verify(UPDATED, child, rewrites=False)
    assert found.stock.fault.op == "stablehlo.dynamic_update_slice"
    assert found.stock.fault.how.startswith("the module with all ops watched: XLA hangs")


def test_ops_are_watched_in_several_runs_where_one_would_return_too_much(context, child, monkeypatch):
    monkeypatch.setattr(module_verification, "MOST_WATCHED_BYTES", 1)
    told = []
    found = verify(UPDATED, child, rewrites=False, progress=told.append)
    assert found.stock.fault.op == "stablehlo.dynamic_update_slice"
    assert "watching ops: run 2 of" in "\n".join(told)


@pytest.mark.parametrize(
    ("before", "after", "op"),
    [
        ("add %a, ", "subtract %a, ", "stablehlo.while"),
        ("add %arg0, %arg0", "multiply %arg0, %arg0", "func.call @twice"),
    ],
)
def test_loops_and_calls_are_watched_as_one_op(context, child, before, after, op):
    original = numbered(LOOPED)
    assert before in LOOPED
    found = module_verification.verify(original, numbered(LOOPED.replace(before, after)), 8, child)
    assert found.stock.is_right and (found.ours.status, found.ours.fault.op) == (WRONG, op)
    assert not found.ours.fault.how


def with_hidden_sum(text: str) -> str:
    """Returns a module in which the island's values are too small to change the output."""
    after = (
        "stablehlo.constant dense<1.0e20> : tensor<8x16xf32>\n%5 = stablehlo.add %2, %4 : tensor<8x16xf32>\nreturn %5"
    )
    return text.replace("return %2", f"%4 = {after}")


def test_every_op_is_judged_where_a_fault_is_too_small_for_the_output(context, child):
    hidden = with_hidden_sum(MOVED)
    assert verify(hidden, child, tamper=with_negated_island).ours.is_right
    found = verify(hidden, child, tamper=with_negated_island, every_op=True)
    assert (found.stock.status, found.stock.message) == (EQUAL, "so is every op")
    assert found.ours.status == WRONG and (found.ours.fault.op, found.ours.fault.what) == (
        "stablehlo.floor",
        "operand 0",
    )
    assert exit_status(found) == OURS_IS_WRONG


def test_a_replay_gives_what_the_unsharded_module_gives(context, child):
    """The replay runs every op on the operands that it had; they include the values that loops capture."""
    original = numbered(LOOPED)
    reference = watched_modules.unsharded(original)
    *ops, _ = watched_modules.watched_ops(reference)
    inputs = module_verification.seeded(original, 0)
    watched = watched_modules.watched(original, ops)
    ran = child.run(watched.text, inputs, 8)
    assert ran.status == "ok", ran.message
    values = dict(zip(watched.keys, ran.outputs[1:], strict=True))
    replayed = watched_modules.replayed(reference, ops, list(values))
    assert {key.kind for key in replayed.arguments} >= {"argument", "result"}
    arguments = [values[key] if key in values else inputs[key.number] for key in replayed.arguments]
    again = child.run(replayed.text, arguments, 1)
    assert again.status == "ok", again.message
    for key, value in zip(replayed.results, again.outputs, strict=True):
        np.testing.assert_allclose(value, values[key], rtol=1e-6)


def test_inputs_are_made_positive_where_others_compare_nothing(context, child):
    found = verify(MOVED.replace("stablehlo.negate", "stablehlo.log"), child, rewrites=False)
    assert found.not_finite == 0 and found.inputs.startswith("small positive floats")
    assert found.stock.status in (EQUAL, WITHIN)


# ---- XLA's deaths


class Dying(XlaChild):
    """A child that really aborts, or hangs, at the given runs on several devices."""

    def __init__(self, request: dict, *dies: int):
        super().__init__(uses_cache=False, num_devices=8)
        self.request, self.dies, self.count = request, dies, 0

    def run(self, module, inputs, num_devices, **options) -> Ran:
        self.count += num_devices > 1
        if num_devices > 1 and self.count in self.dies:
            reply = self._ask(self.request, num_devices, 0.3 if "seconds" in self.request else 60)
            return Ran(reply["status"], reply["message"])
        return super().run(module, inputs, num_devices, **options)


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    ("request_", "text"), [({"op": "abort"}, "XLA aborts: SIGABRT"), ({"op": "sleep", "seconds": 60}, "XLA hangs")]
)
def test_the_death_of_stock_xla_is_told_and_the_rest_is_compared(context, request_, text):
    with Dying(request_, 1) as child:
        found = verify(MOVED, child)
    assert found.stock.status == FAILED and found.stock.message.startswith(text)
    assert found.ours.status == EQUAL and exit_status(found) == STOCK_IS_WRONG


def test_xla_that_dies_of_our_module_alone_is_our_fault(context):
    with Dying({"op": "abort"}, 2) as child:
        found = verify(MOVED, child)
    assert found.stock.status == EQUAL and found.ours.status == FAILED and exit_status(found) == OURS_IS_WRONG


# ---- the command


def run(*arguments) -> int:
    try:
        return tool.main(["verify", *map(str, arguments)])
    except SystemExit as end:
        return end.code


def test_text_of_the_command(capsys, tmp_path):
    path = tmp_path / "updated.mlir"
    path.write_text(UPDATED)
    assert run(path, "--policy", "always") == STOCK_IS_WRONG
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == f"{path}: 8 devices, 1 output; seed 0: normal floats, integers from 0 to 6" and err == ""
    assert lines[1] == "  stock XLA: WRONG"
    assert lines[3].startswith(
        "    updated.py:9:1: stablehlo.dynamic_update_slice is the first op that departs, result 0: off by "
    )
    assert lines[-2:] == ["  ours:      equal, bit for bit", "  => stock XLA alone is wrong"]


def test_json_of_the_command(capsys, tmp_path):
    path = tmp_path / "updated.mlir"
    path.write_text(UPDATED)
    assert run(path, "--json", "--seed", 3, "--pass-pipeline", "find-mismatches,strip-findings") == STOCK_IS_WRONG
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["devices"], found["seed"], found["is_rewritten"]) == (
        "reshard.verify/1",
        8,
        3,
        False,
    )
    assert found["exit_status"] == STOCK_IS_WRONG and found["is_same_fault"]
    assert (
        found["stock"]["fault"]["op"] == "stablehlo.dynamic_update_slice"
        and found["stock"]["fault"]["place"] == "updated.py:9:1"
    )
    assert found["ours"] == found["stock"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--devices", "4"], 1, "error: the module is for 8 devices, --devices is 4"),
        (["--devices", "0"], 2, "'0' is not a whole number from 1"),
        (["--seed", "-1"], 2, "seed"),
        (["--policy", "never"], 2, "policy=never is not available; choose from better, strict, always"),
        (["--pass-pipeline", "no-such-pass"], 2, "no-such-pass"),
    ],
)
def test_wrong_flags_are_one_line(capsys, tmp_path, arguments, status, words):
    path = tmp_path / "moved.mlir"
    path.write_text(MOVED)
    assert run(path, *arguments) == status
    out, err = capsys.readouterr()
    assert words in err and not out and "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such file"),
        ("func.func @main(", "error"),
        (
            "func.func @main(%arg0: tensor<?xf32>) -> tensor<?xf32> { return %arg0 : tensor<?xf32> }",
            "argument 0 is tensor<?xf32>",
        ),
        ("module {}", "the module has no function to run"),
        ("func.func private @elsewhere(tensor<4xf32>) -> tensor<4xf32>", "the module has no function to run"),
    ],
)
def test_what_cannot_be_run_is_an_error(capsys, tmp_path, text, words):
    path = tmp_path / "bad.mlir"
    if text is not None:
        path.write_text(text)
    assert run(path) == 1
    out, err = capsys.readouterr()
    assert words in err and not out and "fault of its own" not in err


GSPMD = """module @m attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x8xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}) -> (tensor<8x8xf32> {mhlo.sharding = "LAST"}) {
    %0 = stablehlo.negate %arg0 : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
"""  # noqa: E501


def test_gspmd_shardings_are_imported_and_the_check_may_drop_rewrites(capsys, tmp_path):
    path = tmp_path / "gspmd.mlir"
    path.write_text(GSPMD.replace("LAST", "{devices=[1,8]<=[8]}"))
    assert run(path, "--policy", "always", "--check") == RIGHT
    out, _ = capsys.readouterr()
    assert "remark: GSPMD shardings are now on mesh" in out and out.endswith("=> right\n")


def test_gspmd_shardings_that_cannot_be_imported_are_an_error(capsys, tmp_path):
    path = tmp_path / "gspmd.mlir"
    path.write_text(GSPMD.replace("LAST", "{maximal device=1}"))
    assert run(path) == 1
    out, err = capsys.readouterr()
    assert not out and "error: the module has GSPMD shardings that Shardy has no form for" in err and "note: " in err


def test_a_module_without_a_mesh_runs_on_as_many_devices_as_are_asked_for(capsys, tmp_path):
    path = tmp_path / "plain.mlir"
    path.write_text("func.func @main(%a: tensor<8xi32>) -> tensor<8xi32> {\n  return %a : tensor<8xi32>\n}")
    assert run(path, "--devices", 2) == RIGHT
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path}: 2 devices, ") and "  ours:      nothing is rewritten: as stock XLA" in lines


@pytest.mark.slow
def test_the_command_is_contained_and_its_exit_status_is_that_of_the_work(tmp_path):
    path = tmp_path / "updated.mlir"
    path.write_text(UPDATED)
    done = subprocess.run(
        [sys.executable, "-m", "reshard.tools.reshard", "verify", str(path)], capture_output=True, text=True
    )
    assert done.returncode == STOCK_IS_WRONG and "stablehlo.dynamic_update_slice" in done.stdout, done.stderr


@pytest.mark.slow
def test_an_iota_that_is_handed_over_as_integers_is_checked_so(capsys, tmp_path):
    """Stock XLA rounds numbers twice; no site is rewritten."""
    path, split = tmp_path / "numbers.mlir", sharded('{"x", "y", "z"}')
    path.write_text(f"""{HEAD}
      func.func public @main(%a: tensor<4096xbf16> {split}) -> (tensor<4096xbf16> {split}) {{
        %0 = stablehlo.iota dim = 0 : tensor<4096xbf16>
        %1 = stablehlo.add %a, %0 : tensor<4096xbf16>
        return %1 : tensor<4096xbf16>
      }}
    }}
    """)
    assert tool.main(["verify", str(path)]) == RIGHT
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  stock XLA: equal within tolerance"
    assert lines[-2:] == ["  ours:      equal, bit for bit", "  => right"]
