"""What the prediction of loops on a GPU is expected to know, by times that an H100 took (docs/cuda-prior.md)."""

from __future__ import annotations

import pytest

from polytile.candidates import triton_variants as variants
from polytile.candidates.triton_loops import label
from polytile.cost import triton_loops as prior
from polytile.cost.triton_work import work_at
from polytile.ir import expr
from polytile.ir.loop import Loop
from polytile.runtime.cuda import device
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.gpu import catalogue
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import F32, P0, P1, R0, R1, R2, S0, S1, S2, kernel_of, load, loop, op, store
from tests.codegen.test_loops_golden import column_sum, softmax
from tests.codegen.test_triton_column_reduction import gradients
from tests.codegen.test_triton_golden import half_norm

H100 = device.named("H100")
SHORTLIST = 6


def ranking(kernel: LoopKernel, **size: int) -> dict[str, float]:
    """Predicted µs of every candidate, the best first."""
    nest = nest_of(kernel.loop)
    able = [c for c in variants.configs(kernel, nest, H100) if variants.valid(kernel, nest, c, size)]
    cost = {label(config): prior.cost(kernel, config, size, H100) * 1e6 for config in able}
    return dict(sorted(cost.items(), key=lambda pair: pair[1]))


@pytest.mark.parametrize(
    ("rows", "length", "candidate", "us"),
    [
        (4096, 1024, "persistent r=1024 warps=2 x=1", 7.18),  # 33.6 MB, all of which stays in the cache
        (131072, 64, "persistent r=64 warps=2 x=16", 23.55),  # 67.1 MB, none of which does
    ],
)
def test_memory_is_waited_for_where_the_cache_does_not_hold_the_data(rows: int, length: int, candidate: str, us: float) -> None:
    assert ranking(kernel_of(softmax()), n0=rows, n1=length)[candidate] == pytest.approx(us, rel=0.1)


def test_narrow_columns_are_tried_where_the_cache_holds_them() -> None:
    """33.6 MB of float32 in 64 rows: 32 columns by four warps take 6.9 µs, 256 by eight 10.7."""
    found = ranking(kernel_of(column_sum()), n0=131072, n1=64)
    assert "persistent r=64 warps=4 x=32" in list(found)[:SHORTLIST]
    assert found["persistent r=64 warps=4 x=32"] < found["looped r=32 warps=8 x=256"]


def test_programs_without_a_block_of_their_columns_are_not_free() -> None:
    """64 rows by 4 programs a column took 86 µs of a batch norm, by 64 of them 1180, by 256 of them 8150."""
    found = ranking(kernel_of(column_sum()), n0=131072, n1=64)
    predicted = [found[f"split r=64 splits={splits} warps=4 x=32"] for splits in (4, 16, 64)]
    assert predicted[1] > 2 * predicted[0] and predicted[2] > 3 * predicted[1]


@pytest.mark.parametrize("rows,length,splits", [(1024, 16384, 2), (512, 32768, 4), (256, 65536, 8)])
def test_clusters_that_add_up_columns_are_tried_where_they_win(rows: int, length: int, splits: int) -> None:
    """1.1 to 1.4 times as fast as what reads rows twice; below 8193 columns one program holds a row."""
    first = list(ranking(kernel_of(gradients()), n0=rows, n1=length))[:SHORTLIST]
    assert any(f"splits={splits}" in name for name in first)
    assert not any("splits" in name for name in ranking(kernel_of(gradients()), n0=rows, n1=8192))


@pytest.mark.parametrize("rows,length", [(64, 131072), (4, 1048576)])
def test_programs_that_go_down_columns_alone_win_where_rows_are_few_and_long(rows: int, length: int) -> None:
    """A program reads as many blocks as there are blocks of rows, not as many as a row has."""
    assert next(iter(ranking(kernel_of(gradients()), n0=rows, n1=length))).startswith("column_parallel")


def test_columns_that_many_warps_share_are_put_together_slowly() -> None:
    """128 rows of 64 columns: 128 by 16 warps take 3.6 µs, 64 by eight 1.7, 32 by four 1.4, nearly all of it in one program."""
    found = ranking(kernel_of(column_sum()), n0=64, n1=128)
    predicted = [found[f"persistent r=128 {rest}"] for rest in ("warps=4 x=32", "warps=8 x=64", "warps=16 x=128")]
    assert predicted == sorted(predicted)


def test_rows_of_whole_vectors_are_cheaper_than_others_of_their_length() -> None:
    kernel, chosen = half_norm().kernel, "persistent r=512 warps=4 x=2"
    predicted = [ranking(kernel, n0=1 << 14, n1=length)[chosen] for length in (381, 382, 380, 376)]
    assert predicted == sorted(predicted, reverse=True) and predicted[0] > 1.1 * predicted[-1]


def test_rows_that_registers_hold_are_not_gone_through() -> None:
    """A bfloat16 norm of 1064×4342: rows by eight warps take 11.3 µs, in blocks of 1024 13.2."""
    predicted = ranking(half_norm().kernel, n0=1064, n1=4342)
    assert predicted["persistent r=8192 warps=8 x=1"] < predicted["looped r=1024 warps=4 x=1"]


def test_lanes_that_share_a_row_have_to_agree() -> None:
    """Rows of odd length lie an element a lane: eight rows of 128 by one warp take 10.1 µs of 60816×109, by two warps 13.3."""
    predicted = ranking(half_norm().kernel, n0=60816, n1=109)
    few, many = predicted["persistent r=128 warps=1 x=8"], predicted["persistent r=128 warps=4 x=16"]
    assert few < predicted["persistent r=128 warps=2 x=16"] < many


def test_programs_of_rows_without_a_block_are_not_free() -> None:
    """A norm of 82×42063 in blocks of 2048: by 32 programs a row, of which 21 have one, 17.3 µs; by 128 of them 37.4."""
    predicted = ranking(half_norm().kernel, n0=82, n1=42063)
    assert predicted["split r=2048 splits=128 warps=4"] > 1.1 * predicted["split r=2048 splits=32 warps=4"]


def test_predictions_do_not_depend_on_the_order_of_sets() -> None:
    """At sizes of 1 several axes have stride 1; the first of the nest's is taken for the run, in every process."""
    kernel = kernel_of(column_sum())
    work = work_at(kernel, catalogue.looped(x=32, r=32, warps=4), (("n0", 1), ("n1", 4096)))
    assert all([axis for axis in work.extents if axis in one.strides] == list(one.strides) for one in work.accesses)


H200 = device.named("H200")


def middle_sum() -> Loop:
    index = P0 * S1 * S2 + R0 * S1 + P1
    return loop([store("o", P0 * S1 + P1, expr.reduce("sum", F32, load("x", index)))], {P0: S0, P1: S1}, {R0: S2})


THREE_AXES = {
    "odd": ({"n0": 128, "n1": 4095, "n2": 4096}, 1),
    "even": ({"n0": 128, "n1": 4094, "n2": 4096}, 1),
    "whole vectors": ({"n0": 128, "n1": 4096, "n2": 4096}, 3),
}


@pytest.mark.parametrize("name", THREE_AXES)
def test_blocks_of_the_middle_axis_come_ahead_only_by_wide_copies(name: str) -> None:
    size, stages = THREE_AXES[name]
    kernel = kernel_of(middle_sum())
    nest = nest_of(kernel.loop)
    able = [c for c in variants.configs(kernel, nest, H200) if variants.valid(kernel, nest, c, size)]
    predicted = {c: prior.cost(kernel, c, size, H200) for c in able}
    first = min(able, key=lambda c: predicted[c])
    assert int(first.get("stages", 1) or 1) == stages, label(first)
    moved = 4 * 128 * 4096 * size["n1"] / H200.bandwidth
    assert predicted[first] == pytest.approx(moved, rel=0.2), "about what a copy takes"
    if name == "odd":
        narrow = next(c for c in able if label(c) == "looped r=32 stages=3 warps=4 x=64")
        assert predicted[narrow] > 2 * moved, "17.1 ms on an H200"


def test_programs_share_the_longest_axis_of_three() -> None:
    """68 planes of 17 rows of 18: of 256 programs that share the rows one has them all."""
    value = load("x", (R0 * S1 * 3 + R1 * 3) * S2 + R2)
    body = loop([store("o", 0, expr.reduce("sum", F32, op("mul", value, value)))], {}, {R0: S0, R1: S1, R2: S2})
    found = ranking(kernel_of(body), n0=68, n1=17, n2=18)
    assert all("along=r2" in name for name in list(found)[:SHORTLIST]), list(found)[:SHORTLIST]
    rows, alone = "split along=r1 r=16 r1=64 splits=256 warps=4", "looped r=16 r1=64 warps=4"
    assert found[rows] > 0.8 * found.get(alone, found[rows]) and found[rows] > 5 * next(iter(found.values()))
