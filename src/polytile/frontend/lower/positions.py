"""Positions: index values that are data, and the places in a tensor that they refer to.

A position is an index expression if the value is one (`arange`); otherwise it is a node for which the index has a placeholder. It
is checked at run time, unless its bounds prove that it is in range (`index % n`, `index.clamp(0, n - 1)`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy
import torch

from polytile.errors import LoweringError
from polytile.frontend.lower.value import Tensor
from polytile.ir import divisions, expr, sizes
from polytile.ir.buffer import View
from polytile.ir.expr import Node
from polytile.ir.loop import Store
from polytile.ir.sizes import ONE, ZERO, Size

INDEX_DTYPES = (torch.int64, torch.int32)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_MOST = 4  # maximum number of bounds of either kind per value


@dataclass
class Place:
    """The place of one element: a point whose coordinates are index expressions, possibly with placeholders for values.

    `values` are the nodes of the placeholders, in the order of `expr.indirect_symbol`.
    """

    point: list[Size]
    values: list[Node] = field(default_factory=list)

    def put(self, dim: int, position: Size | Node) -> None:
        """Set coordinate `dim`; a place in a zero-dimensional tensor has none."""
        if isinstance(position, Node):
            self.values.append(position)
            position = expr.indirect_symbol(len(self.values) - 1)
        if dim < len(self.point):
            self.point[dim] = position

    def load(self, source: Tensor) -> Node:
        """The element of `source` at this place. `source` is stored, or `computable`."""
        if source.node is not None:
            return self._compute(source)
        view = source.view
        assert view is not None
        return expr.load(source.compute_dtype, view.buffer, view.index(tuple(self.point)), tuple(self.values))

    def _compute(self, source: Tensor) -> Node:
        """The element of an unstored tensor, with its loads at this place."""
        stands = {expr.indirect_symbol(k) for k in range(len(self.values))}

        def here(load: expr.Load) -> Node:
            if not load.index.free_symbols & stands:
                return load
            return expr.load(load.dtype, load.buffer, load.index, tuple(self.values), load.mask)

        return expr.map_loads((source.at(self.point),), here)[0]

    def store(self, target: View, value: Node, mode: str = "set") -> Store:
        return Store(target.buffer, target.index(tuple(self.point)), value, mode, tuple(self.values))


def computable(source: Tensor) -> bool:
    """Whether an unstored tensor can be computed at places known only at run time: it is arithmetic on loads whose own places are
    known."""
    if source.node is None:
        return False
    return all(
        isinstance(node, expr.Op | expr.Const) or (isinstance(node, expr.Load) and not node.indirect)
        for node in expr.walk(source.node)
    )


def place_at(rank: int, point: Sequence[Size]) -> Place:
    """`point` in a tensor of `rank` dimensions; zero dimensions and one count as the same."""
    return Place([*point, ZERO][:rank])


def position(value: Node, n: Size, ranges: divisions.Ranges, wraps: bool = True, checked: bool = True) -> Size | Node:
    """The index that `value` refers to in a dimension of size `n`.

    Parameters
    ----------
    ranges
        The ranges of the axes in `value`.
    wraps
        Whether a negative value counts from the end, as in `x[index]`. Otherwise it is out of range.
    checked
        Whether a value out of range is a run-time error. Otherwise the caller knows that there is none.
    """
    limits = bounds(value, ranges)
    if wraps and isinstance(value, expr.Const) and value.value < 0:
        value = expr.index_value(sizes.expand(n + int(value.value)))
        limits = bounds(value, ranges)
    from_zero, below_n = limits.at_least(ZERO), limits.at_most(sizes.expand(n - 1))
    if from_zero and below_n and isinstance(value, expr.Const | expr.Index):
        return value.expr if isinstance(value, expr.Index) else sympy.Integer(int(value.value))
    value = value if value.dtype == torch.int64 else expr.op("cast", torch.int64, value)
    size, negative = expr.index_value(n), expr.op("lt", torch.bool, value, expr.const(0, torch.int64))
    if from_zero and (below_n or not checked):
        return value
    if not checked:
        return expr.op("where", torch.int64, negative, expr.op("add", torch.int64, value, size), value)
    if not wraps and not from_zero:
        value = expr.op("where", torch.int64, negative, size, value)
    return expr.op("check_index", torch.int64, value, size)


def require_index(index: Tensor) -> None:
    if index.dtype not in INDEX_DTYPES:
        raise LoweringError(f"an index of type {index.dtype} is left to the library.")


def extent(tensor: Tensor, dim: int) -> Size:
    """Size of `dim`; a zero-dimensional tensor holds one element."""
    return tensor.sizes[dim] if tensor.rank else ONE


def ranges_of(point: Sequence[Size], shape: Sequence[Size]) -> dict[sympy.Symbol, Size]:
    """The ranges of the axes among the coordinates of `point`, in a tensor of these sizes."""
    return {axis: n for axis, n in zip(point, shape, strict=True) if isinstance(axis, sympy.Symbol)}


# bounds ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bounds:
    """Bounds of an integer: it is at least each of `low` and at most each of `high`."""

    low: tuple[Size, ...] = ()
    high: tuple[Size, ...] = ()

    def at_least(self, value: Size) -> bool:
        return any(sizes.is_nonnegative(sizes.expand(bound - value)) for bound in self.low)

    def at_most(self, value: Size) -> bool:
        return any(sizes.is_nonnegative(sizes.expand(value - bound)) for bound in self.high)

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(
            tuple(sizes.expand(a + b) for a in self.low for b in other.low)[:_MOST],
            tuple(sizes.expand(a + b) for a in self.high for b in other.high)[:_MOST],
        )

    def __neg__(self) -> Bounds:
        return Bounds(tuple(-bound for bound in self.high), tuple(-bound for bound in self.low))


def bounds(root: Node, ranges: divisions.Ranges) -> Bounds:
    """Bounds of an integer node whose axes have these ranges; unknown operations are unbounded. Integers are assumed not to
    overflow."""
    by_node: dict[int, Bounds] = {}
    for node in expr.walk(root):
        by_node[id(node)] = _node_bounds(node, [by_node[id(child)] for child in node.children], ranges)
    return by_node[id(root)]


def _node_bounds(node: Node, args: Sequence[Bounds], ranges: divisions.Ranges) -> Bounds:
    if node.dtype not in _INTEGERS:
        return Bounds()
    match node:
        case expr.Const():
            value = sympy.Integer(int(node.value))
            return Bounds((value,), (value,))
        case expr.Index():
            low, high = divisions.highest(-node.expr, ranges), divisions.highest(node.expr, ranges)
            return Bounds(() if low is None else (-low,), () if high is None else (high,))
        case expr.Op(name="add"):
            return args[0] + args[1]
        case expr.Op(name="sub"):
            return args[0] + -args[1]
        case expr.Op(name="neg"):
            return -args[0]
        case expr.Op(name="abs"):
            return Bounds((ZERO,), args[0].high if args[0].at_least(ZERO) else ())
        case expr.Op(name="maximum"):  # lower bounds of either hold, upper bounds only of both
            return Bounds((args[0].low + args[1].low)[:_MOST], _common(args[0], args[1]).high)
        case expr.Op(name="minimum"):
            return Bounds(_common(args[0], args[1]).low, (args[0].high + args[1].high)[:_MOST])
        case expr.Op(name="where"):
            return _common(args[1], args[2])
        case expr.Op(name="remainder"):  # has the divisor's sign
            return Bounds((ZERO,), tuple(b - 1 for b in args[1].high)) if args[1].at_least(ONE) else Bounds()
        case expr.Op(name="check_index"):  # in [0, size)
            return Bounds((ZERO,), tuple(bound - 1 for bound in args[1].high))
        case expr.Op(name="check_divisor"):  # not 0
            return Bounds((*args[0].low, ONE), args[0].high) if args[0].at_least(ZERO) else args[0]
        case expr.Op(name="cast"):
            return args[0]
    return Bounds()


def _common(a: Bounds, b: Bounds) -> Bounds:
    """The bounds that hold for both."""
    return Bounds(
        tuple(dict.fromkeys([x for x in a.low if b.at_least(x)] + [x for x in b.low if a.at_least(x)]))[:_MOST],
        tuple(dict.fromkeys([x for x in a.high if b.at_most(x)] + [x for x in b.high if a.at_most(x)]))[:_MOST],
    )
