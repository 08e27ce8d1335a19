# SPDX-License-Identifier: Apache-2.0
"""Lists the programs of this folder and of examples/, and writes their modules.

    python -m benchmarks.programs list [NAME ...] [--size demo] [--no-sites]
    python -m benchmarks.programs lower NAME [--mesh data=8,model=4] [--size demo] -o FILE.mlir

The devices of a mesh need not be there, nor memory for the arguments. Exit status: 0; 1 if a named program cannot be
lowered, since its library is missing or the mesh does not fit; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.programs.program import Program

SIZES = ("small", "demo", "large")
ROOT = Path(__file__).resolve().parent.parent.parent
INSTALL = "pip install -e '.[benchmarks]'"


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    flags = _parser().parse_args(argv)
    use_devices(8 if flags.mesh is None else math.prod(size for _, size in flags.mesh))
    use_portable_locations()
    try:
        return {"list": _list, "lower": _lower}[flags.command](flags)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def use_devices(count: int) -> None:
    """Makes jax, which must not be imported yet, see `count` CPU devices.

    Raises: RuntimeError if jax is imported.
    """
    if "jax" in sys.modules:
        raise RuntimeError("jax is imported: the number of its devices can no longer be set")
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"


def use_portable_locations() -> None:
    """Makes jax record paths relative to this repository or to site-packages."""
    import jax

    jax.config.update("jax_hlo_source_file_canonicalization_regex", rf"^.*/site-packages/|^{re.escape(str(ROOT))}/")


def _list(flags: argparse.Namespace) -> int:
    from reshard.synthesis.common.text_table import markdown_head, markdown_line

    programs = named(flags.names)
    print(markdown_head(("name", "source", "sites", "devices", "mesh", "summary")))
    skipped = []
    for each in programs:
        if each.missing:
            skipped.append(each)
            continue
        sites = "–" if flags.no_sites else str(sites_of(each.lower(flags.size).as_text()))
        mesh = ",".join(f"{name}={size}" for name, size in each.mesh_axes)
        row = (each.name, each.source, sites, str(math.prod(size for _, size in each.mesh_axes)), mesh, each.summary)
        print(markdown_line(row), flush=True)
    for each in skipped:
        print(_skipped(each))
    return int(bool(skipped) and bool(flags.names))


def _lower(flags: argparse.Namespace) -> int:
    (program,) = named([flags.name])
    if program.missing:
        raise ValueError(_skipped(program))
    if flags.size not in program.sizes:
        raise ValueError(f"{program.name} has no size {flags.size}; it has {', '.join(program.sizes)}")
    Path(flags.output).write_text(program.lower(flags.size, flags.mesh).as_text(debug_info=True))
    return 0


def sites_of(text: str) -> int:
    """Returns how many sites find-mismatches finds in a module."""
    from reshard.dialect_utils.platform.bindings import ir, make_context
    from reshard.passes.driver.base import Session
    from reshard.passes.driver.pipeline import Pipeline

    session = Session()
    with make_context() as context:
        Pipeline.parse("find-mismatches").run(ir.Module.parse(text, context), session)
        return session.handed_on.findings.sites


def named(names: list[str]) -> tuple[Program, ...]:
    """Returns the programs of these names, all without names. Raises: ValueError if there is none of a name."""
    from benchmarks.programs.catalogue import every_program

    known = {each.name: each for each in every_program()}
    for name in names:
        if name not in known:
            raise ValueError(f"no program is called {name!r}; there are {', '.join(known)}")
    return tuple(known[name] for name in names) or tuple(known.values())


def _skipped(program: Program) -> str:
    """Returns the line about a program whose libraries are missing."""
    return f"{program.name} is skipped: it needs {', '.join(program.missing)}; {INSTALL}"


def _mesh(text: str) -> tuple[tuple[str, int], ...]:
    """Returns the axes in a text such as `data=8,model=4`. Raises: argparse.ArgumentTypeError."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and size.isdecimal() and int(size) for name, _, size in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is no mesh; write e.g. data=8,model=4")
    return tuple((name, int(size)) for name, _, size in pairs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.programs", description=(__doc__ or "").partition("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="print a table of the programs")
    listing.add_argument("names", nargs="*", metavar="NAME", help="programs; all if none is named")
    listing.add_argument("--size", choices=SIZES[:2], default="small", help="in which their sites are counted")
    listing.add_argument("--no-sites", action="store_true", help="lower nothing: leave the sites out")
    listing.set_defaults(mesh=None)
    lowering = commands.add_parser("lower", help="write the StableHLO module of a program")
    lowering.add_argument("name", metavar="NAME")
    lowering.add_argument("--mesh", type=_mesh, metavar="AXES", help="sizes of the axes (default: eight devices)")
    lowering.add_argument(
        "--size", choices=(*SIZES, "pod"), default="demo", help="(default: demo; pod: of examples/ alone)"
    )
    lowering.add_argument("-o", dest="output", required=True, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
