# SPDX-License-Identifier: Apache-2.0
"""Submeshes: plans for some axes of a mesh, which run for all coordinates along the other axes at once.

A manual computation takes the axes that it names for itself: its values differ along them. Inside it, a sharding can
use only the other axes, which form the submesh. A plan on the submesh is also a plan on the whole mesh, because groups
of devices are named by factors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np

from ..layouts.mesh import Mesh
from ..layouts.refinement import NoPlanError
from .tile_program import Loop, On, Operation, Rounds, Send, TileProgram


def without(mesh: Mesh, axes: Collection[str]) -> Mesh:
    """Returns the row-major mesh of the axes that are not in `axes`.

    Example:
      >>> print(without(Mesh.parse("x=4,y=2,z=3"), {"y"}))
      <["x"=4, "z"=3]>
    """
    return Mesh(tuple((name, size) for name, size in mesh.axes if name not in axes))


def lifted(program: TileProgram, mesh: Mesh) -> TileProgram:
    """Returns the program of a submesh as a program for all devices of `mesh`.

    Raises: NoPlanError if the program has an exchange, because its tables name the devices of the submesh.

    Example:
      >>> Lifter = _Lifter(Mesh.parse("x=2"), Mesh.parse("y=2,x=2"))
      >>> Lifter.operation(Send(((0, 1), (1, 0))))
      Send(pairs=((0, 1), (1, 0), (2, 3), (3, 2)))
    """
    return program if program.mesh == mesh else _Lifter(program.mesh, mesh).program(program)


class _Lifter:
    """Turns programs of a submesh into programs of the whole mesh.

    State: `devices[i, j]` is the device of the whole mesh at setting i of the other axes and position j of the submesh.
    """

    def __init__(self, submesh: Mesh, mesh: Mesh):
        self.mesh = mesh
        ids = np.array([mesh.device_at(position) for position in range(mesh.size)]).reshape(
            [size for _, size in mesh.axes]
        )
        own = [mesh.axis_names.index(axis) for axis in submesh.axis_names]
        others = [axis for axis in range(len(mesh.axes)) if axis not in own]
        self.devices = ids.transpose([*others, *own]).reshape(-1, submesh.size)

    def program(self, program: TileProgram) -> TileProgram:
        steps = tuple((step, tuple(map(self.operation, operations))) for step, operations in program.steps)
        return dataclasses.replace(program, mesh=self.mesh, steps=steps)

    def operation(self, operation: Operation) -> Operation:
        match operation:
            case Send(pairs):
                lifted_pairs = self.devices[:, np.array(pairs)].reshape(-1, 2)
                return Send(tuple(sorted(map(tuple, lifted_pairs.tolist()))))
            case Loop():
                return dataclasses.replace(operation, body=self.program(operation.body))
            case Rounds() | On():
                raise NoPlanError("an exchange among the devices along some axes of a mesh only is not supported")
        return operation
