"""`python -m scripts.removed REVISION`: functions and classes that the package had at a commit and whose code is gone today.

A definition counts as gone if less than half of its runs of four tokens occur anywhere in today's definitions: one that was only
moved, renamed or rewritten in part is not listed. Lines are lines of code, without docstrings and comments.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polytile.report import Column, Table, show
from polytile.report.tables import count
from scripts import house

RUN, SHARE = 4, 0.5
"""Tokens of a run, and the share of a definition's runs below which it is gone."""
LEAST = 6
"""Lines of the shortest definition that is listed."""


@dataclass(frozen=True)
class Definition:
    """A function or class at the top of a module, with its lines of code."""

    module: str
    name: str
    code: tuple[str, ...]

    @property
    def runs(self) -> set[tuple[str, ...]]:
        """All runs of RUN tokens."""
        tokens = re.findall(r"\w+|[^\w\s]", "\n".join(self.code))
        return {tuple(tokens[place : place + RUN]) for place in range(len(tokens) - RUN + 1)}


def definitions(package: Path) -> Iterator[Definition]:
    """What the modules of a package define."""
    for module, path in house.modules(package).items():
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.parse("\n".join(lines)).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = {number for inner in ast.walk(node) if _is_text(inner) for number in _lines(inner)}
                code = (lines[k - 1].strip() for k in _lines(node) if k not in text)
                yield Definition(module, node.name, tuple(line for line in code if line and not line.startswith("#")))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _lines(node: ast.AST) -> range:
    assert isinstance(node, ast.stmt) and node.end_lineno is not None
    return range(node.lineno, node.end_lineno + 1)


def removed(before: Path, after: Path) -> list[Definition]:
    """The definitions of one package whose code is gone in another, longest first."""
    known: set[tuple[str, ...]] = set().union(*(each.runs for each in definitions(after)))
    long = [each for each in definitions(before) if len(each.code) >= LEAST]
    gone = [each for each in long if len(each.runs & known) < SHARE * len(each.runs)]
    return sorted(gone, key=lambda each: -len(each.code))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="the commit to compare the working tree with")
    revision = parser.parse_args(arguments).revision
    with house.package_at(revision) as package:
        gone = removed(package, house.PACKAGE)
    rows = [(each.module, each.name, len(each.code)) for each in gone]
    show(Table.from_rows(f"gone since {revision}", ["module", "definition", Column("lines of code", count)], rows))
    print(f"{len(gone)} definitions, {sum(len(each.code) for each in gone)} lines of code")


if __name__ == "__main__":
    main()
