# SPDX-License-Identifier: Apache-2.0
"""Diagnostics print in the form of compilers, and find their place in any kind of location."""

import pytest

from reshard.dialect_utils.ir import diagnostics
from reshard.dialect_utils.ir.diagnostics import ERROR, NOTE, REMARK, Collector, Diagnostic, Place, place_in, place_of
from reshard.dialect_utils.platform.bindings import ir, make_context


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def test_text_has_the_line_of_the_source_and_its_notes():
    found = Diagnostic(ERROR, "no plan", Place("a.mlir", 2, 3), (Diagnostic(NOTE, "declared here", Place("a.mlir")),))
    lines = found.text({"a.mlir": "first\nsecond\n"}).split("\n")
    assert lines[0] == "a.mlir:2:3: error: no plan"
    assert lines[1].endswith("second") and lines[2].rstrip().endswith("^")
    assert lines[1].index("second") + 2 == lines[2].index("^")
    assert lines[-1] == "a.mlir: note: declared here"


def test_a_place_is_in_the_named_file_where_mlir_knows_none():
    assert Diagnostic(ERROR, "x").in_file("in.mlir").place == Place("in.mlir")
    assert Diagnostic(ERROR, "x", Place("-", 4, 1)).in_file("in.mlir").place == Place("in.mlir", 4, 1)
    assert Diagnostic(ERROR, "x", Place("b.py", 4, 1)).in_file("in.mlir").place == Place("b.py", 4, 1)


@pytest.mark.parametrize(
    "location, expected",
    [
        ('"a.py":3:4', Place("a.py", 3, 4)),
        ('"name"("a.py":3:4)', Place("a.py", 3, 4)),
        ('callsite("/usr/lib/python3/site-packages/jax/b.py":1:1 at "mine.py":7:2)', Place("mine.py", 7, 2)),
        ("unknown", None),
    ],
)
def test_place_of_a_location_is_in_the_users_program(location, expected):
    module = ir.Module.parse(f"module {{}} loc({location})")
    assert place_of(module.operation) == expected


def test_a_checkout_of_reshard_is_no_users_program_but_what_lies_beside_it_is():
    seam = diagnostics.__file__.replace("diagnostics", "jax_seam")
    location = f'callsite("{seam}":2:1 at "{seam.partition("dialect_utils")[0]}examples/mine.py":7:2)'
    assert place_of(ir.Module.parse(f"module {{}} loc({location})").operation).file.endswith("examples/mine.py")


def test_place_in_takes_the_first_file_of_a_text():
    assert place_in('loc("a\\20b.py":3:4)') == Place("a b.py", 3, 4)
    assert place_in("loc(unknown)") is None


def test_a_collector_keeps_the_order():
    collector = Collector()
    collector.emit(Place("a.py", 1, 1), REMARK, "first")
    collector.emit(None, ERROR, "second", [diagnostics.note("why")])
    assert [each.message for each in collector.diagnostics] == ["first", "second"]
    assert [str(each) for each in collector.having(ERROR)] == ["error: second\nnote: why"]


def test_an_error_of_the_parser_keeps_its_place():
    with pytest.raises(ir.MLIRError) as caught:
        ir.Module.parse("module {\n  bad\n}")
    (found,) = diagnostics.from_mlir_error(caught.value)
    assert found.severity == ERROR and found.place is not None and found.place.line == 2
