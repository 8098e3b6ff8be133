"""Normalisations and softmax: taken apart, never a library call, forward and gradients as eager's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from lowering import check, lower, run
from training import check_training

from polytile.ir import expr
from polytile.ir.loop import Loop

TOLERANCES = {torch.bfloat16: 4e-2, torch.float16: 5e-3, torch.float32: 1e-5, torch.float64: 1e-11}
FLOATS = tuple(TOLERANCES)
Function = Callable[..., torch.Tensor]

NORMS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "softmax": (lambda x: F.softmax(x, -1), [(4, 6)]),
    "softmax over 0": (lambda x: F.softmax(x, 0), [(4, 6)]),
    "log_softmax": (lambda x: F.log_softmax(x, 1), [(4, 6, 3)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b), [(4, 5, 8), (8,), (8,)]),
    "layer_norm plain": (lambda x: F.layer_norm(x, (x.shape[-1],)), [(4, 8)]),
    "layer_norm over 2": (lambda x, w: F.layer_norm(x, x.shape[1:], w), [(4, 5, 8), (5, 8)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (x.shape[-1],), w), [(4, 8), (8,)]),
    "fused rms_norm": (
        lambda x, w: torch.ops.aten._fused_rms_norm(x, (x.shape[-1],), w, 1e-6)[0],
        [(4, 8), (8,)],
    ),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), [(2, 6, 4, 5), (6,), (6,)]),
    "group_norm, channels last": (
        lambda x, w, b: F.group_norm(x.contiguous(memory_format=torch.channels_last), 3, w, b),
        [(2, 6, 4, 5), (6,), (6,)],
    ),
    "group_norm plain, channels last": (
        lambda x: F.group_norm(x.contiguous(memory_format=torch.channels_last), 4),
        [(3, 4, 2, 5)],
    ),
    "group_norm plain": (lambda x: F.group_norm(x, 2), [(2, 6, 7)]),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [(2, 6, 4, 5), (6,), (6,)]),
    "batch_norm": (
        lambda x, w, b, m, v: F.batch_norm(x, m, v.abs(), w, b, training=False),
        [(4, 3, 5), (3,), (3,), (3,), (3,)],
    ),
    "batch_norm in training": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), [(6, 3), (3,), (3,)]),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", [n for n in NORMS if n != "rms_norm"])
def test_forward(name: str, dtype: torch.dtype) -> None:
    fn, shapes = NORMS[name]
    args = [torch.randn(s).to(dtype) for s in shapes]
    check(fn, *args, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("name", [n for n in NORMS if n != "batch_norm"])
def test_gradients(name: str) -> None:
    fn, shapes = NORMS[name]
    assert check_training(fn, *[torch.randn(s, dtype=torch.float64) for s in shapes], rtol=1e-9, atol=1e-9) == []


def test_gradients_of_layer_norm_are_as_precise_as_eagers_at_two_elements() -> None:
    op = torch.ops.aten.native_layer_norm_backward.default
    x, w, b, direction = torch.randn(64, 2), torch.randn(2), torch.randn(2), torch.randn(64, 2)

    def gradient(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        _, mean, rstd = torch.native_layer_norm(x, (2,), w, b, 1e-5)
        return op(direction, x, [2], mean, rstd, w, b, [True, False, False])[0]

    args = (x, w, b, direction)
    exact = gradient(*[a.double() for a in args])
    mine = run(lower(gradient, *args), list(args))[0]
    eager = gradient(*args)
    assert (mine - exact).abs().max() <= (eager - exact).abs().max() * 1.5


@pytest.mark.parametrize("channels_last", [False, True])
def test_running_statistics_are_new_tensors(channels_last: bool) -> None:
    x = torch.randn(4, 3, 5, 6)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    op = torch.ops.aten._native_batch_norm_legit_functional.default
    program = check(
        lambda x, w, b, m, v: op(x, w, b, m, v, True, 0.1, 1e-5),
        x, *[torch.rand(3) for _ in range(4)], rtol=1e-5, atol=1e-5,
    )  # fmt: skip
    assert {"m_1", "v_1"} - {b for o in program.operations for b in o.writes()} == {"m_1", "v_1"}


def test_norm_statistics_are_one_welford_reduction() -> None:
    program = lower(lambda x: F.layer_norm(x, (x.shape[-1],)), torch.randn(4, 8))
    kinds = [n.kind for op in program.operations if isinstance(op, Loop) for n in expr.walk(*op.roots)
             if isinstance(n, expr.Reduce)]  # fmt: skip
    assert kinds == ["welford"]


def test_softmax_is_max_exp_sum() -> None:
    program = lower(lambda x: F.softmax(x, -1), torch.randn(4, 8))
    kinds = [n.kind for op in program.operations if isinstance(op, Loop) for n in expr.walk(*op.roots)
             if isinstance(n, expr.Reduce)]  # fmt: skip
    assert kinds == ["max", "sum"]


def test_masked_rows_are_eagers_nan() -> None:
    x = torch.randn(3, 4)
    x[1] = -float("inf")
    check(lambda x: (F.softmax(x, 1), F.log_softmax(x, 1)), x)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), ()], ids=str)
def test_empty_and_single_softmax(shape: tuple[int, ...]) -> None:
    check(lambda x: (F.softmax(x, -1), F.log_softmax(x, 0)), torch.randn(shape))


def test_empty_layer_norm() -> None:
    check(lambda x: F.layer_norm(x, (4,)), torch.randn(0, 4))


def test_softmax_widens_half_where_asked() -> None:
    check(lambda x: F.softmax(x, -1, dtype=torch.float32), torch.randn(4, 6).half())
