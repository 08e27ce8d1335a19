# SPDX-License-Identifier: Apache-2.0
"""A module as ops with factors: the problem of its layouts, in plain data.

The clone that propagation would run on is read, with calls inlined and loop invariants captured; Shardy's own sharding
rules give the factors. Of an op without a rule, no dimension can be split. What is made of constants alone, such as a
mask, costs nothing in any layout, and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from reshard.synthesis.assignment.clusters import is_tie
from reshard.synthesis.assignment.factored_program import Dims, FactoredOp, FactoredProgram, Tensor
from reshard.synthesis.assignment.lives import Region, schedule_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

from ..analysis.named_values import name_of
from ..ir.diagnostics import DiagnosedError, error_at
from ..ir.functions import functions_of, public_functions
from ..ir.loop_trips import trips_of
from ..ir.ops import CONSTANTS, CONSTRAINTS, LOOPS, ops_in, shape_of, short_name, terminator_of
from ..ir.pipelines import run_pipeline
from ..platform.bindings import ir, sdy
from ..preparation.dynamic_shapes import SHARDING_RULE
from ..preparation.inlining import inline_calls, remove_call_barriers
from ..preparation.loop_invariants import invariant_numbers
from ..preparation.prepared_clone import PreparedClone, prepare
from ..preparation.serials import serial_of, tagged_clone
from ..shardings.sdy_shardings import mesh_of, module_meshes, sharding_from_attr
from ..shardings.value_layouts import nth_sharding, stated_arguments, stated_results
from .weight_updates import WeightUpdate, weight_updates

_RULES = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
_MANUAL = "sdy.manual_computation"
_MANUAL_HINT = "manual computations keep theirs: choose layouts for their mesh, or write this without one"
_BRANCHES = frozenset({"stablehlo.case", "stablehlo.if"})
_FREE = frozenset({"stablehlo.iota", *CONSTANTS})
_VIEWS = frozenset({"stablehlo.reshape", "stablehlo.broadcast_in_dim", "stablehlo.optimization_barrier"})
_SUMS = frozenset({"stablehlo.add", "stablehlo.subtract"})
_DONATED = ("tf.aliasing_output", "jax.buffer_donor")

FORWARD, BACKWARD = "forward", "backward"
_DIFFERENTIATED, _TRANSPOSED = "jvp(", "transpose("  # of the transformations in the names that JAX gives ops

Place = tuple[int, int]  # the number of an op of the module, meshes left out, in walk order; the number of the result


@dataclass(frozen=True)
class FactoredModule:
    """A module as ops with factors.

    Attributes:
      program: the ops.
      arguments: for each argument of the function its tensor; None for one without a dimension to split.
      results: for each result likewise.
      places: tensor -> the ops of the module that make it, in order; one op, called twice, makes several tensors.
      ops: for each op of the program, the number of the module's op as in `Place`; None for one that has none.
      operand_numbers: for each op of the program, the numbers that its operands have in the module's op.
      names: of the module's ops, as `Place` counts them.
      stated: tensor -> the sharding that the module states for it, and that is kept.
      directions: for each op of the program `FORWARD` or `BACKWARD`, or nothing if neither is known.
    """

    program: FactoredProgram
    arguments: tuple[int | None, ...]
    results: tuple[int | None, ...]
    places: dict[int, tuple[Place, ...]]
    ops: tuple[int | None, ...]
    operand_numbers: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    stated: dict[int, Sharding]
    directions: tuple[str, ...]

    def as_stated(self, tensor: int, layout: Sharding | None) -> Sharding | None:
        """Returns the layout of a tensor with the axes of each dimension in the order in which the module states them,
        if they are the same."""
        if layout is None or tensor not in self.stated:
            return layout
        pairs = zip(layout.dims, self.stated[tensor].dims, strict=True)
        return replace(layout, dims=tuple(stated if same_axes(dim, stated) else dim for dim, stated in pairs))

    def is_of(self, module: ir.Module) -> bool:
        """Returns whether a module has the same ops, so that layouts for one can be written into the other."""
        return self.names == _names(ops_in(module.operation))


def same_axes(one: Sequence[AxisRef], other: Sequence[AxisRef]) -> bool:
    """Returns whether a dimension is split by the same axes, whichever of them comes first."""
    return len(one) == len(other) and set(one) == set(other)


def inline_calls_of(module: ir.Module) -> None:
    """Inlines all calls of a module, as XLA does; then each op is made once, and has one place for its layout.

    Raises: NotPropagatedError for a function without a body, or too many ops; DiagnosedError for recursion.
    """
    with module.context, ir.Location.unknown():
        remove_call_barriers(inline_calls(module.operation))


def factored_module(module: ir.Module, mesh: Mesh | None = None, *, separate_weights: bool = False) -> FactoredModule:
    """Returns a module as ops with factors; the module has one public function.

    Args:
      mesh: the one that layouts are chosen for; None if it does not matter.
      separate_weights: whether weights may have other layouts than what an optimizer makes of them.
    Raises: NotPropagatedError, DiagnosedError: as for `analyse`; also with several public functions.
      KeptShardingError: for a sharding on another mesh, or one that splits by parts of axes.
    """
    clone = prepare(*tagged_clone(module))
    run_pipeline(clone.prepared, _RULES, False)
    functions = public_functions(functions_of(clone.prepared))
    if len(functions) != 1:
        raise error_at(module.operation, f"{len(functions)} public functions; layouts are chosen for one program")
    updates = weight_updates(functions[0]) if separate_weights else []
    return _Reader(clone, mesh, updates).read(functions[0])


class KeptShardingError(DiagnosedError):
    """A sharding of the module, which is kept, is none that layouts are chosen from."""

    def with_hint(self, hint: str) -> KeptShardingError:
        """Returns the error with what to do, in the words of the one who was asked: a pass, a command, a function."""
        first, *others = self.diagnostics
        return KeptShardingError([replace(first, message=f"{first.message}; {hint}"), *others])


class ManualShardingError(KeptShardingError):
    """Such a sharding of a manual computation. No option leaves it out, so the message itself says what to do."""

    def with_hint(self, hint: str) -> KeptShardingError:
        """Returns the error as it is."""
        return self


@dataclass
class _Reader:
    """The program so far.

    Invariant: `tensor_of` has each value that was read and has a dimension to split; values in `free` are made of
    constants alone.
    """

    clone: PreparedClone
    mesh: Mesh | None = None
    updates: Sequence[WeightUpdate] = ()
    tensors: list[Tensor] = field(default_factory=list)
    ops: list[FactoredOp] = field(default_factory=list)
    origins: list[int | None] = field(default_factory=list)
    numbers: list[tuple[int, ...]] = field(default_factory=list)
    tensor_of: dict[ir.Value, int] = field(default_factory=dict)
    free: set[ir.Value] = field(default_factory=set)
    places: dict[int, list[Place]] = field(default_factory=dict)
    pinned: dict[int, tuple[tuple[str, ...] | None, ...]] = field(default_factory=dict)
    stated: dict[int, Sharding] = field(default_factory=dict)  # of those that are pinned
    items: list[int | Region] = field(default_factory=list)  # of the region that is read
    views: set[int] = field(default_factory=set)  # ops that give a layout to a value, which need not be in memory twice
    number_of: dict[int, int] = field(init=False)  # index of an op -> its number without the meshes

    def __post_init__(self) -> None:
        self.updating = {use for each in self.updates for use in each.uses}
        self.updated = {each.result for each in self.updates}
        kept = [index for index, op in enumerate(self.clone.originals) if op.name != "sdy.mesh"]
        self.number_of = {index: number for number, index in enumerate(kept)}
        self.meshes = module_meshes(self.clone.prepared)

    def read(self, function: ir.Operation) -> FactoredModule:
        block = function.regions[0].blocks[0]
        held = function.attributes.get("arg_attrs")
        attributes = [ir.DictAttr(each) for each in ir.ArrayAttr(held)] if held is not None else None
        arguments = [self._new(value, 1, name_of(value)) for value in block.arguments]
        for tensor, value, attr in zip(arguments, block.arguments, stated_arguments(function), strict=True):
            if tensor is not None and self._pin(tensor, attr, function):
                self.tensor_of[value] = self._inside(tensor, 1)
        self._block(block, 1)
        returned = [self._use(value) for value in terminator_of(block).operands]
        results = []
        end = terminator_of(block)
        for number, (tensor, attr) in enumerate(zip(returned, stated_results(function), strict=True)):
            if tensor is not None and (attr is not None or number in self.updated):
                result = self._tensor(end.operands[number].type, 1, "")
                self._copy(tensor, result, 1, end, number)
                self.views.add(len(self.ops) - 1)
                self._pin(result, attr, end)
                tensor = result
            results.append(tensor)
        weights = ((arguments[each.argument], results[each.result]) for each in self.updates)
        given, made = (tuple(each for each in some if each is not None) for some in (arguments, results))
        donated = {
            tensor
            for number, tensor in enumerate(arguments)
            if tensor is not None and attributes and any(name in attributes[number] for name in _DONATED)
        }
        schedule = schedule_of(self.tensors, self.ops, Region(tuple(self.items)), given, donated, made, self.views)
        program = FactoredProgram(
            tuple(self.tensors),
            tuple(self.ops),
            given,
            made,
            tuple(sorted(self.pinned.items())),
            schedule.lives,
            schedule.moments,
            schedule.loops,
            tuple((weight, new) for weight, new in weights if weight is not None and new is not None),
        )
        places = {tensor: tuple(each) for tensor, each in self.places.items()}
        return FactoredModule(
            program,
            tuple(arguments),
            tuple(results),
            places,
            tuple(self.origins),
            tuple(self.numbers),
            _names(self.clone.originals),
            self.stated,
            self._directions(),
        )

    def _directions(self) -> tuple[str, ...]:
        """Returns for each op whether it belongs to the forward pass or to the backward pass, by the names of JAX.

        What has none is of the direction of the loop that it is in; what is no op of the module, such as what a loop
        carries, is of that of the op before it.
        """
        ops = [op for op in self.clone.originals if op.name != "sdy.mesh"]
        of_holders: dict[ir.Operation, str] = {}

        def direction(op: ir.Operation) -> str:
            name = str(op.location)
            if _TRANSPOSED in name or _DIFFERENTIATED in name:
                return BACKWARD if _TRANSPOSED in name else FORWARD
            holder = op.parent
            if holder is None:
                return ""
            if holder not in of_holders:
                of_holders[holder] = direction(holder)
            return of_holders[holder]

        found, last = [], ""
        for number, op in zip(self.origins, self.ops, strict=True):
            if number is not None and not is_tie(op, self.tensors):
                last = direction(ops[number])
            found.append(last)
        return tuple(found)

    # ---- tensors

    def _tensor(self, kind: ir.Type, runs: int, name: str) -> int:
        shape = shape_of(kind) or []
        self.tensors.append(Tensor(tuple(shape), _bits(kind), runs, name, str(ir.ShapedType(kind).element_type)))
        return len(self.tensors) - 1

    def _new(self, value: ir.Value, runs: int, name: str = "") -> int | None:
        """Returns the number of a new tensor; None for a value without a dimension to split."""
        shape = shape_of(value.type)
        if shape is None or any(size < 0 for size in shape) or math.prod(shape) <= 1:
            return None
        tensor = self.tensor_of[value] = self._tensor(value.type, runs, name)
        return tensor

    def _use(self, value: ir.Value) -> int | None:
        return self.tensor_of.get(value)

    def _use_in(self, op: ir.Operation, number: int, runs: int) -> int | None:
        """Returns the tensor that an op takes: of a weight that it updates, one in a layout of its own."""
        tensor = self._use(op.operands[number])
        if tensor is None or (op, number) not in self.updating:
            return tensor
        own = self._tensor(op.operands[number].type, runs, "")
        self._copy(tensor, own, runs, op, number)
        self.views.add(len(self.ops) - 1)
        return own

    def _pin(self, tensor: int, attr: ir.Attribute | None, where: ir.Operation) -> bool:
        """Keeps the layout that somebody asks for, but for open dimensions; returns whether there is one to keep.

        Which of two axes that split one dimension comes first makes no difference to the choice: tiles are as large.

        Raises: KeptShardingError for one that is none of those that layouts are chosen from.
        """
        if attr is None:
            return False
        sharding = sharding_from_attr(attr)
        if sharding.rank != len(self.tensors[tensor].shape) or sharding.unreduced:
            return False
        if any(sharding.dims) and (problem := self._unusual(sharding, mesh_of(attr, self.meshes))):
            if where.name == _MANUAL:
                said = f"the sharding {sharding} of a manual computation {problem}; {_MANUAL_HINT}"
                raise ManualShardingError(error_at(where, said).diagnostics)
            raise KeptShardingError(error_at(where, f"the sharding {sharding} {problem}").diagnostics)
        mesh = mesh_of(attr, self.meshes)
        order = {} if mesh is None else {name: at for at, name in enumerate(mesh.axis_names)}
        pinned = tuple(
            None if dim in sharding.open_dims else tuple(sorted((axis.name for axis in axes), key=order.__getitem__))
            for dim, axes in enumerate(sharding.dims)
        )
        if all(each is None for each in pinned):
            return False
        self.pinned[tensor] = pinned
        self.stated[tensor] = sharding
        return True

    def _unusual(self, sharding: Sharding, mesh: Mesh | None) -> str:
        """Returns in words why a sharding is none of those that layouts are chosen from; empty if it is."""
        if mesh is None or (self.mesh is not None and mesh != self.mesh):
            return f"is on the mesh {mesh}, and layouts are chosen for {self.mesh}"
        for axes in sharding.dims:
            if any(axis.size is not None for axis in axes):
                return "splits by a part of an axis"
        return ""

    def _inside(self, given: int, runs: int) -> int:
        """Returns a tensor with the elements of a given one, for those who take them: in any layout."""
        value = self.tensors[given]
        self.tensors.append(Tensor(value.shape, value.bits, runs, value.name, value.element))
        inside = len(self.tensors) - 1
        self._add(FactoredOp.copy(given, inside, value.shape, runs), None)
        self.views.add(len(self.ops) - 1)
        return inside

    # ---- ops

    def _block(self, block: ir.Block, runs: int) -> None:
        for view in block.operations:
            op = view.operation
            if op.name in LOOPS:
                self._loop(op, runs)
            elif op.name in _BRANCHES:
                self._branches(op, runs)
            elif op.name in CONSTRAINTS:
                self._constraint(op, runs)
            elif op.name == _MANUAL:
                self._manual(op, runs)
            elif op.name not in ("func.return", "stablehlo.return", "sdy.return"):
                self._op(op, runs)

    def _add(self, op: FactoredOp, origin: int | None, numbers: tuple[int, ...] = ()) -> None:
        self.items.append(len(self.ops))
        self.ops.append(op)
        self.origins.append(origin)
        self.numbers.append(numbers)

    def _copy(self, source: int, result: int, runs: int, taker: ir.Operation, number: int) -> None:
        """Adds a copy: operand `number` of an op becomes a value of its own."""
        op = FactoredOp.copy(source, result, self.tensors[source].shape, runs)
        self._add(op, self._origin(taker), (number,))

    def _result(self, op: ir.Operation, number: int, runs: int) -> int | None:
        tensor = self._new(op.results[number], runs)
        index = self._origin(op)
        if tensor is not None and index is not None:
            self.places.setdefault(tensor, []).append((index, number))
        return tensor

    def _origin(self, op: ir.Operation) -> int | None:
        serial = serial_of(op)
        index = None if serial is None else self.clone.origin[serial]
        return None if index is None else self.number_of[index]

    def _op(self, op: ir.Operation, runs: int) -> None:
        operands = [value for value in op.operands]
        is_made_of_constants = all(value in self.free for value in operands) and not len(op.regions)
        if op.name in _FREE or (operands and is_made_of_constants):
            self.free.update(op.results)
            return
        used = [self._use_in(op, number, runs) for number in range(len(operands))]
        made = [self._result(op, number, runs) for number in range(len(op.results))]
        if op.name == "stablehlo.optimization_barrier":
            for source, result in zip(used, made, strict=True):
                if source is not None and result is not None:
                    self._tie(source, result, runs)
            return
        attr = op.attributes.get(SHARDING_RULE)
        rule = _rule_of(sdy.OpShardingRuleAttr(attr)) if attr is not None else self._opaque(op)
        inputs = [(tensor, rule.operands[at]) for at, tensor in enumerate(used) if tensor is not None]
        outputs = [(tensor, rule.results[at]) for at, tensor in enumerate(made) if tensor is not None]
        if not inputs and not outputs:
            return
        self._add(
            FactoredOp(
                short_name(op),
                tuple(tensor for tensor, _ in inputs),
                tuple(tensor for tensor, _ in outputs),
                tuple(dims for _, dims in inputs),
                tuple(dims for _, dims in outputs),
                rule.sizes,
                rule.reduced,
                rule.whole,
                rule.moved,
                _flops(op, rule.sizes),
                runs,
                op.name in _VIEWS,
                op.name in _SUMS,
            ),
            self._origin(op),
            tuple(at for at, tensor in enumerate(used) if tensor is not None),
        )

    def _tie(self, source: int, result: int, runs: int) -> None:
        shape = self.tensors[source].shape
        dims = tuple((dim,) for dim in range(len(shape)))
        self._add(FactoredOp("same", (source,), (result,), (dims,), (dims,), shape, runs=runs, is_free=True), None)

    def _opaque(self, op: ir.Operation) -> _Rule:
        """Returns the rule of an op of which nothing can be split."""
        sizes: list[int] = []

        def dims(values: Sequence[ir.Value]) -> tuple[Dims, ...]:
            found = []
            for value in values:
                shape = shape_of(value.type) or []
                found.append(tuple((len(sizes) + dim,) for dim in range(len(shape))))
                sizes.extend(shape)
            return tuple(found)

        operands, results = dims(list(op.operands)), dims(list(op.results))
        return _Rule(operands, results, tuple(sizes), frozenset(), frozenset(range(len(sizes))), frozenset())

    def _loop(self, op: ir.Operation, runs: int) -> None:
        condition, body = (region.blocks[0] for region in op.regions)
        inner = runs * trips_of(op)
        origin, invariant = self._origin(op), set(invariant_numbers(op))
        carries: list[int | None] = []
        for number, value in enumerate(op.operands):
            initial = self._use(value)
            carry = self._new(body.arguments[number], inner)
            carries.append(carry)
            if carry is None:
                continue
            self.tensor_of[op.results[number]] = self.tensor_of[condition.arguments[number]] = carry
            if number not in invariant and origin is not None:  # propagation gives a loop's result what it carries
                self.places.setdefault(carry, []).append((origin, number))
            if initial is not None:
                self._copy(initial, carry, runs, op, number)
        with self._region(is_loop=True) as carried:
            self._block(condition, inner)
            self._block(body, inner)
            for number, value in enumerate(terminator_of(body).operands):
                returned, carry = self._use(value), carries[number]
                if returned is not None and carry is not None and returned != carry:
                    self._copy(returned, carry, inner, terminator_of(body), number)
                    carried.add(carry)

    @contextmanager
    def _region(self, is_loop: bool = False) -> Iterator[set[int]]:
        """Collects the ops that are added as those of a region inside; gives the set of what a loop carries."""
        around, self.items = self.items, []
        carried: set[int] = set()
        yield carried
        around.append(Region(tuple(self.items), is_loop, frozenset(carried)))
        self.items = around

    def _branches(self, op: ir.Operation, runs: int) -> None:
        made = [self._result(op, number, runs) for number in range(len(op.results))]
        for region in op.regions:
            with self._region():
                self._block(region.blocks[0], runs)
                end = terminator_of(region.blocks[0])
                for number, (result, value) in enumerate(zip(made, end.operands, strict=True)):
                    returned = self._use(value)
                    if result is not None and returned is not None:
                        self._copy(returned, result, runs, end, number)

    def _constraint(self, op: ir.Operation, runs: int) -> None:
        source = self._use(op.operands[0])
        if op.operands[0] in self.free:
            self.free.add(op.results[0])
            return
        result = self._result(op, 0, runs)
        if source is None or result is None:
            return
        self._copy(source, result, runs, op, 0)
        self.views.add(len(self.ops) - 1)
        if self._pin(result, op.attributes["sharding"], op):
            self.tensor_of[op.results[0]] = self._inside(result, runs)

    def _manual(self, op: ir.Operation, runs: int) -> None:
        """Takes a manual computation as it is: it has the layouts that it states, and its inside is not looked at."""
        for number, value in enumerate(op.operands):
            source = self._use(value)
            if source is not None:
                inside = self._tensor(value.type, runs, "")
                self._copy(source, inside, runs, op, number)
                self._pin(inside, nth_sharding(op.attributes["in_shardings"], number), op)
        for number in range(len(op.results)):
            result = self._result(op, number, runs)
            if result is not None and self._pin(result, nth_sharding(op.attributes["out_shardings"], number), op):
                self.tensor_of[op.results[number]] = self._inside(result, runs)


@dataclass(frozen=True, slots=True)
class _Rule:
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: tuple[int, ...]
    reduced: frozenset[int]
    whole: frozenset[int]
    moved: frozenset[int]


def _rule_of(attr: sdy.OpShardingRuleAttr) -> _Rule:
    def dims(mappings) -> tuple[Dims, ...]:
        return tuple(
            tuple(tuple(sdy.DimMappingAttr(dim).factor_indices) for dim in sdy.TensorMappingAttr(each).dim_mappings)
            for each in mappings
        )

    return _Rule(
        dims(attr.operand_mappings),
        dims(attr.result_mappings),
        tuple(attr.factor_sizes),
        frozenset(attr.reduction_factors),
        frozenset(attr.need_replication_factors),
        frozenset(attr.permutation_factors),
    )


def _names(ops: Iterable[ir.Operation]) -> tuple[str, ...]:
    return tuple(name for op in ops if (name := op.name) != "sdy.mesh")


def _flops(op: ir.Operation, sizes: Sequence[int]) -> int:
    """Returns the operations of a matrix product or convolution; a multiplication with an addition counts 2."""
    if op.name in ("stablehlo.dot_general", "stablehlo.dot"):
        return 2 * math.prod(sizes)
    if op.name == "stablehlo.convolution":
        result, kernel = shape_of(op.results[0].type) or [], shape_of(op.operands[1].type) or []
        numbers = str(op.attributes["dimension_numbers"])
        at = numbers.partition("x[")[2].partition("]")[0].replace(" ", "").split(",").index("o")
        return 2 * math.prod(result) * math.prod(kernel) // max(1, kernel[at])
    return 0


def _bits(kind: ir.Type) -> int:
    element = ir.ShapedType(kind).element_type if isinstance(kind, ir.ShapedType) else kind
    if isinstance(element, ir.ComplexType):
        return 2 * _bits(element.element_type)
    return getattr(element, "width", 32)
