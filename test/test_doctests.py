# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings run."""

import doctest
import importlib
from pathlib import Path

import pytest

import reshard

_PHASES = ("synthesis", "dialect_utils", "passes", "tools", "reshard")


def _modules() -> list[str]:
    root = Path(__file__).resolve().parent.parent
    names = []
    for phase in _PHASES:
        for path in sorted((root / phase).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts if phase == "reshard" else ("reshard", *parts))
            if path.name != "__main__.py":
                names.append(name.removesuffix(".__init__"))
    return names


@pytest.mark.parametrize("name", _modules())
def test_examples_of(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_every_public_name_is_listed():
    assert set(reshard.__all__) <= set(dir(reshard))


@pytest.mark.parametrize("name", reshard.__all__)
def test_every_public_name_resolves(name):
    assert getattr(reshard, name) is not None
