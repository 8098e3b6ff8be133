"""Models of images: ResNet-18, an MLP-Mixer, a U-Net, a variational autoencoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """Two 3×3 convolutions with BatchNorm around which the input is added, through a 1×1 one where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class ResNet18(nn.Module):
    """The eighteen layers of ResNet-18, an eighth as wide."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        widths = (width, width, 2 * width, 4 * width, 8 * width)
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.stages = nn.Sequential(
            *(
                Residual(widths[k] if first else widths[k + 1], widths[k + 1], 2 if first and k else 1)
                for k in range(4)
                for first in (True, False)
            )
        )
        self.classes = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: float [batch, 3, height, width]."""
        return self.classes(F.adaptive_avg_pool2d(self.stages(self.stem(x)), 1).flatten(1))


class MixerBlock(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.within = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    """Perceptrons across patches and within them, in turns."""

    def __init__(self, image: int = 24, patch: int = 6, width: int = 20, classes: int = 7) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(*(MixerBlock((image // patch) ** 2, width) for _ in range(2)))
        self.norm, self.classes = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: float [batch, 3, image, image]."""
        return self.classes(self.norm(self.blocks(self.patches(x).flatten(2).transpose(1, 2))).mean(1))


def convolved(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU())


class UNet(nn.Module):
    """Down twice by pooling, up twice by bilinear and nearest upsampling, with the way down beside the way up."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2, self.deep = convolved(3, width), convolved(width, width), convolved(width, width)
        self.up2, self.up1 = convolved(2 * width, width), convolved(2 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: float [batch, 3, height, width]."""
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        deep = self.deep(F.avg_pool2d(two, 2))
        up = F.interpolate(deep, size=two.shape[-2:], mode="bilinear", align_corners=False)
        up = self.up2(torch.cat([up, two], 1))
        up = F.interpolate(up, size=one.shape[-2:], mode="nearest")
        return self.out(self.up1(torch.cat([up, one], 1)))


class Autoencoder(nn.Module):
    """A variational autoencoder: the reconstruction, and the negative evidence bound as the loss."""

    def __init__(self, inputs: int = 40, width: int = 32, latent: int = 6) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(inputs, width), nn.ReLU())
        self.mean, self.deviation = nn.Linear(width, latent), nn.Linear(width, latent)
        self.decode = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, inputs))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: float [batch, inputs] in [0, 1]."""
        hidden = self.encode(x)
        mean, log_variance = self.mean(hidden), self.deviation(hidden)
        noise = torch.randn(mean.shape, dtype=torch.float32, device=x.device).to(x.dtype)
        scores = self.decode(mean + noise * torch.exp(0.5 * log_variance))
        wrong = F.binary_cross_entropy_with_logits(scores, x, reduction="sum")
        apart = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        return scores.sigmoid(), (wrong + apart) / x.shape[0]
