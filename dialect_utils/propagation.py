# SPDX-License-Identifier: Apache-2.0
"""Sharding propagation on a clone of a module, in the order in which XLA runs it, with every op traceable to its original.

XLA does not run `sdy-propagation-pipeline` on the module that JAX hands over. Before it, it inlines every call (HLO's
CallInliner; both jax 0.10 and 0.12), and on the way back from HLO the loop-invariant operands of a `while` become captured
values, opened by a sharding constraint with open dimensions (`xla-sdy-open-while-free-vars-sharding`). Those passes are not
in jaxlib's bindings, so this module does the same on the clone: `prepare`. What follows is Shardy's own pipeline, cut after
`sdy-close-shardings`, where XLA writes `02.after_propagation.mlir`.

    original --clone, tag--> prepared --propagation--> propagated --explicit reshards--> explicit
                 |                |                        |
              origins          operands                 layouts

Ops carry `reshard.id` in the clone, a *serial*: one per instance, so an op of a function that is called twice has two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
import functools

from .bindings import ir, passmanager, sdy
from .diagnostics import DiagnosedError, from_mlir_error
from .sdy_shardings import SHARDING, sharding_from_attr, sharding_to_attr

ID = "reshard.id"
CONSTANTS = frozenset({"stablehlo.constant", "sdy.constant"})
CONSTRAINTS = frozenset({"sdy.sharding_constraint", "sdy.reshard"})
LOOPS = frozenset({"stablehlo.while"})
_UNTAGGED = CONSTANTS | {"builtin.module", "sdy.mesh"}  # a tag on a constant would keep equal constants apart


@dataclass(frozen=True, slots=True)
class Opened:
    """A constraint that `prepare` put before a loop: the value, which a loop captures or carries unchanged, opened.

    Attributes:
      loop: serial of the loop.
      operands: the operand numbers of the loop that carry the value; empty if the loop captured it in the original.
    """

    loop: int
    operands: tuple[int, ...]


@dataclass
class Analysis:
    """A module's clone after propagation and explicit reshards, and the way back to the original.

    Attributes:
      originals: the ops of the original in walk order.
      origin: for each serial, the index in `originals`; None for a constraint of ours (see `opened`).
      prepared_ops: for each serial the op in `prepared`, the clone as propagation found it.
      opened: serial -> what the constraint opens.
      layouts: serial -> the distinct `sdy.sharding_per_value` attributes of its op after propagation (None: no sharding); the
        splitter of constants makes several ops of one.
      constraints: serial -> (layout of the operand, layout asked for) of each constraint after propagation.
      argument_layouts: function name -> shardings of its arguments after propagation.
      explicit: the clone with explicit reshards.
    """

    originals: list[ir.Operation]
    origin: list[int | None]
    prepared: ir.Operation
    prepared_ops: list[ir.Operation]
    opened: dict[int, Opened]
    explicit: ir.Operation
    layouts: dict[int, set[ir.Attribute | None]] = field(default_factory=dict)
    constraints: dict[int, tuple[ir.Attribute | None, ir.Attribute]] = field(default_factory=dict)
    argument_layouts: dict[str, list[ir.Attribute | None]] = field(default_factory=dict)

    @functools.cached_property
    def instances(self) -> dict[int, list[int]]:
        """Returns index in `originals` -> serials of its instances."""
        found: dict[int, list[int]] = {}
        for serial, index in enumerate(self.origin):
            if index is not None:
                found.setdefault(index, []).append(serial)
        return found


def analyse(module: ir.Module | ir.Operation) -> Analysis:
    """Returns the analysis of a module, which stays as it is.

    Raises: DiagnosedError with Shardy's own diagnostics if a pipeline fails.
    """
    originals, clone = tagged_clone(module)
    analysis = prepare(originals, clone)
    run(analysis.explicit, propagation_pipeline())
    _take_snapshot(analysis)
    run(analysis.explicit, EXPLICIT_RESHARDS)
    return analysis


def tagged_clone(module: ir.Module | ir.Operation) -> tuple[list[ir.Operation], ir.Operation]:
    """Returns the ops of a module in walk order, and a clone whose ops carry their index there as `reshard.id`."""
    original = module.operation
    clone = original.clone().operation
    for index, op in enumerate(ops_in(clone)):
        if op.name not in _UNTAGGED:
            op.attributes[ID] = _integer(index)
    return ops_in(original), clone


def prepare(originals: list[ir.Operation], clone: ir.Operation) -> Analysis:
    """Returns the analysis before propagation: the tagged clone with calls inlined and loop invariants opened."""
    inline_calls(clone)
    origin: list[int | None] = []
    prepared_ops: list[ir.Operation] = []
    for op in ops_in(clone):
        if op.name not in _UNTAGGED:
            origin.append(_tag(op))
            prepared_ops.append(op)
            op.attributes[ID] = _integer(len(origin) - 1)
    opened = {}
    for constraint, loop, operands in open_loop_invariants(clone):
        serial = len(origin)
        constraint.attributes[ID] = _integer(serial)
        opened[serial] = Opened(_tag(loop), operands)
        origin.append(None)
        prepared_ops.append(constraint)
    return Analysis(originals, origin, clone, prepared_ops, opened, clone.clone().operation)


def ops_in(root: ir.Operation) -> list[ir.Operation]:
    """Returns `root` and the ops nested in it, parents first."""
    found: list[ir.Operation] = []

    def visit(op) -> ir.WalkResult:
        found.append(op.operation)
        return ir.WalkResult.ADVANCE

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


# Inlining


def inline_calls(module: ir.Operation) -> None:
    """Replaces each `func.call` by the body of its function, as XLA does; functions without a body stay called.

    MLIR's `inline` pass is in jaxlib but finds nothing to inline there, since no dialect registers its interface.
    """
    functions = {_symbol(op): op for op in _top_level(module, "func.func")}
    done: set[str] = set()
    for name in functions:
        _inline_calls_in(name, functions, done, ())


def _inline_calls_in(name: str, functions: dict[str, ir.Operation], done: set[str], callers: tuple[str, ...]) -> None:
    if name in done or name in callers:  # recursion is no valid XLA program; the call stays
        return
    calls = [op for op in ops_in(functions[name]) if op.name == "func.call"]
    for call in calls:
        callee = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        if callee not in functions or callee == name:
            continue
        _inline_calls_in(callee, functions, done, (*callers, name))
        if callee in done and _has_body(functions[callee]):
            _inline_call(call, functions[callee])
    done.add(name)


def _inline_call(call: ir.Operation, function: ir.Operation) -> None:
    copy = function.clone(ip=False).operation
    block = copy.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, terminator = [op.operation for op in block.operations]
    for op in body:
        op.move_before(call)
    for result, value in zip(call.results, list(terminator.operands), strict=True):
        result.replace_all_uses_with(value)
    terminator.erase()
    call.erase()


def _has_body(function: ir.Operation) -> bool:
    return len(function.regions[0].blocks) == 1


# Loops


def open_loop_invariants(module: ir.Operation) -> list[tuple[ir.Operation, ir.Operation, tuple[int, ...]]]:
    """Lets loops capture the values that they carry unchanged, behind a constraint with open dimensions where one is sharded.

    Returns: (constraint, loop, operand numbers that carried the value) for each constraint.
    Source: `open_while_free_vars_sharding.cc` in XLA; StableHLO's canonicalization of `while`.
    """
    opened = []
    loops: list[ir.Operation] = []

    def visit(op) -> ir.WalkResult:
        if op.operation.name in LOOPS:
            loops.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.walk(visit, ir.WalkOrder.POST_ORDER)
    for loop in loops:
        carried = _capture_invariants(loop)
        for value, users in _captured_values(loop).items():
            open_sharding = _opened(layout(value))
            if open_sharding is None:
                continue
            with ir.InsertionPoint(loop), loop.location:
                constraint = sdy.ShardingConstraintOp(value, open_sharding).operation
            for user in users:
                user.replace_uses_of_with(value, constraint.results[0])
            opened.append((constraint, loop, tuple(carried.get(value, ()))))
    return opened


def _capture_invariants(loop: ir.Operation) -> dict[ir.Value, list[int]]:
    """Replaces what the loop hands through by its initial value, in the loop and after it; value -> operand numbers."""
    condition, body = (region.blocks[0] for region in loop.regions)
    carried: dict[ir.Value, list[int]] = {}
    returned = _terminator(body).operands
    for number, argument in enumerate(body.arguments):
        if returned[number] != argument:
            continue
        value = loop.operands[number]
        argument.replace_all_uses_with(value)
        condition.arguments[number].replace_all_uses_with(value)
        loop.results[number].replace_all_uses_with(value)
        # The edge itself stays, so that operand numbers do; nothing hangs on it any more.
        _terminator(body).operands[number] = argument
        carried.setdefault(value, []).append(number)
    return carried


def _captured_values(loop: ir.Operation) -> dict[ir.Value, list[ir.Operation]]:
    """Returns the values from outside that ops inside the loop use, with those ops."""
    inside: set[ir.Value] = set()
    uses: list[tuple[ir.Value, ir.Operation]] = []
    for op in ops_in(loop)[1:]:
        inside.update(op.results)
        for block in _blocks(op):
            inside.update(block.arguments)
        uses += [(value, op) for value in op.operands]
    for block in _blocks(loop):
        inside.update(block.arguments)
    captured: dict[ir.Value, list[ir.Operation]] = {}
    for value, user in uses:
        if value not in inside:
            captured.setdefault(value, []).append(user)
    return captured


def _opened(attr: ir.Attribute | None) -> ir.Attribute | None:
    """Returns the sharding with every dimension open and empty; None if there is none, or nothing to open."""
    if attr is None:
        return None
    sharding = sharding_from_attr(attr)
    if sharding.rank == 0:
        return None
    open_sharding = type(sharding)(((),) * sharding.rank, open_dims=frozenset(range(sharding.rank)))
    if open_sharding == sharding:
        return None
    return sharding_to_attr(open_sharding, sdy.TensorShardingAttr(attr).mesh_or_ref)


# Pipelines

EXPLICIT_RESHARDS = (
    "builtin.module(func.func(sdy-insert-explicit-reshards,"  # what XLA's own export inserts: concatenations, dots
    "sdy-insert-explicit-reshards{enable-full-version=true},sdy-drop-sharding-rules))"
)
_WHOLE_PIPELINE = "builtin.module(sdy-propagation-pipeline)"
_LAST_OF_PROPAGATION = "sdy-close-shardings"


def propagation_pipeline() -> str:
    """Returns `sdy-propagation-pipeline` up to where the layouts are final and no op has been inserted for them.

    MLIR prints the passes of the pipeline, which differ between versions of Shardy; this cuts that text. The whole pipeline
    is the fallback where a future text cannot be cut: its extra passes insert reshards at concatenations only.
    """
    passes = str(passmanager.PassManager.parse(_WHOLE_PIPELINE))
    head, found, _ = passes.partition(_LAST_OF_PROPAGATION)
    if not found:
        return _WHOLE_PIPELINE
    cut = (head + found).replace("sdy-save-module,", "") + ")"  # dumps; not registered by name
    try:
        passmanager.PassManager.parse(cut)
    except ValueError:
        return _WHOLE_PIPELINE
    return cut


def run(module: ir.Operation, pipeline: str) -> None:
    """Runs a textual pipeline. Raises: DiagnosedError with what MLIR reported."""
    try:
        passmanager.PassManager.parse(pipeline).run(module)
    except ir.MLIRError as error:
        raise DiagnosedError(from_mlir_error(error)) from None


def _take_snapshot(analysis: Analysis) -> None:
    for op in ops_in(analysis.explicit):
        serial = _tag(op)
        if serial is not None:
            attributes = op.attributes
            attr = attributes[SHARDING] if SHARDING in attributes else None
            analysis.layouts.setdefault(serial, set()).add(attr)
            if op.name in CONSTRAINTS:
                analysis.constraints[serial] = layout(op.operands[0]), attributes["sharding"]
    for function in _top_level(analysis.explicit, "func.func"):
        arguments = function.regions[0].blocks[0].arguments if _has_body(function) else ()
        analysis.argument_layouts[_symbol(function)] = [layout(argument) for argument in arguments]


# Layouts of values


def layout(value: ir.Value) -> ir.Attribute | None:
    """Returns the `#sdy.sharding` of a value as its producer or owner states it; None if it has none."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return _argument_layout(ir.BlockArgument(value), owner.owner.operation)
    return result_layout(owner.operation, ir.OpResult(value).result_number)


def result_layout(op: ir.Operation, number: int) -> ir.Attribute | None:
    """Returns the `#sdy.sharding` of a result of an op; None if it has none."""
    name, attributes = op.name, op.attributes
    if name in CONSTRAINTS:
        return attributes["sharding"]
    if name == "sdy.manual_computation":
        return nth_sharding(attributes["out_shardings"], number)
    if name.startswith("sdy.") and "out_sharding" in attributes:
        return attributes["out_sharding"]
    return nth_sharding(attributes[SHARDING], number) if SHARDING in attributes else None


def _argument_layout(argument: ir.BlockArgument, owner: ir.Operation) -> ir.Attribute | None:
    number = argument.arg_number
    if owner.name == "func.func":
        if "arg_attrs" not in owner.attributes:
            return None
        attributes = ir.DictAttr(owner.attributes["arg_attrs"][number])
        return attributes[SHARDING] if SHARDING in attributes else None
    if owner.name in LOOPS:
        return result_layout(owner, number)
    return None  # in a manual computation: the caller decides, since the manual axes are not in the local layout


def nth_sharding(per_value: ir.Attribute, number: int) -> ir.Attribute | None:
    """Returns one entry of an `#sdy.sharding_per_value`."""
    shardings = sdy.TensorShardingPerValueAttr(per_value).shardings
    return shardings[number] if number < len(shardings) else None


# IR access


def serial_of(op: ir.Operation) -> int | None:
    """Returns the serial of an op of the clone; None for one that a pass inserted, and for constants."""
    return _tag(op)


def blocks_above(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yields the ops around an op, innermost first."""
    parent = op.parent
    while parent is not None:
        yield parent.operation
        parent = parent.operation.parent


def _tag(op: ir.Operation) -> int | None:
    attributes = op.attributes
    return ir.IntegerAttr(attributes[ID]).value if ID in attributes else None


def _integer(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value


def _top_level(module: ir.Operation, name: str) -> list[ir.Operation]:
    return [op.operation for op in module.regions[0].blocks[0].operations if op.operation.name == name]


def _terminator(block: ir.Block) -> ir.Operation:
    return block.operations[len(block.operations) - 1].operation


def _blocks(op: ir.Operation) -> Iterable[ir.Block]:
    for region in op.regions:
        yield from region.blocks
