# SPDX-License-Identifier: Apache-2.0
"""reshard calibrate, on real CPU devices; tests of its text and its file use made-up times."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reshard.planning import calibrating
from reshard.synthesis.network.cost import collective_time_s
from reshard.synthesis.network.topology import Topology
from reshard.tools import reshard as tool

TOOL = [sys.executable, Path(tool.__file__).resolve()]
START_S = 5e-5


def run(*arguments) -> int:
    try:
        return tool.main(["calibrate", *map(str, arguments)])
    except SystemExit as end:
        return end.code


@pytest.fixture
def machine(monkeypatch):
    """Replaces measurements by the times that a topology predicts."""

    def pretend(topology: str, platform: str = "gpu", hosts: int = 2):
        on = Topology.parse(topology)

        def measure(mesh, probes, sizes, *, repeats, progress):
            progress("measuring")
            seconds = [
                START_S + collective_time_s(on.fitted(mesh.size), mesh.size, probe.collective) for probe in probes
            ]
            relayouts = tuple((size, START_S + 2 * size / 2e12) for size in sizes)
            slices = tuple((size // 8, START_S + 2 * size / 8 / 3e12) for size in sizes)
            return calibrating.Measured(tuple(seconds), START_S, relayouts, slices, platform, "Made-up 100", hosts)

        monkeypatch.setattr(calibrating, "platform", lambda: platform)
        monkeypatch.setattr(calibrating, "measure", measure)

    return pretend


# ---- the answer


def test_the_network_is_written_and_reported(machine, tmp_path, capsys):
    machine("h100:2x4")
    path = tmp_path / "my net.toml"
    assert run("--mesh", "node=2,gpu=4", "-o", path) == 0
    out, err = capsys.readouterr()
    found = Topology.parse(path.read_text())
    assert (found.name, found.shape_text) == ("my net", "2 node x 4 gpu")
    assert [round(level.bandwidth_bytes_per_s / 1e9) for level in found.levels] == [50, 450]
    assert round(found.memory_bandwidth_bytes_per_s / 1e12, 3) == 2 and round(found.launch_latency_s * 1e6, 1) == 8.4
    assert (
        round(found.slice_bandwidth_bytes_per_s / 1e12, 3) == 3 and "2000 GB/s in relayouts, 3000 GB/s in slices" in out
    )
    assert found.summary.startswith("8 x Made-up 100, jax ") and "median error of 0 %" in found.source
    lines = out.splitlines()
    assert lines[0] == '8 x Made-up 100 (gpu) as <["node"=2, "gpu"=4]>, on 2 hosts'
    row = next(line.split() for line in lines if line.startswith("gpu ") and "all_gather" in line)
    assert row == "gpu all_gather 15.2 us 15.2 us 7.0 7.0 0 % 0 %".split()
    assert "fit: 55 times, predicted with a median error of 0 %, at most 0 %" in lines
    assert lines[-1] == f"written: {path}" and err == "measuring\nfitting\n"


def test_slices_whose_times_do_not_grow_are_free(machine, monkeypatch, tmp_path, capsys):
    machine("uniform")
    measure = calibrating.measure
    same = lambda measured: replace(measured, slices=tuple((size, START_S) for size, _ in measured.slices))  # noqa: E731
    monkeypatch.setattr(calibrating, "measure", lambda *given, **options: same(measure(*given, **options)))
    assert run("--mesh", "a=4", "-o", tmp_path / "net.toml") == 0
    assert "GB/s in relayouts, slices are free" in capsys.readouterr().out
    assert Topology.parse(str(tmp_path / "net.toml")).slice_bandwidth_bytes_per_s is None


def test_without_a_file_the_topology_is_all_that_stdout_gets(machine, capsys):
    machine("uniform")
    assert run("--mesh", "a=4") == 0
    out, err = capsys.readouterr()
    assert Topology.parse(out).size == 4 and "us per MiB" in err


def test_a_machine_without_hierarchy_says_so(machine, capsys):
    machine("cpu", "cpu", hosts=1)
    assert run("--mesh", "a=2,b=4") == 0
    err = capsys.readouterr().err
    assert 'axes a, b behave alike: they are one level, "device"' in err and "one host, which has no hierarchy" in err


def test_the_overhead_of_messages_is_reported_and_written(machine, tmp_path, capsys):
    levels = (replace(level, message_s=each) for level, each in zip(Topology.parse("h100:2x4").levels, (1e-4, 4e-5)))
    machine(replace(Topology.parse("h100:2x4"), levels=tuple(levels)).to_toml())
    assert run("--mesh", "node=2,gpu=4", "-o", tmp_path / "net.toml") == 0
    assert 'level "node": an all_to_all takes 100.0 us or more for each partner of a device' in capsys.readouterr().out
    found = Topology.parse(str(tmp_path / "net.toml"))
    assert [round(level.message_s * 1e6) for level in found.levels] == [100, 40]


def test_an_old_file_is_replaced_and_nothing_else_is_left(machine, tmp_path, capsys):
    machine("uniform")
    path = tmp_path / "net.toml"
    path.write_text("old")
    assert run("--mesh", "a=4", "-o", path) == 0 and Topology.parse(str(path)).size == 4
    assert os.listdir(tmp_path) == ["net.toml"]


def test_what_cannot_be_written_leaves_the_old_file(machine, tmp_path, monkeypatch, capsys):
    machine("uniform")
    path = tmp_path / "net.toml"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("reshard.tools.commands.calibrate.os.replace", full)
    assert run("--mesh", "a=4", "-o", path) == 1
    assert capsys.readouterr().err.endswith(f"reshard: error: {path}: no space left on device\n")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["net.toml"]


# ---- errors


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--mesh", "a=1"], '<["a"=1]> has one device; there is nothing to measure'),
        (["--mesh", "a=0"], 'mesh axis "a" has size 0'),
        (["--mesh", "a=2", "--kind", "b=bus"], 'unknown axis "b"; <["a"=2]> has a'),
        (["--mesh", "a=2", "-o", "/nowhere/net.toml"], "/nowhere/net.toml: no such directory: /nowhere"),
        (["--mesh", "a=2", "-o", "/"], "/: is a directory"),
        (["--mesh", "a=2", "--devices", "2", "--distributed"], "choose one"),
        (["--mesh", "a=2", "--distributed"], "--distributed needs -o FILE"),
    ],
)
def test_mistakes_are_named_in_one_line_before_anything_is_measured(arguments, text, capsys):
    assert run(*arguments) == 1
    out, err = capsys.readouterr()
    assert out == "" and text in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, text",
    [
        ([], "required: --mesh"),
        (["--mesh", "a=2", "--sizes", "4MiB"], "two or more sizes above 0"),
        (["--mesh", "a=2", "--sizes", "4MQ,1MQ"], "cannot read '4MQ,1MQ' as sizes"),
        (["--mesh", "a=2", "--sizes", "1MiB,999999999GiB"], "tiles of at most 64GiB can be measured"),
        (["--mesh", "a=2", "--repeats", "0"], "'0' is no whole number of at least 1"),
        (["--mesh", "a=2", "--devices", "-1"], "'-1' is no whole number of at least 1"),
        (["--mesh", "a=2", "--kind", "a=torus"], "'a=torus' is not AXIS=switch or AXIS=bus"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(arguments, text, capsys):
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert text in err and err.count("\n") == 1


# ---- real devices


@pytest.mark.slow
def test_cpu_devices_are_measured_and_the_planner_takes_the_file(tmp_path, capsys):
    path = tmp_path / "net.toml"
    flags = ["--mesh", "a=2,b=2", "--devices", "4", "--sizes", "16KiB,4MiB", "--repeats", "3", "-o", path]
    for _ in range(3):  # while the machine is busy, times may fit no network, and the command says so
        done = subprocess.run([*TOOL, "calibrate", *flags], capture_output=True, text=True)
        if "do not grow with the size" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("compiling 1 of 47 programs\nmeasuring 47 programs, turn 1 of 3\n")
    found = Topology.parse(str(path))
    assert found.size == 4 and "4 x cpu (cpu)" in done.stdout and "one host" in done.stdout
    for level in found.levels:
        assert 1e6 < level.bandwidth_bytes_per_s < 1e13 and level.latency_s < 1
    problem = ["--mesh", "x=4", "--type", "f32[64,64]", "--from", '[{"x"}, {}]', "--to", '[{}, {"x"}]']
    assert tool.main(["plan", *problem, "--topology", str(path)]) == 0
    assert "topology: net, " in capsys.readouterr().out


@pytest.mark.parametrize("named", [{}, {"JAX_NUM_CPU_DEVICES": "8"}], ids=["", "where the environment names others"])
def test_more_devices_than_there_are_is_one_line(named):
    command = [*TOOL, "calibrate", "--mesh", "a=2,b=4", "--devices", "4"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **named})
    message = 'reshard: error: mesh <["a"=2, "b"=4]> has 8 devices, jax sees 4 (cpu); write --devices 8\n'
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    "environment, sizes, text",
    [
        ({"JAX_PLATFORMS": "cuda"}, "1KiB,1MiB", "jax finds no devices"),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, "1KiB,64GiB", "RESOURCE_EXHAUSTED"),
    ],
)
def test_devices_that_are_missing_or_full_are_one_line(environment, sizes, text):
    command = [*TOOL, "calibrate", "--mesh", "a=2", "--sizes", sizes, "--repeats", "1"]
    script = f'ulimit -v {16 << 20}; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "-", *command], capture_output=True, text=True, env={**os.environ, **environment}
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith("reshard: error: ") and text in last, done.stderr


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_file(tmp_path):
    path = tmp_path / "net.toml"
    flags = ["--mesh", "a=2", "--devices", "2", "--repeats", "100000", "--sizes", "1KiB,1MiB", "-o", path]
    with subprocess.Popen([*TOOL, "calibrate", *flags], stderr=subprocess.PIPE, text=True) as process:
        while "measuring" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130 and process.stderr.read() == ""
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_every_probe_is_the_collective_that_it_says():
    program = """if True:
        import jax, numpy as np
        from reshard.planning import calibrating
        from reshard.synthesis.network.calibration import probes
        from reshard.synthesis.layouts.mesh import Mesh
        mesh = Mesh.parse('<["a"=2, "b"=2], device_ids=[0,2,1,3]>')
        bench = calibrating.Bench(mesh)
        for probe in probes(mesh, [64]):
            before = probe.collective.bytes_before
            sharding = jax.sharding.NamedSharding(bench.jax_mesh, bench.spec)
            tile = before // 4
            values = np.arange(4 * tile, dtype="float32")
            bench.arrays = {tile: jax.device_put(values, sharding)}
            shards = bench.collective(probe)().addressable_shards
            held = {shard.device.id: np.asarray(shard.data).tolist() for shard in shards}
            tiles = {shard.device.id: np.asarray(shard.data).tolist() for shard in bench.arrays[tile].addressable_shards}
            print(repr((probe.axes, probe.collective, tiles, held)))
    """  # noqa: E501
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    from reshard.synthesis.programs.traffic import Collective

    lines = [eval(line, {"Collective": Collective}) for line in done.stdout.splitlines()]
    assert len(lines) == 6 + 6 + 4
    for _, collective, tiles, held in lines:
        assert held == _expected(collective, {device: np.array(tile) for device, tile in tiles.items()})


def _expected(collective, tiles: dict) -> dict:
    """Returns the part that each device holds after a collective, by numpy."""
    if collective.kind == "collective_permute":
        came = {target: source for source, target in collective.pairs}
        return {d: (tiles[came[d]] if d in came else 0 * tiles[d]).tolist() for d in tiles}
    found = {}
    for group in collective.groups:
        parts = [np.split(tiles[member], len(group)) for member in group]
        for at, member in enumerate(group):
            found[member] = {
                "all_gather": lambda: np.concatenate([tiles[other] for other in group]),
                "all_reduce": lambda: sum(tiles[other] for other in group),
                "all_to_all": lambda: np.concatenate([part[at] for part in parts]),
                "reduce_scatter": lambda: sum(part[at] for part in parts),
            }[collective.kind]().tolist()
    return found


@pytest.mark.slow
def test_two_processes_measure_together_and_one_of_them_writes(tmp_path):
    job = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
    }
    flags = ["--mesh", "host=2,core=2", "--distributed", "--sizes", "16KiB,4MiB", "--repeats", "3"]
    processes = []
    for number in map(str, range(2)):
        environment = {**os.environ, **job, "SLURM_PROCID": number, "SLURM_LOCALID": number}
        environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        command = [*TOOL, "calibrate", *flags, "-o", tmp_path / f"{number}.toml"]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    (out, err), (other, _) = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], err
    assert os.listdir(tmp_path) == ["0.toml"] and "written" in out and "written" not in other
    assert "on 2 hosts" in out and Topology.parse(str(tmp_path / "0.toml")).size == 4


def test_copies_that_an_all_to_all_does_on_the_way_are_written_and_reported(machine, monkeypatch, tmp_path, capsys):
    machine("cpu", platform="cpu", hosts=1)
    measure = calibrating.measure
    folded = ((START_S + 4e-3, START_S + 1e-2, START_S + 1.1e-2),) * 3 + (
        (START_S + 1e-6, START_S + 1e-2, START_S + 2e-2),
    ) * 5
    monkeypatch.setattr(
        calibrating, "measure", lambda *given, **options: replace(measure(*given, **options), folded=folded)
    )
    path = tmp_path / "one.toml"
    assert run("--mesh", "device=8", "-o", path) == 0
    assert Topology.parse(path.read_text()).free_before_all_to_all == pytest.approx(0.75)
    assert "right before an all_to_all 75 % of that is free" in capsys.readouterr().out
