"""The epilogue of a product as CUDA C++: a struct whose members are the epilogue's arguments, with a function from a sum and
its place to the value that C stores there.

    relu(A·B + bias)   →   struct Epilogue {
                               cutlass::bfloat16_t *e1; const cutlass::bfloat16_t *e0; long long n1;
                               Output *row(long long p0, long long p1) const { return e1 + p1*n1; }
                               float at(float sum, long long p0, long long p1, long long p2) const { ...; return t3; }
                           };
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sympy
import torch

from polytile.codegen import index_text
from polytile.codegen.emission import COMPARISONS, Emitter
from polytile.codegen.triton.tile import divides
from polytile.errors import LoweringError
from polytile.ir import expr, sizes
from polytile.ir.expr import Accumulator, Const, Index, Load, Node, Op
from polytile.ir.loop import Store
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.matmul.triton.unit import epilogue_kernel
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts

VALUES = {torch.float32: "float", torch.int32: "int", torch.int64: "long long", torch.int8: "int8_t", torch.bool: "bool"}
STORED = {**VALUES, torch.bfloat16: "cutlass::bfloat16_t", torch.float16: "cutlass::half_t"}
RESULTS = (torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.int8)
"""Types of C that `store` (product.h) writes."""

BOTH = {
    **{name: f"{{0}} {sign} {{1}}" for name, sign in COMPARISONS.items()},
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}",
    "minimum": "least({0}, {1})", "maximum": "greatest({0}, {1})",
}  # fmt: skip
FLOATS = {
    **BOTH,
    **{name: f"{name}f({{0}})" for name in "exp exp2 expm1 log log2 log1p sin cos tanh erf sqrt rsqrt floor ceil trunc".split()},
    "div": "{0} / {1}", "reciprocal": "1.0f / {0}", "fma": "fmaf({0}, {1}, {2})", "abs": "fabsf({0})", "round": "rintf({0})",
    "sigmoid": "1.0f / (1.0f + expf(-{0}))", "isnan": "{0} != {0}",
    "round_bf16": "float(cutlass::bfloat16_t({0}))", "round_f16": "float(cutlass::half_t({0}))",
}  # fmt: skip
INTEGERS = {**BOTH, "abs": "{0} < 0 ? -{0} : {0}", "fma": "{0} * {1} + {2}"}
BOOLS = {
    "logical_and": "{0} && {1}", "logical_or": "{0} || {1}", "logical_xor": "{0} != {1}", "logical_not": "!{0}",
    "where": "{0} ? {1} : {2}",
}  # fmt: skip
"""CUDA C++ of operations, by the type of their operands; {0}, {1}, ... are operands."""


@dataclass(frozen=True)
class Epilogue:
    """The text and what it is passed: the tensor that it stores into, those that it reads, integers. `place`: of C's first
    element in row p1 of item p0."""

    kernel: LoopKernel
    stored: str
    read: tuple[str, ...]
    symbols: tuple[str, ...]
    place: sympy.Expr
    lines: tuple[str, ...]
    value: str
    value_type: str

    @property
    def members(self) -> dict[str, str]:
        """Type of each argument by its name, in the order in which a launch passes them."""
        read = {name: f"const {STORED[self.kernel.storage(name)]} *__restrict__ " for name in self.read}
        return {self.stored: "Output *", **read, **dict.fromkeys(self.symbols, "long long ")}

    @property
    def output(self) -> str:
        return STORED[self.kernel.storage(self.stored)]

    def vectors(self, facts: Facts) -> bool:
        """Whether rows of C are known to begin at multiples of 16 bytes."""
        item, row, _ = (axis.symbol for axis in self.kernel.loop.axes)
        apart = [sizes.coefficient(self.place, axis) for axis in (item, row)]
        apart.append(sizes.substitute(self.place, {item: sizes.ZERO, row: sizes.ZERO}))
        known = all(part is not None and (part == 0 or divides(16, part, facts)) for part in apart)
        return known and self.stored in facts.aligned

    def text(self, sums: str) -> str:
        """The struct, and the macros by which the kernel (product.h) takes its members as parameters."""
        item, m, n = (f"long long {axis.symbol}" for axis in self.kernel.loop.axes)
        parameters = ", ".join(f"{kind}{name}" for name, kind in self.members.items())
        return "\n".join([
            f"#define EPILOGUE_PARAMETERS {parameters}",
            f"#define EPILOGUE_ARGUMENTS {', '.join(self.members)}",
            "struct Epilogue {",
            f"    static constexpr bool READS = {str(bool(self.read)).lower()};",
            *(f"    {kind}{name};" for name, kind in self.members.items()),
            f"    CUTLASS_DEVICE Output *row({item}, {m}) const {{ return {self.stored} + {_index(self.place)}; }}",
            f"    CUTLASS_DEVICE {self.value_type} at({sums} sum, {item}, {m}, {n}) const",
            "    {",
            *(f"        {line}" for line in self.lines),
            f"        return {self.value};",
            "    }",
            "};",
        ])  # fmt: skip


@functools.lru_cache(64)
def epilogue(kernel: GemmKernel) -> Epilogue:
    """What the kernel does with its sums. Raises LoweringError where that is not one store, row by row, of pointwise work that
    CUDA C++ has here."""
    inner = epilogue_kernel(kernel)
    loop = inner.loop
    if loop.reduced or len(loop.stores) != 1:
        raise LoweringError("an epilogue of CUTLASS's products has one store and no reductions.")
    (store,), (item, m, n) = loop.stores, (axis.symbol for axis in loop.axes)
    alone = {} if kernel.spec.batched else {item: sizes.ZERO}
    if store.mode != "set" or store.indirect or store.mask is not None or inner.storage(store.buffer) not in RESULTS:
        raise LoweringError(f"CUTLASS's products have no store like that into {store.buffer}.")
    place = sizes.substitute(store.index, alone)
    if sizes.coefficient(place, n) != 1:
        raise LoweringError("CUTLASS's products store rows whose elements lie side by side.")
    body, scope = _Body(inner, alone), _Scope()
    value = body.emit(store.value, scope)
    place = sizes.substitute(place, {n: sizes.ZERO})
    symbols = (body.symbols | place.free_symbols) - {item, m, n}
    return Epilogue(
        inner, store.buffer, tuple(body.read), tuple(sorted(s.name for s in symbols)), place, tuple(scope.lines), value,
        _value_type(store.value.dtype),
    )  # fmt: skip


_index = functools.partial(index_text.index, dialect=index_text.CPP)


@dataclass
class _Scope:
    lines: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)


class _Body(Emitter[_Scope]):
    """The value of one element, a local variable for each node; `read` and `symbols` collect what it takes. `alone`: the axes
    that have one point, and that point."""

    def __init__(self, kernel: LoopKernel, alone: Mapping[sympy.Symbol, sympy.Expr]) -> None:
        super().__init__(expr.walk(*kernel.loop.roots))
        self.kernel, self.alone = kernel, alone
        self.read: dict[str, None] = {}
        self.symbols: set[sympy.Symbol] = set()

    def _needed(self, node: Node) -> Sequence[Node]:
        return node.children

    def _one(self, node: Node, scope: _Scope) -> str:
        if isinstance(node, Const):
            return _number(node)
        value = "sum" if isinstance(node, Accumulator) else self._value(node, scope)
        scope.lines.append(f"const {_value_type(node.dtype)} {self.name(node)} = {value};")
        return self.name(node)

    def _place(self, index: sympy.Expr) -> str:
        index = sizes.substitute(index, self.alone)
        self.symbols |= index.free_symbols
        return _index(index)

    def _index_value(self, node: Index) -> str:
        return f"{_value_type(node.dtype)}({self._place(node.expr)})"

    def _load(self, node: Load, scope: _Scope) -> str:
        tensor = next(tensor for tensor in self.kernel.tensors if tensor.name == node.buffer)
        if node.indirect or node.mask is not None or tensor.dtype not in STORED or tensor.role != "in":
            raise LoweringError(f"epilogues of CUTLASS's products have no load like that of {node.buffer}.")
        self.read[node.buffer] = None
        return f"{_value_type(node.dtype)}({node.buffer}[{self._place(node.index)}])"

    def _operation(self, node: Op, scope: _Scope) -> str:
        source, args = node.args[0].dtype, [self.emit(arg, scope) for arg in node.args]
        if node.name == "cast":
            return _converted(args[0], source, node.dtype)
        table = BOOLS if source == torch.bool else FLOATS if source.is_floating_point else INTEGERS
        if node.name not in table:
            raise LoweringError(f"the operation {node.name!r} on {source} is not written in CUDA C++ here.")
        return table[node.name].format(*args)

    def _checked(self, node: Op, scope: _Scope) -> str:
        raise LoweringError("epilogues of CUTLASS's products check no indices.")

    _divisor = _checked

    def _store(self, store: Store, scope: _Scope) -> None:
        raise AssertionError("product.h stores what the epilogue computes")


def _value_type(dtype: torch.dtype) -> str:
    if dtype not in VALUES:
        raise LoweringError(f"values of type {dtype} are not computed in CUDA C++ here.")
    return VALUES[dtype]


def _converted(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """A value as torch converts it; a float becomes a narrow integer by the low bits of a wider one."""
    if target == torch.bool:
        return f"{value} != 0"
    kind = _value_type(target)
    return f"{kind}(int({value}))" if target == torch.int8 and source.is_floating_point else f"{kind}({value})"


def _number(node: Const) -> str:
    """A literal that can stand anywhere in an expression."""
    kind = _value_type(node.dtype)
    if not node.dtype.is_floating_point:
        return f"{kind}({int(node.value)})"
    said = repr(float(node.value))
    return f"__int_as_float({_BITS[said]})" if said in _BITS else f"({said}f)"


_BITS = {"inf": "0x7f800000", "-inf": "0xff800000", "nan": "0x7fffffff"}
"""The bits of float32 numbers that have no literal."""
