# SPDX-License-Identifier: Apache-2.0
"""The page docs/api.md, made from the docstrings of the public names; `python -m reshard.tools.docs` writes it."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

import reshard

PAGE = "docs/api.md"
MOST_FIELDS = 8  # users create classes with at most so many fields themselves; functions return the others

_HEAD = """\
# Python API

Every public name of `reshard`, made from the docstrings by `python -m reshard.tools.docs`. `import reshard` loads neither jax nor
MLIR; a name's module is loaded when the name is first used. What is not on this page may change without notice.
"""  # noqa: E501
_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Examples?|Source|Note)s?:\s*(.*)")
_ENTRY = re.compile(r"(?P<names>[*\w.]+(?:, [*\w.]+)*): (?P<text>.*)", re.DOTALL)
_NEXT = re.compile(r"(?<=\.) (?=\w+: )")  # a line may hold several entries


def page() -> str:
    """Returns the text of docs/api.md."""
    names = list(reshard._PUBLIC)
    index = "\n".join(
        f"| [`{name}`](#{anchor}) | {_summary(getattr(reshard, name))} |"
        for name, anchor in zip(names, _anchors(names))
    )
    parts = [_HEAD, f"| | |\n|---|---|\n{index}\n", *map(_entry, names)]
    return "\n".join(parts)


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yields name and object of each public method and property of a class, in the order of the source."""
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, value


def _anchors(names: list[str]) -> list[str]:
    """Returns the anchors of the headings; of names that differ only in case, the later ones get a number.

    Example:
      >>> _anchors(["plan", "Plan"])
      ['reshardplan', 'reshardplan-1']
    """
    anchors = [f"reshard{name}".lower() for name in names]
    before = [anchors[:at].count(anchor) for at, anchor in enumerate(anchors)]
    return [f"{anchor}-{count}" if count else anchor for anchor, count in zip(anchors, before)]


def _summary(value: Any) -> str:
    """Returns the first paragraph of a docstring as one cell of a table, where `|` is escaped."""
    first = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
    return _escaped(first).replace("|", "\\|")


def _entry(name: str) -> str:
    value = getattr(reshard, name)
    lines = [f"## reshard.{name}", ""]
    if inspect.isclass(value):
        lines += _class_lines(name, value)
    else:
        lines += [*_code(_signature(f"reshard.{name}", value)), *_doc_lines(value)]
    return "\n".join(lines).rstrip() + "\n"


def _class_lines(name: str, cls: type) -> list[str]:
    lines = []
    if issubclass(cls, Exception):
        lines += [f"Exception, a {' and a '.join(f'`{base.__name__}`' for base in cls.__bases__)}.", ""]
    elif _is_made_by_users(cls):
        lines += _code(_signature(f"reshard.{name}", cls))
    lines += _doc_lines(cls)
    for member, value in members(cls):
        lines += _member_lines(f"{name}.{member}", value)
    return lines


def _is_made_by_users(cls: type) -> bool:
    fields = inspect.signature(cls).parameters
    return len(fields) <= MOST_FIELDS and not any(name.startswith("_") for name in fields)


def _member_lines(name: str, value: Any) -> list[str]:
    if isinstance(value, property) and value.fget is not None:
        kind = inspect.signature(value.fget).return_annotation
        text = name if kind is inspect.Signature.empty else f"{name}: {_plain(kind)}"
        return [f"### {name}", "", *_code(text), *_doc_lines(value.fget)]
    function = getattr(value, "__func__", value)
    return [
        f"### {name}",
        "",
        *_code(_signature(name, function, is_bound=not isinstance(value, staticmethod))),
        *_doc_lines(function),
    ]


# ---- signatures


def _signature(name: str, value: Any, is_bound: bool = False) -> str:
    """Returns a signature, `name(a, *, b: int = 1) -> C`; if this is too long, each parameter has a line.

    Example:
      >>> def scale(self, by: int = 2, *, name="x") -> str: ...
      >>> _signature("Tile.scale", scale, is_bound=True)
      "Tile.scale(by: int = 2, *, name='x') -> str"
    """
    found = inspect.signature(value)
    parameters = list(found.parameters.values())[is_bound:]
    plain = [
        each.replace(annotation=_Verbatim(each.annotation)) if each.annotation is not each.empty else each
        for each in parameters
    ]
    result = "" if found.return_annotation in (found.empty, None, "None") else f" -> {_plain(found.return_annotation)}"
    inside = str(found.replace(parameters=plain, return_annotation=found.empty))
    if len(f"{name}{inside}{result}") <= 100:
        return f"{name}{inside}{result}"
    rows = [f"    {text},\n" for text in _rows(plain)]
    return f"{name}(\n{''.join(rows)}){result}"


def _rows(parameters: list[inspect.Parameter]) -> Iterator[str]:
    has_star = False
    for number, each in enumerate(parameters):
        has_star |= each.kind == each.VAR_POSITIONAL
        if each.kind == each.KEYWORD_ONLY and not has_star:
            has_star = True
            yield "*"
        yield str(each)
        following = parameters[number + 1].kind if number + 1 < len(parameters) else None
        if each.kind == each.POSITIONAL_ONLY != following:
            yield "/"


class _Verbatim:
    """An annotation whose `repr` is its source text, without quotes."""

    def __init__(self, annotation: Any):
        self.text = _plain(annotation)

    def __repr__(self) -> str:
        return self.text


def _plain(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _code(text: str) -> list[str]:
    return ["```text", text, "```", ""]


# ---- docstrings


def _doc_lines(value: Any) -> list[str]:
    """Returns a docstring as Markdown: sections have a bold head, their entries are lists, examples are code."""
    blocks = _blocks(inspect.getdoc(value) or "")
    return [line for block in blocks for line in [*block, ""]]


def _blocks(doc: str) -> Iterator[list[str]]:
    lines = doc.split("\n")
    at = 0
    while at < len(lines):
        if not lines[at]:
            at += 1
            continue
        section = _SECTION.fullmatch(lines[at])
        end = at + 1
        while end < len(lines) and (
            _is_inside(lines[end]) if section else lines[end].strip() and not _SECTION.fullmatch(lines[end])
        ):
            end += 1
        body = lines[at + 1 : end] if section else lines[at:end]
        if section:
            yield from _section(section[1], section[2], body)
        else:
            yield (
                ["```python", *(line.strip() for line in body), "```"]
                if body[0].startswith("  ")
                else [_escaped(line) for line in body]
            )
        at = end


def _is_inside(line: str) -> bool:
    return line.startswith(" ") or not line


def _section(head: str, first: str, body: list[str]) -> Iterator[list[str]]:
    if head == "Source":  # papers and files: only for developers of this project
        return
    if head.startswith("Example"):
        yield [f"**{head}**"]
        code = inspect.cleandoc("\n" + "\n".join(body)) if body else first
        yield ["```python", *code.rstrip().split("\n"), "```"]
        return
    entries = list(_entries(body))
    if entries:
        yield [f"**{head}**", "", *filter(None, [_escaped(first)]), *entries]
    else:
        yield [f"**{head}** " + " ".join(_escaped(line.strip()) for line in [first, *body] if line.strip())]


def _entries(body: list[str]) -> Iterator[str]:
    """Yields `- name: text` for each entry of a section.

    A line that is indented more, or that names nothing, continues the entry before it.

    Example:
      >>> list(_entries(["  a, b: one", "    and two", "  c: three"]))
      ['- `a`, `b`: one and two', '- `c`: three']
      >>> list(_entries(["  objective: what counts. topology: its name."]))
      ['- `objective`: what counts.', '- `topology`: its name.']
    """
    texts: list[str] = []
    for line in filter(str.strip, body):
        if not line.startswith("   ") and (_ENTRY.fullmatch(line.strip()) or not texts):
            texts.append(line.strip())
        else:
            texts[-1] += f" {line.strip()}"
    if not any(map(_ENTRY.fullmatch, texts)):
        return
    for text in itertools.chain.from_iterable(map(_NEXT.split, texts)):
        found = _ENTRY.fullmatch(text)
        names = ", ".join(f"`{name}`" for name in found["names"].split(", ")) if found else ""
        yield f"- {names}: {_escaped(found['text'])}" if found else f"- {_escaped(text)}"


def _escaped(text: str) -> str:
    """Returns text in which characters are escaped that Markdown would read as markup, except in code.

    Example:
      >>> _escaped("a * b, `c * d`, <x>")
      'a \\\\* b, `c * d`, \\\\<x>'
    """
    pieces = text.split("`")
    return "`".join(piece if number % 2 else re.sub(r"([*<])", r"\\\1", piece) for number, piece in enumerate(pieces))
