"""Axes: unified by stride, split where an index divides, merged where strides fit, in unit-stride order."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Identity, Max, Mod, ModularIndexing

from polytile.ir import divisions, expr, sizes
from polytile.ir.buffer import Buffer, whole
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.program import Input, Program
from polytile.passes.fusion.axes import unify
from polytile.passes.loops import indices, linear
from polytile.passes.merge_axes import merge_loop
from polytile.passes.split_axes import split_loop
from polytile.passes.strides import plain_strides
from tests import interpret
from tests.passes.helpers import F32, S0, S1

P0, P1, P2, Q0, Q1, Q2 = (sizes.axis(name) for name in ("p0", "p1", "p2", "q0", "q1", "q2"))


def axes(**extents: sympy.Expr | int) -> tuple[Axis, ...]:
    return tuple(Axis(sizes.axis(name), sympy.sympify(n)) for name, n in extents.items())


def copy(axes_: tuple[Axis, ...], source: sympy.Expr, target: sympy.Expr) -> Loop:
    return Loop("loop0", axes_, (), (Store("out", target, expr.load(F32, "x", source)),))


def assert_same_copy(before: Loop, after: Loop, elements: int, values: dict[sympy.Symbol, int]) -> None:
    x = torch.randn(elements)
    results = []
    for loop in (before, after):
        out = torch.full((elements,), torch.nan)
        interpret.run_loop(loop, {"x": x, "out": out}, values, None)
        results.append(out)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0, equal_nan=True)


# unification -------------------------------------------------------------------------------------------------------------


def test_a_flat_axis_is_split_by_the_other_loops_axes() -> None:
    one, other = axes(p0=S0 * S1, p1=64), axes(q0=S0, q1=S1, q2=64)
    unified = unify(one, other, ((P0 * 64 + P1, Q0 * S1 * 64 + Q1 * 64 + Q2),))
    assert [str(s.axis.size) for s in unified.shared] == ["s0", "s1", "64"]
    assert str(unified.first[P0]) == "s1*u0 + u1"
    assert all(s.first is not None and s.second is not None for s in unified.shared)


def test_axes_are_matched_by_stride_and_not_by_position() -> None:
    unified = unify(axes(p0=S0, p1=S1), axes(q0=S1, q1=S0), ((P0 * S1 + P1, Q1 * S1 + Q0),))
    assert {str(s.first): str(s.second) for s in unified.shared} == {"p0": "q1", "p1": "q0"}


def test_both_loops_may_be_split() -> None:
    """(s0·s1, 6) against (s0, s1·6)."""
    unified = unify(axes(p0=S0 * S1, p1=6), axes(q0=S0, q1=S1 * 6), ((P0 * 6 + P1, Q0 * S1 * 6 + Q1),))
    assert [str(s.axis.size) for s in unified.shared] == ["s0", "s1", "6"]


def test_axes_that_no_index_holds_stay_apart() -> None:
    unified = unify(axes(p0=S0), axes(q0=S0, q1=S1), ((P0, Q0),))
    assert [(str(s.first), str(s.second)) for s in unified.shared] == [("p0", "q0"), ("None", "q1")]


def test_an_index_that_is_not_linear_matches_nothing() -> None:
    unified = unify(axes(p0=S0), axes(q0=S0), ((Mod(P0, 3), Q0),))
    assert all(s.first is None or s.second is None for s in unified.shared)


EXTENTS = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@hypothesis.given(EXTENTS, st.data())
def test_unified_indices_agree_at_every_point(extents: list[int], data: st.DataObject) -> None:
    """Two row-major views of one block of memory: any grouping of its factors into dimensions, in any order of axes."""

    def view(prefix: str) -> tuple[tuple[Axis, ...], sympy.Expr]:
        groups: list[int] = []
        for n in extents:
            if groups and data.draw(st.sampled_from([0, 1])):
                groups[-1] *= n
            else:
                groups.append(n)
        own = tuple(Axis(sizes.axis(f"{prefix}{i}"), sympy.Integer(n)) for i, n in enumerate(groups))
        strides = sizes.contiguous_strides([a.size for a in own])
        index = sum((a.symbol * s for a, s in zip(own, strides, strict=True)), sizes.ZERO)
        return tuple(data.draw(st.permutations(own))), index

    (one, first), (other, second) = view("p"), view("q")
    unified = unify(one, other, ((first, second),))
    assert all(s.first is not None and s.second is not None for s in unified.shared)
    same = sizes.substitute(first, unified.first) - sizes.substitute(second, unified.second)
    assert sympy.expand(same) == 0
    assert sizes.product([s.axis.size for s in unified.shared]) == sizes.product([sympy.Integer(n) for n in extents])


# splitting ---------------------------------------------------------------------------------------------------------------


def count_divisions(loop: Loop) -> int:
    return sum(sizes.has_division(index) for n in expr.walk(*loop.roots) for index in n.indices)


def test_a_transposing_copy_over_a_flat_axis_loses_its_divisions() -> None:
    before = copy(axes(p0=6 * S0), Mod(P0, 6) * S0 + FloorDiv(P0, 6), P0)
    after = split_loop(before)
    assert not count_divisions(after) and len(after.axes) == 2
    assert_same_copy(before, after, 30, {S0: 5})


def test_a_division_by_a_difference_of_sizes() -> None:
    """Length s0 - 1, as of a sequence without its last element."""
    n = S0 - 1
    before = copy(axes(p0=sympy.expand(S1 * n)), FloorDiv(P0, n) * S0 + Mod(P0, n), P0)
    after = split_loop(before)
    assert not count_divisions(after)
    assert_same_copy(before, after, 100, {S0: 5, S1: 4})


def test_nested_divisions_and_modular_indexing() -> None:
    before = copy(axes(p0=24 * S0), ModularIndexing(P0, 4, 6) + 6 * Mod(P0, 4) + 24 * FloorDiv(P0, 24), P0)
    after = split_loop(before)
    assert not count_divisions(after) and len(after.axes) == 3
    assert_same_copy(before, after, 72, {S0: 3})


def test_grouping_wrappers_hide_no_pattern() -> None:
    """torch wraps what it does not want expanded."""
    ranges = {P0: S0, P1: sympy.Integer(4)}
    assert divisions.simplify(FloorDiv(Identity(4 * P0 + P1), 4), ranges) == P0
    assert divisions.simplify(4 * Identity(FloorDiv(P0, 4)) + Identity(Mod(P0, 4)), ranges) == P0
    assert linear(Identity(P0 + 1) * S1, (P0,)) == linear(P0 * S1 + S1, (P0,))
    grouped = FloorDiv(Identity(P0), S0) + Identity(Mod(P0, S0)) * S1
    split = split_loop(copy(axes(p0=S0 * S1), grouped, P0))
    assert len(split.axes) == 2 and not any(map(sizes.has_division, indices(split)))


def test_an_axis_that_does_not_divide_stays_whole() -> None:
    before = copy(axes(p0=S0), FloorDiv(P0, 4), P0)
    assert split_loop(before) == before


def test_the_axis_of_a_scan_stays_whole() -> None:
    r0 = sizes.axis("r0")
    value = expr.scan("sum", F32, expr.load(F32, "x", Mod(r0, 4) * S0 + FloorDiv(r0, 4)))
    loop = Loop("scan0", (), axes(r0=4 * S0), (Store("out", r0, value),))
    assert split_loop(loop) == loop


# merging and order -------------------------------------------------------------------------------------------------------


def test_adjacent_axes_of_a_contiguous_copy_merge() -> None:
    index = P0 * S1 * 4 + P1 * 4 + P2
    after = merge_loop(copy(axes(p0=S0, p1=S1, p2=4), index, index))
    assert [str(a.size) for a in after.axes] == ["4*s0*s1"]


def test_axes_of_a_broadcast_do_not_merge_with_those_it_lacks() -> None:
    """x is read along p1 and p2 only."""
    after = merge_loop(copy(axes(p0=S0, p1=S1, p2=4), P1 * 4 + P2, P0 * S1 * 4 + P1 * 4 + P2))
    assert [str(a.size) for a in after.axes] == ["s0", "4*s1"]


@hypothesis.given(
    st.integers(0, 4), st.integers(1, 3), st.sampled_from(["lt", "le", "gt", "ge"]), st.booleans(), st.integers(-2, 5)
)
def test_what_compares_the_outer_axis_alone_compares_both_where_they_merge(
    rows: int, columns: int, name: str, mirrored: bool, bound: int
) -> None:
    """A row of x where p0 + 1 is below, or not, what it is compared with, and 0 elsewhere."""
    index, place = P0 * S1 + P1, (expr.index_value(P0 + 1), expr.index_value(S0 + bound - 3))
    condition = expr.op(name, torch.bool, *(reversed(place) if mirrored else place))
    value = expr.op("where", F32, condition, expr.load(F32, "x", index, mask=condition), expr.const(0.0, F32))
    before = Loop("loop0", axes(p0=S0, p1=S1), (), (Store("out", index, value),))
    assert len(merge_loop(before).axes) == 2
    after = merge_loop(before, compared=True)
    assert [str(a.size) for a in after.axes] == ["s0*s1"]
    assert_same_copy(before, after, rows * columns, {S0: rows, S1: columns})


def test_axes_of_size_one_go_and_the_unit_stride_axis_stands_innermost() -> None:
    before = copy(axes(p0=4, p1=1, p2=S0), P0 + 4 * P2, P0 + 4 * P2)
    after = merge_loop(copy(axes(p0=4, p1=1, p2=S0), P0 + 5 * P2 + P1, P0 + 8 * P2 + P1))
    assert [str(a.size) for a in after.axes] == ["s0", "4"]
    assert [str(a.size) for a in merge_loop(before).axes] == ["4*s0"]


def test_a_scan_keeps_its_reduced_axis() -> None:
    r0 = sizes.axis("r0")
    index = (P0 * S1 + P1) * 8 + r0
    loop = Loop(
        "scan0",
        axes(p0=S0, p1=S1),
        axes(r0=8),
        (Store("out", index, expr.scan("sum", F32, expr.load(F32, "x", index))),),
    )
    after = merge_loop(loop)
    assert [str(a.size) for a in after.axes + after.reduced] == ["s0*s1", "8"]


@hypothesis.given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_merged_and_split_copies_do_the_same(extents: list[int], data: st.DataObject) -> None:
    """A copy between two layouts of one shape, both permutations of dense strides, written over one flat axis or many."""
    own = tuple(Axis(sizes.axis(f"p{i}"), sympy.Integer(n)) for i, n in enumerate(extents))
    layouts = []
    for _ in range(2):
        order = data.draw(st.permutations(range(len(own))))
        strides = dict(zip(order, sizes.contiguous_strides([own[i].size for i in order]), strict=True))
        layouts.append(sum((own[i].symbol * strides[i] for i in range(len(own))), sizes.ZERO))
    total = int(sizes.product([a.size for a in own]))
    before = copy(own, *layouts)
    assert_same_copy(before, merge_loop(before), total, {})
    flat = sizes.axis("f")
    point, rest = {}, sympy.Integer(total)
    for axis in own:
        rest = rest / axis.size
        point[axis.symbol] = ModularIndexing(flat, rest, axis.size)
    divided = copy((Axis(flat, sympy.Integer(total)),), *[sizes.substitute(layout, point) for layout in layouts])
    after = split_loop(divided)
    assert not count_divisions(after)
    assert_same_copy(before, after, total, {})


# strides of dense tensors ------------------------------------------------------------------------------------------------


def test_torchs_strides_for_possibly_empty_tensors_lose_their_maximum() -> None:
    n = S0 - 1
    x = Buffer("x", F32, (S1, n), (Max(1, n), sizes.ONE), role="input")
    out = Buffer("out", F32, (S1, n), (Max(1, n), sizes.ONE))
    point = (P0, P1)
    loop = Loop("loop0", axes(p0=S1, p1=n), (), (Store("out", out.index(point), expr.load(F32, "x", x.index(point))),))
    before = Program("test", (Input("x", "x"), Input("s0", size=S0)), {"x": x, "out": out}, (loop,), (whole(out),))
    after = plain_strides(before)
    (changed,) = after.operations
    assert isinstance(changed, Loop)
    assert linear(changed.stores[0].index, (P0, P1)) is not None and not changed.stores[0].index.has(Max)
    for length in (4, 2, 1):
        args = [torch.randn(3, length - 1), length]
        got = [interpret.run(p, args)[0] for p in (before, after)]
        torch.testing.assert_close(got[0], got[1])


def test_a_maximum_that_is_no_dimension_of_the_buffer_stays() -> None:
    x = Buffer("x", F32, (S1,), (sizes.ONE,), role="input")
    out = Buffer("out", F32, (S1,), (sizes.ONE,))
    loop = copy(axes(p0=S1), P0 * Max(1, S0 - 1), P0)
    before = Program("test", (Input("x", "x"),), {"x": x, "out": out}, (loop,), (whole(out),))
    assert plain_strides(before).operations == before.operations
