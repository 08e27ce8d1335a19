# SPDX-License-Identifier: Apache-2.0
"""The steps after the rewriting: reports, checks of the whole module and of its values, the cache of results."""

__all__ = ["checks", "module_verification", "report", "result_cache", "values_check", "whole_module_check"]
