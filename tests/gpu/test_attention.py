"""Attention by specialised warps on a GPU that has them, beside float64: lengths, heads, masks and layouts, and both passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import polytile
from polytile.attention.arguments import make_args, reference
from polytile.attention.problem import AttentionProblem, Causal
from polytile.candidates.triton_attention import attention_candidates
from polytile.compiler.programs import compiled_programs
from polytile.ir import philox
from polytile.runtime.launcher import time_burst
from polytile.schedule.facts import Facts
from tests.gpu.comparing import data, rejected, widened, with_gradients

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="needs capability 9.0"),
]

CUDA = torch.device("cuda")
PLAIN = AttentionProblem(torch.bfloat16, None, lse=True)
TOP, BOTTOM = replace(PLAIN, causal=Causal.TOP_LEFT), replace(PLAIN, causal=Causal.BOTTOM_RIGHT)
SIZE = {"B": 2, "Hq": 4, "Hkv": 2, "Mq": 333, "Mkv": 333, "D": 128}
INTERLEAVED = {
    "q_stride_h": 128, "q_stride_m": 512, "k_stride_h": 128, "k_stride_n": 256, "out_stride_h": 128, "out_stride_m": 512,
}  # fmt: skip
CASES: dict[str, tuple[AttentionProblem, dict[str, int]]] = {
    "dense": (PLAIN, {}),
    "float16": (replace(PLAIN, dtype=torch.float16), {}),
    "causal": (TOP, {"Mq": 1024, "Mkv": 1024}),
    "causal, more rows": (TOP, {"Mq": 700, "Mkv": 129}),
    "causal, more keys": (BOTTOM, {"Mq": 129, "Mkv": 1111}),
    "rows without keys": (BOTTOM, {"Mq": 700, "Mkv": 65}),
    "one key": (PLAIN, {"Mkv": 1}),
    "window": (replace(PLAIN, window=(100, 20)), {"Mq": 1000, "Mkv": 1000}),
    "window of few keys": (replace(BOTTOM, window=(16, 0)), {"Mq": 500, "Mkv": 90}),
    "window before": (replace(BOTTOM, window=(64, 0)), {"Mq": 500, "Mkv": 900}),
    "negative scale": (replace(PLAIN, scale=-0.3), {}),
    "heads of 64": (TOP, {"D": 64, "Hq": 6, "Hkv": 6}),
    "heads of 256": (TOP, {"D": 256}),
    "wide heads with a window": (replace(BOTTOM, window=(64, 0)), {"D": 256, "Mq": 500, "Mkv": 900}),
    "wide padded heads": (PLAIN, {"D": 208, "Dv": 144, "Mq": 200}),
    "several tiles for each program": (TOP, {"B": 8, "Hq": 16, "Mq": 500, "Mkv": 500}),
    "an odd number of tiles for each head": (TOP, {"B": 9, "Hq": 11, "Hkv": 11, "Mq": 300, "Mkv": 300}),
    "tiles that see as many keys as there are": (BOTTOM, {"B": 3, "Hq": 16, "Mq": 1500, "Mkv": 1500, "D": 64}),
    "several wide tiles for each program": (PLAIN, {"B": 8, "Hq": 16, "Mq": 400, "Mkv": 70, "D": 256}),
    "several narrow tiles for each program": (BOTTOM, {"B": 8, "Hq": 16, "Mq": 400, "Mkv": 700, "D": 64}),
    "padded heads": (PLAIN, {"D": 80, "Dv": 112}),
    "narrow heads": (PLAIN, {"D": 16}),
    "one key head": (BOTTOM, {"Hq": 8, "Hkv": 1, "Mq": 65, "Mkv": 4097}),
    "rows of all heads together": (TOP, INTERLEAVED),
    "the same keys for all": (PLAIN, {"k_stride_b": 0, "k_stride_h": 0, "v_stride_b": 0, "v_stride_h": 0}),
}


def checked(problem: AttentionProblem, given: dict[str, int], variant: str, results: slice, tolerance: float) -> None:
    """Every config of a schedule, called thrice, beside the definition in float64."""
    size = {**SIZE, "Dv": given.get("D", SIZE["D"]), **given}
    args = make_args(problem, size, CUDA)
    expected: list[Any] = list(widened(tuple(args)))
    reference(problem)(*expected)
    whole = {**problem.dense_strides(size), **size}
    divisible = frozenset(n for n, value in whole.items() if "stride" in n and value % 16 == 0)
    exact = tuple((n, size[n]) for n in ("Hq", "Hkv", "D", "Dv"))
    known = Facts(divisible, frozenset(tensor.name for tensor in problem.tensors), exact=exact)
    made = [each.specialise(known) for each in attention_candidates(problem, "attention", CUDA)]
    made = [each for each in made if each.config["variant"] == variant and each.valid(whole)]
    assert made
    for candidate in made:
        for tensor in args[results]:
            tensor.fill_(float("nan"))
        first = None
        for _ in range(3):
            time_burst(candidate.entry(), args, 1)
            torch.cuda.synchronize()
            again = [tensor.clone() for tensor in args[results]]
            assert first is None or all(map(torch.equal, first, again)), "equal calls give bitwise equal results"
            first = again
        for mine, right in zip(args[results], expected[results], strict=True):
            torch.testing.assert_close(mine.double(), right.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_specialised_warps_agree_with_float64(name: str) -> None:
    problem, given = CASES[name]
    checked(problem, given, "specialised", slice(3, 5), 1e-2)


@pytest.mark.parametrize("name", CASES)
def test_their_backward_pass_agrees_with_float64(name: str) -> None:
    problem, given = CASES[name]
    backward = replace(problem, backward=True, lse=name == "dense")
    results = slice(len(backward.tensors) - 3, len(backward.tensors))
    checked(backward, given, "backward specialised", results, 3e-2)


def causal(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def padded(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    seen = torch.arange(k.shape[2], device=k.device) < lengths[:, None, None, None]
    return F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)


def windowed(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    places = torch.arange(k.shape[2], device=k.device)
    apart = places[:, None] - places
    seen = (apart >= 0) & (apart < 100) & (places < lengths[:, None, None, None])
    return F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)


def biased(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    bias = torch.where(torch.arange(k.shape[2], device=k.device) < lengths[:, None, None, None], 0.0, -1e4)
    return F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), enable_gqa=True)


def learnt(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("attend", [causal, padded, windowed, biased, learnt])
def test_kernels_of_both_passes_are_chosen_in_training(attend: Any, dtype: torch.dtype) -> None:
    """The forward kernel leaves its log-sum-exp to whichever backward kernel is chosen, with masks too."""
    last = data(1, 8, 500, 500, dtype=dtype) if attend is learnt else torch.tensor([333, 90], device="cuda")
    with_gradients(attend, *(data(2, heads, 500, 64, dtype=dtype) for heads in (8, 2, 2)), last)
    families = [kernel.spec.family for each in compiled_programs() for kernel, _ in each.calls]
    assert [family for family in families if "attention" in family] == ["attention", "attention_backward"] and not rejected()


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("turned", [False, True], ids=["heads outside", "heads inside"])
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_have_the_layout_of_eager_s(dtype: torch.dtype, masked: bool, turned: bool, trains: bool) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask)

    call = polytile.compile(attend)
    with torch.set_grad_enabled(trains):
        for rows in (64, 136):
            shape = (2, rows, 8, 64) if turned else (2, 8, rows, 64)
            q, k, v = (data(*shape, dtype=dtype).requires_grad_(trains) for _ in range(3))
            q, k, v = (each.transpose(1, 2) for each in (q, k, v)) if turned else (q, k, v)
            mask = data(2, 8, rows, rows, dtype=dtype) if masked else None
            result, expected = call(q, k, v, mask), attend(q, k, v, mask)
            assert result.stride() == expected.stride()
            torch.testing.assert_close(result, expected, atol=2e-2, rtol=2e-2)


def test_dropout_of_the_memory_efficient_kernels_numbers_scores() -> None:
    """Score (b, h, m, n) of float32 attention draws number offset + ((b·H + h)·M + m)·N + n of the stream that Philox 4x32-10 has
    for the seed, whatever the tiles of the kernel are; it is kept where the number in (0, 1] is above the probability."""
    batch, heads, rows, keys, probability = 2, 3, 40, 64, 0.3
    q, k = torch.zeros(batch, heads, rows, keys, device="cuda"), torch.zeros(batch, heads, keys, keys, device="cuda")
    v = torch.eye(keys, device="cuda").expand(batch, heads, keys, keys)
    out, _, seed, offset = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, probability)
    count = torch.arange(out.numel()).view(out.shape) + int(offset)
    words = torch.stack(philox.words(torch.tensor(int(seed)), count // 4))
    drawn = (words.gather(0, (count % 4)[None])[0] + 0.5) * 2.0**-32
    assert torch.equal(out.cpu() > 0, drawn > probability)
