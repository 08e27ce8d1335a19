#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reshard-opt: runs passes over StableHLO modules, as mlir-opt does. At start-up it does not import jax."""

from __future__ import annotations

import argparse
import gc
import os
import sys

if not __package__:  # run as a file: `reshard.py` in this folder must not hide the package `reshard`
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from reshard.tools.common import command  # others are imported later: this one handles Ctrl-C


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 for success, 1 after a diagnostic. Raises SystemExit(2) for a wrong command line.

    Without `argv` it is the command itself. Then a child process does the work, and the child's death is a diagnostic;
    this process ends with the status instead of returning it.
    """
    if argv is None:
        command.prepare_streams()
    given = sys.argv[1:] if argv is None else argv
    if argv is not None:
        return command.run(lambda: _answer(given), "reshard-opt", given)
    from reshard.tools.common import contained

    return contained.leave(command.run(lambda: _answer_contained(given), "reshard-opt", given, is_process=True))


def _answer(given: list[str]) -> int:
    from reshard.tools.opt.flags import parse_flags

    flags, parser = parse_flags(given)
    if flags.version:
        return command.print_versions()
    if flags.completion:
        return command.print_completion(parser, flags.completion)
    return _drive(flags, parser)


def _answer_contained(given: list[str]) -> int:
    from reshard.tools.opt.flags import asks_for_no_module, parse_flags

    flags, parser = parse_flags(given)
    if flags.version or flags.completion or asks_for_no_module(flags):
        return _answer(given)
    from reshard.tools.common import contained
    from reshard.tools.opt.death import KeptStdin, leave_reproducer

    name = "<stdin>" if flags.input in (None, "-") else flags.input
    outputs = [path for path in (flags.output, flags.report_file) if path and path != "-"]
    stdin = KeptStdin(is_input=flags.input in (None, "-"))

    def work() -> int:
        # a run leaves little garbage in cycles, and to search all objects of a large module for it takes long
        gc.disable()
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads, which are not used here
        stdin.read_in_child()
        return _drive(flags, parser)

    def on_death(stage: str, what: str) -> None:
        stdin.reread()
        leave_reproducer(flags, stage, what)

    return contained.run(work, name, outputs, on_death)


def _drive(flags: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from reshard.tools.opt.driver import drive
    from reshard.tools.opt.flags import pipeline_text

    return drive(flags, pipeline_text(flags), parser.error)


if __name__ == "__main__":
    sys.exit(main())
