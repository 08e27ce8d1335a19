# SPDX-License-Identifier: Apache-2.0
"""Tiers for pytest: `--tier quick` (default), `slow`, `device` or `all` (quick and slow)."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.setdefault("JAX_PLATFORMS", "cpu")

_TIERS = {"quick": {"quick"}, "slow": {"slow"}, "device": {"device"}, "all": {"quick", "slow"}}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tuple(_TIERS), default="quick", help="tests marked slow or device, or the others")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a few seconds")
    config.addinivalue_line("markers", "device: needs an accelerator")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = _TIERS[config.getoption("--tier")]
    selected = [item for item in items if _tier(item) in wanted]
    config.hook.pytest_deselected(items=[item for item in items if _tier(item) not in wanted])
    items[:] = selected


def _tier(item: pytest.Item) -> str:
    return next((tier for tier in ("device", "slow") if item.get_closest_marker(tier)), "quick")
