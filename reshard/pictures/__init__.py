# SPDX-License-Identifier: Apache-2.0
"""Pictures of plans and reports: SVG and HTML pages."""

__all__ = ["drawing", "explain_page", "ledger_page", "report_page", "trace", "traffic_trace"]
