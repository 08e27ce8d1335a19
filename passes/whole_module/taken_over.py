# SPDX-License-Identifier: Apache-2.0
"""The module taken over: written per device as a whole by the pass convert-to-local, in place of islands at its sites.

XLA's partitioner then has nothing to do. Most of the traffic of a real program has no site, such as the partial sums of
its products and the ops that XLA cannot partition; in this form it has a planned chain as well. But rules for tiles
that are worse than XLA's, or layouts of which XLA makes better use, may cost more than is gained. So this form is one
more candidate of the whole-module check, which `emit=auto` asks for. On a known network there are two: with the plans
of least time, and with matrix products split in the way that takes least time. If these lack nothing but memory, there
is one with the plans of fewest bytes, and the fastest one once more, with conversions that are repeated where their
result is needed late. If they leave memory, there is the fastest one with what loops convert or reduce in each turn
held in memory, and converted or reduced once. If none will do, there is one in which the loops stay with XLA.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from reshard.dialect_utils.hierarchy.explicit_collectives import PARTLY_MANUAL
from reshard.dialect_utils.ir.diagnostics import REMARK, DiagnosedError, Diagnostic
from reshard.dialect_utils.ir.loop_trips import ASSUMED_TRIPS
from reshard.dialect_utils.ir.ops import LOOPS
from reshard.dialect_utils.partitioning.local_modules import LOOPS_TOO, UNKNOWN, Analyses
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.convert_to_local import AS_FOUND, LEAST_TIME, ConvertToLocalPass
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.join_collectives import JoinCollectivesPass
from reshard.passes.plan_sites import PlanSitesPass
from reshard.passes.synthesize_collectives import SynthesizeCollectivesPass
from reshard.passes.whole_module.pipelined import keeps_sums, overlapping

TIME, BYTES = "time", "bytes"
PIPELINES = ", with pipelines"  # behind all of it: products before collectives are sent block by block
_PIPELINES = re.compile(rf"{PIPELINES}((?: \d+)*)$")  # with the numbers of some of them, counted from 0; none: all
PRODUCTS = ", products compared"  # likewise: each is split in the way that takes least time
LEAN = ", in little memory"  # likewise: each op is split in the way that needs least of it, if that is little slower
UNJOINED = ", none joined"  # likewise, behind that: small collectives are not joined, which takes buffers
FIRST_FORMS = (TIME, TIME + PRODUCTS)
ALL_FORMS = (TIME, BYTES, TIME + PRODUCTS)
LOOPS_STAY = ", loops stay with XLA"  # behind what plans are made for, in the name of a form
_RELEASED = re.compile(r", (\d+) bytes released")  # behind these: by conversions that are written again
_HELD = re.compile(r", (\d+) bytes to hold")  # likewise: while loops run


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The form of one module, or the reason why there is none.

    Attributes:
      module: the module; None without one. problem: the reason; empty if there is a module.
      form: what its plans are made for, and whether its loops stay with XLA.
      rows: a report row for each change of layout in it. said: what its passes said of single ops.
      held_bytes: what a device holds while loops run, so that it is converted or reduced once.
      apart: the number of sums that do not wait for a loop any more. joined: of collectives that are part of others.
    """

    module: ir.Module | None
    problem: str = ""
    form: str = TIME
    rows: tuple[dict, ...] = ()
    said: tuple[Diagnostic, ...] = ()
    held_bytes: int = 0
    apart: int = 0
    joined: int = 0

    @property
    def chains_s(self) -> float:
        """Returns the modelled seconds of its changes of layout in a step."""
        return sum(runs * seconds for runs, seconds, _ in self._runs)

    @property
    def holding_saves_s(self) -> float:
        """Returns the seconds that are saved at most if what loops could hold is converted once."""
        return sum((runs - 1) * seconds for runs, seconds, could_be_held in self._runs if could_be_held)

    @property
    def _runs(self) -> list[tuple[int, float, bool]]:
        """Returns how often each change of layout runs in a step, as far as that is known, the seconds that it takes,
        and whether a loop could hold it."""
        rows = [row for row in self.rows if row.get("chain_us") is not None]
        counts = [ASSUMED_TRIPS if row["runs"] is None else row["runs"] for row in rows]
        return [(runs, 1e-6 * row["chain_us"], row["could_be_held"]) for runs, row in zip(counts, rows, strict=True)]

    @property
    def remarks(self) -> tuple[Diagnostic, ...]:
        """Returns what was said, but for that of partly manual computations, which were written per device later on."""
        return tuple(each for each in self.said if PARTLY_MANUAL not in each.message)


Write = Callable[[str], TakenOver]  # returns the form with a name, as `take_over_as` does


def _writer(pipeline: Pipeline) -> SynthesizeCollectivesPass:
    return next(each for each in pipeline.passes if isinstance(each, SynthesizeCollectivesPass))


def pipeline_for(pipeline: Pipeline, form: str) -> Pipeline:
    """Returns the pipeline that takes a module over in a form, if `pipeline` rewrites its sites.

    It plans the sites too: results that the caller left open keep the layouts that are found then.
    """
    planning, rewriting = cut_at_sites(pipeline)
    elements = (*planning.elements, *_converting(rewriting, _PIPELINES.sub("", form)).elements)
    if pipelines := _PIPELINES.search(form):
        writer = _writer(rewriting)
        overlap = overlapping(writer.network, writer.platform, keeps_sums(pipeline), sends_only=True)
        elements += overlap.with_options({"only": "+".join(pipelines[1].split())}).elements
    return Pipeline(elements)


def with_pipelines(form: TakenOver, module: ir.Module, rows: Sequence[dict], numbers: Sequence[int] = ()) -> TakenOver:
    """Returns a form with pipelines in it.

    Args:
      module: the form's, with the pipelines. rows: theirs. numbers: theirs, counted from 0; none: these are all that
        promise something.
    """
    name = form.form + " ".join([PIPELINES, *map(str, numbers)])
    return replace(form, module=module, form=name, rows=(*form.rows, *rows))


def kind_of(form: TakenOver) -> bool:
    """Returns the kind of a form by what a compiler makes of it: whether its products are split in another way than
    XLA's."""
    return PRODUCTS in form.form


def has_pipelines(form: TakenOver) -> bool:
    return _PIPELINES.search(form.form) is not None


def _converting(rewriting: Pipeline, form: str) -> Pipeline:
    """Returns the part of a pipeline behind the planning of sites, with convert-to-local for synthesize-collectives."""
    writer, released, held = _writer(rewriting), _RELEASED.search(form), _HELD.search(form)
    form = _HELD.sub("", _RELEASED.sub("", form))
    stay = LOOPS_TOO if form.endswith(LOOPS_STAY) else UNKNOWN
    made_for = form.removesuffix(LOOPS_STAY)
    is_joined = not made_for.endswith(UNJOINED)
    made_for = made_for.removesuffix(UNJOINED)
    is_lean = made_for.endswith(LEAN)
    made_for = made_for.removesuffix(LEAN)
    objective, products = made_for.removesuffix(PRODUCTS), LEAST_TIME if made_for.endswith(PRODUCTS) else AS_FOUND
    release, hold = (int(found[1]) if found else 0 for found in (released, held))
    own = ConvertToLocalPass(
        writer.platform,
        writer.topology,
        writer.memory_limit,
        objective,
        products,
        is_lean,
        release,
        hold,
        stay,
        keep_sums=keeps_sums(rewriting),
    )
    joining = JoinCollectivesPass(writer.platform, writer.topology, keep_sums=own.keep_sums, apart=is_lean)
    written = (own, joining) if is_joined else (own,)
    elements = (written if each is writer else (each,) for each in rewriting.elements)
    return Pipeline(tuple(itertools.chain(*elements)))


def can_take_over(pipeline: Pipeline) -> bool:
    """Returns whether a pipeline plans sites and then writes them, so that it can write the whole module instead."""
    planning, rewriting = cut_at_sites(pipeline)
    return bool(planning.elements) and any(isinstance(each, SynthesizeCollectivesPass) for each in rewriting.passes)


def cut_at_sites(pipeline: Pipeline) -> tuple[Pipeline, Pipeline]:
    """Returns the part of a pipeline up to the pass that plans sites, and the part behind it."""
    places = [i for i, each in enumerate(pipeline.elements) if isinstance(each, PlanSitesPass)]
    cut = places[-1] + 1 if places else 0
    return Pipeline(pipeline.elements[:cut]), Pipeline(pipeline.elements[cut:])


def take_over(
    planned: bytes,
    pipeline: Pipeline,
    session: Session,
    forms: Sequence[str] = FIRST_FORMS,
    written: dict[str, TakenOver] | None = None,
) -> list[TakenOver]:
    """Returns the forms in which a module is taken over: one that is none, with the reason, or modules that differ.

    Args:
      planned: the module with its findings, as bytecode. pipeline: the one that rewrites sites, in `session`.
      forms: their names; only the first one is written for an unknown network.
      written: forms that are there already, by their names; those that are written are added.
    """
    known = {} if written is None else written

    def form_of(name: str) -> TakenOver:
        if name not in known:
            known[name] = take_over_as(name, planned, pipeline, session)
        return known[name]

    first = form_of(forms[0])
    if first.module is None or not _writer(pipeline).network.is_known:
        return [first]
    return different([first, *map(form_of, forms[1:])])


def different(forms: Iterable[TakenOver]) -> list[TakenOver]:
    """Returns the forms that are modules, without those that have the chains of an earlier one, and sums and joined
    collectives like it."""
    found: dict[tuple, TakenOver] = {}
    for each in forms:
        if each.module is not None:
            found.setdefault((each.apart, each.joined, *(row["chain"] for row in each.rows)), each)
    return list(found.values())


def take_over_beside_loops(write: Write) -> TakenOver | None:
    """Returns the form in which all but the loops is taken over; None for a module without a loop that may stay."""
    found = write(TIME + LOOPS_STAY)
    is_cut = any(f"{each} stays with XLA" in str(remark) for each in LOOPS for remark in found.remarks)
    return found if found.module is not None and is_cut else None


def take_over_releasing(whole: TakenOver, release_bytes: int, write: Write) -> TakenOver | None:
    """Returns a form once more, with so many bytes released; None if there is nothing to release."""
    found = write(f"{whole.form}, {release_bytes} bytes released")
    return found if found.module is not None and len(found.rows) > len(whole.rows) else None


def take_over_holding(whole: TakenOver, hold_bytes: int, write: Write) -> TakenOver | None:
    """Returns a form once more, with up to so many bytes held while loops run; None if nothing is to be held."""
    found = write(f"{whole.form}, {hold_bytes} bytes to hold")
    if found.module is None or not found.held_bytes:
        return None
    return replace(found, form=f"{whole.form}, {found.held_bytes} bytes to hold")  # of no more, the same is made


def take_over_as(form: str, planned: bytes, pipeline: Pipeline, session: Session) -> TakenOver:
    """Returns one form of a module, by its name; the other arguments are as in `take_over`."""
    own = Session(session.options)
    own.handed_on.analyses = session.handed_on.analyses = session.handed_on.analyses or Analyses()
    module = ir.Module.parse(planned)
    try:
        _converting(cut_at_sites(pipeline)[1], form).run(module, own)
    except DiagnosedError as error:
        return TakenOver(None, error.diagnostics[0].message)
    rows = tuple(own.results.report_rows)
    if all(row["kind"] == "collective" for row in rows):  # the program's own, which are decomposed in any form
        return TakenOver(None, "no layout changes in it")
    held = own.results.statistics[ConvertToLocalPass.name, "held"]
    apart, joined = (own.results.statistics[JoinCollectivesPass.name, each] for each in ("apart", "joined"))
    return TakenOver(module, "", form, rows, tuple(own.results.diagnostics.having(REMARK)), held, apart, joined)
