# SPDX-License-Identifier: Apache-2.0
"""What `auto` asks of `optimize`: a limit that somebody names, also around the call, or none at all."""

import reshard
from reshard.compiling.automatic import NO_LIMIT, _given
from reshard.passes.sites.network import UNKNOWN, SiteNetwork


def test_without_a_limit_memory_has_none():
    assert _given(SiteNetwork(UNKNOWN)) == {"memory_limit": NO_LIMIT}
    assert _given(SiteNetwork("v5e:2x4", 5))["memory_limit"] == 5


def test_a_limit_of_the_options_around_stays():
    with reshard.options(memory_limit="1GiB"):
        assert "memory_limit" not in _given(SiteNetwork("v5e:2x4"))
