"""What a KernelSpec says about a call: its sizes, regime, flags and problem; and the merging of scratch buffers."""

from __future__ import annotations

import dataclasses
import math

import hypothesis.strategies as st
import pytest
import sympy
import torch
from hypothesis import given

from polytile.dispatch.fallbacks import leaf_facts
from polytile.dispatch.keys import Condition, PowerBelow16
from polytile.dispatch.scratch import Scratch, merge_scratch
from polytile.dispatch.spec import ArgInfo, KernelSpec
from polytile.facts import Layout, PowerOfTwo, texts
from polytile.runtime import dispatcher, regime
from polytile.runtime.dispatcher import Interface
from polytile.runtime.formula import power_below_16, power_of_two
from polytile.runtime.python_dispatcher import PythonDispatcher
from polytile.schedule.facts import Facts
from tests.dispatch.helpers import SPEC, spec

SIZES = st.integers(0, 5000)


@given(st.tuples(SIZES, SIZES), st.tuples(SIZES, SIZES), st.lists(st.sampled_from([0, 1, 2]), min_size=2, max_size=2))
def test_the_regime_text_differs_exactly_where_the_dispatch_key_does(
    first: tuple[int, int], second: tuple[int, int], keys: list[int]
) -> None:
    one = spec(size_codes=tuple(keys))
    dispatch = PythonDispatcher(Interface("double", keys, lambda key, args: None))
    same_key = dispatch.key_of(*first) == dispatch.key_of(*second)
    assert (one.keys.regime(one.keys.fields(first)) == one.keys.regime(one.keys.fields(second))) == same_key


def test_a_regime_reads_well() -> None:
    assert str(SPEC.keys.regime(SPEC.keys.fields((7, 512)))) == "M=7 N=363..512%16"
    exact, aligned = spec(size_codes=(0, 2)), spec(tensor_codes=(1, 0))
    assert str(exact.keys.regime(exact.keys.fields((7, 513)))) == "N=513"
    assert str(aligned.keys.regime(aligned.keys.fields((7, 100), (128, 0)))) == "M=7 N=91..128 x@64"
    assert str(aligned.keys.regime(aligned.keys.fields((7, 100), (132, 0)))) == "M=7 N=91..128"
    assert str(SPEC.keys.regime(SPEC.keys.sub_bucket(SPEC.keys.fields((7, 512)), {"M": 7, "N": 512}))) == "M=7 N=481..512%16"


def test_a_problem_has_the_sizes_that_matter_and_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_THREADS", "3")
    one = spec(size_codes=(1, 0), tensor_codes=(2, 0), layouts=(Layout("x row-major"),))
    problem = one.problem((32, 100), (16, 0))
    assert problem.sizes == (("M", 32),)
    assert texts(problem.layouts) == ("x row-major", "M%16", "x@16", "threads=3")
    assert problem.dtypes == ("float32", "float32")
    assert one.problem((32, 999), (16, 0)) == problem
    assert texts(one.problem((33, 100), (16, 0)).layouts) == ("x row-major", "x@16", "threads=3")


def test_the_reduction_length_is_the_product_of_its_parts() -> None:
    assert dataclasses.replace(SPEC, reduction=("N", 4)).reduction_length((10, 25)) == 100
    assert SPEC.reduction_length((10, 25)) == 1


@given(st.integers(0, 100_000))
def test_the_ends_of_a_regime_are_in_it_and_nothing_of_it_lies_beyond(size: int) -> None:
    ends = regime.ends(regime.bucket(size))
    assert {regime.bucket(end) for end in ends} == {regime.bucket(size)}
    step = 16 if size % 16 == 0 else 1
    assert ends[0] <= size <= ends[-1]
    assert regime.bucket(ends[0] - step) != regime.bucket(size) or ends[0] < step
    assert regime.bucket(ends[-1] + step) != regime.bucket(size)


def test_the_corners_of_a_regime_are_all_combinations_of_its_ends() -> None:
    assert SPEC.keys.corners((7, 64)) == [{"M": 7, "N": 48}, {"M": 7, "N": 64}]
    assert len(SPEC.keys.corners((100, 100))) == 4
    assert spec(size_codes=(0, 2)).keys.corners((100, 100)) == [{"M": 100, "N": 100}]


def powers_of_two() -> KernelSpec:
    m, n = sympy.symbols("M N", integer=True, positive=True)
    return spec(conditions=(Condition(PowerOfTwo("N"), power_of_two(n, {m: 0, n: 1})),))


@given(st.integers(0, 5000) | st.integers(0, 24).map(lambda k: 1 << k))
def test_sizes_that_are_told_to_be_powers_of_two_have_one_value_in_their_regime(size: int) -> None:
    one, power = powers_of_two(), size > 0 and size & (size - 1) == 0
    facts = one.keys.facts_for_code((100, size))
    assert facts.values.get("N") == (size if power or size <= regime.EXACT_UP_TO else None)
    assert ("N" in facts.divisible) == (not power and size > regime.EXACT_UP_TO and size % 16 == 0)
    if power:
        assert {corner["N"] for corner in one.keys.corners((100, size))} == {size}
        assert {end["N"] for end in one.keys.ends(one.keys.fields((100, size)))} == {size}
        assert one.keys.fields((100, size)) not in (one.keys.fields((100, size - 1)), one.keys.fields((100, size - 16)))


@pytest.mark.parametrize("most", [2, 4, 8])
@given(st.integers(0, 5000))
def test_the_ends_of_a_regime_are_divided_by_what_divides_its_sizes(most: int, size: int) -> None:
    one = spec(conditions=(Condition(PowerBelow16("N"), power_below_16(1, most)),))
    power = math.gcd(size, 16)
    known = 1 if size <= regime.EXACT_UP_TO else power if power == 16 else min(power, most)
    assert one.keys.facts_for_code((100, size)).values.get("N") == (size if size <= regime.EXACT_UP_TO else None)
    assert known == 1 or one.keys.facts_for_code((100, size)).divisor("N") == known
    for end in (*one.keys.corners((100, size)), *one.keys.ends(one.keys.fields((100, size)))):
        assert one.keys.fields((100, end["N"])) == one.keys.fields((100, size))


def serves(one: KernelSpec, facts: Facts, ints: tuple[int, ...]) -> bool:
    """Whether code for these facts is right in a call with these integers, as the dispatch table tests it."""
    tested = leaf_facts(one.keys, facts)
    assert tested is not None
    return all(dispatcher.holds(fact, one.keys.fields(ints), ints, (0,) * len(one.args)) for fact in tested)


@given(st.integers(9, 5000))
def test_the_length_of_a_row_is_known_to_reach_its_regimes_smallest(size: int) -> None:
    one = powers_of_two()
    facts = one.keys.facts_for_code((100, size))
    least = dict(facts.least)
    assert least.keys() == ({"N"} if size & (size - 1) else set())
    if least:
        assert regime.bucket(size) // 2 == regime.bucket(least["N"]) // 2 and least["N"] <= size
        assert regime.bucket(least["N"] - 1) // 2 != regime.bucket(size) // 2 or least["N"] == 9
        assert serves(one, one.keys.facts_for_code((70, size)), (100, size))
        assert serves(one, Facts(least=(("N", 9),)), (100, 8192))


def test_a_kernel_for_many_sizes_serves_where_one_of_them_is_known() -> None:
    one = powers_of_two()
    known, unknown = one.keys.facts_for_code((100, 1024)), one.keys.facts_for_code((100, 1008))
    assert serves(one, unknown, (100, 1024)) and not serves(one, known, (100, 1008))
    assert str(one.keys.regime(one.keys.fields((100, 1024)))) == "M=91..128 N=725..1024%16 N=2^k"
    assert PowerOfTwo("N") in one.problem((100, 1024)).layouts and PowerOfTwo("N") not in one.problem((100, 1008)).layouts


def test_mistakes_in_a_spec_are_told() -> None:
    with pytest.raises(ValueError, match="'double' has 2 integer arguments and 1 regime codes"):
        spec(size_codes=(1,))
    with pytest.raises(ValueError, match="'double' has 2 tensor arguments and 1 tensor codes"):
        spec(tensor_codes=(1,))
    with pytest.raises(ValueError, match="'x' has the role 'input'; roles are in, out, inout, scratch"):
        ArgInfo("x", torch.float32, "input")


def test_scratch_buffers_are_merged_by_name_each_as_large_as_the_largest_request() -> None:
    n = sympy.Symbol("n", integer=True, positive=True)
    persistent: list[Scratch] = []
    looped = [Scratch("row", torch.float32, n), Scratch("partial", torch.float32, 64)]
    split = [Scratch("partial", torch.float32, 256), Scratch("row", torch.float32, 2 * n)]
    row, partial = merge_scratch([persistent, looped, split])
    assert (row.name, row.elements) == ("row", 2 * n)
    assert (partial.name, partial.elements) == ("partial", 256)
    assert merge_scratch([persistent]) == ()
    with pytest.raises(ValueError, match=r"'row' is asked for as torch\.float32 and as torch\.float16"):
        merge_scratch([looped, [Scratch("row", torch.float16, n)]])
