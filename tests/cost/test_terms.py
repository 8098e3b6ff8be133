"""The terms of a prediction are what it is made of: what models learn from is what the prior computes.

Models and stores hold terms. One that comes to mean something else wants another polytile.learn.features.VERSION.
"""

from __future__ import annotations

import pytest
import torch

import polytile
from polytile import options
from polytile.cost import triton_matmul
from polytile.learn import features
from polytile.matmul.triton.configs import Kind, space
from polytile.runtime.cuda.device import named

H100 = named("H100")
SIZE = {"batch": 1, "M": 300, "N": 4096, "K": 1024}


def test_a_products_terms_add_up_to_its_prediction() -> None:
    fitted, seen = triton_matmul.FITTED, set()
    for config in space(Kind(), H100).configs:
        parts = triton_matmul.terms(Kind(), config, SIZE, H100)
        together = sum(parts[name] ** fitted.joined for name in ("loop_s", "cache_s", "memory_s")) ** (1 / fitted.joined)
        expected = H100.launch_seconds + fitted.start + together + parts["finish_s"]
        assert triton_matmul.cost(Kind(), config, SIZE, H100) == pytest.approx(expected)
        assert 0 < parts["useful"] <= 1 and parts["rounds"] > 0
        seen.add(config["variant"])
    assert seen == {"tile", "persistent", "split", "stream", "rows"}
    assert triton_matmul.terms(Kind(), config, {**SIZE, "M": 0}, H100) == {}


def test_what_terms_mean_is_what_models_were_trained_on() -> None:
    config = space(Kind(), H100).configs[0]
    parts = {name: float(f"{value:.3g}") for name, value in triton_matmul.terms(Kind(), config, SIZE, H100).items()}
    assert (features.VERSION, str(config), parts) == (1, GOLDEN_CONFIG, GOLDEN), "new terms are a new features.VERSION"


GOLDEN_CONFIG = "group=8 k=16 m=32 n=32 stages=1 variant=tile warps=2"
GOLDEN = {
    "loop_s": 2.79e-05, "cache_s": 2.22e-05, "memory_s": 1.81e-09, "finish_s": 3.51e-07, "rounds": 0.539,
    "places": 18.0, "steps": 64.0, "sums": 16.0, "alone": 0.0, "useful": 0.938, "spills": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("interpret", [False, True], ids=["cpp", "triton"])
def test_every_generated_candidate_says_what_its_prediction_is_made_of(interpret: bool) -> None:
    with options.override(tune="off", interpret=interpret):
        torch.compile(lambda x: torch.softmax(x, -1), backend="polytile", dynamic=True)(torch.randn(6, 40))
        torch.compile(lambda x, y: x @ y, backend="polytile", dynamic=True)(torch.randn(6, 40), torch.randn(40, 24))
    made = polytile.compiler.programs.compiled_programs()[-2:]
    for kernel in (kernel for program in made for kernel in program.multikernels):
        sizes = kernel.spec.sizes(kernel.spec.ints_of(kernel.spec.arguments_for(dict(kernel.decisions[0].sizes))))
        for candidate in kernel.candidates:
            if candidate.origin in ("cpp", "triton") and candidate.valid(sizes):
                parts, predicted = candidate.terms(sizes), candidate.cost(sizes)
                assert any(name.endswith("_s") for name in parts) and any(name.startswith("work.") for name in parts), candidate
                assert all(value >= 0 for value in parts.values()) and predicted > 0
