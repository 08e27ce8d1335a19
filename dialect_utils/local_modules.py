# SPDX-License-Identifier: Apache-2.0
"""A whole module per device: every op on one device's tiles, every change of layout a chain of ours.

    func.func @main(%arg0: tensor<8x16xf32> {sdy.sharding = ...}, ...) -> ... {      // as it was
      %0 = sdy.manual_computation(%arg0, ...) in_shardings=[...] out_shardings=[...] manual_axes={every axis} (%tile, ...) {
        ops on tiles, and the collectives between them
      }
      return %0
    }

The layouts are those of Shardy's propagation and explicit reshards on a clone (`propagation.py`), calls inlined. XLA sees one
manual computation over all axes, in which its partitioner has nothing to do; the functions keep their types, attributes and
arguments. `local_rules.py` says what each op may do on tiles.

Shardy's own `sdy-convert-global-to-local` is not used: what it makes depends on the version of jaxlib (0.10 refuses `while`),
it ends the process on dimensions that do not divide, and it sorts the tiles of a dimension that is to be sorted as a whole.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
import functools
import re
from typing import Any

from ..synthesis.layout import whole_factors
from ..synthesis.mesh import Mesh
from ..synthesis.plan import NoPlanError, Plan, plan
from ..synthesis.sharding import AxisRef, Sharding
from . import local_rules, propagation
from .bindings import ir, sdy, stablehlo
from .diagnostics import error_at, note
from .emission import Mark, unused_channels, write_program
from .local_rules import Axes, Dims, NotLocal, Rule, Site
from .mini_modules import bits_of
from .reductions import is_neutral, neutral_element, reducing_op
from .sdy_shardings import SHARDING, mesh_of, module_meshes, sharding_from_attr, sharding_to_attr

_PASS_ON = propagation.CONSTRAINTS | frozenset(
    f"sdy.{name}" for name in ("all_gather", "all_slice", "all_to_all", "collective_permute", "all_reduce", "reduce_scatter")
)
_EDGES = frozenset({"sdy.propagation_barrier", "sdy.data_flow_edge"})
_SUMS = frozenset({"sdy.all_reduce", "sdy.reduce_scatter"})
_HINT = note("--emit=manual rewrites the sites alone and leaves the ops to XLA")


@dataclass(frozen=True, slots=True)
class Tile:
    """A value on one device: its tile, the layout, and the axes along which it is partial sums, or what `reduction` says."""

    value: ir.Value
    dims: Dims
    partial: Axes = ()
    reduction: str = "sum"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A change of layout that was written, for reports.

    Attributes:
      op_name: of the op of the original module that needs it; empty for one that the analysis made.
      whole: why the op needs a dimension whole, where that is the reason.
    """

    op_name: str
    location: ir.Location
    tensor: ir.Type
    plan: Plan
    whole: str


def convert(module: ir.Module) -> list[Conversion]:
    """Converts each public function whose values are split; others stay as they are.

    Returns: the changes of layout that the functions now hold, in the order in which they are written.
    Raises: DiagnosedError at the first op that does not run on tiles; the module is then as it was.
    """
    if not module_meshes(module):
        return []
    analysis = _analysed(module)
    functions = [_Function(each, analysis) for each in _public_functions(analysis.originals)]
    written = [each for each in functions if each.is_to_be_converted()]
    channels = unused_channels(module)
    try:
        conversions = [each for function in written for each in function.write(channels)]
    except Exception:
        for function in written:
            function.undo()
        raise
    for function in written:
        function.finish()
    if written:
        propagation.run(module.operation, "builtin.module(symbol-dce)")
    return conversions


def _analysed(module: ir.Module) -> propagation.Analysis:
    """Returns the analysis of a module in which every dimension divides into its shards."""
    analysis = propagation.prepare(*propagation.tagged_clone(module))
    propagation.propagate(analysis.explicit)
    _divide_evenly(analysis.explicit)
    propagation.insert_explicit_reshards(analysis.explicit)
    return analysis


def _public_functions(ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    return [op for op in ops if op.name == "func.func" and propagation.is_public(op) and len(op.regions[0].blocks)]


# Dimensions that do not divide


def _divide_evenly(module: ir.Operation) -> None:
    """Takes from each layout that propagation found the axes that do not divide their dimension."""
    meshes = module_meshes(module)
    for op in propagation.ops_in(module):
        if op.name == "func.func":
            _divide_signature(op, meshes)
        name = "sharding" if op.name in propagation.CONSTRAINTS else SHARDING
        attr = op.attributes[name] if name in op.attributes else None
        if attr is None or op.name.startswith("func."):
            continue
        if sdy.TensorShardingAttr.isinstance(attr):
            op.attributes[name] = _evenly(attr, op.results[0].type, meshes)
        else:
            if not len(op.results):  # it may have a sharding all the same: of a callback, the device that it runs on
                continue
            stated = zip(sdy.TensorShardingPerValueAttr(attr).shardings, op.results, strict=True)
            op.attributes[name] = sdy.TensorShardingPerValueAttr.get([_evenly(each, r.type, meshes) for each, r in stated])


def _divide_signature(function: ir.Operation, meshes: dict[str, Mesh]) -> None:
    signature = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    for name, types in (("arg_attrs", signature.inputs), ("res_attrs", signature.results)):
        if name in function.attributes:
            stated = [ir.DictAttr(each) for each in ir.ArrayAttr(function.attributes[name])]
            function.attributes[name] = ir.ArrayAttr.get(
                [_with_sharding(each, _evenly(each[SHARDING], kind, meshes)) if SHARDING in each else each
                 for each, kind in zip(stated, types, strict=True)]
            )  # fmt: skip


def _evenly(attr: ir.Attribute, kind: ir.Type, meshes: dict[str, Mesh]) -> ir.Attribute:
    mesh, sharding = mesh_of(attr, meshes), sharding_from_attr(attr)
    if mesh is None or not isinstance(kind, ir.RankedTensorType) or not ir.RankedTensorType(kind).has_static_shape:
        return attr
    shape = list(ir.RankedTensorType(kind).shape)
    if sharding.rank != len(shape) or all(size % n == 0 for size, n in zip(shape, sharding.shards(mesh))):
        return attr
    dims = tuple(_dividing(axes, size, mesh) for axes, size in zip(sharding.dims, shape))
    return sharding_to_attr(Sharding(dims, unreduced=sharding.unreduced), sdy.TensorShardingAttr(attr).mesh_or_ref)


def _dividing(axes: tuple[AxisRef, ...], size: int, mesh: Mesh) -> tuple[AxisRef, ...]:
    """Returns as many leading axes as divide a dimension."""
    parts = 1
    for count, axis in enumerate(axes):
        parts *= axis.resolve(mesh)[1]
        if size % parts:
            return axes[:count]
    return axes


def _with_sharding(attributes: ir.DictAttr, sharding: ir.Attribute) -> ir.DictAttr:
    return ir.DictAttr.get({**{each.name: each.attr for each in attributes}, SHARDING: sharding})


# Functions


class _Function:
    """One public function on its way: `original` in the module, `analysed` in the clone.

    State: `island` once it is begun, `layouts` of arguments and results once it is written; until `finish` the rest is as it was.
    """

    def __init__(self, original: ir.Operation, analysis: propagation.Analysis):
        self.original = original
        self.analysis = analysis
        name = str(original.attributes["sym_name"])
        self.analysed = next(each for each in _public_functions(propagation.ops_in(analysis.explicit))
                             if str(each.attributes["sym_name"]) == name)  # fmt: skip
        self.block = original.regions[0].blocks[0]
        self.before = [op.operation for op in self.block.operations]
        self.returned = list(self.before[-1].operands)
        self.meshes = module_meshes(analysis.explicit)
        self.island: ir.Operation | None = None
        self.layouts: dict[str, list[Dims]] = {}

    def is_to_be_converted(self) -> bool:
        """Returns whether any value of the function is split, and it is not one manual computation already."""
        self._refuse_uneven()
        return self.mesh is not None and not self._is_converted()

    def _refuse_uneven(self) -> None:
        """Raises: DiagnosedError for an argument or result whose dimensions do not divide into the shards that are asked for."""
        arguments = propagation.stated_arguments(self.original), [each.type for each in self.block.arguments]
        results = propagation.stated_results(self.original), [each.type for each in self.returned]
        for word, stated in (("argument", zip(*arguments, strict=True)), ("result", zip(*results, strict=True))):
            for number, (attr, kind) in enumerate(stated):
                if attr is not None and _evenly(attr, kind, self.meshes) != attr:
                    what = f"{word} {number}, {kind}, is to be {sharding_from_attr(attr)}"
                    raise error_at(self.original, f"emit=local needs dimensions that divide; {what}", _HINT)

    def _is_converted(self) -> bool:
        op = self.before[0]
        return (
            len(self.before) == 2
            and op.name == "sdy.manual_computation"
            and list(op.operands) == list(self.block.arguments)
            and self.returned == list(op.results)
            and _is_over_all_axes(op, self.mesh)
        )

    @functools.cached_property
    def mesh(self) -> Mesh | None:
        """Returns the mesh of the function's layouts, None if nothing is split.

        Raises: DiagnosedError if there are several.
        """
        found: dict[Mesh, str] = {}
        for op in propagation.ops_in(self.analysed):
            for attr in _shardings_at(op):
                mesh = mesh_of(attr, self.meshes)
                if mesh is None or not mesh.axes and mesh.device_ids:
                    what = "an array" if op.name == "func.func" or len(op.results) else _said(op)
                    raise error_at(op, f"emit=local has no tiles for {what} on one device, {attr}", _HINT)
                sharding = sharding_from_attr(attr)
                if sharding.unreduced:
                    raise error_at(op, f"emit=local takes and gives no unreduced values; here is one of {attr}", _HINT)
                if any(sharding.dims):
                    found.setdefault(mesh, str(sdy.TensorShardingAttr(attr).mesh_or_ref))
            if len(found) > 1:
                names = " and ".join(found.values())
                raise error_at(op, f"emit=local takes one mesh per function; this one is on {names}", _HINT)
        return next(iter(found), None)

    @functools.cached_property
    def mesh_reference(self) -> ir.Attribute | str:
        name = next((name for name, mesh in self.meshes.items() if mesh == self.mesh), None)
        return name if name is not None else ir.Attribute.parse(f"#sdy.mesh{self.mesh}")

    def write(self, channels: Iterator[int]) -> list[Conversion]:
        """Writes the island in front of the function's end."""
        arguments = self._stated("arg_attrs", [each.type for each in self.block.arguments])
        results = self._stated("res_attrs", [each.type for each in self.returned])
        with ir.InsertionPoint(self.before[-1]), self.original.location:
            island = sdy.ManualComputationOp(
                [each.type for each in self.returned],
                list(self.block.arguments),
                *(sdy.TensorShardingPerValueAttr.get([self.attribute(d) for d in dims]) for dims in (arguments, results)),
                sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in self.mesh.axis_names]),
            ).operation
            self.island = island
            types = [_tile_type(each.type, dims, self.original) for each, dims in zip(self.block.arguments, arguments)]
            body = island.regions[0].blocks.append(*types, arg_locs=[each.location for each in self.block.arguments])
        writer = _Writer(self.mesh, self.meshes, self.analysis, channels)
        entry = self.analysed.regions[0].blocks[0]
        tiles = [Tile(value, dims) for value, dims in zip(body.arguments, arguments, strict=True)]
        with ir.InsertionPoint(body):
            returned = writer.write_block(entry, tiles, {}, results)
            sdy.ReturnOp(returned, loc=self.original.location)
        self.layouts = {"arg_attrs": arguments, "res_attrs": results}
        return writer.conversions

    def undo(self) -> None:
        """Takes out what `write` put in."""
        if self.island is not None:
            self.island.erase()

    def finish(self) -> None:
        """Lets the function return what the island returns, and nothing else be in it."""
        for number, result in enumerate(self.island.results):
            self.before[-1].operands[number] = result
        for op in reversed(self.before[:-1]):
            op.erase()
        for name, layouts in self.layouts.items():
            self._state(name, layouts)

    def attribute(self, dims: Dims) -> ir.Attribute:
        return sharding_to_attr(_sharding(self.mesh, dims), self.mesh_reference)

    def _stated(self, name: str, types: Sequence[ir.Type]) -> list[Dims]:
        stated = propagation.stated_arguments if name == "arg_attrs" else propagation.stated_results
        return [_dims(attr, kind, self.mesh) for attr, kind in zip(stated(self.analysed), types, strict=True)]

    def _state(self, name: str, layouts: Sequence[Dims]) -> None:
        """States the layouts on arguments or results: XLA is to choose none."""
        if not layouts:
            return
        has = name in self.original.attributes
        stated = list(ir.ArrayAttr(self.original.attributes[name])) if has else [ir.DictAttr.get({})] * len(layouts)
        self.original.attributes[name] = ir.ArrayAttr.get(
            [_with_sharding(ir.DictAttr(each), self.attribute(dims)) for each, dims in zip(stated, layouts, strict=True)]
        )


def _is_over_all_axes(island: ir.Operation, mesh: Mesh) -> bool:
    return {*sdy.ManualAxesAttr(island.attributes["manual_axes"])} >= {name for name, size in mesh.axes if size > 1}


def _shardings_at(op: ir.Operation) -> Iterator[ir.Attribute]:
    """Yields the shardings of the values that an op makes, takes in or gives out."""
    if op.name == "func.func":
        found = [*propagation.stated_arguments(op), *propagation.stated_results(op)]
    elif op.name == "sdy.manual_computation":
        found = [op.attributes["in_shardings"], op.attributes["out_shardings"]]
    else:
        found = [propagation.result_layouts(op)]
    for attr in found:
        if attr is not None:
            yield from [attr] if sdy.TensorShardingAttr.isinstance(attr) else sdy.TensorShardingPerValueAttr(attr).shardings


def _dims(attr: ir.Attribute | None, kind: ir.Type, mesh: Mesh) -> Dims:
    if not isinstance(kind, ir.RankedTensorType):
        return ()
    if attr is None or not any(sharding_from_attr(attr).dims):
        return ((),) * ir.RankedTensorType(kind).rank
    return whole_factors(mesh, sharding_from_attr(attr))


def _sharding(mesh: Mesh, dims: Dims, partial: Axes = ()) -> Sharding:
    def reference(axis) -> AxisRef:
        is_whole = axis.pre == 1 and axis.size == mesh.axis_size(axis.axis)
        return AxisRef(axis.axis) if is_whole else AxisRef(axis.axis, axis.pre, axis.size)

    return Sharding(tuple(tuple(map(reference, axes)) for axes in dims), unreduced=tuple(map(reference, partial)))


def _tile_type(kind: ir.Type, dims: Dims, op) -> ir.Type:
    if not isinstance(kind, ir.RankedTensorType) or not ir.RankedTensorType(kind).has_static_shape:
        raise error_at(op, f"emit=local has no tiles of a value of type {kind}", _HINT)
    tensor = ir.RankedTensorType(kind)
    shape = []
    for size, axes in zip(tensor.shape, dims, strict=True):
        if size % local_rules.shards(axes):
            raise error_at(op, f"emit=local needs dimensions that divide; {kind} has {size} in {local_rules.shards(axes)}", _HINT)
        shape.append(size // local_rules.shards(axes))
    return ir.RankedTensorType.get(shape, tensor.element_type)


# Ops

Scope = dict[ir.Value | tuple[ir.Value, Dims], Tile]  # a value as it was written, and in other layouts


_Nested = Generator["_Nested", Any, Any]


def _run_nested(work: _Nested) -> Any:
    """Returns what a generator does that yields others, and is sent what they return: calls, but any number in each other."""
    running, returned = [work], None
    try:
        while running:
            try:
                running.append(running[-1].send(returned))
                returned = None
            except StopIteration as end:
                running.pop()
                returned = end.value
    finally:
        while running:  # innermost first: each leaves its location and its insertion point
            running.pop().close()
    return returned


class _Writer:
    """Writes the ops of analysed functions on tiles, at the current insertion point.

    State: `conversions` so far. Tiles of values live in scopes, one per block: what a region makes is not seen outside of it,
    so a scope is copied on the way in.
    """

    def __init__(self, mesh: Mesh, meshes: dict[str, Mesh], analysis: propagation.Analysis, channels: Iterator[int]):
        self.mesh = mesh
        self.meshes = meshes
        self.analysis = analysis
        self.channels = channels
        self.conversions: list[Conversion] = []

    def write_block(self, block: ir.Block, tiles: Sequence[Tile], outer: Scope, wanted: Sequence[Dims]) -> list[ir.Value]:
        """Writes the ops of a block; returns what it ends with, in the layouts that are wanted."""
        return _run_nested(self._block(block, tiles, outer, wanted))

    def _block(self, block: ir.Block, tiles: Sequence[Tile], outer: Scope, wanted: Sequence[Dims]) -> _Nested:
        scope = dict(outer)
        scope.update(zip(block.arguments, tiles, strict=True))
        *ops, terminator = [op.operation for op in block.operations]
        for op in ops:
            yield self._write_op(op, scope)
        return [self._in_layout(terminator, value, dims, scope) for value, dims in zip(terminator.operands, wanted, strict=True)]

    def _write_op(self, op: ir.Operation, scope: Scope) -> _Nested:
        with propagation.own_location(op):
            if op.name in _PASS_ON:
                self._pass_on(op, scope)
            elif op.name in _EDGES:
                scope[op.results[0]] = scope[op.operands[0]]
            elif op.name in ("sdy.sharding_group", "sdy.mesh"):
                return
            elif op.name in propagation.CONSTANTS:
                self._constant(op, scope)
            elif op.name == "stablehlo.iota":
                self._iota(op, scope)
            elif op.name == "stablehlo.while":
                yield self._while(op, scope)
            elif op.name in ("stablehlo.case", "stablehlo.if"):
                yield self._branches(op, scope)
            elif op.name == "sdy.manual_computation":
                self._island(op, scope)
            else:
                self._on_tiles(op, scope)

    # Layouts

    def _dims(self, value: ir.Value) -> Dims:
        """Returns the layout that propagation found for a value."""
        return _dims(propagation.layout(value), value.type, self.mesh)

    def _in_layout(self, op: ir.Operation, value: ir.Value, dims: Dims, scope: Scope, whole: str = "") -> ir.Value:
        """Returns the tile of a value in a layout, converted if it is in another one."""
        if (value, dims) not in scope:
            scope[value, dims] = self._as_wanted(op, scope[value], value.type, dims, whole)
        return scope[value, dims].value

    def _as_wanted(self, op: ir.Operation, tile: Tile, kind: ir.Type, dims: Dims, whole: str = "") -> Tile:
        if tile.dims == dims and not tile.partial:
            return tile
        ends = _sharding(self.mesh, tile.dims, tile.partial), _sharding(self.mesh, dims)
        tensor = ir.RankedTensorType(kind)
        try:
            chain = plan(
                self.mesh, tuple(tensor.shape), bits_of(kind), *ends, with_exchange=True, reduction=tile.reduction
            )
        except NoPlanError as problem:
            raise error_at(op, f"emit=local finds no chain from {ends[0]} to {ends[1]}: {problem}", _HINT) from None
        if not chain.steps:
            return Tile(tile.value, dims)
        name = f"reshard/{len(self.conversions)}"
        original = self._original(op)
        op_name = "" if original is None else original.name
        self.conversions.append(Conversion(op_name, propagation.own_location(op), kind, chain, whole))
        return Tile(write_program(chain.tile_program, tile.value, Mark(self.channels, name, propagation.own_location(op))), dims)

    def _original(self, op: ir.Operation) -> ir.Operation | None:
        serial = propagation.serial_of(op)
        index = None if serial is None else self.analysis.origin[serial]
        return None if index is None else self.analysis.originals[index]

    # Kinds of ops

    def _pass_on(self, op: ir.Operation, scope: Scope) -> None:
        """Writes an op that changes a layout alone; the sums of one whose only user changes it again go there at once."""
        if op.name in _SUMS and self._original(op) is not None:
            raise _refusal(op, "what it sums up is no value of the whole module")
        last = op
        while scope[op.operands[0]].partial and (user := _only_user(last.results[0])) is not None and user.name in _PASS_ON:
            last = user
        dims = self._dims(last.results[0])
        scope[op.results[0]] = Tile(self._in_layout(op, op.operands[0], dims, scope), dims)


    def _constant(self, op: ir.Operation, scope: Scope) -> None:
        dims, kind = self._dims(op.results[0]), op.results[0].type
        if any(dims) and (element := _splat_text(op)) is not None:
            scope[op.results[0]] = Tile(_constant(element, _tile_type(kind, dims, op)), dims)
            return
        whole = Tile(_copied_constant(op), ((),) * len(dims))
        scope[op.results[0]] = self._as_wanted(op, whole, kind, dims)

    def _iota(self, op: ir.Operation, scope: Scope) -> None:
        """Writes the numbers of one dimension, takes those of the tile, and repeats them along the others."""
        kind, dims = ir.RankedTensorType(op.results[0].type), self._dims(op.results[0])
        along = ir.IntegerAttr(op.attributes["iota_dimension"]).value
        line = ir.RankedTensorType.get([kind.shape[along]], kind.element_type)
        numbers = Tile(stablehlo.IotaOp(line, 0).result, ((),))
        numbers = self._as_wanted(op, numbers, line, (dims[along],))
        scope[op.results[0]] = Tile(stablehlo.BroadcastInDimOp(_tile_type(kind, dims, op), numbers.value, [along]).result, dims)

    def _while(self, op: ir.Operation, scope: Scope) -> _Nested:
        layouts = [self._dims(each) for each in op.results]
        carried = [self._in_layout(op, value, dims, scope) for value, dims in zip(op.operands, layouts, strict=True)]
        loop = self._create(op, op.name, [each.type for each in carried], carried, op.attributes)
        for number, returned in enumerate(([()], layouts)):
            yield self._write_region(op, number, loop, layouts, returned, scope)
        self._bind(op, loop, layouts, scope)

    def _branches(self, op: ir.Operation, scope: Scope) -> _Nested:
        layouts = [self._dims(each) for each in op.results]
        chosen = self._in_layout(op, op.operands[0], (), scope)
        types = [_tile_type(each.type, dims, op) for each, dims in zip(op.results, layouts, strict=True)]
        choice = self._create(op, op.name, types, [chosen], op.attributes)
        for number in range(len(op.regions)):
            yield self._write_region(op, number, choice, [], layouts, scope)
        self._bind(op, choice, layouts, scope)

    def _write_region(self, op: ir.Operation, number: int, new: ir.Operation, taken, given, scope: Scope) -> _Nested:
        """Writes a region of an op into that of a new one; `taken`, `given`: layouts of its arguments and of what it returns."""
        block = op.regions[number].blocks[0]
        types = [_tile_type(each.type, dims, op) for each, dims in zip(block.arguments, taken, strict=True)]
        body = new.regions[number].blocks.append(*types, arg_locs=[propagation.own_location(op)] * len(types))
        with ir.InsertionPoint(body):
            tiles = [Tile(value, dims) for value, dims in zip(body.arguments, taken, strict=True)]
            stablehlo.ReturnOp((yield self._block(block, tiles, scope, given)))

    def _island(self, op: ir.Operation, scope: Scope) -> None:
        """Takes over what a manual computation over all axes does on tiles."""
        if not _is_over_all_axes(op, self.mesh):
            raise _refusal(op, f"it is manual along {', '.join(sdy.ManualAxesAttr(op.attributes['manual_axes']))} only")
        ends = [sdy.TensorShardingPerValueAttr(op.attributes[f"{side}_shardings"]).shardings for side in ("in", "out")]
        taken = [_dims(attr, value.type, self.mesh) for attr, value in zip(ends[0], op.operands, strict=True)]
        given = [_dims(attr, value.type, self.mesh) for attr, value in zip(ends[1], op.results, strict=True)]
        tiles = [self._in_layout(op, value, dims, scope) for value, dims in zip(op.operands, taken, strict=True)]
        copy = _body_as_it_came(self._original(op) or op)
        block = copy.regions[0].blocks[0]
        for argument, tile in zip(block.arguments, tiles, strict=True):
            argument.replace_all_uses_with(tile)
        *ops, terminator = [each.operation for each in block.operations]
        for each in ops:
            each.move_before(copy)
        values = list(terminator.operands)
        copy.erase()
        for result, value, dims in zip(op.results, values, given, strict=True):
            scope[result] = Tile(value, dims)

    def _on_tiles(self, op: ir.Operation, scope: Scope) -> None:
        rule, meant = self._rule(op, scope)
        operands = [
            self._in_layout(op, value, dims, scope, rule.whole) for value, dims in zip(op.operands, rule.operands, strict=True)
        ]
        is_late = op.name == "stablehlo.reduce" and rule.partial and not is_neutral(op.operands[1], rule.reduction)
        init = operands[-1]
        if is_late:
            operands[-1] = neutral_element(init.type, rule.reduction)
        types = [_tile_type(each.type, dims, op) for each, dims in zip(op.results, rule.results, strict=True)]
        new = self._create(op, meant.name, types, operands, meant.attributes, rule.sizes)
        original = self._original(op)
        came = op if original is None or original.name != op.name else original
        for before, after in zip(came.regions, new.regions, strict=True):
            _copy_region(op, before, after)
        self._bind(op, new, rule.results, scope, rule)
        if is_late:
            self._add_init(op, init, rule.reduction, scope)

    def _rule(self, op: ir.Operation, scope: Scope) -> tuple[Rule, ir.Operation]:
        """Returns the rule of an op and what is meant by it: a CHLO op, if it stands in for one."""
        for value in (*op.operands, *op.results):
            if not isinstance(value.type, ir.RankedTensorType):
                raise _refusal(op, f"values of type {value.type} have no tiles")
        site = Site(op, tuple(scope[each].dims for each in op.operands), tuple(map(self._dims, op.results)))
        original = self._original(op)
        is_stand_in = original is not None and original.name.startswith("chlo.")
        try:
            if not is_stand_in:
                return local_rules.rule_of(site), op
            return (local_rules.top_k if original.name == "chlo.top_k" else local_rules.elementwise)(site), original
        except NotLocal as problem:
            raise _refusal(op, str(problem)) from None

    def _create(self, op: ir.Operation, name: str, types, operands, attributes, sizes=None) -> ir.Operation:
        kept = {each: attributes[each] for each in _names(attributes) if each not in (SHARDING, propagation.ID, _RULE)}
        kept.update({each: ir.DenseI64ArrayAttr.get(value) for each, value in (sizes or {}).items()})
        return ir.Operation.create(
            name, results=types, operands=operands, attributes=kept, regions=len(op.regions), loc=propagation.own_location(op)
        )

    def _bind(self, op: ir.Operation, new: ir.Operation, layouts: Sequence[Dims], scope: Scope, rule: Rule | None = None) -> None:
        sums = (rule.partial, rule.reduction) if rule else ()
        for result, value, dims in zip(op.results, new.results, layouts, strict=True):
            scope[result] = Tile(value, dims, *sums)

    def _add_init(self, op: ir.Operation, init: ir.Value, reduction: str, scope: Scope) -> None:
        """Takes into account what a reduction starts from: once, after the parts of all devices are together."""
        result, dims = op.results[0], self._dims(op.results[0])
        tile = self._in_layout(op, result, dims, scope)
        start = stablehlo.BroadcastInDimOp(tile.type, init, []).result
        for key in [key for key in scope if isinstance(key, tuple) and key[0] == result]:
            del scope[key]
        scope[result] = Tile(ir.Operation.create(reducing_op(reduction), [tile.type], [tile, start]).results[0], dims)


_RULE = "sdy.sharding_rule"


def _splat_text(constant: ir.Operation) -> str | None:
    """Returns the one element of a constant as `dense<1.0>`, None if there are several."""
    found = re.search(r'constant.*?\bdense<([^\["<>]+)>', str(constant))
    return found and f"dense<{found[1]}>"


def _copied_constant(constant: ir.Operation) -> ir.Value:
    """Writes a constant of StableHLO's or Shardy's as one of StableHLO's; the bindings cannot read complex ones, their text can."""
    kind = ir.RankedTensorType(constant.results[0].type)
    if not isinstance(kind.element_type, ir.ComplexType):
        return stablehlo.ConstantOp(constant.attributes["value"]).result
    return _constant(re.search(r"dense<.*>(?= : tensor)", str(constant), re.DOTALL)[0], kind)


def _constant(value: str, kind: ir.Type) -> ir.Value:
    op = ir.Operation.parse(f"stablehlo.constant {value} : {kind}").operation
    ir.InsertionPoint.current.insert(op)
    return op.results[0]


def _refusal(op: ir.Operation, why: str):
    return error_at(op, f"emit=local cannot convert {_said(op)}: {why}", _HINT)


def _said(op: ir.Operation) -> str:
    if op.name != "stablehlo.custom_call":
        return op.name
    return f"{op.name} @{ir.StringAttr(op.attributes['call_target_name']).value}"


def _names(attributes) -> list[str]:
    return [each if isinstance(each, str) else each.name for each in attributes]


def _without_marks(op: ir.Operation) -> None:
    for name in (propagation.ID, SHARDING):
        if name in op.attributes:
            del op.attributes[name]
    op.location = propagation.own_location(op)


def _body_as_it_came(island: ir.Operation) -> ir.Operation:
    """Returns a copy of a manual computation over all axes, without what Shardy alone reads: on tiles, nothing is left to shard.

    It is to be the original: the analysed one holds Shardy's constants and reshards, which XLA refuses, and stand-ins for CHLO.
    """
    copy = island.clone().operation
    for op in propagation.ops_in(copy)[1:]:
        _without_marks(op)
        if op.name in _PASS_ON or op.name in _EDGES:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif op.name == "sdy.sharding_group":
            op.erase()
    return copy


def _copy_region(op: ir.Operation, before: ir.Region, after: ir.Region) -> None:
    """Copies a computation on elements, as it came: it is the same on tiles."""
    for block in before.blocks:
        types = [each.type for each in block.arguments]
        copy = after.blocks.append(*types, arg_locs=[propagation.own_location(op)] * len(types))
        values = dict(zip(block.arguments, copy.arguments, strict=True))
        with ir.InsertionPoint(copy):
            for each in (inner.operation for inner in block.operations):
                if len(each.regions) or any(operand not in values for operand in each.operands):
                    raise _refusal(op, "its computation uses values from outside")
                twin = each.clone().operation
                _without_marks(twin)
                for number, operand in enumerate(each.operands):
                    twin.operands[number] = values[operand]
                values.update(zip(each.results, twin.results, strict=True))


def _only_user(value: ir.Value) -> ir.Operation | None:
    users = list(value.uses)
    return users[0].owner.operation if len(users) == 1 else None
