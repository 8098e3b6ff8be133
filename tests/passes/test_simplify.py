"""The algebra of values: every rule keeps every bit, and ranges decide what they can."""

from __future__ import annotations

import itertools
import math

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod

from polytile.ir import expr, ops, printer, sizes
from polytile.ir.buffer import Buffer
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Node, Op
from polytile.ir.loop import Axis, Loop, Store
from polytile.passes import rules
from polytile.passes.simplify import simplify_loop
from tests import interpret
from tests.passes.helpers import BF16, BOOL, F32, I64, S0

P0 = sizes.axis("p0")
BUFFERS = {
    name: Buffer(name, dtype, (S0,), (sizes.ONE,), role="input")
    for name, dtype in {"x": F32, "y": F32, "i": I64, "h": BF16, "flag": BOOL, "out": F32}.items()
}


def load(name: str) -> Node:
    return expr.load(compute_dtype(BUFFERS[name].dtype), name, P0)


def simplified(value: Node, size: sympy.Expr = S0) -> str:
    """The value of a loop over p0 < size after simplification, as text."""
    loop = simplify_loop(Loop("loop0", (Axis(P0, size),), (), (Store("out", P0, value),)), BUFFERS)
    lines = printer.body_lines(loop.stores, "")
    return "; ".join(line.split(" : ")[0] for line in lines if "] = " not in line) or lines[-1]


X, Y, WHOLE, H, FLAG = (load(name) for name in ("x", "y", "i", "h", "flag"))
INDEX = expr.index_value(P0)


def number(value: float, dtype: torch.dtype = F32) -> Node:
    return expr.const(value, dtype)


CASES: list[tuple[Node, str]] = [
    (expr.op("add", I64, WHOLE, number(0, I64)), "t0 = load i[p0]"),
    (expr.op("add", F32, X, number(-0.0)), "t0 = load x[p0]"),
    (expr.op("add", F32, X, number(0.0)), "t0 = load x[p0]; t1 = add t0 0.0"),  # not x where x is -0
    (expr.op("mul", F32, X, number(0.0)), "t0 = load x[p0]; t1 = mul t0 0.0"),  # not 0 where x is NaN
    (expr.op("mul", I64, WHOLE, number(0, I64)), "out[p0] = 0"),
    (expr.op("mul", F32, number(2.0), X), "t0 = load x[p0]; t1 = mul t0 2.0"),
    (expr.op("mul", F32, X, number(-1.0)), "t0 = load x[p0]; t1 = neg t0"),
    (expr.op("mul", F32, expr.op("mul", F32, X, number(3.0)), number(5.0)),
     "t0 = load x[p0]; t1 = mul t0 3.0; t2 = mul t1 5.0"),  # rounds twice
    (expr.op("mul", I64, expr.op("mul", I64, WHOLE, number(3, I64)), number(5, I64)), "t0 = load i[p0]; t1 = mul t0 15"),
    (expr.op("neg", F32, expr.op("neg", F32, X)), "t0 = load x[p0]"),
    (expr.op("sub", F32, X, expr.op("neg", F32, Y)), "t0 = load x[p0]; t1 = load y[p0]; t2 = add t0 t1"),
    (expr.op("where", F32, expr.const(True, BOOL), X, Y), "t0 = load x[p0]"),
    (expr.load(F32, "x", expr.indirect_symbol(0), (INDEX,)), "t0 = load x[p0]"),
    (expr.load(F32, "x", expr.indirect_symbol(0) + 2 * expr.indirect_symbol(1), (INDEX, WHOLE), FLAG),
     "t0 = load i[p0]; t1 = load flag[p0]; t2 = load x[2*t0 + p0] where t1"),
    (expr.op("where", F32, FLAG, X, X), "t0 = load x[p0]"),
    (expr.op("where", F32, expr.op("logical_not", BOOL, FLAG), X, Y),
     "t0 = load flag[p0]; t1 = load y[p0]; t2 = load x[p0]; t3 = where t0 t1 t2"),
    (expr.op("cast", I64, expr.op("cast", torch.int32, FLAG)), "t0 = load flag[p0]; t1 = cast t0"),
    (expr.op("cast", F32, expr.op("cast", torch.float64, X)), "t0 = load x[p0]"),
    (expr.op("cast", torch.float64, expr.op("cast", F32, WHOLE)), "t0 = load i[p0]; t1 = cast t0; t2 = cast t1"),  # inner rounds
    (expr.op("sqrt", F32, number(4.0)), "out[p0] = 2.0"),
    (expr.op("maximum", F32, expr.op("maximum", F32, X, number(0.0)), number(0.0)), "t0 = load x[p0]; t1 = maximum t0 0.0"),
    (expr.op("round_bf16", F32, expr.op("maximum", F32, H, number(0.0))), "t0 = load h[p0]; t1 = maximum t0 0.0"),
    (expr.op("round_bf16", F32, expr.op("mul", F32, H, H)), "t0 = load h[p0]; t1 = mul t0 t0; t2 = round_bf16 t1"),
    (expr.op("lt", BOOL, INDEX, expr.index_value(S0)), "out[p0] = True"),
    (expr.op("lt", BOOL, INDEX, expr.index_value(S0 - 1)), "t0 = index p0; t1 = index s0 - 1; t2 = lt t0 t1"),
    (expr.op("ge", BOOL, INDEX, number(0, I64)), "out[p0] = True"),
    (expr.op("gt", BOOL, expr.op("add", I64, INDEX, expr.index_value(S0)), INDEX), "out[p0] = True"),
    (expr.op("eq", BOOL, INDEX, expr.index_value(S0)), "out[p0] = False"),
    (expr.op("add", I64, expr.op("mul", I64, INDEX, number(2, I64)), number(1, I64)), "t0 = index 2*p0 + 1"),
    (expr.op("cast", F32, INDEX), "t0 = index p0"),
    (expr.load(F32, "x", FloorDiv(P0, 4) * 4 + Mod(P0, 4)), "t0 = load x[p0]"),
    (expr.load(F32, "x", Mod(P0, S0)), "t0 = load x[p0]"),
    (expr.load(F32, "x", P0, (), expr.op("lt", BOOL, INDEX, expr.index_value(S0))), "t0 = load x[p0]"),
    (expr.load(F32, "x", P0, (), expr.const(False, BOOL)), "out[p0] = 0.0"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), CASES, ids=[text for _, text in CASES])
def test_values_are_simplified(value: Node, text: str) -> None:
    assert simplified(value) == text


def test_a_reduction_over_one_element_is_the_element() -> None:
    r0 = sizes.axis("r0")
    element = expr.load(F32, "x", P0 + r0)
    value = expr.op("add", F32, expr.reduce("sum", F32, element), element)
    loop = Loop("loop0", (Axis(P0, S0),), (Axis(r0, sizes.ONE),), (Store("out", P0, value),))
    loop = simplify_loop(loop, BUFFERS)
    assert not loop.reduced
    assert not any(isinstance(n, expr.Reduce) for n in expr.walk(*loop.roots))


# every rule keeps every bit ------------------------------------------------------------------------------------------

FLOATS = (0.0, -0.0, 1.0, -1.0, 2.5, math.inf, -math.inf, math.nan)
NUMBERS: dict[torch.dtype, tuple[object, ...]] = {F32: FLOATS, I64: (-2, -1, 0, 1, 3), BOOL: (False, True)}


@pytest.mark.parametrize("rule", rules.RULES, ids=[rule.reading for rule in rules.RULES])
def test_every_rule_keeps_every_bit(rule: rules.Rule) -> None:
    """Each rule at every combination of awkward numbers, each letter once a load and once a constant."""
    tried = 0
    infinite = any(isinstance(p, float) and math.isinf(p) for p in rule.pattern)
    for dtype, constant in itertools.product((F32,) if infinite else NUMBERS, (False, True)):
        types = _types(rule.pattern, dtype)
        letters = sorted(types)
        rows = list(itertools.product(*[NUMBERS[types[letter]] for letter in letters]))
        for row in rows if constant else rows[:1]:
            leaves = {k: _leaf(k, types[k], v, constant) for k, v in zip(letters, row, strict=True)}
            node = _build(rule.pattern, dtype, leaves)
            found: rules.Bindings = {}
            if rules.match(rule.pattern, node, found) and rule.when(found, node):
                tried += 1
                columns = [
                    torch.tensor(c, dtype=types[k]) for k, c in zip(letters, zip(*rows, strict=True), strict=True)
                ]
                _assert_equal(node, rule.result(found, node), dict(zip(letters, columns, strict=True)))
    assert tried


def _types(pattern: rules.Pattern, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The types of the pattern's letters where its numbers are of type `dtype`."""
    name, found = pattern[0], {}
    for position, p in enumerate(pattern[1:]):
        inner = BOOL if name.startswith("logical_") or (name == "where" and position == 0) else dtype
        found.update({p: inner} if isinstance(p, str) else _types(p, inner) if isinstance(p, tuple) else {})
    return found


def _leaf(letter: str, dtype: torch.dtype, value: object, constant: bool) -> Node:
    """`c` and `d` are constants by custom, `x` and `y` are not unless all are."""
    if constant and letter in ("c", "d"):
        return expr.const(value, dtype)  # type: ignore[arg-type]
    return expr.load(dtype, letter, P0)


def _build(pattern: rules.Pattern, dtype: torch.dtype, leaves: dict[str, Node]) -> Node:
    """The pattern as a node; numbers and results are of type `dtype`, an inner cast goes through a wider type."""
    if isinstance(pattern, str):
        return leaves[pattern]
    if not isinstance(pattern, tuple):
        return expr.const(pattern, BOOL if isinstance(pattern, bool) else dtype)
    args = [_build(p, dtype, leaves) for p in pattern[1:]]
    if pattern[0] == "cast" and isinstance(pattern[1], tuple):
        args = [expr.op("cast", torch.float64 if dtype == F32 else I64, *_as_op(args[0]).args)]
    made = BOOL if ops.definition(pattern[0]).result == "bool" else dtype
    return expr.op(pattern[0], made, *args)


def _as_op(node: Node) -> Op:
    assert isinstance(node, Op)
    return node


def _assert_equal(before: Node, after: Node, columns: dict[str, torch.Tensor]) -> None:
    if any(c.dtype == BOOL for c in columns.values()) and not _well_typed(before):
        return
    assert before.dtype == after.dtype
    results = []
    for node in (before, after):
        out = torch.empty(len(next(iter(columns.values()))), dtype=node.dtype)
        loop = Loop("loop0", (Axis(P0, sympy.Integer(len(out))),), (), (Store("out", P0, node),))
        interpret.run_loop(loop, {**columns, "out": out}, {}, None)
        results.append(out)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0, equal_nan=True)
    number = ~results[0].isnan()
    assert torch.equal(torch.signbit(results[0][number]), torch.signbit(results[1][number]))


def _well_typed(node: Node) -> bool:
    """Arithmetic on bool is no operation of the IR."""
    arithmetic = ("add", "sub", "mul", "div", "neg", "abs", "floordiv", "remainder", "pow", "minimum", "maximum")
    return not any(isinstance(n, Op) and n.name in arithmetic and n.args[0].dtype == BOOL for n in expr.walk(node))
