"""Generated attention kernels against float64."""

from __future__ import annotations

import math

import pytest
import torch

from polytile.attention.problem import AttentionProblem, Bias, Causal
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from tests.attention.triton.interpreted import check, config, expected, run, tensors

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
    for zeros in (True, False):
        check(AttentionProblem(F32, None, Causal.NO, empty_is_0=zeros, lse=True), how, SIZE | size, wide=True)


@pytest.mark.parametrize("rows", [45, 9])
def test_windows_that_end_before_the_first_key(rows: int) -> None:
    check(AttentionProblem(F32, 0.3, window=(5, 0)), config("flash"), SIZE | {"Mq": rows, "Mkv": 54 - rows})


@pytest.mark.parametrize("how", CONFIGS.values(), ids=CONFIGS)
def test_rows_without_keys_are_zero_or_nan(how: Config) -> None:
    for zeros in (True, False):
        check(AttentionProblem(F32, 0.3, Causal.BOTTOM_RIGHT, empty_is_0=zeros, lse=True), how, SIZE | {"Mq": 40, "Mkv": 9})


@pytest.mark.parametrize("how", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("added", [True, False])
def test_nan_of_hidden_keys_stays_where_a_mask_is_added(how: Config, added: bool) -> None:
    problem = AttentionProblem(F32, None, bias=Bias(torch.bool, "n"), empty_is_0=added)
    made = tensors(problem, SIZE)
    made["bias"][..., 3], made["bias"][..., 4] = False, True
    made["k"][:, :, 3] = float("nan")
    run(problem, how, made, SIZE)
    right, _ = expected(problem, made, SIZE)
    assert right.isnan().all() == added
    torch.testing.assert_close(made["out"].double(), right, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("waves", [1, 2])
def test_many_parts_are_combined_in_the_same_order_each_time(waves: int) -> None:
    problem, size = AttentionProblem(F32, None, Causal.BOTTOM_RIGHT, lse=True), SIZE | {"Mq": 3, "Mkv": 700, "Dv": 80}
    chip, how = Chip(80), config("split", packed=1, waves=waves)  # 40 and 43 parts; some have no key that a row sees
    made = check(problem, how, size, chip=chip)
    again = {name: made[name].clone() for name in made}
    run(problem, how, again, size, chip=chip)
    assert all(torch.equal(made[name], again[name]) for name in ("out", "lse"))
