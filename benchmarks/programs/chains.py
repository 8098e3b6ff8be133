"""Chains: a product or a convolution and what follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.programs.making import BF16, I8, Made, of, on
from benchmarks.programs.program import Draw, Program, rows


class Then(nn.Module):
    """A layer, and a function of its result and of what else the call is given."""

    def __init__(self, layer: nn.Module, after: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.after = layer, after

    def forward(self, x: Tensor, *others: Tensor) -> Any:
        return self.after(self.layer(x), *others)


def then(
    layer: Callable[[], nn.Module],
    after: Callable[..., Any],
    shape: tuple[int, ...],
    *others: tuple[int, ...],
    gpu: int = 8,
    grad: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Callable[[Draw], Made]:
    """A chain whose input has this shape, on a GPU `gpu` times its batch (of the other inputs the first sizes stay)."""

    def make(d: Draw) -> Made:
        module = d.module(lambda: Then(layer(), after), train=grad, dtype=dtype)
        given = d.x(shape[0] * d.size(1, gpu), *shape[1:], dtype=dtype)
        return module, (given.requires_grad_(grad), *(d.x(*other, dtype=dtype) for other in others))

    return make


def residual_norm(y: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(y + y.roll(1, -1), (y.shape[-1],), w)


PRODUCTS = (
    ("linear, relu", then(lambda: nn.Linear(1023, 513), F.relu, (129, 1023), gpu=64)),
    ("linear of one row, gelu", then(lambda: nn.Linear(1024, 4096), F.gelu, (1, 1024), gpu=1)),
    ("linear, gelu, bfloat16", then(lambda: nn.Linear(768, 3072), F.gelu, (65, 768), gpu=64, dtype=BF16)),
    (
        "linear, scale, residual",
        then(lambda: nn.Linear(512, 512), lambda y, r: y * 0.5 + r, (256, 512), (512,), gpu=32),
    ),
    ("linear, residual, layer norm", then(lambda: nn.Linear(384, 768), residual_norm, (200, 384), (768,), gpu=32)),
    (
        "linear, gate of halves",
        then(lambda: nn.Linear(512, 2050), lambda y: F.silu(y.chunk(2, -1)[0]) * y.chunk(2, -1)[1], (130, 512), gpu=64),
    ),
    ("linear, softmax", then(lambda: nn.Linear(257, 1001), lambda y: y.softmax(-1), (300, 257), gpu=16)),
    (
        "linear, log softmax, loss",
        then(lambda: nn.Linear(129, 333), lambda y: -y.log_softmax(-1)[:, 7].mean(), (500, 129), gpu=16),
    ),
    (
        "linear, logsumexp, mish",
        then(lambda: nn.Linear(512, 1023), lambda y: F.mish(y.logsumexp(-1, keepdim=True)), (257, 512), gpu=16),
    ),
    (
        "linear, maximum of pairs, sum",
        then(
            lambda: nn.Linear(640, 512), lambda y: F.max_pool1d(y[:, None], 2)[:, 0].sum(-1) * 0.5, (256, 640), gpu=16
        ),
    ),
    (
        "linear, mean of columns, subtracted",
        then(lambda: nn.Linear(300, 200), lambda y: torch.tanh(y - y.mean(0)), (400, 300), gpu=32),
    ),
    (
        "linear, batch norm, hard tanh",
        then(lambda: nn.Sequential(nn.Linear(511, 257), nn.BatchNorm1d(257)), F.hardtanh, (300, 511), gpu=16),
    ),
    (
        "linear, group norm, swish",
        then(
            lambda: nn.Sequential(nn.Linear(256, 512), nn.GroupNorm(16, 512)),
            lambda y: y * y.sigmoid(),
            (129, 256),
            gpu=32,
        ),
    ),
    (
        "linear, clamp, cast, sum",
        then(lambda: nn.Linear(999, 77), lambda y: y.clamp(-1, 1).to(BF16).float().sum(0), (1025, 999), gpu=8),
    ),
    ("linear, argmax", then(lambda: nn.Linear(128, 1001), lambda y: y.argmax(-1), (257, 128), gpu=16)),
    (
        "linear, topk of routing",
        then(lambda: nn.Linear(256, 64), lambda y: y.softmax(-1).topk(2, -1), (333, 256), gpu=16),
    ),
    (
        "two linears, dropout off",
        then(
            lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256)),
            lambda y: y,
            (200, 256),
            gpu=32,
        ),
    ),
    (
        "low rank update",
        on(
            lambda x, w, a, b: F.linear(x, w) + 0.5 * F.linear(F.linear(x, a), b),
            (257, 512),
            (768, 512),
            (8, 512),
            (768, 8),
        ),
    ),
    ("product, row maximum", on(lambda a, b: (a @ b).amax(-1), (513, 256), (256, 1025))),
    ("product, divided by its norm", on(lambda a, b: F.normalize(a @ b, dim=-1), (300, 129), (129, 515))),
    (
        "product of products",
        on(
            lambda a, b, c, d: torch.cat((torch.mm(torch.mm(a, b)[:, :100], c), d), 1),
            (129, 300),
            (300, 257),
            (100, 77),
            (129, 33),
        ),
    ),
    (
        "batched product, mask, softmax",
        of(
            lambda q, k, m: torch.bmm(q, k.mT).masked_fill(m, -1e9).softmax(-1),
            lambda d: (d.x(12, 65, 64), d.x(12, 129, 64), d.flags(65, 129)),
        ),
    ),
    (
        "int8 product with scales",
        of(
            lambda a, b, s, t: torch._int_mm(a, b).float() * s * t,
            lambda d: (
                d.whole(127, 128, 256, low=-127, dtype=I8),
                d.whole(127, 256, 192, low=-127, dtype=I8),
                d.positive(128, 1),
                d.positive(192),
            ),
        ),
    ),
    (
        "weights from int8",
        of(
            lambda x, w, s: F.linear(x, w.float() * s),
            lambda d: (d.x(33, 512), d.whole(127, 768, 512, low=-127, dtype=I8), d.positive(768, 1)),
        ),
    ),
    (
        "pairwise distances by a product",
        on(
            lambda x, y: (x.square().sum(-1)[:, None] + y.square().sum(-1) - 2 * x @ y.t()).clamp(min=0).sqrt(),
            (257, 65),
            (129, 65),
        ),
    ),
)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


def slopes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    places = torch.arange(k.shape[-2], device=q.device)
    far = (places[None] - places[:, None]).abs().float()
    heads = torch.exp2(-8 * (torch.arange(q.shape[1], device=q.device) + 1) / q.shape[1])
    return (q @ k.mT / 8 - heads[:, None, None] * far).softmax(-1) @ v


def shared_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    times = q.shape[1] // k.shape[1]
    return attention(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (30 * torch.tanh(q @ k.mT / 30)).softmax(-1) @ v


def heads(
    batch: int,
    count: int,
    length: int,
    keys: int | None = None,
    few: int | None = None,
    width: int = 64,
    **settings: Any,
) -> Any:
    def draw(d: Draw) -> tuple[Tensor, ...]:
        b, n = batch * d.size(1, 8), (few or count)
        other = (b, n, keys or length, width)
        return d.x(b, count, length, width, **settings), d.x(*other, **settings), d.x(*other, **settings)

    return draw


ATTENTION = (
    ("attention", of(attention, heads(2, 8, 129))),
    ("attention, bfloat16", of(attention, heads(2, 8, 128, dtype=BF16))),
    ("causal attention", of(causal, heads(2, 6, 255))),
    ("attention with slopes", of(slopes, heads(1, 8, 200))),
    ("attention of shared keys", of(shared_keys, heads(2, 8, 127, few=2))),
    ("attention of one query", of(attention, heads(3, 8, 1, 513))),
    ("linear attention", of(linear_attention, heads(2, 8, 257))),
    ("attention with a soft cap", of(capped, heads(2, 4, 130))),
    ("scaled dot product attention", of(F.scaled_dot_product_attention, heads(2, 8, 129))),
)

IMAGE = (2, 32, 45, 43)


def scaled_tanh(y: Tensor, b: Tensor) -> Tensor:
    return F.max_pool2d(torch.tanh(y) * 1.5 + b, 2)


CONVOLUTIONS = (
    ("conv, relu", then(lambda: nn.Conv2d(32, 64, 3, padding=1), F.relu, IMAGE)),
    (
        "conv without padding, bias, hard swish",
        then(lambda: nn.Conv2d(32, 64, 3, bias=False), lambda y, b: F.hardswish(y + b), IMAGE, (64, 1, 1)),
    ),
    (
        "conv, batch norm, relu, residual",
        then(
            lambda: nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)),
            lambda y: F.relu(y + y.flip(1)),
            IMAGE,
        ),
    ),
    ("conv, tanh, scale, bias, max pool", then(lambda: nn.Conv2d(32, 32, 3), scaled_tanh, IMAGE, (32, 1, 1))),
    (
        "conv, group norm, mean",
        then(lambda: nn.Sequential(nn.Conv2d(32, 64, 3), nn.GroupNorm(8, 64)), lambda y: y.mean((1, 2, 3)), IMAGE),
    ),
    (
        "conv, instance norm, halved",
        then(lambda: nn.Sequential(nn.Conv2d(32, 64, 3), nn.InstanceNorm2d(64)), lambda y: y / 2, IMAGE),
    ),
    (
        "conv, average pool, sigmoid, sum",
        then(lambda: nn.Conv2d(32, 64, 3), lambda y: F.avg_pool2d(y, 4).sigmoid().sum((1, 2, 3)), IMAGE),
    ),
    (
        "conv, least channel, tanh twice",
        then(lambda: nn.Conv2d(32, 64, 3), lambda y: y.amin(1, keepdim=True).tanh().tanh(), IMAGE),
    ),
    ("conv, subtract, mish", then(lambda: nn.Conv2d(8, 64, 3), lambda y: F.mish(y - 0.5), (4, 8, 63, 65))),
    ("conv, softmax of channels", then(lambda: nn.Conv2d(32, 19, 1), lambda y: y.softmax(1), IMAGE)),
    (
        "conv, logsumexp of channels, relu",
        then(lambda: nn.Conv2d(32, 64, 3, stride=2), lambda y: y.logsumexp(1).relu(), IMAGE),
    ),
    (
        "conv, gate by channels",
        then(lambda: nn.Conv2d(32, 48, 3, padding=1), lambda y: y * y.mean((2, 3), keepdim=True).sigmoid(), IMAGE),
    ),
    (
        "conv, upsampled, added",
        then(lambda: nn.Conv2d(32, 16, 3, padding=1), lambda y: F.interpolate(y, scale_factor=2.0) + 1, IMAGE),
    ),
    (
        "conv, pixel shuffle, clamp",
        then(lambda: nn.Conv2d(32, 48, 3, padding=1), lambda y: F.pixel_shuffle(y, 4).clamp(0, 1), IMAGE),
    ),
    (
        "conv, flatten, linear",
        then(
            lambda: nn.Sequential(nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 15 * 13, 33)),
            lambda y: y,
            (8, 3, 33, 30),
        ),
    ),
    (
        "depthwise, pointwise, relu6",
        then(
            lambda: nn.Sequential(nn.Conv2d(96, 96, 3, padding=1, groups=96), nn.Conv2d(96, 65, 1)),
            F.relu6,
            (2, 96, 33, 31),
        ),
    ),
    (
        "noise like a convolution",
        then(lambda: nn.Conv2d(3, 8, 3), lambda y: y + torch.randn_like(y), (2, 3, 17, 19)),
        {"random": True},
    ),
    ("conv, bfloat16, silu", then(lambda: nn.Conv2d(64, 64, 3, padding=1), F.silu, (2, 64, 33, 31), dtype=BF16)),
    ("conv 1-D, gated", then(lambda: nn.Conv1d(65, 130, 5, padding=2), lambda y: F.glu(y, 1), (4, 65, 513))),
    (
        "conv 1-D, causal, tanh times sigmoid",
        then(
            lambda: nn.Conv1d(32, 64, 2, dilation=4, padding=4),
            lambda y: y[:, :32].tanh() * y[:, 32:].sigmoid(),
            (4, 32, 600),
        ),
    ),
    (
        "conv 3-D, softmax, max pools",
        then(lambda: nn.Conv3d(4, 16, 3), lambda y: F.max_pool3d(F.max_pool3d(y.softmax(1), 2), 2), (2, 4, 18, 33, 35)),
    ),
    (
        "conv 3-D, group norm, mean that cancels",
        then(
            lambda: nn.Sequential(nn.Conv3d(3, 24, 3), nn.GroupNorm(8, 24, affine=False)),
            lambda y: y.mean((1, 2, 3, 4)),
            (4, 3, 12, 17, 19),
        ),
        {"scale": 1.0},
    ),
    (
        "conv 3-D, max pool, logsumexp, relu",
        then(
            lambda: nn.Conv3d(3, 16, 3, padding=1),
            lambda y: F.max_pool3d(y, 2).logsumexp(1, keepdim=True).relu(),
            (2, 3, 16, 18, 20),
        ),
    ),
    (
        "conv 3-D, hard swish, group norm, mean",
        then(
            lambda: nn.Conv3d(3, 16, 4), lambda y: F.group_norm(F.hardswish(y), 4).mean((2, 3, 4)), (2, 3, 15, 17, 19)
        ),
    ),
    (
        "conv 3-D, divided, max pool, summed",
        then(
            lambda: nn.Conv3d(8, 16, 3),
            lambda y, b: (F.adaptive_avg_pool3d(F.max_pool3d(y / 2, 2), 1) + b).sum(1),
            (2, 8, 14, 17, 19),
            (16, 1, 1, 1),
        ),
    ),
    (
        "transposed conv, bias, clamp",
        then(
            lambda: nn.ConvTranspose2d(64, 32, 3, stride=2, padding=1, output_padding=1),
            lambda y, b: (y + b).clamp(0, 0.5) * 2,
            (2, 64, 17, 19),
            (32, 1, 1),
        ),
    ),
    (
        "transposed conv, softmax, sigmoid",
        then(lambda: nn.ConvTranspose2d(32, 64, 4, stride=2), lambda y: (y.softmax(1) * 2).sigmoid(), (2, 32, 17, 19)),
    ),
    (
        "transposed conv, global mean, logsumexp",
        then(lambda: nn.ConvTranspose2d(16, 32, 3), lambda y: y.mean((2, 3)).logsumexp(1) * 10, (4, 16, 33, 31)),
    ),
    (
        "transposed conv, batch norm, gelu",
        then(
            lambda: nn.Sequential(nn.ConvTranspose2d(33, 17, 3, stride=2), nn.BatchNorm2d(17)), F.gelu, (2, 33, 25, 23)
        ),
    ),
    (
        "transposed conv 3-D, sum, layer norm, pool, gelu",
        then(
            lambda: nn.ConvTranspose3d(16, 32, 3, stride=2, padding=1, output_padding=1),
            lambda y, w: F.gelu(F.avg_pool3d(F.layer_norm(y + 0.3, (w.shape[0],), w), 2)),
            (1, 16, 7, 8, 16),
            (32,),
        ),
    ),
    (
        "transposed conv 3-D, scale, batch norm, global mean",
        then(
            lambda: nn.Sequential(nn.ConvTranspose3d(8, 16, 3), nn.BatchNorm3d(16)),
            lambda y: y.mean((2, 3, 4)),
            (2, 8, 9, 11, 13),
        ),
    ),
    (
        "transposed conv 1-D, leaky relu, summed",
        then(lambda: nn.ConvTranspose1d(32, 16, 8, stride=4), lambda y: F.leaky_relu(y).sum(1), (4, 32, 257)),
    ),
)

TRAINING = (
    (
        "linear, gelu, linear: gradients",
        then(
            lambda: nn.Sequential(nn.Linear(257, 513), nn.GELU(), nn.Linear(513, 65)),
            lambda y: y.square().mean(),
            (129, 257),
            gpu=32,
            grad=True,
        ),
    ),
    (
        "conv, batch norm, relu: gradients",
        then(
            lambda: nn.Sequential(nn.Conv2d(16, 33, 3, padding=1), nn.BatchNorm2d(33), nn.ReLU()),
            lambda y: y.square().mean(),
            (4, 16, 31, 33),
            grad=True,
        ),
    ),
    (
        "transposed conv, leaky relu: gradients",
        then(
            lambda: nn.Sequential(nn.ConvTranspose2d(16, 9, 4, stride=2), nn.LeakyReLU()),
            lambda y: y.square().mean(),
            (2, 16, 17, 19),
            grad=True,
        ),
    ),
    (
        "linear, layer norm, softmax: gradients",
        then(
            lambda: nn.Sequential(nn.Linear(129, 257), nn.LayerNorm(257)),
            lambda y: y.softmax(-1)[:, :9].log().mean(),
            (200, 129),
            gpu=16,
            grad=True,
        ),
    ),
)


def programs() -> Iterator[Program]:
    yield from rows("chain", "product", PRODUCTS)
    yield from rows("chain", "attention", ATTENTION)
    yield from rows("chain", "convolution", CONVOLUTIONS)
    yield from rows("chain", "gradient", TRAINING, training=True)


__all__ = ["attention", "causal", "programs"]
