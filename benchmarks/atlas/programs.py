# SPDX-License-Identifier: Apache-2.0
"""Small StableHLO programs, of one op or a few that share an operand; a number always draws the same program.

A program is text with names to fill in: `%h0`, `%h1`, ... are its operands, in the layouts of a case; `%r0`, ... are
its results. All entries of operands are small whole numbers. So sums and products are exact in any order, unless
`is_exact` is false.

Every dimension has a label, as in an einsum. In some cases dimensions with the same label are split alike; then the
layouts of an op fit together, and XLA converts nothing. In other cases every layout is drawn by itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_SIZES = (4, 5, 6, 8, 8, 10, 12, 16)


@dataclass(frozen=True)
class Operand:
    """An operand of a program. Its entries are whole numbers from 0, below `bound`; from -8 to 8 if that is None.

    `labels` has one letter for each dimension.
    """

    shape: tuple[int, ...]
    labels: str
    element: str = "f32"
    bound: int | None = None

    @property
    def type(self) -> str:
        return tensor(self.shape, self.element)


@dataclass(frozen=True)
class Result:
    """A result of a program: its type, and a label for each dimension."""

    shape: tuple[int, ...]
    labels: str
    element: str = "f32"

    @property
    def type(self) -> str:
        return tensor(self.shape, self.element)


@dataclass
class Program:
    """One small program of the atlas.

    Attributes:
      family: the op it is about. traits: its attributes in words, such as "combiner=min".
      lines: of its body, with `%h<n>` for operands and `%r<n>` for results.
    """

    family: str
    operands: list[Operand] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    traits: list[str] = field(default_factory=list)
    is_exact: bool = True

    def operand(self, shape: Sequence[int], labels: str, element: str = "f32", bound: int | None = None) -> str:
        """Adds an operand and returns its name in the text."""
        self.operands.append(Operand(tuple(shape), labels, element, bound))
        return f"%h{len(self.operands) - 1}"

    def result(self, shape: Sequence[int], labels: str, element: str = "f32") -> str:
        """Adds a result and returns its name in the text."""
        self.results.append(Result(tuple(shape), labels, element))
        return f"%r{len(self.results) - 1}"


def tensor(shape: Sequence[int], element: str = "f32") -> str:
    """Returns a type in MLIR's notation.

    Example:
      >>> tensor((8, 4), "i32"), tensor(())
      ('tensor<8x4xi32>', 'tensor<f32>')
    """
    return f"tensor<{'x'.join([*map(str, shape), element])}>"


Draw = Callable[[random.Random, Program], None]
FAMILIES: dict[str, Draw] = {}


def family(draw: Draw) -> Draw:
    """Registers a function that draws programs of one op; the family has the function's name."""
    FAMILIES[draw.__name__.strip("_")] = draw
    return draw


def drawn(number: int, families: Sequence[str] = ()) -> Program:
    """Returns the program with a number; the families take turns."""
    names = sorted(families or FAMILIES)
    name = names[number % len(names)]
    program = Program(name)
    FAMILIES[name](random.Random(f"program {number}"), program)
    return program


# ---- functions that families share


def _shape(rng: random.Random, rank: int, most: int = 1024) -> list[int]:
    while True:
        shape = [rng.choice(_SIZES) for _ in range(rank)]
        size = 1
        for each in shape:
            size *= each
        if size <= most:
            return shape


def _labels(rank: int, first: str = "a") -> str:
    return "".join(chr(ord(first) + at) for at in range(rank))


def _list(values: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, values)) + "]"


def _array(values: Sequence[int]) -> str:
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def _constant(program: Program, name: str, value: str, element: str = "f32") -> str:
    program.lines.append(f"{name} = stablehlo.constant dense<{value}> : tensor<{element}>")
    return name


def _literal(value: int, element: str) -> str:
    return f"{value}.0" if element.startswith("f") else str(value)


def _region(op: str, element: str = "f32") -> str:
    """Returns the region that combines two scalars with an op."""
    scalar = f"tensor<{element}>"
    result = "%q" if op == "second" else "%s"
    line = "" if op == "second" else f"%s = stablehlo.{op} %p, %q : {scalar} "
    return f"({{ ^bb0(%p: {scalar}, %q: {scalar}): {line}stablehlo.return {result} : {scalar} }})"


_NEUTRAL = {
    "add": 0,
    "multiply": 1,
    "maximum": -1000,
    "minimum": 1000,
}  # other starts of reductions have no meaning in StableHLO


def _users(rng: random.Random, program: Program, most: int = 3) -> int:
    """Returns a random number of ops that use the first operand, and notes it among the traits."""
    users = rng.choice([1, 1, 1, 2, 2, most])
    if users > 1:
        program.traits.append(f"users={users}")
    return users


# ---- windows


@family
def pad(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2, 3])
    shape = _shape(rng, rank, 512)
    element = rng.choice(["f32", "f32", "i32"])
    value = program.operand(shape, _labels(rank), element)
    alike = rng.random() < 0.7
    window = None
    for user in range(_users(rng, program)):
        start = _constant(program, f"%c{user}", _literal(rng.choice([0, 1, -7]), element), element)
        if window is None or not alike:
            dims = rng.sample(range(rank), rng.choice([1, 1, rank]))
            low = [rng.choice([0, 1, 2, 4, -1]) if dim in dims else 0 for dim in range(rank)]
            high = [rng.choice([0, 1, 2, 4, -1]) if dim in dims else 0 for dim in range(rank)]
            interior = [rng.choice([0, 0, 0, 1]) if dim in dims else 0 for dim in range(rank)]
            window = low, high, interior
        low, high, interior = window
        padded = [a + b + size + (size - 1) * c for a, b, size, c in zip(low, high, shape, interior)]
        result = program.result(padded, _labels(rank), element)
        attributes = f"low = {_list(low)}, high = {_list(high)}, interior = {_list(interior)}"
        kind = f"({tensor(shape, element)}, tensor<{element}>) -> {tensor(padded, element)}"
        program.lines.append(f"{result} = stablehlo.pad {value}, {start}, {attributes} : {kind}")
    if any(interior):
        program.traits.append("interior")


@family
def reduce_window(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2, 3])
    shape = _shape(rng, rank, 512)
    element = rng.choice(["f32", "f32", "i32"])
    value = program.operand(shape, _labels(rank), element)
    alike = rng.random() < 0.7
    window = None
    for user in range(_users(rng, program)):
        op = rng.choice(["add", "maximum", "minimum", "multiply"])
        if window is None or not alike:
            window = _window(rng, shape, program)
        sizes, strides, bases, dilations, pads, out = window
        if op == "multiply" and math.prod(sizes) > 5:  # keeps products small
            op = "add"
        name = _constant(program, f"%c{user}", _literal(_NEUTRAL[op], element), element)
        result = program.result(out, _labels(rank), element)
        rows = "[" + ", ".join(f"[{a}, {b}]" for a, b in pads) + "]"
        attributes = (
            f"window_dimensions = {_array(sizes)}, window_strides = {_array(strides)}, base_dilations = "
            f"{_array(bases)}, "
        )
        attributes += f"window_dilations = {_array(dilations)}, padding = dense<{rows}> : tensor<{rank}x2xi64>"
        kind = f"({tensor(shape, element)}, tensor<{element}>) -> {tensor(out, element)}"
        program.lines.append(
            f'{result} = "stablehlo.reduce_window"({value}, {name}) <{{{attributes}}}> {_region(op, element)} : {kind}'
        )
        program.traits.append(f"combiner={op}")


def _window(rng: random.Random, shape: Sequence[int], program: Program):
    rank = len(shape)
    while True:
        if rng.random() < 0.35:  # a cumulative sum
            at, is_reverse = rng.randrange(rank), rng.random() < 0.3
            sizes = [shape[dim] if dim == at else 1 for dim in range(rank)]
            pads = [((0, size - 1) if is_reverse else (size - 1, 0)) for size in sizes]
            ones = [1] * rank
            program.traits.append("cumulative")
            return sizes, ones, ones, ones, pads, list(shape)
        dims = rng.sample(range(rank), rng.choice([1, 1, rank]))
        sizes = [rng.choice([2, 3]) if dim in dims else 1 for dim in range(rank)]
        strides = [rng.choice([1, 1, 2]) if dim in dims else 1 for dim in range(rank)]
        bases = [rng.choice([1, 1, 1, 2]) if dim in dims else 1 for dim in range(rank)]
        dilations = [rng.choice([1, 1, 1, 2]) if dim in dims else 1 for dim in range(rank)]
        pads = [(rng.choice([0, 1, 2]), rng.choice([0, 1, 2])) if dim in dims else (0, 0) for dim in range(rank)]
        out = _out_sizes(shape, sizes, strides, bases, dilations, pads)
        if min(out) > 0:
            return sizes, strides, bases, dilations, pads, out


def _out_sizes(shape, sizes, strides, bases, dilations, pads) -> list[int]:
    out = []
    for size, window, stride, base, dilation, (low, high) in zip(shape, sizes, strides, bases, dilations, pads):
        padded = low + (size - 1) * base + 1 + high
        reach = (window - 1) * dilation + 1
        out.append((padded - reach) // stride + 1 if padded >= reach else 0)
    return out


@family
def select_and_scatter(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2, 3])
    shape = _shape(rng, rank, 512)
    dims = rng.sample(range(rank), rng.choice([1, 1, rank]))
    sizes = [rng.choice([2, 3]) if dim in dims else 1 for dim in range(rank)]
    strides = [rng.choice([1, 2, 2]) if dim in dims else 1 for dim in range(rank)]
    pads = [(rng.choice([0, 1]), rng.choice([0, 1])) if dim in dims else (0, 0) for dim in range(rank)]
    out = _out_sizes(shape, sizes, strides, [1] * rank, [1] * rank, pads)
    value, source = program.operand(shape, _labels(rank)), program.operand(out, _labels(rank))
    start = _constant(program, "%c0", "0.0")
    rows = "[" + ", ".join(f"[{a}, {b}]" for a, b in pads) + "]"
    attributes = (
        f"window_dimensions = {_array(sizes)}, window_strides = {_array(strides)}, padding = dense<{rows}> "
        f": tensor<{rank}x2xi64>"
    )
    pick = (
        "({ ^bb0(%p: tensor<f32>, %q: tensor<f32>): %s = stablehlo.compare GE, %p, %q : (tensor<f32>, "
        "tensor<f32>) -> tensor<i1> "
    )
    pick += "stablehlo.return %s : tensor<i1> }, " + _region("add")[1:]
    result = program.result(shape, _labels(rank))
    kind = f"({tensor(shape)}, {tensor(out)}, tensor<f32>) -> {tensor(shape)}"
    program.lines.append(
        f'{result} = "stablehlo.select_and_scatter"({value}, {source}, {start}) <{{{attributes}}}> {pick} : {kind}'
    )


@family
def convolution(rng: random.Random, program: Program) -> None:
    spatial = rng.choice([1, 1, 2])
    kind = rng.choice(["plain", "plain", "feature_groups", "batch_groups", "as_gradient"])
    batch, features, outputs = rng.choice([4, 8, 6]), rng.choice([2, 4, 8]), rng.choice([4, 8, 6])
    image = [rng.choice([6, 8, 10, 12]) for _ in range(spatial)]
    window = [rng.choice([1, 2, 3]) for _ in range(spatial)]
    if kind == "as_gradient":  # the window is as large as the image, as in the gradient of a kernel
        window = [max(1, size - rng.choice([0, 1, 2])) for size in image]
    groups, batch_groups = 1, 1
    inner = features
    if kind == "feature_groups":
        groups = rng.choice([2, features])
        inner, outputs = features // groups, groups * rng.choice([1, 2])
    if kind == "batch_groups":
        batch_groups = 2
        outputs = 2 * rng.choice([1, 2, 4])
    strides = [rng.choice([1, 1, 2]) for _ in range(spatial)]
    lhs = [rng.choice([1, 1, 1, 2]) for _ in range(spatial)]
    rhs = [rng.choice([1, 1, 1, 2]) if kind != "as_gradient" else 1 for _ in range(spatial)]
    pads = [(rng.choice([0, 1, 2]), rng.choice([0, 1, 2])) for _ in range(spatial)]
    out = _out_sizes(image, window, strides, lhs, rhs, pads)
    if min(out) < 1:
        return convolution(rng, program)
    dims = [str(at) for at in range(spatial)]
    orders = [_shuffled(rng, ["b", "f", *dims]), _shuffled(rng, ["i", "o", *dims]), _shuffled(rng, ["b", "f", *dims])]
    sizes = [
        {"b": batch, "f": features} | dict(zip(dims, image)),
        {"i": inner, "o": outputs} | dict(zip(dims, window)),
        {"b": batch // batch_groups, "f": outputs} | dict(zip(dims, out)),
    ]
    named = [{"b": "b", "f": "f"}, {"i": "f" if groups == 1 else "i", "o": "o"}, {"b": "b", "f": "o"}]
    for at, letter in ((0, "s"), (1, "k"), (2, "s")):
        named[at] |= {dim: chr(ord(letter) + int(dim)) for dim in dims}
    shapes = [[size[each] for each in order] for size, order in zip(sizes, orders)]
    labels = ["".join(name[each] for each in order) for name, order in zip(named, orders)]
    names = [program.operand(shapes[0], labels[0]), program.operand(shapes[1], labels[1])]
    result = program.result(shapes[2], labels[2])
    numbers = "x".join("[" + ", ".join(order) + "]" for order in orders[:2]) + "->[" + ", ".join(orders[2]) + "]"
    rows = "[" + ", ".join(f"[{a}, {b}]" for a, b in pads) + "]"
    attributes = f"stride = {_list(strides)}, pad = {rows}, lhs_dilate = {_list(lhs)}, rhs_dilate = {_list(rhs)}"
    program.lines.append(
        f"{result} = stablehlo.convolution({', '.join(names)}) dim_numbers = {numbers}, window = {{{attributes}}} "
        f"{{batch_group_count = {batch_groups} : i64, feature_group_count = {groups} : i64}} : "
        f"({tensor(shapes[0])}, {tensor(shapes[1])}) -> {tensor(shapes[2])}"
    )
    program.traits.append(kind)
    if max(lhs) > 1:
        program.traits.append("lhs_dilated")


def _shuffled(rng: random.Random, items: list) -> list:
    return rng.sample(items, len(items))


# ---- contractions and reductions


@family
def dot_general(rng: random.Random, program: Program) -> None:
    batch, left, right, summed = (
        rng.choice([0, 0, 1]),
        rng.choice([0, 1, 1, 2]),
        rng.choice([0, 1, 1]),
        rng.choice([1, 1, 2]),
    )
    sizes = {}
    for letters in ("b"[:batch], "ij"[:left], "m"[:right], "kl"[:summed]):
        sizes |= {each: rng.choice(_SIZES) for each in letters}
    first = _shuffled(rng, list("b"[:batch] + "ij"[:left] + "kl"[:summed]))
    second = _shuffled(rng, list("b"[:batch] + "m"[:right] + "kl"[:summed]))
    shapes = [[sizes[each] for each in side] for side in (first, second)]
    out = [*"b"[:batch], *[each for each in first if each in "ij"], *[each for each in second if each == "m"]]
    names = [program.operand(shape, "".join(side)) for shape, side in zip(shapes, (first, second))]
    contracted = [[side.index(each) for each in "kl"[:summed]] for side in (first, second)]
    batches = [[side.index(each) for each in "b"[:batch]] for side in (first, second)]
    result = program.result([sizes[each] for each in out], "".join(out))
    batching = f"batching_dims = {_list(batches[0])} x {_list(batches[1])}, " if batch else ""
    program.lines.append(
        f"{result} = stablehlo.dot_general {names[0]}, {names[1]}, {batching}contracting_dims = "
        f"{_list(contracted[0])} x "
        f"{_list(contracted[1])} : ({tensor(shapes[0])}, {tensor(shapes[1])}) -> "
        f"{tensor([sizes[each] for each in out])}"
    )


@family
def reduce(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2, 3])
    shape = _shape(rng, rank)
    dims = sorted(rng.sample(range(rank), rng.choice([1, 1, rank])))
    element = rng.choice(["f32", "i32"])
    value = program.operand(shape, _labels(rank), element)
    kept = [dim for dim in range(rank) if dim not in dims]
    for user in range(_users(rng, program)):
        op = rng.choice(["add", "maximum", "minimum"])
        start = _constant(program, f"%c{user}", _literal(_NEUTRAL[op], element), element)
        out = [shape[dim] for dim in kept]
        result = program.result(out, "".join(_labels(rank)[dim] for dim in kept), element)
        kind = f"({tensor(shape, element)}, tensor<{element}>) -> {tensor(out, element)}"
        program.lines.append(
            f'{result} = "stablehlo.reduce"({value}, {start}) <{{dimensions = {_array(dims)}}}> '
            f"{_region(op, element)} : {kind}"
        )
        program.traits.append(f"combiner={op}")


@family
def argmax(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2])
    shape, dim = _shape(rng, rank), rng.randrange(rank)
    labels, kept = _labels(rank), [each for each in range(rank) if each != dim]
    value, places = program.operand(shape, labels), program.operand(shape, labels, "i32", 64)
    _constant(program, "%c0", "-1000.0")
    _constant(program, "%c1", "0", "i32")
    scalars = [
        f"%{name}: tensor<{element}>" for name, element in (("p", "f32"), ("i", "i32"), ("q", "f32"), ("j", "i32"))
    ]
    region = f"({{ ^bb0({', '.join(scalars)}): "
    region += "%g = stablehlo.compare GT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1> "
    region += "%e = stablehlo.compare EQ, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1> "
    region += "%l = stablehlo.compare LT, %i, %j : (tensor<i32>, tensor<i32>) -> tensor<i1> "
    region += "%t = stablehlo.and %e, %l : tensor<i1> %u = stablehlo.or %g, %t : tensor<i1> "
    region += (
        "%m = stablehlo.select %u, %p, %q : tensor<i1>, tensor<f32> %n = stablehlo.select %u, %i, %j : "
        "tensor<i1>, tensor<i32> "
    )
    region += "stablehlo.return %m, %n : tensor<f32>, tensor<i32> })"
    out, out_labels = [shape[each] for each in kept], "".join(labels[each] for each in kept)
    program.result(out, out_labels)
    program.result(out, out_labels, "i32")
    kind = (
        f"({tensor(shape)}, {tensor(shape, 'i32')}, tensor<f32>, tensor<i32>) -> ({tensor(out)}, {tensor(out, 'i32')})"
    )
    program.lines.append(
        f'%r:2 = "stablehlo.reduce"({value}, {places}, %c0, %c1) <{{dimensions = {_array([dim])}}}> {region} : {kind}'
    )
    program.lines += [
        f"%r{at} = stablehlo.reshape %r#{at} : ({t}) -> {t}" for at, t in enumerate((tensor(out), tensor(out, "i32")))
    ]


@family
def sort(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2, 3])
    shape, dim = _shape(rng, rank), rng.randrange(rank)
    labels, is_pair = _labels(rank), rng.random() < 0.5
    operands = [program.operand(shape, labels)] + ([program.operand(shape, labels, "i32", 99)] if is_pair else [])
    direction = rng.choice(["LT", "GT"])
    arguments = "%p: tensor<f32>, %q: tensor<f32>" + (", %i: tensor<i32>, %j: tensor<i32>" if is_pair else "")
    region = (
        f"({{ ^bb0({arguments}): %s = stablehlo.compare {direction}, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1> "
    )
    region += "stablehlo.return %s : tensor<i1> })"
    types = [tensor(shape)] + ([tensor(shape, "i32")] if is_pair else [])
    for element in ("f32", "i32")[: len(types)]:
        program.result(shape, labels, element)
    attributes = f"dimension = {dim} : i64, is_stable = true"
    kind = f"({', '.join(types)}) -> ({', '.join(types)})"
    count = f":{len(types)}" if is_pair else ""
    program.lines.append(f'%r{count} = "stablehlo.sort"({", ".join(operands)}) <{{{attributes}}}> {region} : {kind}')
    for at, each in enumerate(types):
        program.lines.append(f"%r{at} = stablehlo.reshape %r{f'#{at}' if is_pair else ''} : ({each}) -> {each}")
    program.traits.append("pair" if is_pair else "alone")


# ---- selection by index


@family
def scatter(rng: random.Random, program: Program) -> None:
    _scatter(rng, program, rng.choice(_COMBINERS))


@family
def scatter_rows(rng: random.Random, program: Program) -> None:
    """Draws a scatter to rows that a vector of indices selects, as x.at[i].op(u) writes it."""
    _scatter(rng, program, rng.choice(_COMBINERS), "rows")


_COMBINERS = ("add", "minimum", "maximum", "multiply", "and", "or", "second")


_INDEX_FORMS = ("rows", "windows", "unit_windows", "pairs", "batched", "batch_dims")
_SCATTER_NUMBERS = (
    "update_window_dims",
    "inserted_window_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
    "scatter_dims_to_operand_dims",
)
_GATHER_NUMBERS = (
    "offset_dims",
    "collapsed_slice_dims",
    "operand_batching_dims",
    "start_indices_batching_dims",
    "start_index_map",
)


@dataclass(frozen=True)
class _Selection:
    """Entries of an array that a tensor of indices selects: scatter writes them, and gather reads them.

    Attributes:
      shapes, labels: of the array, of the indices, and of the selected entries.
      numbers: the dimension numbers, in the order of _SCATTER_NUMBERS and _GATHER_NUMBERS.
      index_vector_dim: the dimension of the indices that holds the parts of one index.
      sizes: of the slice that one index selects. bound: every index is below it; outside: by how much it may be above.
    """

    shapes: tuple[tuple[int, ...], ...]
    labels: tuple[str, str, str]
    numbers: tuple[list[int], ...]
    index_vector_dim: int
    sizes: list[int]
    bound: int
    outside: int

    def text_of_numbers(self, names: Sequence[str]) -> str:
        """Returns the dimension numbers in the op's notation, without empty lists."""
        lists = [f"{name} = {_list(dims)}" for name, dims in zip(names, self.numbers, strict=True) if dims]
        return ", ".join([*lists, f"index_vector_dim = {self.index_vector_dim}"])


def _selection(rng: random.Random, form: str) -> _Selection:
    """Returns a selection with one of _INDEX_FORMS and random sizes."""
    rows, columns, count = rng.choice(_SIZES), rng.choice(_SIZES), rng.choice([4, 5, 6, 8, 10, 12])
    outside = 2 if rng.random() < 0.2 else 0
    array, size = (rows, columns), max(1, rows // 2)
    if form == "rows":
        shapes, labels = (array, (count, 1), (count, columns)), ("ab", "c1", "cb")
        return _Selection(shapes, labels, ([1], [0], [], [], [0]), 1, [1, columns], rows, outside)
    if form == "windows":
        shapes, labels = (array, (count, 1), (count, size, columns)), ("ab", "c1", "c2b")
        return _Selection(shapes, labels, ([1, 2], [], [], [], [0]), 1, [size, columns], rows - size + 1, outside)
    if form == "unit_windows":
        shapes, labels = ((columns, rows), (count, 1), (columns, count, 1)), ("ab", "c1", "ac2")
        return _Selection(shapes, labels, ([0, 2], [], [], [], [1]), 1, [columns, 1], rows, outside)
    if form == "pairs":
        shapes, labels = (array, (count, 2), (count,)), ("ab", "c1", "c")
        return _Selection(shapes, labels, ([], [0, 1], [], [], [0, 1]), 1, [1, 1], min(array), outside)
    more = rng.choice([4, 6, 8])
    indices, selected = (more, count, 1), (more, count, columns)
    if form == "batched":  # the indices are a vector of vectors
        shapes, labels = (array, indices, selected), ("ab", "dc1", "dcb")
        return _Selection(shapes, labels, ([2], [0], [], [], [0]), 2, [1, columns], rows, outside)
    shapes, labels = ((more, *array), indices, selected), ("dab", "dc1", "dcb")  # the form that vmap makes
    return _Selection(shapes, labels, ([2], [1], [0], [0], [1]), 2, [1, 1, columns], rows, outside)


def _scatter(rng: random.Random, program: Program, op: str, form: str = "") -> None:
    form = form or rng.choice(_INDEX_FORMS)
    element = "i32" if op in ("and", "or") else rng.choice(["f32", "f32", "i32"])
    selection = _selection(rng, form)
    outside = 0 if op == "second" else selection.outside
    entries = 3 if op == "multiply" else None
    shapes, labels = selection.shapes, selection.labels
    value = program.operand(shapes[0], labels[0], element, entries)
    indices = program.operand(shapes[1], labels[1], "i32", selection.bound + outside)
    updates = program.operand(shapes[2], labels[2], element, entries)
    if op == "second":  # updates come in any order, so they have to be equal
        updates = _equal_entries(program, updates, tensor(shapes[2], element), element)
    result = program.result(shapes[0], labels[0], element)
    types = (tensor(shapes[0], element), tensor(shapes[1], "i32"), tensor(shapes[2], element))
    numbers = selection.text_of_numbers(_SCATTER_NUMBERS)
    attributes = (
        f"indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, unique_indices = false"
    )
    program.lines.append(
        f'{result} = "stablehlo.scatter"({value}, {indices}, {updates}) <{{{attributes}}}> {_region(op, element)} : '
        f"({', '.join(types)}) -> {types[0]}"
    )
    program.traits += [f"combiner={op}", form] + (["outside"] if outside else [])


def _equal_entries(program: Program, value: str, kind: str, element: str) -> str:
    """Adds ops that depend on a value, and returns the name of their result, whose entries are all 5."""
    program.lines.append(f"%z = stablehlo.subtract {value}, {value} : {kind}")
    _constant(program, "%c0", _literal(5, element), element)
    program.lines.append(f"%b = stablehlo.broadcast_in_dim %c0, dims = [] : (tensor<{element}>) -> {kind}")
    program.lines.append(f"%w = stablehlo.add %z, %b : {kind}")
    return "%w"


@family
def gather(rng: random.Random, program: Program) -> None:
    form = rng.choice(_INDEX_FORMS)
    selection = _selection(rng, form)
    shapes, labels = selection.shapes, selection.labels
    value = program.operand(shapes[0], labels[0])
    indices = program.operand(shapes[1], labels[1], "i32", selection.bound + selection.outside)
    result = program.result(shapes[2], labels[2])
    numbers = selection.text_of_numbers(_GATHER_NUMBERS)
    program.lines.append(
        f'{result} = "stablehlo.gather"({value}, {indices}) <{{dimension_numbers = #stablehlo.gather<{numbers}>, '
        f"indices_are_sorted = false, slice_sizes = {_array(selection.sizes)}}}> : "
        f"({tensor(shapes[0])}, {tensor(shapes[1], 'i32')}) -> {tensor(shapes[2])}"
    )
    program.traits += [form] + (["outside"] if selection.outside else [])


def _starts(rng: random.Random, program: Program, shape: Sequence[int], sizes: Sequence[int]) -> list[str]:
    """Adds scalar operands for the first index along each dimension; some are so large that the op clamps them."""
    outside = 3 if rng.random() < 0.3 else 0
    program.traits += ["outside"] if outside else []
    return [program.operand((), "", "i32", size - part + 1 + outside) for size, part in zip(shape, sizes)]


@family
def dynamic_slice(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2])
    shape = _shape(rng, rank)
    sizes = [rng.choice([size, max(1, size // 2), 1]) for size in shape]
    value = program.operand(shape, _labels(rank))
    starts = _starts(rng, program, shape, sizes)
    result = program.result(
        sizes, "".join(a if x == y else str(i) for i, (a, x, y) in enumerate(zip(_labels(rank), shape, sizes)))
    )
    kind = f"({', '.join([tensor(shape), *['tensor<i32>'] * rank])}) -> {tensor(sizes)}"
    program.lines.append(
        f"{result} = stablehlo.dynamic_slice {', '.join([value, *starts])}, sizes = {_list(sizes)} : {kind}"
    )


@family
def dynamic_update_slice(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2])
    shape = _shape(rng, rank)
    sizes = [rng.choice([size, max(1, size // 2), 1]) for size in shape]
    value = program.operand(shape, _labels(rank))
    part = program.operand(
        sizes, "".join(a if x == y else str(i) for i, (a, x, y) in enumerate(zip(_labels(rank), shape, sizes)))
    )
    starts = _starts(rng, program, shape, sizes)
    result = program.result(shape, _labels(rank))
    kind = f"({', '.join([tensor(shape), tensor(sizes), *['tensor<i32>'] * rank])}) -> {tensor(shape)}"
    program.lines.append(f"{result} = stablehlo.dynamic_update_slice {', '.join([value, part, *starts])} : {kind}")


# ---- movement


@family
def _slice(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2, 3])
    shape = _shape(rng, rank)
    value = program.operand(shape, _labels(rank))
    for _ in range(_users(rng, program)):
        starts = [rng.choice([0, 0, 1, size // 2]) for size in shape]
        ends = [rng.choice([size, size, max(start + 1, size - 1)]) for start, size in zip(starts, shape)]
        strides = [rng.choice([1, 1, 2]) for _ in shape]
        out = [-(-(end - start) // stride) for start, end, stride in zip(starts, ends, strides)]
        parts = ", ".join(f"{a}:{b}:{c}" for a, b, c in zip(starts, ends, strides))
        result = program.result(out, _labels(rank))
        program.lines.append(f"{result} = stablehlo.slice {value} [{parts}] : ({tensor(shape)}) -> {tensor(out)}")


@family
def concatenate(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2, 3])
    shape, dim = _shape(rng, rank, 512), rng.randrange(rank)
    labels, count = _labels(rank), rng.choice([2, 2, 3])
    shapes = [[rng.choice(_SIZES) if at == dim else size for at, size in enumerate(shape)] for _ in range(count)]
    values = [program.operand(each, labels) for each in shapes]
    if rng.random() < 0.3:
        values[-1], shapes[-1] = values[0], shapes[0]
        program.traits.append("of itself")
    out = [sum(each[dim] for each in shapes) if at == dim else size for at, size in enumerate(shape)]
    result = program.result(out, labels)
    kind = f"({', '.join(map(tensor, shapes))}) -> {tensor(out)}"
    program.lines.append(f"{result} = stablehlo.concatenate {', '.join(values)}, dim = {dim} : {kind}")


@family
def reverse(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2, 3])
    shape = _shape(rng, rank)
    value = program.operand(shape, _labels(rank))
    for _ in range(_users(rng, program)):
        dims = sorted(rng.sample(range(rank), rng.choice([1, rank])))
        result = program.result(shape, _labels(rank))
        program.lines.append(f"{result} = stablehlo.reverse {value}, dims = {_list(dims)} : {tensor(shape)}")


@family
def transpose(rng: random.Random, program: Program) -> None:
    rank = rng.choice([2, 3])
    shape, order = _shape(rng, rank), _shuffled(rng, list(range(rank)))
    value, out = program.operand(shape, _labels(rank)), [shape[at] for at in order]
    result = program.result(out, "".join(_labels(rank)[at] for at in order))
    program.lines.append(
        f"{result} = stablehlo.transpose {value}, dims = {_list(order)} : ({tensor(shape)}) -> {tensor(out)}"
    )


@family
def reshape(rng: random.Random, program: Program) -> None:
    shape = [rng.choice([2, 3, 4, 6, 8]) for _ in range(rng.choice([2, 3]))]
    at = rng.randrange(len(shape) - 1)
    merged = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
    letters = _labels(len(shape))
    out_letters = letters[: at + 1] + letters[at + 2 :]
    if rng.random() < 0.5:
        shape, merged, letters, out_letters = merged, shape, out_letters, letters
    value = program.operand(shape, letters)
    result = program.result(merged, out_letters)
    program.lines.append(f"{result} = stablehlo.reshape {value} : ({tensor(shape)}) -> {tensor(merged)}")


@family
def broadcast_in_dim(rng: random.Random, program: Program) -> None:
    rank = rng.choice([2, 3])
    out = _shape(rng, rank)
    dims = sorted(rng.sample(range(rank), rng.choice([1, rank - 1])))
    shape = [rng.choice([out[dim], out[dim], 1]) for dim in dims]
    value = program.operand(
        shape, "".join(_labels(rank)[dim] if size > 1 else str(dim) for dim, size in zip(dims, shape))
    )
    result = program.result(out, _labels(rank))
    program.lines.append(
        f"{result} = stablehlo.broadcast_in_dim {value}, dims = {_list(dims)} : ({tensor(shape)}) -> {tensor(out)}"
    )


@family
def roll(rng: random.Random, program: Program) -> None:
    """Draws a concatenation of two slices of a value in the other order."""
    rank = rng.choice([1, 2])
    shape, dim = _shape(rng, rank), rng.randrange(rank)
    value, by = program.operand(shape, _labels(rank)), rng.choice([1, 2, shape[dim] // 2])
    parts = []
    for name, (start, end) in (("%x0", (by, shape[dim])), ("%x1", (0, by))):
        cut = ", ".join(f"{start}:{end}" if at == dim else f"0:{size}" for at, size in enumerate(shape))
        parts.append(tensor([end - start if at == dim else size for at, size in enumerate(shape)]))
        program.lines.append(f"{name} = stablehlo.slice {value} [{cut}] : ({tensor(shape)}) -> {parts[-1]}")
    result = program.result(shape, _labels(rank))
    program.lines.append(
        f"{result} = stablehlo.concatenate %x0, %x1, dim = {dim} : ({', '.join(parts)}) -> {tensor(shape)}"
    )


@family
def iota(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2])
    shape, labels = _shape(rng, rank), _labels(rank)
    value, result = program.operand(shape, labels), program.result(shape, labels)
    program.lines.append(f"%i = stablehlo.iota dim = {rng.randrange(rank)} : {tensor(shape)}")
    program.lines.append(f"{result} = stablehlo.add {value}, %i : {tensor(shape)}")


# ---- the rest


@family
def elementwise(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2, 3])
    shape, labels = _shape(rng, rank), _labels(rank)
    kind = tensor(shape)
    values = [program.operand(shape, labels) for _ in range(3)]
    result = program.result(shape, labels)
    program.lines += [
        f"%x0 = stablehlo.compare LT, {values[0]}, {values[1]} : ({kind}, {kind}) -> {tensor(shape, 'i1')}",
        f"%x1 = stablehlo.select %x0, {values[1]}, {values[2]} : {tensor(shape, 'i1')}, {kind}",
        f"{result} = stablehlo.clamp {values[0]}, %x1, {values[2]} : {kind}",
    ]


@family
def fft(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2, 3])
    shape, labels = _shape(rng, rank), _labels(rank)
    count = rng.choice([1, 1, min(2, rank)])
    value = program.operand(shape, labels)
    kind = tensor(shape, "complex<f32>")
    program.lines.append(f"%x0 = stablehlo.convert {value} : ({tensor(shape)}) -> {kind}")
    program.lines.append(
        f"%x1 = stablehlo.fft %x0, type = FFT, length = {_list(shape[rank - count :])} : ({kind}) -> {kind}"
    )
    result = program.result(shape, labels)
    program.lines.append(f"{result} = stablehlo.real %x1 : ({kind}) -> {tensor(shape)}")
    program.is_exact = False


@family
def cholesky(rng: random.Random, program: Program) -> None:
    size, batch = rng.choice([4, 6]), rng.choice([4, 6, 8])
    shape = (batch, size, size)
    value = program.operand(shape, "abc")
    result = program.result(shape, "abc")
    program.lines += [
        f"%x0 = stablehlo.dot_general {value}, {value}, batching_dims = [0] x [0], contracting_dims = [2] x [2] : "
        f"({tensor(shape)}, {tensor(shape)}) -> {tensor(shape)}",
        f"%x1 = stablehlo.iota dim = 1 : {tensor(shape, 'i32')}",
        f"%x2 = stablehlo.iota dim = 2 : {tensor(shape, 'i32')}",
        f"%x3 = stablehlo.compare EQ, %x1, %x2 : ({tensor(shape, 'i32')}, {tensor(shape, 'i32')}) -> "
        f"{tensor(shape, 'i1')}",
        f"%x4 = stablehlo.convert %x3 : ({tensor(shape, 'i1')}) -> {tensor(shape)}",
        f"%x5 = stablehlo.add %x0, %x4 : {tensor(shape)}",
        f"{result} = stablehlo.cholesky %x5, lower = true : {tensor(shape)}",
    ]
    program.is_exact = False


@family
def triangular_solve(rng: random.Random, program: Program) -> None:
    size, batch, columns = rng.choice([4, 6]), rng.choice([4, 6, 8]), rng.choice([4, 6])
    shape, right = (batch, size, size), (batch, size, columns)
    value, side = program.operand(shape, "abc", bound=2), program.operand(right, "abd")
    result = program.result(right, "abd")
    attributes = (
        "left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = true"
    )
    program.lines.append(
        f'{result} = "stablehlo.triangular_solve"({value}, {side}) <{{{attributes}}}> : ({tensor(shape)}, '
        f"{tensor(right)}) -> {tensor(right)}"
    )
    program.is_exact = False


@family
def _while(rng: random.Random, program: Program) -> None:
    """Draws a loop that adds rows of an array to a value that the loop carries."""
    rows, columns = rng.choice([4, 5, 8]), rng.choice(_SIZES)
    value, carry = program.operand((rows, columns), "ab"), program.operand((columns,), "b")
    array, row = tensor((rows, columns)), tensor((columns,))
    result = program.result((columns,), "b")
    program.result((rows, columns), "ab")
    program.lines += [
        "%c0 = stablehlo.constant dense<0> : tensor<i32>",
        "%c1 = stablehlo.constant dense<1> : tensor<i32>",
        f"%c2 = stablehlo.constant dense<{rows}> : tensor<i32>",
        f"%w:3 = stablehlo.while(%i = %c0, %s = {carry}, %k = {value}) : tensor<i32>, {row}, {array}",
        "cond { %l = stablehlo.compare LT, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1> stablehlo.return %l : "
        "tensor<i1> }",
        f"do {{ %j = stablehlo.add %i, %c1 : tensor<i32> %d = stablehlo.dynamic_slice %k, %i, %c0, sizes = [1, "
        f"{columns}] : "
        f"({array}, tensor<i32>, tensor<i32>) -> {tensor((1, columns))} "
        f"%e = stablehlo.reshape %d : ({tensor((1, columns))}) -> {row} %t = stablehlo.add %s, %e : {row} "
        f"%f = stablehlo.reverse %t, dims = [0] : {row} "
        f"stablehlo.return %j, %f, %k : tensor<i32>, {row}, {array} }}",
        f"{result} = stablehlo.negate %w#1 : {row}",
        f"%r1 = stablehlo.negate %w#2 : {array}",
    ]


@family
def case(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2])
    shape, labels = _shape(rng, rank), _labels(rank)
    value, choice = program.operand(shape, labels), program.operand((), "", "i32", 2)
    result, kind = program.result(shape, labels), tensor(shape)
    program.lines.append(
        f'{result} = "stablehlo.case"({choice}) ({{ %n0 = stablehlo.negate {value} : {kind} stablehlo.return %n0 : '
        f"{kind} }}, "
        f"{{ %n1 = stablehlo.reverse {value}, dims = [0] : {kind} stablehlo.return %n1 : {kind} }}) : (tensor<i32>) "
        f"-> {kind}"
    )


@family
def rng_bit_generator(rng: random.Random, program: Program) -> None:
    rank = rng.choice([1, 2])
    shape, labels = _shape(rng, rank), _labels(rank)
    value = program.operand(shape, labels, "i32")
    result, kind = program.result(shape, labels, "i32"), tensor(shape, "ui32")
    program.lines += [
        "%k = stablehlo.constant dense<[7, 9]> : tensor<2xui64>",
        f"%s, %b = stablehlo.rng_bit_generator %k, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, "
        f"{kind})",
        f"%x = stablehlo.bitcast_convert %b : ({kind}) -> {tensor(shape, 'i32')}",
        f"{result} = stablehlo.add %x, {value} : {tensor(shape, 'i32')}",
    ]


@family
def batch_norm_training(rng: random.Random, program: Program) -> None:
    shape = _shape(rng, 3, 512)
    dim = rng.randrange(3)
    value, scale, offset = (
        program.operand(s, x)
        for s, x in ((shape, "abc"), (shape[dim : dim + 1], "abc"[dim]), (shape[dim : dim + 1], "abc"[dim]))
    )
    result, vector = program.result(shape, "abc"), tensor(shape[dim : dim + 1])
    kind = f"({tensor(shape)}, {vector}, {vector}) -> ({tensor(shape)}, {vector}, {vector})"
    program.lines += [
        f'%n:3 = "stablehlo.batch_norm_training"({value}, {scale}, {offset}) <{{epsilon = 1.0 : f32, feature_index = '
        f"{dim} : i64}}> : {kind}",
        f"{result} = stablehlo.reshape %n#0 : ({tensor(shape)}) -> {tensor(shape)}",
    ]
    program.is_exact = False


@family
def mixed_windows(rng: random.Random, program: Program) -> None:
    """Draws two or three windowed ops and pads of one value, whose windows reach equally far."""
    rank = rng.choice([1, 2])
    shape, labels = _shape(rng, rank, 512), _labels(rank)
    dim, low, high = rng.randrange(rank), rng.choice([1, 2, 3]), rng.choice([0, 1, 2])
    value, kind = program.operand(shape, labels), tensor(shape)
    padded = [size + (low + high if at == dim else 0) for at, size in enumerate(shape)]
    edges = [(low, high) if at == dim else (0, 0) for at in range(rank)]
    rows = "[" + ", ".join(f"[{a}, {b}]" for a, b in edges) + "]"
    chosen = rng.sample([("pad", 0), ("pad", 3), ("add", 0), ("maximum", -1000), ("minimum", 1000)], rng.choice([2, 3]))
    for user, (op, start) in enumerate(chosen):
        name = _constant(program, f"%c{user}", f"{start}.0")
        if op == "pad":
            result = program.result(padded, labels)
            attributes = (
                f"low = {_list([a for a, _ in edges])}, high = {_list([b for _, b in edges])}, interior = "
                f"{_list([0] * rank)}"
            )
            program.lines.append(
                f"{result} = stablehlo.pad {value}, {name}, {attributes} : ({kind}, tensor<f32>) -> {tensor(padded)}"
            )
            continue
        reach = low + high + 1
        sizes = [reach if at == dim else 1 for at in range(rank)]
        result = program.result(shape, labels)
        attributes = f"window_dimensions = {_array(sizes)}, padding = dense<{rows}> : tensor<{rank}x2xi64>"
        program.lines.append(
            f'{result} = "stablehlo.reduce_window"({value}, {name}) <{{{attributes}}}> {_region(op)} : ({kind}, '
            f"tensor<f32>) -> {kind}"
        )
    program.traits += [f"combiner={op}" for op, _ in chosen]
