#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reshard: the command that plans and explains redistributions of one array, and more, see `reshard --help`.

Its other commands measure networks, verify modules, read logs, run benchmarks and clear caches. At start-up it imports
neither jax nor MLIR.
"""

from __future__ import annotations

import argparse
import os
import sys

if not __package__:  # run as a file: `reshard.py` in this folder must not hide the package `reshard`
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from reshard.tools.common import command


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 for success, 1 after a diagnostic; `verify` has more of them.

    Raises SystemExit(2) for a wrong command line.
    """
    is_command = argv is None
    if is_command:
        command.prepare_streams()
    argv = sys.argv[1:] if is_command else argv
    return command.run(lambda: _answer(argv, is_command), "reshard", argv, is_process=is_command)


def _answer(argv: list[str], is_command: bool) -> int:
    from reshard.tools.commands.flags import make_parser, output_files, parse_flags

    flags = parse_flags(argv)
    if flags.version:
        return command.print_versions()
    if flags.completion:
        return command.print_completion(make_parser(), flags.completion)
    for path in output_files(flags).values():
        command.refuse_unwritable(path)
    return _drive(flags, is_command)


def _drive(flags: argparse.Namespace, is_command: bool) -> int:
    if flags.command == "calibrate":
        from reshard.tools.commands.calibrate import drive
    elif flags.command == "verify":
        from reshard.tools.commands.module_verify import contained_drive, drive

        drive = contained_drive if is_command else drive
    elif flags.command == "bench":
        from reshard.tools.commands.bench import drive
    elif flags.command == "cache":
        from reshard.tools.commands.cache import drive
    elif flags.command == "traffic":
        from reshard.tools.commands.traffic import contained_drive, drive

        drive = contained_drive if is_command else drive
    elif flags.command == "auto":
        from reshard.tools.commands.auto import contained_drive, drive

        drive = contained_drive if is_command else drive
    elif flags.command == "advise":
        from reshard.tools.commands.advise import contained_drive, drive

        drive = contained_drive if is_command else drive
    elif flags.command == "place":
        from reshard.tools.commands.place import contained_drive, drive

        drive = contained_drive if is_command else drive
    elif flags.command == "fix-warnings":
        from reshard.tools.commands.fix_warnings import contained_drive, drive

        drive = contained_drive if is_command else drive
    else:
        from reshard.tools.commands.plan import drive
    return drive(flags)


if __name__ == "__main__":
    sys.exit(main())
