# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs modules with stock XLA in a child process, and caches what compiling found on disk.

XLA may abort, hang or exhaust the memory of the process that it runs in; here that is a status of the answer. The
child is started when it is first needed, serves any number of requests, and is started again after an abort or a hang.
A compile of one small tensor takes some 0.03 s in a warm child; starting one takes about a second.
"""

import atexit
import contextlib
import hashlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import reshard
from . import compat, stages
from .interrupts import HeldBack
from .compile_targets import Target, compiler_version
from ..synthesis import cache_place

DEFAULT_TIMEOUT_S = 300.0
_MIN_DEVICES = 64  # more than most modules need: a child with a few devices too many starts no slower
_START_TIMEOUT_S = 60.0
_GONE_TIMEOUT_S = 3.0
_TAIL_LINES = 10
_SCRATCH, _STDERR = "reshard-xla-", "stderr.txt"
# How a process ends for what it was asked. Other signals come from outside: an impatient user, a kernel out of memory.
_FAULTS = (signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP)
_OUT_OF_SOMETHING = re.compile(r"bad_alloc|out of memory|cannot allocate|no space left|resource temporarily", re.IGNORECASE)
_REMATERIALIZATION = "Involuntary full rematerialization"
_COUNTS = ("collectives", "final_collectives")  # the fields of `Compiled` that hold `KindCount`


@dataclass(frozen=True, slots=True)
class KindCount:
    """How many collectives of one kind a program has (`ops`), and how often it runs them (`runs`), loops counted."""

    kind: str
    ops: int
    runs: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """What XLA makes of a module. Byte counts are per device and None unless `status` is "ok".

    Fields:
      status: "ok"; "error", XLA or the parser refused the module; "abort", the process died; "hang", out of time;
        "target", there are no such devices, or no compiler for them that works.
      message: why it is not "ok"; after an abort the signal and the end of what XLA wrote.
      bytes_received, bytes_sent: traffic of the busiest device right after SPMD partitioning, in the program's dtypes.
      largest_collective_tile_bytes: largest operand or result of a collective.
      collectives: counts per kind, sorted by kind.
      unknown_trip_counts: loops with collectives that were counted once for want of a trip count.
      unpriced: opcodes that move data and are not counted.
      argument_bytes, output_bytes, temp_bytes, alias_bytes: of the executable, as XLA allocates them on this backend.
      rematerializations: how often XLA warned that it replicates a whole tensor.
      input_shardings, output_shardings: as XLA decided them; equal texts are equal placements.
      compile_seconds: as measured when it was compiled, from text to executable.
      hlo_text, propagated_text: only if asked for; HLO after partitioning, StableHLO after XLA's sharding propagation.
      from_cache: whether this came from disk.

    Of a target that is compiled for ahead of time only, else None or empty:
      final_bytes_received, final_bytes_sent, final_collectives, final_unpriced: as above, of the final program, which the
        compiler's own passes have rewritten. Between slices of a TPU, traffic is send and recv there and counts as unpriced.
      peak_memory_bytes: as the compiler has it; on TPUs with what lies in VMEM, on the chip, which temp_bytes leaves out.
      estimated_seconds: by the compiler's schedule, see `schedule_estimates`; None where that does not tell.
    """

    status: str
    message: str = ""
    bytes_received: int | None = None
    bytes_sent: int | None = None
    largest_collective_tile_bytes: int | None = None
    collectives: tuple[KindCount, ...] = ()
    unknown_trip_counts: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()
    argument_bytes: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    rematerializations: int = 0
    input_shardings: tuple[str, ...] = ()
    output_shardings: tuple[str, ...] = ()
    compile_seconds: float = 0.0
    hlo_text: str | None = None
    propagated_text: str | None = None
    from_cache: bool = False
    final_bytes_received: int | None = None
    final_bytes_sent: int | None = None
    final_collectives: tuple[KindCount, ...] = ()
    final_unpriced: tuple[str, ...] = ()
    peak_memory_bytes: int | None = None
    estimated_seconds: float | None = None

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"

    @property
    def peak_bytes(self) -> int | None:
        """Arguments, outputs and temporaries together, what is aliased once."""
        if not self.is_ok:
            return None
        return self.argument_bytes + self.output_bytes + self.temp_bytes - self.alias_bytes


@dataclass(frozen=True, slots=True)
class Ran:
    """What running a module gave: global numpy outputs and the median of the run times, compilation excluded."""

    status: str
    message: str = ""
    outputs: tuple = ()
    median_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A module, as StableHLO text, bytecode or portable artifact, and the number of devices to partition it for.

    keeps_hlo, keeps_propagated: whether `Compiled.hlo_text` and `Compiled.propagated_text` are wanted.
    target: what to compile for ahead of time, as text; None for CPU devices.
    """

    module: str | bytes
    num_devices: int
    keeps_hlo: bool = False
    keeps_propagated: bool = False
    target: str | None = None


class _OutOfTime(Exception):
    """The child has not answered in time; no exception of others, which a signal may raise here, is taken for it."""


class _Gone(Exception):
    """The child has ended."""


class XlaChild:
    """A child process with stock XLA, restarted as needed; also a context manager, which stops it at the end.

    Invariant: a child is asked only if it has answered all that it was asked before (`_is_asked` says no); whatever interrupts a
    question stops the child, and the next request starts another. What a reply answers is told by the number that both have.
    In a process that is forked there is no child, and this one stays with its parent.

    Args:
      cache_dir: where results are kept; default: see `default_cache_dir`.
      uses_cache: whether results are read from and kept on disk at all; RESHARD_CACHE=off says no, too.
      num_devices: devices to start with; a request that needs more restarts the child with twice as many or more.
    Attributes:
      starts: how often the child was started.
      passing_answers: how many answers, of this process or from disk, another try may not give: out of time or memory.
    """

    def __init__(
        self, *, cache_dir: Path | None = None, uses_cache: bool = True, num_devices: int = _MIN_DEVICES
    ):
        self._cache = _Cache(cache_dir or default_cache_dir()) if uses_cache and cache_place.is_on() else None
        self._num_devices = num_devices
        self._process: subprocess.Popen | None = None
        self._scratch: Path | None = None
        self._is_asked = False
        self._questions = 0
        self._lock = threading.RLock()
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
        timeout_s: float = DEFAULT_TIMEOUT_S,
        keeps_hlo: bool = False,
        keeps_propagated: bool = False,
    ) -> Compiled:
        """Returns what XLA makes of a module whose main function has its shardings; never raises for the module's sake.

        Args:
          module: StableHLO as text, MLIR bytecode or portable artifact.
          num_devices: partitions; the number of devices in the module's mesh.
          target: what to compile for; None for CPU devices.
          timeout_s: seconds until it counts as a hang.
        """
        ahead_of_time = str(target) if target is not None and target.is_ahead_of_time else None
        request = CompileRequest(module, num_devices, keeps_hlo, keeps_propagated, ahead_of_time)
        with self._lock:
            if self._cache is None:
                return self._compile_now(request, timeout_s)[0]
            return self._compile_cached(request, timeout_s)

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
        key = _cache_key(request)
        if (cached := self._cache.read(key, timeout_s)) is not None:
            self.passing_answers += cached.status == "hang"
            return cached
        compiled, is_lasting = self._compile_now(request, timeout_s)
        if is_lasting:
            self._cache.write(key, compiled, timeout_s)
        return compiled

    def _compile_now(self, request: CompileRequest, timeout_s: float) -> tuple[Compiled, bool]:
        """Returns the answer and whether asking again would give the same; see `_is_lasting`."""
        devices = 1 if request.target else request.num_devices
        with stages.waiting_for("XLA compiles"):
            reply = self._ask({"op": "compile", **asdict(request)}, devices, timeout_s)
            if reply.get("is_estimated_apart"):
                asked = {"op": "estimate", **asdict(request), "bytes_received": reply["bytes_received"]}
                reply["estimated_seconds"] = self._ask(asked, devices, timeout_s).get("estimated_seconds")
        is_lasting = _is_lasting(reply)
        self.passing_answers += not is_lasting or reply["status"] == "hang"
        return compiled_from(reply), is_lasting

    def _ask(self, request: dict, num_devices: int, timeout_s: float) -> dict:
        """Sends one request and returns the reply; "abort" and "hang" are replies as well."""
        self._ensure_started(num_devices)
        stderr_start = self._stderr_path.stat().st_size
        try:
            reply = self._answered(request, time.monotonic() + timeout_s)
        except _OutOfTime:
            self._stop()
            return {"status": "hang", "message": f"no answer after {timeout_s:g} s"}
        except _Gone:
            return self._abort_reply(stderr_start)
        except BaseException:  # Ctrl-C, or a time limit of the caller's: the answer would be there for the next question
            self._stop()
            raise
        warnings = self._stderr_since(stderr_start).count(_REMATERIALIZATION)
        return {**reply, "rematerializations": warnings}

    def _answered(self, request: dict, deadline: float) -> dict:
        """Sends one request and returns the reply to it; late ones to others, for which nobody waits, are dropped."""
        self._is_asked = True
        self._questions += 1
        self._send({**request, "number": self._questions}, deadline)
        reply = self._receive(deadline)
        while reply["number"] < self._questions:
            reply = self._receive(deadline)
        self._is_asked = False
        return reply

    def _abort_reply(self, stderr_start: int) -> dict:
        code = self._process.wait()
        message = cause_of_death(code, self._stderr_since(stderr_start))
        self._stop()
        return {"status": "abort", "message": message, "signal": -code}

    # -- the process --

    def _ensure_started(self, num_devices: int) -> None:
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

        from . import xla_worker  # with all that the child loads, as below

        _running.add(self)
        self._scratch = Path(tempfile.gettempdir(), f"{_SCRATCH}{os.getpid()}-{os.urandom(8).hex()}")  # known before it is there
        self._scratch.mkdir(mode=0o700)
        with self._stderr_path.open("wb") as stderr, HeldBack():  # or the child would run without anybody knowing it
            _locked(stderr)  # until the child, which has it too, has ended
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", xla_worker.__name__, str(self._scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=child_environment(self._num_devices),
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for this process, which stops the child if it has to
            )
        os.set_blocking(self._process.stdin.fileno(), False)
        os.set_blocking(self._process.stdout.fileno(), False)
        self.starts += 1
        self._await_hello()

    def _await_hello(self) -> None:
        try:
            hello = self._answered({"op": "hello"}, time.monotonic() + _START_TIMEOUT_S)
        except (_Gone, _OutOfTime) as error:
            hello = {"status": "error", "message": str(error)}
        if hello["status"] != "ok":
            raise RuntimeError(f"the XLA child did not start: {hello['message']}\n{self._stderr_since(0)}")

    def _stop(self) -> None:
        import shutil

        with HeldBack():
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                process.wait()
                process.stdin.close()
                process.stdout.close()
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
                self._scratch = None
            self._is_asked = False
            _running.discard(self)

    def _forget(self) -> None:
        """Lets go of a child that is another process's; its pipes stay open there."""
        process, self._process, self._scratch, self._is_asked = self._process, None, None, False
        self._lock = threading.RLock()
        if process is not None:
            process.returncode = 0  # nothing to wait for
            process.stdin.close()
            process.stdout.close()

    @property
    def _stderr_path(self) -> Path:
        return self._scratch / _STDERR

    def _stderr_since(self, start: int) -> str:
        with self._stderr_path.open("rb") as stderr:
            stderr.seek(start)
            return stderr.read().decode(errors="replace")

    def _send(self, request: dict, deadline: float) -> None:
        from . import xla_worker

        unsent = memoryview(xla_worker.pack_frame(request))
        while unsent:
            _wait(self._process.stdin, selectors.EVENT_WRITE, deadline)
            try:
                unsent = unsent[self._process.stdin.write(unsent) or 0 :]
            except BrokenPipeError:
                raise _Gone("the child closed its input") from None

    def _receive(self, deadline: float) -> dict:
        from . import xla_worker

        header = self._read(xla_worker.LENGTH.size, deadline)
        return xla_worker.unpack(self._read(xla_worker.LENGTH.unpack(header)[0], deadline))

    def _read(self, size: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < size:
            _wait(self._process.stdout, selectors.EVENT_READ, deadline)
            chunk = self._process.stdout.read(min(size - len(received), 1 << 20))
            if not chunk:
                raise _Gone("the child closed its output")
            received += chunk
        return bytes(received)


_running: set[XlaChild] = set()


@atexit.register
def _stop_all() -> None:
    for child in list(_running):
        if (process := child._process) is not None:
            process.kill()  # a thread that waits for its answer has the lock
        child.close()


def _forget_all() -> None:
    for child in list(_running):
        child._forget()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def clear_after(process: int) -> None:
    """Waits until the child of a process that was killed has ended, and removes what files it has left."""
    import shutil
    import tempfile

    deadline = time.monotonic() + _GONE_TIMEOUT_S
    for each in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}{process}-*"):
        with contextlib.suppress(OSError), (each / _STDERR).open("rb") as stderr:  # else it is gone, or no child was started
            while not _locked(stderr) and time.monotonic() < deadline:
                time.sleep(0.01)
        shutil.rmtree(each, ignore_errors=True)


def _locked(file) -> bool:
    """Locks a file as long as anybody has it open who got it from here. Returns False if it is locked, or cannot be."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


@cache
def shared_child() -> XlaChild:
    """Returns the one child that serves this process; it is stopped when the process exits."""
    return XlaChild()


def _is_lasting(reply: dict) -> bool:
    """Returns whether asking again would give the same: not so where a compiler may yet be installed, the machine was out of
    memory or disk, or somebody ended the child."""
    if reply["status"] == "abort":
        return reply["signal"] in _FAULTS and not _OUT_OF_SOMETHING.search(reply.get("message", ""))
    return reply["status"] != "target" and not reply.get("is_passing")


def compiled_from(reply: dict) -> Compiled:
    """Returns a reply, or a cache entry, as `Compiled`. Raises KeyError, TypeError if it is not one."""
    known = {field.name for field in fields(Compiled)}
    values = {name: _frozen(value) for name, value in reply.items() if name in known}
    counts = {name: tuple(KindCount(*count) for count in reply.get(name, ())) for name in _COUNTS}
    return Compiled(**{**values, "status": reply["status"], **counts})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# libtpu is to look for no TPU, to let other processes load it (they may be at work on one), and to write no logs.
_LIBTPU_ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_LOG_DIR": "disabled"}


def child_environment(num_devices: int) -> dict[str, str]:
    """Returns this process's environment without what steers Python, jax or XLA, and with the path to `reshard`."""
    steering = ("JAX_", "PYTHON", "TF_", "XLA_", "TPU_", "LIBTPU_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    package_parent = str(Path(reshard.__file__).resolve().parent.parent)
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


_FATAL = re.compile(r"^(?:F\d{4} .*|.*Check failed.*|LLVM ERROR.*)$", re.MULTILINE)
_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ ")


def cause_of_death(code: int, stderr: str) -> str:
    """Returns the signal and XLA's fatal message, else the end of what it wrote; times and thread ids are cut.

    Example:
      >>> cause_of_death(-6, "F1120 23:20:08.028206   14587 hlo_sharding_util.cc:3007] Check failed: sliced")
      'SIGABRT: hlo_sharding_util.cc:3007] Check failed: sliced'
    """
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    fatal = _FATAL.search(stderr)
    lines = [fatal[0]] if fatal else stderr.splitlines()[-_TAIL_LINES:]
    return ": ".join([name, *filter(None, ["\n".join(_LOG_PREFIX.sub("", line.rstrip()) for line in lines)])])


# ---------------------------------------------------------------------------------------------------------------------
# The cache
# ---------------------------------------------------------------------------------------------------------------------


def default_cache_dir() -> Path:
    """Returns `xla-<jaxlib version>-cpu` in $RESHARD_CACHE_DIR, else in `reshard` in $XDG_CACHE_HOME or ~/.cache."""
    return cache_place.cache_root() / f"xla-{compat.jaxlib_version()}-cpu"


def _cache_key(request: CompileRequest) -> str:
    """Returns a digest of everything that the answer depends on, locations in the module excluded."""
    from . import xla_worker

    compiler = compiler_version(Target.parse(request.target)) if request.target else None
    parts = {**asdict(request), "module": _canonical_text(request.module), "schema": xla_worker.SCHEMA, "compiler": compiler}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _canonical_text(module: str | bytes) -> str:
    """Returns the module's text without locations; what does not parse stands for itself."""
    if isinstance(module, str) and "loc(" not in module:
        return module
    from .bindings import ir, make_context

    context = make_context()
    try:
        return str(compat.parse_module(context, module))
    except (ir.MLIRError, ValueError):
        return module if isinstance(module, str) else module.hex()


class _Cache:
    """One JSON file per answer. An entry that cannot be read counts as missing; one that cannot be written is lost."""

    def __init__(self, root: Path):
        self._root = Path(root)

    def read(self, key: str, timeout_s: float) -> Compiled | None:
        """Returns the entry, None without one; a hang counts only if it lasted as long as the caller would wait."""
        try:
            entry = json.loads(cache_place.read(self._path(key)))
            if entry["key"] != key:
                return None
            compiled = replace(compiled_from(entry["compiled"]), from_cache=True)
            is_too_short = compiled.status == "hang" and entry["timeout_s"] < timeout_s
        except Exception:  # whatever is wrong with an entry, XLA knows better
            return None
        return None if is_too_short else compiled

    def write(self, key: str, compiled: Compiled, timeout_s: float) -> None:
        text = json.dumps({"key": key, "compiled": as_json(compiled), "timeout_s": timeout_s})
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            cache_place.replace(path, text.encode())

    def _path(self, key: str) -> Path:
        return self._root / key[:2] / f"{key}.json"


def as_json(compiled: Compiled) -> dict:
    """Returns an answer as plain values; see `compiled_from`."""
    return {**asdict(compiled), **{name: [astuple(count) for count in getattr(compiled, name)] for name in _COUNTS}}
