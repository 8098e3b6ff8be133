"""Trains on sequences of changing length, with one compile for all of them.

The same model is trained twice from the same weights and seeds: by eager, then compiled. Each epoch prints its mean loss and its
seconds. The losses agree, dropout included. The first compiled epochs trace, and share the cores with compilers. The last lines
print how many graphs were compiled, and the time of a step at some lengths. docs/training.md says what differs from inference.
"""

from __future__ import annotations

import copy
import time
import timeit
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

import polytile

WIDTH, BATCH, STEPS, EPOCHS = 64, 8, 16, 5
LENGTHS = (12, 50, 130)


class Tagger(nn.Module):
    """Vectors [batch, length, WIDTH] to one logit a position."""

    def __init__(self) -> None:
        super().__init__()
        inner = (nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH))
        self.layers = nn.Sequential(*inner, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)


def batch(length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(BATCH, length, WIDTH, generator=generator)
    return x, (x.mean(-1) > 0).float()


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for length in torch.randint(8, 160, (STEPS,), generator=generator).tolist():
        yield batch(length, generator)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, target: Tensor) -> float:
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(x), target)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(name: str, model: nn.Module) -> tuple[list[float], list[float]]:
    """The mean loss of each epoch, and the milliseconds of a step at each of LENGTHS after them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(1)  # for dropout
    losses = []
    for epoch in range(EPOCHS):
        start = time.perf_counter()
        losses.append(sum(step(model, optimizer, *pair) for pair in batches()) / STEPS)
        print(f"{name}, epoch {epoch + 1}: loss {losses[-1]:.4f}, {time.perf_counter() - start:.2f} s")
    polytile.wait()
    steps = [partial(step, model, optimizer, *batch(length, torch.Generator().manual_seed(2))) for length in LENGTHS]
    return losses, [min(timeit.repeat(one, number=1, repeat=20)) * 1e3 for one in steps]


if __name__ == "__main__":
    eager = Tagger()
    compiled = polytile.compile(copy.deepcopy(eager))
    expected, eager_times = train("eager", eager)
    losses, times = train("polytile", compiled)
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-3)
    print(f"{polytile.counters['graphs_compiled']} graphs for all lengths: forward and backward")
    for length, one, other in zip(LENGTHS, eager_times, times, strict=True):
        print(f"a step at length {length:3}: eager {one:.2f} ms, polytile {other:.2f} ms")
