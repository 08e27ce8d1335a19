# SPDX-License-Identifier: Apache-2.0
"""The child process of `child_process`: runs pipelines on modules until its stdin closes.

Run as `python -m reshard.compiling.child_process_worker`. Requests and replies are frames on stdin and stdout, like
those of `xla_worker`. Before its answer the child sends each stage that it enters, for the message if it dies there,
and its progress, which the parent shows to the user. MLIR may end this process at any time, so it keeps nothing that
the parent needs later.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.xla.worker import pack_frame, prefer_as_oom_victim, read_frame

_PARENT_POLL_S = 1.0


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # text that libraries print must not mix with the frames
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides about Ctrl-C
    prefer_as_oom_victim()
    _leave_no_core()
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    from reshard.compiling import optimizing  # loads MLIR

    while (request := read_frame(requests)) is not None:
        with progress.forwarded(lambda text: _send(replies, {"progress": text})):
            reply = _reply(optimizing, request, lambda stage, cpu_s: _enter(replies, stage, cpu_s))
        _send(replies, reply)
        del request, reply
        gc.collect()  # modules are large, and what reads the next one has little time


_sending = threading.Lock()


def _send(replies: BinaryIO, reply: dict[str, Any]) -> None:
    with _sending:
        replies.write(pack_frame(reply))
        replies.flush()


def _reply(optimizing, request: dict[str, Any], enter: Callable[[str, float | None], None]) -> dict[str, Any]:
    from reshard.dialect_utils.ir.diagnostics import DiagnosedError
    from reshard.passes.results import result_cache

    try:
        entry, is_lasting = optimizing.recorded_output(request["source"], request["settings"], request["name"], enter)
        return {"status": "ok", "entry": entry, "is_lasting": is_lasting}
    except DiagnosedError as error:
        return {"status": "diagnosed", "diagnostics": [result_cache.written(each) for each in error.diagnostics]}
    except Exception as error:
        return {"status": "fault", "error": _sendable(error), "traceback": traceback.format_exc()}


def _sendable(error: Exception) -> Exception:
    """Returns the error; if it cannot be sent to another process, an error with the same message."""
    with contextlib.suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def _enter(replies: BinaryIO, stage: str, cpu_s: float | None) -> None:
    """Tells the parent the stage of this process, and limits the processor time if the stage has a limit."""
    _send(replies, {"stage": stage})
    with contextlib.suppress(ImportError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        limit = most if cpu_s is None else math.ceil(time.process_time() + cpu_s)
        if most == resource.RLIM_INFINITY or limit < most:
            resource.setrlimit(resource.RLIMIT_CPU, (limit, most))


def _leave_no_core() -> None:
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
