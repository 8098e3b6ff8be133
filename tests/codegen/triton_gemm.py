"""Products for the tests of Triton's schedules: kernels by hand, operands in any layout, the facts of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from polytile.codegen.triton import interpret
from polytile.dispatch.gpu_specs import template_spec
from polytile.matmul.cpp import GemmSpec
from polytile.matmul.gemm_kernel import ENDS, GemmKernel
from polytile.matmul.triton.schedules import SCHEDULES, generate
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.canonical import TensorArg
from polytile.schedule.facts import Facts

PLAIN = tuple(name for name in SCHEDULES if not name.startswith("grouped"))
VARIANTS = (*PLAIN, "persistent stores", "persistent stores flat", "tile swapped", "split swapped", "stream swapped")
CHIP = Chip(5)
"""What persistent programs are generated for: fewer multiprocessors than there are blocks."""


def product(
    dtype: torch.dtype,
    a: str = "k",
    b: str = "n",
    batched: bool = False,
    out: torch.dtype | None = None,
    c: str = "n",
    stored: Sequence[torch.dtype] = (),
) -> GemmKernel:
    """A plain product of operands in layouts `a` and `b`; `stored`: their types in memory, if others than `dtype`."""
    out = out or dtype
    spec = GemmSpec(str(dtype)[6:], a, b, batched, str(out)[6:], False, c)
    types = stored or (dtype, dtype)
    tensors = (TensorArg("A", types[0], "in"), TensorArg("B", types[1], "in"), TensorArg("C", out, "out"))
    return GemmKernel(spec, dtype, out, tensors, None, (), (a, b))


def grouped_product(axis: str, dtype: torch.dtype, a: str = "k", b: str = "n", c: str = "n") -> GemmKernel:
    """A grouped product whose groups follow each other along `axis`."""
    name = str(dtype)[6:]
    spec = GemmSpec(name, a, b, axis == "k", name, False, c, grouped=axis)
    types = (("A", dtype, "in"), ("B", dtype, "in"), (ENDS, torch.int32, "in"), ("C", dtype, "out"))
    return GemmKernel(spec, dtype, dtype, tuple(TensorArg(*each) for each in types), None, (), (a, b))


def matrix(batch: int, rows: int, columns: int, unit: str, dtype: torch.dtype, pad: int = 0) -> torch.Tensor:
    """batch × rows × columns with stride 1 along "columns", "rows" or neither ("any"); `pad` elements between rows."""
    def numbers(*shape: int) -> torch.Tensor:
        return torch.randint(-4, 5, shape).to(dtype) if not dtype.is_floating_point else torch.randn(shape).to(dtype)

    if unit == "columns":
        return numbers(batch, rows, columns + pad)[:, :, :columns]
    if unit == "rows":
        return numbers(batch, columns, rows + pad)[:, :, :rows].transpose(1, 2)
    return numbers(batch, rows, columns, 2)[..., 1]


def operands(
    kernel: GemmKernel, batch: int, m: int, n: int, k: int, pad: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random A and B, and a C that is NaN, or a number that no product gives."""
    types, spec = [t.dtype for t in kernel.tensors], kernel.spec
    a = matrix(batch, m, k, {"k": "columns", "m": "rows", "any": "any"}[spec.a_layout], types[0], pad)
    b = matrix(batch, k, n, {"n": "columns", "k": "rows", "any": "any"}[spec.b_layout], types[1], pad)
    nothing = float("nan") if types[2].is_floating_point else -12345
    c = torch.full((batch, m, n), nothing, dtype=types[2])
    return a, b, c if spec.c_layout == "n" else c.transpose(1, 2).contiguous().transpose(1, 2)


def integers(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[int, ...]:
    return (a.shape[0], a.shape[1], b.shape[2], a.shape[2], *a.stride(), *b.stride(), *c.stride())


def facts_of(kernel: GemmKernel, args: Sequence[Any]) -> Facts:
    """The facts of the regime of a call."""
    spec = template_spec(kernel, "product", (), torch.device("cpu"))
    tensors, ints = spec.tensors_of(args), spec.ints_of(args)
    return spec.keys.facts_for_code(ints, [t.data_ptr() for t in tensors])


def interpreted(kernel: GemmKernel, config: Config, args: Sequence[Any], facts: Facts | None = None) -> None:
    """Runs `config` on flat arguments under Triton's interpreter."""
    made = generate(kernel, config, facts if facts is not None else facts_of(kernel, args), CHIP)
    count = len(kernel.tensors)
    tensors = dict(zip([t.name for t in kernel.tensors], args, strict=False))
    interpret.run(made, tensors, dict(zip(kernel.size_names, args[count:], strict=True)))


def small(variant: str, **more: int) -> Config:
    """Blocks so small that every loop turns more than once at the tests' sizes."""
    numbers = {"m": 16, "n": 32, "k": 16, "stages": 2, "warps": 2, "group": 2}
    variant, *words = variant.split()
    numbers |= {"split": {"splits": 3}, "rows": {"m": 1, "n": 16, "k": 32}}.get(variant, {})
    numbers |= {word: 4 if word == "stores" else 1 for word in words}
    return Config.of(variant=variant, **(numbers | more))
