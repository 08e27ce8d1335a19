# SPDX-License-Identifier: Apache-2.0
"""The sizes of what kernels compute and send: blocks that fit into VMEM, and in words what no kernel is for.

It loads neither jax nor MLIR. Element types are jax's names, such as bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LANES = 128
BITS = {"float32": 32, "bfloat16": 16}
VMEM_BYTES = 36 * 2**20  # for blocks; the compiler's own needs come on top
_SUM_BYTES = 8 * 2**20  # of a sum in VMEM, of which there are several forms
_MOST_ROWS, _MOST_COLUMNS = 1024, 1024  # of a block
_MOST_INDICES = 2**17  # in the memory of scalars, of 1 MiB
_MOST_MEMBERS = 64

Three = tuple[int, int, int]
Operand = tuple[tuple[int, ...], str]  # shape and element type


@dataclass(frozen=True, slots=True)
class SentProduct:
    """A product [batch, rows, inner] x [batch, inner, columns] on one device, and the all_to_all of its result.

    Attributes:
      whole: batch, rows and columns of the product. split, joined: dimensions of it, as all_to_all has them.
      is_right_transposed: whether the right operand is [batch, columns, inner].
      dtype, operand_dtype: of the result, and of both operands. is_precise: whether float32 is multiplied as such.
      vmem_bytes: for blocks.
    """

    whole: Three
    inner: int
    members: int
    split: int
    joined: int
    dtype: str
    operand_dtype: str
    is_right_transposed: bool = False
    is_precise: bool = False
    vmem_bytes: int = VMEM_BYTES

    @property
    def operands(self) -> tuple[Operand, Operand]:
        batch, rows, columns = self.whole
        right = (batch, columns, self.inner) if self.is_right_transposed else (batch, self.inner, columns)
        return ((batch, rows, self.inner), self.operand_dtype), (right, self.operand_dtype)

    @property
    def part(self) -> Three:
        """Returns the sizes of what goes to one member."""
        return _scaled(self.whole, self.split, lambda size: size // self.members)

    @property
    def result(self) -> Three:
        return _scaled(self.part, self.joined, lambda size: size * self.members)

    @property
    def block(self) -> Three:
        """Returns the sizes of what is computed and sent at once: the block that reads least for each operation.

        Example:
          >>> SentProduct((1, 8192, 8192), 8192, 8, 1, 1, "bfloat16", "bfloat16").block
          (1, 512, 512)
        """
        fitting = [each for each in self._blocks() if self._vmem_bytes(*each) <= self.vmem_bytes]
        rows, columns = max(fitting or list(self._blocks())[:1], key=lambda each: (each[0] * each[1] / sum(each), each))
        return 1, rows, columns

    @property
    def blocks(self) -> Three:
        """Returns the number of blocks of a part along each dimension."""
        return tuple(size // of_block for size, of_block in zip(self.part, self.block))  # type: ignore[return-value]

    def problem(self) -> str:
        """Returns in words why there is no kernel for it; empty if there is one."""
        rows, columns = self.part[1:]
        grain = _sublanes(self.dtype)
        if problem := _types_problem(self.operand_dtype, self.dtype) or _members_problem(self.members):
            return problem
        if rows % grain or columns % LANES:
            return f"a part of {rows} x {columns} is no multiple of {grain} x {LANES}"
        if self._vmem_bytes(*self.block[1:]) > self.vmem_bytes:
            return f"blocks over a contracted dimension of {self.inner} do not fit into VMEM"
        return ""

    def _blocks(self) -> Iterator[tuple[int, int]]:
        rows = _block_sizes(self.part[1], _sublanes(self.dtype), _MOST_ROWS)
        columns = _block_sizes(self.part[2], LANES, _MOST_COLUMNS)
        return ((each, other) for each in rows for other in columns)

    def _vmem_bytes(self, rows: int, columns: int) -> int:
        read = (rows + columns) * self.inner * _bytes(self.operand_dtype)
        return 2 * read + rows * columns * (2 * _bytes(self.dtype) + 4)


@dataclass(frozen=True, slots=True)
class SummedProduct:
    """A product [rows, inner] x [inner, columns] of few rows on one device, and the all_reduce of its result.

    Attributes: as those of SentProduct; each member adds up one chunk of the columns.
    """

    rows: int
    columns: int
    inner: int
    members: int
    dtype: str
    operand_dtype: str
    is_right_transposed: bool = False
    is_precise: bool = False
    vmem_bytes: int = VMEM_BYTES

    @property
    def operands(self) -> tuple[Operand, Operand]:
        right = (self.columns, self.inner) if self.is_right_transposed else (self.inner, self.columns)
        return ((self.rows, self.inner), self.operand_dtype), (right, self.operand_dtype)

    @property
    def chunk(self) -> int:
        return self.columns // self.members

    @property
    def block(self) -> int:
        """Returns the columns that are computed and sent at once.

        Example:
          >>> SummedProduct(16, 8192, 8192, 8, "bfloat16", "bfloat16").block
          1024
        """
        sizes = _block_sizes(self.chunk, LANES, _MOST_COLUMNS)
        fitting = [each for each in sizes if self._vmem_bytes(each) <= self.vmem_bytes]
        return max(fitting or sizes[:1])

    @property
    def blocks(self) -> int:
        return self.chunk // self.block

    def problem(self) -> str:
        """Returns in words why there is no kernel for it; empty if there is one."""
        if problem := _types_problem(self.operand_dtype, self.dtype) or _members_problem(self.members):
            return problem
        if self.columns % (self.members * LANES):
            return f"{self.columns} columns are no multiple of {LANES} for each of {self.members} members"
        if self._sum_bytes > _SUM_BYTES:
            return f"a sum of {self._sum_bytes / 2**20:.1f} MiB does not stay in VMEM; the most is {_SUM_BYTES >> 20}"
        if self._vmem_bytes(self.block) > self.vmem_bytes:
            return f"blocks over a contracted dimension of {self.inner} do not fit into VMEM"
        return ""

    @property
    def _sum_bytes(self) -> int:
        return self._rows_in_memory * self.columns * _bytes(self.dtype)

    @property
    def _rows_in_memory(self) -> int:
        grain = max(map(_sublanes, (self.dtype, self.operand_dtype)))
        return -(-self.rows // grain) * grain

    def _vmem_bytes(self, columns: int) -> int:
        rows = self._rows_in_memory
        read = (rows + columns) * self.inner * _bytes(self.operand_dtype)
        return 2 * read + 4 * self._sum_bytes + rows * columns * (2 * _bytes(self.dtype) + 4)


@dataclass(frozen=True, slots=True)
class SentRows:
    """Rows that are looked up in a table [entries, width], and the all_to_all of them.

    Attributes:
      count: the number of indices on a device, of all members. joined: 0 if rows come one behind the other, 1 if those
        of all members are put together to wider ones.
    """

    entries: int
    width: int
    count: int
    members: int
    joined: int
    dtype: str
    vmem_bytes: int = VMEM_BYTES

    @property
    def operands(self) -> tuple[Operand, Operand]:
        return ((self.count,), "int32"), ((self.entries, self.width), self.dtype)

    @property
    def part(self) -> int:
        return self.count // self.members

    @property
    def result(self) -> tuple[int, int]:
        return (self.count, self.width) if self.joined == 0 else (self.part, self.width * self.members)

    @property
    def block(self) -> int:
        """Returns the rows that are looked up and sent at once."""
        sizes = _block_sizes(self.part, _sublanes(self.dtype), _MOST_ROWS)
        fitting = [each for each in sizes if self._vmem_bytes(each) <= self.vmem_bytes]
        return max(fitting or sizes[:1])

    @property
    def blocks(self) -> int:
        return self.part // self.block

    def problem(self) -> str:
        """Returns in words why there is no kernel for it; empty if there is one."""
        grain = _sublanes(self.dtype)
        if self.dtype != "float32":
            return f"its elements are {self.dtype}, single rows can be copied of float32"
        if problem := _members_problem(self.members):
            return problem
        if self.part % grain or self.width % LANES:
            return f"a part of {self.part} x {self.width} is no multiple of {grain} x {LANES}"
        if self.count > _MOST_INDICES:
            return f"{self.count} indices do not fit into the memory of scalars; the most are {_MOST_INDICES}"
        if self._vmem_bytes(self.block) > self.vmem_bytes:
            return f"rows of {self.width} do not fit into VMEM"
        return ""

    def _vmem_bytes(self, rows: int) -> int:
        return 2 * rows * self.width * _bytes(self.dtype)


Sizes = SentProduct | SummedProduct | SentRows


def _scaled(sizes: Three, dim: int, scale) -> Three:
    return tuple(scale(size) if each == dim else size for each, size in enumerate(sizes))  # type: ignore[return-value]


def _block_sizes(size: int, grain: int, most: int) -> list[int]:
    """Returns the sizes of equal blocks that begin at multiples of a grain; the whole size if there are none.

    Example:
      >>> _block_sizes(384, 128, 1024), _block_sizes(100, 8, 64)
      ([128, 384], [100])
    """
    parts = [each for each in range(grain, min(size, most) + 1, grain) if size % each == 0]
    return parts or [size]


def _sublanes(dtype: str) -> int:
    """Returns the number of rows that lie together in memory."""
    return 8 * 32 // BITS.get(dtype, 32)


def _bytes(dtype: str) -> int:
    return BITS.get(dtype, 32) // 8


def _types_problem(operand: str, result: str) -> str:
    others = sorted({operand, result} - BITS.keys())
    return f"its elements are {', '.join(others)}, kernels are for {' and '.join(BITS)}" if others else ""


def _members_problem(members: int) -> str:
    most = f"kernels are for at most {_MOST_MEMBERS}"
    return f"its groups have {members} members, {most}" if members > _MOST_MEMBERS else ""
