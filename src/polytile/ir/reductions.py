"""The table of reductions and scans: kind, meaning, and number of arguments and results.

The meaning is a function of rows [..., n], one per argument, and of the result's dtype. A reduction returns one element per row,
a scan returns rows. As with the operations of `ops.py`, every code generator must agree with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from polytile.errors import IRError
from polytile.ir.expr import Reduce, Scan

Rows = tuple[torch.Tensor, ...]
Results = tuple[torch.Tensor, ...]
Meaning = Callable[[Rows, torch.dtype], Results]


@dataclass(frozen=True)
class Definition:
    """What a reduction or scan computes. Multiple `results` are read through `expr.Part`."""

    meaning: Meaning
    arguments: int = 1
    results: int = 1


def smallest(dtype: torch.dtype) -> bool | int | float:
    """The identity element of max."""
    return False if dtype == torch.bool else -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def largest(dtype: torch.dtype) -> bool | int | float:
    """The identity element of min."""
    return True if dtype == torch.bool else math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def _max(rows: Rows, dtype: torch.dtype) -> Results:
    x = rows[0].to(dtype)
    return (x.amax(-1) if x.shape[-1] else x.new_full(x.shape[:-1], smallest(dtype)),)


def _min(rows: Rows, dtype: torch.dtype) -> Results:
    x = rows[0].to(dtype)
    return (x.amin(-1) if x.shape[-1] else x.new_full(x.shape[:-1], largest(dtype)),)


def _arg(extreme: Meaning) -> Meaning:
    """The extreme value (NaN if there is one) and its smallest index."""

    def meaning(rows: Rows, dtype: torch.dtype) -> Results:
        value, index = rows
        best = extreme((value,), value.dtype)[0]
        hit = value == best.unsqueeze(-1)
        if value.dtype.is_floating_point:
            hit |= value.isnan()
        places = torch.where(hit, index, torch.iinfo(index.dtype).max)
        return best, _min((places,), index.dtype)[0]

    return meaning


def _welford(rows: Rows, dtype: torch.dtype) -> Results:
    """The mean, and the sum of squared deviations from it."""
    x = rows[0].to(dtype)
    mean = x.mean(-1)
    return mean, (x - mean.unsqueeze(-1)).square().sum(-1)


def _online_softmax(rows: Rows, dtype: torch.dtype) -> Results:
    """The maximum m, and the sum of exp(x - m)."""
    best = _max(rows, dtype)[0]
    return best, (rows[0].to(dtype) - best.unsqueeze(-1)).exp().sum(-1)


def _running_extreme(cumulative: Callable[..., Any]) -> Meaning:
    """The running extreme and the index of its last occurrence."""

    def meaning(rows: Rows, dtype: torch.dtype) -> Results:
        value, index = rows
        best, position = cumulative(value, dim=-1)
        return best, torch.gather(index.expand(value.shape), -1, position)

    return meaning


REDUCTIONS: dict[str, Definition] = {
    "sum": Definition(lambda rows, dtype: (rows[0].sum(-1, dtype=dtype),)),
    "prod": Definition(lambda rows, dtype: (rows[0].prod(-1, dtype=dtype),)),
    "max": Definition(_max),
    "min": Definition(_min),
    "any": Definition(lambda rows, dtype: (rows[0].any(-1).to(dtype),)),
    "all": Definition(lambda rows, dtype: (rows[0].all(-1).to(dtype),)),
    "argmax": Definition(_arg(_max), arguments=2, results=2),
    "argmin": Definition(_arg(_min), arguments=2, results=2),
    "welford": Definition(_welford, results=2),
    "online_softmax": Definition(_online_softmax, results=2),
}
"""Definitions of all reductions. argmax and argmin take the value and its index."""

SCANS: dict[str, Definition] = {
    "sum": Definition(lambda rows, dtype: (rows[0].cumsum(-1, dtype=dtype),)),
    "prod": Definition(lambda rows, dtype: (rows[0].cumprod(-1, dtype=dtype),)),
    "logsumexp": Definition(lambda rows, dtype: (rows[0].to(dtype).logcumsumexp(-1),)),
    "max": Definition(_running_extreme(torch.cummax), arguments=2, results=2),
    "min": Definition(_running_extreme(torch.cummin), arguments=2, results=2),
}
"""Definitions of all scans. max and min take the value and its index."""


def definition_of(node: Reduce | Scan) -> Definition:
    """The definition of the node's kind.

    Raises
    ------
    IRError
        If the kind is unknown.
    """
    table = REDUCTIONS if isinstance(node, Reduce) else SCANS
    if node.kind not in table:
        what = type(node).__name__.lower()
        raise IRError(f"a {what} of the unknown kind {node.kind!r}; see polytile/ir/reductions.py for the table")
    return table[node.kind]
