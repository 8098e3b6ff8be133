"""Reductions in C++: the running values of a pass, their update by a vector, and their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from polytile.codegen.cpp import text
from polytile.codegen.cpp.body import Body, Scope
from polytile.errors import LoweringError
from polytile.ir.expr import Node, Reduce
from polytile.schedule.nest import Nest

NOWHERE = "9223372036854775807L"  # the index of an extreme that no element has set


@dataclass(frozen=True)
class Single:
    """A reduction with one result: how to combine two values ({0}, {1}), and how to combine the lanes of a vector."""

    combine: str
    across: str


SINGLE: dict[str, Single] = {
    "sum": Single("{0} + {1}", "hsum({0})"),
    "prod": Single("{0} * {1}", "hprod({0})"),
    "max": Single("maximum({0}, {1})", "hmax({0})"),
    "min": Single("minimum({0}, {1})", "hmin({0})"),
    "any": Single("{0} | {1}", "-i32(hany({0}))"),
    "all": Single("{0} & {1}", "-i32(hall({0}))"),
}
ARG = {"argmax": "true", "argmin": "false"}  # whether the greater value wins


@dataclass(frozen=True)
class Running:
    """A reduction's slot in the accumulator of its pass: field `name`, and `name`_at for the index of an extreme."""

    reduce: Reduce
    name: str

    @property
    def kind(self) -> str:
        return text.value_type(self.reduce.args[0].dtype)

    @property
    def start(self) -> str:
        return identity(self.reduce.kind, self.reduce.args[0].dtype)

    @property
    def better(self) -> str:
        return f"{ARG[self.reduce.kind]}, {self.kind}, L"


def identity(kind: str, dtype: torch.dtype) -> str:
    """The neutral element, as a literal. Raises LoweringError for a reduction without C++ form."""
    if kind in ("max", "argmax"):
        return text.number(-float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min, dtype)
    if kind in ("min", "argmin"):
        return text.number(float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max, dtype)
    if kind not in SINGLE:
        raise LoweringError(f"the reduction {kind!r} has no C++ form; the operator runs as a library call.")
    return text.number({"sum": 0, "prod": 1, "any": False, "all": True}[kind], dtype)


def running(reduces: Sequence[Reduce]) -> list[Running]:
    """The reductions of one pass with their fields."""
    return [Running(r, f"{r.kind}{k}") for k, r in enumerate(reduces)]


def accumulator(name: str, reduces: Sequence[Reduce], carries: Sequence[str] = ()) -> Iterator[str]:
    """Declares the struct of a pass's running values, initialised to the neutral elements; `merge` folds in another
    instance. `carries` are further members."""
    yield f"struct {name} {{"
    for r in running(reduces):
        yield f"  V<{r.kind}, L> {r.name} = splat<{r.kind}, L>({r.start});"
        if r.reduce.kind in ARG:
            yield f"  V<i64, L> {r.name}_at = splat<i64, L>({NOWHERE});"
    yield from (f"  {carry}" for carry in carries)
    merges = " ".join(_merge(r) for r in running(reduces))
    yield f"  PT_FN void merge(const {name}& o) {{ {merges} }}" if merges else f"  PT_FN void merge(const {name}&) {{}}"
    yield "};"


def _merge(r: Running) -> str:
    if r.reduce.kind in ARG:
        return f"arg_update<{r.better}>({r.name}, {r.name}_at, o.{r.name}, o.{r.name}_at);"
    return f"{r.name} = {SINGLE[r.reduce.kind].combine.format(r.name, 'o.' + r.name)};"


def update(r: Running, body: Body, scope: Scope, masked: bool) -> None:
    """Emits the update of the accumulator `acc` by the current vector. `masked` excludes lanes past the end."""
    value = body.operand(r.reduce.args[0], body.lanes, scope)
    if masked:
        value = f"mask_tail<{r.kind}, L>(tail, {value}, {r.start}, n)"
    if r.reduce.kind not in ARG:
        scope.lines.append(f"acc.{r.name} = {SINGLE[r.reduce.kind].combine.format('acc.' + r.name, value)};")
        return
    at = body.operand(r.reduce.args[1], body.lanes, scope)
    if masked:
        at = f"mask_tail<i64, L>(tail, {at}, {NOWHERE}, n)"
    scope.lines.append(f"arg_update<{r.better}>(acc.{r.name}, acc.{r.name}_at, {value}, {at});")


def results(r: Running, nest: Nest, acc: str, across: bool) -> Iterator[tuple[Node, str]]:
    """(node, text) for each result of the reduction in accumulator `acc`: combined across lanes, or per lane."""
    member = f"{acc}.{r.name}"
    if r.reduce.kind not in ARG:
        yield r.reduce, SINGLE[r.reduce.kind].across.format(member) if across else member
        return
    for part in nest.parts(r.reduce):
        if across:
            yield part, f"arg_across<{r.better}>({member}, {member}_at).{'index' if part.k else 'value'}"
        else:
            yield part, f"{member}_at" if part.k else member
