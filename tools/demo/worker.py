# SPDX-License-Identifier: Apache-2.0
"""One example, compiled and run in a process of its own: by stock XLA, by reshard and then XLA, or on one device.

Run as `python -m reshard.tools.demo.worker NAME stock|ours|one FOLDER`. Each line on stdin is a command, each line on
stdout its reply, a JSON object; what libraries print goes to stderr. XLA may abort this process at any time. Commands,
in order:

  lower    lowers the program (ours: and optimizes it); writes FOLDER/module.mlir, replies with the report
  compile  compiles it and runs it once; writes FOLDER/outputs.npz, replies with the names of the outputs
  run      runs it once more and replies with the seconds; as often as wanted
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

WAYS = ("stock", "ours", "one")


def main(argv: list[str] | None = None) -> int:
    flags = _flags(argv)
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the prints of libraries must not get among the replies
    worker = _Worker(flags)
    commands = {"lower": worker.lower, "compile": worker.compile, "run": worker.run}
    for line in sys.stdin:
        print(json.dumps(_reply(commands[line.strip()])), file=replies)
    return 0


def _flags(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo_worker", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="of the example")
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("folder", type=Path, help="where to write module and outputs")
    parser.add_argument("--size", default="demo", help="of the arrays: demo or small")
    parser.add_argument("--policy", default="better", help="of reshard: better or always")
    return parser.parse_args(argv)


def _reply(command) -> dict:
    try:
        return command()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}


class _Worker:
    """The commands of this process. State: the program after `lower`, its executable after `compile`.

    jax starts with the first command.
    """

    def __init__(self, flags: argparse.Namespace):
        self.flags = flags

    def lower(self) -> dict:
        from examples.programs import program

        entry = program(self.flags.name)
        began = time.perf_counter()
        mesh = _one_device(entry) if self.flags.way == "one" else entry.mesh()
        function, self.args = entry.build(mesh, size=self.flags.size)
        self.lowered = function.lower(*self.args)
        reply = {"summary": entry.summary, "mesh": dict(entry.mesh_axes), "build_seconds": time.perf_counter() - began}
        if self.flags.way == "ours":
            reply |= self._optimize()
        self.module_path.write_text(self.lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=False))
        return reply | {"module": str(self.module_path)}

    @property
    def module_path(self) -> Path:
        return self.flags.folder / "module.mlir"

    def _optimize(self) -> dict:
        import reshard
        from reshard.dialect_utils.xla import child as xla_child

        began = time.perf_counter()
        # With the policy `always` the user wants to see every site rewritten: the check takes nothing back.
        result = reshard.optimize(self.lowered, policy=self.flags.policy, check=self.flags.policy != "always")
        seconds = time.perf_counter() - began
        xla_child.shared_child().close()  # no other process of ours may run while programs are timed
        self.lowered = result.lowered
        return {"report": result.report.to_dict(), "is_rewritten": result.is_rewritten, "optimize_seconds": seconds}

    def compile(self) -> dict:
        import jax
        import numpy as np

        began = time.perf_counter()
        self.executable = self.lowered.compile()
        seconds = time.perf_counter() - began
        self._prepare_copies()
        outputs = self.executable(*self._fresh_args())
        named = [
            (jax.tree_util.keystr(path), np.asarray(leaf))
            for path, leaf in jax.tree_util.tree_leaves_with_path(outputs)
        ]
        path = self.flags.folder / "outputs.npz"
        leaves = {str(number): leaf for number, (_, leaf) in enumerate(named)}
        np.savez(path, **leaves)  # pyright: ignore[reportArgumentType]  # numpy's stub: no name is `allow_pickle`
        return {
            "compile_seconds": seconds,
            "temp_bytes": self.executable.memory_analysis().temp_size_in_bytes,
            "outputs": str(path),
            "names": [name for name, _ in named],
            "dtypes": [leaf.dtype.name for _, leaf in named],
        }

    def run(self) -> dict:
        import jax

        args = self._fresh_args()
        began = time.perf_counter()
        jax.block_until_ready(self.executable(*args))
        return {"seconds": time.perf_counter() - began}

    def _prepare_copies(self) -> None:
        import jax
        import jax.numpy as jnp

        donates = any(info.donated for info in jax.tree.leaves(self.lowered.args_info))
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.args)
        copy = jax.jit(lambda args: jax.tree.map(jnp.copy, args), out_shardings=shardings)
        self._copied = copy if donates else lambda args: args

    def _fresh_args(self) -> tuple:
        """Returns arguments for one run; they are copies if the program donates arguments."""
        import jax

        return jax.block_until_ready(self._copied(self.args))


def _one_device(entry):
    """Returns a mesh of a program's axes over a single device."""
    import jax
    import numpy as np

    names = [name for name, _ in entry.mesh_axes]
    return jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(names)), names)


if __name__ == "__main__":
    sys.exit(main())
