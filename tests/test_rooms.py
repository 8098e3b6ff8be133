"""The house (docs/architecture.md): a room imports the rooms it is built on and none of those that use it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "polytile"
TOOLS = {"counters", "debug", "errors", "files", "locks", "options", "problem", "version"}
"""Modules beside the rooms that every room may import."""

BUILT_ON: dict[str, set[str]] = {
    "runtime": set(),
    "ir": set(),
    "store": {"runtime"},
    "passes": {"ir"},
    "wrapper": {"ir", "runtime"},
    "kernels": {"ir", "runtime"},
    "tuning": {"ir", "kernels", "runtime", "store"},
    "multikernel": {"ir", "kernels", "runtime", "store", "tuning"},
    "report": {"runtime", "tuning"},
    "frontend": {"ir", "kernels", "runtime", "compiler"},
    "cli": {"kernels", "multikernel", "report", "runtime", "store", "tuning"},
}
"""`compiler` is no room: it puts a program through all of them, and the frontend hands it over there."""


def imported(file: Path) -> set[str]:
    """Rooms and modules of the package that a file imports, wherever in it. polytile's own name stands for its public face."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "polytile":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polytile."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("polytile.")}
    return found


def test_every_room_is_listed() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(BUILT_ON)


@pytest.mark.parametrize("room", BUILT_ON)
def test_a_room_knows_none_that_use_it(room: str) -> None:
    allowed = BUILT_ON[room] | TOOLS | {room}
    wrong = {str(file.relative_to(PACKAGE)): sorted(found) for file in sorted((PACKAGE / room).rglob("*.py"))
             if (found := imported(file) - allowed)}  # fmt: skip
    assert not wrong


@pytest.mark.parametrize("room", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: str(path.parent.relative_to(PACKAGE)))
def test_a_room_says_what_it_is_for(room: Path) -> None:
    assert ast.get_docstring(ast.parse(room.read_text()))
