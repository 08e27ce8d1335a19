# SPDX-License-Identifier: Apache-2.0
"""Random loops in manual computations that bring a part of a stack in each trip, as StableHLO text."""

from __future__ import annotations

import random
from dataclasses import dataclass

WIDTH = 8


@dataclass(frozen=True)
class DrawnLoop:
    """A module over rows that are split, and a stack of matrices that is split in its rows or columns.

    Attributes:
      shapes: of the arguments. devices: of the mesh. ahead: the collectives that depend on counters alone.
      words: what it is.
    """

    module: str
    shapes: tuple[tuple[int, ...], ...]
    devices: int
    ahead: int
    words: str


class _Loop:
    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.devices = self.rng.choice([2, 4])
        self.layers, self.trips = self.rng.randint(2, 5), self.rng.choice([0, 1, 2, 3, 5])
        self.lines: list[str] = []
        self.words: list[str] = []
        self.count = self.channel = 0

    def add(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"%v{self.count} = {text}")
        return f"%v{self.count}"

    def draws(self, share: float, word: str) -> bool:
        if self.rng.random() >= share:
            return False
        self.words.append(word)
        return True

    def index(self, counter: str) -> str:
        """Returns the number of the layer of a trip; it may be out of bounds, and is clamped then."""
        if self.draws(0.4, "from the last"):
            last = self.add(f"stablehlo.constant dense<{self.layers - 1}> : tensor<i32>")
            return self.add(f"stablehlo.subtract {last}, {counter} : tensor<i32>")
        if self.draws(0.3, "every other"):
            return self.add(f"stablehlo.add {counter}, {counter} : tensor<i32>")
        return counter

    def brought(self, stack: str, counter: str) -> str:
        """Returns a matrix of the stack, which all devices together have."""
        tile = WIDTH // self.devices
        zero = self.add("stablehlo.constant dense<0> : tensor<i32>")
        sliced = self.add(
            f"stablehlo.dynamic_slice {stack}, {self.index(counter)}, {zero}, {zero}, sizes = [1, {tile}, {WIDTH}] : "
            f"(tensor<{self.layers}x{tile}x{WIDTH}xi32>, tensor<i32>, tensor<i32>, tensor<i32>) "
            f"-> tensor<1x{tile}x{WIDTH}xi32>"
        )
        flat = self.add(f"stablehlo.reshape {sliced} : (tensor<1x{tile}x{WIDTH}xi32>) -> tensor<{tile}x{WIDTH}xi32>")
        if self.draws(0.3, "all_to_all"):
            how = f"split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = {self.devices} : i64"
            flat = self.collective("all_to_all", flat, (tile, WIDTH), (WIDTH, tile), how)
            kinds = f"(tensor<{WIDTH}x{tile}xi32>) -> tensor<{tile}x{WIDTH}xi32>"
            flat = self.add(f"stablehlo.transpose {flat}, dims = [1, 0] : {kinds}")
        return self.gathered(flat)

    def gathered(self, part: str) -> str:
        return self.collective(
            "all_gather", part, (WIDTH // self.devices, WIDTH), (WIDTH, WIDTH), "all_gather_dim = 0 : i64"
        )

    def collective(self, kind: str, value: str, before: tuple[int, int], after: tuple[int, int], how: str) -> str:
        self.channel += 1
        groups = f"dense<[{list(range(self.devices))}]> : tensor<1x{self.devices}xi64>"
        handle = f"#stablehlo.channel_handle<handle = {self.channel}, type = 1>"
        ids = ", use_global_device_ids" if kind == "all_gather" else ""
        one, other = ("x".join(map(str, shape)) for shape in (before, after))
        return self.add(
            f'"stablehlo.{kind}"({value}) <{{{how}, channel_handle = {handle}, replica_groups = {groups}{ids}}}> : '
            f"(tensor<{one}xi32>) -> tensor<{other}xi32>"
        )

    def product(self, rows: str, matrix: str) -> str:
        made = self.add(
            f"stablehlo.dot_general {rows}, {matrix}, contracting_dims = [1] x [0] : "
            f"(tensor<4x{WIDTH}xi32>, tensor<{WIDTH}x{WIDTH}xi32>) -> tensor<4x{WIDTH}xi32>"
        )
        most = self.add(f"stablehlo.constant dense<97> : tensor<4x{WIDTH}xi32>")
        return self.add(f"stablehlo.remainder {made}, {most} : tensor<4x{WIDTH}xi32>")

    def drawn(self) -> DrawnLoop:
        tile = WIDTH // self.devices
        row, stack, number = f"tensor<4x{WIDTH}xi32>", f"tensor<{self.layers}x{tile}x{WIDTH}xi32>", "tensor<i32>"
        is_captured, is_called = self.draws(0.4, "captured"), self.draws(0.4, "called")
        held = "%w" if is_captured and not is_called else "%c"
        rows, ahead = "%r", self.rng.randint(1, 3)
        for _ in range(ahead):
            matrix = self.brought(held, "%i")
            if self.draws(0.3, "added, too"):
                few = self.add(f"stablehlo.slice {matrix} [0:4, 0:{WIDTH}] : (tensor<{WIDTH}x{WIDTH}xi32>) -> {row}")
                rows = self.add(f"stablehlo.add {rows}, {few} : {row}")
            rows = self.product(rows, matrix)
        if self.draws(0.3, "of the rows"):
            part = self.add(f"stablehlo.slice {rows} [0:{tile}, 0:{WIDTH}] : ({row}) -> tensor<{tile}x{WIDTH}xi32>")
            rows = self.product(rows, self.gathered(part))
        body, function = "\n".join(self.lines), ""
        if is_called:
            function = f"""func.func private @body(%i: {number}, %r: {row}, %c: {stack}) -> {row} {{
              {body}
              return {rows} : {row}
            }}"""
            body = f"%called = func.call @body(%i, %r, %c) : ({number}, {row}, {stack}) -> {row}"
            rows = "%called"
        given, all_layers = f"tensor<{4 * self.devices}x{WIDTH}xi32>", f"tensor<{self.layers}x{WIDTH}x{WIDTH}xi32>"
        split = '<@mesh, [{"x"}, {}]>'
        shardings = f'in_shardings=[{split}, <@mesh, [{{}}, {{"x"}}, {{}}]>] out_shardings=[{split}]'
        module = f"""module attributes {{mhlo.num_partitions = {self.devices} : i32, mhlo.num_replicas = 1 : i32}} {{
          sdy.mesh @mesh = <["x"={self.devices}]>
          func.func public @main(%a: {given}, %b: {all_layers}) -> {given} {{
            %0 = sdy.manual_computation(%a, %b) {shardings} manual_axes={{"x"}} (%x: {row}, %w: {stack}) {{
              %start = stablehlo.constant dense<0> : {number}
              %1:3 = stablehlo.while(%i = %start, %r = %x, %c = %w) : {number}, {row}, {stack}
              cond {{
                %most = stablehlo.constant dense<{self.trips}> : {number}
                %goes = stablehlo.compare LT, %i, %most : ({number}, {number}) -> tensor<i1>
                stablehlo.return %goes : tensor<i1>
              }} do {{
                {body}
                %one = stablehlo.constant dense<1> : {number}
                %next = stablehlo.add %i, %one : {number}
                stablehlo.return %next, {rows}, %c : {number}, {row}, {stack}
              }}
              sdy.return %1#1 : {row}
            }} : ({given}, {all_layers}) -> {given}
            return %0 : {given}
          }}
          {function}
        }}"""
        shapes = (4 * self.devices, WIDTH), (self.layers, WIDTH, WIDTH)
        return DrawnLoop(module, shapes, self.devices, ahead, ", ".join(self.words))


def drawn_loop(seed: int) -> DrawnLoop:
    """Returns the module of a seed."""
    return _Loop(seed).drawn()
