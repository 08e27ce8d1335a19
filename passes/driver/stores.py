# SPDX-License-Identifier: Apache-2.0
"""The stores on disk for whole results and for site records.

Their entries depend on all sources of reshard and on the versions of jax, jaxlib and Python. Another version of one of
these does not read them.
"""

from __future__ import annotations

import sys

from reshard.dialect_utils.platform import compat
from reshard.synthesis.common.store import Limits, Store

_PACKAGES = ("reshard", "reshard.synthesis", "reshard.dialect_utils", "reshard.passes", "reshard.tools")


def _versions() -> tuple:
    return compat.jax_versions(), sys.version_info[:]


RESULTS = Store("results", Limits(64 << 20, 1_000, 256 << 20), _PACKAGES, _versions)
SITES = Store("sites", Limits(16 << 20, 1_000, 256 << 20), _PACKAGES, _versions)
