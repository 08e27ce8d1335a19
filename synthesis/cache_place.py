# SPDX-License-Identifier: Apache-2.0
"""Where results are kept on disk, whether they are, and how files get there; one rule for all caches.

`RESHARD_CACHE_DIR` names the folder; else it is `reshard` in `XDG_CACHE_HOME` or in `~/.cache`. `RESHARD_CACHE=off` keeps
nothing and reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
import errno
import os
from pathlib import Path
import stat

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


def read(path: Path, most_bytes: int = -1) -> bytes:
    """Returns what a file holds, or its first bytes.

    Raises: OSError if there is none, or something else is in its place: a pipe would be waited for.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        return file.read(most_bytes)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def replace(path: Path, entry: bytes) -> None:
    """Writes a file wholly or not at all, in a folder that exists, whatever stops it. Raises: OSError, and leaves nothing behind."""
    unfinished = path.with_name(f"{os.urandom(8).hex()}.tmp")  # tempfile would do, and takes long to load
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(entry)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def newest_first(paths: Iterable[Path]) -> list[Path]:
    """Returns the paths by the time of their last change; those that are gone meanwhile are left out."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)]
