# SPDX-License-Identifier: Apache-2.0
"""Diagnostics as MLIR tools print them: `file:line:col: error: message`, the source line, a caret, notes.

The bindings hand MLIR's own errors over as `ir.MLIRError` and its other diagnostics to a handler, and can emit nothing
but errors themselves. So this module has its own plain `Diagnostic`, and turns MLIR's into it.

Messages are lower case without a full stop, name both values that disagree in the user's notation, and hold no Python
names.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..platform.bindings import ir

ERROR, WARNING, REMARK, NOTE = "error", "warning", "remark", "note"

# The first file location inside any location: a name's child, the first of a fused one, the callee of a call site.
_FILE_LOCATION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)(?: to (\d*):(\d+))?')
# Installed packages, Python's own modules, and code without a file.
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3[^/\\]*[/\\]|[/\\]jax[/\\]_src[/\\]|^<frozen "
)
_PACKAGE = re.compile(r"[/\\](site|dist)-packages[/\\]([^/\\.]+)([/\\].*)$")
# Packages of which programs are made, in contrast to those that hold whole models, trainers or layers of a company.
FRAMEWORKS = frozenset(
    "absl beartype chex diffrax einops equinox flax grain haiku jax jaxlib jaxtyping jmp lineax numpy numpyro "
    "optax optimistix orbax penzai qwix reshard scipy torch torchax typeguard".split()
)
_FOLDERS = ("dialect_utils", "passes", "reshard", "synthesis", "tools")  # of a checkout, beside programs
_OURS = tuple(str(Path(__file__).resolve().parents[2] / each) + os.sep for each in _FOLDERS)
_ESCAPED_BYTE = re.compile(r"\\([0-9A-Fa-f]{2})")
_FILE_LINE_COL = getattr(ir, "FileLineColLoc", None)  # old bindings have one class for all kinds of locations
# MLIR appends the whole operation to every error at an op; the location says as much in one line.
_OPERATION_DUMP = "see current operation"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a source file; line and column count from 1, and line 0 means the file as a whole.

    `end` is the line and column behind what begins there, if that is known; it makes no other place.
    """

    file: str
    line: int = 0
    column: int = 0
    end: tuple[int, int] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message of the compiler. `severity`: ERROR, WARNING, REMARK or NOTE. `place`: None if MLIR knows none."""

    severity: str
    message: str
    place: Place | None = None
    notes: tuple[Diagnostic, ...] = ()

    def text(self, sources: Mapping[str, str] | None = None) -> str:
        """Returns the diagnostic as printed; `sources` maps a file to its text, to show the line and a caret."""
        head = f"{self.place}: " if self.place else ""
        shown = [f"{head}{self.severity}: {self.message}", *_excerpt(self.place, sources or {})]
        return "\n".join([*shown, *(note.text(sources) for note in self.notes)])

    def __str__(self) -> str:
        return self.text()

    def in_file(self, name: str) -> Diagnostic:
        """Returns this diagnostic with `name` where MLIR has `-` or no place at all."""
        place = Place(name) if self.place is None else self.place
        if place is self.place and place.file != "-" and not self.notes:
            return self
        if place.file == "-":
            place = replace(place, file=name)
        return replace(self, place=place, notes=tuple(note._note_in_file(name) for note in self.notes))

    def _note_in_file(self, name: str) -> Diagnostic:
        return self if self.place is None else self.in_file(name)


class DiagnosedError(Exception):
    """A mistake of the user, explained by `diagnostics`; drivers print them and exit with 1."""

    def __init__(self, diagnostics: Sequence[Diagnostic]):
        super().__init__("\n".join(map(str, diagnostics)))
        self.diagnostics = tuple(diagnostics)


@dataclass
class Collector:
    """Keeps diagnostics in the order of their emission."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

    def emit(self, where, severity: str, message: str, notes: Sequence[Diagnostic] = ()) -> Diagnostic:
        """Collects and returns a diagnostic at `where` (see `place_of`)."""
        made = Diagnostic(severity, message, place_of(where), tuple(notes))
        self.diagnostics.append(made)
        return made

    def having(self, severity: str) -> list[Diagnostic]:
        """Returns the diagnostics of one severity."""
        return [each for each in self.diagnostics if each.severity == severity]

    @contextlib.contextmanager
    def listening(self, context: ir.Context) -> Iterator[None]:
        """Collects MLIR's diagnostics in `context`, except errors, which the bindings put into `ir.MLIRError`."""
        handler: Any = context.attach_diagnostic_handler(self._handle)  # the bindings declare an `object`
        try:
            yield
        finally:
            handler.detach()

    def _handle(self, diagnostic) -> bool:
        self.diagnostics.append(from_mlir(diagnostic))
        return True


def note(message: str, where=None) -> Diagnostic:
    """Returns a note to attach to another diagnostic."""
    return Diagnostic(NOTE, message, place_of(where))


def error_at(where, message: str, *notes: Diagnostic) -> DiagnosedError:
    """Returns the exception of a single error, to be raised.

    Example: `raise error_at(op, "cannot reshard ...", note("mesh @mesh declared here", mesh_op))`
    """
    return DiagnosedError([Diagnostic(ERROR, message, place_of(where), notes)])


def place_of(where) -> Place | None:
    """Returns the file, line and column of an operation, value, location or place; None if it has none.

    In a chain of calls the innermost call outside of libraries counts, if there is one. The text of a location is the
    same in every version of the bindings; its classes and accessors are not. So the text is read, except for the most
    frequent kind of location, if the bindings have accessors for it.
    """
    if where is None or isinstance(where, Place):
        return where
    location: Any = _location(where)  # its class and accessors differ between versions of the bindings
    if _FILE_LINE_COL is not None and isinstance(location, _FILE_LINE_COL):
        with contextlib.suppress(UnicodeDecodeError, RuntimeError):  # a name that is no text
            return Place(location.filename, location.start_line, location.start_col)
    places = [_place(found) for found in _FILE_LOCATION.finditer(str(location))]
    return next((each for each in places if not is_in_library(each.file)), places[0] if places else None)


def text_of_location(where) -> str:
    """Returns the location of an operation, value or location as MLIR prints it."""
    return str(_location(where))


def place_in(text: str) -> Place | None:
    """Returns the first place in the text of a location, in any file; None if there is none."""
    found = _FILE_LOCATION.search(text)
    return found and _place(found)


def is_in_library(file: str) -> bool:
    """Returns whether a file belongs to an installed package, to reshard or to Python, not to the user's program."""
    return _LIBRARY.search(file) is not None or file.startswith(_OURS)


def package_path(file: str) -> str:
    """Returns the path of a file inside the folder of installed packages, such as maxtext/layers/linears.py; empty for
    other files, and for those of packages on which models are built, such as flax.

    Example:
      >>> package_path("/env/lib/python3.12/site-packages/maxtext/train.py"), package_path("/site-packages/jax/x.py")
      ('maxtext/train.py', '')
    """
    found = _PACKAGE.search(file)
    return "" if found is None or found[2] in FRAMEWORKS else f"{found[2]}{found[3]}"


def _place(found: re.Match) -> Place:
    file = _ESCAPED_BYTE.sub(lambda byte: chr(int(byte[1], 16)), found[1])
    end = None if found[5] is None else (int(found[4] or found[2]), int(found[5]))
    return Place(file, int(found[2]), int(found[3]), end)


def _location(where) -> ir.Location:
    if isinstance(where, ir.Value):
        return _location_of_value(where)
    return where if isinstance(where, ir.Location) else where.location


def _location_of_value(value: ir.Value) -> ir.Location:
    owner = value.owner  # the block of an argument, the operation of a result
    return owner.owner.location if isinstance(owner, ir.Block) else owner.location


def from_mlir(diagnostic) -> Diagnostic:
    """Returns our form of an `ir.Diagnostic` or `ir.DiagnosticInfo`, without the dump of the operation."""
    severity = str(diagnostic.severity).rsplit(".", 1)[-1].lower()
    notes = tuple(from_mlir(each) for each in diagnostic.notes if not _message(each).startswith(_OPERATION_DUMP))
    return Diagnostic(severity, _message(diagnostic), place_of(diagnostic.location), notes)


def _message(diagnostic) -> str:
    try:
        return diagnostic.message.strip()
    except RuntimeError as error:
        if not is_bad_string(error):
            raise
        return "MLIR's message quotes bytes of the file that are no UTF-8 text"


def is_bad_string(error: Exception) -> bool:
    """Returns whether an exception is how the bindings fail on a string that is no UTF-8 text."""
    return isinstance(error, UnicodeDecodeError) or (
        isinstance(error, RuntimeError) and "conversion error!" in str(error)
    )


def from_mlir_error(error: ir.MLIRError) -> list[Diagnostic]:
    """Returns the diagnostics of an error of the bindings; one made of its text where MLIR reported none."""
    reported = [from_mlir(each) for each in error.error_diagnostics]
    return reported or [Diagnostic(ERROR, str(error).strip().rstrip(":").lower())]


@functools.lru_cache(maxsize=4)
def _lines(text: str) -> list[str]:
    """Returns the lines of a source; a module with many remarks is split once."""
    return text.split("\n")


def _excerpt(place: Place | None, sources: Mapping[str, str]) -> list[str]:
    """Returns the source line and a caret under the column; nothing if the source is not at hand or binary."""
    if place is None or place.line == 0 or place.file not in sources:
        return []
    lines = _lines(sources[place.file])
    if place.line > len(lines):
        return []
    line = lines[place.line - 1].expandtabs(1)
    return [line, " " * (place.column - 1) + "^"] if line.isprintable() else []
