"""The models of this folder, by name: how to make one, and its inputs for a size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.models.graphs import GraphNetwork
from tests.models.images import Autoencoder, Mixer, ResNet18, UNet
from tests.models.text import Decoder, Recurrent


@dataclass(frozen=True)
class Model:
    """`inputs(n)` for n ≥ 2; no two sizes within the inputs for the first n are equal by chance. `training`: whether the
    model is also tested in training."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Any, ...]]


def tokens(batch: int, length: int, words: int) -> Tensor:
    return torch.randint(words, (batch, length), generator=torch.Generator().manual_seed(1000 * batch + length))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def nodes_and_edges(nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(nodes)
    edges = torch.randint(nodes, (2, 3 * nodes + 1), generator=generator)
    return normal(nodes, 5), edges, torch.randint(4, (nodes,), generator=generator)


MODELS: dict[str, Model] = {
    "decoder": Model(Decoder, lambda n: (tokens(2 + n % 5, n + 1, 61),)),  # its loss is of n of them
    "resnet18": Model(ResNet18, lambda n: (normal(2 + n % 3, 3, 32 + n, 40 + 2 * n),)),
    "recurrent cells": Model(Recurrent, lambda n: (normal(n, 4, 11),)),
    "mixer": Model(Mixer, lambda n: (normal(n, 3, 24, 24),)),
    "unet": Model(UNet, lambda n: (normal(2 + n % 3, 3, 8 + n, 11 + 2 * n),)),
    "graph network": Model(GraphNetwork, nodes_and_edges),
    "autoencoder": Model(Autoencoder, lambda n: (normal(n, 40).sigmoid(),)),
}
