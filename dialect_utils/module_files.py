# SPDX-License-Identifier: Apache-2.0
"""Modules in files: MLIR text, MLIR bytecode, StableHLO portable artifacts; split inputs; atomic output."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from dataclasses import dataclass, replace

from reshard.dialect_utils.bindings import ir, stablehlo
from reshard.dialect_utils.diagnostics import (
    ERROR,
    Collector,
    DiagnosedError,
    Diagnostic,
    Place,
    from_mlir_error,
    note,
)

TEXT, BYTECODE, PORTABLE = "text", "bytecode", "portable artifact"
SPLIT_MARKER = "// -----"
_BYTECODE_MAGIC = b"ML\xefR"
_PORTABLE_PRODUCER = b"StableHLO_v"


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """An input as it was read; `name` is what diagnostics show."""

    path: str
    content: bytes

    @classmethod
    def read(cls, path: str) -> ModuleFile:
        """Returns the file, or standard input for `-`.

        Raises: DiagnosedError if it cannot be read or is empty.
        """
        try:
            content = sys.stdin.buffer.read() if path == "-" else _read_bytes(path)
        except OSError as error:
            raise file_error(path, error) from None
        if not content.strip():
            raise DiagnosedError([Diagnostic(ERROR, "the input is empty", Place(_shown(path)))])
        return cls(path, content)

    @property
    def name(self) -> str:
        return _shown(self.path)

    @property
    def form(self) -> str:
        """One of TEXT, BYTECODE and PORTABLE, by the header."""
        if not self.content.startswith(_BYTECODE_MAGIC):
            return TEXT
        # magic, a version as a varint, the producer's name
        return PORTABLE if self.content[5:].startswith(_PORTABLE_PRODUCER) else BYTECODE

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace") if self.form == TEXT else ""

    def chunks(self, split: bool) -> list[Chunk]:
        """Returns the modules between the lines `// -----`, or the whole file."""
        if not split or self.form != TEXT:
            return [Chunk(self, self.text, 0)]
        chunks, lines, first = [], self.text.splitlines(keepends=True), 0
        for index, line in enumerate(lines):
            if line.rstrip() == SPLIT_MARKER:
                chunks.append(Chunk(self, "".join(lines[first:index]), first))
                first = index + 1
        return [*chunks, Chunk(self, "".join(lines[first:]), first)]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One module of a file, with the number of lines above it."""

    file: ModuleFile
    text: str
    lines_above: int

    def parse(self, context: ir.Context) -> ir.Module:
        """Returns the module, verified.

        Raises: DiagnosedError with places in the file's own lines.
        """
        try:
            return self._parse(context)
        except ir.MLIRError as error:
            raise DiagnosedError([each.in_file(self.file.name) for each in from_mlir_error(error)]) from None

    def _parse(self, context: ir.Context) -> ir.Module:
        if self.file.form == PORTABLE:
            return _read_portable_artifact(self.file, context)
        if self.file.form == BYTECODE:
            return ir.Module.parse(self.file.content, context)
        if self.text == self.file.text and os.path.isfile(self.file.path):
            return ir.Module.parseFile(self.file.path, context)  # puts the file's name into locations, not "-"
        return ir.Module.parse("\n" * self.lines_above + self.text, context)


def _read_portable_artifact(file: ModuleFile, context: ir.Context) -> ir.Module:
    collector = Collector()  # the bindings leave the errors of this one call to handlers
    with collector.listening(context):
        try:
            return stablehlo.deserialize_portable_artifact(context, file.content)
        except (ir.MLIRError, ValueError):
            hint = note("the file may be damaged, or newer than the installed jaxlib")
    what = "cannot read this portable artifact"
    errors = [replace(each, notes=(*each.notes, hint)) for each in collector.diagnostics[-1:]]
    raise DiagnosedError([each.in_file(file.name) for each in errors or [Diagnostic(ERROR, what, notes=(hint,))]])


def to_bytes(module: ir.Module, *, bytecode: bool = False, debug_info: bool = False) -> bytes:
    """Returns the module as bytecode or as text that ends in one newline."""
    if bytecode:
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        return buffer.getvalue()
    return module.operation.get_asm(enable_debug_info=debug_info).rstrip("\n").encode() + b"\n"


def write(path: str, content: bytes) -> None:
    """Writes standard output for `-`, else the file: wholly, or not at all.

    Raises: DiagnosedError if it cannot be written.
    """
    try:
        if path == "-":
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
        else:
            _write_atomically(os.path.realpath(path), content)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise file_error(path, error) from None


def refuse_unwritable(path: str) -> None:
    """Raises DiagnosedError if `path` cannot become a file, before any work is done for it."""
    folder = os.path.dirname(os.path.realpath(path))
    if path == "-":
        return
    if os.path.isdir(path):
        raise DiagnosedError([Diagnostic(ERROR, "cannot write: is a directory", Place(path))])
    if not os.path.isdir(folder):
        raise DiagnosedError([Diagnostic(ERROR, "cannot write: no such directory", Place(path))])


def file_error(path: str, error: OSError) -> DiagnosedError:
    """Returns the diagnosis of a failed system call on `path`."""
    return DiagnosedError([Diagnostic(ERROR, (error.strerror or str(error)).lower(), Place(_shown(path)))])


def _read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write_atomically(path: str, content: bytes) -> None:
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        with open(path, "wb") as device:  # /dev/null, a pipe: must not be replaced
            device.write(content)
        return
    beside = f"{path}.{os.getpid()}.tmp"
    try:
        with open(beside, "xb") as file:
            file.write(content)
        if os.path.exists(path):
            os.chmod(beside, stat.S_IMODE(os.stat(path).st_mode))
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        raise


def _shown(path: str) -> str:
    return "<stdin>" if path == "-" else path
