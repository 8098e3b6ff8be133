"""Arguments that are changed, results that are views, arguments that share memory: as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.behaviour.helpers import (
    assert_as_exact,
    check,
    compiled,
    copied,
    graphs,
    multikernels,
    sized,
    steps,
    tensors,
    widened,
)


def same_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def add_one(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def part(x: Tensor) -> Tensor:
    x[1:3].mul_(2)
    return x.sum(0)


def columns(x: Tensor) -> Tensor:
    x.t()[0].copy_(x[:, 1] * 3)
    return torch.softmax(x, -1)


def returned(x: Tensor) -> Tensor:
    return x.mul_(torch.sigmoid(x))


def read_before_and_after(x: Tensor) -> tuple[Tensor, Tensor]:
    before = torch.exp(x)
    x.sub_(x.mean(0))
    return before, torch.exp(x)


def swapped(x: Tensor) -> None:
    first = x[0].clone()
    x[0] = x[1]
    x[1] = first


def scattered(x: Tensor) -> Tensor:
    index = torch.arange(x.shape[0]).flip(0)
    x.index_add_(0, index, x * 2)
    return x + 1


def masked(x: Tensor) -> Tensor:
    x.masked_fill_(x > 0.5, -1.0)
    return x.cumsum(0)


def zeroed(x: Tensor) -> Tensor:
    y = x * 2
    x.zero_()
    return y


def reversed_onto_itself(x: Tensor) -> Tensor:
    x.copy_(x.flip(0))
    return x * 2


def shifted(x: Tensor) -> Tensor:
    x[1:] = x[:-1] + 1
    return x.sum(-1)


def spread_then_scaled(x: Tensor) -> Tensor:
    spread = x.var(-1, keepdim=True)
    x.mul_(0.5)
    return spread


def normed_in_place(x: Tensor) -> Tensor:
    x.sub_(x.mean(-1, keepdim=True)).div_(x.std(-1, keepdim=True) + 1)
    return x.amax(0)


def summed_up_in_place(x: Tensor) -> Tensor:
    x.copy_(torch.cumsum(x, 0))
    return x - x.amin(0)


MUTATIONS = [
    add_one, part, columns, returned, read_before_and_after, swapped, scattered, masked, zeroed, reversed_onto_itself,
    shifted, spread_then_scaled, normed_in_place, summed_up_in_place,
]  # fmt: skip


@pytest.mark.parametrize("function", MUTATIONS)
def test_inputs_change_as_in_eager(function: Callable[[Tensor], Any]) -> None:
    run = compiled(function, tune="off")
    for shape in ((5, 6), (30, 40), (7, 4)):
        mine = next(sized(shape))
        theirs, exact = copied(mine), widened(mine)
        for _ in range(2):
            got, want, right = run(mine), function(theirs), function(exact)
            assert_as_exact((got, mine), (want, theirs), (right, exact), shape)
    assert graphs() == (1, 1)


def kept(cache: Tensor, at: Tensor, new: Tensor) -> None:
    cache[:, at] = new


def read_around(cache: Tensor, at: Tensor, new: Tensor) -> tuple[Tensor, ...]:
    before, row = cache * 3, cache[:, at]
    cache[:, at] = new
    return before, row, cache.softmax(1)


def kept_twice(cache: Tensor, at: Tensor, new: Tensor) -> Tensor:
    old = cache.clone()
    cache[:, at] = new
    products = cache @ cache.mT
    cache.index_put_((torch.arange(cache.shape[0])[:, None], at[None]), new * 2, accumulate=True)
    return products + (cache - old).sum()


def moved_within(cache: Tensor, at: Tensor, new: Tensor) -> Tensor:
    cache[:, at] = cache[:, (at + 1) % cache.shape[1]] + new
    return cache.cumsum(1)


def next_token(cache: Tensor, at: Tensor, new: Tensor) -> Tensor:
    cache[:, 3:4] = new[:, :1]
    return cache.softmax(1)


def next_tokens(cache: Tensor, at: Tensor, new: Tensor) -> Tensor:
    length = cache.shape[1] // 2
    cache[:, length : length + 1] = new[:, :1]
    cache[:, length + 1 : length + 3] = new[:, 1:] * 2
    return cache @ cache.mT


def one_of_a_batch(cache: Tensor, at: Tensor, new: Tensor) -> Tensor:
    cache[1, 2:5] = new[0]
    return cache + 1


def every_other(cache: Tensor, at: Tensor, new: Tensor) -> Tensor:
    before = cache.sum(1)
    cache[:, ::2, 1:4:2] = new[:, :1, 2:4]
    cache[:, 1:] = cache[:, :-1].clone()
    return before + cache.sum(1)


@pytest.mark.parametrize(
    "function", [kept, read_around, kept_twice, moved_within, next_token, next_tokens, one_of_a_batch, every_other]
)
def test_entries_of_a_cache_are_written_where_they_are(function: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
    run = compiled(function, tune="off")
    for length in (9, 20, 33):
        whole, new = sized((2 * length, 4, 6), (4, 3, 6), seed=length)
        at = torch.tensor([length - 1, 0, length // 2])
        for cache in (whole[:length].transpose(0, 1).contiguous(), whole[::2].transpose(0, 1)):
            theirs, exact = cache.clone(), cache.double()
            got, want, right = run(cache, at, new), function(theirs, at, new), function(exact, at, new.double())
            assert_as_exact((got, cache.contiguous()), (want, theirs.contiguous()), (right, exact.contiguous()), length)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function, kernels", [(kept, 1), (next_token, 2), (next_tokens, 3)])
def test_a_cache_is_not_copied_for_an_entry(
    function: Callable[[Tensor, Tensor, Tensor], Any], kernels: int, dtype: torch.dtype
) -> None:
    run = compiled(function, tune="off")
    at = torch.tensor([1, 5, 0])
    for length in (9, 20):
        cache, new = (each.to(dtype) for each in sized((4, length, 6), (4, 3, 6)))
        theirs = cache.clone()
        run(cache, at, new)
        function(theirs, at, new)
        assert torch.equal(cache, theirs)
    assert len(multikernels()) <= kernels  # a product in half precision may be the library's; a copy is a kernel more


def test_what_is_returned_after_a_change_is_the_input_itself() -> None:
    (x,) = sized((5, 6))
    assert compiled(returned)(x) is x


def test_a_strided_input_is_changed_in_its_place() -> None:
    whole = next(sized((10, 12)))
    theirs = whole.clone()
    run = compiled(add_one)
    for pick in (lambda t: t[::2, 1::3], lambda t: t.t()[2:7], lambda t: t[3]):
        run(pick(whole))
        add_one(pick(theirs))
        torch.testing.assert_close(whole, theirs)


def test_a_change_shows_in_the_version_counter() -> None:
    (x,) = sized((5, 6))
    y = torch.ones(5, 6, requires_grad=True)
    product = x * y
    compiled(add_one)(x)
    with pytest.raises(RuntimeError, match="inplace"):
        product.sum().backward()


# Results that are views of inputs.

VIEWS = {
    "transposed": lambda x: x.t(),
    "viewed": lambda x: x.view(-1),
    "sliced": lambda x: x[1:, ::2],
    "expanded": lambda x: x[:, None].expand(-1, 3, -1),
    "row": lambda x: x[2],
    "diagonal": lambda x: x.diagonal(),
    "the input": lambda x: x,
    "unfolded": lambda x: x.unfold(1, 3, 2),
    "split": lambda x: x.split(2),
    "bits": lambda x: x.view(torch.int32),
    "bits of a slice": lambda x: x[:, ::2].view(torch.int32)[1:],
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_an_input_is_a_view(name: str) -> None:
    view = VIEWS[name]

    def function(x: Tensor) -> tuple[Any, Tensor]:
        return view(x), x + 1

    run = compiled(function)
    for shape in ((4, 8), (6, 20)):
        (x,) = sized(shape)
        got, want = tensors(run(x)[0]), tensors(view(x))
        assert len(got) == len(want)
        for mine, theirs in zip(got, want, strict=True):
            assert same_storage(mine, x)
            assert (mine.shape, mine.stride(), mine.storage_offset()) == (
                theirs.shape, theirs.stride(), theirs.storage_offset(),
            )  # fmt: skip
        got[0].fill_(7.0)
        assert torch.equal(want[0], torch.full_like(want[0], 7.0)), "a write through the view reaches the input"


def test_a_view_of_a_changed_input_shows_the_change() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1)
        return x.t(), x[1:] * 2

    run = compiled(function)
    x = next(sized((4, 5)))
    theirs = x.clone()
    got, want = run(x), function(theirs)
    torch.testing.assert_close(got, want)
    assert same_storage(got[0], x)


def test_two_results_that_share_memory_do_so() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.exp(x)
        return y, y.t(), y[1:], y.view(torch.int32)

    got = compiled(function)(*sized((4, 5)))
    assert all(same_storage(got[0], other) for other in got[1:])
    got[0].fill_(2.0)
    assert torch.equal(got[1], torch.full((5, 4), 2.0)) and torch.equal(got[2], torch.full((3, 5), 2.0))


@pytest.mark.parametrize("base", [lambda x: torch.softmax(x, -1), lambda x: x.new_zeros(x.shape), lambda x: x * 2])
def test_views_of_what_is_not_returned_share_its_memory(base: Callable[[Tensor], Tensor]) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = base(x)
        return y.t(), y[1:]

    run = compiled(function, tune="off")
    for shape in ((4, 5), (7, 3)):
        (x,) = sized(shape)
        got = run(x)
        check(function, run, x)
        got[0].fill_(2.0)
        assert torch.equal(got[1], torch.full_like(got[1], 2.0))


SHARING: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "rows": lambda y: (y[:2], y[1:3]),
    "block and column": lambda y: (y[1:3, :2], y[:, 1]),
    "every other": lambda y: (y[::2, 0], y[2, :2]),
}


@pytest.mark.parametrize("name", SHARING)
def test_small_views_of_what_is_not_returned_share_its_memory(name: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return SHARING[name](x * 2)

    run = compiled(function, tune="off")
    for shape in ((4, 5), (7, 3)):
        (x,) = sized(shape)
        got, want = run(x), function(x)
        check(function, run, x)
        for results in (got, want):
            results[0].fill_(2.0)
        torch.testing.assert_close(got[1], want[1])


def test_views_that_share_nothing_are_stored_alone() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y[:1], y[2:]

    run = compiled(function, tune="off")
    for shape in ((4, 5), (7, 6)):
        (x,) = sized(shape)
        check(function, run, x)
        assert not same_storage(*run(x))


OVERWRITTEN_PARTS: dict[str, Callable[[Tensor], Any]] = {
    "rows": lambda x: x[:-1].add_(1),
    "block": lambda x: x[1:, 1:].mul_(2),
    "transposed": lambda x: x.t()[1:].mul_(2).t()[0],
    "diagonal": lambda x: x.diagonal().fill_(2),
    "of a part": lambda x: x[1:].fill_(1)[1:].add_(1),
}


@pytest.mark.parametrize("name", OVERWRITTEN_PARTS)
def test_a_part_of_an_input_with_gaps_is_overwritten_and_returned(name: str) -> None:
    function = OVERWRITTEN_PARTS[name]
    run = compiled(function, tune="off")
    for rows, columns in ((8, 10), (12, 6)):
        for part in (slice(None, None, 2), slice(1, 5)):
            theirs, mine = (next(sized((rows, columns))) for _ in range(2))
            want, got = function(theirs[::2, part]), run(mine[::2, part])
            assert torch.equal(got, want) and torch.equal(mine, theirs)
            assert same_storage(got, mine) and steps(got) == steps(want) and got.storage_offset() == want.storage_offset()


@pytest.mark.parametrize("kind", ["index", "divisor"])
def test_indices_and_divisors_are_overwritten_by_what_is_none(kind: str, empty_cache: object) -> None:
    """Measuring calls a kernel again and again, but not on what it has written."""

    def function(x: Tensor, y: Tensor) -> None:
        y.copy_(x[y] * 100 if kind == "index" else x[: len(y)] // y)

    run, x = compiled(function), torch.arange(60)
    for n in (7, 40):
        mine, theirs = torch.arange(1, n + 1), torch.arange(1, n + 1)
        run(x, mine)
        function(x, theirs)
        assert torch.equal(mine, theirs)


def test_results_that_do_not_share_memory_in_eager_do_not_here() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return x * 1, x + 0, x.clone(), torch.exp(x) * 1

    (x,) = sized((4, 5))
    got = compiled(function)(x)
    addresses = {t.untyped_storage().data_ptr() for t in (x, *got)}
    assert len(addresses) == 5


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ((x * 2).view(torch.int32), (x * 2).view(torch.int32)),
        lambda x: (x.bfloat16(), x.bfloat16().view(torch.int16)),
    ],
    ids=["two views", "a value and a view"],
)
def test_equal_values_whose_views_the_library_makes_do_not_share_memory(function: Callable[[Tensor], Any]) -> None:
    (x,) = sized((5, 7))
    got = compiled(function)(x)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, function(x), strict=True))
    assert not same_storage(*got)


def test_results_of_one_call_are_not_overwritten_by_the_next() -> None:
    run = compiled(lambda x: torch.softmax(x * 2, -1))
    x, y = sized((6, 50), (6, 50))
    first = run(x)
    kept = first.clone()
    run(y)
    assert torch.equal(first, kept)


# Arguments that share memory.


def test_one_tensor_for_two_arguments_of_which_one_is_changed() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    run = compiled(function)
    for shape in ((4, 5), (9, 30)):
        (x,) = sized(shape)
        theirs = x.clone()
        torch.testing.assert_close(run(x, x), function(theirs, theirs))
        torch.testing.assert_close(x, theirs)
        (a, b), (c, d) = tuple(sized(shape, shape)), tuple(sized(shape, shape))
        torch.testing.assert_close(run(a, b), function(c, d))
        torch.testing.assert_close(a, c)


def test_overlapping_arguments_of_which_one_is_changed() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y + 1

    run = torch.compile(function, backend="polytile", dynamic=True)
    for n in (10, 24):
        (mine,) = sized((n, 6))
        theirs = mine.clone()
        half = n // 2
        got = run(mine[: half + 2], mine[half:])
        want = function(theirs[: half + 2], theirs[half:])
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine, theirs)


def test_two_views_of_one_tensor_that_are_only_read() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(x * y, -1)

    run = compiled(function)
    whole = next(sized((12, 40)))
    for a, b in ((whole[:6], whole[6:]), (whole[:6], whole[3:9]), (whole, whole)):
        torch.testing.assert_close(run(a, b), function(a, b))


IN_PLACE = {
    "written": lambda x: x.copy_(x.flip(0)),
    "a part": lambda x: x[1:].copy_(x[:-1].clone()),
    "zeroed": lambda x: x.zero_(),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn], ids=str)
def test_arguments_of_any_type_are_changed_in_place(dtype: torch.dtype, name: str) -> None:
    function = IN_PLACE[name]
    run = compiled(function)
    for n in (3, 6):
        x = torch.randn(n, 2, dtype=dtype) if dtype.is_complex else torch.randint(1, 9, (n, 2)).to(dtype)
        want, got = x.clone(), x.clone()
        function(want), run(got)
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize(
    "function",
    [lambda x: x.imag.add_(1), lambda x: x.real.mul_(2), lambda x: x.conj().imag.add_(1), lambda x: x.mul_(2j)],
    ids=["imaginary part", "real part", "conjugate", "all"],
)
@pytest.mark.parametrize("conjugated", [False, True])
def test_parts_of_complex_arguments_are_changed_in_place(function: Callable[[Tensor], Tensor], conjugated: bool) -> None:
    run = compiled(function)
    for n in (3, 6):
        x = torch.randn(n, dtype=torch.complex64)
        want, got = copied((x, x))
        torch.testing.assert_close(run(got.conj() if conjugated else got), function(want.conj() if conjugated else want))
        torch.testing.assert_close(got, want)


def test_arguments_that_memory_holds_with_the_other_sign() -> None:
    """`x.conj().imag` marks a look at x's memory as negated, and computes nothing."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.relu(), x.add_(1)

    run = compiled(function)
    for n in (3, 6):
        want, got = copied([torch.randn(n, dtype=torch.complex64)] * 2)
        torch.testing.assert_close(run(got.conj().imag), function(want.conj().imag))
        torch.testing.assert_close(got, want)
        x = torch.randn(n)
        torch.testing.assert_close(run(x.clone()), function(x.clone()))


@pytest.mark.parametrize("part", [lambda x: x, lambda x: x[1:]], ids=["whole", "a part"])
def test_an_offset_into_memory_counts_from_its_beginning(part: Callable[[Tensor], Tensor]) -> None:
    """Not from the first element of the argument, wherever that lies; where none is given, from there."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return part(x).as_strided((2, 3), (3, 1), 2) * 2, part(x).as_strided((2, 3), (3, 1)) * 3

    run = compiled(function)
    (memory,) = sized((40,))
    for start in (0, 3, 16):
        x = memory[start : start + 12].view(4, 3)
        torch.testing.assert_close(run(x), function(x))


def test_an_offset_into_the_memory_of_a_temporary_reaches_all_of_it() -> None:
    """The memory that a part of a computed value lies in is that of the whole value."""

    def function(x: Tensor) -> list[Tensor]:
        parts = (x + 1)[1:], (x + 2)[:-1], (x + 3)[:, 1:3], (x.t() + 4)[1:, ::2], torch.cat([x, x])[2]
        return [look * 2 for y in parts for look in (y.as_strided((2, 3), (5, 2), 1), y.as_strided((9,), (2,), 0))]

    run = compiled(function)
    for x in sized((4, 6), (5, 7)):
        torch.testing.assert_close(run(x), function(x))


def test_an_offset_into_the_memory_of_an_overwritten_part_reaches_what_is_before_it() -> None:
    """ATen's new value of a part that is written to lies where the part did, behind a copy of what is before it. polytile keeps
    no such copy: ATen runs the graph."""

    def function(x: Tensor) -> Tensor:
        x[..., 0] *= -1
        return x.as_strided((x.shape[0],), (x.shape[-1],), 1) * 2

    run, (memory,) = compiled(function, on_failure="library"), sized((90,))
    for start, n in ((3, 4), (16, 6), (0, 5)):
        mine, theirs = memory.clone(), memory.clone()
        result = run(mine[start:][: n * 12].view(n, 3, 4))
        torch.testing.assert_close(result, function(theirs[start:][: n * 12].view(n, 3, 4)))
        torch.testing.assert_close(mine, theirs)


def test_arguments_that_share_memory_without_a_common_base() -> None:
    """torch traces the memory that they share with the size that it has at the first call."""

    def function(x: Tensor, rest: Tensor) -> Tensor:
        rest.add_(1)
        return x * 2

    call = compiled(function, stall="compile")
    for n in (5, 8, 33, 3):
        x = torch.randn(n, 4)
        shared = torch.empty(0).set_(x.untyped_storage(), 4, (n - 1, 4), (4, 1))
        y = x.clone()
        torch.testing.assert_close(call(x, shared), function(y, y[1:]))
        torch.testing.assert_close(x, y)
