"""The candidate of an attention that keeps its scores in memory (attention/unfused.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
import torch

from polytile.attention.arguments import Operands, operands
from polytile.attention.problem import AttentionProblem
from polytile.attention.unfused import ITEMS, ROWS
from polytile.candidates.inner_kernel import Composed, InnerKernel, best_cost
from polytile.host_time import host_seconds, weighed
from polytile.problem import digest
from polytile.runtime.formula import Formula, encode, evaluate

MOST_BYTES = 1 << 31
"""Maximum size of the scores in memory."""
MOST_SIZES = 1024
"""Sizes and strides of which the integers of the kernels are remembered."""


@dataclass(frozen=True)
class Step:
    """One of the three kernels, the names of the tensors that it takes, and the integers that it takes."""

    run: InnerKernel
    tensors: tuple[str, ...]
    integers: tuple[sympy.Expr, ...]


class UnfusedAttention(Composed):
    """Two products and a softmax, with the scores in memory."""

    name = "stored"
    origin = "unfused"

    def __init__(self, problem: AttentionProblem, steps: Sequence[Step], scores: torch.dtype, target: torch.device) -> None:
        self.scores_dtype, self.target = scores, target
        self.problem, self.steps, self.inner = problem, tuple(steps), [step.run for step in steps]
        symbols = sorted({s for step in steps for e in step.integers for s in e.free_symbols}, key=str)
        self._names = tuple(symbol.name for symbol in symbols)
        places = {symbol: k for k, symbol in enumerate(symbols)}
        self._formulas: list[list[Formula]] = [[encode(e, places) for e in step.integers] for step in steps]
        self._known: dict[tuple[int, ...], list[list[int]]] = {}
        """The integers of the three kernels, from those of the call and the layout of its operands."""

    @cached_property
    def source_hash(self) -> str:
        return digest(f"stored {torch.__version__} {self.problem.text}")

    def valid(self, sizes: Mapping[str, int]) -> bool:
        scores = sizes["B"] * sizes["Hq"] * sizes["Mq"] * sizes["Mkv"]
        return 0 < scores * self.scores_dtype.itemsize <= MOST_BYTES and min(sizes["Hkv"], sizes["D"], sizes["Dv"]) > 0

    def cost(self, sizes: Mapping[str, int]) -> float:
        """The best prediction for each of the three, and for a call through Python."""
        group = sizes["Hq"] // max(1, sizes["Hkv"])
        dense = {
            ITEMS.name: sizes["B"] * sizes["Hkv"], ROWS.name: group * sizes["Mq"],
            "q_stride_i": group * sizes["Mq"] * sizes["D"], "q_stride_r": sizes["D"],
            "k_stride_i": sizes["Mkv"] * sizes["D"], "k_stride_r": sizes["D"],
            "v_stride_i": sizes["Mkv"] * sizes["Dv"], "v_stride_r": sizes["Dv"],
        }  # fmt: skip
        total = 0.0
        for step, ints in zip(self.steps, self._integers({**self.problem.dense_strides(sizes), **sizes, **dense}), strict=True):
            total += best_cost(step.run, dict(zip(step.run.spec.size_names, ints, strict=True)))
        return weighed(total, host_seconds(self.problem.family, self.origin, self.target.type))

    def _call(self, *args: Any) -> None:
        given = operands(self.problem, args)
        tensors = {**self._rows(given), **self._loaded(args)}
        for step, ints in zip(self.steps, self._integers_of_call(args[len(self.problem.tensors) :], tensors), strict=True):
            step.run(*[tensors[name] for name in step.tensors], *ints)
        if tensors["out"].data_ptr() != given.out.data_ptr():
            given.out.copy_(tensors["out"].view(given.out.shape))

    def _loaded(self, args: Sequence[Any]) -> dict[str, torch.Tensor]:
        """The tensors that an expression of the scores reads."""
        if self.problem.scores is None:
            return {}
        own = {tensor.name for tensor in self.problem.scores.tensors}
        return {tensor.name: arg for tensor, arg in zip(self.problem.tensors, args, strict=False) if tensor.name in own}

    def _integers_of_call(self, own: Sequence[int], tensors: Mapping[str, torch.Tensor]) -> list[list[int]]:
        key = (*own, *tensors["q"].stride(), *tensors["k"].stride(), *tensors["v"].stride())
        known = self._known.get(key)
        if known is None:
            sizes = dict(zip(self.problem.size_names, own, strict=True))
            for name in "qkv":
                sizes[f"{name}_stride_i"], sizes[f"{name}_stride_r"], _ = tensors[name].stride()
            sizes[ITEMS.name], sizes[ROWS.name], _ = tensors["q"].shape
            if len(self._known) >= MOST_SIZES:
                self._known.clear()
            known = self._known[key] = self._integers(sizes)
        return known

    def _rows(self, given: Operands) -> dict[str, torch.Tensor]:
        """Operands as batches of matrices, and memory for what is computed."""
        items = given.k.shape[0] * given.k.shape[1]
        group = given.q.shape[1] // given.k.shape[1]
        tensors: dict[str, torch.Tensor] = {}
        for name, tensor, rows in (("q", given.q, group * given.q.shape[2]), ("k", given.k, given.k.shape[2]),
                                   ("v", given.v, given.k.shape[2])):  # fmt: skip
            each = tensor.reshape(items, rows, tensor.shape[3])
            tensors[name] = each if each.stride(2) == 1 else each.contiguous()
        shares = tensors["q"].new_empty(items, tensors["q"].shape[1], given.k.shape[2])
        tensors |= {"scores": torch.empty_like(shares, dtype=self.scores_dtype), "shares": shares}
        shape = (items, shares.shape[1], given.v.shape[3])
        tensors["out"] = given.out.view(shape) if given.out.is_contiguous() else shares.new_empty(shape)
        return tensors if given.bias is None else {**tensors, "bias": given.bias}

    def _integers(self, sizes: Mapping[str, int]) -> list[list[int]]:
        values = [sizes[name] for name in self._names]
        return [[evaluate(formula, values) for formula in step] for step in self._formulas]
