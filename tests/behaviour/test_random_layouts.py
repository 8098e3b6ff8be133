"""Random numbers are eager's, in eager's places, however memory lies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import polytile

LAST = torch.channels_last
WEIGHT, POINT = torch.randn(4, 3, 3, 3) / 5, torch.randn(4, 3, 1, 1)

MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "by a convolution": lambda x: F.conv2d(x, WEIGHT.to(x.device)),
    "by a convolution, channels last": lambda x: F.conv2d(x.contiguous(memory_format=LAST), POINT.to(x.device)).relu(),
    "as a permutation": lambda x: x.permute(3, 2, 1, 0),
    "by a sum of a permutation": lambda x: x.permute(0, 2, 3, 1).sum(1) * 2,
    "with steps": lambda x: x[:, :, ::2, 1:],
    "repeated": lambda x: x[:, :1].expand(-1, 5, -1, -1),
}

DRAWN: dict[str, Callable[[Tensor], Tensor]] = {
    "randn_like": torch.randn_like,
    "rand_like": torch.rand_like,
    "rand_like, row by row": lambda y: torch.rand_like(y, dtype=torch.float64, memory_format=torch.contiguous_format),
    "randint_like": lambda y: torch.randint_like(y, 2, 9) + torch.randint_like(y, 9),
    "rand": lambda y: torch.rand(y.shape) + torch.randn(y.shape) + torch.randint(3, y.shape),
    "bernoulli": lambda y: torch.bernoulli(y.sigmoid()) + torch.bernoulli(y, 0.3),
    "dropout": lambda y: F.dropout(y + 1, 0.4, True) * 2,
    "alpha_dropout": lambda y: F.alpha_dropout(y, 0.4, True),
    "rrelu": lambda y: F.rrelu(y, 0.1, 0.6, True),
    "bernoulli_": lambda y: y.clone().bernoulli_(0.3) + y.clone().bernoulli_(y.sigmoid()),
    "normal_": lambda y: y.clone().normal_(1, 2),
    "normal_ of a part": lambda y: y.clone()[..., ::2].normal_(),
    "normal_ across": lambda y: y.clone().transpose(0, -1).normal_(),
    "uniform_": lambda y: y.clone()[1:].uniform_(-1, 1),
    "exponential_": lambda y: y.clone().exponential_(2.0) + y.clone().geometric_(0.4),
    "random_": lambda y: y.clone().random_(2, 30) + y.long().clone().random_(7),
    "of other distributions": lambda y: y.clone().cauchy_() + y.clone().log_normal_(),
    "normal": lambda y: torch.normal(y, y.abs() + 1) + torch.normal(y, 2.0),
    "poisson": lambda y: torch.poisson(y.abs() * 3),
    "multinomial": lambda y: torch.multinomial(y.reshape(y.shape[0], -1).sigmoid(), 2),
    "randperm": lambda y: torch.randperm(y.shape[-1]) + y[..., 0].clone().normal_().sum().round(),
}


def drawn(function: Callable[[Tensor], list[Tensor]], x: Tensor) -> list[Tensor]:
    torch.manual_seed(5)
    with torch.no_grad():
        return [*function(x), torch.rand(3, device=x.device)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("made", MADE)
def test_numbers_are_eagers_in_every_layout(made: str, device: str) -> None:
    def function(x: Tensor) -> list[Tensor]:
        y = MADE[made](x)
        return [draw(y) for draw in DRAWN.values()]

    polytile.compile(lambda x: x + 1)(torch.randn(3))  # what is compiled first has no say in it
    call = polytile.compile(function)
    for shape in ((2, 3, 6, 7), (3, 3, 9, 5)):
        x = torch.randn(shape, device=device)
        for name, mine, theirs in zip([*DRAWN, "what follows"], drawn(call, x), drawn(function, x), strict=True):
            torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}")
