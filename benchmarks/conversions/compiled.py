# SPDX-License-Identifier: Apache-2.0
"""Compiles our form and the peers' forms of a redistribution for CPU devices: traffic, memory, collectives, crashes.

| who | whose chain | compiled as |
|---|---|---|
| ours | the plan of a site in a module | an island of collectives on tiles |
| fewest | the plan of `reshard plan --objective bytes`: exchanges too, where those save bytes | likewise |
| xla | stock XLA's partitioner | a function that returns its argument in another layout |
| shardy | `sdy-reshard-to-collectives` | its steps lowered as ours are, in an island: XLA takes no `sdy` collectives |
| paper | `normal_form.py` | likewise |
| dtensor | PyTorch's two planners | not at all: its steps are priced as if they were |

Chains that cannot be lowered like ours are only priced: chains that pad, or cut an axis in two radices on their way.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from benchmarks.conversions.answers import one_process
from benchmarks.conversions.normal_form import normal_form
from benchmarks.conversions.pairs import Pair
from benchmarks.harness.fresh import plans_on_disk_left_alone
from reshard.dialect_utils.compare import peers, peers_dtensor
from reshard.dialect_utils.emission.mini_modules import rewritten_pair, stock_pair
from reshard.dialect_utils.xla.child import Compiled, XlaChild
from reshard.planning.element_types import element_type
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import NoPlanError, Plan, plan
from reshard.synthesis.programs import traffic
from reshard.synthesis.programs.steps import name
from reshard.synthesis.programs.tile_program import TileProgram, lower
from reshard.synthesis.programs.tile_program import collectives as collectives_of

OURS = ("ours", "fewest")
PEERS = ("xla", "shardy", "dtensor", "paper")
NAMES = {
    "ours": "ours",
    "fewest": "ours by bytes",
    "xla": "XLA",
    "shardy": "Shardy",
    "dtensor": "DTensor",
    "paper": "normal form",
}
DTENSOR_SEARCH_S = 10.0


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a redistribution. Bytes are per device, or None if they are not known.

    Attributes:
      status: "ok"; "no plan"; "crash", our planner raised; XLA's or a peer's "error", "abort", "hang", "unsupported".
      is_compiled: whether XLA compiled it; if not, bytes received and collectives are those of the steps.
      collectives: as often as they run.
      peak_bytes: arguments, outputs and temporaries.
      largest_tile_bytes: the largest operand or result of a collective.
      bound_bytes, relayout_bytes: of ours alone, what anybody receives at least, and what is copied on the device
        before and behind one collective, at most.
    """

    status: str
    message: str = ""
    chain: str = ""
    is_compiled: bool = False
    bytes_received: int | None = None
    collectives: int | None = None
    temp_bytes: int | None = None
    peak_bytes: int | None = None
    largest_tile_bytes: int | None = None
    bound_bytes: int | None = None
    relayout_bytes: int | None = None

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"


def tensor_type(pair: Pair, element: str) -> str:
    """Returns the type of the pair's global array in MLIR's notation."""
    return f"tensor<{''.join(f'{size}x' for size in pair.shape)}{element}>"


def largest_end_bytes(pair: Pair, element: str) -> int:
    """Returns the bytes of the larger one of source tile and target tile."""
    tiles = (side.tile_shape(pair.mesh, pair.shape) for side in (pair.source, pair.target))
    return -(-max(map(math.prod, tiles)) * element_type(element).bits // 8)


def site_plan(pair: Pair, element: str) -> Plan:
    """Returns the plan that a site of a module would have. Raises: NoPlanError."""
    asked = pair.mesh, pair.shape, element_type(element).bits, pair.source, pair.target
    try:
        return plan(*asked)
    except NoPlanError:
        return plan(*asked, objective="time", with_exchange=True)


class Compiler:
    """Asks us or a peer for a redistribution and compiles it, in children that may die; a context manager.

    Its exit ends the children.

    Args:
      num_devices: the most that a pair has. child: that compiles; one of its own without.
    """

    def __init__(self, num_devices: int, element: str = "f32", child: XlaChild | None = None):
        self.element = element
        self.bits = element_type(element).bits
        self._xla = child or XlaChild(num_devices=num_devices)
        self._pool = None

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *exception) -> None:
        self._xla.close()
        self._stop_pool()

    def ask(self, who: str, pair: Pair) -> Found:
        """Returns the outcome of the pair; every failure is a status."""
        with plans_on_disk_left_alone():
            return getattr(self, f"_{who}_found")(pair)

    def _ours_found(self, pair: Pair) -> Found:
        return self._of_plan(pair, lambda: site_plan(pair, self.element))

    def _fewest_found(self, pair: Pair) -> Found:
        asked = pair.mesh, pair.shape, self.bits, pair.source, pair.target
        return self._of_plan(pair, lambda: plan(*asked, objective="bytes", with_exchange=True))

    def _of_plan(self, pair: Pair, planned: Callable[[], Plan]) -> Found:
        try:
            found = planned()
        except NoPlanError as error:
            return Found("no plan", str(error))
        except Exception as error:  # a crash of the planner is an outcome too
            return Found("crash", f"{type(error).__name__}: {error}")
        known = {"chain": found.chain_text, "bound_bytes": found.bound_bytes, "relayout_bytes": _relayout_bytes(found)}
        return dataclasses.replace(
            self._compiled(rewritten_pair(tensor_type(pair, self.element), found), pair), **known
        )

    def _xla_found(self, pair: Pair) -> Found:
        return self._compiled(stock_pair(tensor_type(pair, self.element), pair.mesh, (pair.source, pair.target)), pair)

    def _shardy_found(self, pair: Pair) -> Found:
        module = peers.reshard_module(tensor_type(pair, self.element), pair.mesh, pair.source, pair.target)
        status, answer = self._in_pool(peers.SHARDY_TIMEOUT_S, _shardy_steps, module)
        return self._of_steps(pair, answer) if status == "ok" else Found(status, answer)

    def _dtensor_found(self, pair: Pair) -> Found:
        question = pair.mesh, pair.shape, self.bits, pair.source, pair.target
        status, answer = self._in_pool(4 * DTENSOR_SEARCH_S + 30, _dtensor_here, question)
        return _priced(answer) if status == "ok" else Found(status, answer)

    def _paper_found(self, pair: Pair) -> Found:
        try:
            source, typed = normal_form(pair.mesh, pair.shape, pair.source, pair.target)
        except NoPlanError as error:
            return Found("unsupported", str(error))
        return self._of_program(pair, lower(pair.mesh, source, typed), "; ".join(map(name, typed)))

    def _of_steps(self, pair: Pair, steps: list[tuple[str, str]]) -> Found:
        """Returns the outcome of Shardy's ops; each op comes with the sharding after it."""
        answer = peers.priced(pair.mesh, pair.shape, self.bits, pair.source.closed(), steps)
        chain = "; ".join(op.removeprefix("sdy.") for op, text in steps if text)
        moves = [(op, Sharding.parse(text)) for op, text in steps if text]
        program = None if answer.message else peers.lowered(pair.mesh, pair.shape, pair.source.closed(), moves)
        return self._of_program(pair, program, chain) if program else dataclasses.replace(_priced(answer), chain=chain)

    def _of_program(self, pair: Pair, program: TileProgram, chain: str) -> Found:
        """Returns the outcome of a peer's chain, lowered like ours: the peer's program is put into our plan."""
        try:
            carrier = dataclasses.replace(site_plan(pair, self.element), tile_program=program)
        except NoPlanError:
            moved = collectives_of(program, self.bits)
            return Found(
                "ok", chain=chain, bytes_received=traffic.bytes_received(moved, pair.mesh.size), collectives=len(moved)
            )
        return dataclasses.replace(
            self._compiled(rewritten_pair(tensor_type(pair, self.element), carrier), pair), chain=chain
        )

    def _compiled(self, module: str, pair: Pair) -> Found:
        done: Compiled = self._xla.compile(module, pair.mesh.size)
        if not done.is_ok:
            return Found(done.status, done.message)
        return Found(
            "ok",
            is_compiled=True,
            bytes_received=done.bytes_received,
            collectives=sum(each.runs for each in done.collectives),
            temp_bytes=done.temp_bytes,
            peak_bytes=done.peak_bytes,
            largest_tile_bytes=done.largest_collective_tile_bytes,
        )

    def _in_pool(self, timeout_s: float, function, question) -> tuple:
        """Returns status, and answer or message, of a function that runs in a child process."""
        self._pool = self._pool or one_process()
        try:
            return self._pool.submit(function, question).result(timeout_s)
        except BrokenProcessPool:
            self._stop_pool()
            return "abort", "the process died"
        except TimeoutError:
            self._stop_pool()
            return "hang", f"no answer after {timeout_s:g} s"

    def _stop_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown()


def _relayout_bytes(found: Plan) -> int:
    """Returns the most bytes of tiles that are copied before and after one collective."""
    between = [0]
    for step in found.steps:
        if step.op in ("relayout", "exchange"):
            between[-1] += step.tile_bytes_after
        if step.bytes_received:
            between.append(0)
    return max(map(sum, itertools.pairwise(between)), default=between[0])


def _priced(answer: peers.Answer) -> Found:
    if not answer.is_ok:
        return Found(answer.status, answer.message)
    largest = max((each.largest_tile_bytes for each in answer.collectives), default=0)
    counts = {
        "bytes_received": answer.bytes_received,
        "collectives": answer.collective_runs,
        "largest_tile_bytes": largest,
    }
    return Found("ok", answer.message, **counts)


def _shardy_steps(module: str) -> tuple:
    try:
        return "ok", peers.shardy_steps(module)
    except peers.ShardyFailure as failure:
        return failure.status, str(failure)


def _dtensor_here(question: tuple) -> tuple:
    return "ok", peers_dtensor.dtensor_answer(*question, in_child=False, search_s=DTENSOR_SEARCH_S)
