# SPDX-License-Identifier: Apache-2.0
"""Runs passes of MLIR that may end the process in a child process.

The child is `python -m reshard.dialect_utils.analysis.isolated_passes PIPELINE`. It reads a module as bytecode from
standard input, and writes it as bytecode to standard output.
"""

from __future__ import annotations

import subprocess
import sys

from ..platform.bindings import ir, make_context, passmanager

_LONGEST_S = 120.0


def run_in_child(module: ir.Operation, pipeline: str, longest_s: float = _LONGEST_S) -> ir.Module | None:
    """Returns a copy of a module after a textual pipeline, in the same context; None if the child fails or dies.

    Args:
      longest_s: how long the child may take. The process alone takes some 0.3 s.
    """
    from ..ir import module_files
    from ..xla.child import child_environment

    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, pipeline],
            # An op has what bytecode is written from, `.operation`, as a module has
            input=module_files.to_bytes(module, module_files.BYTECODE),  # pyright: ignore[reportArgumentType]
            capture_output=True,
            env=child_environment(1),
            timeout=longest_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ir.Module.parse(done.stdout, module.context)


def main() -> None:
    """Runs the pipeline of the command line on the module from standard input."""
    from ..ir import module_files

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
