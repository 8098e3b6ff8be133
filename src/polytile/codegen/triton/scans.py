"""Scans in Triton: the inclusive prefix of a block along its reduced dimension, alone or after the preceding blocks.

A scan's value in the current block is its prefix there combined with the carry, the total of all preceding blocks.
cummax and cummin also carry the index of the extreme.
"""

from __future__ import annotations

import torch

from polytile.codegen.triton import text
from polytile.codegen.triton.body import Body, Scope
from polytile.errors import LoweringError
from polytile.ir.expr import Node, Part, Scan
from polytile.ir.reductions import largest, smallest

COMBINE = {"sum": "pt_add", "prod": "pt_mul", "logsumexp": "pt_logaddexp", "max": "pt_cummax", "min": "pt_cummin"}
EXTREMES = ("max", "min")


def starts(scan: Scan) -> list[tuple[torch.dtype, bool | int | float]]:
    """Type and neutral value of each of the scan's results."""
    dtype = scan.args[0].dtype
    if scan.kind in EXTREMES:
        worst = smallest(dtype) if scan.kind == "max" else largest(dtype)
        return [(dtype, worst), (scan.args[1].dtype, 0)]
    return [(dtype, {"sum": 0, "prod": 1, "logsumexp": float("-inf")}[scan.kind])]


def carries(body: Body, scan: Scan) -> list[str]:
    """The variables that carry a scan's values from block to block."""
    return [f"carry_{body.name(scan)}_{k}" for k in range(len(starts(scan)))]


def start(body: Body, scan: Scan, scope: Scope) -> None:
    """Initialises the carries before the first block."""
    shape = body.tile.shape(body.tile.parallel_dims)
    for name, (dtype, value) in zip(carries(body, scan), starts(scan), strict=True):
        literal, kind = text.literal(value, dtype), text.value_type(dtype)
        scope.lines.append(f"{name} = tl.full({shape if body.tile.parallel_dims else '[]'}, {literal}, {kind})")


def prepare_whole(body: Body) -> None:
    """Registers with `body` how to compute scans of rows that a block holds completely."""
    for scan in body.nest.scans:
        _prepare(body, scan, carried=False)


def prepare_carried(body: Body, scans: list[Scan]) -> None:
    """Registers with `body` how to compute scans block by block with a carry."""
    for scan in scans:
        _prepare(body, scan, carried=True)


def _prepare(body: Body, scan: Scan, carried: bool) -> None:
    if scan.kind not in EXTREMES:
        body.overrides[id(scan)] = lambda scope: _prefix(body, scan, scope, carried)[0]
        return
    for node in body.nest.nodes:
        if isinstance(node, Part) and node.node is scan:
            body.overrides[id(node)] = lambda scope, k=node.k: _results(body, scan, scope, carried)[k]  # type: ignore[misc]


def names(body: Body, scan: Scan) -> list[str]:
    """Variables of the scan's results in the current block."""
    return [f"{body.name(scan)}_scan{k}" for k in range(len(starts(scan)))]


def _results(body: Body, scan: Scan, scope: Scope, carried: bool) -> list[str]:
    """Both results of an extreme, computed once per scope."""
    if id(scan) not in scope.names:
        _prefix(body, scan, scope, carried)
        scope.names[id(scan)] = names(body, scan)[0]
    return names(body, scan)


def _prefix(body: Body, scan: Scan, scope: Scope, carried: bool) -> list[str]:
    """Emits the prefix of the current block, combined with the preceding blocks if `carried`; returns its variables."""
    results = prefix(body, scan, scope)
    if carried:
        scope.lines.append(f"{', '.join(results)} = {COMBINE[scan.kind]}({', '.join(carries(body, scan) + results)})")
    return results


def prefix(body: Body, scan: Scan, scope: Scope) -> list[str]:
    """Emits the prefix of the current block alone; returns its variables. Raises LoweringError for a scan without
    Triton form."""
    if scan.kind not in COMBINE:
        raise LoweringError(f"the scan {scan.kind!r} has no Triton form; the operator runs as a library call.")
    (axis,) = body.tile.reduced_at or (0,)
    combine, results = COMBINE[scan.kind], names(body, scan)
    values = [masked(body, node, start, scope) for node, (_, start) in zip(scan.args, starts(scan), strict=True)]
    if body.tile.reduced_at:
        operand = values[0] if len(values) == 1 else f"({', '.join(values)})"
        scope.lines.append(f"{', '.join(results)} = tl.associative_scan({operand}, {axis}, {combine})")
    else:  # one element at a time
        scope.lines.append(f"{', '.join(results)} = {', '.join(values)}")
    return results


def masked(body: Body, node: Node, neutral: bool | int | float, scope: Scope) -> str:
    """An argument as a full block, neutral outside the row."""
    value = body.full(node, body.tile.all_dims, scope)
    condition = " & ".join(body.tile.masks(body.tile.all_dims - body.tile.parallel_dims))
    return f"tl.where({condition}, {value}, {text.literal(neutral, node.dtype)})" if condition else value


def carry(body: Body, scans: list[Scan], scope: Scope) -> None:
    """Emits the update of the carries to the last element of the current block, which includes all others."""
    for scan in scans:
        results = names(body, scan)
        if not body.tile.reduced_at:
            scope.lines.append(f"{', '.join(carries(body, scan))} = {', '.join(results)}")
            continue
        dim = body.tile.dims[body.tile.reduced_at[0]]
        keep = ", keep_dims=True" if body.tile.parallel_dims else ""
        last = f"tl.arange(0, {dim.name}){body.tile.along(dim)} == {dim.name} - 1"
        for name, value, (dtype, _) in zip(carries(body, scan), results, starts(scan), strict=True):
            picked = f"tl.where({last}, {value}, {text.literal(0, dtype)})"
            scope.lines.append(f"{name} = tl.sum({picked}, {body.tile.reduced_at[0]}{keep}).to({text.value_type(dtype)})")
