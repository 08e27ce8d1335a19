# SPDX-License-Identifier: Apache-2.0
"""`reshard.place`: which device of the network belongs where in the mesh of a program."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reshard.compiling.advising import site_network
from reshard.compiling.optimizing import as_measured, optimized_module, source_of
from reshard.configuration import contexts
from reshard.configuration.settings import resolved
from reshard.dialect_utils.ir.diagnostics import DiagnosedError, error_at
from reshard.dialect_utils.ir.module_files import ModuleFile
from reshard.dialect_utils.platform import compat, progress
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.sdy_shardings import module_meshes
from reshard.dialect_utils.xla.child import DEFAULT_TIMEOUT_S, Compiled, XlaChild, shared_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.layouts.choosing import mesh_text
from reshard.planning.jax_orders import is_by_coordinates, jax_order
from reshard.synthesis.common.text_table import table
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.placement.enumeration import placements
from reshard.synthesis.placement.order_text import as_transposed
from reshard.synthesis.placement.recognition import placement_of
from reshard.synthesis.placement.repricing import Repriced, renamed

MOST_COMPILED = 3  # placements for which the program is optimized anew
_LISTED = 16  # devices
_SHOWN = 12
_GAIN = 0.01  # a share of the time below which the order that a program has is as good as the fastest
ROW_MAJOR, JAX, OWN = "row-major", "jax", "as it came"


@dataclass(frozen=True, slots=True)
class Place:
    """A placement of a program's mesh on the network.

    Attributes:
      device_ids: at each position of the mesh, row-major over its axes. text: which part of which axis is where.
      names: ROW_MAJOR if it is the order of the ids, JAX if `mesh_utils` chooses it, OWN if the module's mesh has
        these ids.
      stock_s: the modelled time of the program as stock XLA compiles it, the same program under all placements; so it
        is in jax, whose meshes order devices outside of the module.
      ours_s: the modelled time after `optimize` for this placement; None if it was not asked for.
    """

    device_ids: tuple[int, ...]
    text: str
    names: tuple[str, ...]
    stock_s: float
    ours_s: float | None = None

    @property
    def best_s(self) -> float:
        return self.stock_s if self.ours_s is None else min(self.stock_s, self.ours_s)


@dataclass(frozen=True, slots=True)
class Places:
    """All placements of a program's mesh on a network, the fastest first; `str()` gives text.

    The order that the program has comes first if it is at most 1 % slower than the fastest one, and not slower than
    jax's.

    Attributes:
      mesh: its axes. topology: its text.
      is_by_coordinates: whether the devices are numbered by the coordinates of TPUs; if not, by their ids.
    """

    mesh: Mesh
    topology: str
    places: tuple[Place, ...]
    is_by_coordinates: bool = False

    @property
    def own(self) -> str:
        """Returns the name of the order that the program has: OWN if its mesh has device ids, else ROW_MAJOR."""
        return _own(self.mesh)

    @property
    def best(self) -> Place:
        """Returns the placement to take."""
        return self.places[0]

    def named(self, name: str) -> Place | None:
        """Returns the placement with a name, ROW_MAJOR or JAX; None if there is none."""
        return next((each for each in self.places if name in each.names), None)

    def jax_mesh(self, devices: Sequence[Any] | None = None) -> Any:
        """Returns the best order as a `jax.sharding.Mesh` of these devices, or all, in whatever order they are listed.

        The network numbers TPUs by slice, coordinates and core, other devices by their ids.
        """
        import jax
        import numpy as np

        where = sorted(
            jax.devices() if devices is None else devices, key=_place_of if self.is_by_coordinates else _number
        )
        order = np.array([where[each] for each in self.best.device_ids], dtype=object)
        return jax.sharding.Mesh(order.reshape([size for _, size in self.mesh.axes]), self.mesh.axis_names)

    def to_dict(self) -> dict[str, Any]:
        """Returns the placements as plain data, schema `reshard.place/1`; times in us."""
        return {
            "schema": "reshard.place/1",
            "topology": self.topology,
            "mesh": dict(self.mesh.axes),
            "device_ids": list(self.best.device_ids),
            "placements": [
                {
                    "placement": each.text,
                    "names": list(each.names),
                    "stock_us": each.stock_s * 1e6,
                    "our_us": None if each.ours_s is None else each.ours_s * 1e6,
                    "device_ids": list(each.device_ids),
                }
                for each in self.places
            ],
        }

    def __str__(self) -> str:
        shown = [each for at, each in enumerate(self.places) if at < _SHOWN or each.names]
        rows = [
            (
                each.text,
                ", ".join(each.names),
                _us(each.stock_s),
                _us(each.ours_s),
                f"{each.best_s / self.best.best_s:.2f}",
            )
            for each in shown
        ]
        count = f"{len(self.places)} placement{'s' if len(self.places) > 1 else ''}"
        lines = [f"{count} of the mesh {mesh_text(self.mesh)} on {self.topology}, times modelled"]
        lines.append(table(["placement", "is", "stock XLA", "reshard", "best = 1"], rows, "llrrr"))
        if left := len(self.places) - len(shown):
            lines.append(f"and {left} more")
        return "\n".join([*lines, "", *self._said()]) + "\n"

    def _said(self) -> list[str]:
        if self.own in self.best.names:
            has = "of the device ids" if self.own == ROW_MAJOR else "that it has"
            said = f"no placement is more than 1 % faster than the order {has}"
            return [f"nothing is to be gained: {said}"]
        shape = ", ".join(str(size) for _, size in self.mesh.axes)
        names = json.dumps(self.mesh.axis_names)
        listed, ordered = _ordered(self.best.device_ids)
        place = "*d.coords, d.core_on_chip" if self.is_by_coordinates else "d.id"
        return [
            f"the fastest in sdy: {replace(self.mesh, device_ids=self.best.device_ids)}",
            "and in jax:",
            *listed,
            f"  devices = sorted(jax.devices(), key=lambda d: (getattr(d, 'slice_index', 0), {place}))",
            f"  mesh = jax.sharding.Mesh(np.array(devices){ordered}.reshape({shape}), {names})",
        ]


def _ordered(ids: Sequence[int]) -> tuple[list[str], str]:
    """Returns the lines in front, and what puts an array of devices into an order: many ids are too long to read."""
    found = as_transposed(ids) if len(ids) > _LISTED else None
    if found is None:
        return [f"  ids = {json.dumps(list(ids))}"], "[ids]"
    sizes, order = (", ".join(map(str, each)) for each in found)
    return [], f".reshape({sizes}).transpose({order})"


def place(
    program: Any,
    *args: Any,
    topology: Topology | str | os.PathLike,
    compiled: int = MOST_COMPILED,
    **kwargs: Any,
) -> Places:
    """Returns the placements of a program's mesh on a network, the fastest first.

    A placement says which part of which mesh axis lies on which level of the network. The program is compiled once, for
    CPU devices in a child process; its collectives are priced under every placement up to symmetry. For the fastest
    ones, and for those that one has without asking, `optimize` then writes the collectives anew.

    Args:
      program: a function, jitted or not, whose arguments or inside have shardings on one mesh; or what `optimize`
        takes: a `jax.stages.Lowered`, a `jax.export.Exported`, or a module as text or bytes.
      *args, **kwargs: of the function: arrays, or `jax.ShapeDtypeStruct` with shardings.
      topology: the network, with a device for each of the mesh.
      compiled: for how many placements `optimize` is asked; 0: for none.
    Raises:
      ValueError: `compiled` is negative.
      TopologyError: an unknown topology, or one that does not fit the devices of the program.
      TypeError: arguments for a program that is no function, or a program of another kind.
      DiagnosedError: the module has no mesh or several, or XLA does not compile it.

    Example, for a function `step` with a mesh of 32 devices:

        found = reshard.place(step, params, batch, topology="h100:4x8")
        mesh = found.jax_mesh()
    """
    source, name, is_from_jax = source_of("place", program, args, kwargs)
    return of_source(source, name, site_network(topology).topology, compiled=compiled, is_from_jax=is_from_jax)


def of_source(
    source: bytes,
    name: str,
    topology: Topology,
    *,
    compiled: int = MOST_COMPILED,
    is_from_jax: bool = False,
    child: XlaChild | None = None,
    options: Mapping[str, Any] | None = None,
) -> Places:
    """Returns the placements of a module; see `place`.

    Args:
      source: MLIR text or bytecode, or a portable artifact. name: of the module, for people.
      child: the process that compiles; None for the one that this process shares.
      options: of `optimize`, beside those of `reshard.options`.
    """
    if compiled < 0:
        raise ValueError(f"compiled = {compiled}; it is 0 or more")
    settings = resolved(dict(options or {}), dict(contexts.current().options))
    with (
        make_context() as context,
        ir.Location.unknown(context),
        progress.shown(f"reshard: {name}", settings["progress"]),
    ):
        module = ModuleFile(f"<{name}>", source).chunks()[0].parse(context)
        source = compat.bytecode(module)  # whatever form it came in
        mesh = mesh_to_place(module)
        placer = _Placer(
            source, name, mesh, topology.fitted(mesh.size), child or shared_child(), is_from_jax, options or {}
        )
        stock = placer.compiled(source)
        if not stock.is_ok:
            raise error_at(module.operation, f"XLA does not compile the module: {stock.message[:200]}")
        return placer.places(stock, compiled)


def mesh_to_place(module: ir.Module) -> Mesh:
    """Returns the mesh of a module, also if only GSPMD's shardings tell. Raises: DiagnosedError if there is none, or
    several."""
    found = _meshes_of(module)
    if not found:
        copy = ir.Module.parse(compat.bytecode(module), module.context)
        with contextlib.suppress(DiagnosedError):
            Pipeline.parse("import-gspmd").run(copy, Session())
            found = _meshes_of(copy)
    if len(found) == 1:
        return found.pop()
    what = "the module has no mesh" if not found else f"the module has {len(found)} meshes"
    raise error_at(module.operation, f"{what}; a program on one mesh can be placed")


def _meshes_of(module: ir.Module) -> set[Mesh]:
    return {mesh for mesh in module_meshes(module).values() if mesh.axes}


@dataclass
class _Placer:
    source: bytes
    name: str
    mesh: Mesh
    topology: Topology
    child: XlaChild
    is_from_jax: bool
    options: Mapping[str, Any] = field(default_factory=dict)

    def compiled(self, source: bytes) -> Compiled:
        return self.child.compile(source, self.mesh.size, timeout_s=DEFAULT_TIMEOUT_S)

    def places(self, stock: Compiled, compiled: int) -> Places:
        program = Repriced.of(self.mesh.size, stock.moved, stock.work)
        known = self._known()
        texts = {each.device_ids: each.text for each in placements(self.topology, self.mesh)}
        for ids in known.values():
            texts.setdefault(ids, self._text_of(ids))
        found = []
        for number, (ids, text) in enumerate(texts.items(), 1):
            progress.at("pricing placements", number, len(texts))
            names = tuple(name for name, order in known.items() if order == ids)
            found.append(Place(ids, text, names, program.seconds(self._network(ids))))
        found.sort(key=lambda each: (_rounded(each.stock_s), not each.names))
        asked = {each.device_ids for each in found[:compiled]} | (set(known.values()) if compiled else set())
        found = [self._with_ours(each) if each.device_ids in asked else each for each in found]
        found = fastest_first(found, _own(self.mesh))
        return Places(self.mesh, self.topology.name, found, is_by_coordinates(self.topology))

    def _network(self, ids: tuple[int, ...]) -> Topology:
        """Returns the network with the devices numbered as in the module's collectives."""
        return renamed(self.topology, ids, self.mesh.device_ids)

    def _text_of(self, ids: tuple[int, ...]) -> str:
        placement = placement_of(self.topology, replace(self.mesh, device_ids=ids))
        return "an order that mixes levels" if placement is None else placement.text

    def _known(self) -> dict[str, tuple[int, ...]]:
        """Returns the orders that one has without asking, by name."""
        orders = {
            ROW_MAJOR: tuple(range(self.mesh.size)),
            JAX: jax_order(self.topology, self.mesh),
            OWN: self.mesh.device_ids,
        }
        return {name: order for name, order in orders.items() if order is not None}

    def _with_ours(self, place: Place) -> Place:
        progress.at(f"optimizing for {place.text}")
        network = self._network(place.device_ids)
        settings = as_measured(resolved({**self.options, "topology": network}, dict(contexts.current().options)))
        content = optimized_module(self.source, settings, self.name, is_from_jax=self.is_from_jax).content
        ours = self.compiled(content)
        if not ours.is_ok:
            return place
        return replace(place, ours_s=Repriced.of(self.mesh.size, ours.moved, ours.work).seconds(network))


def fastest_first(found: Sequence[Place], own: str) -> tuple[Place, ...]:
    """Returns the placements, the fastest first; in front the one called `own` if little is gained over it.

    That is at most 1 %, and jax's order, which one has as easily, is not faster.
    """
    least_s = min(each.best_s for each in found)
    most_s = min([least_s * (1 + _GAIN), *(each.best_s for each in found if JAX in each.names)])
    is_kept = {each: own in each.names and _rounded(each.best_s) <= _rounded(most_s) for each in found}
    return tuple(sorted(found, key=lambda each: (not is_kept[each], _rounded(each.best_s), not each.names)))


def _number(device: Any) -> tuple[int, int]:
    """Returns what devices are sorted by: slice and id."""
    return getattr(device, "slice_index", 0) or 0, device.id


def _place_of(device: Any) -> tuple[int, ...]:
    """Returns what TPUs are sorted by, as the network numbers them: x changes last, in their ids it changes first."""
    return getattr(device, "slice_index", 0) or 0, *device.coords, device.core_on_chip


def _own(mesh: Mesh) -> str:
    return ROW_MAJOR if mesh.device_ids is None else OWN


def _rounded(seconds: float) -> float:
    """Returns a time with so few digits that equal ones are equal."""
    return float(f"{seconds:.6g}")


def _us(seconds: float | None) -> str:
    return "" if seconds is None or math.isinf(seconds) else f"{seconds * 1e6:,.0f} us"
