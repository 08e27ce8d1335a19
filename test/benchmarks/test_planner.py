# SPDX-License-Identifier: Apache-2.0
"""The rows of the planner's benchmark; the measured numbers are not tested."""

import importlib.util
import random

import pytest

from benchmarks import planner
from benchmarks.conversions.pairs import random_pair
from benchmarks.planner import MANY_AXES, MANY_DEVICES, Run


def test_a_row_for_each_objective_with_and_without_exchange(capsys):
    planner.main(["--devices", "4", "--count", "3"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:4] for row in rows] == [
        ["4", objective, exchange, "3"] for objective in ("bytes", "time") for exchange in ("without", "with")
    ]
    assert all(float(row[4]) > 0 and int(row[-1]) > 0 for row in rows)


def test_a_row_ends_in_the_middle_of_a_plan_when_its_time_is_over(monkeypatch):
    def plan_without_end(*_, **__):
        while True:
            pass

    monkeypatch.setattr(planner, "plan", plan_without_end)
    found = Run(512, "time", True, "v5e", 1000, 0, 0.5).measured()
    assert found.is_cut and (len(found.new_s), found.done) == (1, 0)


def test_meshes_of_many_devices_have_five_axes():
    for pair in Run(MANY_DEVICES, "bytes", False, "uniform", 20, 0, 0.0).pairs():
        assert (pair.mesh.size, len(pair.mesh.axes)) == (MANY_DEVICES, MANY_AXES)
        assert min(size for _, size in pair.mesh.axes) > 1


def test_more_axes_than_prime_factors_are_refused():
    with pytest.raises(ValueError, match="3 axes need as many prime factors; there are 2"):
        random_pair(random.Random(0), 6, num_axes=3)


def test_a_profile_names_functions(capsys):
    planner.main(["--devices", "4", "--count", "1", "--profile"])
    assert "tottime" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch: pip install 'torch>=2.13'")
def test_dtensors_own_planner_has_a_row_where_torch_is_installed(capsys):
    planner.main(["--devices", "4", "--count", "3", "--objectives", "bytes", "--dtensor"])
    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")[1:-1]]
    assert row[:4] == ["4", "DTensor", "–", "3"] and float(row[4]) > 0 and row[8:12] == ["–", "0%", "–", "–"]
