"""Operators as calls of the library, beside the loops that were lowered from them.

    cummax(x, 1)   →   loop for p0 over r0 ...        or   aten.cummax.out(x, 1, values=..., indices=...)

A loop that fuses several operators is no operator. One that goes through memory in order, a sum of two tensors or of each row,
is left alone too: how fast it is is known before it is measured. Scans, gathers, scatters, windows, copies across memory and
costly functions are where hand-written kernels differ most from what is generated.

On a GPU reductions along memory are asked about too. Operators that take indices are not: where one is out of range the library's
kernel ends all work of the process on the device, a generated one says so. Nor are scans of 16-bit types, which the library adds
up in that type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import sympy
import torch

from polytile.ir import expr, ops, sizes
from polytile.ir.program import Buffer, LibraryCall, Loop, Ref, View

COSTLY = 16.0
"""Multiply-adds for one element from which a function may well be worse than the library's."""

NARROW = (torch.bfloat16, torch.float16)


def call_of(loop: Loop, buffers: Mapping[str, Buffer]) -> LibraryCall | None:
    """The operator that `loop` still is, where it is worth asking; a result that nobody uses is left out of its outputs."""
    call, devices = loop.library, {buffers[name].device.type for name in loop.reads() | loop.writes()}
    if call is None or devices not in ({"cpu"}, {"cuda"}):
        return None
    outputs = tuple(view if view is not None and view.buffer in loop.writes() else None for view in call.outputs)
    call = replace(call, outputs=outputs)
    written = {view.buffer for view in outputs if view is not None}
    given = {view.buffer for view in call.views()} - written
    same = loop.writes() <= written | given and given == (loop.reads() | loop.writes()) - written
    plain = all(view.dtype == buffers[view.buffer].dtype for view in call.views()) if same else False
    if not same or not plain or not all(number.is_integer for number in expressions(call)):
        return None
    if not (_worth_asking(loop) if devices == {"cpu"} else _worth_asking_on_gpu(loop, buffers)):
        return None
    parts = {view.buffer for view in call.views() if not _is_whole(view, buffers[view.buffer])}
    return replace(call, whole=frozenset((given | written) - parts))


def _is_whole(view: View, buffer: Buffer) -> bool:
    return (view.sizes, view.strides, view.offset) == (buffer.sizes, buffer.strides, 0)


def _worth_asking(loop: Loop) -> bool:
    """Whether the loop does more than go through memory in order."""
    nodes = list(expr.walk(*loop.roots))
    if any(store.indirect or store.mask is not None or store.mode != "set" for store in loop.stores):
        return True
    if any(isinstance(node, expr.Scan) or (isinstance(node, expr.Load) and (node.indirect or node.mask)) for node in nodes):
        return True
    steps = [sizes.coefficient(index, symbol) for index in _places(loop) for symbol in _innermost(loop)]
    if any(step is None or step not in (0, 1) for step in steps):
        return True
    return sum(ops.definition(node.name).cost for node in nodes if isinstance(node, expr.Op)) >= COSTLY


def _worth_asking_on_gpu(loop: Loop, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the loop reduces, or does more than go through memory in order, and the library does it as well."""
    narrow = any(buffers[store.buffer].dtype in NARROW for store in loop.stores)
    coarse = narrow and any(isinstance(node, expr.Scan) for node in expr.walk(*loop.roots))
    if coarse or any(access.indirect for access in loop.accesses()):
        return False
    return bool(loop.reduced) or _worth_asking(loop)


def _places(loop: Loop) -> list[sympy.Expr]:
    return [store.index for store in loop.stores] + [load.index for load in expr.loads(*loop.roots)]


def _innermost(loop: Loop) -> list[sympy.Symbol]:
    return [axes[-1].symbol for axes in (loop.axes, loop.reduced) if axes]


def shapes_alone(call: LibraryCall, used: Collection[str]) -> LibraryCall:
    """The call with views of no buffer in place of those of other buffers than `used`, of which it needs the sizes alone."""

    def view(v: View) -> Ref:
        return Ref(v if v.buffer in used else replace(v, buffer=""))

    args, kwargs = mapped((call.args, call.kwargs), view, Ref)
    return replace(call, args=args, kwargs=kwargs)


def expressions(call: LibraryCall) -> list[sympy.Expr]:
    """All numbers among the arguments, those of views included."""
    found: list[sympy.Expr] = []

    def view(v: View) -> None:
        found.extend((*v.sizes, *v.strides, v.offset))

    mapped((call.args, call.kwargs, tuple(Ref(v) for v in call.outputs if v is not None)), view, found.append)
    return found


def renamed(
    call: LibraryCall, names: Mapping[str, str], number: Callable[[sympy.Expr], sympy.Expr]
) -> LibraryCall:
    """The call on buffers of other names, with `number` applied to all sizes, strides and offsets."""

    def view(v: View) -> View:
        numbers = tuple(map(number, v.sizes)), tuple(map(number, v.strides))
        return View(names.get(v.buffer, ""), v.dtype, *numbers, number(v.offset))

    args, kwargs = mapped((call.args, call.kwargs), lambda v: Ref(view(v)), lambda e: Ref(number(e)))
    whole = frozenset(names[name] for name in call.whole)
    return LibraryCall(call.target, args, kwargs, tuple(v and view(v) for v in call.outputs), whole)


def moved(call: LibraryCall, offset: Callable[[View], sympy.Expr]) -> LibraryCall:
    """The call with `offset(view)` as the offset of every view."""

    def view(v: View) -> View:
        return replace(v, offset=offset(v))

    args, kwargs = mapped((call.args, call.kwargs), lambda v: Ref(view(v)), Ref)
    return replace(call, args=args, kwargs=kwargs, outputs=tuple(v and view(v) for v in call.outputs))


def mapped(value: Any, view: Callable[[View], Any], number: Callable[[sympy.Expr], Any]) -> Any:
    """Nested arguments with each Ref replaced."""
    if isinstance(value, Ref):
        return view(value.value) if isinstance(value.value, View) else number(value.value)
    if isinstance(value, tuple | list):
        return type(value)(mapped(v, view, number) for v in value)
    return value


def text(call: LibraryCall) -> str:
    """One line that says what is called on what."""

    def of_view(v: View) -> str:
        mark = "whole " if v.buffer in call.whole else ""
        return f"{mark}{v.buffer}({', '.join(map(str, v.sizes))}):({', '.join(map(str, v.strides))})+{v.offset}"

    args, kwargs = mapped((call.args, call.kwargs), of_view, str)
    outputs = ", ".join("-" if v is None else of_view(v) for v in call.outputs)
    return f"{call.target} {args} {kwargs} -> {outputs}"


__all__ = ["call_of", "expressions", "mapped", "moved", "renamed", "shapes_alone", "text"]
