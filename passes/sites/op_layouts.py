# SPDX-License-Identifier: Apache-2.0
"""The layouts around an op of the original, as propagation leaves them, before any conversion."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from reshard.dialect_utils.analysis.module_analysis import Analysis
from reshard.dialect_utils.ir.ops import CONSTRAINTS
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.preparation.serials import serial_of
from reshard.dialect_utils.shardings.sdy_shardings import Shardings, mesh_of, module_meshes
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding


@dataclass(slots=True)
class Layouts:
    """The layouts of the operands and results of one op, by number; None for a value that is no ranked tensor.

    Attributes:
      constrained: the numbers of the results whose layout a constraint asks for as well. The constraint changes
        nothing, but XLA partitions an op in front of a constraint in another way.
      attributes: the layouts of operands, then of results as propagation wrote them; None for one without a sharding.
        Equal attributes are equal layouts, and they are fast to compare.
    """

    operands: list[Sharding | None]
    results: list[Sharding | None]
    constrained: frozenset[int] = frozenset()
    attributes: tuple[ir.Attribute | None, ...] = ()


class OpLayouts:
    """Looks layouts up in an analysis of the module.

    Args:
      ops: the ops of the module whose layouts will be looked up; a large module has many others.
    """

    def __init__(self, analysis: Analysis, ops: Collection[ir.Operation]):
        self.analysis = analysis
        self.index = {op: i for i, op in enumerate(self.analysis.originals) if op in ops}
        self.meshes = module_meshes(self.analysis.explicit)
        serials = {serial for index in self.index.values() for serial in self.analysis.instances.get(index, ())}
        self.explicit = self.analysis.first_of(serials)
        self._shardings = Shardings()
        self._meshes_of: dict[ir.Attribute, Mesh | None] = {}
        self._replicated: dict[int, Sharding] = {}  # by rank

    def of(self, op: ir.Operation, mesh: Mesh) -> Layouts | None:
        """Returns the layouts around the first instance of an op; None if propagation has dropped the instance.

        The result is also None if one of the layouts is on another mesh than `mesh`, or if the instance has another
        number of operands or results than the op.
        """
        serials = self.analysis.instances.get(self.index.get(op, -1), [])
        if not serials or serials[0] not in self.explicit:
            return None
        clone = self.explicit[serials[0]]
        if len(clone.operands) != len(op.operands) or len(clone.results) != len(op.results):
            return None
        operands = [(self._before_conversion(value), value) for value in clone.operands]
        results = [(self._propagated(serials[0], i), value) for i, value in enumerate(clone.results)]
        if any(attr is not None and self._mesh_of(attr) != mesh for attr, _ in (*operands, *results)):
            return None
        found = Layouts(
            [self._or_replicated(*each) for each in operands], [self._or_replicated(*each) for each in results]
        )
        found.attributes = tuple(attr for attr, _ in (*operands, *results))
        values = enumerate(zip(op.results, found.results, strict=True))
        found.constrained = frozenset(
            i for i, (value, layout) in values if layout is not None and self._is_held(value, layout)
        )
        return found

    def of_result(self, op: ir.Operation) -> list[tuple[Mesh, Sharding] | None]:
        """Returns the layouts that are stated of the first result of an op, in any instance that propagation has kept;
        of a constant it makes one for each layout in which it is needed. None stands for one on an unknown mesh."""
        serials = self.analysis.instances.get(self.index.get(op, -1), ())
        found = {attr for each in serials if each in self.explicit for attr in self.analysis.layouts.get(each, ())}
        stated = {each for attr in found if attr and (each := self.analysis.nth_sharding(attr, 0)) is not None}
        ordered = sorted(stated, key=str)
        return [None if (mesh := self._mesh_of(each)) is None else (mesh, self._shardings[each]) for each in ordered]

    def instances_of(self, op: ir.Operation) -> list[ir.Operation]:
        """Returns the copies of an op in the analysis that propagation has kept."""
        serials = self.analysis.instances.get(self.index.get(op, -1), ())
        return [self.explicit[serial] for serial in serials if serial in self.explicit]

    def later_layouts(self, op: ir.Operation) -> list[Sharding]:
        """Returns the layouts into which the first result of an op is converted, in any instance."""
        found, left = [], [each.results[0] for each in self.instances_of(op)]
        while left:
            users = [use.owner.operation for use in left.pop().uses]
            conversions = [each for each in users if each.name in CONSTRAINTS]
            found += [self._shardings[each.attributes["sharding"]] for each in conversions]
            left += [each.results[0] for each in conversions]
        return found

    def scatters_sums(self, op: ir.Operation) -> bool:
        """Returns whether a result of the op, in any instance, is summed over an axis that splits it afterwards."""
        clones = self.instances_of(op)
        users = [use.owner.operation for clone in clones for result in clone.results for use in result.uses]
        return any(user.name == "sdy.all_reduce" and _summed_axes(user) & self._axes_after(user) for user in users)

    def _axes_after(self, all_reduce: ir.Operation) -> set[str]:
        """Returns the axes that split a sum after its conversions."""
        users = [use.owner.operation for use in all_reduce.results[0].uses]
        conversions = [self._shardings[user.attributes["sharding"]] for user in users if user.name in CONSTRAINTS]
        return {axis.name for each in conversions for dim in each.dims for axis in dim}

    def _before_conversion(self, value: ir.Value) -> ir.Attribute | None:
        """Returns the layout that a value has before the reshards that were inserted after propagation."""
        while not isinstance(value.owner, ir.Block):
            producer = value.owner.operation
            serial = serial_of(producer)
            if producer.name != "sdy.reshard" or serial is not None:
                if serial is None:
                    return self.analysis.layout(value)
                return self._propagated(serial, ir.OpResult(value).result_number)
            value = producer.operands[0]
        return self.analysis.layout(value)

    def _propagated(self, serial: int, number: int) -> ir.Attribute | None:
        if serial in self.analysis.constraints:
            return self.analysis.constraints[serial][1]
        for attr in self.analysis.layouts.get(serial, ()):
            return self.analysis.nth_sharding(attr, number) if attr else None
        return None

    def _mesh_of(self, attr: ir.Attribute) -> Mesh | None:
        if attr not in self._meshes_of:
            self._meshes_of[attr] = mesh_of(attr, self.meshes)
        return self._meshes_of[attr]

    def _or_replicated(self, attr: ir.Attribute | None, value: ir.Value) -> Sharding | None:
        kind = value.type
        if not isinstance(kind, ir.RankedTensorType):
            return None
        if attr is None:
            return self._replicated.setdefault(kind.rank, Sharding(((),) * kind.rank))
        return self._shardings[attr]

    def _is_held(self, value: ir.Value, layout: Sharding) -> bool:
        """Returns whether a constraint asks for the layout that a value already has."""
        users = (use.owner.operation for use in value.uses)
        asked = (self._shardings[user.attributes["sharding"]] for user in users if user.name in CONSTRAINTS)
        return any(each.dims == layout.dims for each in asked)


def _summed_axes(all_reduce: ir.Operation) -> set[str]:
    return set(
        re.findall(r'"([^"]+)"', str(all_reduce.attributes["reduction_axes"]))
    )  # the bindings have no class for it
