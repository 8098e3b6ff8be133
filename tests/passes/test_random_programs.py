"""Random programs mean the same after all passes: pointwise work, reductions, scans, reshapes, transposes, slices,
products, broadcasts, writes to inputs, and buffers that several loops write (joins, slices written in place, writes by an index),
in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import hypothesis
import hypothesis.strategies as st

from polytile import options
from polytile.frontend.lower.value import Tensor
from polytile.ir import expr, sizes
from polytile.ir.loop import Store
from polytile.ir.program import Program
from polytile.passes import inplace
from polytile.passes.pipeline import optimize
from tests.passes.helpers import I64, S0, S1, Net, assert_same

Draw = Callable[..., int]


def _unary(net: Net, pool: list[Tensor], draw: Draw) -> Tensor:
    name = ("sin", "neg", "abs", "sigmoid")[draw(4)]
    return net.op(name, pool[draw(len(pool))])


def _binary(net: Net, pool: list[Tensor], draw: Draw) -> Tensor | None:
    a, b = pool[draw(len(pool))], pool[draw(len(pool))]
    fits = a.rank == b.rank and all(n == m or 1 in (n, m) for n, m in zip(a.sizes, b.sizes, strict=True))
    return net.op(("add", "mul", "maximum")[draw(3)], a, b) if fits else None


def _reduce(net: Net, pool: list[Tensor], draw: Draw) -> Tensor:
    x = pool[draw(len(pool))]
    dims = [d for d in range(x.rank) if draw(2)] or [draw(x.rank)]
    return net.reduce(("sum", "max", "min")[draw(3)], x, *dims, keepdim=True)


def _scan(net: Net, pool: list[Tensor], draw: Draw) -> Tensor:
    return net.scan(pool[draw(len(pool))])


def _contiguous(x: Tensor) -> bool:
    product = 1
    for size, stride in zip(reversed(x.sizes), reversed(x.view.strides if x.view else ()), strict=True):
        if size != 1 and stride != product:
            return False
        product = product * size
    return True


def _reshape(net: Net, pool: list[Tensor], draw: Draw) -> Tensor | None:
    x = pool[draw(len(pool))]
    if x.rank != 3 or not _contiguous(x):
        return None
    a, b, c = x.sizes
    return net.view(x, *((a * b, c), (a, b * c))[draw(2)])


def _back(net: Net, pool: list[Tensor], draw: Draw) -> Tensor | None:
    x = pool[draw(len(pool))]
    fits = x.rank == 2 and _contiguous(x) and x.numel == S0 * S1 * 4
    return net.view(x, S0, S1, 4) if fits else None


def _permute(net: Net, pool: list[Tensor], draw: Draw) -> Tensor:
    x = pool[draw(len(pool))]
    order = list(range(x.rank))
    k = draw(x.rank)
    return net.permute(x, *order[k:], *order[:k])


def _slice(net: Net, pool: list[Tensor], draw: Draw) -> Tensor | None:
    x = pool[draw(len(pool))]
    return net.slice(x, draw(3), 2) if x.sizes[-1] == 4 else None


def _product(net: Net, pool: list[Tensor], draw: Draw) -> Tensor | None:
    a, b = pool[draw(len(pool))], pool[draw(len(pool))]
    fits = a.rank == b.rank and a.sizes[:-2] == b.sizes[:-2] and a.sizes[-1] == b.sizes[-2]
    return net.mm(a, b) if fits else net.mm(a, net.permute(a, *range(a.rank - 2), a.rank - 1, a.rank - 2))


def _write(net: Net, pool: list[Tensor], draw: Draw) -> None:
    """An input is overwritten by something of its shape; later reads see that."""
    target = pool[draw(2)]
    source = pool[draw(len(pool))]
    if target.sizes == source.sizes and source.view != target.view:
        net.write(target, net.op("add", target, source))


def _copy(net: Net, x: Tensor) -> Tensor:
    return net.map(lambda value: value, x)


def _join(net: Net, pool: list[Tensor], draw: Draw) -> Tensor | None:
    """Pieces side by side in one buffer, a loop each, in any order of the loops."""
    x = pool[draw(len(pool))]
    able = [t for t in pool if t.sizes[:-1] == x.sizes[:-1]]
    pieces = [able[draw(len(able))] for _ in range(2 + draw(3))]
    ends = list(itertools.accumulate(t.sizes[-1] for t in pieces))
    whole = net.buffer(*x.sizes[:-1], ends[-1])
    for k in range(len(pieces)) if draw(2) else reversed(range(len(pieces))):
        net.write(net.slice(whole, ends[k] - pieces[k].sizes[-1], pieces[k].sizes[-1]), pieces[k])
    return whole


def _stack(net: Net, pool: list[Tensor], draw: Draw) -> Tensor:
    """The same of single numbers, which no index tells apart."""
    numbers = [net.item(pool[draw(len(pool))], 0) for _ in range(2 + draw(3))]
    whole = net.buffer(len(numbers))
    for k, number in enumerate(numbers):
        net.write(net.item(whole, k), net.op("neg", number))
    return net.op("abs", net.view(whole, 1, len(numbers)))


def _write_slice(net: Net, pool: list[Tensor], draw: Draw) -> Tensor | None:
    """A copy of which some columns are overwritten, or added to, once or twice; what it was between is read too."""
    x = pool[draw(len(pool))]
    values = [t for t in pool if t.sizes == (*x.sizes[:-1], 2)]
    if x.sizes[-1] != 4 or not values:
        return None
    copy = _copy(net, x)
    for _ in range(1 + draw(2)):
        if draw(2):
            pool.append(net.op("neg", copy))
        net.write(net.slice(copy, draw(3), 2), values[draw(len(values))], ("set", "add")[draw(2)])
    return copy


def _put(net: Net, pool: list[Tensor], draw: Draw) -> Tensor | None:
    """A copy of which each row gets a value in the column that an index names; or all rows add theirs up in the first one."""
    able = [t for t in pool if t.sizes == (S0, S1, 4)]
    copy, values = _copy(net, able[draw(len(able))]), able[draw(len(able))]
    assert copy.view is not None
    i, row = sizes.axis("p0"), sizes.axis("p1")
    mode, to = (("set", row), ("add", row), ("add", sizes.ZERO))[draw(3)]
    column = expr.load(I64, "i", row)
    index = copy.view.index((i, to, expr.indirect_symbol(0)))
    store = Store(copy.view.buffer, index, values.at((i, row, sizes.ONE)), mode, (column,))
    net.builder.loop(net.builder.axes((S0, S1)), (), (store,))
    return copy


STEPS = (
    *(_unary, _unary, _binary, _binary, _binary, _reduce, _reduce),
    *(_scan, _reshape, _back, _permute, _slice, _product, _write, _join, _stack, _write_slice, _put),
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    net = Net()
    pool = [net.input("x", S0, S1, 4), net.input("y", S0, S1, 4), net.input("w", 1, S1, 4)]
    net.input("i", S1, dtype=I64)

    def number(below: int) -> int:
        return draw(st.integers(0, below - 1))

    for _ in range(draw(st.integers(2, 14))):
        new = STEPS[number(len(STEPS))](net, pool, number)
        if new is not None and new.rank >= 2:
            pool.append(new)
    outputs = [t for t in pool[3:] if number(3) == 0][:3] or [net.op("neg", pool[-1])]
    return net.program(*outputs)


@hypothesis.given(programs(), st.sampled_from([(2, 3), (3, 2), (1, 5), (4, 1)]))
@hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck))
def test_random_programs_mean_the_same_after_all_passes(before: Program, extents: tuple[int, int]) -> None:
    with options.override(verify_ir=True):
        after = optimize(before).program
    assert len(after.operations) <= len(before.operations)
    assert_same(before, after, dict(zip((S0, S1), extents, strict=True)))


@hypothesis.given(programs())
@hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck))
def test_memory_is_taken_over_only_from_buffers_that_die(before: Program) -> None:
    program, reuse = optimize(before)
    used = {n: i for i, o in enumerate(program.operations) for n in o.reads() | o.writes()}
    for new, old in reuse.items():
        assert program.buffers[old].role == program.buffers[new].role == "temp"
        assert old not in program.output_buffers()
        assert new in program.operations[used[old]].writes()
    assert len(set(reuse.values())) == len(reuse)
    assert inplace.reuse(program) == reuse
