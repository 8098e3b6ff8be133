"""Evaluation with slightly perturbed operands of comparisons and roundings, to see what rounding errors may decide.

    with leaning(Leaning(+1, 1e-5)): reference(...)        and the same with -1

(x @ w) > 0 may come out either way where the product is as small as its rounding error, and no kernel is wrong for that. Elements
on which two evaluations, perturbed in opposite directions, agree are the ones that every correct kernel must decide alike. Only
decisions see perturbed values; sums and results use the exact ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from polytile.ir.expr import Const, Index, Load, Node, Op

DECIDING = frozenset("eq ne lt le gt ge sign signbit floor ceil trunc round floordiv truncdiv remainder fmod".split())
"""Operations whose result jumps when an argument changes slightly."""
WHOLE = frozenset("floor ceil trunc round".split())
"""Operations whose results are whole numbers."""
PASSING = frozenset("neg abs minimum maximum round_e5m2 round_e4m3 round_bf16 round_f16 where cast".split())
"""Operations that pass a value on, up to its sign or a rounding. Their arguments are perturbed instead of their result."""


@dataclass
class Leaning:
    """Perturbs computed values by `by`, relative to their magnitude plus their root mean square.

    `side` is 1 or -1 and flips the sign of all perturbations. Successive values are perturbed in alternating directions, so that
    values that are compared move apart.
    """

    side: int
    by: float
    _signs: dict[int, int] = field(default_factory=dict)

    @property
    def used(self) -> bool:
        """Whether any computed value affected a decision."""
        return bool(self._signs)

    def arguments(
        self, node: Node, values: Mapping[int, Any], again: Callable[[Op, list[torch.Tensor]], torch.Tensor]
    ) -> list[Any]:
        """The values on which to evaluate `node`. `again` evaluates an operation."""
        if not _decides(node):
            return [values[id(child)] for child in node.children]
        return [self._off(child, values, again) for child in node.children]

    def _off(self, node: Node, values: Mapping[int, Any], again: Callable[[Op, list[torch.Tensor]], torch.Tensor]) -> Any:
        if not node.dtype.is_floating_point or isinstance(node, Const | Index | Load) or _decides(node) or _whole(node):
            return values[id(node)]
        if isinstance(node, Op) and node.name in PASSING:
            return again(node, [self._off(child, values, again) for child in node.children])
        sign = self._signs.setdefault(id(node), self.side * (-1) ** len(self._signs))
        value = values[id(node)]
        finite = value.isfinite()
        known = torch.where(finite, value, 0)
        scale = known.square().mean().sqrt() if value.numel() else 0.0
        return torch.where(finite, known + sign * self.by * (known.abs() + scale), value)


def _whole(node: Node) -> bool:
    """Whether the value is a sum, difference or product of rounded values and whole constants. Rounding errors do not change it,
    and a second decision on it, such as a quantised number's conversion to an integer, must not undo the first."""
    if isinstance(node, Const):
        return float(node.value).is_integer()
    if not isinstance(node, Op):
        return False
    return node.name in WHOLE or (node.name in ("add", "sub", "mul") and all(map(_whole, node.args)))


def _decides(node: Node) -> bool:
    if not isinstance(node, Op):
        return False
    return node.name in DECIDING or (node.name == "cast" and not node.dtype.is_floating_point)


_active: ContextVar[Leaning | None] = ContextVar("leaning", default=None)


@contextmanager
def leaning(how: Leaning) -> Iterator[None]:
    """Perturb the decisions of loops that are evaluated within the block."""
    before = _active.set(how)
    try:
        yield
    finally:
        _active.reset(before)


def active() -> Leaning | None:
    """The leaning in force in this context, or None."""
    return _active.get()
