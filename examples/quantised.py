"""Runs a model whose weights are int8 and whose activations are rounded to int8 at each call.

Each layer is a product of int8 with int32 sums (`torch._int_mm`), followed by scales and a bias. polytile makes one kernel of the
rounding, and one of the product with what follows it. The program prints the size of the weights, how far the result is from the
float32 model's, and the time of a call at several batch sizes: float32 and int8, each in eager and compiled.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

import torch
from torch import Tensor, nn

import polytile

WIDTH, ROWS = 512, (4, 32, 256)


class Int8Linear(nn.Module):
    """A Linear with a scale for each output channel; activations [rows, in] get a scale for each row."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(1) / 127
        self.register_buffer("weight", (linear.weight.detach() / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
        rounded = (x / scale).round().to(torch.int8)
        return torch._int_mm(rounded, self.weight.t()).float() * (scale * self.scale) + self.bias


def size(model: nn.Module) -> float:
    """Of the parameters and buffers, in MiB."""
    return sum(t.numel() * t.element_size() for t in model.state_dict().values()) / 2**20


def microseconds(function: Callable[[Tensor], Tensor], x: Tensor, calls: int = 30) -> float:
    """The fastest of some calls."""
    return min(timeit.repeat(lambda: function(x), number=1, repeat=calls)) * 1e6


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
    model = nn.Sequential(first, nn.ReLU(), last).eval()
    quantised = nn.Sequential(Int8Linear(first), nn.ReLU(), Int8Linear(last)).eval()
    contestants = {
        "float32 eager": model,
        "float32 polytile": polytile.compile(model),
        "int8 eager": quantised,
        "int8 polytile": polytile.compile(quantised),
    }
    for _ in range(2):  # the programs take over at the second call, and then meet the sizes
        for rows in ROWS:
            for run in contestants.values():
                run(torch.randn(rows, WIDTH))
        polytile.wait()
    print(f"weights: float32 {size(model):.1f} MiB, int8 {size(quantised):.1f} MiB")
    for rows in ROWS:
        x = torch.randn(rows, WIDTH)
        torch.testing.assert_close(contestants["int8 polytile"](x), quantised(x), rtol=1e-4, atol=1e-3)
        error = (contestants["int8 polytile"](x) - model(x)).norm() / model(x).norm()
        times = ", ".join(f"{name} {microseconds(run, x):.0f} µs" for name, run in contestants.items())
        print(f"{rows:3} rows: error {100 * error:.1f} %; {times}")


if __name__ == "__main__":
    main()
