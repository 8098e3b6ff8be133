"""Single operators that loops serve: pointwise ones, casts, reductions, scans, norms, losses. Odd lengths, tiny, large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.programs.making import BF16, F16, F64, I8, I32, U8, Made, of, on, scaled
from benchmarks.programs.program import Draw

# pointwise and casts -----------------------------------------------------------------------------------------------------


def _tails(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > y, torch.exp(-x.abs()), torch.log1p(y.abs())).clamp(-1.5, 1.25)


def _bits(x: Tensor, y: Tensor) -> Tensor:
    return ((x << 3) ^ (y >> 2)) & (x | ~y)


def _quantized(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-128, 127).to(I8)


POINTWISE = (
    ("bias and product, broadcast", on(lambda x, y, b: x * y + b, (1023, 2049), (1023, 1), (2049,))),
    ("gelu, tanh form", scaled(lambda x: F.gelu(x, approximate="tanh"), (513, 1537), (4099, 8191))),
    (
        "silu gate of one tensor's halves",
        scaled(lambda x: F.silu(x[..., ::2]) * x[..., 1::2], (400, 1030), (4096, 11008)),
    ),
    ("trigonometry", on(lambda x, y: torch.sin(x) * torch.cos(y) + torch.atan2(x, y), (777, 1111), (777, 1111))),
    ("where, exp, log1p, clamp", on(_tails, (640, 1025), (640, 1025))),
    (
        "floor division and remainder",
        of(lambda x, y: (x // y, x % y), lambda d: (d.whole(999, 4096, 77, low=-999), d.whole(50, 4096, 77, low=1))),
    ),
    (
        "bits of int32",
        of(_bits, lambda d: (d.whole(1 << 20, 100_003, dtype=I32), d.whole(1 << 20, 100_003, dtype=I32))),
    ),
    ("comparisons and logic", on(lambda x, y: ((x > 0) & (y <= 0.5)) | torch.isclose(x, y), (511, 513), (511, 513))),
    (
        "powers",
        of(lambda x, y: x**y + torch.rsqrt(x) - x.reciprocal(), lambda d: (d.positive(300, 999), d.x(300, 999))),
    ),
    ("tanh of float64", on(lambda x: torch.tanh(x) * torch.sigmoid(x), (257, 1023), dtype=F64)),
    ("a transposed operand", scaled(lambda x: x.t() + 2 * x, (1025, 1025), (8191, 8191))),
    ("four axes permuted", on(lambda x, y: x.permute(0, 2, 3, 1) - y, (6, 40, 31, 33), (6, 31, 33, 40))),
    (
        "lerp, addcmul, addcdiv",
        on(
            lambda x, y, z: torch.addcdiv(torch.addcmul(torch.lerp(x, y, 0.3), y, z), x, y * y + 1),
            (333, 1001),
            (333, 1001),
            (333, 1001),
        ),
    ),
    (
        "infinities and NaN",
        of(lambda x: torch.nan_to_num(x / x.round()) + torch.isfinite(1 / x.round()), lambda d: (d.x(128, 1000),)),
    ),
    (
        "hypot, copysign, fmod",
        on(lambda x, y: torch.copysign(torch.hypot(x, y), y) + torch.fmod(x, 0.7), (900, 901), (900, 901)),
    ),
    ("one element", on(lambda x: torch.erf(x) + 1, (1,))),
    ("a long odd vector", scaled(lambda x: F.hardswish(x) + F.softplus(x), (1_000_003,), (50_000_017,))),
    ("lgamma and digamma", of(lambda x: torch.lgamma(x) + torch.digamma(x), lambda d: (d.positive(200, 511),))),
    ("in place, returned", on(lambda x: x.clone().mul_(2).add_(1).relu_(), (123, 4567))),
    ("float16 in, float16 out", scaled(lambda x: F.mish(x) * 3, (500, 1023), (8192, 8193), dtype=F16)),
    (
        "bfloat16 with a float32 bias",
        of(lambda x, b: F.relu(x + b), lambda d: (d.x(1000, 1023, dtype=BF16), d.x(1023))),
    ),
)

CASTS = (
    ("float32 to bfloat16 and back", scaled(lambda x: x.to(BF16).float() - x, (999, 1001), (8191, 8193))),
    (
        "image bytes to floats",
        of(lambda x, m: (x.float() / 255 - m) / 0.25, lambda d: (d.whole(256, 8, 3, 129, 127, dtype=U8), d.x(3, 1, 1))),
    ),
    ("rows to int8 and back", of(lambda x: _quantized(x).float().mul(0.01), lambda d: (d.x(513, 1025),))),
    ("truncation to integers", on(lambda x: (x * 100).to(I32).to(I8), (4097, 63))),
    (
        "a mix of five dtypes",
        of(
            lambda x, y, z, n, m: (x * y + z * n).masked_fill(m, 0),
            lambda d: (
                d.x(65, 1027),
                d.x(65, 1027, dtype=BF16),
                d.x(1027, dtype=F16),
                d.whole(9, 65, 1, dtype=I32),
                d.flags(65, 1027),
            ),
        ),
    ),
)


# reductions --------------------------------------------------------------------------------------------------------------

THREE, FOUR = (37, 129, 255), (9, 33, 31, 65)
LARGE = {3: (128, 1025, 1023), 4: (32, 129, 127, 65)}


def reduction(name: str, dims: tuple[int, ...], axes: int) -> Callable[[Draw], Made]:
    """A reduction over these axes of a tensor of three or four."""

    def run(x: Tensor) -> Any:
        return getattr(torch, name)(x, dim=dims)

    return scaled(run, {3: THREE, 4: FOUR}[axes], LARGE[axes])


def reductions() -> Iterator[tuple[str, Callable[[Draw], Made]]]:
    for axes, name in ((3, "sum"), (3, "amax"), (4, "mean"), (4, "amin")):
        for axis in range(axes):
            yield f"{name} over axis {axis} of {axes}", reduction(name, (axis,), axes)
    several: tuple[tuple[int, str, tuple[int, ...]], ...] = (
        (3, "sum", (0, 2)),
        (3, "sum", (1, 2)),
        (4, "var", (0, 2, 3)),
        (4, "var", (1, 3)),
    )
    for axes, name, dims in several:
        yield f"{name} over axes {dims} of {axes}", reduction(name, dims, axes)


REDUCTIONS = (
    *reductions(),
    ("sum over a middle axis, odd rows after", scaled(lambda x: x.sum(1), (8, 512, 511), (128, 4096, 4095))),
    ("minimum over a middle axis, odd rows after", scaled(lambda x: x.amin(1), (8, 512, 511), (128, 4096, 4095))),
    ("sum of everything", scaled(lambda x: x.square().sum(), (1001, 1003), (8191, 8193))),
    ("sum of bfloat16 columns", scaled(lambda x: x.sum(0), (2049, 513), (16385, 4097), dtype=BF16)),
    ("norm of rows", on(lambda x: torch.linalg.vector_norm(x, dim=-1), (511, 3001))),
    ("logsumexp of columns", on(lambda x: torch.logsumexp(x, 0), (601, 333))),
    ("product of rows", of(lambda x: x.prod(-1), lambda d: (d.positive(1023, 33),))),
    ("standard deviation and mean", on(lambda x: torch.std_mean(x, -1), (700, 1500))),
    ("all and any", on(lambda x: ((x > -3).all(-1), (x > 3).any(0)), (999, 800))),
    ("sum of integers", of(lambda x: (x.sum(0), x.sum(1)), lambda d: (d.whole(100, 777, 555, dtype=I32),))),
    ("a short row of 16 thousand", on(lambda x: x.mean(-1), (3, 16_387))),
    ("many tiny rows", scaled(lambda x: x.sum(-1), (60_001, 5), (4_000_001, 5))),
)
ARGS = (
    ("argmax of rows", scaled(lambda x: x.argmax(-1), (513, 2047), (8193, 8191))),
    ("argmax over a middle axis", on(lambda x: x.argmax(1), (17, 300, 129))),
    ("argmin over the first axis", on(lambda x: x.argmin(0), (1025, 255))),
    ("argmin of everything", on(lambda x: x.argmin(), (999, 1001))),
    ("values and positions of maxima", on(lambda x: torch.max(x, -1), (40, 31, 257))),
)
SCANS = (
    ("cumsum of rows", scaled(lambda x: x.cumsum(-1), (257, 1027), (4096, 8193))),
    ("cumsum of columns", scaled(lambda x: x.cumsum(0), (513, 511), (8193, 4095))),
    ("cumsum over a middle axis", on(lambda x: x.cumsum(1), (8, 300, 65))),
    ("cumprod", of(lambda x: x.cumprod(-1), lambda d: (d.positive(333, 65) + 0.4,))),
    ("cummax", on(lambda x: torch.cummax(x, -1), (129, 1025))),
    ("logcumsumexp", on(lambda x: torch.logcumsumexp(x, -1), (200, 517))),
    ("cumsum from the end", on(lambda x: x.flip(-1).cumsum(-1).flip(-1), (120, 999))),
    ("cumsum of flags", of(lambda x: x.cumsum(0), lambda d: (d.flags(4001, 63),))),
)

# softmax, norms, losses --------------------------------------------------------------------------------------------------

NORMS = (
    ("softmax of rows", scaled(lambda x: x.softmax(-1), (999, 1023), (16385, 4097))),
    ("softmax of columns", scaled(lambda x: x.softmax(0), (1023, 515), (8193, 4097))),
    ("softmax over channels", on(lambda x: x.softmax(1), (6, 19, 65, 63))),
    ("log softmax, bfloat16", scaled(lambda x: x.log_softmax(-1), (500, 3001), (8192, 32001), dtype=BF16)),
    (
        "masked softmax",
        of(lambda x, m: x.masked_fill(m, float("-inf")).softmax(-1), lambda d: (d.x(8, 127, 129), d.flags(127, 129))),
    ),
    ("softmin of a tiny tensor", on(lambda x: F.softmin(x, -1), (2, 3))),
    (
        "layer norm",
        of(
            lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
            lambda d: (d.x(d.size(1001, 16385), 1023), d.x(1023), d.x(1023)),
        ),
    ),
    ("layer norm over three axes", on(lambda x: F.layer_norm(x, x.shape[1:]), (9, 64, 31, 33))),
    (
        "RMS norm",
        of(lambda x, w: F.rms_norm(x, (x.shape[-1],), w), lambda d: (d.x(d.size(700, 8191), 4097), d.x(4097))),
    ),
    (
        "group norm",
        of(lambda x, w, b: F.group_norm(x, 8, w, b), lambda d: (d.x(d.size(7, 64), 64, 33, 35), d.x(64), d.x(64))),
    ),
    ("instance norm", scaled(lambda x: F.instance_norm(x), (5, 33, 63, 65), (64, 128, 127, 129))),
    (
        "batch norm, inference",
        of(lambda x, m, v: F.batch_norm(x, m, v), lambda d: (d.x(d.size(9, 64), 65, 63, 33), d.x(65), d.positive(65))),
    ),
    (
        "batch norm, statistics of the batch",
        of(
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
            lambda d: (d.x(d.size(8, 64), 64, 31, 57), d.x(64), d.x(64)),
        ),
    ),
    ("unit length", on(lambda x: F.normalize(x, dim=-1), (2047, 129))),
    ("L1 norm divided out", on(lambda x: x / x.abs().mean(1, keepdim=True), (1025, 999))),
    ("Frobenius norm divided out", on(lambda x: x / x.norm(), (33, 65, 127))),
    ("local response norm", on(lambda x: F.local_response_norm(x, 5), (4, 33, 27, 29))),
    (
        "weight norm",
        of(
            lambda v, g: g * v / v.flatten(1).norm(dim=1)[:, None, None, None],
            lambda d: (d.x(129, 33, 3, 3), d.x(129, 1, 1, 1)),
        ),
    ),
)


def _unit(x: Tensor, y: Tensor) -> Tensor:
    return F.cosine_embedding_loss(x, y, torch.ones(len(x), device=x.device), margin=0.1)


LOSSES = (
    ("cross entropy", of(F.cross_entropy, lambda d: (d.x(d.size(515, 8191), 1001), d.whole(1001, d.size(515, 8191))))),
    (
        "cross entropy with smoothing and weights",
        of(
            lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1),
            lambda d: (d.x(301, 77), d.whole(77, 301), d.positive(77)),
        ),
    ),
    (
        "cross entropy of images, some ignored",
        of(lambda x, t: F.cross_entropy(x, t, ignore_index=3), lambda d: (d.x(3, 11, 65, 63), d.whole(11, 3, 65, 63))),
    ),
    (
        "binary cross entropy of logits",
        of(
            lambda x, t: F.binary_cross_entropy_with_logits(x, t.float()),
            lambda d: (d.x(1023, 257), d.flags(1023, 257)),
        ),
    ),
    ("mean squared error", scaled(lambda x: F.mse_loss(x, x.sin()), (999, 1001), (8191, 8191))),
    ("smooth L1", on(lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), (800, 555), (800, 555))),
    ("Huber, not reduced", on(lambda x, y: F.huber_loss(x, y, reduction="none"), (800, 555), (800, 555))),
    (
        "Kullback-Leibler",
        on(lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), (300, 999), (300, 999)),
    ),
    ("cosine embedding", on(_unit, (1025, 127), (1025, 127))),
    ("triplet margin", on(F.triplet_margin_loss, (513, 255), (513, 255), (513, 255))),
    ("hinge", of(lambda x, t: (1 - x * (2.0 * t - 1)).clamp(min=0).mean(), lambda d: (d.x(32_769), d.flags(32_769)))),
    ("Gaussian likelihood", of(F.gaussian_nll_loss, lambda d: (d.x(99, 101), d.x(99, 101), d.positive(99, 101)))),
    ("multi margin", of(F.multi_margin_loss, lambda d: (d.x(257, 63), d.whole(63, 257)))),
    ("Poisson likelihood", on(lambda x, y: F.poisson_nll_loss(x, y.abs()), (333, 129), (333, 129))),
)


FAMILIES = {
    "pointwise": POINTWISE,
    "cast": CASTS,
    "reduction": REDUCTIONS,
    "arg reduction": ARGS,
    "scan": SCANS,
    "norm": NORMS,
    "loss": LOSSES,
}

__all__ = ["FAMILIES"]
