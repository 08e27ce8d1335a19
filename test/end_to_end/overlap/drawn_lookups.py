# SPDX-License-Identifier: Apache-2.0
"""Random manual computations of lookups and products in other shapes before a collective, as StableHLO text."""

from __future__ import annotations

from test.end_to_end.overlap.drawn import Drawn, DrawnModule, drawn_module

Shape = tuple[int, ...]


def drawn_lookup(seed: int) -> Drawn:
    """Returns the module of a seed."""
    return drawn_module(seed, DrawnLookups, ("swapped", "swapped", "scattered"))


class DrawnLookups(DrawnModule):
    """Draws one module: a lookup or a product, up to three ops behind it, and a collective."""

    def _swapped(self):
        value, shape = self._behind()
        fits = [dim for dim, size in enumerate(shape) if size % self.members == 0]
        if not fits:
            return [(value, shape)]
        _, whole = self._exchange(value, "%c", shape=shape, split=self.rng.choice(fits))
        return [("%c", whole)]

    def _scattered(self):
        return self._sum_of(*self._behind())

    def _behind(self) -> tuple[str, Shape]:
        """Returns a lookup or a product, and what is made of it."""
        value, shape = self._looked_up() if self.rng.random() < 0.7 else self._multiplied()
        ways = (self._bag, self._in_another_shape, self._with_bias, self._masked, self._transposed, self._with_more)
        for way in self.rng.sample(ways, self.rng.choice((0, 1, 1, 2, 3))):
            value, shape = way(value, shape)
        return value, shape

    def _multiplied(self) -> tuple[str, Shape]:
        left = self._shape(self.rng.randint(1, 3))
        return self._product(self._argument(left), left)

    def _looked_up(self) -> tuple[str, Shape]:
        """Draws a gather. Dimensions of the table are shared with the indices, indexed, or windows of rows."""
        rng = self.rng
        batches = list(self._shape(rng.randint(1, 3)))
        kinds = ["indexed", *rng.choices(("indexed", "window", "window"), k=rng.randint(0, 2))]
        kinds += ["shared"] * (rng.random() < 0.25)
        rng.shuffle(kinds)
        shared_batch = rng.randrange(len(batches))
        table = [batches[shared_batch] if kind == "shared" else self._shape(1)[0] for kind in kinds]
        taken = [size if kind == "window" else 1 for kind, size in zip(kinds, table)]
        if rng.random() < 0.2:
            taken = [rng.randint(1, size) if kind == "window" else 1 for kind, size in zip(kinds, table)]
        at = {kind: [dim for dim, each in enumerate(kinds) if each == kind] for kind in ("indexed", "window", "shared")}
        kept = [dim for dim in at["indexed"] if rng.random() < 0.2]  # as dimensions of size 1
        windows = sorted((*at["window"], *kept))
        starts = [*at["indexed"], *(dim for dim in at["window"] if rng.random() < 0.2)]
        rng.shuffle(starts)
        vector = rng.randint(0, len(batches))
        indices = [*batches[:vector], len(starts), *batches[vector:]]
        places = sorted(rng.sample(range(len(batches) + len(windows)), len(windows)))
        left, rows = list(batches), [taken[dim] for dim in windows]
        shape = tuple((rows if dim in places else left).pop(0) for dim in range(len(batches) + len(windows)))
        shared = [shared_batch + (shared_batch >= vector)] if at["shared"] else []
        numbers = (
            f"offset_dims = {places}, collapsed_slice_dims = {[dim for dim in at['indexed'] if dim not in kept]}, "
            f"operand_batching_dims = {at['shared']}, start_indices_batching_dims = {shared}, "
            f"start_index_map = {starts}, index_vector_dim = {vector}"
        )
        where = self._indices(tuple(indices))
        values = self._argument(tuple(table))
        self.lines.append(
            f'%look = "stablehlo.gather"({values}, {where}) <{{dimension_numbers = #stablehlo.gather<{numbers}>, '
            f"slice_sizes = array<i64: {', '.join(map(str, taken))}>, indices_are_sorted = false}}> : "
            f"({self._kind(table)}, {self._whole_numbers(indices)}) -> {self._kind(shape)}"
        )
        return "%look", shape

    def _indices(self, shape: Shape) -> str:
        """Returns an argument as places of a table, some of them behind its ends."""
        given, kind = self._argument(shape), self._whole_numbers(shape)
        self.lines += [
            f"%where = stablehlo.convert {given} : ({self._kind(shape)}) -> {kind}"
            if self.element != "i32" else f"%where = stablehlo.negate {given} : {kind}",
            f"%three = stablehlo.constant dense<3> : {kind}",
            f"%places = stablehlo.multiply %where, %three : {kind}",
        ]  # fmt: skip
        return "%places"

    # ---- ops behind a lookup

    def _bag(self, value: str, shape: Shape) -> tuple[str, Shape]:
        if len(shape) < 2:
            return value, shape
        dim = self.rng.randrange(len(shape))
        rest = (*shape[:dim], *shape[dim + 1 :])
        body = self.rng.choice(("add", "maximum"))
        self.lines += [
            f"%zero = stablehlo.constant dense<{self._zero}> : {self._kind(())}",
            f"%bag = stablehlo.reduce({value} init: %zero) applies stablehlo.{body} across dimensions = [{dim}] : "
            f"({self._kind(shape)}, {self._kind(())}) -> {self._kind(rest)}",
        ]
        return "%bag", rest

    def _in_another_shape(self, value: str, shape: Shape) -> tuple[str, Shape]:
        """Merges two dimensions, or makes two of one."""
        dim = self.rng.randrange(len(shape)) if shape else 0
        if len(shape) > 1 and dim + 1 < len(shape) and self.rng.random() < 0.6:
            new = (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])
        else:
            size = shape[dim] if shape else 1
            part = self.rng.choice([each for each in range(1, size + 1) if size % each == 0])
            new = (*shape[:dim], part, size // part, *shape[dim + 1 :])
        self.lines.append(f"%other = stablehlo.reshape {value} : ({self._kind(shape)}) -> {self._kind(new)}")
        return "%other", new

    def _with_bias(self, value: str, shape: Shape) -> tuple[str, Shape]:
        bias, _ = self._broadcast(shape)
        self.lines.append(f"%biased = stablehlo.add {value}, {bias} : {self._kind(shape)}")
        return "%biased", shape

    def _masked(self, value: str, shape: Shape) -> tuple[str, Shape]:
        bias, kind = self._broadcast(shape)
        truth = kind.replace(self.element, "i1")
        sign = "" if self.element.startswith("i") else ", FLOAT"
        self.lines += [
            f"%none = stablehlo.constant dense<{self._zero}> : {kind}",
            f"%mask = stablehlo.compare GT, {bias}, %none{sign} : ({kind}, {kind}) -> {truth}",
            f"%masked = stablehlo.select %mask, {value}, %none : {truth}, {kind}",
        ]
        return "%masked", shape

    def _broadcast(self, shape: Shape) -> tuple[str, str]:
        """Returns an argument that has some of the dimensions of a shape, in this shape, and its type."""
        dims = sorted(self.rng.sample(range(len(shape)), self.rng.randint(0, len(shape))))
        given = tuple(1 if self.rng.random() < 0.2 else shape[dim] for dim in dims)
        name, kind = f"%wide{len(self.lines)}", self._kind(shape)
        argument = self._argument(given)
        self.lines.append(
            f"{name} = stablehlo.broadcast_in_dim {argument}, dims = {dims} : ({self._kind(given)}) -> {kind}"
        )
        return name, kind

    @property
    def _zero(self) -> str:
        return "0" if self.element.startswith("i") else "0.0"

    def _whole_numbers(self, shape) -> str:
        return f"tensor<{''.join(f'{size}x' for size in shape)}i32>"

    def _shape(self, rank: int) -> Shape:
        """Returns sizes that members can mostly share."""
        return tuple(self.rng.choice((1, 2, 3, self.members, self.members, 2 * self.members)) for _ in range(rank))
