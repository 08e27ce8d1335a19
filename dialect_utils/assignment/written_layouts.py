# SPDX-License-Identifier: Apache-2.0
"""Chosen layouts, written into a module: shardings of its arguments and results, and few sharding constraints.

Propagation fills in the rest. So a constraint is written only where propagation, from what is written already, comes to
another layout than the chosen one: in rounds, the first such clusters in the program's order first. Afterwards each
constraint without which nothing changes is taken out again.

`pin_moves` writes more: a constraint at each operand that the solution converts, so that the conversion is that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from reshard.synthesis.assignment.clusters import Clusters
from reshard.synthesis.assignment.layout_problem import Assignment
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

from ..analysis.module_analysis import Analysis, analyse
from ..ir.functions import functions_of, public_functions, signature
from ..ir.ops import ops_in
from ..platform.bindings import ir, sdy
from ..shardings.sdy_shardings import SHARDING, Shardings, module_meshes, sharding_to_attr
from .factored_modules import FactoredModule, Place

MESH = "mesh"  # the name of the mesh that a module gets if it has none like it
_MARK = "reshard.assigned"
_ROUNDS = 8  # after which all that is left is constrained at once
_PRUNED = 40  # constraints up to which each is tried without


@dataclass
class Written:
    """What was written into a module.

    Attributes:
      constraints: the number of sharding constraints. left: the tensors that propagation still gives another layout.
    """

    constraints: int
    left: int


def write_layouts(
    module: ir.Module, factored: FactoredModule, clusters: Clusters, assignment: Assignment, mesh: Mesh, *, pin_moves: bool = False
) -> Written:
    """Writes layouts into the module, in place, that `factored` was made of."""
    writer = _Writer(module, factored, clusters, assignment, _mesh_symbol(module, mesh))
    with module.context, ir.Location.unknown():
        return writer.write(pin_moves)


def _mesh_symbol(module: ir.Module, mesh: Mesh) -> str:
    meshes = module_meshes(module)
    for symbol, each in meshes.items():
        if each == mesh:
            return symbol
    symbol, number = MESH, 0
    while symbol in meshes:
        number += 1
        symbol = f"{MESH}_{number}"
    with module.context, ir.Location.unknown(), ir.InsertionPoint.at_block_begin(module.body):
        axes = [sdy.MeshAxisAttr.get(name, size) for name, size in mesh.axes]
        sdy.MeshOp(symbol, sdy.MeshAttr.get(axes, device_ids=list(mesh.device_ids) if mesh.device_ids else []))
    return symbol


@dataclass
class _Writer:
    module: ir.Module
    factored: FactoredModule
    clusters: Clusters
    assignment: Assignment
    mesh: str
    ops: list[ir.Operation] = field(init=False)
    written: list[ir.Operation] = field(init=False, default_factory=list)
    wanted: dict[Place, tuple[int, Sharding]] = field(init=False)

    def __post_init__(self) -> None:
        self.ops = [op for op in ops_in(self.module.operation) if not _is_new_mesh(op, self)]
        self.wanted = dict(self._wanted())

    def write(self, pin_moves: bool) -> Written:
        self._write_signature()
        left = self._mismatches()
        for round_ in range(_ROUNDS):
            if not left:
                break
            last = round_ == _ROUNDS - 1
            some = left if last else left[: max(1, len(left) // 3)]
            for place, sharding in some:
                self._constrain(place, sharding)
            left = self._mismatches()
        if len(self.written) <= _PRUNED:
            self._prune(len(left))
        if pin_moves:
            self._pin_moves()
        for op in self.written:
            del op.attributes[_MARK]
        return Written(len(self.written), len(left))

    def _wanted(self) -> Iterator[tuple[Place, tuple[int, Sharding]]]:
        """Yields the layout of each op's result; not of one that is wanted in several, since it is called twice."""
        found: dict[Place, set[Sharding]] = {}
        cluster_of: dict[Place, int] = {}
        for tensor, places in self.factored.places.items():
            layout = self.assignment.layouts[tensor]
            for place in places if layout is not None else ():
                found.setdefault(place, set()).add(layout)
                cluster_of[place] = self.clusters.of[tensor]
        for place in sorted(found):
            if len(found[place]) == 1:
                yield place, (cluster_of[place], found[place].pop())

    def _write_signature(self) -> None:
        (main,) = public_functions(functions_of(self.module.operation))
        types = signature(main)
        for name, tensors, kinds in (
            ("arg_attrs", self.factored.arguments, types.inputs),
            ("res_attrs", self.factored.results, types.results),
        ):
            held = main.attributes.get(name)
            attributes = [ir.DictAttr(each) for each in ir.ArrayAttr(held)] if held is not None else None
            new = []
            for number, (tensor, kind) in enumerate(zip(tensors, kinds, strict=True)):
                entries = {each.name: each.attr for each in attributes[number]} if attributes else {}
                if isinstance(kind, ir.RankedTensorType):
                    layout = None if tensor is None else self.assignment.layouts[tensor]
                    entries[SHARDING] = self._attr(layout or Sharding(((),) * ir.RankedTensorType(kind).rank))
                new.append(ir.DictAttr.get(entries))
            main.attributes[name] = ir.ArrayAttr.get(new)

    def _attr(self, sharding: Sharding) -> ir.Attribute:
        return sharding_to_attr(sharding, self.mesh)

    def _mismatches(self) -> list[tuple[Place, Sharding]]:
        """Returns for each cluster the first result that propagation gives another layout, with the chosen one."""
        analysis = analyse(self.module)
        index = self._indices(analysis)
        shardings = Shardings()
        found: dict[int, tuple[Place, Sharding]] = {}
        for place, (cluster, wanted) in self.wanted.items():
            if cluster in found or place[0] not in index:
                continue
            for serial in analysis.instances.get(index[place[0]], ()):
                for attr in analysis.layouts.get(serial, ()):
                    nth = attr and analysis.nth_sharding(attr, place[1])
                    dims = shardings[nth].dims if nth is not None else ((),) * wanted.rank
                    if dims != wanted.dims:
                        found.setdefault(cluster, (place, wanted))
        return list(found.values())

    def _indices(self, analysis: Analysis) -> dict[int, int]:
        """Returns index before anything was written -> index now."""
        now = [at for at, op in enumerate(analysis.originals) if _MARK not in op.attributes and not _is_new_mesh(op, self)]
        return dict(enumerate(now))

    def _constrain(self, place: Place, sharding: Sharding) -> None:
        value = self.ops[place[0]].results[place[1]]
        with ir.InsertionPoint.after(self.ops[place[0]]), self.ops[place[0]].location:
            new = self._constraint(value, sharding)
        value.replace_all_uses_except(new.results[0], new)

    def _constraint(self, value: ir.Value, sharding: Sharding) -> ir.Operation:
        new = sdy.ShardingConstraintOp(value, self._attr(sharding)).operation
        new.attributes[_MARK] = ir.UnitAttr.get()
        self.written.append(new)
        return new

    def _prune(self, left: int) -> None:
        for op in list(reversed(self.written)):
            value, result = op.operands[0], op.results[0]
            users = [(use.owner, use.operand_number) for use in result.uses]
            result.replace_all_uses_with(value)
            if len(self._mismatches()) <= left:
                self.written.remove(op)
                op.erase()
                continue
            for user, number in users:
                user.operation.operands[number] = result

    def _pin_moves(self) -> None:
        for op, operand, target in self._operand_moves():
            user = self.ops[op]
            with ir.InsertionPoint(user), user.location:
                user.operands[operand] = self._constraint(user.operands[operand], target).results[0]

    def _operand_moves(self) -> Sequence[tuple[int, int, Sharding]]:
        """Returns (op, operand number, layout) for each operand that an op takes in another layout than it has.

        An op that is called twice with different layouts is left out.
        """
        found: dict[tuple[int, int], set[Sharding]] = {}
        for number, way in self.assignment.ways.items():
            op, index = self.factored.program.ops[number], self.factored.ops[number]
            if index is None:
                continue
            for tensor, dims, operand in zip(op.operands, op.operand_dims, self.factored.operand_numbers[number]):
                target = self.assignment.operand_layout(dims, way)
                if target != self.assignment.layouts[tensor]:
                    found.setdefault((index, operand), set()).add(target)
        return [(*key, each.pop()) for key, each in sorted(found.items()) if len(each) == 1]


def _is_new_mesh(op: ir.Operation, writer: _Writer) -> bool:
    return op.name == "sdy.mesh" and ir.StringAttr(op.attributes["sym_name"]).value == writer.mesh
