"""Attention that is written out is one operator each way in training, and no scores are saved for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from polytile.compiler.backend import _partition
from polytile.compiler.programs import compiled_programs
from polytile.frontend.attention.held import write_out_held
from polytile.frontend.attention.operator import OF_BACKWARD, WITH_LSE
from polytile.frontend.attention.patterns import REASON
from polytile.frontend.attention.whole import keep_whole
from polytile.frontend.lower.decompositions import decompositions
from polytile.frontend.taken_apart import noting
from tests.behaviour.helpers import compiled
from tests.frontend.attention_spellings import OTHERS, SPELLINGS, Spelling, heads, normal

LIBRARYS = ("nanoGPT, flash", "timm, fused", "cross attention", "decoding", "transformers' sdpa", "sliding", "nn.Multi")
"""Spellings that call scaled_dot_product_attention, with masks from memory or with sizes of heads known only in a call."""
WRITTEN_OUT = [each for each in SPELLINGS if not each.name.startswith(LIBRARYS)]
BACKWARD = (OF_BACKWARD,)


def step(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[list[Tensor], list[Tensor | None]]:
    """The results, and the gradients of all floating-point arguments for random gradients of the results."""
    leaves = [each.clone().requires_grad_() if is_real(each) else each for each in arguments]
    results = tree_leaves(function(*leaves))
    torch.manual_seed(1)
    gradients = torch.autograd.grad(
        results, [each for each in leaves if is_real(each)], [torch.randn_like(each) for each in results], allow_unused=True
    )
    return [each.detach() for each in results], list(gradients)


def is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def traced(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, list[torch.fx.GraphModule]]:
    """What `step` returns by the graphs of both passes after attention was looked for, and these."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, examples: Any) -> Any:
        keep_whole(graph)

        def compiled(module: torch.fx.GraphModule, examples: Any) -> Any:
            write_out_held(module)
            graphs.append(module)
            return make_boxed_func(module)

        return aot_module_simplified(
            graph, examples, fw_compiler=compiled, bw_compiler=compiled, partition_fn=_partition,
            decompositions=noting(decompositions()),
        )  # fmt: skip

    torch._dynamo.reset()
    return step(torch.compile(function, backend=backend, dynamic=True), arguments), graphs


def operators(graph: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.target in (WITH_LSE, *BACKWARD)]


def check(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    for mine, right in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        assert_close(mine, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("spelling", WRITTEN_OUT, ids=lambda spelling: spelling.name)
def test_a_spelling_is_one_operator_each_way(spelling: Spelling) -> None:
    torch.manual_seed(0)
    arguments = spelling.arguments()
    found, (forward, backward) = traced(spelling.function, arguments)
    check(found, step(spelling.function, arguments))
    assert operators(forward) == [WITH_LSE]
    (target,) = operators(backward)
    assert target in BACKWARD
    kept = [node for node in backward.graph.find_nodes(op="placeholder") if is_real(node.meta["val"])]
    assert not [node for node in kept if _is_square(node) and node.target not in _inputs(forward)], "scores are saved"


def _is_square(node: torch.fx.Node) -> bool:
    """Whether it has an element for each query and key of each head."""
    sizes = node.meta["val"].shape
    return len(sizes) > 2 and str(sizes[-1]) == str(sizes[-2]) != "1" and str(sizes[-3]) != "1"


def _inputs(graph: torch.fx.GraphModule) -> set[str]:
    """The inputs of a graph, and what is a view of one of them."""
    found: set[torch.fx.Node] = set(graph.graph.find_nodes(op="placeholder"))
    for node in graph.graph.nodes:
        if node.target == torch.ops.aten.slice.Tensor and node.args[0] in found:
            found.add(node)
    return {node.name for node in found}


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout((q @ k.transpose(-1, -2)).softmax(-1), 0.5) @ v


@pytest.mark.parametrize(
    ("reason", "function", "arguments"),
    [*OTHERS, ("changed between the softmax", dropped, lambda: (heads(), heads(), heads()))],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_stays_products_and_a_softmax_says_why(reason: str, function: Any, arguments: Any) -> None:
    given = arguments()
    _, graphs = traced(function, given)
    assert not any(map(operators, graphs))
    assert [node for graph in graphs for node in graph.graph.nodes if reason in node.meta.get(REASON, "")]


def projected(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function` of 4 heads of 16 that a projection of x (batch, rows, 64) by w leaves."""

    def call(x: Tensor, w: Tensor, *others: Any) -> Tensor:
        q, k, v = (each.unflatten(-1, (4, 16)).transpose(1, 2) for each in (x @ w).split(64, -1))
        return function(q, k, v, *others).transpose(1, 2).flatten(2)

    return call


def weights() -> tuple[Tensor, Tensor]:
    return normal(3, 40, 64), normal(64, 192) / 8


def families(function: Callable[..., Any], arguments: Sequence[Any], tolerance: float = 2e-5) -> list[list[str]]:
    """Compare a compiled step with eager's, and return the families of the forward and of the backward program's kernels."""
    before = compiled_programs()
    check(step(compiled(function, tune="off"), arguments), step(function, arguments), tolerance)
    programs = [each for each in compiled_programs() if each not in before]
    return [[kernel.spec.family for kernel, _ in each.calls if "attention" in kernel.spec.family] for each in programs]


ONE_EACH = [["attention"], ["attention_backward"]]


@pytest.mark.parametrize("bias", [(1, 4, 40, 40), (3, 1, 40, 40), (4, 40, 40)], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_bias_has_its_gradient(bias: tuple[int, ...], is_causal: bool) -> None:
    @projected
    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) * 0.25 + bias
        if is_causal:
            rows = torch.arange(q.shape[2])
            scores = scores.masked_fill(rows[None, :] > rows[:, None], -torch.inf)
        return scores.softmax(-1) @ v

    torch.manual_seed(0)
    assert families(attend, (*weights(), normal(*bias))) == ONE_EACH


@pytest.mark.parametrize("lowest", [-1e9, torch.finfo(torch.float32).min, -1e4])
@pytest.mark.parametrize("adds", [False, True])
def test_a_row_whose_keys_are_all_masked_by_a_number_attends_to_all(lowest: float, adds: bool) -> None:
    kept = torch.rand(3, 1, 40, 40) < 0.5
    kept[:, :, 3:9] = False

    @projected
    def attend(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) * 0.25
        masked = scores + torch.where(kept, 0.0, lowest) if adds else torch.where(kept, scores, lowest)
        return masked.softmax(-1) @ v

    assert families(attend, (*weights(), kept), 1e-4) == ONE_EACH


def test_the_scale_may_be_known_only_in_a_call() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        return scores.masked_fill(~kept, torch.finfo(q.dtype).min).softmax(-1) @ v

    arguments = heads(), heads(), heads(), torch.rand(2, 1, 1, 24) < 0.7
    found, (forward, backward) = traced(attend, arguments)
    check(found, step(attend, arguments))
    assert operators(forward) == [WITH_LSE] and operators(backward) == [OF_BACKWARD]


def test_scores_may_be_added_to_what_is_made_of_them() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) + bias
        return (scores + scores.tanh() + 2.0).softmax(-1) @ v

    arguments = heads(), heads(), heads(), normal(24, 24)
    check(traced(attend, arguments)[0], step(attend, arguments))


def test_scores_change_by_a_soft_cap_in_bfloat16() -> None:
    @projected
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (torch.tanh(q @ k.transpose(-1, -2) / 8) * 2).softmax(-1) @ v

    torch.manual_seed(0)
    assert families(attend, [each.bfloat16() for each in weights()], 5e-2) == ONE_EACH


def causal_and_lengths(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    rows, keys = torch.arange(q.shape[2]), torch.arange(k.shape[2])
    seen = (keys <= rows[:, None]) & (keys < lengths[:, None, None, None])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def test_masks_of_the_function_are_computed_in_both_kernels() -> None:
    torch.manual_seed(0)
    arguments = *weights(), torch.tensor([40, 7, 1])
    found, (forward, backward) = traced(projected(causal_and_lengths), arguments)
    check(found, step(projected(causal_and_lengths), arguments))
    assert operators(forward) == [WITH_LSE] and operators(backward) == [OF_BACKWARD]
    kept = [node.meta["val"] for node in backward.graph.find_nodes(op="placeholder")]
    assert not any(isinstance(each, Tensor) and each.ndim >= 2 and str(each.shape[-1]) == str(each.shape[-2]) for each in kept)
    assert families(projected(causal_and_lengths), arguments) == ONE_EACH


def test_a_mask_from_memory_stays_an_argument() -> None:
    _, graphs = traced(projected(F.scaled_dot_product_attention), (*weights(), torch.rand(40, 40) < 0.9))
    assert not any(map(operators, graphs))


def test_checkpointing_computes_attention_again() -> None:
    @projected
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v

    def function(x: Tensor, w: Tensor) -> Tensor:
        again = torch.utils.checkpoint.checkpoint(attend, x, w, use_reentrant=False)
        return again.sin()  # type: ignore[union-attr]

    torch.manual_seed(0)
    arguments = weights()
    found, (forward, backward) = traced(function, arguments)
    check(found, step(function, arguments))
    assert operators(forward) == [WITH_LSE] and operators(backward) == [WITH_LSE, OF_BACKWARD]


@pytest.mark.parametrize("batch", [(), (4,)], ids=str)
def test_the_function_without_heads_is_compiled(batch: tuple[int, ...]) -> None:
    """PyTorch takes it apart; the gradient of the keys is turned before it is returned."""
    given = normal(*batch, 3, 8), normal(*batch, 6, 8), normal(*batch, 6, 8)
    check(step(compiled(F.scaled_dot_product_attention, tune="off"), given), step(F.scaled_dot_product_attention, given))
