# SPDX-License-Identifier: Apache-2.0
"""The compiler of the devices that run a program is asked about a few forms of it, in this process.

CPU devices stand for TPUs: XLA for CPU devices is their compiler then. With libtpu, the devices are TPUs that need not
be there.
"""

import dataclasses
import functools
import pickle
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.compiling import optimizing
from reshard.dialect_utils.xla import child, worker
from reshard.dialect_utils.xla.at_hand import MOST_FORMS, MOST_PIPELINES, CompilerAtHand
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.whole_module import whole_module_check
from reshard.planning import device_networks

TARGET = Target.parse("tpu:v5e:2x4")


@pytest.fixture
def asked(monkeypatch, tmp_path, lasting_xla_children):
    """Has CPU devices stand for TPUs, with nothing on disk; returns the modules that their compiler is asked about."""
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("RESHARD_CACHE", raising=False)
    monkeypatch.setattr(child, "shared_child", lambda: lasting_xla_children(None))
    modules: list[str] = []
    compile = CompilerAtHand.compile

    def watched(self, module, num_devices, *, target=None, **wanted):
        if target == TARGET:
            modules.append(module)
        return compile(self, module, num_devices, target=target, **wanted)

    monkeypatch.setattr(CompilerAtHand, "compile", watched)
    monkeypatch.setattr(device_networks, "target_of", lambda devices: TARGET)
    monkeypatch.setattr(device_networks, "topology_of", lambda devices: "v5e:2x4")
    monkeypatch.setattr(optimizing, "_platform_of", lambda devices: "tpu")
    jax.clear_caches()
    return modules


def gathered(devices):
    """Returns a step whose cube stock XLA gathers as a whole, and its argument without values."""
    mesh = Mesh(np.array(devices[:8]).reshape(4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def step(cube):
        columns = NamedSharding(mesh, P(None, ("x", "y"), None))
        return jax.lax.with_sharding_constraint(jnp.sin(cube), columns)

    given = jax.ShapeDtypeStruct((64,) * 3, np.float32, sharding=NamedSharding(mesh, P("y", None, "x")))
    return jax.jit(step), given


def compiled(function, *given, **options):
    with reshard.enabled(**options) as programs:
        found = function.lower(*given).compile()
    (program,) = programs
    return found, program


def test_the_compiler_of_the_devices_decides(asked):
    function, given = gathered(jax.devices())
    program, ours = compiled(function, given)
    assert ours.is_rewritten and 1 < len(set(asked)) <= 1 + MOST_FORMS
    assert "compiled for tpu:v5e:2x4, modelled on v5e:2x4" in ours.report.text()
    cube = jax.device_put(np.arange(64**3, dtype=np.float32).reshape(given.shape), given.sharding)
    jax.clear_caches()
    np.testing.assert_array_equal(program(cube), function(cube))


@pytest.mark.parametrize(
    "options", [{"at_hand": False}, {"compile_for": "cpu:8"}, {"check": False}, {"layouts": "chosen"}]
)
def test_it_is_not_asked_where_the_caller_wants_something_else(asked, options):
    _, ours = compiled(*gathered(jax.devices()), **options)
    assert not asked and "compiled for tpu" not in ours.report.text()


def test_it_is_not_asked_about_what_promises_nothing(asked):
    mesh = Mesh(np.array(jax.devices()[:8]), ("x",), axis_types=(AxisType.Auto,))
    rows = jax.ShapeDtypeStruct((64, 64), np.float32, sharding=NamedSharding(mesh, P("x")))
    moved = jax.jit(lambda a: jax.lax.with_sharding_constraint(a, NamedSharding(mesh, P())))
    _, ours = compiled(moved, rows)
    assert not asked and not ours.is_rewritten
    assert "no form of the module promises enough there to ask the compiler of tpu:v5e:2x4" in ours.report.text()


def test_it_is_asked_about_a_few_forms_and_more_of_them_with_more_effort(asked, monkeypatch):
    """None of them will do, so all that promise something are tried."""
    watched, stock = CompilerAtHand.compile, []

    def hungry(self, module, num_devices, *, target=None, **wanted):
        found = watched(self, module, num_devices, target=target, **wanted)
        stock[:] = stock or [module]
        more = 1 << 40 if target == TARGET and module != stock[0] else 0
        return dataclasses.replace(found, temp_bytes=found.temp_bytes + more)

    monkeypatch.setattr(CompilerAtHand, "compile", hungry)
    numbers = []
    for effort in ("1", "3"):
        asked.clear()
        stock.clear()
        _, ours = compiled(*three_conversions(jax.devices()), effort=effort)
        assert not ours.is_rewritten
        numbers.append(len(set(asked)) - 1)
    assert numbers[0] == MOST_FORMS < numbers[1] <= 3 * MOST_FORMS


def three_conversions(devices):
    """Returns a step with three cubes of different sizes like that of `gathered`, and its arguments."""
    mesh = Mesh(np.array(devices[:8]).reshape(4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    columns = NamedSharding(mesh, P(None, ("x", "y"), None))

    def step(*cubes):
        return [jax.lax.with_sharding_constraint(jnp.sin(each), columns) for each in cubes]

    placed = NamedSharding(mesh, P("y", None, "x"))
    return jax.jit(step), *(jax.ShapeDtypeStruct((size,) * 3, np.float32, sharding=placed) for size in (32, 64, 96))


def test_what_it_refuses_is_judged_for_cpu_devices(asked, monkeypatch):
    def refused(*_, **__):
        raise RuntimeError("RESOURCE_EXHAUSTED: it does not fit")

    monkeypatch.setattr("reshard.dialect_utils.xla.worker._compiled_for", refused)
    _, ours = compiled(*gathered(jax.devices()))
    why = "the compiler of tpu:v5e:2x4 refuses it as it came: RuntimeError: RESOURCE_EXHAUSTED: it does not fit"
    assert ours.is_rewritten and f"compiled for CPU devices: {why}\n" in ours.report.text()
    assert ours.report.to_dict()["checks"][0]["not_judged"] == why


def test_it_is_asked_about_no_more_modules_than_that(lasting_xla_children, monkeypatch):
    at_hand = CompilerAtHand(lasting_xla_children(None), TARGET, jax.devices()[:8])
    monkeypatch.setattr(child.XlaChild, "compile", lambda *_, **__: child.Compiled("ok"))
    monkeypatch.setattr(CompilerAtHand, "_ask", lambda self, request: {"status": "ok"})
    found = [at_hand.compile(f"module {number}", 8, target=TARGET).status for number in (0, 1, 2, 3, 4, 5, 3)]
    assert found == ["ok"] * (1 + MOST_FORMS) + ["unasked"] * 2 + ["ok"] and at_hand.left == 0
    at_hand.allow_pipelines()
    found = [at_hand.compile(f"pipelines {number}", 8, target=TARGET).status for number in range(MOST_PIPELINES + 1)]
    assert found == ["ok"] * MOST_PIPELINES + ["unasked"]


@pytest.mark.parametrize(
    ("message", "is_passing"),
    [
        ("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm.", False),
        ("RESOURCE_EXHAUSTED: Failed to load the program", True),
        ("INVALID_ARGUMENT: no such option", False),
    ],
)
def test_what_a_busy_device_refuses_is_not_kept(message, is_passing, monkeypatch):
    monkeypatch.setattr(worker, "compiled_at_hand", lambda *_: {"status": "error", "message": message})
    reply = CompilerAtHand(child.XlaChild(uses_cache=False), TARGET, jax.devices()[:8])._ask({})
    assert reply["is_passing"] == is_passing


def test_a_report_is_data(asked):
    _, ours = compiled(*gathered(jax.devices()))
    assert asked and pickle.loads(pickle.dumps(ours.report.to_dict())) == ours.report.to_dict()
    assert ours.report._session.options.at_hand is None


def test_it_is_asked_about_no_module_on_which_xla_aborts(lasting_xla_children, monkeypatch):
    """It would end this process."""
    at_hand = CompilerAtHand(lasting_xla_children(None), TARGET, jax.devices()[:8])
    monkeypatch.setattr(CompilerAtHand, "_ask", lambda *_: pytest.fail("it was asked"))
    module = gathered(jax.devices())
    text = module[0].lower(module[1]).as_text()
    aborts = child.Compiled("abort", "SIGABRT: Check failed: sliced")
    monkeypatch.setattr(child.XlaChild, "compile", lambda *_, **__: aborts)
    assert at_hand.compile(text, 8, target=TARGET) == aborts


def test_it_is_asked_with_the_options_of_jit(asked, monkeypatch):
    targets, given = set(), gathered(jax.devices())
    compile = CompilerAtHand.compile

    def watched(self, module, num_devices, *, target=None, **wanted):
        targets.add(str(target))
        return compile(self, module, num_devices, target=target, **wanted)

    monkeypatch.setattr(CompilerAtHand, "compile", watched)
    flags = {"xla_cpu_enable_fast_math": False, "xla_backend_optimization_level": 0}
    _, ours = compiled(jax.jit(given[0], compiler_options=flags), *given[1:])
    with_flags = "tpu:v5e:2x4?xla_backend_optimization_level=0&xla_cpu_enable_fast_math=false"
    assert with_flags in targets and f"compiled for {with_flags}," in ours.report.text()
    targets.clear()
    jax.clear_caches()
    lowered = jax.jit(given[0], compiler_options=flags).lower(*given[1:])
    assert f"compiled for {with_flags}," in reshard.optimize(lowered).report.text() and with_flags in targets


def test_an_option_may_have_any_letters(asked):
    function, *args = gathered(jax.devices())
    _, ours = compiled(jax.jit(function, compiler_options={"xla_dump_hlo_pass_re": "a&b=c%"}), *args)
    assert "compiled for tpu:v5e:2x4?xla_dump_hlo_pass_re=a%26b=c%25," in ours.report.text()


def test_its_answers_are_kept(asked, monkeypatch, tmp_path):
    """Both the result as a whole and each answer, which is read where the result is not there."""
    compilers: list[str] = []
    ask = CompilerAtHand._ask
    monkeypatch.setattr(CompilerAtHand, "_ask", lambda self, request: compilers.append("") or ask(self, request))
    monkeypatch.setattr(child, "shared_child", functools.cache(lambda: child.XlaChild(cache_dir=tmp_path)))
    found = []
    for kept in ("nothing", "all", "answers"):  # in one line: the module has the place of the call
        for folder in tmp_path.glob("results-*") if kept == "answers" else ():
            shutil.rmtree(folder)
        jax.clear_caches()
        asked.clear()
        _, ours = compiled(*gathered(jax.devices()))
        found.append((ours.report.text(), bool(asked), len(compilers)))
    child.shared_child().close()
    texts, questions, compilations = zip(*found)
    assert questions == (True, False, True) and len(set(compilations)) == 1 and compilations[0] > 1
    assert len(set(texts)) == 1


def test_what_is_judged_for_cpu_devices_after_all_is_searched_as_without_tpus(asked, monkeypatch):
    """Neither does the number of forms count there, nor is a form compiled twice."""
    monkeypatch.setattr(whole_module_check.WholeModuleCheck, "_why_not_at_hand", said_no)
    _, ours = compiled(*three_conversions(jax.devices()))
    monkeypatch.setattr(device_networks, "target_of", lambda devices: None)
    jax.clear_caches()
    _, alone = compiled(*three_conversions(jax.devices()))
    mine, theirs = (each.report.to_dict()["checks"][0] for each in (ours, alone))
    assert mine.pop("not_judged") and (mine["ours"], mine["is_rewritten"]) == (theirs["ours"], theirs["is_rewritten"])
    assert not asked


def said_no(check) -> str:
    check.forms.stock = check.forms.partitioned(check.original)
    return "no"


@pytest.mark.tpu
def test_the_compiler_of_tpus_decides_about_a_program_for_them():
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
    assert device_networks.target_of(devices) == TARGET
    _, ours = compiled(*gathered(devices))
    report = ours.report.to_dict()
    (check,) = report["checks"]
    assert check["target"] == str(TARGET) and "not_judged" not in check
    assert ours.is_rewritten and check["ours"]["bytes_received"] < check["stock"]["bytes_received"] / 4
    assert check["ours"]["modelled_us"] < check["stock"]["modelled_us"]
