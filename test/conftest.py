# SPDX-License-Identifier: Apache-2.0
"""Tiers for pytest: `--tier quick` (default), `slow`, `device`, `tpu`, `cuda` or `all` (all but device).

Of the cases of tests marked `draws`, which are random and many, one in four runs, of slow ones one in 40. A test that
says how many examples hypothesis draws gets a fourth of them, a slow one an eighth. With `--every-draw` all run. With
`--slow-turn 1/3` a third of the slow tests runs, with `2/3` and `3/3` the others.

Tests marked tpu or cuda compile ahead of time. They need the compiler, but no device, and are skipped if the compiler
is not installed.
"""

import argparse
import functools
import os
import signal
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["RESHARD_PROGRESS"] = "off"  # on a busy machine even short work takes long enough for progress lines
# LLVM's optimisations take a large part of the time to compile small programs. They change no metric, and no value that
# a test looks at.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
CHEAP_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # for a child with stock XLA
)

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # so it is in the background of a script, where the child processes would ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

_COMPILERS = {"tpu": "tpu:v5e:2x4", "cuda": "cuda:h100:1x1x8"}  # tier -> a target whose compiler it needs
_ONE_DRAW_IN = {"quick": 4, "slow": 40}  # by tier
_ONE_EXAMPLE_IN = {"quick": 4, "slow": 8}
hypothesis.settings.register_profile("some", max_examples=30, deadline=None)  # of tests that do not say how many
_ALONE = ("quick", "slow", "device", *_COMPILERS)
_TIERS = {**{tier: {tier} for tier in _ALONE}, "all": {"quick", "slow", *_COMPILERS}}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tuple(_TIERS), default="quick", help="tests with that mark, or the others")
    parser.addoption("--one-case-in", type=int, default=1, help="one in so many cases of each test that has some")
    parser.addoption("--slow-turn", metavar="K/N", type=_turn, default=(1, 1), help="the K-th of N parts of slow tests")
    parser.addoption("--every-draw", action="store_true", help="all cases of tests that draw many")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--every-draw"):
        hypothesis.settings.load_profile("some")
    config.addinivalue_line("markers", "slow: takes more than a few seconds")
    config.addinivalue_line("markers", "mostly_slow: each fifth of its cases is quick, the others are slow")
    config.addinivalue_line("markers", "draws: its cases are random and many; some are enough for most purposes")
    config.addinivalue_line("markers", "device: needs an accelerator")
    config.addinivalue_line("markers", "tpu: needs libtpu, but no TPU")
    config.addinivalue_line("markers", "cuda: needs jax's CUDA plug-in, but no GPU")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in _left_out(items, "mostly_slow", 5):
        item.add_marker(pytest.mark.slow)
    wanted = _TIERS[config.getoption("--tier")]
    selected = [item for item in items if _tier(item) in wanted]
    if not config.getoption("--every-draw"):
        left_out = set().union(
            *(
                _left_out([item for item in selected if _tier(item) == tier], "draws", n)
                for tier, n in _ONE_DRAW_IN.items()
            )
        )
        selected = [item for item in selected if item not in left_out]
        _draw_fewer_examples(selected)
    repeated = _left_out([item for item in selected if "[" in item.nodeid], None, config.getoption("--one-case-in"))
    selected = [item for item in selected if item not in repeated]
    turn, turns = config.getoption("--slow-turn")
    selected = [item for item in selected if _tier(item) != "slow" or _turn_of(item, turns) == turn]
    config.hook.pytest_deselected(items=list({*items} - {*selected}))
    items[:] = selected
    for item in selected:
        if _tier(item) in _COMPILERS and (missing := _missing_compiler(_tier(item))):
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture
def default_signals():
    """Sets the default handlers of Ctrl-C, SIGTERM and SIGHUP, since a shell's background ignores some of them."""
    default = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in default.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def cheap_xla_children():
    """Makes children with stock XLA compile fast; their programs run slowly."""
    from reshard.dialect_utils.platform import compat

    stock = compat.cpu_devices_environment

    def cheap(num_devices: int) -> dict[str, str]:
        environment = stock(num_devices)
        return {**environment, "XLA_FLAGS": f"{environment['XLA_FLAGS']} {CHEAP_FLAGS}"}

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(compat, "cpu_devices_environment", cheap)
        yield


@pytest.fixture(scope="session")
def lasting_xla_children():
    """Returns a function from a cache directory, or None, to the one child with this cache.

    The child stays alive after the command that uses it.
    """
    from reshard.dialect_utils.xla.child import XlaChild

    class LastingXlaChild(XlaChild):
        def __exit__(self, *exception) -> None:
            pass

    return functools.cache(lambda cache_dir: LastingXlaChild(cache_dir=cache_dir, uses_cache=cache_dir is not None))


@pytest.fixture
def lasting_xla_child(lasting_xla_children, monkeypatch):
    """Gives all commands in this process the same child with stock XLA, since the start of a child takes long."""
    from reshard.dialect_utils.xla import child as xla_child
    from reshard.synthesis.common import store as cache_place

    def child(*, uses_cache: bool = True, num_devices: int = 0):
        return lasting_xla_children(cache_place.cache_root() if uses_cache and cache_place.is_on() else None)

    monkeypatch.setattr(xla_child, "XlaChild", child)


def _turn(text: str) -> tuple[int, int]:
    turn, _, turns = text.partition("/")
    if not (turn.isdecimal() and turns.isdecimal() and 1 <= int(turn) <= int(turns)):
        raise argparse.ArgumentTypeError(f"'{text}' is no part such as 1/3")
    return int(turn), int(turns)


def _turn_of(item: pytest.Item, turns: int) -> int:
    """Returns in which of so many turns a test runs."""
    return zlib.crc32(item.nodeid.encode()) % turns + 1


def _tier(item: pytest.Item) -> str:
    return next((tier for tier in ("device", *_COMPILERS, "slow") if item.get_closest_marker(tier)), "quick")


def _left_out(items: Iterable[pytest.Item], marker: str | None, one_in: int) -> set[pytest.Item]:
    """Returns all but one in so many of the cases of each test that has a marker, the same in each run; of all tests
    for None."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if marker is None or item.get_closest_marker(marker):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    found: set[pytest.Item] = set()
    for some in cases.values():
        some.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        found.update(some[-(-len(some) // one_in) :])
    return found


def _draw_fewer_examples(items: Iterable[pytest.Item]) -> None:
    """Has tests that say how many examples hypothesis draws draw a part of them, no fewer than those that do not."""
    fewest = hypothesis.settings.default.max_examples
    for function, item in {item.function: item for item in items if isinstance(item, pytest.Function)}.items():
        if hypothesis.is_hypothesis_test(function):
            said = function._hypothesis_internal_use_settings
            few = max(said.max_examples // _ONE_EXAMPLE_IN.get(_tier(item), 1), fewest)
            if few < said.max_examples:
                function._hypothesis_internal_use_settings = hypothesis.settings(said, max_examples=few)


def _missing_compiler(tier: str) -> str:
    from reshard.dialect_utils.xla.compile_targets import Target, missing_compiler

    return missing_compiler(Target.parse(_COMPILERS[tier]))
