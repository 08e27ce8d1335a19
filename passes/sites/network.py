# SPDX-License-Identifier: Apache-2.0
"""The network and the memory for which the sites of a module are planned and judged.

Options of passes are text without spaces: the name of a preset, such as `h100:4`, or a topology in TOML in which spaces
and lines are written as in URLs. So a pipeline's text says all on which its plans depend, and a change of a file
changes the text.
"""

from __future__ import annotations

import contextlib
import functools
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reshard.dialect_utils.analysis.layout_check import devices_of
from reshard.dialect_utils.ir.diagnostics import error_at
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.shardings.sdy_shardings import module_meshes
from reshard.passes.driver.base import OptionError, option
from reshard.synthesis.forms.platforms import CPU, GLOO, PLATFORMS

if TYPE_CHECKING:  # loading them loads numpy
    from reshard.dialect_utils.xla.child import Compiled
    from reshard.dialect_utils.xla.compile_targets import Target
    from reshard.synthesis.network.program_time import ProgramTime
    from reshard.synthesis.network.topology import Topology
    from reshard.synthesis.programs.traffic import Collective

UNKNOWN = ""
_READABLE = ":*.,_-/"  # kept as they are in the text of an option


@dataclass(frozen=True, slots=True)
class SiteNetwork:
    """What sites are planned for.

    Attributes:
      text: the topology as the text of an option; UNKNOWN if nobody knows the network.
      memory_limit: the most memory that a plan, and the module, may need, in bytes per device; None: no limit but that
        of plans (R2), and stock XLA's for the module.
    """

    text: str = UNKNOWN
    memory_limit: int | None = None

    @property
    def is_known(self) -> bool:
        return self.text != UNKNOWN

    @property
    def has_processes(self) -> bool:
        """Returns whether it is known, and is one of CPU devices of several processes."""
        return self.is_known and self.topology.has_processes

    @property
    def has_processes_alone(self) -> bool:
        """Returns whether it is one of processes of which none has several of the devices."""
        return self.has_processes and not any(each.copies_own and each.size != 1 for each in self.topology.levels)

    @property
    def readable(self) -> str:
        """Returns the topology as `--topology` takes it: a preset, or TOML with its spaces and lines."""
        return urllib.parse.unquote(self.text)

    @property
    def topology(self) -> Topology:
        """Returns the topology; `uniform` if the network is unknown."""
        return topology_of(self.text)

    @property
    def platform(self) -> str:
        """Returns the platform of the network's devices; CPU devices if it says none, or is unknown.

        Example:
          >>> SiteNetwork("v5e:2x4").platform, SiteNetwork(UNKNOWN).platform
          ('tpu', 'cpu')
        """
        return (self.topology.platform if self.is_known else "") or CPU

    @property
    def has_final(self) -> bool:
        """Returns whether the devices are those that XLA compiles for here, CPU devices.

        Then its final programs are what runs, and they are priced.
        """
        return self.is_known and self.topology.platform == CPU

    @property
    def stands_in(self) -> str:
        """Returns the platform for which the CPU devices of XLA here stand in, as in `CompileRequest.stands_in`."""
        return stands_in_on(self.topology) if self.is_known else ""

    def time_of(self, compiled: Compiled, num_devices: int) -> ProgramTime:
        """Returns the modelled time of a program that compiles, as it is right after partitioning."""
        from reshard.synthesis.network.program_time import program_time

        return program_time(self.topology, num_devices, compiled.moved, compiled.work)

    def collectives_s(self, moved: tuple[Collective, ...], num_devices: int) -> float:
        """Returns the modelled seconds of collectives, one after the other."""
        from reshard.synthesis.network.program_time import program_time

        return program_time(self.topology, num_devices, moved, ()).collectives_s

    def final_time_of(self, compiled: Compiled, num_devices: int) -> ProgramTime | None:
        """Returns the modelled time of the compiler's final program; None if it is unknown or has ops without price."""
        from reshard.synthesis.network.program_time import program_time

        if compiled.final_bytes_received is None or compiled.final_unpriced:
            return None
        if compiled.final_schedule:
            return self._scheduled(compiled, num_devices)
        return program_time(self.topology, num_devices, compiled.final_moved, compiled.final_work)

    def generated_time_of(self, compiled: Compiled, num_devices: int) -> float | None:
        """Returns the seconds of the compiler's final program with local work as its code generator prices it, and what
        that leaves out by the roofline; None if it has no prices, or if collectives have none."""
        from reshard.synthesis.network.program_time import roofline_s

        generated_s = compiled.generated_seconds
        if generated_s is None:
            return None
        if compiled.final_schedule and not compiled.final_unpriced:
            return self._scheduled(compiled, num_devices, as_generated=True).seconds
        if (final := self.final_time_of(compiled, num_devices)) is None:
            return None
        others_s = sum(roofline_s(self.topology, each) for each in compiled.generated_without)
        return final.collectives_s + generated_s + others_s

    def _scheduled(self, compiled: Compiled, num_devices: int, *, as_generated: bool = False) -> ProgramTime:
        from reshard.synthesis.network.schedule_time import scheduled_time

        steps = compiled.final_schedule
        return scheduled_time(self.topology, num_devices, compiled.final_moved, steps, as_generated=as_generated)

    def time_beside(self, stock: Compiled, compiled: Compiled, num_devices: int) -> ProgramTime:
        """Returns the modelled time of stock XLA's program, or of another one, for comparison with stock XLA's.

        It is the time of the final program where the compiler gives it for stock XLA's and every op in it has a price;
        else the time of the program right after partitioning. If only the other program's is unknown, its time right
        after partitioning is taken in the ratio of both times of stock XLA's program: all times that are compared with
        stock XLA's have one measure.
        """
        partitioned = self.time_of(compiled, num_devices)
        final_of_stock = self.final_time_of(stock, num_devices) if stock.is_ok else None
        if final_of_stock is None:
            return partitioned
        final = self.final_time_of(compiled, num_devices)
        if final is not None:
            return final
        before = self.time_of(stock, num_devices).seconds
        ratio = final_of_stock.seconds / before if before else 1.0
        return replace(
            partitioned, collectives_s=partitioned.collectives_s * ratio, local_s=partitioned.local_s * ratio
        )


def stands_in_on(topology: Topology) -> str:
    """Returns the platform of a network's devices if they are others than those that XLA compiles for here; else ""."""
    return "" if topology.platform in (CPU, GLOO) else topology.platform


ANYWHERE = SiteNetwork()  # an unknown network, no limit


@functools.lru_cache(maxsize=64)
def topology_of(text: str) -> Topology:
    """Returns the topology of an option's text; `uniform` for UNKNOWN. Raises: TopologyError."""
    from reshard.synthesis.network.topology import DEFAULT, Topology

    return Topology.parse(urllib.parse.unquote(text) if text else DEFAULT)


def option_text(topology: Topology | str) -> str:
    """Returns a topology as the text of an option. A text is a preset, the path of a file, or TOML.

    Raises: TopologyError for a text that names none.

    Example:
      >>> option_text("v5e:4x4*2")
      'v5e:4x4*2'
    """
    if topology == UNKNOWN:
        return UNKNOWN
    from reshard.synthesis.network.topology import Topology
    from reshard.synthesis.network.topology_text import is_preset, to_toml

    if isinstance(topology, str):
        if is_preset(topology):
            Topology.parse(topology)  # raises for sizes that it cannot have
            return topology.strip()
        topology = Topology.parse(urllib.parse.unquote(topology))
    if is_preset(topology.name) and Topology.parse(topology.name) == topology:
        return topology.name
    return urllib.parse.quote(to_toml(topology), safe=_READABLE)


def platform_option() -> Any:
    """Declares the option `platform` of a pass that writes collectives."""
    return option(
        CPU,
        "write collectives in the forms that this platform's compiler handles best; values and traffic are the same",
        choices=PLATFORMS,
    )


def topology_option() -> Any:
    """Returns the option of a pass with which the caller names the network."""
    return option(
        UNKNOWN,
        "the network that plans are made for and times are modelled on: a preset such as h100:4 or v5e:4x4*2, or a "
        "TOML file; without one, plans receive as few bytes as possible, and times are those of the preset uniform",
    )


def memory_limit_option() -> Any:
    """Returns the option of a pass that limits the memory of plans."""
    return option(0, "the most memory that a plan may need, in bytes per device; 0 is no limit but that of rule R2")


def of_target(target: Target) -> str:
    """Returns the topology of a target of compilation, as the text of an option; UNKNOWN if there is no preset for it.

    Example:
      >>> from reshard.dialect_utils.xla.compile_targets import Target
      >>> [of_target(Target.parse(each)) for each in ("tpu:v5e:4x4:2", "cuda:h100:1x2x8", "cpu:8", "tpu:v2:2x2")]
      ['v5e:4x4*2', 'h100:2x8', 'cpu:8', '']
    """
    from reshard.synthesis.network.topology_text import is_preset

    if target.platform == "cpu":
        return f"cpu:{target.devices}"
    sizes = "x".join(map(str, target.shape))
    if target.platform == "cuda":
        partitions, hosts, gpus = target.shape
        text = f"{target.model}:{partitions * hosts}x{gpus}"
    else:
        text = f"{target.model}:{sizes}*{target.slices}"
    return text if is_preset(text) else UNKNOWN


def is_of_target(text: str, target: Target) -> bool:
    """Returns whether a topology, as the text of an option, is that of a target, with devices in the order of places.

    Example:
      >>> from reshard.dialect_utils.xla.compile_targets import Target
      >>> [is_of_target(each, Target.parse("tpu:v5e:2x4")) for each in ("v5e:2x4", "v5e:2x4*1", "v5e:4x2", "")]
      [True, True, False, False]
    """
    own = of_target(target)
    if UNKNOWN in (text, own):
        return False
    return replace(topology_of(text), name="") == replace(topology_of(own), name="")


def placed(text: str, target: Target, module: ir.Module) -> str:
    """Returns the topology of a target, as the text of an option, with the order in which the target's compiler gets
    the partitions of a module (`of_target_for`); any other one, and that of a module for other devices, as it is."""
    if not is_of_target(text, target) or devices_of(module) != target.devices:
        return text
    return of_target_for(target, module)


def of_target_for(target: Target, module: ir.Module) -> str:
    """Returns the topology of a target of compilation, with the devices in the order in which the target's compiler
    gets the partitions of a module; UNKNOWN if there is no preset for it."""
    from reshard.dialect_utils.xla.target_devices import mesh_sizes

    return of_target_over(target, mesh_sizes(module, target.devices))


def of_target_over(target: Target, sizes: Sequence[int]) -> str:
    """Returns the same for a mesh with axes of some sizes.

    Example:
      >>> from reshard.dialect_utils.xla.compile_targets import Target
      >>> topology_of(of_target_over(Target.parse("tpu:v5e:2x4"), (8,))).device_order  # partitions at places
      (0, 2, 7, 5, 1, 3, 6, 4)
    """
    text = of_target(target)
    if text == UNKNOWN or target.platform != "tpu":
        return text
    from reshard.dialect_utils.xla.target_devices import places_of_partitions

    places = places_of_partitions(target, sizes)
    order = tuple(sorted(range(len(places)), key=places.__getitem__))
    return option_text(replace(topology_of(text), device_order=order)) if order != tuple(range(len(order))) else text


_OF_TPUS = re.compile(r"(?P<version>\w+):(?P<shape>\d+(?:x\d+)*)(?:\*(?P<slices>\d+))?")
_OF_GPUS = re.compile(r"(?P<model>[ahb]\d+):(?P<hosts>\d+)x(?P<gpus>\d+)")


def target_on(text: str) -> Target | None:
    """Returns the target of compilation that has a network, named by its preset and sizes; None if there is none.

    Example:
      >>> [str(target_on(each)) for each in ("v5e:4x4*2", "v5p:2x2x2", "h100:2x8", "uniform", "cpu:8", "v5e")]
      ['tpu:v5e:4x4:2', 'tpu:v5p:2x2x2', 'cuda:h100:1x2x8', 'None', 'None', 'None']
    """
    from reshard.dialect_utils.xla.compile_targets import Target, TargetError

    if match := _OF_TPUS.fullmatch(text):
        named = f"tpu:{match['version']}:{match['shape']}" + (f":{match['slices']}" if match["slices"] else "")
        with contextlib.suppress(TargetError):
            return Target.parse(named)
    if match := _OF_GPUS.fullmatch(text):
        return Target.parse(f"cuda:{match['model']}:1x{match['hosts']}x{match['gpus']}")
    return None


class NetworkOptions:
    """The part of a pass that has the options `topology` and `memory_limit`."""

    topology: str
    memory_limit: int
    platform: str = CPU

    @property
    def written_for(self) -> str:
        """Returns the platform in whose forms collectives are written: gloo's between processes of CPU devices."""
        return GLOO if self.platform == CPU and self.network.has_processes else self.platform

    @property
    def network(self) -> SiteNetwork:
        return SiteNetwork(self.topology, self.memory_limit or None)

    def __post_init__(self) -> None:
        """Reads the file of a topology, so that the option has its text. Raises: OptionError."""
        if self.memory_limit < 0:
            said = f"memory-limit={self.memory_limit}"
            raise OptionError(f"{said} is negative; it is in bytes per device", said)
        if self.topology == UNKNOWN:
            return
        from reshard.synthesis.network.topology import TopologyError

        try:
            object.__setattr__(self, "topology", option_text(self.topology))
        except TopologyError as error:
            raise OptionError(f"topology={self.topology}: {error}", f"topology={self.topology}") from None


def refuse_unfit(module: ir.Module, network: SiteNetwork, target: Target | None = None) -> None:
    """Raises: DiagnosedError if the topology does not fit the devices of one of the module's meshes.

    On a mesh with one device nothing moves, so it may stand beside others.

    Args:
      target: the target of compilation. If the topology is its own, the error names the target.
    """
    from reshard.synthesis.network.topology import TopologyError

    meshes = module_meshes(module).values() if network.is_known else ()
    for devices in sorted({mesh.devices for mesh in meshes if mesh.size > 1}):
        try:
            network.topology.fitted(devices)
        except TopologyError as error:
            problem = str(error)
            if target is not None and network.text == of_target(target):
                problem = f"the module is for {devices} devices, the target has {target.devices}"
            raise error_at(module.operation, problem) from None
