"""Small networks of images: a block of each well-known kind, or a whole network at small width."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Add(nn.Module):
    """x + inner(x), each through a module where there is one; then `after`."""

    def __init__(self, inner: nn.Module, around: nn.Module | None = None, after: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.around, self.after = inner, around or nn.Identity(), after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.after(self.inner(x) + self.around(x))
        return result


class Side(nn.Module):
    """The results of several modules on the same input, one after the other along the channels."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], 1)


class Squeeze(nn.Module):
    """Squeeze and excitation: channels scaled by what their means say."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))))


def conv(
    cin: int, cout: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: Callable[[], nn.Module] = nn.ReLU
) -> nn.Module:
    """Convolution, batch norm, activation."""
    layer = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(cout), act())


def head(width: int, classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def alexnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 11, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 96, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(864, 256),
        nn.ReLU(),
        nn.Linear(256, 100),
    )


def vgg() -> nn.Module:
    def block(cin: int, cout: int, count: int) -> list[nn.Module]:
        convs = [
            layer for k in range(count) for layer in (nn.Conv2d(cout if k else cin, cout, 3, padding=1), nn.ReLU())
        ]
        return [*convs, nn.MaxPool2d(2)]

    return nn.Sequential(*block(3, 32, 2), *block(32, 64, 2), *block(64, 128, 3), head(128))


def basic(cin: int, cout: int, stride: int = 1) -> nn.Module:
    around = None if cin == cout and stride == 1 else conv(cin, cout, 1, stride, act=nn.Identity)
    return Add(nn.Sequential(conv(cin, cout, 3, stride), conv(cout, cout, act=nn.Identity)), around, nn.ReLU())


def bottleneck(cin: int, inner: int, cout: int, stride: int = 1, groups: int = 1) -> nn.Module:
    inside = nn.Sequential(
        conv(cin, inner, 1), conv(inner, inner, 3, stride, groups), conv(inner, cout, 1, act=nn.Identity)
    )
    around = None if cin == cout and stride == 1 else conv(cin, cout, 1, stride, act=nn.Identity)
    return Add(inside, around, nn.ReLU())


def resnet() -> nn.Module:
    return nn.Sequential(
        conv(3, 32, 7, 2),
        nn.MaxPool2d(3, 2, 1),
        basic(32, 32),
        basic(32, 64, 2),
        basic(64, 64),
        basic(64, 96, 2),
        head(96),
    )


def inception(cin: int = 64) -> nn.Module:
    return Side(
        conv(cin, 32, 1),
        nn.Sequential(conv(cin, 24, 1), conv(24, 48)),
        nn.Sequential(conv(cin, 8, 1), conv(8, 16, 5)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(cin, 16, 1)),
    )


def googlenet() -> nn.Module:
    return nn.Sequential(
        conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), inception(), nn.MaxPool2d(3, 2, 1), inception(112), head(112)
    )


def dense_layer(width: int, growth: int) -> nn.Module:
    inside = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, growth, 3, padding=1, bias=False))
    return Side(nn.Identity(), inside)


def densenet() -> nn.Module:
    down = nn.Sequential(nn.BatchNorm2d(80), nn.ReLU(), nn.Conv2d(80, 40, 1, bias=False), nn.AvgPool2d(2))
    return nn.Sequential(
        conv(3, 32),
        *(dense_layer(32 + 16 * k, 16) for k in range(3)),
        down,
        *(dense_layer(40 + 16 * k, 16) for k in range(3)),
        head(88),
    )


def separable(cin: int, cout: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(conv(cin, cin, 3, stride, cin), conv(cin, cout, 1))


def mobilenet() -> nn.Module:
    return nn.Sequential(
        conv(3, 16, 3, 2), separable(16, 32), separable(32, 64, 2), separable(64, 64), separable(64, 128, 2), head(128)
    )


def inverted(
    cin: int, cout: int, stride: int = 1, squeeze: bool = False, act: Callable[[], nn.Module] = nn.ReLU6
) -> nn.Module:
    inner = 4 * cin
    middle = [Squeeze(inner, cin)] if squeeze else []
    inside = nn.Sequential(
        conv(cin, inner, 1, act=act),
        conv(inner, inner, 3, stride, inner, act),
        *middle,
        conv(inner, cout, 1, act=nn.Identity),
    )
    return Add(inside) if cin == cout and stride == 1 else inside


def mobilenet_v2() -> nn.Module:
    return nn.Sequential(
        conv(3, 16, 3, 2), inverted(16, 24, 2), inverted(24, 24), inverted(24, 32, 2), inverted(32, 32), head(32)
    )


def efficientnet() -> nn.Module:
    blocks = [inverted(a, b, s, True, nn.SiLU) for a, b, s in ((16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1))]
    return nn.Sequential(conv(3, 16, 3, 2, act=nn.SiLU), *blocks, head(40))


def fire(cin: int, squeezed: int, out: int) -> nn.Module:
    down = nn.Sequential(nn.Conv2d(cin, squeezed, 1), nn.ReLU())
    apart = Side(
        nn.Sequential(nn.Conv2d(squeezed, out, 1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(squeezed, out, 3, padding=1), nn.ReLU()),
    )
    return nn.Sequential(down, apart)


def squeezenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        fire(32, 8, 32),
        fire(64, 8, 32),
        nn.MaxPool2d(3, 2),
        fire(64, 16, 48),
        head(96),
    )


class Shuffle(nn.Module):
    """A unit that works on half of the channels, then mixes the halves."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.inner = nn.Sequential(
            conv(half, half, 1), conv(half, half, groups=half, act=nn.Identity), conv(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, worked = x.chunk(2, 1)
        return torch.stack((kept, self.inner(worked)), 2).flatten(1, 2)


class ConvNeXt(nn.Module):
    """Depthwise 7×7, layer norm over channels, two linears, a scale for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.wide(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class UNet(nn.Module):
    """Two levels down and up, what was seen on the way down joined in."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.third = conv(3, width), conv(width, 2 * width), conv(2 * width, 4 * width)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join2, self.join1 = conv(4 * width, 2 * width), conv(2 * width, width)
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.second(F.max_pool2d(a, 2))
        c = self.third(F.max_pool2d(b, 2))
        y = self.join2(torch.cat((self.up2(c), b), 1))
        y = self.join1(torch.cat((self.up1(y), a), 1))
        result: Tensor = self.last(y)
        return result


class Steps(nn.Module):
    """A block of a diffusion network: group norms, silu, and the step as sines added to the channels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        self.step = nn.Linear(width, width)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        rates = torch.exp(-torch.arange(self.step.in_features // 2, device=x.device, dtype=x.dtype) / 3)
        angles = step[:, None] * rates
        told = self.step(F.silu(torch.cat((angles.sin(), angles.cos()), -1)))
        y = self.conv1(F.silu(self.norm1(x))) + told[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(y)))


class Autoencoder(nn.Module):
    """A variational one of images: reparametrised with noise, its loss with the divergence."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(784, 32)
        )
        self.decoder = nn.Sequential(
            nn.Linear(16, 784),
            nn.Unflatten(1, (16, 7, 7)),
            nn.ConvTranspose2d(16, 8, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.encoder(x).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        off = F.mse_loss(self.decoder(drawn).sigmoid(), x, reduction="sum")
        return (off - 0.5 * (1 + spread - mean.square() - spread.exp()).sum()) / len(x)


def generator() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(32, 64, 4, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1),
        nn.Tanh(),
    )


def discriminator() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, 2, 1),
        nn.InstanceNorm2d(64),
        nn.LeakyReLU(0.2),
        nn.Conv2d(64, 1, 4),
        nn.Flatten(),
        nn.Sigmoid(),
    )


class Clusters(nn.Module):
    """Soft assignment of places to clusters, and what is left of each cluster's centre (VLAD)."""

    def __init__(self, width: int = 32, count: int = 9) -> None:
        super().__init__()
        self.assign, self.centres = nn.Conv2d(width, count, 1), nn.Parameter(torch.randn(count, width))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.assign(x).flatten(2).softmax(1)
        places = F.normalize(x.flatten(2), dim=1)
        left = torch.einsum("bkn,bcn->bkc", weights, places) - weights.sum(-1)[..., None] * self.centres
        return F.normalize(F.normalize(left, dim=-1).flatten(1), dim=-1)


def volumes() -> nn.Module:
    """A small network of volumes."""
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 16, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(2),
        nn.Flatten(),
        nn.Linear(128, 9),
    )


__all__ = [
    "Autoencoder",
    "Clusters",
    "ConvNeXt",
    "Shuffle",
    "Steps",
    "UNet",
    "alexnet",
    "basic",
    "bottleneck",
    "densenet",
    "discriminator",
    "efficientnet",
    "generator",
    "googlenet",
    "inception",
    "inverted",
    "lenet",
    "mobilenet",
    "mobilenet_v2",
    "resnet",
    "squeezenet",
    "vgg",
    "volumes",
]
