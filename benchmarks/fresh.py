# SPDX-License-Identifier: Apache-2.0
"""Plans that are made, not read: for measuring how they are made."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os


@contextlib.contextmanager
def plans_on_disk_left_alone() -> Iterator[None]:
    """Within it plans are made, neither read from disk nor written there; what XLA compiled is kept as before."""
    was = os.environ.get("RESHARD_CACHE")
    os.environ["RESHARD_CACHE"] = "off"
    try:
        yield
    finally:
        del os.environ["RESHARD_CACHE"]
        if was is not None:
            os.environ["RESHARD_CACHE"] = was
