# SPDX-License-Identifier: Apache-2.0
"""The atlas of what XLA's partitioner computes wrongly: one op at a time, in every layout, against one device."""
