"""Facts about a call: what their text is, that it reads back as the same facts, and which sizes a regime admits."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from polytile import facts
from polytile.facts import (
    Aligned,
    Between,
    Divisible,
    Fact,
    Kinds,
    Layout,
    MultiplesBetween,
    OptionValue,
    PowerOfTwo,
    Regime,
    Size,
    Strided,
    Threads,
    Wide,
)

TEXTS = {
    "M=7": Size("M", 7),
    "M=-3": Size("M", -3),
    "N=363..512": Between("N", 363, 512),
    "N=363..512%16": MultiplesBetween("N", 363, 512),
    "a_stride_m%16": Divisible("a_stride_m"),
    "N%4": Divisible("N", 4),
    "N=2^k": PowerOfTwo("N"),
    "x@64": Aligned("x", 64),
    "wide": Wide(),
    "x strided": Strided("x"),
    "k": Layout("k"),
    "threads=3": Threads(3),
    "option level='a=b'": OptionValue("level", "'a=b'"),
}
"""What stores and plan files have, and what it says."""

NAMES, INTEGERS = st.from_regex(r"\A[A-Za-z_]\w*\Z"), st.integers(-(1 << 62), 1 << 62)
SIZES = st.integers(0, 1 << 62)

FACTS: dict[Kinds, st.SearchStrategy[Fact]] = {
    facts.OF_REGIMES: st.one_of(
        st.builds(Size, NAMES, INTEGERS), st.builds(Between, NAMES, SIZES, SIZES), st.builds(Divisible, NAMES, SIZES),
        st.builds(MultiplesBetween, NAMES, SIZES, SIZES), st.builds(PowerOfTwo, NAMES), st.builds(Aligned, NAMES, SIZES),
        st.just(Wide()),
    ),
    facts.OF_PROBLEMS: st.one_of(
        st.builds(Divisible, NAMES, SIZES), st.builds(PowerOfTwo, NAMES), st.builds(Aligned, NAMES, SIZES),
        st.builds(Strided, NAMES), st.just(Wide()), st.builds(Threads, SIZES), st.sampled_from("kmn").map(Layout),
    ),
    facts.OF_PLANS: st.one_of(st.builds(Threads, SIZES), st.builds(OptionValue, NAMES, st.text())),
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_facts_are_written_as_stores_and_plans_have_them(text: str) -> None:
    fact = TEXTS[text]
    kinds = next(kinds for kinds in FACTS if type(fact) in kinds)
    assert str(fact) == text and facts.read(text, kinds) == fact


@pytest.mark.parametrize("kinds", FACTS, ids=["regimes", "problems", "plans"])
def test_each_fact_reads_back_as_itself(kinds: Kinds) -> None:
    @given(FACTS[kinds])
    def reads_back(fact: Fact) -> None:
        assert facts.read(str(fact), kinds) == fact

    reads_back()


@given(st.lists(FACTS[facts.OF_REGIMES], max_size=5))
def test_each_regime_reads_back_as_itself(held: list[Fact]) -> None:
    regime = Regime(tuple(held))
    assert facts.read_regime(str(regime)) == regime


def test_what_another_family_says_of_its_problems_is_kept_as_it_is() -> None:
    texts = ["x column-major", "N<8", "", "two\nlines", "K%016"]
    assert facts.texts(facts.read_all(texts, facts.OF_PROBLEMS)) == tuple(texts)


def test_what_is_no_fact_of_a_regime_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'N<8' is no fact of a kind that is known here: .*PowerOfTwo"):
        facts.read_regime("M=7 N<8")


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("M=7", [7], [6, 8]),
        ("M=9..128", [9, 100, 127], [8, 16, 128, 129]),
        ("M=9..128%16", [16, 128], [8, 9, 144]),
        ("M=9..128 M%4", [12, 100], [10, 16]),
        ("M=725..1024%16 M=2^k", [1024], [1008, 512]),
        ("M=9..128 x@64 wide a_stride_m%16", [9], [16]),
    ],
)
def test_a_regime_admits_the_sizes_that_its_facts_allow(text: str, inside: list[int], outside: list[int]) -> None:
    regime = facts.read_regime(text)
    assert {size: regime.admits({"M": size}) for size in (*inside, *outside)} == {
        **dict.fromkeys(inside, True), **dict.fromkeys(outside, False),
    }  # fmt: skip
    assert not regime.admits({"N": inside[0]})
