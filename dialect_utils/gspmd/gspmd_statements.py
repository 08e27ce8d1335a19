# SPDX-License-Identifier: Apache-2.0
"""GSPMD shardings in a module: they are found where they are stated, and replaced by Shardy's.

All statements are read first. The module changes only if all of them are expressible, because XLA ignores GSPMD's
shardings in a module with Shardy's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

from ..ir.diagnostics import error_at
from ..ir.functions import is_public
from ..ir.ops import ops_in, producer_of
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from ..shardings.sdy_shardings import SHARDING, sharding_to_attr
from . import gspmd_shardings as gspmd
from .gspmd_shardings import (
    GspmdError,
    InexpressibleError,
    Leaf,
    Maximal,
    Named,
    Tiled,
    Uniform,
)
from .manual_regions import Region, UnliftableError, find_regions, lift
from .mesh_synthesis import Synthesis, Translation, synthesize
from .string_shardings import GSPMD as GSPMD_SHARDING

CONSTRAINT, ENTRY, EXIT = "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"
_PARTITIONS = "mhlo.num_partitions"
# Ops that run on one device or hold a token, for which XLA keeps the sharding that they state.
_PLACED = frozenset({"stablehlo.send", "stablehlo.recv", "stablehlo.after_all"})
_KEPT = frozenset({"stablehlo.infeed", "stablehlo.outfeed"})
_CALLBACK = re.compile(r"^xla_(ffi_)?(partitioned_)?python_(cpu|gpu)_callback$")
_UNSPECIFIED = re.compile(r"unspecified_dims=\[([\d,]*)\]")


class RefusedError(ValueError):
    """A module that is left unchanged; `where` is the op that prevents the import, the message is the reason."""

    def __init__(self, where: ir.Operation, reason: str):
        super().__init__(reason)
        self.where = where


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome of an import: counts by statistic, and the meshes that it made, by name."""

    counts: Mapping[str, int] = field(default_factory=dict)
    meshes: Mapping[str, Mesh] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statement:
    """A sharding of an argument, of a result, or of the results of an op: one leaf for each value.

    Attributes:
      op: the function or the op. number: of the argument or result; None for an op. is_result: of a function.
      open_dims: dimensions that the statement leaves to propagation. is_of_tile: whether the value is one device's
        tile.
    """

    op: ir.Operation
    leaves: tuple[Leaf, ...]
    number: int | None = None
    is_result: bool = False
    open_dims: frozenset[int] = frozenset()
    is_of_tile: bool = False

    @property
    def target(self) -> str:
        """Returns the target of a custom call; "" for any other op."""
        return call_target(self.op)

    @property
    def types(self) -> list[ir.Type]:
        """Returns the types of the values to which the leaves belong."""
        if self.number is None:
            return [result.type for result in self.op.results]
        signature = ir.FunctionType(ir.TypeAttr(self.op.attributes["function_type"]).value)
        return [(signature.results if self.is_result else signature.inputs)[self.number]]


def import_shardings(module: ir.Module) -> Imported:
    """Replaces the GSPMD shardings of a module by Shardy's.

    Raises: RefusedError, with the module unchanged, if one of them has no counterpart; DiagnosedError if one is no
    sharding.
    """
    statements = [each for each in _statements(module) if each.op.name not in _KEPT]
    if not statements:
        return Imported()
    mixed = next((op for op in ops_in(module.operation) if op.name == "sdy.mesh"), None)
    if mixed is not None:
        raise RefusedError(statements[0].op, "it has Shardy's shardings too, and XLA looks at these alone")
    return _Importer(module, statements).run()


def check_call(op: ir.Operation, targets: Collection[str], results: int = 1) -> None:
    """Checks that a custom call of one of `targets` has one operand and `results` results. Raises: DiagnosedError."""
    target = call_target(op)
    if target in targets and (len(op.operands), len(op.results)) != (1, results):
        found = f"{len(op.operands)} operands and {len(op.results)} results"
        raise error_at(op, f"custom call @{target} has {found}; it takes 1 and gives {results}")


def call_target(op: ir.Operation) -> str:
    """Returns the target of a custom call; "" for any other op."""
    if op.name != "stablehlo.custom_call":
        return ""
    return ir.StringAttr(op.attributes["call_target_name"]).value


# Reading


def _statements(module: ir.Module) -> Iterator[Statement]:
    for op in ops_in(module.operation):
        kind = op.name
        if kind == "func.func":
            for name, is_result in (("arg_attrs", False), ("res_attrs", True)):
                for number, entries in enumerate(ir.ArrayAttr(op.attributes[name]) if name in op.attributes else ()):
                    attributes = ir.DictAttr(entries)
                    if GSPMD_SHARDING in attributes:
                        yield _statement(op, attributes[GSPMD_SHARDING], number, is_result)
            continue
        if kind == "stablehlo.custom_call":
            check_call(op, (CONSTRAINT, ENTRY, EXIT))
        if GSPMD_SHARDING in op.attributes:
            yield _statement(op, op.attributes[GSPMD_SHARDING])


_UNKNOWN = "{unknown}"  # XLA reads an empty text as this; older JAX wrote an empty text for no sharding


def _statement(op: ir.Operation, attr: ir.Attribute, number: int | None = None, is_result: bool = False) -> Statement:
    try:
        if not isinstance(attr, ir.StringAttr):
            raise GspmdError(f"cannot read the sharding {attr}: it is no string")
        found = gspmd.parse(attr.value_bytes.decode("utf-8", "replace") or _UNKNOWN)
    except GspmdError as error:
        raise error_at(op, str(error)) from None
    except InexpressibleError as error:
        raise RefusedError(op, f"Shardy has no counterpart of {error}") from None
    statement = Statement(
        op, found if isinstance(found, tuple) else (found,), number, is_result, _unspecified(op, number)
    )
    kinds = statement.types
    if not isinstance(found, tuple) and len(kinds) > 1:
        statement = replace(statement, leaves=(found,) * len(kinds))
    if len(statement.leaves) != len(kinds):
        raise RefusedError(op, f"{len(statement.leaves)} shardings for {len(kinds)} values")
    for leaf, kind in zip(statement.leaves, kinds, strict=True):
        rank = _rank_of(leaf)
        if rank is not None and isinstance(kind, ir.RankedTensorType) and rank != kind.rank:
            raise error_at(op, f"sharding {leaf} is for an array of rank {rank}, the type is {kind}")
    return statement


def _unspecified(op: ir.Operation, number: int | None) -> frozenset[int]:
    config = op.attributes["backend_config"] if number is None and "backend_config" in op.attributes else None
    found = isinstance(config, ir.StringAttr) and _UNSPECIFIED.search(config.value_bytes.decode("utf-8", "replace"))
    return frozenset(int(dim) for dim in found[1].split(",") if dim) if found else frozenset()


def _rank_of(leaf: Leaf) -> int | None:
    if isinstance(leaf, Tiled):
        return leaf.rank
    return leaf.sharding.rank if isinstance(leaf, Named) and leaf.sharding else None


def _is_manual(leaf: Leaf) -> bool:
    if isinstance(leaf, Tiled):
        return gspmd.MANUAL in leaf.groups
    return bool(leaf.manual) or leaf.kind == gspmd.MANUAL if isinstance(leaf, Named) else leaf == Uniform(gspmd.MANUAL)


# Writing


@dataclass(frozen=True, slots=True)
class _Lifted:
    """A region with the arguments of its manual computation."""

    region: Region
    in_shardings: list[tuple[int, Sharding]]
    out_shardings: list[tuple[int, Sharding]]
    manual_axes: tuple[str, ...]


class _Importer:
    """Imports one module. `run` has the steps in their order; the module does not change before `_write`.

    State: `statement_of` has the statements of ops, `synthesis` the meshes, and `_on_tiles` the ops that work on tiles.
    Ops are looked up in these only before `_write`: the bindings make new Python objects for ops after other ops are
    moved or erased.
    """

    def __init__(self, module: ir.Module, statements: list[Statement]):
        self.module = module
        self.statements = statements
        self.statement_of = {each.op: each for each in statements if each.number is None}
        self.functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        self.counts: dict[str, int] = dict.fromkeys(("meshes", "shardings", "constraints", "regions"), 0)
        self._on_tiles: set[ir.Operation] = set()

    def run(self) -> Imported:
        self.synthesis = self._synthesize()
        if not self.synthesis.meshes:  # the strings split nothing
            return Imported()
        self.names = self._free_names()
        lifted = self._regions()
        self.statements = [replace(each, is_of_tile=each.op in self._on_tiles) for each in self.statements]
        for each in self.statements:
            self._check(each)
        self._write(lifted)
        return Imported(self.counts, dict(zip(self.names, self.synthesis.meshes, strict=True)))

    def _synthesize(self) -> Synthesis:
        leaves = list(dict.fromkeys(leaf for each in self.statements for leaf in each.leaves))
        split = [leaf for leaf in leaves if isinstance(leaf, Tiled | Named)]
        partitions = self.module.operation.attributes
        if not split and _PARTITIONS in partitions:
            count = ir.IntegerAttr(partitions[_PARTITIONS]).value
            if count > 1:
                split = [Named(Mesh((("axis_0", count),)), kind=gspmd.REPLICATED)]
        try:
            return synthesize(split)
        except InexpressibleError as error:
            raise RefusedError(self.statements[0].op, str(error)) from None

    def _free_names(self) -> list[str]:
        taken = {
            ir.StringAttr(op.attributes["sym_name"]).value
            for op in self.module.body.operations
            if "sym_name" in op.attributes
        }
        candidates = (
            name for number in range(-1, len(taken) + len(self.synthesis.meshes)) for name in [_mesh_name(number)]
        )
        free = (name for name in candidates if name not in taken)
        return [next(free) for _ in self.synthesis.meshes]

    # Regions of tiles

    def _regions(self) -> list[_Lifted]:
        found: list[Region] = []
        try:
            for op in ops_in(self.module.operation):
                for region in op.regions:
                    for block in region.blocks:
                        found += find_regions(block, self._is_entry, self._is_exit)
            for each in found:
                for op in each.inner:
                    self._mark_tiles(op)
            return [self._lifted(each) for each in found]
        except UnliftableError as error:
            raise RefusedError(error.op, str(error)) from None

    def _is_entry(self, op: ir.Operation) -> bool:
        return call_target(op) == ENTRY and op in self.statement_of

    def _is_exit(self, op: ir.Operation) -> bool:
        return call_target(op) == EXIT and op in self.statement_of

    def _mark_tiles(self, op: ir.Operation) -> None:
        """Adds an op to `_on_tiles`, with all ops in its regions and in the functions that it calls."""
        for each in ops_in(op):
            if each in self._on_tiles:
                continue
            self._on_tiles.add(each)
            callee = ir.FlatSymbolRefAttr(each.attributes["callee"]).value if each.name == "func.call" else None
            if callee in self.functions and self.functions[callee] not in self._on_tiles:
                self._mark_tiles(self.functions[callee])

    def _lifted(self, region: Region) -> _Lifted:
        ins = [self._outside(op, op.operands[0], is_entry=True) for op in region.entries]
        outs = [self._outside(op, op.results[0], is_entry=False) for op in region.exits]
        stated = [op for op in region.entries if op in self.statement_of]
        stated += [each for op in region.exits for each in map(producer_of, op.operands) if each in self.statement_of]
        if not stated:
            raise UnliftableError(region.ops[0], "nothing says along which axes its tiles are manual")
        meshes = {index for index, _ in [*ins, *outs]}
        if len(meshes) != 1:
            raise UnliftableError(region.ops[0], "its tiles are of shardings that no one mesh expresses")
        (index,) = meshes
        mesh = self.synthesis.meshes[index]
        outer = {axis for op in region.entries for axis in self._manual_of(producer_of(op.operands[0]), index)}
        axes = {tuple(sorted(set(self._manual_of(op, index)) - outer)) for op in stated}
        if len(axes) != 1:
            raise UnliftableError(region.ops[0], "its tiles are manual along different axes")
        (manual,) = axes
        for op, (_, sharding), is_entry in [
            *zip(region.entries, ins, [True] * len(ins)),
            *zip(region.exits, outs, [False] * len(outs)),
        ]:
            _check_tile(op, sharding, mesh, manual, is_entry)
        order = [axis for axis in mesh.axis_names if axis in manual]
        return _Lifted(region, ins, outs, tuple(order))

    def _manual_of(self, op: ir.Operation | None, mesh: int) -> tuple[str, ...]:
        """Returns the axes of a mesh along which the result of an op is a tile, as its statement says.

        Raises: UnliftableError if the result is a tile along a part of an axis, or the statement is on another mesh.
        """
        if op is None or op not in self.statement_of or not _is_manual(self.statement_of[op].leaves[0]):
            return ()
        leaf = self.statement_of[op].leaves[0]
        if leaf == Uniform(gspmd.MANUAL) or leaf == Named(self.synthesis.meshes[mesh], kind=gspmd.MANUAL):
            return self.synthesis.meshes[mesh].axis_names
        assert isinstance(leaf, Tiled | Named)
        if isinstance(leaf, Named) and leaf.kind or self.synthesis.translation(leaf).mesh != mesh:
            raise UnliftableError(op, "its tiles are of shardings that no one mesh expresses")
        found = self.synthesis.translation(leaf).manual
        if any(axis.size is not None for axis in found):
            raise UnliftableError(op, "its tiles are manual along a part of an axis")
        return tuple(axis.name for axis in found)

    def _outside(self, op: ir.Operation, value: ir.Value, is_entry: bool) -> tuple[int, Sharding]:
        """Returns the index of the mesh and the sharding of an array before an entry or after an exit."""
        stated = self._stated(value) if is_entry else self.statement_of[op]
        if stated is None:
            raise UnliftableError(op, "nothing states the sharding of its operand")
        kind = value.type
        if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
            raise UnliftableError(op, f"its array is of type {kind}")
        number = ir.OpResult(value).result_number if stated.number is None and is_entry else 0
        translation = self._translation(stated.leaves[number], kind.rank)
        if translation is None:
            raise UnliftableError(op, f"its array is sharded {stated.leaves[number]}")
        return translation.mesh, _with_open(translation.sharding, stated.open_dims)

    def _stated(self, value: ir.Value) -> Statement | None:
        owner = value.owner
        if not isinstance(owner, ir.Block):
            return self.statement_of.get(owner.operation)
        function, number = owner.owner.operation, ir.BlockArgument(value).arg_number
        return next((s for s in self.statements if s.op == function and s.number == number and not s.is_result), None)

    # Checks

    def _check(self, each: Statement) -> None:
        if each.target in (ENTRY, EXIT):
            return
        for leaf, kind in zip(each.leaves, each.types, strict=True):
            self._check_leaf(each, leaf, kind)
        if each.number is not None and is_public(each.op):
            (leaf,), (kind,) = each.leaves, each.types
            self._check_divides(each, leaf, kind)

    def _check_leaf(self, each: Statement, leaf: Leaf, kind: ir.Type) -> None:
        if _is_manual(leaf) and not each.is_of_tile:
            raise RefusedError(each.op, f"sharding {leaf} is outside of a region between {ENTRY} and {EXIT}")
        if not isinstance(kind, ir.RankedTensorType):
            if each.number is not None or each.target == CONSTRAINT or not _is_placed(each.op):
                raise RefusedError(each.op, f"Shardy has no sharding of a {kind}")
            return
        if isinstance(leaf, Maximal) and not _is_placed(each.op):
            raise RefusedError(each.op, f"Shardy has no counterpart of {leaf} for an array")
        says_nothing = leaf == Uniform(gspmd.UNKNOWN) or isinstance(leaf, Maximal) or kind.rank == 0
        if each.is_of_tile and not _is_manual(leaf) and not says_nothing:
            raise RefusedError(each.op, f"sharding {leaf} of a tile does not say along which axes it is one")

    def _check_divides(self, each: Statement, leaf: Leaf, kind: ir.Type) -> None:
        shaped = ir.ShapedType(kind)
        translation = self._translation(leaf, shaped.rank)
        if translation is None or not shaped.has_static_shape:
            return
        shards = translation.sharding.shards(self.synthesis.meshes[translation.mesh])
        for dim, (size, count) in enumerate(zip(shaped.shape, shards, strict=True)):
            if size % count:
                noun = "result" if each.is_result else "argument"
                raise RefusedError(
                    each.op,
                    f"dimension {dim} of {noun} {each.number} of type {kind} does not divide into {count} shards; "
                    "GSPMD pads it, Shardy would shard it otherwise",
                )

    def _translation(self, leaf: Leaf, rank: int) -> Translation | None:
        """Returns a leaf as a `Sharding` of an array of `rank`; None for maximal, manual and unknown leaves."""
        closed = Sharding(((),) * rank)
        if isinstance(leaf, Maximal):
            return None
        if isinstance(leaf, Named) and leaf.sharding is None:
            index = self.synthesis.meshes.index(leaf.mesh)
            whole = tuple(AxisRef(name) for name in leaf.mesh.axis_names)
            known = {gspmd.REPLICATED: closed, gspmd.UNREDUCED: replace(closed, unreduced=whole)}
            return Translation(index, known[leaf.kind]) if leaf.kind in known else None
        if isinstance(leaf, Uniform):
            whole = tuple(AxisRef(name) for name in self.synthesis.meshes[0].axis_names)
            known = {gspmd.REPLICATED: closed, gspmd.UNREDUCED: replace(closed, unreduced=whole)}
            return Translation(0, known[leaf.kind]) if leaf.kind in known else None
        return self.synthesis.translation(leaf)

    # The change

    def _write(self, lifted: list[_Lifted]) -> None:
        with self.module.context, ir.Location.unknown():
            self._write_meshes()
            for each in self.statements:
                if each.number is not None:
                    self._write_of_function(each)
            gone = {op for each in lifted for op in (*each.region.entries, *each.region.exits)}
            of_ops = [each for each in self.statements if each.number is None and each.op not in gone]
            self._write_regions(lifted)
            for each in of_ops:
                self._write_of_op(each)

    def _write_meshes(self) -> None:
        devices = {leaf.device for each in self.statements for leaf in each.leaves if isinstance(leaf, Maximal)}
        with ir.InsertionPoint.at_block_begin(self.module.body):
            for name, mesh in zip(self.names, self.synthesis.meshes, strict=True):
                sdy.MeshOp(name, _mesh_attr(mesh))
                self.counts["meshes"] += 1
            for device in sorted(devices):
                sdy.MeshOp(_maximal_name(device), sdy.MeshAttr.get([], [device]))

    def _write_of_function(self, each: Statement) -> None:
        name = "res_attrs" if each.is_result else "arg_attrs"
        number, attrs = present(each.number), list(ir.ArrayAttr(each.op.attributes[name]))
        entries = {entry.name: entry.attr for entry in ir.DictAttr(attrs[number])}
        del entries[GSPMD_SHARDING]
        attr = self._attr(each, each.leaves[0], each.types[0])
        if attr is not None and not each.is_of_tile:
            entries[SHARDING] = attr
            self.counts["shardings"] += 1
        attrs[number] = ir.DictAttr.get(entries)
        each.op.attributes[name] = ir.ArrayAttr.get(attrs)

    def _write_regions(self, lifted: list[_Lifted]) -> None:
        for each in lifted:
            before = [op.operands[0].owner for op in each.region.entries]
            lift(each.region, self._attrs(each.in_shardings), self._attrs(each.out_shardings), each.manual_axes)
            self.counts["regions"] += 1
            for owner in before:
                self._drop_if_unused(owner)

    def _drop_if_unused(self, owner) -> None:
        """Bypasses a constraint that only manual computations use, since their in_sharding is the same."""
        if isinstance(owner, ir.Block) or call_target(owner.operation) != CONSTRAINT:
            return
        op = owner.operation
        users = [use.owner.operation for use in op.results[0].uses]
        if all(user.name == "sdy.manual_computation" for user in users):
            op.results[0].replace_all_uses_with(op.operands[0])

    def _write_of_op(self, each: Statement) -> None:
        if each.target == CONSTRAINT:
            self._write_constraint(each)
            return
        del each.op.attributes[GSPMD_SHARDING]
        if _is_placed(each.op):
            attrs = [
                self._placed_attr(leaf, result.type) for leaf, result in zip(each.leaves, each.op.results, strict=True)
            ]
            each.op.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get(attrs)
            return
        if each.op.name in ("stablehlo.constant", "func.return", "stablehlo.return"):
            return
        for leaf, result in reversed(list(zip(each.leaves, each.op.results, strict=True))):
            attr = self._attr(each, leaf, result.type)
            if attr is not None and not _is_unused(result):
                self._constrain(result, attr)

    def _write_constraint(self, each: Statement) -> None:
        op, value = each.op, each.op.operands[0]
        attr = None if _is_unused(op.results[0]) else self._attr(each, each.leaves[0], each.types[0])
        if attr is not None:
            with ir.InsertionPoint(op), op.location:
                constraint = sdy.ShardingConstraintOp(value, attr).operation
            _copy_frontend_attributes(op, constraint)
            value = constraint.results[0]
            self.counts["constraints"] += 1
        op.results[0].replace_all_uses_with(value)
        op.erase()

    def _constrain(self, result: ir.Value, attr: ir.Attribute) -> None:
        op = present(producer_of(result))
        with ir.InsertionPoint(op), op.location:
            constraint = sdy.ShardingConstraintOp(result, attr).operation
        constraint.move_after(op)
        result.replace_all_uses_with(constraint.results[0])
        constraint.operands[0] = result
        self.counts["constraints"] += 1

    def _attr(self, each: Statement, leaf: Leaf, kind: ir.Type) -> ir.Attribute | None:
        """Returns the sharding attribute of a value; None if the value needs no sharding."""
        if not isinstance(kind, ir.RankedTensorType) or (kind.rank == 0 and each.number is None):
            return None
        translation = self._translation(leaf, kind.rank)
        if translation is None:
            return None
        sharding = _with_open(translation.sharding, each.open_dims)
        says_nothing = not any(sharding.dims) and len(sharding.open_dims) == sharding.rank and not sharding.unreduced
        if says_nothing and sharding.rank:
            return None
        return sharding_to_attr(sharding, self.names[translation.mesh])

    def _placed_attr(self, leaf: Leaf, kind: ir.Type) -> ir.Attribute:
        if isinstance(leaf, Maximal):
            return sharding_to_attr(Sharding(()), _maximal_name(leaf.device))
        rank = kind.rank if isinstance(kind, ir.RankedTensorType) else 0
        translation = self._translation(leaf, rank) or Translation(0, Sharding(((),) * rank))
        return sharding_to_attr(translation.sharding, self.names[translation.mesh])

    def _attrs(self, shardings: list[tuple[int, Sharding]]) -> list[ir.Attribute]:
        return [sharding_to_attr(sharding, self.names[index]) for index, sharding in shardings]


def _is_unused(result: ir.Value) -> bool:
    return next(iter(result.uses), None) is None


def _check_tile(op: ir.Operation, sharding: Sharding, mesh: Mesh, manual: tuple[str, ...], is_entry: bool) -> None:
    """Checks that a tile is an array's part along the manual axes, and that these come first in each dimension.

    Raises: UnliftableError.
    """
    array, tile = (op.operands[0].type, op.results[0].type) if is_entry else (op.results[0].type, op.operands[0].type)
    expected = list(ir.RankedTensorType(array).shape)
    for dim, axes in enumerate(sharding.dims):
        is_manual = [axis.name in manual for axis in axes]
        if is_manual != sorted(is_manual, reverse=True):
            raise UnliftableError(op, f"a dimension of {sharding} is manual along an axis after one that is not")
        for axis in (axis for axis in axes if axis.name in manual):
            count = axis.resolve(mesh)[1]
            if expected[dim] % count:
                raise UnliftableError(op, f"dimension {dim} of {array} does not divide into tiles")
            expected[dim] //= count
    if expected != list(ir.RankedTensorType(tile).shape):
        raise UnliftableError(op, f"{tile} is no tile of {array} that is sharded {sharding}")


def _with_open(sharding: Sharding, open_dims: frozenset[int]) -> Sharding:
    return replace(sharding, open_dims=sharding.open_dims | open_dims) if open_dims else sharding


def _is_placed(op: ir.Operation) -> bool:
    return op.name in _PLACED or bool(_CALLBACK.match(call_target(op)))


def _copy_frontend_attributes(op: ir.Operation, new: ir.Operation) -> None:
    if "mhlo.frontend_attributes" in op.attributes:
        new.attributes["mhlo.frontend_attributes"] = op.attributes["mhlo.frontend_attributes"]


def _mesh_attr(mesh: Mesh) -> ir.Attribute:
    axes = [sdy.MeshAxisAttr.get(name, size) for name, size in mesh.axes]
    return sdy.MeshAttr.get(axes, list(mesh.device_ids or ()))


def _mesh_name(number: int) -> str:
    return "mesh" if number < 0 else f"mesh_{number}"


def _maximal_name(device: int) -> str:
    return f"maximal_mesh_{device}"
