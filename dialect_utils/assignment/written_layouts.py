# SPDX-License-Identifier: Apache-2.0
"""Chosen layouts, written into a module: shardings of its arguments and results, and few sharding constraints.

Between two conversions all layouts agree, so that propagation finds them by itself. Where the solution converts, it may
have to be stopped: by a constraint on the result of an op that makes a value in another layout, or on the operand of an
op that takes it in another one. Most of these places need none. So constraints *grow*: propagation runs, and each part
of the program in which it comes to other layouts gets a constraint at its first op, then at two of its ops, then at
three, until all layouts are the chosen ones. Parts that are alike, such as layers, grow side by side, so that a few
runs are enough for any number of layers. Where that comes to no end, there is a constraint at each conversion. Then
those go without which propagation comes to the same layouts: first of all layers at once, then in halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reshard.synthesis.assignment.layout_problem import Assignment
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

from ..analysis.module_analysis import Analysis, analyse
from ..ir.functions import functions_of, public_functions, signature, symbol
from ..ir.ops import LOOPS, ops_around, ops_in, shape_of, terminator_of
from ..ir.pipelines import run_pipeline
from ..platform.bindings import ir, sdy
from ..platform.typed import present
from ..shardings.annotations import constraints_of
from ..shardings.sdy_shardings import SHARDING, Shardings, module_meshes, sharding_from_attr, sharding_to_attr
from .factored_modules import FactoredModule, Place, same_axes

MESH = "mesh"  # the name of the mesh that a module gets if it has none like it
MOST_GROWING = 16  # propagations, in which constraints are added
MOST_PRUNING = 30  # propagations, in which constraints are taken out; fewer of large modules, which take long:
PRUNED_OPS = 100_000  # of all these propagations together
ALIASED, DONOR = "tf.aliasing_output", "jax.buffer_donor"
_MARK = "reshard.assigned"
_PARTITIONS = "mhlo.num_partitions"
_VISIBILITY = "sym_visibility"
_ROUNDS = 4  # in which constraints are added where propagation comes to other layouts


@dataclass(frozen=True, slots=True)
class Written:
    """What was written into a module.

    Attributes:
      constraints: the number of sharding constraints. at_first: before any was taken out.
      left: the number of results that propagation still gives another layout.
    """

    constraints: int
    at_first: int
    left: int


def write_layouts(module: ir.Module, factored: FactoredModule, assignment: Assignment, mesh: Mesh) -> Written:
    """Writes layouts into the module, in place, that `factored` was made of."""
    ops = [op for op in ops_in(module.operation) if op.name != "sdy.mesh"]
    with module.context, ir.Location.unknown():
        if _PARTITIONS in module.operation.attributes:
            kind = ir.IntegerType.get_signless(32)
            module.operation.attributes[_PARTITIONS] = ir.IntegerAttr.get(kind, mesh.size)
        return _Writer(module, factored, assignment, mesh_symbol(module, mesh), ops).write()


def free_of_shardings(module: ir.Module, *, keeps_signatures: bool = False) -> None:
    """Takes out the sharding constraints of a module, and the shardings of arguments and results of its functions if
    they are not to be kept."""
    for op in constraints_of(module):
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()
    for function in () if keeps_signatures else functions_of(module.operation):
        for name in ("arg_attrs", "res_attrs"):
            if name in function.attributes:
                held = [ir.DictAttr(each) for each in ir.ArrayAttr(function.attributes[name])]
                kept = [{entry.name: entry.attr for entry in each if entry.name != SHARDING} for each in held]
                with module.context:
                    function.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(each) for each in kept])


def drop_idle_meshes(module: ir.Module, mesh: Mesh) -> None:
    """Takes out the meshes that nothing names, but for `mesh`: a network need not fit their devices.

    Private functions that nothing calls go, too.
    """
    meshes = [each.operation for each in module.body.operations if each.operation.name == "sdy.mesh"]
    others = [op for op in meshes if module_meshes(module).get(symbol(op)) != mesh]
    held = {symbol(op): op.attributes.get(_VISIBILITY) for op in others}
    with module.context, ir.Location.unknown():
        for op in others:
            op.attributes[_VISIBILITY] = ir.StringAttr.get("private")
        run_pipeline(module.operation, "builtin.module(symbol-dce)")
        for each in module.body.operations:
            op = each.operation
            if op.name != "sdy.mesh" or symbol(op) not in held:
                continue
            if (before := held[symbol(op)]) is None:
                del op.attributes[_VISIBILITY]
            else:
                op.attributes[_VISIBILITY] = before


def mesh_symbol(module: ir.Module, mesh: Mesh) -> str:
    """Returns the symbol of a mesh in a module, which gets it if it has none; in its context."""
    meshes = module_meshes(module)
    for name, each in meshes.items():
        if each == mesh:
            return name
    name, number = MESH, 0
    while name in meshes:
        number += 1
        name = f"{MESH}_{number}"
    with ir.InsertionPoint.at_block_begin(module.body):
        axes = [sdy.MeshAxisAttr.get(axis, size) for axis, size in mesh.axes]
        sdy.MeshOp(name, sdy.MeshAttr.get(axes, device_ids=list(mesh.device_ids or ())))
    return name


@dataclass
class _Constraint:
    """A constraint that may be taken out and put back, in the opposite order.

    Attributes:
      op: behind `producer`, or before `user`; one of them is None.
      is_outside_of_loop: whether it keeps a conversion out of a loop, which propagation does not show.
      users: (op, operand number) of the uses while it is out.
    """

    op: ir.Operation
    producer: ir.Operation | None
    user: ir.Operation | None
    is_outside_of_loop: bool = False
    users: list[tuple[ir.Operation, int]] = field(default_factory=list)

    def take_out(self) -> None:
        self.users = [(use.owner.operation, use.operand_number) for use in self.op.results[0].uses]
        self.op.results[0].replace_all_uses_with(self.op.operands[0])
        self.op.detach_from_parent()

    def put_back(self) -> None:
        where = ir.InsertionPoint(self.user) if self.user else ir.InsertionPoint.after(present(self.producer))
        where.insert(self.op)
        for user, number in self.users:
            user.operands[number] = self.op.results[0]


@dataclass
class _Writer:
    """Attributes: ops: of the module before anything is written, but for meshes, in walk order.

    State: `trials`, the propagations so far, and how many there may be.
    """

    module: ir.Module
    factored: FactoredModule
    assignment: Assignment
    mesh: str
    ops: list[ir.Operation]
    wanted: dict[Place, Sharding] = field(init=False)
    constraints: list[_Constraint] = field(init=False, default_factory=list)
    trials: int = 0
    most_trials: int = 0

    def __post_init__(self) -> None:
        self.wanted = {place: layouts.pop() for place, layouts in self._wanted().items() if len(layouts) == 1}

    def write(self) -> Written:
        self._write_signature()
        self._convert_what_is_stated()
        operands = self._taken_otherwise()
        self._look_at_loops_only_where_they_convert(dict(operands))
        for (op, operand), layout in operands:
            if _is_from_outside_of_a_loop(self.ops[op], operand):  # propagation would not show it
                self._constrain_operand(op, operand, layout)
        left = self._grown(operands)
        if left:
            left = self._constrained_everywhere(operands)
        at_first = len(self.constraints)
        self.most_trials = self.trials + min(MOST_PRUNING, max(1, PRUNED_OPS // len(self.ops)))
        self._prune_alike(len(left))
        self._prune([each for each in self.constraints if not each.is_outside_of_loop], len(left))
        self._keep_ways(operands)
        for each in self.constraints:
            del each.op.attributes[_MARK]
        return Written(len(self.constraints), at_first, len(left))

    def _grown(self, operands: Sequence[tuple[tuple[int, int], Sharding]]) -> list[Place]:
        """Adds constraints where propagation comes to other layouts; returns the places where it still does."""
        taken: dict[int, list[tuple[int, Sharding]]] = {}
        for (op, operand), layout in operands:
            taken.setdefault(op, []).append((operand, layout))
        tried: dict[int, int] = {}  # by op: constraints on its results, then on its operands
        left, count = self._mismatches(), 1
        while left and self.trials < MOST_GROWING:
            places: dict[int, list[Place]] = {}
            for place in left:
                places.setdefault(place[0], []).append(place)
            open_ = [at for at in sorted(places) if tried.get(at, 0) < (2 if at in taken else 1)]
            if not open_:
                break
            for part in self._parts(open_):
                for at in part[:: max(1, len(part) // count)][:count]:
                    if not tried.get(at):
                        for place in places[at]:
                            self._constrain_result(place)
                    else:
                        for operand, layout in taken[at]:
                            self._constrain_operand(at, operand, layout)
                    tried[at] = tried.get(at, 0) + 1
            left, count = self._mismatches(), count + 1
        return left

    def _keep_ways(self, operands: Sequence[tuple[tuple[int, int], Sharding]]) -> None:
        """Constrains operands that an op takes in another layout, where Shardy lets the op work in yet another way: its
        result has the chosen layout in the end, but by other conversions."""
        for _ in range(_ROUNDS):
            wrong = self._taken_wrongly(operands)
            if not wrong:
                return
            for (op, operand), layout in wrong:
                self._constrain_operand(op, operand, layout)

    def _taken_wrongly(
        self, operands: Sequence[tuple[tuple[int, int], Sharding]]
    ) -> list[tuple[tuple[int, int], Sharding]]:
        """Returns those of some operands that ops take in another layout once conversions are inserted."""
        self.trials += 1
        analysis = analyse(self.module)
        now, shardings = self._indices(analysis), Shardings()
        serials = {at: analysis.instances.get(now.get(at, -1), ()) for at, _ in dict(operands)}
        ops = analysis.first_of({serial for some in serials.values() for serial in some})
        wrong = []
        for (at, operand), layout in operands:
            for serial in serials[at]:
                op = ops.get(serial)
                if op is None or op.name != self.ops[at].name or operand >= len(op.operands):
                    continue
                attr = analysis.layout(op.operands[operand])
                dims = shardings[attr].dims if attr is not None else ((),) * layout.rank
                if len(dims) == layout.rank and not _split_alike(dims, layout.dims):
                    wrong.append(((at, operand), layout))
                    break
        return wrong

    def _parts(self, some: Sequence[int]) -> list[list[int]]:
        """Returns ops, by number, in groups that take from each other, in program order."""
        place_of = {self.ops[at]: at for at in some}
        above = {at: at for at in some}

        def root(at: int) -> int:
            while above[at] != at:
                above[at] = at = above[above[at]]
            return at

        for at in some:
            for value in self.ops[at].operands:
                producer = _before_constraints(value)
                if producer is not None and producer in place_of:
                    one, other = sorted((root(at), root(place_of[producer])))
                    above[other] = one
        parts: dict[int, list[int]] = {}
        for at in some:
            parts.setdefault(root(at), []).append(at)
        return list(parts.values())

    def _constrained_everywhere(self, operands: Sequence[tuple[tuple[int, int], Sharding]]) -> list[Place]:
        """Puts a constraint at each conversion, and then where propagation comes to other layouts all the same; returns
        the places where it still does."""
        for each in reversed(self.constraints):
            each.take_out()
        self.constraints.clear()
        self._convert_what_is_stated()
        for place in sorted(self._made_otherwise()):
            self._constrain_result(place)
        for (op, operand), layout in operands:
            self._constrain_operand(op, operand, layout)
        left = self._mismatches()
        for round_ in range(_ROUNDS):
            if not left:
                break
            some = left if round_ == _ROUNDS - 1 else left[: max(1, len(left) // 4)]
            for place in some:
                self._constrain_result(place)
            left = self._mismatches()
        return left

    # ---- what is wanted

    def _wanted(self) -> dict[Place, set[Sharding]]:
        """Returns the layouts of each op's result: several if it is called several times."""
        found: dict[Place, set[Sharding]] = {}
        for tensor, places in self.factored.places.items():
            layout = self.assignment.layouts[tensor]
            if layout is not None and not layout.unreduced:
                for place in places:
                    found.setdefault(place, set()).add(layout)
        return found

    def _made_otherwise(self) -> set[Place]:
        """Returns the results that an op makes in another layout than they have."""
        found = set()
        for number, way in self.assignment.ways.items():
            op = self.factored.program.ops[number]
            for tensor, dims in zip(op.results, op.result_dims, strict=True):
                partial = any(way[factor] for factor in op.reduced)
                if partial or self.assignment.layout_in(dims, way) != self.assignment.layouts[tensor]:
                    found.update(self.factored.places.get(tensor, ()))
        return found

    def _taken_otherwise(self) -> Sequence[tuple[tuple[int, int], Sharding]]:
        """Returns ((op, operand number), layout) for each operand that an op takes in another layout than it has."""
        found: dict[tuple[int, int], set[Sharding]] = {}
        for number, way in self.assignment.ways.items():
            op, index = self.factored.program.ops[number], self.factored.ops[number]
            if index is None:
                continue
            for tensor, dims, operand in zip(op.operands, op.operand_dims, self.factored.operand_numbers[number]):
                target = self.assignment.layout_in(dims, way)
                if target != self.assignment.layouts[tensor] and not self._is_partial(tensor):
                    found.setdefault((index, operand), set()).add(target)
        return [(key, each.pop()) for key, each in sorted(found.items()) if len(each) == 1]

    def _look_at_loops_only_where_they_convert(self, taken: Mapping[tuple[int, int], Sharding]) -> None:
        """Leaves out what loops carry as it begins: ops inside show how that is split."""
        self.wanted = {
            place: layout
            for place, layout in self.wanted.items()
            if self.ops[place[0]].name not in LOOPS or place in taken
        }

    def _convert_what_is_stated(self) -> None:
        """Constrains values whose layout is stated where those who take them have another one, which they share."""
        for op, index in zip(self.factored.program.ops, self.factored.ops, strict=True):
            if index is not None or op.name != "copy":
                continue
            (given,), (tensor,) = op.operands, op.results
            before, after = (self.assignment.layouts[each] for each in (given, tensor))
            if before is None or after is None or _split_alike(before.dims, after.dims):
                continue
            if (value := self._value_of(given)) is not None:
                self._constrain_value(value, after)

    def _value_of(self, tensor: int) -> ir.Value | None:
        """Returns the argument or the result of an op that a tensor is; None for a tensor of several calls."""
        if tensor in self.factored.arguments:
            (main,) = public_functions(functions_of(self.module.operation))
            return main.regions[0].blocks[0].arguments[self.factored.arguments.index(tensor)]
        places = self.factored.places.get(tensor, ())
        return self.ops[places[0][0]].results[places[0][1]] if len(places) == 1 else None

    def _constrain_value(self, value: ir.Value, layout: Sharding) -> None:
        """Constrains a value for all that take it."""
        owner = value.owner
        if isinstance(owner, ir.Block):
            producer, where = None, ir.InsertionPoint.at_block_begin(owner)
        else:
            producer, where = owner.operation, ir.InsertionPoint.after(owner.operation)
        with where, value.location:
            new = self._new(value, layout)
        value.replace_all_uses_except(new.results[0], new)
        self.constraints.append(_Constraint(new, producer, None, is_outside_of_loop=True))

    def _is_partial(self, tensor: int) -> bool:
        layout = self.assignment.layouts[tensor]
        return layout is not None and bool(layout.unreduced)

    # ---- writing

    def _attr(self, sharding: Sharding) -> ir.Attribute:
        return sharding_to_attr(sharding, self.mesh)

    def _write_signature(self) -> None:
        (main,) = public_functions(functions_of(self.module.operation))
        types = signature(main)
        for name, tensors, kinds in (
            ("arg_attrs", self.factored.arguments, types.inputs),
            ("res_attrs", self.factored.results, types.results),
        ):
            held = main.attributes.get(name)
            attributes = [ir.DictAttr(each) for each in ir.ArrayAttr(held)] if held is not None else None
            new = []
            for number, (tensor, kind) in enumerate(zip(tensors, kinds, strict=True)):
                entries = {each.name: each.attr for each in attributes[number]} if attributes else {}
                if isinstance(kind, ir.RankedTensorType) and (tensor is not None or not _is_split(entries)):
                    layout = None if tensor is None else self._layout_in_signature(tensor)
                    entries[SHARDING] = self._attr(layout or Sharding(((),) * ir.RankedTensorType(kind).rank))
                if name == "arg_attrs" and self._is_donated_elsewhere(entries, tensor):
                    del entries[ALIASED]
                    entries[DONOR] = ir.BoolAttr.get(True)
                new.append(ir.DictAttr.get(entries))
            main.attributes[name] = ir.ArrayAttr.get(new)

    def _layout_in_signature(self, tensor: int) -> Sharding | None:
        return self.factored.as_stated(tensor, self.assignment.layouts[tensor])

    def _is_donated_elsewhere(self, entries: dict[str, ir.Attribute], tensor: int | None) -> bool:
        """Returns whether an argument is donated to a result that has another layout now; XLA takes no such alias."""
        if ALIASED not in entries:
            return False
        result = self.factored.results[ir.IntegerAttr(entries[ALIASED]).value]
        one, other = (each if each is None else self._layout_in_signature(each) for each in (tensor, result))
        return one != other

    def _constrain_result(self, place: Place) -> None:
        if place not in self.wanted:  # it is wanted in several layouts
            return
        producer = self.ops[place[0]]
        value = producer.results[place[1]]
        with ir.InsertionPoint.after(producer), producer.location:
            new = self._new(value, self.wanted[place])
        value.replace_all_uses_except(new.results[0], new)
        self.constraints.append(_Constraint(new, producer, None))

    def _constrain_operand(self, op: int, operand: int, layout: Sharding) -> None:
        """Constrains an operand: outside of the loops in which it does not change."""
        user = self.ops[op]
        if operand >= len(user.operands) or len(shape_of(user.operands[operand].type) or ()) != layout.rank:
            return  # the loop carries other values than in the clone
        inside = user
        user, operand = _outside_of_loops(user, operand)
        value = user.operands[operand]
        before = _ancestor_beside(user, value)
        with ir.InsertionPoint(before), user.location:
            new = self._new(value, layout)
        user.operands[operand] = new.results[0]
        self.constraints.append(_Constraint(new, None, before, before != inside))

    def _new(self, value: ir.Value, sharding: Sharding) -> ir.Operation:
        new = sdy.ShardingConstraintOp(value, self._attr(sharding)).operation
        new.attributes[_MARK] = ir.UnitAttr.get()
        return new

    # ---- what propagation makes of it

    def _mismatches(self) -> list[Place]:
        """Returns the results that propagation gives another layout than the chosen one."""
        self.trials += 1
        analysis = analyse(self.module)
        now = self._indices(analysis)
        shardings = Shardings()
        return [
            place for place, wanted in self.wanted.items() if self._differs(analysis, now, place, wanted, shardings)
        ]

    def _differs(
        self, analysis: Analysis, now: dict[int, int], place: Place, wanted: Sharding, shardings: Shardings
    ) -> bool:
        for serial in analysis.instances.get(now.get(place[0], -1), ()):
            for attr in analysis.layouts.get(serial, ()):
                nth = attr and analysis.nth_sharding(attr, place[1])
                dims = shardings[nth].dims if nth is not None else ((),) * wanted.rank
                if not _split_alike(dims, wanted.dims):
                    return True
        return False

    def _indices(self, analysis: Analysis) -> dict[int, int]:
        """Returns number in `ops` -> index in the analysis."""
        ours = [at for at, op in enumerate(analysis.originals) if op.name != "sdy.mesh" and _MARK not in op.attributes]
        return dict(enumerate(ours))

    def _prune_alike(self, left: int) -> None:
        """Takes out constraints that are alike, as those of all layers are, without which no more layouts differ."""
        alike: dict[tuple, list[_Constraint]] = {}
        for each in self.constraints:
            if not each.is_outside_of_loop:
                near = present(each.producer or each.user)
                key = each.producer is None, near.name, str(each.op.results[0].type), each.op.attributes["sharding"]
                alike.setdefault(key, []).append(each)
        for some in sorted(alike.values(), key=len, reverse=True):
            if len(some) > 1:
                self._is_rid_of(some, left)

    def _prune(self, some: list[_Constraint], left: int) -> None:
        """Takes out constraints without which no more layouts differ."""
        if self._is_rid_of(some, left) or len(some) < 2:
            return
        half = len(some) // 2
        self._prune(some[half:], left)
        self._prune(some[:half], left)

    def _is_rid_of(self, some: list[_Constraint], left: int) -> bool:
        """Takes out constraints if no more layouts differ then; returns whether there is nothing more to try."""
        if not some or self.trials >= self.most_trials:
            return True
        taken = sorted(some, key=self.constraints.index, reverse=True)
        for each in taken:
            each.take_out()
        if len(self._mismatches()) <= left:
            self.constraints = [each for each in self.constraints if each not in some]
            return True
        for each in reversed(taken):
            each.put_back()
        return False


def _is_split(entries: Mapping[str, ir.Attribute]) -> bool:
    """Returns whether the attributes of an argument or a result state that it is split."""
    return SHARDING in entries and any(sharding_from_attr(entries[SHARDING]).dims)


def _split_alike(one: Sequence[Sequence[AxisRef]], other: Sequence[Sequence[AxisRef]]) -> bool:
    """Returns whether two layouts split each dimension by the same axes, whichever of them comes first."""
    return one == other or all(map(same_axes, one, other))


def _is_from_outside_of_a_loop(user: ir.Operation, operand: int) -> bool:
    """Returns whether an operand of an op is what a loop around it only hands on."""
    return operand < len(user.operands) and _outside_of_loops(user, operand)[0] != user


def _before_constraints(value: ir.Value) -> ir.Operation | None:
    """Returns the op that makes a value, constraints left out; for an argument of a block the op around it."""
    while True:
        owner = value.owner
        if isinstance(owner, ir.Block):
            around = owner.owner
            return None if around is None else around.operation
        if owner.operation.name != "sdy.sharding_constraint" or _MARK not in owner.operation.attributes:
            return owner.operation
        value = owner.operation.operands[0]


def _outside_of_loops(user: ir.Operation, operand: int) -> tuple[ir.Operation, int]:
    """Returns an operand of an op, or of the outermost loop that only hands its operand on to it."""
    value = user.operands[operand]
    while isinstance(value.owner, ir.Block) and (loop := value.owner.owner.operation).name in LOOPS:
        number = ir.BlockArgument(value).arg_number
        body = loop.regions[1].blocks[0]
        if terminator_of(body).operands[number] != body.arguments[number]:
            break
        user, operand = loop, number
        value = user.operands[operand]
    return user, operand


def _ancestor_beside(op: ir.Operation, value: ir.Value) -> ir.Operation:
    """Returns the op, or the one around it, that is in the block in which a value is made."""
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    return next((each for each in (op, *ops_around(op)) if each.name != "builtin.module" and each.block == block), op)
