# SPDX-License-Identifier: Apache-2.0
"""The atlas of wrong values from XLA's partitioner: single ops in random layouts, compared with one device."""
