# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for tests, controlled over a pair of pipes; it needs only the standard library and numpy.

With `Chromium() as browser`: `open` loads a page, `evaluate` runs JavaScript in it, `key` presses a key, `screenshot`
returns pixels. `errors` lists the messages that the page logged, `requests` the addresses that it requested.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
import zlib

import numpy as np

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 60


def executable() -> str | None:
    """Returns the path of the browser; None if this machine has no browser."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Chromium:
    """One browser with one page; the browser is closed at the end of the `with` block."""

    def __init__(self, width: int = 1280, height: int = 1000):
        self.size = width, height
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number, self._read = 0, b""

    def __enter__(self) -> Chromium:
        self._folder = tempfile.TemporaryDirectory(prefix="reshard-chromium-", ignore_cleanup_errors=True)
        theirs_in, self._out = _pipe()
        self._in, theirs_out = _pipe()

        def with_pipes() -> None:  # the browser reads commands from 3 and writes answers to 4
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        flags = [
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [executable(), *flags, f"--user-data-dir={self._folder.name}", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=(3, 4), preexec_fn=with_pipes
        )
        os.close(theirs_in), os.close(theirs_out)
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(*self.size)
        return self

    def __exit__(self, *_) -> None:
        try:
            self._send("Browser.close")
            self._process.wait(WAIT_S)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._in), os.close(self._out)
        self._folder.cleanup()

    def open(self, url: str) -> None:
        """Opens a page, and returns when the page has loaded."""
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + WAIT_S
        while self.evaluate("document.readyState + location.href.startsWith('about:')") != "completefalse":
            assert time.monotonic() < deadline, f"{url} does not load"

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def emulate(self, *, media: str = "", scheme: str = "light") -> None:
        self.call(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def evaluate(self, script: str):
        """Returns the value of a JavaScript expression, converted by way of JSON."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def key(self, key: str) -> None:
        codes = {"ArrowRight": 39, "ArrowLeft": 37, "Tab": 9, "Enter": 13, " ": 32}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def screenshot(self, selector: str = "body") -> np.ndarray:
        """Returns the pixels of an element, uint8 (height, width, 3)."""
        return pixels_of_png(self.png(selector))

    def png(self, selector: str = "body") -> bytes:
        """Returns a picture of a whole element, also of its parts outside of the window, as the bytes of a PNG file."""
        box = self.evaluate(
            f"(b => ({{x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height, scale: 1}}))"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        return base64.b64decode(
            self.call("Page.captureScreenshot", format="png", clip=box, captureBeyondViewport=True)["data"]
        )

    def call(self, method: str, **parameters) -> dict:
        return self._send(method, parameters, self._session)

    def _send(self, method: str, parameters: dict | None = None, session: str | None = None) -> dict:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters or {}}
        command |= {"sessionId": session} if session else {}
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._number:
                assert "error" not in said, f"{method}: {said['error']}"
                return said["result"]
            self._note(said.get("method", ""), said.get("params", {}))

    def _next(self) -> dict:
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._in], [], [], WAIT_S)
            if not ready:
                raise TimeoutError("the browser does not answer")
            more = os.read(self._in, 1 << 20)
            if not more:
                raise OSError("the browser has ended")
            self._read += more
        said, _, self._read = self._read.partition(b"\0")
        return json.loads(said)

    def _note(self, event: str, what: dict) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(what["exceptionDetails"]["text"])
        elif event == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.errors.append(str(what["args"]))
        elif event == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.errors.append(what["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])


def _pipe() -> tuple[int, int]:
    """Returns a pipe whose file descriptors are 10 or larger, so that 3 and 4 are free in the child."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved


def pixels_of_png(content: bytes) -> np.ndarray:
    """Returns the pixels of a PNG of 8 bits per channel, without alpha."""
    at, header, packed = 8, b"", b""
    while at < len(content):
        length, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        chunk = content[at + 8 : at + 8 + length]
        header, packed = (chunk, packed) if kind == b"IHDR" else (header, packed + chunk if kind == b"IDAT" else packed)
        at += 12 + length
    width, height, depth, colours = (
        int.from_bytes(header[:4], "big"),
        int.from_bytes(header[4:8], "big"),
        header[8],
        header[9],
    )
    assert depth == 8 and colours in (2, 6), "8 bits of RGB, with alpha or without"
    channels = 3 if colours == 2 else 4
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    found = np.zeros((height + 1, width + 1, channels), np.int64)
    for y in range(height):
        _unfilter(found, y, int(rows[y, 0]), rows[y, 1:].reshape(width, channels).astype(np.int64))
    return found[1:, 1:, :3].astype(np.uint8)


def _unfilter(found: np.ndarray, y: int, kind: int, line: np.ndarray) -> None:
    """Writes row y + 1 of `found`, decoded by the filter `kind`; row 0 and column 0 stay zeros."""
    above = found[y, 1:]
    if kind in (0, 2):
        found[y + 1, 1:] = (line + (above if kind == 2 else 0)) & 255
        return
    if kind == 1:
        found[y + 1, 1:] = np.cumsum(line, axis=0) & 255
        return
    for x in range(len(line)):
        left, up, corner = found[y + 1, x], found[y, x + 1], found[y, x]
        if kind == 3:
            guess = (left + up) // 2
        else:
            base = left + up - corner
            away = [np.abs(base - each) for each in (left, up, corner)]
            guess = np.where(
                (away[0] <= away[1]) & (away[0] <= away[2]), left, np.where(away[1] <= away[2], up, corner)
            )
        found[y + 1, x + 1] = (line[x] + guess) & 255
