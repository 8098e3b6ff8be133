"""Jobs of two processes with a GPU each: results are eager's, and both ranks run the same kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.behaviour import rank as ranks
from tests.behaviour.test_distributed import check, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < ranks.RANKS, reason="needs two GPUs"),
]


@pytest.mark.parametrize("case", ranks.CASES)
def test_two_gpus_give_what_eager_gives_by_the_same_kernels(case: str, tmp_path: Path) -> None:
    check(run(case, tmp_path, "cuda"), graphs=2 if case == "fsdp2" else 1)
