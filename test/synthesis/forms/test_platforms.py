# SPDX-License-Identifier: Apache-2.0
"""Platforms: each has forms, and each compile target belongs to one."""

from reshard.dialect_utils.xla import compile_targets
from reshard.synthesis.forms.platforms import CPU, FORMS, GLOO, GPU, PLATFORMS, TPU, platform_of


def test_every_platform_has_forms():
    assert tuple(FORMS) == PLATFORMS == (CPU, TPU, GPU, GLOO)


def test_targets_and_backends_belong_to_a_platform():
    assert [platform_of(each) for each in compile_targets.PLATFORMS] == [CPU, TPU, GPU]
    assert [platform_of(each) for each in ("rocm", "gpu", "some plug-in")] == [GPU, GPU, CPU]
