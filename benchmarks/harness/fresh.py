# SPDX-License-Identifier: Apache-2.0
"""Planning without plans on disk, to measure the planning itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def plans_on_disk_left_alone() -> Iterator[None]:
    """Makes plans in the `with` block without plans on disk; children that exist keep XLA's answers as before."""
    was = os.environ.get("RESHARD_CACHE")
    os.environ["RESHARD_CACHE"] = "off"
    try:
        yield
    finally:
        del os.environ["RESHARD_CACHE"]
        if was is not None:
            os.environ["RESHARD_CACHE"] = was
