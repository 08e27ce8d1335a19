# SPDX-License-Identifier: Apache-2.0
"""The fuzzer's files import each other by name, as they do when they are run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
