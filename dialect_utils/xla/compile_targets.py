# SPDX-License-Identifier: Apache-2.0
"""Compile targets: CPU devices of this host, or ahead of time a TPU slice or GPUs that need not be there.

    cpu:8                 CPU devices
    tpu:v5p:4x4x4         TPU:VERSION:TOPOLOGY, chips per dimension of a slice; needs libtpu
    tpu:v5e:8x8:2         the same and :SLICES, slices joined by the data-centre network
    cuda:h100:1x1x8       CUDA:GPU:PARTITIONSxHOSTSxGPUS; needs jax's CUDA plug-in

Behind a target ahead of time may stand the options with which its compiler is run, as in a URL:
`tpu:v5e:8x8?xla_tpu_enable_latency_hiding_scheduler=true&xla_tpu_scoped_vmem_limit_kib=65536`. They belong to the
target: another program comes out, so whatever is kept for the target is kept for these options.

The process that parses a target loads no compiler; `target_devices` makes the devices, in the child process of
`child`.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from urllib.parse import quote, unquote

from ..platform import compat

PLATFORMS = ("cpu", "tpu", "cuda")
# Version -> (dimensions of a slice, devices per chip). The two cores of a v4 or v5p chip work as one device (megacore).
TPU_VERSIONS = {"v2": (2, 2), "v3": (2, 2), "v4": (3, 1), "v5e": (2, 1), "v5p": (3, 1), "v6e": (2, 1), "tpu7x": (3, 2)}
CUDA_PLUGINS = ("xla_cuda13", "xla_cuda12")

_EXAMPLES = {"cpu": "cpu:8", "tpu": "tpu:v5p:4x4x4 or tpu:v5e:8x8:2", "cuda": "cuda:h100:1x1x8"}
_FORMS = {
    "cpu": "PLATFORM:DEVICES",
    "tpu": "tpu:VERSION:TOPOLOGY or tpu:VERSION:TOPOLOGY:SLICES",
    "cuda": "cuda:GPU:PARTITIONSxHOSTSxGPUS",
}
_NUMBER = r"[1-9]\d{0,5}"
_AS_THEY_ARE = "/:,.+-_=*()[]{} "  # in values of options; others are written as in URLs
_OPTION = re.compile(r"([A-Za-z]\w*)=(.+)")


class TargetError(ValueError):
    """A target that does not exist, or whose compiler is missing or refuses it; the message is one line for the
    user."""


@dataclass(frozen=True, slots=True)
class Target:
    """A platform and its devices.

    Fields:
      platform: one of PLATFORMS.
      model: the version of the TPU or the name of the GPU; empty for cpu.
      shape: number of CPU devices; chips per dimension of one TPU slice; partitions, hosts and GPUs per host.
      slices: the number of TPU slices.
      options: of the target's compiler: (name, value as text), sorted by name.

    Example:
      >>> target = Target.parse("tpu:v5e:8x8:2")
      >>> target.devices, str(target), str(Target.parse("tpu:tpu7x:2x2x1")), Target.parse("tpu:tpu7x:2x2x1").devices
      (128, 'tpu:v5e:8x8:2', 'tpu:tpu7x:2x2x1', 8)
      >>> Target.parse("tpu:v5e:8x8?xla_b=2&xla_a=true").options
      (('xla_a', 'true'), ('xla_b', '2'))
      >>> str(Target("tpu", "v5e", (2, 4), options=(("xla_a", "x&y"),)))
      'tpu:v5e:2x4?xla_a=x%26y'
    """

    platform: str
    model: str
    shape: tuple[int, ...]
    slices: int = 1
    options: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse(text: str) -> Target:
        """Returns the target that a text such as `tpu:v5p:4x4x4` names. Raises: TargetError."""
        devices, mark, options = text.partition("?")
        platform, *parts = devices.split(":")
        if platform not in PLATFORMS:
            if not re.fullmatch(r"[a-z0-9]+:.+", devices):
                raise _malformed("cpu", devices)
            raise TargetError(f"cannot compile for '{platform}'; available: {', '.join(PLATFORMS)}")
        target = {"cpu": _cpu, "tpu": _tpu, "cuda": _cuda}[platform](devices, parts)
        if mark and not target.is_ahead_of_time:
            raise TargetError(f"'{text}' has options; CPU devices have none here, only targets ahead of time")
        return replace(target, options=_options(text, options)) if mark else target

    @property
    def devices(self) -> int:
        """Returns the number of devices: cores if each core of a chip is a device (v2, v3, tpu7x), otherwise chips."""
        per_chip = TPU_VERSIONS[self.model][1] if self.platform == "tpu" else 1
        return prod(self.shape) * per_chip * self.slices

    @property
    def is_ahead_of_time(self) -> bool:
        """Returns whether modules are only compiled for these devices, which need not be present, and not run."""
        return self.platform != "cpu"

    @property
    def topology_name(self) -> str:
        """Returns the compiler's name of the topology, such as `v5p:4x4x4` or `1x1x8`."""
        return ":".join(filter(None, [self.model if self.platform == "tpu" else "", "x".join(map(str, self.shape))]))

    def __str__(self) -> str:
        slices = str(self.slices) if self.slices > 1 else ""
        devices = ":".join(filter(None, [self.platform, self.model, "x".join(map(str, self.shape)), slices]))
        options = "&".join(f"{name}={quote(value, safe=_AS_THEY_ARE)}" for name, value in self.options)
        return f"{devices}?{options}" if options else devices


def missing_compiler(target: Target) -> str:
    """Returns in one line what has to be installed to compile for the target; empty if nothing is missing."""
    if target.platform == "tpu" and not _is_installed("libtpu"):
        package = f"jax[tpu]=={compat.jax_versions()[0]}"
        return f"compiling for {target} needs libtpu, the TPU compiler; pip install '{package}'"
    if target.platform == "cuda" and cuda_plugin() is None:
        package = f"jax[cuda13]=={compat.jax_versions()[0]}"
        return f"compiling for {target} needs jax's CUDA plug-in, some 4 GB; pip install '{package}'"
    return ""


def unheard_flags(target: Target, environment: Mapping[str, str] = os.environ) -> str:
    """Returns in one line how to name the flags of the environment, which do not reach the target's compiler; empty if
    there are none, or if the target has options of its own.

    Example:
      >>> flags = {"LIBTPU_INIT_ARGS": "--xla_a=true --xla_b=2"}
      >>> unheard_flags(Target.parse("tpu:v5e:2x4"), flags)
      "LIBTPU_INIT_ARGS does not reach the compiler of tpu:v5e:2x4; 'tpu:v5e:2x4?xla_a=true&xla_b=2' compiles with it"
      >>> unheard_flags(Target.parse("tpu:v5e:2x4?xla_c=1"), flags)
      ''
    """
    flags = environment.get("LIBTPU_INIT_ARGS", "").split() if target.platform == "tpu" and not target.options else []
    named = "&".join(flag.lstrip("-") for flag in flags if _OPTION.fullmatch(flag.lstrip("-")))
    if not named:
        return ""
    return f"LIBTPU_INIT_ARGS does not reach the compiler of {target}; '{target}?{named}' compiles with it"


def compiler_version(target: Target) -> str:
    """Returns the version of the compiler that is installed for the target; empty without one."""
    if target.platform == "cpu":
        return compat.jaxlib_version()
    plugin = cuda_plugin() or ""
    package = "libtpu" if target.platform == "tpu" else f"jax_{plugin.removeprefix('xla_')}_plugin"
    from importlib import metadata  # takes long to load

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def cuda_plugin() -> str | None:
    """Returns the name of the CUDA plug-in that is installed, as a module of `jax_plugins`; None without one."""
    return next((name for name in CUDA_PLUGINS if _is_installed(f"jax_plugins.{name}")), None)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _options(text: str, options: str) -> tuple[tuple[str, str], ...]:
    """Returns the options behind the question mark of a target. Raises: TargetError."""
    found: dict[str, str] = {}
    for each in options.split("&"):
        if not (match := _OPTION.fullmatch(each)):
            raise TargetError(
                f"'{text}' has the option '{each}', which is not NAME=VALUE; several are joined by '&': "
                "tpu:v5e:8x8?xla_a=true&xla_b=2"
            )
        if match[1] in found:
            raise TargetError(f"'{text}' has the option {match[1]} twice: {found[match[1]]} and {match[2]}")
        found[match[1]] = unquote(match[2])
    return tuple(sorted(found.items()))


def _cpu(text: str, parts: list[str]) -> Target:
    if len(parts) != 1 or not re.fullmatch(_NUMBER, parts[0]):
        raise _malformed("cpu", text)
    return Target("cpu", "", (int(parts[0]),))


def _tpu(text: str, parts: list[str]) -> Target:
    if not 2 <= len(parts) <= 3 or (len(parts) == 3 and not re.fullmatch(_NUMBER, parts[2])):
        raise _malformed("tpu", text)
    version, shape = parts[0], _shape("tpu", text, parts[1])
    if version not in TPU_VERSIONS:
        raise TargetError(f"'{text}' names no TPU: '{version}' is none of {', '.join(TPU_VERSIONS)}")
    dimensions = TPU_VERSIONS[version][0]
    if len(shape) != dimensions:
        example = f"tpu:{version}:{'x'.join('4' * dimensions)}"
        raise TargetError(
            f"'{text}' has {_dimensions(len(shape))}, a slice of {version} has {dimensions}, as in {example}"
        )
    return Target("tpu", version, shape, int(parts[2]) if len(parts) == 3 else 1)


def _cuda(text: str, parts: list[str]) -> Target:
    if len(parts) != 2 or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", parts[0]):
        raise _malformed("cuda", text)
    shape = _shape("cuda", text, parts[1])
    if len(shape) != 3:
        raise _malformed("cuda", text)
    return Target("cuda", parts[0], shape)


def _shape(platform: str, text: str, part: str) -> tuple[int, ...]:
    if not re.fullmatch(rf"{_NUMBER}(?:x{_NUMBER})*", part):
        raise _malformed(platform, text)
    return tuple(map(int, part.split("x")))


def _dimensions(count: int) -> str:
    return f"{count} dimension{'s' * (count != 1)}"


def _malformed(platform: str, text: str) -> TargetError:
    return TargetError(f"'{text}' is not {_FORMS[platform]}, such as {_EXAMPLES[platform]}")
