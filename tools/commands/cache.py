# SPDX-License-Identifier: Apache-2.0
"""`reshard cache`: shows how much the caches on disk hold, and clears them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from reshard.synthesis.common import store
from reshard.synthesis.common.numbers import count
from reshard.synthesis.common.store import KINDS, Usage
from reshard.synthesis.common.text_table import table
from reshard.tools.common.command import UserError
from reshard.tools.common.suggestions import meant

SUMMARY = "show how much the caches on disk hold, or clear them"
EPILOG = f"""\
kinds:
{"".join(f"  {kind:<9} {summary}{chr(10)}" for kind, summary in KINDS.items())}
examples:
  reshard cache show                   a table of all kinds
  reshard cache clear                  removes the entries of all kinds, and nothing else in that folder
  reshard cache clear xla results      removes the entries of these kinds

RESHARD_CACHE_DIR names the folder; without it, it is reshard in XDG_CACHE_HOME or in ~/.cache. RESHARD_CACHE=off
switches the caches off: reshard then neither reads nor writes them.
"""
ACTIONS = ("show", "clear")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `reshard cache` to its parser."""
    parser.add_argument(
        "action", choices=ACTIONS, metavar="|".join(ACTIONS), help="show the sizes, or remove the entries"
    )
    parser.add_argument(
        "kinds",
        nargs="*",
        type=_kind,
        default=(),
        metavar="|".join(KINDS),
        help="the caches to show or to clear (default: all)",
    )


def _kind(text: str) -> str:
    if text not in KINDS:
        raise argparse.ArgumentTypeError(f"unknown kind '{text}'; known: {', '.join(KINDS)}{meant(text, KINDS)}")
    return text


def drive(flags: argparse.Namespace) -> int:
    """Prints the table of the caches, or clears them. Returns the exit status: 1 if something could not be removed."""
    try:
        root = store.cache_root()
    except RuntimeError:
        raise UserError("no folder for caches: there is no home directory; set RESHARD_CACHE_DIR") from None
    kinds = [kind for kind in KINDS if kind in flags.kinds] or list(KINDS)
    if flags.action == "clear":
        return _clear(root, kinds)
    print(_shown(root, [store.usage(root, kind) for kind in kinds]))
    return 0


def _shown(root: Path, usages: Sequence[Usage]) -> str:
    """Returns the table of the caches on disk."""
    state = "" if store.is_on() else "\nRESHARD_CACHE switches the caches off: nothing is read or written"
    rows = [_row(each) for each in usages]
    rows.append(("total", _total(usages, "entries"), _total(usages, "size_bytes"), "", "", "", ""))
    headings = ("kind", "entries", "bytes", "versions", "oldest", "newest", "folder")
    return f"{root}{state}\n\n{table(headings, rows, 'lrrrlll')}"


def _row(usage: Usage) -> tuple[str, ...]:
    numbers = (count(each) for each in (usage.entries, usage.size_bytes, usage.versions))
    return (usage.kind, *numbers, _date(usage.oldest_s), _date(usage.newest_s), f"{usage.kind}-*")


def _total(usages: Sequence[Usage], column: str) -> str:
    return count(sum(getattr(each, column) for each in usages))


def _date(time_s: float | None) -> str:
    """Returns a time as text in the local time zone, or "-" for None."""
    return "-" if time_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(time_s))


def _clear(root: Path, kinds: Sequence[str]) -> int:
    """Removes the entries of some kinds and prints their numbers. Raises: UserError if entries are left."""
    for kind in kinds:
        gone = store.clear(root, kind)
        print(f"{kind}: removed {_entries(gone)} of {_versions(gone)}, {count(gone.size_bytes)} bytes")
    left = [found for kind in kinds if (found := store.usage(root, kind)).entries]
    if left:
        said = "; ".join(f"{each.kind}: {_entries(each)}" for each in left)
        raise UserError(f"cannot remove everything in {root}; left are {said}")
    return 0


def _entries(usage: Usage) -> str:
    return f"{count(usage.entries)} entr{'y' if usage.entries == 1 else 'ies'}"


def _versions(usage: Usage) -> str:
    return f"{count(usage.versions)} version{'' if usage.versions == 1 else 's'}"
