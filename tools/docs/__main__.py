# SPDX-License-Identifier: Apache-2.0
"""Runs `python -m reshard.tools.docs`."""

import sys

from reshard.tools.docs.renew import main

if __name__ == "__main__":
    sys.exit(main())
