"""The algebra of sizes: what it rewrites keeps its value, and what it calls nonnegative is."""

from __future__ import annotations

import sympy
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, Mod

from polytile.ir import divisions, sizes

S, T = (sympy.Symbol(name, integer=True, positive=True) for name in "st")
P, Q = sizes.axis("p"), sizes.axis("q")
LEAVES = st.sampled_from([S, T, P, Q]) | st.integers(0, 5).map(sympy.Integer)


def _grown(inner: st.SearchStrategy[sympy.Expr]) -> st.SearchStrategy[sympy.Expr]:
    pair = st.tuples(inner, inner)
    divided = st.tuples(inner, st.sampled_from([sympy.Integer(2), sympy.Integer(4), S, 2 * T]))
    return (
        pair.map(lambda ab: ab[0] + ab[1])
        | pair.map(lambda ab: ab[0] * ab[1])
        | divided.map(lambda xd: FloorDiv(*xd))
        | divided.map(lambda xd: Mod(*xd))
    )


INDICES = st.recursive(LEAVES, _grown, max_leaves=8)
POINTS = [(s, t, p, q) for s in (1, 2, 7) for t in (1, 4, 9) for p in (0, s - 1) for q in (0, (t - 1) // 2, t - 1)]
RANGES = {P: S, Q: T}


def values(index: sympy.Expr) -> list[int]:
    """Of an index with 0 ≤ p < s and 0 ≤ q < t."""
    return [sizes.evaluate(sympy.sympify(index), {S: s, T: t, P: p, Q: q}) for s, t, p, q in POINTS]


@given(INDICES)
def test_expanding_and_simplifying_keep_the_value(index: sympy.Expr) -> None:
    assert values(sizes.expand(index)) == values(index)
    assert values(divisions.simplify(index, RANGES)) == values(index)


@given(INDICES, INDICES)
def test_symbols_and_structure_are_those_of_the_expression(a: sympy.Expr, b: sympy.Expr) -> None:
    assert sizes.symbols(a) == a.free_symbols
    assert (sizes.structure(a) == sizes.structure(b)) == (a == b)


@given(INDICES)
def test_a_remainder_is_one(index: sympy.Expr) -> None:
    for divisor in (sympy.Integer(2), sympy.Integer(3), S, 2 * T):
        wanted = [n % d for n, d in zip(values(index), values(divisor), strict=True)]
        assert values(divisions.modulo(index, divisor, RANGES)) == wanted


@given(INDICES)
def test_what_is_expanded_stays_as_it_is(index: sympy.Expr) -> None:
    once = sizes.expand(index)
    assert sizes.expand(once) == once


@given(INDICES, INDICES)
def test_what_is_called_nonnegative_is(a: sympy.Expr, b: sympy.Expr) -> None:
    for difference in (a - b, a):
        if sizes.is_nonnegative(sizes.expand(difference)):
            assert min(values(difference)) >= 0


@given(INDICES)
def test_no_index_is_above_its_bound(index: sympy.Expr) -> None:
    bound = divisions.upper_bound(divisions.simplify(index, RANGES), RANGES)
    if bound is not None:
        assert all(here <= most for here, most in zip(values(index), values(bound), strict=True))


SMALLER = {P: S - 3, Q: T - 2, sizes.axis("r"): sympy.Integer(5)}


@given(INDICES, st.sampled_from([T - 2, sizes.expand((S - 3) * (T - 2)), S - 3, 5 * T - 10]))
def test_indices_of_images_that_windows_made_smaller_keep_their_value(index: sympy.Expr, divisor: sympy.Expr) -> None:
    """Where p < s - 3 and q < t - 2 have points."""
    points = [(s, t, p, q) for s in (4, 5, 9) for t in (3, 4, 8) for p in {0, s - 4} for q in {0, t - 3}]
    for whole in (FloorDiv(index, divisor), Mod(index, divisor)):
        simple = divisions.simplify(whole, SMALLER)
        for s, t, p, q in points:
            given_values = {S: s, T: t, P: p, Q: q}
            assert sizes.evaluate(sympy.sympify(simple), given_values) == sizes.evaluate(sympy.sympify(whole), given_values)


def test_a_flat_position_in_such_an_image_is_taken_apart() -> None:
    """As the view of a convolution's result as groups of channels, whatever comes after it, reads it."""
    rows, columns, channel = S - 3, T - 2, sizes.axis("r")
    flat = sizes.expand(channel * rows * columns + P * columns + Q)
    assert divisions.simplify(FloorDiv(flat, sizes.expand(rows * columns)), SMALLER) == channel
    assert divisions.simplify(Mod(flat, columns), SMALLER) == Q
    assert divisions.simplify(Mod(FloorDiv(flat, columns), rows), SMALLER) == P


def test_sizes_are_equal_where_a_quotient_is_exact() -> None:
    """Heads of a batch that is as long as there are heads: PyTorch gives both one symbol, and keeps s²//s."""
    assert sizes.equal(S * FloorDiv(S**2, S), S**2) and sizes.equal(FloorDiv(S * T, S), T)
    assert not sizes.equal(S * FloorDiv(T, S), T)
