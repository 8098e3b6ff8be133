"""Properties of the numbers by which attention's weights are dropped."""

from __future__ import annotations

import math

import pytest
import torch

from polytile.ir import philox
from polytile.ir.dropout import Dropout, advance, kept, kept_from

STATE = torch.tensor([1234, 8])


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(64, 1000), (63, 999)])
def test_as_many_are_kept_as_asked_for(p: float, shape: tuple[int, int]) -> None:
    share = kept(Dropout(p, 8, 2048), STATE, shape).double().mean().item()
    assert abs(share - (1 - p)) < 5 * math.sqrt(p * (1 - p) / math.prod(shape))
    assert Dropout(p, 8, 2048).factor == 1 / (1 - p)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.5, 1.5, 1 - 1e-12])
def test_probabilities_that_draw_nothing_are_refused(p: float) -> None:
    with pytest.raises(ValueError, match="draws no numbers"):
        Dropout(p, 8, 2048)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 1e-9, 0.999999])
def test_words_are_compared_as_their_float32_numbers_are(p: float) -> None:
    last = Dropout(p, 4, 256).last
    near = torch.tensor([w for d in range(-300, 300) if 0 <= (w := last + d) < 1 << 32] + [0, (1 << 32) - 1])
    uniform = near.to(torch.float32) * 2.0**-32 + 2.0**-33
    assert torch.equal(near <= last, uniform < torch.tensor(1 - p, dtype=torch.float32))


def eager(dropout: Dropout, count: int, width: int) -> list[bool]:
    """The loops of eager's kernels: each thread draws four numbers at a time."""
    blocks = min(dropout.threads // 256, -(-count // 256))
    threads, found = 256 * blocks, [False] * count

    def drawn(thread: int, number: int) -> list[bool]:
        counter = STATE[1] // 4 + number
        return [int(word) <= dropout.last for word in philox.words(STATE[0], counter, torch.tensor(thread))]

    for thread in range(min(threads, count)):
        first, number = thread * width, 0
        while first < count:
            if width == 1:
                for k, one in enumerate(drawn(thread, number)):
                    if first + k * threads < count:
                        found[first + k * threads] = one
                first, number = first + 4 * threads, number + 1
                continue
            parts = max(1, width // 4)
            numbers = [one for part in range(parts) for one in drawn(thread, number + part)]
            found[first : first + width] = numbers[:width]
            first, number = first + threads * width, number + parts
    return found


@pytest.mark.parametrize(("count", "width"), [(4352, 8), (2052, 4), (1026, 2), (2049, 1), (259, 1), (24, 8)])
def test_numbers_are_those_of_eager_s_loops(count: int, width: int) -> None:
    dropout = Dropout(0.4, 8, 512)
    assert dropout.width(count) == width
    mine = kept(dropout, STATE, (count,))
    assert mine.tolist() == eager(dropout, count, width)
    assert torch.equal(mine[7:20], kept_from(dropout, STATE, count, 7, 13))


def test_the_generator_advances_as_by_eager_s_kernel() -> None:
    assert [advance(count, 512) for count in (0, 1, 2048, 2049, 4096, 4097)] == [0, 4, 4, 8, 8, 12]
