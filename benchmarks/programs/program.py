"""A program of the suite: a row of a table that makes a function and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

LEVELS = ("operator", "chain", "network")
SEED = 20

Function = Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """`make` draws a function, or a module, and its inputs. `training`: loss.backward() belongs to the program, whose results are
    then the loss and the gradients. `random`: it draws random numbers, and is judged against eager's own from the same seed.
    `scale`: the size of the terms whose sum is a result, where that cancels. `gpu`: it is run on a GPU too."""

    name: str
    level: str
    family: str
    make: Callable[[Draw], tuple[Function, tuple[Any, ...]]]
    training: bool = False
    random: bool = False
    scale: float = 0.0
    gpu: bool = True


@dataclass
class Draw:
    """Random inputs on a device, the same in every process."""

    device: str
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(SEED)

    def size(self, cpu: int, gpu: int) -> int:
        """A size for either device: what fills a GPU takes seconds on two cores."""
        return gpu if self.device == "cuda" else cpu

    def x(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normal numbers."""
        return torch.randn(shape, generator=self.generator, device=self.device).to(dtype)

    def positive(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers in [0.1, 1.1)."""
        return (torch.rand(shape, generator=self.generator, device=self.device) + 0.1).to(dtype)

    def whole(self, high: int, *shape: int, low: int = 0, dtype: torch.dtype = torch.int64) -> Tensor:
        """Integers in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device).to(dtype)

    def flags(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device) < 0.5

    def module(
        self, make: Callable[[], nn.Module], *, train: bool = False, dtype: torch.dtype = torch.float32
    ) -> nn.Module:
        """A module with random parameters. Those that begin as ones or zeros, and running statistics, are perturbed."""
        torch.manual_seed(SEED)
        made = make().to(self.device)
        with torch.no_grad():
            for name, tensor in (*made.named_parameters(), *made.named_buffers()):
                if tensor.is_floating_point() and (tensor.dim() < 2 or "running" in name):
                    tensor.add_(0.2 * torch.rand(tensor.shape, generator=self.generator, device=self.device))
        return made.to(dtype).train(train)


def rows(level: str, family: str, makers: Iterable[tuple[Any, ...]], **settings: Any) -> Iterator[Program]:
    """Programs of one family: (name, make) or (name, make, further settings)."""
    for name, make, *more in makers:
        yield Program(name, level, family, make, **{**settings, **(more[0] if more else {})})


__all__ = ["LEVELS", "SEED", "Draw", "Function", "Program", "rows"]
