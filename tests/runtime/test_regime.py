"""Regime keys: the rule, and that C and Python apply the same one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytile.runtime import regime
from polytile.runtime.dispatcher import Interface
from polytile.runtime.launcher import new_dispatcher
from polytile.runtime.python_dispatcher import PythonDispatcher

INT64 = st.integers(-(2**63), 2**63 - 1)
SIZES = st.one_of(st.integers(0, 5000), st.integers(1, 2**40), INT64)
CODED = st.lists(st.tuples(st.integers(0, 2), SIZES), max_size=6)


def never(key: int, arguments: tuple[Any, ...]) -> Any:
    raise AssertionError("on_miss must not be asked")


def test_small_sizes_have_a_bucket_each() -> None:
    assert [regime.bucket(n) for n in range(-2, 9)] == list(range(-2, 9))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(9, 11, True), (11, 12, False), (17, 22, True), (16, 17, False), (32, 33, False), (33, 45, True), (45, 46, False),
     (1000, 1001, True), (1008, 1001, False), (1008, 1023, False), (1023, 1025, False), (1008, 1024, True),
     (1024, 1040, False), (1040, 1440, True), (1440, 1456, False)],
)  # fmt: skip
def test_buckets_are_half_octaves_and_know_divisibility_by_16(one: int, other: int, same: bool) -> None:
    assert (regime.bucket(one) == regime.bucket(other)) is same


@given(st.integers(9, 2**52))
def test_the_half_octave_is_that_of_exact_arithmetic(size: int) -> None:
    half_octave, divides = divmod(regime.bucket(size) - 16, 2)
    assert 2**half_octave < size * size <= 2 ** (half_octave + 1)
    assert bool(divides) == (size % 16 == 0)
    if size < 2**20:
        assert half_octave == math.ceil(2 * math.log2(size)) - 1


@given(SIZES)
def test_a_size_lies_within_the_bounds_of_its_bucket(size: int) -> None:
    low, high = regime.bounds(regime.bucket(size))
    assert low <= size <= high
    if low > regime.EXACT_UP_TO:
        assert regime.bucket(low) // 2 == regime.bucket(high) // 2 == regime.bucket(size) // 2
        assert regime.bucket(high + 1) // 2 != regime.bucket(size) // 2


@given(SIZES)
def test_a_sub_bucket_lies_within_its_bucket_and_knows_its_bounds(size: int) -> None:
    field, bucket = regime.sub_bucket(size), regime.bucket(size)
    assert regime.is_sub_bucket(field) == (size > regime.EXACT_UP_TO) and not regime.is_sub_bucket(bucket)
    low, high = regime.bounds(field)
    assert regime.bounds(bucket)[0] <= low <= size <= high <= regime.bounds(bucket)[1]
    assert size <= regime.EXACT_UP_TO or high - low < (high - 1) / 8
    for end in regime.ends(field):
        assert regime.sub_bucket(end) == field


def test_the_sub_buckets_of_a_bucket_cover_it() -> None:
    bounds = {regime.bounds(regime.sub_bucket(n)) for n in range(91, 129)}
    assert sorted(bounds) == [(91, 96), (97, 104), (105, 112), (113, 120), (121, 128)]


@given(SIZES)
def test_c_and_python_agree_on_every_bucket_and_sub_bucket(launcher_module: Any, size: int) -> None:
    assert launcher_module.bucket(size) == regime.bucket(size)
    assert launcher_module.sub_bucket(size) == regime.sub_bucket(size)


@given(CODED)
def test_c_and_python_agree_on_every_key(coded: list[tuple[int, int]]) -> None:
    key, integers = [code for code, _ in coded], [size for _, size in coded]
    native, python = new_dispatcher(Interface("k", key, never)), PythonDispatcher(Interface("k", key, never))
    packed = native.key_of(*integers)
    assert packed == python.key_of(*integers)
    assert regime.unpack(packed, regime.count(key)) == regime.fields_of(key, integers)


@given(CODED, st.lists(SIZES, min_size=6, max_size=6))
def test_keys_differ_exactly_where_something_that_matters_differs(
    coded: list[tuple[int, int]], others: list[int]
) -> None:
    key, integers = [code for code, _ in coded], [size for _, size in coded]
    dispatch = new_dispatcher(Interface("k", key, never))

    def facts(sizes: list[int]) -> list[int]:
        return [regime.bucket(n) if code == 1 else n for code, n in zip(key, sizes, strict=True) if code]

    others = others[: len(key)]
    assert (dispatch.key_of(*integers) == dispatch.key_of(*others)) == (facts(integers) == facts(others))


@given(st.lists(INT64, max_size=5))
def test_packing_loses_nothing(fields: list[int]) -> None:
    assert regime.unpack(regime.pack(fields), len(fields)) == tuple(fields)


def test_a_key_of_another_shape_is_refused() -> None:
    with pytest.raises(OverflowError):
        regime.unpack(1 << 64, 1)


@given(st.one_of(st.integers(0, 5000), st.integers(1, 2**40)))
def test_an_exact_size_is_told_apart_from_all_others_and_knows_its_bucket(size: int) -> None:
    field = regime.exact_size(size)
    assert regime.bucket_of(field) == regime.bucket(size) and regime.bounds(field) == (size, size)
    assert regime.is_exact_size(field) == (size > regime.EXACT_UP_TO) and not regime.is_sub_bucket(field)
    assert regime.divisible(field) == regime.divisible(regime.bucket(size)) or size <= regime.EXACT_UP_TO
    assert field != regime.exact_size(size + 1)
