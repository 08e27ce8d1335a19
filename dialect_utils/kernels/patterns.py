# SPDX-License-Identifier: Apache-2.0
"""Which candidates for a pipeline a kernel is for, as products of matrices and lookups of their rows.

Operands are taken as they lie in memory: dimensions are grouped, and none is moved but those of a small operand.

| in the program                            | kernel              |
|-------------------------------------------|---------------------|
| product, all_to_all                       | `sent_products`     |
| product of few rows or columns, all_reduce| `summed_products`   |
| lookup of whole rows, all_to_all          | `sent_rows`         |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reshard.synthesis.network.cost import crossed_level
from reshard.synthesis.network.topology import Topology

from ..hierarchy.explicit_collectives import NotPlannable
from ..ir.ops import shape_of
from ..overlap.candidates import Candidate
from ..overlap.cones import DOT, Cone
from ..overlap.lookups import TableLookup
from ..overlap.products import DotProduct
from ..platform.bindings import ir
from ..platform.typed import present
from .sizes import SentProduct, SentRows, Sizes, SummedProduct

_MOST_FEW = 64  # rows of a product that reads its weights and does little else
_SLICE = "slice"  # the level of networks of TPUs that remote DMA does not cross
VERSIONS = ("v5p", "v6e", "tpu7x")
_BATCH, _ROWS, _COLUMNS = range(3)
_DTYPES = {"f32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel in place of a candidate.

    Attributes:
      op: the product or lookup. is_swapped: whether the kernel takes its second operand first.
      is_first_transposed, is_result_transposed: whether what the kernel takes first is transposed, and what it gives.
    """

    sizes: Sizes
    op: ir.Operation
    is_swapped: bool = False
    is_first_transposed: bool = False
    is_result_transposed: bool = False

    @property
    def operands(self) -> tuple[ir.Value, ir.Value]:
        """Returns the operands in the kernel's order, which takes them in the shapes of `sizes`."""
        one, other = self.op.operands
        return (other, one) if self.is_swapped else (one, other)


def platform_problem(platform: str, topology: Topology, candidate: Candidate) -> str:
    """Returns in words why kernels are not for a network; empty if they are."""
    version = topology.name.partition(":")[0]
    if platform != "tpu" or version not in VERSIONS:
        return f"kernels are for {', '.join(VERSIONS)}, not for {topology.name} on platform {platform}"
    collective = candidate.collective
    level = crossed_level(topology, collective.mesh.devices, collective.flat)
    return "its groups are on several slices" if level is None or level.name == _SLICE else ""


def kernel_call_of(candidate: Candidate) -> KernelCall:
    """Returns the kernel for a candidate. Raises: NotPlannable if there is none; the message says why."""
    call_of = _CALLS.get(f"{candidate.word}, {candidate.stock.in_groups.kind}") if candidate.made_by else None
    if call_of is None:
        raise NotPlannable(f"there is no kernel for {candidate.text}")
    call = call_of(candidate, present(candidate.made_by))
    if problem := call.sizes.problem():
        raise NotPlannable(problem)
    covered = sorted(device for group in candidate.collective.groups for device in group)
    if covered != list(range(candidate.collective.mesh.devices)):
        raise NotPlannable("some devices are in no group")
    return call


def _product_of(cone: Cone) -> tuple[DotProduct, str]:
    """Returns the product before a collective, and the type in which its result travels. Raises: NotPlannable."""
    *converted, product = cone.ops
    if product.name != DOT or [op.name for op in converted] not in ([], ["stablehlo.convert"]):
        raise NotPlannable("there are other ops between product and collective")
    if converted and _dtype(product.results[0]) != "float32":
        raise NotPlannable("its result is converted from another type than float32")
    return DotProduct(product), _dtype(cone.root)


def _sent(candidate: Candidate, cone: Cone) -> KernelCall:
    product, dtype = _product_of(cone)
    is_transposed = _layout(product)
    free = [product.free(operand) for operand in (0, 1)]
    left, right = product.shapes
    groups = [
        [left[dim] for dim in product.batched[0]],
        [left[dim] for dim in free[0]],
        [right[dim] for dim in free[1]],
    ]
    sizes = SentProduct(
        (math.prod(groups[_BATCH]), math.prod(groups[_ROWS]), math.prod(groups[_COLUMNS])),
        _inner(product), candidate.members, *_split_and_joined(candidate, groups), dtype, _operand_dtype(product),
        is_transposed, _is_precise(product),
    )  # fmt: skip
    return KernelCall(sizes, product.op)


def _summed(candidate: Candidate, cone: Cone) -> KernelCall:
    product, dtype = _product_of(cone)
    is_transposed = _layout(product)
    sizes = product.sized(*product.shapes)
    if sizes.batch != 1:
        raise NotPlannable("its product has batches")
    is_swapped = sizes.rows > _MOST_FEW
    few, many = (sizes.columns, sizes.rows) if is_swapped else (sizes.rows, sizes.columns)
    if few > _MOST_FEW:
        raise NotPlannable(f"a product of {sizes.rows} x {sizes.columns} has more than {_MOST_FEW} rows and columns")
    found = SummedProduct(
        few, many, sizes.inner, candidate.members, dtype, _operand_dtype(product),
        is_transposed or is_swapped, _is_precise(product),
    )  # fmt: skip
    return KernelCall(found, product.op, is_swapped, is_swapped and not is_transposed, is_swapped)


def _looked_up(candidate: Candidate, cone: Cone) -> KernelCall:
    if len(cone.ops) != 1:
        raise NotPlannable("there are other ops between lookup and collective")
    lookup = TableLookup(cone.ops[0])
    table, indices = lookup.op.operands
    *batches, width = present(shape_of(lookup.op.results[0].type))
    numbers = lookup.numbers
    asked = [*numbers.start_index_map], [*numbers.collapsed_slice_dims], [*numbers.offset_dims], lookup.taken
    if asked != ([0], [0], [len(batches)], (1, width)) or lookup.shapes[0][1:] != (width,):
        raise NotPlannable("its lookup takes something else than whole rows of a matrix")
    if _dtype(indices) != "i32":
        raise NotPlannable(f"its indices are {_dtype(indices)}, kernels take i32")
    split, joined = _split_and_joined(candidate, [batches, [width]])
    if split:
        raise NotPlannable("it sends parts of rows, kernels send whole ones")
    sizes = SentRows(lookup.shapes[0][0], width, math.prod(batches), candidate.members, joined, _dtype(table))
    return KernelCall(sizes, lookup.op, is_swapped=True)


_CALLS: dict[str, Callable[[Candidate, Cone], KernelCall]] = {
    "product, all_to_all": _sent,
    "product, all_reduce": _summed,
    "lookup, all_to_all": _looked_up,
}


def _is_right_transposed(product: DotProduct) -> bool:
    """Returns whether the contracted dimensions of the right operand are behind the others."""
    batched, contracted = product.batched[1], product.contracted[1]
    return [*batched, *product.free(1), *contracted] == list(range(len(product.shapes[1])))


def _layout(product: DotProduct) -> bool:
    """Returns whether the right operand is transposed. Raises: NotPlannable if an operand is no matrix as it lies."""
    left = [*product.batched[0], *product.free(0), *product.contracted[0]]
    right = [*product.batched[1], *product.contracted[1], *product.free(1)]
    is_transposed = _is_right_transposed(product)
    if left != list(range(len(left))) or (right != list(range(len(right))) and not is_transposed):
        raise NotPlannable("an operand of its product is no matrix as it lies in memory")
    return is_transposed


def _split_and_joined(candidate: Candidate, groups: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Returns the groups of an all_to_all's dimensions. Raises: NotPlannable if its parts are no rows or columns."""
    found = candidate.collective.in_groups
    sizes = [size for group in groups for size in group]
    split = _leading(sizes, groups, found.dim)
    sizes[found.dim] //= candidate.members
    return split, _leading(sizes, groups, found.joined)


def _leading(sizes: Sequence[int], groups: Sequence[Sequence[int]], dim: int) -> int:
    """Returns the group of a dimension, in which it has to come first: then its parts lie together."""
    first = 0
    for group, members in enumerate(groups):
        if dim < first + len(members):
            if math.prod(sizes[first:dim]) != 1:
                raise NotPlannable("its parts are apart in memory")
            return group
        first += len(members)
    raise AssertionError("the dimension is one of the tile's")


def _inner(product: DotProduct) -> int:
    return math.prod(product.shapes[0][dim] for dim in product.contracted[0])


def _operand_dtype(product: DotProduct) -> str:
    """Returns the element type of both operands. Raises: NotPlannable if they differ."""
    one, other = (_dtype(each) for each in product.op.operands)
    if one != other:
        raise NotPlannable(f"its operands are {one} and {other}")
    return one


def _is_precise(product: DotProduct) -> bool:
    """Returns whether float32 has to be multiplied as such. Raises: NotPlannable for what kernels cannot be asked."""
    if "algorithm" in product.op.attributes:
        raise NotPlannable("its product asks for an algorithm")
    asked = {str(each) for each in present(ir.ArrayAttr(product.op.attributes["precision_config"]))} if (
        "precision_config" in product.op.attributes
    ) else set()  # fmt: skip
    if _operand_dtype(product) != "float32" or not asked or asked == {"#stablehlo<precision DEFAULT>"}:
        return False
    if asked != {"#stablehlo<precision HIGHEST>"}:
        raise NotPlannable("kernels have the precisions DEFAULT and HIGHEST alone")
    return True


def _dtype(value: ir.Value) -> str:
    element = str(ir.RankedTensorType(value.type).element_type)
    return _DTYPES.get(element, element)
