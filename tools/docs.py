# SPDX-License-Identifier: Apache-2.0
"""Brings the documentation up to date: docs/passes.md from the registry, and the output of every command that a page shows.

A fenced block that starts with ```console holds commands, lines that begin with `$ `, each followed by what it prints. They run
in a checkout's root. A command that is long or differs from run to run belongs in a block of another kind.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from reshard.passes import registry

ROOT = Path(__file__).resolve().parent.parent
PASSES = "docs/passes.md"
PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("architecture", "benchmarks", "emission", "inputs", "plan", "redistribute", "reshard-opt", "structure", "verify")),
)

_BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_MODULES = {"reshard": "reshard.tools.reshard", "reshard-opt": "reshard.tools.reshard_opt"}


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 up to date, 1 not so with --check."""
    parser = argparse.ArgumentParser(prog="python -m reshard.tools.docs", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; name the pages that are out of date")
    flags = parser.parse_args(argv)
    outdated = {path: text for path, text in fresh_pages().items() if text != _read(path)}
    for path, text in outdated.items():
        print(f"{path}: {'is out of date; run: python -m reshard.tools.docs' if flags.check else 'written'}")
        if not flags.check:
            (ROOT / path).write_text(text)
    return 1 if flags.check and outdated else 0


def fresh_pages() -> dict[str, str]:
    """Returns the text that each page should have, by its path."""
    return {PASSES: registry.markdown(), **{path: with_fresh_outputs(_read(path)) for path in PAGES}}


def with_fresh_outputs(page: str) -> str:
    """Returns a page with the commands of its console blocks run again."""
    return _BLOCK.sub(lambda block: "".join(map(_transcript, commands_in(block[0]))), page)


def commands_in(block: str) -> list[str]:
    """Returns the commands of a console block; one that ends in a backslash goes on in the next line.

    Example:
      >>> commands_in("$ one \\\\\\n    more\\noutput\\n$ two\\n")
      ['one \\\\\\n    more', 'two']
    """
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)


def _transcript(command: str) -> str:
    return f"$ {command}\n{run(command)}"


def run(command: str) -> str:
    """Returns what a command prints on stdout and stderr in the repository's root; ends in a newline unless empty."""
    with tempfile.TemporaryDirectory() as folder:
        for name, module in _MODULES.items():
            script = Path(folder, name)
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
            script.chmod(0o755)
        search_path = os.pathsep.join([folder, os.path.dirname(sys.executable), os.environ["PATH"]])
        environment = os.environ | {"PATH": search_path, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            command, shell=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    return done.stdout if not done.stdout or done.stdout.endswith("\n") else f"{done.stdout}\n"


def _read(path: str) -> str:
    return (ROOT / path).read_text() if (ROOT / path).is_file() else ""


if __name__ == "__main__":
    sys.exit(main())
