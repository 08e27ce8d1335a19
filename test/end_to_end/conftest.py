# SPDX-License-Identifier: Apache-2.0
"""Eight CPU devices for the tests that run jax in this process; jax reads the flag when it first asks for its devices."""

import os

os.environ["XLA_FLAGS"] = " ".join(
    filter(None, [os.environ.get("XLA_FLAGS"), "--xla_force_host_platform_device_count=8"])
)
