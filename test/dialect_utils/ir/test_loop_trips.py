# SPDX-License-Identifier: Apache-2.0
"""How often ops run in a step."""

from reshard.dialect_utils.ir.loop_trips import Runs
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context

COUNTED = """
  %{name}:2 = stablehlo.while(%i = %zero, %x = {x}) : tensor<i32>, tensor<8xf32> cond {{
    %end = stablehlo.constant dense<{trips}> : tensor<i32>
    %l = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %l : tensor<i1>
  }} do {{
    %next = stablehlo.add %i, %one : tensor<i32>
    {body}
    stablehlo.return %next, %y : tensor<i32>, tensor<8xf32>
  }}"""
TEXT = """
func.func private @layer(%a: tensor<8xf32>) -> tensor<8xf32> {{
  %0 = stablehlo.sine %a : tensor<8xf32>
  return %0 : tensor<8xf32>
}}
func.func @main(%a: tensor<8xf32>, %n: tensor<i32>) -> tensor<8xf32> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  {body}
  return %a : tensor<8xf32>
}}"""
BODY = "%y = stablehlo.cosine %x : tensor<8xf32>"
CALL = "{name} = func.call @layer({x}) : (tensor<8xf32>) -> tensor<8xf32>"


def runs_of(name: str, body: str) -> int | None:
    """Returns how often the first op of a name runs, in a function with a body."""
    with make_context() as context:
        module = ir.Module.parse(TEXT.format(body=body), context)
        op = next(op for op in ops_in(module.operation) if op.name == name)
        return Runs(module).of(op)


def loop(trips: int, body: str, name: str = "w") -> str:
    return COUNTED.format(name=name, x="%a", trips=trips, body=body)


def test_an_op_outside_of_loops_runs_once():
    assert runs_of("stablehlo.cosine", "%c = stablehlo.cosine %a : tensor<8xf32>") == 1


def test_trips_of_loops_are_multiplied():
    inner = "%y = stablehlo.cosine %x : tensor<8xf32>"
    assert runs_of("stablehlo.cosine", loop(6, inner)) == 6
    nested = f"""%c0 = stablehlo.constant dense<0> : tensor<i32>
    %v:2 = stablehlo.while(%j = %c0, %z = %x) : tensor<i32>, tensor<8xf32> cond {{
      %e = stablehlo.constant dense<4> : tensor<i32>
      %m = stablehlo.compare LT, %j, %e : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %m : tensor<i1>
    }} do {{
      %k = stablehlo.add %j, %one : tensor<i32>
      {inner.replace("%y", "%u").replace("%x", "%z")}
      stablehlo.return %k, %u : tensor<i32>, tensor<8xf32>
    }}
    %y = stablehlo.negate %v#1 : tensor<8xf32>"""
    assert runs_of("stablehlo.cosine", loop(6, nested)) == 24
    assert runs_of("stablehlo.negate", loop(6, nested)) == 6


def test_a_counter_that_leaves_its_type_runs_an_unknown_number_of_times():
    """After 100 comes -56, and the loop goes on."""
    narrow = loop(120, BODY).replace("i32", "i8").replace("%zero", "%zero8").replace("%one", "%step8")
    constants = (
        "%zero8 = stablehlo.constant dense<0> : tensor<i8>\n%step8 = stablehlo.constant dense<{}> : tensor<i8>\n"
    )
    assert runs_of("stablehlo.cosine", constants.format(100) + narrow) is None
    assert runs_of("stablehlo.cosine", constants.format(8) + narrow) == 15


def test_a_function_runs_once_per_call():
    twice = CALL.format(name="%p", x="%a") + "\n" + CALL.format(name="%q", x="%a")
    assert runs_of("stablehlo.sine", twice) == 2
    assert runs_of("stablehlo.sine", loop(5, CALL.format(name="%y", x="%x")) + CALL.format(name="%q", x="%a")) == 6
    assert runs_of("stablehlo.sine", "") == 1  # nobody calls it, so it is called from outside


def test_a_loop_that_counts_up_to_an_argument_runs_an_unknown_number_of_times():
    body = loop(6, "%y = stablehlo.cosine %x : tensor<8xf32>").replace("%i, %end :", "%i, %n :")
    assert runs_of("stablehlo.cosine", body) is None
    assert runs_of("stablehlo.sine", loop(6, CALL.format(name="%y", x="%x")).replace("%i, %end :", "%i, %n :")) is None


def test_a_function_that_a_composite_names_runs_with_it():
    kind = "(tensor<8xf32>) -> tensor<8xf32>"
    composite = f"""%y = stablehlo.composite "some.layer" %x {{decomposition = @layer}} : {kind}"""
    assert runs_of("stablehlo.sine", loop(5, composite)) == 5


def test_what_a_loop_compares_from_outside_is_no_counter():
    """An argument of the function around the loop has a number, too."""
    body = loop(6, "%y = stablehlo.cosine %x : tensor<8xf32>").replace("LT, %i,", "LT, %n,")
    assert runs_of("stablehlo.cosine", body) is None


def runs_in(text: str, name: str) -> int | None:
    with make_context() as context:
        module = ir.Module.parse(text, context)
        return Runs(module).of(next(op for op in ops_in(module.operation) if op.name == name))


def test_long_chains_of_functions_are_followed():
    call = "func.func private @f{0}() {{ func.call @f{1}() : () -> () return }}\n".format
    chain = "".join(call(i, i + 1) for i in range(3000))
    last = "func.func private @f3000() { %0 = stablehlo.constant dense<0> : tensor<i32> return }"
    main = "func.func @main() { func.call @f0() : () -> () func.call @f0() : () -> () return }"
    assert runs_in(chain + last + main, "stablehlo.constant") == 2


def test_functions_that_call_themselves_run_nobody_knows_how_often():
    text = "func.func @f() { %0 = stablehlo.constant dense<0> : tensor<i32> func.call @f() : () -> () return }"
    assert runs_in(text, "stablehlo.constant") is None


def test_functions_of_a_nested_module_are_not_those_of_this_one():
    text = """module @inner { func.func @f() { %0 = stablehlo.constant dense<0> : tensor<i32> return } }
    func.func private @f() { return } func.func @main() { func.call @f() : () -> () return }"""
    assert runs_in(text, "stablehlo.constant") is None
