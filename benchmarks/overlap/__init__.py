# SPDX-License-Identifier: Apache-2.0
"""Collectives next to products: as the program has them, and as pipelines."""
