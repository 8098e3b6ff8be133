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
    """The dtype in which values of a tensor of dtype `storage` are computed."""
    return COMPUTE_DTYPE.get(storage, storage)


ROUNDING = {
    torch.float8_e5m2: "round_e5m2", torch.float8_e4m3fn: "round_e4m3", torch.bfloat16: "round_bf16", torch.float16: "round_f16",
}  # fmt: skip
"""The operation that rounds a computed value to a dtype narrower than its compute dtype, from coarsest to finest."""


@dataclass(frozen=True)
class Buffer:
    """A strided block of memory.

    Attributes
    ----------
    sizes, strides
        Sympy expressions; strides are in elements.
    role
        "input", "temp", or "constant" for a tensor that the graph holds.
    weight
        Set for inputs and constants that rarely change between calls, such as a module's parameters and buffers: "constant" if
        nothing is expected to change the tensor, "trained" if training does. None for all others.
    """

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
        """Number of elements from the first to the last inclusive, if no size is 0."""
        return sum(((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True)), algebra.ONE)

    @property
    def emptied_by(self) -> frozenset[sympy.Expr]:
        """Factors of the sizes that may be 0. If one is, the buffer has no memory, regardless of `storage_size`."""
        factors = {factor for n in self.sizes for factor in sympy.Mul.make_args(n)}
        return frozenset(factor for factor in factors if not algebra.is_nonnegative(factor - 1))

    def index(self, point: tuple[sympy.Expr, ...]) -> sympy.Expr:
        """Offset, in elements, of the element at `point`."""
        return sum((i * s for i, s in zip(point, self.strides, strict=True)), algebra.ZERO)


@dataclass(frozen=True)
class View:
    """A strided view of a buffer. `offset` and `strides` count elements of the buffer's own dtype. `dtype` differs from the
    buffer's only in a bit-cast view."""

    buffer: str
    dtype: torch.dtype
    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr = algebra.ZERO

    def index(self, point: tuple[sympy.Expr, ...]) -> sympy.Expr:
        return self.offset + sum((i * s for i, s in zip(point, self.strides, strict=True)), algebra.ZERO)


@dataclass(frozen=True)
class PackedWeight:
    """A kernel argument that is looked up at each call: the packed copy of a weight, if there is one.

    The kernel's integer argument IS_PACKED is 1 if the copy exists, else 0.

    Attributes
    ----------
    view
        The weight.
    lanes, together
        The copy is packed for vectors of `lanes` elements, with `together` values of k in a lane.
    constant
        Nothing is expected to change the weight, so its first use packs it.
    unpacked
        The operand and the Loop that computes it from the whole weight; None if the weight is the operand.
    """

    view: View
    lanes: int
    together: int
    constant: bool
    unpacked: tuple[View, Loop] | None = None


IS_PACKED = algebra.axis(names.IS_PACKED)


def whole(buffer: Buffer) -> View:
    """The view of all of a buffer, in its own sizes and strides."""
    return View(buffer.name, buffer.dtype, buffer.sizes, buffer.strides)


@dataclass(frozen=True)
class Axis:
    """A dimension of a loop: its symbol runs from 0 to size - 1."""

    symbol: sympy.Symbol
    size: sympy.Expr


SEGMENT_SUM = "sum"
"""Mode of a store that writes to each element of its buffer the sum of the values at all points that share the element, or 0 if
there are none."""


@dataclass(frozen=True)
class Store:
    """Writes `value`, converted to the buffer's dtype, to element `index` of `buffer`.

    Attributes
    ----------
    mode
        "set"; "add", which adds the value to the element, so that several points may share an element; or SEGMENT_SUM, where
        `index` omits some axes or is indirect.
    indirect
        As in Load.
    mask
        Nothing is written where it is false.
    """

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
        """Whether the store sums over all points that share an element (see SEGMENT_SUM)."""
        return self.mode == SEGMENT_SUM

    def symbols(self) -> set[sympy.Symbol]:
        """Axis symbols on which the address or the value depends, including through reductions."""
        own = self.index.free_symbols - {expr.indirect_symbol(k) for k in range(len(self.indirect))}
        return own | expr.free_symbols(*self.roots)


@dataclass(frozen=True)
class Made:
    """Inside a Ref: the result of an earlier call.

    `call` is the name of an operator of the graph (see Trace), or a position among a loop's library calls. `output` is the index
    among several results, or None for a single one.
    """

    call: str | int
    output: int | None = None


@dataclass(frozen=True)
class LibraryCall:
    """One of the ATen calls that together compute what a loop computes: `target(*args, **kwargs)`.

    Every tensor and size among the arguments is a Ref. A tensor is a View of memory that the loop reads, or Made by an earlier
    call. A View of the buffer "" stands for a tensor of which only the sizes matter.

    Attributes
    ----------
    outputs
        Where the results go in memory; None for a result that only later calls need. Empty if `target` mutates its arguments.
    whole
        Buffers that are viewed only in their own sizes and strides, and so can be passed unchanged.
    moved
        Bytes of arguments and results per point of the loop, and per row.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[View | None, ...]
    whole: frozenset[str] = frozenset()
    moved: tuple[int, int] = (0, 0)

    def views(self) -> list[View]:
        """All memory that the call reads or writes."""
        views = [*views_in((self.args, self.kwargs)), *[view for view in self.outputs if view is not None]]
        return [view for view in views if view.buffer]


@dataclass(frozen=True)
class Loop:
    """Evaluates and stores values at every point of `axes`, and of `axes × reduced` where a value needs it.

    A store whose index or value depends on a reduced axis outside any Reduce runs at every point of `axes × reduced` (element
    level). Any other store runs once per point of `axes` (row level).

    Attributes
    ----------
    origins
        Names of the source operators.
    library
        The ATen calls that the loop came from, in order; empty if it has no such form (see passes/library.py). Passes that change
        what a loop computes keep them unchanged; `ir.calls.calls_of` says whether they still apply.
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
        """Every load, then every store. Each has a buffer, an index, indirect parts and a mask."""
        return [*expr.loads(*self.roots), *self.stores]

    def map_roots(
        self, rule: Callable[[tuple[Node, ...]], tuple[Node, ...]], index_map: Callable[[sympy.Expr], sympy.Expr] | None = None
    ) -> Loop:
        """Apply `rule` to all values of the loop at once, and `index_map` to the store indices."""
        new = rule(self.roots)
        stores, at = [], 0
        for store in self.stores:
            n = len(store.roots)
            stores.append(store.with_roots(new[at : at + n], index_map(store.index) if index_map else None))
            at += n
        return replace(self, stores=tuple(stores))

    def substitute(self, mapping: Mapping[sympy.Symbol, sympy.Expr]) -> Loop:
        """Replace index symbols in values and store indices. The axes themselves are unchanged."""
        return self.map_roots(lambda roots: expr.substitute(roots, mapping), lambda i: algebra.substitute(i, mapping))


def element_level(loop: Loop, store: Store) -> bool:
    """Whether `store` runs at every point of `axes × reduced`."""
    if not loop.reduced:
        return True
    reduced = {a.symbol for a in loop.reduced}
    own = store.index.free_symbols - {expr.indirect_symbol(k) for k in range(len(store.indirect))}
    return bool(own & reduced) or any(depends_on_point(r, reduced) for r in store.roots)


def depends_on_point(root: Node, reduced: set[sympy.Symbol]) -> bool:
    """Whether a value varies along the reduced axes outside any Reduce. A Scan and an epilogue's Accumulator always do."""
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
"""Number of elements along k that share one scale in block-scaled float8."""


@dataclass(frozen=True)
class Scales:
    """The float32 scales of an operand: one for every block of `rows` rows of A (columns of B) by `along` elements along k.

    `view` is (1, blocks of rows, blocks along k) for A and (1, blocks along k, blocks of columns) for B. `zeros`, for B only, has
    the same layout; a zero point is subtracted from the elements before they are scaled.
    """

    view: View
    rows: int
    along: int = SCALED_ALONG_K
    zeros: View | None = None

    @property
    def views(self) -> list[View]:
        return [self.view] if self.zeros is None else [self.view, self.zeros]


@dataclass(frozen=True)
class Grouping:
    """Makes a Template a grouped matmul, in which consecutive rows of A (axis "m") or consecutive k of both operands (axis "k")
    form groups.

    `ends` is a dense int32 vector with the end of each group, so the group sizes are known only in memory. An end beyond the axis
    is clamped to its size; a group that ends before it begins is empty.

    "m"  out[m, n] = Σ_k a[m, k]·b[g, k, n] for the group g of row m, and 0 for rows beyond the last end. `a` and `out` have
         batch size 1; the batch of `b` is the groups.
    "k"  out[g, m, n] = Σ_k a[m, k]·b[k, n] over the k of group g. `a` and `b` have batch size 1; that of `out` is the
         number of groups.
    """

    ends: View
    axis: str


@dataclass(frozen=True)
class Template:
    """A matmul: out[b, m, n] = Σ_k a[b, m, k]·b[b, k, n], followed by `epilogue` over the same points (b, m, n).

    Operands of different dtypes are first converted to their common dtype.

    Attributes
    ----------
    a, b
        Views of sizes (batch, m, k) and (batch, k, n).
    out
        The buffer that receives the product if there is no epilogue. Inside an epilogue it stands for the accumulator, and it is
        written only if one of the epilogue's stores does so.
    epilogue
        A Loop over (batch, m, n) whose values read `Accumulator`. If it contains reductions, its axes are (batch, m) and n is
        reduced.
    prologues
        For each operand that is computed as it is read, a Loop over its (batch, rows, columns) that stores it to the buffer of
        its
        view; None for an operand in memory. That buffer has no memory unless a kernel chooses to materialise it.
    second
        Operands (batch, m, l) and (batch, l, n), of the dtypes of `a` and `b`. Their product is added to the same accumulator.
    scales
        The scales of `a` and `b`; each product of elements is multiplied by them before it is accumulated. That of `a` is None if
        only `b` is scaled. A scaled product has no prologues, no second product and no batch.
    grouping
        Set for a grouped matmul, which has no prologues, no second product and no scales.
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
        """Buffers that the product itself reads, at other points than those that it writes."""
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
        """Views that are read unchanged besides the operands: scales and group ends."""
        return [*self.scale_views, *([self.grouping.ends] if self.grouping is not None else [])]


@dataclass(frozen=True)
class Gradients:
    """Makes an Attention its own derivative. `grad` is the gradient of `out`, and is read along with `out` and `lse`; the
    gradients of q, k and v are written to `dq`, `dk` and `dv`. `lse`, (batch, heads, m), is the gradient of the log-sum-exp, if
    that is used besides."""

    grad: View
    dq: View
    dk: View
    dv: View
    lse: View | None = None


SCORES, SLOPES = "scores", "slopes"
"""The buffer names to which an Attention's `scores` store. They have no memory."""


@dataclass(frozen=True)
class Sequences:
    """Describes packed or paged sequences by integer tensors (see attention.layout). There are `count` sequences of at most
    `rows` rows and `keys` keys."""

    count: sympy.Expr
    rows: sympy.Expr
    keys: sympy.Expr
    q_starts: View | None = None
    k_starts: View | None = None
    table: View | None = None
    k_used: View | None = None

    @property
    def named(self) -> dict[str, View]:
        """The integer tensors that are present, by name, in order."""
        given = {name: getattr(self, name) for name in ("q_starts", "k_starts", "table", "k_used")}
        return {name: view for name, view in given.items() if view is not None}

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(self.named.values())


@dataclass(frozen=True)
class Attention:
    """out[b, h, m, :] = Σ_n softmax_n(score[b, h, m, n])·v[b, h / group, n, :], where score is scale·Σ_d q·k, masked.

    Attributes
    ----------
    q, k, v
        Views of sizes (batch, heads, m, d), (batch, heads of k, n, d) and (batch, heads of k, n, d of v). `group` is the number
        of query heads per key head.
    scale
        None means d ** -0.5.
    causal
        "", "top left" or "bottom right" (see ir.attention.causal_mask).
    bias, fill
        (batch, heads, m, n), with stride 0 along broadcast dimensions. A floating-point bias is added to the score; where a
        boolean
        one is false, `fill` replaces the score.
    empty_is_0
        Whether a row whose scores are all -inf gives 0 instead of NaN.
    lse
        (batch, heads, m): if given, receives log Σ_n exp(score) in float32.
    gradients
        If given, the operation is the backward pass: `out` and `lse` are read and the gradients are written.
    scores
        A Loop over (batch, heads, m, n) that replaces `bias` and `causal`. Its store computes the score from the Accumulator,
        the scaled product. It names the row-major buffer SCORES, which has no memory. A backward pass may have a second
        store, to SLOPES: the derivative of the score by the scaled product. Without it, that is 1.
    window
        Masks further keys (see ir.attention.window_mask).
    sequences
        Set for packed or paged sequences; then q, k and v have the sizes of their memory (see attention.layout).
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
        """Batch, heads of q, heads of k, rows, keys, d and d of v; rows and keys are those of the longest sequence."""
        (*_, q_heads, rows, d), (*_, heads, keys, _) = self.q.sizes, self.k.sizes
        batch = self.q.sizes[0]
        if self.sequences is not None:
            batch, rows, keys = self.sequences.count, self.sequences.rows, self.sequences.keys
        return batch, q_heads, heads, rows, keys, d, self.v.sizes[-1]

    @property
    def read(self) -> tuple[View, ...]:
        places = self.sequences.views if self.sequences is not None else ()
        left = () if self.gradients is None else (self.out, self.lse, self.gradients.grad, self.gradients.lse)
        own = (self.q, self.k, self.v, self.bias, *places, *left)
        return tuple(view for view in own if view is not None)

    @property
    def written(self) -> tuple[View, ...]:
        given = self.gradients
        own = (self.out, self.lse) if given is None else (given.dq, given.dk, given.dv)
        return tuple(view for view in own if view is not None)

    @property
    def views(self) -> tuple[View, ...]:
        """The views that are read, followed by those that are written."""
        return (*self.read, *self.written)

    def reads(self) -> set[str]:
        return {view.buffer for view in self.read} | (self.scores.reads() if self.scores is not None else set())

    def writes(self) -> set[str]:
        return {view.buffer for view in self.written}


@dataclass(frozen=True)
class Ref:
    """A value inside a library call's arguments: a View, a symbolic size, or the result of another call."""

    value: View | sympy.Expr | Made


@dataclass(frozen=True)
class Extern:
    """A library (ATen) call, `target(*args, **kwargs)`. Every tensor and size among the arguments is a Ref.

    Attributes
    ----------
    outputs
        Names of the buffers that the call allocates; None for results that are unused or not tensors.
    symbols
        Numbers that are known only from the result, as pairs (symbol, how). `how` is ("item",), ("item", output), ("size" or
        "stride", output, dimension), ("offset", output), or an expression of symbols that are known by then.
    reason
        Why this is a library call.
    mutates
        Names of the buffers that the call changes.
    many
        The target returns a tuple or list, even if it has one element.
    """

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
    """What an entry of Extern.symbols reads, from which output, and along which dimension."""
    what, output, dim = (list(how) + [0, None][len(how) - 1 :])[:3]
    return what, output, dim


@dataclass(frozen=True)
class Assert:
    """A run-time check on sizes: raises `error(message)` if `condition`, a sympy Boolean, is false."""

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
    """The values of all Refs inside nested arguments."""
    if isinstance(value, Ref):
        yield value.value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from refs_in(item)


def map_refs(value: Any, rule: Callable[[View | sympy.Expr | Made], Any]) -> Any:
    """Nested arguments with each Ref replaced by `rule(value of the Ref)`."""
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
    """A product or an attention with `rule` applied to all its views. The loops inside it are unchanged."""
    if isinstance(part, View):
        return rule(part)  # type: ignore[return-value]
    if isinstance(part, tuple):
        return tuple(map_views(each, rule) for each in part)  # type: ignore[return-value]
    if isinstance(part, Template | Attention | Scales | Grouping | Gradients | Sequences):
        return replace(part, **{each.name: map_views(getattr(part, each.name), rule) for each in fields(part)})
    return part


@dataclass(frozen=True)
class Input:
    """One argument of the compiled function: a tensor (`buffer` names it), an integer (`size` is its symbol or expression), or an
    object such as a generator that is only passed to library calls or returned (`size` is a symbol)."""

    name: str
    buffer: str | None = None
    size: sympy.Expr | None = None


@dataclass(frozen=True)
class Operator:
    """One operator of the graph that a program was lowered from: `target(*args, **kwargs)`.

    Every tensor (Made) and size among the arguments is a Ref.

    Attributes
    ----------
    results
        Sizes and dtype of each result; None for results that are not tensors.
    stored
        The results exist only in memory, like those of library calls and products, and the graph's arguments.
    refused
        Why no loop may call the operator, or "".
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[tuple[tuple[sympy.Expr, ...], torch.dtype] | None, ...]
    stored: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Trace:
    """The operators of a graph by name, in order.

    `places` says where results are in memory, for those that were stored unchanged. `wholes` maps results of a decomposed
    operator's parts to results of the operator itself, which is among `operators` too.
    """

    operators: Mapping[str, Operator]
    places: Mapping[Made, View]
    wholes: Mapping[Made, Made] = field(default_factory=dict)

    def renamed(self, names: Mapping[str, str]) -> Trace:
        """The trace after buffers have been renamed."""
        moved = {made: replace(view, buffer=names.get(view.buffer, view.buffer)) for made, view in self.places.items()}
        return replace(self, places=moved)


@dataclass(frozen=True)
class Program:
    """A compiled graph: its `operations` in execution order.

    Attributes
    ----------
    outputs
        Views (a view of an input aliases it), sizes, or None.
    constants
        The tensors behind the buffers whose role is "constant".
    scalars
        Sizes that are read from one-element buffers once those are filled.
    trace
        The operators that the program was lowered from.
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
        """Buffers whose contents are visible outside the operations: inputs, results, and those that sizes are read from."""
        return self.input_buffers() | self.output_buffers() | set(self.scalars.values())
