"""The reference interpreter gives what torch gives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod

from polytile.errors import IRError
from polytile.ir import expr, philox, sizes
from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.library_call import Ref
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.program import Assert, Extern, Input, Operation, Program
from polytile.ir.template import Template
from tests import interpret

F32, F64, I64, BOOL, BF16 = torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16
S0, S1 = (sympy.Symbol(f"s{i}", positive=True, integer=True) for i in range(2))
P0, P1, R0 = sizes.axis("p0"), sizes.axis("p1"), sizes.axis("r0")


def buffer(name: str, *shape: sympy.Expr | int, dtype: torch.dtype = F32, role: str = "temp") -> Buffer:
    dims = tuple(sympy.sympify(n) for n in shape)
    return Buffer(name, dtype, dims, sizes.contiguous_strides(dims), role=role)


def program(
    inputs: Sequence[Buffer], temps: Sequence[Buffer], operations: Sequence[Operation], *outputs: Buffer | View
) -> Program:
    views = tuple(whole(o) if isinstance(o, Buffer) else o for o in outputs)
    buffers = {b.name: b for b in [*inputs, *temps]}
    return Program("test", tuple(Input(b.name, b.name) for b in inputs), buffers, tuple(operations), views)


def row_loop(x: Buffer, out: Buffer, value: expr.Node, index: sympy.Expr = P0) -> Program:
    """One loop over the rows of `x` (s0, s1) that stores `value` at `index` of `out`."""
    loop = Loop("loop0", (Axis(P0, S0),), (Axis(R0, S1),), (Store(out.name, index, value),))
    return program([x], [out], [loop], out)


X = buffer("x", S0, S1, role="input")
ELEMENT = expr.load(F32, "x", P0 * S1 + R0)
REDUCTIONS = {
    "sum": lambda x: x.sum(1),
    "prod": lambda x: x.prod(1),
    "max": lambda x: x.amax(1),
    "min": lambda x: x.amin(1),
}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reduction_over_rows(kind: str) -> None:
    x = torch.randn(5, 7)
    (got,) = interpret.run(row_loop(X, buffer("out", S0), expr.reduce(kind, F32, ELEMENT)), [x])
    torch.testing.assert_close(got, REDUCTIONS[kind](x))


@pytest.mark.parametrize(("kind", "want"), [("sum", 0.0), ("prod", 1.0), ("max", -torch.inf), ("min", torch.inf)])
def test_reduction_of_nothing_is_the_identity(kind: str, want: float) -> None:
    (got,) = interpret.run(row_loop(X, buffer("out", S0), expr.reduce(kind, F32, ELEMENT)), [torch.randn(3, 0)])
    assert got.tolist() == [want] * 3


@pytest.mark.parametrize(("kind", "reference"), [("argmax", torch.argmax), ("argmin", torch.argmin)])
def test_arg_reduction_gives_the_first_extreme_and_nan_wins(kind: str, reference: object) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0, 0.0], [0.0, float("nan"), 5.0, float("nan"), 1.0]])
    node = expr.reduce(kind, F32, ELEMENT, expr.index_value(R0))
    (got,) = interpret.run(row_loop(X, buffer("out", S0, dtype=I64), expr.part(node, 1, I64)), [x])
    assert got.tolist() == reference(x, 1).tolist()  # type: ignore[operator]


def test_welford_and_online_softmax() -> None:
    x = torch.randn(4, 9)
    for kind, wants in {
        "welford": (x.mean(1), x.var(1, correction=0) * 9),
        "online_softmax": (x.amax(1), (x - x.amax(1, keepdim=True)).exp().sum(1)),
    }.items():
        for k, want in enumerate(wants):
            node = expr.part(expr.reduce(kind, F32, ELEMENT), k, F32)
            (got,) = interpret.run(row_loop(X, buffer("out", S0), node), [x])
            torch.testing.assert_close(got, want)


def test_nested_reductions_are_softmax() -> None:
    x = torch.randn(6, 33)
    largest = expr.reduce("max", F32, ELEMENT)
    power = expr.op("exp", F32, expr.op("sub", F32, ELEMENT, largest))
    node = expr.op("div", F32, power, expr.reduce("sum", F32, power))
    (got,) = interpret.run(row_loop(X, buffer("out", S0, S1), node, P0 * S1 + R0), [x])
    torch.testing.assert_close(got, x.softmax(1))


@pytest.mark.parametrize(
    ("kind", "reference"), [("sum", torch.cumsum), ("prod", torch.cumprod), ("logsumexp", torch.logcumsumexp)]
)
def test_scan(kind: str, reference: object) -> None:
    x = torch.randn(3, 8)
    (got,) = interpret.run(row_loop(X, buffer("out", S0, S1), expr.scan(kind, F32, ELEMENT), P0 * S1 + R0), [x])
    torch.testing.assert_close(got, reference(x, 1))  # type: ignore[operator]


@pytest.mark.parametrize(("kind", "reference"), [("max", torch.cummax), ("min", torch.cummin)])
def test_scan_of_extremes_gives_the_last_index(kind: str, reference: object) -> None:
    x = torch.randint(0, 3, (4, 12)).float()
    for k, want in enumerate(reference(x, 1)):  # type: ignore[operator]
        node = expr.part(expr.scan(kind, F32, ELEMENT, expr.index_value(R0)), k, want.dtype)
        (got,) = interpret.run(row_loop(X, buffer("out", S0, S1, dtype=want.dtype), node, P0 * S1 + R0), [x])
        assert torch.equal(got, want)


def test_indices_with_division_and_modulus() -> None:
    x, out = buffer("x", S0, 6, role="input"), buffer("out", 6, S0)
    index = Mod(P0, S0) * 6 + FloorDiv(P0, S0)
    loop = Loop("loop0", (Axis(P0, 6 * S0),), (), (Store("out", P0, expr.load(F32, "x", index)),))
    tensor = torch.randn(5, 6)
    (got,) = interpret.run(program([x], [out], [loop], out), [tensor])
    assert torch.equal(got, tensor.t())


def test_a_large_grid_is_done_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytile.ir.evaluate.CHUNK_POINTS", 100)
    x = torch.randn(50, 17)
    (got,) = interpret.run(row_loop(X, buffer("out", S0), expr.reduce("sum", F32, ELEMENT)), [x])
    torch.testing.assert_close(got, x.sum(1))


def gather(check: bool) -> Program:
    table, rows = buffer("table", S1, 4, role="input"), buffer("rows", S0, dtype=I64, role="input")
    out = buffer("out", S0, 4)
    row: expr.Node = expr.load(I64, "rows", P0)
    if check:
        row = expr.op("check_index", I64, row, expr.index_value(S1))
    node = expr.load(F32, "table", expr.indirect_symbol(0) * 4 + P1, (row,))
    loop = Loop("loop0", (Axis(P0, S0), Axis(P1, sympy.Integer(4))), (), (Store("out", P0 * 4 + P1, node),))
    return program([table, rows], [out], [loop], out)


def test_indirect_load_counts_negative_indices_from_the_end() -> None:
    table, rows = torch.randn(5, 4), torch.tensor([3, -1, 0])
    (got,) = interpret.run(gather(True), [table, rows])
    assert torch.equal(got, table[rows])


def test_checked_index_out_of_range_raises_index_error() -> None:
    with pytest.raises(IndexError, match="index 5 is out of range in "):
        interpret.run(gather(True), [torch.randn(5, 4), torch.tensor([0, 5])])


def test_unchecked_index_out_of_range_is_an_illegal_program() -> None:
    with pytest.raises(IRError, match="outside of its 20 elements"):
        interpret.run(gather(False), [torch.randn(5, 4), torch.tensor([0, 5])])


def test_masked_load_reads_nothing_outside_and_gives_zero() -> None:
    x, out = buffer("x", S0, role="input"), buffer("out", S0 + 2)
    mask = expr.op("lt", BOOL, expr.index_value(P0), expr.index_value(S0))
    loop = Loop("loop0", (Axis(P0, S0 + 2),), (), (Store("out", P0, expr.load(F32, "x", P0, (), mask)),))
    tensor = torch.randn(3)
    (got,) = interpret.run(program([x], [out], [loop], out), [tensor])
    assert torch.equal(got, torch.nn.functional.pad(tensor, (0, 2)))


def test_stores_that_add_accumulate_every_point() -> None:
    rows, out = buffer("rows", S0, dtype=I64, role="input"), buffer("out", 4, role="input")
    store = Store("out", expr.indirect_symbol(0), expr.const(1.0, F32), "add", (expr.load(I64, "rows", P0),))
    loop = Loop("loop0", (Axis(P0, S0),), (), (store,))
    count = torch.zeros(4)
    interpret.run(program([rows, out], [], [loop], out), [torch.tensor([1, 1, 3, 1]), count])
    assert count.tolist() == [0, 3, 0, 1]


def test_an_output_that_views_an_input_aliases_it() -> None:
    loop = Loop("loop0", (Axis(P0, S0 * S1),), (), (Store("x", P0, expr.const(2.0, F32)),))
    view = View("x", F32, (S1, S0), (sizes.ONE, S1))
    x = torch.randn(2, 3)
    (got,) = interpret.run(program([X], [], [loop], view), [x])
    assert torch.equal(x, torch.full((2, 3), 2.0))
    assert got.data_ptr() == x.data_ptr() and got.shape == (3, 2)


def test_template_and_epilogue_with_several_stores() -> None:
    a, b = buffer("a", S0, S1, role="input"), buffer("b", S1, 5, role="input")
    out, bits = buffer("out", S0, 5), buffer("bits", S0, 5, dtype=BOOL)
    m, n = sizes.axis("m"), sizes.axis("n")
    acc = expr.make(expr.Accumulator, dtype=F32)
    zero = expr.const(0.0, F32)
    index = m * 5 + n
    epilogue = Loop(
        "epilogue0",
        (Axis(sizes.axis("b"), sizes.ONE), Axis(m, S0), Axis(n, sympy.Integer(5))),
        (),
        (Store("out", index, expr.op("maximum", F32, acc, zero)), Store("bits", index, expr.op("gt", BOOL, acc, zero))),
    )
    one = sizes.ONE
    template = Template(
        "mm0",
        "matmul",
        View("a", F32, (one, S0, S1), (S0 * S1, S1, one)),
        View("b", F32, (one, S1, sympy.Integer(5)), (S1 * 5, sympy.Integer(5), one)),
        View("out", F32, (one, S0, sympy.Integer(5)), (S0 * 5, sympy.Integer(5), one)),
        epilogue,
    )
    x, y = torch.randn(4, 3), torch.randn(3, 5)
    got = interpret.run(program([a, b], [out, bits], [template], out, bits), [x, y])
    torch.testing.assert_close(got[0], (x @ y).relu())
    assert torch.equal(got[1], x @ y > 0)


def test_library_call_defines_buffers_and_sizes() -> None:
    u0 = sympy.Symbol("u0", positive=True, integer=True)
    found, doubled = buffer("found", u0, 2, dtype=I64), buffer("doubled", u0, 2, dtype=I64)
    call = Extern("nonzero0", torch.nonzero, (Ref(whole(X)),), (), ("found",), symbols=((u0, ("size", 0, 0)),))
    double = expr.op("mul", I64, expr.load(I64, "found", P0), expr.const(2, I64))
    loop = Loop("loop0", (Axis(P0, 2 * u0),), (), (Store("doubled", P0, double),))
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    (got,) = interpret.run(program([X], [found, doubled], [call, loop], doubled), [x])
    assert torch.equal(got, x.nonzero() * 2)


def test_assertion_on_sizes() -> None:
    with pytest.raises(RuntimeError, match="sizes differ"):
        interpret.run(program([X], [], [Assert("assert0", sympy.Eq(S0, S1), "sizes differ")]), [torch.randn(2, 3)])


def test_half_types_are_computed_in_float32_and_rounded_when_stored() -> None:
    x, out = buffer("x", S0, S1, dtype=BF16, role="input"), buffer("out", S0, S1, dtype=BF16)
    node = expr.op("mul", F32, ELEMENT, ELEMENT)
    tensor = torch.randn(3, 40).bfloat16()
    (got,) = interpret.run(row_loop(x, out, node, P0 * S1 + R0), [tensor])
    assert torch.equal(got, tensor * tensor)


def test_run_loop_in_float64_into_wider_outputs() -> None:
    loop = row_loop(X, buffer("out", S0), expr.reduce("sum", F32, ELEMENT)).operations[0]
    assert isinstance(loop, Loop)
    x, out = torch.randn(3, 1000), torch.empty(3, dtype=F64)
    interpret.run_loop(loop, {"x": x, "out": out}, {S0: 3, S1: 1000})
    torch.testing.assert_close(out, x.double().sum(1), rtol=1e-14, atol=1e-14)


def test_derived_sizes_are_solved_and_disagreement_is_an_error() -> None:
    x, y = buffer("x", 2 * S0 + 1, role="input"), buffer("y", S0, role="input")
    assert interpret.bind(program([x], [], []), [torch.zeros(7)]) == {S0: 3}
    with pytest.raises(ValueError, match=r"y\.size"):
        interpret.bind(program([x, y], [], []), [torch.zeros(7), torch.zeros(4)])


def test_philox_gives_the_published_words() -> None:
    for counter, words in {0: (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)}.items():
        value = torch.tensor([counter])
        assert tuple(int(w) for w in philox.words(value, value)) == words


def test_philox_uniform_is_in_range_and_spread() -> None:
    node = expr.op("philox_uniform", F32, expr.load(I64, "seed", sizes.ZERO), expr.index_value(P0))
    loop = Loop("loop0", (Axis(P0, S0),), (), (Store("out", P0, node),))
    x = torch.empty(100_000)
    interpret.run_loop(loop, {"seed": torch.tensor([11]), "out": x}, {S0: len(x)})
    assert 0 <= x.min() and x.max() < 1 and abs(x.mean() - 0.5) < 0.005 and abs(x.var() - 1 / 12) < 0.002
