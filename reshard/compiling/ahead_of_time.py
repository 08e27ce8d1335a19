# SPDX-License-Identifier: Apache-2.0
"""The compiler of a target that need not be there, as the judge of layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import Compiled, XlaChild
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.layouts.judging import Judged
from reshard.passes.results.checks import placed
from reshard.passes.sites.network import SiteNetwork
from reshard.passes.whole_module import whole_module_check
from reshard.synthesis.forms.platforms import platform_of


@dataclass(frozen=True)
class AheadOfTime:
    """Compiles for a target that need not be there; times are modelled on the compiler's final programs.

    Its own estimate is not the measure, since programs with loops have none; it is a veto of `whole_module_check`.
    """

    child: XlaChild
    network: SiteNetwork
    target: Target

    def __call__(self, content: bytes, devices: int) -> Judged:
        session = Session(RunOptions(compile_for=self.target, xla_child=self.child))
        pipeline = Pipeline.emitting("auto", self._options())
        with make_context() as context, ir.Location.unknown(context):
            original, module = ir.Module.parse(content), ir.Module.parse(content)
            pipeline = placed(pipeline, lambda: ir.Module.parse(content), session)
            pipeline.run(module, session)
            rows = list(session.results.report_rows)
            chosen = whole_module_check.check(original, module, pipeline, session, rows)
            if not session.results.checks:
                refused = Compiled("refused", session.remarks[-1].message if session.remarks else "")
                return Judged.on(self.network, devices, content, refused, refused)
            (check,) = session.results.checks
            optimized = compat.bytecode(chosen)
        network = replace(self.network, text=check.topology)  # with the places of this module's partitions
        return Judged.on(network, devices, optimized, check.stock, check.ours)

    def _options(self) -> dict[str, str]:
        options = {"platform": platform_of(self.target.platform)}
        if self.network.is_known:
            options["topology"] = self.network.text
        if self.network.memory_limit is not None:
            options["memory-limit"] = str(self.network.memory_limit)
        return options
