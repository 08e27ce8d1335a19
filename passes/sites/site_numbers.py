# SPDX-License-Identifier: Apache-2.0
"""The options of a pass that name sites by their numbers: those that alone are rewritten, and those that stay."""

from __future__ import annotations

from typing import Any

from reshard.passes.driver.base import OptionError, option


def only_option() -> Any:
    """Declares the option `only` of a pass that rewrites sites."""
    return option(
        "",
        "numbers of the sites that are rewritten whatever their verdicts are, if they can be, separated by '+'; the "
        "others are left to XLA",
    )


def leave_option() -> Any:
    """Declares the option `leave` of a pass that rewrites sites."""
    return option("", "numbers of sites that are left to XLA even if they are to be rewritten, separated by '+'")


class SiteNumbers:
    """The part of a pass that has the options `only` and `leave`. It stands before other parts among its bases."""

    name: str
    only: str
    leave: str

    def __post_init__(self) -> None:
        """Raises: OptionError for what is no number of a site."""
        super().__post_init__()  # type: ignore[misc]  # of the next base
        for name, text in (("leave", self.leave), ("only", self.only)):
            wrong = [number for number in text.split("+") if number and not number.isdecimal()]
            if wrong:
                said = f"has '{wrong[0]}', which is no site number; write {name}=0+3"
                raise OptionError(f"{self.name}: {name}={text} {said}")

    @property
    def numbers_only(self) -> frozenset[int]:
        """Returns the sites that alone are rewritten; empty if the option names none."""
        return _numbers(self.only)

    @property
    def numbers_left(self) -> frozenset[int]:
        """Returns the sites that are left to XLA in any case."""
        return _numbers(self.leave)


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(number) for number in text.split("+") if number)
