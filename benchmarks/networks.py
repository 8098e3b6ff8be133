"""Well-known networks with their published depths and widths: their many operators make first calls long."""

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


def resnet101(width: int = 64) -> nn.Module:
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


def mobilenet_v2() -> nn.Module:
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    channels = 32
    layers: list[nn.Module] = normed(3, channels, 3, 2, act=nn.ReLU6())
    for widened, out, blocks, first in rows:
        for block in range(blocks):
            stride, inner, outer = (first if not block else 1), channels * widened, out
            way = normed(channels, inner, 1, act=nn.ReLU6()) if widened > 1 else []
            way += [*normed(inner, inner, 3, stride, inner, nn.ReLU6()), *normed(inner, outer, 1)]
            through = nn.Sequential(*way)
            layers.append(Residual(through) if stride == 1 and channels == outer else through)
            channels = outer
    return nn.Sequential(*layers, *ending(channels))


def densenet121(growth: int = 32) -> nn.Module:
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


class Squeeze(nn.Module):
    """Scales each channel by what its mean over the image says."""

    def __init__(self, channels: int, inner: int, act: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), act(), nn.Conv2d(inner, channels, 1), gate()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x * self.way(x)
        return found


Row = tuple[int, int, int, int, bool, type[nn.Module]]
"""The kernel's size, the widened and the resulting channels, the stride, whether channels are scaled, the activation."""


def inverted(first: int, rows: list[Row], gate: type[nn.Module], part: int, wide: int, act: type[nn.Module]) -> nn.Module:
    """Inverted residual blocks, as MobileNetV3 and EfficientNet have them. Channels are scaled through a `part`th of them."""
    layers: list[nn.Module] = normed(3, first, 3, 2, act=act())
    channels = first
    for size, inner, outer, stride, scaled, own in rows:
        way = normed(channels, inner, 1, act=own()) if inner != channels else []
        way += normed(inner, inner, size, stride, inner, own())
        between = nn.ReLU if gate is nn.Hardsigmoid else own
        way += [Squeeze(inner, max(8, inner // part), between, gate)] if scaled else []
        through = nn.Sequential(*way, *normed(inner, outer, 1))
        layers.append(Residual(through) if stride == 1 and channels == outer else through)
        channels = outer
    return nn.Sequential(*layers, *normed(channels, wide, 1, act=act()), *ending(wide))


def mobilenet_v3() -> nn.Module:
    """The small one."""
    relu, hard = nn.ReLU, nn.Hardswish
    rows: list[Row] = [(3, 16, 16, 2, True, relu), (3, 72, 24, 2, False, relu), (3, 88, 24, 1, False, relu)]
    rows += [(5, 96, 40, 2, True, hard), (5, 240, 40, 1, True, hard), (5, 240, 40, 1, True, hard)]
    rows += [(5, 120, 48, 1, True, hard), (5, 144, 48, 1, True, hard)]
    rows += [(5, 288, 96, 2, True, hard), (5, 576, 96, 1, True, hard), (5, 576, 96, 1, True, hard)]
    return inverted(16, rows, nn.Hardsigmoid, 4, 576, hard)


def efficientnet_b0() -> nn.Module:
    stages = [(3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1)]
    stages += [(5, 6, 192, 4, 2), (3, 6, 320, 1, 1)]
    rows: list[Row] = []
    channels = 32
    for size, widened, outer, blocks, first in stages:
        for block in range(blocks):
            rows.append((size, channels * widened, outer, first if not block else 1, True, nn.SiLU))
            channels = outer
    return inverted(32, rows, nn.Sigmoid, 24, 1280, nn.SiLU)


class Inception(nn.Module):
    """Four convolutions of several sizes, side by side."""

    def __init__(self, cin: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> None:
        super().__init__()

        def pair(inner: int, outer: int, size: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(cin, inner, 1), nn.Conv2d(inner, outer, size, padding=size // 2))

        pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(cin, pooled, 1))
        self.ways = nn.ModuleList([nn.Conv2d(cin, one, 1), pair(*three, 3), pair(*five, 5), pool])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


def googlenet() -> nn.Module:
    pool = nn.MaxPool2d(3, 2, 1)
    layers = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), pool, nn.Conv2d(64, 64, 1), nn.ReLU()]
    layers += [nn.Conv2d(64, 192, 3, padding=1), nn.ReLU(), pool]
    layers += [Inception(192, 64, (96, 128), (16, 32), 32), Inception(256, 128, (128, 192), (32, 96), 64), pool]
    layers += [Inception(480, 192, (96, 208), (16, 48), 64), Inception(512, 160, (112, 224), (24, 64), 64)]
    layers += [Inception(512, 128, (128, 256), (24, 64), 64), Inception(512, 112, (144, 288), (32, 64), 64)]
    layers += [Inception(528, 256, (160, 320), (32, 128), 128), pool]
    layers += [Inception(832, 256, (160, 320), (32, 128), 128), Inception(832, 384, (192, 384), (48, 128), 128)]
    return nn.Sequential(*layers, *ending(1024))


class CosineWindows(nn.Module):
    """SwinV2's block: attention in shifted windows, by the angle between queries and keys, with a learned bias."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((heads, 1, 1), 2.3))
        self.bias = nn.Sequential(nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, heads, bias=False))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        near = torch.arange(window)
        spots = torch.stack(torch.meshgrid(near, near, indexing="ij")).flatten(1)
        apart = spots[:, :, None] - spots[:, None, :] + window - 1
        self.register_buffer("places", apart[0] * (2 * window - 1) + apart[1])
        span = torch.arange(1 - window, window) / (window - 1)
        self.register_buffer("table", torch.stack(torch.meshgrid(span, span, indexing="ij"), -1).view(-1, 2))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        count, points, width = x.shape
        q, k, v = self.project(x).reshape(count, points, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = nn.functional.normalize(q, dim=-1) @ nn.functional.normalize(k, dim=-1).transpose(-2, -1)
        bias = 16 * torch.sigmoid(self.bias(self.table)[self.places].permute(2, 0, 1))
        scores = scores * torch.clamp(self.scale, max=4.6).exp() + bias
        found: torch.Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(count, points, width))
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        size, shift = self.window, self.shift
        moved = torch.roll(x, (-shift, -shift), (1, 2)) if shift else x
        tiles = moved.view(b, h // size, size, w // size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, c)
        found = self.attend(tiles).view(b, h // size, w // size, size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + self.norms[0](torch.roll(found, (shift, shift), (1, 2)) if shift else found)
        result: torch.Tensor = x + self.norms[1](self.wide(x))
        return result


class Halve(nn.Module):
    """Four neighbouring points become one with twice the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.norm = nn.Linear(4 * width, 2 * width, bias=False), nn.LayerNorm(2 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        found: torch.Tensor = self.norm(self.project(torch.cat(near, -1)))
        return found


class Swin(nn.Module):
    """SwinV2, the tiny one."""

    def __init__(self, width: int = 96, window: int = 4) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage, (blocks, heads) in enumerate(((2, 3), (2, 6), (6, 12), (2, 24))):
            layers += [Halve(width << (stage - 1))] if stage else []
            shifts = [window // 2 * (block % 2) if stage < 3 else 0 for block in range(blocks)]
            layers += [CosineWindows(width << stage, heads, window, shift) for shift in shifts]
        self.patches, self.layers, self.head = nn.Conv2d(3, width, 4, 4), nn.Sequential(*layers), nn.Linear(8 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layers(self.patches(x).permute(0, 2, 3, 1)).mean((1, 2)))
        return found


class ImageAttention(nn.Module):
    """Attention between all points of an image, by PyTorch's module, then a layer norm."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(width, heads), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        points = x.view(b, c, h * w).permute(2, 0, 1)
        found = self.norm(self.attention(points, points, points)[0] + points)
        return found.permute(1, 2, 0).view(b, c, h, w)


class Step(nn.Module):
    """A residual block of a diffusion network, which adds what it is told of the time."""

    def __init__(self, cin: int, cout: int, told: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.GroupNorm(8, cin), nn.SiLU(), nn.Conv2d(cin, cout, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(told, cout))
        self.after = nn.Sequential(nn.GroupNorm(8, cout), nn.SiLU(), nn.Conv2d(cout, cout, 3, padding=1))
        self.beside = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.after(self.before(x) + self.time(time)[:, :, None, None]) + self.beside(x)
        return found


class Points(nn.Module):
    """Attention between all points of an image, beside them."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.norm, self.attention = nn.GroupNorm(8, width), Attention(width, heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(self.norm(x).flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)


class Diffusion(nn.Module):
    """A network that takes noise off an image: down and up again, with what was met on the way down beside."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width, told, wides = width, 4 * width, (width, 2 * width, 4 * width)
        self.time = nn.Sequential(nn.Linear(width, told), nn.SiLU(), nn.Linear(told, told))
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        pairs = list(zip((width, *wides), wides, strict=False))
        self.down = nn.ModuleList(Step(cin, cout, told) for cin, cout in pairs)
        self.halve = nn.ModuleList(nn.Conv2d(each, each, 3, 2, 1) for each in wides)
        self.middle, self.attend = Step(wides[-1], wides[-1], told), Points(wides[-1])
        self.up = nn.ModuleList(Step(2 * cout, cin, told) for cin, cout in reversed(pairs))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        angles = time[:, None] * torch.exp(-torch.arange(self.width // 2, device=x.device) / 8)
        told = self.time(torch.cat((angles.sin(), angles.cos()), 1))
        x, met = self.first(x), []
        for step, halve in zip(self.down, self.halve, strict=True):
            x = step(x, told)
            met.append(x)
            x = halve(x)
        x = self.attend(self.middle(x, told))
        for step in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = step(torch.cat((x, met.pop()), 1), told)
        found: torch.Tensor = self.last(x)
        return found


def transformer(blocks: int = 2, width: int = 64) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(blocks):
        layers.append(Residual(nn.Sequential(nn.LayerNorm(width), Attention(width, 4))))
        wide = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        layers.append(Residual(wide))
    return nn.Sequential(*layers)


def _images(network: Callable[[], nn.Module], size: int = 64) -> Callable[[], Network]:
    return lambda: (network(), (torch.randn(2, 3, size, size),))


NETWORKS: dict[str, Callable[[], Network]] = {
    "recurrence32": lambda: (Recurrence(32), (torch.randn(32, 4, 16), torch.randn(4, 16))),
    "recurrence256": lambda: (Recurrence(256), (torch.randn(256, 4, 16), torch.randn(4, 16))),
    "resnet101": _images(resnet101),
    "mobilenet_v2": _images(mobilenet_v2),
    "mobilenet_v3": _images(mobilenet_v3),
    "efficientnet_b0": _images(efficientnet_b0),
    "densenet121": _images(densenet121),
    "googlenet": _images(googlenet),
    "swin_v2": _images(Swin, 128),
    "image_attention": lambda: (ImageAttention(), (torch.randn(2, 128, 24, 20),)),
    "diffusion": lambda: (Diffusion(), (torch.randn(2, 3, 32, 32), torch.rand(2) * 1000)),
    "transformer": lambda: (transformer(), (torch.randn(2, 50, 64),)),
}
"""What makes each of them, by name."""
