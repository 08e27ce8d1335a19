# SPDX-License-Identifier: Apache-2.0
"""Elements of a pipeline's text: the passes that each element stands for, and the errors of wrong elements."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reshard.dialect_utils.platform.bindings import passmanager
from reshard.passes.driver import pipeline_text, registry
from reshard.passes.driver.base import OptionError, Pass
from reshard.passes.driver.pipeline_text import ANCHOR, Element, PipelineError

_FAILED_TO_ADD = re.compile(r"failed to add `([^`]+)` with options")
_MLIR_PLACE = re.compile(r"^MLIR Textual PassPipeline Parser:1:(\d+): error: ")


def read_passes(text: str) -> list[tuple[Pass | str, int]]:
    """Returns the passes of ours and the elements of MLIR in a pipeline's text, each with its offset in the text.

    Raises: PipelineError where the text is malformed or one of our passes has a wrong option or place.
    """
    return [(each, element.offset) for element in pipeline_text.read(text) for each in _passes_of(element, text)]


def is_mlir_pass(name: str) -> bool:
    """Returns whether MLIR has a pass of this name, inside the current context."""
    try:
        passmanager.PassManager(ANCHOR).add(name)
    except ValueError as error:
        return "does not refer to a registered pass" not in str(error)
    return True


def complaint(text: str, element: str) -> tuple[str, int]:
    """Returns MLIR's complaint about an element, and its column from 0; if MLIR gives no column, that of the name."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    found = _MLIR_PLACE.match(lines[0])
    if found:
        column = int(found[1]) - 1
        return lines[0][found.end() :] + _suggestion(element[column:]), column
    failed = _FAILED_TO_ADD.search(text)
    name = failed[1] if failed else element
    what = lines[0].removeprefix("<Pass-Options-Parser>: ")
    if what.startswith("no such option"):
        what = f"{name}: {what}; its options: {', '.join(_mlir_options(name)) or 'none'}"
    elif "did you intend to nest?" in what:
        what += f" Write func.func({name})"
    return what, max(0, element.find(name))


def _suggestion(text: str) -> str:
    import difflib

    found = re.match(r"[\w.-]*", text)
    wrong = found[0] if found else ""
    known = (*registry.names(), *registry.PIPELINES, *registry.MLIR_PASSES, *registry.MLIR_FUNCTION_PASSES)
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else "; --list-passes names them"


def _mlir_options(name: str) -> list[str]:
    """Returns the options that MLIR prints for a pass of its own, inside the current context."""
    manager = passmanager.PassManager("any")
    try:
        manager.add(name)
    except ValueError:
        return []
    options = str(manager).partition("{")[2]
    return re.findall(r"(?:^| )([\w-]+)=", options)


def _passes_of(element: Element, text: str) -> Iterator[Pass | str]:
    """Yields the passes that one element stands for. A named pipeline stands for several."""
    if element.name in registry.PIPELINES:
        if element.options is not None or element.nested is not None:
            raise PipelineError(
                f"pipeline '{element.name}' takes no options; name its passes instead", text, element.offset
            )
        yield from (each for each, _ in read_passes(registry.PIPELINES[element.name]))
    elif registry.is_pass(element.name):
        if element.nested is not None:
            raise PipelineError(f"'{element.name}' is a pass and holds no others", text, element.offset)
        yield _make_pass(element, text)
    else:
        _refuse_nested_passes(element, text)
        yield element.text


def _make_pass(element: Element, text: str) -> Pass:
    try:
        return registry.load(element.name).parse(element.options or "")
    except registry.PluginError as error:
        raise PipelineError(str(error), text, element.offset) from None
    except OptionError as error:
        at = max(0, (element.options or "").find(error.option))
        raise PipelineError(str(error), text, element.options_offset + at) from None


def _refuse_nested_passes(element: Element, text: str) -> None:
    for leaf in element.leaves():
        if leaf is not element and (leaf.name in registry.PIPELINES or registry.is_pass(leaf.name)):
            where = "the outermost builtin.module" if element.name == ANCHOR else ANCHOR
            raise PipelineError(f"'{leaf.name}' runs on {where}, not inside {element.name}(...)", text, leaf.offset)
