"""What the prior would choose among candidates of loops that were measured elsewhere."""

from __future__ import annotations

import pytest

from benchmarks.gpu import chosen, loops
from benchmarks.gpu.functions import BY_NAME, SHAPES
from polytile.candidates.triton import TritonCandidate


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


def test_choices_of_the_grid_are_looked_for_among_what_would_be_tried() -> None:
    kernel = loops.Kernel(BY_NAME["softmax"], "bf16", small=True)
    sizes = kernel.sizes((4096, 1024))
    able = [c for c in kernel.kernel.candidates if isinstance(c, TritonCandidate) and c.valid(sizes)]
    first, *_, last = sorted(able, key=lambda c: c.cost(sizes))
    row = {"function": "softmax", "dtype": "bf16", "shape": [4096, 1024], "us": {"polytile": first.cost(sizes) * 2e6}}
    said = [[f"softmax at {sizes}: {name}"] for name in (f"{first.name} (measured)", f"{last.name} (measured)", first.name)]
    found = [*chosen.choices([{**row, "chosen": names} for names in said])]
    assert [(choice.tried, choice.far == 1.0) for choice in found] == [(True, True), (False, False)]
    assert found[0].ratio == pytest.approx(0.5) and chosen.table(found).rows[-1][1] == 2
