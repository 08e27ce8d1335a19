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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reshard.synthesis.forms.platforms import CPU
from reshard.synthesis.layouts.mesh import Mesh

from ..analysis.explicit_reshards import insert_explicit_reshards
from ..analysis.module_analysis import Analysis, before_propagation
from ..analysis.propagation import propagate
from ..emission.tile_emission import unused_channels
from ..ir.diagnostics import error_at
from ..ir.functions import public_functions, symbol
from ..ir.ops import ops_in
from ..ir.pipelines import run_pipeline
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from ..preparation.prepared_clone import prepare
from ..preparation.serials import tagged_clone
from ..shardings.sdy_shardings import mesh_of, module_meshes, sharding_from_attr, sharding_to_attr
from ..shardings.value_layouts import result_layouts, stated_arguments, stated_results
from .even_dimensions import divide_signatures, evenly_divided, with_sharding
from .local_ops import HINT, Conversion, OpWriter, Tile, described, dims_of, is_over_all_axes, sharding_of, tile_type
from .local_rules import Dims


def convert(module: ir.Module, platform: str = CPU, **planning: Any) -> list[Conversion]:
    """Converts each public function whose values are split; other functions stay.

    Args:
      platform: one of `platforms.PLATFORMS`, for whose compiler the collectives are written.
      planning: options of `plan` for the changes of layout: `objective`, `topology`, `memory_limit`.
    Returns: the changes of layout that the functions now hold, in the order in which they are written.
    Raises: DiagnosedError at the first op that does not run on tiles; the module is then unchanged.
    """
    if not module_meshes(module):
        return []
    analysis = _analysed(module)
    functions = [_Function(each, analysis) for each in public_functions(analysis.originals)]
    written = [each for each in functions if each.is_to_be_converted()]
    channels = unused_channels(module)
    try:
        conversions = [each for function in written for each in function.write(channels, platform, planning)]
    except Exception:
        for function in written:
            function.undo()
        raise
    for function in written:
        function.finish()
    if written:
        run_pipeline(module.operation, "builtin.module(symbol-dce)")
    return conversions


def _analysed(module: ir.Module) -> Analysis:
    """Returns the analysis of a module whose arguments and results divide into their shards."""
    analysis = before_propagation(prepare(*tagged_clone(module)))
    propagate(analysis.explicit)
    divide_signatures(analysis.explicit)
    insert_explicit_reshards(analysis.explicit)
    return analysis


class _Function:
    """One public function during its conversion: `original` in the module, `analysed` in the clone.

    State: `island` once it is begun, `layouts` of arguments and results once it is written; the rest of the function is
    unchanged until `finish`.
    """

    def __init__(self, original: ir.Operation, analysis: Analysis):
        self.original = original
        self.analysis = analysis
        functions = public_functions(ops_in(analysis.explicit))
        self.analysed = next(each for each in functions if symbol(each) == symbol(original))
        self.block = original.regions[0].blocks[0]
        self.before = [op.operation for op in self.block.operations]
        self.returned = list(self.before[-1].operands)
        self.meshes = module_meshes(analysis.explicit)
        self.island: ir.Operation | None = None
        self.layouts: dict[str, list[Dims]] = {}

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
            and is_over_all_axes(op, present(self.mesh))
        )

    @functools.cached_property
    def mesh(self) -> Mesh | None:
        """Returns the mesh of the function's layouts; None if no value is split.

        The layouts that the function states count, too: XLA splits also what does not divide.

        Raises: DiagnosedError if there are several meshes.
        """
        found: dict[Mesh, str] = {}
        for op in (*ops_in(self.analysed), *ops_in(self.original)):
            for attr in _shardings_at(op):
                mesh = mesh_of(attr, self.meshes)
                if mesh is None or not mesh.axes and mesh.device_ids:
                    what = "an array" if op.name == "func.func" or len(op.results) else described(op)
                    raise error_at(op, f"emit=local has no tiles for {what} on one device, {attr}", HINT)
                sharding = sharding_from_attr(attr)
                if sharding.unreduced:
                    raise error_at(op, f"emit=local takes and gives no unreduced values; here is one of {attr}", HINT)
                if any(sharding.dims):
                    found.setdefault(mesh, str(sdy.TensorShardingAttr(attr).mesh_or_ref))
            if len(found) > 1:
                names = " and ".join(found.values())
                raise error_at(op, f"emit=local takes one mesh per function; this one is on {names}", HINT)
        return next(iter(found), None)

    @functools.cached_property
    def mesh_reference(self) -> ir.Attribute | str:
        name = next((name for name, mesh in self.meshes.items() if mesh == self.mesh), None)
        return name if name is not None else ir.Attribute.parse(f"#sdy.mesh{self.mesh}")

    def write(self, channels: Iterator[int], platform: str, planning: Mapping[str, Any]) -> list[Conversion]:
        """Writes the island before the return of the function, and returns the changes of layout in it."""
        arguments = self._stated("arg_attrs", [each.type for each in self.block.arguments])
        results = self._stated("res_attrs", [each.type for each in self.returned])
        with ir.InsertionPoint(self.before[-1]), self.original.location:
            island = sdy.ManualComputationOp(
                [each.type for each in self.returned],
                list(self.block.arguments),
                sdy.TensorShardingPerValueAttr.get([self.attribute(dims) for dims in arguments]),
                sdy.TensorShardingPerValueAttr.get([self.attribute(dims) for dims in results]),
                sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in present(self.mesh).axis_names]),
            ).operation
            self.island = island
            types = [tile_type(each.type, dims, self.original) for each, dims in zip(self.block.arguments, arguments)]
            body = island.regions[0].blocks.append(*types, arg_locs=[each.location for each in self.block.arguments])
        writer = OpWriter(present(self.mesh), self.meshes, self.analysis, channels, platform, planning)
        entry = self.analysed.regions[0].blocks[0]
        tiles = [Tile(value, dims) for value, dims in zip(body.arguments, arguments, strict=True)]
        with ir.InsertionPoint(body):
            returned = writer.write_block(entry, tiles, {}, results)
            sdy.ReturnOp(returned, loc=self.original.location)
        self.layouts = {"arg_attrs": arguments, "res_attrs": results}
        return writer.conversions

    def undo(self) -> None:
        """Removes the island that `write` inserted."""
        if self.island is not None:
            self.island.erase()

    def finish(self) -> None:
        """Makes the function return the results of the island, and removes all other ops."""
        for number, result in enumerate(present(self.island).results):
            self.before[-1].operands[number] = result
        for op in reversed(self.before[:-1]):
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
