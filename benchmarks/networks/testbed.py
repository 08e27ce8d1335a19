# SPDX-License-Identifier: Apache-2.0
"""A slow network on one Linux machine: processes in network namespaces, joined by links of limited bandwidth.

    uniform:     every process has a link of its own to one bridge
    two levels:  the processes of a node have fast links to the bridge of the node; each node has one slow link to the
    others

Every link is limited in both directions by a token bucket (`tc ... tbf`). A single bucket lets a burst of data pass
after a pause; a second bucket limits this burst, so that small messages are slow too. The testbed needs root, `ip` and
`tc`. Without netem in the Linux kernel there is no additional latency; the bridges have some tens of microseconds.

    with Testbed(Network(nodes=2, per_node=4, inside_mbit=2000, across_mbit=200)) as testbed:
        testbed.check()
        outputs = testbed.run([[sys.executable, "worker.py", str(rank)] for rank in range(8)], timeout_s=600)
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WIRE = Path(__file__).resolve().parent / "wire.py"
PAYLOAD = 0.958  # share of the bits on the wire without TCP/IP and Ethernet headers
TOLERANCE = 0.15
PROBE_S = 1.5
SLOW_MBIT = 500
PEAK = 10  # after a pause a slow link is faster by 1/PEAK, until it has caught up
CONGESTION = "reno"  # every kernel has it; bbr stops for 200 ms now and then to probe the path


class CannotShape(RuntimeError):
    """The machine cannot make such a network; the message names the missing part."""


class Failed(RuntimeError):
    """A process on the network failed or did not end in time; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Network:
    """A network of nodes x per_node processes, with the megabits per second of a process's link and of a node's link.

    If `across_mbit` is None, a node's link has no limit.
    """

    nodes: int
    per_node: int
    inside_mbit: int
    across_mbit: int | None = None

    @property
    def processes(self) -> int:
        return self.nodes * self.per_node

    def mbit_between(self, one: int, other: int) -> int:
        """Returns the bandwidth of the slowest link from one process to another."""
        if self.across_mbit is None or one // self.per_node == other // self.per_node:
            return self.inside_mbit
        return min(self.inside_mbit, self.across_mbit)


def why_not() -> str | None:
    """Returns why this machine cannot make networks, or None if it can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} on PATH; install iproute2"
    probe = f"rs{os.getpid() % 10_000}probe"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return "this kernel or container allows no network namespaces"
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return None


def status_of(measure: Callable[[], int]) -> int:
    """Returns the exit status of a benchmark: that of `measure`, 0 if there is no such network here, 130 if stopped."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the network would stay and block the next one
    try:
        return measure()
    except CannotShape as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130


class Testbed:
    """A network that exists during the `with` block; a context manager, which makes it and removes it.

    State: `undo` has the commands that remove the parts made so far; they run in reverse order.
    """

    __test__ = False  # pytest would collect the class by its name

    def __init__(self, network: Network):
        self.network = network
        self.prefix = f"rs{os.getpid() % 10_000}"
        self.undo: list[list[str]] = []
        self.folders: list[Path] = []

    def __enter__(self) -> Testbed:
        """Makes the network. Raises: CannotShape."""
        if (reason := why_not()) is not None:
            raise CannotShape(reason)
        try:
            self._build()
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(self, *_failure) -> None:
        self._take_down()

    def address(self, rank: int) -> str:
        return f"10.{77 + os.getpid() % 100}.0.{rank + 1}"

    def namespace(self, rank: int) -> str:
        return f"{self.prefix}p{rank}"

    def command(self, rank: int, words: Sequence[str]) -> list[str]:
        """Returns the command that runs `words` as a process of the network."""
        return ["ip", "netns", "exec", self.namespace(rank), *words]

    def run(
        self, commands: Sequence[Sequence[str]], *, timeout_s: float, environment: Mapping[str, str] | None = None
    ) -> list[str]:
        """Runs a command on each of the first processes, all at once, and returns the stdout of each.

        Raises: Failed if one fails, which ends the others, or if they do not end in time.
        """
        return run_together(
            [self.command(rank, words) for rank, words in enumerate(commands)],
            timeout_s=timeout_s,
            environment=environment,
        )

    def check(self) -> list[tuple[str, float, float]]:
        """Measures each kind of link with plain TCP; returns (name, megabits per second as set, as measured).

        Raises: CannotShape if one is off by more than TOLERANCE.
        """
        ends = {"inside a node": (0, 1)} if self.network.per_node > 1 else {}
        if self.network.nodes > 1:
            ends["between nodes"] = (0, self.network.per_node)
        found = []
        for what, (sender, receiver) in ends.items():
            mbit = self.network.mbit_between(sender, receiver)
            seen = self._measure(sender, receiver, mbit)
            found.append((what, float(mbit), seen))
            if abs(seen / (PAYLOAD * mbit) - 1) > TOLERANCE:
                raise CannotShape(
                    f"{what} {PAYLOAD * mbit:.0f} Mbit/s of payload are expected, {seen:.0f} were measured"
                )
        return found

    def _measure(self, sender: int, receiver: int, mbit: int) -> float:
        size = str(int(mbit * 1e6 / 8 * PROBE_S))
        python = [sys.executable, str(WIRE)]
        sides = {receiver: [*python, "receive", size], sender: [*python, "send", size, self.address(receiver)]}
        commands = [self.command(rank, words) for rank, words in sides.items()]
        return float(run_together(commands, timeout_s=60)[0])

    # Making the network

    def _build(self) -> None:
        network = self.network
        core = f"{self.prefix}core"
        self._bridge(core)
        for node in range(network.nodes):
            bridge = core
            if network.across_mbit is not None:
                bridge = f"{self.prefix}n{node}"
                self._bridge(bridge)
                self._cable(f"{self.prefix}u{node}", bridge, f"{self.prefix}d{node}", core, network.across_mbit)
            for rank in range(node * network.per_node, (node + 1) * network.per_node):
                self._process(rank, bridge)

    def _bridge(self, name: str) -> None:
        self._do(f"ip link add {name} type bridge", f"ip link del {name}")
        self._do(f"ip link set {name} up")

    def _cable(self, one: str, bridge: str, other: str, core: str, mbit: int) -> None:
        self._do(f"ip link add {one} type veth peer name {other}", f"ip link del {one}")
        for end, to in ((one, bridge), (other, core)):
            self._do(f"ip link set {end} master {to}")
            self._do(f"ip link set {end} up")
            self._do(f"tc qdisc add dev {end} root {_bucket(mbit)}")

    def _process(self, rank: int, bridge: str) -> None:
        space, link = self.namespace(rank), f"{self.prefix}v{rank}"
        self._do(f"ip netns add {space}", f"ip netns del {space}")
        self._do(
            f"ip link add {link} type veth peer name eth0 netns {space}", f"ip link del {link}"
        )  # the namespace would remove it later
        self._do(f"ip link set {link} master {bridge}")
        self._do(f"ip link set {link} up")
        self._do(f"ip -n {space} addr add {self.address(rank)}/24 dev eth0")
        self._do(f"ip -n {space} link set eth0 up")
        self._do(f"ip -n {space} link set lo up")
        self._do(f"ip netns exec {space} sh -c 'echo {CONGESTION} > /proc/sys/net/ipv4/tcp_congestion_control'")
        bucket = _bucket(self.network.inside_mbit)
        self._do(f"ip -n {space} link set eth0 gso_max_size {_most_at_once(self.network.inside_mbit)}")
        self._do(f"ip netns exec {space} tc qdisc add dev eth0 root {bucket}")
        self._do(f"tc qdisc add dev {link} root {bucket}")
        folder = Path("/etc/netns") / space  # gloo listens at the address of the host's name
        folder.mkdir(parents=True)
        self.folders.append(folder)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{self.address(rank)} {socket.gethostname()}\n")

    def _do(self, command: str, undo: str = "") -> None:
        if undo:
            self.undo.append(undo.split())
        ran = subprocess.run(shlex.split(command), capture_output=True, text=True)
        if ran.returncode:
            raise CannotShape(f"`{command}` failed: {ran.stderr.strip()}")

    def _take_down(self) -> None:
        for words in reversed(self.undo):
            subprocess.run(words, capture_output=True)
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.undo, self.folders = [], []


def _bucket(mbit: int) -> str:
    """Returns the token bucket of a link.

    While nothing is sent, a bucket saves tokens; then the next data pass at once, as if small messages took no time.
    But a bucket that saves nothing makes a link too slow, because the kernel's timer is late now and then. So a slow
    link saves tokens for 4 ms, and a second bucket lets these data pass only a little faster than the rest. On fast
    links the timer is too slow for two buckets; they have one, which saves tokens for 1 ms.
    """
    most = _most_at_once(mbit)
    if mbit > SLOW_MBIT:
        return f"tbf rate {mbit}mbit burst {max(most + 1000, 125 * mbit)} latency 400ms"
    return f"tbf rate {mbit}mbit burst {500 * mbit} peakrate {mbit + mbit // PEAK}mbit mtu {most + 1000} latency 400ms"


def _most_at_once(mbit: int) -> int:
    """Returns the bytes that a sender may give to a link in one piece.

    Pieces that are larger than the bucket would be cut into packets.
    """
    return min(60_000, max(4_000, 48 * mbit))


def run_together(
    commands: Sequence[Sequence[str]], *, timeout_s: float, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Runs commands at once and returns the stdout of each. Raises: Failed if one fails or they do not end in time."""
    running = [
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        for words in commands
    ]  # fmt: skip
    try:
        return _outputs(running, time.monotonic() + timeout_s)
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _outputs(running: Sequence[subprocess.Popen], until_s: float) -> list[str]:
    from concurrent.futures import ThreadPoolExecutor, as_completed

    with ThreadPoolExecutor(len(running)) as pool:
        waiting = {pool.submit(each.communicate): number for number, each in enumerate(running)}
        found: dict[int, str] = {}
        try:
            for future in as_completed(waiting, timeout=max(0.0, until_s - time.monotonic())):
                number = waiting[future]
                output, errors = future.result()
                if running[number].returncode:
                    raise Failed(f"process {number} ended with {running[number].returncode}: {errors.strip()[-1500:]}")
                found[number] = output
        except TimeoutError:
            late = [str(number) for number in range(len(running)) if number not in found]
            raise Failed(f"process {', '.join(late)} did not end in time") from None
        finally:
            for process in running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
    return [found[number] for number in range(len(running))]
