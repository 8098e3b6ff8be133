"""Programs: buffers, and the operations that fill them in order (loops, templates, library calls) or check sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import sympy
import torch

from polytile.ir import expr, names
from polytile.ir import sizes as algebra
from polytile.ir.expr import Load, Node

CPU = torch.device("cpu")
FLOAT8 = (torch.float8_e5m2, torch.float8_e4m3fn)
COMPUTE_DTYPE = dict.fromkeys((torch.bfloat16, torch.float16, *FLOAT8), torch.float32)


def compute_dtype(storage: torch.dtype) -> torch.dtype:
    """The type in which values of a tensor of type `storage` are computed."""
    return COMPUTE_DTYPE.get(storage, storage)


ROUNDING = {
    torch.float8_e5m2: "round_e5m2", torch.float8_e4m3fn: "round_e4m3", torch.bfloat16: "round_bf16", torch.float16: "round_f16",
}  # fmt: skip
"""The operation that rounds a value to a type of tensors narrower than the one in which it is computed, the coarsest first."""


@dataclass(frozen=True)
class Buffer:
    """A strided block of memory. `sizes` and `strides` (elements) are sympy expressions; `role` is "input", "temp" or
    "constant" (a tensor held by the graph). `weight` marks an input or constant that is mostly the same from call to call, as
    a module's parameters and buffers are: "constant" if nothing is expected to change it, "trained" if something is; None for all
    others."""

    name: str
    dtype: torch.dtype
    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    device: torch.device = CPU
    role: str = "temp"
    weight: str | None = None

    @property
    def numel(self) -> sympy.Expr:
        return algebra.product(self.sizes)

    @property
    def storage_size(self) -> sympy.Expr:
        """Elements from the first to the last, for nonempty sizes."""
        return sum(((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True)), algebra.ONE)

    @property
    def emptied_by(self) -> frozenset[sympy.Expr]:
        """Factors of its sizes that may be 0: if one is, the buffer has no memory, whatever `storage_size` says."""
        factors = {factor for n in self.sizes for factor in sympy.Mul.make_args(n)}
        return frozenset(factor for factor in factors if not algebra.is_nonnegative(factor - 1))

    def index(self, point: tuple[sympy.Expr, ...]) -> sympy.Expr:
        """Offset in elements of the element at `point`."""
        return sum((i * s for i, s in zip(point, self.strides, strict=True)), algebra.ZERO)


@dataclass(frozen=True)
class View:
    """A strided look at a buffer: `offset` and strides in elements of the buffer's own type. `dtype` differs from the buffer's
    only for a bit-cast view."""

    buffer: str
    dtype: torch.dtype
    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr = algebra.ZERO

    def index(self, point: tuple[sympy.Expr, ...]) -> sympy.Expr:
        return self.offset + sum((i * s for i, s in zip(point, self.strides, strict=True)), algebra.ZERO)


@dataclass(frozen=True)
class PackedWeight:
    """A kernel's argument that each call looks up: the copy of the weight at `view`, packed for vectors of `lanes` elements with
    `together` k in a lane, if there is one. The integer IS_PACKED among the arguments is 1 if there is, else 0. `constant`:
    nothing is expected to change the weight, so its first use packs it. `unpacked`: the operand, and the Loop that computes it
    from all of the weight; None where the weight is the operand."""

    view: View
    lanes: int
    together: int
    constant: bool
    unpacked: tuple[View, Loop] | None = None


IS_PACKED = algebra.axis(names.IS_PACKED)


def whole(buffer: Buffer) -> View:
    """The view of all of a buffer, as it lies."""
    return View(buffer.name, buffer.dtype, buffer.sizes, buffer.strides)


@dataclass(frozen=True)
class Axis:
    """A dimension of a loop: its symbol runs from 0 to size - 1."""

    symbol: sympy.Symbol
    size: sympy.Expr


SEGMENT_SUM = "sum"
"""The mode of a store that writes to each element of its buffer the sum of the values at all points that share it, 0 where there
is none."""


@dataclass(frozen=True)
class Store:
    """Writes `value` to element `index` of `buffer` (converted to its type). `mode` is "set"; or "add", which adds
    the value to what is there, and then several points may share an element; or SEGMENT_SUM, whose index leaves
    out some axes or is indirect. `indirect` is as in Load; where `mask` is given and false nothing is written."""

    buffer: str
    index: sympy.Expr
    value: Node
    mode: str = "set"
    indirect: tuple[Node, ...] = ()
    mask: Node | None = None

    @property
    def roots(self) -> tuple[Node, ...]:
        return (self.value, *self.indirect) + ((self.mask,) if self.mask is not None else ())

    def with_roots(self, roots: tuple[Node, ...], index: sympy.Expr | None = None) -> Store:
        k = len(self.indirect)
        mask = roots[1 + k] if self.mask is not None else None
        return replace(self, value=roots[0], indirect=roots[1 : 1 + k], mask=mask, index=self.index if index is None else index)

    @property
    def is_segment_sum(self) -> bool:
        """Whether it adds up all points that share an element: see SEGMENT_SUM."""
        return self.mode == SEGMENT_SUM

    def symbols(self) -> set[sympy.Symbol]:
        """Axis symbols that the stored element or its value depends on, through reductions too."""
        own = self.index.free_symbols - {expr.indirect_symbol(k) for k in range(len(self.indirect))}
        return own | expr.free_symbols(*self.roots)


@dataclass(frozen=True)
class Made:
    """What an earlier call returned, inside a Ref: result number `output` of several, None the only one. `call` is the name of an
    operator of the graph (Trace), or among the calls of a loop a position."""

    call: str | int
    output: int | None = None


@dataclass(frozen=True)
class LibraryCall:
    """One of the ATen calls that together do what a loop does: `target(*args, **kwargs)`, with a Ref for every tensor and size. A
    tensor is a View of memory that the loop reads, or Made by an earlier call; a view of no buffer ("") stands for a tensor of
    which only the sizes matter. `outputs`: where the results go in memory, None for one that only later calls need; empty for a
    target that changes its arguments. `whole`: the buffers that are only viewed in their own sizes and strides, so that they are
    passed as they are. `moved`: bytes of arguments and results at each point of the loop, and at each of its rows."""

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[View | None, ...]
    whole: frozenset[str] = frozenset()
    moved: tuple[int, int] = (0, 0)

    def views(self) -> list[View]:
        """All memory that it reads or writes."""
        views = [*views_in((self.args, self.kwargs)), *[view for view in self.outputs if view is not None]]
        return [view for view in views if view.buffer]


@dataclass(frozen=True)
class Loop:
    """For every point of `axes`, and where a value needs it every point of `reduced`: evaluate and store.

    A store whose index or value depends on a reduced axis outside any Reduce is done at every point of `axes × reduced`
    (element level), else once per point of `axes` (row level). `origins` names the source operators.

    `library`: the ATen calls that the loop came from, in order; empty if it has no such form (passes/library.py). Passes that
    change what a loop does leave them as they are; `ir.calls.calls_of` says whether they still hold.
    """

    name: str
    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    stores: tuple[Store, ...]
    origins: tuple[str, ...] = ()
    library: tuple[LibraryCall, ...] = field(default=(), compare=False, repr=False)

    @property
    def ranges(self) -> dict[sympy.Symbol, sympy.Expr]:
        return {a.symbol: a.size for a in self.axes + self.reduced}

    @property
    def roots(self) -> tuple[Node, ...]:
        return tuple(r for s in self.stores for r in s.roots)

    def reads(self) -> set[str]:
        return set(self._reads)

    @cached_property
    def _reads(self) -> frozenset[str]:
        return frozenset(load.buffer for load in expr.loads(*self.roots))

    def writes(self) -> set[str]:
        return {s.buffer for s in self.stores}

    def accesses(self) -> list[Load | Store]:
        """Every load, then every store; each has a buffer, an index, indirect parts and a mask."""
        return [*expr.loads(*self.roots), *self.stores]

    def map_roots(
        self, rule: Callable[[tuple[Node, ...]], tuple[Node, ...]], index_map: Callable[[sympy.Expr], sympy.Expr] | None = None
    ) -> Loop:
        """The loop with `rule(roots) -> roots` applied to all its values at once and `index_map` to the store indices."""
        new = rule(self.roots)
        stores, at = [], 0
        for store in self.stores:
            n = len(store.roots)
            stores.append(store.with_roots(new[at : at + n], index_map(store.index) if index_map else None))
            at += n
        return replace(self, stores=tuple(stores))

    def substitute(self, mapping: Mapping[sympy.Symbol, sympy.Expr]) -> Loop:
        """Index symbols replaced in values and store indices (the axes themselves stay)."""
        return self.map_roots(lambda roots: expr.substitute(roots, mapping), lambda i: algebra.substitute(i, mapping))


def element_level(loop: Loop, store: Store) -> bool:
    """Whether `store` runs at every point of `axes × reduced`."""
    if not loop.reduced:
        return True
    reduced = {a.symbol for a in loop.reduced}
    own = store.index.free_symbols - {expr.indirect_symbol(k) for k in range(len(store.indirect))}
    return bool(own & reduced) or any(depends_on_point(r, reduced) for r in store.roots)


def depends_on_point(root: Node, reduced: set[sympy.Symbol]) -> bool:
    """Whether a value varies with the reduced axes outside any Reduce (a Scan and an epilogue's Accumulator always do)."""
    stack, seen = [root], set()
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, expr.Reduce):
            continue
        seen.add(id(node))
        if isinstance(node, expr.Scan | expr.Accumulator) or any(e.free_symbols & reduced for e in node.indices):
            return True
        stack.extend(node.children)
    return False


SCALED_ALONG_K = 128
"""Elements along k that share a scale of 8-bit floats."""


@dataclass(frozen=True)
class Scales:
    """The float32 scales of an operand, one for every `rows` rows of A (columns of B) by `along` elements along k: `view` is
    (1, rows of scales, scales along k) for A and (1, scales along k, columns of scales) for B. `zeros` has numbers at the same
    places, of B, which are subtracted from the elements before they are scaled."""

    view: View
    rows: int
    along: int = SCALED_ALONG_K
    zeros: View | None = None

    @property
    def views(self) -> list[View]:
        return [self.view] if self.zeros is None else [self.view, self.zeros]


@dataclass(frozen=True)
class Grouping:
    """What makes a Template a grouped product: the rows of A ("m"), or the elements along k of both operands ("k"), belong to
    groups that follow each other. `ends`, a dense vector of int32, says where each group ends: the sizes of groups are known in
    memory alone. An end beyond the axis counts as the axis's; a group that ends before it begins has nothing.

    "m"  out[m, n] = Σ_k a[m, k]·b[g, k, n] for the group g of row m, 0 for rows beyond the last end. `a` and `out` have a batch
         of one, that of `b` is the groups.
    "k"  out[g, m, n] = Σ_k a[m, k]·b[k, n] over the k of group g. `a` and `b` have a batch of one, that of `out` is the groups.
    """

    ends: View
    axis: str


@dataclass(frozen=True)
class Template:
    """A matmul: out[b, m, n] = Σ_k a[b, m, k]·b[b, k, n], then `epilogue` over the same (b, m, n) points. Operands of
    different types are converted to their common type first.

    `a` is (batch, m, k) and `b` (batch, k, n) as views; `out` names the buffer that receives the plain product when there is no
    epilogue, and stands for the accumulator inside it. The epilogue is a Loop over axes (batch, m, n) whose values read
    `Accumulator`; `out` is then written only if one of its stores says so. Where it has reductions, its axes are (batch, m) and n
    is reduced.

    `prologues`: for an operand that is computed as it is read, the Loop over its (batch, rows, columns) that stores it in the
    buffer of its view; None for an operand in memory. That buffer has no memory unless a kernel chooses to fill it.

    `second`: operands (batch, m, l) and (batch, l, n) of the types of `a` and `b`, whose product is added to the same sums.

    `scales`: the scales of `a` and `b`, by which each product of their elements is multiplied before it is added up; None of `a`
    where only `b` has scales. Then there are no prologues, no second product and no batch.

    `grouping`: it is a grouped product. Then there are no prologues, no second product and no scales.
    """

    name: str
    kind: str
    a: View
    b: View
    out: View
    epilogue: Loop | None = None
    origins: tuple[str, ...] = ()
    prologues: tuple[Loop | None, Loop | None] = (None, None)
    second: tuple[View, View] | None = None
    scales: tuple[Scales | None, Scales] | None = None
    grouping: Grouping | None = None

    def reads(self) -> set[str]:
        return self.operand_reads() | (self.epilogue.reads() if self.epilogue else set())

    def operand_reads(self) -> set[str]:
        """The buffers that the product itself reads, at other points than those it writes."""
        pairs = zip((self.a, self.b), self.prologues, strict=True)
        read = [{view.buffer} if loop is None else loop.reads() for view, loop in pairs]
        beside = [*(self.second or ()), *self.views_beside]
        return set().union(*read, {view.buffer for view in beside})

    def writes(self) -> set[str]:
        return self.epilogue.writes() if self.epilogue else {self.out.buffer}

    @property
    def scale_views(self) -> list[View]:
        return [view for scales in self.scales or () if scales is not None for view in scales.views]

    @property
    def views_beside(self) -> list[View]:
        """What is read as it lies beside the operands: scales, the ends of groups."""
        return [*self.scale_views, *([self.grouping.ends] if self.grouping is not None else [])]


@dataclass(frozen=True)
class Gradients:
    """What makes an Attention its own derivative: views of `grad`, the gradient of `out`, which is read like `out` and `lse`, and
    of what is written, the gradients of q, k and v."""

    grad: View
    dq: View
    dk: View
    dv: View


SCORES = "scores"
"""The name under which an Attention's `scores` store; no memory belongs to it."""


@dataclass(frozen=True)
class Sequences:
    """Where the sequences of an attention lie, by tensors of integers that attention.layout explains. There are `count`, with up
    to `rows` rows and `keys` keys."""

    count: sympy.Expr
    rows: sympy.Expr
    keys: sympy.Expr
    q_starts: View | None = None
    k_starts: View | None = None
    table: View | None = None
    k_used: View | None = None

    @property
    def named(self) -> dict[str, View]:
        """The tensors of integers that there are, in order."""
        given = {name: getattr(self, name) for name in ("q_starts", "k_starts", "table", "k_used")}
        return {name: view for name, view in given.items() if view is not None}

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(self.named.values())


@dataclass(frozen=True)
class Attention:
    """out[b, h, m, :] = Σ_n softmax_n(score[b, h, m, n])·v[b, h / group, n, :], where score is scale·Σ_d q·k, masked. A scale of
    None is d ** -0.5.

    `q` is (batch, heads, m, d), `k` and `v` (batch, heads of k, n, d) as views; group is how many heads of q share one of k.
    `bias` is (batch, heads, m, n), with strides of 0 where it does not vary. A floating one is added to the score; where one of
    booleans is false, `fill` replaces it. `causal` is "", "top left" or "bottom right" (ir.attention.causal_mask). A row whose
    scores are all -inf gives 0 if `empty_is_0`, else NaN. `lse` (batch, heads, m), if there is one, gets log Σ_n exp(score) in
    float32. With `gradients` it is the derivative of all that: `out` and `lse` are read, the gradients written.

    `window` hides keys besides, as ir.attention.window_mask says. With `sequences` rows lie as they say, and the sizes of
    q, k and v are those in memory: see attention.layout.

    `scores` is a Loop over (batch, heads, m, n) in place of `bias` and `causal`. Its one store has the score, which is computed
    from the Accumulator, the scaled product; nothing is in memory of the buffer SCORES that it names, which is row-major.
    """

    name: str
    q: View
    k: View
    v: View
    out: View
    scale: float | None
    causal: str = ""
    bias: View | None = None
    fill: float = -float("inf")
    empty_is_0: bool = True
    lse: View | None = None
    origins: tuple[str, ...] = ()
    gradients: Gradients | None = None
    scores: Loop | None = None
    window: tuple[int, int] | None = None
    sequences: Sequences | None = None

    @property
    def extents(self) -> tuple[sympy.Expr, ...]:
        """Batch, heads of q, heads of k, rows, keys, d, d of v: of the longest sequence where they differ."""
        (*_, q_heads, rows, d), (*_, heads, keys, _) = self.q.sizes, self.k.sizes
        batch = self.q.sizes[0]
        if self.sequences is not None:
            batch, rows, keys = self.sequences.count, self.sequences.rows, self.sequences.keys
        return batch, q_heads, heads, rows, keys, d, self.v.sizes[-1]

    @property
    def read(self) -> tuple[View, ...]:
        places = self.sequences.views if self.sequences is not None else ()
        left = () if self.gradients is None else (self.out, self.lse, self.gradients.grad)
        own = (self.q, self.k, self.v, self.bias, *places, *left)
        return tuple(view for view in own if view is not None)

    @property
    def written(self) -> tuple[View, ...]:
        given = self.gradients
        own = (self.out, self.lse) if given is None else (given.dq, given.dk, given.dv)
        return tuple(view for view in own if view is not None)

    @property
    def views(self) -> tuple[View, ...]:
        """What it reads, then what it writes."""
        return (*self.read, *self.written)

    def reads(self) -> set[str]:
        return {view.buffer for view in self.read} | (self.scores.reads() if self.scores is not None else set())

    def writes(self) -> set[str]:
        return {view.buffer for view in self.written}


@dataclass(frozen=True)
class Ref:
    """Stands for a value inside a library call's arguments: a View, a symbolic size, or what another call has made."""

    value: View | sympy.Expr | Made


@dataclass(frozen=True)
class Extern:
    """A library (ATen) call: `target(*args, **kwargs)`; every tensor and size among the arguments is a Ref. `outputs` names the
    buffers it allocates, None for results that are not tensors or not used; `many`: the target returns a tuple or list, even if
    it has one element. `symbols` are numbers that only its result tells: (symbol, how), where how is ("item",), ("item", output
    number), ("size" or "stride", output number, dimension), ("offset", output number), or an expression of symbols that are known
    by then. `reason` says why it is a library call, `mutates` which buffers it changes."""

    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[str | None, ...]
    origins: tuple[str, ...] = ()
    reason: str = ""
    symbols: tuple[tuple[sympy.Symbol, tuple[Any, ...] | sympy.Expr], ...] = ()
    mutates: tuple[str, ...] = ()
    many: bool = False

    def reads(self) -> set[str]:
        return {v.buffer for v in views_in((self.args, self.kwargs))}

    def writes(self) -> set[str]:
        return {o for o in self.outputs if o is not None} | set(self.mutates)


def place_of(how: tuple[Any, ...]) -> tuple[str, int, int | None]:
    """What an entry of Extern.symbols reads, of which output, and along which dimension."""
    what, output, dim = (list(how) + [0, None][len(how) - 1 :])[:3]
    return what, output, dim


@dataclass(frozen=True)
class Assert:
    """A run-time check on sizes: `condition` is a sympy Boolean; `error` is raised with `message` where it is false."""

    name: str
    condition: Any
    message: str
    error: type[Exception] = RuntimeError

    def reads(self) -> set[str]:
        return set()

    def writes(self) -> set[str]:
        return set()


Operation = Loop | Template | Attention | Extern | Assert


def refs_in(value: Any) -> Iterator[View | sympy.Expr | Made]:
    """What the Refs inside nested arguments stand for."""
    if isinstance(value, Ref):
        yield value.value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from refs_in(item)


def map_refs(value: Any, rule: Callable[[View | sympy.Expr | Made], Any]) -> Any:
    """Nested arguments with what `rule` makes of what each Ref stands for in its place."""
    if isinstance(value, Ref):
        return rule(value.value)
    if isinstance(value, tuple | list):
        return type(value)(map_refs(item, rule) for item in value)
    return {key: map_refs(item, rule) for key, item in value.items()} if isinstance(value, dict) else value


def views_in(value: Any) -> Iterator[View]:
    """The views inside nested arguments."""
    return (each for each in refs_in(value) if isinstance(each, View))


Part = TypeVar("Part")


def map_views(part: Part, rule: Callable[[View], View]) -> Part:
    """A product or an attention with `rule` applied to all its views; the loops in it stay as they are."""
    if isinstance(part, View):
        return rule(part)  # type: ignore[return-value]
    if isinstance(part, tuple):
        return tuple(map_views(each, rule) for each in part)  # type: ignore[return-value]
    if isinstance(part, Template | Attention | Scales | Grouping | Gradients | Sequences):
        return replace(part, **{each.name: map_views(getattr(part, each.name), rule) for each in fields(part)})
    return part


@dataclass(frozen=True)
class Input:
    """One argument of the compiled function: a tensor (its buffer's name) or an integer (the size symbol or expression), or an
    object that only library calls take, or that is only returned, such as a generator (a symbol)."""

    name: str
    buffer: str | None = None
    size: sympy.Expr | None = None


@dataclass(frozen=True)
class Operator:
    """One operator of the graph that a program was lowered from: `target(*args, **kwargs)`, with a Ref for every tensor (Made)
    and size; sizes and type of each of its results, None of those that are no tensors. `stored`: its results come from memory
    alone, as those of library calls and products do, and the graph's arguments. `refused`: why no loop may call it, or ""."""

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[tuple[tuple[sympy.Expr, ...], torch.dtype] | None, ...]
    stored: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Trace:
    """The operators of a graph by their names, in order, and where the results are that were stored as they are. `wholes`: for
    results of what the tracer took apart, the result of the operator itself, which is among the operators too."""

    operators: Mapping[str, Operator]
    places: Mapping[Made, View]
    wholes: Mapping[Made, Made] = field(default_factory=dict)

    def renamed(self, names: Mapping[str, str]) -> Trace:
        """The same in a program that has other buffers in place of those in `names`."""
        moved = {made: replace(view, buffer=names.get(view.buffer, view.buffer)) for made, view in self.places.items()}
        return replace(self, places=moved)


@dataclass(frozen=True)
class Program:
    """A compiled graph: `operations` in execution order. `outputs` are views (a view of an input aliases it), sizes, or None.

    `constants` has the tensors of the buffers of that role; `scalars` the sizes that are read from a buffer of one element, once
    that is filled. `trace` has the operators that the program was lowered from.
    """

    name: str
    inputs: tuple[Input, ...]
    buffers: Mapping[str, Buffer]
    operations: tuple[Operation, ...]
    outputs: tuple[View | sympy.Expr | None, ...]
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    scalars: Mapping[sympy.Symbol, str] = field(default_factory=dict)
    trace: Trace = field(default_factory=lambda: Trace({}, {}), compare=False, repr=False)

    def input_buffers(self) -> set[str]:
        return {i.buffer for i in self.inputs if i.buffer is not None}

    def output_buffers(self) -> set[str]:
        return {o.buffer for o in self.outputs if isinstance(o, View)}

    def observed_buffers(self) -> set[str]:
        """Buffers whose contents are seen outside the operations: inputs, results, and those that sizes are read from."""
        return self.input_buffers() | self.output_buffers() | set(self.scalars.values())
