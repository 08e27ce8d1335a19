# SPDX-License-Identifier: Apache-2.0
"""Which kind of shardings a module has as strings. Light, since every run asks; what reads them is loaded if there are any."""

from __future__ import annotations

from .bindings import ir
from .propagation import ops_in

GSPMD, ROUND_TRIP = "mhlo.sharding", "xla.sdy."
_FRONTEND = "mhlo.frontend_attributes"


def kind_of(module: ir.Module) -> str | None:
    """Returns ROUND_TRIP if a module has Shardy's shardings as XLA writes them into HLO, else GSPMD if it has those, else None.

    XLA writes both side by side, and reads the former alone.
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
