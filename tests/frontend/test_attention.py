"""Attention is found in graphs however model code spells it, and replaced by one operator that does the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.fx
from torch._functorch.aot_autograd import aot_function, aot_module_simplified, make_boxed_func
from torch.utils._pytree import tree_leaves

import polytile
from polytile.frontend.attention import whole
from polytile.frontend.attention.operator import ATTENTION
from polytile.frontend.attention.patterns import REASON, recognise
from polytile.frontend.attention.whole import keep_whole
from polytile.frontend.lower.attention import OPERATORS
from polytile.frontend.lower.decompositions import decompositions
from polytile.frontend.taken_apart import noting
from polytile.ir.attention import EMPTY
from polytile.ir.loop import Loop
from polytile.ir.program import Program
from polytile.ir.template import Template
from polytile.passes.pipeline import optimize
from tests.frontend.attention_spellings import OTHERS, SPELLINGS, Spelling
from tests.frontend.lowering import lower_graph

PRODUCTS = {torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default}


def traced(function: Any, arguments: Sequence[Any]) -> tuple[list[Any], list[torch.fx.GraphModule]]:
    """The function's results by its ATen graphs after attention was looked for, and these."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, examples: Any) -> Any:
        keep_whole(graph)

        def compiled(module: torch.fx.GraphModule, examples: Any) -> Any:
            recognise(module)
            graphs.append(module)
            return make_boxed_func(module)

        return aot_module_simplified(graph, examples, fw_compiler=compiled, decompositions=noting(decompositions()))

    with torch.no_grad():
        return tree_leaves(torch.compile(function, backend=backend, dynamic=True)(*arguments)), graphs


def computed(graph: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """The nodes that results are made from, those of which only sizes are asked left out."""
    found, left = set[torch.fx.Node](), [node for node in graph.graph.nodes if node.op == "output"]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += [] if node.target == torch.ops.aten.sym_size.int else node.all_input_nodes
    return found


def attentions(graphs: Sequence[torch.fx.GraphModule]) -> list[torch.fx.Node]:
    return [node for graph in graphs for node in graph.graph.nodes if node.target in OPERATORS]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda spelling: spelling.name)
def test_a_spelling_is_one_operator(spelling: Spelling) -> None:
    torch.manual_seed(0)
    arguments = spelling.arguments()
    results, graphs = traced(spelling.function, arguments)
    with torch.no_grad():
        wanted = tree_leaves(spelling.function(*arguments))
    assert len(attentions(graphs)) == spelling.calls
    assert not PRODUCTS & {node.target for graph in graphs for node in computed(graph)}
    for result, expected in zip(results, wanted, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("reason", "function", "arguments"), OTHERS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_no_attention_says_why(reason: str, function: Any, arguments: Any) -> None:
    torch.manual_seed(0)
    given = arguments()
    results, graphs = traced(function, given)
    assert not attentions(graphs)
    assert [node.meta[REASON] for graph in graphs for node in graph.graph.nodes if reason in node.meta.get(REASON, "")]
    for result, expected in zip(results, tree_leaves(function(*given)), strict=True):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("name", ["transformers' sdpa", "transformers' eager, groups"])
def test_repeated_heads_are_read_where_they_are_once(name: str) -> None:
    (spelling,) = (spelling for spelling in SPELLINGS if spelling.name == name)
    (node,) = attentions(traced(spelling.function, spelling.arguments())[1])
    assert [given.meta["val"].shape[1] for given in node.args[:3]] == [4, 2, 2]


def test_attention_with_a_gradient_stays_the_librarys() -> None:
    def function(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, examples: Any) -> Any:
        keep_whole(graph)

        def compiled(module: torch.fx.GraphModule, examples: Any) -> Any:
            seen.extend(node.target for node in module.graph.nodes)
            return make_boxed_func(module)

        return aot_module_simplified(graph, examples, fw_compiler=compiled, bw_compiler=compiled)

    q = torch.randn(2, 4, 24, 16, requires_grad=True)
    torch.compile(function, backend=backend, dynamic=True)(q).sum().backward()
    assert ATTENTION not in seen
    assert torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default in seen
    assert torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default in seen


def test_in_training_the_gradients_of_softmax_mask_and_scale_are_one_loop_between_products() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.transpose(-1, -2) * 0.25).masked_fill(~kept, -float("inf")), -1) @ v

    programs: list[Program] = []

    def compiled(module: torch.fx.GraphModule, examples: Any) -> Any:
        programs.append(optimize(lower_graph(module))[0])
        return make_boxed_func(module)

    q, k, v = (torch.randn(2, 3, length, 8, requires_grad=True) for length in (7, 6, 6))
    run = aot_function(function, compiled, compiled, decompositions=decompositions(), dynamic=True)
    run(q, k, v, torch.rand(7, 6) < 0.8).sum().backward()
    kinds = [type(operation) for operation in programs[1].operations]
    assert kinds.count(Template) == 4 and kinds.count(Loop) == 1 and len(kinds) == 5


def test_the_heads_of_a_row_are_contiguous_where_the_operator_is_asked_for_it() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ATTENTION(q, k, v, None, None, "", EMPTY, True, True)

    compiled = polytile.compile(function, options={"stall": "tune"})
    for rows in (9, 33):
        q, k, v = (torch.randn(2, 3, rows, 16) for _ in range(3))
        with torch.no_grad():
            result = compiled(q, k, v)
        torch.testing.assert_close(result, torch.nn.functional.scaled_dot_product_attention(q, k, v))
        assert result.stride() == (rows * 48, 16, 48, 1)


@pytest.mark.parametrize("inside", [False, True], ids=["heads outside", "heads inside"])
def test_pytorch_is_asked_about_shorter_tensors_that_lie_alike(inside: bool) -> None:
    traced = torch.empty(2, 4000, 8, 16).transpose(1, 2) if inside else torch.empty(2, 8, 4000, 16)
    assert whole._shorter(traced, 512).stride() == ((65536, 16, 128, 1) if inside else (65536, 8192, 16, 1))
    assert whole._shorter(traced.mT, 16).stride(3) != 1
