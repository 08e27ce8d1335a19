# SPDX-License-Identifier: Apache-2.0
"""Layouts of small random programs beside what trying all of them finds."""
