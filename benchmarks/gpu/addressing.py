"""`python -m benchmarks.gpu.addressing [--out FOLDER]`: what reaching memory through pointers, block pointers and tensor
descriptors costs a loop, by hand-written kernels that differ in nothing else.

A softmax of rows held whole, the same in blocks of a row (two readings), and a sum of a matrix and a transposed one, in blocks
of 64×64. `--show FILE` prints the table of a result file and needs no GPU.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu.replay import Call, copy_bandwidth, kernel_times
from polytile.report import Table, show

FORMS = ("pointers", "block pointers", "descriptors")
POINTERS, BLOCK_POINTERS = tl.constexpr(0), tl.constexpr(1)
SHAPES = ((8192, 4096), (16384, 1024), (1024, 16384), (8192, 1000))
TILE = 64
MOST_DESCRIBED = 256
"""Elements of a descriptor's block along one dimension."""


@triton.jit
def load(base, whole, row, column, m, n, FORM: tl.constexpr, Y: tl.constexpr, X: tl.constexpr, other: tl.constexpr):
    """Y × X elements from (row, column) on of a row-major m × n matrix; `other` beyond its edge, 0 by descriptors."""
    if FORM == POINTERS:
        y, x = row + tl.arange(0, Y)[:, None], column + tl.arange(0, X)[None, :]
        return tl.load(base + y * n + x, mask=(y < m) & (x < n), other=other)
    elif FORM == BLOCK_POINTERS:
        block = tl.make_block_ptr(base, (m, n), (n, 1), (row, column), (Y, X), (1, 0))
        return tl.load(block, boundary_check=(0, 1), padding_option="zero")
    else:
        return whole.load([row, column])


@triton.jit
def store(base, whole, value, row, column, m, n, FORM: tl.constexpr, Y: tl.constexpr, X: tl.constexpr):
    """The like of `load`."""
    if FORM == POINTERS:
        y, x = row + tl.arange(0, Y)[:, None], column + tl.arange(0, X)[None, :]
        tl.store(base + y * n + x, value, mask=(y < m) & (x < n))
    elif FORM == BLOCK_POINTERS:
        block = tl.make_block_ptr(base, (m, n), (n, 1), (row, column), (Y, X), (1, 0))
        tl.store(block, value, boundary_check=(0, 1))
    else:
        whole.store([row, column], value)


@triton.jit
def whole_rows(a, a_all, o, o_all, m, n, FORM: tl.constexpr, Y: tl.constexpr, X: tl.constexpr):
    row = tl.program_id(0) * Y
    inside = tl.arange(0, X)[None, :] < n
    value = load(a, a_all, row, 0, m, n, FORM, Y, X, 0).to(tl.float32)
    value = tl.where(inside, value, float("-inf"))
    powers = tl.exp(value - tl.max(value, 1)[:, None])
    result = (powers / tl.sum(powers, 1)[:, None]).to(o.dtype.element_ty)
    store(o, o_all, result, row, 0, m, n, FORM, Y, X)


@triton.jit
def blocks_of_rows(a, a_all, o, o_all, m, n, FORM: tl.constexpr, Y: tl.constexpr, X: tl.constexpr):
    row = tl.program_id(0) * Y
    most = tl.full([Y, X], float("-inf"), tl.float32)
    total = tl.zeros([Y, X], tl.float32)
    for at in range(0, n, X):
        value = load(a, a_all, row, at, m, n, FORM, Y, X, 0).to(tl.float32)
        value = tl.where(at + tl.arange(0, X)[None, :] < n, value, float("-inf"))
        greater = tl.maximum(most, value)
        kept = tl.where(greater == float("-inf"), 0.0, greater)
        total = total * tl.exp(most - kept) + tl.exp(value - kept)
        most = greater
    largest = tl.max(most, 1)[:, None]
    whole = tl.sum(total * tl.exp(most - largest), 1)[:, None]
    for at in range(0, n, X):
        value = load(a, a_all, row, at, m, n, FORM, Y, X, 0).to(tl.float32)
        result = (tl.exp(value - largest) / whole).to(o.dtype.element_ty)
        store(o, o_all, result, row, at, m, n, FORM, Y, X)


@triton.jit
def transposed_sum(a, a_all, b, b_all, o, o_all, m, n, FORM: tl.constexpr, Y: tl.constexpr, X: tl.constexpr):
    row, column = tl.program_id(0) * Y, tl.program_id(1) * X
    other = tl.trans(load(b, b_all, column, row, n, m, FORM, X, Y, 0))
    value = load(a, a_all, row, column, m, n, FORM, Y, X, 0).to(tl.float32) + other.to(tl.float32)
    store(o, o_all, value.to(o.dtype.element_ty), row, column, m, n, FORM, Y, X)


def softmax(kernel: Any, a: Tensor, form: int, rows: int, columns: int, warps: int) -> tuple[Tensor, Call]:
    out = torch.full_like(a, torch.nan)
    m, n = a.shape
    described = [_described(tensor, rows, columns, form) for tensor in (a, out)]

    def call() -> None:
        kernel[(triton.cdiv(m, rows),)](a, described[0], out, described[1], m, n, form, rows, columns, num_warps=warps)

    return out, call


def added(a: Tensor, b: Tensor, form: int) -> tuple[Tensor, Call]:
    out = torch.full_like(a, torch.nan)
    m, n = a.shape
    described = [_described(tensor, TILE, TILE, form) for tensor in (a, b, out)]

    def call() -> None:
        grid = (triton.cdiv(m, TILE), triton.cdiv(n, TILE))
        transposed_sum[grid](a, described[0], b, described[1], out, described[2], m, n, form, TILE, TILE, num_warps=4)

    return out, call


def _described(tensor: Tensor, rows: int, columns: int, form: int) -> Any:
    """A descriptor where the form asks for one."""
    return TensorDescriptor.from_tensor(tensor, [rows, columns]) if FORMS[form] == "descriptors" else None


def contestants(what: str, a: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, Call]]]:
    """What is right in float32, and for each form its output and the call that writes it."""
    n = a.shape[1]
    if what == "transposed sum":
        b = torch.randn(n, a.shape[0], device=a.device).to(a.dtype)
        return a.float() + b.float().T, {name: added(a, b, form) for form, name in enumerate(FORMS)}
    right = torch.softmax(a.float(), 1)
    if what == "softmax, blocks of rows":
        return right, {name: softmax(blocks_of_rows, a, form, 4, 256, 4) for form, name in enumerate(FORMS)}
    width = triton.next_power_of_2(n)
    forms = [form for form, name in enumerate(FORMS) if name != "descriptors" or width <= MOST_DESCRIBED]
    return right, {FORMS[form]: softmax(whole_rows, a, form, 1, width, max(4, width // 1024)) for form in forms}


WHAT = ("softmax, whole rows", "softmax, blocks of rows", "transposed sum")


def measure(what: str, dtype: torch.dtype, shape: tuple[int, int]) -> dict[str, Any]:
    """A row of results: µs by form, where all are right."""
    right, made = contestants(what, torch.randn(*shape, device="cuda").to(dtype))
    for name, (out, call) in made.items():
        call()
        torch.testing.assert_close(out.float(), right, rtol=2e-2, atol=1e-2, msg=f"{what} by {name} is wrong")
    us = kernel_times({name: call for name, (_, call) in made.items()})
    print(what, dtype, shape, {name: round(t, 1) for name, t in us.items()}, flush=True)
    return {"what": what, "dtype": str(dtype).removeprefix("torch."), "shape": list(shape), "us": us}


def table(results: Mapping[str, Any]) -> Table:
    body = []
    for row in results["cells"]:
        times = [f"{row['us'][form]:.1f}" if form in row["us"] else "–" for form in FORMS]
        body.append((row["what"], row["dtype"], "×".join(map(str, row["shape"])), *times))
    return Table.from_rows("The same loop by three addressings, kernel time in µs", ["loop", "type", "shape", *FORMS], body)


def main() -> None:
    parser = Command(__doc__, "gpu_addressing", lambda found: show(table(found)), gpu=True)
    given = parser.parsed()
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    cells = [measure(what, dtype, shape) for what in WHAT for dtype in (torch.bfloat16, torch.float32) for shape in SHAPES]
    results = {"device": torch.cuda.get_device_name(), "copy_bytes_per_second": copy_bandwidth(), "cells": cells}
    print(record.write("gpu_addressing", results, given.out))
    show(table(results))


if __name__ == "__main__":
    main()
