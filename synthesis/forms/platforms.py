# SPDX-License-Identifier: Apache-2.0
"""Platforms, and the forms of a step that each platform's compiler handles best.

A step can be written in several forms that give the same tiles, bit for bit, with the same collectives over the same
groups. Plans are made and priced in the form that `tile_program.lower` writes, whose collectives work on the leading
axis; `in_place.for_platform` rewrites a program when it is emitted. `benchmarks/emission_forms.py` measures the forms.
"""

from __future__ import annotations

from dataclasses import dataclass

CPU, TPU, GPU = "cpu", "tpu", "gpu"
GLOO = "gloo"  # CPU devices of several processes, between which gloo carries the data
PLATFORMS = (CPU, TPU, GPU, GLOO)


_OF_COMPILERS = {"cuda": GPU, "gpu": GPU, "rocm": GPU, "tpu": TPU}


def platform_of(compiler: str) -> str:
    """Returns the one of `PLATFORMS` that a compile target or a backend of jax, such as "cuda", belongs to."""
    return _OF_COMPILERS.get(compiler, CPU)


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms in which steps are written for a platform.

    Attributes:
      is_in_place: whether collectives work on the axis where their digits lie, and transposes keep dimensions apart;
        else collectives work on the leading axis, with transposes of as few axes as possible around them.
      has_barriers: whether optimization barriers keep an all_to_all apart from what feeds it: see `island_barriers`.
      has_reduce_scatter: whether its library's reduce_scatter is right. That of gloo overwrites a part of the tile that
        it may still be sending, so over a slow link the receiver may get other data: see docs/miscompilations.md. There
        an all_to_all brings the parts together, which receives as many bytes, and each device sums its own.
      has_whole_tiles: whether sums are scattered in whole tiles of memory: see `whole_tiles`.
      has_operands_as_used: whether a product that is used transposed names its operands the other way round: see
        `transposed_products`.
      shrinks_before_loops: whether work that leaves less to hold through a loop is done before it: see `before_loops`.
      has_parts_side_by_side: whether parts of the last dimension are put together by one operation: see `side_by_side`.
    """

    is_in_place: bool
    has_barriers: bool
    has_reduce_scatter: bool = True
    has_whole_tiles: bool = False
    has_parts_side_by_side: bool = False
    has_operands_as_used: bool = False
    shrinks_before_loops: bool = False


FORMS = {
    CPU: Forms(is_in_place=False, has_barriers=True),
    TPU: Forms(
        is_in_place=True,
        has_barriers=False,
        has_whole_tiles=True,
        has_parts_side_by_side=True,
        has_operands_as_used=True,
        shrinks_before_loops=True,
    ),
    GPU: Forms(is_in_place=True, has_barriers=True),
    GLOO: Forms(is_in_place=False, has_barriers=True, has_reduce_scatter=False),
}
