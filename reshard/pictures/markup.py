# SPDX-License-Identifier: Apache-2.0
"""Markup with everything escaped: elements of SVG and HTML as text, attributes in the order in which they are given."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# XML cannot hold these characters, escaped or not. A surrogate without its pair cannot be written as UTF-8 either.
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_VOID = frozenset({"br", "hr", "input", "meta", "rect", "line", "path", "use", "circle", "polygon"})


class Markup(str):
    """Text that is markup already, so that it is not escaped again."""

    __slots__ = ()


def escaped(text: object) -> Markup:
    """Returns text as markup; control characters, which XML cannot hold, become U+FFFD.

    Example:
      >>> print(escaped('<b title="1">'))
      &lt;b title=&quot;1&quot;&gt;
    """
    return (
        text if isinstance(text, Markup) else Markup(html.escape(_NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", str(text))))
    )


def element(name: str, /, *content: object, **attributes: object) -> Markup:
    """Returns an element of SVG or HTML.

    `class_` becomes `class`, and other underscores become hyphens. An attribute that is None or False is left out, and
    one that is True has no value.

    Example:
      >>> print(element("rect", x=1.50, class_="a & b", hidden=None))
      <rect x="1.5" class="a &amp; b"/>
    """
    written = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _VOID and not content:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(content)}</{name}>")


def joined(parts: Iterable[object], between: str = "") -> Markup:
    """Returns the parts one after the other; every part that is not markup is escaped."""
    return Markup(between.join(map(escaped, parts)))


def number(value: float) -> str:
    """Returns a coordinate with at most one decimal.

    Example:
      >>> number(2.0), number(1 / 3), number(-0.01)
      ('2', '0.3', '0')
    """
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def table(
    headings: Iterable[object], rows: Iterable[Iterable[object]], sides: str, caption: str | None = None
) -> Markup:
    """Returns an HTML table that scrolls by itself if the window is narrow; `sides` has "l" or "r" for each column."""
    classes = ["n" if side == "r" else None for side in sides]
    head = element("tr", *(element("th", each, scope="col", class_=cls) for each, cls in zip(headings, classes)))
    body = [element("tr", *(element("td", each, class_=cls) for each, cls in zip(row, classes))) for row in rows]
    said = element("caption", caption) if caption else Markup("")
    return element(
        "div", element("table", said, element("thead", head), element("tbody", *body)), class_="wide", tabindex="0"
    )


def _attribute(name: str, value: object) -> str:
    name = name.rstrip("_").replace("_", "-") if name != "viewBox" else name
    if value is True:
        return f" {name}"
    text = number(value) if isinstance(value, float) else escaped(value)
    return f' {name}="{text}"'
