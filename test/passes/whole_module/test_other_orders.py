# SPDX-License-Identifier: Apache-2.0
"""The report of a program says whether it would be faster with the devices of its mesh in another order."""

import dataclasses

import pytest

from reshard.dialect_utils.xla.child import Compiled
from reshard.passes.driver.base import Session
from reshard.passes.results import report
from reshard.passes.sites.network import SiteNetwork, option_text
from reshard.passes.whole_module.check_record import Check
from reshard.passes.whole_module.other_orders import faster_order
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.program_time import LocalWork, ProgramTime, program_time
from reshard.synthesis.network.schedule_time import Done, Start, Work
from reshard.synthesis.programs.traffic import Collective

MESH = Mesh.parse("x=4,y=2")  # row-major on a slice of 2x4 chips: x is four chips of two lines, two apart
SLICE = SiteNetwork("v5e:2x4")
ALONG_X = Collective("all_gather", 10**7, 4 * 10**7, groups=((0, 2, 4, 6), (1, 3, 5, 7)))


def gathered(**more) -> Compiled:
    return dataclasses.replace(Compiled("ok", moved=(ALONG_X,), work=(LocalWork(0, 10**6),)), **more)


def test_an_axis_on_chips_that_are_near_each_other_is_faster():
    found = faster_order(SLICE, MESH, gathered())
    now = program_time(SLICE.topology, 8, (ALONG_X,), gathered().work).seconds
    assert found is not None and found.seconds < 0.9 * now and found.text.startswith("x: ")


def test_with_that_order_there_is_no_other_one():
    ordered = SiteNetwork(option_text(dataclasses.replace(SLICE.topology, device_order=(0, 2, 1, 3, 4, 6, 5, 7))))
    assert faster_order(ordered, MESH, gathered()) is None


def test_what_is_hidden_gains_nothing():
    """The compiler's final program counts, if its time is known."""
    steps = (Start(0, ALONG_X), Work(LocalWork(0, 10**9)), Done(0))
    hidden = gathered(final_bytes_received=1, final_moved=(ALONG_X,), final_work=(LocalWork(0, 10**9),))
    assert faster_order(SLICE, MESH, hidden) is not None
    assert faster_order(SLICE, MESH, dataclasses.replace(hidden, final_schedule=steps)) is None


@pytest.mark.parametrize(
    ("network", "compiled"), [(SiteNetwork(), gathered()), (SLICE, Compiled("error", "no")), (SLICE, Compiled("ok"))]
)
def test_nothing_is_said_without_a_network_a_program_or_traffic(network, compiled):
    assert faster_order(network, MESH, compiled) is None


def test_reports_say_it_and_those_from_the_cache_too():
    stock, time = gathered(bytes_received=1, bytes_sent=1, temp_bytes=1), ProgramTime(1e-3, 1e-6)
    check = Check(stock, stock, (), False, None, "v5e:2x4", time, time, mesh=MESH)
    texts = []
    for each in (check, check.without_work()):
        session = Session()
        session.results.checks.append(each)
        assert "  with the devices in another order: modelled " in report.render(session, "text")
        texts.append(report.render(session, "json"))
        assert '"other_order": {' in texts[-1] and '"placement": "x: ' in texts[-1]
    assert texts[0] == texts[1]
