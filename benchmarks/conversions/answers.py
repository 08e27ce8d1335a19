# SPDX-License-Identifier: Apache-2.0
"""The answers to a case, as a journal keeps them: the peers' collectives, and the costs of our plans."""

from __future__ import annotations

import base64
import json
import multiprocessing
import signal
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import astuple, dataclass

from benchmarks.conversions.cases import Case
from benchmarks.harness.fresh import plans_on_disk_left_alone
from reshard import __version__
from reshard.dialect_utils.compare import peers
from reshard.dialect_utils.compare.peers import Answer
from reshard.dialect_utils.xla.child import XlaChild
from reshard.synthesis.common import store
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import NoPlanError, forget, plan
from reshard.synthesis.programs.tile_program import Copies
from reshard.synthesis.programs.traffic import Collective

PEERS = ("xla", "shardy")


# ---- the peers


class Peers:
    """Asks the peers, each in a child process that may abort; a context manager, which stops the children."""

    def __init__(self, num_devices: int):
        self._xla = XlaChild(num_devices=num_devices)
        self._shardy: ProcessPoolExecutor | None = None

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *exception) -> None:
        self._xla.close()
        self._stop_shardy()

    def ask(self, name: str, case: Case) -> Answer:
        pair = case.pair
        if name == "xla":
            return peers.xla_answer(case.tensor_type, pair.mesh, pair.source, pair.target, self._xla)
        question = (case.tensor_type, pair.mesh, pair.shape, case.bits, pair.source, pair.target)
        self._shardy = self._shardy or one_process()
        try:
            return self._shardy.submit(_shardy_here, question).result(peers.SHARDY_TIMEOUT_S)
        except (BrokenProcessPool, TimeoutError):
            self._stop_shardy()
            return peers.shardy_answer(*question)  # once more in its own process, to see how that process ends

    def _stop_shardy(self) -> None:
        pool, self._shardy = self._shardy, None
        if pool is not None:
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown()


def one_process() -> ProcessPoolExecutor:
    """Returns a pool of one child process, which ignores Ctrl-C."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=spawn, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))


def _shardy_here(question: tuple) -> Answer:
    return peers.shardy_answer(*question, in_child=False)


def as_entry(answer: Answer) -> dict:
    """Returns an answer as a journal's entry; its collectives are packed, because their lists of devices are long."""
    collectives = [(c.kind, c.bytes_before, c.bytes_after, c.groups, c.pairs, c.trip_count) for c in answer.collectives]
    packed = base64.b85encode(zlib.compress(json.dumps(collectives).encode())).decode() if collectives else ""
    return {
        "status": answer.status,
        "message": answer.message,
        "collectives": packed,
        "copies": None if answer.copies is None else astuple(answer.copies),
    }


def as_answer(name: str, num_devices: int, entry: dict) -> Answer:
    """Returns the answer that `as_entry` made into an entry, without its temporaries."""
    listed = json.loads(zlib.decompress(base64.b85decode(entry["collectives"]))) if entry["collectives"] else []
    collectives = tuple(
        Collective(kind, before, after, tuple(map(tuple, groups)), tuple(map(tuple, pairs)), trip_count)
        for kind, before, after, groups, pairs, trip_count in listed
    )
    copies = None if entry["copies"] is None else Copies(*entry["copies"])
    return Answer(name, num_devices, entry["status"], entry["message"], collectives, copies=copies)


# ---- ours


@dataclass(frozen=True, slots=True)
class Ours:
    """The costs of a plan; all numbers are 0 if there is no plan.

    Attributes:
      status: "ok"; "no plan", refused; "crash", the planner raised something else. message: its words.
      collectives_time_s, time_s: as the peers are timed, without copies on the device and with them.
      collectives: steps that talk. rounds: collectives that run, each round of an exchange one.
      seconds: of the processor, for planning.
    """

    status: str
    message: str = ""
    chain: str = ""
    bytes_received: int = 0
    bound_bytes: int = 0
    collectives_time_s: float = 0.0
    time_s: float = 0.0
    bound_time_s: float = 0.0
    collectives: int = 0
    rounds: int = 0
    is_optimal: bool = False
    seconds: float = 0.0

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"


def our_answer(case: Case, topology: str | None, tile_limit: int | None = None) -> Ours:
    """Returns the costs of our plan, by time on a topology or else by bytes; a planner's exception becomes a status."""
    pair, network = case.pair, topology and Topology.parse(topology)
    options = {"objective": "time" if topology else "bytes", "topology": network or None, "with_exchange": True}
    options["tile_limit"] = tile_limit
    forget()  # else thousands of plans for hundreds of devices fill the memory
    start_s = time.process_time()
    try:
        with plans_on_disk_left_alone():
            found = plan(pair.mesh, pair.shape, case.bits, pair.source, pair.target, **options)
    except NoPlanError as error:
        return Ours("no plan", str(error))
    except Exception as error:
        return Ours("crash", f"{type(error).__name__}: {error}")
    seconds = time.process_time() - start_s
    answer = peers.our_answer(case.tensor_type, found)
    collectives_time_s = answer.collectives_time_s(network) if network else 0.0
    time_s = answer.time_s(network) if network else 0.0
    assert collectives_time_s is not None and time_s is not None  # a plan has both times
    return Ours(
        "ok",
        chain=found.chain_text,
        bytes_received=found.bytes_received,
        bound_bytes=found.bound_bytes,
        collectives_time_s=collectives_time_s,
        time_s=time_s,
        bound_time_s=found.bound_time_s,
        collectives=sum(step.bytes_received > 0 for step in found.steps),
        rounds=answer.collective_runs,
        is_optimal=found.is_optimal,
        seconds=seconds,
    )


def planner_version() -> str:
    """Returns the package's version with a digest of the planner's sources; plans of other sources are kept apart."""
    digest = store.fingerprint(("reshard.synthesis",))
    assert digest is not None  # the sources are readable files
    return f"{__version__}-{digest[:10]}"
