"""Batches of sequences of their own lengths, as flat arguments of a problem."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from polytile.attention.arguments import make_args, operands, run_attention
from polytile.attention.layout import Layout
from polytile.attention.problem import AttentionProblem, Causal

I32, I64 = torch.int32, torch.int64
HEADS = {"Hq": 2, "Hkv": 1, "D": 24, "Dv": 16}
ROWS, KEYS = (5, 0, 1, 19), (7, 3, 0, 23)
"""Sequences without rows, without keys, with fewer rows than keys."""
PAGE, SLOTS = 8, 3
SETTINGS: dict[str, dict[str, Any]] = {
    "packed": {"layout": Layout(q_starts=I32, k_starts=I32)},
    "causal": {"layout": Layout(q_starts=I32, k_starts=I32), "causal": Causal.BOTTOM_RIGHT, "lse": True},
    "window": {"layout": Layout(q_starts=I64, k_starts=I64), "window": (9, 4), "lse": True},
    "used": {"layout": Layout(q_starts=I32, k_starts=I32, k_used=I32), "causal": Causal.BOTTOM_RIGHT},
    "paged": {"layout": Layout(q_starts=I32, table=I32, k_used=I32), "causal": Causal.BOTTOM_RIGHT, "lse": True},
    "cache": {"layout": Layout(table=I64, k_used=I64)},
    "gathered": {"layout": Layout(table=I64), "window": (5, -1)},
}


def arguments(
    problem: AttentionProblem, rows: Sequence[int] = ROWS, keys: Sequence[int] = KEYS, **more: int
) -> tuple[dict[str, int], list[Any]]:
    """The sizes and the flat arguments of sequences of these lengths. Sequences that are not packed have as many rows as the
    longest one. Pages that no key is in have a number that is none."""
    layout = problem.layout
    assert layout is not None
    most = max(keys, default=0) if layout.own_keys else SLOTS * PAGE - 3
    size = {
        **HEADS, "B": len(rows), "Mq": max(rows, default=0), "Mkv": most, "Tq": sum(rows), "Tk": sum(keys), "Ends": len(rows) + 1,
        "Page": PAGE, "Slots": SLOTS, "Pages": 2 * SLOTS, **more,
    }  # fmt: skip
    args = make_args(problem, size)
    used = [max(0, n - 1) if layout.k_starts is not None else n for n in keys]
    known = {
        "q_starts": list(itertools.accumulate(rows, initial=0)), "k_starts": list(itertools.accumulate(keys, initial=0)),
        "k_used": used,
    }  # fmt: skip
    for place, tensor in enumerate(problem.tensors):
        if tensor.name in known:
            args[place] = torch.tensor(known[tensor.name], dtype=tensor.dtype)
        elif tensor.name == "table":
            pages = torch.randint(-2 * SLOTS, 2 * SLOTS, (len(rows), SLOTS), dtype=tensor.dtype)
            for b, n in enumerate(keys):
                if layout.own_keys:
                    pages[b, -(-n // size["Page"]) :] = 1 << 30
            args[place] = pages.flatten()
        elif tensor.role == "out":
            args[place].fill_(float("nan"))
    if problem.backward:
        given = operands(problem, args)
        out, saved, _ = given.left
        run_attention(replace(problem, backward=False, lse=True), replace(given, out=out, lse=saved))
    return size, args
