# SPDX-License-Identifier: Apache-2.0
"""The versions that a bug report needs, read from package metadata without imports."""

import platform
from importlib import metadata

from reshard import __version__


def versions() -> dict[str, str]:
    """Returns the versions of reshard, jax, jaxlib and Python by their names."""
    found = {"reshard": __version__}
    for package in ("jax", "jaxlib"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return {**found, "python": platform.python_version()}


def versions_text() -> str:
    """Returns the versions as text, one `name version` per line."""
    return "\n".join(f"{name} {version}" for name, version in versions().items())
