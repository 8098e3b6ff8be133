"""Grouped products of every form, compiled once, against eager: sizes of groups are known in memory only."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import polytile
from benchmarks.experts import SMALL, Decoder
from polytile.ir.products import grouped_product

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
OPTIONS = {"tune": "off", "persist": False}
TARGETS = [
    pytest.param(OPTIONS, id="cpu"),
    pytest.param({**OPTIONS, "interpret": True, "sources": "triton"}, id="interpreted", marks=needs_triton),
]
BF16 = torch.bfloat16

pytestmark = pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this PyTorch has no grouped_mm")


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(BF16)


def ends(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def grouped(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> torch.Tensor:
    return F.grouped_mm(a, b, offs=offs)


FORMS: dict[str, Callable[[int, torch.Tensor], tuple[Any, ...]]] = {
    "rows": lambda t, offs: (half(t, 32), half(3, 32, 24), offs),
    "rows by transposed weights": lambda t, offs: (half(t, 32), half(3, 24, 32).transpose(1, 2), offs),
    "columns": lambda t, offs: (half(3, 24, 32), half(32, t), offs),
    "k": lambda t, offs: (half(t, 24).t(), half(t, 40), offs),
    "batch": lambda t, offs: (half(3, t, 32), half(3, 32, 24), None),
}
LENGTHS = ((40, ends(7, 9, 40)), (24, ends(0, 24, 24)), (64, ends(1, 2, 64)))


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def only_templates(function: Any, *args: Any) -> bool:
    return "library:" not in str(polytile.explain(function, *args))


@pytest.mark.parametrize("options", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_at_any_length(form: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    run = polytile.compile(grouped, options=options)
    for length, offs in LENGTHS:
        args = FORMS[form](length, offs)
        got, expected = run(*args), grouped(*args)
        assert got.stride() == expected.stride()
        close(got, expected)
    assert only_templates(run, *args)


@pytest.mark.parametrize("options", TARGETS)
def test_operands_that_no_copy_engine_takes(options: dict[str, Any]) -> None:
    """Operands that begin at odd addresses, and no tokens at all. PyTorch itself refuses rows whose distance is no multiple of 16
    bytes, and no columns."""
    torch.manual_seed(0)
    run = polytile.compile(grouped, options=options)
    for a in (half(40, 32), half(40 * 32 + 1)[1:].view(40, 32), half(40, 64)[:, 1:33], half(0, 32)):
        offs = ends(7, 9, 40).clamp(max=len(a))
        for b in (half(3, 32, 24), half(3, 24, 64)[:, :, 3:35].transpose(1, 2)):
            expected = grouped_product(a[None].double(), b.double(), offs, "m")[0]
            torch.testing.assert_close(run(a, b, offs).double(), expected, rtol=2e-2, atol=2e-2)


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(half(3, 160, 256))

    def forward(self, x: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return F.grouped_mm(x, self.weight.transpose(1, 2), offs=offs)


def test_weights_of_experts_are_packed_once_until_they_change() -> None:
    torch.manual_seed(0)
    model = Experts()
    run = polytile.compile(model, options=OPTIONS)
    with torch.no_grad():
        for length, offs in LENGTHS * 2:
            x = half(length, 256)
            torch.testing.assert_close(run(x, offs), model(x, offs), rtol=2e-2, atol=0.3)
        (row,) = polytile.explain(run, x, offs).weights
        assert (row.bytes, row.made) == (3 * 160 * 256 * 2, 1)
        model.weight.mul_(-2)
        torch.testing.assert_close(run(x, offs), model(x, offs), rtol=2e-2, atol=0.6)


def scaled(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, by_row: torch.Tensor, by_column: torch.Tensor) -> torch.Tensor:
    return torch._scaled_grouped_mm(a, b, by_row, by_column, offs=offs, out_dtype=BF16)


@needs_triton
@pytest.mark.parametrize("sources", ["triton", "library"])
def test_rows_of_8_bit_floats_with_scales(sources: str) -> None:
    torch.manual_seed(0)
    run = polytile.compile(scaled, options={**OPTIONS, "interpret": True, "sources": sources})
    for length, offs in ((40, ends(7, 9, 40)), (24, ends(0, 24, 24)), (64, ends(1, 2, 60))):
        a, b = (torch.randn(*shape).to(torch.float8_e4m3fn) for shape in ((length, 32), (3, 24, 32)))
        args = a, b.transpose(1, 2), offs, torch.rand(length), torch.rand(3, 24)
        group = (torch.arange(length)[:, None] >= offs).sum(1)
        weights = torch.where(group[:, None, None] < 3, args[1].float()[group.clamp(max=2)], 0.0)
        exact = torch.bmm(a.float()[:, None], weights)[:, 0] * args[3][:, None] * args[4][group.clamp(max=2)]
        close(run(*args), exact.to(BF16))
    assert only_templates(run, *args)


def weighted(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return F.silu(F.grouped_mm(a, b, offs=offs)) * weights[:, None]


@pytest.mark.parametrize("options", [*TARGETS, pytest.param({**OPTIONS, "sources": "library"}, id="library")])
def test_an_activation_and_routing_weights_are_its_epilogue(options: dict[str, Any]) -> None:
    run = polytile.compile(weighted, options=options)
    for length, offs in LENGTHS:
        args = half(length, 32), half(3, 32, 24), offs, half(length)
        close(run(*args), weighted(*args))
    (kernel,) = polytile.compiler.programs.compiled_programs()[-1].multikernels
    assert "grouped_mm" in kernel.spec.name and only_templates(run, *args)


def masked(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    inside = torch.arange(len(a))[:, None] < offs[-1]
    return torch.where(inside, F.grouped_mm(a, b, offs=offs) + 1, 5.0)


@pytest.mark.parametrize("options", TARGETS)
def test_rows_behind_the_last_group_are_0_and_what_follows_is_done_for_them(options: dict[str, Any]) -> None:
    a, b, offs = half(40, 32), half(3, 32, 24), ends(3, 3, 17)
    got = polytile.compile(grouped, options=options)(a, b, offs)
    close(got[:17], grouped(a, b, offs)[:17])
    assert not got[17:].any()
    close(polytile.compile(masked, options=options)(a, b, offs), masked(a, b, offs))




def gradients(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> Iterator[torch.Tensor]:
    *floats, offs = args
    leaves = [each.clone().requires_grad_() for each in floats]
    function(*leaves, offs).float().square().sum().backward()
    for leaf in leaves:
        assert leaf.grad is not None
        yield leaf.grad


@pytest.mark.parametrize("options", TARGETS)
def test_gradients_with_an_empty_group(options: dict[str, Any]) -> None:
    run = polytile.compile(grouped, options=options)
    for length, offs in LENGTHS:
        args = half(length, 32), half(3, 32, 24), offs
        for got, expected in zip(gradients(run, *args), gradients(grouped, *args), strict=True):
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


FALLBACK = "transformers::grouped_mm_fallback"


def test_the_operator_by_which_transformers_multiplies_other_types() -> None:
    """Its weights' gradient has an operator of its own. The package need not be installed: it is registered as there."""
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        _register_as_transformers_does()
    operator = torch.ops.transformers.grouped_mm_fallback
    run = polytile.compile(lambda a, b, offs: operator(a, b, offs), options=OPTIONS)
    for length, offs in LENGTHS:
        for ending in (offs.int(), offs.long()):
            a, b = torch.randn(length, 32), torch.randn(3, 24, 32).transpose(1, 2)
            torch.testing.assert_close(run(a, b, ending), operator(a, b, ending))
            for got, expected in zip(gradients(run, a, b, ending), gradients(operator, a, b, ending), strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
    assert only_templates(run, a, b, ending)


def _register_as_transformers_does() -> None:
    def multiply(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ w for x, w in zip(input.tensor_split(offs[:-1].long()), weight, strict=True)])

    def multiply_back(
        input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, grads = (each.tensor_split(offs[:-1].long()) for each in (input, grad_output))
        of_weight = torch.stack([x.t() @ g for x, g in zip(rows, grads, strict=True)])
        return torch.cat([g @ w.t() for g, w in zip(grads, weight, strict=True)]), of_weight

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return (*torch.ops.transformers.grouped_mm_fallback_backward(*ctx.saved_tensors, grad), None)

    schema = "(Tensor input, Tensor weight, Tensor offs) -> Tensor"
    torch.library.custom_op(FALLBACK, multiply, mutates_args=(), schema=schema)
    torch.library.register_fake(FALLBACK, lambda a, b, offs: a.new_empty(len(a), b.shape[2]))
    torch.library.register_autograd(FALLBACK, backward, setup_context=setup)
    schema = "(Tensor input, Tensor weight, Tensor offs, Tensor grad_output) -> (Tensor, Tensor)"
    torch.library.custom_op(f"{FALLBACK}_backward", multiply_back, mutates_args=(), schema=schema)
    torch.library.register_fake(f"{FALLBACK}_backward", lambda a, b, offs, g: (torch.empty_like(a), torch.empty_like(b)))


def test_a_mixture_of_experts_is_one_program_at_every_length() -> None:
    """Two layers of Mixtral's kind. Rounding decides near ties of experts, so few tokens may differ."""
    torch.manual_seed(0)
    decoder = Decoder(SMALL).to(BF16).eval()
    run = polytile.compile(decoder, options={**OPTIONS, "tune": "off"})
    with torch.inference_mode():
        for shape in ((1, 16), (4, 300), (3, 41)):
            tokens = torch.randint(0, SMALL.vocabulary, shape)
            got, expected = run(tokens).float(), decoder(tokens).float()
            off = (got - expected).abs().amax(-1) / expected.abs().mean()
            assert float((off > 0.2).float().mean()) <= 0.02, off
        assert "aten._grouped_mm.default" in str(polytile.explain(run, tokens))
    made = [kernel.spec.name for kernel in polytile.compiler.programs.compiled_programs()[-1].multikernels]
    assert any("grouped_mm" in name for name in made)


class LoopedExperts(torch.nn.Module):
    """Two of four experts for each token, in a loop over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(16, 4, bias=False)
        self.up, self.down = (torch.nn.Parameter(torch.randn(4, *shape) / 4) for shape in ((24, 16), (16, 24)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, experts = torch.softmax(self.router(x), -1).topk(2, -1)
        mask, out = F.one_hot(experts, 4).permute(2, 1, 0), torch.zeros_like(x)
        for expert in range(4):
            place, token = torch.where(mask[expert])
            inner = F.silu(F.linear(x[token], self.up[expert]))
            out.index_add_(0, token, F.linear(inner, self.down[expert]) * shares[token, place, None])
        return out


def test_a_loop_over_experts_is_one_program_where_sizes_of_results_are_traced() -> None:
    torch.manual_seed(0)
    experts = LoopedExperts().eval()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        call = torch.compile(experts, backend="polytile", dynamic=True, fullgraph=True, options=OPTIONS)
        for tokens in (9, 40, 2):  # two tokens leave an expert without any, or nearly all of them
            x = torch.randn(tokens, 16)
            torch.testing.assert_close(call(x), experts(x), rtol=1e-5, atol=1e-5)
