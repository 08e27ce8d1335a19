# SPDX-License-Identifier: Apache-2.0
"""What holds for the calls inside a `with`: `reshard.options(...)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
from dataclasses import dataclass, replace
from typing import Any, Self

from reshard.dialect_utils import jax_seam
from reshard.settings import validated


@dataclass(frozen=True, slots=True)
class Context:
    """What holds in a thread: a rewriter of `jax_seam`, which leaves modules as they are.

    Attributes:
      options: (name, value) of those that were given around, sorted by name.
    """

    options: tuple[tuple[str, Any], ...] = ()

    def with_options(self, options: Mapping[str, Any]) -> Self:
        return replace(self, options=tuple(sorted({**dict(self.options), **options}.items())))

    def rewritten(self, module, devices, compile_options):
        return module


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
