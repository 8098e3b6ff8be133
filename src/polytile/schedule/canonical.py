"""Canonical kernels: equal work gets equal names, so that it is generated, compiled, measured and stored once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, ModularIndexing, PythonMod

from polytile.ir import calls, evaluate, expr, sizes
from polytile.ir.buffer import Buffer
from polytile.ir.library_call import LibraryCall
from polytile.ir.loop import SEGMENT_SUM, Axis, Loop, Store
from polytile.ir.printer import loop_text, type_name
from polytile.problem import digest
from polytile.schedule.derived import derived_of, in_derived, sizes_of, with_derived
from polytile.schedule.extents import extents_of, in_extents, with_extents
from polytile.schedule.starts import call_with_starts, starts_of, with_starts


@dataclass(frozen=True)
class TensorArg:
    """One tensor argument of a kernel. `role` is "in", "out" or "inout"."""

    name: str
    dtype: torch.dtype
    role: str


@dataclass(frozen=True)
class LoopKernel:
    """A loop over canonical names: tensors a0, a1, ... and size symbols n0, n1, ... in argument order. `library` holds
    the ATen calls that the loop came from, in the same names."""

    loop: Loop
    tensors: tuple[TensorArg, ...]
    symbols: tuple[sympy.Symbol, ...]
    library: tuple[LibraryCall, ...] = ()

    @cached_property
    def text(self) -> str:
        """Everything that determines what the kernel computes, as text, without the source operators."""
        types = " ".join(f"{t.name}:{type_name(t.dtype)}:{t.role}" for t in self.tensors)
        asked = "".join(f"\n  or {calls.text(call)}" for call in self.library)
        return f"{types}\n{loop_text(replace(self.loop, name='kernel', origins=()))}{signs(self.symbols)}{asked}"

    @cached_property
    def digest(self) -> str:
        return digest(self.text)

    @cached_property
    def axis_symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols that the loop's number of points depends on."""
        return frozenset().union(*(sizes.symbols(axis.size) for axis in self.loop.axes + self.loop.reduced))

    @cached_property
    def own_symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols used by the loop itself. Any others are used only by the calls that it came from."""
        expressions = [axis.size for axis in self.loop.axes + self.loop.reduced] + [
            store.index for store in self.loop.stores
        ]
        expressions += [index for node in expr.walk(*self.loop.roots) for index in node.indices]
        return frozenset().union(*map(sizes.symbols, expressions)) & frozenset(self.symbols)

    def interpret(self, *args: Any, precision: torch.dtype | None = None) -> None:
        """Runs the loop on flat arguments with the reference interpreter (ir/evaluate.py), in `precision` or in the
        arguments' own dtypes."""
        tensors = dict(zip([t.name for t in self.tensors], args, strict=False))
        values = dict(zip(self.symbols, args[len(self.tensors) :], strict=True))
        evaluate.run_loop(self.loop, tensors, values, precision)

    def storage(self, name: str) -> torch.dtype:
        return next(t.dtype for t in self.tensors if t.name == name)


def signs(symbols: Sequence[sympy.Symbol]) -> str:
    """A line that lists the symbols not known to be positive; "" if there are none, so that the text of such kernels
    does not change."""
    names = [s.name for s in symbols if not s.is_positive]
    return f"\n  of any sign: {', '.join(names)}" if names else ""


@dataclass(frozen=True)
class CallSite:
    """The arguments of a call of a canonical kernel: the program's buffers and size expressions, in argument order."""

    buffers: tuple[str, ...]
    sizes: tuple[sympy.Expr, ...]


# The functions of indices and sizes that kernels compute themselves. The caller computes any other.
_IN_KERNELS = (
    sympy.Add,
    sympy.Mul,
    sympy.Pow,
    FloorDiv,
    Mod,
    PythonMod,
    ModularIndexing,
    Max,
    Min,
    sympy.Max,
    sympy.Min,
)


def canonical_symbols(
    expressions: list[sympy.Expr],
    own: set[sympy.Symbol],
    extents: Sequence[sympy.Expr],
    whole: Collection[sympy.Expr] = (),
) -> dict[sympy.Expr, sympy.Symbol]:
    """Renames the size symbols of the expressions, other than the kernel's `own`, to n0, n1, ... in order of
    appearance.

    A part that kernels cannot compute, such as trunc(1.7·s0), counts as a symbol, and so does each of `whole`. A symbol
    is positive if it is known to be, or if it is a factor of the axes' `extents`, since otherwise there would be
    nothing to compute. A number from the user may have any sign.
    """
    mapping: dict[sympy.Expr, sympy.Symbol] = {}
    factors = {factor for extent in extents for factor in (extent, *sympy.Mul.make_args(extent))}
    for e in expressions:
        for part in sorted(_arguments(e, own, whole), key=str):
            positive = True if part.is_positive or part in factors else None
            mapping.setdefault(part, sympy.Symbol(f"n{len(mapping)}", integer=True, positive=positive))
    return mapping


def _arguments(e: sympy.Expr, own: set[sympy.Symbol], whole: Collection[sympy.Expr]) -> set[sympy.Expr]:
    """The largest parts of `e` that the caller knows and the kernel cannot compute, or that are among `whole`."""
    if e in whole:
        return {e}
    if isinstance(e, sympy.Symbol):
        return set() if e in own or e.name.startswith("ind") else {e}
    simple = not e.args or (isinstance(e, _IN_KERNELS) and not (isinstance(e, sympy.Pow) and not e.exp.is_Integer))
    if simple or any(not _arguments(s, own, ()) for s in sizes.symbols(e)):
        return set().union(*[_arguments(a, own, whole) for a in e.args])
    return {e}


def _composite_sizes(expressions: Sequence[sympy.Expr], axes: Sequence[Axis]) -> list[sympy.Expr]:
    """Axis sizes such as s0·s1 whose symbols occur nowhere else. The kernel takes the size itself as an argument. Facts
    then concern the product: shapes with equally many points share a regime, and 16 may divide the product but no
    factor."""
    composite = [a.size for a in axes if a.size.free_symbols and not a.size.is_Symbol]
    return [
        size
        for size in dict.fromkeys(composite)
        if not any(size.free_symbols & e.xreplace({size: sizes.ONE}).free_symbols for e in expressions)
    ]


def canonicalize(loop: Loop, buffers: Mapping[str, Buffer], extents_too: bool = False) -> tuple[LoopKernel, CallSite]:
    """The canonical kernel of `loop`, and how to call it here. With `extents_too` constant extents are arguments where that costs
    no speed on a CPU."""
    library, loop = calls.calls_of(loop, buffers), _rename_axes(loop)
    order, roles = _buffer_roles(loop, buffers)
    derived = derived_of(loop)
    if derived:
        loop, library = with_derived(loop, derived), _renumbered(library, partial(in_derived, derived=derived))
    starts = starts_of(loop)
    loop, library = with_starts(loop, starts), tuple(call_with_starts(call, starts) for call in library)
    constant = extents_of(loop) if extents_too else {}
    if constant:
        loop, library = with_extents(loop, constant), _renumbered(library, partial(in_extents, extents=constant))
    own = {a.symbol for a in loop.axes + loop.reduced}
    extents = [a.size for a in loop.axes + loop.reduced]
    size_exprs = [*extents]
    for node in expr.walk(*loop.roots):
        size_exprs += list(node.indices)
    size_exprs += [s.index for s in loop.stores]
    composite = _composite_sizes(size_exprs, loop.axes + loop.reduced)
    size_exprs += calls.expressions(library)
    symbols = canonical_symbols(size_exprs, own, extents, composite)
    names = {buffer: f"a{k}" for k, buffer in enumerate(order)}
    renamed = replace(_rename(loop, names, symbols), library=())
    tensors = tuple(TensorArg(names[b], buffers[b].dtype, roles[b]) for b in order)
    library = tuple(calls.renamed(call, names, lambda e: e.xreplace(symbols)) for call in library)
    values: dict[sympy.Expr, sympy.Expr] = {start.symbol: start.begin for start in starts.values()}
    values |= {symbol: sympy.Integer(size) for size, symbol in constant.items()}
    here = sizes_of(derived)
    site = CallSite(tuple(order), tuple(sizes.substitute(values.get(e, e), here) for e in symbols))
    return LoopKernel(renamed, tensors, tuple(symbols.values()), library), site


def _renumbered(library: Sequence[LibraryCall], number: Callable[[sympy.Expr], sympy.Expr]) -> tuple[LibraryCall, ...]:
    """The calls with `number` of each of their sizes and strides."""
    return tuple(calls.renamed(call, {view.buffer: view.buffer for view in call.views()}, number) for call in library)


def _rename_axes(loop: Loop) -> Loop:
    axes = tuple(Axis(sizes.axis(f"p{k}"), a.size) for k, a in enumerate(loop.axes))
    reduced = tuple(Axis(sizes.axis(f"r{k}"), a.size) for k, a in enumerate(loop.reduced))
    mapping = {old.symbol: new.symbol for old, new in zip(loop.axes + loop.reduced, axes + reduced, strict=True)}
    return replace(loop.substitute(mapping), axes=axes, reduced=reduced)


def _buffer_roles(loop: Loop, buffers: Mapping[str, Buffer]) -> tuple[list[str], dict[str, str]]:
    """Buffer names in argument order, and the role of each. "out" means fully overwritten and not read."""
    reads = [load.buffer for load in expr.loads(*loop.roots)]
    writes = [s.buffer for s in loop.stores]
    order = list(dict.fromkeys(reads + writes))
    roles = {}
    for b in order:
        stores = [s for s in loop.stores if s.buffer == b]
        fresh = b not in reads and _covers(loop, stores, buffers[b])
        roles[b] = "in" if not stores else "out" if fresh else "inout"
    return order, roles


def _covers(loop: Loop, stores: Sequence[Store], buffer: Buffer) -> bool:
    """Whether the stores set every element of `buffer`, each at a distinct place. A segment sum sets all elements itself."""
    if len(stores) == 1 and stores[0].is_segment_sum and stores[0].indirect:
        return True
    if any(s.mode not in ("set", SEGMENT_SUM) or s.indirect or s.mask is not None for s in stores):
        return False
    axes = loop.axes + loop.reduced
    points = [sizes.product([a.size for a in axes if a.symbol in s.index.free_symbols]) for s in stores]
    return sizes.equal(sum(points, sizes.ZERO), sizes.product(buffer.sizes))


def _rename(loop: Loop, names: Mapping[str, str], symbols: Mapping[sympy.Expr, sympy.Symbol]) -> Loop:
    def index_map(e: sympy.Expr) -> sympy.Expr:
        return e.xreplace(symbols) if sizes.symbols(e) else e

    def rule(node: expr.Node, children: tuple[expr.Node, ...]) -> expr.Node:
        node = expr.rebuild(node, children, index_map)
        if isinstance(node, expr.Load):
            return expr.load(node.dtype, names[node.buffer], node.index, node.indirect, node.mask)
        return node

    renamed = loop.map_roots(lambda roots: expr.rewrite(roots, rule), index_map)
    stores = tuple(replace(s, buffer=names[s.buffer]) for s in renamed.stores)
    axes = tuple(Axis(a.symbol, index_map(a.size)) for a in renamed.axes)
    reduced = tuple(Axis(a.symbol, index_map(a.size)) for a in renamed.reduced)
    return replace(renamed, axes=axes, reduced=reduced, stores=stores)


def rename_tensors(loop: Loop, names: Mapping[str, str]) -> Loop:
    """The loop with its tensors renamed."""
    return _rename(loop, names, {})


def precision_of(tensors: Sequence[TensorArg], args: Sequence[Any]) -> torch.dtype | None:
    """The dtype in which a reference must compute for these arguments: float64 if any of them was widened to it, else
    None for the arguments' own."""
    wide = (
        a.dtype == torch.float64 != t.dtype for t, a in zip(tensors, args, strict=False) if isinstance(a, torch.Tensor)
    )
    return torch.float64 if any(wide) else None
