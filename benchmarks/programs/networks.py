"""Whole networks, or blocks of them, in inference and some in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.programs import sequences as seq
from benchmarks.programs import vision
from benchmarks.programs.making import BF16, Made
from benchmarks.programs.program import Draw, Program, rows


class Loss(nn.Module):
    """A network's mean square, so that all of its weights have gradients."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *given: Tensor) -> Tensor:
        result: Tensor = self.network(*given).square().mean()
        return result


def net(
    make: Callable[[], nn.Module],
    *shapes: tuple[int, ...],
    gpu: int = 8,
    dtype: torch.dtype = torch.float32,
    axis: int = 0,
) -> Callable[[Draw], Made]:
    """A network in inference on normal inputs; a GPU has `gpu` times the batch, which is this axis."""

    def draw(d: Draw) -> Made:
        given = [(*s[:axis], s[axis] * d.size(1, gpu), *s[axis + 1 :]) for s in shapes]
        return d.module(make, dtype=dtype), tuple(d.x(*shape, dtype=dtype) for shape in given)

    return draw


def learns(
    make: Callable[[], nn.Module], *shapes: tuple[int, ...], gpu: int = 8, axis: int = 0
) -> Callable[[Draw], Made]:
    """The same in training."""

    def draw(d: Draw) -> Made:
        given = [(*s[:axis], s[axis] * d.size(1, gpu), *s[axis + 1 :]) for s in shapes]
        return d.module(lambda: Loss(make()), train=True), tuple(d.x(*shape) for shape in given)

    return draw


def graph(make: Callable[[], nn.Module], width: int) -> Callable[[Draw], Made]:
    def draw(d: Draw) -> Made:
        nodes = d.size(501, 20_001)
        return d.module(make), (d.x(nodes, width), d.whole(nodes, 7 * nodes), d.whole(nodes, 7 * nodes))

    return draw


def text(train: bool) -> Callable[[Draw], Made]:
    return lambda d: (d.module(seq.Text, train=train), (d.whole(301, d.size(3, 32), 65),))


def tables(d: Draw) -> Made:
    batch = d.size(257, 8193)
    return d.module(seq.Tables), (d.x(batch, 13), d.whole(33, batch, 3))


def steps(d: Draw) -> Made:
    batch = d.size(2, 32)
    return d.module(vision.Steps), (d.x(batch, 32, 25, 27), d.whole(1000, batch, dtype=torch.float32))


VISION: tuple[tuple[Any, ...], ...] = (
    ("LeNet", net(vision.lenet, (9, 1, 28, 28), gpu=64)),
    ("AlexNet, narrow", net(vision.alexnet, (2, 3, 127, 127), gpu=16)),
    ("VGG, three blocks", net(vision.vgg, (2, 3, 48, 48), gpu=16)),
    ("ResNet basic block", net(lambda: vision.basic(64, 128, 2), (2, 64, 33, 31))),
    ("ResNet bottleneck", net(lambda: vision.bottleneck(128, 32, 128), (2, 128, 28, 27))),
    ("ResNeXt bottleneck", net(lambda: vision.bottleneck(64, 64, 128, 2, 16), (2, 64, 29, 31))),
    ("ResNet, four blocks", net(vision.resnet, (2, 3, 97, 95), gpu=16)),
    ("Inception block", net(vision.inception, (2, 64, 28, 29))),
    ("GoogLeNet, two blocks", net(vision.googlenet, (2, 3, 65, 63), gpu=16)),
    ("DenseNet, two blocks", net(vision.densenet, (2, 3, 31, 33), gpu=16)),
    ("MobileNet", net(vision.mobilenet, (2, 3, 65, 67), gpu=16)),
    ("MobileNetV2", net(vision.mobilenet_v2, (2, 3, 64, 66), gpu=16)),
    ("EfficientNet MBConv", net(lambda: vision.inverted(24, 24, 1, True, nn.SiLU), (2, 24, 33, 31))),
    ("EfficientNet, four blocks", net(vision.efficientnet, (1, 3, 65, 63), gpu=32)),
    ("SqueezeNet", net(vision.squeezenet, (2, 3, 63, 65), gpu=16)),
    ("ShuffleNet unit", net(lambda: vision.Shuffle(64), (3, 64, 29, 27))),
    ("ConvNeXt block", net(lambda: vision.ConvNeXt(48), (2, 48, 29, 31))),
    ("U-Net", net(vision.UNet, (2, 3, 36, 44), gpu=16)),
    ("diffusion block", steps),
    ("DCGAN generator", net(vision.generator, (5, 32, 1, 1), gpu=32)),
    ("DCGAN discriminator", net(vision.discriminator, (5, 3, 33, 35), gpu=32)),
    ("VLAD", net(vision.Clusters, (3, 32, 17, 19))),
    ("a network of volumes", net(vision.volumes, (2, 1, 15, 17, 19))),
    ("VAE", net(vision.Autoencoder, (7, 1, 28, 28), gpu=32), {"random": True}),
    ("ResNet basic block, bfloat16", net(lambda: vision.basic(64, 64), (2, 64, 33, 31), dtype=BF16)),
)
SEQUENCES: tuple[tuple[Any, ...], ...] = (
    ("perceptron", net(lambda: seq.perceptron(784, 512, 256, 10), (129, 784), gpu=32)),
    ("perceptron, deep and narrow", net(lambda: seq.perceptron(65, *[50] * 12, 3), (1, 65), gpu=1)),
    ("perceptron, wide, one row", net(lambda: seq.perceptron(1024, 4096, 1000), (1, 1024), gpu=1)),
    ("Transformer block", net(seq.Block, (3, 65, 128), gpu=16)),
    ("causal block, one token", net(lambda: seq.Block(128, 4, False), (1, 1, 128), gpu=1)),
    ("Transformer block, bfloat16", net(seq.Block, (2, 127, 128), gpu=16, dtype=BF16)),
    ("rotary decoder block", net(seq.Rotary, (2, 77, 128), gpu=16)),
    ("vision Transformer", net(seq.Patches, (3, 3, 40, 40), gpu=16)),
    ("window attention", net(seq.Windows, (2, 28, 21, 64))),
    ("mixer block", net(seq.Mixer, (5, 49, 96), gpu=16)),
    ("learned queries", net(seq.Memory, (3, 300, 64))),
    ("mixture of experts", net(seq.Experts, (257, 64), gpu=32)),
    ("a language model's loss", text(False)),
    ("plain recurrent cells, 32 steps", net(seq.Plain, (32, 8, 33), axis=1)),
    ("GRU by hand, 20 steps", net(seq.Gated, (20, 5, 32), axis=1)),
    ("LSTM by hand, 16 steps", net(seq.Long, (16, 5, 32), axis=1)),
    ("LSTM by hand, both ways", net(lambda: seq.Long(both=True), (9, 4, 32), axis=1)),
    ("selective state space, 24 steps", net(seq.Selective, (3, 24, 32))),
    ("gated dilated convolutions", net(seq.Dilated, (3, 32, 257))),
    ("means over neighbours", graph(seq.Neighbours, 33)),
    ("graph attention", graph(seq.Attending, 32)),
    ("point sets", net(seq.Points, (5, 3, 257), gpu=16)),
    ("recommender", tables),
    ("radiance field", net(seq.Rays, (33, 17, 3), gpu=64)),
)
TRAINING: tuple[tuple[Any, ...], ...] = (
    ("perceptron, training", learns(lambda: seq.perceptron(257, 129, 65, 10), (65, 257), gpu=32)),
    ("LeNet, training", learns(vision.lenet, (5, 1, 28, 28), gpu=64)),
    ("ResNet bottleneck, training", learns(lambda: vision.bottleneck(32, 16, 32), (3, 32, 15, 17), gpu=16)),
    ("MBConv, training", learns(lambda: vision.inverted(16, 16, 1, True, nn.SiLU), (3, 16, 15, 17), gpu=16)),
    ("U-Net, training", learns(lambda: vision.UNet(8), (2, 3, 20, 28), gpu=16)),
    ("Transformer block, training", learns(lambda: seq.Block(64), (3, 33, 64), gpu=16)),
    ("rotary decoder block, training", learns(lambda: seq.Rotary(64, 4, 2), (2, 33, 64), gpu=16)),
    ("a language model, training", text(True)),
    ("GRU by hand, training", learns(seq.Gated, (7, 5, 32), axis=1)),
    (
        "VAE, training",
        lambda d: (d.module(vision.Autoencoder, train=True), (d.positive(d.size(5, 128), 1, 28, 28),)),
        {"random": True},
    ),
    ("gated dilated convolutions, training", learns(lambda: seq.Dilated(16, 3), (3, 16, 129))),
)


def programs() -> Iterator[Program]:
    yield from rows("network", "vision", VISION)
    yield from rows("network", "sequence", SEQUENCES)
    yield from rows("network", "training", TRAINING, training=True)


__all__ = ["programs"]
