"""`polytile.explain`: what became of every operator of a function, which kernels run, and why those."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from polytile import compiler
from polytile.multikernel.decision import Decision


@dataclass(frozen=True)
class OperatorRow:
    """One operator of the graphs: `how` is generated, template, library or view; `count` call sites."""

    operator: str
    how: str
    reason: str
    count: int


@dataclass(frozen=True)
class DecisionRow:
    """One choice: kernel, sizes, the candidate, on what grounds, and its measured seconds (None if not measured)."""

    kernel: str
    sizes: tuple[tuple[str, int], ...]
    candidate: str
    provenance: str
    seconds: float | None
    link: str = ""


@dataclass(frozen=True)
class Explanation:
    """`str()` of it is the report; the rows are for programs."""

    graphs: tuple[str, ...]
    operators: tuple[OperatorRow, ...]
    decisions: tuple[DecisionRow, ...]
    sources: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graph(s): {', '.join(self.graphs)}", "", "operators"]
        width = max((len(r.operator) for r in self.operators), default=0)
        for row in self.operators:
            lines.append(f"  {row.operator:<{width}}  {row.count:>3} × {row.how}{f': {row.reason}' if row.reason else ''}")
        lines += ["", "decisions"]
        for d in self.decisions:
            sizes = ", ".join(f"{k}={v}" for k, v in d.sizes)
            time = f" {d.seconds * 1e6:.1f} µs" if d.seconds is not None else ""
            lines.append(f"  {d.kernel} [{sizes}] → {d.candidate}{time}: {d.provenance}")
        return "\n".join(lines)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Runs `function(*args, **kwargs)` and reports on the graphs compiled for it.

    A function that is not compiled yet is compiled with polytile, sizes dynamic; one that is, is called as it is (call it with
    sizes that are new to it, or after `polytile.reset()` and `torch._dynamo.reset()`, to see its graphs: those compiled earlier
    are reported when this call compiles none).
    """
    before = len(compiler.compiled_programs())
    compiled = function
    if not _is_compiled(function):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="polytile", dynamic=True)
    compiled(*args, **kwargs)
    programs = compiler.compiled_programs()
    return report(programs[before:] or programs)


def _is_compiled(function: Any) -> bool:
    return hasattr(function, "_torchdynamo_orig_callable") or isinstance(function, torch._dynamo.OptimizedModule)


def report(programs: tuple[compiler.CompiledProgram, ...]) -> Explanation:
    """The rows of the given graphs."""
    operators = collections.Counter((r.operator, r.how, r.reason) for p in programs for r in p.operators)
    multikernels = dict.fromkeys(m for p in programs for m in p.multikernels)
    rows = tuple(OperatorRow(op, how, reason, n) for (op, how, reason), n in sorted(operators.items()))
    decisions = tuple(_row(d) for m in multikernels for d in m.decisions)
    return Explanation(tuple(p.name for p in programs), rows, decisions, tuple(p.source for p in programs))


def _row(decision: Decision) -> DecisionRow:
    seconds = next((s.seconds for s in decision.standings if s.candidate == decision.candidate), float("nan"))
    known = None if seconds != seconds else seconds
    return DecisionRow(decision.kernel, decision.sizes, decision.candidate, decision.provenance, known, decision.link)
