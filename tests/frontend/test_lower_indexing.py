"""Reading and writing at positions that are data, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from polytile.frontend.lower.positions import bounds, position
from polytile.ir import expr, sizes
from polytile.ir.program import Extern, Program
from tests.frontend.lowering import agrees, check, library_calls, lower, run

Function = Callable[..., Any]


def text(program: Program) -> str:
    from polytile.ir.printer import program_text

    return program_text(program)


def filled(fn: Callable[[torch.Tensor], None]) -> Function:
    """What `fn` makes of a copy of its first argument."""

    def on_copy(x: torch.Tensor, *others: Any) -> torch.Tensor:
        x = x.clone()
        fn(x, *others)
        return x

    return on_copy


def test_a_gather_of_few_elements_computes_those_alone() -> None:
    def loss(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, 1).gather(1, i)

    program = check(loss, torch.randn(6, 7), torch.randint(0, 7, (6, 1)))
    stored = [buffer for buffer in program.buffers.values() if buffer.role == "temp"]
    assert all(1 in buffer.sizes for buffer in stored)
    check(lambda x, i: (x * 2).exp().gather(1, i), torch.randn(6, 7), torch.randint(0, 7, (6, 7)))
    check(lambda x, i: (x * 2).exp().gather(0, i), torch.randn(6, 7), torch.randint(0, 6, (9, 7)))


# x[indices] -----------------------------------------------------------------------------------------------------------

READS: dict[str, Function] = {
    "rows": lambda x, i, j: x[i],
    "rows by a matrix": lambda x, i, j: x[j],
    "columns": lambda x, i, j: x[:, i],
    "neighbours": lambda x, i, j: x[:, i, i],
    "neighbours, broadcast": lambda x, i, j: x[:, i, j],
    "apart": lambda x, i, j: x[i, :, j],
    "apart, leading dimensions first": lambda x, i, j: x[:, i].unsqueeze(0)[0, :, j],
    "one of a row": lambda x, i, j: x[:, i[:1]].squeeze(1),
    "negative": lambda x, i, j: x[-i - 1],
    "int32": lambda x, i, j: x[i.int()],
    "computed source": lambda x, i, j: (x * 2).transpose(0, 1)[i],
    "computed index": lambda x, i, j: x[(i + 1) % 3],
    "index_select": lambda x, i, j: x.index_select(2, i),
    "gather": lambda x, i, j: x.gather(1, j.unsqueeze(-1).expand(-1, -1, 5)),
    "take": lambda x, i, j: x.take(j * 7 - 3),
    "take_along_dim": lambda x, i, j: x.take_along_dim(x.argsort(1), 1),
    "embedding": lambda x, i, j: F.embedding(j, x[0], padding_idx=1),
    "cross entropy": lambda x, i, j: F.cross_entropy(x[:, 0], i[0].expand(x.shape[0]), ignore_index=2),
    "grad of rows": lambda x, i, j: torch.func.grad(lambda x: x[i].square().sum())(x),
    "grad of an embedding": lambda x, i, j: torch.func.grad(lambda w: F.embedding(j, w, padding_idx=1).square().sum())(
        x[0]
    ),
    "grad of gather": lambda x, i, j: torch.func.grad(lambda x: x.gather(1, j.unsqueeze(-1)).square().sum())(x),
    "grad of a reflected pad": lambda x, i, j: torch.func.grad(lambda x: F.pad(x, (2, 1), mode="reflect").exp().sum())(
        x
    ),
}


@pytest.mark.parametrize("name", READS)
def test_reads_at_positions(name: str) -> None:
    def sample(a: int, b: int, c: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(a, b, c), torch.randint(0, 3, (c,)), torch.randint(0, 3, (a, c))

    sorts = name == "take_along_dim"  # the sort is the library's; the decomposition makes sizes numbers
    program = check(READS[name], *sample(4, 6, 5), library=sorts)
    for shape in () if sorts else ((3, 7, 5), (8, 4, 5)):
        agrees(program, READS[name], *sample(*shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.bool, torch.uint8])
def test_reads_of_any_type(dtype: torch.dtype) -> None:
    x, i = torch.randint(0, 9, (4, 6)).to(dtype), torch.tensor([2, 0, -1])
    check(lambda x, i: (x[i], x.gather(1, i.abs().unsqueeze(0)), x.t()[i]), x, i)


TRUTH_VALUES = {
    "scatter_add": lambda x, y, i: x.scatter_add(1, i, y),
    **{
        f"{reduce}, {kind}": lambda x, y, i, reduce=reduce, kept=kept: x.scatter_reduce(1, i, y, reduce, include_self=kept)
        for reduce in ("sum",)
        for kind, kept in (("kept", True), ("replaced", False))
    },
    "index_put": lambda x, y, i: x.index_put([i[0]], y[:4], accumulate=True),
    "put": lambda x, y, i: x.put(i, y[:, :4], accumulate=True),
    "mask": lambda x, y, i: x.index_put([y], y[0, 0], accumulate=True),
}


@pytest.mark.parametrize("name", TRUTH_VALUES)
def test_truth_values_accumulate(name: str) -> None:
    """A sum of them holds where any does."""
    x, y = torch.rand(6, 6) > 0.5, torch.rand(6, 6) > 0.5
    check(TRUTH_VALUES[name], x, y, torch.randint(0, 6, (6, 4)))


def test_complex_values_are_the_library_s() -> None:
    program = check(lambda x, i: x[i], torch.randn(4, dtype=torch.complex64), torch.tensor([1, 2]), library=True)
    assert library_calls(program) == ["aten.index.Tensor"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: x[i],
        lambda x, i: x.index_select(0, i),
        lambda x, i: F.embedding(i, x),
        lambda x, i: x.gather(0, i.unsqueeze(1)),
        lambda x, i: x.take(i * 3),
        lambda x, i: x.scatter(0, i.unsqueeze(1), 1.0),
        lambda x, i: x.index_put([i], x[0]),
        lambda x, i: x.index_add(0, i, x[:3]),
    ],
)
def test_a_position_out_of_range_is_an_index_error_when_the_program_runs(fn: Function) -> None:
    x, good = torch.randn(5, 3), torch.tensor([4, 0, 2])
    program = check(fn, x, good)
    for bad in (torch.tensor([0, 5, 1]), torch.tensor([0, 1, -6])):
        with pytest.raises(IndexError):
            run(program, [x, bad])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: x.index_select(0, i),
        lambda x, i: F.embedding(i, x),
        lambda x, i: x.gather(0, i.unsqueeze(1)),
        lambda x, i: x.scatter(0, i.unsqueeze(1), 1.0),
    ],
)
def test_negative_positions_count_from_the_end_only_where_they_do_in_eager(fn: Function) -> None:
    x, negative = torch.randn(5, 3), torch.tensor([0, 1, -1])
    program = lower(fn, x, torch.tensor([0, 1, 2]))
    with pytest.raises((IndexError, RuntimeError)):
        fn(x, negative)
    with pytest.raises(IndexError):
        run(program, [x, negative])


@pytest.mark.parametrize(
    "fn",
    [lambda x, i: x[i], lambda x, i: x[:, i], lambda x, i: x[i, i], lambda x, i: x.index_put([i], x.new_ones(()))],
    ids=["rows", "columns", "both", "written"],
)
def test_an_index_into_a_dimension_of_nothing_is_an_error_even_for_no_elements(fn: Function) -> None:
    nothing, index = torch.zeros(0, 0), torch.tensor([0])
    with pytest.raises(IndexError):
        fn(nothing, index)
    with pytest.raises(IndexError, match="has no elements"):
        run(lower(fn, nothing, index), [nothing, index])
    check(fn, nothing, index[:0])


def test_nothing_to_read_and_nothing_to_read_from() -> None:
    none = torch.empty(0, dtype=torch.int64)
    check(lambda x, i: (x[i], x.index_select(1, i), x[:, i, i]), torch.randn(4, 3, 2), none)
    check(lambda x, i: (x[i], x.index_put([i], x[:0])), torch.randn(0, 3), none)
    check(lambda x, i: (x.gather(0, i), x.index_select(0, i)), torch.tensor(3.0), torch.tensor([0]))
    check(lambda x, i: x.gather(0, i), torch.randn(4), torch.tensor(2))
    check(lambda x, i: x.scatter(0, i, 2.0), torch.tensor(3.0), torch.tensor(0))


# positions that need no check -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "checked"),
    [
        (lambda x, i: x[torch.arange(x.shape[0])], False),
        (lambda x, i: x[torch.arange(2, x.shape[0])], False),
        (lambda x, i: x[x.shape[0] - 1 - torch.arange(x.shape[0])], False),
        (lambda x, i: x[torch.arange(x.shape[0] + 1)[:-1]], False),
        (lambda x, i: x[i % x.shape[0]], False),
        (lambda x, i: x[i.clamp(0, x.shape[0] - 1)], False),
        (lambda x, i: F.pad(x.unsqueeze(0), (1, 2), mode="replicate"), False),
        (lambda x, i: x[torch.arange(3) + i.shape[0]], True),
        (lambda x, i: x[i + 1], True),
        (lambda x, i: x[i.clamp(max=x.shape[0] - 1)], True),
    ],
)
def test_a_position_that_is_plainly_in_range_is_not_checked(fn: Function, checked: bool) -> None:
    program = check(fn, torch.randn(7, 4), torch.tensor([0, 3, 1]))
    assert ("check_index" in text(program)) == checked


@given(
    st.recursive(
        st.integers(-4, 4) | st.sampled_from(["a", "b", "a-b", "3*a+1"]),
        lambda inner: (
            st.tuples(st.sampled_from(["add", "sub", "maximum", "minimum", "remainder", "where"]), inner, inner)
            | st.tuples(st.sampled_from(["neg", "abs"]), inner)
        ),
        max_leaves=6,
    )
)
def test_bounds_of_a_value_hold_at_every_point(tree: Any) -> None:
    a, b = sizes.axis("a"), sizes.axis("b")
    ranges = {a: sizes.as_size(3), b: sizes.as_size(4)}
    leaf = {"a": a, "b": b, "a-b": a - b, "3*a+1": 3 * a + 1}

    def node(tree: Any) -> expr.Node:
        if isinstance(tree, int):
            return expr.const(tree, torch.int64)
        if isinstance(tree, str):
            return expr.index_value(leaf[tree])
        args = [node(t) for t in tree[1:]]
        if tree[0] == "where":
            args = [expr.op("lt", torch.bool, *args), *args]
        return expr.op(tree[0], torch.int64, *args)

    def value(tree: Any, at: dict[Any, int]) -> int:
        if isinstance(tree, int):
            return tree
        if isinstance(tree, str):
            return sizes.evaluate(leaf[tree], at)
        x, *y = (value(t, at) for t in tree[1:])
        match tree[0]:
            case "neg":
                return -x
            case "abs":
                return abs(x)
            case "add":
                return x + y[0]
            case "sub":
                return x - y[0]
            case "maximum":
                return max(x, y[0])
            case "minimum":
                return min(x, y[0])
            case "remainder":
                return x % (y[0] or 1)
            case _:
                return x if x < y[0] else y[0]

    found = bounds(node(tree), ranges)
    for i in range(3):
        for j in range(4):
            v = value(tree, {a: i, b: j})
            assert all(int(low.subs({a: i, b: j})) <= v for low in found.low)
            assert all(int(high.subs({a: i, b: j})) >= v for high in found.high)


def test_a_constant_position_is_an_index() -> None:
    n = sizes.as_size(5)
    assert position(expr.const(3, torch.int64), n, {}) == 3
    assert position(expr.const(-2, torch.int64), n, {}) == 3
    assert isinstance(position(expr.const(5, torch.int64), n, {}), expr.Node)
    assert isinstance(position(expr.const(-2, torch.int64), n, {}, wraps=False), expr.Node)


# writes ---------------------------------------------------------------------------------------------------------------


def _assign(x: torch.Tensor, i: torch.Tensor) -> None:
    x[:, i] = 0


def _assign_apart(x: torch.Tensor, i: torch.Tensor) -> None:
    x[i, :, i + 1] = x[:3, :, 0].clone() * 2


def _add(x: torch.Tensor, i: torch.Tensor) -> None:
    x[i, i + 1] += 2


def _mask(x: torch.Tensor, i: torch.Tensor) -> None:
    x[x > 0] = 1.5


def _mask_rows(x: torch.Tensor, i: torch.Tensor) -> None:
    x[x[:, 0, 0] > 0] = x[0, 0].clone()


def _mask_columns(x: torch.Tensor, i: torch.Tensor) -> None:
    x[:, x[0, :, 0] > 0] = x[:, :1].clone()


WRITES: dict[str, Function] = {
    "assign": filled(_assign),
    "assign apart": filled(_assign_apart),
    "add in place": filled(_add),
    "assign by a mask": filled(_mask),
    "assign rows by a mask": filled(_mask_rows),
    "assign columns by a mask": filled(_mask_columns),
    "masked accumulate": lambda x, i: x.index_put([x > 0], x.new_ones(()), accumulate=True),
    "index_put": lambda x, i: x.index_put([i, i], x[0, :3]),
    "index_put, many times": lambda x, i: x.index_put([i % 2], x[:3], accumulate=True),
    "index_put, broadcast values": lambda x, i: x.index_put([i], x[0, 0], accumulate=True),
    "put": lambda x, i: x.put(i * 5 - 3, x[0, 0, :3]),
    "put, shapes differ": lambda x, i: x.put(i[:2], x[:2, :1, 0]),
    "put, many times": lambda x, i: x.put(i % 2, x[0, 0, :3], accumulate=True),
    "index_add": lambda x, i: x.index_add(1, i % 2, x[:, :3], alpha=2),
    "index_copy": lambda x, i: x.index_copy(1, i, x[:, :3] * 2),
    "index_fill": lambda x, i: x.index_fill(2, i, 3.0),
    "scatter": lambda x, i: x.scatter(1, i.view(1, -1, 1).expand(4, -1, 2), x * 2),
    "scatter a number": lambda x, i: x.scatter(1, i.view(1, -1, 1), 2.5),
    "scatter_add": lambda x, i: x.scatter_add(0, (i % 2).view(-1, 1, 1).expand(-1, 2, 5), x.exp()),
    "scatter, summed": lambda x, i: x.scatter_reduce(0, (i % 2).view(-1, 1, 1), x, "sum"),
    "scatter, summed without self": lambda x, i: x.scatter_reduce(
        0, (i % 2).view(-1, 1, 1), x, "sum", include_self=False
    ),
    **{
        f"scatter, {how}{'' if own else ' without self'}": lambda x, i, how=how, own=own: x.scatter_reduce(
            0, (i % 2).view(-1, 1, 1).expand(-1, 2, 5), x * 2, how, include_self=own
        )
        for how in ("mean",)
        for own in (True, False)
    },
    **{
        f"index_reduce, {how}{'' if own else ' without self'}": lambda x, i, how=how, own=own: x.index_reduce(
            1, i % 2, x[:, :3] * 2, how, include_self=own
        )
        for how in ("mean",)
        for own in (True, False)
    },
    "scatter with add": lambda x, i: torch.ops.aten.scatter.reduce(x, 0, (i % 2).view(-1, 1, 1), x, reduce="add"),
    "masked_fill": lambda x, i: x.masked_fill(x > 0, 2.0),
    "embedding_dense_backward": lambda x, i: torch.ops.aten.embedding_dense_backward(x[:3, 0], i % 2, 7, 1, False),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded"])
def test_writes_leave_the_argument_alone(name: str, layout: str) -> None:
    def sample(b: int) -> torch.Tensor:
        if layout == "transposed":
            return torch.randn(5, b, 4).transpose(0, 2)
        return torch.randn(4, b, 5) if layout == "contiguous" else torch.randn(4, 1, 5).expand(4, b, 5)

    x, i = sample(6), torch.tensor([0, 3, 2])
    before = x.clone()
    program = check(WRITES[name], x, i)
    assert torch.equal(x, before)
    agrees(program, WRITES[name], sample(9), torch.tensor([1, 2, 0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int8, torch.uint8])
def test_accumulates_in_any_type_of_number(dtype: torch.dtype) -> None:
    x, i, v = torch.randint(0, 9, (4, 3)).to(dtype), torch.tensor([1, 1, 0]), torch.randint(0, 9, (3, 3)).to(dtype)
    check(lambda x, i, v: x.index_put([i], v, accumulate=True), x, i, v)
    check(lambda x, i, v: x.scatter_add(0, i.unsqueeze(1), v), x, i, v)


@pytest.mark.parametrize(
    ("fn", "operator"),
    [
        (lambda x, i: x[x > 0], "aten.index.Tensor"),
        (lambda x, i: x.nonzero(), "aten.nonzero.default"),
        (lambda x, i: x.scatter_reduce(0, i, x * 2, "amax", include_self=False), "aten.scatter_reduce.two"),
        (lambda x, i: x.scatter(0, i, x, reduce="multiply"), "aten.scatter.reduce"),
        (lambda x, i: x.index_reduce(0, i, x[:3], "prod"), "aten.index_reduce.default"),
        (lambda x, i: torch.searchsorted(x.sort()[0], i * 0.5, right=True), "aten.searchsorted.Tensor"),
        (lambda x, i: torch.bucketize(x, i * 0.5), "aten.bucketize.Tensor"),
        (
            lambda x, i: torch.func.grad(lambda y: F.max_pool2d(y, 2).square().sum())(x.view(1, 2, 3).repeat(2, 2, 2)),
            "aten.max_pool2d_with_indices_backward.default",
        ),
    ],
)
def test_what_is_the_library_s(fn: Function, operator: str) -> None:
    program = check(fn, torch.randn(6), torch.tensor([0, 3, 2]), library=True)
    assert operator in library_calls(program)
    assert all(op.reason for op in program.operations if isinstance(op, Extern))


def test_masked_places_take_a_source_in_order() -> None:
    x, mask, source = torch.randn(4, 6), torch.rand(4, 6) > 0.5, torch.randn(5, 7)
    fn = lambda x, m, s: x.masked_scatter(m, s)  # noqa: E731
    check(fn, x, mask, source)
    check(fn, x.t(), mask[0, :4], source.t())
    check(fn, x, torch.zeros(4, 6, dtype=torch.bool), source[:0])
    check(lambda x, m, s: torch.func.grad(lambda s: fn(x, m, s).square().sum())(s), x, mask, source)
    with pytest.raises(IndexError):
        run(lower(fn, x, mask, source[0]), [x, torch.ones(4, 6, dtype=torch.bool), source[0]])


@st.composite
def patterns(draw: st.DrawFn) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """A tensor and indices for some of its dimensions, which broadcast against one another."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    x = torch.randn(shape)
    if draw(st.booleans()):
        x = x.permute(draw(st.permutations(range(len(shape)))))
    common = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    indexed = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    indices: list[torch.Tensor | None] = []
    for d in range(max(indexed) + 1):
        if d not in indexed:
            indices.append(None)
            continue
        own = [draw(st.sampled_from([n, 1])) for n in common[draw(st.integers(0, len(common) - 1)) :]]
        n = x.shape[d]
        indices.append(torch.randint(-n, n, own, dtype=draw(st.sampled_from([torch.int64, torch.int32]))))
    return x, indices


@given(patterns(), st.booleans())
def test_any_pattern_of_indices(pattern: tuple[torch.Tensor, list[torch.Tensor | None]], computed: bool) -> None:
    x, indices = pattern
    places = [d for d, index in enumerate(indices) if index is not None]

    def spread(given: tuple[torch.Tensor, ...]) -> list[torch.Tensor | None]:
        return [given[places.index(d)] if d in places else None for d in range(len(indices))]

    def read(x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.index.Tensor(x.exp() if computed else x, spread(given))

    def write(x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        wide = [index if index is None else index.long() for index in spread(given)]
        value = torch.ops.aten.index.Tensor(x, wide) * 2
        return torch.ops.aten.index_put(x.exp() if computed else x, wide, value, True)

    for fn in (read, write):
        program = lower(fn, x, *[index for index in indices if index is not None])
        assert library_calls(program) == []
        got, wanted = run(program, [x, *[index for index in indices if index is not None]])[0], None
        wanted = fn(x, *[index for index in indices if index is not None])
        torch.testing.assert_close(got, wanted)
