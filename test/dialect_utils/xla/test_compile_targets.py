# SPDX-License-Identifier: Apache-2.0
"""Targets: the texts that name them, their numbers of devices, and the messages for targets that do not exist."""

import importlib.metadata

import pytest

from reshard.dialect_utils.xla import compile_targets
from reshard.dialect_utils.xla.compile_targets import Target, TargetError, compiler_version, missing_compiler


@pytest.mark.parametrize(
    ("text", "devices", "topology"),
    [
        ("cpu:8", 8, "8"),
        ("tpu:v2:4x4", 32, "v2:4x4"),
        ("tpu:v3:2x2", 8, "v3:2x2"),
        ("tpu:v4:4x4x4", 64, "v4:4x4x4"),
        ("tpu:v5e:4x4", 16, "v5e:4x4"),
        ("tpu:v5e:8x8:2", 128, "v5e:8x8"),
        ("tpu:v5p:2x2x1", 4, "v5p:2x2x1"),
        ("tpu:v6e:16x16", 256, "v6e:16x16"),
        ("tpu:tpu7x:2x2x1", 8, "tpu7x:2x2x1"),
        ("cuda:h100:1x2x8", 16, "1x2x8"),
        ("cuda:h100-pcie:1x1x4", 4, "1x1x4"),
    ],
)
def test_a_target_is_named_by_its_text(text, devices, topology):
    target = Target.parse(text)
    assert (str(target), target.devices, target.topology_name) == (text, devices, topology)
    assert target.is_ahead_of_time == (target.platform != "cpu")


def test_one_slice_need_not_be_counted():
    assert Target.parse("tpu:v5e:4x4:1") == Target.parse("tpu:v5e:4x4")
    assert str(Target.parse("tpu:v5e:4x4:1")) == "tpu:v5e:4x4"


def test_options_of_the_compiler_belong_to_the_target():
    target = Target.parse("tpu:v5e:4x4:2?xla_b=POST_SPMD&xla_a=1")
    assert str(target) == "tpu:v5e:4x4:2?xla_a=1&xla_b=POST_SPMD"
    assert Target.parse(str(target)) == target != Target.parse("tpu:v5e:4x4:2")
    assert target.devices == 32 and target.topology_name == "v5e:4x4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not PLATFORM:DEVICES, such as cpu:8"),
        ("cpu", "'cpu' is not PLATFORM:DEVICES, such as cpu:8"),
        ("cpu:0", "'cpu:0' is not PLATFORM:DEVICES, such as cpu:8"),
        ("cpu:4:4", "'cpu:4:4' is not PLATFORM:DEVICES, such as cpu:8"),
        ("gpu:8", "cannot compile for 'gpu'; available: cpu, tpu, cuda"),
        ("tpu:v5e", "'tpu:v5e' is not tpu:VERSION:TOPOLOGY or tpu:VERSION:TOPOLOGY:SLICES, such as "),
        ("tpu:v5e:4x", "'tpu:v5e:4x' is not tpu:VERSION:TOPOLOGY or "),
        ("tpu:v5e:4x4:0", "'tpu:v5e:4x4:0' is not tpu:VERSION:TOPOLOGY or "),
        ("tpu:v5e:4x4:2:2", "'tpu:v5e:4x4:2:2' is not tpu:VERSION:TOPOLOGY or "),
        (
            "tpu:v5litepod:4x4",
            "'tpu:v5litepod:4x4' names no TPU: 'v5litepod' is none of v2, v3, v4, v5e, v5p, v6e, tpu7x",
        ),
        ("tpu:v5e:16", "'tpu:v5e:16' has 1 dimension, a slice of v5e has 2, as in tpu:v5e:4x4"),
        ("tpu:v5e:2x2x1", "'tpu:v5e:2x2x1' has 3 dimensions, a slice of v5e has 2, as in tpu:v5e:4x4"),
        ("cuda:h100", "'cuda:h100' is not cuda:GPU:PARTITIONSxHOSTSxGPUS, such as cuda:h100:1x1x8"),
        ("cuda:h100:8", "'cuda:h100:8' is not cuda:GPU:PARTITIONSxHOSTSxGPUS, such as "),
        ("cuda:H100:1x1x8", "'cuda:H100:1x1x8' is not cuda:GPU:PARTITIONSxHOSTSxGPUS, such as "),
        ("tpu:v5e:4x4?", "'tpu:v5e:4x4?' has the option '', which is not NAME=VALUE"),
        ("tpu:v5e:4x4?xla_a", "'tpu:v5e:4x4?xla_a' has the option 'xla_a', which is not NAME=VALUE"),
        ("tpu:v5e:4x4?xla_a=", "'tpu:v5e:4x4?xla_a=' has the option 'xla_a=', which is not NAME=VALUE"),
        ("tpu:v5e:4x4?--xla_a=1", "'tpu:v5e:4x4?--xla_a=1' has the option '--xla_a=1', which is not NAME=VALUE"),
        ("tpu:v5e:4x4?xla_a=1&xla_a=2", "'tpu:v5e:4x4?xla_a=1&xla_a=2' has the option xla_a twice: 1 and 2"),
        ("cpu:8?xla_a=1", "'cpu:8?xla_a=1' has options; CPU devices have none here"),
    ],
)
def test_what_names_no_target_is_refused_in_one_line(text, message):
    with pytest.raises(TargetError) as refused:
        Target.parse(text)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


class TestMissingCompilers:
    @pytest.fixture(autouse=True)
    def nothing_is_installed(self, monkeypatch):
        monkeypatch.setattr(compile_targets, "_is_installed", lambda module: False)

    def test_libtpu(self):
        """A newer libtpu makes programs that jaxlib cannot read."""
        package = f"jax[tpu]=={importlib.metadata.version('jax')}"
        said = f"compiling for tpu:v5p:4x4x4 needs libtpu, the TPU compiler; pip install '{package}'"
        assert missing_compiler(Target.parse("tpu:v5p:4x4x4")) == said

    def test_the_plug_in_has_to_be_of_the_version_of_jax(self):
        said = missing_compiler(Target.parse("cuda:h100:1x1x8"))
        version = importlib.metadata.version("jax")
        assert (
            said == f"compiling for cuda:h100:1x1x8 needs jax's CUDA plug-in, some 4 GB; pip install "
            f"'jax[cuda13]=={version}'"
        )

    def test_cpu_devices_need_nothing(self):
        assert missing_compiler(Target.parse("cpu:8")) == ""
        assert compiler_version(Target.parse("cpu:8")) == importlib.metadata.version("jaxlib")


def test_an_installed_compiler_is_not_missing(monkeypatch):
    monkeypatch.setattr(compile_targets, "_is_installed", lambda module: module in ("libtpu", "jax_plugins.xla_cuda12"))
    assert missing_compiler(Target.parse("tpu:v5e:4x4")) == missing_compiler(Target.parse("cuda:b200:1x1x8")) == ""
    assert compile_targets.cuda_plugin() == "xla_cuda12"
