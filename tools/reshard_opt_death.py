# SPDX-License-Identifier: Apache-2.0
"""What reshard-opt does about a child process that died at its work: it makes another one write the module down."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from typing import BinaryIO, NoReturn

from reshard.tools import contained
from reshard.tools.reproducer import Reproducer

_NOTHING = "builtin.module()"


class KeptStdin:
    """Standard input for a second reading: a child that dies takes along what it has read, so it copies that to a file first."""

    def __init__(self, is_input: bool):
        self._copy = _new_file() if is_input else None

    def read_in_child(self) -> None:
        if self._copy is None:
            return
        with contextlib.suppress(OSError):  # who reads the input says so
            content = sys.stdin.buffer.read()
            self._copy.write(content)
            self._copy.flush()
            sys.stdin = io.TextIOWrapper(io.BytesIO(content))

    def reread(self) -> None:
        if self._copy is not None:
            self._copy.seek(0)
            sys.stdin = io.TextIOWrapper(self._copy)


def _new_file() -> BinaryIO:
    import tempfile  # here: it takes long to load, and few runs need it

    return tempfile.TemporaryFile()


def leave_reproducer(flags: argparse.Namespace, stage: str, what: str) -> None:
    """Leaves a reproducer of a death. While reading there is no module yet, and the input itself is what reproduces it."""
    if stage in ("reading", "starting"):
        return
    from reshard.tools.reshard_opt_flags import flags_of_reproducer, pipeline_text

    arguments = flags_of_reproducer(flags, pipeline_text(flags))
    path = flags.mlir_pass_pipeline_crash_reproducer
    reproducer = Reproducer("reshard-opt", arguments, _module_text(flags), flags.input, path)
    reproducer.report(f"{stage} {what}", "versions")


def _module_text(flags: argparse.Namespace) -> str:
    """Returns the input as text, read in one more child process; empty if that dies too."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "module.mlir")
        contained.run(lambda: _write_text(flags, path), "", [path])
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            return file.read()
    return ""


def _write_text(flags: argparse.Namespace, path: str) -> NoReturn:
    """Writes the module and ends this process: what follows in the caller is the business of its parent."""
    from reshard.tools.reshard_opt import main

    split = [f"--split-input-file={flags.split_input_file}"] if flags.split_input_file else []
    alien = ["--allow-unregistered-dialect"] if flags.allow_unregistered_dialect else []
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    status = 1
    try:
        status = main([flags.input or "-", f"--pass-pipeline={_NOTHING}", "--emit-text", *split, *alien, "-o", path])
    finally:
        os._exit(status)
