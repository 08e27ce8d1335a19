# SPDX-License-Identifier: Apache-2.0
"""Advice as text and as plain data."""

from __future__ import annotations

import math
import re
from typing import Any

from reshard.dialect_utils.platform.typed import present
from reshard.dialect_utils.shardings.annotations import Annotation
from reshard.dialect_utils.shardings.layout_changes import Changed, MeshShape
from reshard.passes.advice.advising import Advice, Advised, Measured, sizes_text
from reshard.synthesis.common.numbers import counted, decimal_bytes_text, microseconds, percent
from reshard.synthesis.common.text_table import table
from reshard.synthesis.layouts import partition_specs
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

SCHEMA = "reshard.advice/1"
NOTHING = "nothing to gain: no change that was tried and may be advised makes the program faster by a hundredth"


def as_text(advice: Advice) -> str:
    """Returns the forms of the program in a table, then each change with its line."""
    head = f"{advice.name}: {counted(advice.num_devices, 'device')}, times modelled on {network_text(advice)}"
    parts = [head, _forms(advice), _meshes(advice)]
    parts += [_change(number, advice) for number in range(len(advice.changes))]
    if not advice.changes:
        parts.append(f"nothing is advised: {advice.problem}" if advice.problem else NOTHING)
    if advice.refused is not None and advice.stock is not None:
        share = _share(advice.refused.time.seconds, advice)
        limit = "" if advice.refused_limit is None else f"; --memory-limit {advice.refused_limit} allows it"
        parts.append(f"faster, but not advised: {share} of the time as it came; {advice.refused.title}{limit}")
    tried = [f"{counted(advice.lines, 'annotation')} (a line with one sharding)"]
    if advice.open_lines:
        tried.append(f"{counted(advice.open_lines, 'line')} without one")
    if advice.arguments:
        tried.append(f"{counted(advice.arguments, 'group')} of arguments")
    parts.append(", ".join([*tried, f"{counted(advice.trials, 'program')} compiled"]))
    return "\n\n".join(filter(None, parts)) + "\n"


def network_text(advice: Advice) -> str:
    """Returns the name and the shape of the network, such as `h100, 2 node x 8 gpu`."""
    topology = advice.network.topology.fitted(advice.num_devices)
    return f"{topology.name}, {topology.shape_text}"


def spec_text(sharding: Sharding | None) -> str:
    """Returns a sharding as JAX writes it, or as Shardy does if JAX cannot; `no constraint` for None.

    Example:
      >>> spec_text(Sharding.parse('[{"x", "y"}, {}]')), spec_text(None)
      ("P(('x', 'y'), None)", 'no constraint')
    """
    if sharding is None:
        return "no constraint"
    spec = partition_specs.text_of(sharding) if sharding == sharding.closed() else None
    return spec or str(sharding)


def _share(seconds: float, advice: Advice) -> str:
    """Returns a time as a share of that of the program as it came."""
    stock = advice.stock.time.seconds if advice.stock is not None else 0.0
    return percent(seconds / stock) if stock else "100 %" if not seconds else "more"


def _forms(advice: Advice) -> str:
    if advice.stock is None:
        return ""
    forms = (advice.stock, *advice.forms)
    rows = [(each.title, *_numbers(each), _share(each.time.seconds, advice)) for each in forms]
    headings = ("", "modelled", "in collectives", "received", "temporaries", "of the time as it came")
    return table(headings, rows, "lrrrrr")


def _meshes(advice: Advice) -> str:
    """Returns the program on other shapes of its mesh as a table, those that are faster."""
    stock = advice.stock
    if stock is None:
        return ""
    faster = [each for each in advice.meshes if each.form.time.seconds < stock.time.seconds]
    rows = [
        (
            each.form.title,
            *_numbers(each.form)[:3],
            decimal_bytes_text(present(each.form.compiled.peak_bytes)),
            _share(each.form.time.seconds, advice),
            f"no: {_in_short(each.problem)}" if each.problem else "",
        )
        for each in faster
    ]
    headings = ("on another mesh alone", "modelled", "in collectives", "received", "memory", "of the time", "advised")
    return table(headings, rows, "lrrrrrl") if rows else ""


def _in_short(problem: str) -> str:
    """Returns the reasons without their numbers.

    Example:
      >>> _in_short("memory in bytes 1,024 -> 2,048, received bytes per device 1 -> 2 on an unknown network")
      'memory in bytes, received bytes per device on an unknown network'
    """
    return re.sub(r" [\d,.]+ -> [\d,.]*\d", "", problem)


def _numbers(form: Measured) -> tuple[str, str, str, str]:
    costs = form.compiled.costs
    times = microseconds(form.time.seconds), microseconds(form.time.collectives_s)
    return *times, decimal_bytes_text(costs.bytes_received), decimal_bytes_text(costs.temp_bytes)


def _change(number: int, advice: Advice) -> str:
    change = advice.changes[number]
    annotation = change.annotation
    lines = [
        f"{number + 1}. {_where(annotation)}",
        *([] if isinstance(annotation, MeshShape) else [f"     with {each}" for each in annotation.names[1:]]),
        *(f"     {each}" for each in change.diff or ([f"| {change.source}"] if change.source else [])),
        f"     {_before_text(annotation)} -> {_layout_text(change.sharding)}",
    ]
    return "\n".join([*lines, *([f"     {_without(change, advice)}"] if len(advice.changes) > 1 else [])])


def _before_text(annotation: Changed) -> str:
    if isinstance(annotation, Annotation) and annotation.values:
        return f"no constraint, propagation has {_layout_text(annotation)}"
    return _layout_text(annotation)


def _layout_text(of: Changed | Sharding | Mesh | None) -> str:
    if isinstance(of, MeshShape | Mesh):
        return sizes_text(of.mesh if isinstance(of, MeshShape) else of)
    return spec_text(of.sharding if isinstance(of, Annotation) else of)


def _where(annotation: Changed) -> str:
    """Returns the line of an annotation, or the first name of its arguments, and what has its sharding; or the mesh."""
    if isinstance(annotation, MeshShape):
        return f"the mesh, {counted(annotation.mesh.size, 'device')}"
    types = ", ".join(_short(each) for each in annotation.types)
    if annotation.arguments:
        held = counted(len(annotation.arguments), "argument")
        if annotation.results:
            held += f" and {counted(len(annotation.results), 'result')}"
        return f"{annotation.names[0]} ({held}, {types})"
    place = "a line that the module does not name" if annotation.place is None else str(annotation.place)
    if annotation.values:
        return f"{place} ({counted(len(annotation.values), 'value')} without a constraint, {types})"
    return f"{place} ({counted(len(annotation.ops), 'constraint')}, {types})"


def _without(change: Advised, advice: Advice) -> str:
    """Returns in words what the other changes give alone."""
    if math.isinf(change.seconds_without):
        return f"without it: {change.problem_without}"
    problem = f", but {change.problem_without}" if change.problem_without else ""
    return f"without it: {_share(change.seconds_without, advice)} of the time as it came{problem}"


def _short(kind: str) -> str:
    """Returns a tensor type as `f32[8,128]`.

    Example:
      >>> _short("tensor<8x128xf32>"), _short("tensor<f32>"), _short("tensor<4xcomplex<f32>>")
      ('f32[8,128]', 'f32[]', 'complex<f32>[4]')
    """
    inside = kind.removeprefix("tensor<").removesuffix(">")
    element = re.sub(r"^(?:\d+x)*", "", inside)
    sizes = inside.removesuffix(element).split("x")[:-1]
    return f"{element}[{','.join(sizes)}]"


def as_dict(advice: Advice) -> dict[str, Any]:
    """Returns the advice as plain data, schema `reshard.advice/1`."""
    return {
        "schema": SCHEMA,
        "name": advice.name,
        "num_devices": advice.num_devices,
        "topology": network_text(advice),
        "annotations": advice.lines,
        "groups_of_arguments": advice.arguments,
        "lines_without_constraint": advice.open_lines,
        "programs_compiled": advice.trials,
        "problem": advice.problem,
        "meshes": [
            {"mesh": dict(each.mesh.axes), "problem": each.problem, **_form_dict(each.form)} for each in advice.meshes
        ],
        "refused": None if advice.refused is None else _form_dict(advice.refused),
        "refused_memory_limit": advice.refused_limit,
        "forms": [_form_dict(each) for each in ((advice.stock, *advice.forms) if advice.stock else ())],
        "changes": [_change_dict(each) for each in advice.changes],
    }


def _form_dict(form: Measured) -> dict[str, Any]:
    costs = form.compiled.costs
    return {
        "title": form.title,
        "modelled_s": form.time.seconds,
        "collectives_s": form.time.collectives_s,
        "bytes_received": costs.bytes_received,
        "temp_bytes": costs.temp_bytes,
        "peak_bytes": form.compiled.peak_bytes,
    }


def _change_dict(change: Advised) -> dict[str, Any]:
    subject = change.annotation
    without = None if math.isinf(change.seconds_without) else change.seconds_without
    gain = {"modelled_without_s": without, "problem_without": change.problem_without}
    if isinstance(subject, MeshShape):
        assert isinstance(change.sharding, Mesh)
        return {"kind": "mesh", "mesh": dict(subject.mesh.axes), "advised": dict(change.sharding.axes), **gain}
    return {
        "kind": "arguments" if subject.arguments else "line without a constraint" if subject.values else "line",
        "place": None if subject.place is None else str(subject.place),
        "names": list(subject.names),
        "arguments": list(subject.arguments),
        "results": list(subject.results),
        "source": change.source,
        "diff": list(change.diff),
        "constraints": len(subject.ops),
        "values": len(subject.values),
        "types": list(subject.types),
        "sharding": str(subject.sharding),
        "advised": None if change.sharding is None else str(change.sharding),
        **gain,
    }
