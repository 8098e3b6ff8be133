"""Generated kernels that drop softmax weights by eager's numbers, in both passes, against float64."""

from __future__ import annotations

import pytest
import torch

from polytile.attention.problem import AttentionProblem, Bias, Causal
from polytile.attention.triton.schedules import generate
from polytile.ir.dropout import Dropout
from polytile.problem import Config
from polytile.schedule.facts import Facts
from tests.attention.triton import test_backward as backward
from tests.attention.triton.interpreted import CHIP, check, config

F32, BF16 = torch.float32, torch.bfloat16
SIZE = {"B": 2, "Hq": 4, "Hkv": 2, "Mq": 21, "Mkv": 37, "D": 16, "Dv": 16}
EVEN, HALF_EVEN = {"Mq": 24, "Mkv": 48}, {"Mq": 3, "Mkv": 36}
LENGTHS = [EVEN, HALF_EVEN, {}, {"B": 1}, {"B": 1, "Hq": 2, "Hkv": 1}, {"B": 1, "Hq": 1, "Hkv": 1, "Mq": 5}, {"Mkv": 1}]
"""Steps of eight neighbours in rows that begin with a counter, of eight and four in rows that begin inside, of two, of one, and
rows of a single key."""


def dropout(p: float = 0.3, vector: int = 8, threads: int = 256) -> Dropout:
    """Of so few threads that each has several turns."""
    return Dropout(p, vector, threads)


@pytest.mark.parametrize("size", LENGTHS, ids=str)
@pytest.mark.parametrize("vector", [4, 8])
def test_weights_are_dropped_as_eager_numbers_them(vector: int, size: dict[str, int]) -> None:
    check(AttentionProblem(F32, 0.3, dropout=dropout(vector=vector), lse=True), config("flash"), SIZE | size)


@pytest.mark.parametrize("size", LENGTHS, ids=str)
def test_gradients_of_dropped_weights(size: dict[str, int]) -> None:
    backward.check(AttentionProblem(F32, 0.3, dropout=dropout(), backward=True), SIZE | size)


@pytest.mark.parametrize("causal", Causal)
def test_blocks_that_a_mask_hides_draw_no_other_numbers(causal: Causal) -> None:
    for size in (EVEN, {"Mq": 48, "Mkv": 32}):
        check(AttentionProblem(F32, 0.3, causal, dropout=dropout()), config("flash"), SIZE | size)
        check(AttentionProblem(F32, 0.3, causal, dropout=dropout()), config("flash", packed=1), SIZE | size)
        backward.check(AttentionProblem(F32, 0.3, causal, dropout=dropout(), backward=True), SIZE | size)


def test_biases_half_types_and_wide_positions() -> None:
    for wide in (False, True):
        for size in (EVEN, {}):
            check(AttentionProblem(BF16, None, bias=Bias(F32, "hmn"), dropout=dropout()), config("flash"), SIZE | size, wide)
            backward.check(AttentionProblem(BF16, None, dropout=dropout(), backward=True), SIZE | size, wide)


@pytest.mark.parametrize(
    ("heads", "divisible", "helper"), [(4, {"Mkv"}, "fours"), (3, {"Mkv"}, "fours"), (4, set(), "shifted"), (3, set(), "")]
)
def test_neighbours_share_counters_as_far_as_facts_allow(heads: int, divisible: set[str], helper: str) -> None:
    problem = AttentionProblem(BF16, None, dropout=dropout())
    exact = (("D", 16), ("Dv", 16), ("Hq", heads), ("Hkv", heads))
    how: Config = config("flash")
    (launch,) = generate(problem, how, Facts(frozenset(divisible), exact=exact), CHIP).launches
    assert f"pt_kept{helper and '_'}{helper}(seed, counter, ((p0" in launch.source
