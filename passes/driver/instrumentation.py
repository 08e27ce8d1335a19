# SPDX-License-Identifier: Apache-2.0
"""The reports of a running pipeline on stderr: the IR before and after passes, and the time of each pass."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reshard.dialect_utils.platform.bindings import passmanager
from reshard.passes.driver import pipeline_text
from reshard.passes.driver.pipeline_text import Element

_TIME_ROW = re.compile(r" *(\d+\.\d+) \( *\d+\.\d+%\)  ( *)(.*)")


@dataclass(frozen=True, slots=True)
class Instrumentation:
    """The reports that MLIR's pass manager writes to stderr while it runs.

    Fields:
      print_before, print_after: names of passes around which the IR is printed; print_*_all: around all.
      only_changes, only_failures: of what is printed after all passes. module_scope: print the module, whatever a pass
        runs on.
      timing: "tree" as the passes nest, "list" by name, the longest first; None for no times.
      verify_each: verify the IR after each pass.
    """

    print_before: Sequence[str] = ()
    print_after: Sequence[str] = ()
    print_before_all: bool = False
    print_after_all: bool = False
    only_changes: bool = False
    only_failures: bool = False
    module_scope: bool = False
    timing: str | None = None
    verify_each: bool = True

    @property
    def prints_ir(self) -> bool:
        return self._prints_around_all or bool(self.print_before) or bool(self.print_after)

    @property
    def is_default(self) -> bool:
        """Returns whether nothing is printed or timed, and everything verified."""
        return self.verify_each and not self.prints_ir and not self.timing

    @property
    def _prints_around_all(self) -> bool:
        return self.print_before_all or self.print_after_all or self.only_failures

    def attach(self, manager: passmanager.PassManager) -> None:
        """Makes a pass manager report timing and IR, as far as MLIR does this by itself."""
        manager.enable_verifier(self.verify_each)
        if self._prints_around_all:
            manager.enable_ir_printing(
                print_before_all=self.print_before_all,
                print_after_all=self.print_after_all or self.only_failures,
                print_module_scope=self.module_scope,
                print_after_change=self.only_changes,
                print_after_failure=self.only_failures,
            )
        if self.timing:
            manager.enable_timing()

    def prints_before(self, name: str) -> list[str]:
        """Returns MLIR's pass that prints the IR before the named pass; empty if this print is not wanted."""
        return [f'print-ir{{label="Before {name}"}}'] if name in self.print_before else []

    def prints_after(self, name: str) -> list[str]:
        return [f'print-ir{{label="After {name}"}}'] if name in self.print_after else []

    def with_prints(self, text: str) -> str:
        """Returns an element of MLIR's passes with passes that print the IR before and after the wanted ones.

        Example:
          >>> Instrumentation(print_after=("cse",)).with_prints("func.func(cse,canonicalize)")
          'func.func(cse,print-ir{label="After cse"},canonicalize)'
        """
        if not self.print_before and not self.print_after:
            return text
        return ",".join(self._around(each) for each in pipeline_text.read(text))

    def _around(self, element: Element) -> str:
        if element.nested is None:
            return ",".join([*self.prints_before(element.name), element.text, *self.prints_after(element.name)])
        options = "" if element.options is None else f"{{{element.options}}}"
        return f"{element.name}{options}({','.join(map(self._around, element.nested))})"

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Turns the times that MLIR prints inside this context into a list, if a list is wanted.

        MLIR prints the times when the pass manager ends.
        """
        if self.timing != "list":
            yield
            return
        import tempfile

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
            with _stderr_into(printed):
                yield
            printed.seek(0)
            sys.stderr.write(times_as_list(printed.read()))


NO_INSTRUMENTATION = Instrumentation()


def times_as_list(report: str) -> str:
    """Returns MLIR's report of times with its tree as a list: by name, the longest first."""
    lines = report.splitlines()
    rows = [found for line in lines if (found := _TIME_ROW.fullmatch(line))]
    if not rows:
        return report
    total_s = float(rows[-1][1])
    seconds: dict[str, float] = defaultdict(float)
    for row in rows[:-1]:
        if not row[3].endswith(" Pipeline"):  # holds the time of its passes
            seconds[row[3]] += float(row[1])
    head = lines[: next(index for index, line in enumerate(lines) if _TIME_ROW.fullmatch(line))]
    longest_first = sorted(seconds.items(), key=lambda each: each[1], reverse=True)
    listed = [*longest_first, ("Total", total_s)]
    made = [f"  {each:8.4f} ({100 * each / (total_s or 1):5.1f}%)  {name}" for name, each in listed]
    return "\n".join([*head, *made]) + "\n"


@contextlib.contextmanager
def _stderr_into(file) -> Iterator[None]:
    """Redirects all output of the process to stderr into a file for a while; C++ does not write to `sys.stderr`."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
