#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reshard: plans redistributions of one array, explains them, measures networks. Neither jax nor MLIR is imported at start-up."""

from __future__ import annotations

import argparse
import os
import sys

if not __package__:  # run as a file: this folder holds `reshard.py`, which must not shadow the package
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from reshard.tools import command


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 diagnosed. Raises SystemExit(2) for a wrong command line."""
    argv = sys.argv[1:] if argv is None else argv
    return command.run(lambda: _answer(argv), "reshard", argv)


def _answer(argv: list[str]) -> int:
    from reshard.tools.reshard_flags import parse_flags

    flags = parse_flags(argv)
    if flags.version:
        return command.print_versions()
    return _drive(flags)


def _drive(flags: argparse.Namespace) -> int:
    if flags.command == "calibrate":
        from reshard.tools.reshard_calibrate import drive
    else:
        from reshard.tools.reshard_plan import drive
    return drive(flags)


if __name__ == "__main__":
    sys.exit(main())
