"""The epilogue of a generated matmul: right at odd sizes, in place, in every type, and legible."""

from __future__ import annotations

import functools

import pytest
import sympy
import torch

from polytile.candidates import products as templates
from polytile.ir import expr, sizes
from polytile.ir.buffer import Buffer, whole
from polytile.ir.expr import Node
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.template import Template
from polytile.matmul import gemm_args, gemm_kernel
from polytile.matmul.cpp import epilogue
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.runtime.launcher import time_burst
from tests.codegen.helpers import BF16, F32, F64, RELATIVE, S0, S1, S2, assert_close, assert_golden, op

ONE = sizes.ONE
P = tuple(sizes.axis(f"p{k}") for k in range(3))
POINT = P[1] * S2 + P[2]


def matmul(dtype: torch.dtype, stores: list[Store], names: dict[str, torch.dtype]) -> GemmKernel:
    """(1, s0, s1) @ (1, s1, s2) whose epilogue makes `stores` over (1, s0, s2)."""
    shapes = {"a": (ONE, S0, S1), "b": (ONE, S1, S2), "c": (ONE, S0, S2)}
    buffers = {k: Buffer(k, dtype, shape, sizes.contiguous_strides(shape)) for k, shape in shapes.items()}
    buffers |= {k: Buffer(k, kind, (), ()) for k, kind in names.items()}
    axes = tuple(Axis(p, n) for p, n in zip(P, shapes["c"], strict=True))
    views = (whole(buffers[k]) for k in "abc")
    return gemm_kernel.canonicalize(Template("mm0", "mm", *views, Loop("epilogue", axes, (), tuple(stores))), buffers)[0]


def gelu(x: Node) -> Node:
    half = functools.partial(expr.const, dtype=x.dtype)
    inner = op("add", op("erf", op("mul", x, half(0.7071067811865476))), half(1.0))
    return op("mul", op("mul", x, half(0.5)), inner)


def biased(dtype: torch.dtype) -> Node:
    accumulator = expr.make(expr.Accumulator, dtype=dtype)
    return op("add", accumulator, expr.load(dtype, "bias", P[2]))


def bias_gelu(dtype: torch.dtype, stored: torch.dtype) -> GemmKernel:
    return matmul(stored, [Store("out", POINT, gelu(biased(dtype)))], {"bias": stored, "out": stored})


def in_place_residual() -> GemmKernel:
    """h += product + bias, and the sum again beside what h was before."""
    old = expr.load(F32, "h", POINT)
    new = op("add", old, biased(F32))
    return matmul(
        F32, [Store("h", POINT, new), Store("was", POINT, op("neg", old))], {"bias": F32, "h": F32, "was": F32}
    )


def reversed_rows() -> GemmKernel:
    """The product and rows of h that are read from the last one to the first."""
    read = expr.load(F32, "h", (S0 - 1 - P[1]) * S2 + P[2])
    return matmul(F32, [Store("out", POINT, op("add", biased(F32), read))], {"bias": F32, "h": F32, "out": F32})


KERNELS = {
    "reversed rows": reversed_rows,
    "bias and gelu": functools.partial(bias_gelu, F32, F32),
    "float64": functools.partial(bias_gelu, F64, F64),
    "bfloat16": functools.partial(bias_gelu, F32, BF16),
    "in place": in_place_residual,
}


@pytest.mark.parametrize("name", KERNELS)
def test_an_epilogue_gives_what_the_reference_gives(name: str) -> None:
    """Compiled into the matmul (short K) and bound to a core of its own (long K), whole vectors and the rest of a row."""
    kernel = KERNELS[name]()
    made = templates.candidates(kernel, "addmm", (1, 2), None, ("cpp",))
    written = [t.name for t in kernel.tensors if t.role != "in"]
    for m, n, k in [(1, 1, 1), (3, 37, 20), (17, 64, 5), (5, 50, 300)]:
        size = dict(
            zip(
                kernel.size_names,
                gemm_args.make_args(kernel, sized(kernel, m, n, k))[len(kernel.tensors) :],
                strict=True,
            )
        )
        able = [c for c in made if c.valid(size)]
        for candidate in {c.config["form"]: c for c in able[::-1]}.values():
            args = gemm_args.make_args(kernel, size)
            wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
            templates.reference(kernel)(*wide)
            time_burst(candidate.entry(), args, 1)
            for t, got, want in zip(kernel.tensors, args, wide, strict=False):
                if t.name in written:
                    assert_close(
                        got,
                        want,
                        {**RELATIVE, F32: 1e-4},
                        1e-4 if t.dtype != BF16 else 0.05,
                        f"{candidate.name} {m}x{n}x{k} {t.name}",
                    )


def sized(kernel: GemmKernel, m: int, n: int, k: int) -> dict[str, int]:
    """Sizes of the product, and of the epilogue's symbols: (rows, columns) in order of appearance."""
    values = {"batch": 1, "M": m, "N": n, "K": k}
    assert kernel.epilogue is not None
    rows, columns = (kernel.epilogue.axes[d].size for d in (1, 2))
    return {**values, str(rows): m, str(columns): n, **{s.name: n for s in kernel.symbols if s not in (rows, columns)}}


def test_golden_bias_and_gelu() -> None:
    text = epilogue.generate(bias_gelu(F32, F32), 16)
    assert_golden("matmul_bias_gelu.cpp", text[text.index("template <class Tail> PT_FN void finish") :])


def test_sizes_are_symbols() -> None:
    assert all(isinstance(s, sympy.Symbol) for s in bias_gelu(F32, F32).symbols)
