"""Chooses the layout of temporaries so that they are written contiguously, if every reader can follow.

    mm mm0 ... epilogue for b, m, n                    mm mm0 ... epilogue for b, m, n
      buf4[n*s0 + m] = t1                        →       buf4[m*s1 + n] = t1
    mm mm1: buf5 = buf4(s1, s0):(s0, 1) @ x            mm mm1: buf5 = buf4(s1, s0):(1, s1) @ x

A store that is strided along the loop's innermost axis scatters every vector, whereas a product reads its operands in either
direction. So a temporary whose store has no unit stride along the innermost axis is laid out in the order of the loop's axes, if
all its readers are products, or loops whose indices stay linear. An epilogue's innermost axis is n; a loop's is that of its
largest load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy

from polytile.ir import divisions, expr, sizes
from polytile.ir.buffer import Buffer, View
from polytile.ir.expr import Load, Node
from polytile.ir.loop import Axis, Loop, Store, element_level
from polytile.ir.program import Operation, Program, Trace
from polytile.ir.template import Template
from polytile.passes.fusion.axes import unify
from polytile.passes.fusion.cost import estimate, touched
from polytile.passes.fusion.merge import Unfit
from polytile.passes.loops import linear, touching


def choose_layouts(program: Program) -> Program:
    """`program` with a new layout for temporaries that are written with a stride, where all readers allow it."""
    observed = program.observed_buffers()
    operations, buffers, trace = list(program.operations), dict(program.buffers), program.trace
    users = touching(program.operations)
    for i, operation in enumerate(program.operations):
        for store in _stores(operation):
            layout = _wanted(operation, store) if store.buffer not in observed else None
            if layout is None or buffers[store.buffer].role != "temp":
                continue
            try:
                changed = {k: _following(operations[k], store.buffer, layout, k == i) for k in users[store.buffer]}
            except Unfit:
                continue
            buffers[store.buffer] = layout.buffer(buffers[store.buffer])
            trace = _following_trace(trace, store.buffer, layout)
            for k, new in changed.items():
                operations[k] = new
    return replace(program, operations=tuple(operations), buffers=buffers, trace=trace)


@dataclass(frozen=True)
class Layout:
    """The location of a buffer's elements before (`old`) and after (`new`), as functions of the axes of the loop that writes it.
    `axes` are in the order of the new layout, the innermost last."""

    axes: tuple[Axis, ...]
    old: sympy.Expr
    new: sympy.Expr

    def buffer(self, buffer: Buffer) -> Buffer:
        shape = tuple(a.size for a in self.axes)
        return replace(buffer, sizes=shape, strides=sizes.contiguous_strides(shape))

    def index(self, index: sympy.Expr, axes: tuple[Axis, ...]) -> sympy.Expr:
        """Translate `index`, over a reader's `axes`, from the old layout to the new one.

        Raises
        ------
        Unfit
            If the reader does not read every element, or the new index would not be linear.
        """
        unified = unify(axes, self.axes, ((index, self.old),))
        common = tuple(s.axis.symbol for s in unified.shared)
        here, there = sizes.substitute(index, unified.first), sizes.substitute(self.old, unified.second)
        if any(s.first is None for s in unified.shared) or not sizes.equal(here, there):
            raise Unfit("not every element is read")
        wanted = linear(sizes.substitute(self.new, unified.second), common)
        assert wanted is not None
        result = wanted.rest
        for axis in axes:
            weights = linear(unified.first[axis.symbol], common)
            assert weights is not None
            held = weights.coefficients
            unit = next((wanted.coefficients.get(u, sizes.ZERO) for u, weight in held.items() if weight == 1), sizes.ZERO)
            if any(not sizes.equal(wanted.coefficients.get(u, sizes.ZERO), unit * weight) for u, weight in held.items()):
                raise Unfit("an axis of the reader would have two strides")
            result += unit * axis.symbol
        return divisions.simplify(result, {})


def _stores(operation: Operation) -> tuple[Store, ...]:
    loop = operation.epilogue if isinstance(operation, Template) else operation
    return loop.stores if isinstance(loop, Loop) else ()


def _wanted(operation: Operation, store: Store) -> Layout | None:
    """The layout in which `store` would be contiguous along its loop; None if it is so already, or is not a plain store at every
    point."""
    loop = operation.epilogue if isinstance(operation, Template) else operation
    if not isinstance(loop, Loop) or not store.is_plain:
        return None
    points = loop.axes + (loop.reduced if loop.reduced and element_level(loop, store) else ())
    axes = tuple(a for a in points if a.size != 1)
    form = linear(store.index, tuple(a.symbol for a in points))
    if not axes or form is None or form.rest != 0 or not _is_dense(axes, form.coefficients):
        return None
    order = axes if isinstance(operation, Template) else _order_of_loads(loop, axes)
    if not order or form.coefficients[order[-1].symbol] == 1:
        return None
    strides = sizes.contiguous_strides([a.size for a in order])
    new = sum((a.symbol * stride for a, stride in zip(order, strides, strict=True)), sizes.ZERO)
    return Layout(order, store.index, sizes.expand(new))


def _is_dense(axes: tuple[Axis, ...], strides: Mapping[sympy.Symbol, sympy.Expr]) -> bool:
    """Whether the strides are those of a row-major array of these axes, in some order."""
    left, stride = list(axes), sizes.ONE
    while left:
        axis = next((a for a in left if a.symbol in strides and sizes.equal(strides[a.symbol], stride)), None)
        if axis is None:
            return False
        left.remove(axis)
        stride = sizes.expand(stride * axis.size)
    return True


def _order_of_loads(loop: Loop, axes: tuple[Axis, ...]) -> tuple[Axis, ...] | None:
    """`axes` by decreasing stride in the largest load that covers all of them; None if there is no such load, or if the loads
    disagree on the innermost axis."""
    points = {a.symbol: estimate(a.size) for a in loop.axes + loop.reduced}
    symbols = tuple(a.symbol for a in axes)
    orders = []
    for load in sorted(expr.loads(*loop.roots), key=lambda n: -touched(n.index, points, False)):
        form = linear(load.index, symbols)
        if load.indirect or form is None or len(form.coefficients) != len(axes):
            continue
        order = sorted(axes, key=lambda a: -estimate(form.coefficients[a.symbol]))
        if form.coefficients[order[-1].symbol] == 1:
            orders.append(tuple(order))
    return orders[0] if orders and len({order[-1] for order in orders}) == 1 else None


def _following(operation: Operation, name: str, layout: Layout, writes: bool) -> Operation:
    """`operation` with its accesses to buffer `name` in the new layout; raises Unfit if it cannot follow."""
    if name in operation.writes() and not writes:
        raise Unfit("somebody else writes the buffer")
    if isinstance(operation, Loop):
        return _following_loop(operation, name, layout, writes)
    if not isinstance(operation, Template) or operation.out.buffer == name:
        raise Unfit("the reader needs the layout")
    if name in {view.buffer for view in operation.views_beside}:
        raise Unfit("scales and ends of groups are read as they lie")
    a, b = (_following_view(v, layout) if v.buffer == name else v for v in (operation.a, operation.b))
    epilogue = operation.epilogue
    return replace(
        operation, a=a, b=b, epilogue=_following_loop(epilogue, name, layout, writes) if epilogue is not None else None
    )


def _following_view(view: View, layout: Layout) -> View:
    axes = tuple(Axis(sizes.axis(f"v{i}"), n) for i, n in enumerate(view.sizes))
    symbols = tuple(a.symbol for a in axes)
    form = linear(layout.index(divisions.simplify(view.index(symbols), {}), axes), symbols)
    assert form is not None
    return replace(view, strides=tuple(form.coefficients.get(s, sizes.ZERO) for s in symbols), offset=form.rest)


def _following_trace(trace: Trace, name: str, layout: Layout) -> Trace:
    """The trace with results in buffer `name` in the new layout. Results that cannot be viewed there are dropped."""
    places = dict(trace.places)
    for made, view in trace.places.items():
        if view.buffer == name:
            try:
                places[made] = _following_view(view, layout)
            except Unfit:
                del places[made]
    return replace(trace, places=places)


def _following_loop(loop: Loop, name: str, layout: Layout, writes: bool) -> Loop:
    points = loop.axes + loop.reduced

    def rule(load: Load) -> Node:
        if load.buffer != name:
            return load
        if load.indirect or writes:
            raise Unfit("read through another index")
        return expr.load(load.dtype, name, layout.index(load.index, points), (), load.mask)

    new = loop.map_loads(rule)
    stores = tuple(replace(s, index=layout.new) if s.buffer == name else s for s in new.stores)
    return replace(new, stores=stores, library=())
