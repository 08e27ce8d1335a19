# SPDX-License-Identifier: Apache-2.0
"""Parsers for flags that several benchmarks have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from reshard.dialect_utils.xla.compile_targets import Target, TargetError


def device_counts(text: str) -> tuple[int, ...]:
    """Returns the numbers of devices in a text such as `8,12`. Raises: argparse.ArgumentTypeError."""
    if not all(part.isdecimal() and int(part) > 1 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f'"{text}" are no numbers of devices; write e.g. 8,12')
    return tuple(int(part) for part in text.split(","))


def among(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Returns a parser of known words, such as `bytes,time`, that raises argparse.ArgumentTypeError for other words."""

    def words(text: str) -> tuple[str, ...]:
        for word in text.split(","):
            if word not in known:
                raise argparse.ArgumentTypeError(f'unknown "{word}"; known: {", ".join(known)}')
        return tuple(text.split(","))

    return words


def target(text: str) -> Target:
    """Returns the target that a text such as `tpu:v5e:2x4` names. Raises: argparse.ArgumentTypeError."""
    try:
        return Target.parse(text)
    except TargetError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def targets(text: str) -> list[Target]:
    """Returns the targets that a text such as `tpu:v5e:2x4,tpu:v5e:4x4` names. Raises: argparse.ArgumentTypeError."""
    return list(map(target, text.split(",")))
