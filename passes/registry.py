# SPDX-License-Identifier: Apache-2.0
"""The passes and pipelines by name. A pass is imported when it is asked for, not before."""

from __future__ import annotations

import textwrap
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reshard.passes.base import Pass

PASSES = {
    "import-gspmd": "reshard.passes.import_gspmd:ImportGspmdPass",
    "find-mismatches": "reshard.passes.find_mismatches:FindMismatchesPass",
    "plan-sites": "reshard.passes.plan_sites:PlanSitesPass",
    "synthesize-collectives": "reshard.passes.synthesize_collectives:SynthesizeCollectivesPass",
    "strip-findings": "reshard.passes.strip_findings:StripFindingsPass",
    "convert-to-local": "reshard.passes.convert_to_local:ConvertToLocalPass",
}

# A pipeline's name may stand wherever a pass may.
PIPELINES = {
    "reshard": "import-gspmd,find-mismatches,plan-sites,synthesize-collectives,strip-findings",
    "reshard-local": "import-gspmd,convert-to-local",
}

DEFAULT_PIPELINE = "reshard"

# What --emit takes, and the pipeline that writes it where none is named.
EMISSIONS = {"manual": DEFAULT_PIPELINE, "sdy": DEFAULT_PIPELINE, "local": "reshard-local"}


def load(name: str) -> type[Pass]:
    """Returns the class of the pass; `name` is a key of PASSES."""
    module, attribute = PASSES[name].split(":")
    return getattr(import_module(module), attribute)


def listing() -> str:
    """Returns every pass with its options, guarantees and statistics as plain text."""
    passes = "\n".join(_describe(load(name)) for name in PASSES)
    pipelines = "\n".join(f"{name} = {text}" for name, text in PIPELINES.items())
    return f"passes:\n\n{passes}\npipelines:\n\n{textwrap.indent(pipelines, '  ')}\n"


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
        rows = [f"| `{each.name}` | `{_default(each).replace('|', chr(92) + '|')}` | {each.help} |" for each in cls.options()]
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
