# SPDX-License-Identifier: Apache-2.0
"""Element types by any of their names: numpy's, jax's, HLO's and MLIR's."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MOST_BITS = 1 << 60  # of a whole array: byte counts stay exact in 64 bits


class ElementTypeError(ValueError):
    """Raised for a dtype or a tensor type that cannot be read; the message is one line in the user's words."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type.

    Attributes:
      name: as plans print it, e.g. f32, bf16, i8, u8, c64. bits: of one element; a bool counts as the byte XLA stores.
      mlir: as MLIR writes it, e.g. ui8, complex<f32>, f8E4M3FN.
    """

    name: str
    bits: int
    mlir: str


def _known() -> dict[str, ElementType]:
    """Returns all element types, each under all of its names."""
    floats = ("f16", "f32", "f64")
    small = (
        "f4e2m1fn",
        "f6e2m3fn",
        "f6e3m2fn",
        "f8e3m4",
        "f8e4m3",
        "f8e4m3b11fnuz",
        "f8e4m3fn",
        "f8e4m3fnuz",
        "f8e5m2",
    )
    small += ("f8e5m2fnuz", "f8e8m0fnu")
    found = {name: ElementType("i1", 8, "i1") for name in ("i1", "bool", "pred")}
    for bits in (2, 4, 8, 16, 32, 64):
        found |= dict.fromkeys(
            (f"i{bits}", f"s{bits}", f"si{bits}", f"int{bits}"), ElementType(f"i{bits}", bits, f"i{bits}")
        )
        found |= dict.fromkeys((f"u{bits}", f"ui{bits}", f"uint{bits}"), ElementType(f"u{bits}", bits, f"ui{bits}"))
    for name in floats:
        found |= dict.fromkeys((name, f"float{name[1:]}"), ElementType(name, int(name[1:]), name))
    found |= dict.fromkeys(("bf16", "bfloat16"), ElementType("bf16", 16, "bf16"))
    for name in small:
        element = ElementType(name, int(name[1]), name[:2] + name[2:].upper())
        found |= dict.fromkeys((name, f"float{name[1]}_{name[2:]}"), element)
    for bits in (64, 128):
        part = f"complex<f{bits // 2}>"
        found |= dict.fromkeys((f"c{bits}", f"complex{bits}", part), ElementType(f"c{bits}", bits, part))
    return found


_KNOWN = _known()


def element_type(dtype) -> ElementType:
    """Returns the type of a numpy or jax dtype, or of any of its names, in any case.

    Raises: ElementTypeError for a type that is not known.

    Example:
      >>> [element_type(each).name for each in ("float32", "bf16", "pred", "uint8", "complex<f32>", bool)]
      ['f32', 'bf16', 'i1', 'u8', 'c64', 'i1']
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    found = _KNOWN.get(name.strip().lower())
    if found is None:
        raise ElementTypeError(f"unknown dtype {name!r}; write a numpy name such as float32, or f32, bf16, i8, c64")
    return found


_HLO = re.compile(r"(?P<element>[\w<>]+)\s*\[(?P<sizes>[\d\s,]*)\]")
_MLIR = re.compile(r"tensor<(?P<sizes>(?:\d+x)*)(?P<element>[A-Za-z][\w<>]*)>")


def parse_type(text: str) -> tuple[ElementType, tuple[int, ...]]:
    """Returns the element type and the global shape of `f32[16,16]` or `tensor<16x16xf32>`.

    Raises: ElementTypeError for other text, dynamic sizes included.

    Example:
      >>> element, shape = parse_type("tensor<16x4xcomplex<f32>>")
      >>> element.name, shape, parse_type("f32[]")[1]
      ('c64', (16, 4), ())
    """
    stripped = text.strip()
    found = _MLIR.fullmatch(stripped) or _HLO.fullmatch(stripped)
    sizes = re.split(r"\s*[x,]\s*", found["sizes"].strip().removesuffix("x")) if found else []
    if not found or (sizes != [""] and not all(sizes)):
        raise ElementTypeError(f'cannot read type "{stripped}"; write f32[16,16] or tensor<16x16xf32>')
    element = element_type(found["element"])
    shape = tuple(int(size) for size in sizes if size)
    check_size(element, shape)
    return element, shape


def check_size(element: ElementType, shape: tuple[int, ...]) -> None:
    """Raises: ElementTypeError if a size is negative or the array is too large to count its bytes."""
    text = f"{element.name}{list(shape)}".replace(" ", "")
    if min(shape, default=0) < 0:
        raise ElementTypeError(f"{text} has a negative size")
    if math.prod(max(size, 1) for size in shape) * element.bits > MOST_BITS:
        raise ElementTypeError(f"{text} is larger than 2^57 bytes; no array is")


def mlir_type(element: ElementType, shape: tuple[int, ...]) -> str:
    """Returns the tensor type as MLIR writes it, e.g. `tensor<16x4xf32>`."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element.mlir}>"
