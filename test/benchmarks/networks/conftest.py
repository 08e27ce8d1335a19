# SPDX-License-Identifier: Apache-2.0
"""Makes P²'s formalism of the placement tests available."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "synthesis" / "placement"))
