"""From a table's rows to the configs tried: cutting to the sizes, pruning, finishing, duplicates; families from outside."""

from __future__ import annotations

import importlib.metadata
import threading
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from polytile.errors import ConfigTableError
from polytile.matmul.configs import Heuristic, Request, families, heuristic, override, register, registry
from polytile.matmul.configs.records import Gemm, RocmGemm
from polytile.matmul.configs.registry import unregister

H100_SHARED = 227 << 10


def blocks(config: Gemm) -> tuple[int, int, int]:
    return config.block_m, config.block_n, config.block_k


def test_large_sizes_leave_the_table_as_it_is() -> None:
    found = heuristic("cuda")
    assert found.configs(Request(4096, 4096, 4096)) == found.table("mm")


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (17, 300, 65), (64, 64, 64), (3, 4096, 33)])
def test_blocks_are_cut_to_the_next_power_of_two_and_never_below_16(m: int, n: int, k: int) -> None:
    for verdict in heuristic("cuda").considered(Request(m, n, k)):
        if verdict.config is not None:
            for size, ours, row in zip((m, n, k), blocks(verdict.config), blocks(verdict.row), strict=True):
                above = 1
                while above < size:
                    above *= 2
                assert ours == max(16, min(row, above))


def test_int8_operands_keep_32_along_k() -> None:
    configs = heuristic("cuda").configs(Request(64, 64, 8, table="int8_mm", itemsize=1, int8=True))
    assert {c.block_k for c in configs} == {32}
    assert {c.block_k for c in heuristic("cuda").configs(Request(64, 64, 8))} == {16}


def test_blocks_are_scaled_before_they_are_cut() -> None:
    halved = heuristic("cuda").configs(Request(4096, 4096, 4096, scale=0.5))
    assert blocks(halved[-1]) == (64, 64, 32) and max(c.block_m for c in halved) == 64


def test_a_warp_has_256_elements_at_least() -> None:
    for config in heuristic("cuda").configs(Request(16, 16, 4096)):
        assert config.num_warps == 1
    for config in heuristic("cuda").configs(Request(32, 64, 64)):
        assert config.num_warps <= max(1, config.block_m * config.block_n // 256)


def test_duplicates_are_removed_over_every_field_the_hint_included() -> None:
    found = heuristic("cuda")
    plain = found.configs(Request(16, 16, 16))
    assert len(set(plain)) == len(plain) < len(found.table("mm"))
    hinted = found.configs(Request(16, 16, 16, hint=16))
    assert not set(plain) & set(hinted) and {replace(c, hint=None) for c in hinted} == set(plain)


def test_what_the_caller_cannot_use_is_left_out_with_the_rule() -> None:
    found = heuristic("cuda").considered(Request(512, 512, 512, exclude=lambda m, n, k: m > 64, cap=3))
    rules = Counter(v.rule for v in found)
    assert rules["predicate"] == sum(v.row.block_m > 64 for v in found) and rules["cap"] > 0
    assert sum(v.config is not None for v in found) == 3


def test_exhaustive_spaces_are_pruned_by_shared_memory_and_registers() -> None:
    found = heuristic("cuda")
    assert len(list(found.rows(Request(1, 1, 1, exhaustive=True)))) == 5**3 * 5 * 3
    tried = found.configs(Request(4096, 4096, 4096, itemsize=4, exhaustive=True, shared_bytes=H100_SHARED))
    assert tried
    for c in tried:
        assert c.num_stages is not None and c.group_m == 8
        assert c.num_stages * 4 * (c.block_m + c.block_n) * c.block_k <= H100_SHARED
    considered = found.considered(Request(4096, 4096, 4096, exhaustive=True))
    over = [v for v in considered if v.row.block_m * v.row.block_n / (32 * v.row.num_warps) > 255]
    assert over and all(v.rule == "registers" for v in over)


def test_persistent_kernels_never_use_two_warps() -> None:
    for m in (16, 64, 4096):
        request = Request(m, 32, 64, table="persistent_mm", exhaustive=True)
        assert all(c.num_warps != 2 for c in heuristic("cuda").configs(request))


def test_rocm_finishes_in_its_own_way() -> None:
    found = heuristic("rocm")
    for config in found.configs(Request(4096, 4096, 4096)):
        assert isinstance(config, RocmGemm) and config.num_stages == found.default_stages
        assert config.waves_per_eu in (0, 8 // config.num_warps)
    space = list(found.rows(Request(1, 1, 1, exhaustive=True)))
    assert len(space) == 5**3 * 2 * 2 * 3 * 2 * 2
    assert {c.num_stages for c in space} == {1, found.default_stages}
    with override("rocm", "mm", [RocmGemm(16, 48, 32, None, 4, matrix_instr_nonkdim=32), RocmGemm(64, 64, 32, None, 4)]):
        (dropped, kept) = found.considered(Request(512, 512, 512))
        assert dropped.rule == "matrix instruction" and kept.config is not None
    assert len(found.table("mm")) == 36


def test_a_cpu_keeps_a_block_of_sums_in_its_cache() -> None:
    assert all(c.block_m * c.block_n <= 1 << 13 for c in heuristic("cpu").configs(Request(4096, 4096, 4096)))
    assert len(heuristic("cpu").table("register_tiles")) == 55


def test_a_family_is_built_once_even_by_many_threads() -> None:
    made: list[Heuristic] = []

    def make() -> Heuristic:
        made.append(Heuristic("npu", {"mm": (Gemm(64, 64, 64, None, 4),)}))
        return made[-1]

    register("npu", make)
    try:
        found: list[Heuristic] = []
        threads = [threading.Thread(target=lambda: found.append(heuristic("npu"))) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 1 and all(each is made[0] for each in found) and "npu" in families()
        assert blocks(heuristic("npu").configs(Request(4096, 100, 20))[0]) == (64, 64, 32)
        with pytest.raises(ConfigTableError, match="'npu' exists"):
            register("npu", make)
        with pytest.raises(ConfigTableError, match="'npu' has no config table 'conv'"):
            heuristic("npu").table("conv")
    finally:
        unregister("npu")
    with pytest.raises(ConfigTableError, match="no device family 'npu'"):
        heuristic("npu")
    with pytest.raises(ConfigTableError, match="was not registered from outside"):
        unregister("cuda")


def test_installed_packages_bring_families_and_a_broken_one_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise OSError("no such table")

    def bring() -> None:
        assert "npu" not in families()
        register("npu", lambda: Heuristic("npu", {"mm": (Gemm(64, 64, 64, None, 4),)}))

    brought = [SimpleNamespace(name=f.__name__, value="mine", load=lambda f=f: f) for f in (broken, bring)]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: brought if group == registry.GROUP else [])
    registry._entries.cache_clear()
    try:
        assert [len(rows) for rows in heuristic("npu").tables.values()] == [1] and "npu" in families()
        assert "families of broken (mine) are left out: no such table" in caplog.text
    finally:
        unregister("npu")


def test_a_table_is_overridden_for_good_or_for_a_while() -> None:
    before, row = heuristic("xpu").table("mm"), Gemm(32, 32, 32, 1, 4)
    with override("xpu", "mm", [row]):
        assert heuristic("xpu").configs(Request(64, 64, 64)) == (row,)
        assert heuristic("cuda").table("mm") == before
    assert heuristic("xpu").table("mm") == before
    override("xpu", "mm", [row])
    assert heuristic("xpu").table("mm") == (row,)
    override("xpu", "mm", before)
    with pytest.raises(ConfigTableError, match="no config table 'nn'"):
        override("xpu", "nn", [row])
    with pytest.raises(ConfigTableError, match=r"table 'mm' of family 'xpu' has rows Gemm\(\.\.\.\), not '64x64'"):
        override("xpu", "mm", ["64x64"])  # type: ignore[list-item]
    with pytest.raises(ConfigTableError, match="family 'mine' takes functions as make and serves; it was given 3 and None"):
        register("mine", 3)  # type: ignore[arg-type]
