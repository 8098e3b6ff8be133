"""Problems and Configs as keys: equal ones are equal everywhere, and a hint keeps equal numbers apart."""

from __future__ import annotations

import math

import pytest

from polytile.facts import Layout
from polytile.problem import Config, Problem, digest


def test_the_order_of_numbers_does_not_matter() -> None:
    assert Config.of(threads=2, variant="split") == Config.of(variant="split", threads=2)


def test_equal_numbers_for_different_hints_stay_apart() -> None:
    assert Config.of({"M": 64}, threads=2) != Config.of({"M": 256}, threads=2)
    assert str(Config.of({"M": 64}, threads=2)) == "threads=2 for M=64"


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_the_numbers_of_a_config_are_finite(number: float) -> None:
    with pytest.raises(ValueError, match=f"config value 'ratio' is {number}; the numbers of a config are finite"):
        Config.of(ratio=number)


def test_every_field_of_a_problem_is_in_its_key() -> None:
    base = Problem("mm", "abc", (("M", 64),), ("float32",), (Layout("k"),), "cpu")
    others = [
        Problem("loop", "abc", (("M", 64),), ("float32",), (Layout("k"),), "cpu"),
        Problem("mm", "abd", (("M", 64),), ("float32",), (Layout("k"),), "cpu"),
        Problem("mm", "abc", (("M", 65),), ("float32",), (Layout("k"),), "cpu"),
        Problem("mm", "abc", (("M", 64),), ("float64",), (Layout("k"),), "cpu"),
        Problem("mm", "abc", (("M", 64),), ("float32",), (Layout("n"),), "cpu"),
        Problem("mm", "abc", (("M", 64),), ("float32",), (Layout("k"),), "cuda"),
    ]
    assert len({p.key for p in [base, *others]}) == 7


def test_digests_name_content() -> None:
    assert digest("a") == digest("a") != digest("b")
