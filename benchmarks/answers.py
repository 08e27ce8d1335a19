# SPDX-License-Identifier: Apache-2.0
"""What each of us answers to a case, as kept in a journal: the peers' collectives, and the costs of our plans."""

from __future__ import annotations

import base64
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
import functools
import hashlib
import json
import multiprocessing
from pathlib import Path
import signal
import time
import zlib

from benchmarks.cases import Case
from benchmarks.fresh import plans_on_disk_left_alone
from reshard import __version__, synthesis
from reshard.dialect_utils import peers
from reshard.dialect_utils.peers import Answer
from reshard.dialect_utils.xla_child import XlaChild
from reshard.synthesis.plan import NoPlanError, forget, plan
from reshard.synthesis.topology import Topology
from reshard.synthesis.traffic import Collective

PEERS = ("xla", "shardy")


# ---- the peers


class Peers:
    """Asks the peers, each in a child process that may abort; a context manager, which stops them at the end."""

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
            return peers.shardy_answer(*question)  # alone in a process of its own, which tells how it ends

    def _stop_shardy(self) -> None:
        pool, self._shardy = self._shardy, None
        if pool is not None:
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown()


def one_process() -> ProcessPoolExecutor:
    """Returns a pool of one child, which leaves Ctrl-C to us."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=spawn, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))


def _shardy_here(question: tuple) -> Answer:
    return peers.shardy_answer(*question, in_child=False)


def as_entry(answer: Answer) -> dict:
    """Returns an answer for a journal; its collectives are packed, since their lists of devices are long."""
    collectives = [(c.kind, c.bytes_before, c.bytes_after, c.groups, c.pairs, c.trip_count) for c in answer.collectives]
    packed = base64.b85encode(zlib.compress(json.dumps(collectives).encode())).decode() if collectives else ""
    return {"status": answer.status, "message": answer.message, "collectives": packed, "copied_bytes": answer.copied_bytes}


def as_answer(name: str, num_devices: int, entry: dict) -> Answer:
    """Returns the answer of which `as_entry` made the entry, without its temporaries."""
    listed = json.loads(zlib.decompress(base64.b85decode(entry["collectives"]))) if entry["collectives"] else []
    collectives = tuple(
        Collective(kind, before, after, *(tuple(map(tuple, ids)) for ids in (groups, pairs)), trip_count)
        for kind, before, after, groups, pairs, trip_count in listed
    )
    return Answer(name, num_devices, entry["status"], entry["message"], collectives, copied_bytes=entry["copied_bytes"])


# ---- ours


@dataclass(frozen=True, slots=True)
class Ours:
    """What a plan costs; numbers are 0 where there is none.

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
    """Returns our plan by time on a topology, or by bytes without one; nothing that the planner raises gets out."""
    pair, network = case.pair, topology and Topology.parse(topology)
    options = {"objective": "time" if topology else "bytes", "topology": network or None, "with_exchange": True}
    options["tile_limit"] = tile_limit
    forget()  # thousands of plans for hundreds of devices fill the memory
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
    return Ours(
        "ok",
        chain=found.chain_text,
        bytes_received=found.bytes_received,
        bound_bytes=found.bound_bytes,
        collectives_time_s=answer.collectives_time_s(network) if network else 0.0,
        time_s=answer.time_s(network) if network else 0.0,
        bound_time_s=found.bound_time_s,
        collectives=sum(step.bytes_received > 0 for step in found.steps),
        rounds=answer.collective_runs,
        is_optimal=found.is_optimal,
        seconds=seconds,
    )


@functools.cache
def planner_version() -> str:
    """Returns the package's version and a digest of the planner's sources: of other sources, other plans are kept."""
    root = Path(synthesis.__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*root.glob("*.py"), *root.glob("presets/*.toml")]):
        digest.update(path.name.encode() + path.read_bytes())
    return f"{__version__}-{digest.hexdigest()[:10]}"
