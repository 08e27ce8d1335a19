# SPDX-License-Identifier: Apache-2.0
"""Where results are kept on disk, whether they are, and how files get there; one rule for all caches.

`RESHARD_CACHE_DIR` names the folder; else it is `reshard` in `XDG_CACHE_HOME` or in `~/.cache`. `RESHARD_CACHE=off` keeps
nothing and reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
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


def replace(path: Path, entry: bytes) -> None:
    """Writes a file wholly or not at all, in a folder that exists. Raises: OSError, and leaves nothing behind."""
    unfinished = path.with_name(f"{os.urandom(8).hex()}.tmp")  # tempfile would do, and takes long to load
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(entry)
        os.replace(unfinished, path)
    except OSError:
        os.unlink(unfinished)
        raise


def newest_first(paths: Iterable[Path]) -> list[Path]:
    """Returns the paths by the time of their last change; those that are gone meanwhile are left out."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)]
