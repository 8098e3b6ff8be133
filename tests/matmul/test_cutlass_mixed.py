"""CUTLASS's products whose B is integers of 8 or 4 bits: which they are, what a launch passes, and what the compiler makes of
them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest
import torch

from benchmarks import record
from benchmarks.timing import geomean
from polytile import options
from polytile.candidates.cutlass import CutlassCandidate, product_candidates
from polytile.cost import cutlass as prior
from polytile.cost.triton_matmul import Access
from polytile.ir.template import Template
from polytile.matmul.cutlass import configs, text
from polytile.matmul.cutlass.weights import Weights, weights
from polytile.matmul.gemm_kernel import GemmKernel, canonicalize
from polytile.matmul.triton.configs import Kind
from polytile.passes.pipeline import optimize
from polytile.runtime.cuda import device
from polytile.schedule.facts import Facts
from tests.candidates.test_cutlass import installed
from tests.candidates.test_cutlass import refusing as refusing
from tests.frontend.lowering import lower

M, N, K = 96, 384, 512
BF16, F16, F32, U8, I8 = torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int8


def halves(w: torch.Tensor, high_first: bool = False) -> torch.Tensor:
    """The numbers of 4 bits of each byte, along k."""
    pair = [w >> 4, w & 15] if high_first else [w & 15, w >> 4]
    return torch.stack(pair, -1).reshape(w.shape[0], -1)


def by_groups(scale: torch.Tensor, group: int) -> torch.Tensor:
    return scale[:, :, None].expand(-1, -1, group).reshape(scale.shape[0], -1)


def int4(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x @ ((halves(w).to(x.dtype) - 8) * s).t()


def int4_high_first(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x @ (s * halves(w, high_first=True).to(x.dtype)).t()


def int4_groups(group: int) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x @ ((halves(w).to(x.dtype) - 8) * by_groups(s, group)).t()

    return run


def int4_scaled_in_float32(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x @ ((halves(w).float() - 8) * s).to(x.dtype).t()


def int8(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x @ (w.to(x.dtype) * s).t()


def middle(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x @ ((w.to(x.dtype) - 128) * s).t()


def squared(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x @ ((w.to(x.dtype) * w.to(x.dtype)) * s).t()


Function = Callable[..., torch.Tensor]


def made(function: Function, kind: torch.dtype = U8, scale: tuple[int, ...] = (N, 1), dtype: torch.dtype = BF16,
         scales: torch.dtype | None = None, symbolic: bool = True) -> GemmKernel:  # fmt: skip
    """The only product of a function of (A, bytes, scales)."""
    bits = 8 if function in (int8, middle, squared, torch._weight_int8pack_mm) else 4
    w = torch.randint(0, 100, (N, K * bits // 8)).to(kind)
    args = torch.randn(M, K, dtype=dtype), w, torch.rand(scale).to(scales or dtype)
    with options.override(interpret=True):
        program = optimize(lower(function, *args, symbolic=symbolic)).program
    (product,) = (each for each in program.operations if isinstance(each, Template))
    return canonicalize(product, program.buffers)[0]


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        (made(int8, I8), (8, "int8_t", True, 0, 0)),
        (made(middle, U8), (8, "uint8_t", True, 128, 0)),
        (made(int4), (4, "uint8_t", True, 8, 0)),
        (made(int4, dtype=F16), (4, "uint8_t", True, 8, 0)),
        (made(int4_high_first), (4, "uint8_t", False, 0, 0)),
        (made(int4_groups(128), scale=(N, 4)), (4, "uint8_t", True, 8, 128)),
        (made(int4_groups(64), scale=(N, 8), symbolic=False), (4, "uint8_t", True, 8, 64)),
    ],
)
def test_integers_are_known_by_what_becomes_of_bytes(kernel: GemmKernel, found: tuple[object, ...]) -> None:
    known = weights(kernel)
    assert known is not None and known.scale is not None and known.scale.tensor != known.tensor and text.able(kernel)
    assert (known.bits, known.number, known.low_first, known.middle, known.scale.group) == found


def test_an_int8_matrix_needs_no_prologue() -> None:
    kernel = made(torch._weight_int8pack_mm, I8, scale=(N,))
    known = weights(kernel)
    assert known is not None and (known.tensor, str(known.apart), known.bits, known.scale) == ("B", "b_stride_n", 8, None)
    assert text.able(kernel)


@pytest.mark.parametrize(
    "kernel",
    [
        made(squared),  # no integers of 8 bits
        made(int4_scaled_in_float32, scales=F32),  # rounded once, after the product
        made(int4_groups(32), scale=(N, 16)),  # a step has two scales
        made(int4, dtype=F32),
    ],
)
def test_what_has_no_such_form_is_left_to_others(kernel: GemmKernel) -> None:
    assert weights(kernel) is None and not text.able(kernel)


def facts(kernel: GemmKernel) -> Facts:
    """Those of operands that the copy engine takes."""
    return Facts(frozenset(kernel.size_names), frozenset(tensor.name for tensor in kernel.tensors))


def candidates(kernel: GemmKernel) -> tuple[CutlassCandidate, ...]:
    return product_candidates(kernel, "product", torch.device("cpu"))


@pytest.mark.parametrize(
    "kernel", [made(int8, I8), made(int4_groups(128), scale=(N, 4)), made(torch._weight_int8pack_mm, I8, (N,))]
)
def test_a_launch_copies_bytes(kernel: GemmKernel, refusing: object) -> None:
    known = weights(kernel)
    assert isinstance(known, Weights)
    run, own = 64 * known.bits // 8, candidates(kernel)
    assert len({candidate.name for candidate in own}) == len(own) >= 12
    for candidate in own:
        launch, *parts = candidate.specialise(facts(kernel)).kernel.launches
        m, n = int(candidate.config["m"]), int(candidate.config["n"])
        assert [each.block for each in launch.descriptors] == [(m, 64), (n, run)] and max(m, n) <= 256
        copies = [text.copied(kernel, each) for each in launch.descriptors]
        assert copies == [(3, 2, 9, m, 64), ({64: 2, 32: 1}[run], 1, 0, n, run)]
        assert dict(launch.own)["shared"] <= device.named("H100").shared_per_block
        assert m * n // 256 <= 128 and bool(parts) == bool(candidate.config["split"])
        passed = [argument.name for argument in launch.arguments]
        assert ("B1" in passed) == (known.scale is not None)


def test_bytes_that_the_copy_engine_cannot_take_are_left_to_others(refusing: object) -> None:
    kernel = made(int4)
    known = weights(kernel)
    assert known is not None
    whole = facts(kernel)
    unaligned = Facts(whole.divisible, whole.aligned - {"B0"})
    uneven = Facts(whole.divisible - {str(known.apart)}, whole.aligned)
    for given, takes in ((whole, True), (unaligned, False), (uneven, False)):
        assert candidates(kernel)[0].specialise(given).failed() != takes


def test_the_prior_ranks_what_was_measured() -> None:
    """At the 48 sizes to which its constants were fitted."""
    parts = json.loads((record.RESULTS / "gpu_cutlass_mixed.json").read_text())["results"]["parts"]
    kind, chip, lost = Kind(2, int8=True, mixed=True), device.named("H200"), []
    for part, bits in zip(parts, (8, 4), strict=True):
        own = {configs.label(config): config for config in configs.mixed_configs(BF16, bits, chip)}
        accesses = Access(along_k=True), Access(along_k=True, itemsize=bits / 8)
        for row in part["times"]:
            size = {"batch": 1, **dict(zip("MNK", row["shape"], strict=True))}
            us = {name: row["us"][name] for name in own if name in row["us"]}
            first = min(us, key=lambda name, size=size: prior.cost(kind, own[name], size, chip, accesses))  # type: ignore[misc]
            lost.append(us[first] / min(us.values()))
    assert len(lost) == 48 and geomean(lost) < 1.12


@pytest.mark.slow
@pytest.mark.skipif(bool(installed()), reason=installed())
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("cutlass mixed 256x128x64 s5 c1", made(int8, I8)),
        ("cutlass mixed 128x256x64 s8 c1", made(int4_groups(128), scale=(N, 4))),
        ("cutlass mixed split 16x128x64 s8 c1", made(int4, dtype=F16)),
        ("cutlass mixed 64x128x64 s8 c1", made(torch._weight_int8pack_mm, I8, (N,))),
    ],
)
def test_every_family_compiles_for_sm_90a_and_spills_nothing(name: str, kernel: GemmKernel) -> None:
    with options.override(nvcc=shutil.which("nvcc") or ""):
        candidate = next(c for c in candidates(kernel) if c.name == name).specialise(facts(kernel))
        assert candidate.handle() is not None
    assert candidate.resources.registers == 168 and candidate.resources.spilled_bytes == 0
