"""Kernels that users write, as parts of programs: keyword arguments, any number of dimensions, gradients, compiled functions."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import polytile
from polytile import store
from polytile.errors import HintError, InvalidInput, SignatureError
from tests.dispatch.scaled_norm import scaled_norm

BACKENDS = ("polytile", "aot_eager")


def eager(x: Tensor, weight: Tensor, eps: float = 1e-6, centred: bool = False) -> Tensor:
    x = x - x.mean(-1, keepdim=True) if centred else x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def norm(x: Tensor, weight: Tensor, **keywords: Any) -> Tensor:
    y = torch.full_like(x, torch.nan)
    scaled_norm(x, y=y, weight=weight, **keywords)
    return y


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3)])
def test_dimensions_that_a_signature_leaves_open_are_any_number(batch: tuple[int, ...]) -> None:
    x, weight = torch.randn(*batch, 24), torch.randn(24)
    torch.testing.assert_close(norm(x, weight), eager(x, weight))


def test_the_size_of_open_dimensions_is_their_number_of_elements() -> None:
    norm(torch.randn(5, 7, 40), torch.randn(40))
    assert {"...": 35, "N": 40} in [dict(decision.sizes) for decision in scaled_norm.decisions]
    with pytest.raises(InvalidInput, match=r"\[2, 3\] stands where .* has \.\.\., which argument 'x' says is \[3, 2\]"):
        scaled_norm(torch.ones(3, 2, 8), torch.ones(8), torch.ones(2, 3, 8))


def test_keyword_arguments_reach_the_implementations_and_each_value_has_its_own_choice(empty_cache: Path) -> None:
    store.forget()
    x, weight = torch.randn(6, 24), torch.randn(24)
    torch.testing.assert_close(norm(x, weight, eps=0.5), eager(x, weight, 0.5))
    torch.testing.assert_close(norm(x, weight, eps=1), eager(x, weight, 1.0))
    torch.testing.assert_close(norm(x, weight, centred=True), eager(x, weight, centred=True))
    tried = {m.problem.kernel: m.outcome.value for m in store.current().measurements() if m.candidate == "apart"}
    assert len(tried) == 3 and set(tried.values()) == {"ok"}  # in a worker process, which is given them too
    assert not any("uncentred" in str(d.standings) for d in scaled_norm.decisions if "True" in str(d.problem))


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"epsilon": 1.0}, r"was given epsilon=1.0; besides x, weight, y it has the keyword arguments eps: float, centred: bool"),
        ({"eps": "1"}, r"was given eps='1'; besides"),
        ({"centred": 1}, r"was given centred=1; besides"),
    ],
)
def test_keyword_arguments_that_are_none_are_refused(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        norm(torch.ones(2, 4), torch.ones(4), **keywords)


def test_a_keyword_argument_needs_a_default_and_implementations_have_to_take_it() -> None:
    with pytest.raises(SignatureError, match="the keyword argument 'eps' of kernel 'scale' has no default; it needs one"):

        @polytile.kernel("y[N] -> y[N]")
        def scale(y: Tensor, n: int, *, eps: float) -> None: ...

    with pytest.raises(SignatureError, match=r"has to be a function of .*\(x, weight, y, ..., N\) and the keywords eps, centred"):
        scaled_norm.implementation(lambda x, weight, y, m, n: None, name="lacking")


def test_help_and_repr_show_what_a_call_takes() -> None:
    assert str(inspect.signature(scaled_norm)) == "(x, weight, y, *, eps=1e-06, centred=False) -> None"
    assert scaled_norm.__doc__ == (
        "scaled_norm(x, weight, y, *, eps=1e-06, centred=False) -> None\n\n"
        "x[..., N], weight[N] -> y[..., N]\n\n"
        "RMSNorm, or LayerNorm."
    )
    assert repr(scaled_norm) == (
        "<polytile.kernel scaled_norm(x, weight, y, *, eps=1e-06, centred=False) -> None: x[..., N], weight[N] -> y[..., N]; "
        "implementations: apart, uncentred>"
    )


# In programs.


def doubled(x: Tensor, weight: Tensor) -> Tensor:
    return norm(x * 2, weight, eps=0.5) + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_function_holds_it_in_one_graph_for_all_sizes(backend: str) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(doubled, backend=backend, dynamic=True, fullgraph=True)
    weight = torch.randn(24)
    for rows in (6, 7, 50):
        x = torch.randn(rows, 24)
        torch.testing.assert_close(compiled(x, weight), eager(x * 2, weight, 0.5) + 1)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_an_exported_program_calls_it() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return doubled(x, weight)

    x, weight = torch.randn(6, 24), torch.randn(24)
    program = torch.export.export(Model(), (x, weight), dynamic_shapes=({0: torch.export.Dim.AUTO}, None))
    assert "polytile_kernels.tests_dispatch_scaled_norm_scaled_norm" in str(program.graph)
    longer = torch.randn(9, 24)
    torch.testing.assert_close(program.module()(longer, weight), doubled(longer, weight))


def gradients(function: Any, *tensors: Tensor) -> list[Tensor]:
    given = [tensor.clone().requires_grad_() for tensor in tensors]
    (function(*given).square().sum()).backward()
    return [tensor.grad for tensor in given if tensor.grad is not None]


@pytest.mark.parametrize("compiled", [None, *BACKENDS])
def test_gradients_flow_as_the_kernel_says(compiled: str | None) -> None:
    torch._dynamo.reset()
    function = doubled if compiled is None else torch.compile(doubled, backend=compiled, dynamic=True, fullgraph=True)
    for rows in (6, 9):
        x, weight = torch.randn(rows, 24), torch.randn(24)
        expected = gradients(lambda x, weight: eager(x * 2, weight, 0.5) + 1, x, weight)
        for got, want in zip(gradients(function, x, weight), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_tensor_changed_in_place_has_gradients_and_is_changed_in_compiled_functions_too(compiled: bool) -> None:
    @polytile.kernel("y[N], factor[] -> y[N]")
    def scale(y: Tensor, factor: Tensor, n: int) -> None:
        y.mul_(factor)

    scale.implementation(lambda y, factor, n: y.copy_(y * factor), name="copied")

    @scale.gradient
    def _(factor: Tensor, grad_y: Tensor) -> tuple[Tensor, None]:
        return grad_y * factor, None

    def function(x: Tensor) -> Tensor:
        y = x * 3
        scale(y, torch.full((), 2.0))
        return y

    torch._dynamo.reset()
    run = torch.compile(function, backend="polytile", fullgraph=True) if compiled else function
    x = torch.randn(8)
    torch.testing.assert_close(run(x), x * 6)
    (gradient,) = gradients(run, x)
    torch.testing.assert_close(gradient, 72 * x)


def test_outputs_that_have_no_gradient_get_none() -> None:
    @polytile.kernel("x[M, N] -> best[M], at[M]", reduction=["N"])
    def best(x: Tensor, best: Tensor, at: Tensor, m: int, n: int) -> None:
        value, index = x.max(-1)
        best.copy_(value)
        at.copy_(index)

    @best.gradient
    def _(x: Tensor, at: Tensor, grad_best: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter_(1, at[:, None], grad_best[:, None])

    x = torch.randn(5, 7, requires_grad=True)
    value, at = torch.empty(5), torch.empty(5, dtype=torch.int64)
    best(x, value, at)
    assert value.requires_grad and not at.requires_grad
    value.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.nn.functional.one_hot(x.argmax(-1), 7).float())


def test_a_gradient_that_does_not_fit_is_refused() -> None:
    @polytile.kernel("x[N] -> y[N]")
    def copied(x: Tensor, y: Tensor, n: int) -> None:
        y.copy_(x)

    with pytest.raises(SignatureError, match="parameter 'grad_x', which stands for nothing; it may name x, y, grad_y, N"):
        copied.gradient(lambda grad_x: grad_x)
    copied.gradient(lambda grad_y: (grad_y, grad_y))
    with pytest.raises(SignatureError, match="has a gradient already"):
        copied.gradient(lambda grad_y: grad_y)
    x, y = torch.ones(3, requires_grad=True), torch.empty(3)
    copied(x, y)
    with pytest.raises(SignatureError, match="returned 2 gradients; it has to return one for each of x"):
        y.sum().backward()


# Hints.


def hinted_kernel(hints: list[dict[str, Any]], **others: Any) -> polytile.dispatch.handwritten.Kernel:
    @polytile.kernel("x[..., N], index[M] -> y[M, N]", hints=hints, **others)
    def rows(x: Tensor, index: Tensor, y: Tensor, batch: int, n: int, m: int) -> None:
        y.copy_(x.view(-1, n)[index])

    rows.implementation(lambda x, index, y, *sizes: torch.index_select(x.view(-1, sizes[1]), 0, index, out=y), name="select")
    return rows


def sizes_decided(kernel: Any, contiguous: bool = True) -> list[dict[str, int]]:
    x = torch.randn(4, 16)[:, ::1] if contiguous else torch.randn(4, 17)[:, :16]
    kernel(x, torch.tensor([1, 2]), torch.empty(2, 16))
    return sorted((dict(decision.sizes) for decision in kernel.decisions), key=lambda sizes: sizes["N"])


def test_hints_name_sizes_or_the_shapes_of_arguments(empty_cache: Path) -> None:
    hints = [{"...": 64, "N": 128, "M": 9}, {"x": (8, 40, 512), "M": 32}]
    decided = [{"...": 4, "N": 16, "M": 2}, {"...": 64, "N": 128, "M": 9}, {"...": 320, "N": 512, "M": 32}]
    assert sizes_decided(hinted_kernel(hints)) == decided


def test_arguments_for_hints_may_be_made_by_a_function(empty_cache: Path) -> None:
    seen = []

    def make(N: int, M: int) -> dict[str, Tensor]:
        seen.append((N, M))
        return {"x": torch.randn(50, N), "index": torch.randint(50, (M,)), "y": torch.empty(M, N)}

    sizes_decided(hinted_kernel([{"...": 50, "N": 32, "M": 7}], make_args=make))
    assert seen == [(32, 7)]


@pytest.mark.parametrize("hint", [{"N": 3}, {"N": 3, "M": 4, "...": -1}, {"x": (4, 8), "index": (3,), "y": (3, 9)}, {"x": 3}])
def test_a_hint_that_does_not_say_every_size_is_refused(hint: dict[str, Any]) -> None:
    with pytest.raises(HintError, match=r"has to say each of \.\.\., N, M, by its name or by the shape of a tensor"):
        hinted_kernel([hint])


def test_made_arguments_of_another_kind_are_refused() -> None:
    def make(N: int, M: int) -> dict[str, Tensor]:
        return {"x": torch.randn(50, N).half(), "index": torch.randint(50, (M,)), "y": torch.empty(M, N)}

    with pytest.raises(HintError, match="makes tensors of other element types"):
        sizes_decided(hinted_kernel([{"...": 50, "N": 32, "M": 7}], make_args=make))
