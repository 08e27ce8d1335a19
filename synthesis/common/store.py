# SPDX-License-Identifier: Apache-2.0
"""The store on disk that all caches of reshard share: plans, results, site records and XLA's answers.

**Place.** `RESHARD_CACHE_DIR` names the folder of all caches; without it, it is `reshard` in `XDG_CACHE_HOME` or in
`~/.cache`. `RESHARD_CACHE=off` switches all caches off: nothing is written and nothing is read.

    <folder of all caches>/<kind>-<start of the fingerprint>/<key>.entry

**Fingerprints.** A cache has a fingerprint: a digest of the sources that its values depend on, sub-folders included,
and of versions. Each fingerprint has a folder of its own, so a changed reshard never reads the values of another one.

**Keys.** A key is a digest of everything else that the value depends on.

**Damage.** An entry begins with a digest of its key and its bytes. An entry that does not match its digest, or that the
cache cannot decode, counts as missing and is removed. Pipes, folders and other things in the place of an entry count as
missing, too. Nothing here raises an error because of what lies on disk; what cannot be written is not kept.

**Processes.** Any number of processes may read and write at the same time, without locks: an entry is written to a file
of its own and renamed, so a reader sees all of it or nothing, and two writers of one key write the same value.

**Limits.** A cache has a limit for the size of an entry, for the number and the total size of the entries of one
version, and for the number of versions. The oldest go first. A process lists the folder of a version when it first
writes there, and again when it has filled the room that it found; several processes that write at the same time may
exceed a limit by what they write.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

_OFF = ("off", "0", "no", "false")
_SUFFIX = ".entry"
_DIGEST_LENGTH = 64  # letters of a SHA-256 digest
_VERSION_LENGTH = 16  # letters of a fingerprint in the name of a folder
_SOURCES = (".py", ".toml")
# Files that reshard has written, those of earlier forms of the caches included; anything else is never removed.
_OUR_FILES = re.compile(r"[0-9a-f]{64}\.(entry|json|result)|[0-9a-f]{16}\.tmp")
_OUR_SUBFOLDERS = re.compile(r"[0-9a-f]{2}")
_OUR_FOLDERS = re.compile(r"(?P<kind>[a-z]+)-([0-9a-f]{16}|[0-9][0-9a-z.]*-cpu)")

# What each kind of cache holds; a `Store` has one of these kinds.
KINDS = {
    "plans": "chains of collectives that took a long search",
    "results": "modules that the whole pipeline has rewritten",
    "sites": "plans and decisions at the sites of modules",
    "xla": "results of compiling modules with XLA",
}

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a cache keeps.

    Attributes:
      entry_bytes: the most bytes of one entry; a larger one is not kept.
      entries, total_bytes: the most entries, and the most bytes, of one version.
      versions: folders of different fingerprints.
    """

    entry_bytes: int
    entries: int
    total_bytes: int
    versions: int = 4


@dataclass(frozen=True)
class Store:
    """One cache on disk: bytes by key.

    Attributes:
      kind: one of `KINDS`. limits: the most that is kept.
      packages: the packages whose sources belong to the fingerprint, such as "reshard.synthesis", sub-folders included.
      facts: returns what else belongs to the fingerprint, such as versions; if it raises ImportError nothing is kept.
      root: the folder of all caches; None for the one that the environment names at each call.

    State: `_room` has, for each folder that this process has written to, how many entries and bytes may still be
    written before the folder must be listed again.
    """

    kind: str
    limits: Limits
    packages: tuple[str, ...]
    facts: Callable[[], object] = tuple
    root: Path | None = None
    _room: dict[Path, tuple[int, int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"'{self.kind}' is no kind of cache; the kinds are {', '.join(KINDS)}")

    def fingerprint(self) -> str | None:
        """Returns the digest of the sources and facts that all values depend on; None if they cannot be told."""
        return fingerprint(self.packages, self.facts)

    def folder(self) -> Path | None:
        """Returns the folder of the entries of this version, which need not exist; None if nothing is kept."""
        root = self.root or place()
        if root is None:
            return None
        version = self.fingerprint()
        return None if version is None else root / f"{self.kind}-{version[:_VERSION_LENGTH]}"

    def read(self, key: str, decode: Callable[[bytes], Value]) -> Value | None:
        """Returns the decoded value of a key; None if there is none.

        Args:
          decode: makes a value of the bytes that were written. If it raises any exception the entry is damaged.
        """
        folder = self.folder()
        if folder is None:
            return None
        path = os.path.join(folder, f"{key}{_SUFFIX}")
        try:
            entry = read(path, self.limits.entry_bytes + _DIGEST_LENGTH + 1)
        except (OSError, ValueError):
            return None
        try:
            return decode(opened(key, entry))
        except Exception:  # whatever is wrong with an entry, it can be made anew
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None

    def write(self, key: str, value: bytes) -> None:
        """Keeps a value, if there is a place for it and it is not too large."""
        folder = self.folder()
        if folder is None or len(value) > self.limits.entry_bytes:
            return
        entry = sealed(key, value)
        with contextlib.suppress(OSError):
            if not folder.exists():
                _drop_old_versions(folder.parent, self.kind, self.limits.versions - 1)
                folder.mkdir(parents=True, exist_ok=True)
            self._make_room(folder, len(entry))
            replace(folder / f"{key}{_SUFFIX}", entry)

    def _make_room(self, folder: Path, size: int) -> None:
        """Removes old entries if the limits leave no room for one more of `size` bytes."""
        entries, room = self._room.get(folder, (0, 0))
        if entries < 1 or room < size:
            entries, room = self._pruned(folder, size)
        self._room[folder] = entries - 1, room - size

    def _pruned(self, folder: Path, size: int) -> tuple[int, int]:
        """Returns how many more entries and bytes there is room for, once the oldest entries of a full folder are gone.

        A folder that is full loses an eighth of what the limits allow, so that it need not be listed at each write.
        """
        files = sorted(_files(folder), reverse=True)
        entries, room = self.limits.entries, self.limits.total_bytes - size
        if len(files) >= entries or _size(files) > room:
            files = _newest(files, entries - entries // 8 - 1, room - room // 8)
        return entries - len(files), self.limits.total_bytes - _size(files)


# ---- place


def is_on() -> bool:
    """Returns whether anything is kept on disk."""
    return os.environ.get("RESHARD_CACHE", "").strip().lower() not in _OFF


def cache_root() -> Path:
    """Returns the folder that all caches are in; it need not exist.

    Raises: RuntimeError if no variable names a folder and there is no home directory.
    """
    if own := os.environ.get("RESHARD_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reshard"


def place() -> Path | None:
    """Returns the folder that all caches are in; None if they are switched off or there is no place for them."""
    try:
        return cache_root() if is_on() else None
    except RuntimeError:
        return None


# ---- fingerprints and keys


@functools.cache
def fingerprint(packages: tuple[str, ...], facts: Callable[[], object] = tuple) -> str | None:
    """Returns a digest of all sources of some packages and of facts; None if the sources are no files, or a package is
    missing."""
    try:
        digests = [_digest_of_sources(_folder_of_package(name)) for name in packages]
        return key(repr(facts()), *digests)
    except (OSError, ImportError, AttributeError, TypeError, ValueError):
        return None


def _folder_of_package(name: str) -> str:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{name} is no package in a folder")
    return spec.submodule_search_locations[0]


@functools.cache
def _digest_of_sources(folder: str) -> str:
    """Returns a digest of the sources in a folder and in all of its sub-folders. Packages that share a folder read it
    once."""
    parts: list[str | bytes] = []
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.endswith(_SOURCES):
            with open(entry.path, "rb", buffering=0) as file:
                parts += [entry.name, file.read()]
        elif entry.name != "__pycache__" and entry.is_dir():
            parts += [entry.name, _digest_of_sources(entry.path)]
    return key(*parts)


def key(*parts: str | bytes) -> str:
    """Returns a digest of some texts, each with its length: other texts have another digest.

    Example:
      >>> key("ab", "c") != key("a", "bc")
      True
    """
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(b"%d\n" % len(content))
        digest.update(content)
    return digest.hexdigest()


# ---- entries


def sealed(key: str, value: bytes) -> bytes:
    """Returns the bytes of the entry that keeps a value under a key."""
    return _digest_of_entry(key, value) + b"\n" + value


def opened(key: str, entry: bytes) -> bytes:
    """Returns the value in an entry. Raises: ValueError if it is not what `sealed` made for this key."""
    digest, value = entry[:_DIGEST_LENGTH], entry[_DIGEST_LENGTH + 1 :]
    if _digest_of_entry(key, value) != digest:
        raise ValueError("the entry is not what was written")
    return value


def _digest_of_entry(key: str, value: bytes) -> bytes:
    digest = hashlib.sha256(f"{key}\n".encode())
    digest.update(value)
    return digest.hexdigest().encode()


# ---- files


def read(path: str | Path, most_bytes: int) -> bytes:
    """Returns the bytes of a file, or the first `most_bytes`.

    Raises: OSError if there is no file, or something else is in its place; a pipe is not waited for.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        return _read_all(handle, min(status.st_size, most_bytes))
    finally:
        os.close(handle)


def _read_all(handle: int, size: int) -> bytes:
    """Returns the next bytes of a file, fewer if it ends before; a single read may return fewer than there are."""
    content = os.read(handle, size)
    while len(content) < size and (more := os.read(handle, size - len(content))):
        content += more
    return content


def replace(path: Path, content: bytes) -> None:
    """Writes a file, wholly or not at all, in a folder that exists. Raises: OSError, and leaves nothing behind."""
    unfinished = path.with_name(f"{os.urandom(8).hex()}.tmp")  # the module tempfile takes long to load
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(content)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


@dataclass(frozen=True, slots=True, order=True)
class _File:
    """A file that reshard has written; files are ordered by the time of their last change."""

    changed_ns: int
    path: Path
    size: int


def _files(folder: Path) -> Iterator[_File]:
    """Yields the files in a folder, sub-folders included, that reshard has written. Links are not followed."""
    for path, _, names in os.walk(folder):
        for name in filter(_OUR_FILES.fullmatch, names):
            with contextlib.suppress(OSError):  # another process may remove it
                status = os.lstat(os.path.join(path, name))
                if stat.S_ISREG(status.st_mode):
                    yield _File(status.st_mtime_ns, Path(path, name), status.st_size)


def _version_folders(root: Path, kind: str) -> list[Path]:
    """Returns the folders of a kind in the folder of all caches, one for each version."""
    try:
        with os.scandir(root) as found:
            names = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    matches = filter(None, map(_OUR_FOLDERS.fullmatch, sorted(names)))
    return [root / match[0] for match in matches if match["kind"] == kind]


def _drop_old_versions(root: Path, kind: str, most: int) -> None:
    """Removes the entries of all versions of a kind except the newest ones."""
    folders = [folder for folder in _version_folders(root, kind) if any(_files(folder))]
    dated = [(folder.stat().st_mtime_ns, folder) for folder in folders]
    for _, folder in sorted(dated, reverse=True)[most:]:
        _removed(folder)


def _newest(files: list[_File], entries: int, room: int) -> list[_File]:
    """Returns the first files that fit into some entries and bytes, newest first; removes the others."""
    sizes = itertools.accumulate(file.size for file in files)
    kept = sum(number <= entries and size <= room for number, size in enumerate(sizes, start=1))
    for file in files[kept:]:
        file.path.unlink(missing_ok=True)
    return files[:kept]


def _size(files: Iterable[_File]) -> int:
    return sum(file.size for file in files)


def _removed(folder: Path) -> list[_File]:
    """Removes the files in a folder that reshard has written, and the folder if nothing else is in it. Returns the
    files that are gone."""
    gone = []
    for file in _files(folder):
        with contextlib.suppress(OSError):
            file.path.unlink()
            gone.append(file)
    for path, _, _ in os.walk(folder, topdown=False):
        if path == str(folder) or _OUR_SUBFOLDERS.fullmatch(os.path.basename(path)):
            with contextlib.suppress(OSError):
                os.rmdir(path)
    return gone


# ---- what people ask


@dataclass(frozen=True, slots=True)
class Usage:
    """The files of one kind of cache.

    Attributes:
      entries, size_bytes, versions: number of files, their size and the number of folders that have any.
      oldest_s, newest_s: when the first and the last file was written, in seconds since 1970; None without files.
    """

    kind: str
    entries: int
    size_bytes: int
    versions: int
    oldest_s: float | None
    newest_s: float | None


def usage(root: Path, kind: str) -> Usage:
    """Returns what lies on disk of a kind of cache, in the folder of all caches."""
    versions = [found for folder in _version_folders(root, kind) if (found := list(_files(folder)))]
    return _usage(kind, [file for files in versions for file in files], len(versions))


def clear(root: Path, kind: str) -> Usage:
    """Removes the entries of a kind of cache, of all versions, and nothing else. Returns what it has removed."""
    versions = [gone for folder in _version_folders(root, kind) if (gone := _removed(folder))]
    return _usage(kind, [file for files in versions for file in files], len(versions))


def _usage(kind: str, files: list[_File], versions: int) -> Usage:
    times_s = [file.changed_ns / 1e9 for file in files]
    return Usage(kind, len(files), _size(files), versions, min(times_s, default=None), max(times_s, default=None))
