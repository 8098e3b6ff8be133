"""Python floats of a traced function: what modules keep is fixed before a graph is made, what the caller gives may change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import polytile
from polytile.compiler import backend, front_door
from tests.behaviour.helpers import compiled


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(3), nn.ReLU6(), nn.LeakyReLU(0.2), nn.ELU(0.7), nn.Softplus(2.0))

    def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        result: torch.Tensor = self.layers(x) * factor
        return result


def test_what_modules_keep_is_fixed_at_once_and_what_the_caller_gives_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo traces the function once, not until it has found the operators that need a float's value."""
    traced: list[None] = []
    compile_graph = backend._compile

    def counted(*arguments: Any, **named: Any) -> Any:
        traced.append(None)
        return compile_graph(*arguments, **named)

    monkeypatch.setattr(backend, "_compile", counted)
    network, x = Scaled().eval(), torch.randn(6, 3)
    function = compiled(network)
    with torch.no_grad():
        for factor in (0.25, 0.5, 0.75):
            torch.testing.assert_close(function(x, factor), network(x, factor))
        assert len(traced) == 1
        network.layers[2].negative_slope = 0.4
        torch.testing.assert_close(function(x, 0.5), network(x, 0.5))
    assert len(traced) == 2


def test_guards_on_arguments_do_not_ask_what_modules_keep() -> None:
    network = Scaled().eval()
    function = polytile.compile(network, guards="tensors")
    with torch.no_grad():
        function(torch.randn(6, 3), 0.25)
    door = front_door.door_of(function)
    assert door is not None
    (entry,) = door.entries()
    asked = str(entry.guard_manager)
    assert "factor" in asked and "alpha" not in asked


class Decayed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.settings.decay)


class Settings:
    decay = 0.5


def test_what_changes_in_a_module_is_an_argument_from_the_second_graph_on(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[int] = []
    compile_graph = backend._compile

    def counted(graph: torch.fx.GraphModule, inputs: Sequence[Any], *others: Any, **named: Any) -> Any:
        arguments.append(len(inputs))
        return compile_graph(graph, inputs, *others, **named)

    monkeypatch.setattr(backend, "_compile", counted)
    network, x = Decayed(), torch.randn(6, 3)
    function = compiled(network)
    for decay in (0.5, 0.25, 0.125, 2.0):
        network.settings.decay = decay
        torch.testing.assert_close(function(x), network(x))
    assert len(arguments) == 2 and arguments[1] == arguments[0] + 1


def test_other_compilers_have_their_floats_as_before() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def other(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compile(Scaled().eval(), backend=other, dynamic=True)(torch.randn(6, 3), 0.5)
    kept = [node for node in graphs[-1].graph.nodes if isinstance(node.meta.get("example_value"), torch.SymFloat)]
    assert len(kept) > 1  # slopes and ends, which nothing has fixed
