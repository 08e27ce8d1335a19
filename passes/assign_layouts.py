# SPDX-License-Identifier: Apache-2.0
"""The pass assign-layouts: chooses the layouts of a whole program, and writes them as few shardings as say them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from reshard.dialect_utils.ir.diagnostics import error_at
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.sdy_shardings import module_meshes
from reshard.passes.driver.base import OptionError, Pass, Session, option
from reshard.passes.sites.network import NetworkOptions, memory_limit_option, topology_option
from reshard.synthesis.assignment.axes import FORMS, WHOLE
from reshard.synthesis.layouts.mesh import Mesh, MeshError

if TYPE_CHECKING:  # loading it loads numpy
    from reshard.passes.layouts.assigning import Assigned
    from reshard.synthesis.assignment.tactics import Tactic

OWN = ""  # the mesh of the module
KEEP, FREE = "keep", "free"


@dataclasses.dataclass(frozen=True)
class AssignLayoutsPass(NetworkOptions, Pass):
    """Chooses for every tensor which mesh axis splits which dimension, so that the whole program takes least time."""

    name = "assign-layouts"
    summary = "choose the layouts of a whole program for a mesh, and write them as few shardings"
    description = """
    A module without shardings, or with some, gets a sharding for each argument and result, and as few sharding
    constraints as Shardy's propagation needs to come to the chosen layouts. It then goes through the other passes like
    a module that somebody has annotated. Calls are inlined, as XLA inlines them.

    Which dimensions have to be split alike follows from Shardy's sharding rules. Each mesh axis may split any dimension
    that it divides, of any tensor, or none; each op may work in any way that splits its factors, partial sums included.
    The choice minimizes the modelled time of the program on `topology`: conversions between layouts, matrix products,
    and bytes through the memory. It is a linear program, so that the remark says how far from the best it may be.

    Before ==> after, with `mesh=x=8`:
    ```mlir
    func.func @main(%w: tensor<4096x4096xf32>, %x: tensor<65536x4096xf32>) -> tensor<65536x4096xf32> {
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ...
    ```
    ```mlir
    sdy.mesh @mesh = <["x"=8]>
    func.func @main(%w: tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
                    %x: tensor<65536x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> ...
    ```
    """
    guarantees = (
        "every argument and result of the function that is a tensor has a sharding",
        "with `annotations=keep`, the closed dimensions of shardings that the module had are as they were",
        "with `signature=keep`, arguments and results have the layouts that they had after propagation",
        "no op computes anything else: constraints are added, and calls are inlined",
    )
    states_shardings = True
    statistics = {
        "constraints": "sharding constraints written",
        "clusters": "groups of tensors that have one layout",
        "ways": "ops of which a way was chosen",
    }

    mesh: str = option(OWN, "the axes of the mesh with their sizes, as in x=4,y=2; without it the module's only mesh")
    topology: str = topology_option()
    memory_limit: int = memory_limit_option()
    annotations: str = option(
        KEEP,
        "what becomes of the shardings that the module has: they are kept, or taken out first",
        choices=(KEEP, FREE),
    )
    signature: str = option(
        FREE,
        "the layouts of arguments and results that the module leaves open: chosen too, or those of propagation",
        choices=(KEEP, FREE),
    )
    axes: str = option(
        WHOLE,
        "what splits dimensions: the axes of the mesh, in its order; or, between arguments and results, also parts of "
        "them, such as four heads on an axis of eight; or of two axes the last one first",
        choices=tuple(FORMS),
    )
    tactics: str = option(
        "",
        "what axes may be for, as in x=zero3,y=megatron: data, zero1, zero3, sequence, megatron, expert, or several "
        "joined by +; other axes may be for anything, and one without an axis is for all",
    )

    def __post_init__(self) -> None:
        """Raises: OptionError."""
        super().__post_init__()
        try:
            if self.mesh != OWN:
                Mesh.parse(self.mesh)
        except MeshError as error:
            raise OptionError(f"mesh={self.mesh}: {error}", f"mesh={self.mesh}") from None
        if self.tactics:
            self._tactics(("any",))

    def run(self, module: ir.Module, session: Session) -> None:
        from reshard.dialect_utils.assignment.factored_modules import KeptShardingError

        try:
            self._assign(module, session)
        except KeptShardingError as error:
            raise error.with_hint(
                f"the option annotations={FREE} leaves such shardings out, as `reshard auto --free` does"
            ) from None

    def _assign(self, module: ir.Module, session: Session) -> None:
        from reshard.passes.layouts import assigning

        mesh = self.mesh_of(module)
        if self.signature == KEEP:
            from reshard.dialect_utils.assignment.signatures import keep_signatures

            keep_signatures(module, mesh)
        found = assigning.assign(
            module,
            mesh,
            self.network,
            keeps_annotations=self.annotations == KEEP,
            keeps_signature=self.signature == KEEP,
            memory_limit=self.memory_limit or None,
            tactics=self._tactics(mesh.axis_names),
            axes=self.axes,
        )
        session.remark(module.operation, said_of(found, mesh))
        for use in found.uses:
            if not use.is_used:
                what = f"axis {use.axis} of size {use.size} splits nothing"
                session.warning(module.operation, f"{what}: devices along it all do the same")
        session.count("constraints", found.constraints or 0)
        session.count("clusters", found.clusters)
        session.count("ways", found.ways)

    def _tactics(self, axes: tuple[str, ...]) -> dict[str, Tactic]:
        """Returns what the axes of a mesh may be for. Raises: OptionError."""
        from reshard.synthesis.assignment.tactics import TacticError, parse

        try:
            return parse(self.tactics, axes)
        except TacticError as error:
            raise OptionError(str(error), f"tactics={self.tactics}") from None

    def mesh_of(self, module: ir.Module) -> Mesh:
        """Returns the mesh to lay the program out on. Raises: DiagnosedError if nothing says which."""
        if self.mesh != OWN:
            return Mesh.parse(self.mesh)
        meshes = {mesh for mesh in module_meshes(module).values() if mesh.axes}
        if len(meshes) == 1:
            return meshes.pop()
        what = "the module has no mesh" if not meshes else f"the module has {len(meshes)} meshes"
        raise error_at(module.operation, f"{what}; name one, as with the option mesh=x=4,y=2, or --mesh x=4,y=2")


def said_of(found: Assigned, mesh: Mesh) -> str:
    """Returns a line for people about chosen layouts."""
    return (
        f"layouts on {mesh}: {found.seconds * 1e6:,.0f} us modelled, {found.moves_s * 1e6:,.0f} us of it in "
        f"conversions, within {found.gap * 100:.1f} % of the best in this model; written as {found.constraints} "
        "sharding constraints beside the shardings of arguments and results"
    )
