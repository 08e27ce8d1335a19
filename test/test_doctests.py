# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings run."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import reshard

_PHASES = ("reshard", "reshard.pictures", "reshard.synthesis", "reshard.dialect_utils", "reshard.passes", "reshard.tools")


def _modules() -> list[str]:
    root = Path(__file__).resolve().parent.parent
    names = ["reshard"]
    for phase in _PHASES:
        folder = root / ("reshard/pictures" if phase == "reshard.pictures" else phase.split(".")[-1])
        names += [f"{phase}.{each.name}" for each in pkgutil.iter_modules([str(folder)])]
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
