# SPDX-License-Identifier: Apache-2.0
"""The import graph keeps its rules: imports go one way, wings have private modules, and no folder is too full."""

import pytest

from reshard.tools.docs import import_graph
from reshard.tools.docs.import_graph import Import, Module


def test_every_import_follows_the_order_of_the_wings():
    assert list(import_graph.faults()) == []


def test_every_folder_with_modules_is_a_wing_in_the_order_of_its_package():
    folders = {(module.package, module.wing) for module in import_graph.modules()}
    listed = {(package, wing) for package, wings in import_graph.wings().items() for wing in wings}
    assert {each for each in folders if each[1] != import_graph.OWN} <= listed
    assert listed <= folders


def test_what_a_wing_exports_exists_and_is_sorted():
    for package, wings in import_graph.wings().items():
        for wing in wings:
            if wing != import_graph.OWN:
                names = import_graph.exported((package, wing))
                assert list(names) == sorted(names)
                assert {Module(package, wing, name) for name in names} <= set(import_graph.modules())


MESH, STEPS = Module("synthesis", "layouts", "mesh"), Module("synthesis", "programs", "steps")


@pytest.mark.parametrize(
    ("importer", "imported", "fault"),
    [
        (MESH, STEPS, "which is above it"),
        (MESH, Module("tools", ".", "reshard"), "which is above it"),
        (STEPS, Module("synthesis", "common", "no_such_module"), "does not export"),
    ],
)
def test_an_import_against_the_plan_is_a_fault(monkeypatch, importer, imported, fault):
    monkeypatch.setattr(import_graph, "imports", lambda: (Import(importer, imported, 1),))
    assert [each for each in import_graph.faults() if fault in each]


def test_a_circle_is_a_fault(monkeypatch):
    there_and_back = Import(MESH, STEPS, 1), Import(STEPS, MESH, 1)
    monkeypatch.setattr(import_graph, "imports", lambda: there_and_back)
    monkeypatch.setattr(import_graph, "_is_at_module_level", lambda each: True)
    assert [each for each in import_graph.faults() if each.startswith("a circle of imports")]


def test_a_folder_of_sixteen_modules_is_a_fault(monkeypatch):
    monkeypatch.setattr(import_graph, "MOST_FILES", 3)
    found = list(import_graph.faults())
    for folder in ("synthesis/layouts", "benchmarks/conversions", "test/end_to_end"):
        assert [each for each in found if each.startswith(f"{folder} has")]


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path, capsys):
    assert import_graph.main(["--svg", str(tmp_path / "missing" / "imports.svg")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: cannot write ") and "No such file or directory" in said
