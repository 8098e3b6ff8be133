"""The verifier: a table of the rules that a legal program obeys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import sympy
import torch

from polytile.errors import IRError
from polytile.ir import divisions, expr, levels, ops, reductions, sizes
from polytile.ir.attention import SCORES, SLOPES, Attention
from polytile.ir.buffer import Buffer, View
from polytile.ir.dtypes import COMPUTE_DTYPE, compute_dtype
from polytile.ir.expr import Accumulator, Load, Node, Op, Part, Reduce, Scan
from polytile.ir.library_call import refs_in, views_in
from polytile.ir.loop import SEGMENT_SUM, Loop
from polytile.ir.program import Assert, Extern, Operation, Program
from polytile.ir.template import Template


@dataclass(frozen=True)
class Scope:
    """What is known before an operation runs: the program, the buffers that are filled, and the sizes whose values are known."""

    program: Program
    filled: frozenset[str]
    symbols: frozenset[sympy.Symbol]
    epilogue_of: Template | None = None

    def buffer(self, name: str) -> Buffer:
        if name not in self.program.buffers:
            raise IRError(f"buffer {name} is not declared")
        return self.program.buffers[name]


LoopCheck = Callable[[Loop, Scope], Iterator[str]]
OperationCheck = Callable[[Operation, Scope], Iterator[str]]


def verify(program: Program, after: str = "") -> None:
    """Check that a program is legal.

    Raises
    ------
    IRError
        If a rule is broken. The message names the pass (`after`), the operation and the rule.
    """
    symbols = frozenset(_input_symbols(program))
    filled = frozenset(program.input_buffers() | {n for n, b in program.buffers.items() if b.role == "constant"})
    for message in _program_faults(program):
        raise IRError(f"{_after(after)}program {program.name}: {message}.")
    for operation in program.operations:
        scope = Scope(program, filled, symbols)
        try:
            _check(operation, scope)
        except IRError as error:
            raise IRError(f"{_after(after)}{operation.name}: {error}.") from None
        filled |= operation.writes()
        if isinstance(operation, Extern):
            symbols |= {symbol for symbol, _ in operation.symbols}
        symbols |= {s for s, name in program.scalars.items() if name in filled}
    for output in program.outputs:
        if isinstance(output, View) and output.buffer not in filled:
            raise IRError(f"{_after(after)}program {program.name}: output {output.buffer} is never written.")


def _after(name: str) -> str:
    return f"after {name}: " if name else ""


def _check(operation: Operation, scope: Scope) -> None:
    for name, check in OPERATION_RULES.items():
        _raise(name, check(operation, scope))
    if isinstance(operation, Loop):
        _check_loop(operation, scope)
    if isinstance(operation, Template):
        for prologue in filter(None, operation.prologues):
            _check_loop(prologue, scope)
        if operation.epilogue is not None:
            _check_loop(operation.epilogue, Scope(scope.program, scope.filled, scope.symbols, operation))
    if isinstance(operation, Attention) and operation.scores is not None:
        for name in SCORE_RULES:
            _raise(name, LOOP_RULES[name](operation.scores, scope))


def _check_loop(loop: Loop, scope: Scope) -> None:
    for name, check in LOOP_RULES.items():
        _raise(name, check(loop, scope))


def _raise(rule: str, messages: Iterator[str]) -> None:
    for message in messages:
        raise IRError(f"{message} (rule: {rule})")


def _input_symbols(program: Program) -> Iterator[sympy.Symbol]:
    for item in program.inputs:
        if item.size is not None:
            yield from item.size.free_symbols
        if item.buffer is not None:
            buffer = program.buffers[item.buffer]
            for size in buffer.sizes + buffer.strides:
                yield from size.free_symbols


def _program_faults(program: Program) -> Iterator[str]:
    names = [operation.name for operation in program.operations]
    yield from (f"two operations are named {n}" for n in sorted({n for n in names if names.count(n) > 1}))
    for name, buffer in program.buffers.items():
        if name != buffer.name:
            yield f"buffer {buffer.name} is listed as {name}"
        if len(buffer.sizes) != len(buffer.strides):
            yield f"buffer {name} has {len(buffer.sizes)} sizes and {len(buffer.strides)} strides"
    for item in program.inputs:
        if item.buffer is not None and item.buffer not in program.buffers:
            yield f"input {item.name} has no buffer {item.buffer}"
    yield from (f"constant {n} is no buffer" for n in program.constants if n not in program.buffers)


# operations ----------------------------------------------------------------------------------------------------------


def _reads_filled(operation: Operation, scope: Scope) -> Iterator[str]:
    for name in sorted(operation.reads()):
        scope.buffer(name)
        if name not in scope.filled and not (isinstance(operation, Template) and name in operation.writes()):
            yield f"reads buffer {name}, which nothing has written yet"


def _writes_declared(operation: Operation, scope: Scope) -> Iterator[str]:
    for name in sorted(operation.writes()):
        if scope.buffer(name).role == "constant":
            yield f"writes the constant {name}"


def _views_fit(operation: Operation, scope: Scope) -> Iterator[str]:
    for view in _views(operation):
        buffer = scope.buffer(view.buffer)
        if len(view.sizes) != len(view.strides):
            yield f"a view of {view.buffer} has {len(view.sizes)} sizes and {len(view.strides)} strides"
        yield from _unknown(set().union(*[s.free_symbols for s in (*view.sizes, *view.strides, view.offset)]), scope)
        last = view.offset + sum(((n - 1) * s for n, s in zip(view.sizes, view.strides, strict=True)), sizes.ZERO)
        if view.dtype == buffer.dtype and _surely_outside(last, buffer):
            yield f"a view of {view.buffer} reaches element {last}"


def _views(operation: Operation) -> list[View]:
    if isinstance(operation, Template):
        return [operation.a, operation.b, operation.out, *(operation.second or ()), *operation.views_beside]
    if isinstance(operation, Attention):
        return list(operation.views)
    return list(views_in((operation.args, operation.kwargs))) if isinstance(operation, Extern) else []


def _unknown(symbols: set[sympy.Symbol], scope: Scope) -> Iterator[str]:
    for symbol in sorted(symbols - scope.symbols, key=str):
        yield f"uses the size {symbol}, whose value is not known here"


def _template_shape(operation: Operation, scope: Scope) -> Iterator[str]:
    if not isinstance(operation, Template):
        return
    a, b, out = operation.a.sizes, operation.b.sizes, operation.out.sizes
    if not len(a) == len(b) == len(out) == 3:
        yield f"views of {len(a)}, {len(b)} and {len(out)} dimensions; a product takes (batch, m, k) and (batch, k, n)"
        return
    pairs = {"batch": (a[0], out[0]), "batch of b": (b[0], out[0]), "m": (a[1], out[1]), "k": (a[2], b[1]), "n": (b[2], out[2])}
    if operation.grouping is not None:
        ends = operation.grouping.ends
        if operation.grouping.axis == "m":
            pairs["batch of b"] = b[0], ends.sizes[0]
        else:
            pairs |= {"batch": (out[0], ends.sizes[0]), "batch of b": (a[0], b[0])}
        if ends.dtype != torch.int32 or len(ends.sizes) != 1 or ends.strides != (1,):
            yield f"ends of groups are a dense vector of int32; these are {ends.dtype} of {len(ends.sizes)} dimensions"
    if operation.second is not None:
        p, q = (view.sizes for view in operation.second)
        pairs |= {"second batch": (p[0], out[0]), "second m": (p[1], out[1]), "l": (p[2], q[1]), "second n": (q[2], out[2])}
    if operation.scales is not None:
        left, right = operation.scales
        if left is not None:
            pairs["scales along k"] = (left.view.sizes[2], right.view.sizes[1])
        dtypes = [view.dtype for view in operation.scale_views]
        if any(dtype != torch.float32 for dtype in dtypes):
            yield f"scales of {' and '.join(map(str, dtypes))}; they are float32"
    for name, (one, other) in pairs.items():
        if not sizes.equal(one, other):
            yield f"the {name} sizes {one} and {other} differ"
    scope.buffer(operation.out.buffer)


def _sequences_shape(attention: Attention) -> Iterator[str]:
    """Check an attention over packed or paged sequences."""
    placed = attention.sequences
    assert placed is not None
    if placed.table is not None and placed.k_starts is not None:
        yield "keys are packed and in pages"
    rows = 4 - (placed.q_starts is not None)
    keys = 4 - (placed.k_starts is not None)
    for name, view, count in (
        ("q", attention.q, rows),
        ("out", attention.out, rows),
        ("k", attention.k, keys),
        ("v", attention.v, keys),
    ):
        if len(view.sizes) != count:
            yield f"{name} has {len(view.sizes)} dimensions; sequences that lie so take {count}"
            return
    for name, view in placed.named.items():
        wanted = placed.count + 1 if name.endswith("starts") else placed.count
        if not sizes.equal(view.sizes[0], wanted):
            yield f"{name} has {view.sizes[0]} entries, not {wanted}"
        if view.dtype not in (torch.int32, torch.int64):
            yield f"{name} is of {view.dtype}"
    pairs = [
        ("rows", attention.q.sizes[:-1], attention.out.sizes[:-1]),
        ("keys", attention.k.sizes[:-1], attention.v.sizes[:-1]),
    ]
    for name, one, other in [*pairs, ("d", attention.q.sizes[-1:], attention.k.sizes[-1:])]:
        if not all(map(sizes.equal, one, other)):
            yield f"the {name} {one} and {other} differ"


def _attention_shape(operation: Operation, scope: Scope) -> Iterator[str]:
    if not isinstance(operation, Attention):
        return
    if operation.sequences is not None:
        yield from _sequences_shape(operation)
        return
    by_rows = (operation.lse, operation.gradients.lse if operation.gradients is not None else None, operation.random)
    if any(len(view.sizes) != 4 for view in operation.views if not any(view is other for other in by_rows)):
        yield "attention takes views of four dimensions"
        return
    (batch, heads, m, d), (k_batch, k_heads, n, k_d), (v_batch, v_heads, v_n, v_d) = (
        view.sizes for view in (operation.q, operation.k, operation.v)
    )
    pairs = [
        ("batch", batch, k_batch), ("batch of v", batch, v_batch), ("heads of k and v", k_heads, v_heads), ("keys", n, v_n),
        ("d", d, k_d), *zip(("batch", "heads", "m", "d of v"), operation.out.sizes, (batch, heads, m, v_d), strict=True),
    ]  # fmt: skip
    if operation.bias is not None:
        pairs += zip(("bias batch", "bias heads", "bias m", "bias n"), operation.bias.sizes, (batch, heads, m, n), strict=True)
    if operation.random is not None:
        pairs.append(("seed and offset", operation.random.sizes[0], sympy.Integer(2)))
    if operation.gradients is not None:
        given, own = operation.gradients, (operation.out, operation.q, operation.k, operation.v)
        for gradient, of in zip((given.grad, given.dq, given.dk, given.dv), own, strict=True):
            pairs += zip((f"gradient's {d}" for d in "bhmd"), gradient.sizes, of.sizes, strict=True)
        if given.dscores is not None:
            pairs += zip((f"scores' gradient's {d}" for d in "bhmn"), given.dscores.sizes, (batch, heads, m, n), strict=True)
    if operation.scores is not None:
        extents = [axis.size for axis in operation.scores.axes + operation.scores.reduced]
        stored = tuple(store.buffer for store in operation.scores.stores)
        known = ((SCORES,),) if operation.gradients is None else ((SCORES,), (SCORES, SLOPES))
        if len(extents) != 4 or stored not in known:
            yield f"scores over {extents}, stored as {stored}; they are values over four axes"
            return
        pairs += zip(("scores' batch", "scores' heads", "scores' m", "scores' n"), extents, (batch, heads, m, n), strict=True)
    for name, one, other in pairs:
        if not sizes.equal(one, other):
            yield f"the {name} sizes {one} and {other} differ"


def _library_arguments(operation: Operation, scope: Scope) -> Iterator[str]:
    if not isinstance(operation, Extern):
        return
    if not callable(operation.target):
        yield f"target {operation.target!r} cannot be called"
    for size in refs_in((operation.args, operation.kwargs)):
        if isinstance(size, sympy.Expr):
            yield from _unknown(size.free_symbols, scope)
    for name in operation.outputs:
        if name is not None:
            scope.buffer(name)


def _assertion_known(operation: Operation, scope: Scope) -> Iterator[str]:
    if isinstance(operation, Assert) and isinstance(operation.condition, sympy.Basic):
        yield from _unknown(operation.condition.free_symbols, scope)


OPERATION_RULES: dict[str, OperationCheck] = {
    "a buffer is written before it is read": _reads_filled,
    "a constant is not written": _writes_declared,
    "a view lies inside its buffer": _views_fit,
    "a product's sizes agree": _template_shape,
    "attention's sizes agree": _attention_shape,
    "a library call's arguments are known": _library_arguments,
    "an assertion's sizes are known": _assertion_known,
}


# loops ---------------------------------------------------------------------------------------------------------------


def _does_something(loop: Loop, scope: Scope) -> Iterator[str]:
    if not loop.stores:
        yield "stores nothing"
    for store in loop.stores:
        scope.buffer(store.buffer)
        if store.mode not in ("set", "add", SEGMENT_SUM):
            yield f"has a store of mode {store.mode!r}"


def _sums(loop: Loop, scope: Scope) -> Iterator[str]:
    for store in loop.stores:
        if not store.is_segment_sum:
            continue
        if store.mask is not None and not store.indirect:
            yield f"the sums in {store.buffer} leave out points, but no places"
        if set(loop.ranges) <= store.index.free_symbols and not store.indirect:
            yield f"the sums in {store.buffer} are of one point each"
        if sum(other.buffer == store.buffer for other in loop.stores) > 1:
            yield f"the sums in {store.buffer} are stored by several stores"


def _one_definition(loop: Loop, scope: Scope) -> Iterator[str]:
    symbols = [a.symbol for a in loop.axes + loop.reduced]
    yield from (f"defines the axis {s} twice" for s in symbols if symbols.count(s) > 1)
    for axis in loop.axes + loop.reduced:
        yield from _unknown(axis.size.free_symbols, scope)


def _known_symbols(loop: Loop, scope: Scope) -> Iterator[str]:
    known = scope.symbols | set(loop.ranges)
    stores = [store.symbols() for store in loop.stores]
    for symbol in sorted(set().union(*stores) - known, key=str):
        yield f"uses {symbol}, which is neither one of its axes nor a known size"


def _types(loop: Loop, scope: Scope) -> Iterator[str]:
    for node in expr.walk(*loop.roots):
        if node.dtype in COMPUTE_DTYPE:
            yield f"computes in {node.dtype}; values of that type are computed in {COMPUTE_DTYPE[node.dtype]}"
        if isinstance(node, Op):
            yield from _op_types(node)
        if isinstance(node, Load):
            stored = scope.buffer(node.buffer).dtype
            if node.dtype != compute_dtype(stored) and node.dtype.itemsize != stored.itemsize:
                yield f"loads {node.dtype} from {node.buffer}, which holds {stored}"
            if node.mask is not None and node.mask.dtype != torch.bool:
                yield f"loads {node.buffer} under a mask of {node.mask.dtype}"
    for store in loop.stores:
        if store.mask is not None and store.mask.dtype != torch.bool:
            yield f"stores {store.buffer} under a mask of {store.mask.dtype}"


def _op_types(node: Op) -> Iterator[str]:
    definition = ops.definition(node.name)
    types = [a.dtype for a in node.args]
    if len(types) != definition.arity:
        yield f"{node.name} takes {definition.arity} arguments, has {len(types)}"
        return
    want = _EXPECTED.get(node.name)
    if want is not None:
        message = want(node)
        if message:
            yield f"{node.name} {message}"
    elif len(set(types)) > 1:
        yield f"{node.name} has arguments of types {', '.join(map(str, types))}"
    elif node.dtype != (torch.bool if definition.result == "bool" else types[0]):
        yield f"{node.name} of {types[0]} gives {node.dtype}"


def _where_types(node: Op) -> str:
    condition, a, b = (n.dtype for n in node.args)
    return "" if condition == torch.bool and a == b == node.dtype else f"of ({condition}, {a}, {b}) gives {node.dtype}"


def _bitcast_types(node: Op) -> str:
    same = node.args[0].dtype.itemsize == node.dtype.itemsize
    return "" if same else f"from {node.args[0].dtype} to {node.dtype}, of another width"


def _logical_types(node: Op) -> str:
    return "" if {a.dtype for a in (*node.args, node)} == {torch.bool} else "takes and gives bool"


def _random_types(node: Op) -> str:
    return "" if {a.dtype for a in node.args} == {torch.int64} else "takes an int64 seed and offset"


_EXPECTED: dict[str, Callable[[Op], str]] = {
    "where": _where_types,
    "cast": lambda node: "",
    "bitcast": _bitcast_types,
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "logical_not"), _logical_types),
    **dict.fromkeys(("philox_uniform", "philox_normal", "philox_int"), _random_types),
}


def _reductions(loop: Loop, scope: Scope) -> Iterator[str]:
    for node in expr.walk(*loop.roots):
        if isinstance(node, Reduce):
            yield from _arguments(node)
            if not loop.reduced:
                yield f"has a reduction ({node.kind}) but no reduced axis"
        if isinstance(node, Scan):
            yield from _arguments(node)
            if len(loop.reduced) != 1:
                yield f"has a scan ({node.kind}) over {len(loop.reduced)} reduced axes; a scan has one"


def _arguments(node: Reduce | Scan) -> Iterator[str]:
    takes = reductions.definition_of(node).arguments
    if len(node.args) != takes:
        yield f"{node.kind} takes {takes} arguments, has {len(node.args)}"


def _results(node: Node) -> int:
    return reductions.definition_of(node).results if isinstance(node, Reduce | Scan) else 1


def _parts(loop: Loop, scope: Scope) -> Iterator[str]:
    for root in loop.roots:
        if _results(root) > 1:
            yield "stores a value of several results without saying which part"
    for node in expr.walk(*loop.roots):
        if isinstance(node, Part):
            if not 0 <= node.k < _results(node.node) or _results(node.node) == 1:
                yield f"takes part {node.k} of a value of {_results(node.node)} results"
        elif any(_results(c) > 1 for c in node.children):
            yield "uses a value of several results without saying which part"


def _epilogue(loop: Loop, scope: Scope) -> Iterator[str]:
    template = scope.epilogue_of
    if template is None:
        if any(isinstance(n, Accumulator) for n in expr.walk(*loop.roots)):
            yield "reads the accumulator but is no epilogue"
        return
    if len(loop.reduced) > 1:
        yield "the epilogue has more reduced axes than n"
    shape = tuple(a.size for a in loop.axes + loop.reduced)
    if len(shape) != 3 or not all(sizes.equal(a, b) for a, b in zip(shape, template.out.sizes, strict=True)):
        yield f"the epilogue runs over {shape}, the product over {template.out.sizes}"


def _in_range(loop: Loop, scope: Scope) -> Iterator[str]:
    if any(axis.size == 0 for axis in loop.axes + loop.reduced):  # it accesses nothing
        return
    for access in loop.accesses():
        if access.mask is not None or access.indirect:
            continue
        name, index = access.buffer, access.index
        last = divisions.upper_bound(index, loop.ranges)
        if index.is_Integer and index < 0:
            yield f"reaches element {index} of {name}"
        if last is not None and _surely_outside(last, scope.buffer(name)):
            yield f"reaches element {last} of {name}, which has {sympy.expand(scope.buffer(name).storage_size)}"


def _surely_outside(last: sympy.Expr, buffer: Buffer) -> bool:
    """Whether element `last` is past the end of `buffer` for all sizes (all ≥ 1)."""
    return sizes.is_nonnegative(sympy.expand(last - buffer.storage_size))


def _in_place(loop: Loop, scope: Scope) -> Iterator[str]:
    fault = levels.in_place_fault(loop)
    if fault is not None:
        yield fault


LOOP_RULES: dict[str, LoopCheck] = {
    "a loop stores something": _does_something,
    "a sum is over axes that its index leaves out, or by an index": _sums,
    "an axis is defined once, by known sizes": _one_definition,
    "indices hold axes and known sizes only": _known_symbols,
    "types are as the table of operations says": _types,
    "reductions and scans have reduced axes": _reductions,
    "one part of several results is named": _parts,
    "an epilogue runs over its product's points": _epilogue,
    "indices stay inside their buffers": _in_range,
    "a buffer written in place is read at the same element, not later": _in_place,
}
SCORE_RULES = (
    "an axis is defined once, by known sizes", "types are as the table of operations says",
    "one part of several results is named",
)
"""The LOOP_RULES that apply to the scores of an Attention, which have no memory."""
