# SPDX-License-Identifier: Apache-2.0
"""The passes and pipelines by name. A pass is imported when it is asked for, not before.

Other packages add passes of their own by entry points of the group `reshard.passes`: `name = "module:Class"`.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib import metadata

    from reshard.passes.driver.base import Pass

ENTRY_POINTS = "reshard.passes"

PASSES = {
    "import-gspmd": "reshard.passes.import_gspmd:ImportGspmdPass",
    "assign-layouts": "reshard.passes.assign_layouts:AssignLayoutsPass",
    "find-mismatches": "reshard.passes.find_mismatches:FindMismatchesPass",
    "plan-sites": "reshard.passes.plan_sites:PlanSitesPass",
    "decompose-collectives": "reshard.passes.decompose_collectives:DecomposeCollectivesPass",
    "synthesize-collectives": "reshard.passes.synthesize_collectives:SynthesizeCollectivesPass",
    "strip-findings": "reshard.passes.strip_findings:StripFindingsPass",
    "convert-to-local": "reshard.passes.convert_to_local:ConvertToLocalPass",
    "join-collectives": "reshard.passes.join_collectives:JoinCollectivesPass",
    "overlap-collectives": "reshard.passes.overlap_collectives:OverlapCollectivesPass",
}

# A pipeline's name may stand wherever a pass may.
PIPELINES = {
    "reshard": "import-gspmd,find-mismatches,plan-sites,decompose-collectives,synthesize-collectives,strip-findings",
    "reshard-local": "import-gspmd,convert-to-local,join-collectives",
}

DEFAULT_PIPELINE = "reshard"
ASSIGNMENT = "assign-layouts"  # with which --auto-partition begins

# The values of --emit, each with the pipeline that writes it if no pipeline is named.
MANUAL, AUTO = "manual", "auto"
EMISSIONS = {MANUAL: DEFAULT_PIPELINE, "sdy": DEFAULT_PIPELINE, "local": "reshard-local", AUTO: DEFAULT_PIPELINE}
COMPARED = (MANUAL, AUTO)  # those that the whole-module check compares with stock XLA


GIVEN, CHOSEN = "given", "chosen"  # layouts between the arguments and results of a program; values of --layouts

# Passes of MLIR, Shardy and StableHLO that every supported jaxlib has; there are more. The passes in the second list
# run on functions.
MLIR_PASSES = (
    "canonicalize", "control-flow-sink", "cse", "inline", "loop-invariant-code-motion", "mem2reg", "print-ir",
    "print-op-stats", "remove-dead-values", "sccp", "sdy-apply-sharding-constraints", "sdy-basic-propagate",
    "sdy-close-shardings", "sdy-convert-global-to-local", "sdy-drop-sharding-and-mesh", "sdy-inline-meshes",
    "sdy-lift-inlined-meshes", "sdy-manual-axes-cleanup", "sdy-propagation-pipeline", "sdy-remove-sharding-groups",
    "sdy-remove-size-one-axes", "snapshot-op-locations", "sroa", "stablehlo-legalize-to-vhlo",
    "stablehlo-refine-shapes", "strip-debuginfo", "symbol-dce", "symbol-privatize", "topological-sort",
    "vhlo-legalize-to-stablehlo",
)  # fmt: skip
MLIR_FUNCTION_PASSES = (
    "chlo-legalize-to-stablehlo", "sdy-drop-sharding-rules", "sdy-insert-explicit-reshards",
    "sdy-populate-op-sharding-rules", "sdy-reshard-to-collectives", "sdy-sharding-constraint-to-reshard",
    "stablehlo-complex-math-expander", "stablehlo-legalize-composite-to-call", "stablehlo-legalize-quant-to-math",
)  # fmt: skip


class PluginError(Exception):
    """A pass of another package that cannot be used; the message names it, the package and the reason."""


def names() -> tuple[str, ...]:
    """Returns the names of the passes: ours, and those that other packages add."""
    return (*PASSES, *plugins())


def is_pass(name: str) -> bool:
    """Returns whether `names()` has a name. If the pass is ours, other packages are not searched, which takes long."""
    return name in PASSES or name in plugins()


def load(name: str) -> type[Pass]:
    """Returns the class of a pass of `names()`. Raises: PluginError if a pass of another package cannot be loaded."""
    if name not in PASSES:
        return _load_plugin(plugins()[name])
    module, attribute = PASSES[name].split(":")
    return getattr(import_module(module), attribute)


@functools.cache
def plugins() -> dict[str, metadata.EntryPoint]:
    """Returns the passes that other packages add, by name, without those that use a name of ours; imports no pass."""
    return {name: found[0] for name, found in _entry_points().items() if not _is_taken(name)}


def plugin_faults(warn: Callable[[str], None]) -> None:
    """Calls `warn` with a sentence for each pass of another package that cannot be used or has a name that is taken."""
    for name, found in _entry_points().items():
        if _is_taken(name):
            warn(f"{_described(found[0])} is left out: reshard has a pass or pipeline of this name")
            continue
        if len(found) > 1:
            warn(f"{_described(found[1])} is left out: {_described(found[0])} has the same name")
        try:
            load(name)
        except PluginError as error:
            warn(str(error))


@functools.cache
def _entry_points() -> dict[str, list[metadata.EntryPoint]]:
    from importlib import metadata

    by_name: dict[str, list[metadata.EntryPoint]] = {}
    for each in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda each: (each.name, each.value)):
        by_name.setdefault(each.name, []).append(each)
    return by_name


def _is_taken(name: str) -> bool:
    return name in PASSES or name in PIPELINES


def _load_plugin(entry_point: metadata.EntryPoint) -> type[Pass]:
    from reshard.passes.driver.base import Pass

    try:
        cls = entry_point.load()
        is_pass = isinstance(cls, type) and issubclass(cls, Pass)
        if is_pass:
            cls().options()
    except (Exception, SystemExit) as error:  # the code of other packages may raise anything when it is imported
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise PluginError(f"{_described(entry_point)} cannot be loaded: {' '.join(why.split())}") from None
    if not is_pass:
        raise PluginError(
            f"{_described(entry_point)} cannot be loaded: {entry_point.value} is no reshard.passes.driver.base.Pass"
        )
    if getattr(cls, "name", None) != entry_point.name or not hasattr(cls, "summary"):
        raise PluginError(
            f"{_described(entry_point)} cannot be loaded: {entry_point.value} has to declare "
            f"name = '{entry_point.name}', and a summary"
        )
    return cls


def _described(entry_point: metadata.EntryPoint) -> str:
    package = f" of {entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist else ""
    return f"plugin pass '{entry_point.name}'{package}"


def listing() -> str:
    """Returns all passes that load, with their options, guarantees and statistics, and the pipelines as plain text."""
    passes = "\n".join(_describe(cls) for name in names() if (cls := _loaded(name)))
    pipelines = "\n".join(f"{name} = {text}" for name, text in PIPELINES.items())
    mlir = textwrap.fill(", ".join(MLIR_PASSES), 110)
    mlir_functions = textwrap.fill(", ".join(MLIR_FUNCTION_PASSES), 110)
    return (
        f"passes:\n\n{passes}\npipelines:\n\n{textwrap.indent(pipelines, '  ')}\n\n"
        f"passes of MLIR, among others:\n\n{textwrap.indent(mlir, '  ')}\n\n"
        f"on functions, as func.func(...):\n\n{textwrap.indent(mlir_functions, '  ')}\n"
    )


def _loaded(name: str) -> type[Pass] | None:
    try:
        return load(name)
    except PluginError:
        return None


def markdown() -> str:
    """Returns the documentation page of the passes."""
    return "# Passes\n\n" + "\n".join(_section(load(name)) for name in PASSES)


def _describe(cls: type[Pass]) -> str:
    lines = [f"  {cls.name}", f"      {cls.summary}"]
    lines += [f"      {each.name}={_default(each)}  {each.help}" for each in cls.options()]
    lines += [f"      holds afterwards: {each}" for each in cls.guarantees]
    lines += [f"      counts {name}: {meaning}" for name, meaning in cls.statistics.items()]
    return "\n".join(lines) + "\n"


def _section(cls: type[Pass]) -> str:
    parts = [f"## {cls.name}", f"{cls.summary[0].upper()}{cls.summary[1:]}.", textwrap.dedent(cls.description).strip()]
    if cls.options():
        rows = [
            f"| `{each.name}` | `{_default(each).replace('|', chr(92) + '|')}` | {each.help} |"
            for each in cls.options()
        ]
        parts.append("\n".join(["| option | default | meaning |", "|---|---|---|", *rows]))
    if cls.guarantees:
        parts.append("Holds afterwards:\n\n" + "\n".join(f"- {each}" for each in cls.guarantees))
    if cls.statistics:
        parts.append("Counts:\n\n" + "\n".join(f"- `{name}`: {meaning}" for name, meaning in cls.statistics.items()))
    return "\n\n".join(part for part in parts if part) + "\n"


def _default(option) -> str:
    default = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
    others = [each for each in option.choices if each != default]
    return "|".join([default, *others])
