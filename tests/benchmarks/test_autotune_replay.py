"""Choices at sizes nobody tuned, and in many processes, over a table of times with noise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.autotune_matrix import first_winners, regret, unseen
from benchmarks.autotune_replay import Process, agreement, modelled

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is a GPU; these run interpreted.")


def test_few_timings_choose_well_at_unseen_sizes_and_alike_in_many_processes() -> None:
    matrix = modelled(unseen(40))
    made = [Process(matrix, 0.003, seed, isolation="never") for seed in range(20)]
    for process in made:
        for m in list(matrix)[: 40 if process is made[0] else 10]:
            process.call(m)
    first = made[0]
    assert regret(matrix, first.choices) <= 1.02 and first_winners(matrix) >= 1.10
    assert first.timed * 2 <= sum(map(len, matrix.values()))
    first.choices = {m: first.choices[m] for m in made[1].choices}
    assert agreement(made) >= 0.97


def test_two_ranks_with_one_store_choose_the_same_and_time_once(empty_cache: Path) -> None:
    """Noise of a fifth: what each measured by itself would differ."""
    matrix = modelled(unseen(12))
    ranks = [Process(matrix, 0.2, seed, 100, persist=True, isolation="never") for seed in range(2)]
    for number, m in enumerate(matrix):
        for rank in ranks if number % 2 else ranks[::-1]:
            rank.call(m)
    assert agreement(ranks) == 1.0
    assert 0 < sum(rank.timed for rank in ranks) < 12 * 8
