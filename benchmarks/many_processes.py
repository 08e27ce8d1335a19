# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of agreement between processes, and the gain of redistribution over gloo, on this machine.

    python benchmarks/many_processes.py                  # 4 processes with 2 CPU devices each
    python benchmarks/many_processes.py --processes 2 --programs 20 --mib 64

All processes start on one machine and share its cores. Every figure is that of the slowest process; times are medians
of repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEVICES = 8  # number of devices of all processes together
REPEATS = 5
LIMIT_S = 900
MODES = ("off", "lead", "verify")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=4, choices=(2, 4, 8))
    parser.add_argument("--programs", type=int, default=10, help="programs to agree on")
    parser.add_argument("--mib", type=int, default=64, help="size of the array that moves")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.process is not None:
        print(json.dumps(measured(flags)))
        return 0
    print(f"{flags.processes} processes, {DEVICES // flags.processes} CPU devices each, gloo on loopback\n")
    print("| RESHARD_AGREEMENT | first program, caches off | each further one | one known already |")
    print("|---|---|---|---|")
    for mode in MODES:
        told = started(flags, {"RESHARD_AGREEMENT": mode, "RESHARD_CACHE": "off"})
        first, further, known = (max(each[name] for each in told) for name in ("first_s", "further_s", "known_s"))
        print(f"| {mode} | {first:.2f} s | {further * 1e3:.0f} ms | {known * 1e3:.1f} ms |", flush=True)
    moves = [each["moves"] for each in told]
    print(f"\n| {flags.mib} MiB of float32, mesh x=4,y=2 | stock | reshard | ratio |\n|---|---|---|---|")
    for name in moves[0]:
        stock, ours = (max(each[name][side] for each in moves) for side in ("stock_s", "ours_s"))
        print(f"| {name} | {stock * 1e3:.0f} ms | {ours * 1e3:.0f} ms | {stock / ours:.1f} |")
    return 0


def started(flags: argparse.Namespace, variables: dict[str, str]) -> list[dict]:
    """Runs one job with all its processes, and returns the measurements of each process."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    steering = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES // flags.processes}",
    }
    command = [sys.executable, __file__, *sys.argv[1:], "--address", address]
    search_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    jobs = [
        subprocess.Popen(
            [*command, "--process", str(process)],
            env={**os.environ, **steering, **variables, "PYTHONPATH": search_path},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for process in range(flags.processes)
    ]
    try:
        return [json.loads(job.communicate(timeout=LIMIT_S)[0].splitlines()[-1]) for job in jobs]
    finally:
        for job in jobs:
            job.kill()


def measured(flags: argparse.Namespace) -> dict:
    """Returns the figures of one process: the seconds of `optimize`, and for each move those of stock and ours."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=flags.address, num_processes=flags.processes, process_id=flags.process
    )
    from jax.sharding import AxisType

    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    first_s, *further_s = [_optimize_seconds(mesh, 16 * (2 + number)) for number in range(1 + flags.programs)]
    known_s = [_optimize_seconds(mesh, 32) for _ in range(REPEATS)]
    return {
        "first_s": first_s,
        "further_s": statistics.median(further_s),
        "known_s": statistics.median(known_s),
        "moves": _move_seconds(mesh, flags.mib),
    }


def _optimize_seconds(mesh, size: int) -> float:
    """Returns the time of `reshard.optimize` for a program on cubes of this size; all processes start at once."""
    import jax
    from jax.experimental import multihost_utils
    from jax.lax import with_sharding_constraint
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import reshard

    cube = jax.ShapeDtypeStruct((size,) * 3, "float32", sharding=NamedSharding(mesh, P("y", None, "x")))
    target = NamedSharding(mesh, P(None, ("x", "y"), None))
    lowered = jax.jit(lambda a: with_sharding_constraint(a + 1, target)).lower(cube)
    multihost_utils.sync_global_devices(f"optimize {size}")
    start_s = time.perf_counter()
    reshard.optimize(lowered)
    return time.perf_counter() - start_s


def _move_seconds(mesh, mib: int) -> dict:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import reshard

    rows = (mib << 20) // (4 * 1024)
    ends = {
        "rows over x,y to columns over x,y": (P(("x", "y")), P(None, ("x", "y"))),
        "rows x, columns y to rows y, columns x": (P("x", "y"), P("y", "x")),
        "rows over x,y to rows over y": (P(("x", "y")), P("y")),
    }
    times = {}
    for name, specs in ends.items():
        source, target = (NamedSharding(mesh, spec) for spec in specs)
        array = jax.jit(lambda: jnp.ones((rows, 1024), jnp.float32), out_shardings=source)()
        stock = jax.jit(lambda a: a, out_shardings=target)
        times[name] = {
            "stock_s": _median_seconds(lambda: stock(array)),
            "ours_s": _median_seconds(lambda: reshard.redistribute(array, target)),
        }
    return times


def _median_seconds(move) -> float:
    """Returns the median time of a move, after a first one that compiles; all processes start each move at once."""
    import jax
    from jax.experimental import multihost_utils

    jax.block_until_ready(move())
    seconds = []
    for number in range(REPEATS):
        multihost_utils.sync_global_devices(f"move {number}")
        start_s = time.perf_counter()
        jax.block_until_ready(move())
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
