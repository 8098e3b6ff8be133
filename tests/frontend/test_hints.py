"""Hints name a graph's dynamic sizes in argument order; which values that makes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import polytile
from polytile.errors import HintError, OptionError
from polytile.frontend import hints
from tests.behaviour.helpers import multikernels

SizeOf = dict[str, int]


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_TUNE", "off")


def graph_of(function: Any, *args: Any, dynamic: bool | None = True) -> torch.fx.GraphModule:
    """Dynamo's graph of a call."""
    seen: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(graph)
        return graph

    torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    return seen[0]


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def test_sizes_come_in_argument_order_with_what_was_traced() -> None:
    graph = graph_of(product, torch.ones(5, 6), torch.ones(6, 7))
    assert list(hints.sizes_of(graph).values()) == [5, 6, 7]


def test_strides_of_their_own_come_after_all_sizes() -> None:
    graph = graph_of(lambda x, y: x * 2 + y.sum(), torch.ones(10, 12)[:, ::2], torch.ones(7))
    assert list(hints.sizes_of(graph).values())[:3] == [10, 6, 7]


def test_reading_the_traced_sizes_specialises_nothing() -> None:
    frames = torch._dynamo.testing.CompileCounterWithBackend("polytile")
    run = torch.compile(lambda x: torch.softmax(x, -1) * x.shape[0], backend=frames, dynamic=True)
    for n in range(3, 9):
        run(torch.randn(n, 2 * n + 1))
    assert frames.frame_count == 1


def test_a_list_stands_for_every_size_at_once() -> None:
    traced = hints.sizes_of(graph_of(product, torch.ones(5, 6), torch.ones(6, 7)))
    found = hints.combinations(hints.checked([64, 256]), traced)
    assert [list(values.values()) for values in found] == [[64] * 3, [256] * 3]


def test_names_are_positions_or_the_tracers_own_and_others_keep_what_was_traced() -> None:
    traced = hints.sizes_of(graph_of(product, torch.ones(5, 6), torch.ones(6, 7)))
    first, second, third = traced
    for name in ("s2", third.name):
        found = hints.combinations(hints.checked({"s0": [16, 32], name: [8]}), traced)
        assert found == [{first: n, second: 6, third: 8} for n in (16, 32)]


def test_sizes_that_are_never_dynamic_are_passed_over() -> None:
    traced = hints.sizes_of(graph_of(product, torch.ones(5, 6), torch.ones(6, 7)))
    first, second, third = traced
    assert [list(values.values()) for values in hints.combinations(hints.checked([0, 1, 64]), traced)] == [[64] * 3]
    given = {"s0": [1], "s1": [0, 16], "s2": [8]}
    assert hints.combinations(hints.checked(given), traced) == [{first: 5, second: 16, third: 8}]
    assert hints.combinations(hints.checked({"s0": [1]}), traced) == []
    run = polytile.compile(lambda x: torch.softmax(x, -1), hints=[0, 1, 16])
    for x in (torch.randn(4, 9), torch.randn(1, 9), torch.randn(0, 9)):
        torch.testing.assert_close(run(x), torch.softmax(x, -1))


def test_a_graph_without_dynamic_sizes_takes_a_list_and_no_names() -> None:
    assert hints.combinations(hints.checked([64]), {}) == []
    with pytest.raises(HintError, match="none, every size is static"):
        hints.combinations(hints.checked({"s0": [64]}), {})


@pytest.mark.parametrize("given", [3, "64", [1.5], [64, -1], [True], {"s0": 64}, {"s0": ["64"]}, {64: [3]}, [2**63]])
def test_what_is_no_size_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="hints= takes a list of sizes"):
        polytile.compile(product, hints=given)


def test_a_name_that_fits_no_size_is_a_value_error_of_the_call() -> None:
    run = polytile.compile(product, hints={"rows": [64]})
    with pytest.raises(ValueError, match=r"names 'rows', .* its dynamic sizes: s0, s1, s2\.") as caught:
        run(torch.ones(5, 6), torch.ones(6, 7))
    assert isinstance(caught.value, HintError)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shortlis": 3}, "no option 'shortlis'; did you mean 'shortlist'"),
        ({"tune": "yes"}, "choose from auto, thorough, all, off"),
        ({"plan": "/nowhere/softmax.plan"}, "/nowhere/softmax.plan does not exist"),
        ({"wrapper": "rust"}, "no wrapper backend 'rust'"),
    ],
)
def test_a_wrong_option_is_an_option_error_of_the_call(wrong: dict[str, Any], said: str) -> None:
    """Not one of Dynamo's about a backend that failed."""
    with pytest.raises(OptionError, match=said) as caught:
        torch.compile(lambda x: x.sum(-1) * 2, backend="polytile", options=wrong)(torch.ones(4, 5))
    assert type(caught.value).__name__ == "OptionError"


def test_a_constant_function_takes_hints() -> None:
    assert polytile.compile(lambda: torch.arange(5) + 1, hints=[64])().tolist() == [1, 2, 3, 4, 5]


def test_later_graphs_may_have_fewer_dynamic_sizes() -> None:
    """Sizes of 1 are never dynamic, and the part after a graph break may take one size of two."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)
        torch._dynamo.graph_break()
        return y.sum(0) * 2

    run = polytile.compile(function, hints={"s0": [24], "s1": [48]})
    for shape in ((5, 6), (1, 6), (6, 1), (1, 1)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), function(x))


def test_forward_and_backward_mean_the_same_by_a_name() -> None:
    """The backward graph has its arguments in another order; its kernels get the same sizes."""
    run = polytile.compile(lambda x, y: torch.sin(x @ y).sum(), hints={"s0": [48], "s2": [80]})
    x, y = torch.randn(5, 6, requires_grad=True), torch.randn(6, 7, requires_grad=True)
    run(x, y).backward()
    backward = [k for k in multikernels() if k.spec.family in ("mm", "bmm") or "mm" in k.spec.name]
    decided = {frozenset(dict(d.sizes).get(n, 0) for n in "MNK") for k in backward for d in k.decisions}
    assert {48, 6, 80} in decided


def test_hints_survive_until_a_backward_pass_that_is_compiled_late() -> None:
    run = polytile.compile(lambda x: (x.exp() * 2).sum(), hints=[4096], dynamic=False)
    x = torch.randn(12, requires_grad=True)
    run(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().exp())
