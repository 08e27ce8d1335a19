# SPDX-License-Identifier: Apache-2.0
"""`reshard.traffic` of functions, lowered programs, exported ones and modules."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from examples.more_programs import MORE_PROGRAMS
from reshard.pictures.ledger_page import page_of


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])


@pytest.fixture(scope="module")
def program(mesh):
    """A function with a site that is rewritten by policy always, and its argument."""

    def step(a):
        a = jax.lax.with_sharding_constraint(a, NamedSharding(mesh, P(None, "y")))
        return jax.lax.optimization_barrier(a)

    return step, jax.device_put(np.ones((64, 64), np.float32), NamedSharding(mesh, P("y", None)))


def test_functions_lowered_and_exported_programs_have_the_same_stock_ledger(program):
    step, a = program
    jitted = jax.jit(step)
    programs = (jitted.lower(a), jax.export.export(jitted)(a), jitted.lower(a).as_text())
    found = [reshard.traffic(step, a, with_ours=False), reshard.traffic(jitted, a, with_ours=False)]
    found += [reshard.traffic(each, with_ours=False) for each in programs]
    assert len({(each.stock.bytes_received, len(each.stock.entries)) for each in found}) == 1
    assert found[0].stock.bytes_received > 0 and found[0].ours is None and found[0].report is None


def test_lines_are_those_of_the_function(program):
    step, a = program
    (entry,) = reshard.traffic(step, a, with_ours=False).stock.entries
    line = step.__code__.co_firstlineno + 1
    assert entry.place.partition(":")[2].startswith(f"{line}:") and entry.place.partition(":")[0] in __file__


def test_ours_names_the_site_of_each_step(program):
    step, a = program
    with reshard.options(policy="always", check=False):
        found = reshard.traffic(step, a, topology="h100:2x4")
    assert found.ours is not None and found.report is not None
    assert {entry.cause.kind for entry in found.ours.entries} == {"planned chain"}
    assert {entry.cause.site for entry in found.ours.entries} == {0}
    assert "ours, the longest first" in found.text() and "site 0: all_to_all" in found.text()
    assert found.to_dict()["topology"] == "h100:2x4, 2 node x 4 gpu"


def test_arguments_of_what_is_no_function_are_refused(program):
    step, a = program
    with pytest.raises(TypeError, match="arguments of a function only"):
        reshard.traffic(jax.jit(step).lower(a), a)
    with pytest.raises(TypeError, match="traffic takes what jax.jit"):
        reshard.traffic(7)


def test_the_page_escapes_every_name_and_sorts_by_numbers(program):
    step, a = program
    data = reshard.traffic(step, a, with_ours=False).to_dict()
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    row = {**data["stock"]["collectives"][0], "location": evil, "why": evil, "tile": evil, "location_chain": [evil]}
    data = {**data, "module": evil, "stock": {**data["stock"], "collectives": [row]}}
    page = page_of(data)
    assert "<img" not in page and page.count("<script") == 2
    assert f'data-v="{row["bytes_received"]}"' in page


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in MORE_PROGRAMS])
def test_the_causes_of_further_programs_are_known(name):
    lowered = next(each for each in MORE_PROGRAMS if each.name == name).lower("small")
    found = reshard.traffic(lowered, with_ours=False).stock
    assert found.entries and found.explained_bytes >= 0.95 * found.entry_bytes


def test_a_file_of_the_same_name_as_the_module_is_not_read_in_its_place(tmp_path, monkeypatch):
    text = "func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }"
    (tmp_path / "module").write_text(text.replace("@main", "@other"))
    monkeypatch.chdir(tmp_path)
    assert reshard.traffic(text, with_ours=False).stock.compiled.is_ok
