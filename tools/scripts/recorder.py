# SPDX-License-Identifier: Apache-2.0
"""Runs a script as Python would, and records the programs that jax hands to XLA. It is what the child process runs.

The script comes first: it may set the environment before it imports jax, so this module does not import jax. Once the
script has, the seam gets an observer, which changes no module.

The folder of a recording has a file for each distinct program for more than one device, its module as bytecode, and an
index, one JSON object a line. A line is written when its file is there, so a script may be killed at any time.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import hashlib
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path

from reshard.dialect_utils.platform import compat, jax_seam
from reshard.dialect_utils.platform.typed import asm_of

INDEX = "programs.jsonl"
_INTERRUPTED = 128 + signal.SIGINT
_ONE_INTERRUPT_S = 1.0  # Ctrl-C reaches this process from the terminal, and from the command that has started it


def main(folder: str, function: str, script: str, arguments: Sequence[str]) -> int:
    """Runs a script and returns its exit status; 130 if Ctrl-C has ended it.

    Args:
      folder: of the recording. function: the script ends as soon as a program with that name, see `is_named`, for more
        than one device is recorded; empty for none.
    """
    _take_one_interrupt()
    _after_import("jax", Recorder(Path(folder), function).start)
    if hasattr(sys.stdout, "reconfigure"):  # it is no terminal, even if the user looks at one
        sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    return run_as_main(script, arguments)


class Recorder:
    """Records what passes the seam. State: `_known`, the digests of the modules in the folder."""

    def __init__(self, folder: Path, function: str = ""):
        self._folder, self._function = folder, function
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Lets the seam show each module, until this process ends. jax has to be loaded."""
        if problem := jax_seam.problem():
            self._end({"problem": f"programs cannot be recorded: {problem}; upgrade reshard"})
        lasting = contextlib.ExitStack()
        lasting.enter_context(jax_seam.observing(self.record))
        atexit.register(lasting.close)

    def record(self, module, devices: tuple, compile_options) -> None:
        """Records one module, an observer of the seam."""
        build_options = compile_options.executable_build_options
        count = build_options.num_partitions * build_options.num_replicas
        entry = {"name": compat.module_name(module), "devices": count}
        with self._lock:
            try:
                if count > 1 and not self._add(module, entry):
                    return
            except OSError as error:
                self._end({"problem": f"{error.filename}: {(error.strerror or str(error)).lower()}"})
            if count > 1 and self._function and is_named(entry["name"], self._function):
                self._end(entry)
            self._note(entry)

    def _add(self, module, entry: dict) -> bool:
        """Writes a module to a file, whose name the entry gets; returns whether it is a new one.

        Modules that differ in their locations alone are the same program.
        """
        digest = hashlib.sha256(asm_of(module.operation, enable_debug_info=False).encode()).hexdigest()
        if digest in self._known:
            return False
        self._known.add(digest)
        entry["file"] = f"{len(self._known):04}.mlirbc"
        (self._folder / entry["file"]).write_bytes(compat.bytecode(module))
        return True

    def _note(self, entry: dict) -> None:
        with open(self._folder / INDEX, "a", encoding="utf-8") as index:
            index.write(json.dumps(entry) + "\n")

    def _end(self, entry: dict) -> None:
        """Ends the process with the last line of the index. What the script would do at its end does not happen: it
        might save what it has not computed."""
        self._note(entry)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(0)


def is_named(name: str, asked: str) -> bool:
    """Returns whether a module has the name that a user asks for: its own, or that of the function.

    Example:
      >>> is_named("jit_step", "step"), is_named("jit_step", "jit_step"), is_named("jit_step", "jit")
      (True, True, False)
    """
    return asked in (name, name.partition("_")[2])


def run_as_main(script: str, arguments: Sequence[str]) -> int:
    """Runs a script as `__main__`, and returns the exit status; the traceback is that of Python, without our calls.

    Raises: SystemExit, if the script does.
    """
    path = os.path.abspath(script)
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(__builtins__=builtins, __file__=path, __cached__=None)
    sys.modules["__main__"] = main_module
    sys.argv[:] = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, main_module.__dict__)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


class _Hook(importlib.abc.MetaPathFinder):
    """Calls a function after a module is loaded, once."""

    def __init__(self, name: str, then: Callable[[], None]):
        self._name, self._then = name, then

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader, load, then = spec.loader, spec.loader.exec_module, self._then

        def exec_module(module: types.ModuleType) -> None:
            del loader.exec_module
            load(module)
            then()

        loader.exec_module = exec_module
        return spec


def _after_import(name: str, then: Callable[[], None]) -> None:
    sys.meta_path.insert(0, _Hook(name, then))


def _take_one_interrupt() -> None:
    """Lets one Ctrl-C raise KeyboardInterrupt once, also if its signal arrives twice."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    last = -_ONE_INTERRUPT_S

    def interrupt(_number: int, _frame) -> None:
        nonlocal last
        is_second = time.monotonic() - last < _ONE_INTERRUPT_S
        last = time.monotonic()
        if not is_second:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
