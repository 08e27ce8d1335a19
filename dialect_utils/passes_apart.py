# SPDX-License-Identifier: Apache-2.0
"""Runs MLIR's passes in a process of their own, for those that may end it: their death is None for an answer.

Run as `python -m reshard.dialect_utils.passes_apart PIPELINE`: a module comes as bytecode on standard input, and leaves so on
standard output.
"""

from __future__ import annotations

import subprocess
import sys

from .bindings import ir, make_context, passmanager

_LONGEST_S = 120.0


def run_apart(module: ir.Operation, pipeline: str, longest_s: float = _LONGEST_S) -> ir.Module | None:
    """Returns what a textual pipeline makes of a copy of a module, in the same context; None where it fails or dies of it.

    Args:
      longest_s: how long it may take. Takes some 0.3 s for the process alone.
    """
    from . import module_files
    from .xla_child import child_environment

    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, pipeline],
            input=module_files.to_bytes(module, module_files.BYTECODE),
            capture_output=True,
            env=child_environment(1),
            timeout=longest_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ir.Module.parse(done.stdout, module.context)


def main() -> None:
    """Does what the module says it is run for."""
    from . import module_files

    context = make_context()
    context.allow_unregistered_dialects = True
    module = ir.Module.parse(sys.stdin.buffer.read(), context)
    with context:
        manager = passmanager.PassManager.parse(sys.argv[1])
    manager.enable_verifier(False)  # the caller has a verified module, and looks at attributes alone
    manager.run(module.operation)
    sys.stdout.buffer.write(module_files.to_bytes(module, module_files.BYTECODE))


if __name__ == "__main__":
    main()
