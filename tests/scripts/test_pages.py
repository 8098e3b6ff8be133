"""The page that names the tests of each requirement."""

from __future__ import annotations

import pytest

from scripts import requirements_page as page


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
