"""Operators that programs call less often: further losses and distances, running values, sorts, indices, complex numbers,
integers, contractions, cells of recurrent networks, norms in training, optimisers' steps, windows, pads, random draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.adadelta import adadelta
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.adamax import adamax
from torch.optim.adamw import adamw
from torch.optim.nadam import nadam
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from benchmarks.programs.making import BF16, F16, F64, I8, I32, U8, Made, of, on
from benchmarks.programs.program import Draw, Function, Program, rows

# losses and distances ----------------------------------------------------------------------------------------------------


def _two_and_sign(d: Draw) -> tuple[Tensor, Tensor, Tensor]:
    return d.x(129, 33), d.x(129, 33), d.whole(2, 129, dtype=torch.float32) * 2 - 1


def _dice(x: Tensor, target: Tensor) -> Tensor:
    p, y = x.softmax(1), F.one_hot(target, x.shape[1]).movedim(-1, 1).to(x.dtype)
    return 1 - (2 * (p * y).sum((2, 3)) / (p + y).sum((2, 3))).mean()


def _focal(x: Tensor, y: Tensor) -> Tensor:
    loss = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    return ((1 - (-loss).exp()) ** 2 * loss).mean()


def _contrastive(a: Tensor, b: Tensor) -> Tensor:
    scores = F.normalize(a, dim=1) @ F.normalize(b, dim=1).t() / 0.1
    own = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2


LOSSES = (
    ("margin ranking", of(lambda x, y, s: F.margin_ranking_loss(x[:, 0], y[:, 0], s, 0.3), _two_and_sign)),
    ("multi-label margin", of(F.multilabel_margin_loss, lambda d: (d.x(65, 9), d.whole(9, 65, 9)))),
    ("multi-label soft margin", of(F.multilabel_soft_margin_loss, lambda d: (d.x(65, 9), d.whole(2, 65, 9).float()))),
    ("soft margin", of(F.soft_margin_loss, lambda d: (d.x(65, 9), d.whole(2, 65, 9).float() * 2 - 1))),
    ("cosine similarity of columns", on(lambda x, y: F.cosine_similarity(x, y, 1), (33, 65, 17), (33, 65, 17))),
    ("pairwise distance", on(lambda x, y: F.pairwise_distance(x, y, 1.5, keepdim=True), (129, 65), (129, 65))),
    ("distances, first norm", on(lambda x, y: torch.cdist(x, y, 1), (3, 65, 7), (3, 33, 7))),
    ("distances within a set", on(F.pdist, (65, 17))),
    ("connectionist temporal classification", of(
        lambda x, y: F.ctc_loss(x.log_softmax(-1), y, torch.tensor([50, 41, 37]), torch.tensor([12, 9, 11])),
        lambda d: (d.x(50, 3, 20), d.whole(20, 3, 12, low=1)),
    )),
    ("dice", of(_dice, lambda d: (d.x(3, 5, 31, 33), d.whole(5, 3, 31, 33)))),
    ("focal", of(_focal, lambda d: (d.x(129, 65), d.whole(2, 129, 65).float()))),
    ("contrastive, both ways", on(_contrastive, (65, 33), (65, 33))),
    ("negative log likelihood, summed", of(
        lambda x, y, w: F.nll_loss(x.log_softmax(1), y, w, ignore_index=2, reduction="sum"),
        lambda d: (d.x(65, 11), d.whole(11, 65), d.positive(11)),
    )),
    ("cross entropy with probabilities", on(lambda x, y: F.cross_entropy(x, y.softmax(1)), (33, 65), (33, 65))),
)  # fmt: skip

# running values, sorts ---------------------------------------------------------------------------------------------------

SCANS = (
    ("cummin over the first axis", on(lambda x: torch.cummin(x, 0), (65, 33))),
    ("cumprod of columns, reversed", on(lambda x: (1 + x / 50).flip(0).cumprod(0), (65, 33))),
    ("cumsum of int8", of(lambda x: x.cumsum(1), lambda d: (d.whole(100, 33, 129, dtype=I8),))),
    ("cumsum of bfloat16 in float32", on(lambda x: x.cumsum(-1, dtype=torch.float32), (33, 1025), dtype=BF16)),
    ("exclusive cumsum", on(lambda x: F.pad(x.cumsum(1)[:, :-1], (1, 0)), (33, 257))),
    ("differences", on(lambda x: (x.diff(dim=0), x.diff(2, dim=1)), (33, 65))),
    ("trapezoids", on(lambda y, x: (torch.trapezoid(y, x.sort(1)[0], dim=1), torch.cumulative_trapezoid(y)), (33, 65), (33, 65))),
    ("moving sum by a cumsum", on(lambda x: x.cumsum(1)[:, 8:] - x.cumsum(1)[:, :-8], (33, 513)), {"scale": 60.0}),
    ("running mean and maximum", on(lambda x: x.cummax(0)[0] - x.cumsum(0) / torch.arange(1, 66).view(-1, 1), (65, 33)),
     {"gpu": False}),
)  # fmt: skip
SORTS = (
    ("sort of int64 along a middle axis", of(lambda x: x.sort(1)[0], lambda d: (d.whole(50, 9, 65, 7),))),
    ("stable sort with equal keys", of(lambda x: x.sort(stable=True), lambda d: (d.whole(9, 33, 65),))),
    ("ranks by two sorts", on(lambda x: x.argsort(1).argsort(1), (33, 129))),
    ("smallest five, sorted rows", on(lambda x: x.topk(5, 0, largest=False)[0].sum(1), (65, 33))),
    ("mode", of(lambda x: x.mode(1)[0], lambda d: (d.whole(5, 33, 65),))),
    ("quantiles", on(lambda x: x.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=x.dtype, device=x.device), 1), (33, 65))),
    ("median without NaN", on(lambda x: torch.where(x > 1, torch.nan, x).nanmedian(1)[0], (33, 65))),
    ("searched in rows", on(lambda x, v: torch.searchsorted(x.sort(1)[0], v, right=True), (9, 129), (9, 33))),
    ("msort and flips", on(lambda x: x.msort().flip(0) - x, (65, 33))),
)  # fmt: skip

# indices -----------------------------------------------------------------------------------------------------------------


def _scattered(reduce: str, own: bool) -> Function:
    return lambda x, i, s: x.scatter_reduce(1, i, s, reduce, include_self=own)


def _for_scatter(d: Draw) -> tuple[Tensor, Tensor, Tensor]:
    return d.x(17, 33), d.whole(33, 17, 65), d.x(17, 65)


def _written(x: Tensor) -> Tensor:
    x = x.clone()
    x[-1, ::3] = 0.5
    x[1:-1:2, -5:] += x[0:-2:2, :5]
    return x


INDICES = (
    ("scatter of a number", of(lambda x, i, s: x.scatter(1, i, 2.5), _for_scatter)),
    ("scatter, mean without its own", of(_scattered("mean", False), _for_scatter)),
    ("scatter, product", of(_scattered("prod", True), _for_scatter)),
    ("scatter, minimum without its own", of(_scattered("amin", False), _for_scatter)),
    ("scatter add of int32", of(
        lambda i: torch.zeros(9, 33, dtype=I32, device=i.device).scatter_add(0, i, i.to(I32)), lambda d: (d.whole(9, 65, 33),)
    )),
    ("index reduce", of(
        lambda x, i, s: x.index_reduce(0, i, s, "amax"), lambda d: (d.x(17, 33), d.whole(17, 65), d.x(65, 33))
    )),
    ("index copy and fill", of(
        lambda x, i, s: x.index_copy(1, i, s).index_fill(0, i[:3], 1.5),
        lambda d: (d.x(33, 17), torch.randperm(17, generator=d.generator, device=d.device)[:9], d.x(33, 9)),
    )),
    ("gather and its gradient's scatter", of(
        lambda x, i: torch.zeros_like(x).scatter_add(0, i, x.gather(0, i).square()), lambda d: (d.x(33, 65), d.whole(33, 17, 65))
    )),
    ("put and take", of(
        lambda x, i: x.put(i, x.take(i) * 2, accumulate=True),
        lambda d: (d.x(17, 33), d.whole(17 * 33, 65)),
    )),
    ("picked by flags of two axes", of(
        lambda x, m: torch.where(m[:, None], x, x.flip(0))[:, [3, 1, 1, 0]], lambda d: (d.x(33, 9), d.flags(33))
    )),
    ("negative indices, strided writes", on(_written, (33, 65))),
    ("slice and select scatter", on(
        lambda x, y: x.slice_scatter(y, 0, 3, 19, 2).select_scatter(x[0], 0, -1), (33, 9), (8, 9)
    )),
    ("diagonal scatter", on(lambda x, y: x.diagonal_scatter(y, 1) + x.diagonal(-1).sum(), (17, 17), (16,))),
    ("a histogram's densities", of(
        lambda i, w: torch.bincount(i, w, minlength=33) / w.sum(), lambda d: (d.whole(33, 513), d.positive(513))
    )),
    ("segments by lengths", of(
        lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([5, 0, 17, 11]), axis=0), lambda d: (d.x(33, 9),)
    ), {"gpu": False}),
    ("embedding with a largest norm", of(
        lambda i, w: F.embedding(i, w / w.norm(dim=1, keepdim=True).clamp_min(1.0)), lambda d: (d.whole(99, 33, 7), d.x(99, 17))
    )),
)  # fmt: skip


# complex numbers, integers -----------------------------------------------------------------------------------------------

_complex = torch.view_as_complex
_real = torch.view_as_real
COMPLEX = (
    ("complex product and absolute value", on(
        lambda x, y: (_real(_complex(x) * _complex(y).conj()), _complex(x).abs(), _complex(y).angle()), (33, 17, 2), (33, 17, 2)
    )),
    ("complex rotation", on(
        lambda x, a: _real(_complex(x) * torch.polar(torch.ones_like(a), a)).flatten(1), (33, 17, 2), (17,)
    )),
    ("real spectrum, filtered", on(lambda x: torch.fft.irfft(torch.fft.rfft(x)[:, :20], n=129), (33, 129))),
    ("power of a spectrum in two axes", on(
        lambda x: torch.fft.fftshift(torch.fft.fft2(x).abs().square(), (-2, -1)), (3, 17, 33)
    )),
    ("short Fourier transform", on(
        lambda x: torch.stft(x, 64, 16, window=torch.hann_window(64, dtype=x.dtype, device=x.device), return_complex=True).abs(),
        (3, 513),
    )),
    ("complex matrices", on(lambda x, y: _real(_complex(x) @ _complex(y)), (17, 33, 2), (33, 9, 2))),
    ("complex exponential, sum, quotient", on(
        lambda x: _real(_complex(x).exp().sum(0) / (1 + _complex(x).square().mean(0))), (33, 17, 2)
    )),
)  # fmt: skip
WHOLE = (
    ("int32 that wraps", of(lambda x: x * 65537 + (x << 9), lambda d: (d.whole(2**31 - 1, 33, 65, dtype=I32),))),
    ("uint8 differences that wrap", of(lambda x, y: (x - y, x + y, x // (y | 1)), lambda d: tuple(
        d.whole(256, 33, 65, dtype=U8) for _ in range(2)
    ))),
    ("int8 shifts and complements", of(lambda x: (~x >> 2, x << 3, -x), lambda d: (d.whole(127, 33, 65, low=-128, dtype=I8),))),
    ("int64 hashes", of(lambda x: ((x ^ (x >> 7)) * 2654435761) & 0xFFFFFFFF, lambda d: (d.whole(2**40, 33, 65),))),
    ("remainders of negative integers", of(
        lambda x, y: (x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc")),
        lambda d: (d.whole(99, 33, 65, low=-99, dtype=torch.int16), d.whole(9, 33, 65, low=1, dtype=torch.int16)),
    )),
    ("powers and roots of integers", of(lambda x: (x**3, x.sqrt(), 2.0**x), lambda d: (d.whole(20, 33, 65),))),
    ("products and sums of uint8", of(
        lambda x: (x.prod(1), x.sum(0), x.float().mean()), lambda d: (d.whole(4, 33, 17, dtype=U8),)
    )),
    ("extremes of integers and flags", of(
        lambda x: (x.amax(0), x.amin(1), x.argmax(1), (x > 3).sum(), (x > 98).any(0)), lambda d: (d.whole(99, 33, 65, dtype=I32),)
    )),
    ("integers among floats of 16 bits", of(
        lambda x, y: (x + y, x * 1.5, y / (x + 1)), lambda d: (d.whole(99, 33, 65), d.x(33, 65, dtype=F16))
    )),
    ("greatest common divisors", of(
        lambda x, y: (torch.gcd(x, y), torch.lcm(x, y)), lambda d: (d.whole(99, 33, 65), d.whole(99, 65, low=1))
    )),
)  # fmt: skip

# contractions ------------------------------------------------------------------------------------------------------------


def _einsum(equation: str, *shapes: tuple[int, ...], **settings: Any) -> Callable[[Draw], Made]:
    return on(lambda *given: torch.einsum(equation, *given), *shapes, **settings)


CONTRACTIONS = (
    ("einsum, a trace in batches", _einsum("bii->b", (9, 33, 33))),
    ("einsum, a diagonal kept", _einsum("bii->bi", (9, 33, 33))),
    ("einsum, heads and keys", _einsum("bqhd,bkhd->bhqk", (3, 17, 4, 9), (3, 19, 4, 9))),
    ("einsum, three operands", _einsum("ij,jk,kl->il", (17, 33), (33, 9), (9, 25))),
    ("einsum, an outer product in batches", _einsum("bi,bj->bij", (33, 17), (33, 9))),
    ("einsum, dots and broadcast", _einsum("...ij,jk->...ki", (3, 5, 17, 9), (9, 11))),
    ("einsum, summed alone", _einsum("ijk,kl->l", (9, 7, 17), (17, 5))),
    ("einsum, float64", _einsum("bij,bkj->bik", (3, 17, 9), (3, 5, 9), dtype=F64)),
    ("tensordot over two axes", on(lambda x, y: torch.tensordot(x, y, ((1, 2), (0, 1))), (9, 7, 5), (7, 5, 11))),
    ("Kronecker product", on(torch.kron, (9, 7), (5, 3))),
    ("chained products", on(lambda x, y, z: torch.linalg.multi_dot([x, y, z]), (33, 9), (9, 65), (65, 5))),
    ("a power of a matrix", on(lambda x: torch.linalg.matrix_power(x / 9, 5), (3, 17, 17))),
    ("cross and inner products", on(lambda x, y: (torch.linalg.cross(x, y), torch.linalg.vecdot(x, y)), (65, 3), (65, 3))),
    ("covariances and correlations", on(lambda x: (torch.cov(x), torch.corrcoef(x)), (17, 65))),
)  # fmt: skip

# modules -----------------------------------------------------------------------------------------------------------------


def _cell(make: Callable[[], nn.Module], states: int, steps: int = 5) -> Callable[[Draw], Made]:
    """A recurrent cell over a few steps from given states."""

    def draw(d: Draw) -> Made:
        return d.module(lambda: Steps(make(), states)), (d.x(steps, 7, 17), *(d.x(7, 33) for _ in range(states)))

    return draw


class Steps(nn.Module):
    """A cell's state after each step."""

    def __init__(self, cell: nn.Module, states: int) -> None:
        super().__init__()
        self.cell, self.states = cell, states

    def forward(self, x: Tensor, *state: Tensor) -> Tensor:
        found = []
        for step in x:
            state = self.cell(step, state) if self.states > 1 else (self.cell(step, *state),)
            found.append(state[0])
        return torch.stack(found)


def _layer(make: Callable[[], nn.Module], *shapes: tuple[int, ...], train: bool = False) -> Callable[[Draw], Made]:
    return lambda d: (d.module(make, train=train), tuple(d.x(*shape) for shape in shapes))


class Loss(nn.Module):
    """A layer's results against fixed directions: a mean square would lose the gradient behind a norm."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y = y[0] if isinstance(y, tuple) else y
        return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view(y.shape)).square().mean()


def _learns(make: Callable[[], nn.Module], *shape: int) -> Callable[[Draw], Made]:
    return lambda d: (d.module(lambda: Loss(make()), train=True), (d.x(*shape).requires_grad_(),))


CELLS = (
    ("RNN cell, relu", _cell(lambda: nn.RNNCell(17, 33, nonlinearity="relu"), 1)),
    ("GRU cell", _cell(lambda: nn.GRUCell(17, 33), 1)),
    ("LSTM cell", _cell(lambda: nn.LSTMCell(17, 33), 2)),
    ("RNN of two layers", _layer(lambda: nn.RNN(17, 33, 2, batch_first=True), (5, 9, 17))),
    ("GRU, both ways", _layer(lambda: nn.GRU(17, 33, bidirectional=True), (9, 5, 17))),
    ("LSTM with a projection", _layer(lambda: nn.LSTM(17, 33, proj_size=9), (9, 5, 17))),
)
NORMS = (
    ("batch norm 1-D, training", _learns(lambda: nn.BatchNorm1d(17), 33, 17)),
    ("batch norm 3-D, training, no affine", _learns(lambda: nn.BatchNorm3d(5, affine=False), 3, 5, 7, 9, 11)),
    ("batch norm 2-D, training, no running statistics", _learns(
        lambda: nn.BatchNorm2d(9, track_running_stats=False), 5, 9, 7, 11
    )),
    ("group norm, training", _learns(lambda: nn.GroupNorm(3, 12), 5, 12, 7, 9)),
    ("instance norm with running statistics, training", _learns(
        lambda: nn.InstanceNorm2d(9, affine=True, track_running_stats=True), 5, 9, 7, 11
    )),
    ("RMS norm, training", _learns(lambda: nn.RMSNorm(33), 17, 33)),
    ("layer norm over two axes, training", _learns(lambda: nn.LayerNorm((7, 9), bias=False), 5, 7, 9)),
    ("local response norm, training", _learns(lambda: nn.LocalResponseNorm(3), 5, 9, 7, 7)),
    ("weight norm, training", _learns(lambda: parametrizations.weight_norm(nn.Linear(17, 9)), 33, 17)),
    ("weight norm of a convolution, training", _learns(
        lambda: parametrizations.weight_norm(nn.Conv2d(5, 7, 3), dim=1), 3, 5, 9, 11
    )),
    ("spectral norm, training", _learns(lambda: parametrizations.spectral_norm(nn.Linear(17, 9)), 33, 17)),
    ("PReLU and bilinear, training", _learns(lambda: nn.Sequential(nn.Linear(17, 9), nn.PReLU(9)), 33, 17)),
    ("GRU cell, training", lambda d: (
        d.module(lambda: Loss(nn.GRU(17, 9, batch_first=True)), train=True), (d.x(5, 7, 17).requires_grad_(),)
    )),
)  # fmt: skip

# optimisers --------------------------------------------------------------------------------------------------------------


def _optimiser(update: Callable[..., None], states: int) -> Callable[[Draw], Made]:
    """One step of two parameters, which returns the new parameters and states. `update` is given copies of parameters, gradients
    and states, and the number of the step, and changes them."""

    def step(*given: Tensor) -> list[Tensor]:
        copies = [x.clone() for x in given]
        parameters, gradients, *states_of = (copies[k : k + 2] for k in range(0, len(copies), 2))
        counts = [torch.tensor(3.0, device=given[0].device) for _ in parameters]
        update(parameters, gradients, states_of, counts)
        return [*parameters, *(x for state in states_of for x in state)]

    def draw(d: Draw) -> Made:
        kinds: list[Callable[..., Tensor]] = [d.x, d.x, *([d.positive] * states)]
        return step, tuple(kind(*shape) for kind in kinds for shape in ((33, 17), (65,)))

    return draw


def _clipped(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    factor = (1 / (torch.stack([a.norm(), b.norm()]).norm() + 1e-6)).clamp_max(1.0)
    return a * factor, b * factor


_decay: dict[str, Any] = {"weight_decay": 0.01, "eps": 1e-8, "maximize": False}
_adam: dict[str, Any] = {"beta1": 0.9, "beta2": 0.99, "lr": 0.01, "foreach": False, **_decay}
"""One parameter at a time: the steps of several at once ask for capturable counts while they are traced, which eager refuses."""
OPTIMISERS = (
    ("SGD with Nesterov's momentum", _optimiser(
        lambda p, g, s, t: sgd(
            p, g, s[0], weight_decay=0.01, momentum=0.9, lr=0.1, dampening=0.0, nesterov=True, maximize=False, foreach=True
        ), 1,
    )),
    ("Adam with the largest square", _optimiser(lambda p, g, s, t: adam(p, g, s[0], s[1], s[2], t, amsgrad=True, **_adam), 3)),
    ("AdamW", _optimiser(lambda p, g, s, t: adamw(p, g, s[0], s[1], [], t, amsgrad=False, **_adam), 2)),
    ("RMSprop with momentum", _optimiser(
        lambda p, g, s, t: rmsprop(
            p, g, s[0], [], s[1], t, foreach=True, lr=0.01, alpha=0.9, momentum=0.9, centered=False, **_decay
        ), 2,
    )),
    ("Adagrad", _optimiser(lambda p, g, s, t: adagrad(p, g, s[0], t, foreach=True, lr=0.01, lr_decay=0.1, **_decay), 1)),
    ("Adamax", _optimiser(lambda p, g, s, t: adamax(p, g, s[0], s[1], t, **_adam), 2)),
    ("Adadelta", _optimiser(lambda p, g, s, t: adadelta(p, g, s[0], s[1], t, foreach=True, lr=0.5, rho=0.9, **_decay), 2)),
    ("NAdam", _optimiser(
        lambda p, g, s, t: nadam(p, g, s[0], s[1], [torch.ones(()), torch.ones(())], t, momentum_decay=0.004, **_adam), 2
    ), {"gpu": False}),
    ("gradients clipped by their norm", on(_clipped, (33, 17), (65,))),
    ("an average of parameters", on(
        lambda a, b, c, e: torch._foreach_lerp([a, b], [c, e], 0.01), (33, 17), (65,), (33, 17), (65,)
    )),
)  # fmt: skip

# windows and pads --------------------------------------------------------------------------------------------------------


def _resized(shape: tuple[int, ...], **settings: Any) -> Callable[[Draw], Made]:
    return on(lambda x: F.interpolate(x, **settings), shape)


def _pad(shape: tuple[int, ...], *padding: int, **settings: Any) -> Callable[[Draw], Made]:
    return on(lambda x: F.pad(x, padding, **settings), shape)


WINDOWS = (
    ("max pool 2-D, rounded up", on(lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (3, 17, 62, 66))),
    ("max pool 3-D", on(lambda x: F.max_pool3d(x, 2), (2, 9, 18, 20, 22))),
    ("average pool 2-D, padding not counted", on(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (3, 17, 61, 67))),
    ("average pool 3-D, divided by 5", on(lambda x: F.avg_pool3d(x, 2, divisor_override=5), (2, 9, 16, 18, 22))),
    ("adaptive average 1-D", on(lambda x: F.adaptive_avg_pool1d(x, 17), (9, 33, 130))),
    ("adaptive average 3-D", on(lambda x: F.adaptive_avg_pool3d(x, (3, 4, 5)), (2, 9, 13, 17, 19))),
    ("adaptive maximum 1-D", on(lambda x: F.adaptive_max_pool1d(x, 17), (9, 33, 130))),
    ("adaptive maximum 3-D", on(lambda x: F.adaptive_max_pool3d(x, (3, 4, 5)), (2, 9, 13, 17, 19))),
    ("max unpool", on(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), [2, 2]), (3, 17, 34, 38))),
    ("unfold alone", on(lambda x: F.unfold(x, (3, 5), padding=(1, 2), stride=2), (3, 7, 33, 41))),
    ("fold alone", on(lambda x: F.fold(x, (20, 22), 3, stride=2, padding=1), (3, 63, 110))),
    ("upsampling, linear", _resized((5, 17, 129), scale_factor=2.0, mode="linear")),
    ("upsampling, nearest, 3-D", _resized((2, 9, 9, 11, 13), scale_factor=2.0)),
    ("upsampling, exact nearest", _resized((3, 17, 31, 33), size=(45, 57), mode="nearest-exact")),
    ("downsampling by areas", _resized((3, 17, 62, 66), size=(21, 23), mode="area")),
    ("downsampling, bilinear, smoothed", _resized((3, 9, 62, 66), size=(21, 23), mode="bilinear", antialias=True)),
    ("downsampling, bicubic, smoothed", _resized((3, 9, 62, 66), size=(21, 23), mode="bicubic", antialias=True)),
    ("upsampling, bicubic, corners aligned", _resized((2, 3, 31, 33), size=(57, 45), mode="bicubic", align_corners=True)),
    ("grid sample, nearest, reflected", of(
        lambda x, g: F.grid_sample(x, g, "nearest", "reflection", False), lambda d: (d.x(2, 9, 33, 35), d.x(2, 21, 23, 2))
    )),
    ("affine grid", on(
        lambda a, x: F.grid_sample(x, F.affine_grid(a, [2, 9, 21, 23], False), align_corners=False), (2, 2, 3), (2, 9, 33, 35)
    )),
)  # fmt: skip
PADS = (
    ("constant pad 1-D", _pad((9, 33, 257), 3, 4, value=0.5)),
    ("constant pad 3-D", _pad((2, 9, 9, 17, 33), 1, 1, 2, 2, 1, 1)),
    ("mirrored pad 1-D", _pad((9, 33, 257), 3, 4, mode="reflect")),
    ("mirrored pad 3-D", _pad((2, 9, 9, 17, 33), 1, 1, 2, 2, 1, 1, mode="reflect")),
    ("replicated pad 1-D", _pad((9, 33, 257), 3, 4, mode="replicate")),
    ("replicated pad 2-D", _pad((4, 17, 65, 63), 3, 2, 1, 4, mode="replicate")),
    ("replicated pad 3-D, larger", _pad((2, 17, 17, 33, 33), 1, 1, 2, 2, 1, 1, mode="replicate")),
    ("circular pad 2-D, of rows alone", _pad((8, 16, 64, 60), 0, 0, 2, 1, mode="circular")),
    ("circular pad 3-D", _pad((2, 9, 9, 17, 33), 1, 1, 2, 2, 1, 1, mode="circular")),
)

# random numbers ----------------------------------------------------------------------------------------------------------

RANDOM = (
    ("normal numbers with means and deviations", of(torch.normal, lambda d: (d.x(33, 65), d.positive(33, 65)))),
    ("alpha dropout", on(lambda x: F.alpha_dropout(x, 0.3, True), (33, 65))),
    ("dropout along features", on(lambda x: F.feature_alpha_dropout(x, 0.3, True), (5, 9, 7))),
    ("randomised leaky relu", on(lambda x: F.rrelu(x, training=True), (33, 65))),
    ("a permutation of rows", on(lambda x: x[torch.randperm(len(x), device=x.device)], (33, 9))),
    ("draws by weights", of(lambda w: torch.multinomial(w, 5), lambda d: (d.positive(33, 17),))),
    ("exponential, Cauchy, geometric", on(
        lambda x: (torch.empty_like(x).exponential_(2.0), torch.empty_like(x).geometric_(0.3) + x), (33, 65)
    )),
    ("integers of a range, added", on(lambda x: x + torch.randint_like(x, 3, 9) + torch.rand_like(x, dtype=F64), (33, 65))),
    ("two dropouts of a residual", on(lambda x: F.dropout(F.dropout(x, 0.2).relu(), 0.4) + x, (65, 129))),
)  # fmt: skip


def programs() -> Iterator[Program]:
    families = {
        "loss": LOSSES,
        "scan": SCANS,
        "sort": SORTS,
        "index": INDICES,
        "complex": COMPLEX,
        "integer": WHOLE,
        "product": CONTRACTIONS,
        "cell": CELLS,
        "optimiser": OPTIMISERS,
        "window": WINDOWS,
        "layout": PADS,
    }
    for family, table in families.items():
        yield from rows("operator", family, table)
    yield from rows("operator", "norm", NORMS, training=True)
    yield from rows("operator", "random", RANDOM, random=True)


__all__ = ["programs"]
