# SPDX-License-Identifier: Apache-2.0
"""Brings the documentation up to date.

Writes docs/passes.md from the registry, docs/api.md from docstrings, the picture of imports, and the output that pages
show.

A fenced block that starts with ```console holds commands: lines that begin with `$ `. Each is followed by its output.
The commands run in a checkout's root. If a command takes long, or its output changes from run to run, it belongs in a
block of another kind.

The ```python blocks of a guide (GUIDES) are together one program, which runs on eight CPU devices in an empty folder.
The output of a block follows it as a ```text block.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from reshard.passes.driver import registry
from reshard.tools.docs import api_reference, import_picture

ROOT = Path(__file__).resolve().parents[2]
PASSES = "docs/passes.md"
IMPORTS = "docs/pictures/imports.svg"
GUIDES = (
    "docs/tutorial.md",
    *(
        f"docs/how-to/{name}.md"
        for name in ("training-step", "automatic", "checkpoint", "weight-sync", "decoding-step", "export")
    ),
)
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples/README.md",
    *GUIDES,
    *(
        f"docs/{name}.md"
        for name in (
            "advise",
            "architecture",
            "auto",
            "benchmarks",
            "demo",
            "emission",
            "fix-warnings",
            "glossary",
            "hierarchies",
            "overlap",
            "inputs",
            "jax",
            "miscompilations",
            "pictures",
            "place",
            "plan",
            "policies",
            "python",
            "redistribute",
            "reshard-cache",
            "reshard-opt",
            "status",
            "structure",
            "targets",
            "theory",
            "topologies",
            "traffic",
            "verify",
        )
    ),
)

_BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```$(?:\n\n^```text\n.*?^```$)?", re.MULTILINE | re.DOTALL)
_RUNNER = """
import contextlib, io, json, sys
names, outputs = {"__name__": "__main__"}, []
for number, block in enumerate(json.load(sys.stdin), 1):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(block, f"<block {number}>", "exec"), names)
    outputs.append(printed.getvalue().rstrip())
print(json.dumps(outputs))
"""
_MODULES = {"reshard": "reshard.tools.reshard", "reshard-opt": "reshard.tools.reshard_opt"}


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 1 if a page is out of date with --check, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m reshard.tools.docs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing; name the pages that are out of date")
    flags = parser.parse_args(argv)
    outdated = {path: text for path, text in fresh_pages().items() if text != _read(path)}
    for path, text in outdated.items():
        print(f"{path}: {'is out of date; run: python -m reshard.tools.docs' if flags.check else 'written'}")
        if not flags.check:
            (ROOT / path).write_text(text)
    return 1 if flags.check and outdated else 0


def fresh_pages() -> dict[str, str]:
    """Returns the up-to-date text of each page, by the page's path."""
    generated = {
        PASSES: registry.markdown(),
        api_reference.PAGE: api_reference.page(),
        IMPORTS: import_picture.picture(),
    }
    return generated | {path: _fresh(path) for path in PAGES}


def _fresh(path: str) -> str:
    page = with_fresh_outputs(_read(path))
    return with_fresh_prints(page) if path in GUIDES else page


def with_fresh_outputs(page: str) -> str:
    """Returns a page with fresh outputs in its console blocks."""
    return _BLOCK.sub(lambda block: "".join(map(_transcript, commands_in(block[0]))), page)


def with_fresh_prints(page: str) -> str:
    """Returns a guide with fresh outputs after its Python blocks.

    Raises: RuntimeError with the traceback of a block that fails.
    """
    outputs = iter(python_outputs([block["code"] for block in _PYTHON.finditer(page)]))

    def with_output(block: re.Match) -> str:
        printed = next(outputs)
        return f"```python\n{block['code']}```" + (f"\n\n```text\n{printed}\n```" if printed else "")

    return _PYTHON.sub(with_output, page)


def python_outputs(blocks: list[str]) -> list[str]:
    """Returns the output of each block; the blocks together are one program.

    Raises: RuntimeError with the traceback of the block that fails.
    """
    if not blocks:
        return []
    environment = _environment() | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-c", _RUNNER]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, input=json.dumps(blocks), cwd=folder, env=environment, capture_output=True, text=True
        )
    if done.returncode:
        raise RuntimeError(f"a Python block fails:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def commands_in(block: str) -> list[str]:
    """Returns the commands of a console block; after a backslash at its end a command continues in the next line.

    Example:
      >>> commands_in("$ one \\\\\\n    more\\noutput\\n$ two\\n")
      ['one \\\\\\n    more', 'two']
    """
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)


def _transcript(command: str) -> str:
    return f"$ {command}\n{run(command)}"


def run(command: str) -> str:
    """Returns the output of a command, stdout and stderr; the command runs in the repository's root.

    The output ends with a newline unless it is empty.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, module in _MODULES.items():
            script = Path(folder, name)
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
            script.chmod(0o755)
        search_path = os.pathsep.join([folder, os.path.dirname(sys.executable), os.environ["PATH"]])
        environment = _environment() | {"PATH": search_path}
        done = subprocess.run(
            command, shell=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    return done.stdout if not done.stdout or done.stdout.endswith("\n") else f"{done.stdout}\n"


def _environment() -> dict[str, str]:
    """Returns the environment of commands and blocks; source locations are relative to the repository's root."""
    root = re.escape(os.path.join(ROOT, ""))
    fixed = {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "RESHARD_PROGRESS": "off",
    }  # durations differ from run to run
    return {**os.environ, **fixed, "JAX_HLO_SOURCE_FILE_CANONICALIZATION_REGEX": root}


def _read(path: str) -> str:
    return (ROOT / path).read_text() if (ROOT / path).is_file() else ""


if __name__ == "__main__":
    sys.exit(main())
