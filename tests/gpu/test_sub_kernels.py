"""Each kernel that a first call measures runs where it is forced, and gives what eager does."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.sub_kernels import CASES, Case, forced
from tests.gpu.comparing import data, rejected

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_is_right_where_it_is_forced(case: Case) -> None:
    with torch.no_grad():
        rows = list(forced(case, [data(*shape) for shape in case.shapes]))
    assert len(rows) >= 2 and not rejected(), rejected()
    assert not [row for row in rows if not (row["ran"] and row["right"])], rows
    torch.cuda.empty_cache()
