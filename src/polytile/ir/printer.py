"""Prints the IR as readable text.

loop softmax0 for p0 < s0 over r0 < s1        # softmax
  t0 = load arg0[p0*s1 + r0] : float32
  t1 = reduce max t0
  ...
  buf0[p0*s1 + r0] = t5
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from types import FunctionType

import sympy
import torch

from polytile.ir import expr
from polytile.ir.attention import Attention
from polytile.ir.buffer import Buffer, View
from polytile.ir.expr import Accumulator, Const, Index, Load, Node, Op, Part, Reduce, Scan
from polytile.ir.library_call import Ref
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.program import Extern, Input, Operation, Program
from polytile.ir.template import Template

_ASSIGN = {"set": "=", "add": "+=", "sum": "sum="}  # by the mode of a store


def type_name(dtype: torch.dtype) -> str:
    """The dtype in IR text: "float32"."""
    return str(dtype).removeprefix("torch.")


@functools.lru_cache(maxsize=100_000)
def index_text(index: sympy.Expr) -> str:
    """An index expression in IR text."""
    return str(index)


def loop_text(loop: Loop, indent: str = "") -> str:
    """`loop` with its values numbered in evaluation order."""
    head = f"{indent}loop {loop.name}"
    if loop.axes:
        head += " for " + _axes(loop.axes)
    if loop.reduced:
        head += " over " + _axes(loop.reduced)
    if loop.origins:
        head += "  # " + ", ".join(loop.origins)
    return "\n".join([head, *body_lines(loop.stores, indent + "  ")])


def body_lines(stores: Iterable[Store], indent: str) -> list[str]:
    """One line per value and per store."""
    stores = list(stores)
    names = value_names(stores)
    nodes = [node for node in _nodes(stores) if not isinstance(node, Const)]
    lines = [f"{indent}{names[id(node)]} = {_node_text(node, names)} : {type_name(node.dtype)}" for node in nodes]
    for store in stores:
        assign = _ASSIGN[store.mode]
        target = f"{store.buffer}[{_indirect(store.index, store.indirect, names)}]"
        mask = f" where {names[id(store.mask)]}" if store.mask is not None else ""
        lines.append(f"{indent}{target} {assign} {names[id(store.value)]}{mask}")
    return lines


def value_names(stores: Iterable[Store]) -> dict[int, str]:
    """The name of each value by id: t0, t1, … in evaluation order; constants are written out."""
    names: dict[int, str] = {}
    numbers = itertools.count()
    for node in _nodes(stores):
        names[id(node)] = f"{node.value!r}" if isinstance(node, Const) else f"t{next(numbers)}"
    return names


def _nodes(stores: Iterable[Store]) -> Iterable[Node]:
    return expr.walk(*[root for store in stores for root in store.roots])


def _axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{a.symbol} < {index_text(a.size)}" for a in axes)


def _indirect(index: sympy.Expr, indirect: tuple[Node, ...], names: dict[int, str]) -> str:
    text = index_text(index)
    for k, node in enumerate(indirect):
        text = text.replace(str(expr.indirect_symbol(k)), names[id(node)])
    return text


def _node_text(node: Node, names: dict[int, str]) -> str:
    args = " ".join(names[id(c)] for c in node.children)
    match node:
        case Index():
            return f"index {index_text(node.expr)}"
        case Load():
            mask = f" where {names[id(node.mask)]}" if node.mask is not None else ""
            return f"load {node.buffer}[{_indirect(node.index, node.indirect, names)}]{mask}"
        case Op():
            return f"{node.name} {args}"
        case Reduce():
            return f"reduce {node.kind} {args}"
        case Scan():
            return f"scan {node.kind} {args}"
        case Part():
            return f"part {node.k} of {args}"
        case Accumulator():
            return "accumulator"
    return repr(node)


def view_text(view: View) -> str:
    """`buf0+4(s0, s1):(s1, 1)`: buffer, offset, sizes and strides."""
    offset = f"+{index_text(view.offset)}" if view.offset != 0 else ""
    return f"{view.buffer}{offset}{_shape(view.sizes)}:{_shape(view.strides)}"


def _shape(values: Iterable[sympy.Expr]) -> str:
    return "(" + ", ".join(index_text(v) for v in values) + ")"


def buffer_text(buffer: Buffer) -> str:
    """A buffer's declaration: name, type, sizes, strides, role."""
    return f"{buffer.name}: {type_name(buffer.dtype)}{_shape(buffer.sizes)} strides {_shape(buffer.strides)} {buffer.role}"


def _argument(value: object) -> str:
    if isinstance(value, Ref):
        return view_text(value.value) if isinstance(value.value, View) else index_text(value.value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_argument(v) for v in value) + "]"
    return str(value)


def operation_text(op: Operation) -> str:
    """One operation of a program. Loops and epilogues have a line per value."""
    if isinstance(op, Loop):
        return loop_text(op)
    if isinstance(op, Template):
        head = f"{op.kind} {op.name}: {view_text(op.out)} = {view_text(op.a)} @ {view_text(op.b)}"
        head += f" + {view_text(op.second[0])} @ {view_text(op.second[1])}" if op.second is not None else ""
        scales = [f"{view_text(s.view)} of {s.rows}x{s.along}" for s in op.scales or () if s is not None]
        head += f" scaled by {', '.join(scales)}" if scales else ""
        head += f" in groups of {op.grouping.axis} up to {view_text(op.grouping.ends)}" if op.grouping is not None else ""
        head += f" from {op.int4}" if op.int4 is not None else ""
        head += "  # " + ", ".join(op.origins) if op.origins else ""
        parts = [loop_text(loop, "  prologue ") for loop in op.prologues if loop is not None]
        parts += [loop_text(op.epilogue, "  epilogue ")] if op.epilogue is not None else []
        return "\n".join([head, *parts])
    if isinstance(op, Attention):
        return "\n".join([_attention_text(op), *([loop_text(op.scores, "  scores ")] if op.scores is not None else [])])
    if isinstance(op, Extern):
        outputs = ", ".join(o or "_" for o in op.outputs)
        args = ", ".join([_argument(a) for a in op.args] + [f"{k}={_argument(v)}" for k, v in op.kwargs])
        ways = [(s, str(how) if isinstance(how, sympy.Expr) else " ".join(map(str, how))) for s, how in op.symbols]
        symbols = "".join(f" defines {symbol} by {how}" for symbol, how in ways)
        target = op.target.__name__ if isinstance(op.target, FunctionType) else op.target
        return f"library {op.name}: {outputs} = {target}({args}){symbols}  # {op.reason}"
    return f"assert {op.condition}  # {op.message}"


def _attention_text(op: Attention) -> str:
    written = ", ".join(map(view_text, op.written))
    mask = f" causal {op.causal}" if op.causal else ""
    if op.bias is not None:
        mask += f" mask {view_text(op.bias)} else {op.fill}" if op.bias.dtype == torch.bool else f" bias {view_text(op.bias)}"
    mask += "" if op.empty_is_0 else " (no key: NaN)"
    mask += f" window {op.window}" if op.window is not None else ""
    mask += f" dropout {op.dropout.p} by {view_text(op.random)}" if op.dropout is not None and op.random is not None else ""
    if op.sequences is not None:
        mask += f" of {op.sequences.count} sequences up to {op.sequences.rows} by {op.sequences.keys}: "
        mask += ", ".join(f"{name} {view_text(view)}" for name, view in op.sequences.named.items())
    apart = (op.bias, op.random, *(op.sequences.views if op.sequences is not None else ()))
    read = ", ".join(view_text(view) for view in op.read if not any(view is other for other in apart))
    call = "attend" if op.gradients is None else "attend_backward"
    return f"attention {op.name}: {written} = {call}({read}) scale {op.scale}{mask}  # {', '.join(op.origins)}"


def _input_text(item: Input) -> str:
    return f"{item.name}: size {item.size}" if item.buffer is None else item.name


def program_text(program: Program) -> str:
    """The program as text: its inputs, buffers, operations and outputs."""
    lines = [f"program {program.name}({', '.join(_input_text(i) for i in program.inputs)})"]
    lines += ["  " + buffer_text(b) for b in program.buffers.values()]
    for op in program.operations:
        lines += ["  " + line for line in operation_text(op).splitlines()]
    outputs = [view_text(o) if isinstance(o, View) else str(o) for o in program.outputs]
    lines.append(f"  return {', '.join(outputs)}")
    return "\n".join(lines)
