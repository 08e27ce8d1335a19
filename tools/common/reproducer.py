# SPDX-License-Identifier: Apache-2.0
"""Reproducers: a tool that fails through its own fault writes a file, with which the command can be run again."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reproducer:
    """A command that fails, and the module at which it fails.

    Fields:
      tool: the command's name. arguments: its flags without input and output. module_text: the module; empty if there
        is none, or none that can be written as text. given: the input as it was named, for the command where
        `module_text` is empty.
      path: the file to write; None for a new one.
    """

    tool: str
    arguments: Sequence[str]
    module_text: str = ""
    given: str | None = None
    path: str | None = None

    def write(self, why: str) -> tuple[str, str]:
        """Writes the reproducer and returns its path and its command.

        The file has the command, the versions and `why` as comments, and the module.
        """
        path = os.path.abspath(self.path) if self.path else self._new_path()
        from reshard.tools.common.versions import versions_text  # takes long to load; only a failure needs it

        module = [path] if self.module_text else [self.given] if self.given else []
        command = shlex.join([self.tool, *module, *self.arguments])
        head = f"{self.tool} reproducer\nrerun: {command}\n{versions_text()}\n{why}"
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:  # names may be invalid UTF-8
            file.write("".join(f"// {line}".rstrip() + "\n" for line in head.splitlines()))
            file.write(self.module_text)
        return path, command

    def report(self, why: str, about: str) -> None:
        """Writes the reproducer, and prints on stderr its path, or why it cannot be written."""
        try:
            path, command = self.write(why)
        except OSError as error:
            print(
                f"{self.path}: warning: no reproducer is written: {(error.strerror or str(error)).lower()}",
                file=sys.stderr,
            )
            return
        print(f"{path}: note: reproducer with {about}; rerun with: {command}", file=sys.stderr)

    def _new_path(self) -> str:
        import tempfile

        with tempfile.NamedTemporaryFile("w", prefix=f"{self.tool}-", suffix=".mlir", delete=False) as file:
            return file.name


def report_crash(error: Exception, reproducer: Reproducer, file: str | None = None) -> None:
    """Prints an error without its traceback, and the path of the reproducer; `file` is the name of the input.

    Raises: the error itself under RESHARD_TRACEBACK=1.
    """
    if os.environ.get("RESHARD_TRACEBACK") == "1":
        raise error
    what = " ".join(str(error).split()) or type(error).__name__
    where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    tool = reproducer.tool
    print(f"{file or tool}: error: {tool} failed through a fault of its own: {what}{where}", file=sys.stderr)
    import traceback

    reproducer.report("".join(traceback.format_exception(error)), "versions and traceback")
