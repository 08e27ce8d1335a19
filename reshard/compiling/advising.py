# SPDX-License-Identifier: Apache-2.0
"""`reshard.advise`: the few shardings of a program to change, and what each change gives."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reshard.compiling.optimizing import as_measured, optimized_module, refuse_contradictions, source_of
from reshard.configuration import contexts
from reshard.configuration.settings import resolved
from reshard.dialect_utils.ir.module_files import ModuleFile
from reshard.dialect_utils.platform import compat, progress
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.platform.typed import asm_of
from reshard.dialect_utils.xla.child import XlaChild, shared_child
from reshard.passes.advice import advice_text, advising
from reshard.passes.advice.advising import BUDGET, BY_DEFAULT, MAY_CHANGE, MOST_BUDGET, MOST_CHANGES, Adviser, Measured
from reshard.passes.advice.change_search import LEAST_GAIN
from reshard.passes.sites.network import UNKNOWN, SiteNetwork, option_text
from reshard.planning import byte_sizes
from reshard.synthesis.network.topology import Topology


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on a program. `str()` gives text.

    Attributes:
      found: the changes, and the forms of the program that were measured.
    """

    found: advising.Advice

    @property
    def changes(self) -> tuple[advising.Advised, ...]:
        """Returns the changes, those that give most first; empty if nothing is to be gained."""
        return self.found.changes

    @property
    def module(self) -> str | None:
        """Returns the module with the changes as MLIR text; None without changes.

        It has its locations, unless they are places in the very text that was changed.
        """
        if self.found.module is None:
            return None
        with make_context() as context, ir.Location.unknown(context):
            return asm_of(ir.Module.parse(self.found.module).operation, enable_debug_info=self.found.has_lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns the advice as plain data, schema `reshard.advice/1`."""
        return advice_text.as_dict(self.found)

    def __str__(self) -> str:
        return advice_text.as_text(self.found)


def advise(
    program: Any,
    *args: Any,
    topology: Topology | str | os.PathLike | None = None,
    memory_limit: int | str | None = None,
    most: int = MOST_CHANGES,
    effort: float = 1.0,
    with_ours: bool = True,
    may_change: Collection[str] = BY_DEFAULT,
    **kwargs: Any,
) -> Advice:
    """Returns the few changes of shardings that make a program faster, each with what it saves.

    A change takes a `with_sharding_constraint` away, adds one, gives one or a parameter another PartitionSpec, or gives
    the axes of the mesh other sizes. Every set of changes is compiled for CPU devices in a child process, and none is
    run, unless XLA may compute its values wrongly. What is advised needs no more memory than the program as it came;
    arguments and results that are not named keep their shardings.

    Args:
      program: a function, jitted or not; or what `optimize` takes: a `jax.stages.Lowered`, a `jax.export.Exported`, or
        a module as text or bytes.
      *args, **kwargs: of the function: arrays, or `jax.ShapeDtypeStruct` with shardings.
      topology: the network that times are modelled on, as in `traffic`; None for an unknown one, on which received
        bytes may not rise.
      memory_limit: bytes per device, text such as "12GiB", or "device" for what a program may fill on the network: up
        to that the changed program may need more memory.
      most: the largest number of changes.
      effort: times the usual number of compilations, which is 400.
      with_ours: whether `optimize` is asked, too, for the program as it came and for the changed one.
      may_change: "constraints"; "lines", those without a constraint, which may get one; "state", arguments that the
        program returns as new values; "arguments", all of them; "mesh", the sizes of its axes. By default all but other
        arguments.
    Raises:
      TopologyError: an unknown topology, or one that does not fit the devices of the program.
      ByteSizeError: a memory limit that is no size.
      ValueError: `most` or `effort` is not positive, or `may_change` has another word.
      TypeError: arguments for a program that is no function, or a program of another kind.
      DiagnosedError: as `optimize`.

    Example, for a function `step` with a mesh of 8 devices:

        print(reshard.advise(step, params, batch, topology="h100:2x4"))
    """
    source, name, is_from_jax = source_of("advise", program, args, kwargs)
    network = site_network(topology, memory_limit)
    how = {"most": most, "effort": effort, "with_ours": with_ours, "may_change": may_change}
    return of_source(source, name, network, is_from_jax=is_from_jax, **how)


def site_network(topology: Topology | str | os.PathLike | None, memory_limit: int | str | None = None) -> SiteNetwork:
    """Returns the network of a topology, with a limit. Raises: TopologyError; ByteSizeError for a limit without
    sense."""
    known = topology if isinstance(topology, Topology) or topology is None else os.fspath(topology)
    text = UNKNOWN if known is None else option_text(known)
    if memory_limit is None:
        return SiteNetwork(text)
    return SiteNetwork(text, byte_sizes.memory_limit(memory_limit, SiteNetwork(text).topology))


def of_source(
    source: bytes,
    name: str,
    network: SiteNetwork,
    *,
    most: int = MOST_CHANGES,
    effort: float = 1.0,
    with_ours: bool = True,
    may_change: Collection[str] = BY_DEFAULT,
    is_from_jax: bool = False,
    child: XlaChild | None = None,
    options: Mapping[str, Any] | None = None,
) -> Advice:
    """Returns advice on a module.

    Args:
      source: MLIR text or bytecode, or a portable artifact. name: of the module, for people.
      most, effort, with_ours, may_change: see `advise`. is_from_jax: as in `optimized_module`.
      child: the process that compiles; None for the one that this process shares.
      options: of `optimize`, beside those of `reshard.options`.
    """
    if most < 1 or not 0 < effort < math.inf:
        raise ValueError(f"most = {most}, effort = {effort}; both are positive")
    if isinstance(may_change, str) or not {*may_change} <= {*MAY_CHANGE}:
        raise ValueError(f"may_change = {may_change!r}; it has some of {', '.join(MAY_CHANGE)}")
    child, given = child or shared_child(), dict(options or {})
    if network.is_known:
        given["topology"] = network.topology
    if network.memory_limit is not None:
        given["memory_limit"] = network.memory_limit
    settings = as_measured(resolved(given, dict(contexts.current().options)))
    if with_ours:
        refuse_contradictions(settings)  # before the long search
    with (
        make_context() as context,
        ir.Location.unknown(context),
        progress.shown(f"reshard: {name}", settings["progress"]),
    ):
        module = ModuleFile(f"<{name}>", source).chunks()[0].parse(context)
        source = compat.bytecode(module)  # whatever form it came in
        budget = max(2, round(min(BUDGET * effort, MOST_BUDGET)))
        limits = {"most": most, "budget": budget, "may_change": may_change}
        adviser = Adviser(module, name, child, network, **limits)
        found = adviser.advice()
    if with_ours and found.stock is not None:
        sources = [source, *([] if found.module is None else [found.module])]
        optimized = [optimized_module(each, settings, name, is_from_jax=is_from_jax).content for each in sources]
        titles = ("as it came, optimized", "with changes, optimized")
        compiled = [(title, adviser.compiled(each)) for title, each in zip(titles, optimized)]
        found = _beside_ours(found, [adviser.measured(*each) if each[1].is_ok else None for each in compiled])
    return Advice(found)


def _beside_ours(found: advising.Advice, optimized: Sequence[Measured | None]) -> advising.Advice:
    """Returns the advice with the forms after `optimize`: of the program as it came, and of the changed one, if any;
    None for one that XLA does not compile.

    Nothing is advised if the changed program is no faster than what `optimize` makes of the program as it came.
    """
    as_it_came = optimized[0]
    found = replace(found, forms=(*found.forms, *(each for each in optimized if each is not None)))
    if not found.changes or as_it_came is None:
        return found
    fastest = min(each.time.seconds for each in found.forms if each is not as_it_came)
    if fastest < as_it_came.time.seconds * (1 - LEAST_GAIN):
        return found
    problem = "reshard-opt makes the program as it came as fast as any change; --stock-only advises without it"
    return replace(found, changes=(), module=None, problem=problem)
