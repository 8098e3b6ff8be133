"""Products of every kind on operands that lie awkwardly, have nothing in them, or do not fit: as eager, or an error."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import polytile
from polytile.matmul.triton.schedules import SCHEDULES
from tests.behaviour.helpers import sized

TRITON = {"interpret": True, "sources": "triton"}
WAYS = {"cpp": {}, "triton": TRITON}
FP8 = torch.float8_e4m3fn


def floats(*shape: int) -> Tensor:
    return torch.randn(shape)


def half(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def int8(*shape: int) -> Tensor:
    return torch.randint(-10, 10, shape, dtype=torch.int8)


def row_squares(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w) + r
    return y, y.pow(2).mean(-1)


def scaled(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16)


def int8_product(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return torch._int_mm(x, w.t()).float() * s


def exact_int8(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return (x.long() @ w.t().long()).float() * s


EXACT = {int8_product: exact_int8}
"""What eager has to give where it is wrong: products of int8 on a CPU, of rows that are all one."""
Make = Callable[[int, int, int], tuple[Tensor, ...]]
KINDS: dict[str, tuple[Callable[..., Any], Make]] = {
    "mm": (torch.mm, lambda m, n, k: (floats(m, k), floats(k, n))),
    "mm bf16": (torch.mm, lambda m, n, k: (half(m, k), half(k, n))),
    "addmm": (torch.addmm, lambda m, n, k: (floats(n), floats(m, k), floats(k, n))),
    "baddbmm": (torch.baddbmm, lambda m, n, k: (floats(3, m, n), floats(3, m, k), floats(3, k, n))),
    "linear, gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda m, n, k: (floats(m, k), floats(n, k), floats(n))),
    "sum of two": (
        lambda x, y, v, w: x @ y + v @ w, lambda m, n, k: (floats(m, k), floats(k, n), floats(m, 2 * k), floats(2 * k, n)),
    ),
    "int8": (int8_product, lambda m, n, k: (int8(m, k), int8(n, k), torch.rand(n))),
    "int8 weights": (lambda x, w, s: x @ (w.to(x.dtype) * s[:, None]).t(), lambda m, n, k: (half(m, k), int8(n, k), half(n))),
    "int8 groups": (
        lambda x, w, z, s: x @ ((w.reshape(w.shape[0], -1, 16).to(x.dtype) - z[..., None]) * s[..., None]).flatten(1).t(),
        lambda m, n, k: (half(m, k), int8(n, k), int8(n, k // 16), half(n, k // 16)),
    ),
    "computed": (lambda x, w, g: F.linear(torch.exp(x) * g, w), lambda m, n, k: (floats(m, k), floats(n, k), floats(k))),
    "squares of rows": (row_squares, lambda m, n, k: (floats(m, k), floats(n, k), floats(m, n))),
    "fp8": (scaled, lambda m, n, k: (half(m, k).to(FP8), half(n, k).to(FP8), torch.tensor(0.5), torch.tensor(2.0))),
}  # fmt: skip


def misaligned(t: Tensor) -> Tensor:
    return torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape)


def apart(t: Tensor) -> Tensor:
    return torch.cat([t, t[..., :3]], -1)[..., : t.shape[-1]]


def overlapping(t: Tensor) -> Tensor:
    *batch, rows, columns = t.shape
    return t.flatten().as_strided((*batch, rows, columns), (*[rows * columns] * len(batch), 2, 1))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "misaligned": misaligned,
    "rows apart": apart,
    "columns apart": lambda t: torch.stack([t, t], -1)[..., 0],
    "turned": lambda t: t.mT.contiguous().mT,
    "one row for all": lambda t: t[..., :1, :].expand(t.shape),
    "one column for all": lambda t: t[..., :1].expand(t.shape),
    "rows that overlap": overlapping,
}
SIZES = (16, 32, 48)
NOTHING = ((0, 32, 48), (16, 0, 48), (16, 32, 0))
LEFT = ("fp8", (16, 32, 0))
"""Where eager gives what stood in memory: products of 8-bit floats on a CPU with nothing to add up."""


def compiled(function: Callable[..., Any], way: str) -> Callable[..., Any]:
    if way == "triton" and importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    options: dict[str, Any] = {"persist": False, "tune": "off", **WAYS[way]}
    return torch.compile(function, backend="polytile", dynamic=True, options=options)


def outcome(call: Callable[..., Any], args: tuple[Tensor, ...]) -> Any:
    """What a call gives, or the error that it ends with."""
    try:
        return call(*args)
    except Exception as error:
        return error


def check(function: Callable[..., Any], call: Callable[..., Any], args: tuple[Tensor, ...], what: str) -> None:
    expected, got = outcome(function, args), outcome(call, args)
    if isinstance(expected, Exception):
        told = isinstance(got, RuntimeError | ValueError | torch._dynamo.exc.TorchRuntimeError)
        assert told, f"{what}: {type(got)}, not {expected!r}"
        return
    assert not isinstance(got, Exception), f"{what}: {got!r}"
    expected = EXACT.get(function, lambda *_: expected)(*args)
    for mine, eager in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected), strict=True):
        assert (mine.dtype, mine.shape) == (eager.dtype, eager.shape), what
        near = {"rtol": 3e-2, "atol": 3e-1} if eager.dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-3}
        torch.testing.assert_close(mine, eager, equal_nan=True, msg=lambda text: f"{what}: {text}", **near)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_awkward_operands_give_what_they_give_in_eager(name: str, way: str) -> None:
    """One program takes operands that lie in any way, then products with nothing in them, then what does not fit."""
    function, make = KINDS[name]
    call = compiled(function, way)
    args = make(*SIZES)
    check(function, call, args, "plain")
    if way == "triton":
        made = polytile.compiler.programs.compiled_programs()[-1].multikernels
        (kernel,) = [kernel for kernel in made if kernel.spec.family == "mm"]
        assert {d.candidate.split()[0] for d in kernel.decisions} <= {*SCHEDULES}
    for layout, laid in LAYOUTS.items():
        check(function, call, tuple(laid(arg) if arg.dim() > 1 else arg for arg in args), layout)
    for sizes in NOTHING:
        if (name, sizes) != LEFT:
            check(function, call, make(*sizes), str(sizes))
    for what, wrong in misfits(args, make(16, 32, 64)).items():
        assert what != "another K" or isinstance(outcome(function, wrong), Exception)
        check(function, call, wrong, what)


def misfits(args: tuple[Tensor, ...], longer: tuple[Tensor, ...]) -> dict[str, tuple[Tensor, ...]]:
    """`args` with the first operand of another K, that of `longer`, or of a type that the others do not have."""
    first = next(place for place, arg in enumerate(args) if arg.shape != longer[place].shape)
    wrong = {"another K": longer[first], **{str(t): args[first].to(t) for t in (torch.int64, torch.float64)}}
    return {what: (*args[:first], operand, *args[first + 1 :]) for what, operand in wrong.items()}


def test_a_bias_that_may_be_one_column_is_broadcast_by_calls_that_have_one() -> None:
    """Tracing sees as many columns as the result has, or one, and asks nobody which."""
    run = polytile.compile(lambda x: torch.addmm(x.chunk(2, 1)[-1], x, x.t()), dynamic=True)
    for x in sized((2, 3), (6, 3), (17, 3), (4, 8)):
        torch.testing.assert_close(run(x), torch.addmm(x.chunk(2, 1)[-1], x, x.t()))
