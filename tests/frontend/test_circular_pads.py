"""Circular padding: one operator for autograd, one loop, right at every size, with gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import polytile
from tests.behaviour.helpers import compiled

MODULES = {1: torch.nn.CircularPad1d, 2: torch.nn.CircularPad2d, 3: torch.nn.CircularPad3d}
PADDINGS = {"1-D": (2, 1), "one side": (0, 3), "2-D": (1, 2, 2, 1), "rows alone": (0, 0, 1, 2), "3-D": (1, 0, 2, 1, 0, 2)}


@pytest.mark.parametrize("force", ["plain t1", "aten"])
@pytest.mark.parametrize("padding", PADDINGS.values(), ids=PADDINGS)
def test_results_and_gradients_are_those_of_eager(padding: tuple[int, ...], force: str) -> None:
    function = MODULES[len(padding) // 2](padding)
    torch._dynamo.reset()
    call = compiled(function, force=force)
    for extent in (4, 7):
        x = torch.randn(2, 3, *[extent + d for d in range(len(padding) // 2)], requires_grad=True)
        got, want = call(x), function(x)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.stride() == want.stride()
        grad = torch.randn_like(want)
        torch.testing.assert_close(torch.autograd.grad(got, x, grad)[0], torch.autograd.grad(want, x, grad)[0])
    assert polytile.counters["failures"] == 0


def test_it_is_one_loop_and_joins_what_follows() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 3, 5, 6)
    call = compiled(lambda x: F.pad(x, (1, 2, 2, 1), mode="circular").relu())
    with torch.no_grad():
        torch.testing.assert_close(call(x), F.pad(x, (1, 2, 2, 1), mode="circular").relu())
        explained = polytile.explain(call, x)
    assert {row.how for row in explained.operators} <= {"generated", "view"}
    assert len({decision.kernel for decision in explained.decisions}) == 1


@pytest.mark.parametrize("padding", [(-1, 2), (2, -1, 1, 1)])
def test_crops_are_left_to_torch(padding: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    x, crop = torch.randn(2, 3, *[5] * (len(padding) // 2)), MODULES[len(padding) // 2](padding)
    torch.testing.assert_close(compiled(crop)(x), crop(x), rtol=0, atol=0)


def test_channels_last_and_more_than_once_around() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 8, 5, 6).to(memory_format=torch.channels_last)
    call = compiled(lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"))
    want = F.pad(x, (1, 2, 2, 1), mode="circular")
    got = call(x)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert got.stride() == want.stride()
    with pytest.raises(RuntimeError, match="more than once"):
        compiled(lambda x: F.pad(x, (9, 0), mode="circular"))(torch.randn(2, 5))


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate"])
def test_amounts_of_a_closure_are_symbols_and_the_pad_is_one_loop(mode: str) -> None:
    torch._dynamo.reset()
    amounts = (3, 2, 0, 4)
    x, call = torch.randn(2, 3, 5, 6), compiled(lambda x: F.pad(x, amounts, mode=mode))
    with torch.no_grad():
        want = F.pad(x, amounts, mode=mode)
        torch.testing.assert_close(call(x), want, rtol=0, atol=0)
        assert call(x).stride() == want.stride()
        explained = polytile.explain(call, x)
    assert {row.how for row in explained.operators} <= {"generated", "view"}
    assert len({decision.kernel for decision in explained.decisions}) == 1


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate"])
@pytest.mark.parametrize("amounts", [(3, 2), (0, 4), (-1, 2), (2, -3), (-2, -1), (1, 2, 3, 0)], ids=str)
def test_amounts_of_a_closure_may_crop(mode: str, amounts: tuple[int, ...]) -> None:
    if mode == "circular" and min(amounts) < 0:
        pytest.skip("these are left to torch")
    torch._dynamo.reset()

    def pad(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, amounts, mode=mode)

    call = compiled(pad, force="plain t1")
    with torch.no_grad():
        for shape in ((2, 3, 5, 6), (1, 2, 8, 33), (3, 1, 4, 40)):
            x = torch.randn(shape[-1 - len(amounts) // 2 :])  # a pair for each dimension but the first one or two
            torch.testing.assert_close(call(x), pad(x), rtol=0, atol=0)
