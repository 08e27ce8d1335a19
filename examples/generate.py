"""Writes `examples/<name>.mlir`, the StableHLO that JAX lowers each example program to.

    python3 examples/generate.py [NAME ...] [--size demo] [--check]

The first line of a file names the versions that lowered it; with other versions the text may
differ, so `--check` compares only where they agree. Exit status: 0; 1 if a file is missing or
differs from what `--check` would write; 2 for wrong usage or when other versions are installed.
"""

import argparse
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
ROOT = EXAMPLES.parent

# Before jax is imported: the programs want eight devices, which the CPU backend can pretend to have.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402

from examples.programs import PROGRAMS, SIZES, Program, program  # noqa: E402

COMMAND = "examples/generate.py"
PACKAGES = ("jax", "flax", "optax")


def header(name: str, size: str) -> str:
    """Returns the first line of the file of program `name`, with the versions that are installed here."""
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return f"// {COMMAND} {name} --size {size}; {versions}\n"


def stablehlo_text(entry: Program, size: str) -> str:
    """Returns the program as JAX lowers it, with one source location per op.

    Functions that jax has traced before keep the locations of their first caller, so the caches are
    cleared: the text does not depend on which programs were lowered earlier.
    """
    jax.clear_caches()
    return entry.lower(size).as_text(debug_info=True)


def use_portable_locations() -> None:
    """Makes jax record the user's line alone, in paths relative to this repository or to site-packages."""
    jax.config.update("jax_include_full_tracebacks_in_locations", False)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", rf"^.*/site-packages/|^{re.escape(str(ROOT))}/")


def fault(path: Path, wanted: str) -> str | None:
    """Returns why the file at `path` is not up to date, None if it is."""
    if not path.exists():
        return "is missing"
    if path.read_text() != wanted:
        return "differs from what is lowered now"
    return None


def uses_other_versions(path: Path, first_line: str) -> bool:
    """Returns whether the file says that it was lowered with versions that are not installed here."""
    if not path.exists():
        return False
    with path.open() as file:
        written_with = file.readline().partition(";")[2]
    return written_with != first_line.partition(";")[2]


def check(entry: Program, size: str) -> int:
    """Returns the exit status for one program, after its faults are printed on stderr."""
    path = EXAMPLES / f"{entry.name}.mlir"
    first_line = header(entry.name, size)
    if uses_other_versions(path, first_line):
        print(f"{path.name}: cannot check, lowered with other versions; here: {first_line.strip()}", file=sys.stderr)
        return 2
    why = fault(path, first_line + stablehlo_text(entry, size))
    if why is None:
        return 0
    print(f"{path.name}: {why}; run: python3 {COMMAND} {entry.name}", file=sys.stderr)
    return 1


def write(entry: Program, size: str) -> int:
    """Writes the file of one program and returns exit status 0."""
    path = EXAMPLES / f"{entry.name}.mlir"
    path.write_text(header(entry.name, size) + stablehlo_text(entry, size))
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs to lower; all if none is named")
    parser.add_argument("--size", choices=SIZES, default="demo", help="the size of the arrays (default: demo)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    options = parser.parse_args()
    try:
        entries = [program(name) for name in options.names] or PROGRAMS
    except ValueError as error:
        parser.error(str(error))

    use_portable_locations()
    act = check if options.check else write
    return max(act(entry, options.size) for entry in entries)


if __name__ == "__main__":
    sys.exit(main())
