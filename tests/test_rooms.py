"""The house (docs/architecture.md): a room imports the rooms it is built on and none of those that use it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts import house

ARROWS = house.arrows()
PACKAGE = Path(__file__).parents[1] / "src" / "polytile"
TOOLS = {"counters", "debug", "errors", "facts", "files", "host_time", "locks", "options", "problem", "version", "waits"}
"""Modules beside the rooms that every room may import."""

BUILT_ON: dict[str, set[str]] = {
    "runtime": set(),
    "ir": set(),
    "store": {"runtime"},
    "passes": {"ir"},
    "wrapper": {"ir", "runtime"},
    "frontend": {"ir", "runtime"},
    "schedule": {"ir"},
    "codegen": {"ir", "runtime", "schedule"},
    "matmul": {"codegen", "ir", "runtime", "schedule"},
    "attention": {"codegen", "ir", "matmul", "runtime", "schedule"},
    "cost": {"attention", "codegen", "ir", "matmul", "runtime", "schedule"},
    "candidates": {"attention", "codegen", "cost", "ir", "matmul", "runtime", "schedule"},
    "tuning": {"candidates", "ir", "runtime", "store"},
    "learn": {"runtime", "store", "tuning"},
    "dispatch": {"attention", "candidates", "ir", "learn", "matmul", "runtime", "schedule", "store", "tuning"},
    "autotuner": {"candidates", "dispatch", "runtime", "store", "tuning"},
    "report": {"runtime", "store", "tuning"},
    "compiler": {"candidates", "dispatch", "frontend", "ir", "matmul", "passes", "report", "runtime", "tuning", "wrapper"},
    "packages": {"candidates", "compiler", "dispatch", "frontend", "ir", "runtime", "wrapper"},
    "campaigns": {"candidates", "compiler", "dispatch", "ir", "learn", "runtime", "store", "tuning"},
    "cli": {
        "autotuner", "campaigns", "candidates", "cost", "dispatch", "learn", "matmul", "packages", "report", "runtime", "store",
        "tuning",
    },
}
"""What each room may import. The package's public functions (`__init__.py`) import what they hand on to."""


def test_every_room_is_listed() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(BUILT_ON)


@pytest.mark.parametrize("room", BUILT_ON)
def test_a_room_knows_none_that_use_it(room: str) -> None:
    allowed = BUILT_ON[room] | TOOLS | {room}
    assert not [(a, b) for a, b in ARROWS.edges if house.room_of(a) == room and house.room_of(b) not in allowed]


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not house.circles(ARROWS)


@pytest.mark.parametrize("room", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: str(path.parent.relative_to(PACKAGE)))
def test_a_room_says_what_it_is_for(room: Path) -> None:
    assert ast.get_docstring(ast.parse(room.read_text()))
