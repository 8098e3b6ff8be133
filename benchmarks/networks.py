"""Networks with the depth of well-known ones and few channels: their first calls take long for their many operators."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Network = tuple[nn.Module, tuple[torch.Tensor, ...]]
"""A module and arguments for it."""


Layers = list[nn.Module]


class Recurrence(nn.Module):
    """A cell written out over `steps` steps."""

    def __init__(self, steps: int, width: int = 16) -> None:
        super().__init__()
        self.steps, self.cell = steps, nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        found = []
        for t in range(self.steps):
            h = torch.tanh(self.cell(torch.cat((x[t], h), 1)))
            found.append(h)
        return torch.stack(found)


class Residual(nn.Module):
    """`through(x) + beside(x)`, then `after`."""

    def __init__(self, through: nn.Module, beside: nn.Module | None = None, after: nn.Module | None = None) -> None:
        super().__init__()
        self.through, self.beside, self.after = through, beside or nn.Identity(), after or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.after(self.through(x) + self.beside(x))
        return found


class Dense(nn.Module):
    """The results of all layers so far, side by side, into each layer."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.project, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.project(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        found: torch.Tensor = self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return found


def normed(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1, act: nn.Module | None = None) -> Layers:
    """A convolution, a batch norm and what follows."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), *([act] if act is not None else [])]


def ending(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


def resnet101(width: int = 8) -> nn.Module:
    layers: list[nn.Module] = [*normed(3, width, 7, 2, act=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, blocks in enumerate((3, 4, 23, 3)):
        inner = width << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            way = [*normed(channels, inner, 1, act=nn.ReLU()), *normed(inner, inner, 3, stride, act=nn.ReLU())]
            through = nn.Sequential(*way, *normed(inner, 4 * inner, 1))
            beside = None if block else nn.Sequential(*normed(channels, 4 * inner, 1, stride))
            layers.append(Residual(through, beside, nn.ReLU()))
            channels = 4 * inner
    return nn.Sequential(*layers, *ending(channels))


def mobilenet(part: int = 4) -> nn.Module:
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    channels = 32 // part
    layers: list[nn.Module] = normed(3, channels, 3, 2, act=nn.ReLU6())
    for widened, out, blocks, first in rows:
        for block in range(blocks):
            stride, inner, outer = (first if not block else 1), channels * widened, out // part
            way = normed(channels, inner, 1, act=nn.ReLU6()) if widened > 1 else []
            way += [*normed(inner, inner, 3, stride, inner, nn.ReLU6()), *normed(inner, outer, 1)]
            through = nn.Sequential(*way)
            layers.append(Residual(through) if stride == 1 and channels == outer else through)
            channels = outer
    return nn.Sequential(*layers, *ending(channels))


def densenet121(growth: int = 4) -> nn.Module:
    channels = 2 * growth
    layers: list[nn.Module] = [*normed(3, channels, 7, 2, act=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
    for stage, blocks in enumerate((6, 12, 24, 16)):
        if stage:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2, 2)]
            channels //= 2
        found: list[nn.Module] = []
        for _ in range(blocks):
            inner = [nn.BatchNorm2d(channels), nn.ReLU(), *normed(channels, 4 * growth, 1, act=nn.ReLU())]
            found.append(nn.Sequential(*inner, nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)))
            channels += growth
        layers.append(Dense(found))
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), *ending(channels))


def transformer(blocks: int = 2, width: int = 64) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(blocks):
        layers.append(Residual(nn.Sequential(nn.LayerNorm(width), Attention(width, 4))))
        wide = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        layers.append(Residual(wide))
    return nn.Sequential(*layers)


def _images(network: Callable[[], nn.Module]) -> Callable[[], Network]:
    return lambda: (network(), (torch.randn(2, 3, 64, 64),))


NETWORKS: dict[str, Callable[[], Network]] = {
    "recurrence32": lambda: (Recurrence(32), (torch.randn(32, 4, 16), torch.randn(4, 16))),
    "recurrence256": lambda: (Recurrence(256), (torch.randn(256, 4, 16), torch.randn(4, 16))),
    "resnet101": _images(resnet101),
    "mobilenet": _images(mobilenet),
    "densenet121": _images(densenet121),
    "transformer": lambda: (transformer(), (torch.randn(2, 50, 64),)),
}
"""What makes each of them, by name."""
