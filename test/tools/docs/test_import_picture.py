# SPDX-License-Identifier: Apache-2.0
"""The picture of the import graph is up to date and complete, and shows imports that break the rules."""

import re

import pytest

from reshard.tools.docs import import_graph, import_picture, renew

SYNTHESIS_LAYOUTS, SYNTHESIS_PLANNER = ("synthesis", "layouts"), ("synthesis", "planner")


@pytest.fixture
def fresh():
    """Clears the cached results before and after a test that changes imports."""
    kept = (import_picture.edges, import_picture.drawn_edges)
    for function in kept:
        function.cache_clear()
    yield
    for function in kept:
        function.cache_clear()


def test_picture_is_up_to_date():
    assert (renew.ROOT / renew.IMPORTS).read_text() == import_picture.picture(), "run: python -m reshard.tools.docs"


def test_every_wing_is_a_box():
    boxes = re.findall(r'<text [^>]*font-size="13">([\w ]+)</text>', import_picture.picture())
    wings = [name for _, name in import_picture.wings_shown()]
    assert sorted(boxes) == sorted("own modules" if name == import_graph.OWN else name for name in wings)


def test_what_is_left_out_follows_from_what_is_drawn():
    reached = {wing: set() for wing in import_picture.wings_shown()}
    for wing in import_picture.wings_shown():
        for importer, imported in import_picture.drawn_edges():
            if importer == wing:
                reached[wing] |= {imported, *reached[imported]}
    left_out = import_picture.edges() - set(import_picture.forbidden_edges()) - set(import_picture.drawn_edges())
    assert left_out and all(imported in reached[importer] for importer, imported in left_out)


def test_every_import_that_is_drawn_leads_down():
    places = import_picture._Places(tuple(import_picture._buses()))
    for importer, imported in import_picture.drawn_edges():
        assert places.box(importer)[1] < places.box(imported)[1]


def test_an_import_that_points_up_is_red(monkeypatch, fresh):
    up = import_graph.Import(
        import_graph.Module(*SYNTHESIS_LAYOUTS, "mesh"), import_graph.Module(*SYNTHESIS_PLANNER, "entry"), 1
    )
    before = import_picture.picture().count(import_picture.FORBIDDEN)
    imports = (*import_graph.imports(), up)
    import_picture.edges.cache_clear()
    import_picture.drawn_edges.cache_clear()
    monkeypatch.setattr(import_graph, "imports", lambda: imports)
    assert (SYNTHESIS_LAYOUTS, SYNTHESIS_PLANNER) in import_picture.forbidden_edges()
    assert import_picture.picture().count(import_picture.FORBIDDEN) == before + 1
