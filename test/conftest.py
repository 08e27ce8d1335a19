# SPDX-License-Identifier: Apache-2.0
"""Tiers for pytest: `--tier quick` (default), `slow`, `device`, `tpu`, `cuda` or `all` (all but device).

Tests marked tpu or cuda compile ahead of time: they need that compiler, no device, and are skipped where it is not installed.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["RESHARD_PROGRESS"] = "off"  # on a busy machine anything takes long

_COMPILERS = {"tpu": "tpu:v5e:2x4", "cuda": "cuda:h100:1x1x8"}  # tier -> a target whose compiler it needs
_ALONE = ("quick", "slow", "device", *_COMPILERS)
_TIERS = {**{tier: {tier} for tier in _ALONE}, "all": {"quick", "slow", *_COMPILERS}}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tuple(_TIERS), default="quick", help="tests with that mark, or the others")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a few seconds")
    config.addinivalue_line("markers", "device: needs an accelerator")
    config.addinivalue_line("markers", "tpu: needs libtpu, but no TPU")
    config.addinivalue_line("markers", "cuda: needs jax's CUDA plug-in, but no GPU")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = _TIERS[config.getoption("--tier")]
    selected = [item for item in items if _tier(item) in wanted]
    config.hook.pytest_deselected(items=[item for item in items if _tier(item) not in wanted])
    items[:] = selected
    for item in selected:
        if _tier(item) in _COMPILERS and (missing := _missing_compiler(_tier(item))):
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture
def default_signals():
    """Ctrl-C, SIGTERM and SIGHUP as they are by default: in the background of a shell some are ignored."""
    default = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in default.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _tier(item: pytest.Item) -> str:
    return next((tier for tier in ("device", *_COMPILERS, "slow") if item.get_closest_marker(tier)), "quick")


def _missing_compiler(tier: str) -> str:
    from reshard.dialect_utils.compile_targets import Target, missing_compiler

    return missing_compiler(Target.parse(_COMPILERS[tier]))
