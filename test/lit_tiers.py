# SPDX-License-Identifier: Apache-2.0
"""The test format of lit.cfg.py; it has its own module, since lit sends it to other processes."""

import re

import lit.formats

_REQUIRES_SLOW = re.compile(r"^//\s*REQUIRES:.*\bslow\b", re.MULTILINE)


class TieredShTest(lit.formats.ShTest):
    """Shell tests of one tier; `slow` leaves out the quick tests, so that both tiers together are `all`."""

    def __init__(self, tier: str):
        super().__init__(execute_external=False)
        self.tier = tier

    def getTestsInDirectory(self, suite, path_in_suite, lit_config, local_config):
        tests = super().getTestsInDirectory(suite, path_in_suite, lit_config, local_config)
        return [test for test in tests if self.tier in ("all", _tier(test.getSourcePath()))]


def _tier(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return "slow" if _REQUIRES_SLOW.search(file.read()) else "quick"
