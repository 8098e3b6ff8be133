"""Values of a loop as lines of Triton: one variable per node, named as in the loop's own text, emitted once per scope.

A value is a block that is full along the dimensions with which it varies and 1 along the others, or a scalar if it
varies with none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import sympy

from polytile.codegen.emission import Emitter, emission_order
from polytile.codegen.triton import memory, ops, random, text
from polytile.codegen.triton.tile import Dim, Tile, divides, quotient, with_facts
from polytile.ir import expr, sizes
from polytile.ir.expr import Accumulator, Const, Index, Load, Node, Op, Part, Reduce, Scan
from polytile.ir.loop import Store, neighbours
from polytile.schedule import checks
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts, index_limit
from polytile.schedule.nest import Form, is_result

FETCHED, FETCHED_SHARED = 48, 24
"""Registers of a thread that early loads may fill; and the limit in programs of LARGE threads, beyond which rows'
shared values, which the L2 cache holds, are no longer loaded early. A multiprocessor holds two such programs if each
thread has 64 registers."""
LARGE = 512
KEEPS_LITERALS = ("add", "sub", "mul", "div", "minimum", "maximum", "eq", "ne", "lt", "le", "gt", "ge")
"""Operations in which a plain literal takes the type of the typed operand beside it."""


ZERO = "tl.program_id(2)"
"""0 in grids with one program along the third axis, but unknown to the compiler."""


@dataclass
class Scope:
    """Lines of one block of Triton text, and the names of the values known in it: its own and those of enclosing
    scopes. `fetched` names the results of early loads."""

    lines: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    fetched: dict[int, str] = field(default_factory=dict)

    def inner(self) -> Scope:
        return Scope([], dict(self.names), dict(self.fetched))


class Body(Emitter[Scope]):
    """Emits nodes as Triton. Results of reductions must be in the scope.

    Attributes
    ----------
    overrides : dict
        How to get the values that a schedule makes, such as scans, by node id.
    threads : int
        Threads that share a block; 0 if irrelevant.
    again : set of int
        Ids of loads that a later pass repeats.
    last : bool
        Whether this pass reads what an earlier pass has read.
    recomputed : list of str
        Lines by which a schedule that forgets values (see `forget`) recomputes positions.
    error : bool
        Whether a run-time check was emitted.
    quotients : set
        The integers whose quotient is used.
    carried : dict
        The division variables that the current loop carries.
    """

    def __init__(self, kernel: LoopKernel, tile: Tile, facts: Facts, prefix: str = "t") -> None:
        super().__init__(tile.nest.nodes, prefix)
        self.kernel, self.tile, self.facts = kernel, tile, facts
        self.nest = tile.nest
        self.summed = ops.summed_exponentials(self.nest.nodes, self.nest.loop.roots)
        self.fast = all(t.dtype.itemsize <= 2 or not t.dtype.is_floating_point for t in kernel.tensors)
        self.threads = 0
        self.again: set[int] = set()
        self.last = False
        self.recomputed: list[str] = []
        self.error = False
        self.carried: dict[sympy.Expr, sympy.Expr] = {}
        self.firsts: dict[Dim, str] = {}
        self.quotients: set[sympy.Symbol] = set()
        self._checks = checks.numbers(self.nest.loop)
        self._dims: dict[int, frozenset[Dim]] = {}
        self._guards: dict[int, str] = {}
        self._clones = 0

    def dims(self, node: Node) -> frozenset[Dim]:
        """The dimensions of the block along which the value is full."""
        if id(node) not in self._dims:
            for below in expr.walk(node):
                if id(below) not in self._dims:
                    self._dims[id(below)] = self._dims_of(below)
        return self._dims[id(node)]

    def _dims_of(self, node: Node) -> frozenset[Dim]:
        if is_result(node):
            return self.tile.parallel_dims
        if isinstance(node, Accumulator):
            return self.tile.all_dims
        if isinstance(node, Scan) or (isinstance(node, Part) and isinstance(node.node, Scan)):
            return self.tile.all_dims
        if isinstance(node, Load) and (line := self.line_of(node)) is not None and self.tile.even(line):
            return self.tile.all_dims
        own = frozenset(s for e in node.indices for s in self.simplified(e).free_symbols)
        return self.tile.varies(own).union(*[self._dims[id(c)] for c in node.children])

    @contextmanager
    def reading(self, again: set[int], last: bool) -> Iterator[None]:
        """Marks a pass whose loads `again` are repeated by a later pass. `last`: an earlier pass has made them, and no
        later one will."""
        self.again, self.last = again, last
        yield
        self.again, self.last = set(), False

    # nodes -----------------------------------------------------------------------------------------------------------

    def _needed(self, node: Node) -> tuple[Node, ...]:
        return node.children

    def _one(self, node: Node, scope: Scope) -> str:
        """Adds the line of the node's variable; constants are inlined."""
        if isinstance(node, Const):
            return text.number(node.value, node.dtype)
        value = self._value(node, scope)
        scope.lines.append(f"{self.name(node)} = {value}")
        return self.name(node)

    def _index_value(self, node: Index) -> str:
        return f"tl.cast({self.index(node.expr)}, {text.value_type(node.dtype)})"

    def _load(self, node: Load, scope: Scope) -> str:
        return memory.load(self, node, scope)

    def _operation(self, node: Op, scope: Scope) -> str:
        if node.name == "philox_uniform" and (numbers := random.uniforms(self, node, scope)) is not None:
            return numbers
        if node.name == "div" and ops.is_total(node.args[1]) and not self.recomputed:  # at least 1, so its reciprocal is finite
            value, total = self._operands(node, scope)
            return f"{value} * (1.0 / {total})"
        return ops.text(node, self._operands(node, scope), self.fast or id(node) in self.summed)

    def _operands(self, node: Op, scope: Scope) -> list[str]:
        """The arguments' names; constants as plain literals where another argument determines their type."""
        typed = any(not isinstance(a, Const) for a in node.args)
        return [
            text.literal(a.value, a.dtype)
            if isinstance(a, Const) and typed and node.name in KEEPS_LITERALS and a.dtype in text.LITERALS
            else self.emit(a, scope)
            for a in node.args
        ]

    # loads -----------------------------------------------------------------------------------------------------------

    def fetch(self, roots: Iterable[Node], scope: Scope) -> None:
        """Issues the loads that `roots` need, as far as registers allow, before any arithmetic waits for one of them.
        The compiler keeps loads in the order of the text."""
        registers = 0.0
        for root in roots:
            for node in emission_order(root, scope.names, self.overrides, self._needed):
                if not isinstance(node, Load) or id(node) in scope.fetched or not _early(node):
                    continue
                each = math.prod(d.block for d in self.place_dims(node.index, node.indirect)) / self.threads
                own = max(1.0, each * self.kernel.storage(node.buffer).itemsize / 4)
                if self.threads >= LARGE and memory.shared(self, node) and registers + own > FETCHED_SHARED:
                    continue
                registers += own
                if registers > FETCHED and not self.recomputed:
                    return
                plain = memory.plain(self, node)
                name = self.name(node) if plain else f"{self.name(node)}_raw"
                scope.lines.append(f"{name} = {memory.fetch(self, node, scope)}")
                (scope.names if plain else scope.fetched)[id(node)] = name

    def forget(self, scope: Scope) -> None:
        """For schedules with `recomputed` lines: makes later code recompute positions, and values at the block's
        points, from elements kept in their storage format rather than converted."""
        held = self.packed(scope)
        for load in held:
            raw = scope.fetched[id(load)]
            scope.lines.append(f"{raw} = pt_opaque({raw}, {ZERO}.to(tl.int16))")
            scope.names.pop(id(load), None)
        for node in self.nest.nodes if held else ():
            if isinstance(node, Op) and self.nest.in_pass(node):
                scope.names.pop(id(node), None)
        scope.lines += self.recomputed

    def packed(self, scope: Scope) -> list[Load]:
        """The early loads whose 16-bit elements are kept packed, two to a register, in schedules that forget values."""
        loaded = [n for n in self.nest.nodes if isinstance(n, Load) and id(n) in scope.fetched and self.recomputed]
        return [node for node in loaded if self.kernel.storage(node.buffer).itemsize == 2]

    def line_of(self, node: Load) -> Dim | None:
        """The dimension along the rows in a block of several, if a load in a pass varies only along it and has an
        element for each thread; else None. The compiler would choose a separate layout for such a load and convert
        whole blocks between the layouts through shared memory."""
        last = self.tile.dims[-1] if self.tile.rank > 1 and self.nest.form is Form.ROW else None
        if last is None or len(last.axes) > 1 or not 0 < self.threads <= last.block or not self.nest.in_pass(node):
            return None
        alone = node.mask is None and not node.indirect and not sizes.has_division(node.index)
        return last if alone and self.place_dims(node.index, ()) == {last} else None

    def vector(self, node: Node) -> int:
        """Number of adjacent elements of a row that every load below `node` is known to fetch at once; 1 if some load
        is not vectorised."""
        if self.nest.form is not Form.ROW:
            return 1
        loads = [n for n in expr.walk(node) if isinstance(n, Load) and self.nest.in_pass(n)]
        return min([self._vector(load) for load in loads], default=1)

    def _vector(self, load: Load) -> int:
        symbol, most = self.nest.vec.symbol, self.facts.divisor(load.buffer) // self.kernel.storage(load.buffer).itemsize
        if load.indirect or load.mask is not None or sizes.coefficient(load.index, symbol) != 1:
            return 1
        first = sizes.substitute(load.index, {symbol: sizes.ZERO})
        while most > 1 and not all(e == 0 or divides(most, e, self.facts) for e in (first, self.nest.vec.size)):
            most //= 2
        return max(1, most)

    def full(self, node: Node, dims: frozenset[Dim], scope: Scope) -> str:
        """The value as a block that is full along `dims`, whatever it varies with."""
        if isinstance(node, Const):
            return f"tl.full({self.tile.shape(dims)}, {text.literal(node.value, node.dtype)}, {text.value_type(node.dtype)})"
        name = self.emit(node, scope)
        return name if self.dims(node) == dims or not dims else f"tl.broadcast_to({name}, {self.tile.shape(dims)})"

    # checks ----------------------------------------------------------------------------------------------------------

    def _checked(self, node: Op, scope: Scope) -> str:
        """Emits an index check. Negative indices count from the end. For an index out of range, the check's number goes
        to `error`, and accesses with it are masked out."""
        index, size = (self.emit(a, scope) for a in node.args)
        guard = f"ok_{self.name(node)}"
        self._check(guard, f"({index} >= -({size})) & ({index} < {size})", node, scope)
        self._guards[id(node)] = guard
        return f"tl.where({guard}, tl.where({index} < 0, {index} + {size}, {index}), 0)"

    def _divisor(self, node: Op, scope: Scope) -> str:
        """Emits a divisor check: for a divisor of 0, the check's number goes to `error`, and 1 replaces the divisor."""
        divisor, guard = self.emit(node.args[0], scope), f"ok_{self.name(node)}"
        self._check(guard, f"({divisor}) != 0", node, scope)
        return f"tl.where({guard}, {divisor}, 1)"

    def _check(self, guard: str, condition: str, node: Op, scope: Scope) -> None:
        """Names the `condition` under which `node` is valid; otherwise the check's number goes to `error`."""
        scope.lines.append(f"{guard} = {condition}")
        dims = self.dims(node)
        failed = " & ".join([f"({guard} == 0)", *self.tile.masks(dims)])
        number = self._checks[id(checks.against(node))]
        place = f"error + tl.zeros({self.tile.shape(dims)}, tl.int32)" if dims else "error"
        scope.lines.append(f"tl.store({place}, {number}, mask={failed})")
        self.error = True

    def guards(self, nodes: Iterable[Node]) -> list[str]:
        """Conditions under which the indices `nodes` are in range."""
        guards = [self._guards[id(n)] for n in expr.walk(*nodes) if id(n) in self._guards]
        return list(dict.fromkeys(guards))

    # indices ---------------------------------------------------------------------------------------------------------

    def index(self, e: sympy.Expr) -> str:
        """The text of an index expression."""
        return text.index(self.simplified(e).xreplace(self.carried))

    def simplified(self, e: sympy.Expr) -> sympy.Expr:
        """An index expression with exact integers substituted, and with divisions resolved where the facts allow."""
        if sizes.has_division(e) and (self.facts.divisible or self.facts.powers):
            known = with_facts(e, self.facts)
            if not sizes.has_division(known) or known.count_ops() < e.count_ops():
                e = known
                own = {quotient(s, self.facts): s for s in self.kernel.symbols}
                self.quotients |= {own[s] for s in e.free_symbols if s in own}
        values = {s: sympy.Integer(self.facts.values[s.name]) for s in self.kernel.symbols if s.name in self.facts.values}
        return sizes.substitute(e, values)

    @property
    def known_symbols(self) -> tuple[sympy.Symbol, ...]:
        """The integers that are constant throughout the kernel."""
        return (*self.kernel.symbols, *[quotient(s, self.facts) for s in self.kernel.symbols])

    def place(self, index: sympy.Expr, indirect: tuple[Node, ...], scope: Scope) -> str:
        """The text of a load's or store's index, with its indirect symbols bound to variables."""
        bound: dict[sympy.Symbol, sympy.Expr] = {}
        for k, node in enumerate(indirect):
            symbol = expr.indirect_symbol(k)
            if symbol not in index.free_symbols:
                continue
            name = self.emit(node, scope)
            bound[symbol] = sizes.axis(f"at{self._clones}")
            self._clones += 1
            narrow = not self.facts.wide and index_limit(node) is not None
            scope.lines.append(f"{bound[symbol]} = {name}.to({'tl.int32' if narrow else 'tl.int64'})")
        return self.index(sizes.substitute(index, bound))

    def place_dims(self, index: sympy.Expr, indirect: tuple[Node, ...]) -> frozenset[Dim]:
        """The dimensions along which an index varies."""
        return self.tile.varies(frozenset(self.simplified(index).free_symbols)).union(*[self.dims(n) for n in indirect])

    def stores(self, stores: Iterable[Store], scope: Scope) -> None:
        stores = list(stores)
        for root in (root for store in stores for root in store.roots):
            self.emit(root, scope)
        for group in neighbours(stores, self.tile.nest.vec.symbol):
            if len(group) == 2 and memory.joins(self, *group):
                memory.store_pair(self, *group, scope)
            else:
                for store in group:
                    self._store(store, scope)

    def _store(self, store: Store, scope: Scope) -> None:
        memory.store(self, store, scope)


def _early(node: Load) -> bool:
    """Whether the address of a load is known without arithmetic on values."""
    return not any(isinstance(below, Reduce | Scan | Accumulator | Part) for below in expr.walk(node)) and all(
        not below.dtype.is_floating_point for below in expr.walk(*node.children)
    )
