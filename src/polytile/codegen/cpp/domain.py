"""Iteration spaces in C++: the number of points, the point at a flat position, and the next point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polytile.codegen.cpp import text
from polytile.codegen.writer import Writer
from polytile.ir import sizes
from polytile.ir.loop import Axis


def count(axes: Iterable[Axis]) -> str:
    """Number of points, as a single factor."""
    product = text.index(sizes.product([a.size for a in axes]))
    return product if product.isalnum() else f"({product})"


def place(out: Writer, axes: Sequence[Axis], flat: str) -> None:
    """Declares the axes' variables at the flat position `flat`."""
    if not axes:
        return
    if len(axes) == 1:
        out.line(f"long {axes[0].symbol} = {flat};")
        return
    out.line(f"long rest = {flat};")
    for axis in reversed(axes[1:]):
        out.line(f"long {axis.symbol} = rest % {count([axis])};")
        out.line(f"rest /= {count([axis])};")
    out.line(f"long {axes[0].symbol} = rest;")


def advance(out: Writer, axes: Sequence[Axis]) -> None:
    """Advances to the next point, without division."""
    if not axes:
        return
    for axis in reversed(axes[1:]):
        out.open(f"if (++{axis.symbol} == {text.index(axis.size)}) {{")
        out.line(f"{axis.symbol} = 0;")
    out.line(f"++{axes[0].symbol};")
    for _ in axes[1:]:
        out.close()


def share(out: Writer, total: str) -> None:
    """Declares begin and end of this thread's share of `total` items; a thread with an empty share returns."""
    out.line(f"const long begin = {total} * thread / workers, end = {total} * (thread + 1) / workers;")
    out.line("if (begin == end) return;")
