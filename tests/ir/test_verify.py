"""Each rule of the verifier: a legal program passes, one that breaks the rule is named with the rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
import torch

from polytile.errors import IRError
from polytile.ir import expr, sizes
from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.expr import Node
from polytile.ir.library_call import Ref
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.program import Assert, Extern, Input, Operation, Program
from polytile.ir.template import Template
from polytile.ir.verify import verify

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
S0, S1, UNKNOWN = (sympy.Symbol(name, positive=True, integer=True) for name in ("s0", "s1", "u0"))
P0, P1, R0 = (sizes.axis(name) for name in ("p0", "p1", "r0"))
X = Buffer("x", F32, (S0, S1), (S1, sizes.ONE), role="input")
OUT = Buffer("out", F32, (S0, S1), (S1, sizes.ONE))
ROW = Buffer("row", F32, (S0,), (sizes.ONE,))
HELD = Buffer("held", F32, (S0,), (sizes.ONE,), role="constant")
ELEMENT = expr.load(F32, "x", P0 * S1 + P1)
AXES = (Axis(P0, S0), Axis(P1, S1))


def program(*operations: Operation, outputs: tuple[View, ...] = ()) -> Program:
    buffers = {b.name: b for b in (X, OUT, ROW, HELD)}
    return Program("test", (Input("x", "x"),), buffers, operations, outputs)


def loop(value: Node, index: sympy.Expr = P0 * S1 + P1, buffer: str = "out", **changes: object) -> Loop:
    return replace(Loop("loop0", AXES, (), (Store(buffer, index, value),)), **changes)  # type: ignore[arg-type]


def rows(value: Node) -> Loop:
    return Loop("loop0", (Axis(P0, S0),), (Axis(R0, S1),), (Store("row", P0, value),))


def product(**changes: object) -> Template:
    square = View("x", F32, (sizes.ONE, S0, S1), (sizes.ZERO, S1, sizes.ONE))
    other = View("x", F32, (sizes.ONE, S1, S0), (sizes.ZERO, sizes.ONE, S1))
    out = View("out", F32, (sizes.ONE, S0, S0), (sizes.ZERO, S0, sizes.ONE))
    return replace(Template("mm0", "mm", square, other, out), **changes)  # type: ignore[arg-type]


ACCUMULATOR = expr.make(expr.Accumulator, dtype=F32)
EPILOGUE_AXES = tuple(Axis(sizes.axis(name), n) for name, n in (("b", sizes.ONE), ("m", S0), ("n", S0)))
ROW_ELEMENT = expr.load(F32, "x", P0 * S1 + R0)

LEGAL: dict[str, Program] = {
    "pointwise": program(loop(expr.op("exp", F32, ELEMENT)), outputs=(whole(OUT),)),
    "reduction": program(rows(expr.reduce("sum", F32, ROW_ELEMENT)), outputs=(whole(ROW),)),
    "in place": program(loop(expr.op("exp", F32, ELEMENT), buffer="x")),
    "past the end, at no point": program(
        loop(expr.load(F32, "x", P0 * S1 + P1 + 2 * S0 * S1), axes=(Axis(P0, sizes.ZERO), Axis(P1, S1)))
    ),
    "a sum of a constant": program(rows(expr.reduce("sum", F32, expr.const(1.0, F32)))),
    "epilogue": program(
        product(
            epilogue=Loop("e", EPILOGUE_AXES, (), (Store("out", sizes.axis("m") * S0 + sizes.axis("n"), ACCUMULATOR),))
        )
    ),
    "assertion": program(Assert("assert0", sympy.Eq(S0, S1), "sizes differ")),
    "library": program(Extern("lib0", torch.neg, (Ref(whole(X)),), (), ("out",)), outputs=(whole(OUT),)),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_programs_pass(name: str) -> None:
    verify(LEGAL[name], "building")


ILLEGAL: dict[str, tuple[Program, str]] = {
    "read before written": (
        program(loop(expr.load(F32, "row", P0))),
        "reads buffer row, which nothing has written yet",
    ),
    "output never written": (program(outputs=(whole(OUT),)), "output out is never written"),
    "unknown buffer": (program(loop(expr.load(F32, "nowhere", P0))), "buffer nowhere is not declared"),
    "constant written": (program(loop(ELEMENT, P0, "held")), "writes the constant held"),
    "same name twice": (program(loop(ELEMENT), loop(ELEMENT)), "two operations are named loop0"),
    "axis twice": (program(loop(ELEMENT, axes=(*AXES, Axis(P0, S1)))), "defines the axis p0 twice"),
    "size unknown": (program(loop(ELEMENT, axes=(Axis(P0, UNKNOWN), AXES[1]))), "uses the size u0"),
    "symbol unknown": (program(loop(expr.load(F32, "x", R0))), "uses r0, which is neither"),
    "half type": (program(loop(expr.op("cast", torch.bfloat16, ELEMENT))), "computes in torch.bfloat16"),
    "types differ": (program(loop(expr.op("add", F32, ELEMENT, expr.const(1, I64)))), "add has arguments of types"),
    "wrong result type": (
        program(loop(expr.op("lt", F32, ELEMENT, ELEMENT))),
        "lt of torch.float32 gives torch.float32",
    ),
    "wrong arity": (program(loop(expr.op("add", F32, ELEMENT))), "add takes 2 arguments, has 1"),
    "where without bool": (program(loop(expr.op("where", F32, ELEMENT, ELEMENT, ELEMENT))), "where of"),
    "logic on numbers": (program(loop(expr.op("logical_not", BOOL, ELEMENT))), "takes and gives bool"),
    "unknown operation": (program(loop(expr.op("frobnicate", F32, ELEMENT))), "no IR operation 'frobnicate'"),
    "load of another width": (program(loop(expr.load(I64, "x", P0))), "loads torch.int64 from x"),
    "mask of numbers": (program(loop(expr.load(F32, "x", P0, (), ELEMENT))), "under a mask of torch.float32"),
    "reduction without axis": (program(loop(expr.reduce("sum", F32, ELEMENT))), "no reduced axis"),
    "unknown kind": (program(rows(expr.reduce("median", F32, ROW_ELEMENT))), "the unknown kind 'median'"),
    "scan over two axes": (
        program(replace(rows(expr.scan("sum", F32, ROW_ELEMENT)), axes=(), reduced=(Axis(P0, S0), Axis(R0, S1)))),
        "a scan has one",
    ),
    "part not named": (program(rows(expr.reduce("welford", F32, ROW_ELEMENT))), "without saying which part"),
    "part out of range": (
        program(rows(expr.part(expr.reduce("welford", F32, ROW_ELEMENT), 2, F32))),
        "takes part 2 of a value of 2 results",
    ),
    "accumulator in a loop": (program(loop(ACCUMULATOR)), "reads the accumulator but is no epilogue"),
    "epilogue of another shape": (
        program(product(epilogue=Loop("e", AXES, (), (Store("out", P0, ACCUMULATOR),)))),
        "the epilogue runs over",
    ),
    "product sizes differ": (program(product(b=product().a)), "sizes s1 and s0 differ"),
    "past the end": (program(loop(expr.load(F32, "x", P0 * S1 + P1 + S0 * S1))), "reaches element"),
    "before the start": (program(loop(expr.load(F32, "x", sympy.Integer(-1)))), "reaches element -1"),
    "view past the end": (
        program(Extern("lib0", torch.neg, (Ref(replace(whole(X), offset=S0 * S1)),), (), ("out",))),
        "a view of x reaches element",
    ),
    "in place at another element": (
        program(Loop("loop0", AXES, (), (Store("x", P0 * S1 + P1, expr.load(F32, "x", P1)),))),
        "reads x[p1] and writes x[p0*s1 + p1] in the same memory",
    ),
    "read again after written": (
        program(
            Loop(
                "loop0",
                (Axis(P0, S0),),
                (Axis(R0, S1),),
                (
                    Store("x", P0 * S1 + R0, expr.op("neg", F32, ROW_ELEMENT)),
                    Store("out", P0 * S1 + R0, expr.op("sub", F32, ROW_ELEMENT, expr.reduce("max", F32, ROW_ELEMENT))),
                ),
            )
        ),
        "reads x[p0*s1 + r0] again after it wrote",
    ),
    "nothing stored": (program(loop(ELEMENT, stores=())), "stores nothing"),
    "assertion on unknown size": (program(Assert("assert0", sympy.Eq(UNKNOWN, 1), "")), "uses the size u0"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_programs_are_named_with_pass_and_fault(name: str) -> None:
    illegal, message = ILLEGAL[name]
    with pytest.raises(IRError) as caught:
        verify(illegal, "some pass")
    assert message in str(caught.value)
    assert str(caught.value).startswith("after some pass: ")
