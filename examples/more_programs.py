"""Four more sharded programs, of kinds that `programs.py` does not have: vision, recommendation, simulation, serving.

They are run by name, `python -m reshard.tools.demo vision_transformer`; the demo without names runs those of
`programs.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import with_sharding_constraint
from jax.sharding import Mesh

from examples.programs import Program, layout, normal, placed

# --- vision_transformer ----------------------------------------------------------------------------


def build_vision_transformer(mesh: Mesh, size: str = "demo"):
    """Builds loss and gradients of a vision transformer; its images are sharded by rows of pixels.

    The loader hands every device some rows of some images, as a 2-D convolution or an augmentation would like them; the
    blocks work on patches by batch and sequence, attention on heads.
    Source: the model of arXiv 2010.11929, without the class token.
    """
    batch, side, patch, layers, heads, head_size = {
        "demo": (8, 128, 8, 4, 8, 32),
        "small": (8, 16, 4, 2, 4, 4),
        "pod": (64, 128, 8, 2, 16, 16),
        "large": (max(16, mesh.size), 768, 16, 2, 16, 128),
    }[size]
    width, classes = heads * head_size, 64
    tokens, features = (side // patch) ** 2, 3 * patch * patch
    by_rows = layout(mesh, "data", "model")
    by_tokens = layout(mesh, "data", "model")
    by_heads = layout(mesh, "data", None, "model")
    by_batch = layout(mesh, ("data", "model"))

    def patches(images):
        grid = images.reshape(batch, side // patch, patch, side // patch, patch, 3)
        return grid.transpose(0, 1, 3, 2, 4, 5).reshape(batch, tokens, features)

    def normalized(x):
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def block(x, weights):
        y = with_sharding_constraint(normalized(x), by_tokens)
        q, k, v = (with_sharding_constraint(jnp.einsum("btm,mhd->bthd", y, w), by_heads) for w in weights["qkv"])
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * head_size**-0.5)
        y = with_sharding_constraint(jnp.einsum("bhqk,bkhd->bqhd", scores, v), by_heads)
        x = with_sharding_constraint(x + jnp.einsum("bthd,hdm->btm", y, weights["out"]), by_tokens)
        y = jax.nn.gelu(jnp.einsum("btm,mf->btf", normalized(x), weights["up"]))
        return with_sharding_constraint(x + jnp.einsum("btf,fm->btm", y, weights["down"]), by_tokens)

    def loss(weights, images, labels):
        x = with_sharding_constraint(patches(images), by_tokens) @ weights["embed"] + weights["place"]
        x, _ = jax.lax.scan(lambda x, w: (jax.checkpoint(block)(x, w), None), x, weights["blocks"])
        x = with_sharding_constraint(normalized(x).mean(1), by_batch)
        chosen = jax.nn.log_softmax(x @ weights["head"])
        return -jnp.mean(jnp.take_along_axis(chosen, labels[:, None], 1))

    rng = np.random.default_rng(0)
    weights = {
        "embed": normal(rng, features, width, scale=features**-0.5),
        "place": normal(rng, tokens, width, scale=0.02),
        "head": normal(rng, width, classes, scale=width**-0.5),
        "blocks": {
            "qkv": normal(rng, layers, 3, width, heads, head_size, scale=width**-0.5),
            "out": normal(rng, layers, heads, head_size, width, scale=width**-0.5),
            "up": normal(rng, layers, width, 4 * width, scale=width**-0.5),
            "down": normal(rng, layers, 4 * width, width, scale=(4 * width) ** -0.5),
        },
    }
    layouts = {
        "embed": layout(mesh), "place": layout(mesh, "model"), "head": layout(mesh),
        "blocks": {
            "qkv": layout(mesh, None, None, None, "model"), "out": layout(mesh, None, "model"),
            "up": layout(mesh, None, None, "model"), "down": layout(mesh, None, "model"),
        },
    }  # fmt: skip
    images, labels = normal(rng, batch, side, side, 3), rng.integers(0, classes, batch)
    function = jax.jit(jax.value_and_grad(loss), out_shardings=(layout(mesh), layouts))
    return function, placed((weights, images, labels), (layouts, by_rows, layout(mesh, ("data", "model"))), size)


# --- recommender -----------------------------------------------------------------------------------


def build_recommender(mesh: Mesh, size: str = "demo"):
    """Builds loss and gradients of a click model whose embedding tables live on different devices.

    Each device looks the ids of the whole batch up in its own tables; then every device needs all tables' vectors of
    its part of the batch. The gradients go back the same way.
    Source: the model of arXiv 1906.00091.
    """
    batch, tables, rows, ids, width, dense = {
        "demo": (4096, 16, 4096, 4, 64, 32),
        "small": (32, 8, 16, 2, 8, 4),
        "pod": (4096, 256, 512, 4, 32, 32),
        "large": (16384, 64, 16384, 4, 128, 32),
    }[size]
    by_table, by_batch = layout(mesh, ("table", "batch")), layout(mesh, ("batch", "table"))
    pooled_by_table = layout(mesh, None, ("table", "batch"))
    hidden = 4 * width

    def loss(weights, numbers, looked_up, clicks):
        vectors = jax.vmap(lambda table, which: table[which].sum(1), in_axes=(0, 1), out_axes=1)(
            weights["tables"], looked_up
        )
        vectors = with_sharding_constraint(vectors, pooled_by_table)
        vectors = with_sharding_constraint(vectors, by_batch)
        bottom = jax.nn.relu(numbers @ weights["bottom"])[:, None]
        every = jnp.concatenate([bottom, vectors], axis=1)
        products = jnp.einsum("bim,bjm->bij", every, every)
        above = jnp.triu_indices(tables + 1, k=1)
        top = jax.nn.relu(jnp.concatenate([bottom[:, 0], products[:, above[0], above[1]]], axis=1) @ weights["top"])
        score = (top @ weights["last"])[:, 0]
        return jnp.mean(jnp.logaddexp(0.0, score) - clicks * score)

    rng = np.random.default_rng(0)
    pairs = width + (tables + 1) * tables // 2
    weights = {
        "tables": normal(rng, tables, rows, width, scale=width**-0.5),
        "bottom": normal(rng, dense, width, scale=dense**-0.5),
        "top": normal(rng, pairs, hidden, scale=pairs**-0.5),
        "last": normal(rng, hidden, 1, scale=hidden**-0.5),
    }
    whole = layout(mesh)
    layouts = {"tables": by_table, "bottom": whole, "top": whole, "last": whole}
    numbers, clicks = normal(rng, batch, dense), rng.integers(0, 2, batch).astype(np.float32)
    looked_up = rng.integers(0, rows, (batch, tables, ids)).astype(np.int32)
    function = jax.jit(jax.value_and_grad(loss), out_shardings=(whole, layouts))
    return function, placed((weights, numbers, looked_up, clicks), (layouts, by_batch, by_batch, by_batch), size)


# --- heat_adi --------------------------------------------------------------------------------------


def build_heat_adi(mesh: Mesh, size: str = "demo"):
    """Builds time steps of heat in a cube: an implicit solve along one dimension after the other.

    During its solve a dimension is whole on its device.
    Source: the alternating direction implicit method of Douglas and Gunn (1964); the lines by the Thomas algorithm.
    """
    n, steps = {"demo": (96, 2), "small": (16, 1), "pod": (64, 2), "large": (512, 2)}[size]
    strength = 0.4
    whole_along = (layout(mesh, None, "rows", "cols"), layout(mesh, "rows", None, "cols"), layout(mesh, "rows", "cols"))

    def along(u, dim):
        """Returns the second difference along one dimension; the faces of the cube are held at zero."""
        u = jnp.moveaxis(u, dim, 0)
        padded = jnp.pad(u, ((1, 1), (0, 0), (0, 0)))
        return jnp.moveaxis(padded[2:] - 2 * u + padded[:-2], 0, dim)

    def solve(u, dim):
        """Solves (1 - strength/2 * difference) v = u along the lines of a dimension."""
        lines = jnp.moveaxis(u, dim, 0)
        side, middle = -strength / 2, 1 + strength
        ratios, ratio = [], 0.0
        for _ in range(n):
            ratio = side / (middle - side * ratio)
            ratios.append(ratio)
        ratios = jnp.array(ratios, lines.dtype)

        def down(before, line_and_ratio):
            line, ratio = line_and_ratio
            now = (line - side * before) * ratio / side
            return now, now

        def up(after, line_and_ratio):
            line, ratio = line_and_ratio
            now = line - ratio * after
            return now, now

        zero = jnp.zeros_like(lines[0])
        _, swept = jax.lax.scan(down, zero, (lines, ratios))
        _, solved = jax.lax.scan(up, zero, (swept, ratios), reverse=True)
        return jnp.moveaxis(solved, 0, dim)

    def step(u, _):
        right = u + strength * sum(with_sharding_constraint(along(u, dim), whole_along[0]) for dim in range(3))
        for dim in range(3):
            right = with_sharding_constraint(right, whole_along[dim])
            right = with_sharding_constraint(solve(right, dim), whole_along[dim])
        return with_sharding_constraint(right, whole_along[0]), None

    def run(u):
        return jax.lax.scan(step, u, None, length=steps)[0]

    u = normal(np.random.default_rng(0), n, n, n)
    return jax.jit(run, out_shardings=whole_along[0]), (placed(u, whole_along[0], size),)


# --- decode_step -----------------------------------------------------------------------------------


def build_decode_step(mesh: Mesh, size: str = "demo"):
    """Builds one step of a language model that serves: one new position for each sequence, keys and values in a cache.

    Projections are sharded by features over all devices. The cache is sharded by sequences of the batch and by
    positions, so that long ones fit; the softmax over positions goes across devices.
    """
    batch, length, layers, heads, head_size, hidden = {
        "demo": (16, 1024, 4, 8, 64, 2048),
        "small": (4, 16, 2, 8, 4, 32),
        "pod": (64, 512, 2, 256, 4, 2048),
        "large": (16, 2048, 2, 16, 128, 8192),
    }[size]
    width = heads * head_size
    everything = ("batch", "length")
    cached = layout(mesh, None, "batch", "length")
    by_features = layout(mesh, None, everything)
    by_batch = layout(mesh, "batch")
    by_heads = layout(mesh, None, everything)

    def attention(x, weights, keys, values, position):
        q, k, v = (with_sharding_constraint(jnp.einsum("bm,mhd->bhd", x, w), by_heads) for w in weights["qkv"])
        q, k, v = (with_sharding_constraint(each, by_batch) for each in (q, k, v))
        keys = jax.lax.dynamic_update_slice(keys, k[:, None], (0, position, 0, 0))
        values = jax.lax.dynamic_update_slice(values, v[:, None], (0, position, 0, 0))
        scores = jnp.einsum("bhd,bthd->bht", q, keys) * head_size**-0.5
        scores = jnp.where(jnp.arange(length) <= position, scores, -jnp.inf)
        y = jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores), values)
        y = with_sharding_constraint(y, by_batch)
        y = with_sharding_constraint(y, by_heads)
        return jnp.einsum("bhd,hdm->bm", y, weights["out"]), keys, values

    def decode(weights, cache, x, position):
        def layer(x, each):
            w, keys, values = each
            y, keys, values = attention(x, w, keys, values, position)
            x = with_sharding_constraint(x + y, by_batch)
            y = with_sharding_constraint(jax.nn.silu(x @ w["up"]), by_features)
            return with_sharding_constraint(x + y @ w["down"], by_batch), (keys, values)

        x, cache = jax.lax.scan(layer, x, (weights, *cache))
        return x, cache

    rng = np.random.default_rng(0)
    weights = {
        "qkv": normal(rng, layers, 3, width, heads, head_size, scale=width**-0.5),
        "out": normal(rng, layers, heads, head_size, width, scale=width**-0.5),
        "up": normal(rng, layers, width, hidden, scale=width**-0.5),
        "down": normal(rng, layers, hidden, width, scale=hidden**-0.5),
    }
    layouts = {
        "qkv": layout(mesh, None, None, None, everything), "out": layout(mesh, None, everything),
        "up": layout(mesh, None, None, everything), "down": layout(mesh, None, everything),
    }  # fmt: skip
    cache = tuple(normal(rng, layers, batch, length, heads, head_size) for _ in range(2))
    x, position = normal(rng, batch, width), np.int32(length // 2)
    function = jax.jit(decode, out_shardings=(by_batch, (cached, cached)), donate_argnums=1)
    return function, placed((weights, cache, x, position), (layouts, (cached, cached), by_batch, layout(mesh)), size)


MORE_PROGRAMS: tuple[Program, ...] = (
    Program(
        "vision_transformer",
        "a vision transformer's loss and gradients, images sharded by rows of pixels, then by patches and by heads",
        (("data", 2), ("model", 4)),
        build_vision_transformer,
    ),
    Program(
        "recommender",
        "a click model's loss and gradients, embeddings sharded by table, the rest by batch",
        (("batch", 4), ("table", 2)),
        build_recommender,
    ),
    Program(
        "heat_adi",
        "heat in a cube, an implicit solve along one dimension after the other made whole",
        (("rows", 4), ("cols", 2)),
        build_heat_adi,
    ),
    Program(
        "decode_step",
        "one step of a language model that serves, its cache sharded by batch and positions, its weights by features",
        (("batch", 4), ("length", 2)),
        build_decode_step,
    ),
)
