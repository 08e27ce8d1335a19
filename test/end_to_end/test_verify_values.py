# SPDX-License-Identifier: Apache-2.0
"""`verify_values` works in every entry: optimize, jit, options, the environment and reshard-opt."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "docs" / "tiny.mlir"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path / "cache"))


def checks_of(**options) -> list[dict] | None:
    return (
        reshard.optimize(TINY.read_text(), policy="always", check=False, **options).report.to_dict().get("value_checks")
    )


@pytest.mark.slow
def test_what_was_asked_for_is_kept_with_the_result_and_asked_for_apart(monkeypatch):
    assert checks_of() is None
    (found,) = checks_of(verify_values=True)
    assert found["status"] == "equal" and found["seconds"] > 0
    assert checks_of(verify_values=True) == [found], "the time is the first one's: it was read"
    (small,) = checks_of(verify_values=True, verify_values_bytes="1KB")
    assert small["status"] == "not checked"
    monkeypatch.setenv("RESHARD_VERIFY_VALUES", "yes")
    assert checks_of() == [found]
    with reshard.options(verify_values=False):
        assert checks_of() is None


@pytest.mark.slow
def test_explain_runs_nothing_unless_it_is_asked_in_its_context(monkeypatch):
    monkeypatch.setenv("RESHARD_VERIFY_VALUES", "yes")
    with reshard.options(policy="always"):
        assert "value_checks" not in reshard.explain(TINY.read_text()).to_dict()


@pytest.mark.slow
def test_jit_runs_both_before_the_first_call():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    rows, columns = (NamedSharding(mesh, spec) for spec in (P("x", None), P(None, "x")))
    value = jax.device_put(jnp.arange(64.0).reshape(8, 8), rows)
    with reshard.enabled(policy="always", verify_values=True) as programs:
        jax.jit(lambda x: with_sharding_constraint(with_sharding_constraint(x * 2, rows), columns))(value)
    (checked,) = [each.report.to_dict()["value_checks"] for each in programs if each.is_rewritten]
    assert checked[0]["status"] == "equal"


@pytest.mark.slow
def test_reshard_opt_reports_the_check(tmp_path):
    report = tmp_path / "report.json"
    flags = [
        "--policy=always",
        "--verify-values",
        "--report=json",
        f"--report-file={report}",
        "-o",
        tmp_path / "out.mlir",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "reshard.tools.reshard_opt", TINY, *flags], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text())["value_checks"][0]["status"] == "equal"


def test_reshard_opt_refuses_what_is_no_size():
    flags = ["--verify-values-bytes", "many"]
    done = subprocess.run(
        [sys.executable, "-m", "reshard.tools.reshard_opt", TINY, *flags], capture_output=True, text=True
    )
    assert done.returncode == 2 and "'many' is no number of bytes; write 2GiB, 512MB or 4096" in done.stderr
