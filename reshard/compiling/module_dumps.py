# SPDX-License-Identifier: Apache-2.0
"""The option `dump_to`: writes each module to a folder, before and after, with its report.

Each module has a number: `0001.jit_step.before.mlir`, `0001.jit_step.after.mlir` if it was rewritten,
`0001.jit_step.report.txt` and `.json`. Numbers continue after the largest one in the folder. Processes that write to
the same folder do not overwrite each other's files.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

_log = logging.getLogger("reshard.compiling.module_dumps")
_NUMBERED = re.compile(r"(\d{4,})\.")


def dump(folder: str, name: str, before: str, after: str | None, report) -> None:
    """Writes one module; if the folder cannot be written, a warning goes to the log.

    Args:
      after: None if nothing was rewritten. report: has `text()` and `to_dict()`.
    """
    try:
        stem = _claimed(Path(folder), re.sub(r"[^\w.<>-]", "_", name), before)
        if after is not None:
            stem.with_name(f"{stem.name}.after.mlir").write_text(after)
        stem.with_name(f"{stem.name}.report.txt").write_text(report.text())
        stem.with_name(f"{stem.name}.report.json").write_text(json.dumps(report.to_dict(), indent=2) + "\n")
    except OSError as error:
        _log.warning("cannot dump %s to %s: %s", name, folder, (error.strerror or str(error)).lower())


def _claimed(folder: Path, name: str, before: str) -> Path:
    """Writes the first file under the next free number; returns the prefix of the names of all files."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(found[1]) for path in folder.iterdir() if (found := _NUMBERED.match(path.name))), default=0)
    while True:
        stem = folder / f"{number:04}.{name}"
        try:
            with stem.with_name(f"{stem.name}.before.mlir").open("x") as file:
                file.write(before)
            return stem
        except FileExistsError:  # another process was faster
            number += 1
