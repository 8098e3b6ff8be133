"""Lowerings of reductions: one loop each, accumulating in float32 for 16-bit floating-point dtypes and in int64 for integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy
import torch

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.overloads import overloads
from polytile.frontend.lower.pointwise import check_dtypes, convert_to
from polytile.frontend.lower.pointwise_table import like, node
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.scalars import float_node
from polytile.frontend.lower.value import Point, Tensor, computed, widen
from polytile.ir import expr, sizes
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Node

Dims = int | Sequence[int] | None
Row = Callable[[Node, Point], Node]  # (element, point of the source) → row-level node


def reduce_over(
    builder: Builder, source: Tensor, dims: Dims, keepdim: bool, *outputs: tuple[Row, torch.dtype]
) -> tuple[Tensor, ...]:
    """One loop over `source` with an output for each (row-level expression, dtype).

    `dims` of None or empty means all dimensions; a zero-dimensional tensor counts as one element. Raises LoweringError for dtypes
    that loops do not compute with.
    """
    check_dtypes(source.dtype, *[dtype for _, dtype in outputs])
    if source.rank == 0:
        element = source.at(())
        source, dims, keepdim = computed((sizes.ONE,), source.dtype, source.device, lambda _: element), [0], False
    wanted = reduced_dims(source.rank, dims)
    return tuple(builder.reduction(source, wanted, keepdim, outputs))


def reduced_dims(rank: int, dims: Dims) -> list[int]:
    """The dimensions counted from the front, in order; all of them for None or an empty list."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(rank))
    listed = [dims] if isinstance(dims, int) else dims
    return sorted({d % max(rank, 1) for d in listed})


def count(source: Tensor, dims: Dims) -> sympy.Expr:
    """Number of elements that are reduced to one."""
    return sizes.product([source.sizes[d] for d in reduced_dims(source.rank, dims) if source.rank])


def accumulated(kind: str, dtype: torch.dtype) -> Row:
    """The reduction `kind` of the elements converted to `dtype`."""
    return lambda x, _: expr.reduce(kind, compute_dtype(dtype), widen(x, dtype))


# one result ------------------------------------------------------------------------------------------------------------

MakeRow = Callable[[Tensor, Dims, torch.dtype], Row]
"""(source, reduced dimensions, dtype of the result) → the row-level expression."""


def _lower_row(make: MakeRow) -> Callable[..., Tensor]:
    def lowering(
        builder: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        out = builder.result().dtype
        return reduce_over(builder, converted_first(x, dtype), dim, keepdim, (make(x, dim, out), out))[0]

    return lowering


def converted_first(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """`x` with its elements explicitly converted to `dtype`, for an argument dtype=."""
    if dtype is None or dtype == x.dtype:
        return x
    check_dtypes(dtype, x.dtype)
    return computed(x.sizes, dtype, x.device, lambda point: convert_to(x.at(point), x.dtype, dtype))


def _mean(x: Tensor, dim: Dims, out: torch.dtype) -> Row:
    wide = compute_dtype(out)

    def row(value: Node, _: Point) -> Node:
        return node("div", expr.reduce("sum", wide, widen(value, out)), expr.index_value(count(x, dim), wide))

    return row


def _extreme(kind: str) -> Row:
    """max or min; any or all for bool."""

    def row(value: Node, _: Point) -> Node:
        of_bool = {"max": "any", "min": "all"}
        return expr.reduce(of_bool[kind] if value.dtype == torch.bool else kind, value.dtype, value)

    return row


ROWS: tuple[tuple[str, MakeRow], ...] = (
    ("sum sum.dim_IntList", lambda x, dim, out: accumulated("sum", out)),
    ("prod prod.dim_int", lambda x, dim, out: accumulated("prod", out)),
    ("mean mean.dim", _mean),
    ("amax", lambda x, dim, out: _extreme("max")),
    ("amin", lambda x, dim, out: _extreme("min")),
)
for _names, _make in ROWS:
    lowers(*overloads(_names))(_lower_row(_make))


# extremes -------------------------------------------------------------------------------------------------------------


def _lower_extreme_of_all(kind: str) -> Callable[..., Tensor]:
    def lowering(builder: Builder, x: Tensor) -> Tensor:
        """An empty tensor has no extreme. Its size may be known only at run time; the tracer guards the other operators."""
        hint = "Specify the reduction dim with the 'dim' argument."
        message = f"{kind}(): Expected reduction dim to be specified for input.numel() == 0. {hint}"
        builder.require(sympy.Ge(count(x, None), 1), message)
        return reduce_over(builder, x, None, False, (_extreme(kind), x.dtype))[0]

    return lowering


lowers(*overloads("max"))(_lower_extreme_of_all("max"))
lowers(*overloads("min"))(_lower_extreme_of_all("min"))


def _best(kind: str, source: Tensor, dims: Dims) -> Row:
    """argmax or argmin of (element, its row-major position among the reduced dimensions); bool compares as uint8."""

    def row(value: Node, point: Point) -> Node:
        position = sizes.ZERO
        for d in reduced_dims(source.rank, dims):
            position = position * source.sizes[d] + point[d]
        comparable = widen(value, torch.uint8) if value.dtype == torch.bool else value
        return expr.reduce(kind, comparable.dtype, comparable, expr.index_value(position))

    return row


def _position(best: Row) -> Row:
    """The position of the element that `best` selects."""
    return lambda value, point: expr.part(best(value, point), 1, torch.int64)


def _lower_best(kind: str) -> Callable[..., Tensor]:
    def lowering(builder: Builder, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if x.rank == 0:
            return computed((), torch.int64, x.device, lambda _: expr.const(0, torch.int64))
        return reduce_over(builder, x, dim, keepdim, (_position(_best(kind, x, dim)), torch.int64))[0]

    return lowering


lowers(*overloads("argmax"))(_lower_best("argmax"))
lowers(*overloads("argmin"))(_lower_best("argmin"))


def _lower_extreme_with_index(kind: str) -> Callable[..., tuple[Tensor, ...]]:
    def lowering(builder: Builder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
        if x.rank == 0:
            zero = computed((), torch.int64, x.device, lambda _: expr.const(0, torch.int64))
            return computed((), x.dtype, x.device, x.at), zero
        message = f"{kind.removeprefix('arg')}(): Expected reduction dim {dim % x.rank} to have non-zero size."
        builder.require(sympy.Ge(x.sizes[dim], 1), message, IndexError)
        best = _best(kind, x, dim)

        def value_of(value: Node, point: Point) -> Node:
            extreme = best(value, point)
            return widen(expr.part(extreme, 0, extreme.dtype), x.dtype)

        return reduce_over(builder, x, dim, keepdim, (value_of, x.dtype), (_position(best), torch.int64))

    return lowering


lowers(*overloads("max.dim"))(_lower_extreme_with_index("argmax"))
lowers(*overloads("min.dim"))(_lower_extreme_with_index("argmin"))


# truth ----------------------------------------------------------------------------------------------------------------


def _lower_truth(kind: str) -> Callable[..., Tensor]:
    def lowering(builder: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """bool, or uint8 for uint8 as in eager. An empty list of dimensions reduces nothing."""
        out = builder.result().dtype
        if isinstance(dim, list | tuple) and not dim and builder.result().ndim == x.rank:
            check_dtypes(x.dtype)
            return computed(x.sizes, out, x.device, lambda point: widen(widen(x.at(point), torch.bool), out))

        def row(value: Node, _: Point) -> Node:
            return widen(expr.reduce(kind, torch.bool, widen(value, torch.bool)), out)

        return reduce_over(builder, x, dim, keepdim, (row, out))[0]

    return lowering


lowers(*overloads("any any.dim any.dims"))(_lower_truth("any"))
lowers(*overloads("all all.dim all.dims"))(_lower_truth("all"))


# variance -------------------------------------------------------------------------------------------------------------


def _moments(x: Tensor, value: Node, root: bool) -> tuple[Node, Node]:
    """(mean, sum of squared deviations) of `value`, an element of `x`.

    If the `root` of the squares is wanted on a CPU, they are float64, as in eager: in float32 they overflow from 1.3e19 on, where
    the root is still finite.
    """
    if root and x.device.type == "cpu":
        value = widen(value, torch.float64)
    both = expr.reduce("welford", value.dtype, value)
    return expr.part(both, 0, value.dtype), expr.part(both, 1, value.dtype)


def _variance_row(x: Tensor, dim: Dims, correction: float | sympy.Expr | None, root: bool) -> Row:
    """Σ(x - mean)² / max(n - correction, 0), or its square root."""

    def row(value: Node, _: Point) -> Node:
        squares = _moments(x, value, root)[1]
        variance = node("div", squares, _degrees_of_freedom(count(x, dim), 1 if correction is None else correction, squares))
        return widen(node("sqrt", variance), x.dtype) if root else variance

    return row


def _degrees_of_freedom(n: sympy.Expr, correction: float | sympy.Expr, value: Node) -> Node:
    if isinstance(correction, sympy.Expr) and correction.is_integer:
        return node("maximum", expr.index_value(n - correction, value.dtype), like(0, value))
    if isinstance(correction, sympy.Expr):  # a size as a float
        less = node("sub", expr.index_value(n, value.dtype), expr.op("cast", value.dtype, float_node(correction)))
        return node("maximum", less, like(0, value))
    if n.is_number:
        return like(max(int(n) - correction, 0), value)
    size = expr.index_value(n, value.dtype)
    return size if correction == 0 else node("maximum", node("sub", size, like(correction, value)), like(0, value))


def _lower_variance(root: bool, with_mean: bool) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    def lowering(
        builder: Builder, x: Tensor, dim: Dims = None, *, correction: float | sympy.Expr | None = None, keepdim: bool = False
    ) -> Tensor | tuple[Tensor, ...]:
        _require_float(x)
        spread = _variance_row(x, dim, correction, root), x.dtype
        if not with_mean:
            return reduce_over(builder, x, dim, keepdim, spread)[0]
        mean: Row = lambda value, _: widen(_moments(x, value, root)[0], x.dtype)  # noqa: E731
        return reduce_over(builder, x, dim, keepdim, spread, (mean, x.dtype))

    return lowering


for _name, _root in (("var", False), ("std", True)):
    lowers(*overloads(f"{_name}.correction"))(_lower_variance(_root, with_mean=False))
    lowers(*overloads(f"{_name}_mean.correction"))(_lower_variance(_root, with_mean=True))


def _require_float(x: Tensor) -> None:
    if not x.dtype.is_floating_point:
        raise LoweringError(f"a variance of {x.dtype} values is not generated.")
