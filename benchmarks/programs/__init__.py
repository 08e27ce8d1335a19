# SPDX-License-Identifier: Apache-2.0
"""Sharded programs on which policies of the pipeline are compared: conversions, a GPT, programs of libraries."""
