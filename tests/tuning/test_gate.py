"""The accuracy gate lets right results through and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from polytile.tuning.distance import compare
from polytile.tuning.gate import Gate
from polytile.tuning.tolerance import tolerance


def softmax(x: torch.Tensor, y: torch.Tensor, *_: int) -> None:
    y.copy_(torch.softmax(x, -1))


def gate(*args: Any, roles: tuple[str, ...] = ("in", "out"), reference: Any = softmax, **more: Any) -> Gate:
    return Gate(args, roles, ("x", "y", "z")[: len(roles)], reference, **more)


def run(kernel: Callable[..., None]) -> Callable[[tuple[Any, ...]], None]:
    return lambda args: kernel(*args)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_8_bit_floats_are_judged_by_what_their_type_can_hold(dtype: torch.dtype) -> None:
    def narrow(x: torch.Tensor, y: torch.Tensor, *_: int) -> None:
        y.copy_(x)

    def zeros(x: torch.Tensor, y: torch.Tensor, *_: int) -> None:
        y.copy_(torch.zeros_like(x))

    x = torch.cat([torch.randn(500), torch.tensor([1e6, -1e6, float("inf"), float("nan")])])
    made = gate(x, torch.zeros(504, dtype=dtype), reference=narrow)
    assert made.check(run(narrow)).ok and not made.check(run(zeros)).ok


def test_a_right_result_passes_and_leaves_the_callers_tensors_alone() -> None:
    x, y = torch.randn(8, 100), torch.full((8, 100), 3.0)
    verdict = gate(x, y).check(run(softmax))
    assert verdict.ok and verdict.max_error is not None and verdict.max_error < 1e-6
    assert bool((y == 3.0).all())


@pytest.mark.parametrize(
    ("kernel", "word"),
    [
        (lambda x, y: y.copy_(torch.softmax(x, -1) * 1.001), "is off by"),
        (lambda x, y: y[:-1].copy_(torch.softmax(x, -1)[:-1]), "NaN or infinite"),
        (lambda x, y: y.copy_(torch.softmax(x, 0)), "is off by"),
        (lambda x, y: None, "NaN or infinite"),
        (lambda x, y: y.fill_(float("inf")), "NaN or infinite"),
    ],
    ids=["slightly off", "a row unwritten", "wrong axis", "nothing written", "infinite"],
)
def test_a_wrong_result_is_rejected_and_says_which_argument(kernel: Callable[..., None], word: str) -> None:
    verdict = gate(torch.randn(8, 100), torch.zeros(8, 100)).check(run(kernel))
    assert not verdict.ok
    assert word in verdict.detail and "'y'" in verdict.detail


def test_every_mutated_argument_is_compared() -> None:
    def both(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
        y.copy_(x * 2)
        z.add_(x)

    def forgets_z(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
        y.copy_(x * 2)

    args = torch.randn(50), torch.zeros(50), torch.randn(50)
    checked = gate(*args, roles=("in", "out", "inout"), reference=both)
    assert checked.check(run(both)).ok
    verdict = checked.check(run(forgets_z))
    assert not verdict.ok and "'z'" in verdict.detail
    assert checked.check(run(both)).ok


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nan_and_infinity_must_be_where_the_reference_has_them(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 0.0], dtype=dtype)

    def double(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x * 2)

    checked = gate(x, torch.zeros(5, dtype=dtype), reference=double)
    assert checked.check(run(double)).ok
    assert not checked.check(run(lambda x, y: y.copy_((x * 2).nan_to_num()))).ok
    assert not checked.check(run(lambda x, y: y.copy_((x * 2).abs()))).ok


def test_integers_and_booleans_must_be_equal() -> None:
    x = torch.randn(1000)

    def positive(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
        y.copy_(x > 0)
        z.copy_(x.argsort())

    args = x, torch.zeros(1000, dtype=torch.bool), torch.zeros(1000, dtype=torch.int64)
    checked = gate(*args, roles=("in", "out", "out"), reference=positive)
    assert checked.check(run(positive)).ok

    def one_off(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
        positive(x, y, z)
        z[500] += 1

    verdict = checked.check(run(one_off))
    assert not verdict.ok and "'z'" in verdict.detail

    def bad_bool(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
        positive(x, y, z)
        y.view(torch.uint8).mul_(2)

    assert not checked.check(run(bad_bool)).ok


def test_a_formula_that_overflows_in_float32_may_overflow_in_the_candidate_too() -> None:
    def naive(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x.exp() / x.exp())

    x = torch.tensor([1.0, 100.0])
    assert gate(x, torch.zeros(2), reference=naive).check(run(naive)).ok
    assert gate(x, torch.zeros(2), reference=naive).check(run(lambda x, y: y.fill_(1.0))).ok
    assert not gate(x, torch.zeros(2), reference=naive).check(run(lambda x, y: y.fill_(2.0))).ok


def test_a_candidate_may_lose_as_many_digits_as_the_formula_itself_loses() -> None:
    def cancels(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_((x + 1e4) - x - 1e4)

    x = torch.randn(1000)
    assert gate(x, torch.zeros(1000), reference=cancels).check(run(cancels)).ok


def test_bfloat16_accumulated_in_bfloat16_fails_at_a_long_reduction() -> None:
    def total(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x.double().sum(-1))

    def short_sums(x: torch.Tensor, y: torch.Tensor) -> None:
        running = torch.zeros(x.shape[0], dtype=x.dtype)
        for column in x.unbind(-1):
            running += column
        y.copy_(running)

    x = torch.rand(4, 4096).bfloat16()
    checked = gate(x, torch.zeros(4, dtype=torch.bfloat16), reference=total, reduction=4096)
    assert checked.check(run(lambda x, y: y.copy_(x.float().sum(-1)))).ok
    assert not checked.check(run(short_sums)).ok


def test_a_float32_matmul_passes_at_its_reduction_length() -> None:
    def mm(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
        z.copy_(x @ y)

    args = torch.randn(32, 2048), torch.randn(2048, 32), torch.zeros(32, 32)
    checked = gate(*args, roles=("in", "in", "out"), reference=mm, reduction=2048)
    assert checked.check(run(mm)).ok
    assert not checked.check(run(lambda x, y, z: z.copy_(x[:, :-1] @ y[:-1]))).ok


def test_random_kernels_see_the_random_stream_that_the_reference_saw() -> None:
    def dropout(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(torch.where(torch.rand(x.shape, dtype=torch.float32) < 0.5, 0.0, x))

    checked = gate(torch.randn(1000), torch.zeros(1000), reference=dropout)
    assert checked.check(run(dropout)).ok and checked.check(run(dropout)).ok


def test_an_index_error_of_the_reference_is_the_callers() -> None:
    def embed(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(torch.arange(10.0)[x])

    with pytest.raises(IndexError, match="out of bounds"):
        gate(torch.tensor([10]), torch.zeros(1), reference=embed)


def test_without_a_usable_reference_candidates_pass_unchecked_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("not implemented for 'Half'")

    checked = gate(torch.randn(3), torch.zeros(3), reference=fails)
    assert checked.check(run(softmax)).ok
    assert "not implemented for 'Half'" in caplog.text
    assert gate(torch.randn(3), torch.zeros(3), reference=None).check(run(softmax)).ok


def test_a_reference_that_only_runs_at_the_arguments_precision_is_used_there() -> None:
    def only_float32(x: torch.Tensor, y: torch.Tensor) -> None:
        assert x.dtype == torch.float32
        softmax(x, y)

    checked = gate(torch.randn(4, 4), torch.zeros(4, 4), reference=only_float32)
    assert not checked.unavailable
    assert checked.check(run(softmax)).ok
    assert not checked.check(run(lambda x, y: y.zero_())).ok


def test_large_outputs_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytile.tuning.distance.CHUNK", 64)
    got = torch.randn(7, 33).t()
    right = got.double()
    assert compare(got, right)[0] < 1e-7
    off = got.clone()
    off[32, 6] += 1.0
    assert compare(off, right)[0] > 0.1


def test_tolerances_grow_with_the_reduction_and_the_type() -> None:
    assert tolerance(torch.float64) < tolerance(torch.float32) < tolerance(torch.float16) < tolerance(torch.bfloat16)
    assert tolerance(torch.float32, 1) < tolerance(torch.float32, 1 << 20) < 1e-3
    assert tolerance(torch.int32) == 0.0
    assert tolerance(torch.complex64) == tolerance(torch.float32)
    assert tolerance(torch.float8_e4m3fn) > 0.1
