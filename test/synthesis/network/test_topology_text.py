# SPDX-License-Identifier: Apache-2.0
"""Topologies as text: presets, sizes and TOML; a wrong text gives one clear line."""

from dataclasses import fields
from pathlib import Path

import pytest

from reshard.synthesis.network.topology import Level, Topology, TopologyError
from reshard.synthesis.network.topology_text import preset_names

OWN = """
name = "lab"
memory_bandwidth_bytes_per_s = 1e12
launch_latency_s = 2e-6

[[level]]
name = "rack"
kind = "ring"
size = 3
bandwidth_bytes_per_s = 10e9
wrap = false

[[level]]
name = "chip"
kind = "torus"
dims = [2, 4]
wrap = [false, true]
bandwidth_bytes_per_s = 50e9
latency_s = 1e-6
slowdown = { all_to_all = 1.5 }
"""


def test_presets_are_these():
    assert preset_names() == (
        *("a100", "a2mega", "cpu", "ethernet", "gb200", "h100", "h200"),
        *("tpu7x", "uniform", "v100", "v4", "v5e", "v5p", "v6e"),
    )


@pytest.mark.parametrize("name", preset_names())
def test_preset_names_its_sources(name):
    preset = Topology.parse(name)
    assert preset.summary
    assert all(f"{what}: " in preset.source for what in ("Links", "Memory", "Matrix products", "Latencies"))
    assert preset.flops_per_s


@pytest.mark.parametrize("text", [*preset_names(), "h100:4", "v5p:4x4x4", "v5e:16x16*2", OWN])
def test_toml_round_trip(text):
    topology = Topology.parse(text)
    assert Topology.parse(topology.to_toml()) == topology


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("h100:4", "4 node x 8 gpu"),
        ("h100:4x4", "4 node x 4 gpu"),
        ("gb200:2", "2 rack x 72 gpu"),
        ("v5p:4x4x4", "1 slice x 4x4x4 chip"),
        ("v5e:4x4*2", "2 slice x 4x4 chip"),
        ("tpu7x:2x2x4*2", "2 slice x 2x2x4 chip x 2 core"),
        ("cpu:8", "8 device"),
    ],
)
def test_sizes_behind_the_name(text, shape):
    assert Topology.parse(text).shape_text == shape


def test_own_topology():
    topology = Topology.parse(OWN)
    rack, chip = topology.levels
    assert (topology.name, topology.size, topology.shape_text) == ("lab", 24, "3 rack x 2x4 chip")
    assert (rack.dims, rack.wraps, chip.wraps) == ((3,), (False,), (False, True))
    assert (chip.slowdown_of("all_to_all"), chip.slowdown_of("all_gather")) == (1.5, 1.0)


def test_rings_are_read_and_written():
    topology = Topology.parse(edited('name = "lab"', 'name = "lab"\nrings = ["all_gather", "all_reduce"]'))
    assert topology.rings == ("all_gather", "all_reduce") and Topology.parse(topology.to_toml()) == topology


def test_copies_within_one_memory_are_read_and_written():
    topology = Topology.parse(
        edited('name = "lab"', 'name = "lab"\nslice_bandwidth_bytes_per_s = 2e9')
        .replace('kind = "ring"', 'kind = "bus"\ncopies_own = true')
        .replace("wrap = false", "")
    )
    assert topology.slice_bandwidth_bytes_per_s == 2e9 and [level.copies_own for level in topology.levels] == [
        True,
        False,
    ]
    assert Topology.parse(topology.to_toml()) == topology


def test_flops_are_read_and_written():
    topology = Topology.parse(edited('name = "lab"', 'name = "lab"\nflops_per_s = 197e12'))
    assert topology.flops_per_s == 197e12 and Topology.parse(topology.to_toml()) == topology
    assert Topology.parse(OWN).flops_per_s is None


def test_flops_survive_fitting():
    assert Topology.parse("v5e").fitted(32).flops_per_s == Topology.parse("v5e:4x4*2").flops_per_s == 197e12


def test_own_topology_from_a_file(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(OWN)
    assert Topology.parse(str(path)) == Topology.parse(OWN)


def edited(old: str, new: str) -> str:
    assert old in OWN
    return OWN.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h1000", 'unknown topology "h1000"; did you mean h100'),
        ("dgx-h100", 'unknown topology "dgx-h100"; did you mean h100?'),
        ("fat-tree", 'unknown topology "fat-tree"; known: a100, a2mega, cpu'),
        ("lost.toml", 'no topology file "lost.toml"'),
        ("h100:0", 'topology "h100:0": sizes are at least 1'),
        ("h100:-2", 'topology "h100:-2": sizes are at least 1'),
        ("h100*2", "has no slices; write h100:4"),
        ("v5e:4", '"v5e" has 2 dimensions; write v5e:4x4'),
        ("uniform:2x2", '"uniform" has fewer levels: any device'),
        (
            edited('kind = "ring"', 'kind = "mesh"'),
            'level "rack" is of unknown kind "mesh"; known: switch, bus, ring, torus',
        ),
        (edited("10e9", "-10e9"), 'level "rack" has bandwidth_bytes_per_s = -10000000000.0; bandwidths are positive'),
        (
            edited("latency_s = 1e-6", "latency_s = -1e-6"),
            'level "chip" has latency_s = -1e-06; latencies are not negative',
        ),
        (
            edited("latency_s = 1e-6", "message_s = -1e-6"),
            'level "chip" has message_s = -1e-06; times are not negative',
        ),
        (
            edited("latency_s = 1e-6", "message_s = inf"),
            'level "chip" has message_s = inf; times are not negative',
        ),
        (edited("latency_s = 1e-6", "mesage_s = 1e-6"), 'unknown key "mesage_s"; did you mean message_s?'),
        (edited("1e12", "0.0"), "memory_bandwidth_bytes_per_s = 0.0; bandwidths are positive"),
        (
            edited('name = "lab"', 'name = "lab"\nslice_bandwidth_bytes_per_s = 0.0'),
            "slice_bandwidth_bytes_per_s = 0.0; bandwidths are positive",
        ),
        (edited('name = "lab"', 'name = "lab"\nflops_per_s = 0'), "flops_per_s = 0.0; a positive number is meant"),
        (edited('name = "lab"', 'name = "lab"\nflops_per_s = inf'), "flops_per_s = inf; a positive number is meant"),
        (edited('name = "lab"', 'name = "lab"\nflops_per_s = nan'), "flops_per_s = nan; a positive number is meant"),
        (
            edited('name = "lab"', 'name = "lab"\nfree_before_all_to_all = 1.5'),
            "free_before_all_to_all = 1.5; a share is between 0 and 1",
        ),
        (
            edited('kind = "ring"', 'kind = "ring"\ncopies_own = true'),
            'level "rack" copies_own, but is of kind ring; that belongs to a switch or a bus',
        ),
        (edited("size = 3", "size = 0"), 'level "rack": size = 0; sizes are at least 1'),
        (edited("size = 3", "size = -3"), 'level "rack": size = -3; sizes are at least 1'),
        (edited("dims = [2, 4]", "dims = [2, 4]\nsize = 9"), 'level "chip" has size 9, but dims 2x4'),
        (edited("dims = [2, 4]", ""), 'level "chip": a torus needs dims'),
        (edited("[false, true]", "[true]"), 'level "chip" has 1 wrap flags for dims 2x4'),
        (edited("size = 3", "sise = 3"), 'level "rack": unknown key "sise"; did you mean size?'),
        (edited("size = 3", "size = 3.5"), 'level "rack": size = 3.5; a whole number is meant'),
        (edited('name = "rack"', ""), 'level "?": name is missing'),
        (edited('name = "rack"', 'name = "chip"'), 'topology "lab" has two levels "chip"'),
        (edited("= 1.5", "= 0.5"), 'level "chip" has slowdown 0.5 for all_to_all; factors are at least 1'),
        (edited("all_to_all", "gossip"), 'level "chip" has a slowdown for "gossip"; known: collective_permute'),
        (
            edited("slowdown = ", "slowdown_in_pairs = ").replace("all_to_all", "swap"),
            'level "chip" has a slowdown_in_pairs for "swap"; known: all_gather',
        ),
        (
            edited("slowdown = {", "slowdown_in_pairs = {").replace("1.5", "0.5"),
            'level "chip" has slowdown_in_pairs 0.5 for all_to_all; factors are at least 1',
        ),
        (edited('name = "lab"', 'name = "lab"\ndevice_order = [0, 0]'), "device_order is no permutation of 0..1"),
        (
            edited('name = "lab"', 'name = "lab"\ndevice_order = [1, 0]'),
            'device_order has 2 devices, topology "lab" 24',
        ),
        (
            edited('name = "lab"', 'name = "lab"\nrings = ["all_to_all"]'),
            'rings has "all_to_all"; known: all_gather, reduce_scatter',
        ),
        (
            edited('name = "lab"', 'name = "lab"\nfurther_launch_s = { swap = 1e-3 }'),
            'further_launch_s has "swap"; known: collective_permute',
        ),
        (
            edited('name = "lab"', 'name = "lab"\nfurther_launch_s = { all_gather = -1e-3 }'),
            "further_launch_s is -0.001 for all_gather; latencies are not negative",
        ),
        (
            edited('name = "lab"', 'name = "lab"\nrings = "all_gather"'),
            'rings = "all_gather"; a list of strings is meant',
        ),
        (edited("size = 3", "size = 3000000"), "at most 1048576 are supported"),
        (edited('name = "lab"', 'name = "lab'), "topology: Illegal character"),
        ("memory_bandwidth_bytes_per_s = 1\n[level]\nname = 'a'", "level is a table; write [[level]]"),
        ("memory_bandwidth_bytes_per_s = 1\nname = 'x'", 'topology "x" has no levels'),
    ],
)
def test_errors_are_one_clear_line(text, message):
    with pytest.raises(TopologyError) as raised:
        Topology.parse(text)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_docs_list_the_figures_of_every_preset():
    page = (Path(__file__).parents[3] / "docs" / "topologies.md").read_text()
    for name in preset_names():
        topology = Topology.parse(name)
        for level in topology.levels:
            shared = level.shared_bandwidth_bytes_per_s
            row = (
                f"| `{name}` | {level.name} | {level.size or 'any'} | {level.kind} "
                f"| {level.bandwidth_bytes_per_s / 1e9:g} "
                f"| {f'{shared / 1e9:g}' if shared else ''} | {level.latency_s * 1e6:g} "
                f"| {topology.launch_latency_s * 1e6:g} | {topology.memory_bandwidth_bytes_per_s / 1e9:g} "
                f"| {topology.flops_per_s / 1e12:g} |"
            )
            assert row in page, row


def test_every_field_is_a_key_and_is_written():
    """Every field has a value other than its default, except `levels` and `shapes`, which only open topologies have."""
    switch = Level(
        "node", 2, "switch", 1e9, 1e-6, 5e9, slowdown=(("all_gather", 1.5),), slowdown_in_pairs=(("all_gather", 2.0),)
    )
    chip = Level("chip", 4, "torus", 2e9, 3e-6, dims=(2, 2), wrap=(True, False), wrap_multiple_of=2, wrap_together=True)
    device = Level("device", 2, "bus", 1e9, copies_own=True, message_s=1e-6)
    order, rings, later = tuple(reversed(range(16))), ("all_gather",), (("reduce_scatter", 1e-3),)
    levels, flags = (switch, chip, device), (True, True)
    whole = Topology("all", levels, 1e12, 1e-6, "a", "b", order, rings, 2e9, 0.5, 1e12, "cpu", *flags, later, 1e-6, 1e9)
    missing = {field.name for field in fields(whole) if getattr(whole, field.name) == field.default}
    assert not missing and Topology.parse(whole.to_toml()) == whole
    keys = {line.partition(" = ")[0] for line in whole.to_toml().splitlines() if " = " in line}
    assert keys == {field.name for each in (Topology, Level) for field in fields(each)} - {"levels", "shapes"}


def test_what_is_the_default_is_not_written():
    text = Topology("t", (Level("device", 2, "switch", 1e9),), 1e12).to_toml()
    assert text.splitlines() == [
        'name = "t"',
        'summary = ""',
        'source = ""',
        "launch_latency_s = 0.0",
        "memory_bandwidth_bytes_per_s = 1000000000000.0",
        "",
        "[[level]]",
        'name = "device"',
        'kind = "switch"',
        "size = 2",
        "bandwidth_bytes_per_s = 1000000000.0",
        "latency_s = 0.0",
    ]


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("name", "3", "a string"),
        ("launch_latency_s", "true", "a number"),
        ("device_order", "[1.5]", "a list of whole numbers"),
        ("rings", "[1]", "a list of strings"),
        ("summary", "[]", "a string"),
    ],
)
def test_a_value_of_another_kind_is_refused(key, value, meant):
    text = "\n".join(line for line in OWN.splitlines() if not line.startswith(f"{key} =") or "rack" in line)
    with pytest.raises(TopologyError, match=f"{key} = .*; {meant} is meant"):
        Topology.parse(f"{key} = {value}\n{text.lstrip()}" if key != "name" else edited('name = "lab"', "name = 3"))


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("wrap_together = 1", "true or false"),
        ("wrap = [1]", "true, false or a list of them"),
        ('shapes = ["4y4"]', "a list of strings such as 4x4"),
        ('slowdown = { all_gather = "2" }', "a table of numbers"),
    ],
)
def test_a_value_of_a_level_of_another_kind_is_refused(line, meant):
    with pytest.raises(TopologyError, match=f'level "rack": .*; {meant} is meant'):
        Topology.parse(edited("wrap = false", line))


def test_a_platform_that_nobody_knows_is_refused():
    with pytest.raises(TopologyError, match='platform = "abacus"; known: cpu, gpu, tpu'):
        Topology("t", (Level("device", 2, "switch", 1e9),), 1e12, platform="abacus")
