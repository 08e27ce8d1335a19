# SPDX-License-Identifier: Apache-2.0
"""What a pass is: a frozen dataclass whose fields are its options, declared once for flags, help, docs and round-trip text.

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

from reshard.dialect_utils import diagnostics
from reshard.dialect_utils.diagnostics import Collector, Diagnostic

if TYPE_CHECKING:
    from reshard.dialect_utils.bindings import ir


class OptionError(ValueError):
    """A pass option that does not exist or has a value out of its range; the message is for the user.

    Fields: option: as it was written, `name=value`.
    """

    def __init__(self, message: str, option: str = ""):
        super().__init__(message)
        self.option = option


@dataclasses.dataclass
class Session:
    """What the passes of one run share besides the IR.

    Invariant: the IR alone decides what a pass does; a session carries what goes to people (diagnostics, report rows,
    statistics), what the driver knows that no attribute holds (`options`), and what saves the next pass work (`analysis`).

    Fields:
      diagnostics: errors, warnings and remarks in the order of their emission.
      report_rows: one mapping per site, written by plan-sites and later passes, rendered by `passes.report`.
      options: driver options by name, such as `compile_for`; a pass must do without any of them.
      statistics: counts by (pass name, statistic name).
      analysis: propagation's, of the module as the pass right before has left it; None if that one made none.
      findings: those that the pass right before has left, on the module or here alone; None if that one left none.
      are_findings_written: whether `findings` are on the module.
      hands_over: whether the next pass takes findings from here, so that the running one need not write them onto the module.
      checks: what the whole-module check found, one `whole_module_check.Check` per module with rewritten sites.
      value_checks: what the check by values found, one `values_check.ValuesCheck` per module with rewritten sites, if asked for.
      content: the module as it is in front of the running pass, in a form that has each name and string in it as bytes; None if
        unknown.
      is_left: whether the running pass has left the module as it was, to the last attribute.
      is_verified: whether the running pass has left nothing to verify: all that it changed are attributes of ours, which say
        nothing of what the module computes.
      left_whole: why the module as a whole is left to XLA, where no pass was run on it.
    """

    diagnostics: Collector = dataclasses.field(default_factory=Collector)
    report_rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    statistics: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    checks: list[Any] = dataclasses.field(default_factory=list)
    value_checks: list[Any] = dataclasses.field(default_factory=list)
    left_whole: str = ""
    content: bytes | None = None
    is_left: bool = False
    is_verified: bool = False
    current_pass: Pass | None = None
    analysis: Any = None
    findings: Any = None
    are_findings_written: bool = True
    hands_over: bool = False

    @property
    def remarks(self) -> list[Diagnostic]:
        return self.diagnostics.having(diagnostics.REMARK)

    @property
    def errors(self) -> list[Diagnostic]:
        return self.diagnostics.having(diagnostics.ERROR)

    def remark(self, where, message: str, *notes: Diagnostic) -> None:
        """Says at an op, value or location why it was left alone, or what was done to it."""
        self.diagnostics.emit(where, diagnostics.REMARK, message, notes)

    def warning(self, where, message: str, *notes: Diagnostic) -> None:
        """Says at an op, value or location what the user should look at."""
        self.diagnostics.emit(where, diagnostics.WARNING, message, notes)

    def error(self, where, message: str, *notes: Diagnostic) -> None:
        """Reports a mistake of the user; the running pass goes on and fails when it returns."""
        self.diagnostics.emit(where, diagnostics.ERROR, message, notes)

    def may_have(self, *texts: str) -> bool:
        """Returns whether one of some names or strings may be in the module; False is certain, and told without a walk."""
        return self.content is None or any(each.encode() in self.content for each in texts)

    def count(self, statistic: str, amount: int = 1) -> None:
        """Adds to a statistic that the running pass declares."""
        assert self.current_pass is not None and statistic in self.current_pass.statistics, statistic
        self.statistics[self.current_pass.name, statistic] += amount


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a pass as flags, help and docs show it; `name` is the field's with dashes."""

    name: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()


def option(default: Any, help: str, choices: Sequence[str] = ()) -> Any:
    """Declares a pass option: a bool, int, float or str, by its default; give the unit in `help`."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": tuple(choices)})


@dataclasses.dataclass(frozen=True)
class Pass:
    """A rewrite or an analysis of a module. The IR is valid before and after it, not necessarily during.

    A pass is total: it rewrites, or leaves the op and says why with `session.remark(op, ...)`, or reports an error with
    `session.error(op, ...)` or by raising `DiagnosedError`. Any other exception is our bug.

    Subclasses are frozen dataclasses themselves; their fields are options (see `option`). They declare:
      name: as in flags and pipelines.  summary: one line.  description: text with IR before ==> after.
      guarantees: what holds afterwards.  statistics: name -> meaning, counted by `session.count(name)`.
      takes_findings: whether it takes findings from the session, where they are not on the module.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    description: ClassVar[str] = ""
    guarantees: ClassVar[tuple[str, ...]] = ()
    statistics: ClassVar[Mapping[str, str]] = {}
    takes_findings: ClassVar[bool] = False

    def run(self, module: ir.Module, session: Session) -> None:
        """Runs on `module` in place; its context and an unknown location are active."""
        raise NotImplementedError

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
        """Returns the pass with some options given as text, by their dashed names."""
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
