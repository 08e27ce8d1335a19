# SPDX-License-Identifier: Apache-2.0
"""States that loops carry in the layout that they have around them, where turns write little of them."""

import re

import pytest

from reshard.dialect_utils.carried.kept_states import keep_states
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.serials import tagged_clone
from reshard.passes.sites.network import SiteNetwork

STATE, PART = "tensor<16x512x64xf32>", "tensor<16x1x64xf32>"
WHOLE, OVER_Y, OVER_X = "[{}, {}, {}]", '[{}, {}, {"y"}]', '[{"x"}, {}, {}]'
INDICES = "tensor<i32>, tensor<i32>, tensor<i32>"
UPDATE = f"stablehlo.dynamic_update_slice %held, %part, %zero, %i, %zero : ({STATE}, {PART}, {INDICES}) -> {STATE}"


def stated(layout: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {layout}>}}"


def module(before=WHOLE, behind=WHOLE, update=UPDATE, more="", part_layout=OVER_X, trips=5) -> str:
    """Returns a module with a loop whose turns write a part of a state."""
    return f"""
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @main(%state: {STATE} {stated(before)}, %x: {PART} {stated(part_layout)})
    -> ({STATE} {stated(behind)}) {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<{trips}> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %held = %state) : tensor<i32>, {STATE}
  cond {{
    %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %next = stablehlo.add %i, %one : tensor<i32>
    %cosine = stablehlo.cosine %x : {PART}
    %part = sdy.sharding_constraint %cosine <@mesh, {part_layout}> : {PART}
    {more}
    %new = {update}
    stablehlo.return %next, %new : tensor<i32>, {STATE}
  }}
  return %0#1 : {STATE}
}}"""


def kept(text: str, network: str = "v5e:2x4*1") -> tuple[list[str], list[str]]:
    """Returns the layouts that are stated for the loop, and those of parts that are converted for it."""
    known = network and {"objective": "time", "topology": SiteNetwork(network).topology}
    with make_context():
        _, clones = tagged_clone(ir.Module.parse(text))
        notes = []
        keep_states(clones[0], known or {}, (), notes)
        assert clones[0].verify()
        after = str(clones[0])
    loops = re.findall(
        r"stablehlo\.while.*?attributes \{sdy\.sharding = #sdy\.sharding_per_value<\[(.*?)\]>\}", after, re.S
    )
    loops = [
        each for found in loops for each in re.findall(r"<@mesh, (\[.*?\])>", found) if "?" not in each and each != "[]"
    ]
    assert len(notes) == (WHOLE in loops or OVER_Y in loops)
    ours = r"sdy\.sharding_constraint %\S+ <@mesh, (\[.*?\])> : "  # those of the program have serials
    converted = re.findall(ours + re.escape(PART), after)
    return loops, converted


@pytest.mark.parametrize("network", ["v5e:2x4*1", ""])
def test_a_state_of_which_turns_write_little_stays(network):
    assert kept(module(), network) == ([WHOLE], [WHOLE])


def test_a_state_that_is_gathered_sooner_than_collectives_are_launched_in_all_turns_does_not_stay():
    assert kept(module(), "h100:8") == ([], [])


def test_a_state_that_is_split_stays_so():
    assert kept(module(OVER_Y, OVER_Y)) == ([OVER_Y], [OVER_Y])


def test_a_state_of_which_all_turns_write_more_than_there_is_does_not_stay():
    assert kept(module(trips=5000)) == ([], [])


def test_a_state_that_is_split_where_it_is_written_does_not_stay():
    along = '[{}, {"x"}, {}]'
    assert kept(module(along, along)) == ([], [])


def test_a_state_that_is_split_behind_the_loop_as_in_it_needs_nothing():
    assert kept(module(OVER_X, OVER_X)) == ([], [])


def test_a_state_whose_layout_the_program_states_in_the_loop_does_not_stay():
    again = f"%now = sdy.sharding_constraint %held <@mesh, {OVER_X}> : {STATE}"
    assert kept(module(more=again, update=UPDATE.replace("%held", "%now"))) == ([], [])


def test_a_part_that_is_cut_out_and_written_back_stays_with_the_state():
    cut = f"""%cut = stablehlo.dynamic_slice %held, %zero, %i, %zero, sizes = [16, 1, 64]
      : ({STATE}, {INDICES}) -> {PART}
    %old = stablehlo.reshape %cut : ({PART}) -> tensor<16x64xf32>
    %row = stablehlo.dynamic_slice %part, %zero, %zero, %zero, sizes = [16, 1, 8]
      : ({PART}, {INDICES}) -> tensor<16x1x8xf32>
    %flat = stablehlo.reshape %row : (tensor<16x1x8xf32>) -> tensor<16x8xf32>
    %own = stablehlo.dynamic_update_slice %old, %flat, %zero, %zero
      : (tensor<16x64xf32>, tensor<16x8xf32>, tensor<i32>, tensor<i32>) -> tensor<16x64xf32>
    %back = stablehlo.reshape %own : (tensor<16x64xf32>) -> {PART}"""
    assert kept(module(more=cut, update=UPDATE.replace("%part", "%back"))) == ([WHOLE], [])


def test_a_state_of_loops_in_a_loop_stays_in_both():
    inner = f"""%in:2 = stablehlo.while(%j = %zero, %inside = %held) : tensor<i32>, {STATE}
    cond {{
      %d = stablehlo.compare LT, %j, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %d : tensor<i1>
    }} do {{
      %after = stablehlo.add %j, %one : tensor<i32>
      %written = {UPDATE.replace("%held", "%inside").replace("%i", "%j").replace("%jnside", "%inside")}
      stablehlo.return %after, %written : tensor<i32>, {STATE}
    }}"""
    turned = f"stablehlo.reshape %in#1 : ({STATE}) -> {STATE}"
    assert kept(module(more=inner, update=turned)) == ([WHOLE, WHOLE], [WHOLE])


def test_a_state_that_turns_read_in_other_tiles_does_not_stay():
    """What reads it would be converted in each turn, and the state is once."""
    along = '[{}, {"y"}, {"x"}]'
    other = (
        f"%seen = sdy.sharding_constraint %held <@mesh, {OVER_X}> : {STATE}\n    %read = stablehlo.sine %seen : {STATE}"
    )
    assert kept(module(OVER_Y, OVER_Y))[0] == [OVER_Y]
    assert kept(module(OVER_Y, OVER_Y, more=other))[0] == []
    assert kept(module(along, along))[0] == []


def test_a_ring_that_is_turned_step_by_step_takes_no_time():
    """Each part is cut out of the state before it: two ways lead to each."""
    steps, state = [f"%first = {UPDATE}"], "%first"
    for number in range(24):
        cut = f"stablehlo.dynamic_slice {state}, %zero, %i, %zero, sizes = [16, 1, 64] : ({STATE}, {INDICES}) -> {PART}"
        steps.append(f"%cut{number} = {cut}")
        steps.append(f"%ring{number} = {UPDATE}".replace("%held", state).replace("%part", f"%cut{number}"))
        state = f"%ring{number}"
    assert kept(module(more="\n".join(steps), update=UPDATE.replace("%held", state)), "")[0] == [WHOLE]


def test_a_state_from_another_mesh_does_not_stay():
    text = module().replace("sdy.mesh @mesh", 'sdy.mesh @other = <["p"=8]>\nsdy.mesh @mesh')
    over_p = stated('[{"p"}, {}, {}]').replace("@mesh", "@other")
    assert kept(text.replace(f"%state: {STATE} {stated(WHOLE)}", f"%state: {STATE} {over_p}")) == ([], [])
