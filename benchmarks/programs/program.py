# SPDX-License-Identifier: Apache-2.0
"""What a program of this folder is: a jitted function, what it is called with, and where its arguments live."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

SIZES = ("small", "demo", "large")
DISTRIBUTIONS = {"haiku": "dm-haiku", "jax_cfd": "jax-cfd"}  # where the module is not called like what pip installs

Axes = tuple[tuple[str, int], ...]  # (name, size) of every axis of a mesh, major to minor


@dataclass(frozen=True)
class Setup:
    """A program on a mesh in one size.

    Attributes:
      function: jitted, with its out_shardings.
      initial: returns the arguments, a tuple, of fixed seeds. It can be traced, so that large ones are never allocated.
      shardings: where the arguments live: a tree of shardings, or a prefix of one, for what `initial` returns.
    """

    function: Callable
    initial: Callable[[], tuple]
    shardings: Any


@dataclass(frozen=True)
class Program:
    """A sharded program and the mesh that it is written for.

    Attributes:
      name: what commands and files call it.
      summary: one line, what moves where.
      mesh_axes: (name, size) of every mesh axis, major to minor; eight devices in all.
      setup: `setup(mesh, size)` returns a Setup on a mesh with axes of these names, whatever their sizes.
      libraries: the modules that it imports besides jax.
      sizes: `small` runs on eight CPU devices in a second, `demo` is as large as the demos of examples/, `large` has
        the widths and lengths of real models, and is only lowered.
      source: where the program is from: by default the first library, or `jax`.
    """

    name: str
    summary: str
    mesh_axes: Axes
    setup: Callable[[Mesh, str], Setup]
    libraries: tuple[str, ...] = ()
    sizes: tuple[str, ...] = SIZES
    source: str = ""

    def __post_init__(self):
        first, *_ = *self.libraries, "jax"
        object.__setattr__(self, "source", self.source or DISTRIBUTIONS.get(first, first))

    @property
    def missing(self) -> tuple[str, ...]:
        """Returns the distributions that have to be installed before the program can be built."""
        absent = (name for name in self.libraries if importlib.util.find_spec(name) is None)
        return tuple(DISTRIBUTIONS.get(name, name) for name in absent)

    def mesh(self, axes: Sequence[tuple[str, int]] | None = None) -> Mesh:
        """Returns a mesh over the first devices, in row-major order: the program's own, or one of other `axes`.

        Raises: ValueError if the names of `axes` are not the program's, or jax has fewer devices.
        """
        axes = self.mesh_axes if axes is None else tuple(axes)
        names, sizes = zip(*axes)
        if names != tuple(name for name, _ in self.mesh_axes):
            wanted = ",".join(f"{name}={size}" for name, size in self.mesh_axes)
            raise ValueError(f"the mesh of {self.name} has the axes {wanted}, with any sizes")
        devices = jax.devices()
        if len(devices) < np.prod(sizes):
            raise ValueError(f"the mesh has {np.prod(sizes)} devices, jax has {len(devices)}")
        types = (AxisType.Auto,) * len(names)
        return jax.make_mesh(sizes, names, axis_types=types, devices=devices[: np.prod(sizes)])

    def build(self, mesh: Mesh, size: str = "demo") -> tuple[Callable, tuple]:
        """Returns the jitted function and its arguments, `ShapeDtypeStruct`s with shardings: nothing is allocated."""
        setup = self.setup(mesh, size)

        def placed(sharding, shapes):
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)

        return setup.function, jax.tree.map(placed, setup.shardings, jax.eval_shape(setup.initial))

    def arguments(self, mesh: Mesh, size: str = "small") -> tuple:
        """Returns arrays for the function: the same values on every mesh, placed on this one.

        Arguments that the function donates are gone after a call.
        """
        setup = self.setup(mesh, size)
        with jax.default_device(mesh.devices.flat[0]):
            values = jax.jit(setup.initial)()
        return jax.device_put(values, setup.shardings)

    def lower(self, size: str = "demo", axes: Sequence[tuple[str, int]] | None = None) -> jax.stages.Lowered:
        """Returns the program, lowered for its own mesh or one of other `axes`."""
        function, args = self.build(self.mesh(axes), size)
        return function.lower(*args)

    def lower_over(self, devices: int, size: str = "demo") -> tuple[Axes, jax.stages.Lowered]:
        """Returns the axes of a mesh over so many devices, and the program, lowered for it.

        It is the first one of `meshes_over` over which the program's arrays divide.

        Raises: ValueError, jax's of the first mesh, if they divide over none.
        """
        problems: list[ValueError] = []
        for axes in meshes_over(self.mesh_axes, devices):
            try:
                return axes, self.lower(size, axes)
            except ValueError as error:
                problems.append(error)
        raise problems[0]


def meshes_over(axes: Axes, devices: int) -> Iterator[Axes]:
    """Yields the axes of a mesh, doubled until there are so many devices, the most even meshes first.

    In the first one the smallest axis is doubled, the outermost of equal ones, in turn.

    Example:
      >>> [[size for _, size in mesh] for mesh in meshes_over((("data", 2), ("model", 4)), 32)]
      [[8, 4], [4, 8], [2, 16]]
    """
    names, sizes = zip(*axes)
    first = list(sizes)
    while math.prod(first) < devices:
        first[first.index(min(first))] *= 2
    doubled = math.prod(first) // math.prod(sizes)
    powers = [1 << each for each in range(doubled.bit_length())]
    ways = (by for by in itertools.product(powers, repeat=len(sizes)) if math.prod(by) == doubled)
    meshes = {tuple(size * each for size, each in zip(sizes, by)) for by in ways}
    others = sorted(meshes - {tuple(first)}, key=lambda mesh: (max(mesh) / min(mesh), [-size for size in mesh]))
    for mesh in (tuple(first), *others):
        yield tuple(zip(names, mesh))


def layout(mesh: Mesh, *spec) -> NamedSharding:
    """Returns the sharding that gives the axes `spec[d]` of `mesh` to dimension `d`."""
    return NamedSharding(mesh, P(*spec))


def constrain(x, mesh: Mesh, *spec):
    """Returns `x`, constrained to `layout(mesh, *spec)`."""
    return jax.lax.with_sharding_constraint(x, layout(mesh, *spec))


def normal(seed: int, *shape: int, scale: float = 1.0, dtype="float32") -> jax.Array:
    """Returns samples of a normal distribution with standard deviation `scale`, the same for the same seed."""
    return scale * jax.random.normal(jax.random.key(seed), shape, dtype)


def integers(seed: int, high: int, *shape: int) -> jax.Array:
    """Returns int32 samples from 0 to `high` - 1, the same for the same seed."""
    return jax.random.randint(jax.random.key(seed), shape, 0, high)
