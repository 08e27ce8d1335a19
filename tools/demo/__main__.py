# SPDX-License-Identifier: Apache-2.0
"""Runs `python -m reshard.tools.demo`."""

import sys

from reshard.tools.demo.command import main

if __name__ == "__main__":
    sys.exit(main())
