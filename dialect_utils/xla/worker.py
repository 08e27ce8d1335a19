# SPDX-License-Identifier: Apache-2.0
"""The child process of `child`: compiles and runs modules with stock XLA until its stdin closes.

Run as `python -m reshard.dialect_utils.xla.worker SCRATCH_DIR`. Requests and replies are frames on stdin and stdout:
eight bytes of length, then a pickled dict. A reply has the number of its request. XLA's own output goes to stderr. XLA
may abort this process at any time, so this process keeps nothing that the parent needs.

A large module is compiled in a fork of its own (`early_stop`), which ends as soon as XLA has assigned buffers. What
comes after that, the code, takes four fifths of the time and changes no answer. If all that is wanted is how XLA
propagates shardings, the fork ends after propagation. Many small modules are shared out among forks.
"""

import os
import pickle
import re
import select
import shutil
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

from ..early_stop.buffer_assignment import memory_in
from ..early_stop.fork_server import IS_AVAILABLE, ForkServer
from ..early_stop.stopped import BUFFERS, Stopped, has_propagated, may_stop, stopped_in
from ..platform import compat
from ..platform.typed import present
from .compile_targets import Target, TargetError
from .schedule_estimates import cycles_per_second, estimated_seconds, instructions_for_free, is_mispriced

LENGTH = struct.Struct("<Q")
_PARENT_POLL_S = 1.0
_REMOVALS = 5  # tries to remove the scratch folder, since XLA may still write into it

# LLVM's optimization takes half of the compile time and changes no metric: traffic and temporaries of every example
# stayed the same. Runs that are timed use the default.
_METRICS_OPTIONS = {"xla_backend_optimization_level": 0}
_FLOAT16_OPTIONS = {"xla_disable_hlo_passes": "change-op-data-type"}  # else products of float16 are of float32

# A fork takes about 0.1 s to start, as long as a module of this many characters or bytes takes to compile. Each larger
# module has a fork of its own.
_LARGE = 16_000
_POLL_S = 0.003
_MOST_AT_ONCE = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
_MANY_MODULES = "compile_all"  # the request for many modules
_MANY = 8  # so many small modules are compiled faster in two forks than one after the other in this process
# Files of a fork beside the dumps: the reply if XLA refuses the module, the time, what XLA says, the whole reply.
_REFUSAL, _SECONDS, _STDERR, _REPLY = "refusal", "seconds", "stderr", "reply"

_SCHEDULE_OPTIONS = {"xla_dump_latency_hiding_schedule": True}
# TPU's scheduler writes its estimate of the time only for a program with an asynchronous op. A program without one, and
# what is compared with it, may be compiled a second time with this option, for the estimate alone, because the option
# changes the memory that a program needs.
_ASYNC_OPTIONS = {"tpu": {"xla_tpu_enable_async_all_to_all": True}}
_clocks: dict[Target, float | None] = {}  # of targets' devices, in cycles per second, as found
# What compilers say of an option that they do not know, or whose value they cannot read.
_BAD_OPTION = re.compile(
    r"No such compile option: .*|Failed to parse '.*' into flag .*|While setting option .* is not a valid .*"
)


# One that starts and ends apart takes a cycle to start.
_REDUCE_SCATTER = re.compile(r"^ +(?:ROOT )?%?([\w.-]+) = .* reduce-scatter\(", re.MULTILINE)


def read_frame(stream: BinaryIO) -> dict | None:
    """Returns the next frame of a stream, None at its end."""
    header = stream.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    return unpack(stream.read(LENGTH.unpack(header)[0]))


def unpack(payload: bytes) -> dict:
    """Returns the message in a frame, given without its length."""
    return pickle.loads(payload)


def pack_frame(message: dict) -> bytes:
    """Returns the bytes of one frame."""
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(payload)) + payload


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print must not write between the frames
    prefer_as_oom_victim()
    scratch = Path(sys.argv[1])
    start_forks(scratch)
    _watch_parent(scratch)
    waiting = _Waiting(requests)
    while batch := waiting.next_together():
        for request, reply in _replies(batch, scratch):
            _send(replies, {**reply, "number": request["number"]})
    _exit(scratch)


class _Waiting:
    """The requests that wait.

    A thread reads them as they come, so that the parent may send more than a pipe holds while this process works.
    """

    def __init__(self, stream: BinaryIO):
        self._frames: SimpleQueue[dict | None] = SimpleQueue()
        self._first: list[dict | None] = []  # read already
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: BinaryIO) -> None:
        frame: dict | None = {}
        while frame is not None:
            frame = read_frame(stream)
            self._frames.put(frame)

    def next_together(self) -> list[dict]:
        """Returns the next request, once there is one, with those behind it that wait as well if all of them are for
        many modules; none at the end of the stream."""
        batch = [self._first.pop() if self._first else self._frames.get()]
        while batch[-1] is not None and batch[-1]["op"] == _MANY_MODULES and not self._frames.empty():
            batch.append(self._frames.get())
        if len(batch) > 1 and (batch[-1] is None or batch[-1]["op"] != _MANY_MODULES):
            self._first.append(batch.pop())
        return [each for each in batch if each is not None]


_forks: ForkServer | None = None


def start_forks(scratch: Path) -> None:
    """Starts the server that forks this process for large modules, for many, and for propagation.

    jax is loaded, and must not have been used yet.
    """
    import jax  # noqa: F401 - so that no fork has to load it

    global _forks
    if IS_AVAILABLE and compat.can_read_shardings():
        _forks = ForkServer(_work, _watch_parent)


def _watch_parent(scratch: Path | None = None) -> None:
    """Ends this process with its parent. The folder is removed then; forks leave that to the process above them."""
    threading.Thread(target=_exit_with_parent, args=(os.getppid(), scratch), daemon=True).start()


def _send(replies: BinaryIO, reply: dict) -> None:
    replies.write(pack_frame(reply))
    replies.flush()


def prefer_as_oom_victim() -> None:
    """Makes the kernel kill this process, not its parent, when memory runs out (Linux; elsewhere nothing happens)."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass


def _exit_with_parent(parent: int, scratch: Path | None) -> None:
    """Ends this process at once when its parent is gone, even if XLA hangs and nothing reads stdin any more."""
    other_end = select.poll()
    other_end.register(0, 0)  # no events are asked for: poll then reports only that the other end is closed
    while os.getppid() == parent and not other_end.poll(_PARENT_POLL_S * 1000):
        continue
    if scratch is None:
        os._exit(0)
    _exit(scratch)


def _exit(scratch: Path) -> None:
    """Ends the process and XLA's threads at once. Removes the scratch folder first, which a killed parent cannot do."""
    for _ in range(_REMOVALS):
        shutil.rmtree(scratch, ignore_errors=True)
        if not scratch.exists():
            break
    os._exit(0)


def _reply(request: dict, scratch: Path) -> dict:
    return _guarded(_OPERATIONS[request["op"]], request, scratch)


def _replies(batch: Sequence[dict], scratch: Path) -> Iterator[tuple[dict, dict]]:
    """Yields requests, each with its reply: one of any kind, or several for many modules, in their order."""
    if len(batch) == 1:
        yield batch[0], _reply(batch[0], scratch)
        return
    together = {"requests": [each for request in batch for each in request["requests"]]}
    reply = _guarded(_compile_all, together, scratch)
    found = reply.get("replies", [])
    for request in batch:
        own, found = found[: len(request["requests"])], found[len(request["requests"]) :]
        yield request, {**reply, "replies": own} if own else reply


def _guarded(operation: Callable[..., dict], *arguments) -> dict:
    """Returns the reply of an operation, which says so if the operation fails."""
    try:
        return {"status": "ok", **operation(*arguments)}
    except TargetError as error:
        return {"status": "target", "message": str(error)}
    except Exception as error:
        return _refusal(error)


def _refusal(error: Exception) -> dict:
    is_passing = isinstance(error, OSError | MemoryError)  # such as a full disk: it is not the module's fault
    return {"status": "error", "message": f"{type(error).__name__}: {error}", "is_passing": is_passing}


def _hello(request: dict, scratch: Path) -> dict:
    """Starts jax's CPU client, so that no later request pays for it."""
    import jax

    return {"num_devices": len(jax.devices())}


def _sleep(request: dict, scratch: Path) -> dict:
    """Does nothing for a while, so that the parent sees a hang. For tests."""
    time.sleep(request["seconds"])
    return {}


def _abort(request: dict, scratch: Path) -> dict:
    """Dies as XLA does on a failed CHECK, for tests."""
    print("F0101 00:00:00.000000       1 made_up.cc:1] Check failed: false", file=sys.stderr, flush=True)
    os.abort()


def _compile(request: dict, scratch: Path) -> dict:
    """Compiles a module and returns the fields of `child.Compiled`."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        jobs = [[(request, folder)]] if _stops_early(request) else []
        for _, code in _ended_forks(jobs):
            if reply := _reply_of_fork(request, Path(folder), code):
                return reply
        return _compiled_here(request, Path(folder), scratch)


def _compile_all(request: dict, scratch: Path) -> dict:
    """Compiles modules, those that are large or many, in forks at the same time.

    The reply has one reply for each; None for one that no fork has answered: it is to be compiled alone.
    """
    requests = request["requests"]
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        folders = [Path(folder, str(number)) for number in range(len(requests))]
        for each in folders:
            each.mkdir()
        large, shares = _shared_out(requests)
        jobs = [*([number] for number in large), *shares]
        replies: list[dict | None] = [None] * len(requests)
        for job, code in _ended_forks([[(requests[number], str(folders[number])) for number in job] for job in jobs]):
            if job < len(large):  # read while the other forks work
                number = large[job]
                replies[number] = _reply_of_large(requests[number], folders[number], code)
        for number in (number for share in shares for number in share):
            replies[number] = _reply_in(folders[number])
        return {"replies": replies}


def are_faster_together(modules: Sequence[str | bytes]) -> bool:
    """Returns whether modules are compiled faster by one request than by one each, because forks share the work."""
    large = large_among(modules)
    return IS_AVAILABLE and _MOST_AT_ONCE > 1 and (large > 1 or len(modules) - large >= _MANY)


def large_among(modules: Sequence[str | bytes]) -> int:
    """Returns how many modules are so large that each gets a fork of its own."""
    return sum(len(module) >= _LARGE for module in modules)


def _shared_out(requests: list[dict]) -> tuple[list[int], list[list[int]]]:
    """Returns the numbers of the requests that get a fork each, and those that share one; the others get none."""
    if _forks is None:
        return [], []
    large = [number for number, each in enumerate(requests) if _stops_early(each)]
    small = [number for number, each in enumerate(requests) if not _stops_early(each) and not each["target"]]
    return large, [small[i::_MOST_AT_ONCE] for i in range(_MOST_AT_ONCE)] if len(small) >= _MANY else []


def _reply_in(folder: Path) -> dict | None:
    """Returns the reply that a fork has left; None if the fork has ended before."""
    reply = folder / _REPLY
    return pickle.loads(reply.read_bytes()) if reply.exists() else None


def _ended_forks(jobs: list[list[tuple[dict, str]]]) -> Iterator[tuple[int, int]]:
    """Runs jobs in forks and yields the number of each that has ended, with its exit code; no more of them if the
    server is gone, as when memory runs out."""
    global _forks
    if _forks is None or not jobs:
        return
    try:
        yield from _forks.run(jobs, _MOST_AT_ONCE)
    except (OSError, EOFError):
        _forks = None


def _stops_early(request: dict) -> bool:
    is_large = len(request["module"]) >= _LARGE or request.get("only_propagates", False)
    return not request["target"] and request.get("stops_early", is_large)


def _compiled_here(request: dict, dumps: Path, scratch: Path) -> dict:
    """Compiles a module to the end in this process, and returns the reply."""
    if request["target"]:
        return _compile_ahead_of_time(request, scratch)
    start_s = time.perf_counter()
    found = _finished(request, str(dumps))
    return _answer(request, dumps, found, time.perf_counter() - start_s)


def _reply_of_large(request: dict, dumps: Path, exit_code: int) -> dict | None:
    """Returns the reply that the fork of one module leads to, also if the program is refused; None as below."""
    try:
        reply = _reply_of_fork(request, dumps, exit_code)
    except Exception as error:
        return _refusal(error)
    return reply and {"status": "ok", **reply}


def _reply_of_fork(request: dict, dumps: Path, exit_code: int) -> dict | None:
    """Returns the reply that a fork leads to; None if it does not say enough."""
    said = _said(dumps)
    refusal = Path(dumps, _REFUSAL)
    if request.get("only_propagates") and (has_propagated(dumps) or (exit_code == 0 and not refusal.exists())):
        return {"status": "ok", "propagated_text": _propagated(dumps), "said": said}  # even if it cannot be partitioned
    if exit_code < 0:
        return {"status": "abort", "exit_code": exit_code, "said": said}
    if refusal.exists():
        return pickle.loads(refusal.read_bytes())
    if (found := stopped_in(dumps)) is None:
        return None
    seconds = float(Path(dumps, _SECONDS).read_text())
    return {**_answer(request, dumps, found, seconds), "said": said}


def _said(dumps: Path) -> str:
    return Path(dumps, _STDERR).read_text(errors="replace")


def _finished(request: dict, dump_dir: str) -> Stopped:
    """Compiles a module to the end, and returns the same facts as of a compilation that was stopped."""
    executable, main, _ = _load(request, dump_dir, _METRICS_OPTIONS)
    inputs = compat.parameter_shardings(executable, len(main.inputs))
    outputs = compat.output_shardings(executable, len(main.results))
    return Stopped(
        _memory(executable),
        tuple(map(compat.hlo_sharding, inputs)),
        tuple(map(compat.hlo_sharding, outputs)),
        executable.hlo_modules()[0].to_string(),
    )


def _work(job: list[tuple[dict, str]]) -> int:
    """Does the work of a fork: compiles one module until all is known, or small ones to the end, one after another."""
    first, its_folder = job[0]
    if _stops_early(first):
        return _compile_until_known(first, Path(its_folder))
    for request, folder in job:
        _say_in(Path(folder))
        reply = {**_guarded(_compiled_here, request, Path(folder), Path(folder)), "said": _said(Path(folder))}
        unfinished = Path(folder, f"{_REPLY}.part")
        unfinished.write_bytes(pickle.dumps(reply))
        unfinished.rename(Path(folder, _REPLY))
    return 0


def _say_in(folder: Path) -> None:
    """Has XLA's own output, of this whole process, written into a folder from now on."""
    with Path(folder, _STDERR).open("wb") as stderr:
        os.dup2(stderr.fileno(), 2)


def _compile_until_known(request: dict, dumps: Path) -> int:
    """Compiles a module in a fork until XLA has dumped all that is asked for."""
    ended, start_s = threading.Event(), time.perf_counter()
    is_known = has_propagated if request.get("only_propagates") else may_stop
    _say_in(dumps)

    def compile_to_the_end() -> None:
        try:
            _load(request, str(dumps), _METRICS_OPTIONS)
        except Exception as error:
            Path(dumps, _REFUSAL).write_bytes(pickle.dumps(_refusal(error)))
        finally:
            ended.set()

    threading.Thread(target=compile_to_the_end, daemon=True).start()
    while not (is_known(dumps) or ended.wait(_POLL_S)):
        continue
    Path(dumps, _SECONDS).write_text(str(time.perf_counter() - start_s))
    return 0


def _answer(request: dict, dumps: Path, found: Stopped, seconds: float) -> dict:
    keeps_schedule = request.get("keeps_schedule", False)
    hlo_text = _partitioned_hlo(dumps) or found.final_text
    _refuse_what_does_not_run(hlo_text, found.final_text)
    return {
        **_traffic(hlo_text, request.get("stands_in", "")),
        **(_final_traffic(found.final_text, reads_lines=True) if request.get("has_final", False) else {}),
        **found.memory,
        "input_shardings": list(map(canonical_sharding, found.inputs)),
        "output_shardings": list(map(canonical_sharding, found.outputs)),
        "compile_seconds": seconds,
        "hlo_text": hlo_text if request["keeps_hlo"] else None,
        "scheduled_text": found.final_text if keeps_schedule else None,
        "propagated_text": _propagated(dumps) if request["keeps_propagated"] else None,
    }


def _refuse_what_does_not_run(hlo_text: str, final_text: str) -> None:
    """Refuses a program that compiles but fails whenever it is called. Raises: RuntimeError."""
    if " fft(" not in hlo_text:
        return
    from .cpu_failures import why_not_run  # few programs have one

    if reason := why_not_run(final_text):
        raise RuntimeError(reason)


def compiled_at_hand(request: dict, devices: Sequence, levels: Mapping[str, Any]) -> dict:
    """Returns the reply to a request for a target, as the compiler of devices of this process gives it.

    Args:
      devices: those of the target, in the order of partitions; jax must be able to compile for them.
      levels: see `compat.compiler_levels`.
    """
    with tempfile.TemporaryDirectory(prefix="reshard-") as scratch:
        return _guarded(_compile_ahead_of_time, {**request, "levels": dict(levels)}, Path(scratch), devices)


def _compile_ahead_of_time(request: dict, scratch: Path, devices: Sequence = ()) -> dict:
    """Compiles for devices that this machine need not have, and adds facts about the compiler's final program.

    Args:
      devices: where they are there.
    """
    target = Target.parse(request["target"])
    with tempfile.TemporaryDirectory(dir=scratch) as dump_dir:
        executable, main, seconds = _compiled_for(target, request, dump_dir, {}, devices)
        final_text = executable.hlo_modules()[0].to_string()
        hlo_text = _partitioned_hlo(Path(dump_dir)) or final_text
        propagated = _propagated(Path(dump_dir)) if request["keeps_propagated"] else None
        schedule = _schedule(Path(dump_dir))
        memory = _memory(executable) | _in_main_memory(target, Path(dump_dir))
    traffic = _traffic(hlo_text, request.get("stands_in", ""))
    is_known = schedule is None or not is_mispriced(schedule, final_text)
    scheduled = _seconds(target, schedule, traffic["bytes_received"]) if is_known else None
    may_be_estimated, clock = target.platform in _ASYNC_OPTIONS, _clock(target, schedule, scratch, devices)
    return {
        **traffic,
        **memory,
        **_final_traffic(final_text, clock),
        **_generated(final_text, clock),
        "peak_memory_bytes": executable.get_compiled_memory_stats().peak_memory_in_bytes,
        "scheduled_seconds": scheduled,
        "estimated_seconds": None if may_be_estimated else scheduled,
        "scheduled_without": _for_free(target, schedule, final_text),
        "lacks_estimate": may_be_estimated and is_known,
        "input_shardings": _canonical(compat.parameter_shardings(executable, len(main.inputs))),
        "output_shardings": _canonical(compat.output_shardings(executable, len(main.results))),
        "compile_seconds": seconds,
        "hlo_text": hlo_text if request["keeps_hlo"] else None,
        "scheduled_text": final_text if request.get("keeps_schedule", False) else None,
        "propagated_text": propagated,
    }


def _compiled_for(
    target: Target, request: dict, dump_dir: str, env_options: dict, devices: Sequence = ()
) -> tuple[Any, Any, float]:
    """Returns the executable, which nothing here can run, the type of its main function, and the seconds that compiling
    took."""
    from .target_devices import mesh_sizes, target_devices

    context = compat.jax_context()
    module = compat.parse_module(context, request["module"])
    devices = list(devices) or target_devices(target, mesh_sizes(module, request["num_devices"]))
    main = _main_function(module)
    dumps = {**_dump_options(dump_dir, request), **_SCHEDULE_OPTIONS}
    own = {name: value == "true" if value in ("true", "false") else value for name, value in target.options}
    options = _options(main, devices, {**own, **dumps, **env_options})
    compat.set_compiler_levels(options, request.get("levels", {}))
    start_s = time.perf_counter()
    try:
        with context:
            executable = compat.compile_ahead_of_time(module, devices, options)
    except Exception as error:
        if target.options and (refused := _BAD_OPTION.search(str(error))):
            raise TargetError(f"{target}: its compiler refuses an option: {refused[0].rstrip(': ')}") from None
        raise
    return executable, main.type, time.perf_counter() - start_s


def _estimate(request: dict, scratch: Path) -> dict:
    """Compiles once more, for nothing but the schedule."""
    target = Target.parse(request["target"])
    with tempfile.TemporaryDirectory(dir=scratch) as dump_dir:
        executable, *_ = _compiled_for(target, request, dump_dir, _ASYNC_OPTIONS[target.platform])
        schedule = _schedule(Path(dump_dir))
    final_text = executable.hlo_modules()[0].to_string()
    if schedule is not None and is_mispriced(schedule, final_text):
        return {"estimated_seconds": None}
    seconds = _seconds(target, schedule, request["estimated_for"])
    return {"estimated_seconds": seconds, "estimated_without": _for_free(target, schedule, final_text)}


def _seconds(target: Target, schedule: str | None, bytes_received: int) -> float | None:
    if schedule is None:
        return None
    return estimated_seconds(schedule, bytes_received, has_placeholders=target.platform == "cuda")


def _schedule(dump_dir: Path) -> str | None:
    return next((path.read_text() for path in sorted(dump_dir.glob("*.schedule.txt"))), None)


def _load(request: dict, dump_dir: str | None, env_options: dict) -> tuple[Any, Any, list]:
    """Returns the loaded executable, the type of its main function and the devices of a request."""
    import jax

    if request.get("aborts"):  # in tests
        _abort(request, Path())
    devices = jax.devices()[: request["num_devices"]]
    own = _FLOAT16_OPTIONS if request.get("is_narrowed") else {}
    return *load(request["module"], devices, {**env_options, **own, **_dump_options(dump_dir, request)}), devices


def load(text: str | bytes, devices: list, env_options: dict) -> tuple[Any, Any]:
    """Compiles a module, as text or bytecode, for devices, of this process or of a job that it belongs to.

    Returns: the loaded executable and the type of the module's main function.
    """
    context = compat.jax_context()
    module = compat.parse_module(context, text)
    main = _main_function(module)
    with context:
        return compat.load_executable(module, devices, _options(main, devices, env_options)), main.type


def _options(main, devices: list, env_options: dict):
    return compat.compile_options(
        devices,
        env_options,
        propagates_to_parameters=_open_shardings(main, "arg_attrs", len(main.type.inputs)),
        propagates_to_results=_open_shardings(main, "res_attrs", len(main.type.results)),
    )


def _main_function(module) -> Any:
    """Returns the module's entry: the function `main`, else the first one. Raises: ValueError if there is none."""
    from jaxlib.mlir import ir

    functions = [op for op in module.body.operations if op.operation.name == "func.func"]
    named_main = [f for f in functions if ir.StringAttr(f.attributes["sym_name"]).value == "main"]
    if not functions:
        raise ValueError("the module has no function @main, with which XLA begins")
    return (named_main or functions)[0]


def _open_shardings(function, attribute: str, count: int) -> list[bool]:
    """Returns per argument or result whether XLA chooses its sharding: it has none, or one with open dimensions.

    Source: jax's get_prop_to_input_output.
    """
    attributes = function.attributes
    if attribute not in attributes:
        return [True] * count
    return [_is_open(entry) for entry in attributes[attribute]]


def _is_open(attributes) -> bool:
    sharding = next((attributes[n] for n in ("sdy.sharding", "mhlo.sharding") if n in attributes), None)
    return sharding is None or "?" in str(sharding)


def _dump_options(dump_dir: str | None, request: dict) -> dict[str, str]:
    if dump_dir is None:
        return {}
    passes = "spmd-partitioning$" + ("|^shardy" if request["keeps_propagated"] else "")
    return {"xla_dump_to": dump_dir, "xla_dump_hlo_pass_re": passes}


def _partitioned_hlo(dump_dir: Path) -> str | None:
    """Returns the HLO directly after SPMD partitioning; None if XLA did not partition."""
    dumps = sorted(dump_dir.glob("*.after_*spmd-partitioning.before_*.txt"))  # TPU's pass is tpu-spmd-partitioning
    return dumps[-1].read_text() if dumps else None


def _propagated(dump_dir: Path) -> str | None:
    """Returns the module as it was after XLA's own sharding propagation."""
    dumps = sorted(dump_dir.glob("shardy/*/*.after_propagation.mlir"))
    return dumps[-1].read_text() if dumps else None


def _traffic(hlo_text: str, run_by: str = "", *, reads_lines: bool = False) -> dict:
    """Returns the traffic of a program, and its work.

    Args:
      run_by: the platform whose compiler would run the collectives; "" if they run as they stand.
      reads_lines: whether local work counts whole lines of memory, as on CPU devices.
    """
    from reshard.synthesis.programs.traffic import merged

    from ..hlo.accelerators import as_run_by  # imported late: some requests, such as `hello`, do not need them
    from ..hlo.collectives import collectives_in
    from ..hlo.text import parse_module
    from ..hlo.work import work_in

    found = collectives_in(hlo_text)
    if run_by:
        found = as_run_by(run_by, found, parse_module(hlo_text))
    kinds = sorted({collective.kind for collective in found.collectives})
    return {
        "run_by": run_by,
        "bytes_received": found.bytes_received,
        "bytes_sent": found.bytes_sent,
        "largest_collective_tile_bytes": found.largest_collective_tile_bytes,
        "collectives": [_kind_count(kind, found.collectives) for kind in kinds],
        "unknown_trip_counts": list(found.unknown_trip_counts),
        "unpriced": list(found.unpriced),
        "moved": [astuple(each) for each in merged(found.collectives)],
        "work": [astuple(each) for each in (*work_in(hlo_text, reads_lines=reads_lines), *found.added_work)],
    }


def _final_traffic(hlo_text: str, clock: float | None = None, *, reads_lines: bool = False) -> dict:
    """Returns the traffic of the final program, after the compiler has combined or split collectives.

    Args:
      clock: the cycles per second in which its code generator counts, if known.
      reads_lines: whether local work counts whole lines of memory, as on CPU devices.
    """
    from reshard.synthesis.network.schedule_time import as_plain

    from ..hlo.collectives import collectives_in
    from ..hlo.scheduled import schedule_in

    found = _traffic(hlo_text, reads_lines=reads_lines)
    kept = ("bytes_received", "bytes_sent", "collectives", "unpriced", "moved", "work")
    is_asynchronous = "-start(" in hlo_text or "AsyncCollectiveStart" in hlo_text
    runs_beside = is_asynchronous and not reads_lines  # on CPU devices nothing does
    schedule = schedule_in(hlo_text, collectives_in(hlo_text).ops, clock) if runs_beside else ()
    return {f"final_{name}": found[name] for name in kept} | {"final_schedule": as_plain(schedule)}


def _for_free(target: Target, schedule: str | None, final_text: str) -> list[tuple]:
    """Returns the reduce_scatters that a schedule has for free. Those that a compiler for TPUs makes of an all_reduce
    have the price of that, those of the program have none."""
    from reshard.synthesis.programs.traffic import merged

    from ..hlo.collectives import collectives_in

    synchronous = set(_REDUCE_SCATTER.findall(final_text)) if target.platform == "tpu" and schedule else set()
    free = synchronous and synchronous & instructions_for_free(schedule or "")
    ops = collectives_in(final_text).ops if free else ()
    return [astuple(each) for each in merged(op.collective for op in ops if op.name in free)]


def _clock(target: Target, schedule: str | None, scratch: Path, devices: Sequence = ()) -> float | None:
    """Returns the cycles per second of a target's devices, as a schedule says; that of a small program with an
    asynchronous op, if the program has none; None if neither says so."""
    if schedule is not None or target.platform not in _ASYNC_OPTIONS:
        return cycles_per_second(schedule or "")
    if target not in _clocks:
        request = {"module": _exchange(target.devices), "num_devices": target.devices, "keeps_propagated": False}
        with tempfile.TemporaryDirectory(dir=scratch) as dump_dir:
            try:
                _compiled_for(target, request, dump_dir, _ASYNC_OPTIONS[target.platform], devices)
            except Exception:  # it is not the program that was asked about
                _clocks[target] = None
            else:
                _clocks[target] = cycles_per_second(_schedule(Path(dump_dir)) or "")
    return _clocks[target]


def _exchange(devices: int) -> str:
    """Returns a module whose rows become columns."""
    kind, placed = f"tensor<{8 * devices}x{128 * devices}xf32>", "{{sdy.sharding = #sdy.sharding<@mesh, [{}]>}}".format
    return f"""sdy.mesh @mesh = <["x"={devices}]>
        func.func public @main(%a: {kind} {placed('{"x"}, {}')}) -> ({kind} {placed('{}, {"x"}')}) {{
          return %a : {kind}
        }}"""


def _generated(final_text: str, clock: float | None) -> dict:
    """Returns the time of the final program's local work by the compiler's code generator, if it says one.

    Args:
      clock: the cycles per second in which it counts, if known.
    """
    from ..hlo.generated import generated_in

    found = generated_in(final_text) if clock else None
    if found is None or not clock:
        return {}
    return {
        "generated_seconds": found.cycles / clock,
        "generated_without": [astuple(each) for each in found.others],
    }


def _kind_count(kind: str, collectives: tuple) -> tuple[str, int, int]:
    trip_counts = [collective.trip_count for collective in collectives if collective.kind == kind]
    return kind, len(trip_counts), sum(trip_counts)


def _memory(executable) -> dict[str, int]:
    stats = executable.get_compiled_memory_stats()
    parts = ("argument", "output", "temp", "alias")
    return {f"{part}_bytes": getattr(stats, f"{part}_size_in_bytes") for part in parts}


def _in_main_memory(target: Target, dumps: Path) -> dict[str, int | bool]:
    """Returns the temporaries that a compiler for TPUs allocates, which its statistics do not say; they count memory on
    the chip, too."""
    written = sorted(dumps.glob(BUFFERS))
    if target.platform != "tpu" or not written:
        return {}
    return {"temp_bytes": memory_in(written[-1].read_text())["temp_bytes"], "peak_has_chip": True}


def _canonical(op_shardings: list) -> list[str]:
    return [canonical_sharding(compat.hlo_sharding(each)) for each in op_shardings]


def canonical_sharding(sharding) -> str:
    """Returns a text that is equal for two shardings exactly if they place the same tiles on the same devices.

    `{devices=[1,8,1]x1 <=[8]}` lists tiles per dimension, copies of each tile and the devices in order of tiles, those
    that hold the same tile sorted.
    """
    if sharding.is_replicated() or not sharding.is_tiled() or sharding.subgroup_types():
        return str(sharding)
    dims, devices = list(sharding.tile_assignment_dimensions()), list(sharding.tile_assignment_devices())
    copies = dims.pop() if sharding.replicate_on_last_tile_dim() else 1
    groups = [sorted(devices[i : i + copies]) for i in range(0, len(devices), copies)]
    placed = [device for group in groups for device in group]
    order = f"<=[{len(placed)}]" if placed == list(range(len(placed))) else ",".join(map(str, placed))
    return f"{{devices={dims}x{copies} {order}}}".replace(", ", ",")


def _run(request: dict, scratch: Path) -> dict:
    """Runs a module and returns its global outputs and the median of the run times in seconds."""
    if b"lapack_" in _bytes_of(request["module"]):
        compat.prepare_linear_algebra()
    executable, main, devices = _load(request, None, {} if request["optimizes"] else _METRICS_OPTIONS)
    inputs = request["inputs"]
    inputs = seeded_inputs(main.inputs, request["seed"]) if inputs is None else inputs
    parameters = compat.parameter_shardings(executable, len(main.inputs))
    shardings = [compat.array_sharding(sharding, devices) for sharding in parameters]
    seconds = []
    for _ in range(request["repeats"]):
        shards, elapsed_s = _timed_run(executable, inputs, shardings)
        seconds.append(elapsed_s)
    outputs = _gather(executable, main.results, shards, devices)
    from statistics import median

    return {"outputs": outputs, "median_seconds": median(seconds)}


def _bytes_of(module: str | bytes) -> bytes:
    return module.encode() if isinstance(module, str) else module


def _timed_run(executable, inputs: list, shardings: list) -> tuple[list[list], float]:
    """Places the inputs on the devices again, since a run may donate them, and runs once."""
    import jax

    arguments = [jax.device_put(value, sharding) for value, sharding in zip(inputs, shardings, strict=True)]
    jax.block_until_ready(arguments)
    start_s = time.perf_counter()
    shards = jax.block_until_ready(compat.execute_sharded(executable, arguments))
    return shards, time.perf_counter() - start_s


def _gather(executable, types: list, shards: list[list], devices: list) -> list:
    """Returns each result as one global numpy array."""
    import jax
    from jaxlib.mlir import ir

    from ..platform.global_arrays import as_numpy

    shapes = [tuple(ir.RankedTensorType(result).shape) for result in types]
    shardings = [compat.array_sharding(s, devices) for s in compat.output_shardings(executable, len(types))]
    arrays = map(jax.make_array_from_single_device_arrays, shapes, shardings, shards)
    return [as_numpy(array) for array in arrays]


def seeded_inputs(types: list, seed: int) -> list:
    """Returns random inputs for tensor types: standard normal floats, small integers, booleans."""
    import numpy as np
    from jaxlib.mlir import ir

    random = np.random.default_rng(seed)
    tensors = [ir.RankedTensorType(type_) for type_ in types]
    return [_random_array(random, tuple(t.shape), numpy_dtype(str(t.element_type))) for t in tensors]


def _random_array(random, shape: tuple[int, ...], dtype):
    if dtype.kind in "biu" or "int" in dtype.name:
        return random.integers(0, 2 if dtype.kind == "b" else 7, shape).astype(dtype)
    values = random.standard_normal(shape)
    return (values + 1j * random.standard_normal(shape)).astype(dtype) if dtype.kind == "c" else values.astype(dtype)


def numpy_dtype(element_type: str):
    """Returns the numpy dtype of an MLIR element type.

    Example:
      >>> [numpy_dtype(t).name for t in ("i1", "ui8", "bf16", "f8E4M3FN", "complex<f32>")]
      ['bool', 'uint8', 'bfloat16', 'float8_e4m3fn', 'complex64']
    """
    import ml_dtypes
    import numpy as np

    if element_type == "i1":
        return np.dtype(bool)
    if element_type.startswith("complex"):
        return np.dtype({"complex<f32>": "complex64", "complex<f64>": "complex128"}[element_type])
    letters, bits, rest = present(re.fullmatch(r"([a-z]+)(\d+)(\w*)", element_type)).groups()
    stem = {"i": "int", "si": "int", "ui": "uint", "f": "float", "bf": "bfloat"}[letters]
    name = f"{stem}{bits}" + (f"_{rest.lower()}" if rest else "")
    return np.dtype(getattr(ml_dtypes, name, None) or name)


_OPERATIONS = {
    "hello": _hello,
    "compile": _compile,
    _MANY_MODULES: _compile_all,
    "run": _run,
    "estimate": _estimate,
    "sleep": _sleep,
    "abort": _abort,
}


if __name__ == "__main__":
    main()
