"""The reference interpreter: what a program means, run with torch operators. Slow to start, right by construction.

Tests compare programs before and after a pass with it. Loops are evaluated by `polytile.ir.evaluate`, as they are where the
accuracy gate compares generated kernels with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from polytile.errors import IRError
from polytile.ir import sizes
from polytile.ir.attention import (
    Attention,
    attend,
    attend_backward,
    attend_sequences,
    attend_sequences_backward,
    factors_of,
)
from polytile.ir.buffer import Buffer, View
from polytile.ir.dtypes import compute_dtype
from polytile.ir.evaluate import changed_scores, flat_view, run_loop
from polytile.ir.library_call import Ref
from polytile.ir.loop import Loop
from polytile.ir.products import grouped_product, scaled_operand
from polytile.ir.program import Assert, Extern, Program, place_of
from polytile.ir.template import Scales, Template

Argument = torch.Tensor | int


def run(program: Program, args: Sequence[Argument], precision: torch.dtype | None = None) -> list[Any]:
    """The outputs of `program` for `args` (tensors and ints, as `program.inputs` lists them): tensors, ints and Nones.

    Inputs that the program writes are changed; an output that is a view of an input aliases it. With `precision` all
    floating-point arithmetic of loops and templates is done in that type. Raises ValueError where an argument does
    not fit the program, RuntimeError where one of its assertions fails, IndexError where a checked index is out of
    range.
    """
    return _Run(program, bind(program, args), precision).outputs(args)


def run_template(
    template: Template,
    buffers: Mapping[str, torch.Tensor],
    size_values: Mapping[sympy.Symbol, int],
    precision: torch.dtype | None = torch.float64,
) -> None:
    """The product in `precision` (None: the type in which the output is computed), then the epilogue; writes into
    `buffers`."""
    a, b = (
        view_tensor(view, buffers if loop is None else _computed(view, loop, buffers, size_values, precision), size_values)
        for view, loop in zip((template.a, template.b), template.prologues, strict=True)
    )
    dtype = compute_dtype(template.out.dtype)
    if precision is not None and dtype.is_floating_point:
        dtype = precision
    if template.grouping is not None:
        ends = view_tensor(template.grouping.ends, buffers, size_values)
        product = grouped_product(a.to(dtype), b.to(dtype), ends, template.grouping.axis)
    elif template.scales is None:
        product = torch.matmul(a.to(dtype), b.to(dtype))
    else:
        both = [(a, template.scales[0]), (b, template.scales[1])]
        scaled = [
            scaled_operand(x.to(dtype), blocks_of(s, side), *[view_tensor(v, buffers, size_values).to(dtype) for v in s.views])
            if s is not None else x.to(dtype)
            for side, (x, s) in enumerate(both)
        ]  # fmt: skip
        product = torch.matmul(*scaled)
    if template.second is not None:
        left, right = (view_tensor(view, buffers, size_values).to(dtype) for view in template.second)
        product = product + torch.matmul(left, right)
    if template.epilogue is None:
        view_tensor(template.out, buffers, size_values).copy_(product)
        return
    shape = [sizes.evaluate(axis.size, size_values) for axis in template.epilogue.axes + template.epilogue.reduced]
    run_loop(template.epilogue, buffers, size_values, precision, product.reshape(shape))


def run_attention(
    attention: Attention,
    buffers: Mapping[str, torch.Tensor],
    size_values: Mapping[sympy.Symbol, int],
    precision: torch.dtype | None = torch.float64,
) -> None:
    """Attention in `precision` (None: the type in which the operands are computed); writes into `buffers`."""

    def tensor(view: View | None) -> Any:
        return None if view is None else view_tensor(view, buffers, size_values)

    q, k, v, out, lse = map(tensor, (attention.q, attention.k, attention.v, attention.out, attention.lse))
    settings = {name: getattr(attention, name) for name in ("scale", "causal", "fill", "empty_is_0", "window")}
    settings |= {"precision": precision, "bias": tensor(attention.bias)}
    placed, gradients, loop = attention.sequences, attention.gradients, attention.scores
    indices = {name: tensor(view) for name, view in placed.named.items()} if placed is not None else {}
    if placed is not None:
        count, keys = (sizes.evaluate(size, size_values) for size in (placed.count, placed.keys))
    if attention.dropout is not None:
        settings["factors"] = factors_of(attention.dropout, tensor(attention.random), (*q.shape[:3], k.shape[2]))
    if loop is not None:
        settings["scores"] = lambda products: changed_scores(loop, products, buffers, size_values, precision)
    if gradients is not None:
        grad, *made = map(tensor, (gradients.grad, gradients.dq, gradients.dk, gradients.dv))
        if placed is not None:
            attend_sequences_backward(q, k, v, out, lse, grad, (made[0], made[1], made[2]), indices, count, **settings)
            return
        settings["grad_lse"] = tensor(gradients.lse)
        results: tuple[torch.Tensor, ...] = attend_backward(q, k, v, out, lse, grad, **settings)
    else:
        if placed is not None:
            attend_sequences(q, k, v, out, lse, indices, count, keys, **settings)
            return
        results = attend(q, k, v, **settings)
    for view, value in zip(attention.written, results, strict=False):
        tensor(view).copy_(value)


def blocks_of(scales: Scales, side: int) -> tuple[int, int]:
    """How many rows and columns of A (side 0) or B share one of these scales."""
    return (scales.rows, scales.along) if side == 0 else (scales.along, scales.rows)


def _computed(
    view: View,
    prologue: Loop,
    buffers: Mapping[str, torch.Tensor],
    size_values: Mapping[sympy.Symbol, int],
    precision: torch.dtype | None,
) -> Mapping[str, torch.Tensor]:
    """`buffers` and what an operand's prologue stores."""
    last = sum(max(0, sizes.evaluate(n, size_values) - 1) * sizes.evaluate(s, size_values)
               for n, s in zip(view.sizes, view.strides, strict=True))  # fmt: skip
    dtype = precision if precision is not None and view.dtype.is_floating_point else view.dtype
    device = next(iter(buffers.values())).device
    made = {**buffers, view.buffer: torch.empty(last + 1, dtype=dtype, device=device)}
    run_loop(prologue, made, size_values, precision)
    return made


def view_tensor(view: View, buffers: Mapping[str, torch.Tensor], size_values: Mapping[sympy.Symbol, int]) -> torch.Tensor:
    """`view` as a tensor that shares the memory of its buffer."""
    if view.buffer not in buffers:
        raise IRError(f"buffer {view.buffer} is read before anything wrote it.")
    base = buffers[view.buffer]
    base = base if base.dtype == view.dtype or base.dtype.itemsize != view.dtype.itemsize else _bitcast(base, view.dtype)
    shape = [sizes.evaluate(n, size_values) for n in view.sizes]
    strides = [sizes.evaluate(s, size_values) for s in view.strides]
    return base.as_strided(shape, strides, base.storage_offset() + sizes.evaluate(view.offset, size_values))


def _bitcast(base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return flat_view(base).view(dtype)


# sizes ---------------------------------------------------------------------------------------------------------------


def bind(program: Program, args: Sequence[Argument]) -> dict[sympy.Symbol, int]:
    """The value of every size symbol that `args` determine; raises ValueError where two arguments disagree."""
    if len(args) != len(program.inputs):
        raise ValueError(f"program {program.name} takes {len(program.inputs)} arguments, {len(args)} were given.")
    values: dict[sympy.Symbol, int] = {}
    waiting = list(_facts(program, args))
    while waiting:
        left = [fact for fact in waiting if not _learn(fact, values)]
        if len(left) == len(waiting):
            break
        waiting = left
    for item, arg in zip(program.inputs, args, strict=True):  # strides that no element needs, but expressions may name
        if item.buffer is not None and isinstance(arg, torch.Tensor):
            for stride, value in zip(program.buffers[item.buffer].strides, arg.stride(), strict=True):
                if isinstance(stride, sympy.Symbol):
                    values.setdefault(stride, value)
    return values


def _facts(program: Program, args: Sequence[Argument]) -> Iterator[tuple[sympy.Expr, int, str]]:
    """(size expression, its value, where it comes from) for every size and stride among the arguments."""
    for item, arg in zip(program.inputs, args, strict=True):
        if item.size is not None:
            yield item.size, int(arg), item.name
        if item.buffer is not None:
            buffer = program.buffers[item.buffer]
            if not isinstance(arg, torch.Tensor) or arg.dim() != len(buffer.sizes):
                raise ValueError(f"{item.name} must be a tensor of {len(buffer.sizes)} dimensions, got {arg!r}.")
            for d, size in enumerate(buffer.sizes):
                yield size, arg.shape[d], f"{item.name}.size({d})"
            for d, stride in enumerate(buffer.strides):
                if arg.numel() > 0 and arg.shape[d] > 1:
                    yield stride, arg.stride(d), f"{item.name}.stride({d})"


def _learn(fact: tuple[sympy.Expr, int, str], values: dict[sympy.Symbol, int]) -> bool:
    """Binds the one unknown symbol of a linear size expression, or checks a known one; False where more must be
    known."""
    size, value, where = fact
    known = size.xreplace({s: sympy.Integer(values[s]) for s in size.free_symbols if s in values})
    unknown = sorted(known.free_symbols, key=str)
    if not unknown:
        if int(known) != value:
            raise ValueError(f"{where} is {value}, but the program needs {size} = {known}.")
        return True
    factor = sizes.coefficient(known, unknown[0]) if len(unknown) == 1 else None
    if factor is None or not factor.is_Integer:
        return False
    values[unknown[0]] = int((value - known.xreplace({unknown[0]: sizes.ZERO})) / factor)
    return True


# programs ------------------------------------------------------------------------------------------------------------


def _number_in(results: Sequence[Any], how: tuple[Any, ...]) -> int:
    """The number that `how` (ir.program.Extern) finds in the results of a call."""
    what, output, dim = place_of(how)
    value = results[output]
    if what == "item":
        return int(value.item() if isinstance(value, torch.Tensor) else value)
    return int(value.storage_offset() if what == "offset" else getattr(value, what)(dim))


class _Run:
    """One execution: the tensors and size values so far."""

    def __init__(self, program: Program, values: dict[sympy.Symbol, int], precision: torch.dtype | None) -> None:
        self.program = program
        self.values = values
        self.precision = precision
        self.buffers: dict[str, torch.Tensor] = {}

    def outputs(self, args: Sequence[Argument]) -> list[Any]:
        for item, arg in zip(self.program.inputs, args, strict=True):
            if item.buffer is not None:
                self.buffers[item.buffer] = arg  # type: ignore[assignment]
        self.buffers.update(self.program.constants)
        for operation in self.program.operations:
            self.learn_scalars()
            if isinstance(operation, Extern):
                self.call(operation)
            elif isinstance(operation, Assert):
                self.check(operation)
            else:
                self.compute(operation)
        self.learn_scalars()
        return [self.result(o) for o in self.program.outputs]

    def learn_scalars(self) -> None:
        """Binds the symbols whose values stand in buffers."""
        for symbol, name in self.program.scalars.items():
            if symbol not in self.values and name in self.buffers:
                self.values[symbol] = int(self.buffers[name].item())

    def allocate(self, buffer: Buffer) -> torch.Tensor:
        """Fresh memory with a pattern that shows where nothing was written: NaN, or the largest integer."""
        shape = [sizes.evaluate(n, self.values) for n in buffer.sizes]
        strides = [sizes.evaluate(n, self.values) for n in buffer.strides]
        tensor = torch.empty_strided(shape, strides, dtype=buffer.dtype, device=buffer.device)
        if buffer.dtype.is_floating_point:
            tensor.fill_(float("nan"))
        elif buffer.dtype != torch.bool and not buffer.dtype.is_complex:
            tensor.fill_(torch.iinfo(buffer.dtype).max)
        return tensor

    def need(self, names: set[str]) -> None:
        for name in sorted(names):
            if name not in self.buffers:
                self.buffers[name] = self.allocate(self.program.buffers[name])

    def compute(self, operation: Loop | Template | Attention) -> None:
        self.need(operation.writes())
        if isinstance(operation, Loop):
            run_loop(operation, self.buffers, self.values, self.precision)
        elif isinstance(operation, Template):
            run_template(operation, self.buffers, self.values, self.precision)
        else:
            run_attention(operation, self.buffers, self.values, self.precision)

    def check(self, operation: Assert) -> None:
        holds = operation.condition
        if isinstance(holds, sympy.Basic):
            holds = holds.xreplace({s: sympy.Integer(self.values[s]) for s in holds.free_symbols if s in self.values})
        if not bool(holds):
            raise operation.error(operation.message)

    def call(self, operation: Extern) -> None:
        """A library call; its results are copied into the buffers it declares."""
        kwargs = {name: self.argument(value) for name, value in operation.kwargs}
        result = operation.target(*self.argument(operation.args), **kwargs)
        results = list(result) if isinstance(result, tuple | list) else [result]
        for symbol, how in operation.symbols:
            self.values[symbol] = sizes.evaluate(how, self.values) if isinstance(how, sympy.Expr) else _number_in(results, how)
        for name, value in zip(operation.outputs, results, strict=False):
            if name is not None:
                self.need({name})
                self.buffers[name].copy_(value)

    def argument(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.result(value.value)
        if isinstance(value, tuple | list):
            return type(value)(self.argument(v) for v in value)
        if isinstance(value, dict):
            return {k: self.argument(v) for k, v in value.items()}
        return value

    def result(self, output: View | sympy.Expr | None) -> Any:
        if isinstance(output, View):
            return view_tensor(output, self.buffers, self.values)
        return None if output is None else sizes.evaluate(output, self.values)
