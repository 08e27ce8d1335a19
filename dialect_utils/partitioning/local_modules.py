# SPDX-License-Identifier: Apache-2.0
"""A whole module per device: every op works on one device's tiles, and a planned chain does each change of layout.

    func.func @main(%arg0: tensor<8x16xf32> {sdy.sharding = ...}, ...) -> ... {      // unchanged
      %0 = sdy.manual_computation(%arg0, ...) in_shardings=[...] out_shardings=[...]
          manual_axes={every axis} (%tile, ...) {
        ops on tiles, and the collectives between them
      }
      return %0
    }

The layouts are those of Shardy's propagation and explicit reshards on a clone (`module_analysis.py`), with calls
inlined. XLA sees one manual computation over all axes, in which its partitioner has nothing to do; the functions keep
their types, attributes and arguments. `local_rules.py` says how each op may run on tiles, `local_ops.py` writes it.

Shardy's own `sdy-convert-global-to-local` is not used: its output depends on the version of jaxlib (0.10 refuses
`while`), it ends the process on dimensions that do not divide, and it sorts single tiles of a dimension that has to be
sorted as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from reshard.synthesis.forms.platforms import CPU, FORMS
from reshard.synthesis.layouts.mesh import Mesh

from ..analysis.explicit_reshards import insert_explicit_reshards
from ..analysis.module_analysis import Analysis, before_propagation
from ..analysis.propagation import propagate
from ..carried.held_parts import hold_parts
from ..carried.held_sums import Carried, propagate_holding
from ..carried.kept_states import keep_states
from ..carried.read_tiles import read_in_tiles
from ..conversions import repeated
from ..conversions.before_loops import shrink_before_loops
from ..conversions.unneeded import Ends, erase_unneeded
from ..emission.tile_emission import Mark, unused_channels, write_program
from ..ir.diagnostics import DiagnosedError, error_at
from ..ir.functions import public_functions, symbol
from ..ir.ops import LOOPS, ops_in, producer_of, terminator_of
from ..ir.pipelines import run_pipeline
from ..platform import compat
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from ..preparation.broadcasts import join_broadcasts
from ..preparation.empty_shards import fill_empty_shards
from ..preparation.inlining import inline_calls, remove_call_barriers
from ..preparation.notes import Note
from ..preparation.prepared_clone import prepare
from ..preparation.scatter_windows import simplify_scatters
from ..preparation.serials import own_location, serial_of, tagged_clone
from ..preparation.stacked_results import copy_no_stacks
from ..preparation.transposed_products import untranspose_products
from ..shardings.sdy_shardings import mesh_of, module_meshes, sharding_from_attr, sharding_to_attr
from ..shardings.value_layouts import result_layouts, stated_arguments, stated_results
from ..tile_rules.local_rules import Dims
from ..tile_rules.partly_manual import ManualAxes
from ..tiles.even_dimensions import divide_signatures, evenly_divided, with_sharding
from ..tiles.refusals import HINT, described
from ..tiles.tiles import Scope, Tile, dims_of, sharding_of, tile_bytes, tile_type
from .local_ops import Conversion, How, OpWriter
from .segments import Segment, is_free, segments, top_level

NONE, UNKNOWN, LOOPS_TOO = STAY = ("none", "unknown", "loops")  # no op, those without a rule, all loops beside these
KEPT = 1 / 8  # of the bytes of arguments: what may be kept in memory in order to convert less
MOST_LEFT = 16  # ops of a function that stay with XLA
Use = tuple[ir.Operation, int, ir.Value]  # an op of the original, the number of its operand, the value in the clone


@dataclass(frozen=True, slots=True)
class Left:
    """An op that stays with XLA, between islands, and the reason."""

    location: ir.Location
    op_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """What was done to a module.

    Attributes:
      conversions: the changes of layout in it, in their order, those that are not needed among them.
      left: the ops that stay with XLA.
      held_bytes: what a device holds while loops run, so that it is converted or reduced once.
      notes: what was done to the clone.
    """

    conversions: tuple[Conversion, ...] = ()
    left: tuple[Left, ...] = ()
    held_bytes: float = 0.0
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class _Analysed:
    """A module whose arguments and results divide into their shards, after explicit reshards.

    Attributes:
      held: the bytes that are held for sums of loops. parts_bytes: those for what loops take parts of.
      notes: what was done to the clone.
    """

    analysis: Analysis
    held: Mapping[Carried, float]
    parts_bytes: float
    notes: tuple[Note, ...]


class Analyses:
    """The analyses of modules that are converted several times, each time from a fresh copy, in another form."""

    def __init__(self) -> None:
        self._known: dict[tuple, _Analysed] = {}

    def of(self, module: ir.Module, how: How, hold_bytes: float, without: Set[Carried]) -> _Analysed:
        """Returns what `_analysed` does. An analysis that holds something is made anew: no two forms hold as much."""
        if hold_bytes:
            return _analysed(module, how, hold_bytes, without)
        key = compat.bytecode(module), tuple(sorted(how.planning.items()))
        if key not in self._known or self._known[key].analysis.explicit.context != module.context:
            self._known[key] = _analysed(module, how, hold_bytes, without)
        known = self._known[key]
        return replace(known, analysis=replace(known.analysis, originals=ops_in(module.operation)))


def convert(
    module: ir.Module,
    platform: str = CPU,
    *,
    stay: str = NONE,
    compares_products: bool = False,
    is_lean: bool = False,
    release_bytes: float = 0.0,
    hold_bytes: float = 0.0,
    keeps_sums: bool = False,
    first: int = 0,
    analyses: Analyses | None = None,
    **planning: Any,
) -> Written:
    """Converts each public function whose values are split; other functions stay.

    Args:
      platform: one of `platforms.PLATFORMS`, for whose compiler the collectives are written.
      stay: one of `STAY`, which ops stay with XLA, between islands; calls may be inlined then.
      compares_products: whether matrix products are split in the way that takes least time, if plans are made for time,
        and not as propagation has them.
      is_lean: whether each op is split in the way that needs the least memory, of those that take little more time.
      release_bytes: how many bytes less a device is to hold at the fullest moment: conversions whose result is needed
        late are written again there.
      hold_bytes: how many bytes a device may hold while loops run, so that what would be converted, or summed, in each
        turn is once: what the loop takes, in larger tiles, and what it adds up, before the sums are reduced.
      keeps_sums: whether sums that the program itself has, in manual computations, stay in their order.
      first: the number of the first conversion; those before it are of chains that the module has already.
      analyses: those of other copies of the module.
      planning: options of `plan` for the changes of layout: `objective`, `topology`, `memory_limit`.
    Raises: DiagnosedError at the first op that does not run on tiles and is not left; the module is then unchanged, but
      for the form of its scatters and products.
    """
    if not module_meshes(module):
        return Written()
    how = How(platform, planning, compares_products, is_lean, release_bytes, hold_bytes, keeps_sums)
    simplify_scatters(module)
    if not FORMS[platform].has_operands_as_used:
        return _convert_or_inline(module, stay, how, first, analyses)
    untranspose_products(module)
    written = _convert_or_inline(module, stay, how, first, analyses)
    untranspose_products(module)  # of a tile, with which a chain may begin
    return written


def _convert_or_inline(module: ir.Module, stay: str, how: How, first: int, analyses: Analyses | None) -> Written:
    """Converts the functions, with calls inlined if an op in one is to stay."""
    try:
        return _convert(module, stay, how, first, analyses)
    except DiagnosedError:
        if stay == NONE or not any(op.name == "func.call" for op in ops_in(module.operation)):
            raise
        rehearsed = ir.Module.parse(str(module))  # the module stays as it is if an op cannot be left in it either
        remove_call_barriers(inline_calls(rehearsed.operation))
        _convert(rehearsed, stay, how, first, analyses)
    remove_call_barriers(inline_calls(module.operation))
    return _convert(module, stay, how, first, analyses)


def _convert(
    module: ir.Module, stay: str, how: How, first: int, analyses: Analyses | None, without: Set[Carried] = frozenset()
) -> Written:
    """Converts the functions; `without` are sums of loops that are not to be held."""
    hold_bytes = 0.0 if stay == LOOPS_TOO else how.hold_bytes
    found = (analyses.of if analyses else _analysed)(module, how, hold_bytes, without)
    held_bytes = found.parts_bytes + sum(found.held.values())
    own = replace(how, hold_bytes=hold_bytes - held_bytes)
    functions = [_Function(each, found.analysis, stay) for each in public_functions(found.analysis.originals)]
    written = [each for each in functions if each.is_to_be_converted()]
    channels = unused_channels(module)
    try:
        conversions: list[Conversion] = []
        for function in written:
            conversions += function.write(channels, own, conversions[-1].number + 1 if conversions else first)
    except Exception:
        for function in written:
            function.undo()
        raise
    if in_vain := found.held.keys() - {each for function in written for each in function.summed}:
        for function in written:
            function.undo()
        return _convert(module, stay, how, first, analyses, without | in_vain)
    for function in written:
        function.finish()
    if written:
        run_pipeline(module.operation, "builtin.module(symbol-dce)")
    total = held_bytes + max((each.held_bytes for each in written), default=0.0)
    left = tuple(each for function in written for each in function.reasons)
    stay_serials = {serial_of(op) for function in written for each in function.left for op in ops_in(each)}
    notes = tuple(each for each in found.notes if written and each.serial not in stay_serials)
    return Written(tuple(conversions), left, total, notes)


def _analysed(module: ir.Module, how: How, hold_bytes: float, without: Set[Carried]) -> _Analysed:
    """Returns the analysis of a module, in which at most some bytes are held for loops."""
    analysis, held, notes = before_propagation(prepare(*tagged_clone(module))), {}, []
    fill_empty_shards(analysis.explicit, notes)
    keep_states(analysis.explicit, how.planning, copy_no_stacks(analysis.explicit, notes), notes)
    if hold_bytes:
        holding = propagate_holding(analysis.explicit, hold_bytes, without)
        analysis.explicit, held = holding.module, holding.held
    else:
        propagate(analysis.explicit)
    divide_signatures(analysis.explicit)
    insert_explicit_reshards(analysis.explicit)
    read_in_tiles(analysis.explicit, notes)
    parts = hold_parts(analysis.explicit, hold_bytes - sum(held.values())) if hold_bytes else 0.0
    return _Analysed(analysis, held, parts, tuple(notes))


class _Function:
    """One public function during its conversion: `original` in the module, `analysed` in the clone.

    State: `islands` once they are written, `layouts` of arguments and results, `left`, the ops of the clone that stay
    with XLA, with the `reasons`; `values` of the clone outside of islands, in the original, with their layouts;
    `staying`, the ops of the original that stay, what they use of islands, and how many islands are before each;
    `held_bytes`, as `Written` has them, and `summed`, what loops add up of partial sums. The rest of the function is
    unchanged until `finish`.
    """

    def __init__(self, original: ir.Operation, analysis: Analysis, stay: str):
        self.original = original
        self.analysis = analysis
        self.leaves_unknown = stay != NONE
        functions = public_functions(ops_in(analysis.explicit))
        self.analysed = next(each for each in functions if symbol(each) == symbol(original))
        self.block = original.regions[0].blocks[0]
        self.before = [op.operation for op in self.block.operations]
        self.returned = list(self.before[-1].operands)
        self.meshes = module_meshes(analysis.explicit)
        self.islands: list[ir.Operation] = []
        self.layouts: dict[str, list[Dims]] = {}
        self.left: list[ir.Operation] = []
        self.reasons: list[Left] = []
        self.values: dict[ir.Value, tuple[ir.Value, Dims]] = {}
        self.staying: list[tuple[ir.Operation, list[Use], int]] = []
        self.held_bytes = 0.0
        self.summed: Set[Carried] = frozenset()
        if stay == LOOPS_TOO:
            self._leave_loops()

    def is_to_be_converted(self) -> bool:
        """Returns whether a value of the function is to be split, and it is not one manual computation already."""
        self._refuse_uneven()
        return self.mesh is not None and not self._is_converted()

    def _refuse_uneven(self) -> None:
        """Refuses arguments and results whose dimensions do not divide into their shards. Raises: DiagnosedError."""
        arguments = stated_arguments(self.original), [each.type for each in self.block.arguments]
        results = stated_results(self.original), [each.type for each in self.returned]
        for word, stated in (("argument", zip(*arguments, strict=True)), ("result", zip(*results, strict=True))):
            for number, (attr, kind) in enumerate(stated):
                if attr is not None and evenly_divided(attr, kind, self.meshes) != attr:
                    what = f"{word} {number}, {kind}, is to be {sharding_from_attr(attr)}"
                    raise error_at(self.original, f"emit=local needs dimensions that divide; {what}", HINT)

    def _is_converted(self) -> bool:
        op = self.before[0]
        return (
            len(self.before) == 2
            and op.name == "sdy.manual_computation"
            and list(op.operands) == list(self.block.arguments)
            and self.returned == list(op.results)
            and ManualAxes.of(op, present(self.mesh)).are_all_of(present(self.mesh))
        )

    @functools.cached_property
    def mesh(self) -> Mesh | None:
        """Returns the mesh of the function's layouts; None if no value is split.

        The layouts that the function states count, too: XLA splits also what does not divide. Ops on one device, and
        ops on another mesh than the first one, are left to XLA if they may be.

        Raises: DiagnosedError if there are several meshes, or arrays on one device, and the ops may not be left.
        """
        found: dict[Mesh, str] = {}
        fine: set[ir.Attribute] = set()  # few layouts are of many values
        for op in (*ops_in(self.analysed), *ops_in(self.original)):
            for attr in _shardings_at(op):
                if attr in fine:
                    continue
                mesh = mesh_of(attr, self.meshes)
                if mesh is None or not mesh.axes and mesh.device_ids:
                    what = "an array" if op.name == "func.func" or len(op.results) else described(op)
                    self._leave(op, f"has no tiles for {what} on one device, {attr}")
                    continue
                sharding = sharding_from_attr(attr)
                if sharding.unreduced:
                    raise error_at(op, f"emit=local takes and gives no unreduced values; here is one of {attr}", HINT)
                if any(sharding.dims):
                    found.setdefault(mesh, str(sdy.TensorShardingAttr(attr).mesh_or_ref))
                if len(found) > 1 and mesh != next(iter(found)):
                    names = " and ".join(found.values())
                    self._leave(op, f"takes one mesh per function; this one is on {names}")
                else:
                    fine.add(attr)
        return next(iter(found), None)

    def _leave(self, op: ir.Operation, problem: str) -> None:
        """Leaves an op of either side to XLA. Raises: DiagnosedError with the problem if it may not be left."""
        if not self.leaves_unknown or op.name == "func.func":
            raise error_at(op, f"emit=local {problem}", HINT)
        if op.name == "sdy.reshard" and serial_of(op) is None:
            return  # Shardy inserted it, before or behind an op that is left
        entry = self.analysed.regions[0].blocks[0]
        top = top_level(op)
        if top.block != entry:
            return  # of the original, whose clone was looked at
        if top not in self.left:
            if self._original_of(top) is None:
                raise error_at(op, f"emit=local {problem}", HINT)
            self.left.append(top)
            self.reasons.append(Left(own_location(op), described(op), problem))

    def _leave_loops(self) -> None:
        for op in (each.operation for each in self.analysed.regions[0].blocks[0].operations):
            if op.name in LOOPS and self._original_of(op) is not None:
                self.left.append(op)
                self.reasons.append(Left(own_location(op), op.name, "loops are to stay"))

    def _original_of(self, op: ir.Operation) -> ir.Operation | None:
        """Returns the op of the original function that an op of its clone stands for, if it may stay as it is."""
        found = self._traced(op)
        return found if found is not None and found.name == op.name else None

    def _traced(self, op: ir.Operation) -> ir.Operation | None:
        """Returns the op of the function's block that an op of its clone comes from; None if there is none."""
        serial = serial_of(op)
        index = None if serial is None else self.analysis.origin[serial]
        found = None if index is None else self.analysis.originals[index]
        return found if found is not None and found.block == self.block else None

    @functools.cached_property
    def mesh_reference(self) -> ir.Attribute | str:
        name = next((name for name, mesh in self.meshes.items() if mesh == self.mesh), None)
        return name if name is not None else ir.Attribute.parse(f"#sdy.mesh{self.mesh}")

    def _refuse_tokens(self) -> None:
        """Refuses arguments and results that are no tensors, where ops are left: an island cannot hand them on."""
        for value in (*self.block.arguments, *self.returned):
            if not isinstance(value.type, ir.RankedTensorType):
                raise error_at(self.original, f"emit=local has no tiles of a value of type {value.type}", HINT)

    def write(self, channels: Iterator[int], how: How, first: int) -> list[Conversion]:
        """Writes the islands before the return of the function, and returns the changes of layout, whose numbers begin
        with `first`.

        Ops for which there is no rule are left to XLA, if they may be. Raises: DiagnosedError.
        """
        while True:
            writer = OpWriter(present(self.mesh), self.meshes, self.analysis, channels, how, first)
            try:
                self._write(writer)
            except DiagnosedError as error:
                self.undo()
                op = writer.at
                if op is None or not self.leaves_unknown or len(self.left) >= MOST_LEFT:
                    raise
                if self._original_of(op) is None or op in self.left:
                    raise
                self.left.append(op)
                why = error.diagnostics[0].message.removeprefix(f"emit=local cannot convert {described(op)}: ")
                self.reasons.append(Left(own_location(op), described(op), why))
            else:
                self.held_bytes, self.summed = how.hold_bytes - writer.changes.hold_bytes, writer.summed
                unneeded = erase_unneeded(writer.ends)
                once = [
                    replace(each, is_needed=each.is_needed and each.number not in unneeded)
                    for each in writer.conversions
                ]
                again = self._write_again(once, writer.ends, channels, how)
                inside = [op for island in self.islands for op in ops_in(island)]
                join_broadcasts(op for op in inside if op.name == "stablehlo.broadcast_in_dim")
                for island in self.islands if FORMS[how.platform].shrinks_before_loops else ():
                    shrink_before_loops(island.regions[0].blocks[0])
                return [*once, *again]

    def _write_again(
        self, conversions: Sequence[Conversion], ends: Sequence[Ends], channels: Iterator[int], how: How
    ) -> list[Conversion]:
        """Writes conversions a second time, where they are needed late, and returns these."""
        if not how.release_bytes:
            return []
        by_number = {each.number: each for each in conversions}
        candidates = [
            repeated.Candidate(each.number, each.taken[0], each.result, _cost(by_number[each.number]))
            for each in ends
            if len(each.taken) == 1 and by_number[each.number].is_needed
            if not by_number[each.number].is_move and not by_number[each.number].is_collective
        ]
        found: list[Conversion] = []
        for island in self.islands:
            for again, gap in repeated.chosen(island.regions[0].blocks[0], candidates, how.release_bytes):
                first = by_number[again.number]
                number = conversions[-1].number + 1 + len(found)
                mark = Mark(channels, f"reshard/{number}", first.location, how.platform)
                written = functools.partial(_write, first, mark)
                repeated.write(gap, how.platform, written)
                found.append(replace(first, number=number, whole="", is_repeated=True))
        return found

    def _write(self, writer: OpWriter) -> None:
        self._refuse_tokens()
        arguments = self._stated("arg_attrs", [each.type for each in self.block.arguments])
        results = self._stated("res_attrs", [each.type for each in self.returned])
        entry = self.analysed.regions[0].blocks[0]
        pairs = zip(entry.arguments, arguments, strict=True)
        writer.changes.at_hand.spare_bytes = KEPT * sum(tile_bytes(value.type, dims) for value, dims in pairs)
        self.values = {
            value: (given, dims)
            for value, given, dims in zip(entry.arguments, self.block.arguments, arguments, strict=True)
        }
        self.staying.clear()
        needed = {op: self._needed(op) for op in self.left}
        for segment in segments(entry, self.left, {op: [use[2] for use in uses] for op, uses in needed.items()}):
            self._write_island(writer, segment, results)
            if segment.left is not None:
                stays = present(self._original_of(segment.left))
                self.staying.append((stays, needed[segment.left], len(self.islands)))
                for value, result in zip(segment.left.results, stays.results, strict=True):
                    self.values[value] = result, writer.found.dividing(value)
        self.layouts = {"arg_attrs": arguments, "res_attrs": results}

    def _write_island(self, writer: OpWriter, segment: Segment, results: Sequence[Dims]) -> None:
        """Writes the island of a segment, and records the values that leave it; the last one has the results."""
        terminator = terminator_of(self.analysed.regions[0].blocks[0])
        is_last = segment.left is None
        given = list(terminator.operands) if is_last else list(segment.given)
        if not given:
            return
        taken, layouts = zip(*(self.values[value] for value in segment.taken)) if segment.taken else ((), ())
        with ir.InsertionPoint(self.before[-1]), self.original.location:
            island = sdy.ManualComputationOp(
                [value.type for value in given],
                list(taken),
                sdy.TensorShardingPerValueAttr.get([self.attribute(dims) for dims in layouts]),
                sdy.TensorShardingPerValueAttr.get([]),
                sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in present(self.mesh).axis_names]),
            ).operation
            self.islands.append(island)
            types = [tile_type(each.type, dims, self.original) for each, dims in zip(taken, layouts, strict=True)]
            body = island.regions[0].blocks.append(*types, arg_locs=[self.original.location] * len(types))
        scope: Scope = {
            value: Tile(tile, dims) for value, tile, dims in zip(segment.taken, body.arguments, layouts, strict=True)
        }
        with ir.InsertionPoint(body):
            writer.write_ops(segment.ops, scope)
            wanted: Sequence[Dims | None] = results if is_last else [None] * len(given)
            tiles = [writer.tile_of(terminator, *each) for each in zip(given, [scope] * len(given), wanted)]
            sdy.ReturnOp([each.value for each in tiles], loc=self.original.location)
        shardings = [self.attribute(each.dims) for each in tiles]
        island.attributes["out_shardings"] = sdy.TensorShardingPerValueAttr.get(shardings)
        if not is_last:
            leaving = zip(given, island.results, tiles, strict=True)
            self.values |= {value: (result, tile.dims) for value, result, tile in leaving}

    def _needed(self, left: ir.Operation) -> list[Use]:
        """Returns what the original of an op that stays uses of values that islands have: an op in it, the number of
        its operand, and the value in the clone.

        Raises: DiagnosedError if the value cannot be found.
        """
        by_original = {}
        for op in self.analysed.regions[0].blocks[0].operations:
            original = self._traced(op.operation)
            if original is not None:
                by_original[original] = op.operation  # the last of several pieces is the whole
        found = []
        for op in ops_in(present(self._original_of(left))):
            for number, value in enumerate(op.operands):
                producer = producer_of(value)
                if producer is None or producer.block != self.block or producer in map(self._original_of, self.left):
                    continue
                if is_free(value):
                    continue  # the op that makes it stays
                if producer not in by_original:
                    raise error_at(left, f"emit=local cannot leave {described(left)} to XLA: its operand is lost", HINT)
                found.append((op, number, by_original[producer].results[ir.OpResult(value).result_number]))
        return found

    def undo(self) -> None:
        """Removes the islands that `write` inserted."""
        for island in reversed(self.islands):
            island.erase()
        self.islands.clear()

    def finish(self) -> None:
        """Makes the function return the results of the last island, and removes the ops that are written in islands."""
        for op, uses, count in self.staying:
            op.move_before(self.islands[count] if count < len(self.islands) else self.before[-1])
            for user, number, value in uses:
                user.operands[number] = self.values[value][0]
        for number in range(len(self.returned)):
            self.before[-1].operands[number] = self.islands[-1].results[number]
        stay = {op for op, *_ in self.staying}
        for op in reversed(self.before[:-1]):
            if op not in stay and not any(list(each.uses) for each in op.results):
                op.erase()
        for name, layouts in self.layouts.items():
            self._state(name, layouts)

    def attribute(self, dims: Dims) -> ir.Attribute:
        return sharding_to_attr(sharding_of(present(self.mesh), dims), self.mesh_reference)

    def _stated(self, name: str, types: Sequence[ir.Type]) -> list[Dims]:
        stated = stated_arguments if name == "arg_attrs" else stated_results
        mesh = present(self.mesh)
        return [dims_of(attr, kind, mesh) for attr, kind in zip(stated(self.analysed), types, strict=True)]

    def _state(self, name: str, layouts: Sequence[Dims]) -> None:
        """States the layouts on arguments or results, so that XLA does not choose other ones."""
        if not layouts:
            return
        has = name in self.original.attributes
        stated = list(ir.ArrayAttr(self.original.attributes[name])) if has else [ir.DictAttr.get({})] * len(layouts)
        self.original.attributes[name] = ir.ArrayAttr.get(
            [with_sharding(ir.DictAttr(each), self.attribute(dims)) for each, dims in zip(stated, layouts, strict=True)]
        )


def _write(conversion: Conversion, mark: Mark, tile: ir.Value) -> ir.Value:
    """Writes a conversion of a tile, and returns the tile after it."""
    manual = conversion.manual
    return manual.from_part(write_program(conversion.plan.tile_program, manual.as_part(tile), mark))


def _cost(conversion: Conversion) -> float:
    """Returns the time of a conversion; on an unknown network its bytes."""
    plan = conversion.plan
    return plan.time_s if plan.objective == "time" else float(plan.bytes_received)


def _shardings_at(op: ir.Operation) -> Iterator[ir.Attribute]:
    """Yields the shardings of the operands and results that an op states."""
    if op.name == "func.func":
        found = [*stated_arguments(op), *stated_results(op)]
    elif op.name == "sdy.manual_computation":
        found = [op.attributes["in_shardings"], op.attributes["out_shardings"]]
    else:
        found = [result_layouts(op)]
    for attr in found:
        if attr is not None:
            yield from (
                [attr] if sdy.TensorShardingAttr.isinstance(attr) else sdy.TensorShardingPerValueAttr(attr).shardings
            )
