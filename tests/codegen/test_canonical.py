"""Canonical kernels: the same work has the same text whatever its names, different work never has."""

from __future__ import annotations

from dataclasses import replace

import sympy
import torch
from torch.utils._sympy.functions import PythonMod

from polytile.candidates.cpp_loops import kernel_name, loop_candidates
from polytile.ir import expr, sizes
from polytile.ir.buffer import Buffer, View
from polytile.ir.library_call import LibraryCall, Ref
from polytile.ir.loop import Axis, Loop
from polytile.schedule.canonical import CallSite, LoopKernel, canonicalize
from tests.codegen.helpers import BF16, F32, P0, R0, S0, S1, S2, load, loop, op, store


def canonical(body: Loop, *shape: sympy.Expr, **dtypes: torch.dtype) -> tuple[LoopKernel, CallSite]:
    return canonicalize(body, {name: Buffer(name, dtype, shape, ()) for name, dtype in dtypes.items()})


def row_sum(source: str, target: str, axis: str, rows: sympy.Expr, length: sympy.Expr) -> Loop:
    p, r = sizes.axis(axis), sizes.axis(axis + "_reduced")
    total = expr.reduce("sum", F32, expr.load(F32, source, p * length + r))
    return Loop(f"loop_{source}", (Axis(p, rows),), (Axis(r, length),), (store(target, p, total),), (f"op.{source}",))


def test_names_of_buffers_axes_and_sizes_do_not_matter() -> None:
    first, one = canonical(row_sum("x", "y", "i", S0, S1), x=F32, y=F32)
    second, other = canonical(row_sum("buf7", "arg2", "row", S2, S0), buf7=F32, arg2=F32)
    assert first.text == second.text and first.digest == second.digest
    assert one == CallSite(("x", "y"), (S0, S1)) and other == CallSite(("buf7", "arg2"), (S2, S0))


def test_types_sizes_and_roles_matter() -> None:
    plain = canonical(row_sum("x", "y", "i", S0, S1), x=F32, y=F32)[0]
    assert plain.digest != canonical(row_sum("x", "y", "i", S0, S1), x=BF16, y=F32)[0].digest
    assert plain.digest != canonical(row_sum("x", "y", "i", S0, sympy.Integer(64)), x=F32, y=F32)[0].digest
    assert plain.digest != canonical(row_sum("x", "y", "i", S0, S0), x=F32, y=F32)[0].digest
    assert plain.digest != canonical(row_sum("x", "x", "i", S0, S1), x=F32)[0].digest


def test_arguments_are_the_tensors_then_the_size_symbols_in_order_of_appearance() -> None:
    body = loop([store("o", P0 * S2, op("add", load("b", P0), load("a", P0 * S1)))], {P0: S0})
    kernel, site = canonical(body, S0, a=F32, b=F32, o=BF16)
    assert [(t.name, t.dtype, t.role) for t in kernel.tensors] == [
        ("a0", F32, "in"),
        ("a1", F32, "in"),
        ("a2", BF16, "out"),
    ]
    assert site.buffers == ("b", "a", "o") and site.sizes == (S0, S1, S2)
    assert [s.name for s in kernel.symbols] == ["n0", "n1", "n2"]


def test_a_tensor_that_is_read_or_partly_written_keeps_what_it_holds() -> None:
    mask = load("m", P0, torch.bool)
    roles = {
        "out": store("o", P0, load("x", P0)),
        "inout": store("o", P0, load("o", P0)),
        "inout masked": store("o", P0, load("x", P0), mask=mask),
        "inout added": store("o", P0, load("x", P0), mode="add"),
        "inout, a diagonal": store("o", P0 * (S0 + 1), load("x", P0)),
    }
    for role, one in roles.items():
        shape = (S0, S0) if "diagonal" in role else (S0,)
        kernel, site = canonical(loop([one], {P0: S0}), *shape, x=F32, o=F32, m=torch.bool)
        assert kernel.tensors[site.buffers.index("o")].role == role.replace(",", "").split()[0]


def test_parts_that_make_a_whole_are_all_of_a_tensor() -> None:
    halves = [store("o", P0, load("x", P0)), store("o", P0 + S0, load("x", P0))]
    for shape, role in ((2 * S0, "out"), (3 * S0, "inout")):
        kernel, site = canonical(loop(halves, {P0: S0}), shape, x=F32, o=F32)
        assert kernel.tensors[site.buffers.index("o")].role == role


def test_a_product_of_sizes_is_one_integer_where_its_factors_stand_nowhere_else() -> None:
    """A flattened loop depends on how many points there are; one with the factor in an index needs the factor."""
    flat, site = canonical(loop([store("o", P0, load("x", P0))], {P0: S0 * S1}), S0 * S1, x=F32, o=F32)
    assert site.sizes == (S0 * S1,) and flat.loop.axes[0].size == flat.symbols[0]
    same, other = canonical(loop([store("o", P0, load("x", P0))], {P0: S2}), S2, x=F32, o=F32)
    assert same.text == flat.text and other.sizes == (S2,)
    _, needs = canonical(loop([store("o", P0, load("x", P0 * S0))], {P0: S0 * S1}), S0 * S1, x=F32, o=F32)
    assert set(needs.sizes) == {S0, S1}
    rows, row_site = canonical(row_sum("x", "y", "i", S0 * S1, S2), S0 * S1, x=F32, y=F32)
    assert row_site.sizes == (S0 * S1, S2)
    assert rows.text == canonical(row_sum("x", "y", "i", S0, S1), S0, x=F32, y=F32)[0].text


def test_an_integer_that_is_no_size_may_have_any_sign() -> None:
    shift, known = (sympy.Symbol("k", integer=True, positive=sign) for sign in (None, True))
    texts = []
    for number in (shift, known):
        kernel, site = canonical(loop([store("o", P0, load("x", PythonMod(P0 + number, S0)))], {P0: S0}), x=F32, o=F32)
        assert site.sizes == (S0, number)
        assert [s.is_positive for s in kernel.symbols] == [True, number.is_positive]
        texts.append(kernel.text)
    assert texts[0] != texts[1] and "of any sign: n1" in texts[0]
    counted, _ = canonical(loop([store("o", P0, load("x", P0))], {P0: shift}), shift, x=F32, o=F32)
    assert counted.symbols[0].is_positive, "without elements nothing is computed"


def test_a_kernel_is_made_once() -> None:
    first, _ = canonical(row_sum("x", "y", "i", S0, S1), x=F32, y=F32)
    second, _ = canonical(row_sum("u", "v", "k", S1, S2), u=F32, v=F32)
    assert loop_candidates(first, ("aten.sum.default",), 2) is loop_candidates(second, ("aten.mean.default",), 2)


def test_the_source_operator_is_named_but_decides_nothing() -> None:
    kernel, _ = canonical(row_sum("x", "y", "i", S0, S1), x=F32, y=F32)
    assert kernel_name(kernel, ("aten.sum.dim_IntList", "aten.exp.default")) == f"sum_exp_{kernel.digest[:8]}"
    other = replace(kernel, loop=replace(kernel.loop, origins=("aten.mean.dim",)))
    one, two = (loop_candidates(k, k.loop.origins, most)[0] for k, most in ((kernel, 3), (other, 4)))
    assert "op.x" in one.source and "aten.mean.dim" in two.source  # type: ignore[attr-defined]
    assert one.source_hash == two.source_hash


def test_reduced_axes_are_named_apart() -> None:
    body = loop([store("o", P0, expr.reduce("max", F32, load("x", P0 * S1 + R0)))], {P0: S0}, {R0: S1})
    assert "for p0 < n0 over r0 < n1" in canonical(body, x=F32, o=F32)[0].text


def test_loops_that_begin_elsewhere_in_a_tensor_are_one_kernel() -> None:
    """What all accesses to a tensor have in common is an integer of the call, how they lie to each other is not."""

    def added(begin: sympy.Expr, apart: int, out: sympy.Expr) -> tuple[LoopKernel, CallSite]:
        both = op("add", load("x", P0 + begin), load("x", P0 + begin + apart))
        return canonical(loop([store("o", P0 + out, both)], {P0: S0}), S0, x=F32, o=F32)

    kernel, site = added(sympy.Integer(48), 16, 32 * S1)
    other, elsewhere = added(16 * S2, 16, sympy.Integer(7))
    assert kernel.text == other.text and "a0[n1 + p0 + 16]" in kernel.text
    assert site.sizes == (S0, 48, 32 * S1) and elsewhere.sizes == (S0, 16 * S2, 7)
    assert kernel.text != added(sympy.Integer(48), 8, S1)[0].text


def test_a_tensor_that_is_read_from_its_beginning_or_backwards_has_no_start() -> None:
    for places in ((P0, P0 + 8), (P0 - 1, P0 + 8), (S1 - P0,), (P0 + S1 - S2,)):
        values = [load("x", place) for place in places]
        _, site = canonical(loop([store("o", P0, op("add", values[0], values[-1]))], {P0: S0}), S0, x=F32, o=F32)
        assert set(site.sizes) <= {S0, S1, S2}
        assert not any(term.is_Integer for term in site.sizes)


def test_an_operator_beside_its_loop_begins_where_the_loop_does() -> None:
    def exponential(begin: sympy.Expr) -> LoopKernel:
        x = View("x", F32, (S0,), (sizes.ONE,), begin)
        call = LibraryCall(torch.ops.aten.cumsum.out, (Ref(x), 0), (), (View("o", F32, (S0,), (sizes.ONE,)),))
        scanned = expr.scan("sum", F32, load("x", R0 + begin))
        body = Loop("scan", (), (Axis(R0, S0),), (store("o", R0, scanned),), (), (call,))
        return canonical(body, S0, x=F32, o=F32)[0]

    assert exponential(sympy.Integer(8)).text == exponential(24 * S1).text
    assert exponential(sympy.Integer(8)).library
