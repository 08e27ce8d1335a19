# SPDX-License-Identifier: Apache-2.0
"""The cases of emission_forms.py: each is a valid module with the collective that it is named after."""

import pytest

from benchmarks.conversions.emission_forms import CASES, main, module_of
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.forms.platforms import FORMS, PLATFORMS


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case, platform):
    text = module_of(case, "bf16", platform)
    with make_context(), ir.Location.unknown():
        assert ir.Module.parse(text).operation.verify()
    kind = case.name.partition(",")[0]
    op = {"slice": "dynamic_slice", "permute": "collective_permute"}.get(kind, kind)
    if not FORMS[platform].has_reduce_scatter and kind == "reduce_scatter":
        op = "all_to_all"
    assert f"stablehlo.{op}" in text and "ub.poison" not in text


def test_wrong_arguments(capsys):
    for arguments, message in (
        (["--targets=tpu:v5e:4x4"], "tpu:v5e:4x4 has 16 devices; the programs want 8"),
        (["--targets=cpu:8", "--forms=abacus"], "abacus is none of cpu, tpu, gpu, gloo"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err
