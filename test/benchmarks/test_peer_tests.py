# SPDX-License-Identifier: Apache-2.0
"""Other projects' tests: the parts of their files, the outcome of each part, and the counts."""

import subprocess
import sys

import pytest

from benchmarks import peer_tests
from benchmarks.peer_tests import Part, Worker, as_text, parts_in

NOTHING = "func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }\n"
UNEVEN = """sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<6xf32> {
  return %a : tensor<6xf32>
}
"""
EDGE = 'sdy.mesh @mesh = <["x"=4]>\n' + NOTHING.replace(
    "return %a", "%0 = sdy.data_flow_edge %a : tensor<8xf32>\nreturn %0"
)


def test_files_are_split_at_the_marker_and_empty_parts_are_left_out(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.mlir").write_text(f"{NOTHING}\n// -----\n\n// -----\n{UNEVEN}")
    (tmp_path / "a.mlir").write_text(NOTHING)
    (tmp_path / "a.txt").write_text(NOTHING)
    names = [part.name.removeprefix(f"{tmp_path}/") for part in parts_in([tmp_path])]
    assert names == ["a.mlir#1", "inner/b.mlir#1", "inner/b.mlir#3"]


@pytest.mark.parametrize("form", ["local", "html"])
@pytest.mark.parametrize(
    "text, kind", [(NOTHING, "nothing to do"), (UNEVEN, "refused"), ("func.func", "diagnosed"), (EDGE, "left")]
)
def test_what_becomes_of_a_part_is_told(form, text, kind, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", "off")
    if (form, kind) == ("local", "left"):
        kind = "refused"  # the form `local` writes the whole module or refuses it
    assert peer_tests._answer({"text": text, "form": form, "check": False})["kind"] == kind


def test_an_output_that_is_no_module_or_another_one_is_invalid():
    other = NOTHING.replace("8xf32", "4xf32").encode()
    assert peer_tests._what_is_wrong(NOTHING.encode(), NOTHING.encode(), is_rewritten=False) == ""
    assert peer_tests._what_is_wrong(NOTHING.encode(), other, is_rewritten=True) == ""
    assert "another module was written" in peer_tests._what_is_wrong(NOTHING.encode(), other, is_rewritten=False)
    assert "MLIR refuses" in peer_tests._what_is_wrong(NOTHING.encode(), b"func.func", is_rewritten=True)


@pytest.mark.parametrize(
    "program, kind", [("import os; input(); os.abort()", "death"), ("import time; input(); time.sleep(60)", "late")]
)
def test_a_worker_that_ends_or_hangs_is_replaced(program, kind, monkeypatch):
    def started(self):
        return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(Worker, "_started", started)
    worker = Worker(limit_s=0.5 if kind == "late" else 30)
    assert [worker.ask({})["kind"] for _ in range(2)] == [kind, kind]


def test_what_must_not_be_is_listed_with_its_place():
    answers = {
        ("a.mlir#1", "default"): {"kind": "death", "message": "SIGSEGV"},
        ("a.mlir#2", "default"): {"kind": "left"},
        ("a.mlir#1", "local"): None,
        ("a.mlir#2", "local"): {"kind": "diagnosed"},
    }
    lines = as_text(answers, most=10).splitlines()
    assert "death                1      0" in lines
    assert "open                 0      1" in lines
    assert "  a.mlir#1 default: SIGSEGV" in lines


def test_a_part_is_known_by_its_text():
    assert Part("a.mlir#1", NOTHING).digest == Part("b.mlir#2", NOTHING).digest != Part("a.mlir#1", UNEVEN).digest
