"""Networks of convolutions from torch.nn, with the layers and the shapes of well-known ones and random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """`x + body(x)`, or `shortcut(x) + body(x)`, and an activation behind it."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut, self.after = body, shortcut or nn.Identity(), after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.after(self.shortcut(x) + self.body(x))
        return result


def normed(
    inner: int, outer: int, window: int, stride: int = 1, groups: int = 1, act: type[nn.Module] = nn.ReLU
) -> list[nn.Module]:
    """A convolution, BatchNorm and an activation."""
    convolution = nn.Conv2d(inner, outer, window, stride, window // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outer), act()]


def resnet() -> nn.Module:
    """ResNet18."""
    layers: list[nn.Module] = [*normed(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for outer, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first, 1):
            body = nn.Sequential(*normed(inner, outer, 3, stride), *normed(outer, outer, 3)[:2])
            changes = stride != 1 or inner != outer
            shortcut = nn.Sequential(*normed(inner, outer, 1, stride)[:2]) if changes else None
            layers.append(Residual(body, shortcut, nn.ReLU()))
            inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(8, channels // 4 // 8 * 8)
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), nn.ReLU(), nn.Conv2d(inner, channels, 1), nn.Hardsigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x * self.scale(x)
        return result


MOBILE = (  # window, expanded, results, squeezed, activation, stride
    (3, 16, 16, False, nn.ReLU, 1), (3, 64, 24, False, nn.ReLU, 2), (3, 72, 24, False, nn.ReLU, 1),
    (5, 72, 40, True, nn.ReLU, 2), (5, 120, 40, True, nn.ReLU, 1), (5, 120, 40, True, nn.ReLU, 1),
    (3, 240, 80, False, nn.Hardswish, 2), (3, 200, 80, False, nn.Hardswish, 1), (3, 184, 80, False, nn.Hardswish, 1),
    (3, 184, 80, False, nn.Hardswish, 1), (3, 480, 112, True, nn.Hardswish, 1), (3, 672, 112, True, nn.Hardswish, 1),
    (5, 672, 160, True, nn.Hardswish, 2), (5, 960, 160, True, nn.Hardswish, 1), (5, 960, 160, True, nn.Hardswish, 1),
)  # fmt: skip


def mobilenet() -> nn.Module:
    """MobileNetV3 large."""
    layers, inner = normed(3, 16, 3, 2, act=nn.Hardswish), 16
    for window, wide, outer, squeezed, act, stride in MOBILE:
        body = normed(inner, wide, 1, act=act) if wide != inner else []
        body += normed(wide, wide, window, stride, wide, act)
        body += [*([Squeeze(wide)] if squeezed else []), *normed(wide, outer, 1)[:2]]
        layers.append(Residual(nn.Sequential(*body)) if stride == 1 and inner == outer else nn.Sequential(*body))
        inner = outer
    layers += [*normed(inner, 960, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """ConvNeXt atto, whose products are convolutions."""
    widths, depths = (40, 80, 160, 320), (2, 2, 6, 2)
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])]
    for k, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if k:
            layers += [ChannelNorm(widths[k - 1]), nn.Conv2d(widths[k - 1], width, 2, 2)]
        for _ in range(depth):
            parts = [nn.Conv2d(width, width, 7, padding=3, groups=width), ChannelNorm(width), nn.Conv2d(width, 4 * width, 1)]
            layers.append(Residual(nn.Sequential(*parts, nn.GELU(), nn.Conv2d(4 * width, width, 1))))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000))


def randomised(module: nn.Module) -> nn.Module:
    """The module with statistics of BatchNorm that are not those of no data."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None and part.running_var is not None:
            torch.nn.init.uniform_(part.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(part.running_var, 0.5, 2)
    return module
