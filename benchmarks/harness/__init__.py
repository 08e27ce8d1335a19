# SPDX-License-Identifier: Apache-2.0
"""Shared by the benchmarks: flags, resumable journals, progress, and planning without the disk cache."""
