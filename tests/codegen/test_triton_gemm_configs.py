"""Which candidates a product has on a GPU, where each takes part, and what the prior expects of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch.backends.cuda import matmul

from polytile import options
from polytile.candidates.triton_matmul import gemm_candidates, label
from polytile.cost import library_matmul as library_prior
from polytile.cost import triton_matmul as prior
from polytile.matmul import gemm_kernel
from polytile.matmul.configs import Heuristic, Request, heuristic, override, register
from polytile.matmul.configs.records import Gemm, tile_config
from polytile.matmul.configs.registry import unregister
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.matmul.triton.configs import Kind, space
from polytile.problem import Config
from polytile.runtime.cuda import device
from tests.codegen.test_triton_gemm_prologue import lowered
from tests.codegen.triton_gemm import product

H100, A100 = device.named("H100"), device.named("A100")
BF16 = Kind()
FP32, TF32 = Kind(4), Kind(4, tf32=True)


def sizes(m: int, n: int, k: int, batch: int = 1) -> dict[str, int]:
    return {"batch": batch, "M": m, "N": n, "K": k}


def able(kind: Kind, m: int, n: int, k: int, batch: int = 1) -> list[Config]:
    return [c for c in space(kind, H100).configs if space(kind, H100).valid(c, sizes(m, n, k, batch))]


def chosen(kind: Kind, m: int, n: int, k: int) -> str:
    return label(min(able(kind, m, n, k), key=lambda c: prior.cost(kind, c, sizes(m, n, k), H100)))


@pytest.mark.parametrize("kind", [BF16, FP32, TF32, Kind(1, int8=True), Kind(2, int8=True, mixed=True), Kind(1, float8=True)])
def test_names_tell_configs_apart_and_every_size_has_some(kind: Kind) -> None:
    every = space(kind, H100).configs
    assert len({label(c) for c in every}) == len(every)
    for m, n, k in ((1, 1, 1), (3, 17, 5), (16, 4096, 4096), (64, 64, 64), (4096, 4096, 4096), (100_000, 16, 16)):
        assert len(able(kind, m, n, k)) >= 2


@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (100, 300, 40), (4096, 4096, 4096), (17, 4096, 129)])
def test_blocks_take_part_where_the_heuristic_tries_them(m: int, n: int, k: int) -> None:
    request = Request(m, n, k, shared_bytes=H100.shared_per_block)
    wanted = {tile_config(c, variant="tile") for c in heuristic("cuda").configs(request) if c.accumulators <= 128}
    assert wanted <= set(able(BF16, m, n, k))


def test_small_blocks_take_part_where_all_of_them_run_at_once() -> None:
    for n, takes_part in ((64, True), (128, True), (512, True), (576, False), (4096, False)):
        assert ("tile 64x32x64 s5 w4" in {label(c) for c in able(BF16, n, n, n)}) == takes_part
    assert "tile 64x32x64 s5 w4" not in {label(c) for c in able(BF16, 256, 256, 256, batch=5)}
    assert chosen(BF16, 192, 192, 192) == "tile 64x32x64 s5 w4"


@pytest.mark.parametrize("kind", [Kind(1, int8=True), Kind(1, float8=True)])
def test_tensor_cores_get_32_elements_of_8_bits_along_k(kind: Kind) -> None:
    assert all(int(c["k"]) >= 32 for c in space(kind, H100).configs if c["variant"] != "rows")


def test_an_overridden_table_is_what_products_are_made_of() -> None:
    before = space(BF16, H100)
    with override("cuda", "mm", [Gemm(64, 32, 64, 7, 4)]):
        names = {label(c) for c in space(BF16, H100).configs if c["variant"] == "tile"}
        assert "tile 64x32x64 s7 w4" in names and "tile 128x128x64 s3 w4" not in names
    assert space(BF16, H100).configs == before.configs


def test_an_exhaustive_space_has_the_tables_configs_and_all_others_that_fit() -> None:
    from_tables = set(space(BF16, H100).configs)
    with options.override(configs="exhaustive"):
        every, small = set(space(BF16, H100).configs), able(BF16, 64, 32, 4096)
        assert from_tables < every
        assert {"tile 32x256x128 s2 w8", "tile 16x16x16 s5 w1", "persistent 64x64x256 s1 w4"} <= {label(c) for c in every}
        added = every - from_tables
        assert {label(c) for c in small} > {label(c) for c in small if c in from_tables}
        assert all(int(c["m"]) <= 64 and int(c["n"]) <= 32 for c in small if c in added)
        assert not any(c["variant"] == "persistent" and int(c["warps"]) == 2 for c in added)
        largest = max((int(c["m"]) + int(c["n"])) * int(c["k"]) * int(c["stages"]) * 2 for c in added)
        assert largest <= H100.shared_per_block
        assert 300 < len(added) < 1125 * 2
    assert set(space(BF16, H100).configs) == from_tables


def test_sums_of_two_products_have_configs_of_a_table_of_their_own() -> None:
    dual = Kind(2, dual=True)
    names, plain = ({label(c) for c in space(kind, H100).configs} for kind in (dual, BF16))
    assert "tile 64x64x64 s1 w8" in names - plain
    assert set(space(BF16, H100).configs) < set(space(dual, H100).configs)


def test_kernels_with_limits_stay_within_them() -> None:
    assert not any(c["variant"] == "rows" for c in able(BF16, 5, 64, 64))
    assert any(c["variant"] == "rows" for c in able(BF16, 4, 64, 64))
    assert not any(c["variant"] == "split" for c in able(BF16, 4096, 4096, 128))
    assert any(c["variant"] == "split" for c in able(BF16, 64, 64, 8192))
    assert any(c["variant"] == "stream" for c in able(BF16, 1152, 1152, 8192))
    for few in ((4096, 4096, 64), (8192, 8192, 8192), (64, 64, 128)):
        assert not any(c["variant"] == "stream" for c in able(BF16, *few))
    assert not any(c["variant"] == "persistent" for c in space(BF16, A100).configs)
    for c in able(BF16, 256, 4096, 65536):
        if c["variant"] == "split":
            assert int(c["splits"]) * 256 * 4096 * 4 <= 64 << 20


def test_the_prior_knows_large_from_small() -> None:
    assert chosen(FP32, 1, 4096, 4096).split()[0] == "rows"
    assert chosen(BF16, 16, 4096, 4096).split()[0] in ("tile", "split")
    big = chosen(BF16, 4096, 4096, 4096).split()[1]
    assert {int(n) for n in big.split("x")[:2]} <= {128, 256}
    assert chosen(BF16, 64, 64, 65536).split()[0] == "split"
    for kind in (BF16, FP32, TF32):
        for c in able(kind, 512, 512, 512):
            longer = prior.cost(kind, c, sizes(512, 512, 4096), H100)
            assert 0 < prior.cost(kind, c, sizes(512, 512, 512), H100) < longer
    library = [library_prior.cost(kind, sizes(4096, 4096, 4096), H100, (True, False)) for kind in (BF16, TF32, FP32)]
    assert library == sorted(library)
    odd = library_prior.cost(BF16, sizes(512, 511, 511), H100, (True, False), misaligned=True)
    assert odd > 3 * library_prior.cost(BF16, sizes(512, 511, 511), H100, (True, False))
    assert prior.cost(BF16, space(BF16, H100).configs[0], sizes(0, 64, 64), H100) == H100.launch_seconds


def test_a_config_whose_loads_one_by_one_would_spill_comes_after_all_others() -> None:
    named = {label(config): config for config in space(BF16, H100).configs}
    large, small = named["tile 128x128x64 s3 w4"], named["tile 32x32x64 s2 w4"]
    odd = prior.Access(alone=True, along_k=True), prior.Access(alone=True)
    at = sizes(2048, 2047, 2047)
    assert prior.cost(BF16, large, at, H100) < prior.cost(BF16, small, at, H100)
    assert prior.cost(BF16, large, at, H100, odd) > 100 * prior.cost(BF16, small, at, H100, odd)
    assert prior.refused(BF16, large, at, H100, odd) and not prior.refused(BF16, small, at, H100, odd)


def test_runs_in_memory_are_dear_where_they_are_short() -> None:
    config = next(c for c in space(BF16, H100).configs if label(c) == "tile 16x32x256 s4 w4")
    long = prior.Access(along_k=True), prior.Access(along_k=True)
    assert prior.cost(BF16, config, sizes(16, 4096, 4096), H100, long) < prior.cost(BF16, config, sizes(16, 4096, 4096), H100)


def test_what_a_prologue_computes_is_paid_for_each_block_of_the_other_operand() -> None:
    config = next(c for c in space(BF16, H100).configs if label(c) == "tile 64x64x128 s5 w4")
    plain, gelu = (prior.Access(along_k=True, work=work) for work in (0.0, 31.0))

    def extra(n: int) -> float:
        without, with_gelu = (prior.cost(BF16, config, sizes(128, n, 4096), H100, (a, prior.Access())) for a in (plain, gelu))
        return with_gelu - without

    assert 0 < 3 * extra(64) < extra(16384)


def test_operands_are_loaded_one_by_one_where_sixteen_does_not_divide_their_rows() -> None:
    kernel = product(torch.bfloat16, "k", "k")
    assert kernel.scalar_loads(sizes(64, 64, 64)) == (False, False) and kernel.scalar_loads(sizes(64, 64, 72)) == (True, True)
    assert not kernel.misaligned(sizes(64, 64, 72)) and kernel.misaligned(sizes(64, 64, 71))
    assert product(torch.bfloat16).scalar_loads(sizes(64, 72, 64)) == (False, True)
    assert product(torch.bfloat16, "any").scalar_loads({**sizes(64, 64, 64), "a_stride_m": 64}) == (True, False)
    assert product(torch.bfloat16).scalar_loads(sizes(1, 64, 71)) == (False, False), "there is one row"


def test_the_kind_says_what_tensor_cores_take() -> None:
    assert Kind.of(product(torch.bfloat16)) == BF16 and Kind.of(product(torch.float32)) == FP32
    assert Kind.of(product(torch.int8, out=torch.int32)).tables == ("int8_mm",)
    mixed = Kind.of(product(torch.float16, stored=(torch.float16, torch.int8)))
    assert mixed.tables == ("mm", "mixed_mm") and mixed.itemsize == 2
    assert Kind.of(product(torch.float8_e4m3fn, out=torch.bfloat16)).tables == ("scaled_mm",)


def test_every_config_is_a_candidate_of_its_own() -> None:
    made = gemm_candidates(product(torch.bfloat16), "product", torch.device("cpu"))
    assert len({c.name for c in made}) == len(made) == sum(not c.get("swapped") for c in space(BF16, H100).configs)
    assert len({c.source_hash for c in made[:5]}) == 5 and not made[0].hard_limits


def test_blocks_of_few_rows_are_swapped_where_tensor_cores_take_64_rows_from_shared_memory() -> None:
    def swapped(kind: Kind, on: device.DeviceFacts = H100) -> set[object]:
        return {c["variant"] for c in space(kind, on).configs if c.get("swapped")}

    assert swapped(BF16) == {"tile", "split", "stream"}
    assert not (swapped(BF16, A100) or swapped(FP32) or swapped(Kind(1, int8=True)) or swapped(Kind(2, int8=True, mixed=True)))
    kernel = product(torch.bfloat16, "k", "k")
    for other in (kernel, product(torch.bfloat16, "k", "n")):
        made = gemm_candidates(other, "product", torch.device("cpu"))
        assert any("swapped" in c.name for c in made) == (other is kernel), "B lies along k"
    dense = {n: (prior.Access(along_k=True), prior.Access(along_k=True)) for n in (4096, 14336)}
    for m, n, k, first in ((4, 14336, 4096, "tile swapped"), (16, 4096, 14336, "split swapped"), (1, 4096, 4096, "rows")):
        at = {**kernel.dense_strides(sizes(m, n, k)), **sizes(m, n, k)}
        assert label(min(able(BF16, m, n, k), key=lambda c: prior.cost(BF16, c, at, H100, dense[n]))).startswith(first)


def test_lanes_along_k_take_part_where_a_thread_has_registers_for_their_sums() -> None:
    def wide(m: int) -> bool:
        return "rows 1x16x512 s3 w4" in {label(c) for c in able(BF16, m, 4096, 4096)}

    assert wide(1) and wide(2) and not wide(3)
    assert all("swapped" not in label(c) for c in able(BF16, 17, 4096, 4096))


def test_blocks_are_stored_in_parts_where_programs_have_several_and_loops_made_one_where_the_epilogue_is_light() -> None:
    flat = "persistent 128x256x64 s4 w8 4 stores flat"
    assert flat in {label(c) for c in able(BF16, 4096, 4096, 4096)}
    assert flat not in {label(c) for c in able(BF16, 1024, 4096, 4096)}, "128 blocks are one round"
    assert not any(c.get("stores") for kind in (FP32, Kind(1, float8=True)) for c in space(kind, H100).configs)
    at = sizes(4096, 4096, 4096)
    assert prior.cost(BF16, named(flat), at, H100) < prior.cost(BF16, named("persistent 128x256x64 s3 w8"), at, H100)
    for function, light in ((torch.relu, True), (torch.nn.functional.gelu, False)):
        made = {c.name for c in gemm_candidates(with_epilogue(function), "product", torch.device("cpu"))}
        assert (flat in made) == light and ("persistent 128x256x64 s3 w8 2 stores" in made) != light


def named(name: str) -> Config:
    return next(c for c in space(BF16, H100).configs if label(c) == name)


def with_epilogue(function: Callable[[torch.Tensor], torch.Tensor]) -> GemmKernel:
    x, w = torch.zeros(5, 24, dtype=torch.bfloat16), torch.zeros(24, 9, dtype=torch.bfloat16)
    with options.override(interpret=True):
        program, template = lowered(lambda x, w: function(x @ w), (x, w))
    return gemm_kernel.canonicalize(template, program.buffers)[0]


@pytest.fixture
def _precision_put_back() -> Iterator[None]:
    """torch's own test database, where it has been imported, forbids to set flags for good."""
    with torch.backends.__allow_nonbracketed_mutation():
        yield
        torch.set_float32_matmul_precision("highest")
        for backend in (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
            backend.fp32_precision = "none"


SWITCHES: dict[str, Callable[[], None]] = {
    "matmul.fp32_precision": lambda: setattr(matmul, "fp32_precision", "tf32"),
    "backends.fp32_precision": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "matmul.allow_tf32": lambda: setattr(matmul, "allow_tf32", True),
    "set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("high"),
}


@pytest.mark.usefixtures("_precision_put_back")
@pytest.mark.parametrize("switch", SWITCHES)
def test_each_of_torchs_switches_allows_tf32(switch: str) -> None:
    """PyTorch refuses to tell by its older words what was said in its newer ones."""
    program, template = lowered(lambda x, y: x @ y, (torch.randn(5, 6), torch.randn(6, 7)))
    there = {name: replace(b, device=torch.device("cuda", 0)) for name, b in program.buffers.items()}
    assert not gemm_kernel.canonicalize(template, there)[0].tf32
    SWITCHES[switch]()
    assert gemm_kernel.canonicalize(template, there)[0].tf32 and not gemm_kernel.canonicalize(template, program.buffers)[0].tf32


def test_a_registered_family_is_tried_on_the_gpus_that_it_serves() -> None:
    row, before = Gemm(32, 64, 128, 3, 2), space(BF16, A100).configs
    register("ampere", lambda: Heuristic("ampere", {"mm": (row,)}), lambda gpu: gpu.capability == 80)
    try:
        mine = {c for c in space(BF16, A100).configs if c["variant"] == "tile" and (c["m"], c["n"], c["k"]) == (32, 64, 128)}
        assert tile_config(row, variant="tile") in mine and len(space(BF16, A100).configs) < len(before)
        assert len(space(Kind(1, int8=True), A100).configs) > 20, "tables that it lacks are those of the maker"
        assert tile_config(row, variant="tile") not in space(BF16, H100).configs
    finally:
        unregister("ampere")
    assert space(BF16, A100).configs == before
