"""Numbers that are drawn again: states among the arguments, as training steps with checkpoints have them, and generators, as they
have them on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import polytile
from polytile.compiler import programs as compiler
from polytile.frontend.graph import lower_graph
from polytile.frontend.graph_checks import unsupported
from polytile.frontend.library_calls import complete
from polytile.ir.program import Extern
from tests.frontend.lowering import trace

RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "numbers": torch.rand_like,
    "coins": lambda x: torch.bernoulli(x.sigmoid()),
    "a part left out": lambda x: F.dropout(torch.ones_like(x), 0.5, True),
}


@pytest.mark.parametrize("name", RANDOM)
def test_a_checkpoint_draws_the_same_again(name: str) -> None:
    def block(x: Tensor) -> Tensor:
        return RANDOM[name](x) * x.sin()

    call = polytile.compile(lambda x: checkpoint(block, x, use_reentrant=False))
    for shape in ((5, 6), (33, 7)):
        x = torch.full(shape, 0.5, requires_grad=True)
        out = call(x)
        (slope,) = torch.autograd.grad(out.sum(), x)
        torch.testing.assert_close(slope / x.cos(), out / x.sin())
        assert out.unique().numel() > 1


def test_what_a_checkpoint_draws_goes_to_operators_that_torch_takes_apart() -> None:
    def summed(x: Tensor) -> Tensor:
        return checkpoint(lambda y: F.dropout(y.sin(), 0.5, True), x, use_reentrant=False).sum()

    call = polytile.compile(summed)
    for shape in ((5, 6), (33, 7)):
        x = torch.randn(shape, requires_grad=True)
        (expected, wanted), (out, slope) = (
            (torch.manual_seed(1), each := f(x), torch.autograd.grad(each, x)[0])[1:] for f in (summed, call)
        )
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(slope, wanted)


def with_a_generator() -> tuple[torch.fx.GraphModule, torch.fx.Node, torch.fx.Node]:
    """A graph that draws, the node that does, and a generator among the arguments."""
    graph = trace(lambda x: torch.bernoulli(x.sigmoid()) * x, torch.randn(5, 6))
    (first,) = (node for node in graph.graph.nodes if node.op == "placeholder")
    with graph.graph.inserting_after(first):
        argument = graph.graph.placeholder("fwd_rng_state_0")
    argument.meta["val"] = torch.Generator()
    (draw,) = (node for node in graph.graph.nodes if node.target is torch.ops.aten.bernoulli.default)
    return graph, draw, argument


def test_a_generator_goes_to_the_library_call_that_draws_from_it_and_the_rest_is_generated() -> None:
    graph, draw, argument = with_a_generator()
    draw.kwargs = {"generator": argument}
    assert not unsupported(graph)
    lowered = lower_graph(graph, "drawn")
    assert [report.operator for report in lowered.operators if report.how == "library"] == ["aten.bernoulli.default"]
    x, generator = torch.randn(7, 3), torch.Generator()
    (got,) = compiler.compile_program(lowered, {}, [], ()).call([x, generator.manual_seed(3)])
    assert torch.equal(got, torch.bernoulli(x.sigmoid(), generator=generator.manual_seed(3)) * x)


def test_what_is_drawn_under_a_gpus_state_has_the_results_of_its_operator() -> None:
    graph, draw, argument = with_a_generator()
    draw.args, draw.kwargs = (draw.target, *draw.args), {"rng_state": argument}
    draw.target = torch.ops.higher_order.graphsafe_run_with_rng_state
    del draw.meta["val"]
    program = lower_graph(graph, "drawn").program
    (call,) = (operation for operation in program.operations if isinstance(operation, Extern))
    assert [program.buffers[name].dtype for name in call.outputs if name is not None] == [torch.float32]


def test_results_of_a_higher_order_operator_are_left_to_what_picks_them_apart() -> None:
    graph, draw, argument = with_a_generator()
    draw.args, draw.kwargs = (torch.ops.higher_order.flex_attention, *draw.args), {"rng_state": argument}
    draw.target = torch.ops.higher_order.graphsafe_run_with_rng_state
    del draw.meta["val"]
    complete(graph.graph)
    assert "val" not in draw.meta
