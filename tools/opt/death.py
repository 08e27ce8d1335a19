# SPDX-License-Identifier: Apache-2.0
"""Reproducers for a child process that died: another child writes the module to a file."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from typing import BinaryIO, NoReturn

from reshard.tools.common import contained
from reshard.tools.common.reproducer import Reproducer

_NOTHING = "builtin.module()"


class KeptStdin:
    """Standard input that can be read a second time.

    A child that dies loses the input that it has read. So it first copies the input to a file.
    """

    def __init__(self, is_input: bool):
        self._copy = _new_file() if is_input else None

    def read_in_child(self) -> None:
        if self._copy is None:
            return
        with contextlib.suppress(OSError):  # the reader of the input will report the error
            content = sys.stdin.buffer.read()
            self._copy.write(content)
            self._copy.flush()
            sys.stdin = io.TextIOWrapper(io.BytesIO(content))

    def reread(self) -> None:
        if self._copy is not None:
            self._copy.seek(0)
            sys.stdin = io.TextIOWrapper(self._copy)


def _new_file() -> BinaryIO:
    import tempfile  # imported here: it takes long to load, and few runs need it

    return tempfile.TemporaryFile()


def leave_reproducer(flags: argparse.Namespace, stage: str, what: str) -> None:
    """Writes a reproducer for the death of a child at some stage.

    If the child dies while it reads the input, there is no module: the input itself is the reproducer.
    """
    if stage in ("reading", "starting"):
        return
    from reshard.tools.opt.flags import flags_of_reproducer, pipeline_text

    arguments = flags_of_reproducer(flags, pipeline_text(flags))
    path = flags.mlir_pass_pipeline_crash_reproducer
    reproducer = Reproducer("reshard-opt", arguments, _module_text(flags), flags.input, path)
    reproducer.report(f"{stage} {what}", "versions")


def _module_text(flags: argparse.Namespace) -> str:
    """Returns the input as text, read in another child process; empty if that process dies too."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "module.mlir")
        contained.run(lambda: _write_text(flags, path), "", [path])
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            return file.read()
    return ""


def _write_text(flags: argparse.Namespace, path: str) -> NoReturn:
    """Writes the module as text and ends this process, so that no later code of its caller runs in it."""
    from reshard.tools.opt.driver import drive
    from reshard.tools.opt.flags import parse_flags, pipeline_text

    split = [f"--split-input-file={flags.split_input_file}"] if flags.split_input_file else []
    alien = ["--allow-unregistered-dialect"] if flags.allow_unregistered_dialect else []
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    status = 1
    try:
        arguments = [flags.input or "-", f"--pass-pipeline={_NOTHING}", "--emit-text", *split, *alien, "-o", path]
        writing, parser = parse_flags(arguments)
        status = drive(writing, pipeline_text(writing), parser.error)
    finally:
        os._exit(status)
