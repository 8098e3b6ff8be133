"""Views, joins and pads against eager: values, types, sizes, strides, and what aliases what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from polytile.errors import PolytileError
from polytile.ir import expr
from polytile.ir.loop import Loop
from polytile.ir.program import Program
from tests.frontend.lowering import check, library_calls, lower, run

Function = Callable[..., Any]


def same(got: list[Any], expected: Any) -> None:
    """Values, types, sizes and strides (where they matter) agree."""
    wanted = list(expected) if isinstance(expected, tuple | list) else [expected]
    assert len(got) == len(wanted)
    for mine, eager in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, eager, rtol=0, atol=0, equal_nan=True)
        assert eager.numel() == 0 or strides(mine) == strides(eager)


def strides(tensor: torch.Tensor) -> list[int]:
    """Those of dimensions in which one can step."""
    return [stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def aliases(result: torch.Tensor, source: torch.Tensor) -> bool:
    return result.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()


def loops(program: Program) -> list[Loop]:
    return [op for op in program.operations if isinstance(op, Loop)]


def divided(program: Program) -> bool:
    """Whether any index divides a loop axis."""
    indices = [e for loop in loops(program) for node in expr.walk(*loop.roots) for e in node.indices]
    divisions = [d for index in indices for d in index.atoms(FloorDiv, Mod, PythonMod)]
    return any(s.name.startswith(("p", "r", "d")) for d in divisions for s in d.free_symbols)


# views of stored tensors ----------------------------------------------------------------------------------------------

VIEWS: dict[str, Function] = {
    "view": lambda x: x.view(x.shape[0] * x.shape[1], x.shape[2]),
    "view, a size inferred": lambda x: x.view(-1, 2),
    "view, a dimension split": lambda x: x.view(x.shape[0], -1, 2, 4, x.shape[2] // 4),
    "flatten": lambda x: x.flatten(),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, -1),
    "movedim": lambda x: x.movedim(0, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "unsqueeze and squeeze": lambda x: x.unsqueeze(-1).squeeze(),
    "expand": lambda x: x[:, :1].expand(-1, 5, -1),
    "expand, new dimensions": lambda x: x.expand(2, 3, *x.shape),
    "slice from the front": lambda x: x[1:],
    "slice from the end": lambda x: x[:, -3:],
    "slice up to the end": lambda x: x[:-1, -3:-1],
    "slice with a step": lambda x: x[..., 1::3],
    "slice beyond the end": lambda x: (x[100:], x[:, -100:3], x[:, 3:100]),
    "slice by a size": lambda x: x[:, : x.shape[0], x.shape[1] :],
    "select": lambda x: x[1],
    "select from the end": lambda x: x[:, -2],
    "split": lambda x: x.split(2, 1),
    "split by sizes": lambda x: x.split([1, 3, 2], 1),
    "chunk": lambda x: x.chunk(3, -1),
    "unbind": lambda x: x.unbind(1),
    "diagonal": lambda x: x.diagonal(0, 0, 2),
    "diagonal above": lambda x: x.diagonal(2, 1, 2),
    "diagonal below": lambda x: x.diagonal(-1, 0, 1),
    "unfold": lambda x: x.unfold(2, 3, 2),
    "detach": lambda x: x.detach(),
    "view as": lambda x: x.view_as(x),
    "as strided": lambda x: x.as_strided((2, 3), (5, 2)),
    "view of a permuted view": lambda x: x.permute(2, 0, 1).flatten(1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_an_input_is_a_view_of_its_memory(name: str) -> None:
    x = torch.randn(4, 6, 8)
    program = check(VIEWS[name], x)
    assert program.operations == ()
    wanted = VIEWS[name](x)
    for mine, eager in zip(run(program, [x]), wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        assert eager.numel() == 0 or mine.data_ptr() == eager.data_ptr()


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_temporary_is_index_algebra(name: str) -> None:
    if name == "as strided":
        pytest.skip("as_strided asks for memory: its argument is stored")
    program = check(lambda x: [y * 3 for y in _listed(VIEWS[name](x + 1))], torch.randn(4, 6, 8))
    assert all(len(loop.stores) == 1 for loop in loops(program))
    assert len(loops(program)) == len(program.outputs)


def _listed(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("layout", ["transposed", "sliced"])
def test_views_of_strided_inputs(name: str, layout: str) -> None:
    x = {
        "transposed": torch.randn(8, 6, 4).transpose(0, 2),
        "sliced": torch.randn(5, 12, 16)[1:, ::2, :8],
    }[layout]
    try:
        results = _listed(VIEWS[name](x))
    except RuntimeError:
        pytest.skip("eager has no such view")
    program = check(VIEWS[name], x)
    assert (program.operations == ()) == all(aliases(y, x) for y in results)


ANY_SIZE = [name for name in VIEWS if name not in ("unbind", "chunk", "split by sizes", "split", "as strided")]


@pytest.mark.parametrize("name", ANY_SIZE)
@pytest.mark.parametrize("source", ["stored", "computed"])
def test_one_program_serves_other_sizes(name: str, source: str) -> None:
    fn = VIEWS[name] if source == "stored" else lambda x: [y * 3 for y in _listed(VIEWS[name](x + 1))]
    program = lower(fn, torch.randn(4, 6, 8))
    for shape in ((4, 6, 8), (5, 10, 12), (3, 8, 16)):
        x = torch.randn(shape)
        same(run(program, [x]), fn(x))


# copies ---------------------------------------------------------------------------------------------------------------

COPIES: dict[str, Function] = {
    "reshape of a transposed": lambda x: x.transpose(0, 1).reshape(x.shape[1], -1),
    "reshape across permuted dimensions": lambda x: x.permute(2, 0, 1).reshape(-1, x.shape[1] // 2, 2),
    "contiguous": lambda x: x.transpose(0, 2).contiguous(),
    "flip": lambda x: x.flip(0, 2),
    "flip and reshape": lambda x: x.flip(1).reshape(-1),
    "roll": lambda x: x.roll(2, 1),
    "roll two": lambda x: x.roll((1, -2), (0, 2)),
    "roll flat": lambda x: x.roll(3),
    "rot90": lambda x: x.rot90(1, (0, 2)),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat, new dimensions": lambda x: x.repeat(2, 1, 2, 1),
    "repeat by a size": lambda x: x.repeat(1, x.shape[0], 1),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "tile": lambda x: x.tile(2),
    "pixel shuffle": lambda x: F.pixel_shuffle(x.unsqueeze(0).expand(4, -1, -1, -1).transpose(0, 1), 2),
    "diag_embed": lambda x: torch.diag_embed(x, 1),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-1),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str) -> None:
    x = torch.randn(4, 6, 8)
    program = check(COPIES[name], x)
    assert not aliases(run(program, [x])[0], x)
    for shape in ((2, 8, 12), (6, 4, 10)):
        x = torch.randn(shape)
        same(run(program, [x]), COPIES[name](x))


def test_a_reshape_keeps_no_division_where_dimensions_only_split_or_stay() -> None:
    program = check(lambda x: (x + 1).reshape(x.shape[0], x.shape[1], 2, -1) * 2, torch.randn(4, 6, 8))
    assert not divided(program)


def test_a_reshape_that_merges_and_splits_again_is_no_division() -> None:
    program = check(lambda x: (x + 1).reshape(-1, x.shape[2]).reshape(x.shape) * 2, torch.randn(4, 6, 8))
    assert not divided(program)


# chains of views ------------------------------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> tuple[torch.Tensor, list[tuple[str, tuple[Any, ...]]]]:
    """An input of some layout, and operators to apply to it one after the other."""
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 6]), max_size=4))
    x = torch.arange(_count(shape), dtype=torch.float32).reshape(shape)
    layout = draw(st.sampled_from(["contiguous", "permuted", "stepped", "expanded"]))
    if layout == "permuted" and x.numel():
        x = x.permute(draw(st.permutations(range(x.dim()))))
    elif layout == "stepped" and x.numel():
        x = torch.arange(2.0 * x.numel()).reshape([*shape[:-1], 2 * shape[-1]])[..., ::2] if shape else x
    elif layout == "expanded" and x.numel():
        x = x.unsqueeze(0).expand(3, *shape)
    steps, y = [], x
    for _ in range(draw(st.integers(1, 5))):
        step = draw(_step(tuple(y.shape)))
        steps.append(step)
        y = _apply(y, step)
    return x, steps


def _count(shape: Any) -> int:
    return int(torch.Size(shape).numel())


@st.composite
def _step(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[str, tuple[Any, ...]]:
    rank = len(shape)
    kinds = ["unsqueeze", "squeeze", "scale", "reshape"]
    kinds += ["permute", "slice", "select", "flip", "repeat", "expand", "unfold", "roll"] if rank else []
    kind = draw(st.sampled_from(kinds + (["diagonal"] if rank > 1 else [])))
    d = draw(st.integers(-rank, rank - 1)) if rank else 0
    n = shape[d] if rank else 1
    match kind:
        case "unsqueeze":
            return kind, (draw(st.integers(-rank - 1, rank)),)
        case "permute":
            return kind, (tuple(draw(st.permutations(range(rank)))),)
        case "slice":
            bound = st.none() | st.integers(-n - 2, n + 2)
            return kind, (d, draw(bound), draw(bound), draw(st.integers(1, 3)))
        case "select":
            return (kind, (d, draw(st.integers(-n, n - 1)))) if n else ("scale", ())
        case "flip":
            return kind, (d,)
        case "roll":
            return kind, (draw(st.integers(-n - 1, n + 1)), d)
        case "repeat":
            return kind, (tuple(draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank + 1))),)
        case "expand":
            return kind, (tuple(draw(st.integers(1, 3)) if m == 1 else m for m in shape),)
        case "unfold":
            return (kind, (d, draw(st.integers(1, n)), draw(st.integers(1, 2)))) if n else ("scale", ())
        case "diagonal":
            return kind, (draw(st.integers(-1, 1)), 0, 1)
        case "reshape":
            return kind, (draw(st.sampled_from(_shapes(_count(shape)))),)
    return kind, ()


def _shapes(count: int) -> list[tuple[int, ...]]:
    """Some ways to write `count` as a shape."""
    if count == 0:
        return [(0,), (0, 3), (2, 0)]
    ways: list[tuple[int, ...]] = [(count,), (1, count), (count, 1)]
    for a in range(2, min(count, 13)):
        if count % a == 0:
            ways += [(a, count // a), (count // a, a)]
            ways += [(a, b, count // a // b) for b in range(2, 7) if (count // a) % b == 0]
    return ways


def _apply(x: torch.Tensor, step: tuple[str, tuple[Any, ...]]) -> torch.Tensor:
    kind, args = step
    if kind == "scale":
        return x * 2
    if kind == "slice":
        d, start, end, stride = args
        return torch.ops.aten.slice.Tensor(x, d, start, end, stride)
    return getattr(x, kind)(*args)


@given(chains())
@example((torch.zeros(3, 1), [("slice", (0, None, 0, 1)), ("roll", (0, 0))]))  # stores no element at all
def test_chains_of_views_are_eager_s_in_values_strides_and_aliasing(
    chain: tuple[torch.Tensor, list[tuple[str, tuple[Any, ...]]]],
) -> None:
    x, steps = chain

    def fn(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = _apply(x, step)
        return x

    program = lower(fn, x)
    assert library_calls(program) == []
    mine, eager = run(program, [x])[0], fn(x)
    same([mine], eager)
    if eager.numel():
        assert aliases(mine, x) == aliases(eager, x)
        assert not aliases(mine, x) or mine.data_ptr() == eager.data_ptr()


def test_static_sizes_work_as_symbolic_ones() -> None:
    x = torch.randn(4, 6)
    program = lower(lambda x: torch.cat([x, x.repeat(1, 2)], 1)[:, 0], x, symbolic=False)
    torch.testing.assert_close(run(program, [x])[0], x[:, 0])


def test_as_strided_from_a_place_in_an_inputs_memory_is_a_library_call() -> None:
    """Where the input begins in its memory is known to the call alone."""
    program = check(lambda x: x.as_strided((2, 3), (5, 2), 1) * 2, torch.randn(4, 6), library=True)
    assert library_calls(program) == ["aten.as_strided.default"]


def test_as_strided_of_a_part_of_a_temporary_says_what_to_do() -> None:
    with pytest.raises(PolytileError, match=r"clone"):
        lower(lambda x: (x + 1)[:, 1:3].as_strided((2, 2), (6, 1), 1), torch.randn(4, 6))


# joins ----------------------------------------------------------------------------------------------------------------

JOINS: dict[str, Function] = {
    "cat": lambda x, y: torch.cat([x, y], 1),
    "cat of computed": lambda x, y: torch.cat([x.exp(), -y, x * 2], 1),
    "cat, first dimension": lambda x, y: torch.cat([x, x + 1]),
    "cat, types": lambda x, y: torch.cat([x.int(), y, y.bfloat16()], 1),
    "cat, small types": lambda x, y: torch.cat([x.int(), y.bfloat16()], 1),
    "cat of truth values": lambda x, y: torch.cat([x > 0, y > 0], 1),
    "cat of many": lambda x, y: torch.cat([x, y * 2] * 6, 1),
    "cat with nothing": lambda x, y: torch.cat([x.new_empty(0), x, x[:, :0]], 1),
    "cat of one": lambda x, y: torch.cat([x]),
    "cat of one is a copy": lambda x, y: torch.cat([x], 1),
    "stack": lambda x, y: torch.stack([x, x * 2], 1),
    "stack at the end": lambda x, y: torch.stack([y, y], -1),
    "rotate half": lambda x, y: torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1),
    "pad": lambda x, y: F.pad(x, (1, 2, 0, 3), value=2.5),
    "crop": lambda x, y: F.pad(x, (-1, 2, -1, -1)),
    "pad by a size": lambda x, y: F.pad(x, (y.shape[1], 0)),
    "reflect": lambda x, y: F.pad(x, (2, 1), mode="reflect"),
    "reflect, rows too": lambda x, y: F.pad(x, (0, 3, 2, 1), mode="reflect"),
    "reflect and crop": lambda x, y: F.pad(x, (-1, 2), mode="reflect"),
    "reflect, by a size": lambda x, y: F.pad(x, (y.shape[1] // 2, 1), mode="reflect"),
    "replicate": lambda x, y: F.pad(x, (2, 3), mode="replicate"),
    "replicate, rows too": lambda x, y: F.pad(x.exp(), (2, 0, 1, 3), mode="replicate"),
    "replicate and crop": lambda x, y: F.pad(x, (3, -2), mode="replicate"),
    "slice_scatter": lambda x, y: torch.slice_scatter(x, x[:, 1:3] * 2, 1, 1, 3),
    "slice_scatter, steps": lambda x, y: torch.slice_scatter(x, x[:, 1::2] * 2, 1, 1, None, 2),
    "slice_scatter at the end": lambda x, y: torch.slice_scatter(x, x[-2:] * 2, 0, -2),
    "select_scatter": lambda x, y: torch.select_scatter(x, y[:, 0], 1, -1),
    "diagonal_scatter": lambda x, y: torch.diagonal_scatter(x, x.diagonal(1, 0, 1) * 2, 1, 0, 1),
    "diagonal_scatter below": lambda x, y: torch.diagonal_scatter(x, x.diagonal(-2, 0, 1) * 2, -2, 0, 1),
    "gradient of slices": lambda x, y: torch.func.grad(lambda x: (x[:, 1:] * x[:, :-1]).sum())(x),
}


@pytest.mark.parametrize("name", JOINS)
def test_joins(name: str) -> None:
    x, y = torch.randn(4, 6, 8), torch.randn(4, 3, 8)
    program = check(JOINS[name], x, y)
    assert not aliases(run(program, [x, y])[0], x)
    for rows, columns, others in ((5, 7, 9), (3, 9, 2), (6, 3, 4)):
        x, y = torch.randn(rows, columns, 8), torch.randn(rows, others, 8)
        same(run(program, [x, y]), JOINS[name](x, y))


PADDED_ROWS: dict[str, Function] = {
    "numbers": lambda x, y, mode: F.pad(x, (2, 1), mode=mode),
    "rows too": lambda x, y, mode: F.pad(x, (2, 1, 1, 1), mode=mode),
    "sizes": lambda x, y, mode: F.pad(x, (y.shape[0], y.shape[1], 1, y.shape[1]), mode=mode),
    "a size that crops": lambda x, y, mode: F.pad(x, (-y.shape[0], y.shape[1]), mode=mode),
}


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("padding", PADDED_ROWS)
def test_pads_that_repeat_look_no_place_up_along_the_last_dimension(mode: str, padding: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return PADDED_ROWS[padding](x, y, mode)

    x, y = torch.randn(4, 5, 6), torch.randn(2, 3)
    program = lower(fn, x, y)
    (loop,) = program.operations
    assert isinstance(loop, Loop)
    places = [place for store in loop.stores for load in expr.loads(store.value) for place in load.indirect]
    assert loop.axes[-1].symbol not in expr.free_symbols(*places)
    for shape, amounts in (((3, 5, 6), (2, 3)), ((2, 7, 9), (5, 4)), ((4, 5, 33), (3, 2))):
        x, y = torch.randn(shape), torch.randn(amounts)
        same(run(program, [x, y]), fn(x, y))


def test_writing_into_slices_of_a_copy() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 1:3] = 0
        x[0] += 1
        x[..., ::2] *= 2
        x.diagonal(0, 0, 1).fill_(5)
        return x

    check(fn, torch.randn(4, 6, 8))


def test_what_a_masked_piece_would_index_is_no_error() -> None:
    x, i = torch.randn(5, 3), torch.tensor([4, 0, 1])
    check(lambda x, i: torch.cat([x[i], x[i - 1]]).sum(1), x, i)
    check(lambda x, i: torch.cat([x[torch.arange(3)], x]), x, i)
    program = lower(lambda x, i: torch.cat([x[i], x]), x, i)
    with pytest.raises(IndexError):
        run(program, [x, torch.tensor([0, 1, 5])])


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=11),
    st.integers(0, 2),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
def test_cat_of_any_lengths(lengths: list[int], dim: int, dtype: torch.dtype) -> None:
    pieces = [torch.randint(0, 9, [n if d == dim else 3 for d in range(3)]).to(dtype) for n in lengths]
    check(lambda *pieces: torch.cat(pieces, dim), *pieces)
    check(lambda *pieces: torch.cat([p.transpose(0, 2) for p in pieces], 2 - dim), *pieces)


@given(st.lists(st.integers(-2, 3), min_size=2, max_size=4).filter(lambda pads: len(pads) % 2 == 0))
def test_pads_and_crops(pads: list[int]) -> None:
    x = torch.randn(5, 6, 7)
    check(lambda x: F.pad(x, pads, value=1.5), x)
    check(lambda x: F.pad(x.exp().transpose(0, 1), pads), x)


@pytest.mark.parametrize(
    ("of", "to"),
    [(torch.float32, torch.int32), (torch.int64, torch.float64), (torch.int8, torch.uint8), (torch.int32, torch.int32)],
)
def test_bits_are_read_as_another_type_of_the_same_width(of: torch.dtype, to: torch.dtype) -> None:
    x = (torch.randn(3, 5) * 1000).to(of)
    check(lambda x: x.view(to) * 2, x)
    check(lambda x: (x + 1).t().view(to).view(of) * 2, x)
    returned = check(lambda x: (x.t().view(to)[1:], x.t()), x, library=True)
    assert library_calls(returned) == ([] if of == to else ["aten.view.dtype"])  # whose result shares memory


@pytest.mark.parametrize(("of", "to"), [(torch.float32, torch.int16), (torch.bfloat16, torch.int16), (torch.bool, torch.int8)])
def test_bits_of_other_types_are_the_library_s(of: torch.dtype, to: torch.dtype) -> None:
    program = check(lambda x: x.view(to), torch.ones(4, 6, dtype=of), library=True)
    assert library_calls(program) == ["aten.view.dtype"]
