"""`python -m scripts.house`: the structure of the package as tables: files and lines of each room, arrows between rooms, circles.

A module's imports are those anywhere in it, inside functions too, but for those under `if TYPE_CHECKING`, which never run.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import networkx

from polytile.report import Table, show

PACKAGE = Path(__file__).parents[1] / "src" / "polytile"


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below it; the package itself is ""."""
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
            for path in sorted(PACKAGE.rglob("*.py"))}  # fmt: skip


def room_of(module: str) -> str:
    """The room of a module: the first part of its name."""
    return module.partition(".")[0]


def arrows() -> networkx.DiGraph[str]:
    """An arrow from each module to each that it imports."""
    known = modules()
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_nodes_from(known)
    for module, path in known.items():
        graph.add_edges_from((module, other) for other in _imported(path, known) if other != module)
    return graph


def circles(graph: networkx.DiGraph[str]) -> list[list[str]]:
    """Modules that import each other in a circle, each circle's in order."""
    return [sorted(found) for found in networkx.strongly_connected_components(graph) if len(found) > 1]


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


def main() -> None:
    graph, files = arrows(), modules()
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in files.items()}
    between = Counter((room_of(a), room_of(b)) for a, b in graph.edges if room_of(a) != room_of(b))
    rooms = sorted({room_of(module) for module, path in files.items() if path.parent != PACKAGE})
    body = [
        (room, sum(room_of(m) == room for m in files), sum(n for m, n in lines.items() if room_of(m) == room),
         sum((room_of(a), room_of(b)) == (room, room) for a, b in graph.edges),
         ", ".join(f"{other} {n}" for (one, other), n in sorted(between.items()) if one == room and other in rooms))
        for room in rooms
    ]  # fmt: skip
    show(Table.from_rows("rooms", ["room", "files", "lines", "arrows inside", "arrows to other rooms"], body))
    print(f"{len(files)} files, {sum(lines.values())} lines, {graph.number_of_edges()} arrows")
    for found in circles(graph):
        print(f"a circle: {', '.join(found)}")


if __name__ == "__main__":
    main()
