# SPDX-License-Identifier: Apache-2.0
"""How much of the result of a collective a program goes on with."""

from ..hlo.text import Computation, HloModule, Instruction, shape_bytes

_VIEWS = frozenset(("bitcast", "copy", "reshape", "transpose"))
_SUMS = frozenset(("all-reduce", "all-reduce-start"))


def kept_bytes(module: HloModule) -> dict[str, int]:
    """Returns for each all-reduce, by the name of its instruction, the bytes of the result that a device goes on with.

    Right after partitioning, sums of which each device needs a part are an all-reduce whose only users slice it. Some
    compilers make a reduce-scatter of the two.

    Example:
      >>> from ..hlo.text import parse_module
      >>> kept_bytes(parse_module('''HloModule m, num_partitions=4
      ... ENTRY %main (p: f32[8], i: s32[]) -> f32[2] {
      ...   %p = f32[8]{0} parameter(0)
      ...   %i = s32[] parameter(1)
      ...   %r = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups=[1,4]<=[4], to_apply=%add
      ...   ROOT %s = f32[2]{0} dynamic-slice(%r, %i), dynamic_slice_sizes={2}
      ... }'''))
      {'r': 8}
    """
    found: dict[str, int] = {}
    for computation in module.computations.values():
        sums = [each for each in computation.instructions.values() if each.opcode in _SUMS]
        if not sums:
            continue
        users = _users(computation)
        for each in sums:
            found[each.name] = min(shape_bytes(each.shape), _kept(each, users, computation.root))
    return found


def _users(computation: Computation) -> dict[str, list[Instruction]]:
    users: dict[str, list[Instruction]] = {}
    for each in computation.instructions.values():
        if each.opcode not in ("constant", "parameter"):
            for name in {operand.partition("#")[0] for operand in each.operands}:
                users.setdefault(name, []).append(each)
    return users


def _kept(instruction: Instruction, users: dict[str, list[Instruction]], root: str) -> int:
    """Returns the bytes of all slices of a value together; those of the value if anything else uses it."""
    whole = shape_bytes(instruction.shape)
    if instruction.name == root:
        return whole
    slices: dict[tuple, int] = {}
    for user in users.get(instruction.name, ()):
        if user.opcode == "dynamic-slice" and user.operands[0] == instruction.name:
            slices[user.arguments, user.attributes.partition("metadata=")[0]] = shape_bytes(user.shape)
        elif user.opcode in _VIEWS:
            slices[(user.name,)] = _kept(user, users, root)
        else:
            return whole
    return sum(slices.values()) if slices else whole
