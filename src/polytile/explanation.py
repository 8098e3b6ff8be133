"""`polytile.explain`: what became of every operator of a function, which kernels run, and why those."""

from __future__ import annotations

import collections
import cProfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polytile import compiler
from polytile.compiler import CompiledProgram
from polytile.frontend.backend import Backend
from polytile.ir.program import Extern
from polytile.multikernel.decision import Decision
from polytile.problem import sizes_text, time_text
from polytile.runtime.convolution import KeptConvolution
from polytile.runtime.weights import Site


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
class WeightRow:
    """A weight by which a kernel multiplies: the sizes and type that it is read in, the bytes of the packed copy that is kept of
    it now (0: none) and why there is none, and how many were made."""

    kernel: str
    sizes: tuple[int, ...]
    dtype: str
    bytes: int
    reason: str
    made: int


@dataclass(frozen=True)
class Explanation:
    """`str()` of it is the report; the rows are for programs. `sources` has the wrapper of each graph."""

    graphs: tuple[str, ...]
    operators: tuple[OperatorRow, ...]
    decisions: tuple[DecisionRow, ...]
    sources: tuple[str, ...] = field(default=(), repr=False)
    weights: tuple[WeightRow, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graph(s): {', '.join(self.graphs)}", "", "operators"]
        width = max((len(row.operator) for row in self.operators), default=0)
        for row in self.operators:
            reason = f": {row.reason}" if row.reason else ""
            lines.append(f"  {row.operator:<{width}}  {row.count:>3} × {row.how}{reason}")
        lines += ["", "decisions"]
        for decision in self.decisions:
            sizes = sizes_text(decision.sizes)
            time = f" {time_text(decision.seconds)}" if decision.seconds is not None else ""
            lines.append(f"  {decision.kernel} [{sizes}] → {decision.candidate}{time}: {decision.provenance}")
        lines += ["", "weights"] if self.weights else []
        for weight in self.weights:
            size = " × ".join(map(str, weight.sizes))
            kept = f"packed, {weight.bytes / 2**20:.1f} MiB" if weight.bytes else f"not packed: {weight.reason}"
            lines.append(f"  {weight.kernel} {size} {weight.dtype}: {kept}; packed {weight.made} times so far")
        return "\n".join(lines)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Runs `function(*args, **kwargs)` once and reports on the graphs that were compiled for the call or ran in it.

    A function that torch.compile or polytile.compile made is called as it is; any other is compiled for this one call,
    with polytile's defaults and symbolic sizes.
    """
    compiled = function if _is_compiled(function) else torch.compile(function, backend=Backend(), dynamic=True)
    before = compiler.compiled_programs()
    profile = cProfile.Profile()  # the only way to see them run: compiled programs are plain functions and leave no trace
    profile.runcall(compiled, *args, **kwargs)
    ran = [entry.code for entry in profile.getstats()]
    codes = set(map(id, ran))  # by identity: code objects of two programs with the same text are equal
    programs = [
        p for p in compiler.compiled_programs() if p not in before or id(getattr(p.call, "__code__", None)) in codes
    ]
    return report(programs)


def _is_compiled(function: Any) -> bool:
    return hasattr(function, "_torchdynamo_orig_callable") or isinstance(function, torch._dynamo.OptimizedModule)


def report(programs: Sequence[CompiledProgram]) -> Explanation:
    """The rows of the given graphs."""
    operators = collections.Counter((r.operator, r.how, r.reason) for p in programs for r in p.operators)
    multikernels = dict.fromkeys(m for p in programs for m in p.multikernels)
    rows = tuple(OperatorRow(op, how, reason, n) for (op, how, reason), n in sorted(operators.items()))
    decisions = tuple(_row(d) for m in multikernels for d in m.decisions)
    weights = tuple(row for program in programs for row in _weights(program))
    return Explanation(tuple(p.name for p in programs), rows, decisions, tuple(p.source for p in programs), weights)


def _weights(program: CompiledProgram) -> Iterator[WeightRow]:
    """Those of products, then those of convolutions."""
    for multikernel, call in program.calls:
        if call.kept is not None:
            yield _weight(multikernel.spec.name, call.kept.site, call.kept.view.dtype)
    for operation in program.program.operations if program.program is not None else ():
        if isinstance(operation, Extern) and isinstance(operation.target, KeptConvolution):
            for site in operation.target.sites:
                yield _weight(operation.target.__name__, site, operation.target.dtype)


def _weight(kernel: str, site: Site, dtype: torch.dtype) -> WeightRow:
    return WeightRow(kernel, site.recipe.sizes, str(dtype).removeprefix("torch."), site.bytes, site.reason, site.made)


def _row(decision: Decision) -> DecisionRow:
    return DecisionRow(
        decision.kernel, decision.sizes, decision.candidate, decision.provenance, decision.seconds, decision.link
    )
