"""Memory: what dies is freed or taken over, and nothing that lives is ever written over."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis
import hypothesis.strategies as st
import sympy
import torch

from polytile.frontend.lower.value import Tensor
from polytile.ir import sizes
from polytile.ir.aliases import maybe_aliased
from polytile.ir.buffer import Buffer
from polytile.ir.program import Program
from polytile.passes.pipeline import optimize
from polytile.wrapper import backend, lines, memory
from polytile.wrapper.lines import Line
from tests import interpret
from tests.passes.helpers import S0, S1, Net, arguments
from tests.passes.test_random_programs import STEPS
from tests.wrapper.helpers import LibraryNet, like, lines_of, wrapped

aten = torch.ops.aten


def named(found: tuple[Line, ...], kind: type[Any]) -> list[Any]:
    return [line for line in found if isinstance(line, kind)]


def chain(net: Net, x: Tensor, length: int) -> Tensor:
    """x → sin → sin → ..., every step stored."""
    for _ in range(length):
        x = net.op("sin", x)
    return x


# reuse ---------------------------------------------------------------------------------------------------------------


def test_a_freed_buffer_of_the_same_size_type_and_device_is_taken_over() -> None:
    net = Net()
    program = net.program(chain(net, net.input("x", S0, S1), 5))
    found = lines_of(program)
    assert len(named(found, lines.Allocate)) == 2, "two buffers take turns"
    assert len(named(found, lines.Reuse)) == 3


def test_a_buffer_that_is_computed_over_needs_no_second_one() -> None:
    net = Net()
    program = net.program(chain(net, net.input("x", S0, S1), 5))
    inplace = {f"buf{k + 1}": f"buf{k}" for k in range(4)}
    found = lines_of(program, inplace)
    assert len(named(found, lines.Allocate)) == 1
    (x,) = args = [torch.randn(3, 4)]
    want = x.sin().sin().sin().sin().sin()
    torch.testing.assert_close(wrapped(program, inplace).call(args)[0], want)


def test_memory_of_another_size_or_type_is_not_taken() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    small = net.reduce("sum", net.op("sin", x), 1)
    wide = net.map(lambda n: n, net.op("cos", x), dtype=torch.bfloat16)
    program = net.program(small, net.op("neg", wide))
    reused = named(lines_of(program), lines.Reuse)
    assert all(r.buffer.dtype == r.old.dtype and r.buffer.storage_size == r.old.storage_size for r in reused)


def test_memory_of_the_same_size_in_another_shape_is_taken() -> None:
    net = Net()
    x = chain(net, net.input("x", S0, S1), 1)
    turned = net.op("sin", net.op("cos", net.permute(x, 1, 0)))
    found = lines_of(net.program(turned))
    (reuse,) = named(found, lines.Reuse)
    assert reuse.buffer.sizes != reuse.old.sizes


def test_memory_of_nothing_is_not_taken_for_an_element() -> None:
    """From the first element of 3×0×0 to the last there is one by the formula, and none in memory."""
    maybe = sympy.Symbol("u0", integer=True, nonnegative=True)

    def key(*shaped: sympy.Expr | int, strides: tuple[int, ...] | None = None) -> memory.PoolKey:
        shape = tuple(map(sympy.sympify, shaped))
        laid = sizes.contiguous_strides(shape) if strides is None else tuple(map(sympy.sympify, strides))
        return memory._key(Buffer("b", torch.float32, shape, laid))

    assert key(3, 0, 0, strides=(1, 1, 1)) != key(1, 1)
    assert key(maybe, 4) == key(4 * maybe) == key(2, maybe, 2)
    assert key(S0, 4) == key(4 * S0) != key(maybe, 4)


def test_results_constants_and_inputs_are_never_taken_over() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    a = net.op("sin", x)
    b = net.op("cos", a)
    c = net.op("neg", b)
    program = net.program(a, c)
    assert not {r.old.name for r in named(lines_of(program), lines.Reuse)} & {"x", a.view.buffer if a.view else ""}


def test_memory_that_a_library_call_may_have_returned_a_part_of_is_not_taken_over() -> None:
    net = LibraryNet()
    x = net.op("sin", net.input("x", S0, S1))
    assert x.view is not None
    flipped = like(x, sizes=x.sizes[::-1], strides=x.view.strides[::-1])
    part = net.library(aten.t.default, x, like=(flipped,))
    y = net.op("cos", net.input("y", S0, S1))
    program = net.program(part, net.op("neg", y))
    assert x.view.buffer in maybe_aliased(program)
    for inplace in ({}, {y.view.buffer if y.view else "": x.view.buffer}):
        call = wrapped(program, inplace).call
        a, b = torch.randn(3, 4), torch.randn(3, 4)
        got = call([a, b])
        torch.testing.assert_close(got[0], a.sin().t())
        torch.testing.assert_close(got[1], -b.cos())


def test_memory_is_not_held_for_later_where_that_would_raise_the_peak() -> None:
    """`small` frees its memory before two large buffers are live, and would be taken over only after."""
    net = Net()
    x = net.input("x", S0, S1)
    first = net.op("neg", net.op("sin", net.reduce("sum", x, 1)))
    wide = net.op("cos", net.op("sin", x))
    last = net.op("sin", net.reduce("sum", wide, 1))
    program = net.program(first, last)
    held = lines_of(program, traced={S0: 4, S1: 1_000_000})
    position = {line: k for k, line in enumerate(held)}
    wide_at = next(k for k, line in enumerate(held) if isinstance(line, lines.Allocate) and len(line.buffer.sizes) == 2)
    for reuse in named(held, lines.Reuse):
        if len(reuse.buffer.sizes) == 1:
            freed_early = reuse.old.name in {
                line.buffer.name for line in held[:wide_at] if isinstance(line, lines.Allocate)
            }
            assert not (freed_early and position[reuse] > wide_at)


# freeing -------------------------------------------------------------------------------------------------------------


def test_inputs_are_freed_after_their_last_use() -> None:
    net = Net()
    x, y, unused = net.input("x", S0), net.input("y", S0), net.input("unused", S0)
    del unused
    a = net.op("sin", x)
    program = net.program(net.op("add", a, y))
    found = lines_of(program)
    freed = [line.name for line in named(found, lines.Free)]
    assert freed.index("unused") < freed.index("x") < freed.index("y")
    seen: list[list[bool]] = []
    args = [torch.randn(3) for _ in range(3)]
    alive = [weakref.ref(t) for t in args]

    def watching(line: Line) -> Line:
        if not isinstance(line, lines.DefineKernel):
            return line
        run = line.run

        def call(*given: Any) -> None:
            seen.append([r() is not None for r in alive])
            run(*given)

        return lines.DefineKernel(line.name, call)

    run = backend("python")("watched", tuple(map(watching, found))).call
    gc.collect()
    run(args)
    assert args == [], "the caller's list is emptied, or it would hold its tensors"
    assert seen == [[True, True, False], [False, True, False]]


def test_views_go_with_the_operation_that_needed_them() -> None:
    net = LibraryNet()
    x = net.op("sin", net.input("x", S0, 4))
    part = net.slice(x, 1, 2)
    program = net.program(net.library(aten.sin.default, part, like=(net.op("neg", part),)))
    found = lines_of(program)
    made = [line.name for line in named(found, lines.MakeView)]
    freed = [line.name for line in named(found, lines.Free)]
    assert made and set(made) <= set(freed)


# any program ---------------------------------------------------------------------------------------------------------


def _sorted(net: Net, pool: list[Tensor], draw: Callable[[int], int]) -> Tensor:
    x = pool[draw(len(pool))]
    assert isinstance(net, LibraryNet)
    values, _ = net.library(aten.sort.default, x, -1, False, like=(_row_major(net, x), _indices(net, x)), many=True)
    return values


def _transposed(net: Net, pool: list[Tensor], draw: Callable[[int], int]) -> Tensor | None:
    """A library call that returns a view of its argument, which nobody writes to afterwards."""
    x = pool[draw(len(pool))]
    assert isinstance(net, LibraryNet) and x.view is not None
    if x.view.buffer in net.inputs:
        return None
    order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    result = like(x, sizes=tuple(x.sizes[d] for d in order), strides=tuple(x.view.strides[d] for d in order))
    return net.library(aten.transpose.int, x, -2, -1, like=(result,))


def _row_major(net: Net, x: Tensor) -> Tensor:
    return like(x, strides=sizes.contiguous_strides(x.sizes))


def _indices(net: Net, x: Tensor) -> Tensor:
    return replace(_row_major(net, x), dtype=torch.int64)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    net = LibraryNet()
    pool = [net.input("x", S0, S1, 4), net.input("y", S0, S1, 4), net.input("w", 1, S1, 4)]
    net.input("i", S1, dtype=torch.int64)

    def number(below: int) -> int:
        return draw(st.integers(0, below - 1))

    steps = (*STEPS, _sorted, _transposed)
    for _ in range(draw(st.integers(3, 16))):
        new = steps[number(len(steps))](net, pool, number)
        if new is not None and new.rank >= 2:
            pool.append(new)
    outputs = [t for t in pool[3:] if number(3) == 0][:3] or [net.op("neg", pool[-1])]
    return net.program(*outputs)


@hypothesis.given(programs(), st.sampled_from([(2, 3), (3, 2), (1, 5)]), st.booleans())
@hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck), max_examples=60)
def test_wrapped_programs_do_what_the_interpreter_says(program: Program, extents: tuple[int, int], fused: bool) -> None:
    inplace: dict[str, str] = {}
    if fused:
        program, inplace = optimize(program)
    values = dict(zip((S0, S1), extents, strict=True))
    want_args, got_args = arguments(program, values), arguments(program, values)
    kept = list(got_args)
    want = interpret.run(program, want_args)
    run = wrapped(program, inplace)
    got = run.call(got_args)
    assert got_args == []
    for mine, right in zip((*got, *kept), (*want, *want_args), strict=True):
        assert mine.shape == right.shape, run.source
        torch.testing.assert_close(
            mine, right, rtol=1e-4, atol=1e-4, equal_nan=True, msg=lambda m: f"{m}\n{run.source}"
        )


@hypothesis.given(programs())
@hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck))
def test_no_name_is_used_after_it_was_freed(program: Program) -> None:
    program, inplace = optimize(program)
    alive: set[str] = set()
    for line in lines_of(program, inplace):
        match line:
            case lines.TakeArguments():
                alive |= set(line.names)
            case lines.Allocate() | lines.PickOutput():
                assert line.buffer.name not in alive
                alive.add(line.buffer.name)
            case lines.Reuse():
                assert line.old.name in alive
                alive.add(line.buffer.name)
            case lines.MakeView():
                assert line.view.buffer in alive
                alive.add(line.name)
            case lines.CallKernel():
                assert set(line.tensors) <= alive
            case lines.Free() if not line.name.startswith("result"):
                alive.remove(line.name)
            case lines.Return():
                assert {v for v in line.values if isinstance(v, str)} <= alive
