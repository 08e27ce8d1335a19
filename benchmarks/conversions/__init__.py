# SPDX-License-Identifier: Apache-2.0
"""Conversions of one array by us and by peers: the problems, the compiled programs, and the tables of the answers."""
