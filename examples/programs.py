"""Sharded JAX programs in which tensors change layout, each on eight devices.

Every entry of `PROGRAMS` builds a jitted function and concrete, placed arguments:

    entry = program("fft_pencil")
    function, args = entry.build(entry.mesh(), size="small")
    psi = function(*args)

On a machine without eight accelerators set
`XLA_FLAGS=--xla_force_host_platform_device_count=8` before jax is imported.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

SIZES = ("demo", "small", "pod", "large")  # "pod" divides over meshes of up to 256 devices
LARGE = "large"  # widths and lengths of real models; to be lowered and compiled, not run


@dataclass(frozen=True)
class Program:
    """A sharded program and the mesh that it is written for.

    Attributes:
      name: what commands and files call it.
      summary: one line, what moves where.
      mesh_axes: (name, size) of every mesh axis, major to minor; eight devices in all.
      build: `build(mesh, size="demo")` returns `(function, args)`, a jitted function and arrays
        that already live on `mesh`. The arrays depend on `size` (one of SIZES) alone; those of
        LARGE are `ShapeDtypeStruct`s with shardings.
        Arguments that the function donates are gone after a call; build again for fresh ones.
    """

    name: str
    summary: str
    mesh_axes: tuple[tuple[str, int], ...]
    build: Callable[..., tuple[Callable, tuple]]

    def mesh(self) -> Mesh:
        """Returns the program's mesh over the first eight devices, in row-major order."""
        names, sizes = zip(*self.mesh_axes)
        return jax.make_mesh(
            sizes, names, axis_types=(AxisType.Auto,) * len(names), devices=jax.devices()[: np.prod(sizes)]
        )

    def lower(self, size: str = "demo") -> jax.stages.Lowered:
        """Returns the program, lowered for its own mesh."""
        function, args = self.build(self.mesh(), size=size)
        return function.lower(*args)


def program(name: str) -> Program:
    """Returns the program called `name`.

    Raises: ValueError if there is none, naming those there are.
    """
    for entry in all_programs():
        if entry.name == name:
            return entry
    raise ValueError(f"no example program {name!r}; there are {', '.join(p.name for p in all_programs())}")


def layout(mesh: Mesh, *spec) -> NamedSharding:
    """Returns the sharding that gives the axes `spec[d]` of `mesh` to dimension `d`."""
    return NamedSharding(mesh, P(*spec))


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Returns float32 samples of a normal distribution with standard deviation `scale`."""
    return scale * rng.standard_normal(shape, np.float32)


def placed(values, shardings, size: str):
    """Returns a tree of arrays, placed as a tree of shardings, or a prefix of one, says; of LARGE their shapes."""
    if size != LARGE:
        return jax.device_put(values, shardings)

    def shapes(sharding, part):
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype), sharding=sharding), part
        )

    return jax.tree.map(shapes, shardings, values)


# --- issue_21562 -----------------------------------------------------------------------------------


def build_issue_21562(mesh: Mesh, size: str = "demo"):
    """Builds the program of jax-ml/jax issue 21562, with larger arrays than the issue's 16 x 16 x 16."""
    n = {"demo": 256, "small": 16, "pod": 256, "large": 512}[size]
    by_y_and_x = layout(mesh, "y", None, "x")
    by_columns = layout(mesh, None, ("x", "y"), None)

    def add_in_two_layouts(a, b, c):
        d = a + b
        d = with_sharding_constraint(d, by_columns)
        return c + d

    function = jax.jit(
        add_in_two_layouts,
        in_shardings=(by_y_and_x, by_y_and_x, by_columns),
        out_shardings=by_columns,
    )
    cube = np.arange(n**3, dtype=np.float32).reshape(n, n, n)
    return function, tuple(placed(cube, s, size) for s in (by_y_and_x, by_y_and_x, by_columns))


# --- llama_train_step ------------------------------------------------------------------------------


def build_llama_train_step(mesh: Mesh, size: str = "demo"):
    """Builds one optimizer step of a Llama-style transformer; see llama.py, which alone needs flax and optax."""
    from examples import llama

    return llama.build(mesh, size)


# --- moe_layer -------------------------------------------------------------------------------------


def route_top2(probabilities, capacity: int):
    """Returns how tokens and expert slots are paired, and the load-balancing loss, as GShard does.

    Args:
      probabilities: [groups, tokens, experts], the router's softmax.
      capacity: slots per expert and group; tokens that find no free slot are dropped.

    Returns: `combine` [groups, tokens, experts, capacity], zero where token and slot are not paired,
      and a scalar that is smallest when all experts are equally busy.

    Source: arXiv 2006.16668, algorithm 1 (with the second expert always used).
    """
    experts = probabilities.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(probabilities, axis=-1), experts)
    second = jax.nn.one_hot(jnp.argmax(probabilities * (1 - first), axis=-1), experts)
    balance = experts**2 * jnp.mean(first.mean(axis=1) * probabilities.mean(axis=1))

    combine = 0.0
    slots_taken = jnp.zeros_like(first[:, :1])
    for choice in (first, second):
        slot = jnp.cumsum(choice, axis=1) - choice + slots_taken
        slots_taken = slots_taken + jnp.sum(choice, axis=1, keepdims=True)
        # one_hot is all zeros for a slot beyond the capacity: that token is dropped.
        in_slot = jax.nn.one_hot(slot.astype(jnp.int32), capacity)
        combine += (probabilities * choice)[..., None] * in_slot
    kept = jnp.sum(combine, axis=(2, 3), keepdims=True)
    return combine / jnp.maximum(kept, 1e-9), balance


def build_moe_layer(mesh: Mesh, size: str = "demo"):
    """Builds loss and gradients of a mixture-of-experts layer: tokens visit their experts and return."""
    groups, tokens, width, hidden, experts = {
        "demo": (8, 256, 256, 1024, 16),
        "small": (8, 16, 8, 16, 8),
        "pod": (256, 64, 128, 512, 64),
        "large": (max(16, mesh.size), 2048, 2048, 4096, 16),
    }[size]
    capacity = 5 * 2 * tokens // (4 * experts)  # a quarter more than two balanced choices need
    by_group = layout(mesh, ("data", "expert"))
    by_group_and_expert = layout(mesh, "data", "expert")
    by_expert = layout(mesh, "expert")
    replicated = layout(mesh)

    def moe(weights, x):
        combine, balance = route_top2(jax.nn.softmax(x @ weights["router"]), capacity)
        dispatch = (combine > 0).astype(x.dtype)

        # Slots are filled where the tokens live, then move to the devices that hold their expert.
        slots = with_sharding_constraint(jnp.einsum("gtec,gtm->gecm", dispatch, x), by_group)
        slots = with_sharding_constraint(slots, by_group_and_expert)
        h = jax.nn.gelu(jnp.einsum("gecm,emh->gech", slots, weights["up"]))
        slots = with_sharding_constraint(jnp.einsum("gech,ehm->gecm", h, weights["down"]), by_group_and_expert)
        slots = with_sharding_constraint(slots, by_group)
        return jnp.einsum("gtec,gecm->gtm", combine, slots), balance

    def loss(weights, x, target):
        y, balance = moe(weights, x)
        return jnp.mean(jnp.square(x + y - target)) + 0.01 * balance

    rng = np.random.default_rng(0)
    weights = {
        "router": normal(rng, width, experts, scale=width**-0.5),
        "up": normal(rng, experts, width, hidden, scale=width**-0.5),
        "down": normal(rng, experts, hidden, width, scale=hidden**-0.5),
    }
    x, target = normal(rng, groups, tokens, width), normal(rng, groups, tokens, width)
    weight_layouts = {"router": replicated, "up": by_expert, "down": by_expert}
    function = jax.jit(jax.value_and_grad(loss), out_shardings=(replicated, weight_layouts))
    args = placed((weights, x, target), (weight_layouts, by_group, by_group), size)
    return function, args


# --- sequence_parallel_attention -------------------------------------------------------------------


def build_sequence_parallel_attention(mesh: Mesh, size: str = "demo"):
    """Builds loss and gradients of attention that trades sequence shards for head shards and back.

    Source: DeepSpeed Ulysses, arXiv 2309.14509.
    """
    batch, length, heads, head_size = {
        "demo": (4, 512, 8, 32),
        "small": (2, 16, 4, 4),
        "pod": (16, 512, 16, 32),
        "large": (16, 2048, 16, 128),
    }[size]
    width = heads * head_size

    by_sequence = layout(mesh, "data", "seq")
    by_heads = layout(mesh, "data", None, "seq")
    replicated = layout(mesh)

    def attention(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * head_size**-0.5
        causal = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    def loss(weights, x, target):
        qkv = [jnp.einsum("btm,mhd->bthd", x, weights[name]) for name in ("q", "k", "v")]
        # Projections need all features of some positions, attention all positions of some heads.
        qkv = with_sharding_constraint(qkv, by_sequence)
        qkv = with_sharding_constraint(qkv, by_heads)
        y = with_sharding_constraint(attention(*qkv), by_heads)
        y = with_sharding_constraint(y, by_sequence)
        y = jnp.einsum("bthd,hdm->btm", y, weights["out"])
        return jnp.mean(jnp.square(x + y - target))

    rng = np.random.default_rng(0)
    weights = {name: normal(rng, width, heads, head_size, scale=width**-0.5) for name in ("q", "k", "v")}
    weights["out"] = normal(rng, heads, head_size, width, scale=width**-0.5)
    x, target = normal(rng, batch, length, width), normal(rng, batch, length, width)
    function = jax.jit(jax.value_and_grad(loss), out_shardings=replicated)
    args = placed((weights, x, target), (replicated, by_sequence, by_sequence), size)
    return function, args


# --- fft_pencil ------------------------------------------------------------------------------------


def build_fft_pencil(mesh: Mesh, size: str = "demo"):
    """Builds one time step of a quantum wave function: 3-D FFT, phase, inverse FFT, on pencils.

    The grid is cut along two dimensions at a time; the third is whole on every device, and that is
    the one transformed.
    """
    n = {"demo": 128, "small": 16, "pod": 64, "large": 512}[size]
    time_step = 0.1
    # The layout in which dimension d is whole on every device, for d = 0, 1, 2.
    pencils = (layout(mesh, None, "rows", "cols"), layout(mesh, "rows", None, "cols"), layout(mesh, "rows", "cols"))

    def transform_lines(psi, fft, dim):
        """Transforms along `dim`, which is whole, on each device alone (some XLA releases gather an FFT's operand)."""
        spec = pencils[dim].spec
        return jax.shard_map(lambda tile: fft(tile, axis=dim), mesh=mesh, in_specs=spec, out_specs=spec)(psi)

    def transform(psi, fft):
        """Transforms all three dimensions; the result is laid out as `psi` came, with dimension 0 whole."""
        psi = transform_lines(psi, fft, dim=0)
        psi = with_sharding_constraint(psi, pencils[1])
        psi = transform_lines(psi, fft, dim=1)
        psi = with_sharding_constraint(psi, pencils[2])
        psi = transform_lines(psi, fft, dim=2)
        return with_sharding_constraint(psi, pencils[0])

    def split_step(psi, potential):
        psi = psi * jnp.exp(-1j * time_step * potential)
        k = 2 * jnp.pi * jnp.fft.fftfreq(n)
        kinetic = 0.5 * (k[:, None, None] ** 2 + k[:, None] ** 2 + k**2)
        psi = transform(psi, jnp.fft.fft) * jnp.exp(-1j * time_step * kinetic)
        return transform(psi, jnp.fft.ifft)

    rng = np.random.default_rng(0)
    psi = (normal(rng, n, n, n) + 1j * normal(rng, n, n, n)).astype(np.complex64)
    psi /= np.linalg.norm(psi)
    potential = normal(rng, n, n, n)
    return jax.jit(split_step, out_shardings=pencils[0]), placed((psi, potential), pencils[0], size)


PROGRAMS: tuple[Program, ...] = (
    Program(
        "issue_21562",
        "one addition, of arrays in two layouts that share no sharded dimension",
        (("x", 4), ("y", 2)),
        build_issue_21562,
    ),
    Program(
        "llama_train_step",
        "a transformer's training step, activations sharded by sequence and by tensor in turn",
        (("data", 2), ("fsdp", 2), ("tensor", 2)),
        build_llama_train_step,
    ),
    Program(
        "moe_layer",
        "a mixture-of-experts layer, tokens sharded by data and by expert in turn",
        (("data", 2), ("expert", 4)),
        build_moe_layer,
    ),
    Program(
        "sequence_parallel_attention",
        "attention, activations sharded by sequence and by heads in turn",
        (("data", 2), ("seq", 4)),
        build_sequence_parallel_attention,
    ),
    Program(
        "fft_pencil",
        "a 3-D FFT and its inverse, one dimension after the other made whole",
        (("rows", 4), ("cols", 2)),
        build_fft_pencil,
    ),
)


def all_programs() -> tuple[Program, ...]:
    """Returns `PROGRAMS` and the programs of more_programs.py."""
    from examples.more_programs import MORE_PROGRAMS

    return (*PROGRAMS, *MORE_PROGRAMS)
