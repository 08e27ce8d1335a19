#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reshard: plans redistributions of one array, explains them, measures networks, verifies modules. Neither jax nor MLIR is imported at start-up."""

from __future__ import annotations

import os
import sys

if not __package__:  # run as a file: this folder holds `reshard.py`, which must not shadow the package
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from reshard.tools.reshard_flags import parse_flags


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 diagnosed; `verify` has more. Raises SystemExit(2) for a wrong command line."""
    is_command = argv is None
    argv = sys.argv[1:] if is_command else argv
    flags = parse_flags(argv)
    if flags.version:
        return _print_versions()
    from reshard.tools.reshard_plan import UserError, drive

    if flags.command == "calibrate":
        from reshard.tools.reshard_calibrate import drive
    if flags.command == "verify":
        from reshard.tools.reshard_module_verify import contained_drive, drive

        drive = contained_drive if is_command else drive
    try:
        return drive(flags)
    except UserError as error:
        print(f"reshard: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        from reshard.tools.reproducer import report_crash

        report_crash(error, "reshard", argv, "")
        return 1


def _print_versions() -> int:
    from reshard.tools.versions import versions_text

    print(versions_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
