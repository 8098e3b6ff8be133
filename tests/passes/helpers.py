"""Programs for tests, built operator by operator with every result stored, and the check that a pass keeps their
meaning."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import sympy
import torch

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.value import Tensor, broadcast_point, computed, convert, stored
from polytile.ir import expr, printer, sizes
from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Node
from polytile.ir.loop import Loop, Store
from polytile.ir.program import Input, Program
from polytile.ir.template import Template
from polytile.ir.verify import verify
from polytile.passes.pipeline import optimize
from tests import interpret
from tests.frontend.lowering import lower

F32, I64, BOOL, BF16 = torch.float32, torch.int64, torch.bool, torch.bfloat16
S0, S1, S2 = (sympy.Symbol(f"s{i}", positive=True, integer=True) for i in range(3))
CPU = torch.device("cpu")
GOLDEN = Path(__file__).parent / "golden"
Size: TypeAlias = "sympy.Expr | int"


def optimized(function: Callable[..., Any], *args: torch.Tensor) -> Program:
    """A function of tensors of these sizes, lowered with symbolic ones, after all passes."""
    return optimize(lower(function, *args)).program


def loops(program: Program) -> list[Loop]:
    return [operation for operation in program.operations if isinstance(operation, Loop)]


class Net:
    """A small lowering: tensors in, one stored tensor for each operation out."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.inputs: list[str] = []

    def input(self, name: str, *shape: Size, dtype: torch.dtype = F32) -> Tensor:
        dims = tuple(sympy.sympify(n) for n in shape)
        buffer = Buffer(name, dtype, dims, sizes.contiguous_strides(dims), role="input")
        self.builder.buffers[name] = buffer
        self.inputs.append(name)
        return stored(whole(buffer), CPU)

    def buffer(self, *shape: Size, dtype: torch.dtype = F32) -> Tensor:
        """Memory that nothing has written to yet."""
        return stored(whole(self.builder.new_buffer([sympy.sympify(n) for n in shape], dtype, CPU)), CPU)

    def map(self, element: Callable[..., Node], *args: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """`element` of the broadcast arguments, stored."""
        shape = _broadcast(args)
        dtype = dtype or args[0].dtype
        return self.builder.realize(
            computed(shape, dtype, CPU, lambda p: element(*[a.at(broadcast_point(a.sizes, shape, p)) for a in args]))
        )

    def op(self, name: str, *args: Tensor | float) -> Tensor:
        """An operation of the table on tensors and numbers, rounded to the type of the first."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        dtype = tensors[0].dtype

        def element(*nodes: Node) -> Node:
            left = iter(nodes)
            values = [next(left) if isinstance(a, Tensor) else expr.const(a, compute_dtype(dtype)) for a in args]
            return convert(expr.op(name, compute_dtype(dtype), *values), dtype)

        return self.map(element, *tensors)

    def reduce(self, kind: str, x: Tensor, *dims: int, keepdim: bool = False) -> Tensor:
        build = lambda value, point: convert(expr.reduce(kind, compute_dtype(x.dtype), value), x.dtype)  # noqa: E731
        return self.builder.reduction(x, dims, keepdim, [(build, x.dtype)])[0]

    def scan(self, x: Tensor, kind: str = "sum") -> Tensor:
        """The prefix along the last dimension."""
        buffer = self.builder.new_buffer(x.sizes, x.dtype, CPU)
        axes = self.builder.axes(x.sizes[:-1])
        reduced = self.builder.axes(x.sizes[-1:], "r")
        point = tuple(a.symbol for a in axes + reduced)
        value = expr.scan(kind, x.dtype, x.at(point))
        self.builder.loop(axes, reduced, (Store(buffer.name, buffer.index(point), value),), "scan")
        return stored(whole(buffer), CPU)

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        """a (…, m, k) @ b (…, k, n), of rank 2 or 3."""
        out = self.builder.new_buffer((*a.sizes[:-1], b.sizes[-1]), a.dtype, CPU)
        assert a.view is not None and b.view is not None
        name, views = self.builder.name("mm"), [_batched(v) for v in (a.view, b.view, whole(out))]
        self.builder.emit(Template(name, "mm", views[0], views[1], views[2], origins=("mm",)))
        return stored(whole(out), CPU)

    def view(self, x: Tensor, *shape: Size) -> Tensor:
        """Another shape of a contiguous tensor, the same memory."""
        assert x.view is not None
        dims = tuple(sympy.sympify(n) for n in shape)
        return stored(replace(x.view, sizes=dims, strides=sizes.contiguous_strides(dims)), CPU)

    def permute(self, x: Tensor, *order: int) -> Tensor:
        assert x.view is not None
        dims, strides = x.view.sizes, x.view.strides
        new = replace(x.view, sizes=tuple(dims[d] for d in order), strides=tuple(strides[d] for d in order))
        return stored(new, CPU)

    def slice(self, x: Tensor, start: Size, length: Size) -> Tensor:
        """Part of the last dimension."""
        assert x.view is not None
        offset = x.view.offset + start * x.view.strides[-1]
        return stored(replace(x.view, sizes=(*x.view.sizes[:-1], sympy.sympify(length)), offset=offset), CPU)

    def item(self, x: Tensor, k: int) -> Tensor:
        """Element k of the last dimension, the first of all others, without dimensions."""
        assert x.view is not None
        return stored(replace(x.view, sizes=(), strides=(), offset=x.view.offset + k * x.view.strides[-1]), CPU)

    def write(self, target: Tensor, value: Tensor, mode: str = "set") -> None:
        assert target.view is not None
        self.builder.store(target.view, value, mode)

    def program(self, *outputs: Tensor) -> Program:
        views = tuple(o.view for o in outputs)
        inputs = tuple(Input(name, name) for name in self.inputs)
        return Program("test", inputs, self.builder.buffers, tuple(self.builder.operations), views)


def _broadcast(args: Sequence[Tensor]) -> tuple[sympy.Expr, ...]:
    rank = max(a.rank for a in args)
    columns = [[a.sizes[d] for a in args if d >= -a.rank and a.sizes[d] != 1] for d in range(-rank, 0)]
    return tuple(found[0] if found else sizes.ONE for found in columns)


def _batched(view: View) -> View:
    if len(view.sizes) == 3:
        return view
    return replace(view, sizes=(sizes.ONE, *view.sizes), strides=(sizes.ZERO, *view.strides))


def arguments(program: Program, values: dict[sympy.Symbol, int], seed: int = 0) -> list[torch.Tensor]:
    """Random inputs at the given sizes."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for item in program.inputs:
        buffer = program.buffers[item.buffer or ""]
        shape = [sizes.evaluate(n, values) for n in buffer.sizes]
        if buffer.dtype == I64:
            made.append(torch.randint(0, 3, shape, generator=generator))
        else:
            made.append(torch.randn(shape, generator=generator).to(buffer.dtype))
    return made


def assert_same(before: Program, after: Program, values: dict[sympy.Symbol, int], seed: int = 0) -> None:
    """Both programs give the same outputs and leave the same in their inputs, up to the order of additions."""
    verify(before, "building")
    verify(after, "the pass")
    args = arguments(before, values, seed), arguments(before, values, seed)
    results = [interpret.run(p, a) for p, a in zip((before, after), args, strict=True)]
    for want, got in zip((*results[0], *args[0]), (*results[1], *args[1]), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)


def assert_golden(name: str, program: Program) -> None:
    """The printed program is the text of golden/NAME.txt; POLYTILE_ACCEPT=1 writes the file instead."""
    path, text = GOLDEN / f"{name}.txt", printer.program_text(program) + "\n"
    if os.environ.get("POLYTILE_ACCEPT") == "1":
        path.write_text(text)
    assert path.exists(), f"{path} does not exist; POLYTILE_ACCEPT=1 writes it."
    assert text == path.read_text(), f"{path} differs; POLYTILE_ACCEPT=1 accepts the new text."


def kinds(program: Program) -> list[str]:
    """The operations by class, in order."""
    return [type(operation).__name__ for operation in program.operations]


def loop_of(program: Program, k: int = 0) -> Loop:
    loops = [operation for operation in program.operations if isinstance(operation, Loop)]
    return loops[k]


def softmax(net: Net, x: Tensor) -> Tensor:
    """Over the last dimension."""
    largest = net.reduce("max", x, -1, keepdim=True)
    power = net.op("exp", net.op("sub", x, largest))
    return net.op("div", power, net.reduce("sum", power, -1, keepdim=True))


def layer_norm(net: Net, x: Tensor, weight: Tensor, bias: Tensor, count: float) -> Tensor:
    """Over the last dimension, of `count` elements."""
    mean = net.op("div", net.reduce("sum", x, -1, keepdim=True), count)
    centred = net.op("sub", x, mean)
    variance = net.op("div", net.reduce("sum", net.op("mul", centred, centred), -1, keepdim=True), count)
    scaled = net.op("mul", centred, net.op("rsqrt", net.op("add", variance, 1e-5)))
    return net.op("add", net.op("mul", scaled, weight), bias)


__all__ = [
    "BF16", "BOOL", "CPU", "F32", "I64", "S0", "S1", "S2", "Net", "arguments", "assert_golden", "assert_same", "kinds",
    "layer_norm", "loop_of", "loops", "optimized", "softmax",
]  # fmt: skip
