"""Serves sequences of changing length: what a start, a request and a new length cost.

Run it twice with one cache directory. The first process traces, compiles and measures. The second starts from what is on disk.
Each prints how long it took to be ready and what it found, the time of requests beside eager's, what the first call at a new
length took before and after `polytile.wait()`, and the counters that a server would watch. docs/serving.md explains them.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable

import torch
from torch import Tensor, nn

import polytile

WARM = (16, 64, 256)
REQUESTS = (20, 64, 100, 250)
NEW = 1000


class Scorer(nn.Module):
    """Token numbers [length] to one score."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm, self.score = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.score(self.norm(x + self.mix(x)).mean(0))


def tokens(length: int) -> Tensor:
    return torch.randint(1000, (length,))


def milliseconds(function: Callable[[Tensor], Tensor], x: Tensor, calls: int = 30) -> float:
    """The fastest of some calls."""
    return min(timeit.repeat(lambda: function(x), number=1, repeat=calls)) * 1e3


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    model = Scorer().eval()
    serve = polytile.compile(model)
    seen = polytile.counters

    start = time.perf_counter()
    for _ in range(2):  # the program takes over at the second call, and then meets the lengths
        for length in WARM:
            serve(tokens(length))
        polytile.wait()
    print(f"ready after {time.perf_counter() - start:.1f} s: {seen['programs_loaded']} programs from disk, "
          f"{seen['compiler_runs']} compiler runs, {seen['candidates_benchmarked']} candidates timed")

    for length in REQUESTS:
        x = tokens(length)
        torch.testing.assert_close(serve(x), model(x), rtol=1e-4, atol=1e-4)
        print(f"length {length:4}: eager {milliseconds(model, x):.3f} ms, polytile {milliseconds(serve, x):.3f} ms")

    x, before = tokens(NEW), seen["dispatch_misses"]
    first = milliseconds(serve, x, calls=1)
    polytile.wait()
    print(f"length {NEW} is new to {seen['dispatch_misses'] - before} kernels: its first call took {first:.3f} ms")
    print(f"once the background is done: eager {milliseconds(model, x):.3f} ms, polytile {milliseconds(serve, x):.3f} ms")
    print(f"{seen['graphs_compiled']} graph for all lengths, {seen['failures']} failures")


if __name__ == "__main__":
    main()
