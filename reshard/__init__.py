# SPDX-License-Identifier: Apache-2.0
"""Reshard: a resharding compiler for StableHLO and JAX.

`import reshard` is cheap: it imports neither jax nor MLIR. Every public name is loaded on first use (PEP 562) from the
module that `_PUBLIC` names.

Example:
  >>> import reshard
  >>> reshard.__version__.count(".")
  2
"""

from importlib import import_module
from pathlib import Path

_PUBLIC = {
    # planning: no MLIR, no jax
    "plan": "reshard.planning.entry:plan",
    "pareto": "reshard.planning.entry:pareto",
    "visualize": "reshard.pictures.drawing:visualize",
    "Drawing": "reshard.pictures.drawing:Drawing",
    "Plan": "reshard.synthesis.planner.entry:Plan",
    "NoPlanError": "reshard.synthesis.planner.entry:NoPlanError",
    "Mesh": "reshard.synthesis.layouts.mesh:Mesh",
    "AxisRef": "reshard.synthesis.layouts.sharding:AxisRef",
    "Sharding": "reshard.synthesis.layouts.sharding:Sharding",
    "Topology": "reshard.synthesis.network.topology:Topology",
    "MeshError": "reshard.synthesis.layouts.mesh:MeshError",
    "ShardingError": "reshard.synthesis.layouts.sharding:ShardingError",
    "TopologyError": "reshard.synthesis.network.topology:TopologyError",
    "ElementTypeError": "reshard.planning.element_types:ElementTypeError",
    "ByteSizeError": "reshard.planning.byte_sizes:ByteSizeError",
    # compiling
    "optimize": "reshard.compiling.optimizing:optimize",
    "Result": "reshard.compiling.optimizing:Result",
    "Report": "reshard.compiling.optimizing:Report",
    "explain": "reshard.compiling.optimizing:explain",
    "traffic": "reshard.compiling.traffic:traffic",
    "Traffic": "reshard.compiling.traffic:Traffic",
    "advise": "reshard.compiling.advising:advise",
    "Advice": "reshard.compiling.advising:Advice",
    "place": "reshard.compiling.placing:place",
    "Places": "reshard.compiling.placing:Places",
    "auto": "reshard.compiling.automatic:auto",
    "AUTO": "reshard.compiling.automatic:AUTO",
    "Automatic": "reshard.compiling.automatic:Automatic",
    "jit": "reshard.compiling.jitting:jit",
    "enabled": "reshard.compiling.jitting:enabled",
    "Program": "reshard.compiling.jitting:Program",
    "options": "reshard.configuration.contexts:options",
    # live arrays
    "redistribute": "reshard.live.redistributing:redistribute",
    "plan_tree": "reshard.live.redistributing:plan_tree",
    "Schedule": "reshard.live.tree_schedule:Schedule",
    "RedistributeError": "reshard.live.leaves:RedistributeError",
    # many processes
    "DisagreementError": "reshard.jobs.agreement:DisagreementError",
    "PeerError": "reshard.jobs.agreement:PeerError",
}

# Each wing may import the wings before it; "." stands for the modules of this folder.
WINGS = ("planning", "configuration", "pictures", "jobs", "compiling", "live", ".")

__all__ = ["__version__", *_PUBLIC]


def _source_tree() -> Path | None:
    """Returns the repository root when this package is run from a checkout, else None."""
    root = Path(__file__).resolve().parent.parent
    is_checkout = (root / "pyproject.toml").is_file() and (root / "synthesis").is_dir()
    return root if is_checkout else None


# In a checkout the phases are folders beside this one (synthesis/, passes/, ...); a wheel holds them inside it.
if (_root := _source_tree()) is not None:
    __path__.append(str(_root))

__version__ = import_module("reshard.synthesis.common.version").__version__


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'reshard' has no attribute {name!r}")
    module, attribute = _PUBLIC[name].split(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
