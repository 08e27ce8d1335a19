# SPDX-License-Identifier: Apache-2.0
"""The one file that knows jax versions: each function probes for features, none compares version numbers.

jax is imported inside the functions, so importing this module costs nothing.
"""

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .typed import present

_ARTIFACT_PRODUCER = b"StableHLO_v"  # the producer string in a portable artifact's bytecode header


def jaxlib_version() -> str:
    """Returns the version of the installed jaxlib, without importing it."""
    return _installed_version("jaxlib")


def jax_versions() -> tuple[str, str]:
    """Returns the versions of the installed jax and jaxlib, without importing them."""
    return _installed_version("jax"), jaxlib_version()


@functools.cache
def _installed_version(package: str) -> str:
    """Returns the version of an installed package, if possible from the name of the folder that pip puts beside it.

    `importlib.metadata` reads mail headers instead, and loading the modules for that takes a tenth of the start of
    reshard-opt.
    """
    spec = find_spec(package)
    beside = Path(present(spec.submodule_search_locations)[0]).parent.glob(f"{package}-*.dist-info") if spec else ()
    names = [each.name.removeprefix(f"{package}-").removesuffix(".dist-info") for each in beside]
    if len(names) == 1:
        return names[0]
    from importlib import metadata

    return metadata.version(package)


def jax_context():
    """Returns the MLIR context that jax itself uses for the modules that it hands to XLA."""
    from jax._src.interpreters import mlir

    return mlir.make_ir_context()


def compile_options(
    devices: Sequence,
    env_options: Mapping[str, Any],
    *,
    propagates_to_parameters: Sequence[bool] = (),
    propagates_to_results: Sequence[bool] = (),
):
    """Returns XLA's options to partition one program over `devices` with Shardy.

    Args:
      devices: jax devices in the order of partition ids.
      env_options: per-compile XLA flags, names without dashes.
      propagates_to_parameters, propagates_to_results: one per parameter or result, whether XLA may choose its sharding.
    """
    import numpy as np
    from jax._src import compiler

    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides=dict(env_options),
    )
    build_options = options.executable_build_options
    build_options.use_spmd_partitioning = True
    build_options.use_shardy_partitioner = True
    build_options.allow_spmd_sharding_propagation_to_parameters = list(propagates_to_parameters)
    build_options.allow_spmd_sharding_propagation_to_output = list(propagates_to_results)
    return options


def _xla_client():
    # No public module of jax has it.
    from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

    return xla_client


def load_executable(module, devices: Sequence, options):
    """Compiles an MLIR module and returns the loaded executable."""
    xla_client = _xla_client()

    client = devices[0].client
    compile_and_load = getattr(client, "compile_and_load", client.compile)
    device_list = xla_client.DeviceList(tuple(devices))
    return compile_and_load(module, executable_devices=device_list, compile_options=options)


def compile_ahead_of_time(module, devices: Sequence, options):
    """Compiles an MLIR module for devices of a topology, or attached ones, and returns the executable, which is not on
    the devices; but where the client of those of this process only compiles for what it loads. Nothing is loaded for
    devices of several processes, which all would have to."""
    xla_client, client = _xla_client(), devices[0].client
    try:
        return client.compile(module, executable_devices=xla_client.DeviceList(tuple(devices)), compile_options=options)
    except Exception as error:
        only_loads = re.match("NOT_FOUND: No compiler|UNIMPLEMENTED", str(error))
        if not only_loads or not are_attached(devices) or process_count(devices) > 1:
            raise
    return load_executable(module, devices, options)


def parameter_shardings(executable, count: int) -> list:
    """Returns the OpSharding proto of each of `count` parameters; replicated if the executable has none."""
    return _or_replicated(executable.get_parameter_shardings(), count)


def output_shardings(executable, count: int) -> list:
    """Returns the OpSharding proto of each of `count` results; replicated if the executable has none."""
    return _or_replicated(executable.get_output_shardings(), count)


def _or_replicated(shardings: Sequence | None, count: int) -> list:
    xla_client = _xla_client()

    return list(shardings or [xla_client.HloSharding.replicate().to_proto()] * count)


def hlo_sharding(op_sharding):
    """Returns the HloSharding of an OpSharding proto."""
    xla_client = _xla_client()

    return xla_client.HloSharding.from_proto(op_sharding)


def can_read_shardings() -> bool:
    """Returns whether this jaxlib reads the text of an HLO sharding."""
    return hasattr(_xla_client().HloSharding, "from_string")


def hlo_shardings_of_text(text: str) -> tuple:
    """Returns the HloSharding of a text such as `{devices=[2,1]<=[2]}`, or those of a tuple such as `{{replicated}}`.

    Newer jaxlibs write `{mesh['x'=2], [{'x'}, {}]}`; these are turned into the older form, as executables have it.
    """
    sharding = _xla_client().HloSharding.from_string(text)
    parts = sharding.tuple_elements() if text.startswith("{{") else (sharding,)
    return tuple(each.v3_to_v2_sharding() if hasattr(each, "v3_to_v2_sharding") else each for each in parts)


def array_sharding(op_sharding, devices: Sequence):
    """Returns the jax sharding over `devices` that an OpSharding proto describes."""
    from jax._src import sharding_impls

    return sharding_impls.GSPMDSharding(tuple(devices), op_sharding)


def execute_sharded(executable, arguments: Sequence) -> list[list]:
    """Runs an executable on global jax arrays; returns for each result its single-device arrays, in device order."""
    return executable.execute_sharded(list(arguments)).disassemble_into_single_device_arrays()


def prepare_linear_algebra() -> None:
    """Loads LAPACK where jaxlib has it: jax does so when it lowers a call to it, and a call without ends the
    process."""
    try:
        from jaxlib import lapack

        lapack.prepare_lapack_call("potrf_ffi", "float32")
    except (ImportError, AttributeError, NotImplementedError):
        return  # this jaxlib has no LAPACK, or has it elsewhere; a call to it says so itself


def parse_module(context, module: str | bytes):
    """Returns the MLIR module in `module`: text, bytecode or a StableHLO portable artifact."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    if isinstance(module, bytes) and _ARTIFACT_PRODUCER in module[:64]:
        return stablehlo.deserialize_portable_artifact(context, module)
    with context, ir.Location.unknown(context):
        return ir.Module.parse(module)


# What jax.jit(compiler_options=...) may say that is no flag: fields of XLA's build options; and jax's own settings of
# them, with others that change what is compiled.
_EFFORTS = ("exec_time_optimization_effort", "memory_fitting_effort")
_LEVELS = ("optimization_level", "memory_fitting_level", *_EFFORTS, "fdo_profile")
_SETTINGS = ("optimization_level", "memory_fitting_level", *_EFFORTS, "enable_remat_opt_pass")


def compiler_levels(compile_options) -> dict[str, Any]:
    """Returns what `jax.jit(compiler_options=...)` has set in XLA's options of a compilation beside flags."""
    from jax._src import compiler

    usual = compiler.get_compile_options(1, 1).executable_build_options
    given = compile_options.executable_build_options
    levels = ((name, getattr(given, name)) for name in _LEVELS if hasattr(given, name))
    return {name: value for name, value in levels if value != getattr(usual, name)}


def set_compiler_levels(compile_options, levels: Mapping[str, Any]) -> None:
    """Sets what `compiler_levels` returns."""
    for name, value in levels.items():
        setattr(compile_options.executable_build_options, name, value)


def levels_around() -> dict[str, str]:
    """Returns jax's own settings of the same, as texts."""
    import jax

    found = {name: getattr(jax.config, f"jax_{name}", None) for name in _SETTINGS}
    return {name: str(value) for name, value in found.items()}


def lowered_compiler_options(lowered) -> dict[str, str]:
    """Returns the `compiler_options` of the `jax.jit` that a `jax.stages.Lowered` is of, as texts of flags."""
    given = getattr(lowered._lowering, "_compiler_options_kvs", ())
    return {name: _flag_text(value) for name, value in given if name not in _LEVELS}


def compiler_options(compile_options) -> dict[str, str]:
    """Returns what `jax.jit(compiler_options=...)` has put into XLA's options of a compilation, as texts of flags."""
    return {name: _flag_text(value) for name, value in compile_options.env_option_overrides}


def _flag_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def module_name(module) -> str:
    """Returns the name of an MLIR module, such as jit_step; "module" for one without."""
    from jaxlib.mlir import ir

    attributes = module.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else "module"


def bytecode(module) -> bytes:
    """Returns an MLIR module as bytecode, with its locations."""
    import io

    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def cpu_devices_environment(num_devices: int) -> dict[str, str]:
    """Returns the environment variables that give a process `num_devices` CPU devices.

    JAX_NUM_CPU_DEVICES is one of them because jax takes the number from there, and not from the flag, if both are set.
    """
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(num_devices),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}",
    }


@functools.lru_cache(maxsize=1)
def _store_of(client) -> "JobStore":
    return JobStore(client)


def job_store() -> "JobStore | None":
    """Returns the key-value store that the processes of this job share; None outside of `jax.distributed`."""
    from jax._src import distributed

    client = distributed.global_state.client
    return None if client is None else _store_of(client)


def process_index() -> int:
    """Returns this process's index in its job, 0 outside of one."""
    from jax._src import distributed

    return distributed.global_state.process_id


class JobStore:
    """Bytes by key, shared through jax's distributed runtime. Any method raises RuntimeError once the job is over."""

    def __init__(self, client):
        self._client = client

    def put(self, key: str, value: bytes) -> None:
        """Keeps a value, in place of an older one."""
        self._client.key_value_set_bytes(key, value, allow_overwrite=True)

    def put_once(self, key: str, value: bytes) -> bool:
        """Keeps a value unless there is one; returns whether it did."""
        try:
            self._client.key_value_set_bytes(key, value)
        except RuntimeError as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    def get(self, key: str, timeout_s: float = 0) -> bytes | None:
        """Returns a value, waiting for it; None if it does not arrive in time."""
        try:
            if timeout_s > 0:
                return self._client.blocking_key_value_get_bytes(key, max(1, int(timeout_s * 1000)))
            return self._client.key_value_try_get_bytes(key)
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error) or "NOT_FOUND" in str(error):
                return None
            raise


def are_attached(devices: Sequence) -> bool:
    """Returns whether devices belong to a backend that runs programs, not to one that only compiles for them."""
    from jax._src import xla_bridge

    clients = list(xla_bridge.backends().values())
    return all(any(device.client is client for client in clients) for device in devices)


def process_count(devices: Sequence) -> int:
    """Returns how many processes own some of the devices."""
    return len({device.process_index for device in devices})


def lowered_devices(lowered) -> tuple:
    """Returns the devices that a `jax.stages.Lowered` is for, in the order of partitions; () if it names none."""
    devices = getattr(lowered._lowering, "_device_list", None)
    return () if devices is None else tuple(devices)


def kept_arguments(lowered, count: int) -> list[int]:
    """Returns which of `count` leaves of its arguments the module of a `jax.stages.Lowered` takes: jax drops those that
    the function does not use, unless it is told otherwise. Source: `jax._src.interpreters.pxla.MeshComputation`."""
    kept = getattr(lowered._lowering, "compile_args", {}).get("kept_var_idx")
    return list(range(count)) if kept is None else sorted(kept)


def lowered_with_module(lowered, content: bytes):
    """Returns a copy of a `jax.stages.Lowered` that compiles another module; `lowered` stays as it is.

    Args:
      content: the module as MLIR bytecode or text, with the signature of the one that `lowered` holds.
    The copy has never been compiled, whatever jit has cached for `lowered`. Calling convention, donation and output
    shardings live beside the module and are kept. Source: `jax._src.interpreters.pxla.MeshComputation`.
    """
    import copy

    module = parse_module(jax_context(), content)
    lowering = copy.copy(lowered._lowering)
    if not hasattr(lowering, "_hlo") or not hasattr(lowering, "_executable"):
        raise NotImplementedError(f"this jax keeps the module of a {type(lowering).__name__} elsewhere")
    lowering._hlo = module
    lowering._executable = None
    copied = copy.copy(lowered)
    copied._lowering = lowering
    return copied


@contextlib.contextmanager
def shardy_partitioner():
    """Makes jax compile with Shardy, which a module with Shardy's ops needs, even if the user has chosen GSPMD."""
    import jax

    name = "jax_use_shardy_partitioner"
    if getattr(jax.config, name, True):
        yield
        return
    jax.config.update(name, True)
    try:
        yield
    finally:
        jax.config.update(name, False)


def exported_with_module(exported, artifact: bytes, optimized_vjp):
    """Returns a copy of a `jax.export.Exported` with another module; all else stays.

    Args:
      artifact: a portable artifact with the signature of the one that `exported` holds.
      optimized_vjp: called with the exported derivative once it is asked for; returns the derivative of the copy.
    """
    import dataclasses

    derivative = (lambda _: optimized_vjp(exported.vjp())) if exported.has_vjp() else None
    return dataclasses.replace(exported, mlir_module_serialized=artifact, _get_vjp=derivative)


def exported(content: bytes):
    """Returns the `jax.export.Exported` in the bytes that `serialize` wrote. Raises: as `exported_artifact`."""
    from jax import export

    return export.deserialize(bytearray(content))


def exported_artifact(content: bytes) -> bytes:
    """Returns the portable artifact in the bytes that `jax.export.Exported.serialize` wrote.

    Raises: ImportError without the package flatbuffers; any exception of jax's reader for a damaged file.
    """
    return bytes(exported(content).mlir_module_serialized)


def exported_with_artifact(content: bytes, artifact: bytes) -> bytes:
    """Returns the bytes of `serialize` with another module: trees, types, shardings, effects and derivatives stay."""
    import dataclasses

    from jax import export

    exported = export.deserialize(bytearray(content))
    orders, derivative = 0, exported
    while derivative.has_vjp():
        orders, derivative = orders + 1, derivative.vjp()
    return bytes(dataclasses.replace(exported, mlir_module_serialized=artifact).serialize(vjp_order=orders))


def stablehlo_of_hlo(text: str) -> bytes:
    """Returns the StableHLO module, as MLIR bytecode, that XLA converts HLO text to.

    Raises: ImportError where jaxlib has no converter; XLA's error where it refuses the text.
    """
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]: an extension module without stubs

    if hasattr(_jax, "hlo_module_from_text"):
        reader = _jax.hlo_module_from_text
    else:
        from jaxlib._hlo import hlo_module_from_text as reader
    if not hasattr(_jax.mlir, "hlo_to_stablehlo"):
        raise ImportError("this jaxlib has no hlo_to_stablehlo")
    return _jax.mlir.hlo_to_stablehlo(reader(text).as_serialized_hlo_module_proto())


def array_of_tiles(shape: tuple[int, ...], sharding, tiles: Sequence, dtype):
    """Returns the jax array of which this process holds `tiles`, one for each of its devices, maybe none."""
    import jax

    return jax.make_array_from_single_device_arrays(shape, sharding, tiles, dtype=dtype)


def wide_types(dtypes):
    """Returns the context in which jax keeps elements of 64 bits, if one of the types has them."""
    import jax
    import numpy as np

    is_wide = any(np.dtype(each).name in ("float64", "int64", "uint64", "complex128") for each in dtypes)
    return jax.enable_x64(True) if is_wide else contextlib.nullcontext()
