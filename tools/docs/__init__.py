# SPDX-License-Identifier: Apache-2.0
"""Generators of the documentation: outputs in the pages, the reference of the API, pictures."""
