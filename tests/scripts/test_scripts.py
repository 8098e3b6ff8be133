"""The scripts around the package: the environment's pins, and putting a program's output into a document."""

from __future__ import annotations

import re

import pytest

from scripts import setup_env, update_readme


def test_versions_compare_by_their_leading_numbers() -> None:
    assert setup_env.release("2.11.0+cu130") == (2, 11, 0) >= setup_env.MINIMUM_TORCH
    assert setup_env.release("2.9.1") < setup_env.MINIMUM_TORCH
    assert setup_env.release("") < setup_env.MINIMUM_TORCH


def test_every_dependency_is_pinned() -> None:
    project = (setup_env.ROOT / "pyproject.toml").read_text()
    extras = ["triton"]  # comes with PyTorch, which pins it
    listed = project[project.index("dependencies = [") : project.index("[project.entry-points")]
    names = {match[1] for match in re.finditer(r'"([A-Za-z0-9-]+)(?:\[\w+\])?>=', listed)}
    assert {"torch", "pytest", "scikit-learn"} <= names
    for name in sorted(names.difference(extras)):
        assert setup_env.pinned(name)
    with pytest.raises(SystemExit, match="pins no version of nothing"):
        setup_env.pinned("nothing")


def test_text_between_markers_is_replaced_and_the_rest_kept() -> None:
    document = "a\n<!-- demo:begin -->\nold\n<!-- demo:end -->\nb\n"
    once = update_readme.replaced(document, "demo", "new\n")
    assert once == "a\n<!-- demo:begin -->\n\nnew\n\n<!-- demo:end -->\nb\n"
    assert update_readme.replaced(once, "demo", "new\n") == once


@pytest.mark.parametrize("document", ["", "<!-- demo:begin -->", "<!-- demo:end --> <!-- demo:begin -->"])
def test_a_document_without_a_pair_of_markers_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match="needs one line"):
        update_readme.replaced(document, "demo", "new")
