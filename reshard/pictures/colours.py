# SPDX-License-Identifier: Apache-2.0
"""Colours and patterns for light and dark pages.

The colour-blind can tell the colours apart, and black letters are legible on them.

Source: Paul Tol, "Colour schemes", SRON technical note 3.2 (2021): the qualitative scheme "light", made for labelled
cells; the sequential ramp of the heat maps has steps of equal lightness.
"""

from __future__ import annotations

from reshard.pictures.markup import Markup, element, joined

FILLS = ("#77aadd", "#ee8866", "#eedd88", "#44bb99", "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00", "#dddddd")
RAMP = (
    "#f7f7f2",
    "#e2ecd7",
    "#c0dfc8",
    "#92ccc0",
    "#63b3bd",
    "#4394b6",
    "#3a73a8",
    "#3b5191",
    "#372f6b",
)  # light: little; dark: much
PATTERNS = ("", "stripes", "dots")


def fill_of(block: int, blocks: int) -> tuple[int, str]:
    """Returns the index of a block's colour in FILLS, and the pattern over it.

    Up to 27 blocks look different; if there are more, neighbouring blocks share a colour.

    Example:
      >>> fill_of(0, 4), fill_of(10, 20), fill_of(63, 64)
      ((0, ''), (1, 'stripes'), (8, ''))
    """
    if blocks > len(FILLS) * len(PATTERNS):
        return block * len(FILLS) // blocks, ""
    return block % len(FILLS), PATTERNS[block // len(FILLS)]


def heat(share: float) -> tuple[str, str]:
    """Returns two CSS colours: for a share of the maximum, 0 to 1, and for letters on it.

    The larger the share, the more the colour differs from the page's own colour.
    """
    step = 0 if share <= 0 else 1 + min(len(RAMP) - 2, int(share * (len(RAMP) - 1) - 1e-9))
    return f"var(--h{step})", f"var(--i{step})"


def ramp(is_dark: bool) -> tuple[tuple[str, str], ...]:
    """Returns (fill, colour of letters on it) for each step of `heat`; the first step is for a share of 0."""
    fills = ("#262b34", *RAMP[:0:-1]) if is_dark else RAMP
    light = {"#262b34", *RAMP[6:]}
    return tuple((fill, "#ffffff" if fill in light else "#111111") for fill in fills)


def _ramp_variables(is_dark: bool) -> str:
    return ";".join(f"--h{i}:{fill};--i{i}:{ink}" for i, (fill, ink) in enumerate(ramp(is_dark)))


def definitions() -> Markup:
    """Returns the patterns that pictures refer to; a page has them once."""
    stripes = element("path", d="M-1 1 1-1M0 6 6 0M5 7 7 5", stroke="#000", stroke_width="1", opacity="0.35")
    dots = element("circle", cx="3", cy="3", r="1.1", fill="#000", opacity="0.45")
    sums = element("path", d="M0 0 7 7M7 0 0 7", stroke="#000", stroke_width="0.8", opacity="0.3")
    drawn = (("stripes", 6, stripes), ("dots", 6, dots), ("sums", 7, sums))
    return element(
        "defs",
        joined(
            element("pattern", what, id=name, width=size, height=size, patternUnits="userSpaceOnUse")
            for name, size, what in drawn
        ),
    )


def styles() -> str:
    """Returns the CSS of all drawings; pages add theirs. Colours that depend on light or dark are variables."""
    fills = "".join(f".k{i}{{fill:{fill}}}" for i, fill in enumerate(FILLS))
    return (
        f".pic{{--ink:{INK};--soft:{SOFT};--line:{LINE};--paper:{PAPER};{_ramp_variables(False)};"
        "--one:#3a73a8;--two:#77aadd;--three:#eedd88;--limit:#c0392b;--stock:#d0744f;"
        "font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',Helvetica,Arial,sans-serif}"
        f"{fills}.pic text{{fill:var(--ink);font-size:11px}}.pic .on{{fill:#111;font-size:11px;text-anchor:middle}}"
        ".pic .soft{fill:var(--soft)}.pic .head{font-size:15px;font-weight:600}.pic .sub{font-size:12px}"
        ".pic .mid{text-anchor:middle}.pic .end{text-anchor:end}"
        ".pic .halo{paint-order:stroke;stroke:var(--paper);stroke-width:4}"
        ".pic .cell{stroke:#fff;stroke-width:1}.pic .edge{fill:none;stroke:#222;stroke-width:1.6}"
        ".pic .thin{fill:none;stroke:#222;stroke-width:.5}.pic .none{fill:none;stroke:var(--soft);stroke-dasharray:3 3}"
        ".pic .axis{stroke:var(--line);stroke-width:1}.pic .one{fill:var(--one)}.pic .two{fill:var(--two)}"
        ".pic .three{fill:var(--three)}"
        ".pic .limit{stroke:var(--limit);stroke-width:2;stroke-dasharray:7 4;fill:none}"
        ".pic .sheet{fill:var(--paper)}.pic .warm{fill:var(--stock)}"
    )


INK, SOFT, LINE, PAPER = "#1d2330", "#596273", "#cfd4dd", "#ffffff"
DARK = (
    "--ink:#e8eaf0;--soft:#a4adbd;--line:#454c59;--paper:#16191f;"
    "--one:#6ea3d8;--two:#35608c;--three:#8a7a2c;--limit:#ff8a7a;--stock:#e08a68;" + _ramp_variables(True)
)
