"""How programs share the blocks of a CUTLASS product (matmul/cutlass/blocks.h), compiled for the host: every step along k of a
block is one program's, and the configs' table counts them as the kernel does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from polytile.matmul.cutlass.configs import FEWEST_STEPS, shared_out
from polytile.matmul.cutlass.text import GROUP, TEXTS
from polytile.problem import Config
from polytile.runtime import toolchain

M, N, K, SMS = 128, 64, 64, 132

HOST = f"""
#include <algorithm>
#include <cstdio>
#include <cstdlib>
using std::max, std::min;
#define CUTLASS_DEVICE inline
constexpr int BM = {M}, BN = {N}, BK = {K}, CLUSTER = 1, GROUP = {GROUP}, PROGRAMS = {SMS}, FEWEST_STEPS = {FEWEST_STEPS};
constexpr bool SPLIT = true;
{{blocks}}
int main(int count, char **given)
{{{{
    Blocks blocks(atoi(given[1]), atoi(given[2]), atoi(given[3]), atoi(given[4]));
    printf("%d %d\\n", blocks.whole, blocks.parts);
    for (int number = 0; number < blocks.pieces(); number++) {{{{
        Piece piece = blocks.piece(number, 0);
        printf("%d %d %d %d %d %d\\n", piece.item, piece.row, piece.column, piece.first, piece.last, piece.part);
    }}}}
}}}}
"""


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that prints the pieces at sizes."""
    folder = tmp_path_factory.mktemp("blocks")
    text = TEXTS["blocks"].read_text().replace("asm volatile", "// asm volatile")
    (folder / "pieces.cpp").write_text(HOST.format(blocks=text))
    command = [*toolchain.require().command, "-std=c++17", "-O0", "-o", str(folder / "pieces"), str(folder / "pieces.cpp")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "pieces"


@pytest.mark.parametrize(
    "size",
    [(1, 64, 64, 65536), (1, 512, 512, 8192), (3, 700, 1000, 1000), (1, 1536, 1536, 4096), (1, 4096, 4096, 512), (2, 1, 1, 100)],
)
def test_every_step_of_every_block_is_one_piece_s(size: tuple[int, int, int, int], pieces: Path) -> None:
    said = subprocess.run([pieces, *map(str, size)], check=True, capture_output=True, text=True).stdout.splitlines()
    whole, parts = map(int, said[0].split())
    found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    numbers = []
    for line in said[1:]:
        item, row, column, first, last, part = map(int, line.split())
        found.setdefault((item, row, column), []).append((first, last))
        numbers += [part] if part >= 0 else []
    batch, m, n, k = size
    wanted = {(i, y, x) for i in range(batch) for y in range(0, m, M) for x in range(0, n, N)}
    assert set(found) == wanted and numbers == list(range(len(numbers))) and len(numbers) <= SMS
    for spans in found.values():
        ends = [0, *(last for _, last in spans)]
        assert [first for first, _ in spans] == ends[:-1] and ends[-1] == -(-k // K)
        lengths = [last - first for first, last in spans]
        assert max(lengths) - min(lengths) <= 1 and (len(spans) == 1 or min(lengths) >= FEWEST_STEPS)
    shared = shared_out(Config.of(split=1, m=M, n=N, k=K), dict(zip(("batch", "M", "N", "K"), size, strict=True)), SMS)
    assert shared.parts == parts and (parts == 1 or shared.full * SMS == whole)
