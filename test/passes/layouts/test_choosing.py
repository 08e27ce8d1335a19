# SPDX-License-Identifier: Apache-2.0
"""The meshes that are tried for a number of devices, and which of them are tried again."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from reshard.dialect_utils.ir.diagnostics import DiagnosedError, Diagnostic
from reshard.dialect_utils.platform.bindings import make_context
from reshard.passes.layouts.assigning import MemoryLimitError
from reshard.passes.layouts.choosing import INTERRUPTED, MOST_MESHES, OUT_OF_TIME, Candidate, Chooser, meshes_for
from reshard.passes.sites.network import SiteNetwork
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.pairwise.solving import NotBelowError


@pytest.mark.parametrize("devices", [1, 2, 6, 7, 8, 16, 64, 512])
def test_each_mesh_has_all_devices_and_the_fewest_axes_come_first(devices):
    meshes = meshes_for(devices)
    assert all(mesh.size == devices for mesh in meshes) and len({*meshes}) == len(meshes) <= MOST_MESHES
    axes = [len(mesh.axes) for mesh in meshes]
    assert axes == sorted(axes) and axes[0] == 1
    assert all(size > 1 for mesh in meshes[1:] for _, size in mesh.axes)


def test_square_meshes_come_before_long_ones():
    ratios = [max(s) / min(s) for mesh in meshes_for(64)[1:] if len(s := [size for _, size in mesh.axes]) == 2]
    assert ratios == sorted(ratios) and math.isclose(ratios[0], 1)


def test_skipped_meshes_are_tried_again_where_the_best_one_became_slower():
    meshes = meshes_for(8)
    bounds_s = {meshes[1]: 5.0, meshes[2]: 9.95, meshes[3]: 6.0}  # as they were when the best one took less
    proved_s = {meshes[3]: 9.97}  # that the solver finds now

    class Known(Chooser):
        def _laid_out(self, mesh, limit, below_s=math.inf, axes="whole"):
            if mesh in proved_s:
                raise NotBelowError(proved_s[mesh])
            return candidate(mesh, 5.5)

        def _measured(self, candidate):
            return replace(candidate, ours_s=candidate.assigned.seconds)

    def candidate(mesh, seconds):
        return Candidate(mesh, SimpleNamespace(seconds=seconds), b"", ours_s=seconds)

    compiled = [candidate(meshes[0], 10.0)]
    left = Known(b"", None, None, SiteNetwork())._tried_again([*bounds_s.items()][:1], compiled)
    assert left == [] and [each.mesh for each in compiled] == [*meshes[:2]]

    compiled = [candidate(meshes[0], 10.0)]
    left = Known(b"", None, None, SiteNetwork())._tried_again([*bounds_s.items()][1:], compiled)
    assert left == [(meshes[2], 9.95), (meshes[3], 9.97)] and len(compiled) == 1


@pytest.mark.parametrize(
    ("least", "enough", "tries", "problem"),
    [
        (60, 100, [], ""),
        (60, 90, [83], ""),  # the compiled program is a fifth above the model: so much less is asked for
        (85, 92, [83, 91], ""),  # no layout fits into 83; half as much less is asked for
        (95, 60, [83, 91, 95], "the program needs more"),
        (96, 60, [83, 91, 95], "the program needs 120 B, and the limit is 100 B; by the model, no layouts"),
    ],
)
def test_a_program_that_needs_too_much_memory_is_laid_out_for_less(least, enough, tries, problem):
    asked = []

    def candidate(memory):
        peak = 100 if memory <= enough else 120
        compiled = SimpleNamespace(is_ok=True, limited_bytes=peak)
        assigned = SimpleNamespace(assignment=SimpleNamespace(memory_bytes=memory))
        return Candidate(mesh, assigned, b"", ours=compiled, problem="" if peak <= 100 else "the program needs more")

    class Known(Chooser):
        def _laid_out(self, mesh, limit, below_s=math.inf, axes="whole"):
            asked.append(limit)
            if limit < least:
                raise DiagnosedError([Diagnostic("error", "no layout fits")])
            return candidate(limit)

        def _compiled(self, candidate):
            return candidate

    mesh = meshes_for(8)[0]
    found = Known(b"", None, None, SiteNetwork(), limit=100)._measured(candidate(100))
    assert asked == tries
    assert found.problem.startswith(problem) and bool(found.problem) == bool(problem)


@pytest.mark.parametrize(
    ("least", "asked", "is_possible"),
    [(80, [100], True), (120, [100, 123], True), (160, [100], False)],  # of the model; compilers save up to a third
)
def test_a_limit_that_the_model_thinks_too_small_is_tried_unless_it_is_far_too_small(least, asked, is_possible):
    tried = []

    class Known(Chooser):
        def _laid_out(self, mesh, limit, below_s=math.inf, axes="whole"):
            tried.append(limit)
            if limit < least:
                error = MemoryLimitError([Diagnostic("error", "no layout fits")])
                error.least_bytes = least
                raise error
            return Candidate(mesh, None, b"", limit)

    chooser = Known(b"", None, None, SiteNetwork(), limit=100)
    if is_possible:
        assert chooser._first(meshes_for(8)[0], math.inf).limit == asked[-1]
    else:
        with pytest.raises(MemoryLimitError):
            chooser._first(meshes_for(8)[0], math.inf)
    assert tried == asked


@pytest.mark.parametrize(("peak_of_larger", "is_taken"), [(99, True), (101, False)])
def test_a_program_with_room_left_is_laid_out_once_more_for_as_much_as_it_may_have(peak_of_larger, is_taken):
    asked = []

    def candidate(modelled, peak, seconds):
        compiled = SimpleNamespace(is_ok=True, limited_bytes=peak)
        assigned = SimpleNamespace(assignment=SimpleNamespace(memory_bytes=modelled))
        problem = "" if peak <= 100 else "too large"
        return Candidate(mesh, assigned, b"", modelled, ours=compiled, ours_s=seconds, problem=problem)

    class Known(Chooser):
        def _laid_out(self, mesh, limit, below_s=math.inf, axes="whole"):
            asked.append(limit)
            return candidate(limit, peak_of_larger, 1.0)

        def _compiled(self, candidate):
            return candidate

    mesh = meshes_for(8)[0]
    found = Known(b"", None, None, SiteNetwork(), limit=100)._measured(candidate(100, 50, 2.0))
    assert asked == [200] and (found.ours_s == 1.0) == is_taken


class Timed(Chooser):
    """Lays out each mesh in less time than those before it; `at_third` is called before the third one is compiled."""

    def _distinct(self, meshes):
        return meshes

    def _laid_out(self, mesh, limit, below_s=math.inf, axes="whole"):
        return Candidate(mesh, SimpleNamespace(seconds=10.0 / len(mesh.axes) ** 2), b"", axes=axes)

    def _measured(self, candidate):
        self.judge.append(candidate.mesh)
        if len(self.judge) == 3:
            self.source()
        return replace(candidate, ours_s=candidate.assigned.seconds)


def interrupt():
    raise KeyboardInterrupt


MESHES = tuple(Mesh.parse(text) for text in ("x=8", "x=2,y=4", "x=2,y=2,z=2"))


def test_without_a_limit_of_time_all_meshes_are_compiled():
    found = Timed(lambda: None, None, [], SiteNetwork()).choice(MESHES, 3)
    assert [len(each.mesh.axes) for each in found.candidates] == [3, 2, 1] and found.ended == ""


def test_after_its_time_the_best_so_far_is_taken():
    compiled = []
    found = Timed(lambda: None, None, compiled, SiteNetwork(), deadline=-math.inf).choice(MESHES, 3)
    assert compiled == [MESHES[0]] and found.best.mesh == MESHES[0] and found.ended == OUT_OF_TIME


def test_ctrl_c_takes_the_best_so_far_if_there_is_one_and_somebody_wants_it():
    found = Timed(interrupt, None, [], SiteNetwork(), takes_interrupts=True).choice(MESHES, 3)
    assert found.ended == INTERRUPTED and len(found.candidates) == 3
    assert [math.isfinite(each.best_s) for each in found.candidates] == [True, True, False]
    with pytest.raises(KeyboardInterrupt):
        Timed(interrupt, None, [], SiteNetwork()).choice(MESHES, 3)
    with pytest.raises(KeyboardInterrupt):  # before anything is compiled
        Timed(interrupt, None, [None, None], SiteNetwork(), takes_interrupts=True).choice(MESHES, 3)


@pytest.mark.parametrize(
    ("peak", "said"), [(52000, "the program is too large; allow 51KiB, or use more devices"), (9, "")]
)
def test_a_program_that_does_not_fit_says_which_limit_would_do(peak, said):
    mesh = meshes_for(8)[0]
    compiled = SimpleNamespace(is_ok=True, limited_bytes=peak)
    found = Candidate(mesh, SimpleNamespace(seconds=1.0), b"", ours=compiled, problem="the program is too large")

    class Known(Chooser):
        def _distinct(self, meshes):
            return meshes

        def _first(self, mesh, below_s, axes="whole"):
            return found

        def _other_forms(self, first):
            return ()

        def _measured(self, candidate):
            return candidate

    with make_context() as context, pytest.raises(DiagnosedError) as error:
        Known(b"module {}", context, None, SiteNetwork(), limit=1000).choice([mesh])
    assert f"error: {said or 'the program is too large'}" in str(error.value)
    assert ("allow" in str(error.value)) == bool(said)
