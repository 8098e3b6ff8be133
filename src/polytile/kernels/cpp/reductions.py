"""C++ of reductions and scans: the running values of a pass, how a vector enters them, and what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from polytile.errors import LoweringError
from polytile.ir.expr import Node, Part, Reduce, Scan
from polytile.kernels.cpp import text
from polytile.kernels.cpp.body import Body, Scope


@dataclass(frozen=True)
class Kind:
    """A single-result reduction: its identity (by type), how two values combine ({0}, {1}; {T}, {L}), and the horizontal form."""

    combine: str
    across: str


SINGLE: dict[str, Kind] = {
    "sum": Kind("({0} + {1})", "hsum({0})"),
    "prod": Kind("({0} * {1})", "hprod({0})"),
    "max": Kind("maximum({0}, {1})", "hmax({0})"),
    "min": Kind("minimum({0}, {1})", "hmin({0})"),
    "any": Kind("({0} | {1})", "-(i32)hany({0})"),
    "all": Kind("({0} & {1})", "-(i32)hall({0})"),
}
ARG = {"argmax": "true", "argmin": "false"}


def identity(kind: str, dtype: torch.dtype) -> str:
    """The value that changes nothing, as a literal."""
    if kind in ("max", "argmax"):
        low = -float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min if dtype != torch.bool else False
        return text.number(low, dtype)
    if kind in ("min", "argmin"):
        high = float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max if dtype != torch.bool else True
        return text.number(high, dtype)
    return text.number({"sum": 0, "prod": 1, "any": False, "all": True}[kind], dtype)


def fields(reduces: Sequence[Reduce]) -> Iterator[tuple[Reduce, str]]:
    """Each reduction of a pass with the name of its field in the accumulator."""
    for k, r in enumerate(reduces):
        yield r, f"x{k}"


def accumulator(name: str, reduces: Sequence[Reduce], scans: Sequence[Scan] = ()) -> list[str]:
    """The struct of a pass's running values, starting at the identity; `merge` folds in another one of the same pass. Carries of
    scans along columns live here too."""
    members, merges = [], []
    for r, field in fields(reduces):
        kind = text.value_type(r.args[0].dtype)
        start = identity(r.kind, r.args[0].dtype) if r.kind in SINGLE or r.kind in ARG else _unknown(r)
        members.append(f"V<{kind}, L> {field} = splat<{kind}, L>({start});")
        if r.kind in ARG:
            members.append(f"V<i64, L> {field}i = splat<i64, L>(9223372036854775807L);")
            merges.append(f"arg_update<{ARG[r.kind]}, {kind}, L>({field}, {field}i, o.{field}, o.{field}i);")
        else:
            merges.append(f"{field} = {SINGLE[r.kind].combine.format(field, 'o.' + field, T=kind, L='L')};")
    for scan in scans:
        for carry, kind, start in _carries(scan):
            members.append(f"V<{kind}, L> {carry} = splat<{kind}, L>({start});")
    return [f"struct {name} {{", *["  " + m for m in members], f"  PT_INLINE void merge(const {name}& o) {{ (void)o; {' '.join(merges)} }}", "};"]


def _unknown(r: Reduce) -> str:
    raise LoweringError(f"the reduction {r.kind!r} has no C++ form; the operator runs as a library call.")


def update(r: Reduce, field: str, body: Body, scope: Scope, masked: bool) -> None:
    """Lines that let the current vector into the accumulator `acc`; `masked`: lanes past the end must not count."""
    source = r.args[0]
    kind = text.value_type(source.dtype)
    value = body.operand(source, body.lanes, scope)
    if masked:
        value = f"keep<{kind}, L>(tail, {value}, {identity(r.kind, source.dtype)}, n)"
    if r.kind in ARG:
        at = body.operand(r.args[1], body.lanes, scope)
        if masked:
            at = f"keep<i64, L>(tail, {at}, 9223372036854775807L, n)"
        scope.lines.append(f"arg_update<{ARG[r.kind]}, {kind}, L>(acc.{field}, acc.{field}i, {value}, {at});")
        return
    combined = SINGLE[r.kind].combine.format(f"acc.{field}", value, T=kind, L="L")
    scope.lines.append(f"acc.{field} = {combined};")


def results(r: Reduce, field: str, acc: str, parts: Iterable[Part], horizontal: bool) -> Iterator[tuple[Node, str, str]]:
    """(node, element type, text) of what reduction `r` gives from accumulator `acc`: across lanes, or lane by lane."""
    kind = text.value_type(r.args[0].dtype)
    if r.kind in ARG:
        for p in parts:
            member = f"{acc}.{field}" + ("i" if p.k else "")
            result_kind = "i64" if p.k else kind
            if horizontal:
                pair = f"arg_across<{ARG[r.kind]}, {kind}, L>({acc}.{field}, {acc}.{field}i)"
                member = f"V<{result_kind}, 1>({pair}.{'index' if p.k else 'value'})"
            yield p, result_kind, member
        return
    member = f"{acc}.{field}"
    across = SINGLE[r.kind].across.format(member, T=kind)
    yield r, kind, f"V<{kind}, 1>({across})" if horizontal else member


# scans -----------------------------------------------------------------------------------------------------------------

SCAN_COMBINE = {
    "sum": "a + b",
    "prod": "a * b",
    "logsumexp": "logaddexp(a, b)",
}


def _carries(scan: Scan) -> list[tuple[str, str, str]]:
    """(name, element type, start) of a scan's running values."""
    dtype = scan.args[0].dtype
    kind, name = text.value_type(dtype), carry_name(scan)
    if scan.kind in ("max", "min"):
        return [(name, kind, identity(scan.kind, dtype)), (name + "i", "i64", "0L")]
    start = {"sum": 0, "prod": 1, "logsumexp": -float("inf")}[scan.kind]
    return [(name, kind, text.number(start, dtype))]


def carries(scans: Iterable[Scan]) -> list[tuple[str, str, str]]:
    return [c for s in scans for c in _carries(s)]


def carry_name(scan: Scan) -> str:
    return f"carry{_SCAN_NUMBERS.setdefault(id(scan), len(_SCAN_NUMBERS))}"


_SCAN_NUMBERS: dict[int, int] = {}


def combiner(scan: Scan, lanes: str = "1") -> str:
    """A lambda of two running values."""
    kind = text.value_type(scan.args[0].dtype)
    rule = SCAN_COMBINE[scan.kind].format(T=kind, L=lanes)
    return f"[](V<{kind}, {lanes}> a, V<{kind}, {lanes}> b) PT_INLINE {{ return V<{kind}, {lanes}>({rule}); }}"


def scan_text(scan: Scan, part: int, body: Body, scope: Scope, column: bool) -> str:
    """The inclusive prefix of the current vector: across lanes with a carry (rows), or lane by lane (columns)."""
    kind = text.value_type(scan.args[0].dtype)
    carry = ("acc." if column else "") + carry_name(scan)
    value = body.operand(scan.args[0], body.lanes, scope)
    if scan.kind in ("max", "min"):
        return _extreme(scan, part, kind, carry, value, body, scope, column)
    if column:
        scope.lines.append(f"{carry} = {combiner(scan, 'L')}({carry}, {value});")
        return carry
    return f"scan_lanes<{kind}, L>({value}, {carry}, n, {combiner(scan)})"


def _extreme(scan: Scan, part: int, kind: str, carry: str, value: str, body: Body, scope: Scope, column: bool) -> str:
    """cummax and cummin: both results come from one update, kept under names shared by the two parts."""
    names = (f"s{carry_name(scan)}", f"s{carry_name(scan)}i")
    key = ("scan", id(scan))
    if key not in scope.names:
        at = body.operand(scan.args[1], body.lanes, scope)
        greater = "true" if scan.kind == "max" else "false"
        call = "scan_extreme_lanes" if not column else "scan_extreme"
        count = "" if column else ", n"
        scope.lines.append(f"V<{kind}, L> {names[0]} = {value}; V<i64, L> {names[1]} = {at};")
        scope.lines.append(f"{call}<{greater}, {kind}, L>({names[0]}, {names[1]}, {carry}, {carry}i{count});")
        scope.names[key] = names[0]  # type: ignore[index]
    return names[part]
