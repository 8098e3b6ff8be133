"""One attention launch under construction: where its program's tile is, what it loads, how scores are computed and weighted.

A tile has BLOCK_M rows, each a query of one head. In a plain tile they are queries of one query head. In a `packed` tile they are
those of all query heads that share a key head, query by query, so that few queries fill a tile. Rows past the end repeat the last
row and are never stored.

For sequences of varying length (attention/layout.py), `own_rows` and `own_keys` replace Mq and Mkv inside a program. What all
programs share, such as the grid, uses the longest sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sympy
import torch

from polytile.attention.bounds import FIRST, LAST, WHOLE, Analysis, Bounds, Range
from polytile.attention.layout import Layout
from polytile.attention.problem import AttentionProblem, symbol
from polytile.attention.scores import HEAD, KEY, QUERY, SCORE, Scores, narrowed, scores_of
from polytile.attention.triton.dropout import dropped, kept_lines, numbers
from polytile.codegen.triton import launch_text, text
from polytile.codegen.triton.body import Body, Scope
from polytile.codegen.triton.kernel import Launch
from polytile.codegen.triton.tile import Dim, Tile, blocks
from polytile.codegen.triton.unit import Grid
from polytile.codegen.writer import Writer
from polytile.errors import LoweringError
from polytile.ir import expr
from polytile.ir.expr import Const, Node
from polytile.ir.loop import Axis
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.facts import Facts
from polytile.schedule.nest import Form, Nest

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
SMALLEST = 16
"""Minimum size of a tensor core step: smaller heads are padded with zeros."""
KNOWN = ("D", "Dv", "Hq", "Hkv")
"""Sizes that must be known when text is generated."""


def padded(head: int) -> int:
    """The tile size that holds a head of this many elements."""
    return max(SMALLEST, 1 << (head - 1).bit_length()) if head else SMALLEST


@dataclass(frozen=True)
class Part:
    """A run of key tiles from `first` to `last`. `masked`: tiles may reach past the end, or hide keys from queries."""

    first: str
    last: str
    masked: bool


class Unit:
    """One launch; `out` collects the lines of its function. Raises LoweringError if the facts lack one of KNOWN."""

    def __init__(self, problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> None:
        if missing := [name for name in KNOWN if name not in facts.values]:
            raise LoweringError(f"attention of unknown {', '.join(missing)} has no Triton form; it runs as a library call.")
        self.problem, self.config, self.facts, self.chip = problem, config, facts, chip
        self.out, self.scope = Writer("    "), Scope()
        values = facts.values
        self.group = values["Hq"] // max(1, values["Hkv"])
        self.packed = bool(config.get("packed"))
        self.constants = {
            "BLOCK_M": int(config["m"]), "BLOCK_N": int(config["n"]),
            "BLOCK_D": padded(values["D"]), "BLOCK_DV": padded(values["Dv"]),
        }  # fmt: skip
        self.scratch_types: dict[int, torch.dtype] = {}
        self.layout = problem.layout or Layout()
        self.own = {
            symbol(name): sympy.Symbol(own, integer=True)
            for name, own, there in (
                ("Mq", "own_rows", self.layout.own_rows),
                ("Mkv", "own_keys", self.layout.own_keys),
            )
            if there
        }
        self.scores = self._own_lengths(narrowed(scores_of(problem)))
        of_rows = self._axes(HEAD, QUERY) if self.packed else self._axes(QUERY)
        self.rows = Dim("BLOCK_M", of_rows, self.constants["BLOCK_M"], whole=1)  # whole: no point is out of bounds
        self.keys = Dim("BLOCK_N", self._axes(KEY), self.constants["BLOCK_N"])
        self.tiles = {masked: self._tile(not masked) for masked in (True, False)}
        self.body = Body(self.scores.kernel, self.tiles[True], facts)
        self.scale = problem.scale if problem.scale is not None else max(1, values["D"]) ** -0.5
        self.body.overrides[id(SCORE)] = lambda scope: f"s * {self.scale!r}" if self.scale != 1 else "s"

    def _own_lengths(self, scores: Scores) -> Scores:
        """Scores in terms of the lengths of the program's own sequence."""
        if not self.own:
            return scores
        return scores.mapped(lambda part: expr.map_indices((part,), lambda e: e.xreplace(self.own))[0])

    def _axes(self, *symbols: sympy.Symbol) -> tuple[Axis, ...]:
        axes = {axis.symbol: axis for axis in self.scores.kernel.loop.axes}
        return tuple(axes[symbol] for symbol in symbols)

    def _tile(self, whole: bool) -> Tile:
        """The tile of scores. Rows are never masked: those past the end repeat the last row."""
        loop = self.scores.kernel.loop
        outer = tuple(Dim(f"P{k}", (axis,), 1) for k, axis in enumerate(loop.axes[:2]) if axis not in self.rows.axes)
        nest = Nest(loop, Form.POINTWISE, loop.axes[3], loop.axes[:3], ())
        return Tile(nest, self.facts, (*outer, self.rows, self.keys), (), whole=whole)

    # places ------------------------------------------------------------------------------------------------------------

    def number(self, name: str) -> str:
        """An integer argument as text: its value if the facts know it. Numbers of rows and keys are those of the program's
        sequence."""
        own = self.own.get(symbol(name))
        return str(own) if own is not None else self.most(name)

    def most(self, name: str) -> str:
        """The same, with the rows and keys of the longest sequence."""
        return str(self.facts.values.get(name, name))

    def wide(self, value: str) -> str:
        return f"({value}).to(tl.int64)" if self.facts.wide else value

    @property
    def row_count(self) -> sympy.Expr:
        """Rows of a head: of a query head in plain tiles, of a key head in packed ones."""
        return symbol("Mq") * self.group if self.packed else symbol("Mq")

    @property
    def heads(self) -> sympy.Expr:
        """Number of heads with their own tiles of rows."""
        return symbol("B") * (symbol("Hkv") if self.packed else symbol("Hq"))

    def index(self, e: sympy.Expr) -> str:
        return self.body.index(e)

    def place(self, tile: str, head: str) -> None:
        """Emit the position of tile number `tile` of head number `head`: `p0` to `p2`, `kv` (the key head), `rows`, and the
        tile's `first` and `last` query."""
        line, count = self.out.line, self.index(self.row_count.xreplace(self.own))
        own = self.number("Hkv" if self.packed else "Hq")
        line(f"p0 = {self.wide(f'({head}) // {own}')}")
        line(f"head = {self.wide(f'({head}) % {own}')}")
        self.sequence()
        line(f"start = {self.wide(tile)} * BLOCK_M")
        line("rows = start + tl.arange(0, BLOCK_M)")
        line(f"inside = rows < {count}")
        line(f"row = tl.minimum(rows, {count} - 1)" if not self.layout.own_rows else "row = tl.where(inside, rows, 0)")
        if self.layout.own_rows:
            line(f"busy = start < {count}")
        ends = f"tl.minimum(start + BLOCK_M, {count}) - 1"
        if not self.packed:
            line("p1 = head")
            line(f"kv = head // {self.group}" if self.group > 1 else "kv = head")
            line("p2 = row[:, None]")
            line("first = start")
            line(f"last = {ends}")
            return
        line("kv = head")
        line(f"p1 = (head * {self.group} + row % {self.group})[:, None]")
        line(f"p2 = (row // {self.group})[:, None]")
        line(f"first = start // {self.group}")
        line(f"last = ({ends}) // {self.group}")

    def sequence(self) -> None:
        """Emit the starts and lengths of the rows and keys of sequence `p0`."""
        line, layout = self.out.line, self.layout
        for name, begin, count in (("q_starts", "first_row", "own_rows"), ("k_starts", "first_key", "own_keys")):
            if getattr(layout, name) is not None:
                at, step = f"{name}_at", self.number(f"{name}_stride_e")
                line(f"{at} = {name} + p0.to(tl.int64) * {step}")
                line(f"{begin} = tl.load({at}).to(tl.int64)")
                line(f"{count} = tl.maximum(tl.load({at} + {step}).to(tl.int64) - {begin}, 0){self._short}")
        if layout.k_used is not None:
            used = f"tl.load(k_used + p0.to(tl.int64) * {self.number('k_used_stride_b')})"
            most = "own_keys" if layout.k_starts is not None else self._room
            line(f"own_keys = tl.maximum(tl.minimum({used}, {most}), 0){self._short}")

    @property
    def _short(self) -> str:
        return "" if self.facts.wide else ".to(tl.int32)"

    @property
    def _room(self) -> str:
        """The number of keys that a sequence has memory for."""
        return f"{self.number('Slots')} * {self.number('Page')}" if self.layout.table is not None else self.most("Mkv")

    def base(self, name: str, head: str) -> str:
        """The address of the first element of a head of the program's sequence."""
        axes, text = self.problem.axes(name), name
        if axes[0] == "b":
            text += f" + p0.to(tl.int64) * {self.number(f'{name}_stride_b')}"
        elif axes[0] == "h":
            begin, axis = ("first_row", "m") if "m" in axes else ("first_key", "n")
            text += f" + {begin} * {self.number(f'{name}_stride_{axis}')}"
        return text + f" + {head}.to(tl.int64) * {self.number(f'{name}_stride_h')}"

    def along_head(self, name: str, position: str) -> str:
        """The offset of elements at `position` along a head of a tensor."""
        dense = name not in ("q", "k", "v") or self.problem.dense["qkv".index(name)]
        return position if dense else f"{position} * {self.number(f'{name}_stride_d')}"

    def head_mask(self, size: str, position: str) -> list[str]:
        """The mask for the padding of a head; empty if the head fills the tile."""
        block = "BLOCK_D" if size == "D" else "BLOCK_DV"
        return [f"({position} < {self.facts.values[size]})"] if self.facts.values[size] < self.constants[block] else []

    def load(self, pointer: str, masks: Iterable[str], zero: str = "0.0") -> str:
        joined = " & ".join(masks)
        return f"tl.load({pointer}" + (f", mask={joined}, other={zero})" if joined else ")")

    def rows_of(self, *masks: str) -> list[str]:
        """The masks for loads of the tile's rows. An empty sequence has no row to repeat, so its rows are masked."""
        return [*(["inside[:, None]"] if self.layout.own_rows else []), *masks]

    def queries(self, name: str, size: str, variable: str) -> None:
        """Emit a load of the tile's rows of q, or of a tensor with the same layout."""
        block = "BLOCK_D" if size == "D" else "BLOCK_DV"
        along = f"tl.arange(0, {block})[None, :]"
        stride = self.number(f"{name}_stride_m")
        self.out.line(f"{variable}_at = {self.base(name, 'p1')}")
        pointer = f"{variable}_at + p2 * {stride} + {self.along_head(name, along)}"
        self.out.line(f"{variable} = {self.load(pointer, self.rows_of(*self.head_mask(size, along)))}")

    def keys_at(self) -> None:
        """Emit pointers to the first tile of keys and of values."""
        for name, size in (("k", "BLOCK_D"), ("v", "BLOCK_DV")):
            along = self.along_head(name, f"tl.arange(0, {size})[None, :]")
            rows = self.wide("tl.arange(0, BLOCK_N)") + f"[:, None] * {self.number(f'{name}_stride_n')} + "
            rows = "" if self.layout.table is not None else rows
            self.out.line(f"{name}_at = {self.base(name, 'kv')} + {rows}{along}")

    def pages(self, masked: bool) -> list[str]:
        """The pages, and the positions inside them, of the tile of keys that begins at j."""
        if self.layout.table is None:
            return []
        page, slots = self.facts.values.get("Page"), f"table + p0.to(tl.int64) * {self.number('table_stride_b')}"
        whole = page is not None and page % self.constants["BLOCK_N"] == 0
        keys = "j" if whole else f"(j + {self.wide('tl.arange(0, BLOCK_N)')})"
        mask = [f"({keys} < {self.number('Mkv')})"] if masked and not whole else []
        at = f"{slots} + {keys} // {self.number('Page')} * {self.number('table_stride_s')}"
        return [
            f"page = {self.load(at, mask, zero='0')}.to(tl.int64)",
            f"page = page + tl.where(page < 0, {self.number('Pages')}, 0)",
            f"place = (j + {self.wide('tl.arange(0, BLOCK_N)')}) % {self.number('Page')}",
        ]

    def key_block(self, name: str, size: str, masked: bool) -> str:
        """A load of the tile of keys or values that begins at j."""
        block = "BLOCK_D" if size == "D" else "BLOCK_DV"
        masks = self.head_mask(size, f"tl.arange(0, {block})[None, :]")
        if masked:
            masks = [f"(j + tl.arange(0, BLOCK_N)[:, None] < {self.number('Mkv')})", *masks]
        stride = self.number(f"{name}_stride_n")
        if self.layout.table is None:
            return self.load(f"{name}_at + j * {stride}", masks)
        return self.load(f"{name}_at + (page * {self.number(f'{name}_stride_p')} + place * {stride})[:, None]", masks)

    def rows_that_see(self) -> Bounds:
        """Bounds of the queries that attend to some key, and to all keys, of the tile that begins at j. A mask bounds them as it
        bounds the keys of a query, with positions exchanged."""
        if self.scores.mask is None:
            return WHOLE
        turned = {QUERY: KEY, KEY: QUERY}
        (mask,) = expr.map_indices((self.scores.mask,), lambda e: e.xreplace(turned))
        j = sympy.Symbol("j", integer=True)
        ends = {FIRST: j, LAST: j + self.constants["BLOCK_N"] - 1}
        rows = Analysis().bounds(mask)
        some, every = (None if each is None else each.mapped(lambda end: end.xreplace(ends)) for each in (rows.some, rows.all))
        assert some is not None
        return Bounds(some, every)

    # keys --------------------------------------------------------------------------------------------------------------

    def hoist(self) -> None:
        """Emit the loop-invariant parts of scores and masks."""
        for node in self.body.nest.nodes:
            if not isinstance(node, Const) and node is not SCORE and self.keys not in self.body.dims(node):
                if not any(below is SCORE for below in expr.walk(node)):
                    self.body.emit(node, self.scope)
        self.flush(self.scope)

    def flush(self, scope: Scope) -> None:
        self.out.extend(scope.lines)
        scope.lines.clear()

    def bounds(self) -> Bounds:
        """Bounds of the keys that the tile's queries attend to. Emits the values that the bounds use."""
        mask = self.scores.mask
        bounds = WHOLE if mask is None else Analysis(self._opaque).bounds(mask)
        self.flush(self.scope)
        return bounds

    def _opaque(self, node: Node) -> Range:
        """Emit the minimum and maximum over the tile's rows of an integer that no expression describes."""
        name = self.body.emit(node, self.scope)
        if not self.body.dims(node):
            same = sympy.Symbol(name, integer=True)
            return Range(same, same)
        symbols = []
        for end in ("min", "max"):
            self.scope.lines.append(f"{name}_{end} = tl.{end}(tl.ravel({name}), 0)")
            symbols.append(sympy.Symbol(f"{name}_{end}", integer=True))
        return Range(*symbols)

    def parts(self, bounds: Bounds, split: bool = False, size: str = "Mkv", block: str = "BLOCK_N") -> list[Part]:
        """Emit the ends of up to three runs of key tiles; in the middle run, every query attends to every key.

        With `split`, the program processes only share number `part` of `parts` of the keys. With another `size` and `block`, the
        runs are tiles of queries.
        """
        line, keys = self.out.line, self.number(size)
        some, every = bounds.some, bounds.all
        line("lo = " + ("0" if some.low is None else f"tl.maximum({self.index(some.low)}, 0) // {block} * {block}"))
        line("hi = " + (keys if some.high is None else f"tl.minimum({keys}, {self.index(some.high)})"))
        if self.layout.own_rows:
            line("hi = tl.where(busy, hi, lo)")
        if split:
            line("share = tl.cdiv(tl.cdiv(tl.maximum(hi - lo, 0), BLOCK_N), parts) * BLOCK_N")
            line("lo += part * share")
            line("hi = tl.minimum(hi, lo + share)")
        if every is None:
            return [Part("lo", "hi", True)]
        if every.low is not None:  # no run may begin ahead of the first
            line("hi = tl.maximum(lo, hi)")
        line("whole_hi = " + ("hi" if every.high is None else f"tl.minimum(hi, {self.index(every.high)})"))
        if every.low is None:
            line("whole_lo = lo")
        else:
            low = f"tl.maximum({self.index(every.low)}, 0)"
            line(f"whole_lo = tl.minimum(tl.maximum(tl.cdiv({low}, {block}) * {block}, lo), hi)")
        line(f"whole_hi = tl.maximum(whole_lo, tl.maximum(whole_hi, 0) // {block} * {block})")
        before = [Part("lo", "whole_lo", True)] if every.low is not None else []
        return [*before, Part("whole_lo", "whole_hi", False), Part("whole_hi", "hi", True)]

    # scores ------------------------------------------------------------------------------------------------------------

    @property
    def folded(self) -> bool:
        """Whether scores stay raw products until they are exponentiated: the scale and the base of the exponential are one
        factor."""
        return self.scores.score is None and self.scale > 0

    @property
    def may_hide(self) -> bool:
        """Whether all scores of a row in a tile may be -inf."""
        return not self.folded or self.scores.mask is not None

    def score_lines(self, masked: bool) -> list[str]:
        """Lines that turn the products `s` into scores in units of `unit`, with -inf for masked keys, and that compute their
        `slope`, with 0 for these, if it is not 1."""
        self.body.tile = self.tiles[masked]
        scope = self.scope.inner()
        lines, mask = scope.lines, self.scores.mask
        lines.append(f"p3 = {self.key_places}")
        conditions = []
        if masked:
            lines.append(f"in_p3 = p3 < {self.number('Mkv')}")
            conditions.append("in_p3")
            if mask is not None:
                conditions.append(f"({self.body.emit(mask, scope)})")
        seen = " & ".join(conditions)
        if self.scores.slope is not None:
            slope = self.body.emit(self.scores.slope, scope)
            lines.append(f"slope = tl.where({seen}, {slope}, 0.0)" if conditions else f"slope = {slope}")
        if self.scores.score is not None:
            lines.append(f"s = {self.body.emit(self.scores.score, scope)}")
        elif not self.folded:
            lines.append(f"s = s * {self.scale!r}")
        if conditions:
            lines.append(f's = tl.where({seen}, s, float("-inf"))')
        return lines

    @property
    def key_places(self) -> str:
        """The positions of a tile's keys, along the tile's axis of keys."""
        return f"(j + {self.key_positions})[None, :]"

    @property
    def key_positions(self) -> str:
        """The positions of a tile's keys in the tile."""
        return self.wide("tl.arange(0, BLOCK_N)")

    @property
    def unit(self) -> float:
        """The factor that turns scores into exponents of 2."""
        return LOG2E * (self.scale if self.folded else 1.0)

    def dot(self, a: str, b: str, acc: str = "") -> str:
        """A product of tiles. float32 operands use three TF32 products (3xTF32), unless they may be rounded to TF32."""
        options = ""
        if self.problem.dtype == torch.float32:
            options = f', input_precision="{"tf32" if self.problem.tf32 else "tf32x3"}"'
        return f"tl.dot({a}, {b}{', ' + acc if acc else ''}{options})"

    def step(self, masked: bool) -> list[str]:
        """The body of the loop over keys: product, scores, weights, accumulators."""
        weights = f"{dropped(self, 'p')}.to({text.value_type(self.problem.dtype)})"
        return [
            "j = tl.multiple_of(j, BLOCK_N)",
            *self.pages(masked),
            f"k_block = {self.key_block('k', 'D', masked)}",
            f"s = {self.dot('q_block', 'k_block.T')}",
            *self.score_lines(masked),
            *self.weights(masked),
            "total = total * alpha + tl.sum(p, 1)",
            "acc = acc * alpha[:, None]",
            f"v_block = {self.key_block('v', 'Dv', masked)}",
            *kept_lines(self),
            f"acc = {self.dot(weights, 'v_block', 'acc')}",
            "high = most",
        ]

    def weights(self, masked: bool) -> list[str]:
        """Lines that turn scores into weights `p`: the new maximum `most`, and the factor `alpha` of earlier sums."""
        unit = repr(self.unit)
        # The running maximum is kept as an exponent if exponents are a multiple of the products, else as a score.
        most = f"tl.max(s, 1) * {unit}" if self.folded else "tl.max(s, 1)"
        lines, base = [f"most = tl.maximum(high, {most})"], "most"
        if (self.may_hide and masked) or not self.folded:
            lines.append('base = tl.where(most == float("-inf"), 0.0, most)')
            base = "base"
        if self.folded:
            return [*lines, f"p = tl.exp2(s * {unit} - {base}[:, None])", f"alpha = tl.exp2(high - {base})"]
        return [*lines, f"p = tl.exp2((s - {base}[:, None]) * {unit})", f"alpha = tl.exp2((high - {base}) * {unit})"]

    def loop(self, split: bool = False) -> None:
        """Emit the loop over keys. It leaves each row's weighted sum of values in `acc`, the sum of weights in `total`, and the
        maximum score in `high`."""
        self.keys_at()
        numbers(self)
        self.hoist()
        self.out.line('high = tl.full([BLOCK_M], float("-inf"), tl.float32)')
        self.out.line("total = tl.zeros([BLOCK_M], tl.float32)")
        self.out.line("acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)")
        for part in self.parts(self.bounds(), split):
            with self.out.indented(f"for j in range({part.first}, {part.last}, BLOCK_N):"):
                self.out.extend(self.step(part.masked))

    @property
    def logarithm(self) -> str:
        """The natural log-sum-exp of each row; -inf without keys."""
        return f"(high + tl.log2(total)) * {LN2}" if self.folded else f"high + tl.log2(total) * {LN2}"

    @property
    def divisor(self) -> str:
        """The divisor of the weighted sum. Without any key the result is 0; a row whose keys are all masked gives 0 or NaN."""
        nothing = "total == 0" if self.problem.empty_is_0 else f"(total == 0) & ({self.number('Mkv')} == 0)"
        return f"tl.where({nothing}, 1.0, total)"

    # text --------------------------------------------------------------------------------------------------------------

    def scratch(self, number: int, dtype: torch.dtype) -> str:
        """The name of scratch buffer `number`."""
        self.scratch_types[number] = dtype
        return f"scratch{number}"

    def launch(self, grid: Grid, warps: int | None = None) -> Launch:
        """The finished launch over `grid` programs."""
        problem, facts, config = self.problem, self.facts, self.config
        lines = launch_text.with_quotients(self.out.lines, problem.symbols, self.body.quotients, facts)
        lines = [*launch_text.WAIT, *lines] if self.chip.overlaps else lines
        given = launch_text.arguments(problem.tensors, problem.size_names, self.scratch_types, facts, self.body.error)
        words = launch_text.words(lines)
        constants = {name: value for name, value in self.constants.items() if name in words}
        return launch_text.launch(
            [f"# {line}" for line in f"{problem.text}; {config}".splitlines()], lines,
            [each for each in given if each.name in words], constants, facts,
            self.chip.overlaps, num_warps=warps or int(config["warps"]), num_stages=int(config["stages"]), grid=grid,
        )  # fmt: skip


def row_blocks(unit: Unit) -> sympy.Expr:
    """Number of row tiles of a head."""
    return blocks(unit.row_count, unit.constants["BLOCK_M"])
