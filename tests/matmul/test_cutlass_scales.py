"""The scales of a CUTLASS product's sums (matmul/cutlass/scales.h), compiled for the host: the threads of a warp, which exchange
scales, multiply the products of each row and column by the scales of that row and column."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from polytile.matmul.cutlass.text import TEXTS
from polytile.runtime import toolchain

M, N, STEP = 203, 300, 3

HOST = """
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <thread>
#include <vector>
using std::min;
#define CUTLASS_DEVICE inline
#define CUTLASS_PRAGMA_UNROLL
constexpr int BN = {bn}, A_SCALED = {rows}, B_SCALED = {columns}, M = {m}, N = {n}, STEP = {step};
thread_local struct {{ int x; }} threadIdx;
std::barrier together(32);
float exchanged[32];
float __shfl_sync(unsigned, float value, int from)
{{
    exchanged[threadIdx.x % 32] = value;
    together.arrive_and_wait();
    float got = exchanged[from];
    together.arrive_and_wait();
    return got;
}}
{scales}
constexpr int WIDTH = {width}, TALL = {tall}, DOWN = 64, ROW = 128, COLUMN = {column};
struct Sums {{
    float value[TALL][BN / WIDTH][WIDTH / 2] = {{}};
    float &operator()(int i, int down, int right) {{ return value[down][right][i]; }}
}};
float of_row[STEP + 1][M], of_columns[STEP + 1][N];
int wrong[32];

void warp(int lane)
{{
    threadIdx.x = 32 + lane; /* the second of a group: its rows are 16 to 31, and those 64 below */
    int row = ROW + 16 + lane / 4;
    Scales<2 * TALL, DOWN, WIDTH> scales;
    scales.load(Scaling{{of_row[0], of_columns[0], 1, M, N, 1}}, STEP, M, N, row, COLUMN);
    Sums sums;
    for (int down = 0; down < TALL; down++)
        for (int right = 0; right < BN / WIDTH; right++)
            scales.add(sums, [](int i) {{ return float(i + 1); }}, down, right);
    for (int down = 0; down < TALL; down++)
        for (int column = 0; column < BN; column++)
            for (int below = 0; below < 2; below++) {{
                int y = row + down * DOWN + below * 8, x = COLUMN + column, within = column % WIDTH;
                if (within % 8 / 2 != lane % 4 || y >= M || x >= N)
                    continue;
                int i = within / 8 * 4 + below * 2 + within % 2;
                float wanted = of_row[STEP][y / A_SCALED] * of_columns[STEP][x / B_SCALED] * (i + 1);
                wrong[lane] += sums(i, down, column / WIDTH) != wanted;
            }}
}}

int main()
{{
    for (int i = 0; i < (STEP + 1) * M; i++)
        of_row[0][i] = i % 61 + 1;
    for (int i = 0; i < (STEP + 1) * N; i++)
        of_columns[0][i] = i % 67 + 1;
    std::vector<std::thread> threads;
    for (int lane = 0; lane < 32; lane++)
        threads.emplace_back(warp, lane);
    for (auto &each : threads)
        each.join();
    for (int each : wrong)
        if (each)
            printf("%d ", each);
}}
"""


@pytest.mark.parametrize(
    ("rows", "columns", "bn", "width", "tall"),
    [(1, 128, 256, 128, 1), (1, 1, 128, 128, 1), (1, 1, 256, 128, 1), (128, 1, 64, 64, 2), (1, 1, 32, 32, 1)],
)
def test_products_are_multiplied_by_the_scales_of_their_row_and_column(
    rows: int, columns: int, bn: int, width: int, tall: int, tmp_path: Path
) -> None:
    """In a block that the matrix ends in."""
    numbers = {"rows": rows, "columns": columns, "bn": bn, "width": width, "tall": tall, "m": M, "n": N, "step": STEP}
    column = (N - 1) // bn * bn
    text = HOST.format(**numbers, column=column, scales=TEXTS["scales"].read_text())
    (tmp_path / "scales.cpp").write_text(text)
    command = [*toolchain.require().command, "-std=c++20", "-O0", "-pthread", "-o", str(tmp_path / "scales")]
    subprocess.run([*command, str(tmp_path / "scales.cpp")], check=True, capture_output=True)
    assert subprocess.run([tmp_path / "scales"], check=True, capture_output=True, text=True).stdout == ""
