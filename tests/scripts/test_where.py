"""docs/where.md: one word finds each place, among the names of files or, where no file has it, among those of definitions."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "polytile"
ROW = re.compile(r"^\| (.+\?) \| `(\w+)` \| \[([\w/.]+)\]\(\.\./src/polytile/([\w/.]+)\) \|$", re.MULTILINE)
MOST = 3
"""Places that a search may bring, for a reader to look through."""


def definitions() -> dict[str, set[Path]]:
    """The files that define a name: a function, a class or a constant."""
    places: dict[str, set[Path]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for name in _defined(ast.parse(path.read_text()).body):
            places[name].add(path)
    return places


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield statement.name
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_one_word_finds_each_place() -> None:
    rows = ROW.findall((ROOT / "docs" / "where.md").read_text())
    assert len(rows) >= 30
    defined = definitions()
    for question, word, shown, place in rows:
        files = {path for path in PACKAGE.rglob("*") if path.stem == word and "__pycache__" not in path.parts}
        hits = files or defined[word]
        assert shown == place and PACKAGE / place in hits, (question, hits)
        assert len(hits) <= MOST, (question, hits)
