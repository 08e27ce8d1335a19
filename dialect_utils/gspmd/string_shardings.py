# SPDX-License-Identifier: Apache-2.0
"""The kind of shardings that a module has as strings.

Every run asks for it, so this module is light; the modules that read the strings are loaded only if there are any.
"""

from __future__ import annotations

from ..ir.ops import ops_in
from ..platform.bindings import ir

GSPMD, ROUND_TRIP = "mhlo.sharding", "xla.sdy."
_FRONTEND = "mhlo.frontend_attributes"


def kind_of(module: ir.Module) -> str | None:
    """Returns the kind of shardings that a module has as strings: ROUND_TRIP, GSPMD, or None for no strings.

    ROUND_TRIP are Shardy's shardings as XLA writes them into HLO. XLA writes both kinds side by side, and reads
    ROUND_TRIP alone.
    """
    has_gspmd = False
    for op in ops_in(module.operation):
        attributes = op.attributes
        if _FRONTEND in attributes and ROUND_TRIP in str(attributes[_FRONTEND]):
            return ROUND_TRIP
        has_gspmd = has_gspmd or GSPMD in attributes
        if op.name != "func.func":
            continue
        text = "".join(str(attributes[name]) for name in ("arg_attrs", "res_attrs") if name in attributes)
        if _FRONTEND in text and ROUND_TRIP in text:
            return ROUND_TRIP
        has_gspmd = has_gspmd or GSPMD in text
    return GSPMD if has_gspmd else None
