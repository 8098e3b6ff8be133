"""Attention kernels compiled for an H100 by worker processes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from polytile.attention.layout import Layout
from polytile.attention.problem import AttentionProblem, Bias, Causal
from polytile.attention.triton.configs import label, space, valid
from polytile.attention.triton.schedules import generate
from polytile.candidates.triton import WORKER, job_of, triton_version
from polytile.matmul.triton.unit import Chip
from polytile.runtime.cuda import cubins, device, workers
from polytile.schedule.facts import Facts
from tests.attention.scored import scored, soft_capped, soft_capped_slope

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

H100 = device.named("H100")
KNOWN = (("Hq", 8), ("Hkv", 2), ("D", 64), ("Dv", 64), ("Page", 16))
SIZE = {"B": 1, "Hq": 8, "Hkv": 2, "Mq": 3, "Mkv": 999, "D": 64, "Dv": 64}
NAMES = ("flash packed 16x128 s3 w4", "split 16x128 s3 w4 1 waves", "backward 64x64 s2 w4")
PACKED = Layout(q_starts=torch.int32, k_starts=torch.int32)
PAGED = Layout(q_starts=torch.int32, table=torch.int32, k_used=torch.int32)
LAYOUTS = (("flash 64x64 s3 w4", PACKED), ("split 16x128 s3 w4 1 waves", PAGED), ("backward 64x64 s2 w4", PACKED))


@pytest.fixture(scope="module", autouse=True)
def workers_end() -> Iterator[None]:
    yield
    workers.reset()


def compiled(name: str, problem: AttentionProblem, size: dict[str, int], spilled: int = 0) -> None:
    """Compile every launch of the config of this name. Raises AssertionError where one spills more than `spilled` bytes, or does
    not fit."""
    (config,) = [config for config in space(problem, H100) if label(config) == name]
    assert valid(problem, config, size)
    divisible = frozenset(name for name, value in problem.dense_strides(size).items() if value % 16 == 0)
    facts = Facts(divisible, frozenset("qkv"), exact=KNOWN)
    launches = generate(problem, config, facts, Chip(H100.sms, overlaps=True)).launches
    jobs = [job_of(launch, H100.target) for launch in launches]
    promises = [cubins.request(cubins.Order("attention", WORKER, job, triton_version())) for job in jobs]
    for promise in promises:
        facts_of = promise.result().facts
        assert facts_of.spills <= spilled
        assert facts_of.shared <= H100.shared_per_block


@pytest.mark.parametrize(("name", "layout"), [*((name, None) for name in NAMES), *LAYOUTS], ids=str)
def test_every_launch_compiles_without_spills(name: str, layout: Layout | None, empty_cache: Path) -> None:
    backward, size = name.startswith("backward"), SIZE
    problem = AttentionProblem(torch.bfloat16, None, Causal.BOTTOM_RIGHT, lse=not backward, backward=backward, layout=layout)
    size = size if name in NAMES[:2] else size | {"Mq": 999}
    compiled(name, problem, size)


def test_the_derivative_of_computed_scores_compiles(empty_cache: Path) -> None:
    """With a soft cap, a table, a mask of lengths and the gradient of the log-sum-exp, a few bytes spill."""
    problem = scored(torch.bfloat16, soft_capped(), soft_capped_slope(), lse=True, backward=True)
    compiled("backward 64x64 s2 w4", problem, SIZE | {"Mq": 999}, spilled=64)


def test_the_derivative_that_keeps_gradients_of_scores_compiles(empty_cache: Path) -> None:
    """A few bytes spill."""
    problem = AttentionProblem(torch.bfloat16, None, bias=Bias(torch.bfloat16, "hmn"), backward=True, changes=True)
    compiled("backward 64x64 s2 w4", problem, SIZE | {"Mq": 999}, spilled=96)
