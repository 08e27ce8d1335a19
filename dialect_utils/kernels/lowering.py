# SPDX-License-Identifier: Apache-2.0
"""What jax makes of a kernel for TPUs: a module with one custom call, the same on any host.

A child process does it, with CPU devices: jax looks for devices when it lowers, and the accelerators of this host may
be in use.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from ..xla.child import child_environment
from .sizes import SentProduct, SentRows, Sizes, SummedProduct

ID = 0  # the collective id of all calls
Asked = tuple[Sizes, int]
_KINDS: dict[str, Callable[..., Sizes]] = {kind.__name__: kind for kind in (SentProduct, SummedProduct, SentRows)}
_TIMEOUT_S = 300.0
_known: dict[Asked, str] = {}
_ENVIRONMENT = {
    "JAX_ENABLE_X64": "0",  # indices are of 32 bits
    "JAX_HLO_SOURCE_FILE_CANONICALIZATION_REGEX": ".*/",  # no folders of the kernels' files in the locations of ops
}


def lowered(asked: Sequence[Asked]) -> dict[Asked, str]:
    """Returns for each kernel, and number of devices of its mesh, a module in which it is called.

    Raises: RuntimeError if jax cannot lower one.
    """
    missing = [each for each in dict.fromkeys(asked) if each not in _known]
    if missing:
        _known.update(zip(missing, _lowered_by_child(missing), strict=True))
    return {each: _known[each] for each in asked}


def _lowered_by_child(asked: Sequence[Asked]) -> list[str]:
    request = [{"kind": type(sizes).__name__, "sizes": asdict(sizes), "devices": number} for sizes, number in asked]
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env={**child_environment(1), **_ENVIRONMENT},
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"jax does not lower a kernel: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main() -> None:
    answers = []
    for each in json.load(sys.stdin):
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in each["sizes"].items()}
        answers.append(_text(_KINDS[each["kind"]](**fields), each["devices"]))
    json.dump(answers, sys.stdout)


def _text(sizes: Sizes, devices: int) -> str:
    import jax
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

    mesh, whole = AbstractMesh((devices,), ("device",)), PartitionSpec()
    shapes = ((2, sizes.members), "int32"), *sizes.operands
    avals = [jax.ShapeDtypeStruct(*each, sharding=NamedSharding(mesh, whole)) for each in shapes]
    mapped = jax.shard_map(_kernel(sizes), mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    return jax.jit(mapped).trace(*avals).lower(lowering_platforms=("tpu",)).as_text()


def _kernel(sizes: Sizes):
    from .sent_products import sent_product
    from .sent_rows import sent_rows
    from .summed_products import summed_product

    def body(places, one, other):
        if isinstance(sizes, SentProduct):
            return sent_product(places, one, other, sizes, collective_id=ID)
        if isinstance(sizes, SummedProduct):
            return summed_product(places, one, other, sizes, collective_id=ID)
        return sent_rows(places, one, other, sizes, collective_id=ID)

    return body


if __name__ == "__main__":
    main()
