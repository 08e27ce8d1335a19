# SPDX-License-Identifier: Apache-2.0
"""Colourings of the edges of a bipartite multigraph: they say which pieces of an exchange share a round.

A bipartite multigraph has a proper colouring with as many colours as its largest degree (Koenig, 1916). It is found by
the shift from sender to receiver where that is proper, else edge by edge with alternating paths, or, for many edges, by
halving the graph over and over (Gabow, 1976).
"""

from __future__ import annotations

import numpy as np

MOST_EDGES_BY_PATHS = 1 << 12  # pieces of one shape up to this number are coloured one by one, more by halving
MOST_STUBS_PER_EDGE = 4  # halving adds stubs until all devices have equal degrees; with more it is slow


def by_number(numbers: np.ndarray) -> np.ndarray:
    """Returns the rows sorted by their numbers, which are at least 0; rows of equal numbers keep their order."""
    is_small = numbers.max(initial=0) < 1 << 16
    return np.argsort(numbers.astype(np.uint16) if is_small else numbers, kind="stable")  # sorts small ones by counting


def edge_colours(src: np.ndarray, dst: np.ndarray, elements: np.ndarray, are_alike: bool, devices: int) -> np.ndarray:
    """Returns a colour of each piece: pieces of one colour have different senders and different receivers.

    There are as many colours as the busiest device has pieces to send or to receive.

    Args:
      src, dst: the sender and the receiver of each piece.
      elements: the size of each piece; large pieces get their colours first, so that they share rounds.
      are_alike: whether all pieces have one shape; then many pieces are coloured by halving.
    """
    degree = int(max(np.bincount(src).max(), np.bincount(dst).max()))
    if degree == 1:
        return np.zeros(len(src), np.int64)
    for shift in ((dst - src) % devices, dst ^ src):
        number = np.cumsum(np.bincount(shift) > 0) - 1
        if number[-1] + 1 == degree and np.diff(np.sort(src * devices + dst)).all():  # each pair of devices once
            return number[shift]
    width = 1 << (degree - 1).bit_length()
    if MOST_EDGES_BY_PATHS < len(src) and width * devices <= MOST_STUBS_PER_EDGE * len(src) and are_alike:
        return _coloured_by_halves(src, dst, degree, width, devices)
    order = np.lexsort((dst, (dst - src) % devices, -elements))
    return _coloured_by_paths(src.tolist(), (dst + devices).tolist(), order.tolist(), degree, 2 * devices)


def _coloured_by_halves(src: np.ndarray, dst: np.ndarray, degree: int, width: int, devices: int) -> np.ndarray:
    """Returns a proper colouring with `degree` colours.

    The multigraph is filled up until every device sends and receives `width` pieces, a power of two. Then it is halved
    until each device sends and receives one piece. The rarest ones of these `width` colours are given up, and their
    edges are coloured by paths.
    """
    lacking = [width - np.bincount(end, minlength=devices) for end in (src, dst)]
    ends = [np.concatenate([end, np.repeat(np.arange(devices), more)]) for end, more in zip((src, dst), lacking)]
    by_end = [by_number(end).astype(np.int32) for end in ends]  # fewer than 2^31 pieces, and half the memory of int64
    colour, bit = np.zeros(len(ends[0]), np.int64), 1
    while bit < width:
        second = _second_half(*by_end)
        colour += bit * second
        by_end = [_first_half_first(order, second) for order in by_end]
        bit *= 2
    colour = colour[: len(src)]
    if degree == width:
        return colour
    kept = np.argsort(-np.bincount(colour, minlength=width), kind="stable")[:degree]
    number = np.full(width, -1)
    number[kept] = np.arange(degree)
    colour = number[colour]
    order = np.flatnonzero(colour < 0)
    return _coloured_by_paths(
        src.tolist(), (dst + devices).tolist(), order.tolist(), degree, 2 * devices, colour.tolist()
    )


def _first_half_first(order: np.ndarray, second: np.ndarray) -> np.ndarray:
    is_second = second[order]
    return np.concatenate([order[~is_second], order[is_second]])


def _second_half(*by_end: np.ndarray) -> np.ndarray:
    """Returns for each edge whether it is in the second half; each node has as many edges there as in the first half.

    Args:
      by_end: the edges in the order of their senders, and in the order of their receivers. Every node has an even
        number of edges, so each two in a row share a node. These pairs form cycles through both orders, and every other
        edge of a cycle is in the second half.
    """
    beside = []
    for order in by_end:
        other = np.empty_like(order)
        other[order[::2]], other[order[1::2]] = order[1::2], order[::2]
        beside.append(other)
    ahead = beside[1][beside[0]]  # the edge after the next one of the cycle
    # The least edge on the way to the edge `ahead`; in the end, among every other edge of the cycle.
    least = np.arange(len(ahead), dtype=ahead.dtype)
    while (further := np.minimum(least, least[ahead])).tobytes() != least.tobytes():
        least, ahead = further, ahead[ahead]
    return least > least[beside[0]]


def _coloured_by_paths(
    src: list[int], dst: list[int], order: list[int], degree: int, nodes: int, colour: list[int] | None = None
) -> np.ndarray:
    """Returns a proper colouring with `degree` colours. Each edge gets the lowest colour that is free at both ends.

    If no colour is free at both ends, one is made free: let a be free at the sender and b at the receiver. The path
    from the receiver whose edges have colours a, b, a, ... ends before it reaches the sender. After swapping a and b
    along this path, a is free at both ends.

    Args:
      order: the edges to colour, in this order.
      colour: the colours of the other edges, which may change along a path; None if `order` has all edges.
    """
    free = [(1 << degree) - 1] * nodes  # for each node, bits of the colours that none of its edges has
    edge_at: list[dict[int, int]] = [{} for _ in range(nodes)]
    colour = colour or [-1] * len(src)
    for edge, chosen in enumerate(colour):
        if chosen >= 0:
            edge_at[src[edge]][chosen] = edge_at[dst[edge]][chosen] = edge
            free[src[edge]] ^= 1 << chosen
            free[dst[edge]] ^= 1 << chosen
    for edge in order:
        sender, receiver = src[edge], dst[edge]
        common = free[sender] & free[receiver]
        if not common:
            a, b = _lowest(free[sender]), _lowest(free[receiver])
            _swap_along_path(receiver, a, b, src, dst, edge_at, free, colour)
            common = 1 << a
        bit = common & -common
        chosen = bit.bit_length() - 1
        colour[edge] = chosen
        edge_at[sender][chosen] = edge_at[receiver][chosen] = edge
        free[sender] ^= bit
        free[receiver] ^= bit
    return np.array(colour)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _swap_along_path(node: int, a: int, b: int, src, dst, edge_at, free, colour) -> None:
    """Swaps colours a and b along the path from `node` that begins with colour a."""
    path, wanted, at = [], a, node
    while wanted in edge_at[at]:
        edge = edge_at[at][wanted]
        path.append(edge)
        at = src[edge] + dst[edge] - at
        wanted = a + b - wanted
    for edge in path:
        del edge_at[src[edge]][colour[edge]], edge_at[dst[edge]][colour[edge]]
    for edge in path:
        colour[edge] = a + b - colour[edge]
        edge_at[src[edge]][colour[edge]] = edge_at[dst[edge]][colour[edge]] = edge
    for end in (node, at):  # the nodes between have both colours before and after
        free[end] ^= 1 << a | 1 << b
