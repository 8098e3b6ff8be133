"""Which configs attentions are tried with, and what they are expected to take."""

from __future__ import annotations

import itertools

import pytest
import torch

from polytile.attention.problem import AttentionProblem
from polytile.attention.triton.configs import (
    backward_shared_bytes,
    head_block,
    label,
    row_of,
    shared_bytes,
    space,
    valid,
)
from polytile.attention.triton.schedules import generate
from polytile.cost import triton_attention as prior
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.runtime.cuda.device import named
from polytile.schedule.facts import Facts

H200 = named("H200")
BF16, F32 = torch.bfloat16, torch.float32


def size(**given: int) -> dict[str, int]:
    return {"B": 1, "Hq": 8, "Hkv": 8, "Mq": 1, "Mkv": 1000, "D": 64, "Dv": given.get("D", 64)} | given


def best(problem: AttentionProblem, at: dict[str, int]) -> Config:
    configs = [config for config in space(problem, H200) if valid(problem, config, at)]
    return min(configs, key=lambda config: prior.cost(problem, config, at, H200))


@pytest.mark.parametrize(("dtype", "widest"), [(BF16, 512), (F32, 256)])
def test_every_attention_has_few_configs_and_at_least_one(dtype: torch.dtype, widest: int) -> None:
    problem = AttentionProblem(dtype, None)
    configs = space(problem, H200)
    assert len({label(config) for config in configs}) == len(configs)
    for queries, keys, head, shared in itertools.product((0, 1, 17, 300), (0, 1, 5000), (1, 64, 80, 256, widest), (8, 2, 1)):
        at = size(Mq=queries, Mkv=keys, D=head, Hkv=shared)
        usable = [config for config in configs if valid(problem, config, at)]
        assert 1 <= len(usable) <= 16
        for config in usable:
            assert shared_bytes(row_of(config), head_block(at), dtype.itemsize) <= H200.shared_per_block
    assert not any(valid(problem, config, size(D=widest + 1)) for config in configs)


@pytest.mark.parametrize(("dtype", "widest"), [(BF16, 256), (F32, 128)])
def test_every_derivative_has_a_config_that_fits(dtype: torch.dtype, widest: int) -> None:
    problem = AttentionProblem(dtype, None, backward=True)
    configs = space(problem, H200)
    assert len({label(config) for config in configs}) == len(configs)
    for queries, keys, head in itertools.product((1, 17, 300), (1, 5000), (1, 64, 80, widest)):
        at = size(Mq=queries, Mkv=keys, D=head)
        usable = [config for config in configs if valid(problem, config, at)]
        assert usable and all(prior.cost(problem, config, at, H200) > 0 for config in usable)
        for config in (each for each in usable if each["variant"] == "backward"):
            assert backward_shared_bytes(row_of(config), head_block(at), dtype.itemsize) <= H200.shared_per_block
    assert not any(valid(problem, config, size(D=widest + 1, Mq=300)) for config in configs)


def test_keys_are_split_where_few_programs_would_run() -> None:
    problem = AttentionProblem(BF16, None)
    for at in (size(Hkv=1, D=256, Mkv=65536), size(Hq=32, D=128, Mkv=4096), size(B=8, Hq=32, Hkv=4, Mkv=8192)):
        assert best(problem, at)["variant"] == "split"
    for at in (size(Mq=1000), size(B=128, Hq=32, Mkv=512), size(Mkv=20)):
        assert best(problem, at)["variant"] != "split"


@pytest.mark.parametrize("keys", [300, 65536])
@pytest.mark.parametrize("waves", [1, 4])
def test_the_prior_counts_the_programs_that_run(keys: int, waves: int) -> None:
    problem, at = AttentionProblem(BF16, None), size(B=2, Hkv=1, Mkv=keys)
    config = Config.of(variant="split", m=16, n=128, stages=3, warps=4, packed=1, waves=waves)
    facts = Facts(exact=tuple((name, at[name]) for name in ("Hq", "Hkv", "D", "Dv")))
    grid = generate(problem, config, facts, Chip(H200.sms)).launches[0].grid
    counts = [extent.subs({symbol: at.get(symbol.name, 1) for symbol in extent.free_symbols}) for extent in grid]
    assert counts[0] * counts[1] == prior.programs(problem, config, at, H200).count
