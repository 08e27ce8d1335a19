# SPDX-License-Identifier: Apache-2.0
"""What the documentation shows is what the commands print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reshard
from reshard.passes import registry
from reshard.tools import api_reference, docs

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [
    (path, command, block)
    for path in docs.PAGES
    for block in re.findall(docs._BLOCK, (ROOT / path).read_text())
    for command in docs.commands_in(block)
]

SLOW = ("python examples/", "--compare xla,shardy")  # commands that train, or that ask each peer in a process of its own


def tiered(path: str, command: str, block: str):
    is_slow = path != "README.md" and any(words in command for words in SLOW)
    return pytest.param(path, command, block, id=f"{path}: {command}", marks=[pytest.mark.slow] if is_slow else [])


def test_page_of_passes_is_up_to_date():
    assert (ROOT / docs.PASSES).read_text() == registry.markdown(), "run: python -m reshard.tools.docs"


def test_python_reference_is_up_to_date():
    assert (ROOT / api_reference.PAGE).read_text() == api_reference.page(), "run: python -m reshard.tools.docs"


@pytest.mark.parametrize("name", reshard._PUBLIC)
def test_public_names_and_their_members_have_docstrings(name):
    value = getattr(reshard, name)
    assert value.__doc__ and not value.__doc__.startswith(f"{name}("), f"reshard.{name} has no docstring of its own"
    lacking = [each for each, member in api_reference.members(value) if not member.__doc__] if isinstance(value, type) else []
    assert not lacking, f"members of reshard.{name} without a docstring"


@pytest.mark.parametrize(("path", "command", "block"), [tiered(*each) for each in BLOCKS])
def test_command_prints_what_the_page_shows(path, command, block):
    assert f"$ {command}\n{docs.run(command)}" in block, "run: python -m reshard.tools.docs"


@pytest.mark.slow
@pytest.mark.parametrize("path", docs.GUIDES)
def test_python_blocks_print_what_the_guide_shows(path):
    page = (ROOT / path).read_text()
    assert docs.with_fresh_prints(page) == page, "run: python -m reshard.tools.docs"


def test_python_examples_of_the_readme_run():
    done = subprocess.run(
        [sys.executable, "-m", "doctest", "-o", "NORMALIZE_WHITESPACE", "README.md"],
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


@pytest.mark.parametrize("path", [docs.PASSES, api_reference.PAGE, *docs.PAGES])
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / path).read_text())
    missing = [link for link in links if "://" not in link and not (ROOT / path).parent.joinpath(link).exists()]
    assert not missing


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
