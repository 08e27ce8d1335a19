# SPDX-License-Identifier: Apache-2.0
"""The parts of `reshard-opt`: flags, driver, and reproducers of a death."""

__all__ = ["death", "driver", "flags"]
