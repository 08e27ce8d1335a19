# SPDX-License-Identifier: Apache-2.0
"""`reshard.traffic`: each collective of a program, stock XLA's and ours, with its line, its cost and its cause."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reshard.compiling.optimizing import Report, network_asked_for, optimized_module, source_of, target_of
from reshard.configuration import contexts
from reshard.configuration.settings import resolved
from reshard.dialect_utils.ir.module_files import ModuleFile
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import XlaChild, shared_child
from reshard.passes.driver.registry import COMPARED, MANUAL
from reshard.passes.sites.network import of_target, option_text, placed, topology_of
from reshard.passes.traffic import ledger_text
from reshard.passes.traffic.bounds import bounds_of_rows
from reshard.passes.traffic.ledger import Ledger, ledger_of
from reshard.synthesis.network.topology import DEFAULT, Topology, TopologyError

if TYPE_CHECKING:
    from reshard.dialect_utils.xla.compile_targets import Target


@dataclass(frozen=True, slots=True)
class Traffic:
    """The ledgers of a program. `str()` gives text; notebooks show a page.

    Attributes:
      name: of the program. stock: what stock XLA makes of it.
      ours: what stock XLA makes of the program after `optimize`; None if nothing was rewritten, or nobody asked for it.
      report: of `optimize`; None if nobody asked for ours.
    """

    name: str
    stock: Ledger
    ours: Ledger | None = None
    report: Report | None = field(default=None, repr=False)

    @property
    def is_unchanged(self) -> bool:
        """Returns whether `optimize` was asked and rewrote nothing."""
        return self.report is not None and self.ours is None

    def text(self, by: str | None = None, most: int | None = ledger_text.MOST) -> str:
        """Returns the totals and a table for each program.

        Args:
          by: "line", "kind", "cause", "axis" or "level" for a row per group; None for a row per collective.
          most: rows of a table; None for all.
        """
        return ledger_text.as_text(self.name, self.stock, self.ours, is_unchanged=self.is_unchanged, by=by, most=most)

    def to_dict(self) -> dict[str, Any]:
        """Returns the ledgers as plain data, schema `reshard.traffic/1`."""
        return ledger_text.as_dict(self.name, self.stock, self.ours, is_unchanged=self.is_unchanged)

    def html(self) -> str:
        """Returns the ledgers as one HTML page that needs no other file; its tables can be sorted and filtered."""
        from reshard.pictures.ledger_page import page_of

        return page_of(self.to_dict())

    def trace(self) -> dict[str, Any]:
        """Returns the modelled run of both programs in Chrome's trace event format, for `json.dump`.

        Raises: TopologyError if the network is unknown; a trace shows which of its levels a collective occupies.
        """
        from reshard.pictures import traffic_trace

        if self.stock.topology.name == DEFAULT:
            raise TopologyError("a trace shows the levels of a known network; name it with topology, e.g. h100:2x4")
        return traffic_trace.as_dict(self.name, self.stock, self.ours)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from reshard.pictures.ledger_page import notebook_html

        return notebook_html(self.to_dict())


def traffic(
    program: Any,
    *args: Any,
    topology: Topology | str | os.PathLike | None = None,
    compile_for: Target | str | None = None,
    with_ours: bool = True,
    **kwargs: Any,
) -> Traffic:
    """Returns each collective of a program with its line, its bytes, its modelled time and its cause.

    The program is compiled in a child process, and not run.

    Args:
      program: a function, jitted or not; or what `optimize` takes: a `jax.stages.Lowered`, a `jax.export.Exported`, or
        a module as text or bytes.
      *args, **kwargs: of the function: arrays, or `jax.ShapeDtypeStruct` with shardings.
      topology: the network that times are modelled on: a preset such as "h100" or "v5e:4x4*2", the path of a TOML file,
        or a `Topology`; None for that of `reshard.options`, else that of `compile_for`, else one switch between all
        devices. `optimize` decides for it, too.
      compile_for: a target such as "tpu:v5e:2x4"; None for CPU devices.
      with_ours: whether the program after `optimize`, with the options of `reshard.options`, is compiled too.
    Raises:
      TopologyError: an unknown topology, or one that does not fit the devices of the program.
      TypeError: arguments for a program that is no function.
      DiagnosedError: as `optimize`.
    """
    target = target_of({} if compile_for is None else {"compile_for": compile_for})
    if topology is None:
        topology = network_asked_for() or (of_target(target) if target else None) or None
    network = topology if isinstance(topology, Topology) else Topology.parse(os.fspath(topology or DEFAULT))
    source, name, is_from_jax = source_of("traffic", program, args, kwargs)
    how = {"options": {} if topology is None else {"topology": network}, "target": target}
    return of_source(source, name, network, with_ours=with_ours, is_from_jax=is_from_jax, **how)


def of_source(
    source: bytes,
    name: str,
    topology: Topology,
    *,
    with_ours: bool = True,
    is_from_jax: bool = False,
    options: Mapping[str, Any] | None = None,
    child: XlaChild | None = None,
    target: Target | None = None,
    file: str | None = None,
) -> Traffic:
    """Returns the ledgers of a module.

    Args:
      source: MLIR text or bytecode, or a portable artifact. name: of the module, for people.
      is_from_jax: as in `optimized_module`. options: of `optimize`, beside those of `reshard.options`.
      child: the process that compiles; None for the one that this process shares.
      target: what to compile for; None for CPU devices.
      file: the name to show for the file of a text; None for the name of the module.
    """
    child = child or shared_child()
    how = {"target": target, "file": file or f"<{name}>"}
    stock = _ledger(source, name, child, topology, **how)
    if not with_ours:
        return Traffic(name, stock)
    settings = resolved(dict(options or {}), dict(contexts.current().options))
    settings = {**settings, "compile_for": target and str(target)}  # ours is judged by who compiles both
    if settings["emit"] not in COMPARED:
        settings = {**settings, "emit": MANUAL}  # the other forms are not compared with stock XLA's
    optimized = optimized_module(source, settings, name, is_from_jax=is_from_jax)
    ours = None
    if optimized.is_rewritten:
        bounds = bounds_of_rows(optimized.report.to_dict()["sites"], stock.site_bounds)
        of_stock = {"finds_sites": False, "site_bounds": bounds}
        ours = _ledger(optimized.content, name, child, topology, **of_stock, **how)
    return Traffic(name, stock, ours, optimized.report)


def _ledger(source: bytes, name: str, child: XlaChild, topology: Topology, **how: Any) -> Ledger:
    with make_context() as context, ir.Location.unknown(context):
        module = ModuleFile(f"<{name}>", source).chunks()[0].parse(context)
        if (target := how["target"]) is not None:  # each where its own mesh is put
            topology = topology_of(placed(option_text(topology), target, module))
        return ledger_of(module, child, topology, keeps_steps=True, **how)
