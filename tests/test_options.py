"""The table of options: values, their order of strength, errors, and the page made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from polytile import options
from polytile.errors import OptionError

PAGE = Path(__file__).parents[1] / "docs" / "options.md"


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text() == options.as_markdown(), "docs/options.md is stale: write options.as_markdown() to it"


def test_a_misspelt_option_names_the_nearest_one() -> None:
    with pytest.raises(OptionError, match="no option 'shortlits'; did you mean 'shortlist'"):
        options.get("shortlits")


def test_a_value_of_the_wrong_type_is_named() -> None:
    with pytest.raises(OptionError, match="option 'shortlist' .* is 'many'; it takes a value of type int"):
        options.check({"shortlist": "many"})


def test_a_choice_outside_the_table_lists_the_choices() -> None:
    with pytest.raises(OptionError, match="choose from eager, philox"):
        options.check({"random": "dice"})


def test_an_override_is_stronger_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_SHORTLIST", "7")
    assert options.get("shortlist") == 7
    with options.override(shortlist=2):
        assert options.get("shortlist") == 2
    assert options.get("shortlist") == 7


def test_a_bad_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_PERSIST", "perhaps")
    with pytest.raises(OptionError, match="environment variable POLYTILE_PERSIST.*'perhaps'"):
        options.get("persist")


def test_the_compile_key_changes_with_what_changes_generated_code() -> None:
    with options.override(debug=2):
        same = options.compile_key()
    with options.override(fuse=False):
        other = options.compile_key()
    assert same == options.compile_key() != other
