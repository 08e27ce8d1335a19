# SPDX-License-Identifier: Apache-2.0
"""Answers of other planners to a pair: stock XLA's partitioner, and Shardy's `sdy-reshard-to-collectives`.

Their collectives are priced in the same way as the plans of this project.

**XLA** compiles the pair in a child process; its collectives are read from the HLO right after partitioning.

**Shardy**'s pass turns an `sdy.reshard` into `sdy` collectives, each with the sharding after it. These are priced from
the shardings before and after, without lowering them: an `all_gather` works in groups along the axes that it frees, an
`all_to_all` along those that change their dimension, and it counts as one collective even if it moves several axes. In
a `collective_permute` devices that hold their block already keep it. So Shardy gets the benefit of every doubt. Where
dimensions do not divide, the array is padded until every sharding on the way divides it, which is what
`sdy-pad-for-divisibility` is for; blocks of the padded array have other bounds, so that traffic may even be below the
bound of the array as it is. The pass runs in a child process as well: it may abort.

**Partial sums.** XLA takes an unreduced argument and turns it into the target where a sharding constraint asks for
that; its partial sums are sums. Shardy's pass moves arrays and keeps them unreduced or forgets that they are; what it
forgets is "unsupported" here.

**Copies on the device.** A plan of this project copies in the transposes of its tile program, where an exchange puts
its result together, and in slices. Shardy's steps are typed steps too, so they are lowered in the same way, and need
the same copies. XLA's copies are read from the HLO. What a copy takes is the topology's to say, for everyone: on most
topologies slices are free, and on some a part of what is copied right before an all_to_all.

Bytes are in the program's dtype, as everywhere. PyTorch DTensor is in `peers_dtensor.py`.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reshard.synthesis.layouts.layout import Factor, coordinates, groups, places_by_axis, whole_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network import cost
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import Plan
from reshard.synthesis.programs import steps, traffic
from reshard.synthesis.programs.tile_program import Copies, TileProgram, copies, lower
from reshard.synthesis.programs.tile_program import collectives as collectives_of
from reshard.synthesis.programs.traffic import Collective
from reshard.synthesis.search.greedy_chain import typed_chain

from ..emission.mini_modules import rewritten_pair, stock_pair
from ..emission.tile_modules import tile_module
from ..hlo.collectives import collectives_in
from ..hlo.copies import copies_in
from ..platform.typed import present
from ..xla.child import XlaChild, cause_of_death, child_environment

SHARDY_TIMEOUT_S = 120.0
_PASS = "builtin.module(func.func(sdy-reshard-to-collectives))"
_KINDS = {f"sdy.{kind}": kind for kind in ("all_gather", "all_to_all", "collective_permute")}
_FREE = ("sdy.all_slice", "func.return")
_STEPS = {
    "sdy.all_slice": steps.Slice,
    "sdy.all_gather": steps.AllGather,
    "sdy.all_to_all": steps.AllToAll,
    "sdy.collective_permute": steps.Permute,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one planner to a redistribution.

    Attributes:
      name: "ours", "xla", "shardy", "dtensor".
      status: "ok"; "error": it was refused; "unsupported": the planner cannot express it; "abort": the process died;
        "hang": out of time.
      message: why it is not ok; else a remark, or nothing.
      collectives: in program order, empty unless ok.
      copies: the bytes that a device copies in its own memory; None if unknown.
      temp_bytes: temporaries per device as XLA allocates them on CPU devices; None if it was not compiled.
    """

    name: str
    num_devices: int
    status: str = "ok"
    message: str = ""
    collectives: tuple[Collective, ...] = ()
    temp_bytes: int | None = None
    copies: Copies | None = None

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"

    @property
    def bytes_received(self) -> int | None:
        return traffic.bytes_received(self.collectives, self.num_devices) if self.is_ok else None

    @property
    def collective_runs(self) -> int:
        return sum(each.trip_count for each in self.collectives)

    @property
    def kinds_text(self) -> str:
        """Returns e.g. `2 all_gather, 1 all_to_all`, in the order in which the kinds first appear; `none`."""
        runs: dict[str, int] = {}
        for each in self.collectives:
            runs[each.kind] = runs.get(each.kind, 0) + each.trip_count
        return ", ".join(f"{count} {kind}" for kind, count in runs.items()) or "none"

    def collectives_time_s(self, topology: Topology) -> float | None:
        """Returns the modelled time of the collectives, one after the other; local copies are not in it."""
        if not self.is_ok:
            return None
        return sum(cost.collective_time_s(topology, self.num_devices, each) for each in self.collectives)

    def time_s(self, topology: Topology) -> float | None:
        """Returns the modelled time with the copies on the device; None if they are not known."""
        if not self.is_ok or self.copies is None:
            return None
        return present(self.collectives_time_s(topology)) + cost.copies_time_s(topology, self.copies)


def our_answer(tensor_type: str, plan: Plan, child: XlaChild | None = None) -> Answer:
    """Returns the plan as an answer; with a child it is compiled too, for the temporaries, which may fail."""
    found, copied = collectives_of(plan.tile_program, plan.bits), copies(plan.tile_program, plan.bits)
    if child is None:
        return Answer("ours", plan.mesh.size, collectives=found, copies=copied)
    has_sums = plan.source.unreduced or plan.target.unreduced
    module = (tile_module if has_sums else rewritten_pair)(tensor_type, plan)
    compiled = child.compile(module, plan.mesh.size)
    return Answer("ours", plan.mesh.size, compiled.status, compiled.message, found, compiled.temp_bytes, copied)


def xla_answer(
    tensor_type: str, mesh: Mesh, source: Sharding, target: Sharding, child: XlaChild, reduction: str = "sum"
) -> Answer:
    """Returns the answer of stock XLA's partitioner to the pair.

    Args:
      reduction: how partial sums are combined; XLA has only sums.
    """
    layouts = source, target
    if source.unreduced or target.unreduced:
        if reduction != "sum":
            return Answer("xla", mesh.size, "unsupported", f"XLA's unreduced arrays are sums; {reduction} is asked for")
        layouts = source, target, target  # XLA 0.12 changes unreduced axes at constraints alone
    compiled = child.compile(stock_pair(tensor_type, mesh, layouts), mesh.size, keeps_hlo=True)
    if not compiled.is_ok:
        return Answer("xla", mesh.size, compiled.status, compiled.message)
    text = present(compiled.hlo_text)
    found, copied = collectives_in(text).collectives, copies_in(text)
    return Answer("xla", mesh.size, collectives=found, temp_bytes=compiled.temp_bytes, copies=copied)


def shardy_answer(
    tensor_type: str,
    mesh: Mesh,
    shape: Sequence[int],
    bits: int,
    source: Sharding,
    target: Sharding,
    *,
    in_child: bool = True,
) -> Answer:
    """Returns the answer of Shardy's pass to the pair.

    Args:
      bits: the bits of one element.
      in_child: if false, the pass runs in this process: this is faster, but if the pass aborts, so does the process.
    """
    try:
        steps = (_shardy_steps_of_child if in_child else shardy_steps)(
            reshard_module(tensor_type, mesh, source, target)
        )
        if source.unreduced or target.unreduced:
            _check_sums(source, target, steps)
        return priced(mesh, tuple(shape), bits, source.closed(), steps)
    except ShardyFailure as failure:
        return Answer("shardy", mesh.size, failure.status, str(failure))


class ShardyFailure(RuntimeError):
    """Shardy's pass did not convert a pair; `status` is "error", "unsupported", "abort" or "hang"."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status = status


def reshard_module(tensor_type: str, mesh: Mesh, source: Sharding, target: Sharding) -> str:
    before, after = (f"<@mesh, {side.closed()}>" for side in (source, target))
    return f"""sdy.mesh @mesh = {mesh}
func.func @main(%arg0: {tensor_type} {{sdy.sharding = #sdy.sharding{before}}})
    -> ({tensor_type} {{sdy.sharding = #sdy.sharding{after}}}) {{
  %0 = sdy.reshard %arg0 {after} : {tensor_type}
  return %0 : {tensor_type}
}}
"""


def shardy_steps(module_text: str) -> list[tuple[str, str]]:
    """Returns (op, sharding after it) for each op that Shardy's pass makes of the reshard in a module.

    Raises: ShardyFailure if the pass refuses the module.
    """
    from ..platform.bindings import ir, make_context, passmanager
    from ..shardings.sdy_shardings import sharding_from_attr

    with make_context():
        try:
            module = ir.Module.parse(module_text)
            passmanager.PassManager.parse(_PASS).run(module.operation)
        except ir.MLIRError as error:
            raise ShardyFailure("error", " ".join(str(error).split())) from None
        found = []
        for op in module.body.operations[1].regions[0].blocks[0].operations:
            attributes = op.operation.attributes
            after = str(sharding_from_attr(attributes["out_sharding"])) if "out_sharding" in attributes else ""
            found.append((op.operation.name, after))
        return found


def _shardy_steps_of_child(module_text: str) -> list[tuple[str, str]]:
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(
            command,
            input=module_text,
            capture_output=True,
            text=True,
            timeout=SHARDY_TIMEOUT_S,
            env=child_environment(1),
        )
    except subprocess.TimeoutExpired:
        raise ShardyFailure("hang", f"no answer after {SHARDY_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise ShardyFailure("abort", cause_of_death(done.returncode, done.stderr))
    reply = json.loads(done.stdout.splitlines()[-1])
    if "error" in reply:
        raise ShardyFailure("error", reply["error"])
    return [(op, after) for op, after in reply["steps"]]


def _main() -> None:
    """Reads a module from stdin and prints its steps as JSON: the child process."""
    try:
        reply = {"steps": shardy_steps(sys.stdin.read())}
    except ShardyFailure as failure:
        reply = {"error": str(failure)}
    print(json.dumps(reply))


# ---- the price of a step between two shardings


def _check_sums(source: Sharding, target: Sharding, steps) -> None:
    """Checks that axes stay unreduced from step to step: no step that has a price adds up. Raises: ShardyFailure."""
    layouts = [source, *(Sharding.parse(text) for _, text in steps if text), target]
    for before, after in zip(layouts, layouts[1:]):
        if set(before.unreduced) != set(after.unreduced):
            raise ShardyFailure("unsupported", f"the pass makes {after} of {before}, and adds nothing up")


def priced(mesh: Mesh, shape: tuple[int, ...], bits: int, before: Sharding, steps: Sequence[tuple[str, str]]) -> Answer:
    """Returns a chain of Shardy's ops, each with the sharding after it as text, as an answer.

    Raises: ShardyFailure for an op that has no price.
    """
    for op, _ in steps:
        if op not in _FREE and op not in _KINDS:
            raise ShardyFailure("error", f"the pass leaves {op}, which no price is known for")
    moves = [(op, Sharding.parse(text)) for op, text in steps if text]
    padded = _divisible(mesh, shape, [before, *(after for _, after in moves)])
    copied = _copies(mesh, padded, bits, before, moves)
    found = []
    for op, after in moves:
        if op in _KINDS:
            num_bytes = -(-math.prod(before.tile_shape(mesh, padded)) * bits // 8)
            found.append(_collective(_KINDS[op], mesh, before, after, num_bytes))
        before = after
    message = f"padded to {list(padded)}" if padded != shape else ""
    return Answer("shardy", mesh.size, message=message, collectives=tuple(found), copies=copied)


def _divisible(mesh: Mesh, shape: tuple[int, ...], shardings: Sequence[Sharding]) -> tuple[int, ...]:
    """Returns the shape with each dimension filled up until all the shardings divide it."""
    shards = (math.lcm(*counts) for counts in zip(*(sharding.shards(mesh) for sharding in shardings)))
    return tuple(-(-size // count) * count for size, count in zip(shape, shards))


def _collective(kind: str, mesh: Mesh, before: Sharding, after: Sharding, num_bytes: int) -> Collective:
    if kind == "collective_permute":
        return Collective(kind, num_bytes, num_bytes, pairs=_pairs(mesh, before, after))
    members = groups(mesh, _moved(mesh, before, after))
    after_bytes = traffic.tile_bytes_after(kind, num_bytes, members.shape[1])
    return Collective(kind, num_bytes, after_bytes, groups=tuple(tuple(map(int, group)) for group in members))


def _copies(mesh: Mesh, shape: tuple[int, ...], bits: int, source: Sharding, moves) -> Copies | None:
    """Returns what the moves copy on a device, lowered like typed steps; None if they are no typed steps."""
    program = lowered(mesh, shape, source, moves)
    return None if program is None else copies(program, bits)


def lowered(
    mesh: Mesh, shape: tuple[int, ...], source: Sharding, moves: Sequence[tuple[str, Sharding]]
) -> TileProgram | None:
    """Returns the tile program of moves, (op, sharding after it) each; None if our steps cannot express them."""
    if source.unreduced or any(after.unreduced for _, after in moves):
        return None
    path = [whole_factors(mesh, sharding) for sharding in (source, *(after for _, after in moves))]
    found = typed_chain(shape, [_STEPS[op] for op, _ in moves], path)
    return None if found is None else lower(mesh, found.source, found.steps, layouts=found.layouts)


def _moved(mesh: Mesh, before: Sharding, after: Sharding) -> tuple[Factor, ...]:
    """Returns the axes, or pieces of axes, that leave the dimension that they split.

    Example:
      >>> before, after = Sharding.parse('[{"x", "y"}, {}]'), Sharding.parse('[{"x":(1)2}, {"y"}]')
      >>> [factor.text(Mesh.parse("x=4,y=2")) for factor in _moved(Mesh.parse("x=4,y=2"), before, after)]
      ['x:(2)2', 'y']
    """
    sides = [whole_factors(mesh, side) for side in (before, after)]
    places = places_by_axis(f for side in sides for dim in side for f in dim)
    was, now = (
        {piece: d for d, dim in enumerate(side) for f in dim for piece in f.cut(places[f.axis])} for side in sides
    )
    return tuple(sorted(piece for piece, dim in was.items() if now.get(piece) != dim))


def _pairs(mesh: Mesh, before: Sharding, after: Sharding) -> tuple[tuple[int, int], ...]:
    """Returns the (from, to) devices of a permute: a device that has its block keeps it, the others follow in order."""
    held, wanted = (_block_numbers(mesh, side) for side in (before, after))
    moves = np.flatnonzero(held != wanted)
    senders, receivers = moves[np.argsort(held[moves], kind="stable")], moves[np.argsort(wanted[moves], kind="stable")]
    if (held[senders] != wanted[receivers]).any():
        raise ShardyFailure("error", f"no permute leads from {before} to {after}")
    return tuple((mesh.device_at(int(a)), mesh.device_at(int(b))) for a, b in zip(senders, receivers))


def _block_numbers(mesh: Mesh, sharding: Sharding) -> np.ndarray:
    """Returns the number of the block at each mesh position, dimensions major to minor."""
    number = np.zeros(mesh.size, np.int64)
    for factors in whole_factors(mesh, sharding):
        for factor in factors:
            number = number * factor.size + coordinates(mesh, factor)
    return number


if __name__ == "__main__":
    _main()
