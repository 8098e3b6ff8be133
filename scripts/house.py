"""`python -m scripts.house [REVISION]`: the structure of the package, today's or that of a commit, as tables: files and lines of
each room, arrows between rooms, circles.

Lines of code are those that are neither blank nor a comment, a docstring or an import.

A module's imports are those anywhere in it, inside functions too, but for those under `if TYPE_CHECKING`, which never run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import networkx

from polytile.report import Table, show

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "polytile"


@contextlib.contextmanager
def package_at(revision: str) -> Iterator[Path]:
    """The package's folder as it was at a commit. Raises SystemExit for a revision that git does not know."""
    asked = subprocess.run(["git", "archive", revision, "src/polytile"], cwd=ROOT, capture_output=True)
    if asked.returncode:
        raise SystemExit(f"git has no package at {revision!r}: {asked.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(asked.stdout)) as archive:
        archive.extractall(folder, filter="data")
        yield Path(folder) / "src" / "polytile"


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Every module of the package by its dotted name below it; the package itself is ""."""
    return {".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
            for path in sorted(package.rglob("*.py"))}  # fmt: skip


def room_of(module: str) -> str:
    """The room of a module: the first part of its name."""
    return module.partition(".")[0]


def arrows(package: Path = PACKAGE) -> networkx.DiGraph[str]:
    """An arrow from each module to each that it imports."""
    known = modules(package)
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_nodes_from(known)
    for module, path in known.items():
        graph.add_edges_from((module, other) for other in _imported(path, known) if other != module)
    return graph


def circles(graph: networkx.DiGraph[str]) -> list[list[str]]:
    """Modules that import each other in a circle, each circle's in order."""
    return [sorted(modules) for modules in networkx.strongly_connected_components(graph) if len(modules) > 1]


def _imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unrun = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
             for inner in ast.walk(node)}  # fmt: skip
    for node in ast.walk(tree):
        if id(node) in unrun:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module == "polytile" or (node.module or "").startswith("polytile.")):
            module = str(node.module)[len("polytile.") :]
            for alias in node.names:
                name = f"{module}.{alias.name}".lstrip(".")
                yield name if name in known else module
        elif isinstance(node, ast.Import):
            yield from (a.name[len("polytile.") :] for a in node.names if a.name.startswith("polytile."))


def lines_of(path: Path) -> tuple[int, int]:
    """How many lines a module has, and how many of them are code."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    plain = {number for number, line in enumerate(lines, 1) if not line.strip() or line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        text_alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if text_alone or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt) and node.end_lineno is not None
            plain.update(range(node.lineno, node.end_lineno + 1))
    return len(lines), len(lines) - len(plain)


def total(sizes: Iterable[tuple[int, int]]) -> list[int]:
    """The sums of the modules' lines, and of those that are code."""
    return [sum(each) for each in zip(*sizes, strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", help="a commit; left out, the working tree")
    revision = parser.parse_args(arguments).revision
    with package_at(revision) if revision else contextlib.nullcontext(PACKAGE) as package:
        print_structure(package)


def print_structure(package: Path) -> None:
    """Prints the table of the rooms, the totals, and the circles."""
    graph, files = arrows(package), modules(package)
    lines = {module: lines_of(path) for module, path in files.items()}
    between = Counter((room_of(a), room_of(b)) for a, b in graph.edges if room_of(a) != room_of(b))
    rooms = sorted({room_of(module) for module, path in files.items() if path.parent != package})
    body = [
        (room, sum(room_of(m) == room for m in files), *total(lines[m] for m in files if room_of(m) == room),
         sum((room_of(a), room_of(b)) == (room, room) for a, b in graph.edges),
         ", ".join(f"{other} {n}" for (one, other), n in sorted(between.items()) if one == room and other in rooms))
        for room in rooms
    ]  # fmt: skip
    show(Table.from_rows("rooms", ["room", "files", "lines", "of code", "arrows inside", "arrows to other rooms"], body))
    every, code = total(lines.values())
    print(f"{len(files)} files, {every} lines, {code} of code, {graph.number_of_edges()} arrows")
    for circle in circles(graph):
        print(f"a circle: {', '.join(circle)}")


if __name__ == "__main__":
    main()
