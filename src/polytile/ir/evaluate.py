"""The reference evaluator of loops: computes every value of the body as a torch tensor over the loop's grid.

A grid has one dimension per axis, followed by one per reduced axis. A value that does not vary along an axis has size 1 there.
All loads of a chunk of the grid happen before its stores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, ModularIndexing, PythonMod

from polytile.errors import DivisionByZero, IndexOutOfRange, IRError
from polytile.ir import expr, leaning, ops, philox, reductions, sizes
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Accumulator, Const, Index, Load, Node, Op, Part, Reduce, Scan
from polytile.ir.loop import Loop, Store, element_level

CHUNK_POINTS = 4_000_000
Number = Any  # a Python int, or an int64 tensor that broadcasts to the grid
Value = Any  # a tensor that broadcasts to the grid; for a multi-result node a tuple of them


def run_loop(
    loop: Loop,
    buffers: Mapping[str, torch.Tensor],
    size_values: Mapping[sympy.Symbol, int],
    precision: torch.dtype | None = torch.float64,
    accumulator: torch.Tensor | None = None,
) -> None:
    """Run `loop` on `buffers` and write its stores.

    Parameters
    ----------
    loop
        The loop to run.
    buffers
        Maps each buffer's name to a tensor whose first element is the buffer's first. Stored values are converted to the tensor's
        dtype, which may be wider than the buffer's.
    size_values
        The values of the size symbols.
    precision
        The dtype of floating-point computation; None uses the nodes' dtypes. Integers are exact.
    accumulator
        The value of `Accumulator`, with one dimension per axis.

    Raises
    ------
    IndexOutOfRange
        If a checked index is out of range.
    IRError
        If the loop accesses memory outside a buffer.
    """
    grid = [(a.symbol, sizes.evaluate(a.size, size_values)) for a in loop.axes + loop.reduced]
    for bounds in _chunks([n for _, n in grid], len(loop.axes)):
        part = accumulator
        if part is not None:
            part = part[tuple(slice(a, b) for a, b in bounds)]
        _Chunk(loop, buffers, size_values, precision, part, bounds).run()


def changed_scores(
    loop: Loop,
    products: torch.Tensor,
    buffers: Mapping[str, torch.Tensor],
    size_values: Mapping[sympy.Symbol, int],
    precision: torch.dtype | None = torch.float64,
) -> tuple[torch.Tensor, ...]:
    """What an Attention's `scores` computes from the scaled products (batch, heads, m, n): the scores, and their slopes if the
    loop has them."""
    made = {store.buffer: torch.empty(products.shape, dtype=products.dtype, device=products.device) for store in loop.stores}
    run_loop(loop, {**buffers, **made}, size_values, precision, products)
    return tuple(made.values())


def _chunks(lengths: list[int], n_axes: int) -> Iterator[list[tuple[int, int]]]:
    """Split the grid into chunks of about CHUNK_POINTS points, along its longest axis that is not reduced."""
    whole = [(0, n) for n in lengths]
    points = math.prod(lengths)
    if points <= CHUNK_POINTS or n_axes == 0:
        yield whole
        return
    cut = max(range(n_axes), key=lambda i: lengths[i])
    step = max(1, CHUNK_POINTS * lengths[cut] // points)
    for start in range(0, lengths[cut], step):
        yield [(start, min(start + step, n)) if i == cut else (0, n) for i, n in enumerate(lengths)]


SAMPLED_POINTS = 1 << 18
"""Number of points in a sampled box of the grid; a box has more only if a single row does."""
MOST_SAMPLED = 1 << 26
"""A loop whose rows have more points than this is not sampled."""


@dataclass(frozen=True)
class Piece:
    """Values that a loop stores at some points: `value` goes to the elements of `buffer` with these strides, from `offset` on."""

    buffer: str
    strides: tuple[int, ...]
    offset: int
    value: torch.Tensor


def pieces_of(
    loop: Loop,
    buffers: Mapping[str, torch.Tensor],
    size_values: Mapping[sympy.Symbol, int],
    precision: torch.dtype | None = torch.float64,
) -> list[Piece] | None:
    """What `loop` would store in a few boxes at the beginning, middle and end of its grid, computed like `run_loop`.

    Nothing is written. Returns None if rows are too long, or if the loop does more than set each element from buffers that it
    does not write.
    """
    if not all(store.is_plain for store in loop.stores) or not loop.axes or loop.reads() & loop.writes():
        return None
    lengths = [sizes.evaluate(a.size, size_values) for a in loop.axes + loop.reduced]
    boxes = _boxes(lengths, len(loop.axes))
    chunks = [_Chunk(loop, buffers, size_values, precision, None, bounds) for bounds in boxes or ()]
    pieces = [piece for chunk in chunks for piece in chunk.pieces()]
    return pieces if boxes and None not in pieces else None  # type: ignore[return-value]


def _boxes(lengths: list[int], n_axes: int) -> list[list[tuple[int, int]]]:
    """Boxes of whole rows of about SAMPLED_POINTS points; none if a row is too long."""
    row = math.prod(lengths[n_axes:])
    if row > MOST_SAMPLED or 0 in lengths:
        return []
    left, widths = max(1, SAMPLED_POINTS // row), list(lengths)
    for axis in reversed(range(n_axes)):
        widths[axis] = min(lengths[axis], left)
        left = max(1, left // widths[axis])
    starts = [[place * (n - width) // 2 for n, width in zip(lengths, widths, strict=True)] for place in range(3)]
    return [[(s, s + width) for s, width in zip(start, widths, strict=True)] for start in starts]


@dataclass
class _Chunk:
    """Evaluates one chunk of a loop's grid. `bounds` has (start, end) for each axis."""

    loop: Loop
    buffers: Mapping[str, torch.Tensor]
    sizes: Mapping[sympy.Symbol, int]
    precision: torch.dtype | None
    accumulator: torch.Tensor | None
    bounds: list[tuple[int, int]]

    def __post_init__(self) -> None:
        axes = self.loop.axes + self.loop.reduced
        self.rank = len(axes)
        self.n_axes = len(self.loop.axes)
        self.lengths = [end - start for start, end in self.bounds]
        self.position = {a.symbol: i for i, a in enumerate(axes)}
        self.device = next((self.buffer(s.buffer).device for s in self.loop.stores), torch.device("cpu"))
        self.axis_values: dict[sympy.Symbol, torch.Tensor] = {}
        for i, axis in enumerate(axes):
            shape = [1] * self.rank
            shape[i] = self.lengths[i]
            self.axis_values[axis.symbol] = torch.arange(*self.bounds[i], device=self.device).reshape(shape)

    def run(self) -> None:
        values = self.values()
        for store in self.loop.stores:
            self.store(store, [values[id(r)] for r in store.roots])

    def pieces(self) -> list[Piece | None]:
        """What the stores would write; None for a store whose index is not linear."""
        values = self.values()
        pieces: list[Piece | None] = []
        for store in self.loop.stores:
            place = self.layout(store.index)
            value = values[id(store.value)]
            shape = self.store_shape(store)
            if place is None or not _broadcasts_to(value.shape, torch.Size(place[0])) or place[0] != shape:
                pieces.append(None)
            else:
                pieces.append(Piece(store.buffer, tuple(place[1]), place[2], value.expand(place[0])))
        return pieces

    def values(self) -> dict[int, Value]:
        """The value of every root, keyed by the identity of its node."""
        nodes = list(expr.walk(*self.loop.roots))
        kept = {id(root) for root in self.loop.roots}
        last_use = {id(child): i for i, node in enumerate(nodes) for child in node.children}
        values: dict[int, Value] = {}
        lean = leaning.active()
        for i, node in enumerate(nodes):
            if lean is not None:  # it needs the values below a node's arguments too
                values[id(node)] = self.value(node, lean.arguments(node, values, self.op))
                continue
            values[id(node)] = self.value(node, [values[id(c)] for c in node.children])
            for child in node.children:
                if last_use[id(child)] == i and id(child) not in kept:
                    values.pop(id(child), None)
        return values

    def type_of(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which this evaluation computes values of `dtype`."""
        return self.precision if self.precision is not None and dtype.is_floating_point else dtype

    # values ----------------------------------------------------------------------------------------------------------

    def value(self, node: Node, args: list[Value]) -> Value:
        match node:
            case Const():
                return torch.tensor(node.value, dtype=self.type_of(node.dtype), device=self.device)
            case Index():
                number = self.number(node.expr, {})
                return self.tensor(number).to(self.type_of(node.dtype))
            case Load():
                return self.load(node, args)
            case Op():
                return self.op(node, args)
            case Reduce() | Scan():
                return self.along_reduced(node, args)
            case Part():
                return args[0][node.k]
            case Accumulator():
                return self.accumulated(node)
        raise IRError(f"loop {self.loop.name}: the interpreter knows no node {type(node).__name__}.")

    def accumulated(self, node: Accumulator) -> torch.Tensor:
        if self.accumulator is None:
            raise IRError(f"loop {self.loop.name} reads Accumulator but is no template's epilogue.")
        return self.accumulator.to(self.type_of(node.dtype))

    def op(self, node: Op, args: list[torch.Tensor]) -> torch.Tensor:
        special = _SPECIAL_OPS.get(node.name)
        if special is not None:
            return special(self, node, args)
        result = ops.definition(node.name).meaning(*args)
        return result.to(self.type_of(node.dtype))

    # indices ---------------------------------------------------------------------------------------------------------

    def number(self, index: sympy.Expr, env: Mapping[sympy.Symbol, Number]) -> Number:
        """The value of an index expression at every point: an int if it does not vary, else an int64 tensor."""
        return _evaluate(self.at_sizes(index), {**self.axis_values, **env})

    def tensor(self, number: Number) -> torch.Tensor:
        return torch.as_tensor(number, dtype=torch.int64, device=self.device)

    def at_sizes(self, index: sympy.Expr) -> sympy.Expr:
        """`index` with the size symbols replaced by their values."""
        return index.xreplace({s: sympy.Integer(self.sizes[s]) for s in index.free_symbols if s in self.sizes})

    def layout(self, index: sympy.Expr) -> tuple[list[int], list[int], int] | None:
        """Sizes, strides and offset of the elements at `index`, with size 1 along axes that do not occur; None if it is not
        linear."""
        shape, strides, offset = [1] * self.rank, [0] * self.rank, 0
        for term, factor in self.at_sizes(index).expand().as_coefficients_dict().items():
            if not factor.is_Integer or not (term == 1 or term in self.position):
                return None
            if term == 1:
                offset += int(factor)
            else:
                i = self.position[term]
                shape[i], strides[i] = self.lengths[i], int(factor)
                offset += int(factor) * self.bounds[i][0]
        return (shape, strides, offset) if 0 not in shape and min(strides, default=0) >= 0 else None

    def strided(self, flat: torch.Tensor, index: sympy.Expr) -> torch.Tensor | None:
        """The elements `flat[index]` as a strided view; None if the index is not linear."""
        layout = self.layout(index)
        if layout is None:
            return None
        shape, strides, offset = layout
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if offset < 0 or last >= flat.numel():
            reach = f"index {index} runs from {offset} to {last} in {flat.numel()} elements"
            raise IRError(f"loop {self.loop.name}: {reach}.")
        return flat.as_strided(shape, strides, flat.storage_offset() + offset)

    def checked(self, index: Number, flat: torch.Tensor, what: str) -> torch.Tensor:
        """`index` as a tensor; raises IRError if it reaches outside `flat`."""
        index = self.tensor(index)
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= flat.numel()):
            bad = int(index.min()) if int(index.min()) < 0 else int(index.max())
            raise IRError(f"loop {self.loop.name} {what} at {bad}, outside of its {flat.numel()} elements.")
        return index

    # loads and stores ------------------------------------------------------------------------------------------------

    def load(self, node: Load, args: list[torch.Tensor]) -> torch.Tensor:
        flat = flat_view(self.buffer(node.buffer))
        if 0 in self.lengths:  # an empty grid reads nothing
            none = [min(n, 1) for n in self.lengths]
            return torch.zeros(none, dtype=self.type_of(node.dtype), device=self.device)
        if not args:
            view = self.strided(flat, node.index)
            if view is not None:
                return self.loaded(view, node)
        k = len(node.indirect)
        index = self.number(node.index, {expr.indirect_symbol(i): v for i, v in enumerate(args[:k])})
        what = f"reads {node.buffer}[{node.index}]"
        if node.mask is None:
            return self.loaded(flat[self.checked(index, flat, what)], node)
        mask, index = torch.broadcast_tensors(args[k], self.tensor(index))
        read = torch.zeros(mask.shape, dtype=flat.dtype, device=self.device)
        read[mask] = flat[self.checked(index[mask], flat, what)]
        return self.loaded(read, node)

    def buffer(self, name: str) -> torch.Tensor:
        if name not in self.buffers:
            raise IRError(f"loop {self.loop.name} uses buffer {name}, which has no storage yet.")
        return self.buffers[name]

    def loaded(self, raw: torch.Tensor, node: Load) -> torch.Tensor:
        """Convert stored elements to the compute dtype, or bit-cast them if the node has another dtype."""
        same = compute_dtype(raw.dtype) == node.dtype or raw.dtype == self.type_of(node.dtype)
        if not same and raw.dtype.itemsize == node.dtype.itemsize:
            raw = raw.contiguous().view(node.dtype)
        return raw.to(self.type_of(node.dtype), copy=True)

    def store(self, store: Store, args: list[torch.Tensor]) -> None:
        if store.is_segment_sum and not store.indirect:
            self.add_up(store, args[0])
            return
        if store.is_segment_sum and not any(start for start, _ in self.bounds):
            self.buffer(store.buffer).zero_()
        if 0 in self.store_shape(store):  # an empty grid writes nothing
            return
        flat = flat_view(self.buffer(store.buffer))
        k = len(store.indirect)
        value = args[0].to(flat.dtype)
        if store.mode == "set" and len(args) == 1:
            view = self.strided(flat, store.index)
            if view is not None and _broadcasts_to(value.shape, view.shape):
                view.copy_(value)
                return
        index = self.number(store.index, {expr.indirect_symbol(i): v for i, v in enumerate(args[1 : 1 + k])})
        index = self.tensor(index)
        mask = args[1 + k] if store.mask is not None else torch.tensor(True, device=self.device)
        points = torch.broadcast_shapes(index.shape, value.shape, mask.shape, self.store_shape(store))
        index, value, mask = index.expand(points), value.expand(points), mask.expand(points)
        index = self.checked(index[mask], flat, f"writes {store.buffer}[{store.index}]")
        flat.index_put_((index,), value[mask], accumulate=store.mode != "set")

    def add_up(self, store: Store, value: torch.Tensor) -> None:
        """Sum over the axes that the index omits. Later chunks along such an axis add to the earlier sums."""
        axes = self.loop.axes + self.loop.reduced
        summed = [i for i, axis in enumerate(axes) if axis.symbol not in store.index.free_symbols]
        flat, part = flat_view(self.buffer(store.buffer)), value.expand(self.lengths).sum(summed, keepdim=True)
        index = self.tensor(self.number(store.index, {})).expand(part.shape)
        index = self.checked(index, flat, f"writes {store.buffer}[{store.index}]")
        before = flat[index].to(part.dtype) if any(self.bounds[i][0] for i in summed) else 0
        flat[index] = (part + before).to(flat.dtype)

    def store_shape(self, store: Store) -> list[int]:
        """The points at which a store runs: the whole grid, or only the axes for a row-level store."""
        if element_level(self.loop, store):
            return self.lengths
        return self.lengths[: self.n_axes] + [1] * (self.rank - self.n_axes)

    # reductions and scans --------------------------------------------------------------------------------------------

    def over_reduced(self, value: torch.Tensor) -> torch.Tensor:
        """`value` with all reduced dimensions at full size, flattened into one last dimension."""
        lead = list(value.shape[: self.n_axes]) if value.dim() else [1] * self.n_axes
        full = value.expand(lead + self.lengths[self.n_axes :])
        return full.reshape(lead + [math.prod(self.lengths[self.n_axes :])])

    def along_reduced(self, node: Reduce | Scan, args: list[torch.Tensor]) -> Value:
        """Evaluate a reduction, with one point along the reduced axes, or a scan, with all of them."""
        rows = torch.broadcast_tensors(*[self.over_reduced(a) for a in args])
        results = reductions.definition_of(node).meaning(rows, self.type_of(node.dtype))
        points = [1] * (self.rank - self.n_axes) if isinstance(node, Reduce) else self.lengths[self.n_axes :]
        shaped = tuple(r.reshape([*r.shape[: self.n_axes], *points]) for r in results)
        return shaped if len(shaped) > 1 else shaped[0]


def flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's storage from its first element on, as one dimension."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((max(count, 0),), (1,), tensor.storage_offset())


def _broadcasts_to(shape: torch.Size, target: torch.Size) -> bool:
    return not shape or all(n in (1, m) for n, m in zip(shape, target, strict=True))


# index expressions ---------------------------------------------------------------------------------------------------


def _extreme(choose: Callable[..., torch.Tensor]) -> Callable[..., Number]:
    def extreme(*args: Number) -> Number:
        result = args[0]
        for arg in args[1:]:
            result = choose(torch.as_tensor(result), torch.as_tensor(arg))
        return result

    return extreme


_FUNCTIONS: dict[Any, Callable[..., Number]] = {
    FloorDiv: lambda a, d: a // d,
    CleanDiv: lambda a, d: a // d,
    Mod: lambda a, d: a % d,
    PythonMod: lambda a, d: a % d,
    ModularIndexing: lambda a, d, m: (a // d) % m,
    sympy.Pow: lambda a, n: a**n,
    Max: _extreme(torch.maximum),
    Min: _extreme(torch.minimum),
    sympy.Max: _extreme(torch.maximum),
    sympy.Min: _extreme(torch.minimum),
}


def _evaluate(index: sympy.Expr, env: Mapping[sympy.Symbol, Number]) -> Number:
    """Evaluate an index expression on integers and int64 tensors."""
    if index.is_Integer:
        return int(index)
    if index.is_Symbol:
        if index not in env:
            raise IRError(f"index symbol {index} is no axis of the loop and no size with a value.")
        return env[index]
    args = [_evaluate(a, env) for a in index.args]
    if index.is_Add:
        return sum(args[1:], args[0])
    if index.is_Mul:
        return math.prod(args[1:], start=args[0])
    for function, meaning in _FUNCTIONS.items():
        if isinstance(index, function):
            return meaning(*args)
    raise IRError(f"the interpreter cannot evaluate {type(index).__name__} in the index {index}.")


# operations whose meaning the table of operations leaves to the node -------------------------------------------------


def _cast(chunk: _Chunk, node: Op, args: list[torch.Tensor]) -> torch.Tensor:
    return args[0].to(chunk.type_of(node.dtype))


def _bitcast(chunk: _Chunk, node: Op, args: list[torch.Tensor]) -> torch.Tensor:
    raw = args[0].to(node.args[0].dtype).contiguous()
    return raw.view(node.dtype).to(chunk.type_of(node.dtype))


def _check_index(chunk: _Chunk, node: Op, args: list[torch.Tensor]) -> torch.Tensor:
    """An index that is the same at all points is computed for a loop without points too, and is wrong at none of them."""
    index, size = args
    wrong = (index < -size) | (index >= size)
    if bool(wrong.any()) and 0 not in chunk.lengths:
        bad = int(torch.broadcast_to(index, wrong.shape)[wrong][0])
        work, length = ", ".join(chunk.loop.origins) or chunk.loop.name, int(size.max())
        raise IndexOutOfRange(f"index {bad} is out of range in {work}: the dimension that it picks from has {length} elements.")
    return torch.where(index < 0, index + size, index)


def _check_divisor(chunk: _Chunk, node: Op, args: list[torch.Tensor]) -> torch.Tensor:
    if bool((args[0] == 0).any()) and 0 not in chunk.lengths:
        raise DivisionByZero
    return args[0]


def _random(generate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda chunk, node, args: generate(*args, chunk.type_of(node.dtype))


_SPECIAL_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "cast": _cast,
    "bitcast": _bitcast,
    "check_index": _check_index,
    "check_divisor": _check_divisor,
    "philox_uniform": _random(philox.uniform),
    "philox_normal": _random(philox.normal),
    "philox_int": _random(philox.integer),
}
