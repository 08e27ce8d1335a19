# SPDX-License-Identifier: Apache-2.0
"""Ways to damage a file, each a function of a random generator and the file's bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

Mutation = Callable[[random.Random, bytes], bytes]

_TOKEN = re.compile(rb"[\w.%@#!$\"-]+|[^\w\s]")
_NUMBER = re.compile(rb"\d+")
# Numbers are replaced by these: the limits of 32 and 64 bits, numbers that are no size, and sizes beyond all memory.
_NUMBERS = (
    b"0",
    b"1",
    b"3",
    b"7",
    b"-1",
    b"4096",
    b"1000003",
    b"2147483647",
    b"4294967296",
    b"9223372036854775807",
    b"1" + b"0" * 30,
)
_BRACKETS = (
    (b"(", b")"), (b"{", b"}"), (b"[", b"]"), (b"<", b">"), (b"tensor<", b">"), (b"tuple<", b">"), (b"{a = ", b"}"),
    (b"loc(fused[", b"])"), (b"module {", b"}"), (b'"', b'"'),
)  # fmt: skip
_DEPTHS = (2, 30, 1000, 20000)


def cut(rng: random.Random, content: bytes) -> bytes:
    """Removes the end of the file, sometimes the beginning."""
    at = rng.randrange(1, len(content))
    return content[at:] if rng.random() < 0.1 else content[:at]


def flip_bits(rng: random.Random, content: bytes) -> bytes:
    return _at_random_bytes(rng, content, lambda byte: byte ^ (1 << rng.randrange(8)))


def replace_bytes(rng: random.Random, content: bytes) -> bytes:
    return _at_random_bytes(rng, content, lambda _: rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256))))


def delete(rng: random.Random, content: bytes) -> bytes:
    start, end = _span(rng, content)
    return content[:start] + content[end:]


def repeat(rng: random.Random, content: bytes) -> bytes:
    """Repeats a piece of the file, up to thousands of times."""
    start, end = _span(rng, content)
    return content[:end] + content[start:end] * rng.choice((1, 1, 3, 100, 5000)) + content[end:]


def move(rng: random.Random, content: bytes) -> bytes:
    start, end = _span(rng, content)
    rest = content[:start] + content[end:]
    at = rng.randrange(len(rest) + 1)
    return rest[:at] + content[start:end] + rest[at:]


def swap_tokens(rng: random.Random, content: bytes) -> bytes:
    """Exchanges two tokens, or replaces one by another."""
    found = list(_TOKEN.finditer(content))
    for _ in range(rng.choice((1, 1, 2, 5))):
        one, other = rng.choice(found), rng.choice(found)
        content = content[: one.start()] + other[0] + content[one.end() :]
    return content


def exchange_similar(rng: random.Random, content: bytes) -> bytes:
    """Replaces a value, symbol or name by another one of its kind, so that the file parses but may not verify."""
    found = list(_TOKEN.finditer(content))
    one = rng.choice(found)
    similar = [each for each in found if each[0][:1] == one[0][:1] and each[0] != one[0]]
    return content[: one.start()] + rng.choice(similar or [one])[0] + content[one.end() :]


def change_numbers(rng: random.Random, content: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 2))):
        found = rng.choice(list(_NUMBER.finditer(content)) or [re.match(b"", content)])
        content = content[: found.start()] + rng.choice(_NUMBERS) + content[found.end() :]
    return content


def delete_lines(rng: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    for _ in range(min(len(lines) - 1, rng.choice((1, 1, 2, 4)))):
        del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def repeat_line(rng: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return b"".join(lines)


def nest(rng: random.Random, content: bytes) -> bytes:
    """Replaces a token by up to thousands of nested brackets, closed or open, with or without the token inside."""
    opening, closing = rng.choice(_BRACKETS)
    depth = rng.choice(_DEPTHS)
    token = rng.choice(list(_TOKEN.finditer(content)))
    inner = rng.choice((b"", token[0]))
    return (
        content[: token.start()] + opening * depth + inner + closing * rng.choice((0, depth)) + content[token.end() :]
    )


def nest_modules(rng: random.Random, content: bytes) -> bytes:
    """Puts the whole text into nested modules."""
    depth = rng.choice(_DEPTHS)
    return b"module {\n" * depth + content + b"}\n" * depth


def _span(rng: random.Random, content: bytes) -> tuple[int, int]:
    start = rng.randrange(len(content))
    return start, min(len(content), start + rng.choice((1, 2, 8, 40, 300)))


def _at_random_bytes(rng: random.Random, content: bytes, change: Callable[[int], int]) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(damaged))
        damaged[at] = change(damaged[at])
    return bytes(damaged)


ANY_FILE: Sequence[Mutation] = (cut, flip_bits, replace_bytes, delete, repeat, move)
TEXT_FILE: Sequence[Mutation] = (
    *ANY_FILE, swap_tokens, exchange_similar, exchange_similar, change_numbers, change_numbers,
    delete_lines, repeat_line, nest, nest_modules,
)  # fmt: skip


def mutate(rng: random.Random, content: bytes, is_text: bool) -> tuple[str, bytes]:
    """Returns the name of a random mutation, and the file that it changed."""
    mutation = rng.choice(TEXT_FILE if is_text else ANY_FILE)
    return mutation.__name__.replace("_", " "), mutation(rng, content)
