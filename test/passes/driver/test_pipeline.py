# SPDX-License-Identifier: Apache-2.0
"""Pipeline text, pass options, and the diagnostics of a run."""

import dataclasses

import pytest

from reshard.dialect_utils.ir import module_files
from reshard.dialect_utils.ir.diagnostics import DiagnosedError, Place, error_at, place_of
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import Compiled
from reshard.passes.driver import registry
from reshard.passes.driver.base import OptionError, Pass, RunningPass, RunOptions, Session, option
from reshard.passes.driver.instrumentation import Instrumentation
from reshard.passes.driver.pipeline import Pipeline, PipelineError


@dataclasses.dataclass(frozen=True)
class _OptionsPass(Pass):
    name, summary = "options", "has one option of each kind"
    statistics = {"runs": "times it ran"}

    policy: str = option("better", "when to rewrite", choices=("better", "always"))
    max_steps: int = option(4, "steps")
    slack: float = option(1.5, "ratio")
    verbose: bool = option(False, "say more")

    def run(self, module: ir.Module, session: Session) -> None:
        session.count("runs")
        if self.verbose:
            session.remark(module.body.operations[0], "seen")
        if self.max_steps == 0:
            raise error_at(module.body.operations[0], "no step is allowed")


def _module() -> ir.Module:
    return ir.Module.parse("\nfunc.func @f() { return }", make_context())


@pytest.mark.parametrize("text", ["", "policy=always", "policy=always max-steps=2 slack=0.5 verbose=true"])
def test_options_round_trip(text):
    given = _OptionsPass.parse(text)
    assert str(given) == (f"options{{{text}}}" if text else "options")


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("policy=never", "policy=never is not available; choose from better, always"),
        ("steps=3", "has no option 'steps'; its options: policy, max-steps, slack, verbose"),
        ("max-steps=few", "max-steps=few is not an integer"),
        ("slack=much", "slack=much is not a number"),
        ("verbose=yes", "verbose=yes is neither true nor false"),
        ("verbose", "option 'verbose' has no value; write verbose=VALUE"),
    ],
)
def test_wrong_options_are_refused(text, complaint):
    with pytest.raises(OptionError, match=complaint):
        _OptionsPass.parse(text)


@pytest.mark.parametrize(
    "text, printed",
    [
        ("", "builtin.module()"),
        ("cse", "builtin.module(cse)"),
        (
            " builtin.module( cse , canonicalize{max-iterations=3} ) ",
            "builtin.module(cse,canonicalize{max-iterations=3})",
        ),
        ("func.func(cse,canonicalize),strip-findings", "builtin.module(func.func(cse,canonicalize),strip-findings)"),
        ("builtin.module(cse),cse", "builtin.module(builtin.module(cse),cse)"),
    ],
)
def test_pipelines_round_trip(text, printed):
    pipeline = Pipeline.parse(text)
    assert str(pipeline) == printed
    assert Pipeline.parse(printed) == pipeline
    pipeline.check(make_context())


def test_the_passes_come_from_one_table():
    for name in registry.PASSES:
        cls = registry.load(name)
        stem = registry.PASSES[name].split(":")[0].rsplit(".", 1)[-1]
        assert cls.name == name and stem == name.replace("-", "_") and cls.summary and cls.guarantees
        assert name in registry.listing() and f"## {name}" in registry.markdown()


def test_options_are_set_on_the_passes_that_have_them():
    pipeline = Pipeline((_OptionsPass(), "cse")).with_options({"policy": "always"})
    assert str(pipeline) == "builtin.module(options{policy=always},cse)"
    with pytest.raises(PipelineError, match="no pass of .* has an option 'emit'; add one that has: "):
        pipeline.with_options({"emit": "manual"})


def test_remarks_and_counts_are_in_the_session():
    session = Session()
    Pipeline((_OptionsPass(verbose=True), "cse", _OptionsPass())).run(_module(), session)
    assert [(each.message, each.place.line) for each in session.remarks] == [("seen", 2)]
    assert session.results.statistics["options", "runs"] == 2


def test_an_error_of_mlirs_own_passes_is_diagnosed():
    session = Session()
    module = ir.Module.parse('func.func @f() { return } loc("a \\"b.py":3:4)', make_context())

    @dataclasses.dataclass(frozen=True)
    class Breaks(Pass):
        name, summary = "breaks", "leaves an invalid module"

        def run(self, module, session):
            module.body.operations[0].attributes["sym_name"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(8), 1)

    with pytest.raises(DiagnosedError):
        Pipeline((Breaks(),)).run(module, session)
    assert session.errors[0].place == Place('a "b.py', 3, 4)


def test_places_of_names_call_sites_and_nothing():
    with make_context():
        leaf = ir.Location.file("f.py", 7, 2)
        assert place_of(ir.Location.name("jit(f)/add", leaf)) == Place("f.py", 7, 2)
        assert place_of(ir.Location.callsite(leaf, [ir.Location.file("g.py", 1, 1)])) == Place("f.py", 7, 2)
        assert place_of(ir.Location.unknown()) is None and place_of(None) is None


def test_names_are_looked_for_in_the_bytecode_only_as_long_as_it_is_the_modules():
    text = """
      sdy.mesh @mesh = <["x"=2]>
      func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
        %0 = stablehlo.tanh %arg0 {reshard.operand_sites = 1 : i64} : tensor<8xf32>
        return %0 : tensor<8xf32>
      }"""  # noqa: E501
    found = []
    for names in ("find-mismatches", "import-gspmd,find-mismatches", "find-mismatches,find-mismatches"):
        module = ir.Module.parse(text, make_context())
        session = Session(running=RunningPass(content=module_files.to_bytes(module, module_files.BYTECODE)))
        assert session.may_have("reshard.") and not session.may_have("mhlo.sharding", "xla.sdy.")
        Pipeline.parse(names).run(module, session)
        assert session.may_have("mhlo.sharding")
        found.append(str(module))
    assert len(set(found)) == 1 and found[0].count("reshard.operand_sites") == 1


SITE = """
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
    %0 = stablehlo.tanh %arg0 : tensor<8xf32>
    return %0 : tensor<8xf32>
  }"""  # noqa: E501


@dataclasses.dataclass(frozen=True)
class _LookPass(Pass):
    """Records whether findings are on the module when this pass runs."""

    name, summary = "look", "look"

    def run(self, module, session):
        session.seen = str(module).count("reshard.operand_sites"), len(session.handed_on.findings.edges)
        session.running.is_module_unchanged = True
        session.handed_on.findings = dataclasses.replace(session.handed_on.findings)


class _TakingPass(_LookPass):
    takes_findings = True


def _passes(names: str) -> tuple:
    return Pipeline.parse(names).elements


@pytest.mark.parametrize("look, on_module", [(_LookPass, 1), (_TakingPass, 0)])
def test_findings_are_written_only_for_a_pass_that_does_not_take_them(look, on_module):
    module = ir.Module.parse(SITE, make_context())
    session = Session(running=RunningPass(content=module_files.to_bytes(module, module_files.BYTECODE)))
    Pipeline((*_passes("find-mismatches"), look())).run(module, session)
    assert session.seen == (on_module, 1)


def test_findings_are_written_where_the_module_is_looked_at_or_may_have_older_ones():
    module = ir.Module.parse(SITE, make_context())
    Pipeline((*_passes("find-mismatches"), _TakingPass())).run(
        module, session := Session()
    )  # the content of the module is unknown
    assert session.seen == (1, 1)
    module = ir.Module.parse(SITE, make_context())
    session = Session(running=RunningPass(content=module_files.to_bytes(module, module_files.BYTECODE)))
    Pipeline((*_passes("find-mismatches"), _TakingPass())).run(module, session, Instrumentation(verify_each=False))
    assert session.seen == (1, 1)


@pytest.mark.parametrize(
    "last, on_module",
    [
        ("plan-sites", 1),
        ("plan-sites,synthesize-collectives", 1),
        ("plan-sites,synthesize-collectives,strip-findings", 0),
        ("plan-sites,decompose-collectives", 1),
        ("plan-sites,decompose-collectives,synthesize-collectives,strip-findings", 0),
    ],
)
def test_findings_are_on_the_module_behind_the_last_pass_that_writes_them(last, on_module):
    texts = []
    for content in (None, b""):  # unknown content, and content that is known to hold none of our names
        module = ir.Module.parse(SITE, make_context())
        session = Session(RunOptions(xla_child=_NoXla()), running=RunningPass(content=content))
        Pipeline.parse(f"find-mismatches,{last}").run(module, session)
        texts.append(str(module))
    assert texts[0] == texts[1] and texts[0].count("reshard.operand_sites") == on_module
    assert (session.running.content == b"") == (on_module == 0)  # b"" stays if the module was never changed


class _NoXla:
    """A child whose XLA fails to compile, so that every site is left to stock XLA."""

    passing_answers = 0

    def compile(self, *arguments, **options):
        return Compiled("abort", message="no XLA here")

    propagate = compile

    def foresee(self, requests):
        pass
