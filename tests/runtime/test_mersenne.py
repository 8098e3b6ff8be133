"""Bernoulli numbers of torch's own CPU generator, drawn by vectors: the same numbers, the same state after them."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
import torch.nn.functional as F

import polytile
from polytile.runtime import mersenne

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def draw() -> mersenne.Draw:
    found = mersenne._checked()
    if found is None:
        pytest.skip("torch draws Bernoulli numbers in another way on this processor")
    return found


@pytest.mark.parametrize("skipped", [0, 1, 2, 623, 624, 625])
@pytest.mark.parametrize("count", [1, 7, 312, 313, 2000])
def test_numbers_and_state_are_torchs_from_any_place_of_a_round(
    draw: mersenne.Draw, skipped: int, count: int
) -> None:
    for p in (0.0, 0.1, 0.5, 1.0):
        torchs, own = torch.Generator().manual_seed(count), torch.Generator().manual_seed(count)
        for generator in (torchs, own):
            torch.randint(2**31, (skipped,), generator=generator)
        want, got = torch.empty(count, dtype=torch.bool), torch.zeros(count + 8, dtype=torch.bool)
        want.bernoulli_(p, generator=torchs)
        mersenne._fill(draw, own, got[:count], p)
        assert torch.equal(got[:count], want)
        assert not got[count:].any(), "nothing is written behind the last number"
        assert torch.equal(torch.randn(1300, generator=own), torch.randn(1300, generator=torchs))


def test_an_odd_probability_is_compared_exactly(draw: mersenne.Draw) -> None:
    p = math.nextafter(1 / 3, 1)
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    want, got = torch.empty(100_000, dtype=torch.bool), torch.empty(100_000, dtype=torch.bool)
    want.bernoulli_(p, generator=generators[0])
    mersenne._fill(draw, generators[1], got, p)
    assert torch.equal(want, got)


@pytest.mark.parametrize("shape", [(3, 5), (37, 51), (2, 700)], ids=str)
def test_a_compiled_dropout_is_eagers(shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    run = polytile.compile(lambda x: F.dropout(x.t(), 0.3))
    for seed in (1, 2):
        torch.manual_seed(seed)
        want, then = F.dropout(x.t(), 0.3), torch.rand(9)
        torch.manual_seed(seed)
        assert torch.equal(run(x), want)
        assert torch.equal(torch.rand(9), then)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=str)
def test_other_types_are_filled_by_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    got = mersenne.bernoulli_(torch.empty(1000, dtype=dtype), 0.5)
    torch.manual_seed(3)
    assert torch.equal(got, torch.empty(1000, dtype=dtype).bernoulli_(0.5))
