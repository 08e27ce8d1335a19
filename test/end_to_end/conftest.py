# SPDX-License-Identifier: Apache-2.0
"""Sets the flag for eight CPU devices, before a test makes jax in this process look for its devices."""

import os

os.environ["XLA_FLAGS"] = " ".join(
    filter(None, [os.environ.get("XLA_FLAGS"), "--xla_force_host_platform_device_count=8"])
)
