"""What the prior is expected to know of 8-bit and converted operands, by times of an H200 (benchmarks/gpu/unseen_products.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.gpu.products import weights_int4
from polytile import options
from polytile.candidates.triton_matmul import label, prologue_bytes
from polytile.cost import cutlass as cutlass_prior
from polytile.cost import triton_matmul as prior
from polytile.cost.triton_matmul import Access, Accesses
from polytile.matmul import gemm_kernel
from polytile.matmul.cutlass import configs as cutlass
from polytile.matmul.triton.configs import Kind, space
from polytile.runtime.cuda import device
from tests.codegen.test_triton_gemm_prologue import lowered

H200 = device.named("H200")
FP8, INT8, INT4 = Kind(1, float8=True), Kind(1, int8=True), Kind(2, int8=True, mixed=True)
ALONG_K: Accesses = (Access(along_k=True), Access(along_k=True))
UNPACKED: Accesses = (ALONG_K[0], Access(along_k=True, work=11.0, itemsize=0.5))


def us(kind: Kind, name: str, m: int, n: int, k: int, accesses: Accesses = ALONG_K) -> float:
    """Predicted µs of a generated product."""
    config = next(config for config in space(kind, H200).configs if label(config) == name)
    return prior.cost(kind, config, {"batch": 1, "M": m, "N": n, "K": k}, H200, accesses) * 1e6


def test_more_copies_in_flight_do_not_hasten_a_short_step() -> None:
    """3.38, 3.39 and 3.39 µs with four, five and six stages."""
    times = [us(FP8, f"tile 16x32x64 s{stages} w2", 23, 896, 896) for stages in (4, 5, 6)]
    assert max(times) < 1.03 * min(times)


@pytest.mark.parametrize("shape", [(2, 2432, 3008), (13, 704, 3648), (2, 1728, 5952)])
def test_splits_are_preferred_to_few_long_programs(shape: tuple[int, int, int]) -> None:
    """5.7, 4.4 and 6.5 µs by four parts; 6.5, 6.4 and 10.6 by whole blocks, which had been ranked first."""
    assert us(FP8, "split 16x32x256 s3 w4 4 parts", *shape) < us(FP8, "tile 16x32x256 s4 w4", *shape)


def test_a_cluster_without_rows_for_its_second_block_multiplies_it_all_the_same() -> None:
    """71.9 µs at 32 rows; without clusters 40.7."""
    size = {"batch": 1, "M": 32, "N": 9728, "K": 11840}
    named = {cutlass.label(config): config for config in cutlass.configs(torch.float8_e4m3fn, True, H200)}
    alone, pair = (named[f"cutlass pingpong 64x128x128 s8 c{count}"] for count in (1, 2))
    assert cutlass_prior.cost(FP8, pair, size, H200, ALONG_K) > 1.1 * cutlass_prior.cost(FP8, alone, size, H200, ALONG_K)


def test_int4_weights_are_half_a_byte() -> None:
    """43 µs, where weights of 16 bits would take 33 of memory's time alone, beside what multiplies them."""
    whole = (UNPACKED[0], replace(UNPACKED[1], itemsize=None))
    packed, unpacked = (us(INT4, "rows 1x8x512 s3 w4", 1, 13312, 5248, each) for each in (UNPACKED, whole))
    assert packed < 0.95 * unpacked and packed == pytest.approx(43.2, rel=0.25)


def test_a_store_after_the_last_step_counts() -> None:
    """32 and 84 MB of results: 50 and 184 µs by persistent programs, of which the products would be 15 and 51."""
    assert us(FP8, "persistent 128x128x128 s6 w8", 5620, 11200, 768) == pytest.approx(183.5, rel=0.3)


def test_bytes_of_a_prologue_are_those_it_reads() -> None:
    x, packed, scale = torch.randn(24, 64).bfloat16(), torch.zeros(40, 32, dtype=torch.uint8), torch.rand(40, 1).bfloat16()
    with options.override(interpret=True, persist=False):
        program, template = lowered(weights_int4, (x, packed, scale))
        kernel = gemm_kernel.canonicalize(template, program.buffers)[0]
    assert [prologue_bytes(prologue) for prologue in kernel.prologues] == [None, 0.5]
