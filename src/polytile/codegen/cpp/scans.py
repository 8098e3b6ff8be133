"""Scans in C++: the inclusive prefix of a row, vector by vector with a carry, or of every column at once."""

from __future__ import annotations

from polytile.codegen.cpp import text
from polytile.codegen.cpp.body import Body, Scope
from polytile.codegen.cpp.reductions import identity
from polytile.ir.expr import Node, Part, Scan
from polytile.schedule.nest import Nest

COMBINE = {"sum": "a + b", "prod": "a * b", "logsumexp": "logaddexp(a, b)"}
EXTREME = {"max": "true", "min": "false"}  # whether the greater value wins


def carry_name(nest: Nest, scan: Scan) -> str:
    """The variable that carries a scan's value from vector to vector."""
    return f"carry{nest.scans.index(scan)}"


def carries(nest: Nest, scan: Scan, lanes: str) -> list[str]:
    """Declares a scan's running values of `lanes` lanes, initialised."""
    kind, name = _kind(scan), carry_name(nest, scan)
    lines = [f"V<{kind}, {lanes}> {name} = splat<{kind}, {lanes}>({start(scan)});"]
    if scan.kind in EXTREME:
        lines.append(f"V<i64, {lanes}> {name}_at = splat<i64, {lanes}>(0L);")
    return lines


def start(scan: Scan) -> str:
    """The scan's value before its first element, as a literal. Raises LoweringError for a scan without C++ form."""
    dtype = scan.args[0].dtype
    if scan.kind == "logsumexp":
        return text.number(-float("inf"), dtype)
    return identity(scan.kind, dtype)


def _kind(scan: Scan) -> str:
    return text.value_type(scan.args[0].dtype)


def combiner(scan: Scan) -> str:
    """A lambda that combines two vectors of running values."""
    return f"[](auto a, auto b) PT_INLINE {{ return decltype(a)({COMBINE[scan.kind]}); }}"


def prepare(nest: Nest, body: Body, column: bool) -> None:
    """Registers with `body` how a pass computes scans and their parts."""
    for node in nest.nodes:
        if isinstance(node, Scan) and node.kind not in EXTREME:
            body.overrides[id(node)] = lambda scope, scan=node: prefix(scan, body, scope, column)  # type: ignore[misc]
        elif isinstance(node, Part) and isinstance(node.node, Scan):
            body.overrides[id(node)] = lambda scope, part=node: _extreme(part, body, scope, column)  # type: ignore[misc]


def prefix(scan: Scan, body: Body, scope: Scope, column: bool) -> str:
    """The prefix of the current vector: across lanes from a carry, or per lane from the preceding rows."""
    value, carry = body.operand(scan.args[0], body.lanes, scope), carry_name(body.nest, scan)
    if not column:
        return f"scan_lanes<{_kind(scan)}, L>({value}, {carry}, n, {combiner(scan)})"
    scope.lines.append(f"acc.{carry} = {combiner(scan)}(acc.{carry}, {value});")
    return f"acc.{carry}"


def _extreme(part: Node, body: Body, scope: Scope, column: bool) -> str:
    """cummax and cummin: one update computes both results, under names that the two parts share."""
    assert isinstance(part, Part) and isinstance(part.node, Scan)
    scan = part.node
    name = body.name(scan)
    if id(scan) not in scope.names:
        value, at = (body.operand(a, body.lanes, scope) for a in scan.args)
        carry, form = carry_name(body.nest, scan), f"{EXTREME[scan.kind]}, {_kind(scan)}, L"
        scope.lines.append(f"V<{_kind(scan)}, L> {name} = {value};")
        scope.lines.append(f"V<i64, L> {name}_at = {at};")
        if column:
            scope.lines.append(f"scan_extreme<{form}>({name}, {name}_at, acc.{carry}, acc.{carry}_at);")
        else:
            scope.lines.append(f"scan_extreme_lanes<{form}>({name}, {name}_at, {carry}, {carry}_at, n);")
        scope.names[id(scan)] = name
    return f"{name}_at" if part.k else name
