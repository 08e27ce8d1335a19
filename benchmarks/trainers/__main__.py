# SPDX-License-Identifier: Apache-2.0
"""Programs of installed trainers, stock XLA's module beside ours: modelled time, received bytes, memory.

    python -m benchmarks.trainers [--steps NAME,...] [--topologies v5e:2x4,h100:2x4 | --compile-for TARGET |
        --at-hand v5e:2x4] [--memory-limit device]

`maxtext/NAME` are training steps of MaxText, and `prefill` and `decode` of its serving engine; it has to be installed
with what its trainer imports: measured with 0.2.5 and jax 0.12. `tunix/NAME` are steps of models of Tunix, google-tunix
0.1.7. A trainer that is not there is left out. Steps are lowered for 8 CPU devices, or as many as the target has, whose
own compiler judges with `--compile-for`. With `--at-hand` they are lowered for TPUs of such a topology, and what is
measured is what reshard does by default for a user who has them: the compiler of the devices judges a few forms, in
this process. On more than 8 devices the axis that splits the batch is longer. The exit status is 1 if a step fails, is
modelled longer than stock XLA's, or needs more memory, if `--memory-limit` does not allow that.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import reshard
from benchmarks.programs.__main__ import use_devices
from reshard.dialect_utils.xla.compile_targets import Target, TargetError
from reshard.synthesis.common.text_table import markdown_table

MODULES = (("maxtext", "maxtext_steps"), ("maxtext", "maxtext_serving"), ("tunix", "tunix_steps"))  # by trainer
HEADER = ("step", "network", "stock", "ours", "stock ÷ ours", "received", "ours", "temporaries", "ours")
GENERATED = ("code generator, stock", "ours")  # where a compiler of TPUs is asked


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument(
        "--steps", default="", help="names such as maxtext/fsdp, or maxtext for all of it (default: all)"
    )
    parser.add_argument("--topologies", default="v5e:2x4,h100:2x4", help="networks of 8 devices (default: %(default)s)")
    parser.add_argument("--compile-for", default="", metavar="TARGET", help="the target whose compiler judges")
    parser.add_argument("--at-hand", default="", metavar="TOPOLOGY", help="the TPUs that steps are lowered for")
    parser.add_argument("--memory-limit", default="", metavar="BYTES|device", help="what a step may need")
    parser.add_argument("--size", default="small", choices=("small", "large"), help="of the models")
    asked = parser.parse_args(argv)
    try:
        use_devices(_devices(asked))
    except TargetError as error:
        parser.error(str(error))
    names, rows, is_good = asked.steps.split(",") if asked.steps else [], [], True
    devices = _tpus(asked.at_hand) if asked.at_hand else ()
    alone = [{"compile_for": asked.compile_for}] if asked.compile_for else [{}] if devices else None
    for name, module, step in _steps(names):
        limit = {"memory_limit": asked.memory_limit} if asked.memory_limit else {}
        for options in alone or [{"topology": each} for each in asked.topologies.split(",")]:
            network = next(iter(options.values()), f"{asked.at_hand} at hand")
            print(f"{name} on {network}", file=sys.stderr)
            try:
                report = reshard.optimize(module.lowered(step, asked.size, devices), **options, **limit).report
                row, is_better = _row(report.to_dict(), may_need_more=bool(limit))
            except Exception as error:  # one trainer's trouble is a row
                rows.append((name, network, f"{type(error).__name__}: {error}".splitlines()[0][:100], *[""] * 8))
                is_good = False
                continue
            rows.append((name, network, *row))
            is_good &= is_better
    if not rows:
        parser.error("no step of a trainer that is installed has such a name")
    columns = len(HEADER) + len(GENERATED) * any(any(row[len(HEADER) :]) for row in rows)
    header = (*HEADER, *GENERATED)[:columns]
    print(markdown_table(header, [row[:columns] for row in rows], "ll" + "r" * (columns - 2)))
    return 0 if is_good else 1


def _devices(asked: argparse.Namespace) -> int:
    """Returns how many devices the steps are for. Raises: TargetError."""
    if asked.at_hand and asked.compile_for:
        raise TargetError("either --compile-for or --at-hand says what the steps are for")
    if asked.at_hand and Target.parse(f"tpu:{asked.at_hand}").slices > 1:
        raise TargetError(f"--at-hand is for one slice, and {asked.at_hand} has several")
    if asked.at_hand or asked.compile_for:
        return Target.parse(asked.compile_for or f"tpu:{asked.at_hand}").devices
    return 8


def _tpus(topology: str) -> Sequence[Any]:
    """Returns the devices of a topology such as "v5e:2x4", which libtpu compiles for and which need not be there."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices


def _steps(names: Sequence[str]) -> Iterator[tuple[str, ModuleType, str]]:
    is_there = {trainer: importlib.util.find_spec(trainer) is not None for trainer, _ in MODULES}
    for trainer in (each for each in is_there if not is_there[each]):
        print(f"{trainer} is not installed", file=sys.stderr)
    for trainer, name in MODULES:
        if not is_there[trainer]:
            continue
        module = importlib.import_module(f"benchmarks.trainers.{name}")
        for step in module.STEPS:
            if not names or trainer in names or f"{trainer}/{step}" in names:
                yield f"{trainer}/{step}", module, step


def _row(report: Mapping[str, Any], *, may_need_more: bool) -> tuple[tuple[str, ...], bool]:
    """Returns the cells of a step after its name and network, and whether ours is no longer and needs no more memory.

    Memory is the same up to a five-hundredth, as for the check; `may_need_more` if a limit allows more.
    """
    (check,) = report["checks"]
    stock, ours = check["stock"], check["ours"]
    ratio = stock["modelled_us"] / ours["modelled_us"]
    cells = [f"{stock['modelled_us']:,.0f} us", f"{ours['modelled_us']:,.0f} us", f"{ratio:.2f}"]
    for kind in ("bytes_received", "temp_bytes"):
        cells += [f"{each[kind] / 1e6:,.2f} MB" for each in (stock, ours)]
    generated = [each.get("generated_seconds") for each in (stock, ours)]
    cells += [f"{1e6 * seconds:,.0f} us" if seconds else "" for seconds in generated]
    is_small = may_need_more or ours["temp_bytes"] <= 1.002 * stock["temp_bytes"]
    return tuple(cells), ratio > 0.9999 and is_small


if __name__ == "__main__":
    sys.exit(main())
