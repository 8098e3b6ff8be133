"""`polytile.explain`: the graphs of one call and no others, operator by operator, with every decision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import polytile
from polytile.compiler import programs as compiler


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_TUNE", "off")


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.t(), -1).view(-1).sort()[0]


def hows(explanation: polytile.compiler.explanation.Explanation) -> dict[str, str]:
    return {row.operator: row.how for row in explanation.operators}


def test_every_operator_says_how_it_runs() -> None:
    explanation = polytile.explain(function, torch.randn(12, 6))
    found = hows(explanation)
    assert found["aten.mm.default"] == "template"
    assert found["aten.sort.default"] == "library"
    assert "view" in found.values() and "generated" in found.values()
    (sort,) = (row for row in explanation.operators if row.how == "library")
    assert sort.reason


def test_decisions_name_kernel_sizes_candidate_and_grounds() -> None:
    (decision, *_) = polytile.explain(lambda x: x.sin() + 1, torch.randn(12)).decisions
    assert decision.sizes and decision.candidate and decision.provenance and decision.link
    text = str(polytile.explain(lambda x: x.sin() + 1, torch.randn(12)))
    assert "aten.sin.default" in text and "decisions" in text and decision.candidate in text


def test_a_function_is_run_once_and_its_wrapper_shown() -> None:
    counts = torch.zeros(3)

    def counting(x: torch.Tensor) -> torch.Tensor:
        counts.add_(1)
        return x + counts

    explanation = polytile.explain(counting, torch.ones(3))
    assert counts.tolist() == [1, 1, 1]
    assert "def call(args):" in explanation.sources[0]


def test_what_was_compiled_before_keeps_its_code() -> None:
    run = torch.compile(lambda x: torch.sin(x), backend="polytile", dynamic=True)
    run(torch.randn(5))
    before = polytile.counters["graphs_compiled"]
    polytile.explain(function, torch.randn(12, 6))
    run(torch.randn(7))
    assert polytile.counters["graphs_compiled"] == before + 1


def test_a_compiled_function_is_explained_as_it_is_also_when_nothing_is_compiled_any_more() -> None:
    run = polytile.compile(function, hints=[24])
    other = torch.compile(lambda x: x.cos(), backend="polytile", dynamic=True)
    run(torch.randn(12, 6)), other(torch.randn(5))
    before = polytile.counters["graphs_compiled"]
    explanation = polytile.explain(run, torch.randn(10, 6))
    assert polytile.counters["graphs_compiled"] == before
    assert len(explanation.graphs) == 1 and "aten.cos.default" not in hows(explanation)
    assert {24} <= {size for d in explanation.decisions for _, size in d.sizes}


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def test_decisions_of_other_functions_are_not_listed_though_the_kernels_are_the_same() -> None:
    def alike(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    def sizes(run: Any, *shape: int) -> set[tuple[int, ...]]:
        found = polytile.explain(run, torch.randn(*shape)).decisions
        return {tuple(size for _, size in row.sizes) for row in found}

    one, other = polytile.compile(softmax), polytile.compile(alike, hints={"s0": [33], "s1": [2000]})
    one(torch.randn(40, 300)), one(torch.randn(7, 5)), other(torch.randn(12, 900))
    (kernel,) = {kernel for program in compiler.compiled_programs()[-2:] for kernel in program.multikernels}
    assert len(kernel.decisions) == 4
    assert sizes(one, 40, 300) == {(40, 300), (7, 5)}
    assert sizes(other, 12, 900) == {(12, 900), (33, 2000)}
    assert sizes(other, 40, 300) == {(12, 900), (33, 2000), (40, 300)}, "what it runs by was decided for another"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.lin(x))


@pytest.mark.parametrize("how, ran_under", [
    ("polytile.compile", torch.no_grad), ("polytile.compile", torch.enable_grad), ("module.compile", torch.inference_mode),
])  # fmt: skip
def test_what_has_run_is_explained_and_nothing_compiled(how: str, ran_under: Any) -> None:
    model, x = Layer(), torch.randn(6, 4)
    if how == "module.compile":
        model.compile(backend="polytile", dynamic=True)
    run = polytile.compile(model) if how == "polytile.compile" else model
    with ran_under():
        run(x)
    before = polytile.counters["graphs_compiled"]
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            explanation = polytile.explain(run, torch.randn(7, 4))
            kind = "forward" if ran_under is torch.enable_grad else "inference"
            assert [graph.rstrip("0123456789") for graph in explanation.graphs] == [kind] and explanation.decisions
            assert torch.is_grad_enabled() is (mode is torch.enable_grad)
    assert polytile.counters["graphs_compiled"] == before


def test_modules_and_functions_with_graph_breaks() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    explanation = polytile.explain(model, torch.randn(6, 4))
    assert "aten.addmm.default" in hows(explanation) or "aten.mm.default" in hows(explanation)
    assert [g.rstrip("0123456789") for g in explanation.graphs] == ["forward", "backward"]

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    assert len(polytile.explain(broken, torch.randn(5)).graphs) == 2


def test_keyword_arguments_reach_the_function() -> None:
    found = polytile.explain(lambda x, *, scale: x * scale, torch.ones(3), scale=2.0)
    assert "aten.mul.Tensor" in [row.operator for row in found.operators]


def test_graphs_are_forgotten_with_the_functions_that_they_belong_to() -> None:
    polytile.reset()
    run = torch.compile(lambda x: x.sin(), backend="polytile", dynamic=True)
    run(torch.randn(5))
    assert len(compiler.compiled_programs()) == 1
    del run
    torch._dynamo.reset()
    import gc

    gc.collect()
    assert compiler.compiled_programs() == ()


def test_reset_forgets_the_record_and_not_the_function() -> None:
    run = torch.compile(lambda x: x.sin(), backend="polytile", dynamic=True)
    run(torch.randn(5))
    polytile.reset()
    assert compiler.compiled_programs() == () and polytile.counters["graphs_compiled"] == 0
    x = torch.randn(6)
    torch.testing.assert_close(run(x), x.sin())
