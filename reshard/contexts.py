# SPDX-License-Identifier: Apache-2.0
"""What holds for the calls inside a `with`: `reshard.options(...)`, and whether jax's own compilations are rewritten."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

from reshard.dialect_utils import jax_seam
from reshard.settings import validated


@dataclass(frozen=True, slots=True)
class Context:
    """What holds in a thread; equal ones share what jax compiled under them.

    Attributes:
      options: (name, value) of those that were given around, sorted by name.
      is_enabled: whether what jax compiles is rewritten.
      programs: where the records of these go.
    """

    options: tuple[tuple[str, Any], ...] = ()
    is_enabled: bool = False
    programs: list = field(default_factory=list, compare=False, repr=False)

    def with_options(self, options: dict[str, Any]) -> Context:
        return replace(self, options=tuple(sorted({**dict(self.options), **options}.items())))


def current() -> Context:
    """Returns what holds in this thread."""
    return jax_seam.active().value or Context()


@contextlib.contextmanager
def options(**options: Any) -> Iterator[None]:
    """Sets options for the calls inside the `with`, in this thread; inner ones win over outer ones.

    It holds for `optimize`, `explain`, `jit`, `enabled`, and not for a call that names the option itself. A function of
    `jax.jit` or `reshard.jit` that was compiled outside is compiled once more when it is first called inside: jax keeps what was
    compiled under other options apart.

    Args:
      **options: see docs/jax.md.
    Raises: ValueError for an unknown option or value.

    Example:
      >>> with options(policy="always"):
      ...     dict(current().options)
      {'policy': 'always'}
    """
    inside = current().with_options(validated(options))
    with jax_seam.active()(inside):
        yield
