"""The Builder, which lowerings use to create buffers, loops, templates and library calls."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
import torch.fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion
from torch._prims_common import elementwise_dtypes

from polytile.frontend.lower.scalars import float_node
from polytile.frontend.lower.value import Call, Point, Tensor, broadcast_point, computed, stored, widen
from polytile.ir import expr, sizes
from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.calls import shapes_alone
from polytile.ir.expr import Node
from polytile.ir.library_call import LibraryCall, Ref
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.program import Assert, Extern, Operation


class Builder:
    """Collects the buffers and operations of one program in execution order.

    `node` is the FX node being lowered; its `meta["val"]` holds the result as fake tensors. `origin` is the operator's name.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.operations: list[Operation] = []
        self.node: torch.fx.Node | None = None
        self._count: dict[str, int] = {}
        self._realized: dict[Tensor, Tensor] = {}
        self._defined: dict[sympy.Symbol, None] = {}
        self.growing: dict[torch.fx.Node, Any] = {}
        """Buffers of concatenations that grow, by the longest one (lower/growing_joins.py)."""
        self.longest: dict[torch.fx.Node, torch.fx.Node | None] = {}
        """The longest one of each; None for a concatenation that does not grow."""
        self.seed = ""
        """The buffer of the program's only seed of random numbers (lower/random.py), once it is drawn."""
        self.counted = 0
        """The number of operators that have counters so far."""

    # names and buffers -------------------------------------------------------------------------------------------------

    def name(self, prefix: str) -> str:
        """A fresh name: prefix0, prefix1, ..."""
        k = self._count.get(prefix, 0)
        self._count[prefix] = k + 1
        return f"{prefix}{k}"

    @property
    def origin(self) -> str:
        node = self.node
        while node is not None and node.target is operator.getitem:  # an element of a tuple has the origin of the tuple
            node = node.args[0]  # type: ignore[assignment]
        return str(node.target) if node is not None else "?"

    def new_buffer(
        self, sizes_: Sequence[sympy.Expr], dtype: torch.dtype, device: torch.device,
        strides: Sequence[sympy.Expr] | None = None,
    ) -> Buffer:  # fmt: skip
        """Add a temporary buffer, contiguous unless `strides` (in elements) are given."""
        sizes_ = tuple(sizes_)
        layout = tuple(strides) if strides is not None else sizes.contiguous_strides(sizes_)
        buffer = Buffer(self.name("buf"), dtype, sizes_, layout, device)
        self.buffers[buffer.name] = buffer
        return buffer

    # storing -----------------------------------------------------------------------------------------------------------

    def realize(self, tensor: Tensor, strides: Sequence[sympy.Expr] | None = None) -> Tensor:
        """`tensor` as a view of a buffer: itself if it is stored already and `strides` is None, else stored by a new loop."""
        if tensor.view is not None and strides is None:
            return tensor
        buffer = self.new_buffer(tensor.sizes, tensor.dtype, tensor.device, strides or tensor.layout)
        self.store(whole(buffer), tensor)
        return stored(whole(buffer), tensor.device)

    def stored(self, tensor: Tensor) -> View:
        """`tensor` as a view of a buffer that must not be written to. The same unstored tensor is stored only once."""
        if tensor.view is not None:
            return tensor.view
        view = self.once(tensor, lambda: self.realize(tensor)).view
        assert view is not None
        return view

    def once(self, tensor: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """The tensor that `make` returns for `tensor`. `make` is called only the first time."""
        if tensor not in self._realized:
            self._realized[tensor] = make()
        return self._realized[tensor]

    def place_of(self, tensor: Tensor) -> View | None:
        """Where `tensor` is in memory; None if it has not been stored."""
        return tensor.view or (self._realized[tensor].view if tensor in self._realized else None)

    def contiguous(self, tensor: Tensor) -> Tensor:
        """`tensor` as a view with row-major strides."""
        if tensor.view is not None and tensor.view.strides == sizes.contiguous_strides(tensor.sizes):
            return tensor
        return self.realize(tensor, sizes.contiguous_strides(tensor.sizes))

    def store(self, target: View, tensor: Tensor, mode: str = "set") -> None:
        """Emit a loop that writes every element of `tensor` to `target`, which has the same sizes."""
        axes = self.axes(tensor.sizes)
        point = tuple(a.symbol for a in axes)
        self.loop(axes, (), (Store(target.buffer, target.index(point), tensor.at(point), mode),))
        if mode == "set" and tensor.call is not None and target.dtype == tensor.dtype:
            self.attach(tensor.call, target)

    def attach(self, call: Call, *outputs: View | None) -> None:
        """Note on the last loop that `call` computes the same `outputs`."""
        views = tuple(None if view is None else _unfolded(view, call) for view in outputs)
        loop = self.operations[-1]
        if isinstance(loop, Loop) and views.count(None) == outputs.count(None):
            library = LibraryCall(call.target, call.args, call.kwargs, views)
            self.operations[-1] = replace(loop, library=(shapes_alone(library, loop.reads() | loop.writes()),))

    def axes(self, sizes_: Sequence[sympy.Expr], prefix: str = "p") -> tuple[Axis, ...]:
        return tuple(Axis(sizes.axis(f"{prefix}{i}"), n) for i, n in enumerate(sizes_))

    def loop(self, axes: tuple[Axis, ...], reduced: tuple[Axis, ...], stores: tuple[Store, ...], kind: str = "loop") -> Loop:
        loop = Loop(self.name(kind), axes, reduced, stores, (self.origin,))
        self.operations.append(loop)
        return loop

    def emit(self, operation: Operation) -> None:
        self.operations.append(operation)

    def require(self, condition: Any, message: str, error: type[Exception] = RuntimeError) -> None:
        """Check `condition`, a sympy Boolean, at run time, unless it is known to hold."""
        if condition is not True and condition != sympy.true:
            self.emit(Assert(self.name("assert"), condition, message, error))

    # pointwise ---------------------------------------------------------------------------------------------------------

    def result_sizes(self, k: int | None = None) -> tuple[sympy.Expr, ...]:
        """Sizes of the current node's result, or of result `k` if it has several."""
        return tuple(sizes.as_size(n) for n in self.result(k).shape)

    def result(self, k: int | None = None) -> torch.Tensor:
        """The fake tensor that the current node returns, or result `k` if it has several."""
        assert self.node is not None
        value = self.node.meta["val"]
        return value if k is None else value[k]

    def promote(self, kind: Promotion, *args: Any) -> tuple[torch.dtype, torch.dtype]:
        """The dtype to compute in and the result dtype of an elementwise operator, by torch's promotion rules. `args` are
        Tensors, sizes and numbers."""
        stand_ins = [_stand_in(a) for a in args if a is not None]
        return elementwise_dtypes(*stand_ins, type_promotion_kind=kind)

    def pointwise(
        self, element: Callable[..., Node], args: Sequence[Any], in_dtype: torch.dtype, out_dtype: torch.dtype,
        out_sizes: Sequence[sympy.Expr] | None = None, device: torch.device | None = None,
    ) -> Tensor:  # fmt: skip
        """`element(*nodes)` at every point of the broadcast of `args`.

        Each argument is passed in the compute dtype of `in_dtype`, and `element` must return a node in the compute dtype of
        `out_dtype`.
        """
        tensors = [a for a in args if isinstance(a, Tensor)]
        out_sizes = tuple(out_sizes) if out_sizes is not None else self.result_sizes()
        device = device or (tensors[0].device if tensors else torch.device("cpu"))

        def element_at(point: Point) -> Node:
            return element(*[widen(self.element(a, out_sizes, point), in_dtype) for a in args])

        return computed(out_sizes, out_dtype, device, element_at)

    def element(self, value: Any, out_sizes: Sequence[sympy.Expr], point: Point) -> Node:
        """`value` (a Tensor, size or number), broadcast to `out_sizes`, at `point`."""
        if isinstance(value, Tensor):
            return value.at(broadcast_point(value.sizes, out_sizes, point))
        if isinstance(value, sympy.Expr) and not value.is_number:
            return expr.index_value(value) if value.is_integer else float_node(value)
        if isinstance(value, sympy.Expr):
            value = int(value) if value.is_Integer else float(value)
        dtype = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else torch.float64
        return expr.const(value, dtype)

    # reductions --------------------------------------------------------------------------------------------------------

    def reduction(
        self, source: Tensor, dims: Sequence[int], keepdim: bool,
        outputs: Sequence[tuple[Callable[[Node, Point], Node], torch.dtype]],
    ) -> list[Tensor]:  # fmt: skip
        """One loop that reduces `source` over `dims`.

        Each output is (`build(value, point)` → row-level node made of `expr.reduce`, logical dtype). Returns stored tensors,
        with the reduced dimensions kept as size 1 if `keepdim`.
        """
        dims = [d % max(source.rank, 1) for d in dims]
        kept = [d for d in range(source.rank) if d not in dims]
        axes = self.axes([source.sizes[d] for d in kept])
        reduced = self.axes([source.sizes[d] for d in dims], "r")
        symbol = {d: a.symbol for d, a in zip((*kept, *dims), (*axes, *reduced), strict=True)}
        point = tuple(symbol[d] for d in range(source.rank))
        value = source.at(point)
        out_sizes = [sizes.ONE if d in dims else source.sizes[d] for d in range(source.rank) if keepdim or d not in dims]
        out_point = [sizes.ZERO if d in dims else symbol[d] for d in range(source.rank) if keepdim or d not in dims]
        stores, results = [], []
        for build, dtype in outputs:
            buffer = self.new_buffer(out_sizes, dtype, source.device)
            stores.append(Store(buffer.name, buffer.index(tuple(out_point)), build(value, point)))
            results.append(stored(whole(buffer), source.device))
        self.loop(axes, reduced, tuple(stores), "reduce")
        return results

    # library calls -----------------------------------------------------------------------------------------------------

    def library(
        self, target: Any, args: Sequence[Any], kwargs: dict[str, Any], reason: str, results: Any = None,
        mutates: tuple[str, ...] = (),
    ) -> Any:  # fmt: skip
        """Emit an ATen call, which overwrites the buffers in `mutates`. This is correct for any operator.

        Arguments are stored first. The outputs are new buffers with the sizes and strides of the fake tensors in `results`, which
        defaults to those of the current node. Returns Tensors and sizes in the structure of `results`.
        """
        results = self.node.meta.get("val") if results is None and self.node is not None else results
        outputs: list[str | None] = []
        facts: list[tuple[sympy.Expr, tuple[Any, ...]]] = []

        def one(value: Any) -> Any:
            k = len(outputs)
            if not isinstance(value, torch.Tensor):
                outputs.append(None)
                number = _number(value)
                facts.append((_plain_value(number), ("item", k)))
                return number
            shape = tuple(sizes.as_size(n) for n in value.shape)
            buffer = self.new_buffer(shape, value.dtype, value.device, tuple(sizes.as_stride(n) for n in value.stride()))
            outputs.append(buffer.name)
            facts.extend((n, ("size", k, d)) for d, n in enumerate(shape))
            facts.extend((sizes.as_size(s), ("stride", k, d)) for d, s in enumerate(value.stride()))
            facts.append((sizes.as_size(value.storage_offset()), ("offset", k)))
            return stored(whole(buffer), value.device)

        many = isinstance(results, tuple | list)
        values = tuple(one(r) for r in results) if many else one(results)
        given = tuple(self.argument(a) for a in args), tuple((k, self.argument(v)) for k, v in kwargs.items())
        told = [*self._known_from(facts)]
        values = tuple(self._named(v, k, told) for k, v in enumerate(values)) if many else self._named(values, 0, told)
        origins, known = (self.origin,), tuple(told)
        self.emit(Extern(self.name("lib"), target, *given, tuple(outputs), origins, reason, known, mutates=mutates, many=many))
        return values

    def _known_from(self, facts: Sequence[tuple[Any, tuple[Any, ...]]]) -> Iterator[tuple[sympy.Symbol, Any]]:
        """Values for symbols that are still unknown, derived from the results of a call.

        `facts` pairs expressions with where each is found in the results. A fact that is a single symbol defines it. A fact that
        is linear in its only unknown symbol is solved for that symbol.
        """
        ahead = [(each, how) for each, how in facts if isinstance(each, sympy.Expr) and not each.is_number]
        for each, how in ahead:
            if isinstance(each, sympy.Symbol) and self.define(each):
                yield each, how
        while solved := self._solved(ahead):
            symbol, value, how, solution = solved
            self.define(symbol)
            yield value, how
            yield symbol, solution

    def _named(self, value: Any, k: int, told: list[tuple[sympy.Symbol, Any]]) -> Any:
        """Output `k` of a call. It gets a symbol of its own if it is an expression with unknown symbols, such as an equality of
        two sizes that are the same number under different names."""
        if not isinstance(value, sympy.Basic) or all(map(self.defined, value.free_symbols)):
            return value
        truth = not isinstance(value, sympy.Expr)
        symbol = sympy.Symbol(self.name("told"), integer=truth or value.is_integer, real=True)
        self.define(symbol)
        told.append((symbol, ("item", k)))
        return sympy.Eq(symbol, 1) if truth else symbol

    def _solved(self, facts: Sequence[tuple[sympy.Expr, tuple[Any, ...]]]) -> tuple[Any, ...] | None:
        for each, how in facts:
            unknown = [s for s in each.free_symbols if not self.defined(s)]
            if len(unknown) == 1 and sizes.coefficient(each, unknown[0]) is not None:
                value = sizes.axis(self.name("told"))
                return unknown[0], value, how, sizes.solve(each, unknown[0], value)
        return None

    def argument(self, value: Any) -> Any:
        """An argument of a library call: tensors are stored, sizes wrapped in a Ref, other values unchanged."""
        if isinstance(value, Tensor):
            return Ref(self.stored(value))
        if isinstance(value, sympy.Basic):
            return int(value) if value.is_Integer else Ref(value)
        if isinstance(value, list):
            return [self.argument(v) for v in value]
        if isinstance(value, tuple):
            return tuple(self.argument(v) for v in value)
        if isinstance(value, dict):
            return {k: self.argument(v) for k, v in value.items()}
        return value

    def define(self, symbol: sympy.Symbol) -> bool:
        """Mark `symbol` as known. Returns False if it already was, from an argument or an earlier call."""
        if symbol in self._defined:
            return False
        self._defined[symbol] = None
        return True

    def defined(self, symbol: sympy.Symbol) -> bool:
        """Whether the value of `symbol` is known."""
        return symbol in self._defined

    def mark(self) -> tuple[int, ...]:
        """The current state of the builder, for `undo`."""
        return len(self.operations), len(self.buffers), len(self._realized), len(self._defined)

    def undo(self, mark: tuple[int, ...]) -> None:
        """Discard everything that was emitted, allocated, stored and defined since `mark`."""
        del self.operations[mark[0] :]
        parts: tuple[dict[Any, Any], ...] = (self.buffers, self._realized, self._defined)
        for part, length in zip(parts, mark[1:], strict=True):
            while len(part) > length:
                part.popitem()


def _unfolded(view: View, call: Call) -> View | None:
    """`view` of a call's result, in the sizes that the call returns; None if it is not a plain reshape of them."""
    if view.sizes == call.sizes or len(call.sizes) == 0:
        return view
    if view.strides != sizes.contiguous_strides(view.sizes):
        return None
    return replace(view, sizes=call.sizes, strides=sizes.contiguous_strides(call.sizes))


def _number(value: Any) -> Any:
    """A non-tensor result as a symbolic number, if it is one."""
    node = getattr(value, "node", None)
    return value if node is None else node.expr


def _plain_value(value: Any) -> Any:
    """The number that a returned value stands for: itself, or u for the truth value `u = 1`."""
    return value.lhs if isinstance(value, sympy.Eq) and value.rhs == 1 else value


def _stand_in(value: Any) -> Any:
    """A tensor or number of the same dtype and rank, for torch's promotion rules."""
    if isinstance(value, Tensor):
        return torch.empty((1,) * value.rank, dtype=value.dtype, device="meta")
    if isinstance(value, sympy.Expr):
        return 1 if value.is_integer else 1.0
    return value
