"""Products of 8-bit floats with scales by blocks: every schedule against float64, from PyTorch's own operator."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import polytile
from polytile import options
from polytile.candidates.library import row_scales
from polytile.candidates.triton import WORKER, job_of, triton_version
from polytile.candidates.triton_matmul import gemm_candidates
from polytile.ir.loop import Loop
from polytile.ir.template import Template
from polytile.matmul import gemm_kernel
from polytile.matmul.triton.operands import EVEN_K
from polytile.matmul.triton.schedules import generate
from polytile.matmul.triton.unit import Chip
from polytile.passes.pipeline import optimize
from polytile.problem import Config
from polytile.runtime.cuda import cubins, workers
from polytile.schedule.facts import Facts
from tests import interpret
from tests.codegen.test_triton_gemm_prologue import flat, lowered
from tests.codegen.triton_gemm import PLAIN, interpreted, small
from tests.frontend.lowering import lower

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

FP8 = torch.float8_e4m3fn
on_cpu = pytest.mark.skipif(
    torch.torch_version.TorchVersion(torch.__version__) < (2, 13), reason="it looks at scales of rows on a GPU alone"
)
BLOCKS = ((1, 128), (1, 1), (128, 1))
"""Rows of A and columns of B that share a scale: the three that PyTorch takes."""
VARIANTS = [variant for variant in PLAIN if variant != "rows"]


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    """CPU tensors stand for a GPU's, whose kernels are interpreted."""
    with options.override(interpret=True, persist=False, verify_ir=True):
        yield


def scaled(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16)


def arguments(m: int, n: int, k: int, rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    """Operands, and scales that lie as the library has them: single rows next to each other."""
    x, w = torch.randn(m, k).to(FP8), torch.randn(n, k).to(FP8)
    along = -(-k // 128)
    a, b = torch.rand(along, -(-m // rows)).t() + 0.5, torch.rand(along, -(-n // columns)) + 0.5
    return x, w, a, b if columns == 1 else b.t().contiguous().t()


def exact(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The product in float64, each element scaled first."""
    k = torch.arange(x.shape[1]) // 128
    left = x.double() * a.double()[torch.arange(x.shape[0]) // rows][:, k]
    right = w.double().t() * b.double()[k][:, torch.arange(w.shape[0]) // columns]
    return left @ right


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("rows", "columns"), BLOCKS)
def test_every_schedule_scales_by_blocks(rows: int, columns: int, variant: str) -> None:
    program, template = lowered(scaled, arguments(160, 144, 272, rows, columns))
    assert template.scales is not None and tuple(s.rows for s in template.scales) == (rows, columns)
    assert not any(isinstance(operation, Loop) for operation in program.operations)
    for m, n, k in ((160, 144, 272), (48, 256, 128)):
        args = arguments(m, n, k, rows, columns)
        kernel, given, result = flat(program, template, args)
        stored = result.bfloat16()
        given = [stored if arg is result else arg for arg in given]
        interpreted(kernel, small(variant, m=32, n=64, k=64), given, Facts(wide=True) if m == 48 else None)
        torch.testing.assert_close(stored.double(), exact(*args, rows, columns), rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize(("rows", "columns"), BLOCKS)
def test_the_reference_is_the_product_of_scaled_operands(rows: int, columns: int) -> None:
    args = arguments(160, 144, 272, rows, columns)
    program = optimize(lower(scaled, *args)).program
    (got,) = interpret.run(program, list(args), torch.float64)
    torch.testing.assert_close(got.double(), exact(*args, rows, columns), rtol=1e-2, atol=1e-2)


def test_only_steps_within_a_scale_take_part() -> None:
    program, template = lowered(scaled, arguments(160, 144, 272, 1, 128))
    kernel = gemm_kernel.canonicalize(template, program.buffers)[0]
    found = gemm_candidates(kernel, "scaled", torch.device("cpu"))
    assert {c.config["variant"] for c in found} == set(VARIANTS)
    assert all(32 <= int(c.config["k"]) <= 128 for c in found)


def test_a_compiled_function_takes_scales_by_blocks() -> None:
    def activated(*args: torch.Tensor) -> torch.Tensor:
        return torch.relu(scaled(*args))

    args = arguments(32, 128, 256, 1, 128)
    call = torch.compile(activated, backend="polytile", dynamic=True, options={"tune": "off"})
    torch.testing.assert_close(call(*args).double(), exact(*args, 1, 128).clamp_min(0), rtol=2e-2, atol=2e-1)
    (kernel,) = polytile.compiler.programs.compiled_programs()[-1].multikernels
    assert "scaled_mm" in kernel.spec.name


@on_cpu
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w, a, b: (x, w, a[:-1], b), "Invalid scaling configuration"),
        (lambda x, w, a, b: (x, w, a, b.repeat(1, 3)), "Invalid scaling configuration"),
        (lambda x, w, a, b: (x, w, a.double(), b), "float"),
    ],
)
def test_scales_that_do_not_fit_are_an_error_that_names_the_shapes(change: Any, message: str) -> None:
    call = torch.compile(scaled, backend="polytile", dynamic=True, options={"tune": "off"})
    with pytest.raises(Exception, match=message):
        call(*change(*arguments(32, 128, 256, 1, 128)))


def test_other_products_with_scales_by_blocks_are_the_librarys() -> None:
    x, w, a, b = arguments(32, 128, 256, 1, 128)

    def with_bias(*args: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(args[0], args[1].t(), *args[2:], out_dtype=torch.bfloat16)

    program = optimize(lower(with_bias, x, w, a, b, torch.randn(128).bfloat16())).program
    assert not any(isinstance(operation, Template) for operation in program.operations)


def recipes(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, kind: str = "RowWise") -> torch.Tensor:
    by = torch.nn.functional.ScalingType.__members__[kind]
    return torch.nn.functional.scaled_mm(x, w.t(), a, by, b, by, output_dtype=torch.bfloat16)


def with_bias(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    by = torch.nn.functional.ScalingType.RowWise
    none = torch.nn.functional.SwizzleType.NO_SWIZZLE
    return torch.nn.functional.scaled_mm(x, w.t(), a, by, b, by, none, none, bias, contraction_dim=(1, 0)).relu()


def wholes(*args: torch.Tensor) -> torch.Tensor:
    return recipes(*args, kind="TensorWise")


@on_cpu
@pytest.mark.parametrize("name", ["rows", "wholes", "bias"])
def test_recipes_of_rows_and_wholes_are_generated(name: str) -> None:
    function = {"rows": recipes, "wholes": wholes, "bias": with_bias}[name]
    call = torch.compile(function, backend="polytile", dynamic=True, options={"tune": "off"})
    for m, n, k in ((48, 64, 96), (17, 32, 144), (160, 144, 272)):
        x, w, *_ = arguments(m, n, k, 1, 1)
        a, b = (torch.rand(1), torch.rand(1)) if name == "wholes" else (torch.rand(m, 1), torch.rand(1, n))
        args = (x, w, a, b, *([torch.randn(n).bfloat16()] if name == "bias" else []))
        torch.testing.assert_close(call(*args), function(*args), rtol=2e-2, atol=2e-2)
    (kernel,) = polytile.compiler.programs.compiled_programs()[-1].multikernels
    assert "scaled_mm" in kernel.spec.name and kernel.decisions


RECIPES = {1: "BlockWise1x128", 128: "BlockWise128x128"}


def by_blocks(rows: int, columns: int) -> Callable[..., torch.Tensor]:
    of = torch.nn.functional.ScalingType.__members__

    def function(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ours, theirs = of[RECIPES[rows]], of[RECIPES[columns]]
        return torch.nn.functional.scaled_mm(x, w.t(), a, ours, b, theirs, output_dtype=torch.bfloat16)

    return function


def of_recipe(scale: torch.Tensor, rows: int) -> torch.Tensor:
    """Scales (blocks of rows, blocks along k) as recipes want them: those of 128 rows turned, up to a multiple of 4 along k."""
    padded = torch.nn.functional.pad(scale, (0, -scale.shape[1] % 4), value=float("nan"))
    return scale if rows == 1 else padded.contiguous().t()


@on_cpu
@pytest.mark.parametrize(("rows", "columns"), BLOCKS)
def test_recipes_by_blocks_are_generated(rows: int, columns: int) -> None:
    call = torch.compile(by_blocks(rows, columns), backend="polytile", dynamic=True, options={"tune": "off"})
    for m, n, k in ((128, 256, 640), (256, 128, 256), (384, 384, 1024)):
        x, w, a, b = arguments(m, n, k, rows, columns)
        got = call(x, w, of_recipe(a, rows), of_recipe(b.t(), columns))
        torch.testing.assert_close(got.double(), exact(x, w, a, b, rows, columns), rtol=2e-2, atol=2e-1)
    (kernel,) = polytile.compiler.programs.compiled_programs()[-1].multikernels
    assert "scaled_mm" in kernel.spec.name and kernel.decisions


@on_cpu
def test_scales_that_are_not_what_a_recipe_by_blocks_says_are_an_error() -> None:
    x, w, a, b = arguments(48, 256, 256, 1, 128)
    call = torch.compile(by_blocks(1, 128), backend="polytile", dynamic=True, options={"tune": "off"})
    with pytest.raises(Exception, match="scale b must have shape"):
        call(x, w, a, b)


@on_cpu
@pytest.mark.parametrize("kind", ["RowWise", "TensorWise"])
def test_scales_that_are_not_what_their_recipe_says_are_an_error(kind: str) -> None:
    x, w, *_ = arguments(48, 64, 96, 1, 1)
    args = (x, w, torch.rand(47, 1), torch.rand(1, 64))
    call = torch.compile(lambda *args: recipes(*args, kind=kind), backend="polytile", dynamic=True, options={"tune": "off"})
    with pytest.raises(Exception, match="scale_a"):
        call(*args)


BY_ROWS = {
    "rows": lambda m, n: (torch.rand(m, 1), torch.rand(1, n)),
    "wholes": lambda m, n: (torch.rand(()), torch.rand(())),
}


@on_cpu
@pytest.mark.parametrize("kind", BY_ROWS)
def test_the_library_takes_scales_of_rows_too(kind: str) -> None:
    x, w, *_ = arguments(48, 64, 96, 1, 1)
    args = (x, w, *BY_ROWS[kind](48, 64))
    call = torch.compile(scaled, backend="polytile", dynamic=True, options={"force": "aten scaled"})
    torch.testing.assert_close(call(*args), scaled(*args), rtol=1e-2, atol=1e-2)
    (kernel,) = polytile.compiler.programs.compiled_programs()[-1].multikernels
    assert [decision.candidate for decision in kernel.decisions] == ["aten scaled"]


MORE = {
    "an activation": lambda x, w, a, b: torch.relu(scaled(x, w, a, b)),
    "a bias": lambda x, w, a, b: scaled(x, w, a, b) + a.to(torch.bfloat16),
    "a scale more": lambda x, w, a, b: scaled(x, w, a, b) * 2,
}


@pytest.mark.parametrize("name", MORE)
def test_where_more_follows_the_scales_are_no_librarys(name: str) -> None:
    x, w, *_ = arguments(48, 64, 96, 1, 1)
    program, template = lowered(MORE[name], (x, w, *BY_ROWS["rows"](48, 64)))
    kernel = gemm_kernel.canonicalize(template, program.buffers)[0]
    assert row_scales.candidates(kernel, torch.device("cpu")) == []


def test_scaled_products_fit_in_registers(empty_cache: Path) -> None:
    program, template = lowered(scaled, arguments(160, 144, 272, 1, 128))
    kernel = gemm_kernel.canonicalize(template, program.buffers)[0]
    facts = Facts(frozenset(kernel.size_names), frozenset(t.name for t in kernel.tensors), holding=frozenset({EVEN_K}))
    asked = []
    for variant, m, n, k, warps in (("tile", 64, 128, 128, 4), ("persistent", 128, 128, 128, 8)):
        config = Config.of(variant=variant, m=m, n=n, k=k, stages=3, warps=warps, group=8)
        for one in generate(kernel, config, facts, Chip(132, overlaps=True)).launches:
            asked.append(cubins.request(cubins.Order("scaled", WORKER, job_of(one, 90), triton_version())))
    assert [promise.result().facts.spills for promise in asked] == [0] * len(asked)
    workers.reset()
