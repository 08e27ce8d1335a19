# SPDX-License-Identifier: Apache-2.0
"""Random loops whose collectives are brought a trip ahead: they give what XLA computes of the loop as it came."""

import random

import numpy as np
import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from test.end_to_end.overlap.drawn_loops import DrawnLoop, drawn_loop

NETWORKS = {2: "v5e:1x2", 4: "v5e:2x2"}


def passed(case: DrawnLoop, **options: str) -> tuple[str, list[dict]]:
    """Returns the module after the pass, and its rows."""
    session = Session()
    asked = {"policy": "always", "topology": NETWORKS[case.devices], "platform": "tpu"}
    with make_context():
        module = ir.Module.parse(case.module)
        Pipeline.parse("overlap-collectives").with_options(asked | options).run(module, session)
        assert module.operation.verify()
        return str(module), session.results.report_rows


def checked(seed: int) -> int:
    """Runs both forms of the loop of a seed, and returns how many collectives come a trip ahead."""
    case = drawn_loop(seed)
    _, rows = passed(case)
    ahead = [row["site"] for row in rows if "one trip ahead" in row["group"]]
    assert len(ahead) == case.ahead, f"seed {seed}: {case.words}"
    chosen = sorted(random.Random(seed).sample(ahead, random.Random(seed).randint(1, len(ahead))))
    module, rows = passed(case, only="+".join(map(str, chosen)))
    assert [row["site"] for row in rows if row["is_rewritten"]] == chosen
    rng = np.random.default_rng(seed)
    arguments = [rng.integers(-3, 4, shape).astype(np.int32) for shape in case.shapes]
    stock, ours = (shared_child().run(text, arguments, case.devices) for text in (case.module, module))
    assert stock.status == ours.status == "ok", f"seed {seed}: {case.words}: {stock.message} {ours.message}"
    np.testing.assert_array_equal(ours.outputs[0], stock.outputs[0], err_msg=f"seed {seed}: {case.words}")
    return len(chosen)


def test_random_loops_are_the_same():
    assert sum(map(checked, range(12))) >= 12


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1300, 100))
def test_many_random_loops_are_the_same(start):
    assert sum(map(checked, range(start, start + 100))) >= 100
