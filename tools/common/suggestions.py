# SPDX-License-Identifier: Apache-2.0
"""Suggestions for a word that a command line does not know."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence


class SuggestingParser(argparse.ArgumentParser):
    """A parser whose errors name the command, value or flag that is closest to the given one.

    State: `_given` is the command line that is parsed; errors look in it for unknown flags.
    """

    def parse_known_args(self, args=None, namespace=None):
        self._given = () if args is None else tuple(args)
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += meant(str(value), map(str, action.choices or ()))
            raise

    def suggestion(self, message: str) -> str:
        """Returns text for the end of an error about flags: the known flag that is close to an unknown one.

        The first unknown flag that has a close one counts; the text is empty if there is none.
        """
        known = _flags_of(self, self._given)
        for word in self._given:
            name = word.partition("=")[0]
            if name.startswith("--") and len(name) > 2 and name not in known and (text := meant(name, known)):
                return text if name in message else f"{text[:-1]} instead of {name}?"
        return ""


def meant(word: str, known: Iterable[str]) -> str:
    """Returns a question for the end of an error; empty if no known word is close.

    Leading dashes are not compared.

    Example:
      >>> meant("paln", ["plan", "explain"])
      '; did you mean plan?'
    """
    import difflib

    names = {each.lstrip("-"): each for each in known}
    close = difflib.get_close_matches(word.lstrip("-"), list(names), n=1)
    return f"; did you mean {names[close[0]]}?" if close else ""


def _flags_of(parser: argparse.ArgumentParser, given: Sequence[str]) -> list[str]:
    """Returns the flags of a parser, and the flags of the subcommands that the command line names."""
    flags = list(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            flags += [
                flag for name, each in action.choices.items() if name in given for flag in each._option_string_actions
            ]
    return flags
