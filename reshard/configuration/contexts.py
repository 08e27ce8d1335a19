# SPDX-License-Identifier: Apache-2.0
"""`reshard.options(...)`: options for the calls inside a `with` block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from reshard.configuration.settings import validated
from reshard.dialect_utils.platform import jax_seam


@dataclass(frozen=True, slots=True)
class Context:
    """The options of a thread, kept as a rewriter of `jax_seam` that leaves modules as they are.

    Attributes:
      options: (name, value) pairs of the options that the enclosing blocks set, sorted by name.
    """

    options: tuple[tuple[str, Any], ...] = ()

    def with_options(self, options: Mapping[str, Any]) -> Self:
        return replace(self, options=tuple(sorted({**dict(self.options), **options}.items())))

    def rewritten(self, module, devices, compile_options):
        return module


def current() -> Context:
    """Returns the options that hold in this thread."""
    return jax_seam.active().value or Context()


@contextlib.contextmanager
def options(**options: Any) -> Iterator[None]:
    """Sets options for the calls inside the `with` block, in this thread; inner blocks win over outer blocks.

    The options hold for `optimize`, `explain`, `jit` and `enabled`, except where a call names the same option itself. A
    function of `jax.jit` or `reshard.jit` that was compiled outside is compiled again when it is first called inside:
    jax keeps programs that were compiled under different options apart.

    Args:
      **options: options such as policy="always"; docs/jax.md has the list.
    Raises: ValueError if an option or its value is unknown.

    Example:
      >>> with options(policy="always"):
      ...     dict(current().options)
      {'policy': 'always'}
    """
    inside = current().with_options(validated(options))
    with jax_seam.active()(inside):
        yield
