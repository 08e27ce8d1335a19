# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of one job on this machine, waits for them, and ends all of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_STEERING = ("JAX_", "XLA_", "RESHARD_", "SLURM_", "OMPI_")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The output and the exit code of one process; the code is None if the process took too long and was killed."""

    code: int | None
    out: str
    err: str

    @property
    def told(self) -> dict:
        """The JSON value in the last line that the process printed."""
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return json.loads(self.out.splitlines()[-1])


def launch(
    script: Path,
    processes: int,
    devices: int,
    *arguments: str,
    variables: Mapping[str, str] = {},
    own_variables: Sequence[Mapping[str, str]] = (),
    timeout_s: float,
) -> list[Outcome]:
    """Runs `script PROCESS PROCESSES *arguments` in each process at the same time, and returns their outcomes.

    Args:
      devices: CPU devices of each process.
      variables: of all, besides this process's; own_variables: of each.
      timeout_s: after which all that still run are killed.
    """
    folder = Path(variables.get("TMPDIR", "/tmp"))
    address = f"127.0.0.1:{_free_port()}"
    started = []
    try:
        for index in range(processes):
            own = own_variables[index] if own_variables else {}
            # These variables control jax in these processes, and must not in the children that compile XLA's baseline.
            steering = {
                "JAX_PLATFORMS": "cpu",
                "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
                "JAX_COORDINATOR_ADDRESS": address,
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            }
            kept = {name: value for name, value in os.environ.items() if not name.startswith(_STEERING)}
            search_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            files = [(folder / f"{address.rpartition(':')[2]}-{index}.{name}").open("w+") for name in ("out", "err")]
            process = subprocess.Popen(
                [sys.executable, str(script), str(index), str(processes), *arguments],
                env={**kept, **steering, "PYTHONPATH": search_path, **variables, **own},
                stdin=subprocess.DEVNULL,
                stdout=files[0],
                stderr=files[1],
                start_new_session=True,
            )
            started.append((process, files))
        return _outcomes(started, time.monotonic() + timeout_s)
    finally:
        for process, files in started:
            _kill(process)
            for file in files:
                file.close()
                Path(file.name).unlink(missing_ok=True)


def _outcomes(started: list, deadline_s: float) -> list[Outcome]:
    """Returns the outcome of each process; if one fails, the others get 5 s more, since they may wait for it."""
    while any(process.poll() is None for process, _ in started) and time.monotonic() < deadline_s:
        if any(process.poll() for process, _ in started):
            deadline_s = min(deadline_s, time.monotonic() + 5)
        time.sleep(0.05)
    codes = [process.poll() for process, _ in started]
    for process, _ in started:
        _kill(process)
    return [Outcome(code, _content(out), _content(err)) for code, (_, (out, err)) in zip(codes, started)]


def _content(file) -> str:
    file.flush()
    return Path(file.name).read_text(errors="replace")


def _kill(process: subprocess.Popen) -> None:
    """Kills a process and the processes that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
