# SPDX-License-Identifier: Apache-2.0
"""The documentation shows the text that the commands print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reshard
from reshard.passes.driver import registry
from reshard.tools.docs import api_reference
from reshard.tools.docs import renew as docs

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [
    (path, command, block)
    for path in docs.PAGES
    for block in re.findall(docs._BLOCK, (ROOT / path).read_text())
    for command in docs.commands_in(block)
]

SLOW = (
    "python examples/",
    "--compare xla,shardy",
    "reshard traffic",
    "reshard advise",
    "reshard auto",
    "reshard place",
    "docs/tiny.mlir --report=text -o /dev/null",
)  # commands that train, that ask each peer in its own process, or that show what depends on the version of XLA

QUICK = "--compare xla,shardy --verify"  # this one of these commands is still in the quick tier


def tiered(path: str, command: str, block: str):
    is_slow = path != "README.md" and QUICK not in command and any(words in command for words in SLOW)
    return pytest.param(path, command, block, id=f"{path}: {command}", marks=[pytest.mark.slow] if is_slow else [])


def test_page_of_passes_is_up_to_date():
    assert (ROOT / docs.PASSES).read_text() == registry.markdown(), "run: python -m reshard.tools.docs"


def test_python_reference_is_up_to_date():
    assert (ROOT / api_reference.PAGE).read_text() == api_reference.page(), "run: python -m reshard.tools.docs"


@pytest.mark.parametrize("name", reshard._PUBLIC)
def test_public_names_and_their_members_have_docstrings(name):
    value = getattr(reshard, name)
    assert value.__doc__ and not value.__doc__.startswith(f"{name}("), f"reshard.{name} has no docstring of its own"
    lacking = (
        [each for each, member in api_reference.members(value) if not member.__doc__] if isinstance(value, type) else []
    )
    assert not lacking, f"members of reshard.{name} without a docstring"


@pytest.mark.mostly_slow
@pytest.mark.parametrize(("path", "command", "block"), [tiered(*each) for each in BLOCKS])
def test_command_prints_what_the_page_shows(path, command, block):
    assert f"$ {command}\n{docs.run(command)}" in block, "run: python -m reshard.tools.docs"


@pytest.mark.slow
@pytest.mark.parametrize("path", docs.GUIDES)
def test_python_blocks_print_what_the_guide_shows(path):
    page = (ROOT / path).read_text()
    assert docs.with_fresh_prints(page) == page, "run: python -m reshard.tools.docs"


@pytest.mark.parametrize("path", ["README.md", "docs/python.md", "docs/traffic.md"])
def test_python_examples_run(path):
    assert ">>> " in (ROOT / path).read_text()
    done = subprocess.run(
        [sys.executable, "-m", "doctest", "-o", "NORMALIZE_WHITESPACE", path],
        cwd=ROOT,
        env=os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


WRITTEN_PAGES = (*docs.PAGES, "docs/many-processes.md")  # the commands of the last one run with its own tests
LINKED_PAGES = (docs.PASSES, api_reference.PAGE, *WRITTEN_PAGES)


def test_every_page_is_known():
    """Every page is in the list of pages whose links are checked, except those for XLA's maintainers."""
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("docs/upstream/")} <= set(LINKED_PAGES)


@pytest.mark.parametrize("path", LINKED_PAGES)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / path).read_text())
    missing = [link for link in links if "://" not in link and not (ROOT / path).parent.joinpath(link).exists()]
    assert not missing


@pytest.mark.parametrize("path", LINKED_PAGES)
def test_links_to_a_heading_lead_to_one(path):
    links = re.findall(r"\]\(((?:[^)#:]+\.md)?)#([^)]+)\)", (ROOT / path).read_text())
    pages = [((ROOT / path).parent / page if page else ROOT / path, anchor) for page, anchor in links]
    assert not [(page.name, anchor) for page, anchor in pages if anchor not in anchors(page)]


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them: the second "A b" is `a-b-1`."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    before = [names[:number].count(name) for number, name in enumerate(names)]
    return {f"{name}-{count}" if count else name for name, count in zip(names, before, strict=True)}


@pytest.mark.parametrize("path", WRITTEN_PAGES)
def test_prose_is_wrapped_at_120_columns(path):
    """Tables, pictures and text in code fences may be wider."""
    prose = re.sub(r"^```.*?^```$", "", (ROOT / path).read_text(), flags=re.M | re.S).splitlines()
    assert not [line for line in prose if len(line) > 120 and not line.startswith(("|", "!["))]


def test_every_term_of_the_glossary_has_a_meaning_and_a_link():
    lines = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = [row for row in rows if row != ["term", "meaning", "more"]]
    assert len(rows) > 100
    assert not [row for row in rows if len(row) != 3 or not row[1].endswith(".") or "](" not in row[2]]
    assert len({row[0] for row in rows}) == len(rows)


def test_outputs_are_replaced_and_the_rest_stays():
    page = "text\n```console\n$ echo one\nold\n$ echo two \\\n    three\n```\n```text\n$ echo four\n```\n"
    fresh = "text\n```console\n$ echo one\none\n$ echo two \\\n    three\ntwo three\n```\n```text\n$ echo four\n```\n"
    assert docs.with_fresh_outputs(page) == fresh


def test_python_blocks_are_one_program_whose_prints_are_replaced():
    page = "one\n```python\na = 3\n```\ntwo\n\n```python\nprint(a)\n```\n\n```text\nold\n```\n\n```text\nkept\n```\n"
    assert docs.with_fresh_prints(page) == page.replace("old", "3")


def test_a_python_block_that_fails_fails():
    with pytest.raises(RuntimeError, match="<block 2>.*\n.*ZeroDivisionError"):
        docs.python_outputs(["a = 0", "\n1 / a"])
