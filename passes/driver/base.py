# SPDX-License-Identifier: Apache-2.0
"""The base class of passes: a pass is a frozen dataclass whose fields are its options.

A pass is declared once, for flags, help, docs and round-trip text.

Example:
  >>> @dataclasses.dataclass(frozen=True)
  ... class CountOpsPass(Pass):
  ...     '''Counts operations.'''
  ...     name = "count-ops"
  ...     summary = "count the operations of a module"
  ...     description = "leaves the module as it is"
  ...     guarantees = ("the module is unchanged",)
  ...     statistics = {"ops": "operations seen"}
  ...     skip: str = option("none", "operations to leave out", choices=("none", "constants"))
  ...     max_depth: int = option(2, "deepest region to enter")
  >>> str(CountOpsPass(max_depth=3))
  'count-ops{max-depth=3}'
  >>> CountOpsPass.parse("skip=constants")
  CountOpsPass(skip='constants', max_depth=2)
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from reshard.dialect_utils.ir import diagnostics
from reshard.dialect_utils.ir.diagnostics import Collector, Diagnostic
from reshard.passes.driver.registry import GIVEN

if TYPE_CHECKING:
    from reshard.dialect_utils.platform.bindings import ir
    from reshard.dialect_utils.xla.at_hand import CompilerAtHand
    from reshard.dialect_utils.xla.child import XlaChild
    from reshard.dialect_utils.xla.compile_targets import Target


class OptionError(ValueError):
    """A pass option that does not exist or has a value out of its range; the message is for the user.

    Fields: option: as it was written, `name=value`.
    """

    def __init__(self, message: str, option: str = ""):
        super().__init__(message)
        self.option = option


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The facts about a run that the driver knows and the module does not hold. Every pass also works without them.

    Fields:
      input: the name of the file that the module comes from, for messages; "-" if there is none.
      compile_for: the target whose compiler decides between two forms of the module; None for this machine.
      with_provenance: whether report rows tell which op or argument asked for each axis of a layout.
      xla_child: the child process that runs XLA; None for the one that this process shares.
      at_hand: what asks the compiler of the target in this process, which has its devices; None for the child process.
      with_traffic: whether the whole-module check also lists the longest collectives of both modules, for reports.
      effort: the search for the best set of sites compiles so many times as many modules.
      layouts: whether layouts between arguments and results are those of propagation (`GIVEN`), or may be `CHOSEN`.
    """

    input: str = "-"
    compile_for: Target | None = None
    with_provenance: bool = False
    xla_child: XlaChild | None = None
    with_traffic: bool = False
    effort: int = 1
    layouts: str = GIVEN
    at_hand: CompilerAtHand | None = None


@dataclasses.dataclass
class RunResults:
    """The results of a run for people. A cache of results keeps exactly these beside the module.

    Fields:
      diagnostics: errors, warnings and remarks in the order of their emission.
      report_rows: one mapping per site, written by plan-sites and later passes, rendered by `passes.results.report`.
      statistics: counts by (pass name, statistic name).
      checks: results of the whole-module check: one `whole_module_check.Check` per module with rewritten sites.
      value_checks: results of the check by values: one `values_check.ValuesCheck` per module that was checked.
      left_whole: why the whole module is left to XLA, if no pass ran on it; else empty.
    """

    diagnostics: Collector = dataclasses.field(default_factory=Collector)
    report_rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    statistics: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    checks: list[Any] = dataclasses.field(default_factory=list)
    value_checks: list[Any] = dataclasses.field(default_factory=list)
    left_whole: str = ""


@dataclasses.dataclass
class HandedOn:
    """The results that a pass hands to the next pass, so that the next pass need not compute or read them again.

    Fields:
      analysis: the `propagation.Analysis` of the module as the previous pass left it; None if that pass made none.
      findings: the `Findings` that the previous pass left, on the module or only here; None if it left none.
      are_findings_written: whether `findings` are on the module as attributes.
      analyses: the `local_modules.Analyses` of a module that is written per device in several forms; None if in one.
    """

    analysis: Any = None
    findings: Any = None
    are_findings_written: bool = True
    analyses: Any = None


@dataclasses.dataclass
class RunningPass:
    """The pass that runs now: facts from the pipeline for it, and its own statements about the module that it leaves.

    Fields:
      element: the pass; None between passes.
      content: the module before the pass, in a form that has each name and string in it as bytes; None if unknown.
      next_takes_findings: whether the next pass takes findings from the session, so that this pass need not write them
        onto the module.
      is_module_unchanged: whether the pass left the module as it was, to the last attribute.
      is_module_valid: whether the pass left nothing to verify: it changed only attributes of ours, which do not change
        what the module computes.
    """

    element: Pass | None = None
    content: bytes | None = None
    next_takes_findings: bool = False
    is_module_unchanged: bool = False
    is_module_valid: bool = False


@dataclasses.dataclass
class Session:
    """The state that passes of one run share besides the IR: options, results for people, results for later passes.

    Invariant: the IR alone decides how a pass changes the module; a session changes only its speed and its reports.
    """

    options: RunOptions = RunOptions()
    results: RunResults = dataclasses.field(default_factory=RunResults)
    handed_on: HandedOn = dataclasses.field(default_factory=HandedOn)
    running: RunningPass = dataclasses.field(default_factory=RunningPass)

    def reset(self) -> None:
        """Forgets all but the options, as if nothing had run."""
        self.results, self.handed_on, self.running = RunResults(), HandedOn(), RunningPass()

    @property
    def remarks(self) -> list[Diagnostic]:
        return self.results.diagnostics.having(diagnostics.REMARK)

    @property
    def errors(self) -> list[Diagnostic]:
        return self.results.diagnostics.having(diagnostics.ERROR)

    def remark(self, where, message: str, *notes: Diagnostic) -> None:
        """Emits a remark at an op, value or location: why it was left alone, or how it was changed."""
        self.results.diagnostics.emit(where, diagnostics.REMARK, message, notes)

    def warning(self, where, message: str, *notes: Diagnostic) -> None:
        """Emits a warning at an op, value or location that the user should look at."""
        self.results.diagnostics.emit(where, diagnostics.WARNING, message, notes)

    def error(self, where, message: str, *notes: Diagnostic) -> None:
        """Reports a mistake of the user; the running pass goes on and fails when it returns."""
        self.results.diagnostics.emit(where, diagnostics.ERROR, message, notes)

    def may_have(self, *texts: str) -> bool:
        """Returns whether one of `texts` may be in the module as a name or a string; False is certain.

        The module is not walked.
        """
        content = self.running.content
        return content is None or any(each.encode() in content for each in texts)

    def count(self, statistic: str, amount: int = 1) -> None:
        """Adds to a statistic that the running pass declares."""
        running = self.running.element
        assert running is not None and statistic in running.statistics, statistic
        self.results.statistics[running.name, statistic] += amount


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a pass as flags, help and docs show it. `name` is the name of the field, with dashes."""

    name: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()


def option(default: Any, help: str, choices: Sequence[str] = ()) -> Any:
    """Declares a pass option. The default gives its type (bool, int, float or str); `help` has to state the unit."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": tuple(choices)})


@dataclasses.dataclass(frozen=True)
class Pass:
    """A rewrite or an analysis of a module. The IR is valid before and after it, not necessarily during.

    A pass is total: it rewrites, or leaves the op and says why with `session.remark(op, ...)`, or reports an error with
    `session.error(op, ...)` or by raising `DiagnosedError`. Any other exception is our bug.

    Subclasses are frozen dataclasses themselves; their fields are options (see `option`). They declare:
      name: the name in flags and pipelines.  summary: one line.  description: text with IR before ==> after.
      guarantees: what holds afterwards.  statistics: name -> meaning, counted by `session.count(name)`.
      takes_findings: whether it takes findings from the session, where they are not on the module.
      states_shardings: whether it says how the module is sharded; checks compare with the module after such passes.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    description: ClassVar[str] = ""
    guarantees: ClassVar[tuple[str, ...]] = ()
    statistics: ClassVar[Mapping[str, str]] = {}
    takes_findings: ClassVar[bool] = False
    states_shardings: ClassVar[bool] = False

    def run(self, module: ir.Module, session: Session) -> None:
        """Runs the pass on `module` in place. The module's context and an unknown location are active."""
        raise NotImplementedError  # a plug-in's class without `run` is named when it runs, like any other fault of it

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """Returns the options in the order of their declaration."""
        return tuple(
            Option(field.name.replace("_", "-"), field.default, field.metadata["help"], field.metadata["choices"])
            for field in dataclasses.fields(cls)
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the pass with the options of `a=1 b=two`, as MLIR writes them between braces.

        Raises: OptionError for an unknown option or a value out of its range.
        """
        return cls().with_options(dict(_split_option(cls, each) for each in text.split()))

    def with_options(self, values: Mapping[str, str]) -> Self:
        """Returns the pass with some options replaced: `values` has their values as text, by their dashed names."""
        known = {each.name: each for each in self.options()}
        changes = {}
        for name, text in values.items():
            if name not in known:
                has = ", ".join(known) or "none"
                raise OptionError(f"{self.name} has no option '{name}'; its options: {has}", f"{name}={text}")
            changes[name.replace("-", "_")] = _read_value(self.name, known[name], text)
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        """Returns the pass as pipeline text; options at their defaults are left out."""
        given = [(each.name, getattr(self, each.name.replace("-", "_")), each.default) for each in self.options()]
        shown = " ".join(f"{name}={_write_value(value)}" for name, value, default in given if value != default)
        return f"{self.name}{{{shown}}}" if shown else self.name


def _split_option(cls: type[Pass], text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"{cls.name}: option '{text}' has no value; write {text}=VALUE", text)
    return name, value


def _read_value(pass_name: str, option: Option, text: str) -> Any:
    given = f"{option.name}={text}"
    if option.choices and text not in option.choices:
        raise OptionError(f"{pass_name}: {given} is not available; choose from {', '.join(option.choices)}", given)
    if isinstance(option.default, bool):
        if text not in ("true", "false"):
            raise OptionError(f"{pass_name}: {given} is neither true nor false", given)
        return text == "true"
    kind = str if option.default is None else type(option.default)
    try:
        return kind(text)
    except ValueError:
        noun = {int: "an integer", float: "a number"}[kind]
        raise OptionError(f"{pass_name}: {given} is not {noun}", given) from None


def _write_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
