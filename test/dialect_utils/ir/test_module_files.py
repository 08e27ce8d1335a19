# SPDX-License-Identifier: Apache-2.0
"""Files are told apart by their header, split at markers, and written in each form."""

import gzip

import pytest

from reshard.dialect_utils.ir import module_files
from reshard.dialect_utils.ir.diagnostics import DiagnosedError, Place
from reshard.dialect_utils.ir.module_files import SPLIT_MARKER, ModuleFile, to_bytes
from reshard.dialect_utils.platform.bindings import ir, make_context

_TEXT = b"""func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def parsed(file: ModuleFile, context: ir.Context) -> ir.Module:
    (chunk,) = file.chunks()
    return chunk.parse(context)


@pytest.mark.parametrize("form", [module_files.TEXT, module_files.BYTECODE, module_files.PORTABLE])
def test_each_form_is_recognized_and_holds_the_same_module(form):
    with make_context() as context:
        before = str(parsed(ModuleFile("-", _TEXT), context))
        written = ModuleFile("-", to_bytes(parsed(ModuleFile("-", _TEXT), context), form))
        assert written.form == form
        assert str(parsed(written, context)) == before


def test_hlo_is_recognized_behind_comments():
    assert ModuleFile("-", b"// a comment\nHloModule m\n").form == module_files.HLO


def test_chunks_keep_their_lines():
    file = ModuleFile("in.mlir", _TEXT + SPLIT_MARKER.encode() + b"\nmodule {\n  bad\n}\n")
    first, second = file.chunks(SPLIT_MARKER)
    assert (first.text.encode(), first.lines_above, second.lines_above) == (_TEXT, 0, 5)
    with make_context() as context, pytest.raises(DiagnosedError) as caught:
        second.parse(context)
    assert (caught.value.diagnostics[0].place.file, caught.value.diagnostics[0].place.line) == ("in.mlir", 7)


def test_lines_that_nearly_split_are_named():
    file = ModuleFile("in.mlir", b"// ----\n// -----\n// ------\n// text\n")
    assert file.near_markers(SPLIT_MARKER) == [Place("in.mlir", 1, 1), Place("in.mlir", 3, 1)]


def test_damaged_bytecode_is_a_diagnostic():
    with make_context() as context, pytest.raises(DiagnosedError):
        parsed(ModuleFile("-", b"ML\xefR\x06MLIR\x00damaged"), context)


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (gzip.compress(_TEXT), "this is a gzip file; unpack it first"),
        (b"\x89\x00\x01\x02", "this is binary, and no MLIR bytecode, portable artifact or jax.export file"),
        (__file__.encode() + b"\n", "this is the name of a file; pass what is in the file"),
        (b"no module", ""),
    ],
)
def test_what_is_no_module_is_told_from_a_mistake_in_one(content, hint):
    with make_context() as context, pytest.raises(DiagnosedError) as caught:
        parsed(ModuleFile("-", content), context)
    notes = [each.message for each in caught.value.diagnostics[0].notes]
    assert [hint] == notes[-1:] if hint else notes == []


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.mlir").write_text(" \n")
    with pytest.raises(DiagnosedError, match="the input is empty"):
        ModuleFile.read(str(tmp_path / "empty.mlir"))
