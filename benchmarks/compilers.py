"""The ways to compile a function that benchmarks compare, under one call, and what polytile says it did.

A backend is "polytile", "inductor" (the peer), "max-autotune" (the peer in that mode, without CUDA graphs) or any other name that
torch.compile knows ("eager" is Dynamo's guards alone). Everything here goes through public entry points.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import polytile
from polytile.problem import sizes_text
from polytile.report import Column, Table
from polytile.report.tables import count

TUNED, MODE = "max-autotune", "max-autotune-no-cudagraphs"
BACKENDS = ("polytile", "inductor", TUNED, "aot_eager", "eager")


def compiled(
    function: Callable[..., Any],
    backend: str,
    *,
    hints: Mapping[str, Sequence[int]] | Sequence[int] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """`function` under one dynamic compile. Hints and options are polytile's; other backends compile without them."""
    if backend == "polytile":
        return polytile.compile(function, hints=hints, options=dict(options or {}))
    if backend == TUNED:
        return torch.compile(function, mode=MODE, dynamic=True)
    return torch.compile(function, backend=backend, dynamic=True)


def tuned_options() -> dict[str, Any]:
    """What the mode of TUNED comes to in the peer's own options."""
    from torch._inductor import list_mode_options  # noqa: TID251 (the peer says of itself what its mode is)

    return dict(list_mode_options(MODE, dynamic=True))


def copied(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`function` under another name and with code of its own, since Dynamo keeps what it compiled by code object."""
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_name=name)
    made = types.FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def forget() -> None:
    """Drops everything compiled in this process, Dynamo's part and polytile's."""
    torch._dynamo.reset()
    polytile.reset()


class Account:
    """What polytile's counters gained from this object's making to `closed()`; every count is None for another backend."""

    def __init__(self, backend: str) -> None:
        self._own = backend == "polytile"
        self._before = dict(polytile.counters)
        self._after: dict[str, Any] | None = None

    def closed(self) -> Account:
        """Counts no further: what is compiled later belongs to others."""
        self._after = dict(polytile.counters)
        return self

    @property
    def _now(self) -> Mapping[str, Any]:
        return self._after if self._after is not None else polytile.counters

    def __getitem__(self, name: str) -> int | None:
        return self._now[name] - self._before[name] if self._own else None

    @property
    def library_calls(self) -> dict[str, int]:
        """Call sites that run as ATen calls, by operator."""
        if not self._own:
            return {}
        gained = collections.Counter(self._now["library_calls"])
        gained.subtract(self._before["library_calls"])
        return {name: number for name, number in sorted(gained.items()) if number > 0}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that first calls took, by stage."""
        before = self._before["seconds"]
        return {stage: now - before[stage] for stage, now in self._now["seconds"].items()} if self._own else {}

    def as_json(self) -> dict[str, Any]:
        if not self._own:
            return {}
        numbers = {name: self[name] for name, count in self._before.items() if isinstance(count, int)}
        return {**numbers, "library_calls": self.library_calls, "seconds": self.seconds}


def decisions(explanation: Any) -> list[dict[str, Any]]:
    """The decisions of an explanation as plain values; sizes read "M=64 N=64"."""
    return [
        {
            "kernel": str(row.kernel),
            "sizes": sizes_text(row.sizes, " "),
            "candidate": str(row.candidate),
            "provenance": str(row.provenance),
            "seconds": row.seconds,
        }
        for row in explanation.decisions
    ]


def decision_summary(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """How often each candidate was chosen and on what grounds, most frequent first."""
    chosen: collections.Counter[tuple[str, str]] = collections.Counter()
    kernels: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for row in rows:
        key = (row["candidate"], row["provenance"].split(" at ")[0])  # on what grounds, not from which sizes
        chosen[key] += 1
        kernels[key].add(row["kernel"])
    body = [(*key, number, len(kernels[key])) for key, number in chosen.most_common()]
    columns: list[Column | str] = ["candidate", "chosen by", Column("decisions", count), Column("kernels", count)]
    return Table.from_rows(title, columns, body, folded=True)


def operator_summary(title: str, explanation: Any) -> Table:
    """How each operator of the compiled function runs: generated, from a template or as a library call."""
    body = [(row.operator, row.how, row.count, row.reason or "") for row in explanation.operators]
    return Table.from_rows(title, ["operator", "how", Column("calls", count), "reason"], body, folded=True)


__all__ = [
    "BACKENDS", "TUNED", "Account", "compiled", "copied", "decision_summary", "decisions", "forget", "operator_summary",
    "tuned_options",
]  # fmt: skip
