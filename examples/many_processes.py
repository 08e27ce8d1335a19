# SPDX-License-Identifier: Apache-2.0
"""A job of several processes on this machine: they share a program, plan it once, and run the same executable.

    python3 examples/many_processes.py                        # 4 processes with 2 CPU devices each
    python3 examples/many_processes.py --policy better,always   # process 1 asks for something else; see what is told

On a cluster each process is started by the scheduler, and `jax.distributed.initialize()` finds the others by itself;
the part from `run` on is what your own script does.
"""

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEVICES = 8  # number of devices of all processes
LIMIT_S = 300


def run(process: int, processes: int, address: str, policy: str) -> dict:
    """Runs the program of issue 21562 in one process, through `reshard.jit`, and returns its result."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator_address=address, num_processes=processes, process_id=process)

    import jax.numpy as jnp
    from jax.lax import with_sharding_constraint
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    import reshard

    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    source, target = NamedSharding(mesh, P("y", None, "x")), NamedSharding(mesh, P(None, ("x", "y"), None))

    def function(a):
        return with_sharding_constraint(a + 1, target)

    cube = jax.jit(lambda: jnp.arange(32.0**3).reshape(32, 32, 32), out_shardings=source)()
    result = reshard.optimize(jax.jit(function).lower(cube), policy=policy)
    compiled = result.compile()
    moved = compiled(cube)
    expected = jnp.arange(32.0**3).reshape(32, 32, 32) + 1
    report = result.report.to_dict()
    return {
        "process": process,
        "devices": len(jax.local_devices()),
        "chains": [site["chain"] for site in report["sites"] if site["is_rewritten"]],
        "warnings": report["warnings"],
        "module": digest(result.module),
        "executable": digest(compiled.as_text()),
        "is_right": all((shard.data == expected[shard.index]).all().item() for shard in moved.addressable_shards),
    }


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=4, choices=(2, 4, 8))
    parser.add_argument(
        "--policy",
        default="better",
        help="the policy of process 0, process 1, ...; the last one is used for all others",
    )
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.process is not None:
        print(json.dumps(run(flags.process, flags.processes, flags.address, flags.policy)))
        return 0
    policies = flags.policy.split(",")
    policies += policies[-1:] * (flags.processes - len(policies))
    return show(start(flags.processes, policies))


def start(processes: int, policies: list[str]) -> list[dict]:
    """Starts all processes of a job and returns their outputs."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    each = DEVICES // processes
    steering = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(each)}
    steering["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={each}"
    search_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, __file__, "--processes", str(processes), "--address", address]
    started = [
        subprocess.Popen(
            [*command, "--process", str(process), "--policy", policy],
            env={**os.environ, **steering, "PYTHONPATH": search_path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process, policy in enumerate(policies)
    ]
    try:
        written = [process.communicate(timeout=LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, written):
        if process.returncode:
            sys.exit(errors)
    return [json.loads(out.splitlines()[-1]) for out, _ in written]


def show(told: list[dict]) -> int:
    """Prints each process's result. Returns 0 if all have the same module and executable, and right values."""
    for each in told:
        done = "; ".join(each["chains"]) or "left to XLA"
        print(
            f"process {each['process']}, {each['devices']} devices: {done}; {'right' if each['is_right'] else 'WRONG'}"
        )
    for warning in sorted({warning for each in told for warning in each["warnings"]}):
        print(warning)
    is_same = {what: len({each[what] for each in told}) == 1 for what in ("module", "executable")}
    print("; ".join(f"{'the same' if same else 'ANOTHER'} {what} in all" for what, same in is_same.items()))
    return 0 if all(is_same.values()) and all(each["is_right"] for each in told) else 1


if __name__ == "__main__":
    sys.exit(main())
