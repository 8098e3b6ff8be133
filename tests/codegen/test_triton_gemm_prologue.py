"""Operands computed on their way: every schedule against eager in float64, and what stores them first."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polytile import options
from polytile.candidates import products as templates
from polytile.dispatch.define import define_template
from polytile.ir import expr, sizes
from polytile.ir.buffer import View
from polytile.ir.loop import Loop
from polytile.ir.program import Program
from polytile.ir.template import Template
from polytile.matmul import gemm_args, gemm_kernel
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.matmul.triton.configs import Kind, space
from polytile.passes.pipeline import optimize
from polytile.runtime.cuda import device
from polytile.schedule.facts import Facts
from tests import interpret
from tests.codegen.helpers import assert_golden
from tests.codegen.triton_gemm import CHIP, VARIANTS, facts_of, interpreted, small
from tests.frontend.lowering import lower

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

Make = Callable[[int, int, int], tuple[Any, ...]]


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    """CPU tensors stand for a GPU's, whose kernels are interpreted."""
    with options.override(interpret=True, persist=False, verify_ir=True):
        yield


def cast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32) @ w


def activated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) @ w.t()


def scaled(x: torch.Tensor, r: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMSNorm's last step: a factor of each row and one of each column."""
    return (x * r * g) @ w


def dequantised(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return x @ ((w.to(x.dtype) - z) * s).t()


def unpacked(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    numbers = torch.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1)
    return x @ ((numbers.to(x.dtype) - 8) * s).t()


def unpacked_columns(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.stack([w >> 4, w & 15], -1).reshape(w.shape[0], -1).to(x.dtype) @ x


def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.bmm(torch.sigmoid(x), y * 2 + 1))


def scaled_both(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (x * r) @ (w * s)


def small_integers(*shape: int) -> torch.Tensor:
    return torch.randint(-8, 8, shape, dtype=torch.int8)


def packed(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


CASES: dict[str, tuple[Callable[..., Any], Make]] = {
    "cast": (cast, lambda m, n, k: (torch.randn(m, k).half(), torch.randn(k, n))),
    "activation": (activated, lambda m, n, k: (torch.randn(m, k), torch.randn(n, k))),
    "norm's scale": (scaled, lambda m, n, k: (torch.randn(m, k), torch.rand(m, 1), torch.randn(k), torch.randn(k, n))),
    "int8 with zero points": (
        dequantised, lambda m, n, k: (torch.randn(m, k), small_integers(n, k), torch.rand(n, 1), torch.rand(n, 1))
    ),
    "int4": (unpacked, lambda m, n, k: (torch.randn(m, k // 2 * 2), packed(n, k // 2), torch.rand(n, 1))),
    "int4 rows": (unpacked_columns, lambda m, n, k: (torch.randn(k // 2 * 2, n), packed(m, k // 2))),
    "both, batched": (both, lambda m, n, k: (torch.randn(3, m, k), torch.randn(3, k, n))),
    "both scaled": (
        scaled_both, lambda m, n, k: (torch.randn(m, k), torch.rand(m, 1), torch.randn(k, n), torch.rand(1, n))
    ),
    "apart": (activated, lambda m, n, k: (torch.randn(m, 2 * k + 2)[:, 1 : 2 * k + 1 : 2], torch.randn(n, k))),
}  # fmt: skip
SHAPES = ((3, 17, 34), (4, 64, 64), (2, 40, 130))


def lowered(function: Callable[..., Any], args: tuple[Any, ...], symbolic: bool = True) -> tuple[Program, Template]:
    """The optimized program of the function, and its one product."""
    program = optimize(lower(function, *args, symbolic=symbolic)).program
    (template,) = [operation for operation in program.operations if isinstance(operation, Template)]
    return program, template


def flat(program: Program, template: Template, args: tuple[Any, ...]) -> tuple[GemmKernel, list[Any], torch.Tensor]:
    """The kernel, its flat arguments, and the result, which is NaN before."""
    kernel, site = gemm_kernel.canonicalize(template, program.buffers)
    values = interpret.bind(program, args)
    tensors = {item.buffer: arg for item, arg in zip(program.inputs, args, strict=True)}
    (out,) = program.outputs
    assert isinstance(out, View)
    tensors[out.buffer] = result = torch.full([sizes.evaluate(n, values) for n in out.sizes], float("nan"))
    passed = [
        tensors[b] if isinstance(b, str) else interpret.view_tensor(b, tensors, values) for b in site.buffers
    ]
    return kernel, [*passed, *[sizes.evaluate(e, values) for e in site.sizes]], result


def exact(function: Callable[..., Any], args: tuple[Any, ...]) -> torch.Tensor:
    if function is cast:
        return args[0].double() @ args[1].double()
    return function(*[a.double() if a.is_floating_point() else a for a in args])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CASES)
def test_every_schedule_computes_operands_on_their_way(name: str, variant: str) -> None:
    function, make = CASES[name]
    program, template = lowered(function, make(5, 9, 22))
    assert any(template.prologues) and not any(isinstance(operation, Loop) for operation in program.operations)
    for turn, (m, n, k) in enumerate(SHAPES):
        args = make(m, n, k)
        kernel, given, result = flat(program, template, args)
        bare = Facts(wide=True, exact=(("M", m),) if variant == "rows" else ()) if turn == 0 else None
        interpreted(kernel, small(variant), given, bare)
        torch.testing.assert_close(result.double(), exact(function, args), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["activation", "int8 with zero points"])
def test_nothing_to_multiply(name: str) -> None:
    function, make = CASES[name]
    program, template = lowered(function, make(5, 9, 22))
    for m, n, k in ((0, 5, 6), (5, 0, 6), (5, 6, 0)):
        args = make(m, n, k)
        kernel, given, result = flat(program, template, args)
        interpreted(kernel, small("tile"), given)
        torch.testing.assert_close(result.double(), exact(function, args), rtol=1e-4, atol=1e-3)


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_lies_beyond_the_end_of_k_adds_nothing() -> None:
    """exp(0) is 1, where a masked load gives 0; 1/0 is infinite."""
    function = CASES["activation"][0]
    args = (torch.randn(3, 5), torch.full((4, 5), 2.0))
    program, template = lowered(lambda x, w: (1 / x) @ w.t(), args)
    kernel, given, result = flat(program, template, args)
    interpreted(kernel, small("tile"), given)
    torch.testing.assert_close(result, (1 / args[0]) @ args[1].t(), rtol=1e-4, atol=1e-3)
    program, template = lowered(function, args)
    kernel, given, result = flat(program, template, args)
    interpreted(kernel, small("tile"), given)
    torch.testing.assert_close(result, function(*args), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_operands_may_be_stored_first(name: str) -> None:
    function, make = CASES[name]
    args = make(5, 18, 34)
    program, template = lowered(function, args)
    kernel, given, result = flat(program, template, args)
    with options.override(tune="off", force="materialised operands"):
        multikernel, _, _ = define_template(template, program.buffers)
    multikernel(*given)
    assert multikernel.decisions[0].candidate == "materialised operands"
    torch.testing.assert_close(result.double(), exact(function, args), rtol=1e-4, atol=1e-3)
    result.fill_(float("nan"))
    templates.reference(kernel)(*given)
    torch.testing.assert_close(result.double(), exact(function, args), rtol=1e-4, atol=1e-3)
    made = gemm_args.make_args(kernel, dict(zip(kernel.size_names, given[len(kernel.tensors) :], strict=True)))
    multikernel(*made)


def test_a_product_that_stores_its_operand_first_never_costs_more_than_its_own_prediction_and_the_prologue_s() -> None:
    function, make = CASES["int8 with zero points"]
    args = make(5, 18, 34)
    program, template = lowered(function, args)
    kernel, given, _ = flat(program, template, args)
    with options.override(tune="off"):
        multikernel, _, _ = define_template(template, program.buffers)
    size = dict(zip(kernel.size_names, given[len(kernel.tensors) :], strict=True))
    stored = multikernel.candidates[-1]
    assert stored.name == "materialised operands" and stored.origin == "library"
    product = min(c.cost(size) for c in stored.product.candidates if c.valid(size))  # type: ignore[attr-defined]
    assert product < stored.cost(size) < product + 1e-3


KEPT = {
    "two products read it": lambda x, w: (torch.exp(x) @ w, torch.exp(x) @ (w + 1).contiguous()),
    "it is a result": lambda x, w: ((y := torch.exp(x)) @ w, y),
    "it is both operands": lambda x, w: (y := torch.exp(x @ w)) @ y,
    "a reduction makes it": lambda x, w: torch.softmax(x, 1) @ w,
    "rows are looked up": lambda x, w: F.embedding(w[:, 0].abs().long().clamp(0, 5), x) @ w,
}


@pytest.mark.parametrize("why", KEPT)
def test_operands_that_must_be_stored_are(why: str) -> None:
    x, w = torch.randn(6, 6), torch.randn(6, 6)
    program = optimize(lower(KEPT[why], x, w, symbolic=False)).program
    computed = [t.prologues[0] for t in program.operations if isinstance(t, Template)]
    assert not any(computed)
    got, want = interpret.run(program, [x, w]), KEPT[why](x, w)
    for mine, eager in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)


def in_groups(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    numbers = torch.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1, 32).to(x.dtype) - 8
    return x @ (numbers * s[:, :, None]).reshape(w.shape[0], -1).t()


@pytest.mark.parametrize("variant", VARIANTS)
def test_scales_of_groups_along_k_are_read_once_for_both_numbers_of_a_byte(variant: str) -> None:
    args = (torch.randn(3, 96), packed(20, 48), torch.rand(20, 3))
    program, template = lowered(in_groups, args, symbolic=False)
    assert template.prologues[1] is not None
    assert len(list(expr.loads(*template.prologues[1].roots))) == 2
    kernel, given, result = flat(program, template, args)
    interpreted(kernel, small(variant), given, None if variant == "rows" else Facts())
    torch.testing.assert_close(result, in_groups(*args), rtol=1e-4, atol=1e-3)


def test_products_on_a_cpu_keep_their_operands() -> None:
    args = CASES["activation"][1](5, 9, 22)
    with options.override(interpret=False):
        _, template = lowered(activated, args)
    assert template.prologues == (None, None)


def test_golden_unpacked_weights() -> None:
    args = CASES["int4"][1](16, 32, 64)
    program, template = lowered(unpacked, args)
    kernel, given, _ = flat(program, template, args)
    from polytile.matmul.triton.schedules import generate

    (launch,) = generate(kernel, small("tile", k=32), facts_of(kernel, given), CHIP).launches
    assert_golden("product_int4.triton", launch.source)


def masked(x: torch.Tensor, keep: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, x, 0.0) @ w


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (dequantised, CASES["int8 with zero points"][1](5, 9, 24)),
        (unpacked, CASES["int4"][1](5, 9, 24)),
        (masked, (torch.randn(5, 24), torch.rand(5, 24) < 0.5, torch.randn(24, 9))),
    ],
)
def test_what_is_made_of_bytes_is_taken_32_at_a_time_along_k(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    program, template = lowered(function, args)
    kind = Kind.of(gemm_kernel.canonicalize(template, program.buffers)[0])
    assert all(int(c["k"]) >= 32 for c in space(kind, device.named("H100")).configs if c["variant"] != "rows")
