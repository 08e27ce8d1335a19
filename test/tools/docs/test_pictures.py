# SPDX-License-Identifier: Apache-2.0
"""The pictures in the documentation are equal to newly drawn ones."""

from reshard.tools.docs import pictures


def test_drawings_of_the_documentation_are_up_to_date(capsys):
    assert pictures.main(["--check"]) == 0, capsys.readouterr().out


def test_an_old_drawing_is_named(monkeypatch, capsys):
    monkeypatch.setattr(
        pictures, "drawings", lambda: {"docs/pictures/site.svg": "another", "docs/pictures/no.svg": "new"}
    )
    assert pictures.main(["--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"docs/pictures/{name}.svg: is out of date; run: python -m reshard.tools.docs.pictures"
        for name in ("site", "no")
    ]
