# SPDX-License-Identifier: Apache-2.0
"""Drawings: three forms that agree, equal bytes for equal plans, small for every mesh, and readable colours."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import reshard
from reshard.pictures import colours, memory, trace, traffic_map
from reshard.synthesis.network.topology import Topology, TopologyError

ROOT = Path(__file__).resolve().parents[3]
ISSUE = dict(source='[{"y"}, {}, {"x"}]', target='[{}, {"x","y"}, {}]', mesh="x=4,y=2", shape=(16, 16, 16))
CHUNKS = dict(source='[{"x"},{}]', target='[{},{"x"}]', mesh="x=4,y=2", shape=(1024, 1024), memory_limit="2560KiB")
ODD = {
    "scalar": dict(source="[]", target="[]", mesh="x=4", shape=()),
    "empty": dict(source='[{"x"}]', target="[{}]", mesh="x=4", shape=(0,)),
    "empty beside": dict(source='[{"x"}, {}]', target='[{}, {"x"}]', mesh="x=4", shape=(8, 0)),
    "one device": dict(source='[{"x"}, {}]', target="[]", mesh="x=4", target_mesh="<[], device_ids=[3]>", shape=(8, 8)),
    "scalar to one device": dict(source="[]", target="[]", mesh="x=4", target_mesh="<[], device_ids=[3]>", shape=()),
    "rank 5": dict(
        source='[{"a"},{"b"},{"c"},{"d"},{}]',
        target='[{},{"a"},{"b"},{"c"},{"d"}]',
        mesh="a=2,b=2,c=2,d=2",
        shape=(4, 4, 4, 4, 4),
    ),
    "uneven": dict(source='[{"x"}, {}]', target='[{}, {"x"}]', mesh="x=4", shape=(10, 3)),
    "bits": dict(source='[{"x"}, {}]', target='[{}, {"x"}]', mesh="x=4", shape=(4, 4), dtype="int4"),
    "sums": dict(source='[{"x"}, {}], unreduced={"y"}', target='[{"y"}, {}]', mesh="x=4,y=2", shape=(9, 8)),
    "chunks": CHUNKS,
}


def drawn(**problem):
    return reshard.visualize(
        reshard.plan(**problem), topology=problem.get("topology"), memory_limit=problem.get("memory_limit")
    )


@pytest.mark.parametrize("problem", ODD.values(), ids=ODD)
def test_every_form_of_odd_arrays(problem):
    found = drawn(**problem)
    ElementTree.fromstring(found.svg())
    assert found.text().startswith(f"{found.plan.dtype}[") and found.text().endswith("\n")
    assert found.html().startswith("<!doctype html>\n") and "<iframe" in found._repr_html_()


def test_text_and_picture_have_the_same_parts():
    found = drawn(**ISSUE)
    words = set(re.findall(r"\b[A-H][0-7]\b", found.text()))
    labels = {each.text for each in ElementTree.fromstring(found.svg()).iter("{http://www.w3.org/2000/svg}text")}
    assert len(words) == 64 and words <= labels
    assert words <= set(re.findall(r">([A-H][0-7])</text>", found.html()))


def test_saved_by_the_ending_of_the_name(tmp_path):
    found = drawn(**ISSUE)
    for name, content in (("a.svg", found.svg()), ("a.HTML", found.html()), ("a.txt", found.text())):
        found.save(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == content
    with pytest.raises(ValueError, match=r"cannot draw a \.png; choose from \.svg, \.html, \.htm, \.txt"):
        found.save(tmp_path / "a.png")


def test_what_is_no_plan_is_refused():
    with pytest.raises(TypeError, match="visualize takes what reshard.plan returns, not str"):
        reshard.visualize("plan")


def test_topology_that_does_not_fit_is_refused():
    with pytest.raises(TopologyError):
        reshard.visualize(reshard.plan(**ISSUE), topology="h100:3x5")


@pytest.mark.parametrize("devices", [64, 512, 4096])
def test_wide_meshes_stay_small(devices):
    side = math.isqrt(devices) if math.isqrt(devices) ** 2 == devices else 16
    mesh = {"x": side, "y": devices // side}
    found = drawn(source='[{"x"}, {"y"}]', target='[{"y"}, {"x"}]', mesh=mesh, shape=(8192, 8192))
    assert len(found.html()) < 400_000 and len(found.svg()) < 200_000 and len(found.text()) < 8_000
    assert f"of {devices:,} devices" in found.html()


@pytest.mark.slow
def test_same_plan_same_bytes_under_any_hash_seed():
    script = (
        "import hashlib, reshard\n"
        "d = reshard.visualize(reshard.plan('[{\"x\"}, {\"y\"}]', '[{\"y\"}, {}]', mesh='x=4,y=6', shape=(24, 12, ), "
        "topology='uniform'))\n"
        "print(hashlib.sha256((d.svg() + d.html() + d.text()).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(digests) == 1


# ---- memory and traffic


@pytest.mark.parametrize("problem", [ISSUE, *ODD.values()], ids=["issue", *ODD])
def test_largest_column_is_the_peak(problem):
    planned = reshard.plan(**problem)
    found = memory.memory_of(planned)
    assert max((each.total_bytes for each in found), default=planned.peak_bytes) == planned.peak_bytes


def test_limit_is_drawn_and_said():
    found = drawn(**CHUNKS)
    assert 'class="limit"' in found.svg() and "limit 2.5 MiB" in found.svg()
    assert "peak 2,621,440, at the limit of 2,621,440" in found.text()


@pytest.mark.parametrize("topology", ["uniform", "h100:2x4", "v5e:2x4"])
@pytest.mark.parametrize("problem", [ISSUE, CHUNKS, ODD["sums"]], ids=["issue", "chunks", "sums"])
def test_bytes_that_enter_are_those_received(problem, topology):
    planned = reshard.plan(**problem)
    found = traffic_map.traffic_of(planned, Topology.parse(topology))
    received = found.between.sum(axis=0)
    assert abs(received.max() - planned.bytes_received) <= planned.collectives
    assert found.between.diagonal().sum() == 0
    entering = sum(
        each.entering.sum() for each in found.levels if each.level.kind == "switch" and topology == "uniform"
    )
    assert topology != "uniform" or abs(entering - found.between.sum()) < 1


def test_links_of_a_torus_by_hand():
    planned = reshard.plan('[{"x"}]', "[{}]", mesh="x=4", shape=(4,), topology="v5e:1x4", objective="bytes")
    (level,) = traffic_map.traffic_of(planned, Topology.parse("v5e:1x4")).levels
    # each of 4 chips in a row sends 4 bytes to each other chip: 3 such tiles cross the outer links, 4 the middle one
    assert level.links[-1].tolist() == [12, 16, 12, 0] and not level.links[:-1].any()


def test_links_of_a_ring_take_the_shorter_way():
    ring = Topology.parse(
        'memory_bandwidth_bytes_per_s = 1e12\n[[level]]\nname = "chip"\nsize = 4\nkind = "ring"\nwrap = true\n'
        "bandwidth_bytes_per_s = 1e9\n"
    )
    planned = reshard.plan('[{"x"}]', "[{}]", mesh="x=4", shape=(4,), topology=ring, objective="bytes")
    (level,) = traffic_map.traffic_of(planned, ring).levels
    # a chip sends 4 bytes to each neighbour, and to the opposite chip 2 bytes each way, over two links
    assert level.links[0].tolist() == [8, 8, 8, 8]


# ---- trace


@pytest.mark.parametrize(
    "problem", [ISSUE, CHUNKS, ODD["one device"], ODD["empty"]], ids=["issue", "chunks", "one device", "empty"]
)
def test_trace_has_the_format_of_trace_events(problem):
    planned = reshard.plan(**problem)
    found = json.loads(trace.as_json(planned, Topology.parse("uniform")))
    assert set(found) == {"traceEvents", "displayTimeUnit", "otherData"} and found["displayTimeUnit"] in ("ms", "ns")
    named = {each["tid"] for each in found["traceEvents"] if each["name"] == "thread_name"}
    slices = [each for each in found["traceEvents"] if each["ph"] == "X"]
    for each in found["traceEvents"]:
        assert each["ph"] in "XCM" and isinstance(each["name"], str) and each["pid"] == 1
    for each in slices:
        assert each["ts"] >= 0 and each["dur"] >= 0 and each["tid"] in named and each["cat"] == "reshard"
    steps = [each for each in slices if each["tid"] == 1 and each["name"].partition(":")[0].isdigit()]
    assert len(steps) == len(planned.steps)
    assert sum(each["args"]["bytes_received"] for each in steps) >= planned.bytes_received
    end_us = max((each["ts"] + each["dur"] for each in slices), default=0)
    assert end_us == pytest.approx(planned.time_s * 1e6, abs=1e-3)


def test_slices_of_a_track_nest_or_follow():
    """Perfetto requires that two complete events on one track are nested or do not overlap."""
    planned = reshard.plan(**CHUNKS)
    slices = [each for each in trace.as_dict(planned, Topology.parse("uniform"))["traceEvents"] if each["ph"] == "X"]
    for a in slices:
        for b in (each for each in slices if each["tid"] == a["tid"]):
            crossing = a["ts"] + 1e-5 < b["ts"] < a["ts"] + a["dur"] - 1e-5 < b["ts"] + b["dur"] - 2e-5
            assert not crossing, (a, b)


# ---- colours


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(a: str, b: str) -> float:
    """Returns the contrast ratio of two colours that WCAG 2 defines; small text needs at least 4.5."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_letters_are_legible_on_every_colour():
    assert all(contrast("#111111", fill) >= 4.5 for fill in colours.FILLS)
    assert all(contrast(*each) >= 4.5 for is_dark in (False, True) for each in colours.ramp(is_dark))
    assert all(
        contrast(ink, paper) >= 4.5 for ink in (colours.INK, colours.SOFT) for paper in (colours.PAPER, "#f5f6f8")
    )
    dark = dict(re.findall(r"--(\w+):(#\w+)", colours.DARK))
    assert all(contrast(dark[ink], dark["paper"]) >= 4.5 for ink in ("ink", "soft", "limit"))


def test_heat_grows_away_from_the_page_all_the_way():
    light, dark = ([luminance(fill) for fill, _ in colours.ramp(is_dark)] for is_dark in (False, True))
    assert light == sorted(light, reverse=True) and dark == sorted(dark)
    assert [colours.heat(share)[0] for share in (0, 0.01, 0.5, 1)] == [
        "var(--h0)",
        "var(--h1)",
        "var(--h4)",
        "var(--h8)",
    ]


def test_blocks_up_to_27_look_different_and_more_have_letters():
    assert len({colours.fill_of(block, 27) for block in range(27)}) == 27
    assert len({colours.fill_of(block, 64)[0] for block in range(64)}) == 9
