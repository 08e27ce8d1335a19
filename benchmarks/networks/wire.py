# SPDX-License-Identifier: Apache-2.0
"""One end of a TCP connection at full speed: `wire.py receive BYTES` or `wire.py send BYTES HOST`.

The receiver prints the megabits per second.
"""

import socket
import sys
import time

PORT = 23399
CHUNK = bytes(1 << 20)


def receive(num_bytes: int) -> None:
    with socket.create_server(("", PORT)) as server:
        connection, _ = server.accept()
        with connection:
            got, began_s = len(connection.recv(1 << 20)), time.perf_counter()
            first = got
            while got < num_bytes and (part := connection.recv(1 << 20)):
                got += len(part)
            print((got - first) * 8 / 1e6 / (time.perf_counter() - began_s))


def send(num_bytes: int, host: str) -> None:
    with _connected(host) as connection:
        for start in range(0, num_bytes, len(CHUNK)):
            connection.sendall(CHUNK[: num_bytes - start])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def _connected(host: str) -> socket.socket:
    """Returns a connection to the receiver, which may take ten seconds to start. Raises: OSError."""
    for _ in range(100):
        try:
            return socket.create_connection((host, PORT))
        except OSError:
            time.sleep(0.1)
    return socket.create_connection((host, PORT))


if __name__ == "__main__":
    send(int(sys.argv[2]), sys.argv[3]) if sys.argv[1] == "send" else receive(int(sys.argv[2]))
