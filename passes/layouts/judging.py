# SPDX-License-Identifier: Apache-2.0
"""What a compiler makes of a module that has its layouts: as it is, and after `reshard-opt`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from reshard.dialect_utils.xla.child import DEFAULT_TIMEOUT_S, Compiled, XlaChild
from reshard.passes.sites.network import SiteNetwork

Optimizer = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Judged:
    """A module with its layouts.

    Attributes:
      optimized: the module after `reshard-opt`, as bytecode. stock, ours: what the compiler makes of both.
      stock_s, ours_s: their times in seconds; infinite if the compiler refuses them.
    """

    optimized: bytes
    stock: Compiled
    ours: Compiled
    stock_s: float
    ours_s: float

    @classmethod
    def on(cls, network: SiteNetwork, devices: int, optimized: bytes, stock: Compiled, ours: Compiled) -> Judged:
        """Returns both forms with their times, modelled on a network, so that forms and meshes have one measure."""
        beside = stock if stock.is_ok else ours
        stock_s, ours_s = (
            network.time_beside(beside, each, devices).seconds if each.is_ok else math.inf for each in (stock, ours)
        )
        return cls(optimized, stock, ours, stock_s, ours_s)


class Judge(Protocol):
    """Compiles a module, as bytecode, for a number of devices."""

    def __call__(self, content: bytes, devices: int) -> Judged: ...


@dataclass(frozen=True)
class OnCpuDevices:
    """Compiles for CPU devices, also after `optimize`, which is `reshard-opt`; times are modelled on the network."""

    child: XlaChild
    network: SiteNetwork
    optimize: Optimizer

    def __call__(self, content: bytes, devices: int) -> Judged:
        stock = self._ask(content, devices)
        optimized = self.optimize(content)
        ours = self._ask(optimized, devices)
        return Judged.on(self.network, devices, optimized, stock, ours)

    def _ask(self, source: bytes, devices: int) -> Compiled:
        return self.child.compile(
            source,
            devices,
            timeout_s=DEFAULT_TIMEOUT_S,
            has_final=self.network.has_final,
            stands_in=self.network.stands_in,
        )
