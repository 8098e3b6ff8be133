"""Single operators: those of `loops.py`, windows, convolutions, products, indices, layouts, what is left to the library, random
numbers, gradients. Odd lengths, tiny and large inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.programs import loops
from benchmarks.programs.making import BF16, I8, Made, of, on, scaled
from benchmarks.programs.program import Draw, Program, rows

# windows, convolutions, products -----------------------------------------------------------------------------------------

POOLS = (
    ("max pool 1-D", scaled(lambda x: F.max_pool1d(x, 4, 2, 1), (8, 65, 1023), (64, 129, 65535))),
    ("max pool 2-D", scaled(lambda x: F.max_pool2d(x, 3, 2, 1), (4, 33, 65, 67), (64, 64, 255, 257))),
    ("max pool 3-D, dilated", scaled(lambda x: F.max_pool3d(x, 3, 2, 1, 2), (2, 9, 17, 19, 21), (16, 33, 65, 63, 61))),
    ("average pool 1-D", scaled(lambda x: F.avg_pool1d(x, 8, 3, 4), (8, 33, 2047), (64, 129, 65535))),
    ("average pool 2-D", scaled(lambda x: F.avg_pool2d(x, 5), (4, 33, 63, 71), (64, 64, 255, 257))),
    ("average pool 3-D", scaled(lambda x: F.avg_pool3d(x, 3, 2, 1), (2, 9, 17, 19, 21), (16, 33, 65, 63, 61))),
    ("adaptive average, 5×7", on(lambda x: F.adaptive_avg_pool2d(x, (5, 7)), (4, 33, 31, 37))),
    ("adaptive maximum, 3", on(lambda x: F.adaptive_max_pool2d(x, 3), (4, 33, 31, 37))),
    ("LP pool", on(lambda x: F.lp_pool2d(x.abs() + 0.1, 2, 3), (4, 17, 33, 35))),
    ("max pool with positions", on(lambda x: F.max_pool2d(x, 2, return_indices=True), (3, 17, 34, 38))),
    ("unfold and fold", on(lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[-2:], 3, padding=1), (3, 7, 25, 27))),
    ("upsampling, nearest", on(lambda x: F.interpolate(x, scale_factor=2.0), (3, 17, 31, 33))),
    (
        "upsampling, bilinear",
        on(lambda x: F.interpolate(x, size=(57, 45), mode="bilinear", align_corners=True), (3, 17, 31, 33)),
    ),
    ("upsampling, trilinear", on(lambda x: F.interpolate(x, scale_factor=2.0, mode="trilinear"), (2, 5, 9, 11, 13))),
    ("upsampling, bicubic", on(lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"), (2, 3, 31, 33))),
    ("grid sample", of(F.grid_sample, lambda d: (d.x(2, 9, 33, 35), d.x(2, 21, 23, 2).tanh()))),
)


def convolution(
    kind: str, x: tuple[int, ...], w: tuple[int, ...], bias: int = 0, **settings: Any
) -> Callable[[Draw], Made]:
    """A convolution with weights that the call is given; a GPU has eight times the batch."""

    def make(d: Draw) -> Made:
        given = d.x(x[0] * d.size(1, 8), *x[1:]), d.x(*w) / w[1] ** 0.5
        return functools.partial(getattr(F, kind), **settings), (*given, *((d.x(bias),) if bias else ()))

    return make


CONVOLUTIONS = (
    ("conv 1-D, odd length", convolution("conv1d", (4, 33, 1023), (65, 33, 5), 65, padding=2)),
    ("conv 1-D, strided and dilated", convolution("conv1d", (4, 16, 2049), (24, 16, 3), stride=2, dilation=4)),
    ("conv 2-D, 3×3", convolution("conv2d", (2, 64, 56, 56), (64, 64, 3, 3), 64, padding=1)),
    ("conv 2-D, 1×1", convolution("conv2d", (2, 128, 33, 35), (96, 128, 1, 1))),
    ("conv 2-D, 7×7 strided", convolution("conv2d", (2, 3, 129, 127), (32, 3, 7, 7), 32, stride=2, padding=3)),
    ("conv 2-D, dilated", convolution("conv2d", (2, 32, 45, 47), (32, 32, 3, 3), padding=2, dilation=2)),
    ("conv 2-D, four groups", convolution("conv2d", (2, 64, 33, 31), (128, 16, 3, 3), padding=1, groups=4)),
    ("conv 2-D, depthwise", convolution("conv2d", (4, 96, 45, 43), (96, 1, 3, 3), padding=1, groups=96)),
    ("conv 2-D, 1×7 after padding", convolution("conv2d", (2, 48, 27, 29), (48, 48, 1, 7), padding=(0, 3))),
    (
        "conv 2-D, batch of one, wide over a tiny image",
        convolution("conv2d", (1, 256, 8, 6), (256, 256, 3, 3), padding=1),
    ),
    ("conv 3-D", convolution("conv3d", (1, 16, 17, 19, 21), (24, 16, 3, 3, 3), 24, padding=1)),
    ("conv 3-D, strided, uneven", convolution("conv3d", (1, 8, 16, 33, 31), (16, 8, 3, 5, 5), stride=(1, 2, 2))),
    ("transposed conv 1-D", convolution("conv_transpose1d", (4, 32, 513), (32, 16, 4), 16, stride=2, padding=1)),
    ("transposed conv 2-D", convolution("conv_transpose2d", (2, 64, 31, 33), (64, 32, 3, 3), stride=2)),
    (
        "transposed conv 2-D, groups, output padding",
        convolution(
            "conv_transpose2d", (2, 32, 25, 27), (32, 8, 3, 3), groups=4, stride=2, padding=1, output_padding=1
        ),
    ),
    ("transposed conv 3-D", convolution("conv_transpose3d", (1, 16, 9, 11, 13), (16, 8, 3, 3, 3), 8, stride=2)),
)


def product(m: int, k: int, n: int, gpu: int = 4, **settings: Any) -> Callable[[Draw], Made]:
    """x @ w, on a GPU with `gpu` times the sizes."""
    return lambda d: (
        torch.mm,
        (
            d.x(m * d.size(1, gpu), k * d.size(1, gpu), **settings),
            d.x(k * d.size(1, gpu), n * d.size(1, gpu), **settings),
        ),
    )


PRODUCTS = (
    ("square", product(512, 512, 512, 8)),
    ("odd sizes", product(321, 515, 257, 9)),
    ("one row", product(1, 1024, 1023)),
    ("tall and thin", product(8191, 65, 33, 3)),
    ("long sums, few results", product(31, 16_385, 29, 2)),
    ("bfloat16", product(384, 512, 640, 8, dtype=BF16)),
    ("both operands transposed", on(lambda a, b: a.t() @ b.t(), (515, 321), (257, 515))),
    ("lower triangular", on(lambda a, b: torch.tril(torch.tril(a) @ torch.tril(b)), (515, 515), (515, 515))),
    ("by a diagonal", on(lambda a, b: torch.diag(a) @ b, (511,), (511, 513))),
    ("symmetric", on(lambda a: (a + a.t()) @ (a + a.t()), (385, 385))),
    ("batched", on(torch.bmm, (24, 65, 63), (24, 63, 129))),
    ("batched, broadcast", on(lambda a, b: a @ b, (5, 7, 33, 65), (65, 31))),
    (
        "added to a batch",
        on(lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2), (9, 64, 65), (9, 64, 33), (9, 33, 65)),
    ),
    ("linear of three axes", on(F.linear, (7, 129, 257), (511, 257), (511,))),
    ("matrix by vector", on(torch.mv, (2049, 4095), (4095,))),
    ("outer", on(torch.outer, (1023,), (2047,))),
    ("einsum of four axes", on(lambda x, w: torch.einsum("bijl,lk->bijk", x, w), (3, 17, 19, 33), (33, 65))),
    ("einsum, two contracted", on(lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y), (2, 5, 77, 33), (2, 5, 91, 33))),
    ("bilinear form", on(F.bilinear, (65, 33), (65, 29), (17, 33, 29))),
    (
        "int8",
        of(
            torch._int_mm,
            lambda d: (d.whole(127, 64, 128, low=-127, dtype=I8), d.whole(127, 128, 256, low=-127, dtype=I8)),
        ),
    ),
)

# indices, layout, library, random ----------------------------------------------------------------------------------------


def _bags(words: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    return F.embedding_bag(words, weight, offsets, mode="mean")


INDICES = (
    ("gather", of(lambda x, i: x.gather(1, i), lambda d: (d.x(513, 255), d.whole(255, 513, 99)))),
    ("take along an axis", of(lambda x: torch.take_along_dim(x, x.argsort(0), 0), lambda d: (d.x(129, 65),))),
    (
        "scatter add",
        of(lambda x, i: torch.zeros_like(x).scatter_add(1, i, x), lambda d: (d.x(257, 511), d.whole(511, 257, 511))),
    ),
    (
        "scatter, maximum",
        of(lambda x, i: x[:, :100].scatter_reduce(1, i, x, "amax"), lambda d: (d.x(129, 300), d.whole(100, 129, 300))),
    ),
    (
        "index select and add",
        of(lambda x, i: x.index_add(0, i, x.index_select(0, i)), lambda d: (d.x(1001, 65), d.whole(1001, 777))),
    ),
    ("embedding", of(F.embedding, lambda d: (d.whole(5001, 33, 129), d.x(5001, 255)))),
    ("embedding, bfloat16, one row", of(F.embedding, lambda d: (d.whole(300, 1, 1), d.x(300, 1025, dtype=BF16)))),
    (
        "bags of embeddings",
        of(_bags, lambda d: (d.whole(999, 640), d.x(999, 65), torch.arange(0, 640, 10, device=d.device))),
    ),
    (
        "index put, accumulated",
        of(
            lambda x, i, v: x.index_put((i,), v, accumulate=True),
            lambda d: (d.x(300, 65), d.whole(300, 999), d.x(999, 65)),
        ),
    ),
    (
        "index put of pairs",
        of(
            lambda x, i, j: x.index_put((i, j), x[j, i] * 2),
            lambda d: (d.x(257, 257), torch.arange(99, device=d.device), torch.arange(99, device=d.device).flip(0)),
        ),
    ),
    (
        "masked fill and masked scatter",
        of(
            lambda x, m, y: x.masked_fill(m, 0).masked_scatter(m, y),
            lambda d: (d.x(99, 101), d.flags(99, 101), d.x(99, 101)),
        ),
    ),
    ("one hot", of(lambda i: F.one_hot(i, 77).float(), lambda d: (d.whole(77, 513),))),
    (
        "rows picked by two lists",
        of(lambda x, i, j: x[i[:, None], j], lambda d: (d.x(300, 200, 9), d.whole(300, 55), d.whole(200, 44))),
    ),
    ("buckets", of(lambda x, b: torch.bucketize(x, b), lambda d: (d.x(200, 333), d.x(101).sort().values))),
    (
        "histogram by counts",
        of(
            lambda i: torch.zeros(99, device=i.device).index_add(0, i, torch.ones(i.shape, device=i.device)),
            lambda d: (d.whole(99, 20_001),),
        ),
    ),
)

LAYOUT = (
    (
        "cat along three axes",
        on(lambda x, y: (torch.cat((x, y), 0), torch.cat((x, y), 1), torch.cat((x, y), 2)), (9, 33, 65), (9, 33, 65)),
    ),
    ("stack of sums", on(lambda x, y: torch.stack((x + y, x - y, x * y), 1), (333, 257), (333, 257))),
    ("constant pad and crop", on(lambda x: F.pad(x, (1, 2, 3, -4), value=1.5), (5, 9, 65, 63))),
    ("mirrored pad", scaled(lambda x: F.pad(x, (3, 2, 1, 4), mode="reflect"), (4, 17, 65, 63), (64, 64, 129, 127))),
    ("replicated pad 3-D", on(lambda x: F.pad(x, (1, 1, 2, 2, 1, 0), mode="replicate"), (2, 5, 9, 11, 13))),
    ("circular pad", on(lambda x: F.pad(x, (3, 2), mode="circular"), (7, 9, 129))),
    ("circular pad 2-D", on(lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"), (8, 16, 64, 60))),
    ("constant pad of short rows", on(lambda x: F.pad(x, (1, 1, 1, 1)), (8, 64, 14, 12))),
    ("mirrored pad of short rows", on(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), (8, 64, 14, 12))),
    ("roll and flip", on(lambda x: x.roll((3, -5), (1, 2)).flip(2), (33, 65, 127))),
    ("repeat and tile", on(lambda x: x.repeat(2, 3) + x.tile(2, 3), (129, 255))),
    ("repeat interleave", on(lambda x: x.repeat_interleave(3, 1), (65, 129, 5))),
    ("pixel shuffle and back", on(lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2) * 2, 2), (3, 36, 31, 33))),
    ("windows of a signal", on(lambda x: x.unfold(-1, 64, 17).mean(-1), (9, 3001))),
    ("triangles", on(lambda x: x.tril(2) - x.triu(-1), (5, 129, 131))),
    (
        "channels shuffled",
        on(lambda x: x.reshape(3, 4, 16, 15, 17).transpose(1, 2).reshape(3, 64, 15, 17).contiguous(), (3, 64, 15, 17)),
    ),
    ("split, swapped", on(lambda x: torch.cat(x.split((100, 57, 100), -1)[::-1], -1), (257, 257))),
    ("diagonals", on(lambda x: torch.diag_embed(x.diagonal(dim1=-2, dim2=-1).exp()), (9, 65, 65))),
    ("meshgrid and distance", on(lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1).sqrt(), (257, 3), (129, 3))),
)

LIBRARY = (
    ("sort of rows", on(lambda x: x.sort(-1), (129, 1001))),
    ("argsort, descending, of columns", on(lambda x: x.argsort(0, descending=True), (257, 65))),
    ("topk", scaled(lambda x: x.topk(7, -1), (129, 5001), (2048, 32001))),
    ("median and kth value", on(lambda x: (x.median(-1).values, x.kthvalue(3, -1).values), (65, 333))),
    ("Cholesky", of(torch.linalg.cholesky, lambda d: (_definite(d, 5, 33),))),
    ("a linear system", of(torch.linalg.solve, lambda d: (_definite(d, 5, 33), d.x(5, 33, 7)))),
    ("distances", on(torch.cdist, (129, 33), (65, 33))),
)


def _definite(d: Draw, batch: int, n: int) -> Tensor:
    x = d.x(batch, n, n)
    return x @ x.mT / n + torch.eye(n, device=d.device)


RANDOM = (
    ("dropout", scaled(lambda x: F.dropout(x, 0.3) * 2, (999, 1001), (8191, 8191))),
    ("dropout of channels", on(lambda x: F.dropout2d(x, 0.4), (9, 65, 15, 17))),
    ("noise added", on(lambda x: x + 0.1 * torch.randn_like(x), (777, 333))),
    ("uniform mask", on(lambda x: x * (torch.rand_like(x) < 0.5), (777, 333))),
    ("Bernoulli draws", of(lambda p: torch.bernoulli(p), lambda d: (d.positive(333, 777) / 1.2,))),
    ("integers drawn", on(lambda x: x[torch.randint(0, 333, (100,), device=x.device)], (333, 65))),
    ("Gumbel softmax", on(lambda x: F.gumbel_softmax(x, tau=0.7), (333, 65))),
)
TRAINING = (
    (
        "layer norm's gradients",
        of(
            lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b).square().mean(),
            lambda d: (
                d.x(d.size(515, 8193), 1023).requires_grad_(),
                d.x(1023).requires_grad_(),
                d.x(1023).requires_grad_(),
            ),
        ),
    ),
    (
        "softmax's gradient",
        of(lambda x, y: (x.softmax(-1) * y).sum(), lambda d: (d.x(513, 1025).requires_grad_(), d.x(513, 1025))),
    ),
    ("cross entropy's gradient", of(F.cross_entropy, lambda d: (d.x(513, 999).requires_grad_(), d.whole(999, 513)))),
    (
        "embedding's gradient",
        of(
            lambda i, w: F.embedding(i, w).square().sum(),
            lambda d: (d.whole(999, 33, 65), d.x(999, 129).requires_grad_()),
        ),
    ),
    (
        "max pool's gradient",
        of(lambda x: F.max_pool2d(x, 3, 2, 1).square().sum(), lambda d: (d.x(4, 17, 33, 35).requires_grad_(),)),
    ),
    (
        "convolution's gradients",
        of(
            lambda x, w, b: F.conv2d(x, w, b, padding=1).relu().square().mean(),
            lambda d: (
                d.x(4, 32, 33, 31).requires_grad_(),
                (d.x(48, 32, 3, 3) / 17).requires_grad_(),
                d.x(48).requires_grad_(),
            ),
        ),
    ),
    (
        "broadcast gradient",
        of(
            lambda x, s, b: torch.tanh(x * s + b).square().sum(),
            lambda d: (d.x(9, 65, 129).requires_grad_(), d.x(65, 1).requires_grad_(), d.x(129).requires_grad_()),
        ),
    ),
)


def programs() -> Iterator[Program]:
    families = {
        **loops.FAMILIES,
        "window": POOLS,
        "convolution": CONVOLUTIONS,
        "product": PRODUCTS,
        "index": INDICES,
        "layout": LAYOUT,
        "library": LIBRARY,
    }
    for family, table in families.items():
        yield from rows("operator", family, table)
    yield from rows("operator", "random", RANDOM, random=True)
    yield from rows("operator", "gradient", TRAINING, training=True)


__all__ = ["programs"]
