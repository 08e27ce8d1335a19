# SPDX-License-Identifier: Apache-2.0
"""Programs that XLA compiles for CPU devices, but that fail when they run.

An FFT needs its operand and its result in memory row by row, and XLA's layout assignment does not ensure that. The ops
in front of an FFT, for example the transposes of an island, may lead it to another layout; the program then fails when
it is called, with "RET_CHECK failure (fft_thunk.cc)". Seen with jaxlib 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import re

_FFT = re.compile(r"= (\S+) fft\((?:\S+ )?%?([\w.\-]+)\)")


def why_not_run(hlo_text: str) -> str:
    """Returns the reason why a compiled program fails on CPU devices; empty if none is known.

    Args:
      hlo_text: the HLO text of the compiled program, with layouts.

    Example:
      >>> why_not_run("%a = c64[4,8]{0,1} transpose(%x)\\n %b = c64[4,8]{1,0} fft(%a), fft_type=FFT, fft_length={8}")
      'fft of c64[4,8]{0,1}: XLA runs it on CPU devices in the layout {1,0} only'
    """
    for result, operand in _FFT.findall(hlo_text):
        defined = re.search(rf"%?{re.escape(operand)} = (\S+) ", hlo_text)
        for shape in (result, *(defined.groups() if defined else ())):
            order = re.search(r"\{([\d,]+)", shape)
            wanted = ",".join(map(str, reversed(range(order[1].count(",") + 1)))) if order else ""
            if order and order[1] != wanted:
                return f"fft of {shape}: XLA runs it on CPU devices in the layout {{{wanted}}} only"
    return ""
