"""Operands that are computed as they are read.

A prologue is a LoopKernel over an operand's (batch, rows, columns). Its tensors are its inputs, named A0, A1, … (B0, …), followed
by the operand, A or B. Its size symbols carry the operand's name too, so that those of both prologues and of the epilogue can
coexist among a product's integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sympy
import torch

from polytile.ir import sizes
from polytile.ir.buffer import Buffer
from polytile.ir.loop import Axis, Loop
from polytile.schedule import canonical
from polytile.schedule.canonical import CallSite, LoopKernel

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

Prologues = tuple[LoopKernel | None, LoopKernel | None]
"""The prologues of A and of B; None if the operand is in memory."""

AXES = {
    name: (("batch", "b"), rows, columns)
    for name, rows, columns in (
        ("A", ("M", "m"), ("K", "k")), ("B", ("K", "k"), ("N", "n")), ("C", ("M", "m"), ("N", "n")),
        ("P", ("M", "m"), ("L", "k")), ("Q", ("L", "k"), ("N", "n")),
    )
}  # fmt: skip
"""Sizes and axes of each operand and of the result: of the batch, of rows and of columns."""


@dataclass(frozen=True)
class Canonical:
    """A prologue's kernel, and what a call of it passes."""

    kernel: LoopKernel
    site: CallSite


def canonicalize(loop: Loop, operand: str, buffers: Mapping[str, Buffer]) -> Canonical:
    """The prologue of operand "A" or "B" under canonical names. The operand is its last tensor."""
    kernel, site = canonical.canonicalize(loop, buffers)
    letter = operand.lower()
    names = {t.name: f"{operand}{k}" for k, t in enumerate(kernel.tensors[:-1])} | {kernel.tensors[-1].name: operand}
    axes = tuple(Axis(sizes.axis(f"{letter}{a.symbol.name}"), a.size) for a in kernel.loop.axes)
    symbols = {s: sympy.Symbol(f"{letter}{s.name}", integer=True, positive=s.is_positive) for s in kernel.symbols}
    moved = {a.symbol: b.symbol for a, b in zip(kernel.loop.axes, axes, strict=True)}
    body = canonical.rename_tensors(kernel.loop.substitute({**moved, **symbols}), names)
    body = replace(body, axes=tuple(Axis(a.symbol, sympy.sympify(a.size).xreplace(symbols)) for a in axes), name=operand)
    tensors = tuple(replace(t, name=names[t.name]) for t in kernel.tensors)
    return Canonical(LoopKernel(body, tensors, tuple(symbols.values())), site)


def tensor_count(kernel: LoopKernel | None) -> int:
    """Number of tensors that an operand with this prologue is read from."""
    return 1 if kernel is None else len(kernel.tensors) - 1


def elements(kernel: GemmKernel, operand: str, size: Mapping[str, int]) -> int:
    """Number of elements from the first to the last of an operand with the given strides; 0 if it has none."""
    letter, axes = operand.lower(), AXES[operand]
    if not all(size[name] for name, _ in axes):
        return 0
    return 1 + sum((size[name] - 1) * size[f"{letter}_stride_{axis}"] for name, axis in axes)


def split_arguments(
    kernel: GemmKernel, args: Sequence[Any]
) -> tuple[list[tuple[Any, ...]], tuple[Any, ...], list[tuple[int, ...]]]:
    """Split flat arguments into the tensors of each operand, the remaining tensors with the integers of the plain product, and
    the integers of each prologue."""
    first, second = map(len, kernel.inputs)
    tensors = args[: len(kernel.tensors)]
    ints = dict(zip(kernel.size_names, args[len(kernel.tensors) :], strict=True))
    own = [() if loop is None else tuple(ints[symbol.name] for symbol in loop.symbols) for loop in kernel.prologues]
    others = tensors[first + second : len(tensors) - kernel.packed]
    rest = (*others, *[ints[name] for name in kernel.plain.size_names])
    return [tuple(tensors[:first]), tuple(tensors[first : first + second])], rest, own


def materialise_operands(
    kernel: GemmKernel, args: Sequence[Any], run: Sequence[Callable[..., None] | None], wide: bool
) -> list[Any]:
    """The arguments of the plain product. `run` stores each operand that has a prologue; it takes the prologue's own arguments.
    With `wide`, the operands are float64."""
    read, rest, ints = split_arguments(kernel, args)
    size = dict(zip(kernel.plain.size_names, rest[len(rest) - len(kernel.plain.size_names) :], strict=True))
    in_memory: list[Any] = []
    for name, tensors, own, make, dtype in zip("AB", read, ints, run, kernel.operand_dtypes, strict=True):
        if make is None:
            in_memory += tensors
            continue
        device = tensors[0].device if tensors else rest[0].device
        operand = torch.empty(elements(kernel, name, size), dtype=torch.float64 if wide else dtype, device=device)
        make(*tensors, operand, *own)
        in_memory.append(operand)
    return [*in_memory, *rest]
