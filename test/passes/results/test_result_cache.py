# SPDX-License-Identifier: Apache-2.0
"""Kept results on disk: a hit is equal to the result of a run, and any difference in the inputs is a miss."""

import errno
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver import stores
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.instrumentation import Instrumentation
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import result_cache
from reshard.passes.results.result_cache import Output
from reshard.synthesis.common import store
from reshard.tools import reshard_opt

ROOT = Path(__file__).resolve().parents[3]
MODULE = """\
module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func public @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<8x8xf32> {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {"x"}]> : tensor<8x8xf32>
    %1 = stablehlo.optimization_barrier %0 : tensor<8x8xf32>
    %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
    return %2 : tensor<8x8xf32>
  }
}
"""  # noqa: E501


_LOOKS_AT_ORIGINAL = re.compile(r"builtin\.module\(import-gspmd(,find-mismatches(,plan-sites[^,]*)?)?\)")


@pytest.fixture(scope="module", autouse=True)
def child_that_keeps_answers(tmp_path_factory):
    """The child that a process shares reads the environment once; without answers on disk, two runs have two times."""
    shared = result_cache.xla_child.shared_child
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RESHARD_CACHE_DIR", str(tmp_path_factory.mktemp("answers")))
        environment.delenv("RESHARD_CACHE", raising=False)
        shared.cache_clear()
        shared()
    yield
    shared.cache_clear()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty folder for caches; the tests run in the folder that holds it."""
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("RESHARD_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.mlir").write_text(MODULE)
    return tmp_path / "cache"


@pytest.fixture
def runs(monkeypatch):
    """Returns the list of the pipelines that ran; checks and reports look at the original with others, or parts."""
    found, run = [], Pipeline.run

    def counted(self, *arguments):
        if not _LOOKS_AT_ORIGINAL.fullmatch(str(self)) and "convert-to-local" not in str(self):
            found.append(str(self))
        return run(self, *arguments)

    monkeypatch.setattr(Pipeline, "run", counted)
    return found


def opt(capfd, *arguments: str) -> tuple[str, str, str]:
    """Returns the output, the report and the messages of `reshard-opt in.mlir`; asserts that it succeeds."""
    flags = (
        () if any(each.startswith("--report") for each in arguments) else ("--report=json", "--report-file=report.json")
    )
    status = reshard_opt.main(["in.mlir", "-o", "out.mlir", *flags, *arguments])
    said = capfd.readouterr().err
    assert status == 0, said
    return Path("out.mlir").read_text(), Path("report.json").read_text() if flags else "", said


def entries(root: Path) -> list[Path]:
    return sorted(root.glob("results-*/*.entry"))


def entry_of(root: Path, capfd, *arguments: str) -> Path:
    opt(capfd, *arguments)
    (path,) = entries(root)
    return path


# ---- hits


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--policy=always",),
        ("--policy=always", "--compile-for=cpu:4"),
        ("--policy=always", "--emit=sdy"),
        ("--policy=always", "--mlir-print-debuginfo"),
        ("--policy=always", "--report=text"),
        ("--policy=always", "--mlir-pass-statistics"),
    ],
    ids="-".join,
)
def test_a_hit_gives_the_same_output_report_and_messages(flags, root, runs, capfd):
    first = opt(capfd, *flags)
    assert runs
    runs.clear()
    assert opt(capfd, *flags) == first
    assert not runs


def test_a_hit_is_what_a_run_without_a_cache_gives(root, capfd, monkeypatch):
    opt(capfd, "--policy=always")
    hit = opt(capfd, "--policy=always")
    monkeypatch.setenv("RESHARD_CACHE", "off")
    assert opt(capfd, "--policy=always") == hit


@pytest.mark.parametrize("form", ["--emit-bytecode", "--emit-portable-artifact"])
def test_binary_outputs_are_kept_too(form, root, runs):
    command = ["in.mlir", "--policy=always", "-o", "out", form]
    assert reshard_opt.main(command) == 0
    first = Path("out").read_bytes()
    runs.clear()
    assert reshard_opt.main(command) == 0 and not runs
    assert Path("out").read_bytes() == first


def test_a_module_without_sites_is_copied_on_a_hit_too(root, runs, capfd):
    Path("in.mlir").write_text("// a comment stays\nmodule { }\n")
    for _ in range(2):
        assert opt(capfd)[0] == "// a comment stays\nmodule { }\n"
    assert len(runs) == 1


def test_parts_of_a_split_input_are_kept_each_with_its_places(root, runs, capfd):
    Path("in.mlir").write_text(f"{MODULE}// -----\n{MODULE}")
    first = opt(capfd, "--split-input-file", "--policy=always")
    assert len(runs) == 2 and len(entries(root)) == 2
    assert opt(capfd, "--split-input-file", "--policy=always") == first
    assert len(runs) == 2


# ---- misses


def test_every_byte_of_the_module_counts(root, runs, capfd):
    entry_of(root, capfd)
    Path("in.mlir").write_text(MODULE.replace("optimization_barrier %0", "optimization_barrier  %0"))
    opt(capfd)
    assert len(runs) == 2 and len(entries(root)) == 2


def test_a_changed_location_counts(root, runs, capfd):
    located = MODULE.replace("%2 : tensor<8x8xf32>\n", '%2 : tensor<8x8xf32> loc("here":1:1)\n')
    Path("in.mlir").write_text(located)
    opt(capfd, "--mlir-print-debuginfo")
    Path("in.mlir").write_text(located.replace("here", "over"))
    assert "over" in opt(capfd, "--mlir-print-debuginfo")[0]
    assert len(runs) == 2


def test_the_name_of_the_file_counts_since_locations_hold_it(root, runs, capfd):
    opt(capfd, "--policy=always")
    Path("other.mlir").write_text(MODULE)
    assert reshard_opt.main(["other.mlir", "-o", "out.mlir", "--policy=always", "--report=text"]) == 0
    assert "other.mlir:" in capfd.readouterr().err
    assert len(runs) == 2


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    "flag",
    [
        "--policy=always", "--emit=sdy", "--emit=local", "--compile-for=cpu:4", "--mlir-print-debuginfo",
        "--mlir-print-op-generic", "--mlir-print-local-scope",
        "--mlir-elide-elementsattrs-if-larger=4", "--emit-bytecode",
        "--emit-portable-artifact", "--allow-unregistered-dialect",
    ],
)  # fmt: skip
def test_every_option_counts(flag, root, capfd):
    entry_of(root, capfd)
    assert reshard_opt.main(["in.mlir", "-o", "out", flag]) == 0
    assert len(entries(root)) == 2


def test_whether_the_whole_module_is_checked_counts(root, capfd):
    opt(capfd, "--compile-for=cpu:4")
    opt(capfd, "--compile-for=cpu:4", "--no-check")
    assert len(entries(root)) == 2


def test_another_reshard_does_not_read_these_results(root, runs, capfd, monkeypatch):
    entry_of(root, capfd)
    monkeypatch.setattr(stores, "RESULTS", replace(stores.RESULTS, facts=lambda: "another"))
    opt(capfd)
    assert len(runs) == 2 and len(entries(root)) == 2


def test_the_version_is_that_of_jax_too(monkeypatch):
    fingerprint = store.fingerprint.__wrapped__

    def found() -> str | None:
        return fingerprint(stores.RESULTS.packages, stores.RESULTS.facts)

    first = found()
    assert first == found()
    monkeypatch.setattr(stores.compat, "jax_versions", lambda: ("0.0.1", "0.0.2"))
    assert found() not in (first, None)


def test_without_a_version_nothing_is_kept(root, monkeypatch):
    def missing():
        raise ModuleNotFoundError("jax")

    monkeypatch.setattr(stores.compat, "jax_versions", missing)
    monkeypatch.setattr(store, "fingerprint", store.fingerprint.__wrapped__)
    _keep(b"0")
    assert not root.exists()


UNTOUCHED = """\
func.func   @main(%mine: tensor<4xf32>) -> tensor<4xf32> {   // no site
  return %mine : tensor<4xf32>
}
"""


def test_a_module_that_stays_as_it_is_is_not_kept_for_another_marker_which_prints_it(root, capfd):
    Path("in.mlir").write_text(UNTOUCHED)
    copied = [opt(capfd)[0] for _ in range(2)]
    assert copied == [UNTOUCHED, UNTOUCHED]
    printed = [opt(capfd, "--split-input-file", "--output-split-marker=// ====")[0] for _ in range(2)]
    assert printed[0] == printed[1] != UNTOUCHED and "func.func @main" in printed[0]


# ---- results that are not kept


@pytest.mark.parametrize(
    "flags",
    [
        ("--mlir-print-ir-after-all",),
        ("--mlir-print-ir-before=plan-sites",),
        ("--mlir-timing",),
        ("--verify-each=false",),
        ("--mlir-generate-reproducer=again.mlir",),
        ("--pass-pipeline=builtin.module(reshard,canonicalize)",),
        ("--find-mismatches",),
    ],
    ids=lambda flags: flags[0],
)
def test_runs_that_print_or_have_other_passes_are_not_kept(flags, root, runs, capfd):
    for _ in range(2):
        opt(capfd, *flags)
    assert len(runs) == 2 and not entries(root)


def test_a_pass_of_others_under_our_name_is_not_kept(root):
    class Other(type(Pipeline.default().passes[1])):
        pass

    ours = Pipeline.default()
    theirs = Pipeline((ours.elements[0], Other(), *ours.elements[2:]))
    assert result_cache.key(b"module {}", ours, Session())
    assert result_cache.key(b"module {}", theirs, Session()) is None


def test_answers_of_the_callers_own_child_are_not_kept(root):
    assert result_cache.key(b"module {}", Pipeline.default(), Session(RunOptions(xla_child=object()))) is None


def test_the_key_has_the_version_of_the_compiler_of_a_target(root, monkeypatch):
    def key() -> str | None:
        options = RunOptions(compile_for=Target.parse("tpu:v5e:2x4"))
        return result_cache.key(b"module {}", Pipeline.default(), Session(options))

    monkeypatch.setattr(result_cache, "compiler_version", lambda target: "0.0.1")
    before = key()
    monkeypatch.setattr(result_cache, "compiler_version", lambda target: "0.0.2")
    assert None not in (before, key()) and before != key()


def test_timed_runs_are_not_kept(root):
    assert result_cache.key(b"module {}", Pipeline.default(), Session(), Instrumentation(timing="tree")) is None


def test_errors_are_not_kept(root, runs, capfd):
    Path("in.mlir").write_text(MODULE.replace("8x8", "7x7"))
    for _ in range(2):
        assert reshard_opt.main(["in.mlir", "-o", "out.mlir"]) == 1
        assert "does not divide" in capfd.readouterr().err
    assert len(runs) == 2 and not entries(root)


def test_a_result_that_hangs_on_the_clock_is_not_kept(root):
    session = Session()
    key = result_cache.key(b"module {}", Pipeline.default(), session)

    def compute() -> Output:
        result_cache.xla_child.shared_child().passing_answers += 1
        return Output(b"late", False)

    assert result_cache.run(key, session, compute).content == b"late"
    assert not entries(root)


def test_a_file_that_changes_while_it_is_read_is_not_kept(root, runs, capfd, monkeypatch):
    run = Pipeline.run

    def meanwhile(self, *arguments):
        Path("in.mlir").write_text(MODULE + "\n")
        return run(self, *arguments)

    monkeypatch.setattr(Pipeline, "run", meanwhile)
    opt(capfd)
    assert not entries(root)


@pytest.mark.parametrize("value", ["off", "OFF", "0", "no"])
def test_it_can_be_switched_off(value, root, capfd, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", value)
    opt(capfd)
    assert not root.exists()


# ---- damaged entries, limits


def _forged(entry: bytes) -> bytes:
    """Returns an entry with a right digest that belongs to another key."""
    return store.sealed(store.key("another"), entry[65:])


DAMAGE = {
    "empty": lambda entry: b"",
    "cut": lambda entry: entry[:-1],
    "flipped": lambda entry: entry[:50] + bytes([entry[50] ^ 1]) + entry[51:],
    "no digest": lambda entry: entry[65:],
    "text": lambda entry: b"{}",
    "another's": _forged,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_entry_is_ignored_and_written_anew(kind, root, runs, capfd):
    first = opt(capfd, "--policy=always")
    (path,) = entries(root)
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[kind](whole))
    assert opt(capfd, "--policy=always") == first
    assert len(runs) == 2
    assert path.read_bytes() == whole


def test_a_pipe_in_place_of_an_entry_is_not_waited_for(root, runs, capfd):
    first = opt(capfd, "--policy=always")
    (path,) = entries(root)
    whole = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    assert opt(capfd, "--policy=always") == first
    assert len(runs) == 2 and path.read_bytes() == whole


def test_a_run_that_is_interrupted_keeps_nothing(root):
    def compute():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        result_cache.run("key", Session(), compute)
    assert not entries(root)


def test_a_file_in_place_of_the_folder_is_no_obstacle(root, capfd):
    root.write_text("a file")
    opt(capfd)


@pytest.mark.parametrize("call", ["open", "replace"])
def test_a_full_disk_is_no_obstacle_and_leaves_nothing(call, root, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, call, full)
    session = Session()
    key = result_cache.key(b"module {}", Pipeline.default(), session)
    assert result_cache.run(key, session, lambda: Output(b"made", False)).content == b"made"
    assert not [path for path in root.rglob("*") if path.is_file()]


def _keep(name: bytes, content: bytes = b"made") -> None:
    session = Session()
    result_cache.run(result_cache.key(name, Pipeline.default(), session), session, lambda: Output(content, False))


def _limit(monkeypatch, **limits: int) -> None:
    """Sets the limits of the cache, as another process would."""
    limited = replace(stores.RESULTS, limits=replace(stores.RESULTS.limits, **limits))
    monkeypatch.setattr(stores, "RESULTS", limited)


def test_old_entries_go_by_number(root, monkeypatch):
    _limit(monkeypatch, entries=3)
    for number in range(6):
        _keep(b"%d" % number)
        os.utime(max(entries(root), key=lambda path: path.stat().st_mtime_ns), (1000 + number, 1000 + number))
    assert sorted(path.stat().st_mtime for path in entries(root)) == [1003, 1004, 1005]


def test_old_entries_go_by_size(root, monkeypatch):
    for number in range(5):
        _keep(b"%d" % number, os.urandom(1000))
    _limit(monkeypatch, total_bytes=4500)  # an entry has about 1,300 bytes
    _keep(b"5", os.urandom(1000))
    assert len(entries(root)) == 3


def test_an_entry_too_large_is_not_kept(root, monkeypatch):
    _limit(monkeypatch, entry_bytes=500)
    _keep(b"0", os.urandom(1000))
    assert not entries(root)


def test_old_versions_go(root, monkeypatch):
    most = stores.RESULTS.limits.versions
    for number in range(most + 3):
        monkeypatch.setattr(stores, "RESULTS", replace(stores.RESULTS, facts=lambda: number))
        _keep(b"0")
        for age, folder in enumerate(sorted(root.glob("results-*"))):
            os.utime(folder, (1000 + age, 1000 + age))
    assert len(list(root.glob("results-*"))) == most


# ---- processes


@pytest.mark.slow
def test_two_processes_at_once_write_the_same(root):
    command = [sys.executable, "-m", "reshard.tools.reshard_opt", "in.mlir", "--policy=always", "--report=json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def both() -> list[tuple[bytes, bytes]]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        seeded = [environment | {"PYTHONHASHSEED": str(seed)} for seed in (1, 2)]
        processes = [subprocess.Popen(command, env=each, **pipes) for each in seeded]
        return [each.communicate() for each in processes]

    cold, kept = both(), entries(root)
    assert len(kept) == 1
    entry = kept[0].read_bytes()
    assert len({*cold, *both()}) == 1 and b"manual_computation" in cold[0][0]
    assert entries(root) == kept and kept[0].read_bytes() == entry
