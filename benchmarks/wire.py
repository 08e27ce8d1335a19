# SPDX-License-Identifier: Apache-2.0
"""One end of a TCP connection that is as busy as it gets: `wire.py receive BYTES` prints megabits per second, `wire.py send BYTES HOST`."""

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
    for _ in range(100):
        try:
            connection = socket.create_connection((host, PORT))
            break
        except OSError:
            time.sleep(0.1)
    with connection:
        for start in range(0, num_bytes, len(CHUNK)):
            connection.sendall(CHUNK[: num_bytes - start])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


if __name__ == "__main__":
    send(int(sys.argv[2]), sys.argv[3]) if sys.argv[1] == "send" else receive(int(sys.argv[2]))
