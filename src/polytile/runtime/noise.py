"""Random numbers for arguments that are made up: from generators of their own, as torch's own are the program's."""

from __future__ import annotations

import torch

_generators: dict[torch.device, torch.Generator] = {}


def _generator(device: torch.device) -> torch.Generator:
    if device not in _generators:
        _generators[device] = torch.Generator(device).manual_seed(0)
    return _generators[device]


def normal(count: int, device: torch.device | None = None) -> torch.Tensor:
    """So many float32 numbers of the standard normal distribution, on the CPU if no device is named."""
    device = device or torch.device("cpu")
    return torch.randn(count, dtype=torch.float32, device=device, generator=_generator(device))


def integers(low: int, high: int, count: int, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """So many integers of [low, high), all of them as likely."""
    device = device or torch.device("cpu")
    return torch.randint(low, high, (count,), dtype=dtype, device=device, generator=_generator(device))
