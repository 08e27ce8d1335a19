# SPDX-License-Identifier: Apache-2.0
"""Who gets which part of what kernels send.

*Places* are int32[2, n], one column for each round: the device that gets the part of the round, and its member number.
Rounds are the positions ahead, 1, ..., n - 1, and last the device itself.
"""

from __future__ import annotations

import numpy as np

from reshard.synthesis.overlap.rings import Rings

DEVICE, MEMBER = 0, 1  # rows of places


def places_of(rings: Rings, devices: int) -> np.ndarray:
    """Returns the places of every device, int32[devices, 2, n]; zeros on devices that are in no group.

    Example:
      >>> places_of(Rings(((0, 2), (1, 3)), (0, 1)), 4)[1].tolist()
      [[3, 1], [1, 0]]
    """
    found = np.zeros((devices, 2, rings.members), np.int32)
    for number, offset in enumerate((*range(1, rings.members), 0)):
        for source, target in rings.pairs(offset):
            found[source, DEVICE, number] = target
        found[list(rings.devices), MEMBER, number] = rings.members_at(offset)
    return found
