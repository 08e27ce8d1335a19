# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of whole modules: the policies on real programs."""
