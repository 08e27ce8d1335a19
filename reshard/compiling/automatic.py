# SPDX-License-Identifier: Apache-2.0
"""`reshard.auto`: a program without annotations, and the devices, give a sharded program."""

from __future__ import annotations

import functools
import inspect
import math
import os
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reshard.compiling import library_jits
from reshard.compiling.advising import site_network
from reshard.compiling.ahead_of_time import AheadOfTime
from reshard.compiling.call_arguments import DONATED, STATIC, Argument, Call, Parameters, key_of
from reshard.compiling.optimizing import (
    Report,
    Result,
    network_asked_for,
    optimize,
    optimized_module,
    refuse_contradictions,
    target_of,
)
from reshard.compiling.pinning import pinned_structs
from reshard.configuration import contexts
from reshard.configuration.settings import SETTINGS, resolved
from reshard.dialect_utils.assignment.factored_modules import KeptShardingError
from reshard.dialect_utils.ir.functions import public_functions
from reshard.dialect_utils.ir.module_files import ModuleFile
from reshard.dialect_utils.platform import compat, jax_seam, progress
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.platform.interrupts import DeferredInterrupts
from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.xla.child import XlaChild, shared_child
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.layouts import choice_text
from reshard.passes.layouts.assigning import assign_again
from reshard.passes.layouts.choosing import MOST_COMPILED, Choice, Chooser, meshes_for
from reshard.passes.layouts.judging import OnCpuDevices
from reshard.passes.sites.network import SiteNetwork, of_target
from reshard.planning import device_networks
from reshard.synthesis.assignment.tactics import Tactic, parse
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology

NO_LIMIT = 2**50  # bytes of memory, more than any device has

_KEPT = (
    "auto keeps the shardings that the function asks for: take this one out of it, or let it split by whole axes of "
    "the mesh that auto is given"
)
MeshLike = Any  # a jax Mesh, a mapping, text, or a Mesh


class AUTO:
    """The value of `in_shardings` with which `reshard.jit` chooses all layouts; it is not instantiated."""


# Of `auto`, beside those of `jax.jit`.
OPTIONS = (
    *("mesh", "devices", "topology", "memory_limit", "compile_for", "pinned", "tactics", "compiled_meshes"),
    "budget_s",
)


@dataclass(frozen=True)
class Automatic:
    """A program with the layouts that were chosen for it. `str()` gives a report.

    Attributes:
      mesh: the `jax.sharding.Mesh`.
      in_shardings: a `NamedSharding` for each argument by position that is not static, in a tuple of trees like them.
      keyword_shardings: the same for arguments by name that have no place. out_shardings: the same for the results.
      lowered: the program with its layouts and collectives. compiled: of it; it takes what `put` returns.
      choice: the meshes that were considered. result: of `optimize`.
    """

    mesh: Any
    in_shardings: tuple
    keyword_shardings: Mapping[str, Any]
    out_shardings: Any
    lowered: Any = field(repr=False)
    compiled: Any = field(repr=False)
    choice: Choice = field(repr=False)
    result: Result = field(repr=False)
    _parameters: Parameters = field(repr=False)
    _arguments: tuple[Argument, ...] = field(repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program, for the arguments of the function. Those that are elsewhere are put where they belong,
        which takes time."""
        return self.compiled(*self.put(*args, **kwargs))

    def put(self, *args: Any, **kwargs: Any) -> tuple:
        """Returns the arguments of the function that are not static, on the devices, as the program takes them: those
        by position, then those by name.

        Raises: ValueError for others than the program was made for.
        """
        return self._put(self._parameters.call(args, kwargs))

    def _put(self, call: Call) -> tuple:
        import jax

        if call.key != key_of(self._arguments):
            made, given = (", ".join(map(str, each)) or "none" for each in (self._arguments, call.arguments))
            raise ValueError(f"the program is for the arguments {made}, and is given {given}; make one for those")
        shardings = (*self.in_shardings, *self.keyword_shardings.values())
        return tuple(jax.device_put(each, sharding) for each, sharding in zip(call.values, shardings, strict=True))

    @property
    def report(self) -> Report:
        """Returns the report of `optimize` on the program with its layouts."""
        return self.result.report

    def to_dict(self) -> dict[str, Any]:
        """Returns the choice as plain data, schema `reshard.auto/1`."""
        return choice_text.as_dict(self.choice)

    def __str__(self) -> str:
        return choice_text.as_text(self.choice)


def auto(
    fun,
    *args: Any,
    mesh: MeshLike = None,
    devices: Sequence[Any] | None = None,
    topology: Topology | str | os.PathLike | None = None,
    memory_limit: int | str | None = None,
    compile_for: Target | str | None = None,
    pinned: Mapping[int | str, Any] | None = None,
    tactics: str | Sequence[str] = "",
    compiled_meshes: int = MOST_COMPILED,
    budget_s: float = math.inf,
    **kwargs: Any,
) -> Automatic:
    """Returns a function as a program on several devices: mesh, layouts and collectives are chosen.

    The program needs no annotation. Which axis splits which dimension of which tensor is chosen for all tensors
    together, by the modelled time of the whole program on the network, within the memory limit; then the most promising
    meshes are compiled, and the fastest is taken. Shardings that the function asks for are kept.

    Args:
      fun: a function, not jitted.
      *args: arrays, or `jax.ShapeDtypeStruct`s; only their shapes and types matter. Those that `static_argnums` or
        `static_argnames` name are part of the program.
      mesh: the mesh: a `jax.sharding.Mesh`, a mapping {"x": 4, "y": 2}, or text "x=4,y=2". None: the shapes of a mesh
        of all devices are tried, with axes named x, y, z.
      devices: where the program runs; None: as many of `jax.devices()` as the mesh has, or all of them.
      topology: the network that times are modelled on, as in `traffic`; None: that of the devices.
      memory_limit: of a device, in bytes, text such as "16GiB", or "device" for what a program may fill on the
        network; None: no limit.
      compile_for: a target such as "tpu:v5e:2x4", whose compiler judges the meshes, and its network is that of the
        program; None: XLA for CPU devices judges them.
      pinned: the number or name of an argument -> the PartitionSpec that all of its leaves have to have, or a tree of
        them, in which None leaves a part free; it needs a `mesh`.
      tactics: what axes may be for, such as "x=zero3,y=megatron+sequence", of `data`, `zero1`, `zero3`, `sequence`,
        `megatron`, `expert` and `auto`; other axes may be for anything. "megatron" alone is for all axes, and the parts
        may come in a sequence. It needs a `mesh`.
      compiled_meshes: how many meshes are compiled.
      budget_s: seconds after which no other mesh is tried, once there is a program; the report says so.
      **kwargs: options of `jax.jit`, such as `donate_argnums`; all others are arguments of the function. One that has
        the name of an option is given by position.
    Raises:
      MeshError, TopologyError, ByteSizeError: for a mesh, network or size that cannot be.
      ValueError: there are fewer devices than the mesh has, or another number than the target has; `pinned` or
        `tactics` without a mesh, or no such tactic, argument or sharding; in another trace the function takes a traced
        value that is no argument.
      TypeError: the function does not take such arguments, or is that of a library's jit, such as `flax.nnx.jit`.
      DiagnosedError: no layout keeps the memory limit; the message says how much is needed at least.

    Example, on 8 devices:

        step = reshard.auto(train_step, params, opt_state, batch, memory_limit="16GiB", donate_argnums=(0, 1))
        params, opt_state, batch = step.put(params, opt_state, batch)
        params, opt_state, loss = step.compiled(params, opt_state, batch)
    """
    options = {name: kwargs.pop(name) for name in sorted({*kwargs} & _jit_options())}
    parameters = _parameters_of(fun, options)
    own = {"mesh": mesh, "devices": devices, "topology": topology, "memory_limit": memory_limit}
    own |= {"compile_for": compile_for, "pinned": pinned, "tactics": tactics}
    own |= {"compiled_meshes": compiled_meshes, "budget_s": budget_s}
    return _automatic(parameters, parameters.call(args, kwargs), options, **own)


def _automatic(
    parameters: Parameters,
    call: Call,
    jit_options: Mapping[str, Any],
    *,
    mesh: MeshLike = None,
    devices: Sequence[Any] | None = None,
    topology: Topology | str | os.PathLike | None = None,
    memory_limit: int | str | None = None,
    compile_for: Target | str | None = None,
    pinned: Mapping[int | str, Any] | None = None,
    tactics: str | Sequence[str] = "",
    compiled_meshes: int = MOST_COMPILED,
    budget_s: float = math.inf,
) -> Automatic:
    """Returns the program of a call; the options are those of `auto`."""
    with DeferredInterrupts():
        import jax
    where = list(jax.devices() if devices is None else devices)
    shape = None if mesh is None else _shape_of(mesh)
    if shape is not None and shape.size > len(where):
        raise ValueError(f"{shape} has {shape.size} devices, and there are {len(where)}")
    if not budget_s >= 0:
        raise ValueError(f"budget_s = {budget_s} is no number of seconds")
    if pinned and shape is None:
        raise ValueError("pinned needs a mesh, since PartitionSpecs have the names of its axes")
    if tactics and shape is None:
        raise ValueError("tactics need a mesh, since they name its axes")
    if devices is None and isinstance(mesh, jax.sharding.Mesh):
        where = list(mesh.devices.flat)
    where = where[: shape.size if shape else len(where)]
    target = target_of({} if compile_for is None else {"compile_for": compile_for})
    if target is not None and target.devices != len(where):
        raise ValueError(f"{target} has {target.devices} devices, and the program is for {len(where)}")
    if topology is None:
        own = of_target(target) if target else device_networks.topology_of(where)
        topology = network_asked_for() or own or None
    network = site_network(topology, memory_limit)
    structs = _structs_of(call.values)
    if pinned and shape is not None:
        structs = pinned_structs(structs, pinned, call, parameters, shape, _jax_mesh(shape, where))
    fun = call.function()
    others = {name: each for name, each in jit_options.items() if not name.startswith((STATIC, DONATED))}
    donated = tuple(at for at, each in enumerate(call.dynamic) if parameters.donated.has(each))
    jit_options = {**others, "donate_argnums": donated, "keep_unused": True}  # so that each argument has a layout
    lowered = jax.jit(fun, **jit_options).lower(*structs)
    module = present(lowered.compiler_ir("stablehlo"))
    (main,) = public_functions(op.operation for op in module.body.operations)
    if jax_seam.is_tracing() and len(main.regions[0].blocks[0].arguments) > len(jax.tree.leaves(structs)):
        raise ValueError(
            "jax is tracing here, and the function takes a traced value that is no argument; make it one, or call auto "
            "outside of the trace"
        )
    name, source = compat.module_name(module), compat.bytecode(module)
    asked = parse(tactics if isinstance(tactics, str) else ",".join(tactics), shape.axis_names if shape else ())
    meshes = (shape,) if shape is not None else meshes_for(len(where))
    tried = {"compiled_meshes": compiled_meshes, "tactics": asked, "target": target, "budget_s": budget_s}
    try:
        choice = choose(source, name, meshes, network, **tried)
    except KeptShardingError as error:
        raise error.with_hint(_KEPT) from None
    return _compiled(parameters, call, structs, choice, _jax_mesh(choice.best.mesh, where), jit_options, target)


def _parameters_of(fun: Callable, jit_options: Mapping[str, Any]) -> Parameters:
    """Returns the parameters of a function.

    Raises: ValueError for options of `jax.jit` that `auto` does not take; TypeError for a function of a library's jit.
    """
    if library_jits.is_jitted(fun):
        raise TypeError(
            f"auto takes a function that is not jitted, and this one is by {type(fun).__module__}, which may keep "
            "state beside arguments and results; write it on trees of arrays, as docs/how-to/automatic.md does"
        )
    if refused := sorted(name for name in jit_options if name.startswith(("in_", "out_"))):
        raise ValueError(f"auto takes no {refused[0]}, since it chooses shardings; pinned fixes those of arguments")
    return Parameters.of(fun, jit_options)


def _jit_options() -> set[str]:
    """Returns the names of the options of `jax.jit`."""
    with DeferredInterrupts():
        import jax

    return {each.name for each in inspect.signature(jax.jit).parameters.values() if each.name != "fun"}


class AutoJitted:
    """What `reshard.jit(f, in_shardings=reshard.AUTO)` returns: a program is made for each kind of arguments. Inside
    another trace (`jax.grad`, `vmap`, an outer `jit`) it works like `jax.jit`, since layouts are of whole programs; and
    under `jax.disable_jit`, where there are none.

    `program(*args, **kwargs)` returns the `Automatic` for arguments; a call puts the arguments where it takes them, and
    runs it. Another value of a static argument is another program, and so is another context of jax, such as
    `jax.default_matmul_precision`.
    """

    def __init__(self, fun, options: Mapping[str, Any]):
        functools.update_wrapper(self, fun)  # the state of another one, which `fun` wraps, among the attributes
        self._own = {name: each for name, each in options.items() if name in OPTIONS}
        self._jit_options = {name: each for name, each in options.items() if name not in OPTIONS}
        self._parameters = _parameters_of(fun, self._jit_options)
        self._programs: dict[Any, Automatic] = {}
        self._stock: Callable | None = None

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Returns the method of an object whose class has this function, as for any function."""
        return self if instance is None else types.MethodType(self, instance)

    @property
    def _traced(self) -> Callable:
        """Returns the function for calls inside another trace."""
        import jax

        self._stock = self._stock or jax.jit(self._parameters.fun, **self._jit_options)
        return self._stock

    def program(self, *args: Any, **kwargs: Any) -> Automatic:
        """Returns the program for arguments of these shapes and types; the first time it is made, which takes time."""
        return self._program(self._parameters.call(args, kwargs))

    def _program(self, call: Call) -> Automatic:
        import jax

        leaves, tree = jax.tree.flatten(_structs_of(call.values))
        kinds = tuple((each.shape, each.dtype, each.weak_type) for each in leaves)
        key = call.key, tree, kinds, jax_seam.trace_context()
        if key not in self._programs:
            self._programs[key] = _automatic(self._parameters, call, self._jit_options, **self._own)
        return self._programs[key]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if jax_seam.is_tracing() or jax_seam.is_jit_disabled():
            return self._traced(*args, **kwargs)
        call = self._parameters.call(args, kwargs)
        program = self._program(call)
        return program.compiled(*program._put(call))


def choose(
    source: bytes,
    name: str,
    meshes: Sequence[Mesh],
    network: SiteNetwork,
    *,
    compiled_meshes: int = MOST_COMPILED,
    keeps_annotations: bool = True,
    tactics: Mapping[str, Tactic] | None = None,
    child: XlaChild | None = None,
    target: Target | None = None,
    is_from_jax: bool = True,
    budget_s: float = math.inf,
    takes_interrupts: bool = False,
) -> Choice:
    """Returns the meshes for a module, the best first, each with its layouts.

    Args:
      source: the module as MLIR text or bytecode. name: for people.
      network: with the memory limit. keeps_annotations: whether shardings that the module has are kept.
      tactics: axis -> what it may be for.
      target: whose compiler judges the meshes; None: XLA for CPU devices, with modelled times.
      budget_s: the time after which nothing else is tried, once there is a program.
      takes_interrupts: whether Ctrl-C does the same.
    Raises: DiagnosedError.
    """
    deadline = time.monotonic() + budget_s
    settings = resolved(_given(network), dict(contexts.current().options))
    refuse_contradictions(settings, is_run=True)
    with (
        make_context() as context,
        ir.Location.unknown(context),
        progress.shown(f"reshard: {name}", settings["progress"]),
    ):
        module = ModuleFile(f"<{name}>", source).chunks()[0].parse(context)
        _import(module)
        child = child or shared_child()
        if target is not None and target.is_ahead_of_time:
            judge = AheadOfTime(child, network, target)
        else:
            judge = OnCpuDevices(
                child,
                network,
                lambda content: optimized_module(content, settings, name, is_from_jax=is_from_jax).content,
            )
        chooser = Chooser(
            compat.bytecode(module),
            context,
            judge,
            network,
            network.memory_limit,
            keeps_annotations,
            tactics or {},
            deadline,
            takes_interrupts,
        )
        return chooser.choice(meshes, compiled_meshes)


def _import(module: ir.Module) -> None:
    """Gives a module Shardy's shardings in place of those in strings, which XLA obeys and no layout here would."""
    Pipeline.parse("import-gspmd").run(module, Session())


def _given(network: SiteNetwork) -> dict[str, Any]:
    """Returns the settings of `optimize` for a network. Where nobody names a limit, also none of the options around,
    memory has none: nobody annotated a program whose memory could be one."""
    given: dict[str, Any] = {"topology": network.topology} if network.is_known else {}
    if network.memory_limit is not None:
        given["memory_limit"] = network.memory_limit
    elif resolved({}, dict(contexts.current().options))["memory_limit"] == SETTINGS["memory_limit"].default:
        given["memory_limit"] = NO_LIMIT
    return given


def _structs_of(args: tuple) -> tuple:
    """Returns the shapes and types of arguments, without their shardings."""
    import jax

    found = jax.eval_shape(lambda *each: each, *args)
    return jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, weak_type=each.weak_type), found)


def _shape_of(mesh: MeshLike) -> Mesh:
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return Mesh.parse(mesh)
    axes = getattr(mesh, "shape", mesh)  # of a jax Mesh, an ordered mapping
    if not isinstance(axes, Mapping):
        raise TypeError(f"mesh = {mesh!r} is no jax.sharding.Mesh, mapping or text such as 'x=4,y=2'")
    return Mesh.of(axes)


def _jax_mesh(mesh: Mesh, devices: Sequence[Any]) -> Any:
    import jax
    import numpy as np

    shape = [size for _, size in mesh.axes]
    return jax.sharding.Mesh(np.array(devices, dtype=object).reshape(shape), mesh.axis_names)


def _compiled(
    parameters: Parameters,
    call: Call,
    structs: tuple,
    choice: Choice,
    mesh: Any,
    jit_options: Mapping[str, Any],
    target: Target | None,
) -> Automatic:
    """Lowers the function with the shardings that were chosen, and gives the program the same layouts inside."""
    import jax

    fun, best = call.function(), choice.best
    factored, layouts = best.assigned.factored, best.assigned.assignment.layouts

    def tree_of(tree, tensors: Sequence[int | None]):
        leaves, shape = jax.tree.flatten(tree)
        some = [None if tensor is None else factored.as_stated(tensor, layouts[tensor]) for tensor in tensors]
        named = [_named(mesh, each, len(leaf.shape)) for each, leaf in zip(some, leaves, strict=True)]
        return jax.tree.unflatten(shape, named)

    results = jax.jit(fun, **jit_options).lower(*structs).out_info
    in_shardings, out_shardings = tree_of(structs, factored.arguments), tree_of(results, factored.results)
    free = _structs_of(structs)
    jitted = jax.jit(fun, in_shardings=in_shardings, out_shardings=out_shardings, **jit_options)
    lowered = jitted.lower(*free)
    content = _with_layouts(lowered, choice)
    given = _given(choice.network)
    if target is not None:
        given["compile_for"] = target
    result = optimize(compat.lowered_with_module(lowered, content), **given)
    with compat.shardy_partitioner():  # the layouts are Shardy's, whether or not a site was rewritten
        compiled = result.compile()
    by_name = {each.name: sharding for each, sharding in zip(call.dynamic, in_shardings) if each.is_keyword}
    return Automatic(
        mesh,
        in_shardings[: len(in_shardings) - len(by_name)],
        by_name,
        out_shardings,
        result.lowered,
        compiled,
        choice,
        result,
        parameters,
        call.arguments,
    )


def _named(mesh: Any, sharding: Sharding | None, rank: int) -> Any:
    """Returns a layout as jax has it; None is that of an array that nothing can split.

    Args:
      rank: of the array. A random key has more dimensions in the module than in jax; those are not split.
    """
    import jax

    names = [[axis.name for axis in axes] for axes in sharding.dims[:rank]] if sharding else []
    entries = [None if not each else each[0] if len(each) == 1 else tuple(each) for each in names]
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*entries))


def _with_layouts(lowered: Any, choice: Choice) -> bytes:
    """Returns the module of a program whose arguments and results have shardings, with the layouts inside."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(compat.bytecode(lowered.compiler_ir("stablehlo")), context)
        _import(module)
        assign_again(module, choice.best.mesh, choice.network, choice.best.assigned)
        return compat.bytecode(module)
