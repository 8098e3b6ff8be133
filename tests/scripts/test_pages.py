"""Pages that say where things are: the tests of each requirement, and the place of each behaviour."""

from __future__ import annotations

import re

import pytest

from scripts import requirements_page as page

PACKAGE = page.ROOT / "src" / "polytile"
ROWS = re.findall(r"^\| (.+\?) \| `(\w+)` \| \[([\w/.]+)\]", (page.ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)


def test_the_page_of_requirements_is_made_from_the_table() -> None:
    assert page.PAGE.read_text() == page.as_markdown(), "stale: run python -m scripts.requirements_page"


def test_every_requirement_names_tests_that_there_are() -> None:
    assert not page.absent()
    names = [row.name for row in page.requirements()]
    assert len(set(names)) == len(names)
    assert not [row.name for row in page.requirements() if not (row.tests or row.benchmarks or row.missing)]


def test_a_test_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = ("scripts/test_pages::nothing_of_this_name", "nowhere/test_at_all::x")
    monkeypatch.setattr(page, "GROUPS", {"": (page.Requirement("Z1", "Something.", tests, ("gone.too",)),)})
    assert page.absent() == [f"Z1: {name}" for name in (*tests, "gone.too")]


def test_a_behaviour_is_found_by_a_search_for_one_word() -> None:
    """Of a file, a folder or a definition; no more than four places have that name."""
    assert len(ROWS) >= 20
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    for _, word, place in ROWS:
        defines = re.compile(rf"^(?:class|def) {word}\b", re.MULTILINE)
        found = {path for path, text in texts.items() if path.stem == word or defines.search(text)} | set(PACKAGE.rglob(word))
        assert PACKAGE / place in found and len(found) <= 4, (word, place, found)
