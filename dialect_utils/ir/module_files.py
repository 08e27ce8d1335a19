# SPDX-License-Identifier: Apache-2.0
"""Modules in files: every form in which one arrives, split inputs, every form in which one leaves, atomic output."""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys
from dataclasses import dataclass, replace

from ..platform.bindings import ir, passmanager, stablehlo
from ..platform.typed import asm_of, present
from .diagnostics import ERROR, Collector, DiagnosedError, Diagnostic, Place, from_mlir_error, note

TEXT, BYTECODE, PORTABLE = "text", "bytecode", "portable artifact"
EXPORTED, HLO = "jax.export file", "HLO text"
SPLIT_MARKER = "// -----"
_BYTECODE_MAGIC = b"ML\xefR"
_PORTABLE_PRODUCER = b"StableHLO_v"
_HLO_HEAD = re.compile(rb"(\s|//[^\n]*\n)*HloModule\s")
_COMPILED_HLO = re.compile(_HLO_HEAD.pattern + rb"[^\n]*\bis_scheduled=true\b")
_PACKED = {
    b"\x1f\x8b": "a gzip file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ\0": "an xz file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"PK\x03\x04": "a zip file",
}
_LONGEST_NAME = 4096
_DYNAMIC = re.compile(r"[<x]\?x")
_VERSION = re.compile(rb"StableHLO_v(\d+\.\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """An input file; `name` is the name that diagnostics show."""

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
        """Returns TEXT, BYTECODE, PORTABLE, EXPORTED or HLO, depending on the header.

        The output of `jax.export.Exported.serialize` has no header: it is binary, and holds a portable artifact.
        """
        if not self.content.startswith(_BYTECODE_MAGIC):
            if b"\0" in self.content[:64] and _BYTECODE_MAGIC in self.content:
                return EXPORTED
            return HLO if _HLO_HEAD.match(self.content) else TEXT
        # magic, a version as a varint, the producer's name
        return PORTABLE if self.content[5:].startswith(_PORTABLE_PRODUCER) else BYTECODE

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace") if self.form in (TEXT, HLO) else ""

    @property
    def artifact_version(self) -> str:
        """Returns the StableHLO version of the portable artifact that a file is or holds; the installed one if it has
        none."""
        found = _VERSION.search(self.content)
        return found[1].decode() if found else stablehlo.get_current_version()

    def chunks(self, marker: str | None = None) -> list[Chunk]:
        """Returns the modules between the lines that hold the marker, or the whole file without one."""
        if not marker or self.form != TEXT:
            return [Chunk(self, self.text, 0)]
        chunks, lines, first = [], self.text.splitlines(keepends=True), 0
        for index, line in enumerate(lines):
            if line.rstrip() == marker:
                chunks.append(Chunk(self, "".join(lines[first:index]), first))
                first = index + 1
        return [*chunks, Chunk(self, "".join(lines[first:]), first)]

    def near_markers(self, marker: str) -> list[Place]:
        """Returns the lines that look like the marker and do not split: one dash too few or too many."""
        lines = [line.rstrip() for line in self.text.splitlines()]
        return [
            Place(self.name, number, 1)
            for number, line in enumerate(lines, start=1)
            if line != marker and line.startswith(marker[:-2]) and set(line) <= set(marker)
        ]


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
            raise DiagnosedError(
                [_with_hint(each, self.file).in_file(self.file.name) for each in from_mlir_error(error)]
            ) from None
        except DiagnosedError:
            raise
        except Exception as error:  # C++ readers of damaged files throw, for example for too long a vector
            if self.file.form == TEXT:
                raise
            what = " ".join(str(error).split()) or type(error).__name__
            raise _unreadable(self.file, f"cannot read this {self.file.form}: {what}") from None

    def _parse(self, context: ir.Context) -> ir.Module:
        form = self.file.form
        if form == PORTABLE:
            return _read_portable_artifact(self.file.name, self.file.content, context)
        if form == EXPORTED:
            return _read_portable_artifact(self.file.name, _exported_artifact(self.file), context)
        if form == HLO:
            return ir.Module.parse(_stablehlo_of_hlo(self.file), context)
        return _legalized(self._parse_mlir(context), self.file)

    def _parse_mlir(self, context: ir.Context) -> ir.Module:
        if self.file.form == BYTECODE:
            return ir.Module.parse(self.file.content, context)
        is_file = os.path.isfile(self.file.path)
        if self.text == self.file.text and is_file and self.file.name == self.file.path:
            return ir.Module.parseFile(self.file.path, context)  # puts the file's name into locations, not "-"
        module = ir.Module.parse("\n" * self.lines_above + self.text, context)
        return _with_locations_in(self.file.name, module) if is_file else module


def reading_limit_s(file: ModuleFile) -> float:
    """Returns the seconds that reading may take: damaged bytecode can send MLIR's reader into an endless loop."""
    start_s = 20 if file.form in (EXPORTED, HLO) else 5  # these load jax, or XLA's converter
    return start_s + len(file.content) / 1e6


def _with_locations_in(path: str, module: ir.Module) -> ir.Module:
    """Returns the module with a file's name in its locations, in the place of the "-" that MLIR gives to text without a
    file."""
    text = asm_of(module.operation, enable_debug_info=True, print_generic_op_form=True)
    named = path.replace("\\", "\\\\").replace('"', '\\"')
    return ir.Module.parse(re.sub(r'(?<=loc\()"-"(?=:\d)', lambda _: f'"{named}"', text), module.context)


def _with_hint(error: Diagnostic, file: ModuleFile) -> Diagnostic:
    hint = _hint(error, file)
    return replace(error, notes=(*error.notes, note(hint))) if hint else error


def _hint(error: Diagnostic, file: ModuleFile) -> str:
    """Returns what to do about something that MLIR refuses to read; empty if nothing is known."""
    if '!"quant"<' in error.message:
        return (
            "the MLIR in jaxlib has no quantized types; lower them first: func.func(stablehlo-legalize-quant-to-math)"
        )
    if file.form != TEXT:
        return ""
    if packed := next((name for magic, name in _PACKED.items() if file.content.startswith(magic)), ""):
        return f"this is {packed}; unpack it first"
    if b"\0" in file.content:
        return "this is binary, and no MLIR bytecode, portable artifact or jax.export file"
    if _is_file_name(file.text.strip()):
        return "this is the name of a file; pass what is in the file"
    return ""


def _is_file_name(text: str) -> bool:
    return "\n" not in text and len(text) < _LONGEST_NAME and os.path.isfile(text)


def _read_portable_artifact(name: str, content: bytes, context: ir.Context) -> ir.Module:
    collector = Collector()  # the bindings leave the errors of this one call to handlers
    with collector.listening(context):
        try:
            return stablehlo.deserialize_portable_artifact(context, content)
        except (ir.MLIRError, ValueError):
            hint = note("the file may be damaged, or newer than the installed jaxlib")
    what = "cannot read this portable artifact"
    errors = [replace(each, notes=(*each.notes, hint)) for each in collector.diagnostics[-1:]]
    raise DiagnosedError([each.in_file(name) for each in errors or [Diagnostic(ERROR, what, notes=(hint,))]])


def _exported_artifact(file: ModuleFile) -> bytes:
    from ..platform import compat  # imported where it is needed: its own imports take their time

    try:
        return compat.exported_artifact(file.content)
    except ImportError as error:
        raise _unreadable(file, f"jax cannot read export files here: {error}") from None
    except Exception as error:  # jax's reader may raise anything for a damaged file
        what = " ".join(str(error).split()) or type(error).__name__
        raise _unreadable(file, f"jax cannot read this export file: {what}") from None


def _stablehlo_of_hlo(file: ModuleFile) -> bytes:
    from ..platform import compat

    if _COMPILED_HLO.match(file.content):
        hint = note("pass what it was compiled from, such as `lowered.as_text()` of `lowered = jax.jit(f).lower(...)`")
        raise _unreadable(file, "this HLO is a compiled program (is_scheduled=true): XLA has partitioned it", hint)
    try:
        return compat.stablehlo_of_hlo(file.text)
    except ImportError:
        raise _unreadable(
            file, "this jaxlib cannot convert HLO; pass the module as StableHLO text or bytecode"
        ) from None
    except Exception as error:
        hint = note(
            "XLA's own converter says so; if this HLO is from after partitioning or fusion, pass StableHLO instead"
        )
        raise _unreadable(file, f"cannot convert this HLO: {' '.join(str(error).split())}", hint) from None


def _unreadable(file: ModuleFile, message: str, *notes: Diagnostic) -> DiagnosedError:
    return DiagnosedError([Diagnostic(ERROR, message, Place(file.name), notes)])


def _legalized(module: ir.Module, file: ModuleFile) -> ir.Module:
    """Returns the module with versioned StableHLO (VHLO), which portable artifacts consist of, as StableHLO."""
    if not any(op.operation.name.startswith("vhlo.") for op in module.body.operations):
        return module
    passes = f"vhlo-to-version{{target={stablehlo.get_current_version()}}},vhlo-legalize-to-stablehlo"
    with module.context:
        passmanager.PassManager.parse(f"builtin.module({passes})").run(module.operation)
    return module


def to_bytes(
    module: ir.Module, form: str = TEXT, *, debug_info: bool = False, source: ModuleFile | None = None, **printing
) -> bytes:
    """Returns the module in one of the forms; text ends in one newline.

    Args:
      debug_info: whether text has locations. printing: how else text is printed, as `ir.Operation.get_asm` takes it.
      source: the file whose calling convention is kept for EXPORTED, and whose StableHLO version for PORTABLE.
    For these two the bindings convert `module` itself to versioned StableHLO (VHLO): it is the last thing to do with
    it.
    Raises: DiagnosedError if the module cannot be written in this form.
    """
    if form == TEXT:
        return as_text(module, enable_debug_info=debug_info, **printing).rstrip("\n").encode() + b"\n"
    if form == BYTECODE:
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        return buffer.getvalue()
    artifact = _to_portable_artifact(module, source)
    return artifact if form == PORTABLE else _to_exported(artifact, present(source))


def as_text(module: ir.Module | ir.Operation, **printing) -> str:
    """Returns the module as text that MLIR can read, printed as `ir.Operation.get_asm` takes it."""
    text = asm_of(module.operation, **printing)
    if "stablehlo.while" not in text or not _DYNAMIC.search(text):
        return text
    from .ops import ops_in

    is_readable = not any(map(_has_two_types, ops_in(module.operation)))
    return text if is_readable else asm_of(module.operation, **{**printing, "print_generic_op_form": True})


def _has_two_types(op: ir.Operation) -> bool:
    """Returns whether a loop's operands have other types than the arguments in it: the short form of a loop says one of
    them."""
    if op.name != "stablehlo.while":
        return False
    types = [value.type for value in op.operands]
    return any([argument.type for argument in region.blocks[0].arguments] != types for region in op.regions)


def _to_portable_artifact(module: ir.Module, source: ModuleFile | None) -> bytes:
    version = source.artifact_version if source else stablehlo.get_current_version()
    collector = Collector()
    with collector.listening(module.context):
        try:
            return stablehlo.serialize_portable_artifact(module, version, allow_other_dialects=True)
        except (ir.MLIRError, ValueError) as error:
            errors = collector.diagnostics[-1:] or [Diagnostic(ERROR, str(error).lower())]
    why = note(f"the module cannot be written as a portable artifact of StableHLO {version}")
    name = source.name if source else ""
    raise DiagnosedError([replace(each, notes=(*each.notes, why)).in_file(name) for each in errors])


def _to_exported(artifact: bytes, source: ModuleFile) -> bytes:
    from ..platform import compat

    try:
        return compat.exported_with_artifact(source.content, artifact)
    except Exception as error:
        message = f"jax cannot write this export file again: {' '.join(str(error).split())}"
        raise _unreadable(source, message, note("--emit-bytecode or --emit-text writes the module alone")) from None


def write(path: str, content: bytes) -> None:
    """Writes standard output for `-`, else the whole file or nothing.

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
        raise file_error("<stdout>" if path == "-" else path, error) from None


def unfinished(path: str, process: int) -> str:
    """Returns the name under which a process writes the file at `path` before it is whole."""
    return f"{os.path.realpath(path)}.{process}.tmp"


def refuse_unwritable(path: str) -> None:
    """Raises DiagnosedError if `path` cannot become a file, before any work is done for it."""
    folder = os.path.dirname(os.path.realpath(path))
    if path == "-":
        return
    if os.path.isdir(path):
        raise DiagnosedError([Diagnostic(ERROR, "cannot write: is a directory", Place(_shown(path)))])
    if not os.path.isdir(folder):
        raise DiagnosedError([Diagnostic(ERROR, "cannot write: no such directory", Place(_shown(path)))])


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
    beside = unfinished(path, os.getpid())
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
    """Returns the name of a file as text, with the numbers of bytes that are no UTF-8, which MLIR does not accept."""
    return "<stdin>" if path == "-" else os.fsencode(path).decode("utf-8", "backslashreplace")
