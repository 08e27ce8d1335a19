# SPDX-License-Identifier: Apache-2.0
"""reshard-opt's files, exit codes and faults; the .mlir files beside this file test its output for modules."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reshard.configuration.settings import SETTINGS
from reshard.dialect_utils.ir import module_files
from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.platform.bindings import ir, make_context, stablehlo
from reshard.dialect_utils.xla import compile_targets
from reshard.passes import strip_findings
from reshard.passes.driver import registry
from reshard.passes.driver.base import Pass
from reshard.tools import reshard
from reshard.tools.opt.driver import _is_same
from reshard.tools.reshard_opt import main

ROOT = Path(__file__).resolve().parents[3]
NOTHING = "--pass-pipeline=builtin.module()"
CANONICALIZE = "--pass-pipeline=builtin.module(canonicalize)"
MODULE = """\
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %unused = stablehlo.add %a, %a : tensor<4xf32>
  return %a : tensor<4xf32>
}
"""


@pytest.fixture
def module(tmp_path) -> Path:
    path = tmp_path / "in.mlir"
    path.write_text(MODULE)
    return path


def run(*arguments) -> int:
    try:
        return main([str(each) for each in arguments])
    except SystemExit as end:
        return end.code


# ---- exit status 2: the command line


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--pass-pipeline=builtin.module(no-such-pass)"], "'no-such-pass' does not refer to a registered pass"),
        (["--pass-pipeline=builtin.module(canonicalize{foo=1})"], "no such option foo"),
        (["--pass-pipeline=builtin.module(canonicalize"], "missing ')' in pipeline"),
        (["--pass-pipeline=builtin.module(canonicalize,,cse)"], "empty pass name"),
        (
            ["--pass-pipeline=func.func(strip-findings)"],
            "'strip-findings' runs on builtin.module, not inside func.func",
        ),
        (["--pass-pipeline=reshard{a=1}"], "pipeline 'reshard' takes no options"),
        (["--strip-findings=depth=1"], "strip-findings has no option 'depth'; its options: none"),
        (["--strip-findings", CANONICALIZE], "cannot be combined"),
        (["--strip-findings", "--policy=always"], "no pass of builtin.module(strip-findings) has an option 'policy'"),
        (["--report=svg"], "invalid choice: 'svg'"),
        (["--report-file=x"], "--report-file needs --report"),
        (["--emit=local", "--policy=always"], "--policy=always decides nothing with --emit=local"),
        (["--report-file=x", "--report=json", "-o", "x"], "-o and --report-file both write x; choose two files"),
        (["--topology=h10"], 'unknown topology "h10"; did you mean h100'),
        (["--effort=0"], "'0' is no whole number of 1 or more"),
        (["--compile-for=cpu"], "'cpu' is not PLATFORM:DEVICES, such as cpu:8"),
        (["--compile-for=abacus:8"], "cannot compile for 'abacus'; available: cpu, tpu, cuda"),
        (["--compile-for=tpu:v9:4x4"], "'tpu:v9:4x4' names no TPU: 'v9' is none of v2, v3, v4, v5e, v5p, v6e, tpu7x"),
        (["--compile-for=tpu:v5p:4x4"], "'tpu:v5p:4x4' has 2 dimensions, a slice of v5p has 3, as in tpu:v5p:4x4x4"),
        (["--compile-for=tpu:v5e:4x4", "--emit=local"], "--emit=local compares nothing with stock XLA"),
        (["--verify-diagnostics=some"], "invalid choice: 'some'"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments, text, module, capfd):
    assert run(module, *arguments) == 2
    out, err = capfd.readouterr()
    assert out == "" and text in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("target", "package"),
    [("tpu:v5e:2x4", "pip install 'jax[tpu]=="), ("cuda:h100:1x1x8", "pip install 'jax[cuda13]==")],
)
def test_a_target_whose_compiler_is_missing_says_what_to_install(target, package, module, monkeypatch, capfd):
    monkeypatch.setattr(compile_targets, "_is_installed", lambda _: False)
    assert run(module, f"--compile-for={target}", "-o", "/dev/null") == 1
    out, err = capfd.readouterr()
    assert (
        out == ""
        and err.startswith(f"error: compiling for {target} needs ")
        and package in err
        and err.count("\n") == 1
    )
    assert run(module, f"--compile-for={target}", "--no-check", "-o", "/dev/null") == 0


PLACES = [
    (
        "find-mismatchs",
        "'find-mismatchs' does not refer to a registered pass or pass pipeline; did you mean 'find-mismatches'?",
        0,
    ),
    ("cse,func.func(csee)", "'csee' does not refer to a registered pass or pass pipeline; did you mean 'cse'?", 14),
    ("builtin.module(cse, xyzzy-q)", "a registered pass or pass pipeline; --list-passes names them", 20),
    ("cse,plan-sites{polcy=always}", "plan-sites has no option 'polcy'; its options: policy, oracle, topology", 15),
    (
        "plan-sites{oracle=lone policy=alwys}",
        "plan-sites: policy=alwys is not available; choose from better, strict, always",
        23,
    ),
    ("cse,func.func(canonicalize{foo=1})", "canonicalize: no such option foo; its options: ", 14),
    ("cse,canonicalize{top-down=maybe}", "failed to add `canonicalize` with options `top-down=maybe`", 4),
    ("sdy-insert-explicit-reshards", "did you intend to nest? Write func.func(sdy-insert-explicit-reshards)", 0),
    ("builtin.module(func.func(cse)", "missing ')' in pipeline", 14),
    ("cse,canonicalize{top-down=true", "missing '}' in pipeline", 16),
    ("cse,func.func(cse))", "unmatched ')' in pipeline", 18),
    ("cse canonicalize", "cannot read 'cse c' in the pipeline; a comma may be missing", 4),
    ("cse,,cse", "empty pass name in pipeline", 4),
    ("cse,=x", "'=' begins no pass name", 4),
    ("func.func(cse,find-mismatches)", "'find-mismatches' runs on builtin.module, not inside func.func(...)", 14),
    (
        "cse,builtin.module(reshard)",
        "'reshard' runs on the outermost builtin.module, not inside builtin.module(...)",
        19,
    ),
]


@pytest.mark.parametrize("pipeline, text, column", PLACES)
def test_an_error_of_a_pipeline_has_a_caret_at_its_place(pipeline, text, column, module, capfd):
    assert run(module, f"--pass-pipeline={pipeline}") == 2
    message, shown, caret = capfd.readouterr().err.splitlines()[-3:]
    assert text in message and (shown, caret) == (f"  {pipeline}", " " * (column + 2) + "^")


def test_of_a_long_pipeline_the_place_is_shown(module, capfd):
    assert run(module, f"--pass-pipeline={'cse,' * 200}csee{',cse' * 200}") == 2
    shown, caret = capfd.readouterr().err.splitlines()[-2:]
    assert len(shown) < 120 and shown[len(caret) - 1 :].startswith("csee,") and "cse,..." not in caret


@pytest.mark.parametrize(
    "flag, text",
    [
        ("--find-mismatchs", "unrecognized arguments: --find-mismatchs; did you mean --find-mismatches?"),
        ("--split-input-fil", "unrecognized arguments: --split-input-fil; did you mean --split-input-file?"),
        ("--mlir-print-ir-after=cse", "the IR cannot be printed around 'cse': builtin.module(import-gspmd,"),
        ("--mlir-print-ir-after-change", "--mlir-print-ir-after-change needs --mlir-print-ir-after-all"),
        ("--mlir-print-ir-module-scope", "needs --mlir-print-ir-before-all, -after-all or -after-failure"),
        ("--mlir-timing-display=pie", "invalid choice: 'pie'"),
        ("--verify-each=maybe", "'maybe' is neither true nor false"),
    ],
)
def test_a_wrong_flag_is_refused_with_what_was_meant(flag, text, module, capfd):
    assert run(module, flag) == 2
    assert text in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--pass-pipeline=builtin.module(func.func(cse))", "IN", "-o", "OUT"],
        ["-o", "OUT", "IN", "--pass-pipeline", "builtin.module(func.func(cse))"],
        ["-oOUT", "-pass-pipeline=cse", "IN"],
        ["-o=OUT", "-cse", "IN"],
        ["IN", "--cse", "--verify-each=0", "--mlir-timing=false", "-o", "OUT"],
        [
            "--cse",
            "-allow-unregistered-dialect=true",
            "IN",
            "-o",
            "OUT",
            "--canonicalize=max-iterations=3 top-down=false",
        ],
        ["--strip-findings", "--cse", "--cse", "IN", "-o", "OUT"],
    ],
)
def test_flags_come_in_any_order_and_in_the_spellings_of_mlir_opt(arguments, module, tmp_path):
    out = tmp_path / "out.mlir"
    assert run(*(each.replace("IN", str(module)).replace("OUT", str(out)) for each in arguments)) == 0
    assert "func.func @f" in out.read_text() and "stablehlo.add" not in out.read_text()


@pytest.mark.parametrize("tool, arguments", [(main, ["--help"]), (reshard.main, ["verify", "--help"])])
def test_help_says_what_each_oracle_is(tool, arguments, capsys):
    (oracle,) = (each for each in registry.load("plan-sites").options() if each.name == "oracle")
    with pytest.raises(SystemExit):
        tool(arguments)
    said = capsys.readouterr().out.rpartition("--oracle ")[2].partition("--emit ")[0]
    for words in (" ".join(said.split()), oracle.help, SETTINGS["oracle"].help):
        assert "stock XLA" in words and all(value in words for value in oracle.choices)


@pytest.mark.parametrize(
    "variable, flags, is_told", [("auto", [], True), ("off", [], False), ("auto", ["--no-progress"], False)]
)
def test_what_takes_long_is_told_on_stderr(variable, flags, is_told, module, monkeypatch, capfd):
    monkeypatch.setattr(progress, "QUIET_S", 0.01)
    monkeypatch.setenv("RESHARD_PROGRESS", variable)
    monkeypatch.setattr(strip_findings.StripFindingsPass, "run", lambda *_: time.sleep(0.2))
    assert run(module, "--strip-findings", *flags, "-o", os.devnull) == 0
    assert capfd.readouterr().err == (f"reshard-opt: {module}: strip-findings, 0 s\n" if is_told else "")


# ---- exit status 1: files


def test_a_missing_input(tmp_path, capfd):
    assert run(tmp_path / "none.mlir", NOTHING) == 1
    assert capfd.readouterr().err == f"{tmp_path}/none.mlir: error: no such file or directory\n"


def test_a_directory_as_input(tmp_path, capfd):
    assert run(tmp_path, NOTHING) == 1
    assert capfd.readouterr().err == f"{tmp_path}: error: is a directory\n"


@pytest.mark.parametrize("content", [b"", b" \n\t\n"])
def test_an_empty_input(content, module, capfd):
    module.write_bytes(content)
    assert run(module, NOTHING) == 1
    assert capfd.readouterr().err == f"{module}: error: the input is empty\n"


@pytest.mark.parametrize("content", [b"\x7fELF\x00\x01\xff\xfe", b"\xff" * 100, b"PK\x03\x04", "café".encode()])
def test_binary_garbage(content, module, capfd):
    module.write_bytes(content)
    assert run(module, NOTHING) == 1
    assert capfd.readouterr().err.startswith(f"{module}:1:")


@pytest.mark.parametrize(
    "content", [b"ML\xefR", b"ML\xefR\x0d", b"ML\xefR\x0dMLIR20\x00junk", b"ML\xefR\x0dStableHLO_v1.0.0\x00junk"]
)
def test_damaged_bytecode(content, module, tmp_path, capfd):
    module.write_bytes(content)
    assert run(module, NOTHING, "-o", tmp_path / "out") == 1
    assert capfd.readouterr().err.startswith(f"{module}: error: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output, text", [("none/out.mlir", "no such directory"), (".", "is a directory")])
def test_an_output_that_cannot_be_written(output, text, module, tmp_path, capfd):
    assert run(module, NOTHING, "-o", tmp_path / output) == 1
    assert text in capfd.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["in.mlir"]


def test_a_failure_keeps_the_old_output(module, tmp_path):
    output = tmp_path / "out.mlir"
    output.write_text("old")
    module.write_text("nonsense")
    assert run(module, "-o", output, NOTHING) == 1
    assert output.read_text() == "old"


def test_a_diagnostic_shows_the_line_and_a_caret(module, capfd):
    module.write_text("func.func @f() {\n  nonsense\n}\n")
    assert run(module, NOTHING) == 1
    line, source, caret = capfd.readouterr().err.splitlines()
    assert line.startswith(f"{module}:2:3: error: custom op 'nonsense' is unknown")
    assert (source, caret) == ("  nonsense", "  ^")


# ---- output


def test_in_and_out_may_be_the_same_file(module):
    module.chmod(0o640)
    assert run(module, "-o", module, CANONICALIZE) == 0
    assert "unused" not in module.read_text() and "stablehlo.add" not in module.read_text()
    assert module.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(module, tmp_path):
    link = tmp_path / "link.mlir"
    link.symlink_to(module)
    assert run(module, "-o", link, CANONICALIZE) == 0
    assert link.is_symlink() and "stablehlo.add" not in module.read_text()


def test_a_device_is_written_to_not_replaced(module):
    assert run(module, "-o", os.devnull, CANONICALIZE) == 0
    assert not Path(os.devnull).is_file()


def test_a_portable_artifact_is_read(module, capfd):
    context = make_context()
    with context:
        parsed = ir.Module.parse(MODULE)
        artifact = stablehlo.serialize_portable_artifact(parsed, stablehlo.get_minimum_version())
    module.write_bytes(artifact)
    assert run(module, NOTHING) == 0
    assert "stablehlo.add" in capfd.readouterr().out


def test_remarks_can_be_left_out(module, monkeypatch, capfd):
    monkeypatch.setattr(strip_findings, "StripFindingsPass", _Remarks)
    assert run(module, "--strip-findings") == 0
    assert f"{module}:2:13: remark: left alone\n" in capfd.readouterr().err
    assert run(module, "--strip-findings", "--no-remarks") == 0
    assert capfd.readouterr().err == ""


def test_an_error_of_a_pass_is_an_error_at_its_op(module, monkeypatch, capfd):
    monkeypatch.setattr(strip_findings, "StripFindingsPass", _Errors)
    assert run(module, "--strip-findings") == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"{module}:2:13: error: cannot reshard\n") and f"{module}:1:1: note: in here\n" in err


def test_remarks_and_errors_of_passes_are_verified(module, monkeypatch):
    monkeypatch.setattr(strip_findings, "StripFindingsPass", _Errors)
    flags = ("--strip-findings", "--verify-diagnostics")
    module.write_text(
        "// expected-note@+1 {{in here}}\n" + MODULE.replace("\n  return", " // expected-error {{reshard}}\n  return")
    )
    assert run(module, *flags) == 0
    module.write_text(MODULE.replace("\n  return", " // expected-error {{reshard}}\n  return"))
    assert run(module, *flags) == 1
    assert run(module, "--strip-findings", "--verify-diagnostics=only-expected") == 0


def test_a_wrong_regular_expression_in_a_comment_is_an_error(module, capfd):
    module.write_text("module {}\n  // expected-error-re@+1 {{a{{(}}b}}\n")
    assert run(module, NOTHING, "--verify-diagnostics") == 1
    assert f"{module}:2:1: error: invalid regular expression in expected-error-re: missing )" in capfd.readouterr().err


def test_dialects_are_named(capfd):
    assert run("--show-dialects") == 0
    names = capfd.readouterr().out.removeprefix("available dialects: ").strip().split(", ")
    assert {"builtin", "chlo", "func", "sdy", "stablehlo", "vhlo"} <= set(names) and names == sorted(names)
    assert all(name.isalnum() for name in names) and not {"to", "dialects"} & set(names)


# ---- cases that damaged_inputs.py found


def test_an_error_in_one_of_many_functions_does_not_wait_for_ever(tmp_path):
    path = tmp_path / "in.mlir"
    before, after = (ROOT / "examples/fft_pencil.mlir").read_text().rsplit("dims = [2, 0, 1]", 1)
    path.write_text(f"{before}dims = [9, 0, 1]{after}")
    command = [sys.executable, "-m", "reshard.tools.reshard_opt", path, "-o", tmp_path / "out.mlir"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "must be a permutation of [0, 1, 2] but got 9, 0, 1" in done.stderr


@pytest.mark.parametrize("size", [2147483647, 1000003])
def test_a_mesh_of_too_many_devices_is_left_alone_with_a_remark(size, module, capfd):
    module.write_text((ROOT / "docs/tiny.mlir").read_text().replace('"x"=4', f'"x"={size}'))
    assert run(module, "--policy=always") == 0
    out, err = capfd.readouterr()
    assert out == module.read_text() and "or the mesh is too large" in err


# ---- faults of our own


def test_a_fault_of_our_own_leaves_a_reproducer(module, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(strip_findings, "StripFindingsPass", _Faulty)
    assert run(module, "--strip-findings", "-o", tmp_path / "out.mlir") == 1
    err = capfd.readouterr().err
    assert (
        f"{module}: error: reshard-opt failed through a fault of its own: 'bad luck'" in err and "Traceback" not in err
    )
    (reproducer,) = tmp_path.glob("reshard-opt-*.mlir")
    text = reproducer.read_text()
    assert f"// rerun: reshard-opt {reproducer} '--pass-pipeline=builtin.module(strip-findings)'" in text
    assert "// jaxlib " in text and "// KeyError: 'bad luck'" in text and MODULE in text
    assert run(reproducer, NOTHING) == 0
    assert not (tmp_path / "out.mlir").exists()


def test_a_traceback_on_demand(module, monkeypatch):
    monkeypatch.setenv("RESHARD_TRACEBACK", "1")
    monkeypatch.setattr(strip_findings, "StripFindingsPass", _Faulty)
    with pytest.raises(KeyError):
        run(module, "--strip-findings")


# ---- start-up


def test_jax_is_not_imported():
    program = "import sys; from reshard.tools.reshard_opt import main; main(['-', sys.argv[1]]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, CANONICALIZE], input=MODULE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "jax" not in done.stdout.split("\n")[-2].split() and "jaxlib.mlir.ir" in done.stdout


def test_it_runs_as_a_file_from_anywhere(module, tmp_path):
    script = Path(registry.__file__).parents[2] / "tools" / "reshard_opt.py"
    done = subprocess.run([sys.executable, script, module, CANONICALIZE], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "func.func @f" in done.stdout, done.stderr


def test_a_reader_that_leaves_early_is_no_error(module):
    module.write_text(MODULE + "".join(MODULE.replace("@f", f"@f{i}") for i in range(3000)))
    command = f"'{sys.executable}' -m reshard.tools.reshard_opt '{module}' --pass-pipeline='builtin.module()' | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("func.func @f") and done.stderr == ""


def _ops(module: ir.Module):
    function = module.body.operations[0]
    return function, function.regions[0].blocks[0].operations[0]


@dataclasses.dataclass(frozen=True)
class _Remarks(Pass):
    name, summary = "strip-findings", "remarks"

    def run(self, module, session):
        session.remark(_ops(module)[1], "left alone")


@dataclasses.dataclass(frozen=True)
class _Errors(Pass):
    name, summary = "strip-findings", "errors"

    def run(self, module, session):
        from reshard.dialect_utils.ir.diagnostics import note

        function, op = _ops(module)
        session.error(op, "cannot reshard", note("in here", function))


@dataclasses.dataclass(frozen=True)
class _Faulty(Pass):
    name, summary = "strip-findings", "faults"

    def run(self, module, session):
        raise KeyError("bad luck")


# ---- modules that count as unchanged


def test_a_module_whose_values_are_used_in_another_order_is_unchanged_and_one_with_another_attribute_is_not():
    text = MODULE.replace("return %a", "%more = stablehlo.add %a, %a : tensor<4xf32>\n  return %a")
    context = make_context()
    parsed, before = (ir.Module.parse(text, context) for _ in range(2))
    assert _is_same(parsed, before)
    unused, more, _ = parsed.body.operations[0].body.blocks[0].operations
    unused.operands[0] = more.result
    unused.operands[0] = unused.operands[1]
    assert len({module_files.to_bytes(each, module_files.BYTECODE) for each in (parsed, before)}) == 2
    assert _is_same(parsed, before)
    unused.operation.attributes["here"] = ir.UnitAttr.get(parsed.context)
    assert not _is_same(parsed, before)
