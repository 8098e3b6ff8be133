"""Random operators: eager's own stream bit for bit, or a counter in the kernel that manual_seed reproduces."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from lowering import check, library_calls, lower, run

from polytile import options
from tests.behaviour.helpers import compiled

aten = torch.ops.aten


def seeded(fn: Callable[[], torch.Tensor], seed: int = 5) -> torch.Tensor:
    torch.manual_seed(seed)
    return fn()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("p", [0.1, 0.5, 1.0, 0.0])
def test_dropout_is_eagers_bit_for_bit(p: float, dtype: torch.dtype) -> None:
    x = torch.randn(37, 51).to(dtype)
    program = lower(lambda x: aten.native_dropout(x, p, True)[0], x)
    mine = seeded(lambda: run(program, [x])[0])
    assert torch.equal(mine, seeded(lambda: F.dropout(x, p, True)))
    assert seeded(lambda: (run(program, [x]), torch.rand(1))[1]) == seeded(lambda: (F.dropout(x, p), torch.rand(1))[1])


@pytest.mark.parametrize(
    "layout",
    [lambda x: x.transpose(0, 2), lambda x: x[:, ::2], lambda x: x[:, :1].expand(6, 4, 5)],
    ids=["permuted", "sliced", "expanded"],
)
def test_dropout_drops_the_same_elements_whatever_the_layout(layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = layout(torch.randn(6, 4, 5))
    program = lower(lambda x: aten.native_dropout(x, 0.3, True)[0], x)
    assert torch.equal(seeded(lambda: run(program, [x])[0]), seeded(lambda: F.dropout(x, 0.3, True)))


def test_dropout_outside_training_is_a_copy() -> None:
    check(lambda x: aten.native_dropout(x, 0.3, False)[0], torch.randn(4, 5))


def test_the_arithmetic_around_the_mask_is_generated() -> None:
    program = lower(lambda x: aten.native_dropout(x * 2, 0.3, True)[0] + 1, torch.randn(4, 5))
    assert library_calls(program) == ["aten.empty_strided.default", "aten.bernoulli_.float"]
    assert len(program.operations) == 3


def test_calls_draw_in_graph_order() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(x.shape) + aten.bernoulli.p(x, 0.5) + torch.randint(0, 9, x.shape)
        return noise + torch.randn_like(x) + torch.randperm(x.shape[0])[:, None] + torch.bernoulli(noise.clamp(0, 1))

    check(fn, torch.randn(4, 5), library=True)


PHILOX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand": lambda x: torch.rand(x.shape), "rand_like": torch.rand_like, "randn": lambda x: torch.randn(x.shape),
    "randn_like": torch.randn_like, "bernoulli": lambda x: torch.bernoulli(x * 0 + 0.3),
    "bernoulli p": lambda x: aten.bernoulli.p(x, 0.3), "dropout": lambda x: aten.native_dropout(x, 0.3, True)[0],
    "randint": lambda x: torch.randint(-3, 9, x.shape), "randint_like": lambda x: torch.randint_like(x, 5),
    "uniform": lambda x: aten.uniform(x, 2.0, 4.0),
}  # fmt: skip
SEED = ["aten.empty_strided.default", "aten.random_.default"]
MEANS = {
    "rand": 0.5, "rand_like": 0.5, "randn": 0.0, "randn_like": 0.0, "bernoulli": 0.3, "bernoulli p": 0.3,
    "dropout": 1.0, "randint": 2.5, "randint_like": 2.0, "uniform": 3.0,
}  # fmt: skip


@pytest.mark.parametrize("name", PHILOX)
def test_numbers_from_a_counter(name: str) -> None:
    x = torch.ones(100, 120)
    with options.override(random="philox"):
        program = lower(PHILOX[name], x)
    assert library_calls(program) == SEED
    first, second, other = (seeded(lambda: run(program, [x])[0], seed) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert abs(first.double().mean().item() - MEANS[name]) < 0.1
    assert first.shape == x.shape and first.dtype == PHILOX[name](x).dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_uniform_numbers_stay_below_one(dtype: torch.dtype) -> None:
    with options.override(random="philox"):
        program = lower(torch.rand_like, torch.ones(40_000, dtype=dtype))
    values = run(program, [torch.ones(40_000, dtype=dtype)])[0]
    assert values.min() >= 0 and values.max() < 1


def test_one_seed_serves_a_program_and_its_operators_differ() -> None:
    with options.override(random="philox"):
        program = lower(lambda x: (torch.rand_like(x), torch.rand_like(x)), torch.ones(50))
    assert library_calls(program) == SEED
    a, b = run(program, [torch.ones(50)])
    assert not torch.equal(a, b)


def test_a_dropout_mask_that_is_kept_is_the_one_applied() -> None:
    x = torch.ones(300)
    with options.override(random="philox"):
        program = lower(lambda x: aten.native_dropout(x, 0.4, True), x)
    out, mask = run(program, [x])
    assert torch.equal(out != 0, mask)
    assert torch.allclose(out[mask], torch.tensor(1 / 0.6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(33, 65), (0, 5), (1, 1), (7,)], ids=str)
def test_a_randomised_leaky_relu_is_eagers_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    program = lower(lambda x: F.rrelu(x, 0.1, 0.4, training=True), x)
    assert torch.equal(seeded(lambda: run(program, [x])[0]), seeded(lambda: F.rrelu(x, 0.1, 0.4, training=True)))
    after = seeded(lambda: (run(program, [x]), torch.rand(1))[1])
    assert after == seeded(lambda: (F.rrelu(x, 0.1, 0.4, training=True), torch.rand(1))[1])


def test_the_noise_of_a_randomised_leaky_relu_is_neither_set_nor_copied_before_it_is_drawn() -> None:
    program = lower(lambda x: F.rrelu(x, training=True), torch.randn(4, 5))
    assert library_calls(program) == ["aten.empty_strided.default", "aten.rrelu_with_noise.default"]
    assert not library_calls(lower(lambda x: F.rrelu(x, training=False), torch.randn(4, 5)))


def test_a_randomised_leaky_relu_outside_training_has_the_middle_slope() -> None:
    check(lambda x: F.rrelu(x, 0.1, 0.4, training=False), torch.randn(4, 5))


def test_gradients_of_a_randomised_leaky_relu_use_the_factors_that_were_drawn() -> None:
    torch._dynamo.reset()
    call = compiled(lambda x: F.rrelu(x, training=True))
    for rows in (5, 9):
        x = torch.randn(rows, 7, requires_grad=True)
        got, want = seeded(functools.partial(call, x)), seeded(functools.partial(F.rrelu, x, training=True))
        assert torch.equal(got, want)
        given = torch.randn_like(want)
        torch.testing.assert_close(torch.autograd.grad(got, x, given), torch.autograd.grad(want, x, given))
