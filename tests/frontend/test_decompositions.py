"""The decomposition table: what it takes apart, what it keeps, and training graphs made with it against eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from lowering import trace
from training import check_training

from polytile.frontend.lower.decompositions import OWN, decompositions
from polytile.frontend.lower.overloads import all_overloads, overloads

aten = torch.ops.aten


def test_what_is_lowered_whole_stays_whole() -> None:
    table = decompositions()
    for op in (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.var_mean, aten.var, aten.native_dropout, aten.sort,
               aten.topk, aten.convolution, aten.bernoulli,
               aten._scaled_dot_product_flash_attention_for_cpu):  # fmt: skip
        assert not [o for o in op.overloads() if getattr(op, o) in table and o != "out"], op


def test_sums_of_overlapping_windows_are_the_librarys_on_a_cpu() -> None:
    graph = trace(lambda x: F.fold(x, (9, 11), 3, padding=1, stride=2), torch.randn(2, 36, 30))
    assert aten.col2im.default in [node.target for node in graph.graph.nodes]


def test_own_rules_win() -> None:
    table = decompositions()
    for name, rule in OWN.items():
        assert [table[op] for op in overloads(name)] == [rule]


def test_operators_that_this_torch_lacks_are_left_out() -> None:
    assert overloads("no_such_operator add.NoSuchOverload prims.no_such") == []
    assert all_overloads("no_such_operator") == []


def test_a_caller_may_change_its_table() -> None:
    decompositions().clear()
    assert decompositions()


def targets(fn: Callable[..., Any], *args: Any) -> set[str]:
    return {str(n.target) for n in trace(fn, *args).graph.nodes if n.op == "call_function"}


def test_no_symbolic_floats_in_gradients_of_means() -> None:
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    for op in (aten.mse_loss_backward, aten.huber_loss_backward, aten.smooth_l1_loss_backward):
        more = [] if op is aten.mse_loss_backward else [0.5]
        for node in trace(lambda x, y, op=op, more=more: op(x.sum(), x, y, 1, *more), x, y).graph.nodes:
            assert not isinstance(node.meta.get("val"), torch.SymFloat), node.format_node()


def test_a_softmax_over_a_size_known_only_at_run_time_stays_whole() -> None:
    picked = targets(lambda x, m: F.softmax(x[m], 0), torch.randn(6), torch.rand(6) > 0.3)
    assert "aten._softmax.default" in picked


def test_how_many_values_are_unique_is_left_to_the_run() -> None:
    """The gradient of a fill's value adds up one gradient for each place, however often the index names it."""
    x, value = torch.randn(3, 6, requires_grad=True), torch.tensor(1.5, requires_grad=True)
    for index in ([0, 3, 5], [2, 2, 4]):
        places, direction = torch.tensor(index), torch.randn(3, 6)
        filled = compiled_fill(x, places, value)
        _, got = torch.autograd.grad(filled, (x, value), direction)
        torch.testing.assert_close(got, direction[:, sorted(set(index))].sum())


def compiled_fill(x: torch.Tensor, places: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        return torch.compile(torch.index_fill, backend="polytile")(x, 1, places, value)


# training graphs -----------------------------------------------------------------------------------------------------

LOSSES: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], torch.Tensor]]] = {
    "mse": (F.mse_loss, lambda: torch.randn(6, 5)),
    "mse sum": (lambda x, y: F.mse_loss(x, y, reduction="sum"), lambda: torch.randn(6, 5)),
    "l1": (F.l1_loss, lambda: torch.randn(6, 5)),
    "smooth l1": (F.smooth_l1_loss, lambda: torch.randn(6, 5)),
    "smooth l1 of 0": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.0), lambda: torch.randn(6, 5)),
    "huber": (lambda x, y: F.huber_loss(x, y, delta=0.7), lambda: torch.randn(6, 5)),
    "bce": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y), lambda: torch.rand(6, 5)),
    "bce with logits": (F.binary_cross_entropy_with_logits, lambda: torch.rand(6, 5)),
    "cross entropy": (F.cross_entropy, lambda: torch.tensor([0, 3, 4, 1, 2, 2])),
    "cross entropy, some ignored": (F.cross_entropy, lambda: torch.tensor([0, -100, 4, 1, -100, 2])),
    "cross entropy, smoothed": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), lambda: torch.tensor([0, 3, 4, 1, 2, 2]),
    ),
    "nll": (lambda x, y: F.nll_loss(x.log_softmax(1), y), lambda: torch.tensor([0, 3, 4, 1, 2, 2])),
    "kl": (lambda x, y: F.kl_div(x.log_softmax(1), y, reduction="batchmean"), lambda: torch.rand(6, 5)),
    "soft margin": (lambda x, y: F.soft_margin_loss(x, y.detach()), lambda: torch.randn(6, 5).sign()),
    "hinge": (F.hinge_embedding_loss, lambda: torch.randn(6, 5).sign()),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    loss, target = LOSSES[name]
    assert check_training(loss, torch.randn(6, 5), target()) == []


ACTIVATIONS = (
    F.gelu, F.silu, F.mish, F.softplus, F.elu, F.selu, F.celu, F.leaky_relu, F.hardswish, F.hardsigmoid, F.hardtanh,
    F.relu, F.relu6, F.logsigmoid, F.softshrink, F.hardshrink, F.tanhshrink, F.glu, torch.tanh, torch.sigmoid,
)  # fmt: skip


def test_complex_numbers_keep_what_torch_takes_apart_for_real_ones() -> None:
    x = torch.tensor([complex(float("nan"), 1), complex(float("inf"), -2)])
    assert targets(lambda x: x.nan_to_num(), x) == {"aten.nan_to_num.default"}
    assert "aten.nan_to_num.default" not in targets(lambda x: x.nan_to_num(), x.real)


@pytest.mark.parametrize("fn", ACTIVATIONS, ids=lambda fn: fn.__name__)
def test_gradients_of_activations(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert check_training(fn, torch.randn(6, 8)) == []


ARITHMETIC: dict[str, Callable[..., torch.Tensor]] = {
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3), "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, y.abs() + 1, value=2.0), "logaddexp": torch.logaddexp,
    "hypot": torch.hypot, "atan2": torch.atan2, "maximum": torch.maximum, "pow": lambda x, y: x.abs().pow(y),
    "cumsum": lambda x, y: x.cumsum(0) * y, "cumprod": lambda x, y: x.cumprod(1) * y,
    "logcumsumexp": lambda x, y: x.logcumsumexp(1) * y, "prod": lambda x, y: x.prod(1) * y.sum(1),
    "var": lambda x, y: x.var(0) + y.std(0), "norm": lambda x, y: x.norm(dim=1) + y.norm(3, dim=1),
    "logsumexp": lambda x, y: x.logsumexp(1) * y.amax(1), "max": lambda x, y: x.max(1).values + y.median(),
    "dot": lambda x, y: x[0].dot(y[0]), "mv": lambda x, y: x @ y[0], "cosine": F.cosine_similarity,
}  # fmt: skip


@pytest.mark.parametrize("name", ARITHMETIC)
def test_gradients_of_arithmetic(name: str) -> None:
    check_training(ARITHMETIC[name], torch.randn(6, 5), torch.randn(6, 5))
