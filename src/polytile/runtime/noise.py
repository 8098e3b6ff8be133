"""Random numbers for made-up arguments, from separate generators, since torch's own belong to the program."""

from __future__ import annotations

import torch

_generators: dict[torch.device, torch.Generator] = {}


def _generator(device: torch.device) -> torch.Generator:
    if device not in _generators:
        _generators[device] = torch.Generator(device).manual_seed(0)
    return _generators[device]


def normal(count: int, device: torch.device | None = None) -> torch.Tensor:
    """`count` float32 numbers of the standard normal distribution, on the CPU by default."""
    device = device or torch.device("cpu")
    return torch.randn(count, dtype=torch.float32, device=device, generator=_generator(device))


def integers(low: int, high: int, count: int, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """`count` integers, uniform in [low, high)."""
    device = device or torch.device("cpu")
    return torch.randint(low, high, (count,), dtype=dtype, device=device, generator=_generator(device))
