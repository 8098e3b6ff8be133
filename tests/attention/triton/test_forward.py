"""Generated attention kernels against float64."""

from __future__ import annotations

import math

import pytest
import torch

from polytile.attention.problem import AttentionProblem, Bias, Causal
from polytile.problem import Config
from tests.attention.triton.interpreted import check, config

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
CONFIGS = {
    "flash": config("flash"),
    "packed": config("flash", packed=1),
    "split": config("split", packed=1, waves=1),
    "split more": config("split", packed=0, waves=4),
}
SIZE = {"B": 1, "Hq": 4, "Hkv": 2, "Mq": 21, "Mkv": 37, "D": 24, "Dv": 16}
BIASES = (
    Bias(F32, "bhmn"), Bias(F32, "hmn"), Bias(F32, "n"), Bias(torch.bool, "bn"),
    Bias(torch.bool, "mn", fill=torch.finfo(F32).min),
)  # fmt: skip
EDGES = ({"Mq": 0}, {"Mkv": 0}, {"B": 0}, {"Mq": 1, "Mkv": 1}, {"D": 1, "Dv": 1}, {"D": 65, "Dv": 33})


@pytest.mark.parametrize("how", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("causal", Causal)
def test_causal_masks_at_both_corners(how: Config, causal: Causal) -> None:
    problem = AttentionProblem(F32, 0.3, causal, lse=True)
    check(problem, how, SIZE)
    check(problem, how, SIZE | {"Mq": 37, "Mkv": 21})


@pytest.mark.parametrize("how", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("bias", BIASES, ids=str)
def test_biases_are_added_or_hide_keys(how: Config, bias: Bias) -> None:
    check(AttentionProblem(F32, 0.3, Causal.TOP_LEFT, bias, lse=True), how, SIZE)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("how", CONFIGS.values(), ids=CONFIGS)
def test_half_types(how: Config, dtype: torch.dtype) -> None:
    check(AttentionProblem(dtype, 1 / math.sqrt(24), Causal.BOTTOM_RIGHT, lse=True), how, SIZE)


@pytest.mark.parametrize("how", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("size", EDGES, ids=str)
def test_sizes_at_the_edge(how: Config, size: dict[str, int]) -> None:
    check(AttentionProblem(F32, 0.3, Causal.NO, lse=True), how, SIZE | size, wide=True)


@pytest.mark.parametrize("how", CONFIGS.values(), ids=CONFIGS)
def test_rows_without_keys_are_zero_or_nan(how: Config) -> None:
    for zeros in (True, False):
        check(AttentionProblem(F32, 0.3, Causal.BOTTOM_RIGHT, empty_is_0=zeros, lse=True), how, SIZE | {"Mq": 40, "Mkv": 9})
