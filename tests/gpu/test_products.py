"""Every candidate of a product on a GPU: each kind is compiled, compared with the reference, timed, and takes part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import polytile
from polytile.matmul.cutlass import configs
from polytile.runtime.cuda import cutlass as toolkit
from tests.gpu.comparing import agree, compiled, data, widened

pytestmark = pytest.mark.gpu

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
Make = Callable[[int, int, int], tuple[Any, ...]]


def half(*shape: int) -> Tensor:
    return data(*shape, dtype=BF16)


def int8(*shape: int) -> Tensor:
    return torch.randint(-10, 10, shape, dtype=torch.int8, device="cuda")


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def with_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def with_residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.linear(x, w, b) + r


def batches(c: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.baddbmm(c, x, y.transpose(1, 2))


def dequantised(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return (torch._int_mm(x, w.t()).float() * s).to(BF16)


def weights_int8(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return x @ (w.to(x.dtype) * s).t()


def weights_int4(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    numbers = torch.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1)
    return x @ ((numbers.to(x.dtype) - 8) * s).t()


def scaled(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch._scaled_mm(x, w.t(), a, b, out_dtype=BF16)


def by_recipe(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.scaled_mm(x, w.t(), a, F.ScalingType.RowWise, b, F.ScalingType.RowWise, output_dtype=BF16)


def row_squares(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w) + r
    return y, y.float().pow(2).mean(-1)


def row_logsumexp(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w).float().logsumexp(-1)


def columns(k: int, n: int) -> Tensor:
    """A scale for every 128 by 128 elements of an operand k × n, as the library has them: along k in multiples of 4."""
    along = k // 128
    return torch.rand(n // 128, -(-along // 4) * 4, device="cuda")[:, :along].t()


@dataclass(frozen=True)
class Case:
    """`kinds`: the first words of candidates that must have been timed at one of `shapes`."""

    function: Callable[..., Any]
    make: Make
    shapes: tuple[tuple[int, int, int], ...]
    kinds: set[str] = field(default_factory=set)
    wide: bool = True
    """Whether eager computes it in float64 too."""


GENERATED = {"tile", "persistent", "split", "stream", "rows"}
SIZES = ((64, 96, 4096), (3, 1000, 512), (256, 256, 256), (300, 501, 700), (640, 640, 4096))
CASES = {
    "bf16": Case(product, lambda m, n, k: (half(m, k), half(k, n)), SIZES, GENERATED | {"aten", "cublaslt"}),
    "float32": Case(product, lambda m, n, k: (data(m, k), data(k, n)), SIZES, GENERATED | {"aten", "cublaslt"}),
    "bias and gelu": Case(with_bias, lambda m, n, k: (half(m, k), half(n, k), half(n)), SIZES[:4], {"split", "cublaslt"}),
    "gelu by tanh": Case(
        lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
        lambda m, n, k: (half(m, k), half(n, k), half(n)),
        SIZES[2:4],
        {"tile", "persistent"},
    ),
    "silu and a factor": Case(
        lambda x, w, f: F.silu(F.linear(x, w)) * f,
        lambda m, n, k: (half(m, k), half(n, k), half(m, n)),
        SIZES[2:4],
        {"tile", "persistent"},
    ),
    "bias and residual": Case(
        with_residual, lambda m, n, k: (half(m, k), half(n, k), half(n), half(m, n)), SIZES[:3], {"cublaslt"}
    ),
    "baddbmm": Case(batches, lambda m, n, k: (half(3, m, n), half(3, m, k), half(3, n, k)), SIZES[:3], {"tile", "cublaslt"}),
    "sum of two": Case(
        lambda x, y, v, w: torch.relu(x @ y + v @ w),
        lambda m, n, k: (half(m, k), half(k, n), half(m, 2 * k), half(2 * k, n)),
        SIZES[:4],
        {"tile", "aten"},
    ),
    "squares of rows": Case(row_squares, lambda m, n, k: (half(m, k), half(n, k), half(m, n)), SIZES, GENERATED | {"aten"}),
    "logsumexp of rows": Case(row_logsumexp, lambda m, n, k: (half(m, k), half(n, k)), SIZES[:4], {"tile", "aten"}),
    "int8": Case(dequantised, lambda m, n, k: (int8(m, k), int8(n, k), torch.rand(n, device="cuda")), SIZES[:1], {"split"}),
    "int8 weights": Case(weights_int8, lambda m, n, k: (half(m, k), int8(n, k), half(n, 1)), SIZES[:3], {"tile", "materialised"}),
    "int4 weights": Case(
        weights_int4,
        lambda m, n, k: (half(m, k), torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda"), half(n, 1)),
        SIZES[:3],
        {"tile", "materialised"},
    ),
    "fp8 by blocks": Case(
        scaled,
        lambda m, n, k: (half(m, k).to(FP8), half(n, k).to(FP8), torch.rand(k // 128, m).cuda().t(), columns(k, n)),
        ((64, 128, 4096), (256, 256, 512)),
        {"tile", "persistent", "split"},
        wide=False,
    ),
    "fp8 by a recipe": Case(
        by_recipe,
        lambda m, n, k: (half(m, k).to(FP8), half(n, k).to(FP8), torch.rand(m, 1).cuda(), torch.rand(1, n).cuda()),
        ((64, 96, 4096),),
        {"tile"},
        wide=False,
    ),
    "fp8 by rows": Case(
        scaled,
        lambda m, n, k: (half(m, k).to(FP8), half(n, k).to(FP8), torch.rand(m, 1).cuda(), torch.rand(1, n).cuda()),
        ((64, 96, 4096), (256, 256, 256)),
        {"tile"},
        wide=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_candidate_runs_and_is_right(name: str) -> None:
    if name == "fp8 by a recipe" and torch.torch_version.TorchVersion(torch.__version__) < (2, 13):
        pytest.skip("Dynamo does not trace it")
    case = CASES[name]
    call = compiled(case.function, tune="all", persist=False)
    for shape in case.shapes:
        args = case.make(*shape)
        eager = case.function(*args)
        agree(call(*args), eager, case.function(*widened(args)) if case.wide else eager, str(shape))
    standings = [
        (decision.sizes, standing)
        for program in polytile.compiler.programs.compiled_programs()
        for kernel in program.multikernels
        for decision in kernel.decisions
        for standing in decision.standings
    ]
    failed = [f"{s.candidate} at {dict(sizes)}: {s.note}" for sizes, s in standings if s.note and "Resources" not in s.note]
    assert not failed, "\n".join(failed)
    assert case.kinds <= {s.candidate.split()[0] for _, s in standings if s.seconds > 0}


LAYOUTS: dict[str, Callable[[int, int], Tensor]] = {
    "row by row": half,
    "column by column": lambda rows, columns: half(columns, rows).t(),
    "apart": lambda rows, columns: half(rows, columns + 48)[:, 16 : columns + 16],
    "one row for all": lambda rows, columns: half(1, columns).expand(rows, columns),
    "rows that overlap": lambda rows, columns: half(rows * 32 + columns).as_strided((rows, columns), (32, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hardware_copies_blocks_of_operands_in_any_layout(layout: str) -> None:
    call, made = compiled(product, force="persistent*", persist=False), LAYOUTS[layout]
    for m, n, k in ((512, 384, 256), (1000, 272, 208), (300, 256, 64)):
        args = made(m, k), made(k, n)
        agree(call(*args), product(*args), product(*widened(args)), f"{m}x{n}x{k}")
    chosen = [d.candidate for d in polytile.compiler.programs.compiled_programs()[-1].multikernels[0].decisions]
    assert chosen and all(name.startswith("persistent") for name in chosen)


def without_cutlass() -> str:
    """Why CUTLASS's products cannot be compiled here; "" where they can."""
    try:
        toolkit.find()
    except polytile.PolytileError as error:
        return str(error)
    return ""


CUTLASS: dict[str, tuple[Callable[..., Tensor], Make]] = {
    "int8": (lambda x, w: torch._int_mm(x, w.t()), lambda m, n, k: (int8(m, k), int8(n, k))),
    "int8, scaled": (dequantised, lambda m, n, k: (int8(m, k), int8(n, k), torch.rand(n, device="cuda"))),
    "int8, requantised": (
        lambda x, w, s: (torch._int_mm(x, w.t()).float() * s).round().clamp(-128, 127).to(torch.int8),
        lambda m, n, k: (int8(m, k), int8(n, k), torch.rand(n, device="cuda") / 64),
    ),
    "fp8, scaled": (
        scaled,
        lambda m, n, k: (half(m, k).to(FP8), half(n, k).to(FP8), torch.rand((), device="cuda"), torch.rand((), device="cuda")),
    ),
    "fp8, scaled by rows": (
        scaled,
        lambda m, n, k: (half(m, k).to(FP8), half(n, k).to(FP8), torch.rand(m, 1).cuda(), torch.rand(1, n).cuda()),
    ),
    "bias and gelu": (with_bias, lambda m, n, k: (half(m, k), half(n, k), half(n))),
    "silu and a factor": (
        lambda x, w, f: F.silu(F.linear(x, w)) * f,
        lambda m, n, k: (half(m, k), half(n, k), half(m, n)),
    ),
    "bias and residual": (with_residual, lambda m, n, k: (half(m, k), half(n, k), half(n), half(m, n))),
    "batches": (batches, lambda m, n, k: (half(3, m, n), half(3, m, k), half(3, n, k))),
    "batches that share B": (batches, lambda m, n, k: (half(3, m, n), half(3, m, k), half(1, n, k).expand(3, n, k))),
    "batches that share A": (batches, lambda m, n, k: (half(m, n).expand(3, m, n), half(1, m, k).expand(3, m, k), half(3, n, k))),
}
needs_cutlass = pytest.mark.skipif(bool(without_cutlass()), reason=without_cutlass())


@needs_cutlass
@pytest.mark.parametrize("name", CUTLASS)
def test_products_of_cutlass_finish_their_sums_as_eager_does(name: str) -> None:
    """At sizes that are no multiple of a block, and one whose results' rows begin anywhere, which the library lacks for fp8."""
    function, make = CUTLASS[name]
    call = compiled(function, force="cutlass*", persist=False)
    odd = () if name.startswith("fp8") else ((33, 1000, 512),)
    for shape in ((300, 272, 208), *odd, (1024, 512, 4096)):
        args = make(*shape)
        agree(call(*args), function(*args), what=str(shape))
    assert_decided("cutlass")


def assert_decided(prefix: str) -> None:
    """That every kernel of the newest program was chosen among candidates whose names begin so."""
    decided = [d for kernel in polytile.compiler.programs.compiled_programs()[-1].multikernels for d in kernel.decisions]
    assert decided and all(d.candidate.startswith(prefix) for d in decided), decided


SPLIT: dict[str, tuple[Callable[..., Tensor], Make]] = {
    "bias and gelu": CUTLASS["bias and gelu"],
    "int8, scaled": CUTLASS["int8, scaled"],
    "fp8, scaled by rows": CUTLASS["fp8, scaled by rows"],
    "batches": (torch.bmm, lambda m, n, k: (half(2, m, k), half(2, k, n))),
}


@needs_cutlass
@pytest.mark.parametrize("blocks", ["128x128", "256x128"])
@pytest.mark.parametrize("name", SPLIT)
def test_splits_of_cutlass_add_up_the_parts_of_blocks(name: str, blocks: str) -> None:
    if blocks == "256x128" and name.startswith("fp8"):
        pytest.skip("a thread has no room for two sets of sums of such blocks")
    function, make = SPLIT[name]
    call = compiled(function, force=f"cutlass split {blocks}*", persist=False, cutlass_configs=99)
    for shape in ((640, 640, 8192), (700, 624, 8272), (2500, 1776, 1040)):  # the last has whole blocks too
        args = make(*shape)
        agree(call(*args), function(*args), what=str(shape))
    assert_decided("cutlass split")


def int8_weights(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return x @ (w.to(x.dtype) * s).t()


def int4_weights(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    """Two numbers a byte, and a scale for every 128."""
    numbers = torch.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1)
    scales = s[:, :, None].expand(-1, -1, 128).reshape(w.shape[0], -1)
    return x @ ((numbers.to(x.dtype) - 8) * scales).t()


def packed_weights(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return torch._weight_int8pack_mm(x, w, s[:, 0])


INTEGERS: dict[str, tuple[Callable[..., Tensor], Make]] = {
    "int8": (int8_weights, lambda m, n, k: (half(m, k), int8(n, k), half(n, 1))),
    "int4": (int4_weights, lambda m, n, k: (half(m, k), int8(n, k // 2).view(torch.uint8), half(n, k // 128))),
    "int8, scaled sums": (packed_weights, lambda m, n, k: (half(m, k), int8(n, k), half(n, 1))),
}


MIXED = {
    "mixed 128x128": ((300, 272, 256), (90, 1008, 1152)),
    "mixed 32x256": ((33, 1008, 1152), (60, 272, 512)),
    "mixed split 16x128": ((9, 640, 8192),),
}
"""Sizes at which such blocks take part."""


@needs_cutlass
@pytest.mark.parametrize("blocks", MIXED)
@pytest.mark.parametrize("name", INTEGERS)
def test_cutlass_converts_integers_on_their_way(name: str, blocks: str) -> None:
    function, make = INTEGERS[name]
    call = compiled(function, force=f"cutlass {blocks}*", persist=False, cutlass_configs=99)
    for shape in MIXED[blocks]:
        args = make(*shape)
        agree(call(*args), (int4_weights if name == "int4" else int8_weights)(*args), what=str(shape))
    assert_decided(f"cutlass {blocks}")


EARLIER: dict[str, tuple[Callable[..., Tensor], Make]] = {
    "int8, scaled": CUTLASS["int8, scaled"],
    "bias and gelu": CUTLASS["bias and gelu"],
    "batches": (lambda x, w: x @ w.mT, lambda m, n, k: (half(3, m, k), half(3, n, k))),
}


@needs_cutlass
@pytest.mark.parametrize("name", EARLIER)
def test_kernels_for_earlier_devices_are_right_on_this_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of compute capability 8.0 to 8.9 are rare; their kernels use nothing that later ones lack."""
    major, minor = torch.cuda.get_device_capability()
    monkeypatch.setattr(configs, "CAPABILITY", 0)
    monkeypatch.setattr(configs, "OLDER", (10 * major + minor,))
    function, make = EARLIER[name]
    call = compiled(function, force="cutlass multistage*", persist=False, cutlass_configs=99)
    for shape in ((300, 272, 256), (33, 1000, 512), (1024, 512, 4096)):
        args = make(*shape)
        agree(call(*args), function(*args), what=str(shape))
    assert_decided("cutlass multistage")


@pytest.mark.parametrize("kernels", ["tile*", pytest.param("cutlass*", marks=needs_cutlass)])
def test_sums_of_65536_products_of_the_least_int8_are_exact(kernels: str) -> None:
    call = compiled(lambda x, w: torch._int_mm(x, w.t()), force=kernels, persist=False)
    x, w = (torch.full((rows, 65536), -128, dtype=torch.int8, device="cuda") for rows in (40, 128))
    assert call(x, w).eq(2**30).all()


def dequantised_by_blocks(x: Tensor, w: Tensor, a: Tensor, b: Tensor, rows: int, columns: int) -> Tensor:
    """The product in float64 of elements that are scaled first; `a` and `b` as `torch._scaled_mm` takes them."""
    k = torch.arange(x.shape[1], device="cuda") // 128
    left = x.double() * a.double()[torch.arange(x.shape[0], device="cuda") // rows][:, k]
    right = w.double().t() * b.double()[k][:, torch.arange(w.shape[0], device="cuda") // columns]
    return left @ right


@needs_cutlass
@pytest.mark.parametrize("schedule", ["cooperative", "pingpong", "split"])
@pytest.mark.parametrize(("rows", "columns_", "shapes"), [
    (1, 128, ((300, 256, 512), (1000, 1152, 2048))),
    (1, 1, ((300, 272, 512), (1000, 1168, 2048))),
    (128, 1, ((384, 272, 512), (1024, 1168, 2048))),
])  # fmt: skip
def test_cutlass_scales_by_blocks(rows: int, columns_: int, shapes: tuple[tuple[int, int, int], ...], schedule: str) -> None:
    call = compiled(scaled, force=f"cutlass {schedule}*", persist=False, cutlass_configs=99)
    for m, n, k in shapes if schedule != "split" else ((512, 512, 8192), (640, 1024, 4096)):
        x, w = half(m, k).to(FP8), half(n, k).to(FP8)
        a = columns(k, m).t() if rows == 128 else torch.rand(k // 128, m, device="cuda").t()
        b = columns(k, n) if columns_ == 128 else torch.rand(k // 128, n, device="cuda")
        exact = dequantised_by_blocks(x, w, a, b, rows, columns_)
        torch.testing.assert_close(call(x, w, a, b).double(), exact, rtol=1e-2, atol=1e-3 * float(exact.abs().max()))
    assert_decided(f"cutlass {schedule}")


def test_descriptors_are_part_of_what_a_graph_records() -> None:
    args = half(512, 512), half(512, 512)
    call = compiled(product, force="persistent*", persist=False)
    call(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(*args)
    call(half(768, 512), half(512, 256))
    got.zero_()
    graph.replay()
    agree(got, product(*args), product(*widened(args)))


@pytest.mark.parametrize("shape", [(300, 501, 700), (17, 4095, 4095)])
def test_operands_are_padded_where_that_is_asked_for(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    args = half(m, k), half(k, n)
    call = compiled(product, force="aten padded", persist=False)
    agree(call(*args), product(*args), product(*widened(args)))
    assert {d.candidate for d in polytile.compiler.programs.compiled_programs()[-1].multikernels[0].decisions} == {"aten padded"}


@pytest.mark.parametrize("function", [with_residual, lambda x, w, b, r: F.linear(x, w, b), lambda x, w, b, r: F.linear(x, w) + r])
def test_what_is_not_finite_passes_through_epilogues_of_the_library(function: Callable[..., Tensor]) -> None:
    args = half(64, 128), half(96, 128), half(96), half(64, 96)
    for tensor, row in zip(args, (3, 5, 7, 9), strict=True):
        tensor[row], tensor[row + 20], tensor[row + 40] = float("nan"), float("inf"), float("-inf")
    call = compiled(function, force="cublaslt 0", persist=False)
    torch.testing.assert_close(call(*args), function(*args), rtol=2e-2, atol=2e-1, equal_nan=True)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_proposal_of_cublaslt_is_recorded_in_a_graph(rank: int) -> None:
    args = half(256, 512), half(512, 384)
    call = compiled(product, force=f"cublaslt {rank}", persist=False)
    call(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(*args)
    got.zero_()
    graph.replay()
    agree(got, product(*args), product(*widened(args)))


def test_scaled_grouped_products_are_generated() -> None:
    """Of rows of 8-bit floats by matrices of such, beside ATen's kernel, at lengths of one compile."""

    def scaled(a: Tensor, b: Tensor, offs: Tensor, by_row: Tensor, by_column: Tensor) -> Tensor:
        return torch._scaled_grouped_mm(a, b, by_row, by_column, offs=offs, out_dtype=BF16)

    call = compiled(scaled, sources="triton")
    for length, parts in ((40, (7, 9, 40)), (512, (0, 500, 512)), (1000, (1, 2, 1000))):
        a, b = data(length, 256).to(FP8), data(3, 128, 256).to(FP8).transpose(1, 2)
        scales = torch.rand(length, device="cuda"), torch.rand(3, 128, device="cuda")
        args = a, b, torch.tensor(parts, dtype=torch.int32, device="cuda"), *scales
        torch.testing.assert_close(call(*args), scaled(*args), rtol=2e-2, atol=2e-1)
