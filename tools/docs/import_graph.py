# SPDX-License-Identifier: Apache-2.0
"""The import graph of the source tree: which wing imports which, read from the sources.

A *wing* is a folder of modules. Its `__init__.py` names in `__all__` the modules that other wings may import; the
others are private to it. The `__init__.py` of a package names its wings in `WINGS`. A wing may import those before it;
"." stands for the package's own modules. Packages may import those before them in `PACKAGES`.

    python -m reshard.tools.docs.import_graph               # a table, and what breaks these rules
    python -m reshard.tools.docs.import_graph --svg FILE    # the picture in docs/architecture.md
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The lowest package first. Only `reshard` is a package by itself; the others are installed as its subpackages.
PACKAGES = ("synthesis", "dialect_utils", "passes", "reshard", "tools")
OTHER_FOLDERS = ("benchmarks", "examples", "test")  # no wings, but the same limit of modules
MOST_FILES = 15  # modules in a folder, without its `__init__.py`
OWN = "."


@dataclass(frozen=True, order=True)
class Module:
    """A module: its package, its wing ("." for the package's own modules) and its name, "" for an `__init__.py`."""

    package: str
    wing: str
    name: str

    def __str__(self) -> str:
        return "/".join(part for part in (self.package, self.wing, self.name) if part and part != OWN)


@dataclass(frozen=True)
class Import:
    """One module imports another one; `line` is the line of the import."""

    importer: Module
    imported: Module
    line: int


def main(argv: list[str] | None = None) -> int:
    """Prints the table of imports and the faults, or writes the picture. Returns the exit status: 1 with faults."""
    parser = argparse.ArgumentParser(prog="python -m reshard.tools.docs.import_graph", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--svg", metavar="FILE", help="write the picture to FILE")
    flags = parser.parse_args(argv)
    if flags.svg:
        from reshard.tools.docs import import_picture  # imported here, because it imports this module

        try:
            Path(flags.svg).write_text(import_picture.picture(), "utf-8")
        except OSError as error:
            print(
                f"error: cannot write {flags.svg}: {error.strerror}; name a file in a folder of yours", file=sys.stderr
            )
            return 1
    else:
        print(table())
    found = list(faults())
    print(*[f"error: {each}" for each in found], sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


@functools.cache
def modules() -> dict[Module, Path]:
    """Returns the source file of every module of the packages."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            *folders, name = path.relative_to(ROOT / package).with_suffix("").parts
            found[Module(package, "/".join(folders) or OWN, "" if name == "__init__" else name)] = path
    return found


@functools.cache
def wings() -> dict[str, tuple[str, ...]]:
    """Returns the wings of each package in order: a wing may import the wings before it."""
    return {package: _literal(ROOT / package / "__init__.py", "WINGS") or (OWN,) for package in PACKAGES}


def exported(wing: tuple[str, str]) -> tuple[str, ...]:
    """Returns the names of the modules that other wings may import from a wing."""
    package, name = wing
    return _literal(ROOT / package / name / "__init__.py", "__all__")


def _literal(path: Path, variable: str) -> tuple[str, ...]:
    """Returns the strings that a file assigns to a variable; empty if the file does not assign it."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == variable for t in node.targets):
            return tuple(ast.literal_eval(node.value))
    return ()


@functools.cache
def imports() -> tuple[Import, ...]:
    """Returns every import between two modules of the packages, also imports inside functions."""
    return tuple(each for module, path in modules().items() for each in _imports_of(module, path))


def _imports_of(module: Module, path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text("utf-8"))
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    for node in statements:
        for dotted in _dotted_names(node, module):
            imported = _module_of(dotted)
            if imported is not None and imported != module:
                yield Import(module, imported, node.lineno)


def _dotted_names(node: ast.AST, module: Module) -> Iterator[tuple[str, ...]]:
    """Yields the names in an import statement, as parts of absolute names."""
    if isinstance(node, ast.Import):
        yield from (tuple(alias.name.split(".")) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        start = _parts(module)[: len(_parts(module)) - node.level + (module.name == "")] if node.level else ()
        base = (*start, *(node.module.split(".") if node.module else ()))
        yield from ((*base, alias.name) for alias in node.names)


def _parts(module: Module) -> tuple[str, ...]:
    """Returns the parts of the absolute name: `("reshard", "synthesis", "layouts", "mesh")`."""
    package = () if module.package == "reshard" else (module.package,)
    folders = () if module.wing == OWN else tuple(module.wing.split("/"))
    return ("reshard", *package, *folders, *((module.name,) if module.name else ()))


@functools.cache
def _by_parts() -> dict[tuple[str, ...], Module]:
    return {_parts(module): module for module in modules()}


def _module_of(dotted: tuple[str, ...]) -> Module | None:
    """Returns the module that a dotted name names or lies in; None for names outside the packages."""
    if dotted[0] != "reshard":
        return None
    return next((found for end in range(len(dotted), 0, -1) if (found := _by_parts().get(dotted[:end]))), None)


def faults() -> Iterator[str]:
    """Yields in words each import that breaks a rule, each circle of imports, and each folder with too many modules."""
    for each in imports():
        where = f"{modules()[each.importer].relative_to(ROOT)}:{each.line}"
        if _rank(each.imported) > _rank(each.importer):
            yield f"{where}: {each.importer} imports {each.imported}, which is above it"
        elif _is_private(each):
            yield f"{where}: {each.importer} imports {each.imported}, which its wing's __init__ does not export"
    yield from (f"a circle of imports: {' -> '.join(map(str, circle))}" for circle in _circles())
    yield from _full_folders()


def _full_folders() -> Iterator[str]:
    """Yields in words each folder that has more modules than MOST_FILES."""
    others = itertools.chain.from_iterable((ROOT / name).rglob("*.py") for name in OTHER_FOLDERS)
    paths = (path for path in itertools.chain(modules().values(), others) if path.name != "__init__.py")
    for folder, count in sorted(Counter(path.parent for path in paths).items()):
        if count > MOST_FILES:
            yield f"{folder.relative_to(ROOT)} has {count} modules of its own, more than {MOST_FILES}"


def _rank(module: Module) -> tuple[int, int]:
    package = PACKAGES.index(module.package)
    if not module.name and module.wing == OWN:
        return package, -1  # every module may import the package itself
    order = wings()[module.package]
    return package, order.index(module.wing) if module.wing in order else len(order)


def _is_private(each: Import) -> bool:
    """Returns whether the imported module is in another wing, which does not export it."""
    theirs = each.imported.package, each.imported.wing
    if theirs == (each.importer.package, each.importer.wing) or each.imported.wing == OWN or not each.imported.name:
        return False
    return each.imported.name not in exported(theirs)


def _circles() -> Iterator[list[Module]]:
    """Yields each circle of imports at module level once."""
    top: dict[Module, set[Module]] = {}
    for each in imports():
        if _is_at_module_level(each):
            top.setdefault(each.importer, set()).add(each.imported)
    done: set[Module] = set()
    for start in sorted(top):
        yield from _circles_from(start, top, [], done)


def _circles_from(module: Module, top: dict[Module, set[Module]], path: list[Module], done: set[Module]):
    if module in path:
        yield [*path[path.index(module) :], module]
    elif module not in done:
        for other in sorted(top.get(module, ())):
            yield from _circles_from(other, top, [*path, module], done)
        done.add(module)


@functools.cache
def _lines_at_module_level(path: Path) -> frozenset[int]:
    return frozenset(node.lineno for node in ast.parse(path.read_text("utf-8")).body)


def _is_at_module_level(each: Import) -> bool:
    return each.line in _lines_at_module_level(modules()[each.importer])


# ---- the table


def table() -> str:
    """Returns the table of the wings: how many modules each has and exports, and which wings it imports."""
    lines = [f"{'wing':<28} {'modules':>7} {'exported':>8}  imports"]
    for package in PACKAGES:
        for wing in wings()[package]:
            own = [m for m in modules() if (m.package, m.wing) == (package, wing) and m.name]
            others = sorted({(e.imported.package, e.imported.wing) for e in imports() if e.importer in own})
            names = [_title(*other) for other in others if other != (package, wing)]
            count = len(exported((package, wing))) if wing != OWN else len(own)
            lines.append(f"{_title(package, wing):<28} {len(own):>7} {count:>8}  {', '.join(names)}".rstrip())
    return "\n".join(lines)


def _title(package: str, wing: str) -> str:
    return package if wing == OWN else f"{package}/{wing}"


if __name__ == "__main__":
    sys.exit(main())
