# SPDX-License-Identifier: Apache-2.0
"""The compiled chains of all planners: the questions to each planner, the stored answers, and the counts."""

import dataclasses
import json

import pytest

from benchmarks import random_pairs
from benchmarks.conversions.compiled import NAMES, OURS, PEERS, Compiler, Found, tensor_type
from benchmarks.conversions.pairs import Pair
from benchmarks.conversions.pairs import random_pairs as drawn_pairs
from benchmarks.conversions.pairs_report import CONSTANTS, Row, as_curves, as_markdown, failings
from reshard.dialect_utils.compare import peers_dtensor
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

ISSUE = Pair(
    Mesh.parse("x=4,y=2"), (16, 16, 16), Sharding.parse('[{"y"}, {}, {"x"}]'), Sharding.parse('[{}, {"x","y"}, {}]')
)
WHO = OURS + PEERS
HERE = tuple(who for who in WHO if who != "dtensor" or peers_dtensor.is_installed())
SAID = Found("ok", "", "all_to_all", True, 100, 1, 1000, 2000, 50, 100, 64)


def a_row(ours: Found = SAID, **theirs) -> Row:
    """Returns a row in which all peers have the same outcome, except those in `theirs`."""
    return Row(ISSUE, "f32", {"ours": ours, **{who: theirs.get(who, SAID) for who in WHO[1:]}})


def broken(row: Row) -> list[str]:
    return [each.title for each in failings([row], WHO) if each.rows]


def but(**changes) -> Found:
    return dataclasses.replace(SAID, **changes)


# ---- modules that are compiled


@pytest.fixture(scope="module")
def issue() -> dict[str, Found]:
    with Compiler(8) as compiler:
        return {who: compiler.ask(who, ISSUE) for who in HERE}


def test_everybody_receives_what_the_theory_says(issue):
    bytes_received = {who: found.bytes_received for who, found in issue.items()}
    expected = {"ours": 1792, "fewest": 1792, "xla": 14336, "shardy": 2560, "dtensor": 2560, "paper": 2560}
    assert bytes_received == {who: expected[who] for who in HERE}
    assert [found.status for found in issue.values()] == ["ok"] * len(HERE)


def test_chains_are_compiled_and_torch_is_priced(issue):
    assert {who for who, found in issue.items() if found.is_compiled} == {*HERE} - {"dtensor"}
    assert all(found.peak_bytes >= found.temp_bytes > 0 for found in issue.values() if found.is_compiled)
    assert (issue["ours"].bound_bytes, issue["ours"].relayout_bytes) == (1792, 2 * 2048)


def test_lowered_chains_of_peers_move_what_their_steps_cost():
    from benchmarks.conversions.normal_form import normal_form
    from reshard.synthesis.programs import traffic
    from reshard.synthesis.programs.tile_program import collectives, lower

    with Compiler(8) as compiler:
        for pair in drawn_pairs(7, 6, (8,)):
            source, typed = normal_form(pair.mesh, pair.shape, pair.source, pair.target)
            moved = collectives(lower(pair.mesh, source, typed), 32)
            found = compiler.ask("paper", pair)
            assert found.is_compiled and found.bytes_received == traffic.bytes_received(moved, 8), str(pair)


def test_a_planner_that_crashes_is_an_answer(monkeypatch):
    monkeypatch.setattr("benchmarks.conversions.compiled.plan", lambda *_, **__: 1 // 0)
    with Compiler(8) as compiler:
        assert compiler.ask("ours", ISSUE) == Found("crash", "ZeroDivisionError: integer division or modulo by zero")


def test_a_peer_whose_process_dies_is_an_answer_and_the_next_is_asked_anew(monkeypatch):
    with Compiler(8) as compiler:
        assert compiler.ask("shardy", ISSUE).bytes_received == 2560
        (process,) = compiler._pool._processes.values()
        process.kill()
        process.join()
        assert compiler.ask("shardy", ISSUE).status == "abort"
        assert compiler.ask("shardy", ISSUE).bytes_received == 2560


def test_types_are_as_mlir_prints_them():
    assert tensor_type(ISSUE, "bf16") == "tensor<16x16x16xbf16>"


# ---- resuming


def counted(monkeypatch, most: int) -> list:
    """Returns the list of the questions that are asked; a Ctrl-C comes after `most` questions."""
    asked = []

    def ask(self, who, pair):
        if len(asked) == most:
            raise KeyboardInterrupt
        asked.append((who, str(pair)))
        return SAID

    monkeypatch.setattr(Compiler, "ask", ask)
    monkeypatch.setattr(peers_dtensor, "is_installed", lambda: False)
    return asked


def run(tmp_path, *flags: str) -> int:
    return random_pairs.main(["--devices", "4,6", "--count", "2", "--state", str(tmp_path), *flags])


def test_a_run_that_was_interrupted_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    first = counted(monkeypatch, most=6)
    assert run(tmp_path) == random_pairs.INTERRUPTED
    assert "stopped with 1 of 4 pairs answered" in capsys.readouterr().err
    rest = counted(monkeypatch, most=100)
    run(tmp_path)
    assert (len(first), len(rest)) == (6, 14) and not set(first) & set(rest)


def test_torch_that_is_not_there_is_said_in_a_line(tmp_path, monkeypatch, capsys):
    counted(monkeypatch, most=100)
    run(tmp_path)
    said = capsys.readouterr()
    assert "DTensor is left out: PyTorch is not installed here; run: pip install 'torch>=2.13'" in said.err.splitlines()
    assert "DTensor" not in said.out


def test_peers_may_be_chosen(tmp_path, monkeypatch, capsys):
    asked = counted(monkeypatch, most=100)
    run(tmp_path, "--peers", "xla,paper")
    assert {who for who, _ in asked} == {"ours", "fewest", "xla", "paper"} and "Shardy" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, "--peers", "paper")
    assert "--peers: xla has to be among them" in capsys.readouterr().err


def test_more_pairs_begin_with_the_same_and_a_new_planner_asks_us_again(tmp_path, monkeypatch):
    counted(monkeypatch, most=100)
    run(tmp_path)
    more = counted(monkeypatch, most=100)
    run(tmp_path, "--count", "3")
    assert len(more) == 10
    monkeypatch.setattr(random_pairs, "planner_version", lambda: "newer")
    again = counted(monkeypatch, most=100)
    run(tmp_path)
    assert {who for who, _ in again} == {"ours", "fewest", "shardy", "paper"}


def test_files_have_what_was_found(tmp_path, monkeypatch, capsys):
    counted(monkeypatch, most=100)
    names = {flag: tmp_path / f"{flag}.out" for flag in ("markdown", "out", "curves", "ratios")}
    assert run(tmp_path, *(word for flag, path in names.items() for word in (f"--{flag}", str(path)))) == 0
    assert "### Must be 0" in names["markdown"].read_text() and names["markdown"].read_text() in capsys.readouterr().out
    assert len(json.loads(names["out"].read_text())) == 4
    assert names["curves"].read_text().startswith("<svg") and '"reshard.curves/1"' in names["ratios"].read_text()


# ---- counts


@pytest.mark.parametrize(
    "row, titles",
    [
        (a_row(), []),
        (a_row(xla=but(bytes_received=99)), ["received bytes: above XLA"]),
        (a_row(xla=Found("abort"), paper=Found("unsupported")), []),
        (a_row(Found("no plan")), ["ours: refusals, crashes and what XLA does not compile"]),
        (a_row(but(temp_bytes=1064 + CONSTANTS)), []),
        (
            a_row(but(temp_bytes=1065 + CONSTANTS)),
            ["temporaries, ours: above XLA's and the copies around one of our collectives"],
        ),
        (
            a_row(fewest=but(temp_bytes=1065 + CONSTANTS)),
            ["temporaries, ours by bytes: above XLA's and the copies around one of our collectives"],
        ),
        (a_row(but(largest_tile_bytes=8193)), ["a tile of ours above source and target"]),
        (a_row(but(bytes_received=0), paper=but(bytes_received=0)), []),
    ],
)
def test_promises_are_counted(row, titles):
    assert broken(row) == titles


def test_tables_have_a_line_per_device_count_and_all_peers():
    text = as_markdown([a_row(xla=but(bytes_received=250, temp_bytes=4000)), a_row(xla=Found("abort"))], WHO, show=1)
    assert (
        "| devices | pairs | have to move | ours ÷ bound: geomean, max | ours by bytes ÷ bound: geomean, max | XLA | "
        "Shardy | DTensor | normal form | " in text
    )
    assert "| 8 | 2 | 2 | 1.000, 1.00 | 1.000, 1.00 | 2.500, 2.50, 2.50 | 1.000, 1.00, 1.00 |" in text
    assert "| 8 | 2 | 0 | 0 | 1 abort | 0 | 0 | 0 | 0% |" in text
    assert "| 8 | 2 | 0.250, 0.25 | 0 | 0 | 0.250, 0.25 | 0 | 0 | 1.000, 1.00, 1.00 |" in text


def test_the_worst_are_listed_with_their_chains():
    text = as_markdown([a_row(xla=but(bytes_received=50))], WHO, show=1)
    assert (
        "received bytes: above XLA: 1\n\n    # 2.000  " in text
        and "#   ours 100, temporaries 1,000: all_to_all" in text
    )


def test_curves_are_sorted_and_by_devices_and_peers():
    rows = [a_row(xla=but(bytes_received=each)) for each in (300, 100, 200)] + [
        a_row(but(bound_bytes=0, bytes_received=0))
    ]
    by_devices, by_peer = as_curves(rows, WHO, "reshard 1").panels
    assert [(each.name, each.ratios) for each in by_devices.curves] == [("8 devices", (1.0, 2.0, 3.0))]
    assert [each.name for each in by_peer.curves] == [NAMES[who] for who in PEERS] and by_peer.title.endswith(
        "on 8 devices"
    )


def test_pairs_that_need_no_traffic_are_not_in_the_mean_and_who_moves_there_is_counted():
    still = but(bound_bytes=0, bytes_received=0)
    text = as_markdown(
        [a_row(xla=but(bytes_received=200)), a_row(still, fewest=still), a_row(still, xla=still)], WHO, show=1
    )
    assert "| 8 | 3 | 1 | 1.000, 1.00 | 1.000, 1.00 | 2.000, 2.00, 2.00 |" in text
    assert "| 2.000, 2.00, 2.00 | 1 |" in text
