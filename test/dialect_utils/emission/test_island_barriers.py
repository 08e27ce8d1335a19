# SPDX-License-Identifier: Apache-2.0
"""A barrier goes between two islands of ours that both begin with or hold an all_to_all, and nowhere else."""

import pytest

from reshard.dialect_utils.emission.island_barriers import separate_islands
from reshard.dialect_utils.platform.bindings import ir, make_context

_KIND, _TILE = "tensor<8x8xf32>", "tensor<4x8xf32>"
_EXCHANGE = f"""%e = "stablehlo.all_to_all"(%t) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
      concat_dimension = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64,
      split_dimension = 0 : i64}}> : ({_TILE}) -> {_TILE}
    sdy.return %e : {_TILE}"""
_NEGATE = f"%e = stablehlo.negate %t : {_TILE}\n    sdy.return %e : {_TILE}"


def island(result: str, operand: str, body: str, name: str) -> str:
    return f"""  {result} = sdy.manual_computation({operand}) in_shardings=[<@mesh, [{{"x"}}, {{}}]>]
      out_shardings=[<@mesh, [{{"x"}}, {{}}]>] manual_axes={{"x"}} (%t: {_TILE}) {{
    {body}
  }} : ({_KIND}) -> {_KIND} loc("{name}")
"""


def barriers(*ops: str) -> int:
    """Returns the number of barriers put in a function of these ops; checks that the module holds as many."""
    text = f'sdy.mesh @mesh = <["x"=2]>\nfunc.func public @main(%a: {_KIND}) -> {_KIND} {{\n'
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(f"{text}{''.join(ops)}  return %r : {_KIND}\n}}")
        count = separate_islands(module)
        assert module.operation.verify()
        assert str(module).count("stablehlo.optimization_barrier") == count
        return count


FIRST = island("%0", "%a", _EXCHANGE, "reshard/1")


def test_a_barrier_separates_two_exchanges():
    assert barriers(FIRST, island("%r", "%0", _EXCHANGE, "reshard/2")) == 1


@pytest.mark.parametrize(
    "between, count",
    [
        (f"  %1 = stablehlo.transpose %0, dims = [1, 0] : ({_KIND}) -> {_KIND}\n", 1),  # XLA moves it away
        (f"  %1 = stablehlo.tanh %0 : {_KIND}\n", 0),
    ],
)
def test_only_moves_between_the_islands_are_looked_through(between, count):
    assert barriers(FIRST, between, island("%r", "%1", _EXCHANGE, "reshard/2")) == count


@pytest.mark.parametrize("body, name", [(_EXCHANGE, "of_the_user"), (_NEGATE, "reshard/2")])
def test_other_islands_stay(body, name):
    assert barriers(FIRST, island("%r", "%0", body, name)) == 0
