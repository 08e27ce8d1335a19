# SPDX-License-Identifier: Apache-2.0
"""The network of namespaces, and redistributions that run on it."""

import sys

import pytest

from benchmarks import run_times
from benchmarks.networks.testbed import CannotShape, Failed, Network, Testbed, run_together, why_not
from reshard.synthesis.network.topology import Topology

pytestmark = pytest.mark.slow
needs_namespaces = pytest.mark.skipif(why_not() is not None, reason=f"platform: {why_not()}")


@needs_namespaces
def test_links_are_as_fast_as_set_and_gone_afterwards():
    with Testbed(Network(nodes=2, per_node=2, inside_mbit=400, across_mbit=100)) as testbed:
        found = testbed.check()
        assert [what for what, *_ in found] == ["inside a node", "between nodes"]
        hosts = testbed.folders[0] / "hosts"
        assert testbed.address(0) in hosts.read_text()
    assert not hosts.exists()


@needs_namespaces
def test_small_messages_are_not_free_and_the_next_network_may_stand_at_once():
    for mbit, is_slow in ((200, True), (1000, False)):
        with Testbed(Network(nodes=2, per_node=1, inside_mbit=mbit)) as testbed:
            buckets = testbed.run([["tc", "qdisc", "show", "dev", "eth0"]] * 2, timeout_s=20)
            assert all(("peakrate" in bucket) == is_slow for bucket in buckets)
            control = testbed.run([["cat", "/proc/sys/net/ipv4/tcp_congestion_control"]] * 2, timeout_s=20)
            assert control == ["reno\n"] * 2


@needs_namespaces
def test_a_link_that_is_slower_than_said_is_an_error():
    with Testbed(Network(nodes=2, per_node=1, inside_mbit=50)) as testbed:
        testbed.network = Network(nodes=2, per_node=1, inside_mbit=200)
        with pytest.raises(CannotShape, match="192 Mbit/s of payload are expected, 4"):
            testbed.check()


def test_one_process_that_fails_ends_the_others():
    sleeping, failing = (
        [sys.executable, "-c", "import time; time.sleep(60)"],
        [sys.executable, "-c", "exit('no such thing')"],
    )
    with pytest.raises(Failed, match="process 1 ended with 1: no such thing"):
        run_together([sleeping, failing], timeout_s=50)
    with pytest.raises(Failed, match="process 0 did not end in time"):
        run_together([sleeping], timeout_s=0.5)


def test_pairs_run_on_cpu_devices_and_stopped_runs_go_on(tmp_path, capsys):
    topology = tmp_path / "flat.toml"
    topology.write_text(
        'name = "flat"\nsummary = "8"\nsource = "a test"\nlaunch_latency_s = 1e-6\nmemory_bandwidth_bytes_per_s = 1e9\n'
        '[[level]]\nname = "device"\nkind = "switch"\nsize = 8\nbandwidth_bytes_per_s = 1e9\nlatency_s = 1e-5\n'
    )
    command = ["--count", "4", "--mib", "1", "--turns", "2", "--state", str(tmp_path), "--topology", str(topology)]
    assert run_times.main(command) == 0
    first = capsys.readouterr().out
    assert "0 failures" in first and "| pairs | geomean |" in first and "rank correlation" in first
    assert run_times.main(command) == 0
    assert capsys.readouterr().out == first  # the answers are read from the file; nothing is measured again


@pytest.mark.parametrize("fast_with, asked_for", [(6, [2, 6]), (18, [2, 6, 18]), (54, [2, 6, 18])])
def test_pairs_slower_than_stock_are_measured_again_with_more_turns(
    fast_with, asked_for, tmp_path, monkeypatch, capsys
):
    def run(batch, devices, testbed, turns):
        asked.append((len(batch), turns))
        seconds = {"stock": [1.0] * turns, "ours": [0.5 if turns >= fast_with else 2.0] * turns}
        return [
            {
                "key": each.key,
                "programs": {name: {"seconds": seconds.get(name, seconds["ours"])} for name in each.programs},
            }
            for each in batch
        ]

    asked = []
    monkeypatch.setattr(run_times, "_run", run)
    topology = tmp_path / "flat.toml"
    topology.write_text(Topology.parse("uniform").to_toml())
    command = [
        "--count",
        "3",
        "--mib",
        "1",
        "--turns",
        "2",
        "--state",
        str(tmp_path),
        "--topology",
        str(topology),
        "--no-others",
    ]
    assert run_times.main(command) == 0
    ((count, _), *_) = asked
    assert count and asked == [(count, turns) for turns in asked_for]
    speedup = "2.00" if fast_with in asked_for else "0.50"
    assert f"| the plan | {count} | {speedup} | {speedup} |" in capsys.readouterr().out


def test_what_the_policy_leaves_to_stock_xla_counts_as_one():
    pair = None
    kept, taken = (run_times.Problem(pair, {}, module, "a reason") for module in ("", "module {}"))
    timed = [run_times.Timed(problem, {"stock": 1.0, "ours": 2.0, "policy": 1.25}) for problem in (kept, taken)]
    assert [each.speedup for each in timed] == [0.5, 0.5]
    assert [each.speedup_by_policy for each in timed] == [1.0, 0.8]
    assert [each.best_speedup for each in timed] == [1.0, 1.0]
