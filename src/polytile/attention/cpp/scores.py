"""C++ for scores that are expressions: how a vector of products becomes scores, and which keys rows attend to.

    changed(c, x, at, j, n)     the scores of n scaled products x, before any mask
    shown(c, x, at, j, n)       the scores x, with -inf where the mask hides a key
    slope(c, x, at, j, n)       the derivatives of the scores by the scaled products x, in a backward pass
    span(c, item, r0, r1)       the keys to which some of the rows [r0, r1) attend and those to which all do
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import sympy
import torch

from polytile.attention.bounds import WHOLE, Analysis, Bounds, Interval, Range
from polytile.attention.problem import AttentionProblem
from polytile.attention.scores import BATCH, HEAD, KEY, PLACE, QUERY, SCORE, Scores, scores_of
from polytile.codegen.cpp import text
from polytile.codegen.cpp.body import Body, Scope, always
from polytile.codegen.cpp.unit import arguments
from polytile.codegen.writer import Writer
from polytile.ir import expr, sizes
from polytile.ir.attention import SCORES
from polytile.ir.expr import Node
from polytile.ir.loop import Store
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.nest import Form, Nest

GIVEN = "void* const* ptrs, const long* sizes, long& error"
BLOCK = "first", "last"

CALLS = """\
// Where row r of an item stands, and the key from which on positions count.
struct At { long b, h, m, n; };
static inline At at_of(const Call& c, long item, long r, long n) { return {item / c.Hkv, head_of(c, item, r), r % c.Mq, n}; }
// Heads of q that differ may see different keys.
static inline Span span(const Call& c, long item, long r0, long r1) {
  const bool one = r0 / c.Mq == (r1 - 1) / c.Mq;
  if (!one && BY_HEAD) return {0, c.Mkv, 0, 0};
  const long first = one ? r0 % c.Mq : 0, last = one ? (r1 - 1) % c.Mq : c.Mq - 1;
  long keys[4] = {0, c.Mkv, 0, c.Mkv};
  pt::bounds(c.ptrs, c.sizes, *c.error, item / c.Hkv, head_of(c, item, r0), first, last, keys);
  const long low = most(0, keys[0]), high = most(low, least(c.Mkv, keys[1]));
  return {low, high, most(low, keys[2]), least(high, keys[3])};
}
"""


APPLIED = """\
static inline Floats {name}(const Call& c, Floats x, const At& p, long j, long n) {{
  if (n >= L) return pt::{name}(pt::Full{{}}, c.ptrs, c.sizes, *c.error, p.b, p.h, p.m, p.n + j, x, L);
  return pt::{name}(pt::Part{{}}, c.ptrs, c.sizes, *c.error, p.b, p.h, p.m, p.n + j, x, n);
}}
"""


def functions(problem: AttentionProblem, lanes: int) -> str:
    """Text that defines pt::changed, pt::shown, pt::slope and pt::bounds, to precede the kernel's namespace."""
    return _Functions(problem, lanes).text()


def calls(problem: AttentionProblem) -> str:
    """The kernel's own functions of a Call, which call those."""
    names = ["changed", "shown"] + (["slope"] if scores_of(problem).slope is not None else [])
    return CALLS + "".join(APPLIED.format(name=name) for name in names)


def flags(problem: AttentionProblem) -> str:
    """The constants that `CALLS` needs."""
    scores = scores_of(problem)
    by_head = scores.mask is not None and HEAD in expr.free_symbols(scores.mask)
    return f"constexpr bool MASKED = {str(scores.mask is not None).lower()}, BY_HEAD = {str(by_head).lower()};\n"


class _Functions:
    def __init__(self, problem: AttentionProblem, lanes: int) -> None:
        self.scores: Scores = scores_of(problem)
        self.lanes = lanes
        loop = self.scores.kernel.loop
        changed = self.scores.score if self.scores.score is not None else SCORE
        hidden = expr.const(-math.inf, torch.float32)
        mask = self.scores.mask
        shown = SCORE if mask is None else expr.op("where", torch.float32, mask, SCORE, hidden)
        self.values = {"changed": changed, "shown": shown}
        if self.scores.slope is not None:
            self.values["slope"] = self.scores.slope
        self.loop = replace(loop, stores=tuple(Store(SCORES, KEY, value) for value in self.values.values()))
        self.kernel = LoopKernel(self.loop, problem.tensors, problem.symbols)

    def text(self) -> str:
        out = Writer()
        out.line("namespace pt {")
        out.line("namespace {")
        for name, node in self.values.items():
            self._of_vector(out, name, node)
        self._of_block(out)
        out.line("}  // namespace")
        out.line("}  // namespace pt")
        return out.text()

    def _body(self) -> Body:
        nest = Nest(self.loop, Form.POINTWISE, self.loop.axes[3], self.loop.axes[:3], ())
        body = Body(self.kernel, nest, str(self.lanes))
        body.overrides = {id(SCORE): always("acc")}
        return body

    def _of_vector(self, out: Writer, name: str, node: Node) -> None:
        """A function of the products `acc` of `n` keys from key p3 on."""
        scope = Scope(leave="return acc;")
        result = self._body().operand(node, str(self.lanes), scope)
        places = ", ".join(f"const long {place}" for place in PLACE)
        kind = f"V<float, {self.lanes}>"
        own = f"Tail tail, {GIVEN}, {places}, const {kind} acc, const long n"
        self._function(out, f"template <class Tail> static inline {kind} {name}({own}) {{", [*scope.lines, f"return {result};"])

    def _of_block(self, out: Writer) -> None:
        """A function that writes the ends of the keys to which queries from `first` to `last` may attend, and of those to which
        all do."""
        body, scope = self._body(), Scope(leave="return;")
        mask = self.scores.mask
        bounds = WHOLE if mask is None else Analysis(_opaque(body, scope)).bounds(mask)
        lines = list(scope.lines)
        lines += [f"keys[{k}] = {text.index(end)};" for k, end in enumerate(_ends(bounds)) if end is not None]
        places = ", ".join(f"const long {place}" for place in (BATCH, HEAD, *BLOCK))
        self._function(out, f"static inline void bounds({GIVEN}, {places}, long* keys) {{", lines)

    def _function(self, out: Writer, head: str, lines: list[str]) -> None:
        """A function with those of the kernel's arguments that its lines use."""
        named = set(re.findall(r"\w+", "\n".join(lines)))
        given = [line for line in arguments(self.kernel) if re.split(r"\W+", line.split(" = ")[0])[-1] in named]
        out.open(head)
        out.extend([*given, *lines])
        out.close("}")


def _ends(bounds: Bounds) -> tuple[sympy.Expr | None, ...]:
    """Where the keys to which some query attends begin and end, and those to which every query does; None means at the first and
    the last key. If nothing is known about the latter, the range is empty."""
    every = bounds.all if bounds.all is not None else Interval(high=sizes.ZERO)
    return bounds.some.low, bounds.some.high, every.low, every.high


def _opaque(body: Body, scope: Scope) -> Callable[[Node], Range | None]:
    """Values that are looked up once per block of rows; integers that differ between rows are not."""

    def of(node: Node) -> Range | None:
        if {QUERY, KEY} & expr.free_symbols(node):
            return None
        name = sympy.Symbol(body.bound(body.scalar(node, scope), scope), integer=True)
        return Range(name, name)

    return of
