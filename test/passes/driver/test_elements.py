# SPDX-License-Identifier: Apache-2.0
"""Each element of a pipeline's text stands for the expected passes."""

import pytest

from reshard.dialect_utils.platform.bindings import make_context
from reshard.passes.driver import registry
from reshard.passes.driver.elements import is_mlir_pass, read_passes
from reshard.passes.driver.pipeline_text import PipelineError


def test_each_element_comes_with_its_place_in_the_text():
    (ours, first), (theirs, second) = read_passes("strip-findings, func.func(cse)")
    assert (ours.name, first) == ("strip-findings", 0) and (theirs, second) == ("func.func(cse)", 16)


def test_a_named_pipeline_stands_for_its_passes():
    name, text = next(iter(registry.PIPELINES.items()))
    assert [str(each) for each, _ in read_passes(name)] == text.split(",")
    with pytest.raises(PipelineError, match="takes no options"):
        read_passes(f"{name}{{policy=always}}")


def test_mlir_knows_its_own_passes():
    with make_context():
        assert is_mlir_pass("cse") and not is_mlir_pass("no-such-pass")
