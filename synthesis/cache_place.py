# SPDX-License-Identifier: Apache-2.0
"""Where results are kept on disk, and whether they are; one rule for all caches.

`RESHARD_CACHE_DIR` names the folder; else it is `reshard` in `XDG_CACHE_HOME` or in `~/.cache`. `RESHARD_CACHE=off` keeps
nothing and reads nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

_OFF = ("off", "0", "no", "false")


def is_on() -> bool:
    """Returns whether results are kept on disk at all."""
    return os.environ.get("RESHARD_CACHE", "").strip().lower() not in _OFF


def cache_root() -> Path:
    """Returns the folder that all caches are in; it need not exist.

    Raises: RuntimeError if nothing names a folder and there is no home directory.
    """
    if own := os.environ.get("RESHARD_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reshard"
