# SPDX-License-Identifier: Apache-2.0
"""Collectives over slices: what the final program moves, and what crosses slices, is counted."""

from collections import Counter

import pytest

from benchmarks.networks.two_slices import Rewritten, main, moved_in
from reshard.synthesis.programs.traffic import Collective

FINAL = """HloModule m, num_partitions=4
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %r = f32[] add(%a, %b)
}
ENTRY %main (p: f32[524288]) -> f32[524288] {
  %p = f32[524288]{0} parameter(0)
  %s = f32[262144]{0} reduce-scatter(%p), replica_groups={{0,1},{2,3}}, channel_id=1, use_global_device_ids=true, dimensions={0}, to_apply=%add
  %t = token[] after-all()
  %send = (f32[262144]{0}, u32[], token[]) send(%s, %t), channel_id=2, is_host_transfer=true
  %recv = (f32[262144]{0}, u32[], token[]) recv(%t), channel_id=3, is_host_transfer=true
  %sent = token[] send-done(%send), channel_id=2, is_host_transfer=true
  %got = (f32[262144]{0}, token[]) recv-done(%recv), channel_id=3, is_host_transfer=true
  %v = f32[262144]{0} get-tuple-element(%got), index=0
  ROOT %g = f32[524288]{0} all-gather(%v), replica_groups={{0,1},{2,3}}, channel_id=4, use_global_device_ids=true, dimensions={0}
}
"""  # noqa: E501


def test_what_is_handed_to_send_counts_once():
    moved = moved_in(FINAL)
    assert str(moved) == "1 all_gather 1.0, 1 reduce_scatter 2.0, 1 send 1.0" and moved.sent == 2**20


def test_collectives_that_are_gone_were_rewritten():
    across, inside = (Collective("all_reduce", 8, 8, groups) for groups in (((0, 1, 2, 3),), ((0, 1), (2, 3))))
    before = Counter({(True, across): 2, (False, inside): 3})
    after = Counter({(True, across): 2, (False, inside): 1, (False, across): 7})
    assert [str(Rewritten.of(before, after, each)) for each in (True, False)] == ["0 of 2", "2 of 3"]


@pytest.mark.tpu
def test_sums_over_two_slices_stay_as_they_are(capsys):
    small = ["--target", "tpu:v5e:2x4:2", "--programs", "map_data_parallel", "--size", "demo", "--rows", "256"]
    assert main(small) == 0
    text = capsys.readouterr().out
    assert "| map_data_parallel | data=16 | 0 of 4 | 0 of 0 | the same text |" in text
    flat, by_hand = (line.split(" | ")[2:] for line in text.splitlines() if line.startswith("| sum"))
    assert flat == by_hand and "reduce_scatter" in flat[0] and "send" in flat[0]
