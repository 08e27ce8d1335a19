# SPDX-License-Identifier: Apache-2.0
"""Planning from Python: `reshard.plan`, sizes in bytes, element types, measuring a network, jax's order of devices."""

__all__ = ["byte_sizes", "calibrating", "device_networks", "element_types", "entry", "jax_orders"]
