# SPDX-License-Identifier: Apache-2.0
"""Device groups and pairs of devices in every form that XLA prints."""

from reshard.dialect_utils.hlo.device_groups import parse_groups, parse_pairs


class TestGroups:
    def test_lists(self):
        assert parse_groups("replica_groups={{0,2},{1,3}}, dimensions={0}") == ((0, 2), (1, 3))

    def test_empty_list(self):
        assert parse_groups("replica_groups={}, to_apply=%add") == ()

    def test_iota(self):
        assert parse_groups("replica_groups=[2,4]<=[8]") == ((0, 1, 2, 3), (4, 5, 6, 7))

    def test_transposed_iota(self):
        assert parse_groups("replica_groups=[2,4]<=[4,2]T(1,0)") == ((0, 2, 4, 6), (1, 3, 5, 7))

    def test_iota_over_three_axes(self):
        groups = parse_groups("replica_groups=[4,2]<=[2,2,2]T(0,2,1), x=1")
        assert groups == ((0, 2), (1, 3), (4, 6), (5, 7))

    def test_mesh_axis(self):
        assert parse_groups("replica_groups=mesh['x'=4,'y'=2] {'x'}, a={1}") == ((0, 2, 4, 6), (1, 3, 5, 7))

    def test_mesh_axes_in_given_order(self):
        assert parse_groups("replica_groups=mesh['x'=2,'y'=3] {'y','x'}") == ((0, 3, 1, 4, 2, 5),)

    def test_mesh_sub_axis_major(self):
        assert parse_groups("replica_groups=mesh['x'=4,'y'=2] {'x':(1)2}") == ((0, 4), (1, 5), (2, 6), (3, 7))

    def test_mesh_sub_axis_minor(self):
        assert parse_groups("replica_groups=mesh['x'=4,'y'=2] {'x':(2)2}") == ((0, 2), (1, 3), (4, 6), (5, 7))

    def test_mesh_two_sub_axes_with_a_gap(self):
        assert parse_groups("replica_groups=mesh['x'=8] {'x':(4)2,'x':(1)2}") == ((0, 4, 1, 5), (2, 6, 3, 7))

    def test_mesh_device_ids(self):
        text = "replica_groups=mesh['x'=4,'y'=2], device_ids=(0,2,4,6,1,3,5,7) {'y'}, dimensions={0}"
        assert parse_groups(text) == ((0, 2), (4, 6), (1, 3), (5, 7))

    def test_mesh_device_ids_as_iota(self):
        assert parse_groups("replica_groups=mesh[a=2,b=2], device_ids=([2,2]T(1,0)) {b}") == ((0, 2), (1, 3))

    def test_mesh_without_grouped_axes_is_groups_of_one(self):
        assert parse_groups("replica_groups=mesh['x'=2] {}") == ((0,), (1,))

    def test_pairs(self):
        assert parse_pairs("source_target_pairs={{0,1},{1,0}}, f={}") == ((0, 1), (1, 0))
        assert parse_pairs("source_target_pairs={}") == ()
