# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs modules with stock XLA in a child process, and keeps the results of compiling on disk.

XLA may abort, hang or exhaust the memory of its process; the answer then says so in its status. The child is started
when it is first needed. It serves any number of requests, and is started again after an abort or a hang. A child that
runs already compiles one small tensor in about 0.03 s; starting a child takes about a second.
"""

import atexit
import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from reshard.synthesis.common import store

from ..ir.narrow_floats import as_bfloat16, as_float16, has_bfloat16_alone
from ..platform import compat, progress
from ..platform.interrupts import DeferredInterrupts
from ..platform.typed import present
from .compile_targets import Target, compiler_version

if TYPE_CHECKING:  # loading them loads numpy
    from reshard.synthesis.network.program_time import LocalWork
    from reshard.synthesis.network.schedule_time import Schedule
    from reshard.synthesis.programs.traffic import Collective

_PACKAGE = __name__.partition(".")[0]  # the child finds this package through PYTHONPATH
UNASKED = "unasked"  # the status of what a compiler was not asked about, which has answered enough
DEFAULT_TIMEOUT_S = 300.0
_TARGET_TIMEOUT_S = 1800.0  # the compilers of targets take minutes for a large program
_TIMES_AS_LONG = 6  # another form of a program that compiled may take so many times as long
_MIN_DEVICES = 64  # enough for most modules; a child with more devices than it needs starts as fast
_START_TIMEOUT_S = 60.0
_GONE_TIMEOUT_S = 3.0
_TAIL_LINES = 10
_BATCH = 32  # modules that are compiled together; each batch is kept on disk when it is ready
_GRACE_S = 5.0  # to read an answer that has been there for long
_MOST_FORESEEN = 256  # answers in memory that nobody has asked for, beside those of one call
_PIPE_BYTES = 1 << 20  # as much as Linux allows any user
_SCRATCH, _STDERR = "reshard-xla-", "stderr.txt"
# The signals of a crash that the request caused. Other signals come from outside: a user, or a kernel out of memory.
_FAULTS = (signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP)
_OUT_OF_SOMETHING = re.compile(
    r"bad_alloc|out of memory|cannot allocate|no space left|resource temporarily", re.IGNORECASE
)
_TRACEBACK = "Traceback (most recent call last):"
_REMATERIALIZATION = "Involuntary full rematerialization"


@dataclass(frozen=True, slots=True)
class KindCount:
    """The number of collectives of one kind in a program (`ops`), and of their runs (`runs`), with loops counted."""

    kind: str
    ops: int
    runs: int


@dataclass(frozen=True, slots=True)
class Costs:
    """The sizes by which programs are compared, in bytes per device; `Compiled` has fields of the same names."""

    bytes_received: int
    largest_collective_tile_bytes: int
    temp_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """The outcome of compiling a module with XLA. Byte counts are per device and None unless `status` is "ok".

    They are None as well if only the propagation was asked for.

    Fields:
      status: "ok"; "error", XLA or the parser refused the module; "abort", the process died; "hang", out of time;
        "target", there are no such devices, or no compiler for them that works.
      message: why it is not "ok"; after an abort the signal and the end of what XLA wrote.
      bytes_received, bytes_sent: traffic of the busiest device right after SPMD partitioning, in the program's dtypes.
      run_by: the platform whose compiler runs the collectives so; "" if they are as the partitioner left them.
      largest_collective_tile_bytes: largest operand or result of a collective.
      collectives: counts per kind, sorted by kind.
      unknown_trip_counts: loops with collectives that were counted once for want of a trip count.
      unpriced: opcodes that move data and are not counted.
      moved: the collectives themselves, equal ones merged: their trip counts are added up.
      work: the local work, for a roofline.
      argument_bytes, output_bytes, temp_bytes, alias_bytes: what XLA allocates for the executable on this backend.
      rematerializations: the number of warnings in which XLA says that it replicates a whole tensor.
      input_shardings, output_shardings: the shardings that XLA chose; equal texts mean equal placements.
      compile_seconds: the time from text to executable; of an answer from disk, the time of the first compilation.
      hlo_text, scheduled_text, propagated_text: only if asked for; HLO after partitioning, that of the final program in
        the order of its schedule, StableHLO after XLA's sharding propagation.
      from_cache: whether this came from disk.

    Only for targets that are compiled for ahead of time; otherwise None or empty:
      final_schedule: the steps of the final program, if collectives start and end apart in it.
      final_bytes_received, final_bytes_sent, final_collectives, final_unpriced, final_moved, final_work: the same for
        the final program, which the compiler's own passes have rewritten; if asked for, of CPU devices too. Between
        slices of a TPU, traffic is send and recv there and counts as unpriced.
      peak_memory_bytes: the compiler's own number.
      peak_has_chip: whether that includes VMEM, the memory on the chip of a TPU, and temp_bytes is all that the program
        reserves beside it.
      scheduled_seconds: the time by the compiler's schedule, see `schedule_estimates`; None if the schedule has none.
      estimated_seconds: the same; for a compiler that may need another option to write a schedule, the time by a
        schedule of the program with that option.
      scheduled_without, estimated_without: the reduce_scatters that the schedule of scheduled_seconds, or that of
        estimated_seconds, has for free, on TPUs.
      lacks_estimate: whether another compilation, which `XlaChild.estimated` starts, may give estimated_seconds.
      generated_seconds: the time of the final program's local work by the compiler's code generator, see
        `hlo.generated`; None if it has no prices.
      generated_without: the local work without such a price.
    """

    status: str
    message: str = ""
    bytes_received: int | None = None
    bytes_sent: int | None = None
    run_by: str = ""
    largest_collective_tile_bytes: int | None = None
    collectives: tuple[KindCount, ...] = ()
    unknown_trip_counts: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()
    moved: "tuple[Collective, ...]" = ()
    work: "tuple[LocalWork, ...]" = ()
    argument_bytes: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    rematerializations: int = 0
    input_shardings: tuple[str, ...] = ()
    output_shardings: tuple[str, ...] = ()
    compile_seconds: float = 0.0
    hlo_text: str | None = None
    scheduled_text: str | None = None
    propagated_text: str | None = None
    from_cache: bool = False
    final_bytes_received: int | None = None
    final_bytes_sent: int | None = None
    final_collectives: tuple[KindCount, ...] = ()
    final_unpriced: tuple[str, ...] = ()
    final_moved: "tuple[Collective, ...]" = ()
    final_work: "tuple[LocalWork, ...]" = ()
    final_schedule: "Schedule" = ()
    peak_memory_bytes: int | None = None
    peak_has_chip: bool = False
    scheduled_seconds: float | None = None
    estimated_seconds: float | None = None
    scheduled_without: "tuple[Collective, ...]" = ()
    estimated_without: "tuple[Collective, ...]" = ()
    lacks_estimate: bool = False
    generated_seconds: float | None = None
    generated_without: "tuple[LocalWork, ...]" = ()

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"

    @property
    def reason(self) -> str:
        """Returns the first line of the message; if a traceback of Python begins there, with the exception for it."""
        lines = self.message.strip().splitlines() or ["no message"]
        before, mark, _ = lines[0].partition(_TRACEBACK)
        exceptions = (each for each in lines[1:] if each and not each[0].isspace())
        return before + next(exceptions, "") if mark else lines[0]

    @property
    def costs(self) -> Costs:
        """Returns the sizes to compare; the program has to compile. Raises: AssertionError if `is_ok` is false."""
        tile = present(self.largest_collective_tile_bytes)
        return Costs(present(self.bytes_received), tile, present(self.temp_bytes))

    @property
    def peak_bytes(self) -> int | None:
        """Returns the bytes of arguments, outputs and temporaries together; aliased buffers count once."""
        if not self.is_ok:
            return None
        held = present(self.argument_bytes) + present(self.output_bytes) + present(self.temp_bytes)
        return held - present(self.alias_bytes)

    @property
    def limited_bytes(self) -> int:
        """Returns the bytes of a device's memory that have to be there, as limits count them: what is allocated, or the
        compiler's own number where that is larger and has no memory on the chip in it.

        A compiler uses as much of the memory on the chip as pays, in any program: none of it can be lacking.
        """
        own = 0 if self.peak_has_chip else self.peak_memory_bytes or 0
        return max(own, present(self.peak_bytes))


def comparable_estimates(one: Compiled, other: Compiled) -> tuple[float, float] | None:
    """Returns the seconds of two programs by their schedules as they run, or by those that the compiler writes of both
    with another option; None if there is neither of one of them."""
    kind = comparable_schedules(one, other)
    return (getattr(one, f"{kind}_seconds"), getattr(other, f"{kind}_seconds")) if kind else None


def comparable_schedules(one: Compiled, other: Compiled) -> str:
    """Returns which schedules of two programs can be compared, "scheduled" or "estimated", as in the names of fields;
    empty if none."""
    return next((kind for kind in ("scheduled", "estimated") if all(_has(each, kind) for each in (one, other))), "")


def _has(compiled: Compiled, kind: str) -> bool:
    return getattr(compiled, f"{kind}_seconds") is not None


def may_be_estimated(one: Compiled, other: Compiled) -> bool:
    """Returns whether two programs have estimates to compare, or another compilation may give what they lack."""
    return comparable_estimates(one, other) is not None or all(
        each.lacks_estimate or _shown(each) is not None for each in (one, other)
    )


def shown_estimates(one: Compiled, other: Compiled) -> tuple[float | None, float | None]:
    """Returns the seconds of two programs, estimated in the same way if they can be compared."""
    found = comparable_estimates(one, other)
    return found or (_shown(one), _shown(other))


def _shown(compiled: Compiled) -> float | None:
    scheduled = compiled.scheduled_seconds
    return compiled.estimated_seconds if scheduled is None else scheduled


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of running a module: global numpy outputs and the median of the run times, without compilation."""

    status: str
    message: str = ""
    outputs: tuple = ()
    median_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A module, as StableHLO text, bytecode or portable artifact, and the number of devices to partition it for.

    keeps_hlo, keeps_propagated, keeps_schedule: whether `Compiled.hlo_text`, `Compiled.propagated_text` and
      `Compiled.scheduled_text` are wanted.
    keeps_locations: whether the HLO must have the names and lines in the locations of this very module; otherwise an
      answer to the same module with other locations serves as well.
    target: what to compile for ahead of time, as text; None for CPU devices.
    has_final: whether the final program is wanted on CPU devices, too; `final_moved` and the like are of it.
    estimated_for: the bytes that the module receives, if the compiler's estimate is all that is wanted.
    only_propagates: whether `Compiled.propagated_text` is all that is wanted; XLA may then stop before it partitions.
    stands_in: the platform of other devices for which CPU devices stand in, "tpu" or "gpu"; "" if they do not. The
      costs are those of a program that computes in bfloat16 as it is (`narrow_floats`), and its collectives are those
      that the compiler for that platform runs (`accelerators`).
    narrows: whether a program that stands in for others may be compiled with float16 in the place of bfloat16.
    at_hand: which devices of this process compile it in the place of a target ahead of time, as text; "" if none do.
    """

    module: str | bytes
    num_devices: int
    keeps_hlo: bool = False
    keeps_propagated: bool = False
    keeps_locations: bool = False
    target: str | None = None
    keeps_schedule: bool = False
    has_final: bool = False
    estimated_for: int | None = None
    only_propagates: bool = False
    stands_in: str = ""
    narrows: bool = True
    at_hand: str = ""

    @property
    def is_narrowed(self) -> bool:
        """Returns whether XLA gets the module with float16 in the place of bfloat16."""
        stands_in = bool(self.stands_in) and self.target is None
        return stands_in and self.narrows and has_bfloat16_alone(_readable(self.module))


class _OutOfTime(Exception):
    """The child has not answered in time. The class is our own, so that an exception which a signal handler raises here
    is not mistaken for it."""


class _Gone(Exception):
    """The child has ended."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """Requests that a child answers while nobody waits, the number of that question, and how much the child had written
    to its standard error before."""

    requests: tuple[CompileRequest, ...]
    number: int
    deadline: float
    timeout_s: float
    said: int


class XlaChild:
    """A child process with stock XLA, restarted as needed; also a context manager, which stops it at the end.

    Invariant: a child that somebody waits for gets no other request (`_is_asked` is then True). What it is to answer
    while nobody waits is in `_begun`, in the order in which it answers. If a request is interrupted, the child is
    stopped, and the next request starts another. A reply has the number of its request. A forked process starts without
    a child; the child stays with the parent process.

    State: `_foreseen`, the answers to requests that have not been made yet; `_begun`, the requests that the child
      answers meanwhile; `_greeting`, the number of its first question, until it has answered that; `_foresees`, whether
      more are foreseen.

    Args:
      cache_dir: the folder of all caches, in which answers are kept; None for the one that the environment names.
      uses_cache: whether answers are read from disk and kept there; if RESHARD_CACHE is off they are not.
      num_devices: devices to start with; a request that needs more restarts the child with twice as many or more.
    Attributes:
      starts: the number of times that the child was started.
      passing_answers: how many answers, of this process or from disk, another try may not give: out of time or memory.
    """

    def __init__(self, *, cache_dir: Path | None = None, uses_cache: bool = True, num_devices: int = _MIN_DEVICES):
        is_kept = uses_cache and store.is_on()  # read once: a later change of the environment affects new objects only
        root = (cache_dir or store.place()) if is_kept else None
        self._answers = None if root is None else replace(ANSWERS, root=root)
        self._num_devices = num_devices
        self._process: subprocess.Popen | None = None
        self._scratch: Path | None = None
        self._is_asked = False
        self._questions = 0
        self._greeting: int | None = None
        self._lock = threading.RLock()
        self._foreseen: dict[CompileRequest, Compiled] = {}
        self._begun: list[_Begun] = []
        self._foresees = True
        self.starts = 0
        self.passing_answers = 0

    def __enter__(self) -> "XlaChild":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def compile(
        self,
        module: str | bytes,
        num_devices: int,
        *,
        target: Target | None = None,
        timeout_s: float | None = None,
        keeps_hlo: bool = False,
        keeps_propagated: bool = False,
        keeps_locations: bool = False,
        keeps_schedule: bool = False,
        has_final: bool = False,
        stands_in: str = "",
        with_estimate: bool = True,
    ) -> Compiled:
        """Compiles a module whose main function has its shardings; never raises because of the module.

        Args:
          module: StableHLO as text, MLIR bytecode or portable artifact.
          num_devices: partitions; the number of devices in the module's mesh.
          target: the target to compile for; None for CPU devices.
          timeout_s: seconds until it counts as a hang; None for those of `patience_s`.
          keeps_hlo, keeps_propagated, keeps_locations, keeps_schedule, has_final, stands_in: as in `CompileRequest`.
          with_estimate: whether to compile once more where the compiler's estimate takes that.
        """
        ahead_of_time = str(target) if target is not None and target.is_ahead_of_time else None
        timeout_s = patience_s(target) if timeout_s is None else timeout_s
        wanted = (keeps_hlo, keeps_propagated, keeps_locations)
        request = CompileRequest(
            module, num_devices, *wanted, ahead_of_time, keeps_schedule, has_final, stands_in=stands_in
        )
        with self._lock:
            compiled = self._compile_cached(request, timeout_s)
            if request.is_narrowed and not compiled.is_ok:
                compiled = self._compile_cached(replace(request, narrows=False), timeout_s)
        if not with_estimate:
            return compiled
        return self.estimated(compiled, module, num_devices, target, timeout_s=timeout_s)

    def estimated(
        self,
        compiled: Compiled,
        module: str | bytes,
        num_devices: int,
        target: Target | None,
        *,
        timeout_s: float | None = None,
    ) -> Compiled:
        """Returns the answer of `compile` for a module and a target with the compiler's estimate, if it lacks one."""
        if not compiled.lacks_estimate:
            return compiled
        request = CompileRequest(module, num_devices, target=str(target), estimated_for=compiled.bytes_received)
        timeout_s = patience_s(target, compiled) if timeout_s is None else timeout_s
        with self._lock:
            found = self._compile_cached(request, timeout_s)
        estimate = {name: getattr(found, name) for name in ("estimated_seconds", "estimated_without")}
        return replace(compiled, **estimate, lacks_estimate=False)

    def answered(self, request: CompileRequest, ask: Callable[[dict], dict], timeout_s: float) -> Compiled:
        """Returns the answer to a request that another compiler than the child's is asked, unless it is on disk.

        Args:
          ask: returns the reply to a request as the child would get it. timeout_s: as in `compile`.
        """
        with self._lock:
            kept = self._kept(request, timeout_s)
        if kept is not None:
            return kept
        reply = _worded(ask(_as_sent(request)))  # others may use the child meanwhile
        with self._lock:
            return self._filed(request, reply, timeout_s)

    def prepare(self, num_devices: int) -> None:
        """Starts the process, if possible, and does not wait for it: questions will come. It takes about a second."""
        with self._lock, contextlib.suppress(OSError):
            self._ensure_running(num_devices)

    def propagate(self, module: str | bytes, num_devices: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Compiled:
        """Returns XLA's sharding propagation alone, as `Compiled.propagated_text`; the costs are None.

        Where processes can be forked, it is there also if XLA cannot partition the module.
        """
        request = CompileRequest(module, num_devices, keeps_propagated=True, only_propagates=True)
        with self._lock:
            return self._compile_cached(request, timeout_s)

    def foresee(self, requests: Sequence[CompileRequest], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Compiles at the same time what will be asked for soon; an equal request to `compile` then has its answer.

        Nothing happens where that is no faster. What is never asked for is compiled in vain. Only answers that last are
        foreseen; where XLA died for want of memory, the module will be compiled alone.

        Args:
          requests: for CPU devices.
          timeout_s: seconds for each large one, and for all small ones of a batch together. If that is not enough,
            nothing more is foreseen by this object.
        """
        from . import worker as xla_worker

        with self._lock:
            self._collect()
            if len(self._foreseen) > _MOST_FORESEEN:
                self._foreseen.clear()
            new = [each for each in dict.fromkeys(requests) if self._known(each, timeout_s) is None]
            for batch in (new[i : i + _BATCH] for i in range(0, len(new), _BATCH)):
                if self._foresees and xla_worker.are_faster_together([each.module for each in batch]):
                    self._foresee_from(batch, self._replies(batch, timeout_s), timeout_s)

    def begin(self, requests: Sequence[CompileRequest], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Compiles large modules that will be asked for soon, behind those that were begun before, and does not wait
        for it; else like `foresee`.

        The next question waits until all are compiled. If no child starts, that question says why.
        """
        from . import worker as xla_worker

        with self._lock:
            if len(self._foreseen) > _MOST_FORESEEN:
                self._foreseen.clear()
            waiting = {each for begun in self._begun for each in begun.requests}
            asked = [each for each in dict.fromkeys(requests) if each not in waiting]
            new = [each for each in asked if self._known(each, timeout_s) is None]
            rounds = xla_worker.large_among([each.module for each in new])
            if not new or rounds < len(new) or not self._foresees or not xla_worker.IS_AVAILABLE:
                return
            devices = max(each.num_devices for each in new)
            if devices > self._num_devices:  # another child, which would not answer what this one is asked
                self._collect()
            try:
                self._ensure_running(devices)
            except OSError:
                return
            deadline = timeout_s * rounds + max([time.monotonic(), *(each.deadline for each in self._begun)])
            with contextlib.suppress(_OutOfTime, _Gone), self._stopped_if_interrupted():
                said = self._stderr_size
                number = self._sent({"op": "compile_all", "requests": list(map(_as_sent, new))}, deadline)
                self._begun.append(_Begun(tuple(new), number, deadline, timeout_s, said))

    def _collect(self, until: CompileRequest | None = None) -> None:
        """Waits for what was begun, up to a request if there is one, and files the answers."""
        while self._begun:
            begun = self._begun.pop(0)
            self._collect_one(begun)
            if until in begun.requests:
                return

    def _collect_one(self, begun: _Begun) -> None:
        try:
            self._await_greeting()
        except RuntimeError:
            return
        with progress.waiting_for(f"XLA compiles {len(begun.requests)} modules"):
            deadline = max(begun.deadline, time.monotonic() + _GRACE_S)
            reply = self._ended(lambda: self._answer(begun.number, deadline), begun.timeout_s, begun.said)
        self._foresees &= reply["status"] != "hang"
        replies = [each and _worded(each) for each in reply.get("replies", ())]
        self._foresee_from(begun.requests, replies, begun.timeout_s)

    def _foresee_from(self, requests: Sequence[CompileRequest], replies: list[dict | None], timeout_s: float) -> None:
        for request, reply in zip(requests, replies, strict=False):
            if reply is not None and _is_lasting(reply):
                self._foreseen[request] = self._filed(request, reply, timeout_s)

    def _replies(self, requests: Sequence[CompileRequest], timeout_s: float) -> list[dict | None]:
        """Returns the reply to each request, None to one that is to be compiled alone; no reply if time is out."""
        from . import worker as xla_worker

        asked = {"op": "compile_all", "requests": list(map(_as_sent, requests))}
        rounds = max(1, xla_worker.large_among([each.module for each in requests]))
        with progress.waiting_for(f"XLA compiles {len(requests)} modules"):
            reply = self._ask(asked, max(each.num_devices for each in requests), timeout_s * rounds)
        self._foresees = reply["status"] != "hang"
        return [each and _worded(each) for each in reply.get("replies", ())]

    def run(
        self,
        module: str | bytes,
        inputs: Sequence | None,
        num_devices: int,
        *,
        repeats: int = 1,
        seed: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        optimizes: bool = True,
    ) -> Ran:
        """Runs a module on CPU devices and returns its global outputs.

        Args:
          inputs: global numpy arrays, one per argument of main; None for random ones from `seed`.
          repeats: runs; the time is their median.
          optimizes: whether LLVM optimizes what runs; without, a module compiles in half the time and runs longer.
        """
        inputs = None if inputs is None else list(inputs)
        request = {"op": "run", "module": module, "inputs": inputs, "num_devices": num_devices}
        request |= {"repeats": repeats, "seed": seed, "optimizes": optimizes}
        with self._lock:
            reply = self._ask(request, num_devices, timeout_s)
        outputs = tuple(reply.get("outputs", ()))
        return Ran(reply["status"], reply.get("message", ""), outputs, reply.get("median_seconds"))

    def close(self) -> None:
        """Stops the child, if there is one; the next request starts another."""
        with self._lock:
            self._stop()

    def _compile_cached(self, request: CompileRequest, timeout_s: float) -> Compiled:
        if any(request in begun.requests for begun in self._begun):
            self._collect(until=request)
        foreseen = self._foreseen.pop(request, None)
        if foreseen is not None:
            return foreseen
        return self._kept(request, timeout_s) or self._filed(request, self._compile_now(request, timeout_s), timeout_s)

    def _known(self, request: CompileRequest, timeout_s: float) -> Compiled | None:
        return self._foreseen.get(request) or self._kept(request, timeout_s)

    def _kept(self, request: CompileRequest, timeout_s: float) -> Compiled | None:
        """Returns the answer on disk, if there is one."""
        if self._answers is None:
            return None
        kept = self._answers.read(_cache_key(request), _decoded)
        if kept is None or kept.is_too_short(timeout_s):
            return None
        self.passing_answers += kept.compiled.status == "hang"
        return replace(kept.compiled, from_cache=True)

    def _filed(self, request: CompileRequest, reply: dict, timeout_s: float) -> Compiled:
        """Returns the answer in a reply, and keeps it on disk if a second try would give the same one."""
        compiled, is_lasting = _as_asked(request, compiled_from(reply)), _is_lasting(reply)
        self.passing_answers += not is_lasting or reply["status"] == "hang"
        if is_lasting and self._answers is not None:
            self._answers.write(_cache_key(request), _encoded(compiled, timeout_s))
        return compiled

    def _compile_now(self, request: CompileRequest, timeout_s: float) -> dict:
        devices = 1 if request.target else request.num_devices
        with progress.waiting_for("XLA compiles"):
            op = "compile" if request.estimated_for is None else "estimate"
            return self._ask({"op": op, **_as_sent(request)}, devices, timeout_s)

    def _ask(self, request: dict, num_devices: int, timeout_s: float) -> dict:
        """Sends one request and returns the reply; "abort" and "hang" are replies as well."""
        self._collect()
        self._ensure_started(num_devices)
        deadline = time.monotonic() + timeout_s
        return self._ended(lambda: self._answered(request, deadline), timeout_s, self._stderr_size)

    def _ended(self, answer: Callable[[], dict], timeout_s: float, said: int) -> dict:
        """Returns the reply that `answer` waits for, or how the child ended without one.

        Args:
          said: how much the child had written to its standard error before.
        """
        with self._stopped_if_interrupted():
            try:
                reply = answer()
                return _worded({"said": self._stderr_since(said), **reply})
            except _OutOfTime:
                self._stop()
                return {"status": "hang", "message": f"no answer after {timeout_s:g} s"}
            except _Gone:
                code = present(self._process).wait()
                wrote = self._stderr_since(said)
                self._stop()
                return _abort_reply(code, wrote)

    @contextlib.contextmanager
    def _stopped_if_interrupted(self) -> Iterator[None]:
        """Stops the child at Ctrl-C, or at a time limit of the caller: the next request must not receive an answer to
        this one."""
        try:
            yield
        except BaseException:
            self._stop()
            raise

    def _answered(self, request: dict, deadline: float) -> dict:
        self._is_asked = True
        return self._answer(self._sent(request, deadline), deadline)

    def _sent(self, request: dict, deadline: float) -> int:
        """Sends a request, and returns its number."""
        self._questions += 1
        self._send({**request, "number": self._questions}, deadline)
        return self._questions

    def _answer(self, number: int, deadline: float) -> dict:
        """Returns the reply to a request; drops late replies to earlier ones, for which nobody waits."""
        self._is_asked = True
        reply = self._receive(deadline)
        while reply["number"] < number:
            reply = self._receive(deadline)
        self._is_asked = False
        return reply

    # -- the process --

    def _ensure_started(self, num_devices: int) -> None:
        self._ensure_running(num_devices)
        self._await_greeting()

    def _ensure_running(self, num_devices: int) -> None:
        """Starts the process if it does not run with enough devices; its answer to `hello` may still be to come."""
        if num_devices > self._num_devices:
            self._stop()
            self._num_devices = 1 << (num_devices - 1).bit_length()
        if self._process is not None and not self._is_asked and self._process.poll() is None:
            return
        self._stop()
        try:
            self._start()
        except BaseException:
            self._stop()
            raise

    def _start(self) -> None:
        import tempfile

        from . import worker as xla_worker  # imported late: it loads all modules that the child needs

        _running.add(self)
        self._scratch = Path(
            tempfile.gettempdir(), f"{_SCRATCH}{os.getpid()}-{os.urandom(8).hex()}"
        )  # set before the folder exists, so that `_stop` removes it
        self._scratch.mkdir(mode=0o700)
        # An interrupt here would leave a child that nothing stops.
        with self._stderr_path.open("wb") as stderr, DeferredInterrupts():
            _locked(stderr)  # the child inherits the file, so the lock lasts until the child has ended
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", xla_worker.__name__, str(self._scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=child_environment(self._num_devices),
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches this process only, which stops the child if necessary
            )
        for pipe in _pipes(self._process):
            os.set_blocking(pipe.fileno(), False)
        _widen(_pipes(self._process)[0])
        self.starts += 1
        self._greeting = self._questions + 1
        with contextlib.suppress(_Gone, _OutOfTime):  # whoever waits for the greeting will see it
            self._sent({"op": "hello"}, time.monotonic() + _START_TIMEOUT_S)

    def _await_greeting(self) -> None:
        """Waits until a new child has started. Raises: RuntimeError if it does not; then it is stopped."""
        number, self._greeting = self._greeting, None
        if number is None:
            return
        with self._stopped_if_interrupted():
            try:
                hello = self._answer(number, time.monotonic() + _START_TIMEOUT_S)
            except (_Gone, _OutOfTime) as error:
                hello = {"status": "error", "message": str(error)}
            if hello["status"] != "ok":
                raise RuntimeError(f"the XLA child did not start: {hello['message']}\n{self._stderr_since(0)}")

    def _stop(self) -> None:
        import shutil

        with DeferredInterrupts():
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                process.wait()
                for pipe in _pipes(process):
                    pipe.close()
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
                self._scratch = None
            self._is_asked, self._greeting = False, None
            self._begun.clear()
            _running.discard(self)

    def _forget(self) -> None:
        """Forgets a child that belongs to another process; the pipes stay open in that process."""
        process, self._process, self._scratch, self._is_asked = self._process, None, None, False
        self._greeting, self._begun = None, []
        self._lock = threading.RLock()
        if process is not None:
            process.returncode = 0  # so that Popen does not wait for it
            for pipe in _pipes(process):
                pipe.close()

    @property
    def _stderr_path(self) -> Path:
        return present(self._scratch) / _STDERR

    @property
    def _stderr_size(self) -> int:
        return self._stderr_path.stat().st_size

    def _stderr_since(self, start: int) -> str:
        with self._stderr_path.open("rb") as stderr:
            stderr.seek(start)
            return stderr.read().decode(errors="replace")

    def _send(self, request: dict, deadline: float) -> None:
        from . import worker as xla_worker

        stdin, _ = _pipes(present(self._process))
        unsent = memoryview(xla_worker.pack_frame(request))
        while unsent:
            _wait(stdin, selectors.EVENT_WRITE, deadline)
            try:
                unsent = unsent[stdin.write(unsent) or 0 :]
            except BrokenPipeError:
                raise _Gone("the child closed its input") from None

    def _receive(self, deadline: float) -> dict:
        from . import worker as xla_worker

        header = self._read(xla_worker.LENGTH.size, deadline)
        return xla_worker.unpack(self._read(xla_worker.LENGTH.unpack(header)[0], deadline))

    def _read(self, size: int, deadline: float) -> bytes:
        _, stdout = _pipes(present(self._process))
        received = bytearray()
        while len(received) < size:
            _wait(stdout, selectors.EVENT_READ, deadline)
            chunk = stdout.read(min(size - len(received), 1 << 20))
            if not chunk:
                raise _Gone("the child closed its output")
            received += chunk
        return bytes(received)


_running: set[XlaChild] = set()


def _pipes(process: subprocess.Popen) -> tuple[IO[bytes], IO[bytes]]:
    """Returns the standard input and output of a child; both are pipes."""
    return present(process.stdin), present(process.stdout)


def _widen(pipe: IO[bytes]) -> None:
    """Lets a pipe hold a module of a thousand ops, so that nobody waits until a child that starts reads it (Linux)."""
    try:
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        pass


@atexit.register
def _stop_all() -> None:
    for child in list(_running):
        if (process := child._process) is not None:
            process.kill()  # first, since a thread that waits for an answer holds the lock
        child.close()


def _forget_all() -> None:
    for child in list(_running):
        child._forget()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def clear_after(process: int) -> None:
    """Waits until the child of a killed process has ended, and removes the files that the child left."""
    import shutil
    import tempfile

    deadline = time.monotonic() + _GONE_TIMEOUT_S
    for each in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}{process}-*"):
        with (
            contextlib.suppress(OSError),
            (each / _STDERR).open("rb") as stderr,
        ):  # the folder is gone, or no child was started
            while not _locked(stderr) and time.monotonic() < deadline:
                time.sleep(0.01)
        shutil.rmtree(each, ignore_errors=True)


def _locked(file) -> bool:
    """Locks a file until every process that inherits it has closed it. Returns False if the file is locked by another
    process, or cannot be locked."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def is_large(module: str | bytes) -> bool:
    """Returns whether a module is so large that it is compiled in a fork of its own, beside others."""
    from . import worker as xla_worker

    return xla_worker.large_among([module]) > 0


def patience_s(target: Target | None = None, of: Compiled | None = None) -> float:
    """Returns the seconds until a compilation counts as a hang.

    Args:
      target: what is compiled for. of: another form of the same program, as it compiled on this machine.
    """
    if of is not None and of.is_ok:
        return max(DEFAULT_TIMEOUT_S, _TIMES_AS_LONG * of.compile_seconds)
    is_slow = target is not None and target.is_ahead_of_time
    return _TARGET_TIMEOUT_S if is_slow else DEFAULT_TIMEOUT_S


@cache
def shared_child() -> XlaChild:
    """Returns the one child that serves this process; it is stopped when the process exits."""
    return XlaChild()


def _is_lasting(reply: dict) -> bool:
    """Returns whether a second try would give the same answer. It may not if a compiler was missing, if the machine was
    out of memory or disk, or if somebody ended the child."""
    if reply["status"] == "abort":
        return reply["signal"] in _FAULTS and not _OUT_OF_SOMETHING.search(reply.get("message", ""))
    return reply["status"] != "target" and not reply.get("is_passing")


def compiled_from(reply: dict) -> Compiled:
    """Returns a reply, or a cache entry, as `Compiled`. Raises KeyError, TypeError if it is not one."""
    from reshard.synthesis.network.schedule_time import from_plain as schedule_from

    known = {field.name for field in fields(Compiled)}
    values = {name: _frozen(value) for name, value in reply.items() if name in known}
    values["final_schedule"] = schedule_from(values.get("final_schedule", ()))
    rows = {name: tuple(row(*_frozen(each)) for each in reply.get(name, ())) for name, row in _rows_of_fields().items()}
    return Compiled(**{**values, "status": reply["status"], **rows})


@cache
def _rows_of_fields() -> dict[str, Callable]:
    """Returns the fields of `Compiled` that hold objects, and their classes. In replies and on disk, each object is a
    list of its fields."""
    from reshard.synthesis.network.program_time import LocalWork
    from reshard.synthesis.programs.traffic import Collective

    kinds = {"collectives": KindCount, "moved": Collective, "work": LocalWork}
    final = {f"final_{name}": kind for name, kind in kinds.items()}
    return (
        kinds
        | final
        | {"scheduled_without": Collective, "estimated_without": Collective, "generated_without": LocalWork}
    )


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


# libtpu shall not look for a TPU, shall let other processes load it too (one may use a TPU), and shall write no logs.
_LIBTPU_ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_LOG_DIR": "disabled"}


def child_environment(num_devices: int) -> dict[str, str]:
    """Returns this process's environment without the variables that steer Python, jax or XLA, and with the path to
    `reshard`."""
    steering = ("JAX_", "PYTHON", "TF_", "XLA_", "TPU_", "LIBTPU_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    package_parent = str(Path(present(sys.modules[_PACKAGE].__file__)).resolve().parent.parent)
    search_path = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **environment,
        **compat.cpu_devices_environment(num_devices),
        **_LIBTPU_ENVIRONMENT,
        "JAX_ENABLE_X64": "1",
        "PYTHONPATH": os.pathsep.join(search_path),
    }


def _wait(stream, event: int, deadline: float) -> None:
    """Waits until a pipe is ready. Raises _OutOfTime at the deadline (time.monotonic)."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise _OutOfTime("it took too long")


def _worded(reply: dict) -> dict:
    """Returns a reply with what XLA `said` in place of XLA's words: the cause of an abort, the number of warnings."""
    said = reply.pop("said", "")
    if "exit_code" in reply:  # XLA has ended a fork of the child; the child itself goes on
        return _abort_reply(reply["exit_code"], said)
    return {**reply, "rematerializations": said.count(_REMATERIALIZATION)}


def _abort_reply(code: int, stderr: str) -> dict:
    return {"status": "abort", "message": cause_of_death(code, stderr), "signal": -code}


_FATAL = re.compile(r"^(?:F\d{4} .*|.*Check failed.*|LLVM ERROR.*)$", re.MULTILINE)
_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ ")


def cause_of_death(code: int, stderr: str) -> str:
    """Returns the signal and XLA's fatal message, or the end of XLA's output; leaves out times and thread ids.

    Example:
      >>> cause_of_death(-6, "F1120 23:20:08.028206   14587 hlo_sharding_util.cc:3007] Check failed: sliced")
      'SIGABRT: hlo_sharding_util.cc:3007] Check failed: sliced'
    """
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    fatal = _FATAL.search(stderr)
    lines = [fatal[0]] if fatal else stderr.splitlines()[-_TAIL_LINES:]
    return ": ".join([name, *filter(None, ["\n".join(_LOG_PREFIX.sub("", line.rstrip()) for line in lines)])])


# ---- answers on disk

# The folders whose sources an answer depends on: those that the worker imports.
_SOURCES = tuple(
    f"{_PACKAGE}.{folder}"
    for folder in (
        "dialect_utils.early_stop",
        "dialect_utils.hlo",
        "dialect_utils.platform",
        "dialect_utils.shardings",
        "dialect_utils.xla",
        "synthesis.forms",
        "synthesis.layouts",
        "synthesis.network",
        "synthesis.programs",
    )
)
ANSWERS = store.Store("xla", store.Limits(64 << 20, 20_000, 256 << 20), _SOURCES, lambda: compat.jaxlib_version())


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer on disk, and the time limit of the caller who asked for it."""

    compiled: Compiled
    timeout_s: float

    def is_too_short(self, timeout_s: float) -> bool:
        """Returns whether this is a hang under a shorter time limit than that of a new caller."""
        return self.compiled.status == "hang" and self.timeout_s < timeout_s


def _as_sent(request: CompileRequest) -> dict[str, Any]:
    """Returns a request as the child reads it."""
    if not request.is_narrowed:
        return asdict(request)
    return {**asdict(request), "module": as_float16(_readable(request.module)), "is_narrowed": True}


def _as_asked(request: CompileRequest, compiled: Compiled) -> Compiled:
    """Returns an answer with the number types of the module that was asked about."""
    if not request.is_narrowed:
        return compiled
    texts = {name: getattr(compiled, name) for name in ("hlo_text", "scheduled_text")}
    return replace(compiled, **{name: as_bfloat16(text) for name, text in texts.items() if text})


def _readable(module: str | bytes) -> str:
    """Returns a module as text; one in bytes has no locations there."""
    return module if isinstance(module, str) else _text_of(module)


@lru_cache(maxsize=8)
def _text_of(module: bytes) -> str:
    return _canonical_text(module)


def _cache_key(request: CompileRequest) -> str:
    """Returns a digest of everything in a request that the answer depends on; locations are left out where they may."""
    compiler = compiler_version(Target.parse(request.target)) if request.target else None
    module = request.module if request.keeps_locations else _canonical_text(request.module)
    return store.key(repr((replace(request, module=""), compiler)), module)


def _canonical_text(module: str | bytes) -> str:
    """Returns the module's text without locations; a module that does not parse is returned as it is, bytes in hex."""
    if isinstance(module, str) and "loc(" not in module:
        return module
    from ..platform.bindings import ir, make_context

    context = make_context()
    try:
        return str(compat.parse_module(context, module))
    except (ir.MLIRError, ValueError):
        return module if isinstance(module, str) else module.hex()


def _encoded(compiled: Compiled, timeout_s: float) -> bytes:
    return json.dumps({"compiled": as_json(compiled), "timeout_s": timeout_s}).encode()


def _decoded(entry: bytes) -> _Answer:
    """Returns the answer in an entry. Raises: any error if there is none."""
    read = json.loads(entry)
    return _Answer(compiled_from(read["compiled"]), float(read["timeout_s"]))


def as_json(compiled: Compiled) -> dict:
    """Returns an answer as plain values; see `compiled_from`."""
    from reshard.synthesis.network.schedule_time import as_plain

    rows = {name: [list(astuple(each)) for each in getattr(compiled, name)] for name in _rows_of_fields()}
    schedule = {"final_schedule": as_plain(compiled.final_schedule)}
    return {field.name: getattr(compiled, field.name) for field in fields(compiled)} | rows | schedule
