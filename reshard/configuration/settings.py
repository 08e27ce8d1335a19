# SPDX-License-Identifier: Apache-2.0
"""Options of the JAX entries, from four places: the call, `reshard.options`, `RESHARD_*` variables, a TOML file.

The first place that names an option wins. The file is the one that RESHARD_CONFIG names, else `reshard.toml` in the
current directory, if there is one. It has options at the top level:

    policy = "always"
    check = false
    dump_to = "/tmp/reshard"
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard.passes.results.checks import MOST_VALUE_BYTES, effort_of
from reshard.planning.byte_sizes import byte_size, limit_text

CONFIG_VARIABLE = "RESHARD_CONFIG"
CONFIG_FILE = "reshard.toml"


class SettingError(ValueError):
    """An option around a call is wrong, in the environment or a file, or contradicts another one.

    The message is one line for the user.
    """


@dataclass(frozen=True, slots=True)
class Setting:
    """One option.

    Attributes:
      default: the default value. If it is a bool, the option is a switch, else text.
      choices: returns the allowed texts; empty if any text is allowed.
      check: raises ValueError for a text that is not allowed.
      normalized: returns the text for a value that need not be text; None if only text is allowed. Raises ValueError.
    """

    name: str
    default: str | bool | None
    help: str
    choices: Callable[[], tuple[str, ...]] = tuple
    check: Callable[[str], Any] = str
    normalized: Callable[[Any], str] | None = None

    @property
    def variable(self) -> str:
        """Returns the name of the environment variable that sets this option."""
        return f"RESHARD_{self.name.upper()}"

    def read(self, value: Any, place: str) -> str | bool | None:
        """Returns a value of this option as the program uses it.

        Raises: ValueError in one line that begins with the place.
        """
        if isinstance(self.default, bool):
            return _read_switch(self.name, value, place)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if type(value) is int and self.check in (limit_text, byte_size, effort_of):
            value = str(value)
        try:
            value = value if self.normalized is None else self.normalized(value)
        except ValueError as error:
            raise ValueError(f"{place}{self.name}: {error}") from None
        if not isinstance(value, str):
            raise ValueError(f"{place}{self.name}={value!r} is no text")
        choices = self.choices()
        if choices and value not in choices:
            raise ValueError(f"{place}{self.name}={value} is not available; choose from {', '.join(choices)}")
        try:
            self.check(value)
        except ValueError as error:
            raise ValueError(f"{place}{self.name}: {error}") from None
        return value


_SWITCH = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}


def _read_switch(name: str, value: Any, place: str) -> bool:
    if isinstance(value, bool):
        return value
    found = _SWITCH.get(str(value).lower())
    if found is None:
        raise ValueError(f"{place}{name}={value} is neither true nor false")
    return found


def _choices_of(option: str) -> tuple[str, ...]:
    """Returns the values that an option of the pass plan-sites may have."""
    from reshard.passes.driver.registry import load

    return next(each.choices for each in load("plan-sites").options() if each.name == option)


def _topology(value: Any) -> str:
    from reshard.passes.sites.network import option_text  # loads numpy
    from reshard.synthesis.network.topology import Topology

    if not isinstance(value, str | Topology):
        raise ValueError(
            f"{value!r} is no topology; write a preset such as 'h100:4', the path of a file, or a Topology"
        )
    return option_text(value)


def _text_of_target(value: Any) -> Any:
    from reshard.dialect_utils.xla.compile_targets import Target

    return str(value) if isinstance(value, Target) else value


def _target(text: str) -> None:
    from reshard.dialect_utils.xla.compile_targets import Target, TargetError, missing_compiler

    if missing := missing_compiler(Target.parse(text)):
        raise TargetError(missing)
    _tell_unheard_flags(text)


@functools.cache
def _tell_unheard_flags(text: str) -> None:
    """Says once for a target which flags do not reach its compiler."""
    from reshard.dialect_utils.xla.compile_targets import Target, unheard_flags

    if unheard := unheard_flags(Target.parse(text)):
        logging.getLogger("reshard.options").warning("compile_for: %s", unheard)


def _emissions() -> tuple[str, ...]:
    from reshard.passes.driver.registry import EMISSIONS

    return tuple(EMISSIONS)


def _layouts() -> tuple[str, ...]:
    from reshard.passes.driver.registry import CHOSEN, GIVEN

    return GIVEN, CHOSEN


_ORACLE = "how the costs of stock XLA are found: `lone` compiles each site, or its op, on its own"
_PROGRESS = "show progress on stderr when work takes longer than two seconds: on a terminal, always, or never"
_TRAFFIC = "list the longest collectives of both programs in reports: those of `reshard.optimize`, all, or none"
_MODES = ("auto", "on", "off")
_LEVELS = ("debug", "info", "warning", "error")

SETTINGS: dict[str, Setting] = {
    each.name: each
    for each in (
        Setting(
            "policy",
            "better",
            "rewrite what makes the module faster (better), what is worse in no cost (strict), or every site (always)",
            functools.partial(_choices_of, "policy"),
        ),
        Setting("oracle", "lone", _ORACLE, functools.partial(_choices_of, "oracle")),
        Setting("emit", "auto", "the form in which rewritten sites are written", _emissions),
        Setting(
            "topology",
            None,
            "the network that decisions are for: a preset, a TOML file or a `Topology`; by default that of the devices",
            normalized=_topology,
        ),
        Setting(
            "memory_limit",
            None,
            "the most memory of the module, and of each plan, per device, or `device` for all that a device has; by "
            "default that of stock XLA",
            check=limit_text,
        ),
        Setting(
            "effort", "1", "how long to search for the best set of sites: so many times 8 compilations", check=effort_of
        ),
        Setting(
            "layouts",
            "given",
            "layouts between arguments and results: those of propagation (given), or better ones where they make the "
            "module clearly faster (chosen)",
            _layouts,
        ),
        Setting(
            "compile_for",
            None,
            "the target whose compiler decides between the forms of the module, such as `tpu:v5e:2x4`; it need not be "
            "there",
            check=_target,
            normalized=_text_of_target,
        ),
        Setting(
            "at_hand",
            True,
            "ask the compiler of the TPUs of the program about a few forms of it, where `compile_for` names no target",
        ),
        Setting("check", True, "compile the whole module before and after, and choose the sites that make it faster"),
        Setting(
            "verify_values", False, "run both modules on small random inputs, and take back rewrites that change values"
        ),
        Setting(
            "verify_values_bytes",
            f"{MOST_VALUE_BYTES >> 20}MiB",
            "run no module that needs more memory, on all devices together",
            check=byte_size,
        ),
        Setting("traffic", "auto", _TRAFFIC, lambda: _MODES),
        Setting("dump_to", None, "the folder to which each module is written, before and after, with its report"),
        Setting(
            "logging_level",
            None,
            "the lowest level of messages that the loggers `reshard.*` write to stderr",
            lambda: _LEVELS,
        ),
        Setting("progress", "auto", _PROGRESS, lambda: _MODES),
    )
}


def validated(options: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Returns the options with their values checked and read, as the program uses them.

    Args:
      place: the beginning of the error message, such as "reshard.toml: ".
    Raises: ValueError for an unknown option or value, in one line.

    Example:
      >>> validated({"check": "off"})
      {'check': False}
    """
    for name in options:
        if name not in SETTINGS:
            close = difflib.get_close_matches(name, SETTINGS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{place}unknown option {name!r}; known: {', '.join(SETTINGS)}{hint}")
    return {name: SETTINGS[name].read(value, place) for name, value in options.items()}


def resolved(call: Mapping[str, Any] = {}, context: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Returns all options, each from the first place that names it: call, context, environment, file, default.

    Raises: ValueError for an unknown option or value with its place; SettingError, which is one, for those of the
      environment and the file, and for a file that cannot be read.

    Example:
      >>> resolved({"policy": "always"}, {"policy": "better", "check": False})["policy"]
      'always'
    """
    named = [validated(call), validated(context, "reshard.options: "), *_around()]
    found: dict[str, Any] = {name: each.default for name, each in SETTINGS.items()}
    for options in reversed(named):
        found |= options
    _log_from(found["logging_level"])
    return found


def _around() -> list[dict[str, Any]]:
    """Returns the options of the environment and of the file. Raises: SettingError."""
    try:
        return [_from_environment(), _from_file()]
    except ValueError as error:
        raise SettingError(str(error)) from None


def _from_environment() -> dict[str, Any]:
    given = {each: os.environ.get(each.variable, "") for each in SETTINGS.values()}
    return {each.name: each.read(text, f"{each.variable}: ") for each, text in given.items() if text}


def _from_file() -> dict[str, Any]:
    named = os.environ.get(CONFIG_VARIABLE)
    path = Path(named or CONFIG_FILE)
    try:
        content = path.read_bytes()
    except OSError as error:
        if not named and isinstance(error, FileNotFoundError):
            return {}
        raise ValueError(f"{CONFIG_VARIABLE}: cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    return validated(_parsed(path, content), f"{path}: ")


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _log_from(level: str | None) -> None:
    """Sets the level of the loggers `reshard.*`; they write to stderr if the program has not set up logging."""
    if level is None:
        return
    logger = logging.getLogger("reshard")
    logger.setLevel(level.upper())
    has_output = logging.getLogger().handlers or any(
        not isinstance(each, logging.NullHandler) for each in logger.handlers
    )
    if not has_output:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
        logger.addHandler(handler)


logging.getLogger("reshard").addHandler(logging.NullHandler())
