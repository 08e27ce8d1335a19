# SPDX-License-Identifier: Apache-2.0
"""A recording: the programs for more than one device that a script hands to XLA.

The script runs in a child process, with the same interpreter and with its folder first on its path, as `python SCRIPT`
runs it. What it prints to standard output goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reshard.dialect_utils.platform import compat
from reshard.tools.common.command import Interrupted, UserError, handled
from reshard.tools.scripts import recorder

_GRACE_S = 10.0  # time from Ctrl-C until a script that has not ended is killed
_FORCED = "--xla_force_host_platform_device_count"
_START = """
import sys
sys.path.insert(0, {root!r})
from {recorder} import main
sys.path[:] = sys.path[1 if sys.flags.safe_path else 2 :]
sys.exit(main({folder!r}, {function!r}, sys.argv[1], sys.argv[2:]))
"""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A program: the name of its module, such as jit_step, and the module as bytecode with its locations."""

    name: str
    devices: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Recording:
    """What a script handed to XLA.

    Attributes:
      programs: the distinct ones for more than one device, in the order in which they came.
      singles: the names of those for one device, one for each compilation.
      is_interrupted: whether Ctrl-C has ended the script.
    """

    script: str
    programs: tuple[Recorded, ...]
    singles: tuple[str, ...]
    is_interrupted: bool

    def named(self, function: str) -> Recorded | None:
        """Returns the first program that a function's name, or its module's, names; None if there is none."""
        return next((each for each in self.programs if recorder.is_named(each.name, function)), None)


def record(script: str, arguments: Sequence[str] = (), function: str = "", devices: int | None = None) -> Recording:
    """Runs a script and returns what it handed to XLA.

    Args:
      function: the script ends as soon as the program that it names is recorded; empty for the whole script.
      devices: the number of CPU devices that the script sees; None for those that it sees by itself.
    Raises: UserError if there is no such file, the script fails, or its programs cannot be recorded; Interrupted for a
      signal that asks this process to end, other than that of Ctrl-C.
    """
    _check_is_file(script)
    with tempfile.TemporaryDirectory(prefix="reshard-script-") as folder:
        start = _START.format(root=_root(), recorder=recorder.__name__, folder=folder, function=function)
        sys.stderr.flush()
        environment = os.environ if devices is None else environment_with(os.environ, devices)
        command = [sys.executable, "-c", start, script, *arguments]
        with subprocess.Popen(command, stdout=2, env=environment) as child:
            asked = _ended(child)
        if asked not in (None, signal.SIGINT):
            raise Interrupted(asked)
        recording = _read(Path(folder), script, is_interrupted=asked is not None)
    if child.returncode and not recording.is_interrupted:
        raise UserError(f"{script}: the script {_ending(child.returncode)}; nothing is advised")
    return recording


def environment_with(environment: Mapping[str, str], devices: int) -> dict[str, str]:
    """Returns an environment in which jax sees CPU devices, this many; other flags of XLA stay.

    Example:
      >>> environment_with({"XLA_FLAGS": "--xla_dump_to=d"}, 8)["XLA_FLAGS"].split()[:2]
      ['--xla_dump_to=d', '--xla_force_host_platform_device_count=8']
    """
    made = compat.cpu_devices_environment(devices)
    kept = [each for each in environment.get("XLA_FLAGS", "").split() if each.partition("=")[0] != _FORCED]
    return {**environment, **made, "XLA_FLAGS": " ".join([*kept, made["XLA_FLAGS"]])}


def _check_is_file(script: str) -> None:
    try:
        with open(script, "rb"):
            pass
    except OSError as error:
        raise UserError(f"{script}: {(error.strerror or str(error)).lower()}") from None


def _root() -> str:
    """Returns the folder from which this very package can be imported."""
    package = sys.modules[__name__.partition(".")[0]]
    return str(Path(str(package.__file__)).resolve().parent.parent)


def _ended(child: subprocess.Popen) -> int | None:
    """Waits for a script. Returns the signal that asked this process to end meanwhile, which the script got.

    The second signal, or too long a time after the first one, kills the script.
    """
    asked: list[int] = []
    killing = threading.Timer(_GRACE_S, child.kill)

    def hand_on(number: int, _frame) -> None:
        asked.append(number)
        if len(asked) == 1:
            killing.start()
            child.send_signal(number)
        else:
            child.kill()

    with _handling(hand_on):
        child.wait()
    killing.cancel()
    if asked:
        killing.join()
    return asked[0] if asked else None


@contextlib.contextmanager
def _handling(handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in handled()}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)


def _read(folder: Path, script: str, is_interrupted: bool) -> Recording:
    index = folder / recorder.INDEX
    lines = index.read_text(encoding="utf-8").split("\n")[:-1] if index.exists() else []
    entries = [json.loads(line) for line in lines]
    if problem := next((each["problem"] for each in entries if "problem" in each), ""):
        raise UserError(f"{script}: {problem}")
    programs = [
        Recorded(each["name"], each["devices"], (folder / each["file"]).read_bytes())
        for each in entries
        if "file" in each
    ]
    singles = [each["name"] for each in entries if "file" not in each]
    return Recording(script, tuple(programs), tuple(singles), is_interrupted)


def _ending(status: int) -> str:
    """Returns in words how a process ended that failed.

    Example:
      >>> _ending(3), _ending(-9)
      ('ended with exit status 3', 'was ended by SIGKILL')
    """
    if status >= 0:
        return f"ended with exit status {status}"
    return f"was ended by {signal.Signals(-status).name}"
