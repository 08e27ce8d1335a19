# SPDX-License-Identifier: Apache-2.0
"""What a tool leaves behind when it fails through its own fault: one file that reruns the failure."""

import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence

from reshard.tools.versions import versions_text


def report_crash(error: Exception, tool: str, arguments: Sequence[str], module_text: str, file: str | None = None) -> None:
    """Prints an error without a traceback, and where the reproducer lies.

    Args:
      tool: command name. arguments: its flags without input and output. module_text: the input as text, empty if it is
        not to blame. file: the name of the input.
    Raises: the error itself under RESHARD_TRACEBACK=1.
    """
    if os.environ.get("RESHARD_TRACEBACK") == "1":
        raise error
    path, command = _write_reproducer(error, tool, arguments, module_text)
    what = " ".join(str(error).split()) or type(error).__name__
    print(f"{file or tool}: error: {tool} failed through a fault of its own: {what}", file=sys.stderr)
    print(f"{path}: note: reproducer with versions and traceback; rerun with: {command}", file=sys.stderr)


def _write_reproducer(error: Exception, tool: str, arguments: Sequence[str], module_text: str) -> tuple[str, str]:
    with tempfile.NamedTemporaryFile("w", prefix=f"{tool}-", suffix=".mlir", delete=False, encoding="utf-8") as file:
        command = shlex.join([tool, *([file.name] if module_text else []), *arguments])
        trace = "".join(traceback.format_exception(error))
        head = f"{tool} reproducer\nrerun: {command}\n{versions_text()}\n{trace}"
        file.write("".join(f"// {line}\n" for line in head.splitlines()))
        file.write(module_text)
    return file.name, command
