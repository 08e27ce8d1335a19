# SPDX-License-Identifier: Apache-2.0
"""Planning from Python: `reshard.plan`, sizes in bytes, element types, measuring a network."""

__all__ = ["byte_sizes", "calibrating", "device_networks", "element_types", "entry"]
