"""`polytile autotune --scan`: hazards told from the source of kernels, and none where there are none."""

from __future__ import annotations

from pathlib import Path

from tests.cli.helpers import run

KERNELS = '''
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})]


@triton.jit
def add_one(at, inside, value):
    tl.store(at, value + 1, inside)


@triton.autotune(CONFIGS, key=["N"])
@triton.jit
def in_place(x, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    add_one(x + at, at < N, tl.load(x + at, at < N))


@triton.heuristics({"EVEN": lambda given: given["N"] % 64 == 0})
@triton.autotune(CONFIGS, key=["M"])
@triton.jit
def row_sums(x, out, M, N, stride, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    total = 0.0
    for done in range(0, N, BLOCK):
        at = done + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x + tl.program_id(0) * stride + at, at < N, 0.0))
    tl.atomic_add(out + tl.program_id(0), total)


@triton.autotune(CONFIGS, key=["N"], reset_to_zero=["out"], restore_value=["x"])
@triton.jit
def careful(x, out, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at, tl.load(x + at, at < N), at < N)
    tl.store(x + at, 0.0, at < N)
'''


def test_hazards_are_named_with_their_place_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "kernels_to_scan.py").write_text(KERNELS)
    result = run("autotune", "--scan", str(tmp_path / "kernels_to_scan.py"))
    lines = [line for line in result.output.splitlines() if "kernels_to_scan.py:" in line]
    assert result.exit_code == 1
    assert len(lines) == 3
    assert any("in_place" in line and "restore_value=['x']" in line and ":17" in line for line in lines)
    assert any("row_sums" in line and "reset_to_zero=['out']" in line for line in lines)
    assert any("row_sums" in line and "add 'N' to key" in line for line in lines)
    assert "3 autotuned kernels, 3 hazards" in result.output


def test_a_file_without_hazards_ends_well_and_one_that_is_not_there_says_so(tmp_path: Path) -> None:
    (tmp_path / "kernels_without_hazards.py").write_text(KERNELS.partition('@triton.autotune(CONFIGS, key=["N"])')[0])
    assert run("autotune", "--scan", str(tmp_path / "kernels_without_hazards.py")).exit_code == 0
    result = run("autotune", "--scan", str(tmp_path / "missing.py"))
    assert result.exit_code == 2
    assert "there is no file" in result.output
