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

from reshard._version import __version__

_PUBLIC = {
    # planning: no MLIR, no jax
    "plan": "reshard.planning:plan",
    "pareto": "reshard.planning:pareto",
    "visualize": "reshard.pictures.drawing:visualize",
    "Drawing": "reshard.pictures.drawing:Drawing",
    "Plan": "reshard.synthesis.plan:Plan",
    "NoPlanError": "reshard.synthesis.plan:NoPlanError",
    "Mesh": "reshard.synthesis.mesh:Mesh",
    "AxisRef": "reshard.synthesis.sharding:AxisRef",
    "Sharding": "reshard.synthesis.sharding:Sharding",
    "Topology": "reshard.synthesis.topology:Topology",
    "MeshError": "reshard.synthesis.mesh:MeshError",
    "ShardingError": "reshard.synthesis.sharding:ShardingError",
    "TopologyError": "reshard.synthesis.topology:TopologyError",
    "ElementTypeError": "reshard.element_types:ElementTypeError",
    "ByteSizeError": "reshard.byte_sizes:ByteSizeError",
    # compiling
    "optimize": "reshard.optimizing:optimize",
    "Result": "reshard.optimizing:Result",
    "Report": "reshard.optimizing:Report",
    "explain": "reshard.optimizing:explain",
    "jit": "reshard.jitting:jit",
    "enabled": "reshard.jitting:enabled",
    "Program": "reshard.jitting:Program",
    "options": "reshard.contexts:options",
    # live arrays
    "redistribute": "reshard.redistributing:redistribute",
    "plan_tree": "reshard.redistributing:plan_tree",
    "Schedule": "reshard.redistributing:Schedule",
    "RedistributeError": "reshard.redistributing:RedistributeError",
    # many processes
    "DisagreementError": "reshard.agreement:DisagreementError",
    "PeerError": "reshard.agreement:PeerError",
}

__all__ = ["__version__", *_PUBLIC]


def _source_tree() -> Path | None:
    """Returns the repository root when this package is run from a checkout, else None."""
    root = Path(__file__).resolve().parent.parent
    is_checkout = (root / "pyproject.toml").is_file() and (root / "synthesis").is_dir()
    return root if is_checkout else None


# In a checkout the phases are folders beside this one (synthesis/, passes/, ...); a wheel holds them inside it.
if (_root := _source_tree()) is not None:
    __path__.append(str(_root))


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'reshard' has no attribute {name!r}")
    module, attribute = _PUBLIC[name].split(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
