# SPDX-License-Identifier: Apache-2.0
"""The atlas of programs that XLA partitions wrongly: its programs, its cases, and its texts about them."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.atlas import layouts, programs, reducing, report
from benchmarks.atlas.layouts import ARGUMENT, CONSTRAINT, Case
from reshard.dialect_utils.analysis import miscompilations
from reshard.dialect_utils.platform.bindings import ir, make_context

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = ROOT / "benchmarks" / "partitioner_atlas.py"
FAMILIES = sorted(programs.FAMILIES)


@pytest.mark.parametrize("at", range(len(FAMILIES)), ids=FAMILIES)
def test_programs_of_every_family_are_valid_on_one_device_and_in_layouts(at):
    with make_context() as context, ir.Location.unknown(context):
        for number in range(at, at + 3 * len(FAMILIES), len(FAMILIES)):
            program = programs.drawn(number)
            assert program.family == FAMILIES[at]
            assert ir.Module.parse(layouts.unsharded_text(program)).operation.verify()
            for seed in range(4):
                case = layouts.drawn(program, f"{number} {seed}")
                assert ir.Module.parse(layouts.text(program, case)).operation.verify()


def test_the_same_number_draws_the_same_case():
    first, again = (
        layouts.text(program, layouts.drawn(program, "7 3")) for program in (programs.drawn(7), programs.drawn(7))
    )
    assert first == again


def test_a_case_comes_back_from_json():
    case = layouts.drawn(programs.drawn(5), "5 0")
    assert Case.from_json(case.to_json()) == case


def test_cases_are_reduced_to_what_matters():
    """Only one fact matters in this case: x splits dimension 0 of the first operand."""
    program = programs.drawn(FAMILIES.index("scatter_rows"))
    case = Case(
        (("x", 2), ("y", 3)),
        (ARGUMENT, CONSTRAINT, layouts.ISLAND),
        ((("x",), ("y",)), ((), ()), ((), ())),
        ((("x",), ("y",)), (("y",), ()), (("x", "y"), ())),
        ((("x",), ()),),
    )
    found = reducing.reduced(program, case, lambda each: "x" in each.operands[0][0])
    assert found.operands == ((("x",), ()), ((), ()), ((), ()))
    assert found.results == (((), ()),)
    assert found.holds == (ARGUMENT, CONSTRAINT, CONSTRAINT)


def test_a_case_is_told_with_the_row_of_the_table_that_it_meets():
    number = next(n for n in range(0, 3000) if _is_minimum_of_ten(programs.drawn(n, ["scatter_rows"])))
    program = programs.drawn(number, ["scatter_rows"])
    nothing = ((), ())
    uneven = (("x",), ())
    case = Case((("x", 4),), (ARGUMENT,) * 3, (nothing,) * 3, (nothing, uneven, nothing), (nothing,))
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(layouts.unsharded_text(program))
        assert report.explanation(program, case, module) == "uneven scatter"
        even = Case((("x", 2),), (ARGUMENT,) * 3, (nothing,) * 3, (nothing, uneven, nothing), (nothing,))
        assert report.explanation(program, even, module) == ""


def _is_minimum_of_ten(program) -> bool:
    return "combiner=minimum" in program.traits and program.operands[1].shape[0] == 10


def test_an_unknown_family_is_a_usage_error():
    done = subprocess.run([sys.executable, COMMAND, "--families", "scater"], capture_output=True, text=True)
    assert done.returncode == 2 and "no family is called scater" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_command_runs_cases_and_goes_on_where_it_was(tmp_path):
    command = [sys.executable, COMMAND, "--cases", "20", "--families", "reverse,slice", "--journal", str(tmp_path)]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "20 cases" in first.stdout and "0 differences that the table does not explain" in first.stdout
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.stdout == first.stdout
    assert "programs: " not in again.stderr


def test_the_docs_have_every_row_of_the_table():
    page = (ROOT / "docs" / "miscompilations.md").read_text()
    for row in miscompilations.TABLE:
        assert row.name in page and row.condition in page, row.name
    assert report.SHARED in page
