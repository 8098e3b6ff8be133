"""A generator among the arguments, as a GPU's training step with checkpoints and dropout has them."""

from __future__ import annotations

import torch
from torch import Tensor

from polytile import compiler
from polytile.frontend.graph import lower_graph, unsupported
from tests.frontend.lowering import trace


def kept(x: Tensor) -> Tensor:
    return torch.bernoulli(x.sigmoid()) * x


def test_a_generator_goes_to_the_library_call_that_draws_from_it_and_the_rest_is_generated() -> None:
    graph, x, generator = trace(kept, torch.randn(5, 6)), torch.randn(7, 3), torch.Generator()
    (first,) = (node for node in graph.graph.nodes if node.op == "placeholder")
    with graph.graph.inserting_after(first):
        argument = graph.graph.placeholder("fwd_rng_state_0")
    argument.meta["val"] = torch.Generator()
    (draw,) = (node for node in graph.graph.nodes if node.target is torch.ops.aten.bernoulli.default)
    draw.kwargs = {"generator": argument}
    assert not unsupported(graph)
    lowered = lower_graph(graph, "checkpointed")
    assert [report.operator for report in lowered.operators if report.how == "library"] == ["aten.bernoulli.default"]
    (got,) = compiler.compile_program(lowered, {}, {}, [], ()).call([x, generator.manual_seed(3)])
    assert torch.equal(got, torch.bernoulli(x.sigmoid(), generator=generator.manual_seed(3)) * x)
