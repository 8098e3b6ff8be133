"""Sizes that are known only at run time: what library calls return binds them, wherever they stand in a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import Library

import polytile

Fake = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    """Operators whose results have sizes, strides and offsets of all kinds."""
    library = Library("unbacked_sizes", "FRAGMENT")
    for name, (schema, real, fake) in OPERATORS.items():
        library.define(f"{name}{schema}")
        library.impl(name, real, "CompositeExplicitAutograd")
        torch.library.register_fake(f"unbacked_sizes::{name}", fake, lib=library)
    yield
    library._destroy()


def _size() -> Any:
    return torch.library.get_ctx().new_dynamic_size()


def _positive(x: Tensor) -> int:
    return int((x > 0).sum())


def _padded(x: Tensor) -> Tensor:
    """The positive numbers in rows of one, each row as long as there are of them."""
    n = _positive(x)
    return torch.zeros(3 * n + 1).as_strided((3, 1), (n, 1)).fill_(float(n))


def _two_sizes(x: Tensor) -> Tensor:
    n = _positive(x)
    return torch.arange(2.0 * n * (x.shape[0] + 1)).reshape(2 * n, x.shape[0] + 1)


def _at_offset(x: Tensor) -> Tensor:
    n = _positive(x)
    return torch.arange(float(n + 4))[n:]


def _several(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    n = _positive(x)
    return x[x > 0], [torch.full((2 * n + 1,), 0.5), torch.full((n, x.numel() - n), 2.0)]


def _fake_several(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    n, rest = _size(), _size()
    return x.new_empty(n), [x.new_empty(2 * n + 1), x.new_empty(n, rest)]


OPERATORS: dict[str, tuple[str, Fake, Fake]] = {
    "stride": ("(Tensor x) -> Tensor", _padded, lambda x: x.new_empty_strided((3, 1), (_size(), 1))),
    "twice": ("(Tensor x) -> Tensor", lambda x: torch.cat((x[x > 0], x[x > 0])), lambda x: x.new_empty(2 * _size())),
    "more": ("(Tensor x) -> (Tensor, Tensor)", lambda x: (F.pad(x[x > 0], (1, 2)), x[x > 0]),
             lambda x: (lambda n: (x.new_empty(n + 3), x.new_empty(n)))(_size())),
    "product": ("(Tensor x) -> Tensor", _two_sizes, lambda x: x.new_empty(2 * _size(), x.shape[0] + 1)),
    "offset": ("(Tensor x) -> Tensor", _at_offset, lambda x: (lambda n: x.new_empty(n + 4)[n:])(_size())),
    "several": ("(Tensor x) -> (Tensor, Tensor[])", _several, _fake_several),
    "numbers": ("(Tensor x) -> (SymInt, SymInt)", lambda x: (_positive(x), x.numel() - _positive(x)),
                lambda x: (_size(), _size())),
}  # fmt: skip


def _operator(name: str, x: Tensor) -> Any:
    return getattr(torch.ops.unbacked_sizes, name)(x)


def _item(x: Tensor) -> int:
    n = (x > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return int(n)


def _repeated(x: Tensor) -> Tensor:
    return x.repeat_interleave((x > 0).long() * 2 + 1)


def _several_numbers(x: Tensor) -> Tensor:
    one, other = _operator("numbers", x)
    return torch.ones(one, other) * one + torch.arange(other)


def _unique(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, back, counts = torch.unique((x * 2).round(), return_inverse=True, return_counts=True)
    return values + 1, back * 2, counts.float() / x.shape[0]


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "a stride": lambda x: _operator("stride", x) * 2,
    "twice a size": lambda x: _operator("twice", x) + 1,
    "a size and more": lambda x: _operator("more", x)[0].exp().sum(),
    "a size beside one that is known": lambda x: (_operator("product", x) * x.sum()).sum(0),
    "an offset": lambda x: _operator("offset", x) + 1,
    "several results": lambda x: (lambda a, rest: (a * 2, rest[0] + 1, rest[1].sum(0)))(*_operator("several", x)),
    "several numbers": _several_numbers,
    "nonzero": lambda x: x.nonzero() * 2 + 1,
    "nonzero, expanded": lambda x: x.nonzero().expand(-1, 5) + x.nonzero().size(0),
    "one size for two results": lambda x: x[x > 0] * x[x > 0].cos(),
    "a mask's rows, multiplied": lambda x: torch.outer(x, x)[x > 0] @ torch.outer(x, x),
    "a mask's rows, normed": lambda x: torch.softmax(torch.outer(x, x)[x > 0], -1),
    "item as a size": lambda x: torch.ones(_item(x), 3) * _item(x),
    "item in a slice": lambda x: x[: _item(x)] * 2,
    "item in a number": lambda x: x * (x > 0).sum().item() + 1,
    "a float item": lambda x: x * x.sum().item(),
    "unique": _unique,
    "repeats": _repeated,
    "repeats by a number": lambda x: x.repeat_interleave(_item(x) + 1),
    "split": lambda x: [part * 2 for part in torch.split(x, [_item(x), x.shape[0] - _item(x)])],
    "joined": lambda x: torch.cat((x[x > 0], x[x <= 0], x[x > 0])) - 1,
    "arange": lambda x: torch.arange(_item(x)) + x.sum(),
    "viewed": lambda x: torch.outer(x, x)[x > 0].view(-1).cumsum(0),
    "one after another": lambda x: (lambda y: y[y < 1] * 2)(x[x > 0]),
    "masked select of a product": lambda x: torch.masked_select(torch.outer(x, x), torch.outer(x, x) > 0.1).sum(),
    "scattered": lambda x: torch.zeros(x.shape[0]).index_add(0, x.nonzero()[:, 0], x[x != 0]),
    "pad": lambda x: F.pad(x, (0, _item(x))),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_call_returns_tells_the_size(name: str) -> None:
    function = PROGRAMS[name]
    call = polytile.compile(function, fullgraph=True)
    for n in (7, 12, 31):
        x = torch.randn(n)
        x[0] = 0.5
        torch.testing.assert_close(call(x), function(x), rtol=2e-5, atol=1e-5)
    assert polytile.counters["failures"] == 0


def test_none_and_all_of_them() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cat((x[x > 0] * 2, *_operator("more", x)))

    call = polytile.compile(function, fullgraph=True)
    for x in (torch.ones(5), -torch.ones(6), torch.randn(9)):
        torch.testing.assert_close(call(x), function(x))


def _rows_twice(x: Tensor) -> Tensor:
    """Three equal calls of repeat_interleave: the rows of the first and the last are read, the second's number alone."""
    rows, repeats = torch.outer(x, x), (x > 0).long() * 2
    sines = rows.repeat_interleave(repeats, 0).sin()
    return sines.sum() + torch.repeat_interleave(repeats).shape[0] + (rows.repeat_interleave(repeats, 0).sum(0) * x).sum()


def _experts(x: Tensor) -> Tensor:
    """Rows by three masks, each mask made anew where it is used again."""
    rows, expert = torch.outer(x, x), torch.arange(x.shape[0]) % 3
    mixed = torch.cat([rows[expert == k].tanh() * (k + 1) for k in range(3)])
    return mixed.square().sum() + torch.stack([rows[expert == k].sum() for k in range(3)]).sum()


SELECTED: dict[str, Callable[[Tensor], Tensor]] = {
    "by masks and repeats": lambda x: (x[x > 0].square() * x[x > 0]).sum() + x.repeat_interleave((x > 0).long() + 1).exp().sum(),
    "two tensors by one mask": lambda x: (x[x > 0].exp() * x.cos()[x > 0]).sum() + x.square()[x > 0].sum(),
    "rows twice": _rows_twice,
    "rows by experts": _experts,
}


@pytest.mark.parametrize("name", SELECTED)
def test_gradients_of_what_is_selected(name: str) -> None:
    function = SELECTED[name]
    call = polytile.compile(function, fullgraph=True)
    for n in (6, 15):
        x = torch.randn(n, requires_grad=True)
        (got,), (want,) = (torch.autograd.grad(f(x), x) for f in (call, function))
        torch.testing.assert_close(got, want)
    assert polytile.counters["failures"] == 0
