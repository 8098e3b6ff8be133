"""Reductions in Triton: over a block at once, or block after block with running values that are combined at the end.

A running value is itself a block: element (x, r) has seen every r-th point of the row. The parts of a reduction:

    sum, prod, max, min, any, all   the value
    argmax, argmin                  the value and its index
    welford                         mean, sum of squared deviations, count
    online_softmax                  the maximum m, and the sum of exp(x - m); shared by adjacent elements of one thread

Every element of welford's running values has seen as many points as there were blocks, except those that the end of the
row cuts off the last block. One division per block serves all elements, and their counts are computed after the loop.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from polytile.codegen.triton import ops, text
from polytile.codegen.triton.body import Body, Scope
from polytile.codegen.triton.tile import Dim
from polytile.errors import LoweringError
from polytile.ir.expr import Node, Op, Reduce, Scan
from polytile.ir.expr import Part as Result
from polytile.ir.reductions import largest, smallest

NOWHERE = 2**63 - 1  # the index of an extreme that no element has set


@dataclass(frozen=True)
class Part:
    """One running value: its type and its neutral element."""

    dtype: torch.dtype
    start: bool | int | float

    @property
    def literal(self) -> str:
        return text.literal(self.start, self.dtype)


@dataclass(frozen=True)
class Form:
    """A kind of reduction: the function that combines two (tuples of) running values, or one of Triton's own reductions."""

    combine: str
    own: str = ""


FORMS: dict[str, Form] = {
    "sum": Form("pt_add", "tl.sum"), "prod": Form("pt_mul"),
    "max": Form("pt_max"), "min": Form("pt_min"), "any": Form("pt_or"), "all": Form("pt_and"),
    "argmax": Form("pt_argmax"), "argmin": Form("pt_argmin"),
    "welford": Form("pt_welford"), "online_softmax": Form("pt_online"), "logsumexp": Form("pt_logaddexp"),
}  # fmt: skip


class Reduction:
    """One reduction of a loop, in terms of a body; for a scan, its final value."""

    def __init__(self, body: Body, node: Reduce | Scan) -> None:
        if node.kind not in FORMS:
            raise LoweringError(f"the reduction {node.kind!r} has no Triton form; the operator runs as a library call.")
        self.body, self.node, self.kind = body, node, node.kind
        self.dtype = node.args[0].dtype
        self.name = body.name(node)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The running values; see the module's table."""
        match self.kind:
            case "sum" | "any":
                return (Part(self.carried, 0),)
            case "prod" | "all":
                return (Part(self.carried, 1),)
            case "max" | "min":
                return (Part(self.dtype, smallest(self.dtype) if self.kind == "max" else largest(self.dtype)),)
            case "argmax" | "argmin":
                worst = smallest(self.dtype) if self.kind == "argmax" else largest(self.dtype)
                return (Part(self.dtype, worst), Part(self.node.args[1].dtype, NOWHERE))
            case "welford":
                return (Part(self.dtype, 0.0),) * 3
            case "logsumexp":
                return (Part(self.dtype, float("-inf")),)
        return (Part(self.dtype, torch.finfo(self.dtype).min), Part(self.dtype, 0.0))  # finite: no difference is NaN

    @property
    def carried(self) -> torch.dtype:
        """The type of a single running value; bool is carried as int32."""
        return torch.int32 if self.dtype == torch.bool else self.dtype

    @property
    def combine(self) -> str:
        own = FORMS[self.kind].combine
        return own.replace("pt_", "pt_int_") if self.kind in ("max", "min") and not self.dtype.is_floating_point else own

    def running(self, suffix: str = "acc") -> list[str]:
        """Names of the running values."""
        return [f"{self.name}_{suffix}{k or ''}" for k in range(len(self.parts))]

    # block after block -----------------------------------------------------------------------------------------------

    def start(self, scope: Scope) -> None:
        """Initialises the running values."""
        shapes = [self._shape] * len(self.parts)
        if self._counts_agree:
            shapes[-1] = "[]"
        for name, part, shape in zip(self.running(), self.parts, shapes, strict=True):
            scope.lines.append(f"{name} = tl.full({shape}, {part.literal}, {text.value_type(part.dtype)})")

    @property
    def _shape(self) -> str:
        """Shape of the running values. Several adjacent elements of the block share one if a thread has them all."""
        shape, run = self.body.tile.shape(self.body.tile.all_dims), self._run_length
        return f"{shape[:-1]} // {run}]" if run > 1 else shape

    @functools.cached_property
    def _run_length(self) -> int:
        """Number of adjacent elements that a thread loads at once and that enter an online_softmax together: one
        comparison and one exponential each, and two more for all of them."""
        dims, own = self.body.tile.dims, self.body.vector(self.node)
        along = bool(dims) and dims[-1].axes == (self.body.nest.vec,) and own <= dims[-1].block
        whole = along and own * self.body.threads <= math.prod(d.block for d in dims)
        return own if self.kind == "online_softmax" and whole else 1

    @property
    def _counts_agree(self) -> bool:
        """Whether one number counts the points seen by every element of a welford, except at the end of the row."""
        return self.kind == "welford" and (not self.condition() or len(self.body.tile.reduced) == 1)

    def update(self, scope: Scope) -> None:
        """Adds the current block to the running values."""
        names = self.running()
        match self.kind:
            case "welford":
                self._welford_step(names, scope)
                return
            case "online_softmax":
                (value,) = self.values(scope)
                step = "pt_online_step"
                if self._run_length > 1:
                    step, value = "pt_online_run", f"tl.reshape({value}, {self._shape[:-1]}, {self._run_length}])"
                scope.lines.append(f"{', '.join(names)} = {step}({', '.join(names)}, {value})")
                return
        values = self.values(scope)
        scope.lines.append(f"{', '.join(names)} = {self.combine}({', '.join(names + values)})")

    def _welford_step(self, names: list[str], scope: Scope) -> None:
        value, condition = self.body.full(self.node.args[0], self.body.tile.all_dims, scope), self.condition()
        new, count = [f"{n}_new" for n in names[:2]], names[2]
        scope.lines.append(f"{count}_new = {count} + 1")
        scope.lines.append(f"{', '.join(new)} = pt_welford_step({', '.join(names[:2])}, {value}, 1.0 / {count}_new)")
        for name in names:
            kept = condition and not (name == count and self._counts_agree)
            scope.lines.append(f"{name} = " + (f"tl.where({condition}, {name}_new, {name})" if kept else f"{name}_new"))

    def counted(self, dim: Dim, first: str, end: str) -> list[str]:
        """Lines after the loop along `dim` with the positions `first` in its first block and the end `end`: the counts
        of each element of a welford."""
        if not self._counts_agree:
            return []
        count, kind = self.running()[2], text.value_type(self.dtype)
        shape = self.body.tile.shape(self.body.tile.all_dims)
        if not self.condition():
            return [f"{count} = tl.full({shape}, 0.0, {kind}) + {count}"]
        seen = f"(tl.maximum({end} - ({first}) + {dim.name} - 1, 0) // {dim.name}).to({kind})"
        return [f"{count} = tl.broadcast_to({seen}, {shape})"]

    def condition(self) -> str:
        """The condition that holds inside the row; "" if the block never overhangs."""
        return " & ".join(self.body.tile.masks(self.body.tile.all_dims - self.body.tile.parallel_dims))

    def values(self, scope: Scope) -> list[str]:
        """The arguments as full blocks of the carried types. Outside the row they are neutral; for an online_softmax,
        whose initial value is finite, they are a value whose exponential is 0."""
        blocks, condition = [], self.condition()
        for node, part in zip(self.node.args, self.parts, strict=False):
            value = self.body.full(node, self.body.tile.all_dims, scope)
            if node.dtype == torch.bool:
                value = f"{value}.to(tl.int32)"
            outside = text.literal(float("-inf"), part.dtype) if self.kind == "online_softmax" else part.literal
            blocks.append(f"tl.where({condition}, {value}, {outside})" if condition else value)
        return blocks

    # results ---------------------------------------------------------------------------------------------------------

    def at_once(self, scope: Scope) -> None:
        """The results over the current block, which holds the whole row."""
        if self.kind in ("welford", "online_softmax"):
            raise AssertionError(f"{self.kind} is spelled out where rows are held in registers")
        self.finish(self.values(scope), scope)

    def over_block(self, scope: Scope, points: str) -> str:
        """The text of the current block's combined running values. `points` is the number of points of a row in it."""
        match self.kind:
            case "welford":
                return self._mean_and_deviations(scope, points)
            case "online_softmax":
                return self._greatest_and_total(scope)
        return self.across(self.values(scope))

    @property
    def _reduce_arguments(self) -> str:
        """The trailing arguments of a Triton reduction over the only reduced dimension."""
        (axis,) = self.body.tile.reduced_at
        return f"{axis}, keep_dims=True" if self.body.tile.parallel_dims else str(axis)

    def _mean_and_deviations(self, scope: Scope, points: str) -> str:
        """The block's mean, sum of squared deviations, and number of points."""
        mean, off, count = self.running("own")
        condition, kind = self.condition(), text.value_type(self.dtype)
        value = self.body.full(self.node.args[0], self.body.tile.all_dims, scope)

        def inside(what: str) -> str:
            return f"tl.where({condition}, {what}, 0.0)" if condition else what

        scope.lines.append(f"{count} = tl.cast({points}, {kind})")
        scope.lines.append(f"{mean} = tl.sum({inside(value)}, {self._reduce_arguments}) / tl.maximum({count}, 1.0)")
        if self.body.packed(scope):
            self.body.forget(scope)
        value = self.body.full(self.node.args[0], self.body.tile.all_dims, scope)
        scope.lines.append(f"{off} = {inside(f'{value} - {mean}')}")
        columns = self.body.tile.parallel_dims
        each = f"tl.broadcast_to({count}, {self.body.tile.shape(columns)})" if columns else count
        return f"{mean}, tl.sum({off} * {off}, {self._reduce_arguments}), {each}"

    def _greatest_and_total(self, scope: Scope) -> str:
        """The block's maximum, and the sum of exponentials relative to it."""
        (value,), (high, _) = self.values(scope), self.running("own")
        axis, *keep = self._reduce_arguments.split(", ")
        greatest = f"tl.reduce({', '.join([value, axis, 'pt_max', *keep])})"
        scope.lines.append(f"{high} = tl.maximum({greatest}, {self.parts[0].literal}, propagate_nan=tl.PropagateNan.ALL)")
        each = f"pt_exp({value} - {high})"
        for node in self._exponentials():
            each, apart = f"{self.name}_exp", ops.text(node, [f"({value} - {high})"], self.body.fast)
            scope.lines.append(f"{each} = {apart}")
            self.body.overrides[id(node)] = functools.partial(self._rescaled, node)
        return f"{high}, tl.sum({each}, {self._reduce_arguments})"

    def _exponentials(self) -> list[Op]:
        """exp(x - m) for the maximum m of an online_softmax. The block's values use the block's own maximum and need a
        factor for the row's. Not used where packed 16-bit elements are kept, which need fewer registers."""
        exps = [n for n in self.body.nest.nodes if isinstance(n, Op) and n.name == "exp" and not self.body.recomputed]
        return [n for n in exps if isinstance(n.args[0], Op) and n.args[0].name == "sub" and self._is_shifted(*n.args[0].args)]

    def _is_shifted(self, value: Node, most: Node) -> bool:
        return value is self.node.args[0] and self._is_maximum(most)

    def _is_maximum(self, node: Node) -> bool:
        return isinstance(node, Result) and node.node is self.node and node.k == 0

    def _uses_maximum(self) -> bool:
        """Whether an online_softmax's maximum has other uses than exp(x - m)."""
        nest = self.body.nest
        shifts = [n for n in nest.nodes if isinstance(n, Op) and n.name == "sub" and self._is_shifted(*n.args)]
        others = [n for n in nest.nodes if not any(n is shift for shift in shifts)]
        return any(self._is_maximum(node) for node in (*nest.loop.roots, *(child for n in others for child in n.children)))

    def _rescaled(self, node: Op, scope: Scope) -> str:
        """The block's exponentials relative to the row's maximum."""
        own, most = f"{self.name}_own", f"{self.name}_0"
        factor = ops.text(node, [f"({own} - {most})"], self.body.fast)
        scope.lines.append(f"{self.name}_factor = tl.where({own} == {most}, 1.0, {factor})")  # for infinite values too
        return f"{self.name}_exp * {self.name}_factor"

    def finish(self, running: list[str], scope: Scope) -> None:
        """Emits the results, from running values across the block's reduced dimensions."""
        results = self._results(scope)
        value = self.across(running)
        names = [results[k] if k < len(results) else f"{self.name}_n" for k in range(len(self.parts))]
        scope.lines.append(f"{', '.join(names)} = {value}")
        if self.dtype == torch.bool and self.kind in ("any", "all"):
            scope.lines.append(f"{names[0]} = {names[0]} != 0")
        if self.kind == "welford":  # of no points
            scope.lines.append(f'{names[0]} = tl.where({names[2]} == 0, float("nan"), {names[0]})')
        if self.kind == "online_softmax" and self._uses_maximum():  # a row of -inf alone has no terms
            scope.lines.append(f'{names[0]} = tl.where({names[1]} == 0, float("-inf"), {names[0]})')
        if self.kind == "online_softmax":  # as exp(inf - inf) would be
            scope.lines.append(f'{names[1]} = tl.where({names[0]} == float("inf"), float("nan"), {names[1]})')

    def across(self, running: list[str]) -> str:
        """The text of the running values combined across the reduced dimensions, last one first."""
        at = self.body.tile.reduced_at
        value = running[0] if len(running) == 1 else f"({', '.join(running)})"
        if not at:
            return value if len(running) == 1 else ", ".join(running)
        whole = not self.body.tile.parallel_dims
        if self.kind == "welford" and whole:
            return f"pt_welford_whole({value})"
        if self.kind == "welford":
            for axis in reversed(at):
                value = f"pt_welford({value}, {axis})"
            return value
        own = FORMS[self.kind].own if self.carried not in (torch.int8, torch.int16, torch.uint8, torch.uint16) else ""
        for axis in reversed(at):
            keep = "" if whole else ", keep_dims=True"
            value = f"{own}({value}, {axis}{keep})" if own else f"tl.reduce({value}, {axis}, {self.combine}{keep})"
        return value

    def results(self, scope: Scope) -> list[tuple[str, torch.dtype]]:
        """Names and types of the results. Adds them to the scope."""
        truth = self.dtype == torch.bool and self.kind in ("any", "all")
        types = [torch.bool if truth else part.dtype for part in self.parts]
        return list(zip(self._results(scope), types, strict=False))

    def _results(self, scope: Scope) -> list[str]:
        """Names of the results, one for each part that is a result. Adds them to the scope."""
        assert isinstance(self.node, Reduce)
        parts = self.body.nest.parts(self.node)
        if not parts and len(self.parts) == 1:
            scope.names[id(self.node)] = self.name
            return [self.name]
        names = [f"{self.name}_{k}" for k in range(2)]
        for part in parts:
            scope.names[id(part)] = names[part.k]
        return names
