# SPDX-License-Identifier: Apache-2.0
"""Redistributes a tree of live arrays between two layouts on CPU devices: with reshard, device_put and a jit.

    python benchmarks/live_arrays.py [--size 2GiB] [--leaves 300] [--change checkpoint-training,training-inference]

Each method runs in its own child process, which makes the tree and redistributes it, the first time with planning and
compilation, then again with the kept plans and programs. Once it compares every tile with the right values, bit for
bit. The peak is the most memory of the process during the redistribution, less its memory before without the tree. So
it contains sources, targets and everything else, the first time also the compiler's memory. Freed memory goes back to
the system at once (`MALLOC_MMAP_THRESHOLD_`). The exit status is 1 if a tile is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.arguments import among  # noqa: E402
from reshard.planning.byte_sizes import byte_size  # noqa: E402
from reshard.synthesis.common.numbers import count, mebibytes  # noqa: E402
from reshard.synthesis.common.text_table import table  # noqa: E402

DEVICES = 8
METHODS = ("reshard", "reshard limit", "reshard donate", "device_put", "jit", "jit donate")
LAYOUTS = {
    "checkpoint": {
        "mesh": {"shard": 8},
        "in": ("shard", None),
        "out": ("shard", None),
        "table": ("shard", None),
        "vector": (None,),
    },
    "training": {
        "mesh": {"fsdp": 2, "tensor": 4},
        "in": ("fsdp", "tensor"),
        "out": ("tensor", "fsdp"),
        "table": (("tensor", "fsdp"), None),
        "vector": (None,),
    },
    "inference": {
        "mesh": {"tensor": 8},
        "in": (None, "tensor"),
        "out": ("tensor", None),
        "table": (None, "tensor"),
        "vector": (None,),
    },
}
CHANGES = ("checkpoint-training", "training-inference")
LEAVES_OF_A_LAYER = 12
RETURNS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
VOCABULARY = 32  # in multiples of the width


@dataclass(frozen=True, slots=True)
class Leaf:
    """A weight of the tree: its name, shape and element type, and its role, on which the layouts depend."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str


def leaves_of(size: int, number: int) -> list[Leaf]:
    """Returns the weights of a decoder of at least `size` bytes: layers of 12, then small ones up to `number`."""
    layers = max(1, (number - 2) // LEAVES_OF_A_LAYER)
    per_width_squared = 4 * (16 * layers + 2 * VOCABULARY)
    width = 32 * math.ceil(math.sqrt(size / per_width_squared) / 32)
    found = [Leaf(name, (VOCABULARY * width, width), "float32", "table") for name in ("embed", "unembed")]
    for layer in range(layers):
        square = (("wq", "in"), ("wk", "in"), ("wv", "in"), ("wo", "out"))
        found += [Leaf(f"{layer}.{name}", (width, width), "float32", role) for name, role in square]
        found += [Leaf(f"{layer}.{name}", (width, 4 * width), "float32", "in") for name in ("w1", "w3")]
        found.append(Leaf(f"{layer}.w2", (4 * width, width), "float32", "out"))
        found += [Leaf(f"{layer}.norm{i}", (width,), "float32", "vector") for i in range(5)]
    found += [Leaf(f"adapter{i}", (width, 32), "bfloat16", "in") for i in range(max(0, number - len(found)))]
    return found


# ---------------------------------------------------------------------------------------------------------------------
# In the child
# ---------------------------------------------------------------------------------------------------------------------


def measure(method: str, change: str, size: int, number: int, repeats: int) -> dict:
    """Returns a method's results: seconds, processor seconds, peak, bytes received, and whether every tile is right."""
    import jax

    source, target = change.split("-")
    leaves = leaves_of(size, number)
    before, after = (_shardings(leaves, LAYOUTS[layout]) for layout in (source, target))
    move, told = _method(method, leaves, before, after)
    seconds, cpu_seconds, peaks, is_right, live = [], [], [], True, 0
    for number in range(1 + repeats):
        tree = jax.block_until_ready(_made(leaves, before))  # new: arrays keep what the host read
        base = _memory("VmRSS") - _live_bytes()
        _forget_peak()
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        result = jax.block_until_ready(move(tree))
        seconds.append(time.perf_counter() - start_s)
        cpu_seconds.append(time.process_time() - start_cpu_s)
        peaks.append(_memory("VmHWM") - base)
        live = _live_bytes()
        is_right = is_right and (number > 0 or _is_right(leaves, result, after))
        del tree, result
    return {
        **told,
        "first_s": seconds[0],
        "median_s": statistics.median(seconds[1:] or seconds),
        "median_cpu_s": statistics.median(cpu_seconds[1:] or cpu_seconds),
        "first_peak": peaks[0],
        "peak": max(peaks[1:] or peaks),
        "live": live,
        "is_right": is_right,
        "tree_bytes": sum(math.prod(leaf.shape) * (2 if leaf.dtype == "bfloat16" else 4) for leaf in leaves),
    }


def _shardings(leaves: list[Leaf], layout: dict) -> dict:
    import jax
    import numpy as np

    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(*layout["mesh"].values()), tuple(layout["mesh"]))
    return {
        leaf.name: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*layout[leaf.role])) for leaf in leaves
    }


def _method(method: str, leaves: list[Leaf], before: dict, after: dict):
    """Returns the function that redistributes a tree, and the facts that are known before it runs."""
    import jax

    import reshard

    shapes = {leaf.name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=before[leaf.name]) for leaf in leaves}
    donate = method.endswith("donate")
    if method.startswith("reshard"):
        limit = _least_limit(shapes, after) if method.endswith("limit") else None
        schedule = reshard.plan_tree(shapes, after, memory_limit=limit, donate=donate)
        told = {"bytes_received": schedule.bytes_received, "modelled_peak": schedule.peak_bytes * DEVICES}
        told["limit"] = limit and limit * DEVICES
        return lambda tree: reshard.redistribute(tree, after, memory_limit=limit, donate=donate), told
    if method == "device_put":
        return lambda tree: jax.device_put(tree, after), {}
    identity = jax.jit(lambda tree: tree, out_shardings=after, donate_argnums=(0,) if donate else ())
    return identity, {"bytes_received": _counted(identity.lower(shapes))}


def _least_limit(shapes: dict, after: dict) -> int:
    """Returns the least memory limit with a schedule; the refusal of the limit 0 names it."""
    import reshard

    try:
        return reshard.plan_tree(shapes, after, memory_limit=0).peak_bytes
    except reshard.RedistributeError as error:
        return int(str(error).split()[-1])


def _counted(lowered) -> int:
    """Returns the bytes that the busiest device receives, counted in the HLO after partitioning."""
    from reshard.dialect_utils.hlo.collectives import collectives_in

    with tempfile.TemporaryDirectory() as folder:
        lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_pass_re": "^spmd-partitioning$"})
        (dump,) = Path(folder).glob("*.after_spmd-partitioning.before_*.txt")
        return collectives_in(dump.read_text()).bytes_received


def _made(leaves: list[Leaf], shardings: dict) -> dict:
    import jax

    def array(number: int, leaf: Leaf):
        def part(index) -> Any:
            return _part(number, leaf, index)

        return jax.make_array_from_callback(leaf.shape, shardings[leaf.name], part)

    return {leaf.name: array(number, leaf) for number, leaf in enumerate(leaves)}


def _part(number: int, leaf: Leaf, index: tuple[slice, ...]):
    """Returns a part of a leaf: an element's bits are its place in the array plus an offset, and never a NaN's."""
    import ml_dtypes
    import numpy as np

    place = np.uint32(number * 7919)
    for dim, part in enumerate(index):
        behind = math.prod(leaf.shape[dim + 1 :])
        line = np.arange(*part.indices(leaf.shape[dim]), dtype=np.uint32) * np.uint32(behind % (1 << 32))
        place = place + line.reshape(-1, *[1] * (len(leaf.shape) - 1 - dim))
    if leaf.dtype == "bfloat16":
        return (place.astype(np.uint16) & np.uint16(0xBFFF)).view(ml_dtypes.bfloat16)
    return (place & np.uint32(0xBFFFFFFF)).view(np.float32)


def _is_right(leaves: list[Leaf], result: dict, after: dict) -> bool:
    import numpy as np

    for number, leaf in enumerate(leaves):
        array = result[leaf.name]
        if not array.sharding.is_equivalent_to(after[leaf.name], len(leaf.shape)):
            return False
        for shard in array.addressable_shards:
            wanted = _part(number, leaf, shard.index)
            found, right = (np.ascontiguousarray(each).view(np.uint8) for each in (shard.data, wanted))
            if not np.array_equal(found, right):
                return False
    return True


def _live_bytes() -> int:
    """Returns the bytes of all buffers that jax holds."""
    import jax

    sizes = {s.data.unsafe_buffer_pointer(): s.data.nbytes for a in jax.live_arrays() for s in a.addressable_shards}
    return sum(sizes.values())


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(name: str) -> int:
    """Returns a number in /proc/self/status, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


# ---------------------------------------------------------------------------------------------------------------------
# In the parent
# ---------------------------------------------------------------------------------------------------------------------


def results(options: argparse.Namespace, change: str) -> Iterator[tuple[str, dict]]:
    """Yields each method with the results of its child; `is_right` is missing if the child died."""
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    environment |= {} if options.plain_malloc else RETURNS_MEMORY
    for method in options.methods:
        asked = {
            "method": method,
            "change": change,
            "size": options.size,
            "number": options.leaves,
            "repeats": options.repeats,
        }
        command = [sys.executable, __file__, "--child", json.dumps(asked)]
        child = subprocess.run(command, env=environment, capture_output=True, text=True)
        if child.returncode:
            print(child.stderr[-2000:], file=sys.stderr)
        yield method, json.loads(child.stdout.splitlines()[-1]) if not child.returncode else {}


_HEADINGS = (
    "",
    "first",
    "again",
    "CPU time",
    "received per device",
    "peak",
    "peak, first",
    "model",
    "limit",
    "live after",
    "bit-equal",
)


def cells(method: str, found: dict) -> tuple[str, ...]:
    if not found:
        return (method, *["-"] * (len(_HEADINGS) - 2), "died")
    mib = (mebibytes(found.get(name), 0) for name in ("peak", "first_peak", "modelled_peak", "limit", "live"))
    times = (f"{found[name]:.2f} s" for name in ("first_s", "median_s", "median_cpu_s"))
    return (method, *times, count(found.get("bytes_received")), *mib, "yes" if found["is_right"] else "NO")


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.child:
        print(json.dumps(measure(**json.loads(options.child))))
        return 0
    is_right = True
    for change in options.change:
        found = list(results(options, change))
        tree_bytes = max((each.get("tree_bytes", 0) for _, each in found), default=0)
        print(
            f"{change}: {options.leaves} leaves, {mebibytes(tree_bytes, 0)} MiB, {DEVICES} devices; "
            "memory of the process in MiB"
        )
        print(table(_HEADINGS, [cells(*each) for each in found], "lrrrrrrrrrl"), end="\n\n", flush=True)
        is_right &= all(each.get("is_right", True) for _, each in found)
    return 0 if is_right else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--size", type=byte_size, default=byte_size("2GiB"), help="the least size of the tree, default 2GiB")
    add("--leaves", type=int, default=300, help="number of leaves of the tree, default %(default)s")
    add("--change", type=among(CHANGES), default=CHANGES, help="default both: " + ",".join(CHANGES))
    add("--methods", type=among(METHODS), default=METHODS, help="default all: " + ",".join(METHODS))
    add("--repeats", type=int, default=3, help="repeats after the first run; the median counts, default %(default)s")
    add(
        "--plain-malloc",
        action="store_true",
        help="use the default allocator: right for times, but peaks then include its caches",
    )
    add("--child", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
