"""The backward pass by specialised warps: which problems have it, what its launches say, and that it compiles for an H100."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polytile.attention.problem import AttentionProblem, Bias, Causal
from polytile.attention.triton.configs import label, space, valid
from polytile.attention.triton.schedules import generate
from polytile.candidates.triton import WORKER, job_of, triton_version
from polytile.codegen.triton.kernel import TritonKernel
from polytile.errors import LoweringError
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.runtime.cuda import cubins, device, workers
from polytile.schedule.facts import Facts

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

H100 = device.named("H100")
PLAIN = AttentionProblem(torch.bfloat16, 0.3, backward=True)
SIZE = {"B": 2, "Hq": 8, "Hkv": 2, "Mq": 999, "Mkv": 1001, "D": 128}
FEW, OF_MASKS = 128, 2048
"""Bytes of a thread's numbers that may leave its registers: those that only the ends of a program need, and, in steps of 128
rows, positions in the few steps with a mask."""


@pytest.fixture(scope="module", autouse=True)
def workers_end() -> Iterator[None]:
    yield
    workers.reset()


def sizes(given: dict[str, int]) -> dict[str, int]:
    return {**SIZE, "Dv": given.get("D", SIZE["D"]), **given}


def configs(problem: AttentionProblem = PLAIN, on: device.DeviceFacts = H100, **size: int) -> list[Config]:
    found = [config for config in space(problem, on) if config["variant"] == "backward specialised"]
    return [config for config in found if valid(problem, config, sizes(size))]


def made(problem: AttentionProblem, config: Config, unknown: str = "", **size: int) -> TritonKernel:
    """The kernel where every stride is a multiple of 16 and all data aligned, but not those of the name `unknown`."""
    divisible = frozenset(name for name in problem.size_names if "stride" in name and name != unknown)
    aligned = frozenset(tensor.name for tensor in problem.tensors if tensor.name != unknown)
    exact = tuple((name, sizes(size)[name]) for name in ("Hq", "Hkv", "D", "Dv"))
    return generate(problem, config, Facts(divisible, aligned, exact=exact), Chip(H100.sms, overlaps=True))


def test_it_serves_plain_attention_of_half_precision_on_hopper() -> None:
    assert [label(config) for config in configs()] == ["backward specialised 64x128 s2 w12"]
    assert configs(replace(PLAIN, dtype=torch.float16, causal=Causal.TOP_LEFT, window=(100, 0), lse=True)) and configs(D=33)
    assert configs(D=256) and not configs(D=300) and not configs(Dv=64) and not configs(Mq=64) and not configs(Mkv=0)
    assert not configs(on=device.named("A100")) and not configs(on=device.named("B200"))


@pytest.mark.parametrize(
    "other",
    [{"dtype": torch.float32}, {"bias": Bias(torch.bfloat16, "bhmn")}, {"dense": (True, False, True)}, {"scale": 0.0}],
    ids=lambda other: next(iter(other)),
)
def test_other_problems_have_none(other: dict[str, Any]) -> None:
    assert not configs(replace(PLAIN, **other))


@pytest.mark.parametrize("unknown", ["grad", "dk", "dq_stride_m"])
def test_it_takes_no_part_where_the_copy_engine_might_refuse_a_tensor(unknown: str) -> None:
    with pytest.raises(LoweringError, match=f"{unknown.split('_')[0]} is not at a multiple of 16 bytes"):
        made(PLAIN, configs()[0], unknown)


def test_one_launch_has_tiles_of_rows_and_the_other_tiles_of_keys() -> None:
    kernel = made(PLAIN, configs()[0])
    rows, keys = kernel.launches
    assert [(each.tensor, each.block[2]) for each in rows.descriptors] == [
        ("q", 64), ("grad", 64), ("k", 64), ("v", 64), ("dq", 64),
    ]  # fmt: skip
    assert [each.tensor for each in keys.descriptors] == ["k", "v", "q", "grad", "dk", "dv"]
    numbers = [each.grid[0].subs({symbol: SIZE[symbol.name] for symbol in each.grid[0].free_symbols}) for each in kernel.launches]
    assert numbers == [2 * 8 * 8, 2 * 2 * 8], "a tile is 128 rows of a head of q, or 128 keys of a head of k"
    padded = [each.size.subs({symbol: SIZE.get(symbol.name) for symbol in each.size.free_symbols}) for each in kernel.scratch]
    assert padded == [2 * 8 * 1024] * 2


COMPILED: dict[str, tuple[AttentionProblem, dict[str, int]]] = {
    "dense": (PLAIN, {}),
    "causal": (replace(PLAIN, causal=Causal.BOTTOM_RIGHT, lse=True), {}),
    "window of padded heads": (replace(PLAIN, window=(100, 3)), {"D": 80}),
    "negative scale": (replace(PLAIN, scale=-0.5, causal=Causal.TOP_LEFT), {}),
    "narrow heads": (replace(PLAIN, dtype=torch.float16, causal=Causal.TOP_LEFT), {"D": 64}),
    "wide heads": (replace(PLAIN, causal=Causal.TOP_LEFT, lse=True), {"D": 256}),
}


@pytest.mark.parametrize("name", COMPILED)
def test_it_compiles_with_all_sums_in_registers(name: str, empty_cache: Path) -> None:
    problem, size = COMPILED[name]
    made_of = [(config, launch) for config in configs(problem, **size) for launch in made(problem, config, **size).launches]
    jobs = [job_of(launch, H100.target) for _, launch in made_of]
    promises = [cubins.request(cubins.Order("attention", WORKER, job, triton_version())) for job in jobs]
    for (config, _), promise in zip(made_of, promises, strict=True):
        compiled = promise.result().facts
        assert compiled.num_warps == 12 and compiled.registers * compiled.num_warps * 32 <= 65536
        assert compiled.spills <= (OF_MASKS if config["m"] == 128 else FEW) and compiled.shared <= H100.shared_per_block
