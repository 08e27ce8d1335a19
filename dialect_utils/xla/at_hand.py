# SPDX-License-Identifier: Apache-2.0
"""The compiler of devices that are at hand, in the place of the child process.

A TPU's compiler is in the process of the user who has the TPU, with the user's own flags and for these very devices. So
it is asked there: a second process might not load it beside the first one. But its user waits, and what makes a
compiler abort ends this process, too. So it is asked about a few forms of a module, and about none on which XLA aborts
or hangs for CPU devices, in the child, where it runs the same passes until it has partitioned. Everything else is asked
of the child. An answer is kept on disk like those of the child.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from ..platform import compat, progress
from . import child as xla_child
from .child import UNASKED, Compiled, CompileRequest, XlaChild, patience_s
from .compile_targets import Target

if TYPE_CHECKING:
    import jax

UNLIMITED = 1 << 30
MOST_FORMS = 3  # of a module, times the effort
MOST_PIPELINES = 1  # forms more that are kept for pipelines, times the effort
_FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")  # which a compiler of this process reads
# What depends on what else there is; a program that does not fit into the memory of a chip is refused for good.
_PASSING = re.compile("RESOURCE_EXHAUSTED(?!.*permanent error)|UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED")


class CompilerAtHand:
    """Answers for a target with the compiler of its devices, and for anything else as a child does.

    Args:
      child: that is asked for anything else.
      target: what the devices are. devices: those of a program, in the order of its partitions.
      effort: the compiler is asked about so many times as many forms of a module.
      levels: what the caller has set in XLA's options beside flags, as `compat.compiler_levels` has it.
    State: `_asked`, the hashes of modules that the compiler was asked about; the first one is that as it came.
      `_compiles`, modules as they compile for CPU devices, by their hashes.
    """

    def __init__(
        self,
        child: XlaChild,
        target: Target,
        devices: Sequence[jax.Device],  # pyright: ignore[reportInvalidTypeForm]
        effort: int = 1,
        levels: Mapping[str, Any] = MappingProxyType({}),
    ):
        self._child, self.target, self._devices = child, target, tuple(devices)
        self._effort, self._levels = effort, dict(levels)
        self._most = 1 + MOST_FORMS * effort
        self._asked: set[int] = set()
        self._compiles: dict[int, Compiled] = {}

    @functools.cached_property
    def identity(self) -> str:
        """Returns a text that is equal for devices whose compiler gives the same answers."""
        version = getattr(self._devices[0].client, "platform_version", "")
        flags = {name: os.environ[name] for name in _FLAGS if name in os.environ}
        levels = {**compat.levels_around(), **self._levels}
        return repr((version, [each.id for each in self._devices], sorted(flags.items()), sorted(levels.items())))

    def __repr__(self) -> str:
        return f"CompilerAtHand({self.target}, {self.identity})"

    @property
    def left(self) -> int:
        """Returns how many more modules the compiler may be asked about."""
        return self._most - len(self._asked)

    def allow_pipelines(self) -> None:
        """Lets the compiler be asked about forms with pipelines, too."""
        self._most += MOST_PIPELINES * self._effort

    def compile(
        self,
        module: str | bytes,
        num_devices: int,
        *,
        target: Target | None = None,
        timeout_s: float | None = None,
        with_estimate: bool = True,
        **wanted: Any,
    ) -> Compiled:
        """Returns what `XlaChild.compile` does for the same arguments; a compilation here has no limit of time."""
        if target != self.target:
            how = {"target": target, "timeout_s": timeout_s, "with_estimate": with_estimate}
            found = self._child.compile(module, num_devices, **how, **wanted)
            self._compiles |= {} if target else {hash(module): found}
            return found
        if (for_cpu_devices := self._for_cpu_devices(module, num_devices)).status in ("abort", "hang"):
            return for_cpu_devices
        if hash(module) not in self._asked and self.left <= 0:
            return Compiled(UNASKED, "more effort has the compiler at hand asked about more forms")
        self._asked.add(hash(module))
        request = CompileRequest(module, num_devices, target=str(target), at_hand=self.identity, **wanted)
        return replace(self._child.answered(request, self._ask, patience_s(target)), lacks_estimate=False)

    def estimated(self, compiled: Compiled, module: str | bytes, num_devices: int, target: Target | None, **how: Any):
        """Returns what `XlaChild.estimated` does; nothing is compiled here for the estimate alone."""
        if target != self.target:
            return self._child.estimated(compiled, module, num_devices, target, **how)
        return compiled

    def _for_cpu_devices(self, module: str | bytes, num_devices: int) -> Compiled:
        if hash(module) not in self._compiles:
            self._compiles[hash(module)] = self._child.compile(module, num_devices)
        return self._compiles[hash(module)]

    def _ask(self, request: dict) -> dict:
        from . import worker

        with progress.waiting_for(f"the compiler of {self.target} compiles"):
            reply = worker.compiled_at_hand(request, self._devices, self._levels)
        is_passing = reply.get("is_passing", False) or bool(_PASSING.search(reply.get("message", "")))
        return {**reply, "is_passing": is_passing}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a copy, which has no child yet
            raise AttributeError(name)
        return getattr(self._child, name)


def asked(at_hand: CompilerAtHand | None, child: XlaChild | None) -> XlaChild:
    """Returns what modules are compiled by: the compiler at hand, if there is one, which does all that a child does;
    else the child that a caller has, or the one that this process shares."""
    return cast(XlaChild, at_hand) if at_hand else child or xla_child.shared_child()


def allow_pipelines(child: XlaChild) -> None:
    """Lets a compiler at hand be asked about forms with pipelines, too."""
    if isinstance(child, CompilerAtHand):
        child.allow_pipelines()


def left_of(child: XlaChild) -> int:
    """Returns how many more modules a compiler may be asked about for a target."""
    return child.left if isinstance(child, CompilerAtHand) else UNLIMITED
