"""Bounds of integer expressions that hold for any contents of memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from polytile.ir.expr import Const, Load, Node, Op

Range = tuple[int, int]
"""The minimum and maximum."""


def _of_type(dtype: torch.dtype) -> Range:
    info = torch.iinfo(dtype)
    return info.min, info.max


def _masked(x: Range, y: Range) -> Range | None:
    """x & y, if either is nonnegative, is at most that one."""
    largest = [high for low, high in (x, y) if low >= 0]
    return (0, min(largest)) if largest else None


RULES: dict[str, Callable[..., Range | None]] = {
    "bitwise_and": _masked,
    "shift_right": lambda x, y: (x[0] >> y[0], x[1] >> y[0]) if y[0] == y[1] >= 0 else None,
    "where": lambda c, x, y: (min(x[0], y[0]), max(x[1], y[1])),
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "neg": lambda x: (-x[1], -x[0]),
    "cast": lambda x: x,
}
"""The range of each operation, from its arguments' ranges."""


def integer_range(node: Node) -> Range | None:
    """The range of `node`; None if it is not an integer, or its range is unknown."""
    if node.dtype == torch.bool:
        return 0, 1
    if node.dtype.is_floating_point or node.dtype.is_complex:
        return None
    if isinstance(node, Const):
        return int(node.value), int(node.value)
    if isinstance(node, Load):
        return _of_type(node.dtype)
    if not isinstance(node, Op) or node.name not in RULES:
        return None
    ranges = [integer_range(each) for each in node.args]
    bounds = RULES[node.name](*ranges) if all(each is not None for each in ranges) else None
    least, most = _of_type(node.dtype)
    return bounds if bounds is not None and least <= bounds[0] and bounds[1] <= most else None
