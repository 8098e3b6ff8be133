"""What rounding may decide: evaluation in which operands of comparisons and roundings are a little off.

    with leaning(Leaning(+1, 1e-5)): reference(...)        and the same with -1

(x @ w) > 0 is another boolean wherever the product is as small as its rounding, and no kernel is wrong for that. Two evaluations
whose decisions lean to either side tell these elements from those that every right kernel decides alike. Only decisions see other
values: what goes into sums and results stays as it is.
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
"""Operations whose result jumps where an argument changes a little."""
PASSING = frozenset("neg abs minimum maximum round_e5m2 round_e4m3 round_bf16 round_f16 where cast".split())
"""Operations that pass a value on unchanged but for its sign or a rounding: their arguments are shifted, not their result."""


@dataclass
class Leaning:
    """Computed values are off by `by`, relative to themselves plus their root mean square. `side` is 1 or -1; values that are
    compared with each other are off to opposite sides, one after the other."""

    side: int
    by: float
    _signs: dict[int, int] = field(default_factory=dict)

    @property
    def used(self) -> bool:
        """Whether any computed value decided anything."""
        return bool(self._signs)

    def arguments(
        self, node: Node, values: Mapping[int, Any], again: Callable[[Op, list[torch.Tensor]], torch.Tensor]
    ) -> list[Any]:
        """The values that `node` is evaluated on; `again` evaluates an operation."""
        if not _decides(node):
            return [values[id(child)] for child in node.children]
        return [self._off(child, values, again) for child in node.children]

    def _off(self, node: Node, values: Mapping[int, Any], again: Callable[[Op, list[torch.Tensor]], torch.Tensor]) -> Any:
        if not node.dtype.is_floating_point or isinstance(node, Const | Index | Load) or _decides(node):
            return values[id(node)]
        if isinstance(node, Op) and node.name in PASSING:
            return again(node, [self._off(child, values, again) for child in node.children])
        sign = self._signs.setdefault(id(node), self.side * (-1) ** len(self._signs))
        value = values[id(node)]
        finite = value.isfinite()
        known = torch.where(finite, value, 0)
        scale = known.square().mean().sqrt() if value.numel() else 0.0
        return torch.where(finite, known + sign * self.by * (known.abs() + scale), value)


def _decides(node: Node) -> bool:
    if not isinstance(node, Op):
        return False
    return node.name in DECIDING or (node.name == "cast" and not node.dtype.is_floating_point)


_active: ContextVar[Leaning | None] = ContextVar("leaning", default=None)


@contextmanager
def leaning(how: Leaning) -> Iterator[None]:
    """Loops that are evaluated within the block have their decisions lean this way."""
    before = _active.set(how)
    try:
        yield
    finally:
        _active.reset(before)


def active() -> Leaning | None:
    return _active.get()
