"""The FX graph of a program: what FX's own tools make of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

import polytile
from tests.passes.helpers import S0, S1, Net
from tests.wrapper.helpers import wrapped


def test_a_program_is_a_graph_that_other_tools_run_and_print() -> None:
    net = Net()
    made = wrapped(net.program(net.op("cos", net.op("sin", net.input("x", S0, S1)))), target="fx")
    module: torch.fx.GraphModule = made.call.graph_module  # type: ignore[attr-defined]
    x = torch.randn(2, 3)
    before = len(module.graph.nodes)
    module.graph.eliminate_dead_code()
    assert sum(node.op == "call_module" for node in module.graph.nodes) == 2, f"kernels have effects; of {before} nodes they stay"
    module.recompile()
    torch.testing.assert_close(made.call([x])[0], x.sin().cos())
    torch.testing.assert_close(torch.fx.Interpreter(module).run([x])[0], x.sin().cos())
    assert "empty_strided" in made.source and "as_strided" not in made.source
    kernels = [node for node in module.graph.nodes if node.op == "call_module"]
    assert all(node.meta["source_operators"] for node in kernels), "each kernel says which operators it came from"


def test_a_whole_function_runs_as_a_graph() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[Any, ...]:
        h = torch.softmax(x @ w, -1)
        return h.t(), x.shape[0] * 2, torch.sort(h, -1)[0]

    run = polytile.compile(function, options={"wrapper": "fx"})
    w = torch.randn(5, 6)
    with torch.no_grad():
        for n in (4, 9):
            x = torch.randn(n, 5)
            torch.testing.assert_close(run(x, w), function(x, w))
