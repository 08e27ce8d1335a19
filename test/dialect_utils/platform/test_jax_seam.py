# SPDX-License-Identifier: Apache-2.0
"""The seam in jax: these tests fail for a jax version that changed the seam, and name the change."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compiler

import reshard
from reshard.compiling import jitting
from reshard.dialect_utils.platform import jax_seam

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def moved(monkeypatch):
    """A jax without the function at the seam; the cached answers about jax are cleared before and after."""
    monkeypatch.delattr(compiler, "compile_or_get_cached")
    _forget()
    yield
    _forget()


def _forget():
    jax_seam.problem.cache_clear()
    jitting._has_seam.cache_clear()


class TestSeam:
    def test_this_jax_is_built_as_we_think(self):
        jax_seam.problem.cache_clear()
        assert jax_seam.problem() == "", (
            f"jax {jax.__version__} has moved: dialect_utils/platform/jax_seam.py has to follow"
        )

    def test_what_jax_compiles_passes_the_seam_once(self):
        watch = Watching()
        with jax_seam.rewriting(watch):
            results = [jax.jit(passing)(1.0).item() for _ in range(2)]
        assert results == [2, 2]
        assert watch.seen == [("jit_passing", 1)]

    def test_the_module_at_the_seam_is_what_runs(self):
        with jax_seam.rewriting(Subtracting()):
            other = jax.jit(lambda a, b: a + b)(3.0, 2.0).item()
        assert (other, jax.jit(lambda a, b: a + b)(3.0, 2.0).item()) == (1, 5)

    def test_the_inner_one_of_two_counts(self):
        outer, inner = Watching(), Watching()
        with jax_seam.rewriting(outer), jax_seam.rewriting(inner):
            jax.jit(lambda a: a + 7)(1.0)
        assert (outer.seen, inner.seen) == ([], [("jit__lambda", 1)])

    def test_a_call_that_hits_does_not_enter(self):
        function, entered = watched()
        for _ in range(3):
            assert function(np.float32(1)) == 2
        assert len(entered) == 1
        assert function(jnp.arange(2)).tolist() == [1, 2]
        assert len(entered) == 2

    def test_clearing_jax_caches_clears_ours(self):
        function, entered = watched()
        function(1.0)
        jax.clear_caches()
        function(1.0)
        assert len(entered) == 2


def watched():
    """Returns a jitted function, and a list that grows whenever it is traced or compiled."""
    entered = []

    @contextlib.contextmanager
    def around():
        entered.append(1)
        yield

    return jax_seam.jitted_with(jax.jit(passing), around), entered


def passing(a):
    return a + 1


class Watching:
    """Records the names of the modules that pass the seam, and their numbers of partitions."""

    def __init__(self):
        self.seen = []

    def rewritten(self, module, devices, compile_options):
        self.seen.append((str(module.operation.attributes["sym_name"]).strip('"'), compile_options.num_partitions))
        return module


class Subtracting:
    def rewritten(self, module, *_):
        text = str(module)
        assert "stablehlo.add" in text
        return type(module).parse(text.replace("stablehlo.add", "stablehlo.subtract"), module.context)


class TestMoved:
    """An unknown jax is used without changes, and one line says so."""

    def test_is_told_by_what_moved(self, moved):
        assert jax_seam.problem() == "jax._src.compiler.compile_or_get_cached is not there"

    def test_jit_is_that_of_jax(self, moved):
        with pytest.warns(
            RuntimeWarning,
            match="^reshard: programs are compiled as jax does it: jax._src.* is not there; upgrade reshard$",
        ):
            function = reshard.jit(passing)
        assert function.__getstate__()["cache_miss"].__module__.startswith("jax.")
        with pytest.warns() as warned:
            reshard.jit(passing)
            jitting.warnings.warn("the only one", UserWarning)
        assert len(warned) == 1

    def test_enabled_does_nothing(self, moved):
        with pytest.warns(RuntimeWarning, match="upgrade reshard"), reshard.enabled() as programs:
            pass
        assert programs == []


PROGRAM = """
import sys
import jax, jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import reshard

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))

mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
cube = jax.device_put(np.arange(16**3, dtype=np.float32).reshape(16, 16, 16), NamedSharding(mesh, P("y", None, "x")))
before = len(events)

def step(a):
    return jax.lax.with_sharding_constraint(a, NamedSharding(mesh, P(None, ("x", "y"), None))) + 1

function = {"ours": reshard.jit, "stock": jax.jit}[sys.argv[2]](step)
out = function(cube)
assert np.asarray(out).sum() == np.asarray(cube).sum() + 16**3
print(events[before:].count("/jax/compilation_cache/cache_hits"))
"""


@pytest.mark.slow
def test_the_persistent_cache_has_the_same_key_in_another_process(tmp_path):
    """The key is that of the rewritten module.

    A program that stock compiled before is not a hit, and the caches of reshard on disk do not change the key.
    """

    def hits(which, **variables):
        env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", **variables}
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), which]
        child = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert child.returncode == 0, child.stderr
        return int(child.stdout)

    assert hits("stock") == 0
    assert hits("ours") == 0
    assert hits("ours") == 1
    assert hits("ours", PYTHONHASHSEED="7", RESHARD_CACHE="off") == 1
    assert hits("stock") == 1


def test_ctrl_c_while_it_is_installed_leaves_jax_as_it_was_and_it_is_installed_the_next_time(
    monkeypatch, default_signals
):
    stock, around = compiler.compile_or_get_cached, jax_seam._at_the_seam

    def interrupted(original):
        signal.raise_signal(signal.SIGINT)
        return around(original)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(jax_seam, "_at_the_seam", interrupted)
        with jax_seam.rewriting(object()):
            pass
    assert compiler.compile_or_get_cached is stock
    with jax_seam.rewriting(object()):
        assert compiler.compile_or_get_cached is not stock
    assert compiler.compile_or_get_cached is stock
