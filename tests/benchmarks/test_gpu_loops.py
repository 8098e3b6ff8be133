"""What the prior would choose among candidates of loops that were measured elsewhere."""

from __future__ import annotations

import pytest

from benchmarks.gpu import loops
from benchmarks.gpu.functions import BY_NAME, SHAPES
from polytile.kernels.triton.candidate import TritonCandidate


def test_shapes_are_the_grids_and_random_ones_in_turns() -> None:
    found = loops.shapes(16)
    assert len(found) == len(set(found)) == 16 and set(found[::2]) <= set(SHAPES) and not set(found[1::2]) & set(SHAPES)
    assert set(loops.shapes(200)) >= {shape for shape in SHAPES if shape[0] > 1}


@pytest.mark.parametrize("name", ["column_sum", "softmax"])
def test_todays_prior_is_asked_for_candidates_measured_elsewhere(name: str) -> None:
    kernel = loops.Kernel(BY_NAME[name], "bf16", small=True)
    sizes = kernel.sizes((4096, 1024))
    assert sorted(sizes.values()) == [1024, 4096]
    able = [c for c in kernel.kernel.candidates if isinstance(c, TritonCandidate) and c.valid(sizes)]
    first, second = sorted(able, key=lambda c: c.cost(sizes))[:2]
    row = {"function": name, "dtype": "bf16", "shape": [4096, 1024], "us": {first.name: 8.0, second.name: 4.0, "unknown": 1.0}}
    [found] = loops.judged([row])
    assert set(found["us"]) == {first.name, second.name} and found["predicted_us"][first.name] == first.cost(sizes) * 1e6
    assert loops.table([found]).rows[0][:5] == (name, "bf16", 1, "2.000", "2.00")
