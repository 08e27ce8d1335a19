# SPDX-License-Identifier: Apache-2.0
"""What differs between versions of jax: each probe works with the one that is installed."""

import importlib.metadata
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax import export

from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir, make_context, stablehlo

STEP = "module @step { func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> } }"


def test_versions_are_those_of_the_packages():
    assert compat.jax_versions() == tuple(map(importlib.metadata.version, ("jax", "jaxlib")))
    assert compat.jaxlib_version() == importlib.metadata.version("jaxlib")


def test_a_module_is_read_as_text_as_bytecode_and_as_an_artifact():
    with make_context() as context:
        module = compat.parse_module(context, STEP)
        other = compat.parse_module(context, STEP)  # becomes another dialect
        artifact = stablehlo.serialize_portable_artifact(other, stablehlo.get_minimum_version())
        for content in (compat.bytecode(module), artifact):
            read = compat.parse_module(context, content)
            assert str(read) == str(module) and compat.module_name(read) == "step"
        assert compat.module_name(ir.Module.parse("module {}")) == "module"


def test_bytecode_keeps_locations():
    with make_context() as context:
        module = compat.parse_module(
            context, STEP.replace("return %a : tensor<4xf32>", 'return %a : tensor<4xf32> loc("a.py":3:4)')
        )
        again = compat.parse_module(context, compat.bytecode(module))
    assert '"a.py":3:4' in again.operation.get_asm(enable_debug_info=True)


def test_shardy_is_on_inside_and_the_users_choice_holds_afterwards():
    name = "jax_use_shardy_partitioner"
    if not hasattr(jax.config, name):
        pytest.skip("this jax has no other partitioner")
    before = getattr(jax.config, name)
    try:
        jax.config.update(name, False)
        with pytest.raises(KeyError), compat.shardy_partitioner():
            assert getattr(jax.config, name)
            raise KeyError
        assert not getattr(jax.config, name)
    finally:
        jax.config.update(name, before)


def test_a_lowered_program_with_another_module_leaves_the_first_as_it_is():
    lowered = jax.jit(lambda x: x + 1).lower(np.zeros(4, np.float32))
    doubled = jax.jit(lambda x: x * 2).lower(np.zeros(4, np.float32)).as_text()
    copy = compat.lowered_with_module(lowered, doubled)
    ones = np.ones(4, np.float32)
    assert np.asarray(copy.compile()(ones * 3)).tolist() == [6] * 4
    assert np.asarray(lowered.compile()(ones * 3)).tolist() == [4] * 4
    assert compat.lowered_devices(lowered) in ((), (jax.devices()[0],))


def test_arguments_that_a_function_does_not_use_are_not_kept():
    def f(a, b, c):
        return a + c

    assert compat.kept_arguments(jax.jit(f).lower(1.0, 2.0, 3.0), 3) == [0, 2]
    assert compat.kept_arguments(jax.jit(f, keep_unused=True).lower(1.0, 2.0, 3.0), 3) == [0, 1, 2]


def test_an_export_with_another_module_keeps_all_else():
    shape = jax.ShapeDtypeStruct((4,), np.float32)
    one, other = (export.export(jax.jit(f))(shape) for f in (lambda x: x + 1, lambda x: x * 2))
    content = compat.exported_with_artifact(bytes(one.serialize()), bytes(other.mlir_module_serialized))
    assert compat.exported_artifact(content) == bytes(other.mlir_module_serialized)
    found = compat.exported(content)
    assert found.fun_name == one.fun_name and found.in_avals == one.in_avals
    assert np.asarray(found.call(np.full(4, 3, np.float32))).tolist() == [6] * 4


def test_hlo_text_is_converted():
    text = "HloModule m\n\nENTRY main {\n  p = f32[4]{0} parameter(0)\n  ROOT t = f32[4]{0} tanh(p)\n}\n"
    with make_context() as context:
        assert "stablehlo.tanh" in str(compat.parse_module(context, compat.stablehlo_of_hlo(text)))


@pytest.mark.parametrize(("dtype", "wide"), [("float64", True), ("int32", False), ("complex128", True)])
def test_elements_of_64_bits_are_kept_if_there_are_any(dtype, wide):
    with compat.wide_types(["float32", dtype]):
        assert jax.numpy.zeros(1, dtype).dtype == dtype
    assert jax.config.jax_enable_x64 is False


def test_outside_of_a_job_there_is_no_store():
    assert compat.job_store() is None and compat.process_index() == 0


class Client:
    """The key-value client of jax's runtime, with its errors."""

    def __init__(self):
        self.values = {}

    def key_value_set_bytes(self, key, value, allow_overwrite=False):
        if key in self.values and not allow_overwrite:
            raise RuntimeError(f"ALREADY_EXISTS: {key}")
        self.values[key] = value

    def key_value_try_get_bytes(self, key):
        if key not in self.values:
            raise RuntimeError(f"NOT_FOUND: {key}")
        return self.values[key]

    def blocking_key_value_get_bytes(self, key, timeout_ms):
        if key not in self.values:
            raise RuntimeError(f"DEADLINE_EXCEEDED: {key} in {timeout_ms} ms")
        return self.values[key]


def test_the_store_of_a_job_tells_what_is_missing_from_what_is_over():
    client = Client()
    store = compat.JobStore(client)
    assert store.get("a") is store.get("a", timeout_s=0.001) is None
    assert store.put_once("a", b"1") and not store.put_once("a", b"2") and store.get("a") == b"1"
    store.put("a", b"3")
    assert store.get("a", timeout_s=1) == b"3"
    client.key_value_try_get_bytes = client.key_value_set_bytes = _end
    for ask in (lambda: store.get("a"), lambda: store.put_once("b", b"")):
        with pytest.raises(RuntimeError, match="UNAVAILABLE"):
            ask()


def _end(*_, **__):
    raise RuntimeError("UNAVAILABLE: the job is over")


@pytest.mark.parametrize(("processes", "is_loaded"), [((0, 0), True), ((0, 1), False)])
def test_nothing_is_loaded_for_devices_of_several_processes(processes, is_loaded, monkeypatch):
    """The client of CPU devices compiles only for what it loads; of a job one process alone would load it."""
    module, options = object(), object()

    def refuses(*_, **__):
        raise RuntimeError("NOT_FOUND: No compiler factory for platform: cpu")

    client = SimpleNamespace(compile=refuses)
    devices = [SimpleNamespace(process_index=each, client=client) for each in processes]
    monkeypatch.setattr(compat, "_xla_client", lambda: SimpleNamespace(DeviceList=tuple))
    monkeypatch.setattr(compat, "are_attached", lambda _: True)
    monkeypatch.setattr(compat, "load_executable", lambda *given: given)
    if is_loaded:
        assert compat.compile_ahead_of_time(module, devices, options) == (module, devices, options)
    else:
        with pytest.raises(RuntimeError, match="NOT_FOUND"):
            compat.compile_ahead_of_time(module, devices, options)
